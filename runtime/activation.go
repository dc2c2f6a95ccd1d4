// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// activation is an actor's life in the memory of this cell, under one epoch. One
// that is idle and writes nothing down is no more than this.
type activation struct {
	id           actor.ID
	epoch        actor.Epoch
	lastUsed     actor.Time
	timerAt      actor.Time // 0: none set
	shard        uint16
	durable      bool // journaled; else durability = "none"
	serial       bool // keeps its turn while it waits
	loaded       bool
	dirty        bool
	*activeState // the cell's rest, if nothing is open; see Cell.live
}

// activeState is what there is of an actor while it has something to do. What must
// survive it is its journal, which changes by records alone.
type activeState struct {
	deferred       []actor.Envelope // came while it was being loaded
	outcomeWaiters []outcomeWaiter  // came when their outcome was put away
	mustLoad       bool             // has open work, so that it must be loaded sooner or later
	recovering     bool             // is one of those that are being read for their open work
	loadBackoff    actor.Duration   // until it is read again, the disk having failed

	journal    store.Journal
	mailbox    dispatcher.Mailbox
	turns      []*turn        // in the order in which they began
	joined     []joinedCall   // repeats of open runs
	tainted    []actor.CallID // queued calls of an unjournaled actor that came from a log
	subscribed []actor.CallID // runs of an unjournaled actor that somebody follows

	runEvents     []runs.Event // for the next entry to carry
	entryBytes    int          // bytes of entries since the last snapshot
	snapshotBytes int          // bytes of that snapshot
	indexedDue    actor.Time   // its place in the expiry index
	reprobeAt     actor.Time   // when calls that still wait ask again what for
	counted       Size         // what of the cell's size is its
}

// freeListMax is how many lives, turns and runs of unjournaled actors a cell keeps
// for the next that need one.
const freeListMax = 1024

// firstMax and stepsKept are for how many asks and steps a turn and a run that are
// over keep room.
const (
	inlineAsksMax    = 4
	recycledStepsMax = 8
)

// ensureActive makes an actor ready for something to happen to it.
func (c *Cell) ensureActive(act *activation) {
	if act.activeState != c.idleState {
		return
	}
	if n := len(c.freeStates); n > 0 {
		act.activeState, c.freeStates = c.freeStates[n-1], c.freeStates[:n-1]
	} else {
		act.activeState = &activeState{}
	}
}

// releaseState takes from an unjournaled actor what it does not need while it is idle.
func (c *Cell) releaseState(act *activation) {
	l := act.activeState
	if act.durable || l == c.idleState || len(l.journal.Runs)+len(l.journal.Ended)+len(l.journal.Buried)+len(l.deferred)+len(l.joined)+len(l.tainted)+len(l.subscribed) > 0 {
		return
	}
	act.activeState = c.idleState
	if len(c.freeStates) < freeListMax {
		*l = activeState{journal: store.Journal{Runs: l.journal.Runs}, mailbox: l.mailbox, turns: l.turns, runEvents: l.runEvents}
		c.freeStates = append(c.freeStates, l)
	}
}

// joinedCall is a client's repeat, under an id of its own, of a run that is open.
type joinedCall struct {
	run, call actor.CallID
	via       actor.Address
}

// idle tells whether nothing is open.
func (a *activation) idle() bool {
	return a.loaded && len(a.outcomeWaiters) == 0 && (len(a.journal.Runs) == 0 || mutant.On("idle-with-open-work"))
}

// cloneRuns is the open runs as they are now, whatever happens to them meanwhile.
func (a *activation) cloneRuns() []*store.Run { return slices.Clone(a.journal.Runs) }

// cloneTurns is the turns as they are now, whatever happens to them meanwhile.
func (a *activation) cloneTurns() []*turn { return slices.Clone(a.turns) }

// pending is the number of its calls that are not answered.
func (a *activation) pending() int {
	n := 0
	for _, t := range a.turns {
		for i := range t.run.Last() {
			if ask := &t.run.Last()[i]; ask.IsCall() && (ask.Open() || mutant.On("outstanding-not-released")) && !t.ended {
				n++
			}
		}
	}
	return n
}

func (a *activation) turn(run actor.CallID) *turn {
	for _, t := range a.turns {
		if t.run.Call.ID == run {
			return t
		}
	}
	return nil
}

// findAsk finds the open or answered call of that id among the last asks of the turns.
func (a *activation) findAsk(call actor.CallID) (*turn, int) {
	for _, t := range a.turns {
		for i := range t.run.Last() {
			if t.run.Last()[i].Call == call && !call.IsZero() {
				return t, i
			}
		}
	}
	return nil, 0
}

// durableRun tells whether what a run shows must wait for the log.
func (a *activation) durableRun(run actor.CallID) bool {
	t := a.turn(run)
	return a.durable || t != nil && t.durable() || slices.Contains(a.tainted, run)
}

