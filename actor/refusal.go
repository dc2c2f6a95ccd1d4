// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
	"strings"
	"time"
)

// Reason is why something was refused. The set is closed.
type Reason uint8

// The reasons.
const (
	Busy        Reason = iota + 1 // no room now: at the callee, for this caller, or on the node
	Cycle                         // the target's agent is among the callers
	WaitCycle                     // waits would close a ring
	Depth                         // too many calls above
	Deadline                      // the time ran out
	NotFound                      // no such agent, run or tool
	Rejected                      // the target said no
	Unavailable                   // the target cannot answer just now
	Stopped                       // cancelled
	Budget                        // the tree has spent its calls
	Invalid                       // malformed input
	Unknown                       // it may or may not have happened
	NoDevice                      // no client is online to do it
)

// Scope says whose limit made something Busy.
type Scope uint8

// The scopes; only Busy has one.
const (
	NoScope Scope = iota
	ScopeCaller
	ScopeCallee
	ScopeNode
)

var scopeNames = [...]string{ScopeCaller: "caller", ScopeCallee: "callee", ScopeNode: "node"}

// String is the scope's name; NoScope is empty.
func (s Scope) String() string {
	if s == NoScope {
		return ""
	}
	return nameOf(scopeNames[:], int(s))
}

// Refusal is a typed, foreseen "no": a value with a sentence for people, never a
// string to parse.
type Refusal struct {
	Reason     Reason
	Scope      Scope    // Busy only
	Detail     string   // the sentence
	Field      string   // Invalid only: the input field at fault, if one is
	Chain      []ID     // the path that closed, ran too deep, or timed out
	RetryAfter Duration // 0: trying again will not help, or not by itself
	Operation  string   // Deadline only: "invoke <actor> <operation>"
	Timeout    Duration // Deadline only: the time that was given
}

// ReasonInfo is how a reason looks on the surfaces: one row of the table in docs/errors.md.
type ReasonInfo struct {
	Name   string // inside, and in histories
	Error  string // the error's name in agents' records
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
	Unavailable: {"Unavailable", "Internal", "ROUTING_AGENT_UNAVAILABLE", "error", "agent_unavailable", 503},
	Stopped:     {"Stopped", "Failed", "EXECUTION_CANCELLED", "error", "cancelled", 409},
	Budget:      {"Budget", "BudgetExceeded", "CAPACITY_BUDGET_EXCEEDED", "error", "budget_exceeded", 402},
	Invalid:     {"Invalid", "InvalidInput", "INPUT_VALIDATION_FAILED", "error", "invalid_request", 400},
	Unknown:     {"Unknown", "AgentReplyLost", "EXECUTION_OUTCOME_UNKNOWN", "error", "outcome_unknown", 502},
	NoDevice:    {"NoDevice", "NoDevice", "CAPACITY_NO_DEVICE", "error", "client_offline", 409},
}

// Reasons lists the closed set in its order.
func Reasons() []Reason {
	all := make([]Reason, 0, len(reasons)-1)
	for r := Busy; int(r) < len(reasons); r++ {
		all = append(all, r)
	}
	return all
}

// String is the reason's name.
func (r Reason) String() string {
	if r == 0 || int(r) >= len(reasons) {
		return fmt.Sprintf("unknown(%d)", int(r))
	}
	return reasons[r].Name
}

// Info is the reason's row in the one table.
func (r Reason) Info() ReasonInfo {
	if r == 0 || int(r) >= len(reasons) {
		return ReasonInfo{Name: r.String(), Error: "Internal", Code: "EXECUTION_INTERNAL", Status: "error", Type: "internal", HTTP: 500}
	}
	return reasons[r]
}

// HTTP is the refusal's status code: a full node is 503, a full agent 429.
func (r *Refusal) HTTP() int {
	if r.Reason == Busy && r.Scope == ScopeNode {
		return 503
	}
	return r.Reason.Info().HTTP
}

// Error is the name, then the sentence: "cycle detected: Cycle detected: a already in call chain".
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

// Refuse makes a refusal with a sentence.
func Refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Detail: fitDetail(format, args...)}
}

// fitDetail is text that the codec carries, whatever was put into it.
func fitDetail(format string, args ...any) string {
	return FitText(fmt.Sprintf(format, args...), TextBytesMax)
}

// RefuseBusy is a full mailbox, caller or node; trying again later helps.
func RefuseBusy(scope Scope, after Duration, format string, args ...any) *Refusal {
	return &Refusal{Reason: Busy, Scope: scope, RetryAfter: after, Detail: fitDetail(format, args...)}
}

// RefuseCycle names the agent that stands in the chain already.
func RefuseCycle(chain []ID, to ID) *Refusal {
	return &Refusal{Reason: Cycle, Chain: chain,
		Detail: fitDetail("Cycle detected: %s already in call chain %s", to.Agent, PathString(append(chain[:len(chain):len(chain)], to)))}
}

// RefuseWaitCycle names the ring of waits that the call would close, from it round to it.
func RefuseWaitCycle(ring []Hop) *Refusal {
	var path []ID
	for i := range ring {
		path = append(path, ring[(len(ring)-1+i)%len(ring)].Actor)
	}
	return &Refusal{Reason: WaitCycle, Chain: path,
		Detail: fitDetail("%s: each waits for the next; finish the turn, then ask again", PathString(append(path[:len(path):len(path)], path[0])))}
}

// RefuseDepth names the chain that is too long.
func RefuseDepth(chain []ID, to ID, limit int) *Refusal {
	return &Refusal{Reason: Depth, Chain: chain,
		Detail: fitDetail("Maximum call depth exceeded: %d calls above %s, at most %d allowed", len(chain), to, limit)}
}

// RefuseDeadline says which operation had how much time.
func RefuseDeadline(to ID, operation string, given Duration) *Refusal {
	return &Refusal{Reason: Deadline, Operation: fitDetail("invoke %s %s", to, operation), Timeout: given,
		Detail: fitDetail("invoke %s %s: timeout after %d ms", to, operation, given/time.Millisecond)}
}

// PathString writes a chain as a -> b -> c.
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
