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
	volatileActor     = actor.NewID("volatile", "") // durability = "none"

	root, child, other = actor.CallID{1}, actor.CallID{2}, actor.CallID{3}
)

// historyBuilder builds a history as a list of steps, each with its events in order.
type historyBuilder struct {
	steps  [][]history.Event
	now    actor.Time
	logEnd map[actor.NodeID]uint64
	synced map[actor.NodeID]uint64
}

func newHistory() *historyBuilder {
	return &historyBuilder{now: 1_000_000, logEnd: map[actor.NodeID]uint64{}, synced: map[actor.NodeID]uint64{}}
}

func at(node actor.NodeID) actor.Address { return actor.Address{Node: node, Incarnation: 1} }

// step adds a step of a cell of the node that appends the given number of entries.
func (t *historyBuilder) step(node actor.NodeID, wrote int, events ...history.Event) *historyBuilder {
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
		t.logEnd[node] += uint64(wrote)
		events = append(events, history.Event{Kind: history.Append, At: t.now, From: at(node), Pos: t.logEnd[node], Wrote: wrote})
	}
	t.steps = append(t.steps, events)
	return t
}

func (t *historyBuilder) sync(node actor.NodeID) *historyBuilder {
	t.synced[node] = t.logEnd[node]
	return t.step(node, 0, history.Event{Kind: history.Sync, Synced: t.logEnd[node]})
}

// perform adds an effect that depends on the preceding step.
func (t *historyBuilder) perform(node actor.NodeID, what string, call actor.CallID) *historyBuilder {
	return t.step(node, 0, history.Event{Kind: history.Perform, What: what, Call: call, Status: actor.Succeeded, Pos: t.logEnd[node], Synced: t.synced[node]})
}

func (t *historyBuilder) crash(node actor.NodeID) *historyBuilder {
	t.logEnd[node] = t.synced[node]
	return t.step(node, 0, history.Event{Kind: history.Crash, Synced: t.synced[node]})
}

func (t *historyBuilder) advance(d actor.Duration) *historyBuilder { t.now = t.now.Add(d); return t }

// nth returns the nth event of a kind, counted from 0.
func (t *historyBuilder) nth(kind history.Kind, nth int) *history.Event {
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

func (t *historyBuilder) drop(kind history.Kind, nth int) {
	e := t.nth(kind, nth)
	for s, step := range t.steps {
		for i := range step {
			if &step[i] == e {
				t.steps[s] = slices.Delete(step, i, i+1)
				return
			}
		}
	}
}

// Constructors of events. They set the fields that the checker reads.
func activate(id actor.ID) history.Event {
	return history.Event{Kind: history.Activate, Actor: id, Durable: id != volatileActor}
}

func clientCall(to actor.ID) history.Event {
	return history.Event{Kind: history.Ask, What: "client", Call: root, Root: root, Peer: to, Left: time.Minute}
}

func admit(id actor.ID, call, parent actor.CallID, left actor.Duration, chain ...actor.ID) history.Event {
	return history.Event{Kind: history.Admit, Actor: id, Call: call, Parent: parent, Left: left, Chain: chain, Count: 1, Bytes: 10}
}

func start(id actor.ID, call actor.CallID) history.Event {
	return history.Event{Kind: history.Start, Actor: id, Call: call}
}

func childCall(id actor.ID, run, call actor.CallID, to actor.ID, left actor.Duration, chain ...actor.ID) history.Event {
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

func holdEvent(kind history.Kind, what string, id actor.ID, call actor.CallID, n uint64, until actor.Time) history.Event {
	return history.Event{Kind: kind, What: what, Actor: id, Call: call, N: n, Until: until}
}

// callerOnly: a client calls alice on n1, and alice calls bob on n2.
func callerOnly() *historyBuilder { return callerOnlyFrom(newHistory()) }

func callerOnlyFrom(t *historyBuilder) *historyBuilder {
	t.step("n1", 0, history.Event{Kind: history.Claim, Epoch: 1, ShardHi: 2048},
		history.Event{Kind: history.Claim, From: at("n2"), Epoch: 1, ShardLo: 2048, ShardHi: 4096})
	t.step("n1", 0, clientCall(alice))
	t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root),
		childCall(alice, root, child, bob, 30*time.Second, alice), request(alice, root, child, bob, 30*time.Second, alice))
	return t.sync("n1").perform("n1", "send", child)
}

