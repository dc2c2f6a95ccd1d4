// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
)

// Type is the type of an event. The set is closed.
type Type uint8

// The event types. The names were taken from the client protocol. Exception: types
// marked "own" do not exist there.
const (
	UserInput          Type = iota + 1 // a client's message was accepted
	RunStarted                         // the turn started
	RunPaused                          // own: the run waits for a decision about its tool call, is held by a call below it, or is parked
	RunResumed                         // own: the run continues after RunPaused
	RunDone                            // end: an answer
	RunFailed                          // end: a refusal
	RunCancelled                       // own, end: the answer is no longer needed
	AgentCalledChild                   // a call was sent; the id of the call is the id of the child run
	AgentChildDone                     // own: the outcome of the call arrived
	AgentCallRefused                   // own: a call was refused before it was sent
	ToolCallCreated                    // a tool, or the agent's own work, was requested
	ToolDispatched                     // the tool or work was handed to the host
	ToolResult                         // the outcome of the tool or work arrived
	TimeoutClamped                     // the requested timeout exceeded the limit
	WaitOpened                         // own: the run waits for a signal with a given name
	SignalReceived                     // own: the signal arrived
	WaitExpired                        // own: the signal did not arrive in time
	Attempt                            // own: a pending operation starts its n-th attempt, after a crash or a failure of an upstream
	LLMCallStarted                     // a model was called
	LLMCallDone                        // the complete answer of the model, or a failure, arrived
	AgentInvokeStarted                 // an external agent was invoked
	AgentInvokeDone                    // the complete answer of the external agent, or a failure, arrived
	AgentStreamDelta                   // a piece of the answer of a model or external agent
	AgentStateChanged                  // own: the state that an external agent reports of itself
	PolicyDecision                     // the policy decided about the tool call
	ApprovalCreated                    // the tool call waits for a person
	ApprovalRequired                   // an approval waits in the tree of the run, which is its root
	ApprovalDecision                   // a person approved or rejected the tool call
	ApprovalExpired                    // own: the approval ended without a decision
	MessageLeftOut                     // own: the message of the run is left out of later prompts
)

// fields is a set of fields of an event.
type fields uint32

const (
	fActor fields = 1 << iota
	fKind
	fOperation
	fPrincipal
	fOrigin
	fProject
	fRoot
	fParent
	fDepth // and chain
	fLeft
	fAsked
	fPosition // step and index
	fName
	fChild
	fUntil
	fAttempt
	fStatus
	fText // and truncated
	fWarnings
	fRefusal
	fDiscards
	fTook
	fUsage
	fPriority
	fTrace
	fClaimed
	fApproval
	fRequest
	fKey
	fChannel

	fAll = fChannel<<1 - 1
	// zeroAllowed are the fields whose zero value is meaningful and therefore encoded.
	zeroAllowed = fDepth | fLeft | fAsked | fText | fTook
)

