// SPDX-License-Identifier: Apache-2.0

package troupetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe"
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents/agentstest"
	"github.com/troupe-run/troupe/internal/emitter"
	"github.com/troupe-run/troupe/internal/program"
	"github.com/troupe-run/troupe/tools"
)

// TB is the part of *testing.T that the package needs.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
	Failed() bool
	Cleanup(func())
}

// Option is an optional property of the turn of Start.
type Option struct{ apply func(*start) }

type start struct {
	tools   []troupe.Tool
	options []agentstest.Option
	state   any
	err     error // of an option
}

// WithTools gives the turn the tools of Config.Tools.
func WithTools(all ...troupe.Tool) Option {
	return Option{func(s *start) { s.tools = append(s.tools, all...) }}
}

// InSession sets the session. The default is main.
func InSession(id string) Option {
	return Option{func(s *start) { s.options = append(s.options, agentstest.To(id)) }}
}

// CalledBy makes another agent call, in place of a client. The nearest caller is last.
func CalledBy(agents ...string) Option {
	return Option{func(s *start) { s.options = append(s.options, agentstest.From(agents...)) }}
}

// ByUser sets the user of the run. The default is test.
func ByUser(name string) Option {
	return Option{func(s *start) {
		s.options = append(s.options, func(b *actor.Begin) { b.Call.Principal = name })
	}}
}

// WithTranscript sets the earlier messages of the session, of which a turn is given those that
// Agent.Transcript selects. A message with another role than those of package troupe fails the test.
func WithTranscript(all ...troupe.Message) Option {
	return Option{func(s *start) {
		var transcript []actor.ChatMessage
		for i, m := range all {
			role, err := actor.ParseRole(m.Role)
			if err != nil {
				s.err = fmt.Errorf("WithTranscript: message %d: Role: got %.40q, want %s, %s, %s or %s", i+1, m.Role, troupe.RoleUser, troupe.RoleAssistant, troupe.RoleSystem, troupe.RoleTool)
				return
			}
			transcript = append(transcript, actor.ChatMessage{Role: role, Parts: actor.Text(m.Text)})
		}
		s.options = append(s.options, func(b *actor.Begin) { b.Transcript = append(b.Transcript, transcript...) })
	}}
}

// WithState sets the value that troupe.State returns.
func WithState(value any) Option { return Option{func(s *start) { s.state = value }} }

// Turn is a turn that a test runs.
type Turn struct {
	tb    TB
	turn  *agentstest.Turn
	tools *tools.Registry
}

// Start delivers a message to an agent. The turn starts at the first expectation of the test.
func Start(tb TB, agent troupe.Agent, message string, opts ...Option) *Turn {
	tb.Helper()
	s := start{}
	for _, o := range opts {
		if o.apply != nil {
			o.apply(&s)
		}
	}
	if s.err != nil {
		tb.Fatalf("troupetest: %v", s.err)
		return nil
	}
	p, err := program.Troupe.New([]troupe.Agent{agent}, s.tools)
	if err != nil {
		tb.Fatalf("troupetest: %v", err)
		return nil
	}
	if s.state != nil {
		b, err := json.Marshal(s.state)
		if err != nil {
			tb.Fatalf("troupetest: state: %v", err)
			return nil
		}
		for _, item := range program.Troupe.EncodeState(agent.StateVersion, b) {
			s.options = append(s.options, agentstest.WithState(item.Name, string(item.Value)))
		}
	}
	return &Turn{tb, agentstest.Start(tb, p.Agents[0], message, s.options...), p.Tools}
}

// Expect runs the turn until it makes an ask that matches, and returns it. If several match, it
// returns the first.
func (t *Turn) Expect(want Want) *Ask {
	t.tb.Helper()
	return &Ask{t, t.turn.Expect(want.want)}
}

// Cancel stops the turn, as the end of the caller does.
func (t *Turn) Cancel() { t.turn.Cancel() }

// Completes expects the turn to end with this answer.
func (t *Turn) Completes(text string) {
	t.tb.Helper()
	t.turn.Completes(text)
}

// CompletesPartially expects the turn to end with this answer and with warnings, each of which contains
// the text at its index.
func (t *Turn) CompletesPartially(text string, warnings ...string) {
	t.tb.Helper()
	t.turn.CompletesPartially(text, warnings...)
}

// Refuses expects the turn to end with a refusal that has this code and contains this text.
func (t *Turn) Refuses(code troupe.Code, text string) {
	t.tb.Helper()
	t.turn.Refuses(reasonOf(code), text)
}

// Fails expects the turn to end with a panic, or an error other than a *troupe.Refusal, that contains
// this text.
func (t *Turn) Fails(text string) {
	t.tb.Helper()
	t.turn.Fails(text)
}

// StateOf returns the value that a turn, which has ended, has set with troupe.SetState.
func StateOf[T any](t *Turn) (value T) {
	t.tb.Helper()
	state := program.Troupe.DecodeState(t.turn.Updates())
	if state == nil {
		t.tb.Fatalf("troupetest: the turn has set no state")
		return value
	}
	if err := json.Unmarshal(state, &value); err != nil {
		t.tb.Fatalf("troupetest: state %.200s: %v", state, err)
	}
	return value
}

