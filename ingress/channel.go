// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// ChannelMessage is a message of the platform to a user's client. Its fields are those of
// the channel protocol, and a few that an older client ignores.
type ChannelMessage struct {
	Type      string `json:"type"`
	TS        int64  `json:"ts"` // milliseconds since 1970
	Request   string `json:"request_id,omitzero"`
	Run       string `json:"run_id,omitzero"`       // the root run
	Child     string `json:"child_run_id,omitzero"` // the run below it that the message is about
	Session   string `json:"session_id,omitzero"`
	Agent     string `json:"agent_id,omitzero"`
	Principal string `json:"principal,omitzero"`

	Message  *ChannelText `json:"message,omitzero"` // of run_started: the message of the user
	Origin   string       `json:"origin,omitzero"`  // of run_started: who sent the message, if no person did
	Text     string       `json:"text,omitzero"`
	State    string       `json:"state,omitzero"`
	RunState string       `json:"run_state,omitzero"`
	Detail   any          `json:"detail,omitzero"`

	ToolCall string         `json:"tool_call_id,omitzero"`
	Tool     string         `json:"tool_name,omitzero"`
	Args     jsontext.Value `json:"args,omitzero"`
	Deadline int64          `json:"deadline_ts,omitzero"`
	Approval string         `json:"approval_id,omitzero"`
	Kind     string         `json:"kind,omitzero"` // of an approval: runs.KindTool or runs.KindBudget
	Summary  *string        `json:"args_summary,omitzero"`
	Expires  int64          `json:"expires_ts,omitzero"`

	Code  string `json:"code,omitzero"`
	Error string `json:"-"` // written as the member message; it is an object in messages of other types

	Usage  *ChannelUsage `json:"usage,omitzero"`
	Replay bool          `json:"replay,omitzero"`
	Cursor string        `json:"cursor,omitzero"`
}

// ChannelText is the content of a message.
type ChannelText struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Truncated bool   `json:"truncated,omitzero"`
}

// ChannelUsage is the number of tokens of a run with all runs below it.
type ChannelUsage struct {
	Tokens int64 `json:"tokens"`
	Input  int64 `json:"input_tokens,omitzero"`
	Output int64 `json:"output_tokens,omitzero"`
}

// Types of messages to a client.
const (
	ChannelRunStarted       = "run_started"
	ChannelDelta            = "delta"
	ChannelState            = "state"
	ChannelToolRequest      = "tool_request"
	ChannelApprovalRequired = "approval_required"
	ChannelError            = "error"
	ChannelDone             = "done"
)

// States of a state message. Agents report others of themselves.
const (
	StateRunning         = "RUNNING"
	StateWaitingApproval = "WAITING_APPROVAL"
	StateWaitingSignal   = "WAITING_SIGNAL"
	StateCallingAgent    = "CALLING_AGENT"
	StateCallingTool     = "CALLING_TOOL"
	StateRetrying        = "RETRYING"
	StateParked          = "PARKED"   // the run waits until a person retries or cancels it
	StateReady           = "READY"    // of the connection: the hello was accepted
	StateLive            = "LIVE"     // of a session: all earlier messages were sent
	StateAccepted        = "ACCEPTED" // of a request: it was performed
	StateReplayed        = "REPLAYED" // of a replay: all its messages were sent
)

// hiddenStates are the states of a run that are RUNNING to a client with the scope chat.
var hiddenStates = []string{StateCallingAgent, StateCallingTool}

// forCustomer removes what a client with the scope chat may not see: tools and agents that the run uses, what other
// agents answered, what an approval is about, counts of tokens, and the words of failures.
func (m *ChannelMessage) forCustomer() {
	m.Usage, m.Child = nil, ""
	if slices.Contains(hiddenStates, m.State) {
		m.State, m.Detail = StateRunning, nil
	}
	if d, ok := m.Detail.(*detail); ok {
		shown := detail{Approval: d.Approval, Decision: d.Decision, Until: d.Until, Attempt: d.Attempt, Void: d.Void}
		if d.device { // a device of the user was asked
			shown.ToolCall, shown.Status = d.ToolCall, d.Status
		}
		if m.State != StateParked { // else it is the agent's own
			shown.Text = d.Text
		}
		if m.Detail = &shown; shown == (detail{}) {
			m.Detail = nil
		}
	}
	switch m.Type {
	case ChannelRunStarted:
		if m.Origin != "" { // an outcome of a call to another agent, or a reminder
			m.Message, m.Origin = nil, ""
		}
	case ChannelApprovalRequired:
		m.Kind, m.Tool, m.Summary, m.ToolCall = "", "", nil, ""
	case ChannelError:
		if m.Run != "" {
			m.Error = "the message could not be answered"
			if after, ok := m.Detail.(retryDetail); ok && m.Code == codeOf(&actor.Refusal{Reason: actor.Budget}) {
				m.Error = NoMessagesBefore(actor.Time(m.TS * int64(time.Millisecond)).Add(time.Duration(after.Seconds) * time.Second))
			}
		}
	}
}

