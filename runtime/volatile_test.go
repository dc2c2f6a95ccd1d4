// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// newTestCell returns a cell that owns all shards.
func newTestCell(cfg Config, agents ...actor.Definition) *Cell {
	cfg.Self, cfg.Seed, cfg.Tools = actor.Address{Node: "n", Incarnation: 1}, 1, tools.NewRegistry()
	c := NewCell(cfg)
	c.Step(1, Agents{Definitions: agents})
	c.Step(1, Owners{dispatcher.NewTable(func(uint16) dispatcher.Owner { return dispatcher.Owner{Node: "n", Epoch: 1} })})
	c.Step(1, Boot{})
	return c
}

func newVisit(seq uint64, to string) *Visit {
	id := actor.NewCallID(1, 1, seq)
	return &Visit{Call: actor.Call{ID: id, Root: id, To: actor.NewID(to, "s"), Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal,
		Attempt: 1, Origin: actor.Human, Parts: actor.Text("hello")}}
}

// publishedTypes returns the types of the run events that a step publishes. A journaled actor
// publishes the number of the last event of an entry.
func publishedTypes(t *testing.T, r Ready) (types []runs.Type) {
	t.Helper()
	for _, e := range r.Effects {
		op, ok := e.Op.(Publish)
		if ok && op.Event.Body == nil {
			for i := range r.Entries {
				if e := &r.Entries[i]; e.EventRun() == op.Event.Run && e.Shown.Seq <= op.Event.Seq {
					for _, v := range e.RunEvents() {
						types = append(types, v.Type)
					}
				}
			}
			if op.Event.Seq != uint64(len(types)) {
				t.Errorf("got event %d at position %d of its run", op.Event.Seq, len(types))
			}
			continue
		}
		if ok {
			ev, err := runs.Decode(op.Event.Body)
			if err != nil || ev.Seq != uint64(len(types)+1) {
				t.Errorf("got event %d at position %d of its run: %v", ev.Seq, len(types)+1, err)
			}
			types = append(types, ev.Type)
		}
	}
	return types
}

// A Visit has the same effect as a Deliver of the same call.
func TestVisitEqualsDeliver(t *testing.T) {
	agents := []actor.Definition{agent("none", echo(), volatile), agent("all", echo()), agent("slow", waiting(time.Minute), volatile)}
	visits, delivers := newTestCell(Config{}, agents...), newTestCell(Config{}, agents...)
	for i, to := range []string{"none", "all", "slow", "missing", "none"} {
		v := newVisit(uint64(i), to)
		before := v.Call
		a := visits.Step(2, v)
		b := delivers.Step(2, Deliver{actor.Envelope{To: v.Call.To, Body: actor.Request{Call: before}}})
		if !reflect.DeepEqual(a, b) || len(a.Effects) == 0 {
			t.Errorf("%s: got %+v for a Visit, %+v for a Deliver", to, a, b)
		}
	}
	if !reflect.DeepEqual(visits.State(), delivers.State()) {
		t.Error("the states of the cells differ")
	}
}

// With PublishOnDemand the events of a volatile actor's run are published only if
// the run had a subscriber when its call arrived. Events of journaled actors are
// always published.
func TestNoEventsWithoutSubscriber(t *testing.T) {
	allEvents := []runs.Type{runs.UserInput, runs.RunStarted, runs.RunDone}
	agents := []actor.Definition{agent("none", echo(), volatile), agent("all", echo())}
	for _, test := range []struct {
		name            string
		to              string
		quiet, followed bool
		want            []runs.Type
	}{
		{"volatile", "none", true, false, nil},
		{"volatile with subscriber", "none", true, true, allEvents},
		{"all events requested", "none", false, false, allEvents},
	} {
		c := newTestCell(Config{PublishOnDemand: test.quiet}, agents...)
		for i := range uint64(2) { // the second call reuses memory of the first
			v := newVisit(i, test.to)
			v.Subscribed = test.followed
			if got := publishedTypes(t, c.Step(2, v)); !slices.Equal(got, test.want) {
				t.Errorf("%s: got events %v, want %v", test.name, got, test.want)
			}
		}
	}
	c := newTestCell(Config{PublishOnDemand: true}, agents...)
	c.Step(2, newVisit(1, "all"))
	r := c.Step(2, Loaded{Actor: actor.NewID("all", "s"), Epoch: 1})
	if got := publishedTypes(t, r); !slices.Equal(got, allEvents) || len(r.Entries) == 0 {
		t.Errorf("journaled: got events %v", got)
	}
}