// untaint takes a call out of the queued ones that came from a log, and tells
// whether it was one.
func (a *activation) untaint(call actor.CallID) bool {
	i := slices.Index(a.tainted, call)
	if i < 0 {
		return false
	}
	a.tainted = slices.Delete(a.tainted, i, i+1)
	return true
}

// journaled tells whether an agent's actors have a journal.
func journaled(def *actor.Definition) bool {
	return def == nil || def.Durability == actor.Journaled
}

// activate brings an actor into memory. One that is journaled is read from the
// log first; what comes for it meanwhile waits.
func (c *Cell) activate(id actor.ID, journaled bool) *activation {
	shard := dispatcher.ShardOf(id)
	act := &activation{shard: shard, epoch: c.owner(shard).Epoch, lastUsed: c.now, activeState: c.idleState,
		durable: journaled, serial: c.isSerial(id)}
	c.actors.add(id, act)
	if act.durable {
		c.ensureActive(act)
		c.load(act, 0)
	} else {
		c.markLoaded(act)
	}
	return act
}

// markLoaded says that the actor is there and takes what waited for it.
func (c *Cell) markLoaded(act *activation) {
	act.loaded = true
	c.emit(history.Event{Kind: history.Activate, Actor: act.id, Epoch: act.epoch, Durable: act.durable})
	c.markDirty(act)
}

// deactivate takes an actor out of memory. Turns under way are given up without
// a trace: who finds them in the log goes on with them.
func (c *Cell) deactivate(act *activation, why string) {
	for _, t := range act.turns {
		c.stopAgent(t)
		for i := range t.run.Last() {
			c.abort(t, i)
		}
	}
	c.actors.remove(act)
	c.recoveryDone(act)
	c.removeFromSize(act)
	if act.loaded {
		c.emit(history.Event{Kind: history.Deactivate, Actor: act.id, Epoch: act.epoch, Why: why})
	}
}

// loaded folds what the disk holds of an actor and goes on where it stopped.
func (c *Cell) loaded(in Loaded) {
	act := c.actors.find(in.Actor)
	if act == nil || act.loaded || act.epoch != in.Epoch {
		return // it moved away meanwhile, or two loads were under way
	}
	if c.failpoints.On(failpoint.LoadMisses) {
		c.load(act, 0)
		return
	}
	journal, err := store.Fold(in.Saved)
	if err != nil {
		c.loadFailed(LoadFailed{Actor: in.Actor, Epoch: in.Epoch, Why: err.Error()})
		return
	}
	act.journal, act.indexedDue, act.snapshotBytes = journal, journal.Due(), len(in.Saved.Snapshot)
	for i := range in.Saved.Entries {
		act.entryBytes += entrySize(in.Saved.Entries[i])
	}
	c.markLoaded(act)
	c.recoveryDone(act)
	if act.journal.Ahead(c.now) {
		c.record(act, store.Rebased{At: c.now})
	}
	for _, run := range act.cloneRuns() {
		if run.Started() && !mutant.On("restart-forgets-open-call") {
			act.turns = append(act.turns, c.restoreTurn(act, run))
			if run.Holds > 0 {
				act.mailbox.StandStill(max(run.Clock.Since, run.Clock.HeldUntil))
			}
		} else if !run.Started() {
			act.mailbox.Push(queued(run))
		}
	}
	c.expireDue(act)
	for _, run := range act.cloneRuns() {
		if c.strikes[run.Call.ID] >= c.limits.StrikesMax {
			c.stopRun(act, run, poisonRefusal(c.strikes[run.Call.ID]))
		}
	}
	for _, t := range act.cloneTurns() {
		c.resume(t)
	}
	c.reprobeQueued(act)
	waiting := act.deferred
	act.deferred = nil
	for i := range waiting {
		c.receive(act, &waiting[i])
	}
}

// loadFailed refuses what came for an actor that the disk cannot give us: the
// calls that are new, for one that comes again may be open in there. An actor
// with open work is read again after a while, and again.
func (c *Cell) loadFailed(in LoadFailed) {
	act := c.actors.find(in.Actor)
	if act == nil || act.loaded != (in.Outcome > 0) || act.epoch != in.Epoch {
		return
	}
	if in.Outcome > 0 {
		c.outcomeLoaded(act, in.Outcome, nil)
		return
	}
	c.recoveryDone(act)
	waiting := act.deferred
	act.deferred = nil
	for i := range waiting {
		env := &waiting[i]
		if r, ok := env.Body.(actor.Request); ok && r.Call.Attempt == 1 {
			c.refuse(act, &r.Call, actor.Refuse(actor.Unavailable, "%s cannot be read: %s; troupe doctor says more", in.Actor, in.Why))
		} else {
			c.drop(env, "unread")
			c.scheduleClientRetry(env.Body.Subject())
		}
	}
	if !act.mustLoad {
		c.actors.remove(act)
		return
	}
	act.loadBackoff = min(max(2*act.loadBackoff, c.limits.ResendAfter), time.Minute)
	act.timerAt = c.now.Add(act.loadBackoff)
	c.setTimer(timer{at: act.timerAt, act: act})
}