// retryDetail is the member detail of an error that a retry can mend.
type retryDetail struct {
	Seconds int64 `json:"retry_after"`
}

// retryAfter returns the detail of an error with that many seconds; nil for 0.
func retryAfter(seconds int64) any {
	if seconds <= 0 {
		return nil
	}
	return retryDetail{seconds}
}

// NoMessagesBefore returns what a customer reads whose budget is used up until a time. Budgets end with minutes.
func NoMessagesBefore(t actor.Time) string {
	text := runs.FormatTime(t.Add(30 * time.Second)) // rounded to a minute
	return "no further messages are accepted before " + text[:len("2006-01-02")] + " " + text[len("2006-01-02T"):len("2006-01-02T15:04")] + " UTC"
}

// Append appends the message as JSON.
func (m *ChannelMessage) Append(b []byte) []byte {
	if m.Type != ChannelError {
		return append(b, invariant.Must(json.Marshal(m, json.Deterministic(true)))...)
	}
	return append(b, invariant.Must(json.Marshal(&struct {
		Type    string         `json:"type"`
		TS      int64          `json:"ts"`
		Request string         `json:"request_id,omitzero"`
		Run     string         `json:"run_id,omitzero"`
		Session string         `json:"session_id,omitzero"`
		Code    string         `json:"code"`
		Message string         `json:"message"`
		Detail  jsontext.Value `json:"detail,omitzero"`
		Replay  bool           `json:"replay,omitzero"`
		Cursor  string         `json:"cursor,omitzero"`
	}{m.Type, m.TS, m.Request, m.Run, m.Session, m.Code, strings.ToValidUTF8(m.Error, "\uFFFD"), detailValue(m.Detail), m.Replay, m.Cursor}, json.Deterministic(true)))...)
}

func detailValue(v any) jsontext.Value {
	if v == nil {
		return nil
	}
	return invariant.Must(json.Marshal(v, json.Deterministic(true)))
}

// Channel maps the events of a session to messages. The same events give the same messages,
// live, after a reconnect and in a replay.
//
//  1. A run begins with run_started and ends with done or error.
//  2. The deltas of a run end with its whole answer, whether or not the agent has streamed it.
//     If other deltas precede the answer, such as remarks of a model before it calls a tool, the
//     message done has the answer too.
//  3. Only root runs have messages. A root run shows the calls that it makes and the approvals
//     that wait in its tree. If detached is set, or the definition of the asker says so, the runs of
//     detached calls have messages too. Their run_started has no message.
type Channel struct {
	session  string
	replay   bool
	detached bool                         // unless the call has it otherwise
	customer bool                         // sees no run of a detached call
	runs     map[actor.CallID]*channelRun // open ones
}

// channelRun is the state of a run and of its messages.
type channelRun struct {
	id      actor.CallID
	seq     uint64
	shown   bool            // has messages
	answer  strings.Builder // text of the deltas of the present step
	deltas  []channelDelta  // of the present step
	remarks bool            // an earlier step had deltas, which are not part of the answer
	usage   runs.Usage
	pending []pendingApproval // in the tree
	waiting bool              // for a signal
	parked  bool              // until a person retries it
	device  []ChannelMessage  // in a replay: requests to devices; live, the devices are asked
	asked   []string          // open calls that devices perform
}

// pendingApproval is an approval that waits below a run.
type pendingApproval struct {
	id    string
	below actor.CallID // run that the root run has called; zero for a tool call of its own
}

type channelDelta struct {
	seq  uint64
	size int
}