// types holds the name of each event type, its mandatory fields and its optional
// fields.
var types = [...]struct {
	name     string
	has, may fields
}{
	UserInput:        {"user_input", fActor | fText, fPrincipal | fOrigin | fProject | fPriority | fTrace | fClaimed | fRequest | fKey},
	RunStarted:       {"run_started", fActor | fKind | fOperation | fOrigin | fRoot | fDepth | fLeft, fPrincipal | fProject | fParent | fAttempt | fPriority | fChannel},
	RunPaused:        {"run_paused", fName, fUntil | fRefusal | fChild | fApproval},
	RunResumed:       {"run_resumed", 0, fName | fChild | fApproval},
	RunDone:          {"run_done", fStatus | fText, fWarnings | fUsage},
	RunFailed:        {"run_failed", fRefusal, 0},
	RunCancelled:     {"run_cancelled", fRefusal, 0},
	AgentCalledChild: {"agent_called_child", fActor | fChild | fPosition | fDepth | fLeft | fText, fKind | fOperation},
	AgentChildDone:   {"agent_child_done", fChild | fPosition | fStatus | fText | fTook, fActor | fWarnings | fRefusal | fUsage},
	AgentCallRefused: {"agent_call_refused", fName | fPosition | fRefusal | fDepth, fOperation},
	ToolCallCreated:  {"tool_call_created", fName | fKind | fPosition | fDepth | fText, 0},
	ToolDispatched:   {"tool_dispatched", fName | fPosition | fAttempt, fLeft},
	ToolResult:       {"tool_result", fName | fPosition | fStatus | fText | fTook, fWarnings | fRefusal},
	TimeoutClamped:   {"timeout_clamped", fPosition | fAsked | fLeft, fName},
	WaitOpened:       {"wait_opened", fName | fPosition | fUntil, 0},
	SignalReceived:   {"signal_received", fName | fPosition | fText, fPrincipal | fOrigin},
	WaitExpired:      {"wait_expired", fName | fPosition, fRefusal},
	Attempt:          {"attempt", fAttempt, fPosition | fDiscards | fRefusal},

	LLMCallStarted:     {"llm_call_started", fName | fPosition | fLeft | fText, fRequest},
	LLMCallDone:        {"llm_call_done", fName | fPosition | fStatus | fText | fTook, fWarnings | fRefusal | fUsage},
	AgentInvokeStarted: {"agent_invoke_started", fName | fPosition | fLeft | fText, 0},
	AgentInvokeDone:    {"agent_invoke_done", fName | fPosition | fStatus | fText | fTook, fWarnings | fRefusal | fUsage},
	AgentStreamDelta:   {"agent_stream_delta", fPosition | fText, 0},
	AgentStateChanged:  {"agent_state", fName | fPosition | fText, 0},

	PolicyDecision:   {"policy_decision", fName | fKind | fPosition | fText, 0},
	ApprovalCreated:  {"approval_created", fName | fPosition | fUntil | fText | fApproval, fKind},
	ApprovalRequired: {"approval_required", fUntil | fApproval, fKind | fName | fChild | fText},
	ApprovalDecision: {"approval_decision", fName | fKind | fPosition | fText | fApproval, fPrincipal | fOrigin},
	ApprovalExpired:  {"approval_expired", fName | fPosition | fText | fApproval, fKind},
	MessageLeftOut:   {"message_left_out", fName, 0},
}

// Types returns all event types in order.
func Types() []Type {
	all := make([]Type, 0, len(types)-1)
	for t := UserInput; int(t) < len(types); t++ {
		all = append(all, t)
	}
	return all
}

// String returns the name of the type.
func (t Type) String() string {
	if t == 0 || int(t) >= len(types) {
		return fmt.Sprintf("unknown(%d)", t)
	}
	return types[t].name
}

// ParseType parses the output of String.
func ParseType(text string) (Type, error) {
	if t := byTypeName[text]; t != 0 {
		return t, nil
	}
	return 0, fmt.Errorf("event type %.40q is unknown", text)
}

var byTypeName = func() map[string]Type {
	all := map[string]Type{}
	for _, t := range Types() {
		all[types[t].name] = t
	}
	return all
}()

// Ends reports whether the event is the last of its run.
func (t Type) Ends() bool { return t == RunDone || t == RunFailed || t == RunCancelled }

// Bounds of the content of an event, in bytes. Append truncates longer content. If it
// truncates Text, it sets Truncated. The journal holds the full content.
const (
	TextBytesMax   = 4 << 10
	AnswerBytesMax = 1 << 20  // text of RunDone
	NameBytesMax   = 256      // names, operations, principals, projects
	EventBytesMax  = 16 << 20 // encoded event; Decode rejects a longer one
)

// Values of Kind in the events of a tool call or of an approval.
const (
	KindTool   = "tool"
	KindClient = "client_tool" // a tool that a device of the user performs
	KindWork   = "work"
	KindBudget = "budget" // a larger budget for a request to a model, which a person decides about
)

// Values of Channel in a RunStarted event.
const (
	ChannelOn  = "on"
	ChannelOff = "off"
)

