// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// serveModel simulates the server of a model. It decodes the prompt, follows its
// instructions as the scripted model does, and streams the completion. Faults change
// either the completion itself or the bytes on their way to the node.
func (w *Simulation) serveModel(s *upstreamConn, r upstream.Request) {
	prompt, err := upstream.DecodePrompt(r.Body)
	if err != nil {
		w.fail(CodecRoundTrip, "a model received an invalid prompt: "+err.Error())
		return
	}
	s.checkModelRequest(r, &prompt)
	if wantKey := strings.HasPrefix(r.URL, "http://"+modelNames[1]); wantKey != presentsSecret(r, modelKey) {
		w.fail(NobodyAstray, "a model received the key of another model, or not its own: "+r.URL)
	}
	if reset, _ := s.drawReset(&modelStreamFaults); reset {
		return
	}
	delay := w.between(2*time.Millisecond, 300*time.Millisecond)
	switch {
	case w.faultFires(ModelThrottled):
		s.respondCanned(delay, ModelThrottled, retryLaterResponses[:])
		return
	case w.faultFires(ModelError):
		s.respondCanned(delay, ModelError, errorResponses[:])
		return
	case w.faultFires(ModelLate): // the response arrives after the deadline, and the node still receives it
		s.deliverAfterClose, s.lateFault = true, ModelLate
		delay = durationOr(w.plan.Patience.Head, 2*time.Minute) + w.between(0, 3*time.Second)
	}
	completion := w.modelCompletion(s, prompt)
	fault := w.injectModelFault(s, &prompt, &completion)
	s.served.addText(completion.Text)
	s.served.answer = &completion
	body := upstream.AppendStream(nil, completion, [...]int{80, 24, 200, 400}[w.entropy.Int(4)])
	s.drawStreamFaults(&modelStreamFaults, len(body))
	s.splitPieces = w.faultFires(ModelSplit)
	if w.entropy.Int(8) == 7 || fault == ModelGiant && w.plan.Span >= longSpanMin { // as a stream, a giant answer would take two thousand steps
		completion.Usage = upstream.Usage{Known: true, Input: 3, Output: 4, Total: 7} // see completionBody
		s.sendHead(delay, noFault, 200, headerList("content-type", "application/json; charset=utf-8")...)
		s.writeBody(0, fault, completionBody(completion))
		s.endBody(0, noFault)
		return
	}
	s.startEventStream(delay)
	frameDelayMax := [...]time.Duration{5 * time.Millisecond, 40 * time.Millisecond, 120 * time.Millisecond}[w.entropy.Int(3)]
	for len(body) > 0 {
		n := 0
		for range 1 + w.entropy.Int(4) {
			n += firstFrameLen(body[n:])
		}
		f := noFault
		if n == len(body) {
			f = fault
		}
		s.writeBody(w.between(0, frameDelayMax), f, body[:n])
		body = body[n:]
	}
	s.endBody(0, noFault)
}

func durationOr(d, other time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return other
}

// firstFrameLen returns the length of the first frame.
func firstFrameLen(b []byte) int {
	if i := bytes.Index(b, []byte("\n\n")); i >= 0 {
		return i + 2
	}
	return len(b)
}

// injectModelFault may replace the completion by a wrong one. It returns the
// injected fault, or noFault.
func (w *Simulation) injectModelFault(s *upstreamConn, prompt *upstream.Prompt, completion *upstream.Completion) Fault {
	looping := w.loopingRuns[s.exchange.id.Run]
	switch {
	case len(completion.Calls) > 0 && w.faultFires(ModelMalformedCall):
		c := &completion.Calls[w.entropy.Int(len(completion.Calls))]
		c.Arguments = c.Arguments[:w.entropy.Int(len(c.Arguments))]
		return ModelMalformedCall
	case len(completion.Calls) > 0 && w.faultFires(ModelInventedAgent):
		c := &completion.Calls[0]
		c.Name, c.Arguments = tools.CallAgent, `{"agent_id":"phantom","message":"hello"}`
		return ModelInventedAgent
	case len(completion.Calls) == 0 && w.faultFires(ModelCut):
		completion.Finish = [...]upstream.Finish{upstream.FinishLength, upstream.FinishFilter, upstream.FinishAnother}[w.entropy.Int(3)]
		completion.Text = completion.Text[:w.truncationPoint(completion.Text)]
		return ModelCut
	case len(completion.Calls) == 0 && w.Stats.Faults[ModelGiant] == 0 && w.faultFires(ModelGiant):
		completion.Text = strings.Repeat("and so on ", upstream.OutputBytesMax/8)
		return ModelGiant
	case len(completion.Calls) == 0 && (looping || w.faultFires(ModelEndlessLoop)) && offersTool(prompt, clockTool):
		w.loopingRuns[s.exchange.id.Run] = true
		completion.Text, completion.Finish = "Let me see.", upstream.FinishCalls
		completion.Calls = []upstream.ToolCall{{ID: "again", Name: clockTool, Arguments: fmt.Sprintf(`{"time":%d}`, len(prompt.Messages)/2*w.entropy.Int(2))}}
		return ModelEndlessLoop
	}
	return noFault
}

