// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

var (
	alice, bob, carol = actor.NewID("alice", ""), actor.NewID("bob", ""), actor.NewID("carol", "")
	volant            = actor.NewID("volant", "") // durability = "none"

	root, child, other = actor.CallID{1}, actor.CallID{2}, actor.CallID{3}
)

// tale is a history in the making: steps of events, told in order.
type tale struct {
	steps  [][]history.Event
	now    actor.Time
	end    map[actor.NodeID]uint64
	synced map[actor.NodeID]uint64
}

func newTale() *tale {
	return &tale{now: 1_000_000, end: map[actor.NodeID]uint64{}, synced: map[actor.NodeID]uint64{}}
}

func at(node actor.NodeID) actor.Address { return actor.Address{Node: node, Incarnation: 1} }

// step is one of a cell of the node, which wrote so many entries.
func (t *tale) step(node actor.NodeID, wrote int, events ...history.Event) *tale {
	for i := range events {
		e := &events[i]
		e.At = t.now
		if e.From.IsZero() {
			e.From = at(node)
		}
		if e.Epoch == 0 && e.Actor != (actor.ID{}) && e.Kind != history.Send && e.Kind != history.Deliver && e.Kind != history.Drop {
			e.Epoch = 1
		}
	}
	if wrote > 0 {
		t.end[node] += uint64(wrote)
		events = append(events, history.Event{Kind: history.Append, At: t.now, From: at(node), Pos: t.end[node], Wrote: wrote})
	}
	t.steps = append(t.steps, events)
	return t
}

func (t *tale) sync(node actor.NodeID) *tale {
	t.synced[node] = t.end[node]
	return t.step(node, 0, history.Event{Kind: history.Sync, Synced: t.end[node]})
}

// perform is an effect of the step before.
func (t *tale) perform(node actor.NodeID, what string, call actor.CallID) *tale {
	return t.step(node, 0, history.Event{Kind: history.Perform, What: what, Call: call, Status: actor.Succeeded, Pos: t.end[node], Synced: t.synced[node]})
}

func (t *tale) crash(node actor.NodeID) *tale {
	t.end[node] = t.synced[node]
	return t.step(node, 0, history.Event{Kind: history.Crash, Synced: t.synced[node]})
}

func (t *tale) pass(d actor.Duration) *tale { t.now = t.now.Add(d); return t }

// the is the nth event of a kind, from 0.
func (t *tale) the(kind history.Kind, nth int) *history.Event {
	for _, step := range t.steps {
		for i := range step {
			if step[i].Kind == kind {
				if nth == 0 {
					return &step[i]
				}
				nth--
			}
		}
	}
	panic("no such event: " + kind.String())
}

func (t *tale) without(kind history.Kind, nth int) {
	e := t.the(kind, nth)
	for s, step := range t.steps {
		for i := range step {
			if &step[i] == e {
				t.steps[s] = slices.Delete(step, i, i+1)
				return
			}
		}
	}
}

// The events, with what matters of them.
func activate(id actor.ID) history.Event {
	return history.Event{Kind: history.Activate, Actor: id, Durable: id != volant}
}

func clientMakes(to actor.ID) history.Event {
	return history.Event{Kind: history.Ask, What: "client", Call: root, Root: root, Peer: to, Left: time.Minute}
}

func admit(id actor.ID, call, parent actor.CallID, left actor.Duration, chain ...actor.ID) history.Event {
	return history.Event{Kind: history.Admit, Actor: id, Call: call, Parent: parent, Left: left, Chain: chain, Count: 1, Bytes: 10}
}

func start(id actor.ID, call actor.CallID) history.Event {
	return history.Event{Kind: history.Start, Actor: id, Call: call}
}

func makes(id actor.ID, run, call actor.CallID, to actor.ID, left actor.Duration, chain ...actor.ID) history.Event {
	return history.Event{Kind: history.Ask, What: "call", Actor: id, Parent: run, Call: call, Peer: to, Left: left, Chain: chain, Step: 1}
}

func request(id actor.ID, run, call actor.CallID, to actor.ID, left actor.Duration, chain ...actor.ID) history.Event {
	return history.Event{Kind: history.Send, What: "request", Actor: id, Parent: run, Call: call, Peer: to, Left: left, Chain: chain}
}

func answer(id actor.ID, run, call actor.CallID) history.Event {
	return history.Event{Kind: history.Answer, What: "call", Actor: id, Parent: run, Call: call, Status: actor.Succeeded, Step: 1}
}

func reply(id actor.ID, call actor.CallID) history.Event {
	return history.Event{Kind: history.Reply, Actor: id, Call: call, Status: actor.Succeeded}
}