// A cell emits only the kinds of history events that its driver requested, and of those
// the same as a cell that emits all.
func TestOnlyRequestedEventKindsAreEmitted(t *testing.T) {
	events := func(kinds history.Set) (all []history.Event) {
		c := newTestCell(Config{EventKinds: kinds}, agent("caller", calling("callee", "kept", "missing"), volatile), agent("callee", echo(), volatile), agent("kept", echo()))
		step := func(in Input) {
			all = append(all, c.Step(2, in).Events...)
		}
		step(newVisit(1, "caller"))
		step(newVisit(2, "caller"))
		step(Loaded{Actor: actor.NewID("kept", "s"), Epoch: 1})
		step(newVisit(3, "missing"))
		return all
	}
	every := events(0)
	seen := history.Set(0)
	for _, e := range every {
		seen |= history.SetOf(e.Kind)
	}
	for _, k := range []history.Kind{history.Send, history.Deliver, history.Admit, history.Queue, history.Start, history.Ask, history.Reply, history.Refuse} {
		if !seen.Has(k) {
			t.Errorf("no event %v", k)
		}
		want := slices.DeleteFunc(slices.Clone(every), func(e history.Event) bool { return e.Kind != k })
		if got := events(history.SetOf(k)); !reflect.DeepEqual(got, want) {
			t.Errorf("%v requested: got events %v, want %v", k, got, want)
		}
	}
}

// An admitted call is reported with the attempt that arrived, and an ask that expires with
// its kind.
func TestAdmittedAttemptsAndExpiredAsksAreReported(t *testing.T) {
	c := newTestCell(Config{}, agent("slow", sleeping(time.Minute), volatile))
	call := newVisit(1, "slow").Call
	call.Chain, call.Parent, call.Root = []actor.ID{actor.NewID("caller", "s")}, actor.NewCallID(1, 1, 6), actor.NewCallID(1, 1, 6)
	call.Attempt, call.Left = 3, time.Hour
	events := c.Step(2, Deliver{actor.Envelope{From: actor.Address{Node: "other"}, To: call.To, Epoch: 1, Body: actor.Request{Call: call}}}).Events
	if i := slices.IndexFunc(events, func(e history.Event) bool { return e.Kind == history.Admit }); i < 0 || events[i].Attempt != 3 || events[i].Call != call.ID {
		t.Errorf("got events %v, want the third attempt admitted", events)
	}
	events = c.Step(actor.Time(3).Add(time.Minute), Tick{}).Events
	if i := slices.IndexFunc(events, func(e history.Event) bool { return e.Kind == history.Expire }); i < 0 || events[i].What != "sleep" || events[i].Parent != call.ID {
		t.Errorf("got events %v, want the sleep expired", events)
	}
}

// A call that its callee refuses is reported once, with the reason.
func TestCalleeReportsRefusal(t *testing.T) {
	c := newTestCell(Config{}, agent("none", echo(), volatile))
	call := newVisit(1, "none").Call
	call.Chain, call.Parent, call.Root = []actor.ID{actor.NewID("caller", "s")}, actor.NewCallID(1, 1, 6), actor.NewCallID(1, 1, 6)
	call.Left = 0
	r := c.Step(2, Deliver{actor.Envelope{From: actor.Address{Node: "other"}, To: call.To, Epoch: 1, Body: actor.Request{Call: call}}})
	refusals := slices.DeleteFunc(r.Events, func(e history.Event) bool { return e.Kind != history.Refuse })
	if len(refusals) != 1 || refusals[0].Call != call.ID || refusals[0].Reason != actor.Deadline || refusals[0].Why != "callee" {
		t.Errorf("got events %v", refusals)
	}
}

