// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
	"strings"
	"time"
)

// Reason is the reason for a refusal. The set of reasons is closed.
type Reason uint8

// The reasons.
const (
	Busy             Reason = iota + 1 // no capacity now: at the callee, for this caller, or on the node
	Cycle                              // the target's agent is among the callers
	WaitCycle                          // the waits would form a cycle
	Depth                              // too many calls above this one
	Deadline                           // the deadline has passed
	NotFound                           // no such agent, run or tool
	Rejected                           // the target rejected the call
	Unavailable                        // the target cannot answer now
	Stopped                            // cancelled
	Budget                             // the budget of the tree is used up
	Invalid                            // malformed input
	Unknown                            // the outcome cannot be determined
	NoDevice                           // no client that can perform the operation is online
	EventsExceeded                     // the run, or an answer that it received, has too many events
	ModelAuth                          // the provider of a model rejected the key
	ModelNotFound                      // no such model, here or at its provider
	ModelRejected                      // the provider rejected the request
	ApprovalRejected                   // a person rejected the tool call
	ApprovalDecided                    // the approval has been decided already
	PolicyBlocked                      // the policy does not allow the tool call
)

// Scope identifies the party whose limit caused a Busy refusal.
type Scope uint8

// The scopes. Only Busy has one.
const (
	NoScope Scope = iota
	ScopeCaller
	ScopeCallee
	ScopeNode
)

var scopeNames = [...]string{ScopeCaller: "caller", ScopeCallee: "callee", ScopeNode: "node"}

// String returns the name of the scope; the name of NoScope is empty.
func (s Scope) String() string {
	if s == NoScope {
		return ""
	}
	return nameOf(scopeNames[:], int(s))
}

// Refusal is a typed, expected failure. It has a sentence for people, which MUST
// NOT be parsed.
type Refusal struct {
	Reason     Reason
	Scope      Scope    // Busy only
	What       What     // NotFound only: what does not exist
	Detail     string   // sentence for people
	Field      string   // Invalid only: offending input field, if there was one
	Chain      []ID     // path that formed a cycle, was too deep, or timed out
	RetryAfter Duration // minimum delay before a retry; 0 if a retry alone does not help
	Code       string   // code that the callee gave of its own, such as FILE_NOT_FOUND; not with Deadline
	Operation  string   // Deadline only: "invoke <actor> <operation>"
	Timeout    Duration // Deadline only: time the operation was given
}

// ReasonInfo lists the names of a reason on each external surface. It is one row
// of the table in docs/errors.md.
type ReasonInfo struct {
	Name   string // name in Go and in histories
	Error  string // name of the error in agents' records
	Code   string // CATEGORY_SPECIFIC_ERROR of the request envelope
	Status string // status word of routed answers
	Type   string // code of problem+json
	HTTP   int
}

var reasons = [...]ReasonInfo{
	Busy:        {"Busy", "AgentBusy", "CAPACITY_AGENT_BUSY", "error", "agent_busy", 429},
	Cycle:       {"Cycle", "cycle detected", "ROUTING_CYCLE_DETECTED", "error", "call_cycle", 409},
	WaitCycle:   {"WaitCycle", "wait cycle", "ROUTING_WAIT_CYCLE", "error", "call_wait_cycle", 409},
	Depth:       {"Depth", "Maximum call depth exceeded", "ROUTING_DEPTH_EXCEEDED", "error", "call_depth", 409},
	Deadline:    {"Deadline", "AgentCallTimeout", "EXECUTION_TIMEOUT", "timeout", "timeout", 504},
	NotFound:    {"NotFound", "AgentNotFound", "ROUTING_AGENT_NOT_FOUND", "error", "agent_not_found", 404},
	Rejected:    {"Rejected", "AgentCallRejected", "ROUTING_CALL_REJECTED", "error", "call_rejected", 403},
	Unavailable: {"Unavailable", "Unavailable", "ROUTING_AGENT_UNAVAILABLE", "error", "agent_unavailable", 503},
	Stopped:     {"Stopped", "Failed", "EXECUTION_CANCELLED", "error", "cancelled", 409},
	Budget:      {"Budget", "BudgetExceeded", "CAPACITY_BUDGET_EXCEEDED", "error", "budget_exceeded", 402},
	Invalid:     {"Invalid", "InvalidInput", "INPUT_VALIDATION_FAILED", "error", "invalid_request", 400},
	Unknown:     {"Unknown", "AgentReplyLost", "EXECUTION_OUTCOME_UNKNOWN", "error", "outcome_unknown", 502},
	NoDevice:    {"NoDevice", "NoDevice", "CAPACITY_NO_DEVICE", "error", "client_offline", 409},

	EventsExceeded: {"EventsExceeded", "EventsExceeded", "CAPACITY_EVENTS_EXCEEDED", "error", "events_exceeded", 402},

	ModelAuth:     {"ModelAuth", "ModelAuthFailed", "EXECUTION_MODEL_AUTH", "error", "model_auth", 502},
	ModelNotFound: {"ModelNotFound", "ModelNotFound", "EXECUTION_MODEL_NOT_FOUND", "error", "model_not_found", 502},
	ModelRejected: {"ModelRejected", "ModelRequestRejected", "EXECUTION_MODEL_REJECTED", "error", "model_rejected", 502},

	ApprovalRejected: {"ApprovalRejected", "ApprovalRejected", "EXECUTION_APPROVAL_REJECTED", "error", "approval_rejected", 403},
	ApprovalDecided:  {"ApprovalDecided", "ApprovalDecided", "ROUTING_APPROVAL_DECIDED", "error", "approval_decided", 409},
	PolicyBlocked:    {"PolicyBlocked", "PolicyBlocked", "EXECUTION_POLICY_BLOCKED", "error", "policy_blocked", 403},
}

