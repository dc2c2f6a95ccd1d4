// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
)

func repeatTarget(asks int) []string {
	targets := make([]string, asks)
	for i := range targets {
		targets[i] = "b"
	}
	return targets
}

// outputs returns the messages sent by a step, and its response to a client.
func outputs(r Ready) (sent []actor.Envelope, answer *Respond) {
	for _, e := range r.Effects {
		switch op := e.Op.(type) {
		case Send:
			sent = append(sent, op.Envelope)
		case Respond:
			answer = &op
		}
	}
	return sent, answer
}

// A chain of calls between volatile actors of one cell runs in one step. It emits
// its complete history and leaves no state.
func TestLocalCallChainRunsInOneStep(t *testing.T) {
	c := newTestCell(Config{PublishOnDemand: true}, agent("a", calling("b"), volatile), agent("b", calling("c"), volatile), agent("c", echo(), volatile))
	r := c.Step(2, newVisit(1, "a"))
	sent, answer := outputs(r)
	if len(sent) > 0 || answer == nil || actor.TextOf(answer.Reply.Parts) != "a(b(c:hello))" {
		t.Errorf("got messages %v and response %+v, want only the response", sent, answer)
	}
	var events []string
	for i := range r.Events {
		if e := &r.Events[i]; e.Kind == history.Send || e.Kind == history.Deliver {
			events = append(events, fmt.Sprintf("%s %s %s%s", e.Kind, e.What, e.Actor.Agent, e.Peer.Agent))
		}
	}
	want := "[Deliver request a Send request ab Deliver request b Send request bc Deliver request c " +
		"Send answered cb Deliver answered b Send answered ba Deliver answered a]"
	if got := fmt.Sprint(events); got != want {
		t.Errorf("got events\n%s, want\n%s", got, want)
	}
	if c.replyCache.next != c.replyCache.first || c.local.sent > 0 {
		t.Errorf("got %d cached outcomes, want none", c.replyCache.next-c.replyCache.first)
	}
	measures := []Measure{{Kind: MeasureRun, Name: "c"}, {Kind: MeasureCall}, {Kind: MeasureRun, Name: "b"}, {Kind: MeasureCall}, {Kind: MeasureRun, Name: "a"}}
	if !slices.Equal(r.Measures, measures) {
		t.Errorf("got measures %v, want %v", r.Measures, measures)
	}
}

// The receiver of a local message may modify it without affecting the sender.
func TestLocalMessagesDoNotShareMemory(t *testing.T) {
	mine, theirs := actor.Text("mine"), actor.Text("theirs")
	c := newTestCell(Config{PublishOnDemand: true},
		agent("a", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) == 0 {
				return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "b", Parts: mine}}}, nil
			}
			copy(answers[0][0].Parts[0].Bytes, "xxxxxx")
			return actor.Complete(nil), nil
		}, volatile),
		agent("b", func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
			copy(b.Call.Parts[0].Bytes, "xxxx")
			return actor.Complete(theirs), nil
		}, volatile))
	if _, answer := outputs(c.Step(2, newVisit(1, "a"))); answer == nil || answer.Reply.Refusal != nil {
		t.Fatalf("got response %+v", answer)
	}
	if actor.TextOf(mine) != "mine" || actor.TextOf(theirs) != "theirs" {
		t.Errorf("got request %q and reply %q, want them unchanged", actor.TextOf(mine), actor.TextOf(theirs))
	}
}

// An agent may modify the chain passed to it. Its callees get the real chain.
func TestAgentCannotForgeCallChain(t *testing.T) {
	for _, durability := range []func(*actor.Definition){volatile, func(*actor.Definition) {}} {
		var seen []actor.ID
		c := newTestCell(Config{PublishOnDemand: true}, agent("a", calling("b"), durability),
			agent("b", func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
				if len(answers) == 0 {
					b.Call.Chain[0] = actor.NewID("missing", "")
				}
				return calling("c")(b, answers)
			}, durability),
			agent("c", func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
				seen = b.Call.Chain
				return actor.Complete(nil), nil
			}, durability))
		for in := []Input{newVisit(1, "a")}; len(in) > 0; in = in[1:] {
			r := c.Step(2, in[0])
			sent, _ := outputs(r)
			for i := range sent {
				in = append(in, Deliver{sent[i]})
			}
			for _, e := range r.Effects {
				if load, ok := e.Op.(Load); ok {
					in = append(in, Loaded{Actor: load.Actor, Epoch: load.Epoch})
				}
			}
		}
		if len(seen) != 2 || seen[0].Agent != "a" || seen[1].Agent != "b" {
			t.Errorf("got chain %v, want a and b", seen)
		}
	}
}

