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
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// activation is an actor in the memory of this cell, under one epoch. For an idle
// volatile actor this struct is all the memory used.
type activation struct {
	id           actor.ID
	epoch        actor.Epoch
	lastUsed     actor.Time
	timerAt      actor.Time // time of the pending timer; 0 means none
	shard        uint16
	durable      bool // journaled; otherwise volatile (durability "none")
	serial       bool // runs one turn at a time
	loaded       bool
	former       []actor.CallID // runs that were open when the actor was loaded
	dirty        bool
	gone         bool // no longer in Cell.actors
	*activeState      // the cell's shared idleState if a volatile actor has no state of its own; see ensureActive
}

// activeState is the state of a journaled actor, or of a volatile one with open work
// or retained outcomes. Only the journal must survive a crash. The journal of a
// journaled actor changes only through records.
type activeState struct {
	deferred       []actor.Envelope // messages received during a load
	outcomeWaiters []outcomeWaiter  // duplicates that wait until an outcome is read
	mustLoad       bool             // has open work; a failed load MUST be retried
	recovering     bool             // counted in recoveryQueue.loading
	loadBackoff    actor.Duration   // delay before the next load after a failed one

	journal    store.Journal
	mailbox    dispatcher.Mailbox
	turns      []*turn        // in order of their start
	joined     []joinedCall   // duplicates of open runs
	tainted    []actor.CallID // queued calls of a volatile actor that depend on log entries
	subscribed []actor.CallID // runs of a volatile actor that have a subscriber
	pageCache  pageCache
	rows       map[actor.CallID]*rowState // of detached calls
	draw       draw                       // of the next message in the mailbox
	overtaken  bool                       // a message of the mailbox has gone before that of an outcome; see mail.next

	entryBytes    int        // bytes of entries since the last snapshot
	snapshotBytes int        // size of the last snapshot in bytes
	indexedDue    actor.Time // deadline in the expiry index
	reprobeAt     actor.Time // next time to send probes for queued calls; 0 means none
	counted       Size       // share of Cell.size
	residence     residence  // in Cell.residents
}

// freeListMax is the maximum length of each free list: states, turns and runs of
// volatile actors.
const freeListMax = 1024

// inlineAsksMax is the largest number of asks that a turn stores in its reusable
// buffer. recycledStepsMax is the largest capacity that the lists of a recycled run or
// turn may retain.
const (
	inlineAsksMax    = 4
	recycledStepsMax = 8
)

// ensureActive gives the actor an activeState of its own, so that it can change.
func (act *activation) ensureActive(c *Cell) {
	if act.activeState != c.idleState {
		return
	}
	if n := len(c.freeStates); n > 0 {
		act.activeState, c.freeStates = c.freeStates[n-1], c.freeStates[:n-1]
	} else {
		act.activeState = &activeState{}
	}
}

// rests reports whether nothing is left to do for a volatile actor: all of its turns ended in the
// step in which they began, and the timer that passivates it is set.
func (c *Cell) rests(act *activation) bool {
	return !act.durable && act.timerAt != 0 && act.timerAt <= act.lastUsed.Add(c.limits.PassivateAfter) && !act.mustLoad && act.unused() && act.counted == Size{}
}

// unused reports whether the state of an actor holds nothing.
func (l *activeState) unused() bool {
	return len(l.journal.Runs)+len(l.journal.Ended)+len(l.journal.Buried)+len(l.deferred)+len(l.joined)+len(l.tainted)+len(l.subscribed) == 0
}

// releaseState returns the activeState of an idle volatile actor to the free list.
func (act *activation) releaseState(c *Cell) {
	l := act.activeState
	if act.durable || l == c.idleState || !l.unused() {
		return
	}
	act.activeState = c.idleState
	if len(c.freeStates) < freeListMax {
		*l = activeState{journal: store.Journal{Runs: l.journal.Runs}, mailbox: l.mailbox.Reset(), turns: l.turns}
		c.freeStates = append(c.freeStates, l)
	}
}