func message(kind history.Kind, what string, call actor.CallID, from, to actor.ID) history.Event {
	e := history.Event{Kind: kind, What: what, Call: call, Durable: true}
	if e.Kind == history.Send {
		e.Actor, e.Peer = from, to
	} else {
		e.Actor, e.Epoch = to, 1
	}
	return e
}

func still(kind history.Kind, what string, id actor.ID, call actor.CallID, n uint64, until actor.Time) history.Event {
	return history.Event{Kind: kind, What: what, Actor: id, Call: call, N: n, Until: until}
}

// asks: a client calls alice on n1, who calls bob on n2.
func asks() *tale { return asksFrom(newTale()) }

func asksFrom(t *tale) *tale {
	t.step("n1", 0, history.Event{Kind: history.Claim, Epoch: 1, ShardHi: 2048},
		history.Event{Kind: history.Claim, From: at("n2"), Epoch: 1, ShardLo: 2048, ShardHi: 4096})
	t.step("n1", 0, clientMakes(alice))
	t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root),
		makes(alice, root, child, bob, 30*time.Second, alice), request(alice, root, child, bob, 30*time.Second, alice))
	return t.sync("n1").perform("n1", "send", child)
}

// works: bob takes the call and asks for a tool.
func works(t *tale) *tale {
	tool := history.Event{Kind: history.Ask, What: "tool", Actor: bob, Parent: child, Step: 1}
	t.step("n2", 2, message(history.Deliver, "request", child, alice, bob), activate(bob), admit(bob, child, root, 30*time.Second, alice), start(bob, child), tool)
	t.sync("n2").perform("n2", "tool", child)
	done := history.Event{Kind: history.Answer, What: "tool", Actor: bob, Parent: child, Status: actor.Succeeded, Step: 1}
	t.step("n2", 2, done, reply(bob, child), message(history.Send, "answered", child, bob, alice))
	return t.sync("n2").perform("n2", "send", child)
}

// ends: alice has bob's answer and ends her turn.
func ends(t *tale) *tale {
	t.step("n1", 2, message(history.Deliver, "answered", child, bob, alice), answer(alice, root, child), reply(alice, root))
	return t.sync("n1").perform("n1", "respond", root)
}

func whole() *tale { return ends(works(asks())) }

// held: bob waits for a person for 50 s, then alice's clock runs out.
func held(after actor.Duration) *tale {
	t := asks()
	until := t.now.Add(50 * time.Second)
	t.step("n2", 2, message(history.Deliver, "request", child, alice, bob), activate(bob), admit(bob, child, root, 30*time.Second, alice), start(bob, child),
		history.Event{Kind: history.Ask, What: "wait", Actor: bob, Parent: child, Step: 1}, still(history.Hold, "run", bob, child, 1, until))
	t.step("n1", 1, message(history.Deliver, "held", child, bob, alice), still(history.Hold, "ask", alice, child, 1, until), still(history.Hold, "run", alice, root, 1, until))
	t.pass(after)
	timeout := answer(alice, root, child)
	timeout.Status = actor.Failed
	t.step("n1", 1, history.Event{Kind: history.Expire, What: "call", Actor: alice, Call: child, Parent: root, Step: 1}, timeout)
	return t
}

// crashes: alice has called bob, her node crashes before it is synced, and comes back.
func crashes(again bool) *tale {
	t := asks()
	t.step("n1", 0, history.Event{Kind: history.Deliver, What: "cancel", Call: other, Actor: carol})
	t.crash("n1").step("n1", 0, history.Event{Kind: history.Restart, From: actor.Address{Node: "n1", Incarnation: 2}})
	back := []history.Event{activate(alice)}
	if again {
		back = append(back, request(alice, root, child, bob, 30*time.Second, alice))
	}
	for i := range back {
		back[i].From = actor.Address{Node: "n1", Incarnation: 2}
	}
	return t.step("n1", 0, back...)
}

// tainted: volant, who keeps no journal, takes in something from bob's log.
func tainted(durable bool) *tale {
	t := newTale()
	t.step("n1", 0, clientMakes(volant))
	t.step("n1", 0, activate(volant), admit(volant, root, actor.CallID{}, time.Minute), start(volant, root),
		makes(volant, root, child, bob, 30*time.Second, volant), request(volant, root, child, bob, 30*time.Second, volant))
	t.step("n1", 2, activate(bob), admit(bob, child, root, 30*time.Second, volant), start(bob, child), reply(bob, child))
	word := message(history.Deliver, "answered", child, bob, volant)
	word.Durable = durable
	t.step("n1", 0, word, answer(volant, root, child), reply(volant, root))
	return t.perform("n1", "respond", root)
}