// Reasons returns all reasons in order.
func Reasons() []Reason {
	all := make([]Reason, 0, len(reasons)-1)
	for r := Busy; int(r) < len(reasons); r++ {
		all = append(all, r)
	}
	return all
}

// String returns the name of the reason.
func (r Reason) String() string {
	if r == 0 || int(r) >= len(reasons) {
		return fmt.Sprintf("unknown(%d)", int(r))
	}
	return reasons[r].Name
}

// Info returns the reason's row of the table.
func (r Reason) Info() ReasonInfo {
	if r == 0 || int(r) >= len(reasons) {
		return ReasonInfo{Name: r.String(), Error: "Internal", Code: "EXECUTION_INTERNAL", Status: "error", Type: "internal", HTTP: 500}
	}
	return reasons[r]
}

// StorageField is the field of a refusal of new work because the disk has little space left, or because
// a user has most of it.
const StorageField = "storage"

// narrow lists the refusals whose field is narrower than their reason, with the names that replace
// those of the reason.
var narrow = [...]struct {
	reason      Reason
	field       string
	error, code string
	http        int
}{
	{Rejected, BusyField, "SessionBusy", "session_busy", 409},
	{Rejected, "tool_call_id", "ToolCallEnded", "tool_call_ended", 409},
	{Rejected, "version", "ContextVersion", "context_version", 409},
	{Unavailable, StorageField, "StorageFull", "storage_full", 503},
	{Rejected, StorageField, "StorageShare", "storage_share", 507},
}

// Info returns the names of the refusal on each external surface: those of its reason, or
// narrower ones by what it is about or by its field.
func (r *Refusal) Info() ReasonInfo {
	out := r.Reason.Info()
	if r.Reason == NotFound {
		w := &whats[r.What]
		out.Error, out.Type, out.HTTP = w.error, w.code, w.http
		return out
	}
	if r.Field != "" {
		for i := range narrow {
			if n := &narrow[i]; n.reason == r.Reason && n.field == r.Field {
				out.Error, out.Type, out.HTTP = n.error, n.code, n.http
			}
		}
	}
	return out
}

// FallbackField begins the field of a refusal of a tool that was not performed, and in whose place another one can
// be called. The name of that one follows.
const FallbackField = "fallback/"

// Fallback returns the name of the tool that can be called in place of one that was not performed; "": there is none.
func (r *Refusal) Fallback() string {
	if r == nil {
		return ""
	}
	if name, ok := strings.CutPrefix(r.Field, FallbackField); ok {
		return name
	}
	return ""
}

// ContentField is the field of the refusal of a model, or of an external agent, whose prompt was too long.
const ContentField = "content"

// TooLong reports whether a model, or an external agent, refused a prompt because it was too long.
func (r *Refusal) TooLong() bool {
	return r != nil && r.Field == ContentField && (r.Reason == ModelRejected || r.Reason == Rejected)
}