// joinedCall is a client's duplicate of an open run: a call with another id under the
// same idempotency key, or the run's own call retried through another cell.
type joinedCall struct {
	run, call actor.CallID
	via       actor.Address
}

// idle reports whether the actor has no open work.
func (act *activation) idle() bool {
	return act.loaded && len(act.outcomeWaiters) == 0 && len(act.journal.Runs) == 0 && len(act.journal.Mail.Rows) == 0
}

// journalLoaded reports whether the journal holds the actor's entries of the log.
func (act *activation) journalLoaded() bool { return act.loaded && act.durable }

// cloneRuns returns a copy of the list of open runs, for loops that may end some of
// these runs.
func (act *activation) cloneRuns() []*store.Run { return slices.Clone(act.journal.Runs) }

// pending returns the number of unanswered calls of the actor's turns.
func (act *activation) pending() int {
	n := 0
	for _, t := range act.turns {
		if t.ended {
			continue
		}
		asks := t.run.Last()
		for i := range asks {
			if asks[i].Open() && asks[i].IsCall() {
				n++
			}
		}
	}
	return n
}

func (act *activation) turn(run actor.CallID) *turn {
	for _, t := range act.turns {
		if t.run.Call.ID == run {
			return t
		}
	}
	return nil
}

// findAsk returns the turn and index of the call among the last asks of the turns.
// The turn is nil if no last ask made the call. The ask may already be answered.
func (act *activation) findAsk(call actor.CallID) (*turn, int) {
	for _, t := range act.turns {
		asks := t.run.Last()
		for i := range asks {
			if asks[i].Call == call && !call.IsZero() {
				return t, i
			}
		}
	}
	return nil, 0
}

// durableRun reports whether output of the run must wait for the log.
func (act *activation) durableRun(run actor.CallID) bool {
	t := act.turn(run)
	return act.durable || t != nil && t.durable() || slices.Contains(act.tainted, run)
}

// untaint removes a call from the queued calls that depend on log entries. It
// reports whether the call was among them.
func (act *activation) untaint(call actor.CallID) bool {
	i := slices.Index(act.tainted, call)
	if i < 0 {
		return false
	}
	act.tainted = slices.Delete(act.tainted, i, i+1)
	return true
}

// journaled reports whether actors of the agent have a journal.
func journaled(def *actor.Definition) bool {
	return def == nil || def.Durability == actor.Journaled
}

// activate adds an actor to the table. A journaled actor is loaded from the log
// first. Messages received until then are deferred.
func (c *Cell) activate(id actor.ID, journaled bool) *activation {
	c.checkOpen(id)
	shard := dispatcher.ShardOf(id)
	act := &activation{shard: shard, epoch: c.owner(shard).Epoch, lastUsed: c.now, activeState: c.idleState,
		durable: journaled, serial: c.isSerial(id)}
	c.actors.add(id, act)
	if act.durable {
		act.ensureActive(c)
		act.load(c, 0)
	} else {
		act.markLoaded(c)
	}
	return act
}

// The durability of an actor is that of its agent, with three exceptions. An actor with
// open work in the log is journaled until it leaves memory. So is an actor that was
// loaded while its agent was unknown, unless its journal is empty. A volatile actor
// with open runs remains volatile until they end.

// becomeVolatile changes a journaled actor whose agent is volatile now. It does nothing
// if the journal holds open runs or outcomes, whose duplicates the journal answers.
func (act *activation) becomeVolatile(c *Cell) {
	j := &act.journal
	if len(j.Runs)+len(j.Mail.Rows)+len(act.outcomeWaiters) > 0 || j.RetainsOutcomes(c.now) {
		return
	}
	c.emit(history.Event{Kind: history.Deactivate, Actor: act.id, Epoch: act.epoch, Why: "durability"})
	act.removeFromSize(c)
	*j = store.Journal{Buried: j.Buried}
	act.mustLoad = false
	act.durable, act.entryBytes, act.snapshotBytes = false, 0, 0
	act.markLoaded(c)
}