// calleeReplies: bob admits the call, runs a tool and replies.
func calleeReplies(t *historyBuilder) *historyBuilder {
	tool := history.Event{Kind: history.Ask, What: "tool", Actor: bob, Parent: child, Step: 1}
	t.step("n2", 2, message(history.Deliver, "request", child, alice, bob), activate(bob), admit(bob, child, root, 30*time.Second, alice), start(bob, child), tool)
	t.sync("n2").perform("n2", "tool", child)
	done := history.Event{Kind: history.Answer, What: "tool", Actor: bob, Parent: child, Status: actor.Succeeded, Step: 1}
	t.step("n2", 2, done, reply(bob, child), message(history.Send, "answered", child, bob, alice))
	return t.sync("n2").perform("n2", "send", child)
}

// callerReplies: alice receives the reply of bob and completes her turn.
func callerReplies(t *historyBuilder) *historyBuilder {
	t.step("n1", 2, message(history.Deliver, "answered", child, bob, alice), answer(alice, root, child), reply(alice, root))
	return t.sync("n1").perform("n1", "respond", root)
}

func completeCall() *historyBuilder { return callerReplies(calleeReplies(callerOnly())) }

// heldCall: bob waits for a person for 50 s. Later the timer of alice's call fires.
func heldCall(after actor.Duration) *historyBuilder {
	t := callerOnly()
	until := t.now.Add(50 * time.Second)
	t.step("n2", 2, message(history.Deliver, "request", child, alice, bob), activate(bob), admit(bob, child, root, 30*time.Second, alice), start(bob, child),
		history.Event{Kind: history.Ask, What: "wait", Actor: bob, Parent: child, Step: 1, Left: 50 * time.Second}, holdEvent(history.Hold, "run", bob, child, 1, until))
	t.step("n1", 1, message(history.Deliver, "held", child, bob, alice), holdEvent(history.Hold, "ask", alice, child, 1, until), holdEvent(history.Hold, "run", alice, root, 1, until))
	t.advance(after)
	timeout := answer(alice, root, child)
	timeout.Status = actor.Failed
	t.step("n1", 1, history.Event{Kind: history.Expire, What: "call", Actor: alice, Call: child, Parent: root, Step: 1},
		message(history.Send, "cancel", child, alice, bob), timeout)
	return t
}

// approvedCall: a tool call of alice waits for a decision, which arrives after 10 s.
func approvedCall() *historyBuilder {
	t := newHistory()
	t.step("n1", 0, history.Event{Kind: history.Claim, Epoch: 1, ShardHi: 4096}, clientCall(alice))
	t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root),
		history.Event{Kind: history.Ask, What: "tool", Why: "approval", Actor: alice, Parent: root, Step: 1, Left: 50 * time.Second}, holdEvent(history.Hold, "run", alice, root, 1, t.now.Add(50*time.Second)))
	t.advance(10 * time.Second)
	decided := holdEvent(history.Resume, "approval", alice, root, 1, 0)
	decided.Step = 1
	return t.step("n1", 1, decided, holdEvent(history.Resume, "run", alice, root, 2, 0))
}

// callerCrash: alice has called bob. Her node crashes, loses unsynced entries and restarts.
func callerCrash(again bool) *historyBuilder {
	t := callerOnly()
	t.step("n1", 0, history.Event{Kind: history.Deliver, What: "cancel", Call: other, Actor: carol})
	t.crash("n1").step("n1", 0, history.Event{Kind: history.Restart, From: actor.Address{Node: "n1", Incarnation: 2}})
	reactivated := []history.Event{activate(alice)}
	if again {
		reactivated = append(reactivated, request(alice, root, child, bob, 30*time.Second, alice))
	}
	for i := range reactivated {
		reactivated[i].From = actor.Address{Node: "n1", Incarnation: 2}
	}
	return t.step("n1", 0, reactivated...)
}

// volatileCaller: the volatile actor receives a reply of bob. If durable is true, the reply
// depends on bob's log.
func volatileCaller(durable bool) *historyBuilder {
	t := newHistory()
	t.step("n1", 0, clientCall(volatileActor))
	t.step("n1", 0, activate(volatileActor), admit(volatileActor, root, actor.CallID{}, time.Minute), start(volatileActor, root),
		childCall(volatileActor, root, child, bob, 30*time.Second, volatileActor), request(volatileActor, root, child, bob, 30*time.Second, volatileActor))
	t.step("n1", 2, activate(bob), admit(bob, child, root, 30*time.Second, volatileActor), start(bob, child), reply(bob, child))
	outcome := message(history.Deliver, "answered", child, bob, volatileActor)
	outcome.Durable = durable
	t.step("n1", 0, outcome, answer(volatileActor, root, child), reply(volatileActor, root))
	return t.perform("n1", "respond", root)
}