// An idle volatile actor uses no memory beyond its activation, and a client that is
// answered at once leaves no state.
func TestIdleVolatileActorReleasesMemory(t *testing.T) {
	c := newTestCell(Config{PublishOnDemand: true}, agent("none", echo(), volatile), agent("slow", sleeping(time.Minute), volatile))
	c.Step(2, newVisit(1, "none"))
	act := c.actors.find(actor.NewID("none", "s"))
	if act.activeState != c.idleState || len(c.waiters.byCall) != 0 || len(c.timers) != 1 || c.replyCache.next != c.replyCache.first {
		t.Errorf("got state %+v, %d clients and %d timers, want idleState, 0 and 1", act.activeState, len(c.waiters.byCall), len(c.timers))
	}
	before := len(c.freeStates)
	c.Step(3, newVisit(2, "none"))
	if len(c.freeStates) != before || len(c.freeTurns) == 0 || len(c.freeRuns) == 0 {
		t.Errorf("the second call did not reuse memory: %d free states, %d free turns, %d free runs", len(c.freeStates), len(c.freeTurns), len(c.freeRuns))
	}
	for _, run := range c.freeRuns {
		if run.Call.Parts != nil {
			t.Error("a recycled run retains the message")
		}
	}
	subscribed := newVisit(4, "none")
	subscribed.Subscribed = true
	if c.Step(3, subscribed); act.activeState != c.idleState {
		t.Errorf("the end of a subscribed run leaves %+v", act.activeState)
	}
	c.Step(4, newVisit(3, "slow"))
	if at, ok := c.NextDeadline(); len(c.waiters.byCall) != 1 || !ok || at > actor.Time(4).Add(time.Minute) || c.actors.find(actor.NewID("slow", "s")).activeState == c.idleState {
		t.Errorf("got %d clients and deadline %v", len(c.waiters.byCall), at)
	}
}

// A duplicate of a call to a volatile actor is answered from the reply cache.
func TestVolatileDuplicateReturnsCachedReply(t *testing.T) {
	runs := 0
	c := newTestCell(Config{PublishOnDemand: true}, agent("none", func(b actor.Begin, a [][]actor.Answer) (actor.Action, error) {
		runs++
		return echo()(b, a)
	}, volatile))
	deliver := func(from actor.NodeID, attempt uint32) string {
		call := newVisit(7, "none").Call
		call.Chain, call.Parent, call.Root = []actor.ID{actor.NewID("caller", "s")}, actor.NewCallID(1, 1, 6), actor.NewCallID(1, 1, 6)
		call.Attempt, call.Left = attempt, time.Second
		r := c.Step(5, Deliver{actor.Envelope{From: actor.Address{Node: from}, To: call.To, Epoch: 1, Body: actor.Request{Call: call}}})
		for _, e := range r.Effects {
			if op, ok := e.Op.(Send); ok {
				return actor.TextOf(op.Envelope.Body.(actor.Answered).Reply.Parts)
			}
		}
		return "nothing"
	}
	for i, again := range []struct {
		from    actor.NodeID
		attempt uint32
	}{{"n", 1}, {"n", 2}, {"other", 1}, {"other", 3}} {
		if got := deliver(again.from, again.attempt); got != "none:hello" || runs != 1 {
			t.Errorf("%d: got reply %q after %d runs, want \"none:hello\" after 1", i, got, runs)
		}
	}
}

// A sent message shares no memory with the state of the cell.
func TestSentMessagesDoNotShareMemory(t *testing.T) {
	c := newTestCell(Config{PublishOnDemand: true}, agent("a", calling("b/other"), volatile), agent("b", echo(), volatile))
	sent := func(r Ready) *actor.Envelope {
		for _, e := range r.Effects {
			if op, ok := e.Op.(Send); ok {
				return &op.Envelope
			}
		}
		t.Fatal("no message was sent")
		return nil
	}
	remoteShard := dispatcher.ShardOf(actor.NewID("b", "other"))
	remoteOwner := func(shard uint16) dispatcher.Owner {
		o := dispatcher.Owner{Node: "n", Epoch: 1}
		if shard == remoteShard {
			o.Cell = 1
		}
		return o
	}
	c.Step(1, Owners{dispatcher.NewTable(remoteOwner)})
	request := sent(c.Step(2, newVisit(1, "a")))
	call := request.Body.(actor.Request).Call
	copy(call.Parts[0].Bytes, "xxxxx")
	call.Chain[0].Agent = "x"
	turn := c.actors.find(actor.NewID("a", "s")).turns[0]
	if kept := &turn.run.Last()[0]; actor.TextOf(kept.Ask.Parts) != "hello" || turn.run.Call.To.Agent != "a" {
		t.Errorf("got ask %+v, want it unchanged", kept.Ask)
	}
	c.Step(2, Owners{dispatcher.NewTable(func(uint16) dispatcher.Owner { return dispatcher.Owner{Node: "n", Epoch: 1} })}) // resends the call
	answer := sent(c.Step(3, Deliver{*request})).Body.(actor.Answered).Reply
	copy(answer.Parts[0].Bytes, "xx")
	if kept := c.replyCache.find(call.ID, 1); kept == nil || actor.TextOf(kept.Parts) != "b:xxxxx" {
		t.Errorf("got cached reply %+v, want it unchanged", kept)
	}
}

