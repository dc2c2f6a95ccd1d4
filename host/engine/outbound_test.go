// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// fakeOutbound is an Outbound implemented by a function.
type fakeOutbound func(ctx context.Context, what string, left actor.Duration, pass func(actor.Piece)) actor.Answer

func (o fakeOutbound) Model(ctx context.Context, op runtime.Model, pass func(actor.Piece)) actor.Answer {
	return o(ctx, fmt.Sprintf("model %s %s", op.Name, op.Body), op.Left, pass)
}

func (o fakeOutbound) Invoke(ctx context.Context, op runtime.Invoke, _ <-chan actor.Duration, pass func(actor.Piece)) actor.Answer {
	return o(ctx, fmt.Sprintf("invoke %s %s %v", op.Name, op.Target, op.Idempotent), op.Left, pass)
}

func (o fakeOutbound) Tool(ctx context.Context, id actor.EffectID, op runtime.Tool) actor.Answer {
	return o(ctx, fmt.Sprintf("tool %s %s", op.Name, op.Input), op.Left, func(actor.Piece) {})
}

func modelReply(text string) actor.Answer {
	c := upstream.Completion{Text: text, Finish: upstream.FinishStop}
	return actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: c.Encode()}}}
}

// modelAgent returns an agent that asks a model. externalAgent returns one that
// asks an external agent. Both reply with the answer.
func modelAgent() actor.Definition {
	return outboundAgent("thinker", actor.Ask{Kind: actor.AskModel, Name: "m", Parts: actor.Text("new"), Body: []byte("prompt")})
}

