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

// serveModel is the server of a model: it reads what it is sent, does what it
// is told there as the scripted model does, and streams its answer. Faults make
// it answer otherwise, in its own words or by what happens to them on the way.
func (w *Simulation) serveModel(s *upstreamConn, r upstream.Request) {
	prompt, err := upstream.DecodePrompt(r.Body)
	if err != nil {
		w.fail(CodecRoundTrip, "a model is sent what it cannot read: "+err.Error())
		return
	}
	if other := strings.HasPrefix(r.URL, "http://"+modelNames[1]); other != presentsSecret(r, modelKey) {
		w.fail(NobodyAstray, "a key is shown to whom it is not for, or not to whom it is for: "+r.URL)
	}
	if breaks, _ := s.drawReset(&modelStreamFaults); breaks {
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
	case w.faultFires(ModelLate): // it comes when nobody waits any more, and is heard all the same
		s.deliverAfterClose, s.lateFault = true, ModelLate
		delay = durationOr(w.plan.Patience.Head, 2*time.Minute) + w.between(0, 3*time.Second)
	}
	said := w.modelCompletion(s, prompt)
	strange := w.injectModelFault(s, &prompt, &said)
	body := upstream.AppendStream(nil, said, [...]int{80, 24, 200, 400}[w.entropy.Int(4)])
	s.drawStreamFaults(&modelStreamFaults, len(body))
	s.splitPieces = w.faultFires(ModelSplit)
	if w.entropy.Int(8) == 7 || strange == ModelGiant && w.plan.Span >= longSpanMin { // as a stream that is two thousand steps
		s.sendHead(delay, noFault, 200, headerList("content-type", "application/json; charset=utf-8")...)
		s.writeBody(0, strange, completionBody(said))
		s.endBody(0, noFault)
		return
	}
	s.startEventStream(delay)
	slow := [...]time.Duration{5 * time.Millisecond, 40 * time.Millisecond, 120 * time.Millisecond}[w.entropy.Int(3)]
	for len(body) > 0 {
		n := 0
		for range 1 + w.entropy.Int(4) {
			n += firstFrameLen(body[n:])
		}
		f := noFault
		if n == len(body) {
			f = strange
		}
		s.writeBody(w.between(0, slow), f, body[:n])
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

// firstFrameLen is the length of the first frame.
func firstFrameLen(b []byte) int {
	if i := bytes.Index(b, []byte("\n\n")); i >= 0 {
		return i + 2
	}
	return len(b)
}

// injectModelFault makes a model say what it should not, and names the fault.
func (w *Simulation) injectModelFault(s *upstreamConn, prompt *upstream.Prompt, said *upstream.Completion) Fault {
	loops := w.loopingRuns[s.exchange.id.Run]
	switch {
	case len(said.Calls) > 0 && w.faultFires(ModelMalformedCall):
		c := &said.Calls[w.entropy.Int(len(said.Calls))]
		c.Arguments = c.Arguments[:w.entropy.Int(len(c.Arguments))]
		return ModelMalformedCall
	case len(said.Calls) > 0 && w.faultFires(ModelInventedAgent):
		c := &said.Calls[0]
		c.Name, c.Arguments = tools.CallAgent, `{"agent_id":"phantom","message":"who are you?"}`
		return ModelInventedAgent
	case len(said.Calls) == 0 && w.faultFires(ModelCut):
		said.Finish = [...]upstream.Finish{upstream.FinishLength, upstream.FinishFilter, upstream.FinishAnother}[w.entropy.Int(3)]
		said.Text = said.Text[:w.truncationPoint(said.Text)]
		return ModelCut
	case len(said.Calls) == 0 && w.Stats.Faults[ModelGiant] == 0 && w.faultFires(ModelGiant):
		said.Text = strings.Repeat("and so on ", upstream.OutputBytesMax/8)
		return ModelGiant
	case len(said.Calls) == 0 && (loops || w.faultFires(ModelEndlessLoop)) && offersTool(prompt, clockTool):
		w.loopingRuns[s.exchange.id.Run] = true
		said.Text, said.Finish = "Let me see.", upstream.FinishCalls
		said.Calls = []upstream.ToolCall{{ID: "again", Name: clockTool, Arguments: fmt.Sprintf(`{"time":%d}`, len(prompt.Messages)/2*w.entropy.Int(2))}}
		return ModelEndlessLoop
	}
	return noFault
}

// truncationPoint is where a text ends that is held back: behind a character, or before the first.
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

// serveExternalAgent is the service of an external agent. It does what its message
// says line by line, as the scripted model would: what it is to ask others it
// asks through the run that it was invoked for, with that run's token.
func (w *Simulation) serveExternalAgent(s *upstreamConn, r upstream.Request) {
	var in struct {
		Agent string `json:"agent_id"`
		Input string `json:"input_message"`
	}
	if err := json.Unmarshal(r.Body, &in); err != nil {
		w.fail(CodecRoundTrip, "an external agent is sent what it cannot read: "+err.Error())
		return
	}
	if in.Agent == externalNames[1] != presentsSecret(r, authSecret(authEnv)) {
		w.fail(NobodyAstray, "an agent is shown what it is not to see, or not what it wants: "+r.URL)
	}
	breaks, left := s.drawReset(&agentStreamFaults)
	if breaks && !left {
		return
	}
	delay := w.between(time.Millisecond, 100*time.Millisecond)
	switch {
	case breaks:
	case w.faultFires(AgentRefuses):
		if code := agentRefusalCodes[w.entropy.Int(len(agentRefusalCodes))]; code != "" {
			s.startEventStream(delay)
			s.writeBody(0, AgentRefuses, sseFrame("error", fmt.Sprintf(`{"code":%q,"message":"as it was told to"}`, code)))
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
	case w.faultFires(AgentLate): // it answers when nobody waits any more, and is heard all the same
		s.deliverAfterClose, s.lateFault = true, AgentLate
		delay = durationOr(w.plan.Patience.Head, 2*time.Minute) + w.between(0, 3*time.Second)
	}
	w.recordUpstream(s.exchange, "act", uint64(s.attempt))
	if breaks {
		return
	}
	j := &externalCall{w: w, wire: s, agent: in.Agent}
	for _, h := range r.Headers {
		if h.Name == "x-run-token" {
			j.token = h.Value
		}
	}
	j.response = w.agentCompletion(in.Agent, in.Input)
	s.drawStreamFaults(&agentStreamFaults, 400)
	s.startEventStream(delay)
	if w.faultFires(AgentGiant) {
		s.writeBody(0, AgentGiant, sseFrame("delta", `{"text":"`+strings.Repeat("and so on ", upstream.OutputBytesMax/8)+`"}`))
	}
	w.externalCalls++
	j.scheduleAdvance()
}

// agentRefusalCodes are the codes by which an external agent says no in its answer; "":
// by its status.
var agentRefusalCodes = [...]string{"", "agent_busy", "timeout", "agent_not_found", "call_cycle", "because"}

// externalCall is an invocation that an external agent deals with. It goes on whether or
// not anybody listens, as a process does that has not looked.
type externalCall struct {
	w        *Simulation
	wire     *upstreamConn
	agent    string
	token    string
	response upstream.Completion
	nextCall int // of the calls
}

func (j *externalCall) scheduleAdvance() {
	j.w.after(j.w.between(time.Millisecond, 150*time.Millisecond), j.advance)
}

func (j *externalCall) advance() {
	w := j.w
	if j.nextCall < len(j.response.Calls) {
		call := j.response.Calls[j.nextCall]
		j.nextCall++
		if w.entropy.Int(2) == 0 {
			j.writeFrame("state", fmt.Sprintf(`{"state":"asking","detail":{"call":%d}}`, j.nextCall))
		}
		w.sendCallback(j, call.Arguments, func(reply *actor.Reply) {
			switch {
			case reply == nil:
				j.writeText("Nobody answers. ")
			case reply.Refusal != nil:
				j.writeText("Refused: " + reply.Refusal.Reason.String() + ". ")
			default:
				j.writeText(actor.TextOf(reply.Parts) + " ")
			}
			j.scheduleAdvance()
		})
		return
	}
	j.writeText(textOr(j.response.Text, "That is all."))
	done := sseFrame("done", [...]string{`{"usage":{"tokens":7}}`, `{"usage":{"input_tokens":3,"output_tokens":4}}`, "{}"}[w.entropy.Int(3)])
	if w.faultFires(AgentDoneUnheard) && !j.wire.finished {
		j.wire.breakConnection(0, AgentDoneUnheard, true, "it breaks before its last word")
	}
	j.wire.writeBody(w.between(0, 60*time.Millisecond), noFault, done)
	if w.faultFires(AgentDuplicate) {
		j.wire.writeBody(0, AgentDuplicate, slices.Concat(sseFrame("delta", `{"text":"Once more. "}`), done))
	}
	j.wire.endBody(0, noFault)
	w.externalCalls--
	if w.faultFires(CallbackLate) {
		w.externalCalls++
		w.after(w.between(50*time.Millisecond, 3*time.Second), func() {
			w.externalCalls--
			w.sendCallback(j, `{"agent_id":"`+w.plan.Agents[0].Name+`","message":"too late"}`, func(reply *actor.Reply) {
				if reply != nil && reply.Refusal != nil {
					w.recordFault(CallbackLate, "%s calls back when its run is over: %s", j.agent, reply.Refusal.Reason)
				}
			})
		})
	}
}

func textOr(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

// writeText sends a text in a few pieces.
func (j *externalCall) writeText(text string) {
	for len(text) > 0 {
		n := len(text)
		if n > 20 {
			n = 1 + j.w.entropy.Int(n)
		}
		for n < len(text) && text[n]&0xc0 == 0x80 { // not inside a character
			n++
		}
		piece, err := json.Marshal(map[string]string{"text": text[:n]})
		if err != nil {
			panic(err)
		}
		j.writeFrame("delta", string(piece))
		text = text[n:]
	}
}

func (j *externalCall) writeFrame(name, data string) {
	j.wire.writeBody(j.w.between(0, 60*time.Millisecond), noFault, sseFrame(name, data))
}

func sseFrame(name, data string) []byte {
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, data)
}