// lateHeld: a run of the volatile actor is held. The message that says so reaches the client's node only after the
// run has ended with a reply that depends on bob's log.
func lateHeld() *historyBuilder {
	t := volatileCaller(true)
	t.nth(history.Perform, 0).Status = 0
	return t
}

// volatileResend: the volatile actor resends its call, before or after it received durable data.
func volatileResend(before bool) *historyBuilder {
	t := volatileCaller(true)
	t.steps = t.steps[:len(t.steps)-1]
	last := &t.steps[len(t.steps)-1]
	again := request(volatileActor, root, child, bob, 30*time.Second, volatileActor)
	again.At, again.From = t.now, at("n1")
	if before {
		*last = slices.Insert(*last, 0, again)
	} else {
		*last = append(*last, again)
	}
	return t.perform("n1", "send", child)
}

// replyOrRefusal: bob's node sends alice either the outcome of a call or the refusal of its
// repeat.
func replyOrRefusal(status actor.Status) *historyBuilder {
	t := calleeReplies(callerOnly())
	t.step("n2", 1, admit(bob, other, actor.CallID{}, time.Second)) // makes the log longer than its synced part
	t.perform("n2", "send", child)
	t.nth(history.Perform, 3).Status = status
	return t
}

// refusedThenAdmitted: bob's node refuses a call and admits its repeat, which fails for the same
// reason. The given number of replies leaves before the admission is synced.
func refusedThenAdmitted(replies int) *historyBuilder {
	t := callerOnly()
	t.step("n2", 3, activate(bob), busy(history.Event{Kind: history.Refuse, Why: "callee", Actor: bob, Call: child}),
		admit(bob, child, root, 30*time.Second, alice), start(bob, child), busy(reply(bob, child)), busy(message(history.Send, "answered", child, bob, alice)))
	for range replies {
		t.perform("n2", "send", child)
		last := &t.steps[len(t.steps)-1][0]
		*last = busy(*last)
	}
	return t
}

// refusalToClient: alice's node refuses a client call and admits its repeat, which fails for the
// same reason. The client receives one of the two replies: that of the admitted call if durable
// is true, otherwise the refusal.
func refusalToClient(durable bool) *historyBuilder {
	t := newHistory()
	t.step("n1", 0, clientCall(alice))
	t.step("n1", 3, activate(alice), busy(history.Event{Kind: history.Refuse, Why: "callee", Actor: alice, Call: root}),
		admit(alice, root, actor.CallID{}, time.Minute), start(alice, root), busy(reply(alice, root)))
	outcome := message(history.Deliver, "answered", root, alice, actor.ID{})
	outcome.Durable = durable
	t.step("n1", 0, outcome).perform("n1", "respond", root)
	last := &t.steps[len(t.steps)-1][0]
	*last = busy(*last)
	return t
}

func busy(e history.Event) history.Event {
	e.Status, e.Reason = actor.Failed, actor.Busy
	return e
}

// staleRepeat: a repeat sent to an old epoch arrives in the step in which the turn of the call
// starts.
func staleRepeat() *historyBuilder {
	t := newHistory()
	t.step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute))
	repeat := message(history.Deliver, "request", root, alice, alice)
	repeat.Epoch = 9
	return t.step("n1", 1, repeat, history.Event{Kind: history.Drop, Actor: alice, Call: root, Why: "epoch"}, start(alice, root), reply(alice, root))
}

// waitCycle: alice calls bob and bob calls alice, each in a turn of its own. Both calls are
// queued.
func waitCycle() *historyBuilder {
	t := newHistory()
	second := actor.CallID{10}
	t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root), childCall(alice, root, child, bob, 30*time.Second, alice))
	t.step("n1", 2, activate(bob), admit(bob, second, actor.CallID{}, time.Minute), start(bob, second), childCall(bob, second, other, alice, 30*time.Second, bob))
	t.step("n1", 1, admit(bob, child, root, 30*time.Second, alice))
	return t.step("n1", 1, admit(alice, other, second, 30*time.Second, bob))
}

var cycleHops = []actor.Hop{{Call: child, Actor: bob, Turn: actor.CallID{10}, Epoch: 1, Stamp: 1}, {Call: other, Actor: alice, Turn: root, Epoch: 1, Stamp: 2}}

