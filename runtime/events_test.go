// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/tools"
)

// flood sends pieces of an answer until the run ends, at most 1,000.
func (n *node) flood(run actor.CallID, piece actor.Piece) {
	for range 1000 {
		if r := n.runs[run]; r.Status.Ended() {
			return
		}
		n.sendPiece(n.external[0], piece)
	}
}

func TestStreamedAnswerIsBounded(t *testing.T) {
	for _, test := range []struct {
		name   string
		piece  actor.Piece
		max    int // pieces that are kept
		detail string
	}{
		{"deltas", actor.Piece{Text: "x"}, 50, "more than 50 deltas and states (stream_events_max)"},
		{"states", actor.Piece{State: "s", Detail: "{}"}, 50, "more than 50 deltas and states (stream_events_max)"},
		{"retries", actor.Piece{Retry: actor.Refuse(actor.Unavailable, "lost")}, 50, "more than 50 deltas and states (stream_events_max)"},
		{"bytes of deltas", actor.Piece{Text: strings.Repeat("x", 256)}, 8, "more than 2048 bytes in deltas and states (stream_bytes_max)"},
		{"bytes of states", actor.Piece{State: "state", Detail: `"` + strings.Repeat("x", 249) + `"`}, 8, "more than 2048 bytes in deltas and states (stream_bytes_max)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t, 1, externalAgent(true), agent("caller", calling("worker")))
			n.limits.StreamEventsMax, n.limits.StreamBytesMax = 50, 2048
			n.restart(1)
			root := n.send("caller", "go")
			run := n.external[0].effect.Op.(Invoke).Call.ID
			n.flood(run, test.piece)
			n.want(root, "caller(EventsExceeded)")
			if r := n.runs[run]; r.Refusal == nil || !strings.Contains(r.Refusal.Detail, test.detail) {
				t.Errorf("got %v, want %q", r.Refusal, test.detail)
			}
			kept := 0
			for _, e := range n.events[run] {
				if e.Type == runs.AgentStreamDelta || e.Type == runs.AgentStateChanged || e.Type == runs.Attempt {
					kept++
				}
			}
			if kept != test.max {
				t.Errorf("kept %d pieces, want %d", kept, test.max)
			}
			if len(n.aborted) != 1 {
				t.Errorf("%d requests were aborted, want 1", len(n.aborted))
			}
		})
	}
}

func TestEventsOfRunAreBounded(t *testing.T) {
	endless := func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "b"}, {Kind: actor.AskCall, Name: "b"}}}, nil
	}
	n := newNode(t, 1, agent("a", endless), agent("b", echo()), externalAgent(true))
	n.limits.RunEventsMax, n.limits.CallsPerTreeMax = 60, 1000
	n.restart(1)
	id := n.send("a", "go")
	n.advance(time.Minute)
	n.want(id, "EventsExceeded")
	if got := len(n.events[id]); got > 60 || got < 40 {
		t.Errorf("got %d events, want 40 to 60", got)
	}

	id = n.send("worker", "go")
	for range 20 {
		n.sendCallback(id, `{"agent_id":"b","message":""}`)
	}
	n.flood(id, actor.Piece{Text: "x"})
	n.want(id, "EventsExceeded")
	if got := len(n.events[id]); got != 60 {
		t.Errorf("got %d events, want 60", got)
	}

	id = n.send("worker/s", "go")
	for range 100 {
		n.send("worker/s", "", func(c *actor.Call) {
			c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpCallAgent, id
			c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"agent_id":"b","message":""}`)}}
		})
	}
	n.want(id, "EventsExceeded")
	if got := len(n.events[id]); got > 60 {
		t.Errorf("got %d events, want at most 60", got)
	}
}

// The events of a tool call report its creation, its dispatch and its result. A refused
// one is not dispatched.
func TestEventsOfToolCall(t *testing.T) {
	n := newNode(t, 1, agent("a", askOnce(actor.Ask{Kind: actor.AskTool, Name: "known", Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte("{}")}}},
		actor.Ask{Kind: actor.AskTool, Name: "unknown"})))
	err := n.tools.RegisterBuiltin(tools.Tool{Name: "known", Schema: `{"type":"object"}`, Handler: func(context.Context, []byte) tools.Result {
		return actor.Answer{Parts: actor.Text("result")}
	}})
	if err != nil {
		t.Fatal(err)
	}
	run := n.send("a", "x")
	n.advance(time.Second)
	got := map[uint16][]runs.Type{}
	for _, e := range n.events[run] {
		if e.Step == 1 {
			got[e.Index] = append(got[e.Index], e.Type)
		}
	}
	want := map[uint16][]runs.Type{0: {runs.ToolCallCreated, runs.ToolDispatched, runs.ToolResult}, 1: {runs.ToolCallCreated, runs.ToolResult}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got events %v, want %v", got, want)
	}
}
