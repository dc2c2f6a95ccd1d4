// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/invariant"
)

// A script is the behavior of a simulated agent for one message, and the text of the
// message is the script. A client thus draws a complete tree of calls. Every
// execution of a part of a script has the same result, on any node and at every
// repetition.
//
//	script       step ; step ; …
//	step         instruction, or: all instruction | instruction | …    asked in one action
//	instruction  call agent[/key][@ms] {script}
//	             send agent[/key][@ms] {script}    detached call, see sim/detached.go
//	             debate agent,agent[@ms] {script}  detached calls of both
//	             poll                          reads what is pending
//	             remind ms                     a message of the agent to itself
//	             sleep ms, work name ms, once name ms (not idempotent), tool name
//	             use name n                    declared tool, see sim/approvals.go
//	             wait ms                       for the signal go
//	             say text                      add the text to the response
//	             big KiB                       pad the response by this size
//	             bad n (call the post tool with its invalid input n),
//	             odd n (the invalid ask n), end n (the invalid outcome n), fail,
//	             panic, poison (panic because of LoadPoison)
type script []scriptStep

type scriptStep []instruction

type instruction struct {
	verb   string
	name   string
	ms     int
	script string // script for the callee; verbs call, send and debate only
}

func (s script) String() string {
	var b strings.Builder
	for i, st := range s {
		if i > 0 {
			b.WriteString("; ")
		}
		if len(st) > 1 {
			b.WriteString("all ")
		}
		for j, o := range st {
			if j > 0 {
				b.WriteString(" | ")
			}
			b.WriteString(o.String())
		}
	}
	return b.String()
}

func (o instruction) String() string {
	switch o.verb {
	case "call", "send", "debate":
		within := ""
		if o.ms > 0 {
			within = "@" + strconv.Itoa(o.ms)
		}
		return o.verb + " " + o.name + within + " {" + o.script + "}"
	case "sleep", "wait", "big", "bad", "odd", "end", "remind":
		return o.verb + " " + strconv.Itoa(o.ms)
	case "work", "once", "use":
		return o.verb + " " + o.name + " " + strconv.Itoa(o.ms)
	case "tool", "say", "read":
		return o.verb + " " + o.name
	}
	return o.verb
}

// parseScript parses one level of a script. Text within braces is not parsed.
func parseScript(text string) (script, error) {
	var s script
	for len(text) > 0 {
		var part string
		part, text = cutOutsideBraces(text, ';')
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		var st scriptStep
		rest, all := strings.CutPrefix(part, "all ")
		for len(rest) > 0 {
			var text string
			if text, rest = rest, ""; all {
				text, rest = cutOutsideBraces(text, '|')
			}
			o, err := parseInstruction(strings.TrimSpace(text))
			if err != nil {
				return nil, err
			}
			st = append(st, o)
		}
		s = append(s, st)
	}
	return s, nil
}

// cutOutsideBraces splits text at the first sep outside braces.
func cutOutsideBraces(text string, sep byte) (before, after string) {
	depth := 0
	for i := range len(text) {
		switch c := text[i]; {
		case c == '{':
			depth++
		case c == '}':
			depth--
		case c == sep && depth == 0:
			return text[:i], text[i+1:]
		}
	}
	return text, ""
}

func parseInstruction(text string) (o instruction, err error) {
	var rest string
	o.verb, rest, _ = strings.Cut(text, " ")
	switch o.verb {
	case "call", "send", "debate":
		var to string
		to, rest, _ = strings.Cut(rest, " ")
		name, ms, timed := strings.Cut(to, "@")
		o.name = name
		if timed {
			o.ms, err = strconv.Atoi(ms)
		}
		if len(rest) < 2 || rest[0] != '{' || rest[len(rest)-1] != '}' {
			return o, fmt.Errorf("script: %.40q: want {script} after the agent", text)
		}
		o.script = rest[1 : len(rest)-1]
	case "sleep", "wait", "big", "bad", "odd", "end", "remind":
		o.ms, err = strconv.Atoi(rest)
	case "work", "once", "use":
		name, ms, _ := strings.Cut(rest, " ")
		o.name = name
		o.ms, err = strconv.Atoi(ms)
	case "tool", "say", "read":
		o.name = rest
	case "fail", "panic", "poison", "poll":
	default:
		err = fmt.Errorf("script: %.40q: unknown verb", text)
	}
	return o, err
}

// ScriptAgent returns the agent whose messages are scripts.
func ScriptAgent() actor.Behavior { return scriptAgent{} }

// scriptAgent executes the script in its message.
type scriptAgent struct{}