// RetrySeconds returns the minimum delay before a retry in whole seconds, rounded up; 0 if a retry alone does not help.
func (r *Refusal) RetrySeconds() int64 {
	return int64((max(r.RetryAfter, 0) + time.Second - 1) / time.Second)
}

// HTTP returns the HTTP status code of the refusal: 503 for a full node, 429 for a
// full agent.
func (r *Refusal) HTTP() int {
	if r.Reason == Busy && r.Scope == ScopeNode {
		return 503
	}
	return r.Info().HTTP
}

// Error returns the name and the sentence, as in
// "cycle detected: Cycle detected: a already in call chain".
func (r *Refusal) Error() string {
	name := r.Reason.Info().Error
	if r.Reason == Deadline {
		name += " (timeout)"
	}
	if r.Detail == "" {
		return name
	}
	return name + ": " + r.Detail
}

// Refuse returns a refusal with a formatted sentence.
func Refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Detail: fitDetail(format, args...)}
}

// fitDetail formats a sentence and reduces it to the limits of the codec, whatever
// the arguments.
func fitDetail(format string, args ...any) string {
	return FitText(fmt.Sprintf(format, args...), TextBytesMax)
}

// RefuseBusy returns a refusal for a full mailbox, caller or node. A retry after
// the given time may succeed.
func RefuseBusy(scope Scope, retryAfter Duration, format string, args ...any) *Refusal {
	return &Refusal{Reason: Busy, Scope: scope, RetryAfter: retryAfter, Detail: fitDetail(format, args...)}
}

// RefuseUnavailable returns a refusal for a target that cannot answer now. A retry after
// the given time may succeed.
func RefuseUnavailable(retryAfter Duration, format string, args ...any) *Refusal {
	return &Refusal{Reason: Unavailable, RetryAfter: retryAfter, Detail: fitDetail(format, args...)}
}

// RefuseReplyClosed returns a refusal of a call whose channel closed without an answer.
// The run of the call may continue.
func RefuseReplyClosed() *Refusal {
	return RefuseUnavailable(time.Second, "reply channel closed: the run may continue")
}

// RefuseCycle returns a refusal that names the agent already in the chain.
func RefuseCycle(chain []ID, to ID) *Refusal {
	return &Refusal{Reason: Cycle, Chain: chain,
		Detail: fitDetail("Cycle detected: %s already in call chain %s", to.Agent, PathString(append(chain[:len(chain):len(chain)], to)))}
}

// RefuseWaitCycle returns a refusal that names the wait cycle the call would close.
// The path starts and ends at the actor of the last hop. A retry after the given time,
// by a later turn, may succeed.
func RefuseWaitCycle(hops []Hop, retryAfter Duration) *Refusal {
	var path []ID
	for i := range hops {
		path = append(path, hops[(len(hops)-1+i)%len(hops)].Actor)
	}
	return &Refusal{Reason: WaitCycle, Chain: path, RetryAfter: retryAfter,
		Detail: fitDetail("%s: each waits for the next; finish the turn, then retry", PathString(append(path[:len(path):len(path)], path[0])))}
}

// RefuseDepth returns a refusal that names the chain that is too long.
func RefuseDepth(chain []ID, to ID, limit int) *Refusal {
	return &Refusal{Reason: Depth, Chain: chain,
		Detail: fitDetail("Maximum call depth exceeded: %d calls above %s, at most %d allowed", len(chain), to, limit)}
}

// RefuseDeadline returns a refusal that names the operation and the time it was
// given. Its sentence for people does not name the default operation.
func RefuseDeadline(to ID, operation string, limit Duration) *Refusal {
	r := &Refusal{Reason: Deadline, Operation: fitDetail("invoke %s %s", to, operation), Timeout: limit}
	if operation == HandleMessageFull {
		r.Detail = fitDetail("timeout: %s has not answered within %d ms", to, limit/time.Millisecond)
	} else {
		r.Detail = fitDetail("timeout: %s has not ended %s within %d ms", to, operation, limit/time.Millisecond)
	}
	return r
}

// PathString returns the chain in the form a -> b -> c.
func PathString(chain []ID) string {
	var b strings.Builder
	for i, id := range chain {
		if i > 0 {
			b.WriteString(" -> ")
		}
		b.WriteString(id.String())
	}
	return b.String()
}