// reasonOf returns the reason of a refusal with the code.
func reasonOf(code troupe.Code) actor.Reason {
	return program.Troupe.Refusal(troupe.Refuse(code, "")).Reason
}

// Want describes an expected ask.
type Want struct{ want agentstest.Want }

// Call matches a call of an agent, also one that a model makes: the name of the agent, or agent/session if
// the call names another session.
func Call(agent string) Want { return Want{agentstest.Call(agent)} }

// Tool matches a call of a tool.
func Tool(name string) Want { return Want{agentstest.Tool(name)} }

// Model matches a prompt to a model.
func Model(name string) Want { return Want{agentstest.Model(name)} }

// Work matches work in troupe.Do.
func Work(name string) Want { return Want{agentstest.Work(name)} }

// Wait matches a wait for a signal.
func Wait(signal string) Want { return Want{agentstest.Wait(signal)} }

// Sleep matches a sleep of this length.
func Sleep(d time.Duration) Want { return Want{agentstest.Sleep(d)} }

// Containing requires this text in the message of a call, the arguments of a tool, or the last message of a
// prompt.
func (w Want) Containing(text string) Want { return Want{w.want.Containing(text)} }

// With requires these arguments of a tool, as JSON. Order and white space are ignored.
func (w Want) With(args string) Want { return Want{w.want.With(args)} }

// Within requires this troupe.Timeout.
func (w Want) Within(d time.Duration) Want { return Want{w.want.Within(d)} }

// Ask is an ask of the turn. The test MUST answer it exactly once.
type Ask struct {
	turn *Turn
	ask  *agentstest.PendingAsk
}

// Answer answers with a text. For a model it is the final answer.
func (a *Ask) Answer(text string) {
	a.turn.tb.Helper()
	a.ask.Answer(text)
}

// AnswerJSON answers with a value as JSON, as tools do.
func (a *Ask) AnswerJSON(value any) {
	a.turn.tb.Helper()
	b, err := json.Marshal(value)
	if err != nil {
		a.turn.tb.Fatalf("troupetest: answer: %v", err)
		return
	}
	a.ask.AnswerJSON(string(b))
}

// AnswerEmpty answers without content: it ends a sleep, or is a signal without a payload.
func (a *Ask) AnswerEmpty() {
	a.turn.tb.Helper()
	a.ask.AnswerEmpty()
}

// Refuse answers with a refusal.
func (a *Ask) Refuse(code troupe.Code, format string, args ...any) {
	a.turn.tb.Helper()
	a.ask.Refuse(reasonOf(code), "%s", fmt.Sprintf(format, args...))
}

// Perform answers by the real function: that of a tool of WithTools, or of the work.
func (a *Ask) Perform() {
	a.turn.tb.Helper()
	ask := a.ask.Ask()
	switch ask.Kind {
	case actor.AskWork:
		b, err := ask.Work(emitter.With(context.Background(), func(string) {}))
		answer := actor.Answer{Parts: []actor.Part{{Media: actor.MediaText, Bytes: b}}}
		if err != nil {
			if answer = (actor.Answer{Refusal: program.Troupe.Refusal(err)}); answer.Refusal == nil {
				answer.Refusal = actor.Refuse(actor.Unavailable, "%s: %v", ask.Name, err)
			}
		}
		a.ask.AnswerAs(answer)
	case actor.AskTool:
		planned, result := a.turn.tools.Plan(a.turn.context(), ask)
		if result == nil {
			executed := a.turn.tools.Execute(context.Background(), planned.Name, planned.Parts[0].Bytes, a.turn.context())
			result = &executed
		}
		a.ask.AnswerAs(*result)
	default:
		a.turn.tb.Fatalf("troupetest: Perform: only a tool and work have a function; use Answer")
	}
}

// context returns the context of tools.
func (t *Turn) context() tools.ExecutionContext {
	call := t.turn.Request()
	return tools.NewContext(call, call.Left, nil)
}

// Use is a call of a tool that a model makes, with its arguments as JSON.
type Use struct{ Tool, Args string }

// UseCall returns the tool call with which a model calls another agent.
func UseCall(agent, message string) Use {
	u := agentstest.UseCall(agent, message)
	return Use{u.Tool, u.Input}
}

// Uses answers as a model that makes these tool calls at once.
func (a *Ask) Uses(uses ...Use) {
	a.turn.tb.Helper()
	var all []agentstest.Use
	for _, u := range uses {
		all = append(all, agentstest.Use{Tool: u.Tool, Input: u.Args})
	}
	a.ask.Uses(all...)
}

// Scripted answers as the built-in model does, which follows the instructions in its prompt.
func (a *Ask) Scripted() {
	a.turn.tb.Helper()
	a.ask.Scripted()
}

// Prompt returns the messages of a prompt to a model, and the names of the tools that it offers.
func (a *Ask) Prompt() (messages []troupe.Message, offered []string) {
	a.turn.tb.Helper()
	p := a.ask.Prompt()
	for _, m := range p.Messages {
		messages = append(messages, troupe.Message{Role: m.Role.String(), Text: m.Text})
	}
	for _, s := range p.Tools {
		offered = append(offered, s.Name)
	}
	return messages, slices.Clip(offered)
}
