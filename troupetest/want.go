// SPDX-License-Identifier: Apache-2.0

package troupetest

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

// Want describes an expected ask.
type Want struct {
	kind       actor.AskKind
	name       string
	containing string
	input      string
	within     actor.Duration
}

// Call matches a call of an agent, also one that a model makes: the name of the agent, or agent/session if
// the call names another session.
func Call(agent string) Want { return Want{kind: actor.AskCall, name: agent} }

// Tool matches a call of a tool.
func Tool(name string) Want { return Want{kind: actor.AskTool, name: name} }

// Model matches a prompt to a model.
func Model(name string) Want { return Want{kind: actor.AskModel, name: name} }

// Work matches work in troupe.Do.
func Work(name string) Want { return Want{kind: actor.AskWork, name: name} }

// Wait matches a wait for a signal.
func Wait(signal string) Want { return Want{kind: actor.AskWait, name: signal} }

// Sleep matches a sleep of this length.
func Sleep(d time.Duration) Want { return Want{kind: actor.AskSleep, within: d} }

// Containing requires this text in the message of a call, the arguments of a tool, or the last message of a
// prompt.
func (w Want) Containing(text string) Want { w.containing = text; return w }

// With requires these arguments of a tool, as JSON. Order and white space are ignored.
func (w Want) With(args string) Want { w.input = args; return w }

// Within requires this troupe.Timeout.
func (w Want) Within(d time.Duration) Want { w.within = d; return w }

// String returns a description of the expected ask.
func (w Want) String() string {
	s := w.kind.String()
	if w.name != "" {
		s += " " + w.name
	}
	if w.input != "" {
		s += " with " + w.input
	}
	if w.containing != "" {
		s += fmt.Sprintf(" containing %q", w.containing)
	}
	if w.within != 0 {
		s += fmt.Sprintf(" within %v", w.within)
	}
	return s
}

// matches reports whether the ask has the expected kind and name.
func (w Want) matches(ask *actor.Ask) bool {
	kind, name, _ := inspect(ask)
	return kind == w.kind && (name == w.name || kind == actor.AskSleep)
}

// mismatch describes the first difference to the ask, or returns an empty string.
func (w Want) mismatch(ask *actor.Ask) string {
	_, _, text := inspect(ask)
	switch {
	case !w.matches(ask):
		return "another kind or name"
	case w.containing != "" && !strings.Contains(text, w.containing):
		return fmt.Sprintf("its text is %q", text)
	case w.input != "" && !sameJSON(w.input, bytesOf(ask.Parts)):
		return "its input is " + string(bytesOf(ask.Parts))
	case w.within != 0 && w.within != ask.Timeout:
		return fmt.Sprintf("its timeout is %v", ask.Timeout)
	}
	return ""
}

// inspect returns the kind, name and text of an ask. The tool call_agent is
// returned as a call.
func inspect(ask *actor.Ask) (kind actor.AskKind, name, text string) {
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

// describeAsk returns a description of the ask in one line.
func describeAsk(ask *actor.Ask) string {
	kind, name, text := inspect(ask)
	s := kind.String()
	if name != "" {
		s += " " + name
	}
	if text != "" {
		s += fmt.Sprintf(" with text %.200q", text)
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