// A retry of a call that was delivered locally is answered from the reply cache.
func TestRetryOfLocalCallReturnsCachedReply(t *testing.T) {
	runs := 0
	c := newTestCell(Config{PublishOnDemand: true}, agent("a", calling("b"), volatile),
		agent("b", func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) == 0 {
				runs++
				return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: 10 * time.Second}}}, nil
			}
			return actor.Complete(actor.Text("slept")), nil
		}, volatile))
	c.Step(2, newVisit(1, "a"))
	var repeat []actor.Envelope
	for now := actor.Time(2); len(repeat) == 0; now, _ = c.NextDeadline() {
		if now > actor.Time(10*time.Second) {
			t.Fatal("the call was not resent")
		}
		repeat, _ = outputs(c.Step(now, Tick{}))
	}
	answers, _ := outputs(c.Step(actor.Time(11*time.Second), Tick{}))
	for _, again := range []*actor.Envelope{&repeat[0], &repeat[0]} {
		more, _ := outputs(c.Step(actor.Time(11*time.Second), Deliver{*again}))
		answers = append(answers, more...)
	}
	if runs != 1 || len(answers) < 3 {
		t.Fatalf("ran %d times with %d replies, want 1 and at least 3", runs, len(answers))
	}
	for _, a := range answers {
		if m, ok := a.Body.(actor.Answered); ok && actor.TextOf(m.Reply.Parts) != "slept" {
			t.Errorf("got reply %+v", m)
		}
	}
}

// A step delivers at most localPerStepMax local messages. The others are sent
// through the driver.
func TestLocalMessagesPerStepAreBounded(t *testing.T) {
	c := newTestCell(Config{PublishOnDemand: true}, agent("a", calling(repeatTarget(localPerStepMax)...), volatile), agent("b", echo(), volatile))
	in, steps := Input(newVisit(1, "a")), 0
	for {
		steps++
		sent, answer := outputs(c.Step(2, in))
		if answer != nil {
			break
		}
		if len(sent) != 1 {
			t.Fatalf("step %d: got %d messages sent through the driver, want 1", steps, len(sent))
		}
		in = Deliver{sent[0]}
	}
	if steps != 2 {
		t.Errorf("%d calls took %d steps, want 2", localPerStepMax, steps)
	}
}

// A call within the cell that is refused returns its budget, also if the refusal is that of a call to another
// node: only that one may have been duplicated on its way.
func TestRefusedLocalCallReturnsBudget(t *testing.T) {
	passOn := func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "far/other", Parts: actor.Text("x")}}}, nil
		}
		return actor.Action{}, answers[0][0].Refusal
	}
	rests := map[actor.NodeID]uint32{}
	for _, from := range []actor.NodeID{"n", "m"} {
		c := newTestCell(Config{PublishOnDemand: true}, agent("a", calling("b"), volatile), agent("b", passOn, volatile), agent("far", echo(), volatile))
		far := dispatcher.ShardOf(actor.NewID("far", "other"))
		c.Step(1, Owners{dispatcher.NewTable(func(shard uint16) dispatcher.Owner {
			if shard == far {
				return dispatcher.Owner{Node: "m", Epoch: 1}
			}
			return dispatcher.Owner{Node: "n", Epoch: 1}
		})})
		sent, _ := outputs(c.Step(2, newVisit(1, "a")))
		if len(sent) != 1 {
			t.Fatalf("got %d messages to other nodes, want 1", len(sent))
		}
		reply := actor.Fail(sent[0].Body.Subject(), actor.RefuseBusy(actor.ScopeCallee, time.Second, "busy"))
		_, answer := outputs(c.Step(3, Deliver{actor.Envelope{From: actor.Address{Node: from, Incarnation: 1}, To: actor.NewID("b", "s"), Epoch: 1, Body: actor.Answered{Reply: reply}}}))
		if answer == nil || answer.Reply.Refusal != nil {
			t.Fatalf("got %+v, want the answer of a", answer)
		}
		rests[from] = answer.Reply.Budget
	}
	if rests["m"] == 0 || rests["m"] != rests["n"] {
		t.Errorf("got a rest of %d calls if another node refuses, %d if this one does", rests["m"], rests["n"])
	}
}

// treeAgents draws agents that call one another and sleep, in steps of several asks. An agent calls only
// later ones, so none waits for itself. The argument durability draws how each is kept.
func treeAgents(t *rapid.T, durability func(*actor.Definition)) (all []actor.Definition) {
	const agents = 5
	for n := range agents {
		var steps [][]actor.Ask
		for range rapid.IntRange(0, 3).Draw(t, "steps") {
			var asks []actor.Ask
			for range rapid.IntRange(1, 3).Draw(t, "asks") {
				if to := rapid.IntRange(n+1, agents).Draw(t, "to"); to < agents {
					name := fmt.Sprintf("t%d/%d", to, rapid.IntRange(0, 1).Draw(t, "key"))
					asks = append(asks, actor.Ask{Kind: actor.AskCall, Name: name, Parts: actor.Text("x")})
				} else {
					asks = append(asks, actor.Ask{Kind: actor.AskSleep, Timeout: time.Duration(rapid.IntRange(1, 3).Draw(t, "milliseconds")) * time.Millisecond})
				}
			}
			steps = append(steps, asks)
		}
		all = append(all, agent(fmt.Sprintf("t%d", n), func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) < len(steps) {
				return actor.Action{Asks: slices.Clone(steps[len(answers)])}, nil
			}
			text := b.Call.To.String()
			for _, step := range answers {
				text += "["
				for _, a := range step {
					text += answerText(a) + ","
				}
				text += "]"
			}
			return actor.Complete(actor.Text(text)), nil
		}, durability))
	}
	return all
}

