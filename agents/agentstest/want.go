// SPDX-License-Identifier: Apache-2.0

package agentstest

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Want is an ask that is expected.
type Want struct {
	kind       actor.AskKind
	name       string
	containing string
	input      string
	within     actor.Duration
}

// Call is a call of another agent, as the agent writes its name: agent or
// agent/key. A declared agent makes it through call_agent; that is the same.
func Call(target string) Want { return Want{kind: actor.AskCall, name: target} }

// Tool is a tool that is used.
func Tool(name string) Want { return Want{kind: actor.AskTool, name: name} }

// Model is a model that is asked.
func Model(name string) Want { return Want{kind: actor.AskModel, name: name} }

// Work is a function of the agent's own, under its name.
func Work(name string) Want { return Want{kind: actor.AskWork, name: name} }

// Wait is a signal that is waited for.
func Wait(name string) Want { return Want{kind: actor.AskWait, name: name} }

// Sleep is a while in which the turn does nothing.
func Sleep(d time.Duration) Want { return Want{kind: actor.AskSleep, within: d} }

// Invoke is the service of an external agent that is handed the message.
func Invoke(agent string) Want { return Want{kind: actor.AskInvoke, name: agent} }

// Containing wants this to be part of what is said: of a call the message, of a tool
// its input, of a model what it is told last.
func (w Want) Containing(text string) Want { w.containing = text; return w }

// With wants a tool to be given this, as JSON; neither order nor spaces matter.
func (w Want) With(input string) Want { w.input = input; return w }

// Within wants the answer to be waited for so long.
func (w Want) Within(d time.Duration) Want { w.within = d; return w }

// String says what is expected.
func (w Want) String() string {
	s := w.kind.String()
	if w.name != "" {
		s += " " + w.name
	}
	if w.input != "" {
		s += " with " + w.input
	}
	if w.containing != "" {
		s += fmt.Sprintf(" saying %q", w.containing)
	}
	if w.within != 0 {
		s += fmt.Sprintf(" within %v", w.within)
	}
	return s
}

// matches tells whether an ask is of this kind and name.
func (w Want) matches(ask *actor.Ask) bool {
	kind, name, _ := inspect(ask)
	return kind == w.kind && (name == w.name || kind == actor.AskSleep)
}

// mismatch says in what way the ask is another, or nothing.
func (w Want) mismatch(ask *actor.Ask) string {
	_, _, said := inspect(ask)
	switch {
	case !w.matches(ask):
		return "it is another"
	case w.containing != "" && !strings.Contains(said, w.containing):
		return fmt.Sprintf("it says %q", said)
	case w.input != "" && !sameJSON(w.input, bytesOf(ask.Parts)):
		return "its input is " + string(bytesOf(ask.Parts))
	case w.within != 0 && w.within != ask.Timeout:
		return fmt.Sprintf("it waits for %v", ask.Timeout)
	}
	return ""
}

// inspect is what an ask is about: the call that a tool is, and what is said.
func inspect(ask *actor.Ask) (kind actor.AskKind, name, said string) {
	switch {
	case ask.Kind == actor.AskTool && ask.Name == tools.CallAgent:
		var in struct {
			Agent   string `json:"agent_id"`
			Message string `json:"message"`
		}
		if json.Unmarshal(bytesOf(ask.Parts), &in) == nil && in.Agent != "" {
			return actor.AskCall, in.Agent, in.Message
		}
	case ask.Kind == actor.AskModel:
		if p, err := upstream.DecodePrompt(ask.Body); err == nil && len(p.Messages) > 0 {
			return ask.Kind, ask.Name, p.Messages[len(p.Messages)-1].Text
		}
	}
	return ask.Kind, ask.Name, string(bytesOf(ask.Parts))
}

// describeAsk is an ask on one line.
func describeAsk(ask *actor.Ask) string {
	kind, name, said := inspect(ask)
	s := kind.String()
	if name != "" {
		s += " " + name
	}
	if said != "" {
		s += fmt.Sprintf(" saying %.200q", said)
	}
	if ask.Timeout != 0 {
		s += fmt.Sprintf(" within %v", ask.Timeout)
	}
	return s
}

func bytesOf(parts []actor.Part) (b []byte) {
	for _, p := range parts {
		b = append(b, p.Bytes...)
	}
	return b
}

func sameJSON(want string, got []byte) bool {
	var a, b any
	return json.Unmarshal([]byte(want), &a) == nil && json.Unmarshal(got, &b) == nil && reflect.DeepEqual(a, b)
}