func externalAgent() actor.Definition {
	return outboundAgent("invoker", actor.Ask{Kind: actor.AskInvoke, Name: "w", Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{}`)}}, Timeout: time.Minute})
}

func outboundAgent(name string, ask actor.Ask) actor.Definition {
	return blockingAgent(name, func(turn *agents.Turn) (string, error) {
		a := turn.All(ask)[0]
		if err := a.Err(); err != nil {
			return "", err
		}
		b, err := a.Bytes()
		if err != nil {
			return "", err
		}
		c, err := upstream.DecodeCompletion(b)
		return c.Text, err
	})
}

func streamText(all []runs.Event) string {
	var b strings.Builder
	for _, e := range all {
		if e.Type == runs.AgentStreamDelta {
			b.WriteString(e.Text)
		}
	}
	return b.String()
}

func TestOutboundAnswersAreStreamed(t *testing.T) {
	asked := make(chan string, 2)
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Outbound = fakeOutbound(func(_ context.Context, what string, left actor.Duration, pass func(actor.Piece)) actor.Answer {
			asked <- fmt.Sprint(what, " ", left)
			for i := range 100 {
				pass(actor.Piece{Text: fmt.Sprint(i, " ")})
			}
			return modelReply("all of it")
		})
	}, modelAgent(), externalAgent())
	var want strings.Builder
	for i := range 100 {
		fmt.Fprint(&want, i, " ")
	}
	for agent, asks := range map[string]string{"thinker": "model m prompt 2m0s", "invoker": "invoke w {} false 1m0s"} {
		a := n.ask(agent, "s", "x")
		if replyText(a) != "all of it" {
			t.Errorf("%s: got %+v", agent, a.Reply)
		}
		if got := <-asked; got != asks {
			t.Errorf("%s asked %q, want %q", agent, got, asks)
		}
		if got := streamText(n.waitForEvent(a.Reply.Run, runs.RunDone)); got != want.String() {
			t.Errorf("%s: got stream %q", agent, got)
		}
	}
}

func TestOutboundFailuresAreRefused(t *testing.T) {
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Outbound = fakeOutbound(func(ctx context.Context, _ string, _ actor.Duration, pass func(actor.Piece)) actor.Answer {
			pass(actor.Piece{Text: "a"})
			goruntime.Goexit()
			return actor.Answer{}
		})
	}, modelAgent())
	if r := n.ask("thinker", "s", "x").Reply.Refusal; r == nil || r.Reason != actor.Unavailable || !strings.Contains(r.Error(), "called runtime.Goexit") {
		t.Errorf("Goexit: got %v", r)
	}
	n.config.Outbound = fakeOutbound(func(context.Context, string, actor.Duration, func(actor.Piece)) actor.Answer { panic("test failure") })
	if r := n.ask("thinker", "s", "x").Reply.Refusal; r == nil || !strings.Contains(r.Error(), "panic: test failure") {
		t.Errorf("panic: got %v", r)
	}
	n.config.Outbound = nil
	if r := n.ask("thinker", "s", "x").Reply.Refusal; r == nil || r.Reason != actor.Unavailable || !strings.Contains(r.Error(), "not configured to call") {
		t.Errorf("without an Outbound: got %v", r)
	}
}

// The metrics of a declared tool have its outcomes and the time to its answers.
func TestDeclaredToolIsMeasured(t *testing.T) {
	declared := []tools.Declared{{Name: "weather.get", Kind: tools.KindServer, Via: tools.ViaHTTP, URL: "http://127.0.0.1:9"}}
	registry, err := tools.NewRegistry().With(declared, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Tools = registry
		c.Outbound = fakeOutbound(func(_ context.Context, what string, _ actor.Duration, _ func(actor.Piece)) actor.Answer {
			if what == `tool weather.get {"city":"Graz"}` {
				return tools.Text("warm")
			}
			return actor.Answer{Refusal: actor.Refuse(actor.Rejected, "%s", what)}
		})
	}, blockingAgent("asker", func(turn *agents.Turn) (string, error) {
		for _, input := range []string{`{"city":"Graz"}`, `{"city":"Graz"}`, `{}`} {
			turn.All(actor.Ask{Kind: actor.AskTool, Name: "weather.get", Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(input)}}})
		}
		return "done", nil
	}))
	if a := n.ask("asker", "s", "x"); replyText(a) != "done" {
		t.Fatalf("got %+v", a.Reply)
	}
	want := []command.OutcomeStats{{Count: 2}, {Reason: actor.Rejected, Count: 1}}
	s := n.Stats().Targets
	if len(s) != 1 || s[0].Kind != actor.AskTool || s[0].Name != "weather.get" || !slices.Equal(s[0].Outcomes, want) || s[0].Took.Sum <= 0 {
		t.Errorf("got %+v, want outcomes %+v", s, want)
	}
}

// Cancelling a run cancels its model call, even a model call that keeps
// streaming and has a piece in flight.
func TestCancelStopsModelCall(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Outbound = fakeOutbound(func(ctx context.Context, _ string, _ actor.Duration, pass func(actor.Piece)) actor.Answer {
			defer close(ended)
			for i := 0; ctx.Err() == nil; i++ {
				pass(actor.Piece{Text: "x"})
				if i == 3 {
					close(started)
				}
			}
			pass(actor.Piece{Text: "after"})
			return modelReply("not used")
		})
	}, modelAgent())
	call := n.newCall("thinker", "s", "x")
	answer := make(chan Answer, 1)
	go func() { answer <- n.askCall(call) }()
	<-started
	if r := n.Cancel(call.ID, call.To, ""); r != nil {
		t.Error(r)
	}
	if a := <-answer; a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Stopped {
		t.Errorf("got %+v, want Stopped", a.Reply)
	}
	<-ended
	if got := streamText(n.waitForEvent(call.ID, runs.RunCancelled)); strings.Trim(got, "x") != "" {
		t.Errorf("stream has %q", got)
	}
	for ctx := testContext(t); slices.ContainsFunc(n.Stats().Asks, func(s command.AskStats) bool { return s.Kind == actor.AskModel && s.UnderWay != 0 }); {
		if ctx.Err() != nil { // the effect's goroutine ends shortly after its code
			t.Fatalf("%+v", n.Stats().Asks)
		}
		goruntime.Gosched()
	}
	if r := n.Cancel(actor.CallID{}, actor.ID{}, ""); r == nil || r.Reason != actor.Invalid {
		t.Errorf("invalid actor: got %v, want Invalid", r)
	}
}

// Pieces of an answer arrive one at a time. If the cell fails, the pieces
// continue with the next incarnation. No piece is lost or shown twice.
func TestStreamSurvivesCellRestart(t *testing.T) {
	var passing, most atomic.Int32
	half, restarted := make(chan struct{}), make(chan struct{})
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Cells = 1
		c.Outbound = fakeOutbound(func(_ context.Context, _ string, _ actor.Duration, pass func(actor.Piece)) actor.Answer {
			for i := range 200 {
				if i == 100 {
					close(half)
				}
				passing.Add(1)
				pass(actor.Piece{Text: fmt.Sprint(i, " ")})
				most.Store(max(most.Load(), passing.Add(-1)))
			}
			<-restarted
			return modelReply("all of it")
		})
	}, modelAgent(), rawAgent("bomb", func(actor.Begin) (actor.Action, error) { panic("test failure") }))
	call := n.newCall("thinker", "s", "x")
	answer := make(chan Answer, 1)
	go func() { answer <- n.askCall(call) }()
	<-half
	n.ask("bomb", "b", "x")
	close(restarted)
	if a := <-answer; replyText(a) != "all of it" {
		t.Errorf("got %+v", a.Reply)
	}
	var want strings.Builder
	for i := range 200 {
		fmt.Fprint(&want, i, " ")
	}
	all := n.waitForEvent(call.ID, runs.RunDone)
	if got := streamText(all); got != want.String() {
		t.Errorf("got stream %q", got)
	}
	for _, e := range all {
		if e.Type == runs.Attempt {
			t.Errorf("model was called again: %v", e)
		}
	}
}

func TestRepeatedCallJoinsOpenRun(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	n := startNode(t, t.TempDir(), nil, blockingAgent("worker", func(turn *agents.Turn) (string, error) {
		b, err := turn.Do("work", func(context.Context) ([]byte, error) { close(started); <-release; return []byte("done"), nil })
		return string(b), err
	}))
	keyed := func() actor.Call {
		call := n.newCall("worker", "s", "x")
		call.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k", Body: actor.HashOf([]byte("x"))}
		return call
	}
	first := keyed()
	answers := make(chan Answer, 2)
	ask := func(call actor.Call, joined func(actor.CallID)) {
		a, err := n.AskStream(testContext(t), call, joined)
		if err != nil {
			t.Error(err)
		}
		answers <- a
	}
	go ask(first, func(actor.CallID) { t.Error("first call joined a run") })
	<-started
	joined := make(chan actor.CallID, 2)
	go ask(keyed(), func(run actor.CallID) { joined <- run })
	if run := <-joined; run != first.ID {
		t.Errorf("joined %v, want %v", run, first.ID)
	}
	close(release)
	for range 2 {
		if a := <-answers; replyText(a) != "done" || a.Reply.Run != first.ID {
			t.Errorf("got %+v, want done", a)
		}
	}
	if len(joined) > 0 {
		t.Error("joined was called twice")
	}
}
