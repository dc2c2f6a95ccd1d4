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
	"github.com/troupe-run/troupe/internal/invariant"
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
	s.checkApart(r)
	s.checkModelRequest(r, &prompt)
	if wantKey := strings.HasPrefix(r.URL, "http://"+modelNames[1]); wantKey != presentsSecret(r, modelKey) {
		w.fail(NobodyAstray, "a model received the key of another model, or not its own: "+r.URL)
	}
	if reset, _ := s.drawReset(&modelStreamFaults); reset {
		return
	}
	delay := w.between(2*time.Millisecond, 300*time.Millisecond)
	s.plain.headDue = w.now.Add(delay)
	switch {
	case w.faultFires(ModelThrottled):
		if s.replaceResponse(ModelThrottled, func(s *upstreamConn) { s.respondCanned(delay, ModelThrottled, retryLaterResponses[:]) }) {
			return
		}
	case w.faultFires(ModelError):
		if s.replaceResponse(ModelError, func(s *upstreamConn) { s.respondCanned(delay, ModelError, errorResponses[:]) }) {
			return
		}
	case w.faultFires(ModelLate): // the response arrives after the deadline
		delay = s.delayHead(ModelLate, delay, durationOr(w.plan.Patience.Head, 2*time.Minute)+w.between(0, 3*time.Second))
	}
	plain := w.modelCompletion(s, prompt)
	spend(w, &plain, prompt)
	completion, fault := w.injectModelFault(s, &prompt, plain)
	pieceBytes := [...]int{80, 24, 200, 400}[w.entropy.Int(4)]
	format := w.newStreamFormat()
	frames := s.served.stream(format, upstream.AppendStream(nil, completion, pieceBytes))
	body := slices.Concat(frames...)
	if s.plain.body, s.altered = body, fault; fault != noFault {
		s.plain.body = slices.Concat((&served{}).stream(format.restart(), upstream.AppendStream(nil, plain, pieceBytes))...)
	}
	s.served.addText(completion.Text)
	s.served.answer = &completion
	s.drawStreamFaults(&modelStreamFaults, len(body))
	s.splitPieces = w.faultFires(ModelSplit)
	if w.entropy.Int(8) == 7 || fault == ModelGiant && w.plan.Span >= longSpanMin { // as a stream, a giant answer would take two thousand steps
		completion.Usage = upstream.Usage{Known: true, Input: 3, Output: 4, Total: 7} // see completionBody
		s.plain.head.Headers, s.plain.body = headerList("content-type", "application/json; charset=utf-8"), completionBody(plain)
		s.served.marks = nil
		s.sendHead(delay, noFault, 200, s.plain.head.Headers...)
		s.writeBody(0, noFault, completionBody(completion))
		s.endBody(0, noFault)
		return
	}
	s.startEventStream(delay)
	frameDelayMax := [...]time.Duration{5 * time.Millisecond, 40 * time.Millisecond, 120 * time.Millisecond}[w.entropy.Int(3)]
	for len(frames) > 0 {
		n := min(1+w.entropy.Int(4), len(frames))
		s.writeBody(w.between(0, frameDelayMax), noFault, slices.Concat(frames[:n]...))
		frames = frames[n:]
	}
	s.endBody(0, noFault)
}

func durationOr(d, other time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return other
}

// mark records that the first n bytes of the body hold the pieces that were added.
func (s *served) mark(n int) { s.marks = append(s.marks, mark{n, len(s.pieces)}) }

// firstFrameLen returns the length of the first frame.
func firstFrameLen(b []byte) int {
	if i := bytes.Index(b, []byte("\n\n")); i >= 0 {
		return i + 2
	}
	return len(b)
}

// injectModelFault may replace the completion by a wrong one. It returns the completion
// of the server and the injected fault, or noFault.
func (w *Simulation) injectModelFault(s *upstreamConn, prompt *upstream.Prompt, plain upstream.Completion) (upstream.Completion, Fault) {
	completion := plain
	completion.Calls = slices.Clone(plain.Calls)
	f := w.alterCompletion(s, prompt, &completion)
	if f != noFault && !w.acts(f) {
		return plain, f
	}
	return completion, f
}