// Begin implements actor.Behavior.
func (scriptAgent) Begin(b actor.Begin) actor.Turn {
	s, err := parseScript(scriptOf(actor.TextOf(b.Call.Parts)))
	return &scriptTurn{agent: b.Call.To.Agent, script: s, err: err}
}

type scriptTurn struct {
	agent       string
	script      script
	err         error
	nextStep    int
	refusals    []string
	paddingKiB  int
	invalidAsks []actor.Ask // outstanding invalid asks; nil: none
	task        string      // last one that an answer names, which poll reads; "" has it read all that are pending
}

// note keeps what a script needs of an answer.
func (p *scriptTurn) note(parts []actor.Part, refusal *actor.Refusal) {
	if refusal != nil {
		p.refusals = append(p.refusals, refusal.Reason.String())
	}
	text := actor.TextOf(parts)
	if _, id, ok := strings.Cut(text[max(0, strings.LastIndex(text, taskMember)):], taskMember); ok && len(id) > taskBytes {
		p.task = id[:taskBytes]
	}
}

const (
	taskMember = `"taskId":"`
	taskBytes  = 36
)

// selected returns the instruction with the task that it reads.
func (p *scriptTurn) selected(o instruction) instruction {
	if o.verb == "poll" && p.task != "" {
		return instruction{verb: "read", name: p.task}
	}
	return o
}

// Stop implements actor.Turn.
func (*scriptTurn) Stop() {}

// Next implements actor.Turn.
func (p *scriptTurn) Next(answers []actor.Answer) (actor.Action, error) {
	if p.err != nil {
		return actor.Action{}, actor.Refuse(actor.Invalid, "%v", p.err)
	}
	for _, a := range answers {
		p.note(a.Parts, a.Refusal)
	}
	if p.invalidAsks != nil {
		if err := checkAllRefused(p.invalidAsks, answers); err != nil {
			panic(err)
		}
		p.invalidAsks = nil
	}
	for p.nextStep < len(p.script) {
		st := p.script[p.nextStep]
		p.nextStep++
		switch st[0].verb {
		case "say":
		case "big":
			p.paddingKiB += st[0].ms
		case "fail":
			return actor.Action{}, actor.Refuse(actor.Rejected, "%s rejects the call as scripted", p.agent)
		case "odd":
			p.invalidAsks = []actor.Ask{invalidAsks[st[0].ms%len(invalidAsks)]}
			return actor.Action{Asks: p.invalidAsks}, nil
		case "end":
			return invalidOutcomes[st[0].ms%len(invalidOutcomes)]()
		case "panic":
			panic(injectedPanic{AgentPanic, p.agent + " panics as scripted"})
		case "poison":
			panic(injectedPanic{LoadPoison, p.agent + " panics because of its message"})
		default:
			asks := make([]actor.Ask, len(st))
			for i, o := range st {
				asks[i] = p.selected(o).ask()
			}
			return actor.Action{Asks: asks}, nil
		}
	}
	return actor.Complete(actor.Text(p.response())), nil
}

func (p *scriptTurn) response() string {
	text := "response from " + p.agent
	for _, st := range p.script {
		if st[0].verb == "say" {
			text += " " + st[0].name
		}
	}
	if len(p.refusals) > 0 {
		text += " without " + strings.Join(p.refusals, ", ")
	}
	if p.paddingKiB > 0 {
		text += strings.Repeat(".", p.paddingKiB<<10)
	}
	return text
}

// pureScriptAgent is the script agent as a pure transition function. It encodes and
// decodes the state before each step, as when another process continues the turn.
func pureScriptAgent(_ agents.Config, state agents.State) (agents.Action, error) {
	state = invariant.Must(agents.DecodeState(state.Encode()))
	s, err := parseScript(scriptOf(state.Message()))
	p := scriptTurn{agent: state.Request.Call.To.Agent, script: s, err: err}
	for _, answers := range state.Answers {
		for _, a := range answers {
			p.note(a.Parts, a.Refusal)
		}
	}
	if len(state.Continuation) > 0 {
		invariant.Must(fmt.Sscanf(string(state.Continuation), "%d %d", &p.nextStep, &p.paddingKiB))
	}
	action, err := p.Next(nil)
	if err != nil || action.Done != nil {
		return agents.Action{Action: action}, err
	}
	return agents.Continue("playing", fmt.Appendf(nil, "%d %d", p.nextStep, p.paddingKiB), action.Asks...), nil
}