func refuseCycle(id actor.ID, call actor.CallID) history.Event {
	return history.Event{Kind: history.RefuseWaitCycle, Actor: id, Call: call, Ring: cycleHops}
}

// brokenWaitCycle: the newer call, made by bob, is refused, and bob continues.
func brokenWaitCycle() *historyBuilder { return brokenWaitCycleAfter(0) }

func brokenWaitCycleAfter(d actor.Duration) *historyBuilder {
	t := waitCycle().advance(d)
	end := reply(alice, other)
	end.Status, end.Reason, end.Pending = actor.Failed, actor.WaitCycle, 1
	return t.step("n1", 1, confirm(bob, child), confirm(alice, other), refuseCycle(alice, other), end)
}

// confirm is an event of the second lap of a probe.
func confirm(id actor.ID, call actor.CallID) history.Event {
	return history.Event{Kind: history.Confirm, Actor: id, Call: call}
}

// movedActor: the shard of alice moves to n2 while n1 has unsynced entries of hers.
func movedActor(then ...history.Event) *historyBuilder {
	t := newHistory()
	t.step("n1", 0, history.Event{Kind: history.Claim, Epoch: 1, ShardHi: 4096})
	t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root),
		history.Event{Kind: history.Ask, What: "tool", Actor: alice, Parent: root, Step: 1})
	t.step("n2", 0, history.Event{Kind: history.Claim, Epoch: 2, ShardHi: 4096})
	reactivated := activate(alice)
	reactivated.Epoch = 2
	t.step("n2", 0, reactivated)
	return t.step("n1", 0, then...)
}

func movedActorBack(after actor.Duration) *historyBuilder {
	t := newHistory()
	t.step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute))
	t.sync("n1")
	for i, node := range []actor.NodeID{"n2", "n1"} {
		reactivated := activate(alice)
		reactivated.Epoch = actor.Epoch(2 + i)
		t.step(node, 0, reactivated)
	}
	return t.advance(after).step("n1", 0, history.Event{Kind: history.Expire, What: "run", Actor: alice, Call: root, Epoch: 3})
}

// streamedAnswer: a fragment of a model's answer is shown, then the node of the run crashes.
// Another attempt replaces the fragment. The first try of that attempt fails.
func streamedAnswer() *historyBuilder {
	t := newHistory()
	t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root),
		history.Event{Kind: history.Ask, What: "model", Actor: alice, Parent: root, Step: 1})
	t.sync("n1").perform("n1", "model", root)
	t.nth(history.Perform, 0).Attempt = 1
	t.external("try", 1, 1).external("act", 1, 1).external("pass", 1, 1).external("show", 1, 4)
	t.external("take back", 0, 3)
	return t.external("try", 2, 1).external("try", 2, 2).external("pass", 2, 2).external("show", 2, 6).external("show", 2, 7)
}

// external adds an exchange between n1 and a model or external agent.
func (t *historyBuilder) external(what string, attempt uint32, n uint64) *historyBuilder {
	e := history.Event{Kind: history.Perform, What: what, Call: root, Step: 1, Attempt: attempt, N: n}
	if what == "act" {
		e.Why = Once
	}
	return t.step("n1", 0, e)
}

// streamReader: a client receives these events, resubscribes and receives the last one again.
func streamReader(events ...uint64) *historyBuilder {
	t := newHistory()
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

// expireCall lets the call of alice expire. The call may be part of a wait cycle or not.
func expireCall(t *historyBuilder) *historyBuilder {
	late := answer(alice, root, child)
	late.Status = actor.Failed
	return t.advance(30*time.Second).step("n1", 1, history.Event{Kind: history.Expire, What: "call", Actor: alice, Call: child, Parent: root, Step: 1},
		message(history.Send, "cancel", child, alice, bob), late)
}

// fullMailbox: n messages of the given size are queued behind a turn of alice.
func fullMailbox(n, bytes int) *historyBuilder {
	t := newHistory()
	t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root),
		history.Event{Kind: history.Ask, What: "tool", Actor: alice, Parent: root, Step: 1})
	for i := range n {
		e := admit(alice, actor.CallID{9, byte(i)}, actor.CallID{}, time.Minute)
		e.Count, e.Bytes = i+1, (i+1)*bytes
		t.step("n1", 1, e)
	}
	return t
}