// alterCompletion may make the completion wrong. It returns the injected fault, or
// noFault.
func (w *Simulation) alterCompletion(s *upstreamConn, prompt *upstream.Prompt, completion *upstream.Completion) Fault {
	looping := w.loopingRuns[s.exchange.id.Run]
	switch {
	case len(completion.Calls) > 0 && w.faultFires(ModelMalformedCall):
		c := &completion.Calls[w.entropy.Int(len(completion.Calls))]
		c.Arguments = string(w.faultyBytes(ModelMalformedCall, []byte(c.Arguments), []byte(c.Arguments[:w.entropy.Int(len(c.Arguments))])))
		return ModelMalformedCall
	case len(completion.Calls) > 0 && w.faultFires(ModelInventedAgent):
		c := &completion.Calls[0]
		c.Name, c.Arguments = tools.CallAgent, `{"agent_id":"phantom","message":"hello"}`
		return ModelInventedAgent
	case len(completion.Calls) == 0 && w.faultFires(ModelCut):
		completion.Finish = [...]upstream.Finish{upstream.FinishLength, upstream.FinishFilter, upstream.FinishAnother}[w.entropy.Int(3)]
		completion.Text = string(w.faultyBytes(ModelCut, []byte(completion.Text), []byte(completion.Text[:w.truncationPoint(completion.Text)])))
		return ModelCut
	case len(completion.Calls) == 0 && w.Stats.Faults[ModelGiant] == 0 && w.faultFires(ModelGiant):
		completion.Text = string(w.faultyBytes(ModelGiant, []byte(completion.Text), []byte(strings.Repeat("and so on ", upstream.OutputBytesMax/8))))
		return ModelGiant
	case len(completion.Calls) == 0 && (looping || w.faultFires(ModelEndlessLoop)) && offersTool(prompt, clockTool):
		w.loopingRuns[s.exchange.id.Run] = w.doses[ModelEndlessLoop] == WholeDose // with half a dose, the model repeats it once
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
	in, err := readInvocation(r.Body)
	if err != nil {
		w.fail(CodecRoundTrip, "an external agent received an invalid invocation: "+err.Error())
		return
	}
	agent := in[exampleAgent]
	s.checkInvocation(r, in)
	s.checkHeardMessages(r.Body)
	s.checkApart(r)
	if agent == externalNames[1] != presentsSecret(r, authSecret(authEnv)) {
		w.fail(NobodyAstray, "an external agent received the credential of another agent, or not its own: "+r.URL)
	}
	reset, sent := s.drawReset(&agentStreamFaults)
	if reset && !sent {
		return
	}
	delay := w.between(time.Millisecond, 100*time.Millisecond)
	s.plain.headDue = w.now.Add(delay)
	replaced := false
	switch {
	case reset:
	case w.faultFires(AgentRefuses):
		replaced = s.replaceResponse(AgentRefuses, func(s *upstreamConn) { s.respondRefusal(delay) })
	case w.faultFires(AgentOverloaded):
		replaced = s.replaceResponse(AgentOverloaded, func(s *upstreamConn) { s.respondCanned(delay, AgentOverloaded, retryLaterResponses[:]) })
	case w.faultFires(AgentAbsent):
		replaced = s.replaceResponse(AgentAbsent, func(s *upstreamConn) { s.breakConnection(delay, AgentAbsent, false, "connection refused") })
	case w.faultFires(AgentLate): // the response arrives after the deadline
		delay = s.delayHead(AgentLate, delay, durationOr(w.plan.Patience.Head, 2*time.Minute)+w.between(0, 3*time.Second))
	}
	if replaced {
		return
	}
	w.recordUpstream(s.exchange, "act", uint64(s.attempt))
	if reset {
		return
	}
	e := &externalCall{w: w, conn: s, agent: agent}
	for _, h := range r.Headers {
		if h.Name == "x-run-token" {
			e.token = h.Value
		}
	}
	e.response, e.format = w.agentCompletion(agent, in[exampleContent]), w.newStreamFormat()
	s.drawStreamFaults(&agentStreamFaults, 400)
	s.startEventStream(delay)
	if w.faultFires(AgentGiant) {
		s.writeGiant()
	}
	w.externalCalls++
	e.scheduleAdvance()
}

// writeGiant writes a frame that is larger than the size limit.
func (s *upstreamConn) writeGiant() {
	w, text := s.exchange.n.w, strings.Repeat("and so on ", upstream.OutputBytesMax/8)
	switch w.doses[AgentGiant] {
	case WholeDose:
		s.served.addText(text)
	case HalfDose: // a part of the frame
		s.served.forged = true
	}
	s.writeBody(0, AgentGiant, w.faultyBytes(AgentGiant, nil, sseFrame("delta", `{"text":"`+text+`"}`)))
}

// respondRefusal has an external agent refuse the invocation.
func (s *upstreamConn) respondRefusal(delay time.Duration) {
	w := s.exchange.n.w
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
	format   *streamFormat
	nextCall int // index of the next call in response.Calls
}

func (e *externalCall) scheduleAdvance() {
	e.w.after(e.w.between(time.Millisecond, 150*time.Millisecond), e.advance)
}

func (e *externalCall) advance() {
	w := e.w
	if w.approvals.add(e) {
		return
	}
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
	e.writeAnswer(textOr(e.response.Text, "Done."))
	end := agentEnds[w.entropy.Int(len(agentEnds))]
	if w.faultFires(AgentDoneUnheard) && w.acts(AgentDoneUnheard) && !e.conn.finished {
		e.conn.breakConnection(0, AgentDoneUnheard, true, "connection lost before the last frame")
	}
	if !e.conn.finished {
		e.conn.served.answer = &upstream.Completion{Finish: upstream.FinishStop, Usage: end.usage}
	}
	done := sseFrame("done", end.data)
	e.write(done)
	if w.faultFires(AgentDuplicate) {
		e.conn.writeBody(0, AgentDuplicate, w.faultyBytes(AgentDuplicate, nil, slices.Concat(sseFrame("delta", `{"text":"Duplicate. "}`), done)))
	}
	e.conn.endBody(0, noFault)
	w.externalCalls--
	if w.faultFires(CallbackLate) {
		w.externalCalls++
		w.after(w.between(50*time.Millisecond, 3*time.Second), func() {
			w.externalCalls--
			if !w.acts(CallbackLate) {
				return
			}
			w.sendCallback(e, `{"agent_id":"`+w.plan.Agents[0].Name+`","message":"too late"}`, func(reply *actor.Reply) {
				refused := reply != nil && reply.Refusal != nil
				recordChange(w, CallbackLate, false, refused, "%s calls back after the end of its run, refused: %v", e.agent, refused)
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
	{`{"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":8}}`, upstream.Usage{Known: true, Input: 3, Output: 4, Total: 8}},
	{"{}", upstream.Usage{}},
}

func textOr(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

// writeAnswer sends the final text. Some agents send it in an event that the API does not
// define, so it is lost.
func (e *externalCall) writeAnswer(text string) {
	if e.w.team != nil || e.format.picker.Int(8) < 7 {
		e.writeText(text)
		return
	}
	e.conn.served.unknown = append(e.conn.served.unknown, "token")
	e.writeFrame("token", string(invariant.Must(json.Marshal(map[string]string{"text": text}))))
}

// writeText sends a text in a few pieces.
func (e *externalCall) writeText(text string) {
	for len(text) > 0 {
		n := len(text)
		if n > 20 {
			n = 1 + e.w.entropy.Int(n)
		}
		for n < len(text) && text[n]&0xc0 == 0x80 { // never inside a character
			n++
		}
		e.conn.served.addText(text[:n])
		piece, err := json.Marshal(map[string]string{"text": text[:n]})
		if err != nil {
			panic(err)
		}
		e.writeFrame("delta", string(piece))
		text = text[n:]
	}
}

func (e *externalCall) writeFrame(name, data string) {
	e.write(sseFrame(name, data))
}

// write appends a frame to the plain response and sends it.
func (e *externalCall) write(frame []byte) {
	if frame = e.format.frame(frame); e.format.pinged {
		e.conn.served.unknown = append(e.conn.served.unknown, "ping")
	}
	e.conn.plain.body = append(e.conn.plain.body, frame...)
	e.conn.writeBody(e.w.between(0, 60*time.Millisecond), noFault, frame)
	e.conn.served.mark(e.conn.bodyBytes)
}

func sseFrame(name, data string) []byte {
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, data)
}