// outcomeOf returns the answer of the first agent, with a driver that reads the entries of loaded actors.
func outcomeOf(t *rapid.T, failpoints failpoint.Points, agents []actor.Definition) (text string, c *Cell, log map[actor.ID]store.Saved) {
	c = newTestCell(Config{PublishOnDemand: true, Failpoints: failpoints}, agents...)
	log = map[actor.ID]store.Saved{}
	now, in := actor.Time(2), []Input{newVisit(1, "t0")}
	for range 10_000 {
		if len(in) == 0 {
			at, ok := c.NextDeadline()
			if text != "" || !ok {
				break
			}
			now, in = max(now, at), []Input{Tick{}}
		}
		r := c.Step(now, in[0])
		in = in[1:]
		for _, e := range r.Entries {
			saved := log[e.Actor]
			if s, ok := e.Record.(store.Snapshot); ok { // of an actor with hundreds of entries
				saved = store.Saved{Snapshot: s.Journal}
			} else {
				saved.Entries = append(saved.Entries, invariant.Must(store.DecodeEntry(store.EncodeEntry(e))))
			}
			log[e.Actor] = saved
		}
		sent, answer := outputs(r)
		for i := range sent {
			in = append(in, Deliver{sent[i]})
		}
		for _, e := range r.Effects {
			if load, ok := e.Op.(Load); ok {
				in = append(in, Loaded{Actor: load.Actor, Epoch: load.Epoch, Saved: log[load.Actor]})
			}
		}
		if answer != nil {
			text = answerText(actor.Answer{Parts: answer.Reply.Parts, Refusal: answer.Reply.Refusal})
		}
	}
	if size := c.Size(); size.Queued+size.Outstanding > 0 || len(c.inFlight) > 0 {
		t.Errorf("the cell counts %+v after the answer", size)
	}
	return text, c, log
}

// A turn that begins as its message arrives and one that begins after a wait in the mailbox give the same
// answer, and leave nothing behind.
func TestTurnsAtOnceEqualQueuedTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		agents := treeAgents(t, volatile)
		outcome := func(queue failpoint.Points) string {
			text, c, _ := outcomeOf(t, queue, agents)
			for _, act := range c.actors.ordered() {
				if !act.idle() || len(act.turns) > 0 || act.activeState != c.idleState {
					t.Errorf("%s has %d turns and %d runs after the answer", act.id, len(act.turns), len(act.journal.Runs))
				}
			}
			return text
		}
		once := outcome(nil)
		draws := rapid.Uint64().Draw(t, "queued")
		queued := outcome(func(p failpoint.Point) bool {
			draws = draws<<1 | draws>>63
			return p == failpoint.QueueNow && draws&3 != 0
		})
		if once == "" || once != queued {
			t.Fatalf("got %q at once, %q after a wait", once, queued)
		}
	})
}

// A tree of calls within a cell has the same answer if each message is delivered in its step, some are, or none is. Its
// entries fold to actors without open work.
func TestLocalTreesEqualSentTrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		agents := treeAgents(t, func(d *actor.Definition) {
			if rapid.IntRange(0, 2).Draw(t, "durability") == 0 {
				volatile(d)
			}
		})
		outcome := func(send failpoint.Points) string {
			text, c, log := outcomeOf(t, send, agents)
			for _, act := range c.actors.ordered() {
				if !act.idle() || len(act.turns) > 0 {
					t.Errorf("%s has %d turns and %d runs after the answer", act.id, len(act.turns), len(act.journal.Runs))
				}
			}
			for id, saved := range log {
				if j, err := store.Fold(saved); err != nil || len(j.Runs) > 0 {
					t.Errorf("the entries of %s fold to %d open runs: %v", id, len(j.Runs), err)
				}
			}
			return text
		}
		draws := rapid.Uint64().Draw(t, "sent")
		mixed := func(p failpoint.Point) bool {
			draws = draws<<1 | draws>>63
			return p == failpoint.SendNow && draws&1 != 0
		}
		local, some, none := outcome(nil), outcome(mixed), outcome(func(p failpoint.Point) bool { return p == failpoint.SendNow })
		if local == "" || local != some || local != none {
			t.Fatalf("got %q locally, %q with some messages sent, %q with all sent", local, some, none)
		}
	})
}