// Event is one event of a run. Its Type determines which fields are set, as Check
// enforces; the others are zero.
//
//  1. Seq counts from 1 without gaps in each run.
//  2. An event of type RunDone, RunFailed or RunCancelled is the last of its run.
type Event struct {
	Run  actor.CallID
	Seq  uint64
	At   actor.Time
	Type Type

	Actor     actor.ID // the actor of the run; for a call, its callee
	Kind      string   // for a call, actor.Kind as text; for a tool call, KindTool, KindClient or KindWork; of an approval, KindTool or KindBudget; the decision of a policy or of a person
	Operation string
	Principal string
	Origin    string // actor.Origin as text
	Project   string
	Root      actor.CallID
	Parent    actor.CallID
	Depth     int        // depth of the run; for a call, depth of the child run
	Chain     []actor.ID // the callers, oldest first; Depth is its length
	Left      actor.Duration
	Asked     actor.Duration // requested timeout; Left is the granted timeout
	Step      uint32         // action of the turn, from 1
	Index     uint16         // ask within the action, from 0
	Name      string         // the tool, signal or work; the cause of a pause
	Child     actor.CallID   // run of a call that was made
	Until     actor.Time
	Attempt   uint32
	Status    actor.Status // outcome of a call, tool or run
	Text      string       // content as text, see SetText
	Truncated bool
	Warnings  []string
	Refusal   *actor.Refusal
	Discards  uint64         // for Attempt: number of an event; later deltas at the same position are void; 0: no delta is void
	Took      actor.Duration // time from the ask to its answer
	Usage     Usage
	Priority  string       // actor.Lane as text; "" means normal
	Trace     string       // W3C trace ID sent by the client
	Claimed   actor.CallID // run that the client names as its cause, without proof
	Approval  string       // ID of the approval, see ToolCallID
	Request   string       // id of a request: of a client, its idempotency key; of an external agent to a model, that of HTTP
	Key       string       // ID of the API key that changes the registry
	Channel   string       // ChannelOn or ChannelOff: whether clients of the channel see the run of a detached call; "": as the server has it
}

// Usage is the number of tokens that models reported for their answers.
type Usage = actor.Usage

// SetText sets Text to the readable content of the parts. Binary parts and blobs
// are omitted and set Truncated.
func (e *Event) SetText(parts []actor.Part) {
	var b strings.Builder
	for _, p := range parts {
		if p.Readable() {
			b.Write(p.Bytes)
		} else {
			e.Truncated = true
		}
	}
	e.Text = b.String()
}

// ShownText returns the text that an event shows of the parts, other than RunDone. The bool
// reports whether it is shortened.
func ShownText(parts []actor.Part) (text string, truncated bool) {
	var e Event
	e.SetText(parts)
	text, cut := cutText(e.Text, TextBytesMax)
	return text, cut || e.Truncated
}

// fit normalizes the event for Append: each text becomes valid UTF-8 within its
// bound, each duration whole milliseconds.
func (e *Event) fit() {
	limit := TextBytesMax
	if e.Type == RunDone {
		limit = AnswerBytesMax
	}
	var cut bool
	e.Text, cut = cutText(e.Text, limit)
	e.Truncated = e.Truncated || cut
	for _, s := range [...]*string{&e.Name, &e.Kind, &e.Operation, &e.Principal, &e.Origin, &e.Project, &e.Priority, &e.Trace, &e.Request, &e.Key, &e.Channel} {
		*s, _ = cutText(*s, NameBytesMax)
	}
	e.Left, e.Asked = e.Left.Truncate(time.Millisecond), e.Asked.Truncate(time.Millisecond)
	e.Took = max(e.Took, 0).Truncate(time.Millisecond)
	if e.Refusal != nil {
		r := *e.Refusal
		r.RetryAfter, r.Timeout = r.RetryAfter.Truncate(time.Millisecond), r.Timeout.Truncate(time.Millisecond)
		e.Refusal = &r
	}
	e.Warnings = slices.Clone(e.Warnings[:min(len(e.Warnings), actor.WarningsMax)])
	for i := range e.Warnings {
		e.Warnings[i], _ = cutText(e.Warnings[i], TextBytesMax)
	}
}

// cutText returns text as valid UTF-8 of at most limit bytes, and whether it was
// shortened.
func cutText(text string, limit int) (string, bool) {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	if len(text) <= limit {
		return text, false
	}
	return strings.ToValidUTF8(text[:limit], ""), true
}

// StartsAnswer reports whether the pieces that follow belong to a new answer of the run. A
// request of an external agent to a model has a Request, and is a part of the agent's work.
func (e *Event) StartsAnswer() bool {
	return e.Type == AgentInvokeStarted || e.Type == LLMCallStarted && e.Request == ""
}

// nonZero returns the set of fields that are not zero.
func (e *Event) nonZero() fields {
	var f fields
	for i, there := range [...]bool{
		e.Actor != actor.ID{}, e.Kind != "", e.Operation != "", e.Principal != "", e.Origin != "", e.Project != "",
		!e.Root.IsZero(), !e.Parent.IsZero(), e.Depth != 0 || len(e.Chain) > 0, e.Left != 0, e.Asked != 0,
		e.Step != 0 || e.Index != 0, e.Name != "", !e.Child.IsZero(), e.Until != 0, e.Attempt != 0, e.Status != 0,
		e.Text != "" || e.Truncated, len(e.Warnings) > 0, e.Refusal != nil, e.Discards != 0, e.Took != 0, e.Usage != Usage{}, e.Priority != "", e.Trace != "", !e.Claimed.IsZero(), e.Approval != "", e.Request != "", e.Key != "", e.Channel != "",
	} {
		if there {
			f |= 1 << i
		}
	}
	return f
}

