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
	id      actor.ID
	epoch   actor.Epoch
	used    actor.Time
	timer   actor.Time // 0: none set
	shard   uint16
	durable bool // journaled; else durability = "none"
	serial  bool // keeps its turn while it waits
	loaded  bool
	touched bool
	*life   // the cell's rest, if nothing is open; see Cell.live
}

// life is what there is of an actor while it has something to do. What must
// survive it is its journal, which changes by records alone.
type life struct {
	waiting  []actor.Envelope // came while it was being loaded
	repeats  []repeat         // came when their outcome was put away
	woken    bool             // has open work, so that it must be loaded sooner or later
	waking   bool             // is one of those that are being read for their open work
	patience actor.Duration   // until it is read again, the disk having failed

	journal store.Journal
	mailbox dispatcher.Mailbox
	turns   []*turn        // in the order in which they began
	aliases []alias        // repeats of open runs
	tainted []actor.CallID // queued calls of an unjournaled actor that came from a log
	heard   []actor.CallID // runs of an unjournaled actor that somebody follows

	told    []runs.Event // for the next entry to carry
	unsaved int          // bytes of entries since the last snapshot
	saved   int          // bytes of that snapshot
	due     actor.Time   // its place in the expiry index
	probe   actor.Time   // when calls that still wait ask again what for
	counted Size         // what of the cell's size is its
}

// sparesMax is how many lives, turns and runs of unjournaled actors a cell keeps
// for the next that need one.
const sparesMax = 1024

// firstMax and stepsKept are for how many asks and steps a turn and a run that are
// over keep room.
const (
	firstMax  = 4
	stepsKept = 8
)

// live makes an actor ready for something to happen to it.
func (c *Cell) live(act *activation) {
	if act.life != c.rest {
		return
	}
	if n := len(c.lives); n > 0 {
		act.life, c.lives = c.lives[n-1], c.lives[:n-1]
	} else {
		act.life = &life{}
	}
}

// retire takes from an unjournaled actor what it does not need while it is idle.
func (c *Cell) retire(act *activation) {
	l := act.life
	if act.durable || l == c.rest || len(l.journal.Runs)+len(l.journal.Ended)+len(l.journal.Buried)+len(l.waiting)+len(l.aliases)+len(l.tainted)+len(l.heard) > 0 {
		return
	}
	act.life = c.rest
	if len(c.lives) < sparesMax {
		*l = life{journal: store.Journal{Runs: l.journal.Runs}, mailbox: l.mailbox, turns: l.turns, told: l.told}
		c.lives = append(c.lives, l)
	}
}

// alias is a client's repeat, under an id of its own, of a run that is open.
type alias struct {
	run, call actor.CallID
	via       actor.Address
}

// idle tells whether nothing is open.
func (a *activation) idle() bool {
	return a.loaded && len(a.repeats) == 0 && (len(a.journal.Runs) == 0 || mutant.On("idle-with-open-work"))
}

// runs is the open runs as they are now, whatever happens to them meanwhile.
func (a *activation) runs() []*store.Run { return slices.Clone(a.journal.Runs) }

// turnsNow is the turns as they are now, whatever happens to them meanwhile.
func (a *activation) turnsNow() []*turn { return slices.Clone(a.turns) }