// truncationPoint draws the length of the part of a text that is sent before the
// cut. The part ends at a character boundary and may be empty.
func (w *Simulation) truncationPoint(text string) int {
	at := w.entropy.Int(2) * w.entropy.Int(len(text)+1)
	for at > 0 && at < len(text) && text[at]&0xc0 == 0x80 {
		at--
	}
	return at
}

func offersTool(p *upstream.Prompt, tool string) bool {
	return slices.ContainsFunc(p.Tools, func(t upstream.ToolSpec) bool { return t.Name == tool })
}

// serveExternalAgent simulates the service of an external agent. The service follows
// the message line by line, as the scripted model does. It calls other agents through
// the run for which it was invoked, with the token of that run.
func (w *Simulation) serveExternalAgent(s *upstreamConn, r upstream.Request) {
	var in struct {
		Agent string `json:"agent_id"`
		Input string `json:"input_message"`
	}
	if err := json.Unmarshal(r.Body, &in); err != nil {
		w.fail(CodecRoundTrip, "an external agent received an invalid invocation: "+err.Error())
		return
	}
	s.checkInvocation(r)
	if in.Agent == externalNames[1] != presentsSecret(r, authSecret(authEnv)) {
		w.fail(NobodyAstray, "an external agent received the credential of another agent, or not its own: "+r.URL)
	}
	reset, sent := s.drawReset(&agentStreamFaults)
	if reset && !sent {
		return
	}
	delay := w.between(time.Millisecond, 100*time.Millisecond)
	switch {
	case reset:
	case w.faultFires(AgentRefuses):
		if code := agentRefusalCodes[w.entropy.Int(len(agentRefusalCodes))]; code != "" {
			s.served.verdict = &verdict{class: upstream.Refused, agent: agentRefusalReasons[code]}
			s.startEventStream(delay)
			s.writeBody(0, AgentRefuses, sseFrame("error", s.quoteSecret(fmt.Sprintf(`{"code":%q,"message":"injected refusal of SECRET"}`, code))))
			s.endBody(0, noFault)
			return
		}
		if w.entropy.Int(2) == 1 {
			s.respondCanned(delay, AgentRefuses, errorResponses[:])
			return
		}
		s.respondError(delay, AgentRefuses, 403, "permission_error")
		return
	case w.faultFires(AgentOverloaded):
		s.respondCanned(delay, AgentOverloaded, retryLaterResponses[:])
		return
	case w.faultFires(AgentAbsent):
		s.breakConnection(delay, AgentAbsent, false, "connection refused")
		return
	case w.faultFires(AgentLate): // the response arrives after the deadline, and the node still receives it
		s.deliverAfterClose, s.lateFault = true, AgentLate
		delay = durationOr(w.plan.Patience.Head, 2*time.Minute) + w.between(0, 3*time.Second)
	}
	w.recordUpstream(s.exchange, "act", uint64(s.attempt))
	if reset {
		return
	}
	e := &externalCall{w: w, conn: s, agent: in.Agent}
	for _, h := range r.Headers {
		if h.Name == "x-run-token" {
			e.token = h.Value
		}
	}
	e.response = w.agentCompletion(in.Agent, in.Input)
	s.drawStreamFaults(&agentStreamFaults, 400)
	s.startEventStream(delay)
	if w.faultFires(AgentGiant) {
		s.served.addText(strings.Repeat("and so on ", upstream.OutputBytesMax/8))
		s.writeBody(0, AgentGiant, sseFrame("delta", `{"text":"`+strings.Repeat("and so on ", upstream.OutputBytesMax/8)+`"}`))
	}
	w.externalCalls++
	e.scheduleAdvance()
}

