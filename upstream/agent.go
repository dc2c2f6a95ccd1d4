// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/runs"
)

// Agent is the HTTP endpoint of an external agent, with the paths /invoke and
// /health.
type Agent struct {
	URL  string
	Auth Secret // credential sent to the agent; "" sends none
	// Header is the header of the credential; "" is authorization, with the scheme Bearer before it.
	Header string
}

// Invocation is one message for an external agent.
type Invocation struct {
	Agent    string // agent_id
	Session  string
	Run      string
	Input    string
	Messages []Message        // messages of the session so far; those of System, User and Assistant are sent, without calls
	User     string           // user_id
	Project  string           // project_id
	Trace    string           // see actor.Call.Trace; an invalid one is omitted
	Token    Secret           // token of this run, with which the agent may call back
	Of       actor.Provenance // of an Input that is the outcome of a detached call; zero of another one
}

// InvocationOf converts a call to the message for an external agent. A call
// without a valid trace gets one, built from the ids of the call tree and the
// call. The traces of the agent can thus be correlated with those of
// this node.
func InvocationOf(agent string, call *actor.Call, token Secret) Invocation {
	in := Invocation{Agent: agent, Session: call.To.Key, Run: call.ID.String(), Input: inputText(call.Parts),
		User: call.Principal, Project: call.Project, Trace: call.Trace, Token: token}
	in.Of, _ = call.Extensions.Provenance()
	if len(traceHeaders(in.Trace)) == 0 {
		in.Trace = fmt.Sprintf("00-%x-%x-00", call.Root[:], call.ID[8:])
	}
	return in
}

// inputText returns the text of the parts, or the first JSON value of a call
// without text.
func inputText(parts []actor.Part) string {
	if text := actor.TextOf(parts); text != "" {
		return text
	}
	for _, p := range parts {
		if p.Media == actor.MediaJSON && p.Blob.IsZero() {
			return string(p.Bytes)
		}
	}
	return ""
}

// The wire format of an invocation. InvokeExample is an example.
type (
	invokeJSON struct {
		Agent    string              `json:"agent_id"`
		Session  string              `json:"session_id"`
		Run      string              `json:"run_id"`
		Input    invokeMessageJSON   `json:"input_message"`
		Messages []invokeMessageJSON `json:"messages"`
		Context  invokeContextJSON   `json:"context"`
	}
	invokeMessageJSON struct {
		Role    string `json:"role"`
		Content string `json:"content"`

		Provenance *invokeProvenanceJSON `json:"provenance,omitzero"`
	}
	invokeProvenanceJSON struct {
		Kind        string `json:"kind"`
		Tool        string `json:"sourceTool"`
		Correlation string `json:"correlationId"`
	}
	invokeContextJSON struct {
		User    string `json:"user_id"`
		Project string `json:"project_id,omitzero"`
	}
)