// loadIdle replaces an idle volatile actor by a journaled one, which is loaded. It
// returns the new actor. Calls cancelled before their arrival remain cancelled.
func (act *activation) loadIdle(c *Cell, mustLoad bool) *activation {
	cancelled := act.journal.Buried
	act.deactivate(c, "durability")
	if act = c.activate(act.id, true); mustLoad {
		act.requireLoad(c)
	}
	for i := range cancelled {
		act.deferred = append(act.deferred, actor.Envelope{To: act.id, Body: actor.Cancel{Call: cancelled[i].Call, Reason: actor.Stopped}})
	}
	return act
}

// markLoaded marks the actor as loaded and schedules its first turns.
func (act *activation) markLoaded(c *Cell) {
	act.loaded = true
	c.emit(history.Event{Kind: history.Activate, Actor: act.id, Epoch: act.epoch, Durable: act.durable})
	c.markDirty(act)
}

// deactivate removes an actor from memory. Its running turns stop without an entry.
// The next owner resumes them from the log.
func (act *activation) deactivate(c *Cell, reason string) {
	for _, t := range act.turns {
		c.active.remove(t)
		t.stopAgent(c)
		for i := range t.run.Last() {
			t.abort(c, i)
		}
	}
	for _, run := range act.journal.Runs {
		c.definitions.release(run.Definition)
	}
	if act.mustLoad && !act.journalLoaded() {
		c.recovery.unloaded--
	}
	c.actors.remove(act)
	act.recoveryDone(c)
	act.removeFromSize(c)
	if act.loaded {
		c.emit(history.Event{Kind: history.Deactivate, Actor: act.id, Epoch: act.epoch, Why: reason})
	}
	act.activeState = c.idleState // its timer refers to the actor until it is due
}

// loaded restores an actor from its log entries and resumes its open runs.
func (c *Cell) loaded(in Loaded) {
	act := c.actors.find(in.Actor)
	if act == nil || act.loaded || act.epoch != in.Epoch {
		return // stale: the actor's shard moved, or a second load was running
	}
	if c.failpoints.On(failpoint.LoadMisses) {
		act.load(c, 0)
		return
	}
	journal, err := store.Fold(in.Saved)
	if err != nil {
		c.loadFailed(LoadFailed{Actor: in.Actor, Epoch: in.Epoch, Why: err.Error()})
		return
	}
	act.journal, act.indexedDue, act.snapshotBytes = journal, journal.Due(), len(in.Saved.Snapshot)
	for i := range in.Saved.Entries {
		act.entryBytes += entrySize(&in.Saved.Entries[i])
	}
	for _, run := range journal.Runs {
		c.definitions.retain(run.Definition)
		act.former = append(act.former, run.Call.ID)
	}
	if act.mustLoad {
		c.recovery.unloaded--
	}
	act.markLoaded(c)
	act.recoveryDone(c)
	if act.journal.HasFutureClock(c.now) {
		act.record(c, store.Rebased{At: c.now}, store.Shown{})
	}
	for _, run := range act.cloneRuns() {
		if run.Started() {
			act.turns = append(act.turns, act.restoreTurn(c, run))
			c.active.add(act.turns[len(act.turns)-1])
			if run.Holds > 0 {
				act.mailbox.SuspendAging(max(run.Clock.Since, run.Clock.HeldUntil))
			}
		} else if !isDelivered(&run.Call) {
			act.mailbox.Push(queued(run, c.now))
		}
	}
	act.expireDue(c)
	mail{c, act}.restore()
	for _, run := range act.cloneRuns() {
		if c.strikes[run.Call.ID] >= c.limits.StrikesMax {
			act.stopRun(c, run, poisonRefusal(c.strikes[run.Call.ID]))
		}
	}
	parking{c}.restored(act)
	for _, t := range act.turns {
		t.resume(c)
	}
	waitCycle{c, act}.probeAgain(restoredCalls(act))
	deferred := act.deferred
	act.deferred = nil
	for i := range deferred {
		act.receive(c, &deferred[i])
	}
}

