// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
)

// loadedCell returns a cell with loaded actors of all agents, which have no entries yet.
func loadedCell(agents ...actor.Definition) *Cell {
	c := newTestCell(Config{PublishOnDemand: true}, agents...)
	for i := range agents {
		if journaled(&agents[i]) {
			id := actor.NewID(agents[i].Name, "s")
			c.activate(id, true)
			c.Step(1, Loaded{Actor: id, Epoch: 1})
		}
	}
	return c
}

func journaledAgent(*actor.Definition) {}

// performing returns an agent that has an operation performed.
func performing() script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskModel, Name: "m", Body: []byte("{}")}}}, nil
		}
		return actor.Complete(nil), nil
	}
}

// The entries of a tree of calls within a cell are those of one step. What the tree lets leave the node waits for
// all of them, also what a volatile callee requests.
func TestJournaledTreeOfACellIsOneStep(t *testing.T) {
	refusing := script(func(actor.Begin, [][]actor.Answer) (actor.Action, error) {
		return actor.Action{}, actor.Refuse(actor.Rejected, "no")
	})
	for _, test := range []struct {
		name            string
		agents          []actor.Definition
		sent            string // messages through the driver
		effects         string
		entries, actors int
	}{
		{"answer", []actor.Definition{agent("a", calling("b")), agent("b", calling("c")), agent("c", echo())},
			"", "Publish+ Publish+ Publish+ Publish+ Publish+ Respond+", 10, 3},
		{"refusal of a callee", []actor.Definition{agent("a", calling("b", "b")), agent("b", refusing)},
			"", "", 10, 2},
		{"request to a model below", []actor.Definition{agent("a", calling("b")), agent("b", performing())},
			"", "Model+", 4, 2},
		{"request of a volatile callee to a model", []actor.Definition{agent("a", calling("v")), agent("v", performing(), volatile)},
			"", "Model+", 2, 1},
		{"answer of a volatile callee", []actor.Definition{agent("a", calling("v")), agent("v", echo(), volatile)},
			"", "Respond+", 4, 1},
		{"answer to a volatile caller", []actor.Definition{agent("v", calling("a"), volatile), agent("a", echo())},
			"answered+", "", 2, 1},
	} {
		c := loadedCell(test.agents...)
		r := c.Step(2, newVisit(1, test.agents[0].Name))
		var sent, effects []string
		actors := map[actor.ID]bool{}
		for _, e := range r.Effects {
			name := strings.TrimPrefix(fmt.Sprintf("%T", e.Op), "runtime.")
			if op, ok := e.Op.(Send); ok {
				sent = append(sent, op.Envelope.Body.Name()+map[bool]string{true: "+"}[op.Envelope.Durable])
				continue
			}
			effects = append(effects, name+map[bool]string{true: "+"}[e.Gated])
			if !e.Gated {
				t.Errorf("%s: %s does not wait for the entries", test.name, name)
			}
		}
		for i := range r.Entries {
			actors[r.Entries[i].Actor] = true
		}
		if got := strings.Join(sent, " "); got != test.sent {
			t.Errorf("%s: got the messages %q, want %q", test.name, got, test.sent)
		}
		if len(r.Entries) != test.entries || len(actors) != test.actors {
			t.Errorf("%s: got %d entries of %d actors, want %d of %d", test.name, len(r.Entries), len(actors), test.entries, test.actors)
		}
		for _, want := range strings.Fields(test.effects) {
			if !slices.Contains(effects, want) {
				t.Errorf("%s: got the effects %v, want %s", test.name, effects, want)
			}
		}
	}
}

// A callee that panics is poisoned, and its caller goes on, although the first panic loses the caller's step: neither
// loses the client's call, nor does the cell fail without end.
func TestPanicOfCalleeInStepOfItsCaller(t *testing.T) {
	bomb := script(func(actor.Begin, [][]actor.Answer) (actor.Action, error) { panic("agent failed") })
	afterSleep := script(func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: time.Millisecond}}}, nil
		}
		return calling("", "b")(b, answers)
	})
	for _, test := range []struct {
		name string
		a    script
		b    func(*actor.Definition)
	}{
		{"first step", calling("b"), journaledAgent},
		{"first step, volatile callee", calling("b"), volatile},
		{"later step", afterSleep, journaledAgent},
		{"later step, volatile callee", afterSleep, volatile},
	} {
		n := newNode(t, 1, agent("a", test.a), agent("b", bomb, test.b))
		load := func() {
			for i := range n.agents {
				if id := actor.NewID(n.agents[i].Name, ""); journaled(&n.agents[i]) && n.cells[0].actors.find(id) == nil {
					n.cells[0].activate(id, true)
					n.step(n.cells[0], Loaded{Actor: id, Epoch: n.epoch, Saved: n.log[id]})
				}
			}
		}
		load()
		callCount++
		id := actor.NewCallID(n.now, 1, callCount)
		call := actor.Call{ID: id, Root: id, To: actor.NewID("a", ""), Operation: "o", Kind: actor.Waiting, Lane: actor.Normal, Origin: actor.Human}
		strikes, panics := map[actor.CallID]int{}, 0
		attempt := func() (failed bool) {
			defer func() {
				if failed = recover() != nil; failed {
					strikes[n.cells[0].FaultingCall()]++
				}
			}()
			call.Attempt++ // the driver repeats the call of a client that its cell has lost
			n.step(n.cells[0], Deliver{actor.Envelope{To: call.To, Body: actor.Request{Call: call}}})
			n.advance(time.Minute)
			return false
		}
		for attempt() {
			if panics++; panics > 10 {
				t.Fatalf("%s: the cell fails without end: %v", test.name, strikes)
			}
			n.restart(1)
			n.cells[0].strikes = strikes
			load()
		}
		if panics != 1+n.limits.StrikesMax {
			t.Errorf("%s: the cell failed %d times, want %d", test.name, panics, 1+n.limits.StrikesMax)
		}
		if got := n.result(id); !strings.Contains(got, "a(") || !strings.Contains(got, "Unavailable") {
			t.Errorf("%s: got %q, want an answer of a with the refusal of b", test.name, got)
		}
	}
}

// A step takes no further messages that depend on the log once their contents are long.
func TestLocalBytesPerStepAreBounded(t *testing.T) {
	text := strings.Repeat("x", localBytesMax/4)
	c := loadedCell(agent("a", calling("b", "b", "b", "b", "b", "b")), agent("b", func(actor.Begin, [][]actor.Answer) (actor.Action, error) {
		return actor.Complete(actor.Text(text)), nil
	}))
	in, most := []Input{newVisit(1, "a")}, 0
	for steps := 0; len(in) > 0; steps++ {
		r := c.Step(2, in[0])
		sent, answer := outputs(r)
		if in = in[1:]; answer != nil {
			if steps < 1 || actor.SizeOf(answer.Reply.Parts) < 6*len(text) {
				t.Errorf("got an answer of %d bytes after %d steps", actor.SizeOf(answer.Reply.Parts), 1+steps)
			}
			break
		}
		for i := range sent {
			in = append(in, Deliver{invariant.Must(actor.Decode(actor.Encode(sent[i])))})
		}
		bytes := 0
		for i := range r.Entries {
			if e, ok := r.Entries[i].Record.(store.Answered); ok {
				bytes += actor.SizeOf(e.Answer.Parts)
			}
		}
		most = max(most, bytes)
	}
	if most == 0 || most > localBytesMax+len(text) {
		t.Errorf("a step took answers of %d bytes, want at most %d", most, localBytesMax+len(text))
	}
}