// The model is a list. Each add first drops the expired outcomes at its front.
func TestReplyCacheAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type one struct {
			reply actor.Reply
			until actor.Time
		}
		var r replyCache
		var list []one
		now, n := actor.Time(0), uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for range rapid.IntRange(1, 200).Draw(t, "number") {
					n++
					reply := actor.Reply{Call: actor.NewCallID(1, 1, n<<rapid.SampledFrom([]int{0, 24}).Draw(t, "shift")), Parts: actor.Text(fmt.Sprint(n))}
					until := now.Add(rapid.SampledFrom([]time.Duration{1, 10}).Draw(t, "until"))
					for len(list) > 0 && list[0].until < now {
						list = list[1:]
					}
					r.add(now, &reply, 1, until)
					list = append(list, one{reply, until})
				}
			},
			"pass": func(*rapid.T) { now += 3 },
			"": func(t *rapid.T) {
				bytes := 0
				for _, o := range list {
					if got := r.find(o.reply.Call, 1); got == nil || got.Call != o.reply.Call {
						t.Fatalf("%v is not cached", o.reply.Call)
					}
					if r.find(o.reply.Call, 2) != nil {
						t.Fatal("found a reply under another epoch")
					}
					bytes += actor.SizeOf(o.reply.Parts)
				}
				if int(r.next-r.first) != len(list) || r.bytes != bytes {
					t.Fatalf("got %d replies of %d bytes, want %d of %d", r.next-r.first, r.bytes, len(list), bytes)
				}
			},
		})
	})
}

func TestReplyCacheIsBounded(t *testing.T) {
	var r replyCache
	call := func(i int) actor.CallID { return actor.NewCallID(1, 1, uint64(i)) }
	for i := range 2*replyCacheMax + 1 {
		r.add(0, &actor.Reply{Call: call(i)}, 1, 1)
	}
	if len(r.entries) != replyCacheMax || r.find(call(replyCacheMax), 1) != nil || r.find(call(replyCacheMax+1), 1) == nil {
		t.Errorf("got a cache of %d entries", len(r.entries))
	}
	large := actor.Reply{Parts: []actor.Part{{Bytes: make([]byte, replyCacheBytesMax/4+1)}}}
	for i := range 8 {
		large.Call = call(-1 - i)
		r.add(0, &large, 1, 1)
	}
	if r.bytes > replyCacheBytesMax || r.next-r.first != 3 {
		t.Errorf("got %d replies of %d bytes, want 3", r.next-r.first, r.bytes)
	}
}

// The table finds, sorts and removes actors of several agents and tenants.
func TestActorTable(t *testing.T) {
	r := newActorTable()
	var all []actor.ID
	for i := range 300 {
		id := actor.ID{Tenant: fmt.Sprint("t", i%2), Agent: fmt.Sprint("a", i%3), Key: fmt.Sprint("k", i/6)}
		all = append(all, id)
		r.add(id, &activation{})
	}
	slices.SortFunc(all, actor.ID.Compare)
	for i, act := range r.ordered() {
		if act.id != all[i] || r.find(all[i]) != act {
			t.Fatalf("position %d: got %s, want %s", i, act.id, all[i])
		}
	}
	for i, id := range all {
		r.remove(r.find(id))
		if r.find(id) != nil || r.count != len(all)-1-i {
			t.Fatalf("%s was not removed, %d actors left", id, r.count)
		}
	}
	if len(r.groups) != 0 {
		t.Errorf("got %d groups, want 0", len(r.groups))
	}
}

// A cell without actors has a deadline until the outcomes that it remembers are evicted.
func TestIdleCellEvictsReplies(t *testing.T) {
	c := newTestCell(Config{})
	c.replyCache.add(2, &actor.Reply{Call: actor.NewCallID(1, 1, 1)}, 1, 100)
	at, ok := c.NextDeadline()
	if want := actor.Time(100).Add(replyCacheSweep); !ok || at != want {
		t.Fatalf("got deadline %v, %v, want %v", at, ok, want)
	}
	c.Step(at-1, Tick{})
	if c.replyCache.find(actor.NewCallID(1, 1, 1), 1) == nil {
		t.Error("the outcome was evicted before the sweep")
	}
	c.Step(at, Tick{})
	if _, ok := c.NextDeadline(); ok || len(c.replyCache.entries) != 0 {
		t.Errorf("got a deadline %v and %d entries, want none", ok, len(c.replyCache.entries))
	}
	c.replyCache.add(at, &actor.Reply{Call: actor.NewCallID(1, 1, 2)}, 1, at)
	if c.replyCache.find(actor.NewCallID(1, 1, 2), 1) == nil {
		t.Error("the emptied cache does not find a new outcome")
	}
}