// loadFailed refuses the new calls that wait for an actor that cannot be read. A
// waiting retry is dropped, not refused: the log may hold its run, and its caller
// retries. An actor with open work is loaded again, with back-off.
func (c *Cell) loadFailed(in LoadFailed) {
	act := c.actors.find(in.Actor)
	if act == nil || act.loaded != (in.Outcome > 0 || in.Page != actor.Hash{}) || act.epoch != in.Epoch {
		return
	}
	if in.Page != (actor.Hash{}) {
		transcripts{c, act}.pageFailed(in.Page)
		return
	}
	if in.Outcome > 0 {
		act.outcomeLoaded(c, in.Outcome, nil)
		return
	}
	if in.Gone {
		act.sessionGone(c)
		return
	}
	act.recoveryDone(c)
	deferred := act.deferred
	act.deferred = nil
	for i := range deferred {
		env := &deferred[i]
		if r, ok := env.Body.(actor.Request); ok && r.Call.Attempt == 1 {
			// A retry is possible: this refusal is not recorded, and a copy of the call may run.
			c.refuse(&r.Call, actor.RefuseUnavailable(c.limits.ResendAfter, "%s cannot be read: %s; run troupe doctor for details", in.Actor, in.Why))
		} else {
			c.drop(env, "unread")
			c.waiters.retryLater(c, env.Body.Subject())
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

// queued returns the message of a run that waits for its turn. A message accepted under
// a clock that was ahead of this one waits from now on.
func queued(run *store.Run, now actor.Time) dispatcher.Queued {
	return dispatcher.Queued{Call: run.Call.ID, Lane: run.Call.Lane, Bytes: actor.SizeOf(run.Call.Parts), At: min(run.At, now)}
}

// record applies a record to the actor's journal. For a journaled actor it appends
// the entry. The argument shown is the part of the entry's run events that the record
// lacks.
func (act *activation) record(c *Cell, r store.Record, shown store.Shown) {
	e := &c.entry
	*e = store.Entry{Actor: act.id, Shard: act.shard, Epoch: act.epoch, Record: r, Shown: shown, WasDue: act.indexedDue}
	run := e.EventRun()
	act.numberEvents(c, e, run)
	if !act.durable {
		if err := act.journal.Apply(r); err != nil {
			invariant.Check(false, "%s: invalid record: %v", act.id, err)
		}
		act.journal.Transcript = store.Transcript{} // a volatile actor keeps none
		act.publishEvents(c, e, run)
		act.journalChanged(c)
		return
	}
	summary, changed, err := act.journal.ApplySummarized(r)
	if err != nil {
		invariant.Check(false, "%s: invalid record: %v", act.id, err)
	}
	e.N, e.Due, e.First = act.journal.N, act.journal.Due(), len(c.ready.Entries) == 0
	if changed {
		e.Summary = c.summarySlot(summary.Run)
		*e.Summary = summary
	}
	act.indexedDue = e.Due
	c.ready.Entries = append(c.ready.Entries, *e)
	act.entryBytes += entrySize(e)
	act.publishEvents(c, e, run)
	act.journalChanged(c)
}

// numberEvents gives numbers to the events of an entry, which are those of the run id, unless they
// have no consumer.
func (act *activation) numberEvents(c *Cell, e *store.Entry, id actor.CallID) {
	run := act.journal.Run(id)
	_, parks := e.Record.(store.Parked)
	if id.IsZero() || !act.observed(c, id) || parks && run != nil && !run.Started() { // a run without a step is shown as queued
		e.Shown = store.Shown{}
		return
	}
	if run != nil {
		run.Seq = e.NumberEvents(run.Seq)
	} else {
		e.NumberEvents(0)
	}
}

// publishEvents publishes the events of an entry, which are those of a run. Those of a journaled actor are
// read from the log, so only the number of the last one is published.
func (act *activation) publishEvents(c *Cell, e *store.Entry, run actor.CallID) {
	if e.Shown.N == 0 {
		return
	}
	gated := act.durableRun(run)
	if act.durable {
		if c.published.event.Run != run {
			c.flushPublished()
		}
		c.published = published{store.RunEvent{Run: run, Seq: e.Shown.Seq + uint64(e.Shown.N) - 1}, gated}
		return
	}
	c.derived = e.AppendRunEvents(c.derived[:0])
	for i := range c.derived {
		v := &c.derived[i]
		c.addEffect(Effect{Gated: gated, Op: Publish{Event: store.RunEvent{Run: run, Seq: v.Seq, Body: runs.Encode(*v)}}})
	}
	clear(c.derived)
}

// publishRecord publishes the events of a record of a volatile actor, which applies it
// without this record.
func (act *activation) publishRecord(c *Cell, r store.Record, shown store.Shown) {
	c.entry = store.Entry{Actor: act.id, Record: r, Shown: shown}
	run := c.entry.EventRun()
	act.numberEvents(c, &c.entry, run)
	act.publishEvents(c, &c.entry, run)
}

// latestEntries is the number of entries of a step that are searched for a summary.
const latestEntries = 8

// summarySlot returns memory for the next summary of a run. Only the last summary of a
// step is stored, so an earlier one of the step is overwritten.
func (c *Cell) summarySlot(run actor.CallID) *runs.Summary {
	latest := c.ready.Entries[max(len(c.ready.Entries)-latestEntries, 0):]
	for i := range latest {
		if e := &latest[i]; e.Summary != nil && e.Summary.Run == run {
			s := e.Summary
			e.Summary = nil
			return s
		}
	}
	return &runs.Summary{}
}

// journalChanged completes a change of the journal.
func (act *activation) journalChanged(c *Cell) {
	act.lastUsed = c.now
	c.markDirty(act)
}

// entrySize estimates the size of an entry in the log, in bytes.
func entrySize(e *store.Entry) int {
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
	case store.Appended:
		n += actor.SizeOf(r.Message.Parts)
	case store.Detached:
		n += actor.SizeOf(r.Pending.Call.Parts) + 64*len(r.Pending.Call.Chain)
	}
	return n
}

// observed reports whether the events of a run have a consumer: the log, or a
// subscriber. The cell builds no events for a run without a consumer.
func (act *activation) observed(c *Cell, run actor.CallID) bool {
	return act.durable || !c.publishOnDemand || slices.Contains(act.subscribed, run)
}

// snapshot writes a snapshot, which shortens the next load. It does so once the
// entries since the last snapshot are at least as large as both the last snapshot
// and SnapshotBytes.
func (act *activation) snapshot(c *Cell) {
	if act.entryBytes < max(c.limits.SnapshotBytes, act.snapshotBytes) && (act.entryBytes == 0 || !c.failpoints.On(failpoint.SnapshotNow)) {
		return
	}
	body := store.SnapshotOf(&act.journal)
	if len(body.Journal) > store.SnapshotBytesMax {
		act.entryBytes = 0 // too large for the decoder, so not written; the next load reads the entries instead
		return
	}
	c.ready.Entries = append(c.ready.Entries, store.Entry{Actor: act.id, Shard: act.shard, Epoch: act.epoch, N: act.journal.N,
		Record: body, WasDue: act.indexedDue, Due: act.indexedDue})
	act.journal.Transcript.Stored()
	act.entryBytes, act.snapshotBytes = 0, len(body.Journal)
}