func queued(run *store.Run) dispatcher.Queued {
	return dispatcher.Queued{Call: run.Call.ID, Lane: run.Call.Lane, Bytes: actor.SizeOf(run.Call.Parts), At: run.At}
}

// record changes the actor's journal, and for a journaled actor appends the
// entry that says so, with the run events told since the last.
func (c *Cell) record(act *activation, r store.Record) {
	if err := act.journal.Apply(r); err != nil {
		invariant.Check(false, "%s: %v", act.id, err)
	}
	if !act.durable {
		c.journalChanged(act)
		return
	}
	e := store.Entry{Actor: act.id, Shard: act.shard, Epoch: act.epoch, N: act.journal.N, Record: r, WasDue: act.indexedDue, Due: act.journal.Due()}
	if len(act.runEvents) > 0 {
		e.Events = make([]store.RunEvent, 0, len(act.runEvents))
	}
	for i := range act.runEvents {
		e.Events = append(e.Events, store.RunEvent{Run: act.runEvents[i].Run, Seq: act.runEvents[i].Seq, Body: runs.Encode(act.runEvents[i])})
	}
	clear(act.runEvents)
	act.runEvents = act.runEvents[:0]
	act.indexedDue = e.Due
	c.ready.Entries = append(c.ready.Entries, e)
	act.entryBytes += entrySize(e)
	for _, ev := range e.Events {
		c.addEffect(Effect{Gated: act.durableRun(ev.Run), Op: Publish{Event: ev}})
	}
	c.journalChanged(act)
}

// journalChanged ends a change of an actor's journal. What is told of a run of an
// unjournaled actor rides on no entry.
func (c *Cell) journalChanged(act *activation) {
	for i := range act.runEvents {
		e := &act.runEvents[i]
		c.addEffect(Effect{Gated: act.durableRun(e.Run), Op: Publish{Event: store.RunEvent{Run: e.Run, Seq: e.Seq, Body: runs.Encode(*e)}}})
	}
	act.runEvents = act.runEvents[:0]
	act.lastUsed = c.now
	c.markDirty(act)
}

// entrySize is about what an entry takes up in the log.
func entrySize(e store.Entry) int {
	n := 128
	switch r := e.Record.(type) {
	case store.Accepted:
		n += actor.SizeOf(r.Call.Parts) + 64*len(r.Call.Chain)
	case store.Asking:
		for i := range r.Asks {
			n += 128 + actor.SizeOf(r.Asks[i].Out().Parts)
		}
	case store.Answered:
		n += actor.SizeOf(r.Answer.Parts)
	case store.Ended:
		n += actor.SizeOf(r.Reply.Parts)
	}
	return n
}

// observed says whether a run has a stream: in the log, or for somebody who listens
// just now. What nobody hears is not even put into words.
func (c *Cell) observed(act *activation, run actor.CallID) bool {
	return act.durable || !c.publishOnDemand || slices.Contains(act.subscribed, run)
}

// publish adds an event to a run's stream, in the entry that is recorded next.
func (c *Cell) publish(act *activation, run *store.Run, e runs.Event) {
	if !c.observed(act, run.Call.ID) {
		return
	}
	run.Seq++
	e.Run, e.Seq, e.At = run.Call.ID, run.Seq, c.now
	c.bufferEvent(act, e)
}

// bufferEvent adds an event to those that the next entry carries. Few actors have any at
// a time, so one buffer goes round.
func (c *Cell) bufferEvent(act *activation, e runs.Event) {
	if act.runEvents == nil {
		act.runEvents, c.freeEvents = c.freeEvents, nil
	}
	act.runEvents = append(act.runEvents, e)
}

// releaseEvents takes the buffer back, once nothing is left to be told.
func (c *Cell) releaseEvents(act *activation) {
	if len(act.runEvents) > 0 {
		invariant.Check(false, "%s has events that no entry carries", act.id)
	}
	if act.runEvents != nil {
		c.freeEvents, act.runEvents = act.runEvents, nil
	}
}

// snapshot shortens the way back once the entries since the last outweigh it.
func (c *Cell) snapshot(act *activation) {
	if act.entryBytes < max(c.limits.SnapshotBytes, act.snapshotBytes) && (act.entryBytes == 0 || !c.failpoints.On(failpoint.SnapshotNow)) {
		return
	}
	body := store.SnapshotOf(&act.journal)
	if len(body.Journal) > store.SnapshotBytesMax {
		act.entryBytes = 0 // it could not be read again; the entries can
		return
	}
	c.ready.Entries = append(c.ready.Entries, store.Entry{Actor: act.id, Shard: act.shard, Epoch: act.epoch, N: act.journal.N,
		Record: body, WasDue: act.indexedDue, Due: act.indexedDue})
	act.entryBytes, act.snapshotBytes = 0, len(body.Journal)
}