// blockingScriptAgent is the script agent in the blocking style.
func blockingScriptAgent(t *agents.Turn) (string, error) {
	s, err := parseScript(scriptOf(t.Message()))
	if err != nil {
		return "", actor.Refuse(actor.Invalid, "%v", err)
	}
	p := scriptTurn{agent: t.Self().Agent, script: s}
	for _, st := range s {
		switch st[0].verb {
		case "say":
		case "big":
			p.paddingKiB += st[0].ms
		case "fail":
			return "", actor.Refuse(actor.Rejected, "%s rejects the call as scripted", p.agent)
		case "odd":
			p.invalidAsks = []actor.Ask{invalidAsks[st[0].ms%len(invalidAsks)]}
			for _, a := range t.All(p.invalidAsks...) {
				if a.Refusal == nil {
					panic("sim: an invalid ask was answered")
				}
			}
		case "end":
			return "", errors.New("scripted failure")
		case "panic", "poison":
			panic("scripted panic") // ends the turn, not the cell
		default:
			if len(st) == 1 {
				result, err := p.selected(st[0]).perform(t)
				var refusal *actor.Refusal
				errors.As(err, &refusal)
				p.note(actor.Text(string(result)), refusal)
				continue
			}
			asks := make([]actor.Ask, len(st))
			for i, o := range st {
				asks[i] = p.selected(o).ask()
			}
			for _, a := range t.All(asks...) {
				p.note(a.Parts, a.Refusal)
			}
		}
	}
	if len(p.refusals) > 1 {
		t.Warn("%d asks were refused", len(p.refusals))
	}
	return p.response(), nil
}

// perform executes one instruction and waits for its answer.
func (o instruction) perform(t *agents.Turn) (result []byte, err error) {
	d := actor.Duration(o.ms) * time.Millisecond
	switch o.verb {
	case "call":
		_, err = t.Call(o.name, o.script, agents.Within(d), agents.Operation(actor.HandleMessageFull))
	case "send", "debate", "poll", "read", "remind":
		ask := o.detachedAsk()
		result, err = t.Tool(ask.Name, ask.Parts[0].Bytes)
	case "sleep":
		err = t.Sleep(d)
	case "wait":
		_, err = t.Wait(scriptSignal, d)
	case "work":
		_, err = t.Do(o.name, simulatedWork(o.name, o.ms), agents.Idempotent())
	case "once":
		_, err = t.Do(o.name, simulatedWork(o.name, o.ms))
	case "tool":
		_, err = t.Tool(o.name, struct{}{})
	case "use":
		_, err = t.Tool(o.name, o.input())
	case "bad":
		_, err = t.Tool(postTool, []byte(o.invalidPostInput()))
	}
	return result, err
}

// injectedPanic is the panic value used by the simulation's own agents and faults.
// Any other panic of a cell is a bug.
type injectedPanic struct {
	fault  Fault
	reason string
}

// invalidPostInput returns an input that the post tool MUST reject.
func (o instruction) invalidPostInput() string {
	return postInputs[validPostInputs+o.ms%(len(postInputs)-validPostInputs)]
}

func (o instruction) ask() actor.Ask {
	d := actor.Duration(o.ms) * time.Millisecond
	switch o.verb {
	case "call":
		return actor.Ask{Kind: actor.AskCall, Name: o.name, Parts: actor.Text(o.script), Timeout: d}
	case "send", "debate", "poll", "read", "remind":
		return o.detachedAsk()
	case "sleep":
		return actor.Ask{Kind: actor.AskSleep, Timeout: d}
	case "wait":
		return actor.Ask{Kind: actor.AskWait, Name: scriptSignal, Timeout: d}
	case "work", "once":
		return actor.Ask{Kind: actor.AskWork, Name: o.name, Idempotent: o.verb == "work", Work: simulatedWork(o.name, o.ms)}
	case "tool":
		return actor.Ask{Kind: actor.AskTool, Name: o.name}
	case "use":
		return actor.Ask{Kind: actor.AskTool, Name: o.name, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: o.input()}}}
	case "bad":
		return actor.Ask{Kind: actor.AskTool, Name: postTool, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(o.invalidPostInput())}}}
	}
	panic("script: " + o.verb + " is not an ask")
}

// scriptSignal is the name of the signal that scripts wait for.
const scriptSignal = "go"

// simulatedWork returns work whose result contains name and ms. The work itself takes no
// simulated time: startEffect delays the delivery of its result by a random duration.
func simulatedWork(name string, ms int) actor.Work {
	return func(context.Context) ([]byte, error) {
		if strings.HasPrefix(name, "bad") {
			return nil, errors.New("simulated work failed")
		}
		return []byte(name + " took " + strconv.Itoa(ms) + " ms"), nil
	}
}
