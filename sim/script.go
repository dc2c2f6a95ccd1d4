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

// A script is what the agents of the simulator do with a message: the message
// is the script. So a client draws a whole tree of calls, and whoever runs a
// part of it, on whatever node and however often, does the same.
//
//	script  step ; step ; …
//	step    one | all one | one | …       asked in one action
//	one     call agent[/key][@ms] {script}
//	        sleep ms, work name ms, once name ms (not idempotent), tool name
//	        wait ms                       for the signal go
//	        big KiB                       answer so much
//	        bad n (the input n of those that a tool does not take),
//	        odd n (asks what cannot be), end n (in a way that is none), fail, panic
type script []step

type step []one

type one struct {
	verb   string
	name   string
	ms     int
	script string // of a call: what to tell the callee
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

func (o one) String() string {
	switch o.verb {
	case "call":
		within := ""
		if o.ms > 0 {
			within = "@" + strconv.Itoa(o.ms)
		}
		return "call " + o.name + within + " {" + o.script + "}"
	case "sleep", "wait", "big", "bad", "odd", "end":
		return o.verb + " " + strconv.Itoa(o.ms)
	case "work", "once":
		return o.verb + " " + o.name + " " + strconv.Itoa(o.ms)
	case "tool":
		return o.verb + " " + o.name
	}
	return o.verb
}

// parseScript reads one level of a script: what is within braces stays text.
func parseScript(text string) (script, error) {
	var s script
	for len(text) > 0 {
		var part string
		part, text = cutAt(text, ';')
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		var st step
		rest, all := strings.CutPrefix(part, "all ")
		for len(rest) > 0 {
			var text string
			if text, rest = rest, ""; all {
				text, rest = cutAt(text, '|')
			}
			o, err := parseOne(strings.TrimSpace(text))
			if err != nil {
				return nil, err
			}
			st = append(st, o)
		}
		s = append(s, st)
	}
	return s, nil
}

// cutAt cuts at the first sep outside braces.
func cutAt(text string, sep byte) (before, after string) {
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

func parseOne(text string) (o one, err error) {
	var rest string
	o.verb, rest, _ = strings.Cut(text, " ")
	switch o.verb {
	case "call":
		var to string
		to, rest, _ = strings.Cut(rest, " ")
		name, ms, timed := strings.Cut(to, "@")
		o.name = name
		if timed {
			o.ms, err = strconv.Atoi(ms)
		}
		if len(rest) < 2 || rest[0] != '{' || rest[len(rest)-1] != '}' {
			return o, fmt.Errorf("script: %.40q: want {script} behind the agent", text)
		}
		o.script = rest[1 : len(rest)-1]
	case "sleep", "wait", "big", "bad", "odd", "end":
		o.ms, err = strconv.Atoi(rest)
	case "work", "once":
		name, ms, _ := strings.Cut(rest, " ")
		o.name = name
		o.ms, err = strconv.Atoi(ms)
	case "tool":
		o.name = rest
	case "fail", "panic":
	default:
		err = fmt.Errorf("script: %.40q: no such verb", text)
	}
	return o, err
}

// Player is the agent that does what the message says.
func Player() actor.Behavior { return player{} }

// player is the agent that does what the message says.
type player struct{}

// Begin implements actor.Behavior.
func (player) Begin(b actor.Begin) actor.Turn {
	s, err := parseScript(actor.TextOf(b.Call.Parts))
	return &play{agent: b.Call.To.Agent, script: s, err: err}
}

type play struct {
	agent   string
	script  script
	err     error
	at      int
	refused []string
	big     int
	odd     []actor.Ask // that is out, if it cannot be
}

// Stop implements actor.Turn.
func (*play) Stop() {}

// Next implements actor.Turn.
func (p *play) Next(answers []actor.Answer) (actor.Action, error) {
	if p.err != nil {
		return actor.Action{}, actor.Refuse(actor.Invalid, "%v", p.err)
	}
	for _, a := range answers {
		if a.Refusal != nil {
			p.refused = append(p.refused, a.Refusal.Reason.String())
		}
	}
	if p.odd != nil {
		if err := refusedAll(p.odd, answers); err != nil {
			panic(err)
		}
		p.odd = nil
	}
	for p.at < len(p.script) {
		st := p.script[p.at]
		p.at++
		switch st[0].verb {
		case "big":
			p.big += st[0].ms
		case "fail":
			return actor.Action{}, actor.Refuse(actor.Rejected, "%s refuses, as it was told to", p.agent)
		case "odd":
			p.odd = []actor.Ask{oddAsks[st[0].ms%len(oddAsks)]}
			return actor.Action{Asks: p.odd}, nil
		case "end":
			return oddEnds[st[0].ms%len(oddEnds)]()
		case "panic":
			panic(plannedPanic{AgentPanic, p.agent + " panics, as it was told to"})
		default:
			asks := make([]actor.Ask, len(st))
			for i, o := range st {
				asks[i] = o.ask()
			}
			return actor.Action{Asks: asks}, nil
		}
	}
	return actor.Complete(actor.Text(p.say())), nil
}

func (p *play) say() string {
	text := "response from " + p.agent
	if len(p.refused) > 0 {
		text += " without " + strings.Join(p.refused, ", ")
	}
	if p.big > 0 {
		text += strings.Repeat(".", p.big<<10)
	}
	return text
}

// playPure is the same agent as a transition. Before each step it is written down
// and read again, as one may be that another process takes up.
func playPure(_ agents.Config, state agents.State) (agents.Action, error) {
	state = invariant.Must(agents.DecodeState(state.Encode()))
	s, err := parseScript(state.Message())
	p := play{agent: state.Request.Call.To.Agent, script: s, err: err}
	for _, answers := range state.Answers {
		for _, a := range answers {
			if a.Refusal != nil {
				p.refused = append(p.refused, a.Refusal.Reason.String())
			}
		}
	}
	if len(state.Continuation) > 0 {
		invariant.Must(fmt.Sscanf(string(state.Continuation), "%d %d", &p.at, &p.big))
	}
	action, err := p.Next(nil)
	if err != nil || action.Done != nil {
		return agents.Action{Action: action}, err
	}
	return agents.Continue("playing", fmt.Appendf(nil, "%d %d", p.at, p.big), action.Asks...), nil
}

// playBlocking is the same agent in the blocking style.
func playBlocking(t *agents.Turn) (string, error) {
	s, err := parseScript(t.Message())
	if err != nil {
		return "", actor.Refuse(actor.Invalid, "%v", err)
	}
	p := play{agent: t.Self().Agent}
	for _, st := range s {
		switch st[0].verb {
		case "big":
			p.big += st[0].ms
		case "fail":
			return "", actor.Refuse(actor.Rejected, "%s refuses, as it was told to", p.agent)
		case "odd":
			p.odd = []actor.Ask{oddAsks[st[0].ms%len(oddAsks)]}
			for _, a := range t.All(p.odd...) {
				if a.Refusal == nil {
					panic("what cannot be is answered")
				}
			}
		case "end":
			return "", errors.New("the agent has a bug")
		case "panic":
			panic("the script says so") // which ends its turn, not its cell
		default:
			if len(st) == 1 {
				if r := (*actor.Refusal)(nil); errors.As(st[0].of(t), &r) {
					p.refused = append(p.refused, r.Reason.String())
				}
				continue
			}
			asks := make([]actor.Ask, len(st))
			for i, o := range st {
				asks[i] = o.ask()
			}
			for _, a := range t.All(asks...) {
				if a.Refusal != nil {
					p.refused = append(p.refused, a.Refusal.Reason.String())
				}
			}
		}
	}
	if len(p.refused) > 1 {
		t.Warn("%d things were refused", len(p.refused))
	}
	return p.say(), nil
}

// of asks one thing, and waits for its answer.
func (o one) of(t *agents.Turn) (err error) {
	d := actor.Duration(o.ms) * time.Millisecond
	switch o.verb {
	case "call":
		_, err = t.Call(o.name, o.script, agents.Within(d), agents.Operation(actor.HandleMessageFull))
	case "sleep":
		err = t.Sleep(d)
	case "wait":
		_, err = t.Wait(signalName, d)
	case "work":
		_, err = t.Do(o.name, workOf(o.name, o.ms), agents.Idempotent())
	case "once":
		_, err = t.Do(o.name, workOf(o.name, o.ms))
	case "tool":
		_, err = t.Tool(o.name, struct{}{})
	case "bad":
		_, err = t.Tool(postTool, []byte(o.letter()))
	}
	return err
}

// plannedPanic is what the world's own agents and faults panic with: any other
// panic of a cell is a bug.
type plannedPanic struct {
	fault Fault
	why   string
}

// letter is one that is not posted.
func (o one) letter() string { return letters[lettersTaken+o.ms%(len(letters)-lettersTaken)] }

func (o one) ask() actor.Ask {
	d := actor.Duration(o.ms) * time.Millisecond
	switch o.verb {
	case "call":
		return actor.Ask{Kind: actor.AskCall, Name: o.name, Parts: actor.Text(o.script), Timeout: d}
	case "sleep":
		return actor.Ask{Kind: actor.AskSleep, Timeout: d}
	case "wait":
		return actor.Ask{Kind: actor.AskWait, Name: signalName, Timeout: d}
	case "work", "once":
		return actor.Ask{Kind: actor.AskWork, Name: o.name, Idempotent: o.verb == "work", Work: workOf(o.name, o.ms)}
	case "tool":
		return actor.Ask{Kind: actor.AskTool, Name: o.name}
	case "bad":
		return actor.Ask{Kind: actor.AskTool, Name: postTool, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(o.letter())}}}
	}
	panic("script: " + o.verb + " is no ask")
}

// signalName is the signal that scripts wait for.
const signalName = "go"

// workOf is work that takes so many milliseconds of the world's time: it says
// so, and the world, which runs it at once, delivers what it said then.
func workOf(name string, ms int) actor.Work {
	return func(context.Context) ([]byte, error) {
		if strings.HasPrefix(name, "bad") {
			return nil, errors.New("the work went wrong")
		}
		return []byte(name + " took " + strconv.Itoa(ms) + " ms"), nil
	}
}
