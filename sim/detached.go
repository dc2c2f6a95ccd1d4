// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// In one of four simulations, scripts also make detached calls: "send agent[/key][@ms] {script}". The callee executes
// the script. The outcome comes back as a message. Its turn executes a short script that follows from
// the outcome, and may make the call again; the number of rounds bounds agents that answer each other for ever.
// "remind ms" sends a message to the agent itself, and "debate" asks two agents at once. "read task" reads a
// task, and "poll" reads the last task that an answer of the turn names, or what is pending. In one of three of
// these simulations, all outcomes that wait share one turn.

// detachedCalls knows the detached calls of a simulation by their events.
type detachedCalls struct {
	on    bool
	calls map[actor.CallID]bool
	runs  map[actor.CallID]bool // that have outcomes as their messages
}

// event records an event.
func (d *detachedCalls) event(e *history.Event) {
	switch {
	case e.Kind == history.Detach:
		d.calls[e.Call] = true
	case e.Kind == history.Settle:
		d.runs[e.Root] = true
	}
}

// kind returns the kind of the call of a run.
func (d *detachedCalls) kind(run actor.CallID) actor.Kind {
	switch {
	case d.calls[run]:
		return actor.Detached
	case d.runs[run]:
		return actor.OneWay
	}
	return actor.Waiting
}

// detachedCall draws a detached call of an agent that runs scripts.
func (d generator) detachedCall(levels int, self string) instruction {
	w := d.w
	switch w.entropy.Int(6) {
	case 4:
		return instruction{verb: "remind", ms: 1 + w.entropy.Int(4000)}
	case 5:
		return instruction{verb: "poll"}
	}
	o := d.call(levels, self)
	agent, key, other := strings.Cut(o.name, "/")
	if w.agentKind(agent) != actor.Native || w.plan.agent(agent) == nil {
		agent = agentNames[w.entropy.Int(2)]
		o.script = d.script(levels-1, agent).String()
		o.script = namespaces{w}.mark(d.actor(agent, actor.DefaultKey), o.script)
	}
	if o.name = agent; other {
		o.name += "/" + key
	}
	o.verb = "send"
	if other := agentNames[w.entropy.Int(2)]; other != agent && w.entropy.Int(3) == 2 {
		o.verb, o.name = "debate", agent+","+other
	}
	switch w.entropy.Int(4) {
	case 1:
		if w.entropy.Int(2) == 0 {
			o.ms = silentMS
		}
	case 2:
		o.ms = 1 + w.entropy.Int(2000) // the answer may be late
	case 3:
		o.script += "; say " + sendAgain
	}
	return o
}

// silentMS in place of a time has the outcome not delivered.
const silentMS = 9999

// sendAgain in an answer has the asker make a detached call again, with the same word in its answer.
const sendAgain = "encore"

// agent returns the definition of an agent, or nil.
func (p *Plan) agent(name string) *actor.Definition {
	for i := range p.Agents {
		if p.Agents[i].Name == name {
			return &p.Agents[i]
		}
	}
	return nil
}

// detachedTool returns the tool of the instruction and its input.
func (o instruction) detachedTool() (tool string, input []byte) {
	var in map[string]any
	switch o.verb {
	case "poll":
		return tools.AgentPoll, []byte("{}")
	case "read":
		return tools.AgentPoll, invariant.Must(json.Marshal(map[string]any{"taskId": o.name}))
	case "remind":
		return tools.Remind, invariant.Must(json.Marshal(map[string]any{"text": "water the plants", "after": o.ms}))
	case "debate":
		tool, in = tools.DebateCall, map[string]any{"participants": strings.Split(o.name, ","), "topic": o.script, "rounds": 2}
	default:
		tool, in = tools.AgentCall, map[string]any{"agent": o.name, "skill": "run", "input": map[string]string{"script": o.script}}
	}
	switch {
	case o.ms == silentMS:
		in["timeoutSeconds"] = 0
	case o.ms > 0:
		in["timeout"] = o.ms
	}
	return tool, invariant.Must(json.Marshal(in))
}

// detachedAsk returns the ask of the instruction.
func (o instruction) detachedAsk() actor.Ask {
	tool, input := o.detachedTool()
	return actor.Ask{Kind: actor.AskTool, Name: tool, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: input}}}
}

// scriptOf returns the script of a message. That of a detached call is in its input, and that of a debate its topic.
func scriptOf(message string) string {
	var in struct {
		Kind  string `json:"kind"`
		Task  string `json:"taskId"`
		Input struct {
			Script string `json:"script"`
			Topic  string `json:"topic"`
		} `json:"input"`
	}
	switch {
	case !strings.HasPrefix(message, `{"kind":"reminder"`) && !strings.HasPrefix(message, `{"kind":"skill_`):
		return message
	case json.Unmarshal([]byte(message), &in) != nil:
		return "fail"
	case in.Kind == "reminder":
		return "read " + in.Task + "; sleep 10; poll; say reminded"
	case in.Kind == "skill_invocation":
		return in.Input.Script + in.Input.Topic
	case strings.Contains(message, sendAgain):
		return "send bo {say " + sendAgain + "}; read " + in.Task + "; say heard"
	}
	return "all read " + in.Task + " | poll; sleep 20; poll; say heard"
}

// explainDelivered checks the first event of a run whose message is an outcome.
func (s *judgedStep) explainDelivered(e *history.Event, u *shownEvent) {
	same(s, u, "origin", u.Payload.Origin, actor.Agent.String())
	if !strings.HasPrefix(u.Payload.Text, `{"kind":"skill_`) && !strings.HasPrefix(u.Payload.Text, `{"kind":"reminder"`) || runs.TextBytesMax < len(u.Payload.Text) {
		s.fail("shows the outcome in run %s as %.80q", e.Call, u.Payload.Text)
	}
}
