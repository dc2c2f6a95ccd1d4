// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// State is the whole truth about the cell, as a value.
func (c *Cell) State() history.State {
	s := history.State{Cell: c.self}
	for _, act := range c.actors.ordered() {
		a := history.Actor{ID: act.id, Epoch: act.epoch, Loaded: act.loaded, Bytes: act.mailbox.Bytes()}
		for _, q := range act.mailbox.Calls() {
			a.Queue = append(a.Queue, q.Call)
		}
		slices.SortFunc(a.Queue, actor.CallID.Compare)
		for _, t := range act.turns {
			turn := history.Turn{Run: t.run.Call.ID}
			for i := range t.run.Last() {
				if ask := &t.run.Last()[i]; ask.Open() && ask.IsCall() {
					turn.Open = append(turn.Open, ask.Call)
				}
			}
			slices.SortFunc(turn.Open, actor.CallID.Compare)
			a.Turns = append(a.Turns, turn)
		}
		slices.SortFunc(a.Turns, func(a, b history.Turn) int { return a.Run.Compare(b.Run) })
		s.Actors = append(s.Actors, a)
	}
	return s
}

// Size is how much there is in a cell: what State would list, without a look at
// every actor.
type Size struct {
	Actors      int // in memory, or being read
	Queued      int // calls that wait in their mailboxes
	Outstanding int // calls of theirs that are not answered
	Remembered  int // bytes of outcomes that journaled ones hold
}

// Tally is what a cell has done, since it was made.
type Tally struct {
	Runs     [runs.Cancelled + 1]int // that ended, by how
	Answered int                     // calls of its actors, whatever the answer was; those given up, too
	Took     actor.Duration          // all of them together
}

// Tally is what the cell has done so far.
func (c *Cell) Tally() *Tally { return &c.tally }

// countCall counts a call that has its answer, or waits for none any more.
func (t *Tally) countCall(now actor.Time, a *store.Asked) {
	t.Answered++
	t.Took += max(now.Sub(a.Stamp), 0)
}

// countRun counts a run.
func (t *Tally) countRun(reply *actor.Reply) {
	switch {
	case reply.Refusal == nil:
		t.Runs[runs.Done]++
	case reply.Refusal.Reason == actor.Stopped:
		t.Runs[runs.Cancelled]++
	default:
		t.Runs[runs.Failed]++
	}
}

// Size is how much there is in the cell.
func (c *Cell) Size() Size {
	s := c.size
	s.Actors = c.actors.count
	return s
}

// updateSize keeps the size right as an actor changes.
func (c *Cell) updateSize(act *activation) {
	now := Size{Queued: act.mailbox.Count(), Outstanding: act.pending()}
	if act.durable {
		now.Remembered = c.evictOutcomes(act)
	}
	if now != act.counted {
		c.removeFromSize(act)
		act.counted = now
		c.size.Queued += now.Queued
		c.size.Outstanding += now.Outstanding
		c.size.Remembered += now.Remembered
	}
}

// removeFromSize forgets what an actor adds to the size.
func (c *Cell) removeFromSize(act *activation) {
	if act.counted == (Size{}) {
		return
	}
	c.size.Queued -= act.counted.Queued
	c.size.Outstanding -= act.counted.Outstanding
	c.size.Remembered -= act.counted.Remembered
	act.counted = Size{}
}