// consecutiveTurns: carol starts a second turn. If the parameter after is true, her first turn
// has ended; otherwise it is still running.
func consecutiveTurns(after bool) *historyBuilder {
	t := newHistory()
	t.step("n1", 2, activate(carol), admit(carol, root, actor.CallID{}, time.Minute), start(carol, root),
		history.Event{Kind: history.Ask, What: "tool", Actor: carol, Parent: root, Step: 1})
	if after {
		t.step("n1", 1, reply(carol, root))
	}
	return t.step("n1", 2, admit(carol, other, actor.CallID{}, time.Minute), start(carol, other), reply(carol, other))
}

// delayedStart: alice starts the turn of a queued message after the given time.
func delayedStart(after actor.Duration) *historyBuilder {
	t := newHistory()
	t.step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute))
	return t.advance(after).step("n1", 1, start(alice, root), history.Event{Kind: history.Ask, What: "tool", Actor: alice, Parent: root, Step: 1})
}

// overtakingCancel: bob receives the cancel of a call, and then its request.
func overtakingCancel() *historyBuilder {
	return newHistory().step("n2", 1, activate(bob), message(history.Deliver, "cancel", child, alice, bob)).
		step("n2", 1, message(history.Deliver, "request", child, alice, bob), admit(bob, child, root, 30*time.Second, alice))
}

// restartedAfterCancel: bob receives a cancel, restarts after a crash and starts the cancelled call.
func restartedAfterCancel(durable bool) *historyBuilder {
	t := newHistory().step("n2", 1, activate(bob), message(history.Deliver, "cancel", child, alice, bob))
	if durable {
		t.sync("n2")
	}
	return t.crash("n2").step("n2", 2, activate(bob), admit(bob, child, root, 30*time.Second, alice), start(bob, child))
}

// queuedMessage is the nth message in a mailbox, and the size of the mailbox with it.
func queuedMessage(nth byte, lane actor.Lane, count int) history.Event {
	e := admit(alice, actor.CallID{9, nth}, actor.CallID{}, time.Minute)
	e.Lane, e.Count, e.Bytes = lane, count, 10*count
	return e
}

// busyAlice: a turn of alice is running.
func busyAlice() *historyBuilder {
	return newHistory().step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root),
		history.Event{Kind: history.Ask, What: "tool", Actor: alice, Parent: root, Step: 1})
}

// queuedInLane: of two messages queued in one lane, alice starts the one with the given index.
func queuedInLane(first byte) *historyBuilder {
	next := start(alice, actor.CallID{9, first})
	next.Count, next.Bytes = 1, 10
	return busyAlice().step("n1", 1, queuedMessage(0, actor.High, 1)).step("n1", 1, queuedMessage(1, actor.High, 2)).step("n1", 1, reply(alice, root), next)
}

// overtaken: a message of the low lane is overtaken n times.
func overtaken(n byte) *historyBuilder {
	t := busyAlice().step("n1", 1, queuedMessage(0, actor.Low, 1))
	running := root
	for i := byte(1); i <= n; i++ {
		next := start(alice, actor.CallID{9, i})
		next.Count, next.Bytes = 1, 10
		t.step("n1", 1, queuedMessage(i, actor.High, 2)).step("n1", 1, reply(alice, running), next)
		running = next.Call
	}
	return t
}

// agedMailbox: a message is admitted behind one that has waited for the given time.
func agedMailbox(age actor.Duration) *historyBuilder {
	return busyAlice().step("n1", 1, queuedMessage(0, actor.Normal, 1)).advance(age).step("n1", 1, queuedMessage(1, actor.Normal, 2))
}

// claimedShards is a history in which one node has claimed shards.
func claimedShards() *historyBuilder {
	return newHistory().step("n1", 0, history.Event{Kind: history.Claim, Epoch: 1, ShardHi: 8})
}

// roundTrip is the ith client call and its reply, in steps of its own, i seconds after the start.
func roundTrip(i int) *historyBuilder {
	t := newHistory()
	t.now = t.now.Add(actor.Duration(i) * time.Second)
	t.logEnd["n1"] = uint64(2 * i)
	id := actor.CallID{7, byte(i >> 16), byte(i >> 8), byte(i)}
	t.step("n1", 0)
	e := clientCall(carol)
	e.Call = id
	t.step("n1", 0, e)
	t.step("n1", 2, activate(carol), admit(carol, id, actor.CallID{}, time.Minute), start(carol, id), reply(carol, id))
	return t.sync("n1").perform("n1", "respond", id)
}