// sentBefore: volant sends its call again, before or after it took in something from bob's log.
func sentBefore(before bool) *tale {
	t := tainted(true)
	t.steps = t.steps[:len(t.steps)-1]
	last := &t.steps[len(t.steps)-1]
	again := request(volant, root, child, bob, 30*time.Second, volant)
	again.At, again.From = t.now, at("n1")
	if before {
		*last = slices.Insert(*last, 0, again)
	} else {
		*last = append(*last, again)
	}
	return t.perform("n1", "send", child)
}

// refused: bob's node tells alice of a call that it did, or that it would not take a repeat.
func refused(status actor.Status) *tale {
	t := works(asks())
	t.step("n2", 1, admit(bob, other, actor.CallID{}, time.Second)) // what makes the log longer than it is synced
	t.perform("n2", "send", child)
	t.the(history.Perform, 3).Status = status
	return t
}

// declined: bob's node refuses a call and takes its repeat, which ends for the
// same reason; so many words of it leave before that is synced.
func declined(words int) *tale {
	t := asks()
	t.step("n2", 3, activate(bob), busy(history.Event{Kind: history.Refuse, Why: "callee", Actor: bob, Call: child}),
		admit(bob, child, root, 30*time.Second, alice), start(bob, child), busy(reply(bob, child)), busy(message(history.Send, "answered", child, bob, alice)))
	for range words {
		t.perform("n2", "send", child)
		last := &t.steps[len(t.steps)-1][0]
		*last = busy(*last)
	}
	return t
}

// passedOn: alice's node refuses a client's call and takes its repeat, which ends for
// the same reason; the client is told what was sent, which may be the one or the other.
func passedOn(durable bool) *tale {
	t := newTale()
	t.step("n1", 0, clientMakes(alice))
	t.step("n1", 3, activate(alice), busy(history.Event{Kind: history.Refuse, Why: "callee", Actor: alice, Call: root}),
		admit(alice, root, actor.CallID{}, time.Minute), start(alice, root), busy(reply(alice, root)))
	word := message(history.Deliver, "answered", root, alice, actor.ID{})
	word.Durable = durable
	t.step("n1", 0, word).perform("n1", "respond", root)
	last := &t.steps[len(t.steps)-1][0]
	*last = busy(*last)
	return t
}

func busy(e history.Event) history.Event {
	e.Status, e.Reason = actor.Failed, actor.Busy
	return e
}

// dropped: a repeat that was sent to an old epoch comes as the call gets its turn.
func dropped() *tale {
	t := newTale()
	t.step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute))
	repeat := message(history.Deliver, "request", root, alice, alice)
	repeat.Epoch = 9
	return t.step("n1", 1, repeat, history.Event{Kind: history.Drop, Actor: alice, Call: root, Why: "epoch"}, start(alice, root), reply(alice, root))
}

// rings: alice calls bob and bob alice, each in a turn of its own. Both calls wait.
func rings() *tale {
	t := newTale()
	second := actor.CallID{10}
	t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root), makes(alice, root, child, bob, 30*time.Second, alice))
	t.step("n1", 2, activate(bob), admit(bob, second, actor.CallID{}, time.Minute), start(bob, second), makes(bob, second, other, alice, 30*time.Second, bob))
	t.step("n1", 1, admit(bob, child, root, 30*time.Second, alice))
	return t.step("n1", 1, admit(alice, other, second, 30*time.Second, bob))
}

var theRing = []actor.Hop{{Call: child, Actor: bob, Turn: actor.CallID{10}, Epoch: 1, Stamp: 1}, {Call: other, Actor: alice, Turn: root, Epoch: 1, Stamp: 2}}

func refuses(id actor.ID, call actor.CallID) history.Event {
	return history.Event{Kind: history.RefuseWaitCycle, Actor: id, Call: call, Ring: theRing}
}

// breaks: bob's call, the newer one, is refused, and bob goes on.
func breaks() *tale { return breaksAfter(0) }

func breaksAfter(d actor.Duration) *tale {
	t := rings().pass(d)
	end := reply(alice, other)
	end.Status, end.Reason, end.Pending = actor.Failed, actor.WaitCycle, 1
	return t.step("n1", 1, refuses(alice, other), end)
}

// moves: alice's shard goes to n2 while n1 has something of hers that is not synced.
func moves(then ...history.Event) *tale {
	t := newTale()
	t.step("n1", 0, history.Event{Kind: history.Claim, Epoch: 1, ShardHi: 4096})
	t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root),
		history.Event{Kind: history.Ask, What: "tool", Actor: alice, Parent: root, Step: 1})
	t.step("n2", 0, history.Event{Kind: history.Claim, Epoch: 2, ShardHi: 4096})
	back := activate(alice)
	back.Epoch = 2
	t.step("n2", 0, back)
	return t.step("n1", 0, then...)
}

