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

// answerPrompt is the server of a model: it reads what it is sent, does what it
// is told there as the scripted model does, and streams its answer. Faults make
// it answer otherwise, in its own words or by what happens to them on the way.
func (w *World) answerPrompt(s *wire, r upstream.Request) {
	prompt, err := upstream.DecodePrompt(r.Body)
	if err != nil {
		w.violate(CodecRoundTrip, "a model is sent what it cannot read: "+err.Error())
		return
	}
	if other := strings.HasPrefix(r.URL, "http://"+modelNames[1]); other != shows(r, modelKey) {
		w.violate(NobodyAstray, "a key is shown to whom it is not for, or not to whom it is for: "+r.URL)
	}
	if breaks, _ := s.resets(&modelFaults); breaks {
		return
	}
	delay := w.between(2*time.Millisecond, 300*time.Millisecond)
	switch {
	case w.fault(ModelThrottled):
		s.failsAs(delay, ModelThrottled, later[:])
		return
	case w.fault(ModelError):
		s.failsAs(delay, ModelError, broken[:])
		return
	case w.fault(ModelLate): // it comes when nobody waits any more, and is heard all the same
		s.deaf, s.late = true, ModelLate
		delay = orDefault(w.plan.Patience.Head, 2*time.Minute) + w.between(0, 3*time.Second)
	}
	said := w.completion(s, prompt)
	strange := w.estrange(s, &prompt, &said)
	body := upstream.AppendStream(nil, said, [...]int{80, 24, 200, 400}[w.choose.Int(4)])
	s.befall(&modelFaults, len(body))
	s.split = w.fault(ModelSplit)
	if w.choose.Int(8) == 7 || strange == ModelGiant && w.plan.Span >= longLeast { // as a stream that is two thousand steps
		s.head(delay, noFault, 200, header("content-type", "application/json; charset=utf-8")...)
		s.write(0, strange, whole(said))
		s.end(0, noFault)
		return
	}
	s.streams(delay)
	slow := [...]time.Duration{5 * time.Millisecond, 40 * time.Millisecond, 120 * time.Millisecond}[w.choose.Int(3)]
	for len(body) > 0 {
		n := 0
		for range 1 + w.choose.Int(4) {
			n += frameEnd(body[n:])
		}
		f := noFault
		if n == len(body) {
			f = strange
		}
		s.write(w.between(0, slow), f, body[:n])
		body = body[n:]
	}
	s.end(0, noFault)
}

func orDefault(d, other time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return other
}

// frameEnd is the length of the first frame.
func frameEnd(b []byte) int {
	if i := bytes.Index(b, []byte("\n\n")); i >= 0 {
		return i + 2
	}
	return len(b)
}

// estrange makes a model say what it should not, and names the fault.
func (w *World) estrange(s *wire, prompt *upstream.Prompt, said *upstream.Completion) Fault {
	loops := w.looping[s.x.id.Run]
	switch {
	case len(said.Calls) > 0 && w.fault(ModelMalformedCall):
		c := &said.Calls[w.choose.Int(len(said.Calls))]
		c.Arguments = c.Arguments[:w.choose.Int(len(c.Arguments))]
		return ModelMalformedCall
	case len(said.Calls) > 0 && w.fault(ModelInventedAgent):
		c := &said.Calls[0]
		c.Name, c.Arguments = tools.CallAgent, `{"agent_id":"phantom","message":"who are you?"}`
		return ModelInventedAgent
	case len(said.Calls) == 0 && w.fault(ModelCut):
		said.Finish = [...]upstream.Finish{upstream.FinishLength, upstream.FinishFilter, upstream.FinishAnother}[w.choose.Int(3)]
		said.Text = said.Text[:w.cutAt(said.Text)]
		return ModelCut
	case len(said.Calls) == 0 && w.Stats.Faults[ModelGiant] == 0 && w.fault(ModelGiant):
		said.Text = strings.Repeat("and so on ", upstream.OutputBytesMax/8)
		return ModelGiant
	case len(said.Calls) == 0 && (loops || w.fault(ModelEndlessLoop)) && offers(prompt, clockTool):
		w.looping[s.x.id.Run] = true
		said.Text, said.Finish = "Let me see.", upstream.FinishCalls
		said.Calls = []upstream.ToolCall{{ID: "again", Name: clockTool, Arguments: fmt.Sprintf(`{"time":%d}`, len(prompt.Messages)/2*w.choose.Int(2))}}
		return ModelEndlessLoop
	}
	return noFault
}

// cutAt is where a text ends that is held back: behind a character, or before the first.
func (w *World) cutAt(text string) int {
	at := w.choose.Int(2) * w.choose.Int(len(text)+1)
	for at > 0 && at < len(text) && text[at]&0xc0 == 0x80 {
		at--
	}
	return at
}

func offers(p *upstream.Prompt, tool string) bool {
	return slices.ContainsFunc(p.Tools, func(t upstream.ToolSpec) bool { return t.Name == tool })
}