// agentRefusalCodes are the codes with which an external agent refuses in its
// response stream. If the code is empty, the agent uses an HTTP status instead.
var agentRefusalCodes = [...]string{"", "agent_busy", "timeout", "agent_not_found", "call_cycle", "because"}

// agentRefusalReasons are the reasons that the documentation gives for these codes. An
// agent cannot establish a call cycle.
var agentRefusalReasons = map[string]actor.Reason{"agent_busy": actor.Busy, "timeout": actor.Deadline, "agent_not_found": actor.NotFound,
	"call_cycle": actor.Rejected, "because": actor.Rejected}

// externalCall is an invocation that an external agent processes. It continues
// after the node has disconnected, like a process that does not check its
// connection.
type externalCall struct {
	w        *Simulation
	conn     *upstreamConn
	agent    string
	token    string
	response upstream.Completion
	nextCall int // index of the next call in response.Calls
}

func (e *externalCall) scheduleAdvance() {
	e.w.after(e.w.between(time.Millisecond, 150*time.Millisecond), e.advance)
}

func (e *externalCall) advance() {
	w := e.w
	if e.nextCall < len(e.response.Calls) {
		call := e.response.Calls[e.nextCall]
		e.nextCall++
		if w.entropy.Int(2) == 0 {
			detail := fmt.Sprintf(`{"call":%d}`, e.nextCall)
			e.conn.served.addState("asking", detail)
			e.writeFrame("state", fmt.Sprintf(`{"state":"asking","detail":%s}`, detail))
		}
		w.sendCallback(e, call.Arguments, func(reply *actor.Reply) {
			switch {
			case reply == nil:
				e.writeText("No reply. ")
			case reply.Refusal != nil:
				e.writeText("Refused: " + reply.Refusal.Reason.String() + ". ")
			default:
				e.writeText(actor.TextOf(reply.Parts) + " ")
			}
			e.scheduleAdvance()
		})
		return
	}
	e.writeText(textOr(e.response.Text, "Done."))
	end := agentEnds[w.entropy.Int(len(agentEnds))]
	done := sseFrame("done", end.data)
	if w.faultFires(AgentDoneUnheard) && !e.conn.finished {
		e.conn.breakConnection(0, AgentDoneUnheard, true, "connection lost before the last frame")
	}
	if !e.conn.finished {
		e.conn.served.answer = &upstream.Completion{Finish: upstream.FinishStop, Usage: end.usage}
	}
	e.conn.writeBody(w.between(0, 60*time.Millisecond), noFault, done)
	if w.faultFires(AgentDuplicate) {
		e.conn.writeBody(0, AgentDuplicate, slices.Concat(sseFrame("delta", `{"text":"Duplicate. "}`), done))
	}
	e.conn.endBody(0, noFault)
	w.externalCalls--
	if w.faultFires(CallbackLate) {
		w.externalCalls++
		w.after(w.between(50*time.Millisecond, 3*time.Second), func() {
			w.externalCalls--
			w.sendCallback(e, `{"agent_id":"`+w.plan.Agents[0].Name+`","message":"too late"}`, func(reply *actor.Reply) {
				if reply != nil && reply.Refusal != nil {
					w.recordFault(CallbackLate, "%s calls back after the end of its run: %s", e.agent, reply.Refusal.Reason)
				}
			})
		})
	}
}

// agentEnds are the last frames of external agents, with the usage that they report.
var agentEnds = [...]struct {
	data  string
	usage upstream.Usage
}{
	{`{"usage":{"tokens":7}}`, upstream.Usage{Known: true, Total: 7}},
	{`{"usage":{"input_tokens":3,"output_tokens":4}}`, upstream.Usage{Known: true, Input: 3, Output: 4, Total: 7}},
	{"{}", upstream.Usage{}},
}

func textOr(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

// writeText sends a text in a few pieces.
func (e *externalCall) writeText(text string) {
	e.conn.served.addText(text)
	for len(text) > 0 {
		n := len(text)
		if n > 20 {
			n = 1 + e.w.entropy.Int(n)
		}
		for n < len(text) && text[n]&0xc0 == 0x80 { // never inside a character
			n++
		}
		piece, err := json.Marshal(map[string]string{"text": text[:n]})
		if err != nil {
			panic(err)
		}
		e.writeFrame("delta", string(piece))
		text = text[n:]
	}
}

func (e *externalCall) writeFrame(name, data string) {
	e.conn.writeBody(e.w.between(0, 60*time.Millisecond), noFault, sseFrame(name, data))
}

func sseFrame(name, data string) []byte {
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, data)
}