// NewChannel returns a channel for the events of a session. With replay its messages are
// marked as those of a replay.
func NewChannel(session string, replay bool) *Channel {
	return &Channel{session: session, replay: replay, runs: map[actor.CallID]*channelRun{}}
}

// Missing returns the range of a run's earlier events that the channel has not read because they
// precede the cursor: those behind from, up to to. The caller MUST pass them to Restore before the
// event.
func (c *Channel) Missing(e *runs.Event) (from, to uint64) {
	if r := c.runs[e.Run]; r != nil {
		return r.seq, e.Seq - 1
	}
	return 0, e.Seq - 1
}

// Restore reads an event whose messages were sent earlier.
func (c *Channel) Restore(e *runs.Event) { c.apply(e) }

// Skip passes over events of a run that can no longer be read.
func (c *Channel) Skip(run, root actor.CallID, upto uint64) {
	r := c.run(run)
	r.seq, r.shown = upto, root == run
}

// Map returns the messages of the next event of a run. The last one has the cursor.
func (c *Channel) Map(e *runs.Event, cursor string) []ChannelMessage {
	all := c.apply(e)
	for i := range all {
		m := &all[i]
		m.TS, m.Session, m.Run, m.Replay = millisecondsOf(e.At), c.session, e.Run.String(), c.replay
	}
	if len(all) > 0 {
		all[len(all)-1].Cursor = cursor
	}
	return all
}

func (c *Channel) run(id actor.CallID) *channelRun {
	r := c.runs[id]
	if r == nil {
		r = &channelRun{id: id}
		c.runs[id] = r
	}
	return r
}

// apply changes the state of a run and returns the messages, without the fields that all have.
func (c *Channel) apply(e *runs.Event) (all []ChannelMessage) {
	r := c.run(e.Run)
	r.seq = e.Seq
	switch {
	case e.Type == runs.UserInput:
		r.shown = true
		all = []ChannelMessage{{Type: ChannelRunStarted, Request: e.Request, Agent: e.Actor.Agent, Principal: e.Principal,
			Message: &ChannelText{"user", e.Text, e.Truncated}}}
		if e.Origin != actor.Human.String() {
			all[0].Origin = e.Origin
		}
	case e.Type == runs.RunStarted:
		if e.Root != e.Run && e.Kind == actor.Detached.String() && c.showsDetached(e) {
			r.shown = true
			all = []ChannelMessage{{Type: ChannelRunStarted, Agent: e.Actor.Agent, Principal: e.Principal}}
		} else {
			r.shown = e.Root == e.Run
		}
		if r.shown {
			all = append(all, r.state(StateRunning, nil)...)
		}
	case r.shown:
		all = c.mapEvent(r, e)
	}
	if e.Type.Ends() {
		delete(c.runs, r.id)
	}
	return all
}

// showsDetached reports whether the run of a detached call has messages. Those of its asker's definition come first.
func (c *Channel) showsDetached(e *runs.Event) bool {
	switch {
	case c.customer:
		return false
	case e.Channel != "":
		return e.Channel == runs.ChannelOn
	}
	return c.detached
}

// detail is the member detail of a state message.
type detail struct {
	Approval string `json:"approval_id,omitzero"`
	Decision string `json:"decision,omitzero"`
	By       string `json:"by,omitzero"`
	Reason   string `json:"reason,omitzero"`
	ToolCall string `json:"tool_call_id,omitzero"`
	Tool     string `json:"tool_name,omitzero"`
	Child    string `json:"child_run_id,omitzero"`
	Agent    string `json:"agent_id,omitzero"`
	Status   string `json:"status,omitzero"`
	Code     string `json:"code,omitzero"`
	Name     string `json:"name,omitzero"`
	Until    int64  `json:"until_ts,omitzero"`
	Attempt  uint32 `json:"attempt,omitzero"`
	Void     int    `json:"void_deltas,omitzero"`
	Text     string `json:"text,omitzero"`
	device   bool   // the tool call is performed by a device of the user
}

// state returns a state message of a run.
func (r *channelRun) state(state string, d *detail) []ChannelMessage {
	m := ChannelMessage{Type: ChannelState, State: state, RunState: r.status().String()}
	if d != nil {
		m.Detail = d
	}
	return []ChannelMessage{m}
}

// resumed returns the state after one of several causes of a pause has ended.
func (r *channelRun) resumed(d *detail) []ChannelMessage {
	switch {
	case len(r.pending) > 0:
		return r.state(StateWaitingApproval, d)
	case r.waiting:
		return r.state(StateWaitingSignal, d)
	default:
		return r.state(StateRunning, d)
	}
}