// Invoke returns the request that starts a run at the agent.
func (a Agent) Invoke(in Invocation) (Request, *actor.Refusal) {
	if len(in.Messages) > MessagesMax {
		return Request{}, actor.Refuse(actor.Invalid, "%d messages exceed the maximum of %d", len(in.Messages), MessagesMax)
	}
	valid := func(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
	payload := invokeJSON{Agent: in.Agent, Session: in.Session, Run: in.Run, Input: invokeMessageJSON{Role: User.String(), Content: valid(in.Input)},
		Messages: []invokeMessageJSON{}, Context: invokeContextJSON{valid(in.User), valid(in.Project)}}
	if in.Of.Tool != "" {
		payload.Input.Provenance = &invokeProvenanceJSON{"tool_response", in.Of.Tool, in.Of.Correlation.String()}
	}
	for _, m := range in.Messages {
		if m.Role == System || m.Role == User || m.Role == Assistant {
			payload.Messages = append(payload.Messages, invokeMessageJSON{Role: m.Role.String(), Content: valid(m.Text)})
		}
	}
	body := marshal(payload)
	if len(body) > PromptBytesMax {
		return Request{}, actor.Refuse(actor.Invalid, "invocation of %d bytes exceeds the maximum of %d", len(body), PromptBytesMax)
	}
	headers := []Header{
		{Name: "accept", Value: "text/event-stream"},
		{Name: "x-session-id", Value: in.Session},
		{Name: "x-run-id", Value: in.Run},
	}
	headers = append(headers, traceHeaders(in.Trace)...)
	if in.Token != "" {
		headers = append(headers, Header{Name: "x-run-token", Value: in.Token.Reveal(), Secret: true})
	}
	return post(a.URL, "/invoke", body, append(headers, a.authorization()...))
}

func (a Agent) authorization() []Header {
	if a.Auth == "" {
		return nil
	}
	if a.Header != "" {
		return []Header{{Name: a.Header, Value: a.Auth.Reveal(), Secret: true}}
	}
	return []Header{{Name: "authorization", Value: "Bearer " + a.Auth.Reveal(), Secret: true}}
}

// AgentDecoder decodes the response of an external agent, a stream of the events
// delta, state, done and error. Other events are skipped. A complete response without
// text has a warning that names them.
type AgentDecoder struct {
	name      string
	run       string
	secrets   Secrets // of the request
	parser    *Parser
	events    int
	text      strings.Builder
	jsonBytes int             // upper bound of the size of text in JSON
	half      halfText        // begin of a character that no piece has completed
	mask      masker          // of the credential of the request
	sent      strings.Builder // text as the agent has sent it, up to OutputBytesMax, if mask may have changed it
	unknown   []string        // distinct names of skipped events, at most unknownEventsMax+1
	usage     Usage
	done      bool
	failure   *Failure
}

// unknownEventsMax is the maximum number of unknown events that a warning names.
const unknownEventsMax = 8

// NewAgentDecoder returns a decoder for the response to the invocation of the
// given run.
func NewAgentDecoder(name, run string, secrets Secrets, contentType string) (*AgentDecoder, *Failure) {
	if media := mediaType(contentType); !readableMedia(media) || strings.HasSuffix(media, "json") {
		return nil, fail(Broken, actor.Unavailable, "%s answers with %q: want an event stream", name, secrets.quote(media, mediaBytesMax))
	}
	return &AgentDecoder{name: name, run: run, secrets: secrets, parser: NewParser(StreamLimits{}), mask: masker{secrets: credentialsOf(secrets)}}, nil
}

// credentialsOf returns the secrets of an invocation that are masked in its answer. A run token is not: it is worthless
// after the run, and the pieces of an answer would be held back for each that may begin one.
func credentialsOf(secrets Secrets) Secrets {
	return slices.DeleteFunc(secrets.long(), func(secret string) bool { return strings.HasPrefix(secret, "troupe-run.") })
}

// Done reports whether the agent has sent its done event.
func (d *AgentDecoder) Done() bool { return d.done }

// HasFinish is equal to Done, because agents end with a dedicated event.
func (d *AgentDecoder) HasFinish() bool { return d.done }

// Completion returns the response as received so far.
func (d *AgentDecoder) Completion() Completion {
	c := Completion{Text: d.text.String(), Usage: d.usage}
	if d.done {
		c.Finish = FinishStop
	}
	return c
}

// Warnings returns a warning if the response is complete and has no text, but events
// that were skipped. The agent probably sends its text in them.
func (d *AgentDecoder) Warnings() []string {
	if !d.done || d.text.Len() > 0 || len(d.unknown) == 0 {
		return nil
	}
	var names strings.Builder
	for i, name := range d.unknown[:min(len(d.unknown), unknownEventsMax)] {
		fmt.Fprintf(&names, "%s%q", [...]string{"", ", "}[min(i, 1)], name)
	}
	if len(d.unknown) > unknownEventsMax {
		names.WriteString(" and others")
	}
	return []string{fmt.Sprintf("%s: the answer has no text, only events that the server does not know: %s; want event: delta with data: {\"text\":\"…\"}", d.name, names.String())}
}

// skip records the name of an unknown event.
func (d *AgentDecoder) skip(name string) {
	name = d.secrets.quote(cmp.Or(name, "message"), mediaBytesMax) // an event without a name is a message
	if len(d.unknown) <= unknownEventsMax && !slices.Contains(d.unknown, name) {
		d.unknown = append(d.unknown, name)
	}
}

// Decode consumes the next bytes of the body.
func (d *AgentDecoder) Decode(b []byte) (deltas []Delta, failure *Failure) {
	if d.failure != nil || d.done {
		return nil, d.failure
	}
	events, refusal := d.parser.Parse(b)
	for _, e := range events {
		if delta := d.handleEvent(e); delta != (Delta{}) {
			deltas = append(deltas, delta)
		}
		if d.done || d.failure != nil {
			return deltas, d.failure
		}
	}
	if refusal != nil {
		d.failure = fail(Refused, refusal.Reason, "%s: %s", d.name, refusal.Detail)
	}
	return deltas, d.failure
}

// End reports the end of the body. It fails if no done event was received.
func (d *AgentDecoder) End() ([]Delta, *Failure) {
	if d.failure == nil && !d.done {
		d.failure = fail(Broken, actor.Unavailable, "%s: response ended after %d events without done", d.name, d.events)
	}
	return nil, d.failure
}

func (d *AgentDecoder) failMalformed(e runs.Frame, format string, args ...any) Delta {
	d.failure = fail(Broken, actor.Unavailable, "%s, event %d, %s: "+format, append([]any{d.name, d.events, e.Name}, args...)...)
	return Delta{}
}

// handleEvent processes one event. A non-zero result MUST be forwarded.
func (d *AgentDecoder) handleEvent(e runs.Frame) Delta {
	d.events++
	switch e.Name {
	case "delta":
		var w struct {
			Text agentText `json:"text"`
			Run  string    `json:"run_id"`
		}
		err := unmarshal([]byte(e.Data), &w, lenient)
		switch {
		case err != nil:
			return d.failMalformed(e, "%s", d.secrets.quoteError(err))
		case !w.Text.given:
			return d.failMalformed(e, "text is missing")
		case w.Run != "" && w.Run != d.run:
			return d.failMalformed(e, "run_id %q is that of another run", d.secrets.quote(w.Run, mediaBytesMax))
		}
		return d.addText(d.masked(d.half.join(string(w.Text.wireText))))
	case "state":
		var w struct {
			State  wireText       `json:"state"`
			Detail jsontext.Value `json:"detail"`
		}
		err := unmarshal([]byte(e.Data), &w, lenient)
		state := validText(string(w.State))
		switch {
		case err != nil:
			return d.failMalformed(e, "%s", d.secrets.quoteError(err))
		case state == "" || len(state) > stateBytesMax:
			return d.failMalformed(e, "want a state of 1 to %d bytes", stateBytesMax)
		case len(w.Detail) > detailBytesMax:
			return d.failMalformed(e, "detail of %d bytes exceeds the maximum of %d", len(w.Detail), detailBytesMax)
		}
		return Delta{State: d.mask.secrets.redact(state), Detail: d.mask.secrets.redact(stateDetail(w.Detail))}
	case "done":
		return d.finishAnswer(e)
	case "error":
		reported := parseError([]byte(e.Data))
		d.failure = fail(Refused, agentReason(reported.code), "%s reported%s", d.name, reported.describe(d.secrets))
		if d.failure.Refusal.Reason.Info().Type != reported.code {
			d.failure.Refusal.Code = actor.FitText(d.secrets.redact(reported.code), actor.NameBytesMax)
		}
		d.failure.markTooLong(reported)
		if d.failure.Refusal.Reason == actor.Busy {
			d.failure.Refusal.Scope = actor.ScopeCallee
		}
	default:
		d.skip(e.Name)
	}
	return Delta{}
}

// agentText is the text of an event. Null is an empty text.
type agentText struct {
	wireText
	given bool
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (t *agentText) UnmarshalJSONFrom(from *jsontext.Decoder) error {
	t.given = true
	return t.wireText.UnmarshalJSONFrom(from)
}

// masked returns the part of a piece that can be passed on, without the credential of the request.
func (d *AgentDecoder) masked(piece string) string {
	if len(d.mask.secrets) > 0 && d.sent.Len()+len(piece) <= OutputBytesMax {
		d.sent.WriteString(piece)
	}
	return d.mask.add(piece)
}

// addText appends valid text to the answer and returns its delta.
func (d *AgentDecoder) addText(text string) Delta {
	if d.jsonBytes+jsonBytesMax(text) > OutputBytesMax {
		d.failure = fail(Refused, actor.Rejected, "%s: output exceeds %d bytes", d.name, OutputBytesMax)
		return Delta{}
	}
	d.jsonBytes += jsonBytesMax(text)
	d.text.WriteString(text)
	return Delta{Text: text}
}

// stateDetail returns a detail as strict JSON, or "" if there is none or it has doubled members.
func stateDetail(detail jsontext.Value) string {
	if detail.IsValid() && detail.Kind() != 'n' {
		return string(detail)
	}
	return string(keptOf(detail))
}

// finishAnswer processes the event done. The event itself ends the answer, so no content of it is
// required. Its text continues the pieces that it begins with; without pieces it is the answer. The
// protocol leaves the members of its usage open: the names are those of this server and those of
// chat completions.
func (d *AgentDecoder) finishAnswer(e runs.Frame) Delta {
	var w struct {
		Text  jsontext.Value `json:"text"`
		Usage jsontext.Value `json:"usage"`
	}
	var text wireText
	before, rest := d.text.String(), d.half.rest()
	if len(d.mask.secrets) > 0 {
		before = d.sent.String()
	}
	if unmarshal([]byte(e.Data), &w, lenient) == nil && len(w.Text) > 0 && unmarshal(w.Text, &text, lenient) == nil {
		if more, ok := strings.CutPrefix(validText(string(text)), before+rest); ok {
			rest += more
		}
	}
	delta := d.addText(d.masked(rest) + d.mask.rest())
	if d.failure == nil {
		d.usage, d.done = agentUsage(w.Usage), true
	}
	return delta
}

// agentUsage returns the usage in a done event. It never decides whether an answer is accepted.
func agentUsage(value jsontext.Value) Usage {
	var w struct {
		Tokens     wireCount `json:"tokens"`
		Total      wireCount `json:"total_tokens"`
		Input      wireCount `json:"input_tokens"`
		Prompt     wireCount `json:"prompt_tokens"`
		Output     wireCount `json:"output_tokens"`
		Completion wireCount `json:"completion_tokens"`
	}
	if len(value) == 0 || value.Kind() != '{' || unmarshal(value, &w, lenient) != nil {
		return Usage{}
	}
	u := Usage{Input: int64(cmp.Or(w.Input, w.Prompt)), Output: int64(cmp.Or(w.Output, w.Completion)), Total: int64(cmp.Or(w.Tokens, w.Total))}
	if min(u.Input, u.Output, u.Total) < 0 {
		return Usage{}
	}
	if u.Total == 0 {
		u.Total = u.Input + u.Output
	}
	u.Known = u != Usage{}
	return u
}

// agentReason maps an error code of an agent to a reason. Reasons that only the
// runtime can establish (cycles, depth, cancellation) cannot be claimed by an
// agent: their codes become Rejected, as do unknown codes.
func agentReason(code string) actor.Reason {
	allowed := []actor.Reason{actor.Busy, actor.Deadline, actor.NotFound, actor.Unavailable, actor.Budget, actor.Invalid, actor.Unknown, actor.NoDevice}
	if i := slices.IndexFunc(allowed, func(r actor.Reason) bool { return r.Info().Type == code }); i >= 0 {
		return allowed[i]
	}
	return actor.Rejected
}

// Health checks of external agents.
const (
	HeartbeatEvery = 15 * time.Second // interval of heartbeats from the agent, or of polls
	UnhealthyAfter = 45 * time.Second // maximum time without a heartbeat or a successful poll
	HealthTimeout  = 5 * time.Second  // timeout of a poll
	unreachedPause = time.Second      // time without invocations after one that could not connect
	healthPoll     = time.Second      // interval at which a waiting invocation reads the health
)

// HealthRequest returns the request of a health poll.
func (a Agent) HealthRequest() (Request, *actor.Refusal) {
	return request("GET", a.URL, "/health", nil, a.authorization())
}

// Health tracks the liveness of an external agent. The agent becomes unhealthy after
// UnhealthyAfter without a heartbeat or a successful poll, or when a poll returns an
// error status. A missing health endpoint (404, 405) counts as neither success nor
// error. It holds the circuit breaker of the agent too, of which a sign of life is evidence.
type Health struct {
	circuit     dispatcher.Breaker
	lastSeen    actor.Time // last heartbeat or successful poll; at first the start of the observation
	contacted   bool       // lastSeen is no longer the start
	lastPoll    actor.Time
	unwellSince actor.Time // first of the consecutive polls that returned an error; 0 if none

	// The first and the last invocation that found no service; 0 after a sign of life.
	unreachedSince, unreached actor.Time
}

// NewHealth returns a healthy state for an agent that is observed from now on. There was
// no contact yet, and the circuit is closed.
func NewHealth(now actor.Time, circuit dispatcher.BreakerConfig) Health {
	return Health{lastSeen: now, lastPoll: now, circuit: dispatcher.NewBreaker(circuit)}
}

// Heartbeat records a heartbeat.
func (h *Health) Heartbeat(now actor.Time) {
	h.lastSeen, h.contacted, h.unwellSince = now, true, 0
	h.recordReached(now)
}

// Record implements AgentGate. If the invocation could not connect, the agent is unhealthy until
// a sign of life. Invocations are not admitted for a second only, because a restarted service may
// answer long before the next poll.
func (h *Health) Record(now actor.Time, o *Outcome, probe bool) {
	h.circuit.Record(now, o.Evidence, probe)
	switch n := len(o.Attempts); {
	case n == 0:
	case o.Attempts[n-1].Status != 0:
		h.recordReached(now)
	case o.Evidence == dispatcher.Unreached:
		h.unreached = max(now, 1)
		if since := o.Attempts[0].At; h.unreachedSince == 0 || since < h.unreachedSince {
			h.unreachedSince = max(since, 1)
		}
	}
}

// Start implements AgentGate.
func (h *Health) Start(now actor.Time) (probe bool, refusal *actor.Refusal) {
	return h.circuit.Start(now)
}

// Answering implements AgentGate.
func (h *Health) Answering(now actor.Time) { h.recordReached(now) }

// recordReached records a sign of life.
func (h *Health) recordReached(now actor.Time) {
	h.unreachedSince, h.unreached = 0, 0
	h.circuit.Record(now, dispatcher.Reached, false)
}

// Circuit returns the state of the circuit breaker, and how often it opened.
func (h *Health) Circuit(now actor.Time) (state dispatcher.Circuit, opened uint64) {
	return h.circuit.Circuit(now), h.circuit.Opened()
}

// RecordPoll records the result of a poll. Status 0 means no response: the network
// may be at fault, so the poll counts only as silence.
func (h *Health) RecordPoll(now actor.Time, status int) {
	h.lastPoll = now
	if status != 0 {
		h.recordReached(now)
	}
	switch status {
	case 200:
		h.Heartbeat(now)
	case 0, 404, 405:
	default:
		h.unwellSince = cmp.Or(h.unwellSince, max(now, 1))
	}
}

// LastSeen returns the time of the last heartbeat or successful poll, or the start of the
// observation if there is none.
func (h *Health) LastSeen() actor.Time { return h.lastSeen }

// Contacted reports whether there was a heartbeat or a successful poll.
func (h *Health) Contacted() bool { return h.contacted }

// Healthy reports whether the agent answers, as far as known, and its circuit is closed.
func (h *Health) Healthy(now actor.Time) bool {
	return h.unreached == 0 && h.responsive(now) && h.circuit.Circuit(now) == dispatcher.Closed
}

func (h *Health) responsive(now actor.Time) bool {
	return h.unwellSince == 0 && now.Sub(h.lastSeen) <= UnhealthyAfter
}

// NextPoll returns the time of the next poll.
func (h *Health) NextPoll() actor.Time { return h.lastPoll.Add(HeartbeatEvery) }

// Admit implements AgentGate.
func (h *Health) Admit(now actor.Time) Admission {
	if refusal := h.circuit.Refusal(now); refusal != nil {
		return Admission{Refusal: refusal}
	}
	if wait := h.unreached.Add(unreachedPause).Sub(now); h.unreached != 0 && wait > 0 {
		return Admission{Refusal: actor.RefuseUnavailable(wait, "unhealthy: its address accepted no connection"), Since: h.unreachedSince}
	}
	if h.responsive(now) {
		return Admission{Since: h.unreachedSince}
	}
	refusal := actor.RefuseUnavailable(max(h.NextPoll().Sub(now), time.Second), "unhealthy: last contact %v ago", now.Sub(h.lastSeen).Truncate(time.Second))
	since := h.lastSeen.Add(UnhealthyAfter)
	if h.unwellSince != 0 {
		since = min(since, h.unwellSince)
	}
	return Admission{Refusal: refusal, Since: since, Poll: healthPoll}
}

// AgentGate admits the invocations of an external agent: a Health, with a lock if the host needs
// one.
type AgentGate interface {
	// Admit refuses an invocation while the agent is unhealthy or its circuit is open. An
	// Admission without a refusal has Since if the agent is known to be unreachable.
	Admit(now actor.Time) Admission
	// Start starts an admitted invocation, unless its circuit has opened meanwhile.
	Start(now actor.Time) (probe bool, refusal *actor.Refusal)
	// Answering records that the response to a probe has begun.
	Answering(now actor.Time)
	// Record records the end of an invocation.
	Record(now actor.Time, o *Outcome, probe bool)
}

// InvocationPacer is the Pacer of one invocation of an external agent. The first
// attempt waits until the agent is healthy. Later ones do not: they notice sooner than
// the next poll that the agent has recovered.
type InvocationPacer struct {
	Pacer    // back-off of the endpoint
	Gate     AgentGate
	admitted bool
	probe    bool
}

// Admit implements Pacer.
func (p *InvocationPacer) Admit(now actor.Time, w Waiter, draw uint64) Admission {
	if p.admitted {
		return p.Pacer.Admit(now, w, draw)
	}
	health := p.Gate.Admit(now)
	if health.Refusal != nil {
		return health
	}
	pass := p.Pacer.Admit(now, w, draw)
	if pass.Refusal != nil || pass.At > now {
		return pass
	}
	if pass.Probe, pass.Refusal = p.Gate.Start(now); pass.Refusal != nil {
		return pass
	}
	p.admitted, p.probe, pass.Since = true, pass.Probe, health.Since
	return pass
}

// Report implements Pacer.
func (p *InvocationPacer) Report(now actor.Time, r Report, draw uint64) Advice {
	if r.Probe && r.Answered {
		p.Gate.Answering(now)
	}
	return p.Pacer.Report(now, r, draw)
}

// End records the outcome of the invocation. The host MUST call it.
func (p *InvocationPacer) End(now actor.Time, o *Outcome) { p.Gate.Record(now, o, p.probe) }