// takeInvocation is the service of an external agent. It does what its message
// says line by line, as the scripted model would: what it is to ask others it
// asks through the run that it was invoked for, with that run's token.
func (w *World) takeInvocation(s *wire, r upstream.Request) {
	var in struct {
		Agent string `json:"agent_id"`
		Input string `json:"input_message"`
	}
	if err := json.Unmarshal(r.Body, &in); err != nil {
		w.violate(CodecRoundTrip, "an external agent is sent what it cannot read: "+err.Error())
		return
	}
	if in.Agent == externalNames[1] != shows(r, authOf(authEnv)) {
		w.violate(NobodyAstray, "an agent is shown what it is not to see, or not what it wants: "+r.URL)
	}
	breaks, left := s.resets(&agentFaults)
	if breaks && !left {
		return
	}
	delay := w.between(time.Millisecond, 100*time.Millisecond)
	switch {
	case breaks:
	case w.fault(AgentRefuses):
		if code := refusals[w.choose.Int(len(refusals))]; code != "" {
			s.streams(delay)
			s.write(0, AgentRefuses, frameOf("error", fmt.Sprintf(`{"code":%q,"message":"as it was told to"}`, code)))
			s.end(0, noFault)
			return
		}
		if w.choose.Int(2) == 1 {
			s.failsAs(delay, AgentRefuses, broken[:])
			return
		}
		s.fails(delay, AgentRefuses, 403, "permission_error")
		return
	case w.fault(AgentOverloaded):
		s.failsAs(delay, AgentOverloaded, later[:])
		return
	case w.fault(AgentAbsent):
		s.lose(delay, AgentAbsent, false, "connection refused")
		return
	case w.fault(AgentLate): // it answers when nobody waits any more, and is heard all the same
		s.deaf, s.late = true, AgentLate
		delay = orDefault(w.plan.Patience.Head, 2*time.Minute) + w.between(0, 3*time.Second)
	}
	w.outward(s.x, "act", uint64(s.try))
	if breaks {
		return
	}
	j := &job{w: w, wire: s, agent: in.Agent}
	for _, h := range r.Headers {
		if h.Name == "x-run-token" {
			j.token = h.Value
		}
	}
	j.todo = w.service(in.Agent, in.Input)
	s.befall(&agentFaults, 400)
	s.streams(delay)
	if w.fault(AgentGiant) {
		s.write(0, AgentGiant, frameOf("delta", `{"text":"`+strings.Repeat("and so on ", upstream.OutputBytesMax/8)+`"}`))
	}
	w.jobs++
	j.soon()
}

// refusals are the codes by which an external agent says no in its answer; "":
// by its status.
var refusals = [...]string{"", "agent_busy", "timeout", "agent_not_found", "call_cycle", "because"}

// job is an invocation that an external agent deals with. It goes on whether or
// not anybody listens, as a process does that has not looked.
type job struct {
	w     *World
	wire  *wire
	agent string
	token string
	todo  upstream.Completion
	at    int // of the calls
}

func (j *job) soon() {
	j.w.after(j.w.between(time.Millisecond, 150*time.Millisecond), j.goOn)
}

func (j *job) goOn() {
	w := j.w
	if j.at < len(j.todo.Calls) {
		call := j.todo.Calls[j.at]
		j.at++
		if w.choose.Int(2) == 0 {
			j.frame("state", fmt.Sprintf(`{"state":"asking","detail":{"call":%d}}`, j.at))
		}
		w.callBack(j, call.Arguments, func(reply *actor.Reply) {
			switch {
			case reply == nil:
				j.say("Nobody answers. ")
			case reply.Refusal != nil:
				j.say("Refused: " + reply.Refusal.Reason.String() + ". ")
			default:
				j.say(actor.TextOf(reply.Parts) + " ")
			}
			j.soon()
		})
		return
	}
	j.say(orText(j.todo.Text, "That is all."))
	done := frameOf("done", [...]string{`{"usage":{"tokens":7}}`, `{"usage":{"input_tokens":3,"output_tokens":4}}`, "{}"}[w.choose.Int(3)])
	if w.fault(AgentDoneUnheard) && !j.wire.over {
		j.wire.lose(0, AgentDoneUnheard, true, "it breaks before its last word")
	}
	j.wire.write(w.between(0, 60*time.Millisecond), noFault, done)
	if w.fault(AgentDuplicate) {
		j.wire.write(0, AgentDuplicate, slices.Concat(frameOf("delta", `{"text":"Once more. "}`), done))
	}
	j.wire.end(0, noFault)
	w.jobs--
	if w.fault(CallbackLate) {
		w.jobs++
		w.after(w.between(50*time.Millisecond, 3*time.Second), func() {
			w.jobs--
			w.callBack(j, `{"agent_id":"`+w.plan.Agents[0].Name+`","message":"too late"}`, func(reply *actor.Reply) {
				if reply != nil && reply.Refusal != nil {
					w.hit(CallbackLate, "%s calls back when its run is over: %s", j.agent, reply.Refusal.Reason)
				}
			})
		})
	}
}

func orText(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

// say sends a text in a few pieces.
func (j *job) say(text string) {
	for len(text) > 0 {
		n := len(text)
		if n > 20 {
			n = 1 + j.w.choose.Int(n)
		}
		for n < len(text) && text[n]&0xc0 == 0x80 { // not inside a character
			n++
		}
		piece, err := json.Marshal(map[string]string{"text": text[:n]})
		if err != nil {
			panic(err)
		}
		j.frame("delta", string(piece))
		text = text[n:]
	}
}

func (j *job) frame(name, data string) {
	j.wire.write(j.w.between(0, 60*time.Millisecond), noFault, frameOf(name, data))
}

func frameOf(name, data string) []byte {
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, data)
}