func (r *channelRun) status() runs.Status {
	switch {
	case len(r.pending) > 0 || r.parked:
		return runs.PausedWaitingApproval
	case r.waiting:
		return runs.PausedWaitingTool
	}
	return runs.Running
}

func toolCallOf(e *runs.Event) string {
	return runs.ToolCallID{Run: e.Run, Step: e.Step, Index: e.Index}.String()
}

// mapEvent maps an event of a root run. Those of the runtime's own tools, which record decisions of an
// orchestrator, are not for clients of the channel.
func (c *Channel) mapEvent(r *channelRun, e *runs.Event) []ChannelMessage {
	if strings.HasPrefix(e.Name, actor.SystemAgent+".") && (e.Type == runs.ToolCallCreated || e.Type == runs.ToolResult) {
		return nil
	}
	switch e.Type {
	case runs.AgentCalledChild:
		return r.state(StateCallingAgent, &detail{Agent: e.Actor.Agent, Child: e.Child.String()})
	case runs.AgentChildDone:
		r.usage = r.usage.Add(e.Usage)
		return r.resumed(&detail{Agent: e.Actor.Agent, Child: e.Child.String(), Status: e.Status.String(), Code: codeOf(e.Refusal)})
	case runs.ToolCallCreated:
		if e.Kind == runs.KindClient {
			r.asked = append(r.asked, toolCallOf(e))
		}
		switch {
		case e.Kind == runs.KindClient && c.replay:
			r.device = append(r.device, ChannelMessage{Type: ChannelToolRequest, ToolCall: toolCallOf(e), Tool: e.Name, Args: argsOf(e.Text)})
		case e.Kind == runs.KindTool:
			return r.state(StateCallingTool, &detail{ToolCall: toolCallOf(e), Tool: e.Name})
		}
	case runs.ToolDispatched:
		id := toolCallOf(e)
		if i := slices.IndexFunc(r.device, func(m ChannelMessage) bool { return m.ToolCall == id }); i >= 0 {
			return r.device[i : i+1]
		}
	case runs.ToolResult:
		if e.Name != "" {
			d := &detail{ToolCall: toolCallOf(e), Tool: e.Name, Status: e.Status.String(), Code: codeOf(e.Refusal)}
			if i := slices.Index(r.asked, d.ToolCall); i >= 0 {
				r.asked, d.device = slices.Delete(r.asked, i, i+1), true
			}
			return r.resumed(d)
		}
	case runs.ApprovalRequired:
		return r.approvalRequired(e)
	case runs.ApprovalDecision:
		r.decided(e.Approval)
		return r.resumed(&detail{Approval: e.Approval, Decision: e.Kind, By: e.Principal, Reason: e.Text})
	case runs.ApprovalExpired:
		r.decided(e.Approval)
		return r.resumed(&detail{Approval: e.Approval, Decision: runs.ApprovalStatusExpired.String(), Reason: e.Text})
	}
	return r.mapOwn(e)
}

func (r *channelRun) decided(approval string) {
	r.pending = slices.DeleteFunc(r.pending, func(p pendingApproval) bool { return p.id == approval })
}

func (r *channelRun) approvalRequired(e *runs.Event) []ChannelMessage {
	r.decided(e.Approval)
	r.pending = append(r.pending, pendingApproval{e.Approval, e.Child})
	m := ChannelMessage{Type: ChannelApprovalRequired, Approval: e.Approval, Kind: cmp.Or(e.Kind, runs.KindTool), Tool: e.Name, Summary: &e.Text, Expires: millisecondsOf(e.Until)}
	if id, err := runs.ParseApprovalID(e.Approval); err == nil {
		if m.ToolCall = id.String(); id.Run != r.id {
			m.Child = id.Run.String()
		}
	}
	return append(r.state(StateWaitingApproval, &detail{Approval: e.Approval}), m)
}