func movesBack(after actor.Duration) *tale {
	t := newTale()
	t.step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute))
	t.sync("n1")
	for i, node := range []actor.NodeID{"n2", "n1"} {
		back := activate(alice)
		back.Epoch = actor.Epoch(2 + i)
		t.step(node, 0, back)
	}
	return t.pass(after).step("n1", 0, history.Event{Kind: history.Expire, What: "run", Actor: alice, Call: root, Epoch: 3})
}

// streams: a model's answer is shown, its node crashes, and another attempt is
// shown in its place, whose first try came to nothing.
func streams() *tale {
	t := newTale()
	t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root),
		history.Event{Kind: history.Ask, What: "model", Actor: alice, Parent: root, Step: 1})
	t.sync("n1").perform("n1", "model", root)
	t.the(history.Perform, 0).Attempt = 1
	t.outward("try", 1, 1).outward("act", 1, 1).outward("pass", 1, 1).outward("show", 1, 4)
	t.outward("take back", 0, 3)
	return t.outward("try", 2, 1).outward("try", 2, 2).outward("pass", 2, 2).outward("show", 2, 6).outward("show", 2, 7)
}

// outward is something between n1 and who stands behind it.
func (t *tale) outward(what string, attempt uint32, n uint64) *tale {
	e := history.Event{Kind: history.Perform, What: what, Call: root, Step: 1, Attempt: attempt, N: n}
	if what == "act" {
		e.Why = Once
	}
	return t.step("n1", 0, e)
}

// listens: a client hears these events, and the last once more after it went back.
func listens(events ...uint64) *tale {
	t := newTale()
	hear := func(what string, n uint64) {
		t.step("n1", 0, history.Event{Kind: history.Perform, What: what, Call: root, Count: 3, N: n})
	}
	for _, n := range events {
		hear("hear", n)
	}
	last := events[len(events)-1]
	hear("listen", last-1)
	hear("hear", last)
	return t
}

// late30 lets alice's call, on a ring or not, run out of time.
func late30(t *tale) *tale {
	late := answer(alice, root, child)
	late.Status = actor.Failed
	return t.pass(30*time.Second).step("n1", 1, history.Event{Kind: history.Expire, What: "call", Actor: alice, Call: child, Parent: root, Step: 1}, late)
}

// mailbox: alice has n messages of so many bytes waiting behind a turn.
func mailbox(n, bytes int) *tale {
	t := newTale()
	t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root),
		history.Event{Kind: history.Ask, What: "tool", Actor: alice, Parent: root, Step: 1})
	for i := range n {
		e := admit(alice, actor.CallID{9, byte(i)}, actor.CallID{}, time.Minute)
		e.Count, e.Bytes = i+1, (i+1)*bytes
		t.step("n1", 1, e)
	}
	return t
}

// twoTurns: carol takes a second message, after or in the midst of the first.
func twoTurns(after bool) *tale {
	t := newTale()
	t.step("n1", 2, activate(carol), admit(carol, root, actor.CallID{}, time.Minute), start(carol, root),
		history.Event{Kind: history.Ask, What: "tool", Actor: carol, Parent: root, Step: 1})
	if after {
		t.step("n1", 1, reply(carol, root))
	}
	return t.step("n1", 2, admit(carol, other, actor.CallID{}, time.Minute), start(carol, other), reply(carol, other))
}

// late: alice begins with what has waited.
func late(after actor.Duration) *tale {
	t := newTale()
	t.step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute))
	return t.pass(after).step("n1", 1, start(alice, root), history.Event{Kind: history.Ask, What: "tool", Actor: alice, Parent: root, Step: 1})
}

// owned is a world whose shards a node has claimed.
func owned() *tale {
	return newTale().step("n1", 0, history.Event{Kind: history.Claim, Epoch: 1, ShardHi: 8})
}

// trip is one client's call and its answer, by itself, at its time.
func trip(i int) *tale {
	t := newTale()
	t.now = t.now.Add(actor.Duration(i) * time.Second)
	t.end["n1"] = uint64(2 * i)
	id := actor.CallID{7, byte(i >> 16), byte(i >> 8), byte(i)}
	t.step("n1", 0)
	e := clientMakes(carol)
	e.Call = id
	t.step("n1", 0, e)
	t.step("n1", 2, activate(carol), admit(carol, id, actor.CallID{}, time.Minute), start(carol, id), reply(carol, id))
	return t.sync("n1").perform("n1", "respond", id)
}