// Check returns an error unless the fields of the event match its type.
func (e *Event) Check() error {
	if e.Type == 0 || int(e.Type) >= len(types) {
		return fmt.Errorf("event of unknown type %d", e.Type)
	}
	t, set := types[e.Type], e.nonZero()
	switch {
	case e.Run.IsZero():
		return fmt.Errorf("%s without run", t.name)
	case e.Seq == 0:
		return fmt.Errorf("%s without number", t.name)
	case t.has&^set&^zeroAllowed != 0:
		return fmt.Errorf("%s without %s", t.name, (t.has &^ set &^ zeroAllowed).names())
	case set&^(t.has|t.may) != 0:
		return fmt.Errorf("%s with %s", t.name, (set &^ (t.has | t.may)).names())
	case set&fPosition != 0 && e.Step == 0:
		return fmt.Errorf("%s with step 0", t.name)
	case e.Depth != len(e.Chain):
		return fmt.Errorf("%s with depth %d and a chain of %d", t.name, e.Depth, len(e.Chain))
	case len(e.Chain) > actor.ChainMax:
		return fmt.Errorf("%s with a chain of %d", t.name, len(e.Chain))
	case e.Left < 0 || e.Asked < 0 || e.Took < 0:
		return fmt.Errorf("%s with a negative count", t.name)
	case !e.Usage.Check():
		return fmt.Errorf("%s with the usage %+v", t.name, e.Usage)
	case t.has&fStatus != 0 && (e.Status == actor.Failed) != (e.Refusal != nil):
		return fmt.Errorf("%s with status %s, has a refusal: %v", t.name, e.Status, e.Refusal != nil)
	}
	return nil
}

var fieldNames = [...]string{"actor", "kind", "operation", "principal", "origin", "project_id", "root_run_id", "parent_run_id",
	"call_chain", "time_left_ms", "asked_ms", "step", "name", "child_run_id", "until", "attempt", "status", "text", "warnings", "error",
	"discards_after", "took_ms", "usage", "priority", "trace_id", "claimed_run_id", "approval_id", "request_id", "key_id", "channel"}

func (f fields) names() string {
	var all []string
	for i, name := range fieldNames {
		if f&(1<<i) != 0 {
			all = append(all, name)
		}
	}
	return strings.Join(all, ", ")
}

// String returns the event on one line, for consoles.
func (e *Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s %s", e.Seq, FormatTime(e.At), e.Type)
	put := func(f fields, format string, args ...any) {
		if e.nonZero()&f != 0 {
			fmt.Fprintf(&b, " "+format, args...)
		}
	}
	put(fPosition, "%d.%d", e.Step, e.Index)
	put(fActor, "%s", e.Actor)
	put(fName, "%s", e.Name)
	if e.Type == PolicyDecision || e.Type == ApprovalDecision {
		put(fKind, "%s", e.Kind)
		put(fPrincipal, "by %s", e.Principal)
	}
	if e.Type == UserInput && e.Actor.Agent == actor.SystemAgent {
		put(fPrincipal, "by %s", e.Principal)
		put(fKey, "with key %s", e.Key)
	}
	put(fChild, "run %s", e.Child)
	put(fApproval, "%s", e.Approval)
	put(fDepth, "chain %s", actor.PathString(e.Chain))
	put(fLeft, "left %s", e.Left)
	put(fAsked, "asked %s", e.Asked)
	put(fUntil, "until %s", FormatTime(e.Until))
	put(fAttempt, "attempt %d", e.Attempt)
	if e.Type == LLMCallStarted {
		put(fRequest, "request %s", e.Request)
	}
	put(fStatus, "%s", e.Status)
	put(fDiscards, "discards after %d", e.Discards)
	put(fText, "%q", e.Text)
	put(fTook, "took %s", e.Took)
	put(fUsage, "tokens %d+%d", e.Usage.Input, e.Usage.Output)
	if e.Refusal != nil {
		put(fRefusal, "%s", e.Refusal.Error())
	}
	return b.String()
}