// mapOwn maps an event of the run's own work.
func (r *channelRun) mapOwn(e *runs.Event) []ChannelMessage {
	switch e.Type {
	case runs.LLMCallStarted, runs.AgentInvokeStarted:
		if !e.StartsAnswer() {
			break
		}
		r.remarks = r.remarks || len(r.deltas) > 0
		r.answer.Reset()
		r.deltas = r.deltas[:0]
	case runs.AgentStreamDelta:
		r.answer.WriteString(e.Text)
		r.deltas = append(r.deltas, channelDelta{e.Seq, len(e.Text)})
		return []ChannelMessage{{Type: ChannelDelta, Text: e.Text}}
	case runs.Attempt:
		if void := r.discard(e.Discards); void > 0 || e.Discards > 0 {
			return r.state(StateRetrying, &detail{Attempt: e.Attempt, Void: void})
		}
	case runs.AgentStateChanged:
		m := r.state(e.Name, nil)
		if e.Text != "" {
			m[0].Detail = agentDetail(e.Text)
		}
		return m
	case runs.RunPaused:
		if e.Refusal != nil {
			r.parked = true
			return r.state(StateParked, &detail{Code: codeOf(e.Refusal), Text: e.Refusal.Detail})
		}
	case runs.RunResumed:
		if e.Child.IsZero() && r.parked {
			r.parked = false
			return r.resumed(nil)
		}
		if !e.Child.IsZero() && len(r.pending) > 0 { // its approvals were decided
			d := &detail{Child: e.Child.String()}
			r.pending = slices.DeleteFunc(r.pending, func(p pendingApproval) bool {
				if p.below == e.Child {
					d.Approval = p.id
				}
				return p.below == e.Child
			})
			return r.resumed(d)
		}
	case runs.WaitOpened:
		r.waiting = true
		return r.state(StateWaitingSignal, &detail{Name: e.Name, Until: millisecondsOf(e.Until)})
	case runs.SignalReceived, runs.WaitExpired:
		r.waiting = false
		return r.resumed(&detail{Name: e.Name})
	case runs.RunDone:
		return r.done(e)
	case runs.RunFailed, runs.RunCancelled:
		return []ChannelMessage{{Type: ChannelError, Code: codeOf(e.Refusal), Error: e.Refusal.Detail, Detail: retryAfter(e.Refusal.RetrySeconds())}}
	}
	return nil
}

// argsOf returns the arguments of a tool call: JSON, or a text.
func argsOf(text string) jsontext.Value {
	if v := jsontext.Value(text); v.IsValid() {
		return v
	}
	return invariant.Must(json.Marshal(strings.ToValidUTF8(text, "\uFFFD")))
}

// agentDetail returns what an agent reports with its state: a JSON object, or a text.
func agentDetail(text string) any {
	if v := jsontext.Value(text); v.Kind() == '{' && v.IsValid() {
		return v
	}
	return &detail{Text: text}
}

// discard drops the deltas after the event that a retry names, and returns their number.
func (r *channelRun) discard(after uint64) (void int) {
	text := r.answer.String()
	for n := len(r.deltas); n > 0 && after > 0 && r.deltas[n-1].seq > after; n = len(r.deltas) {
		text = text[:len(text)-r.deltas[n-1].size]
		r.deltas = r.deltas[:n-1]
		void++
	}
	r.answer.Reset()
	r.answer.WriteString(text)
	return void
}

// done returns the rest of the answer and the end of the run.
func (r *channelRun) done(e *runs.Event) (all []ChannelMessage) {
	rest, streamed := strings.CutPrefix(e.Text, r.answer.String())
	if !streamed && strings.TrimSpace(e.Text) == strings.TrimSpace(r.answer.String()) {
		rest = ""
	}
	if rest != "" {
		all = append(all, ChannelMessage{Type: ChannelDelta, Text: rest})
	}
	total := r.usage.Add(e.Usage)
	m := ChannelMessage{Type: ChannelDone, RunState: runs.Done.String(), Usage: &ChannelUsage{total.Total, total.Input, total.Output}}
	switch {
	case r.remarks && streamed:
		m.Text = r.answer.String() + rest
	case r.remarks || !streamed && rest != "": // the deltas before were no part of the answer
		m.Text = e.Text
	}
	return append(all, m)
}

// millisecondsOf returns a time in milliseconds since 1970.
func millisecondsOf(t actor.Time) int64 { return int64(t) / int64(time.Millisecond) }

// codeOf returns the code of a refusal in the protocol, or "".
func codeOf(r *actor.Refusal) string {
	if r == nil {
		return ""
	}
	return cmp.Or(r.Info().Type, "internal")
}