// pending is the number of its calls that are not answered.
func (a *activation) pending() int {
	n := 0
	for _, t := range a.turns {
		for i := range t.run.Last() {
			if ask := &t.run.Last()[i]; ask.IsCall() && (ask.Open() || mutant.On("outstanding-not-released")) && !t.over {
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

// asked finds the open or answered call of that id among the last asks of the turns.
func (a *activation) asked(call actor.CallID) (*turn, int) {
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
	act := &activation{shard: shard, epoch: c.owner(shard).Epoch, used: c.now, life: c.rest,
		durable: journaled, serial: c.serial(id)}
	c.actors.add(id, act)
	if act.durable {
		c.live(act)
		c.load(act, 0)
	} else {
		c.arrive(act)
	}
	return act
}

// arrive says that the actor is there and takes what waited for it.
func (c *Cell) arrive(act *activation) {
	act.loaded = true
	c.event(history.Event{Kind: history.Activate, Actor: act.id, Epoch: act.epoch, Durable: act.durable})
	c.touch(act)
}

// deactivate takes an actor out of memory. Turns under way are given up without
// a trace: who finds them in the log goes on with them.
func (c *Cell) deactivate(act *activation, why string) {
	for _, t := range act.turns {
		c.stop(t)
		for i := range t.run.Last() {
			c.abort(t, i)
		}
	}
	c.actors.remove(act)
	c.woke(act)
	c.uncount(act)
	if act.loaded {
		c.event(history.Event{Kind: history.Deactivate, Actor: act.id, Epoch: act.epoch, Why: why})
	}
}

// loaded folds what the disk holds of an actor and goes on where it stopped.
func (c *Cell) loaded(in Loaded) {
	act := c.actors.find(in.Actor)
	if act == nil || act.loaded || act.epoch != in.Epoch {
		return // it moved away meanwhile, or two loads were under way
	}
	if c.rare.On(failpoint.LoadMisses) {
		c.load(act, 0)
		return
	}
	journal, err := store.Fold(in.Saved)
	if err != nil {
		c.loadFailed(LoadFailed{Actor: in.Actor, Epoch: in.Epoch, Why: err.Error()})
		return
	}
	act.journal, act.due, act.saved = journal, journal.Due(), len(in.Saved.Snapshot)
	for i := range in.Saved.Entries {
		act.unsaved += weight(in.Saved.Entries[i])
	}
	c.arrive(act)
	c.woke(act)
	if act.journal.Ahead(c.now) {
		c.record(act, store.Rebased{At: c.now})
	}
	for _, run := range act.runs() {
		if run.Started() && !mutant.On("restart-forgets-open-call") {
			act.turns = append(act.turns, c.restored(act, run))
			if run.Holds > 0 {
				act.mailbox.StandStill(max(run.Clock.Since, run.Clock.HeldUntil))
			}
		} else if !run.Started() {
			act.mailbox.Push(queued(run))
		}
	}
	c.runOut(act)
	for _, run := range act.runs() {
		if c.strikes[run.Call.ID] >= c.limits.StrikesMax {
			c.stopRun(act, run, poison(c.strikes[run.Call.ID]))
		}
	}
	for _, t := range act.turnsNow() {
		c.goOn(t)
	}
	c.seekAgain(act)
	waiting := act.waiting
	act.waiting = nil
	for i := range waiting {
		c.toActor(act, &waiting[i])
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
		c.read(act, in.Outcome, nil)
		return
	}
	c.woke(act)
	waiting := act.waiting
	act.waiting = nil
	for i := range waiting {
		env := &waiting[i]
		if r, ok := env.Body.(actor.Request); ok && r.Call.Attempt == 1 {
			c.refuse(act, &r.Call, actor.Refuse(actor.Unavailable, "%s cannot be read: %s; troupe doctor says more", in.Actor, in.Why))
		} else {
			c.drop(env, "unread")
			c.sendClientAgain(env.Body.Subject())
		}
	}
	if !act.woken {
		c.actors.remove(act)
		return
	}
	act.patience = min(max(2*act.patience, c.limits.ResendAfter), time.Minute)
	act.timer = c.now.Add(act.patience)
	c.set(timer{at: act.timer, act: act})
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
		c.changed(act)
		return
	}
	e := store.Entry{Actor: act.id, Shard: act.shard, Epoch: act.epoch, N: act.journal.N, Record: r, WasDue: act.due, Due: act.journal.Due()}
	if len(act.told) > 0 {
		e.Events = make([]store.RunEvent, 0, len(act.told))
	}
	for i := range act.told {
		e.Events = append(e.Events, store.RunEvent{Run: act.told[i].Run, Seq: act.told[i].Seq, Body: runs.Encode(act.told[i])})
	}
	clear(act.told)
	act.told = act.told[:0]
	act.due = e.Due
	c.ready.Entries = append(c.ready.Entries, e)
	act.unsaved += weight(e)
	for _, ev := range e.Events {
		c.effect(Effect{Gated: act.durableRun(ev.Run), Op: Publish{Event: ev}})
	}
	c.changed(act)
}

// changed ends a change of an actor's journal. What is told of a run of an
// unjournaled actor rides on no entry.
func (c *Cell) changed(act *activation) {
	for i := range act.told {
		e := &act.told[i]
		c.effect(Effect{Gated: act.durableRun(e.Run), Op: Publish{Event: store.RunEvent{Run: e.Run, Seq: e.Seq, Body: runs.Encode(*e)}}})
	}
	act.told = act.told[:0]
	act.used = c.now
	c.touch(act)
}

// weight is about what an entry takes up in the log.
func weight(e store.Entry) int {
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

// tells says whether a run has a stream: in the log, or for somebody who listens
// just now. What nobody hears is not even put into words.
func (c *Cell) tells(act *activation, run actor.CallID) bool {
	return act.durable || !c.quiet || slices.Contains(act.heard, run)
}

// tell adds an event to a run's stream, in the entry that is recorded next.
func (c *Cell) tell(act *activation, run *store.Run, e runs.Event) {
	if !c.tells(act, run.Call.ID) {
		return
	}
	run.Seq++
	e.Run, e.Seq, e.At = run.Call.ID, run.Seq, c.now
	c.say(act, e)
}

// say adds an event to those that the next entry carries. Few actors have any at
// a time, so one buffer goes round.
func (c *Cell) say(act *activation, e runs.Event) {
	if act.told == nil {
		act.told, c.told = c.told, nil
	}
	act.told = append(act.told, e)
}

// said takes the buffer back, once nothing is left to be told.
func (c *Cell) said(act *activation) {
	if len(act.told) > 0 {
		invariant.Check(false, "%s has events that no entry carries", act.id)
	}
	if act.told != nil {
		c.told, act.told = act.told, nil
	}
}

// snapshot shortens the way back once the entries since the last outweigh it.
func (c *Cell) snapshot(act *activation) {
	if act.unsaved < max(c.limits.SnapshotBytes, act.saved) && (act.unsaved == 0 || !c.rare.On(failpoint.SnapshotNow)) {
		return
	}
	body := store.SnapshotOf(&act.journal)
	if len(body.Journal) > store.SnapshotBytesMax {
		act.unsaved = 0 // it could not be read again; the entries can
		return
	}
	c.ready.Entries = append(c.ready.Entries, store.Entry{Actor: act.id, Shard: act.shard, Epoch: act.epoch, N: act.journal.N,
		Record: body, WasDue: act.due, Due: act.due})
	act.unsaved, act.saved = 0, len(body.Journal)
}
