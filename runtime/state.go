// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
)

// State returns a complete description of the cell as a value.
func (c *Cell) State() history.State {
	s := history.State{Cell: c.self}
	for _, act := range c.actors.ordered() {
		a := history.Actor{ID: act.id, Epoch: act.epoch, Loaded: act.loaded, Bytes: act.mailbox.Bytes()}
		for _, q := range act.mailbox.Calls() {
			a.Queue = append(a.Queue, q.Call)
		}
		for _, run := range (mail{c, act}).queue() {
			a.Queue = append(a.Queue, run.Call.ID)
		}
		slices.SortFunc(a.Queue, actor.CallID.Compare)
		for _, t := range act.turns {
			a.Turns = append(a.Turns, t.state())
		}
		slices.SortFunc(a.Turns, func(a, b history.Turn) int { return a.Run.Compare(b.Run) })
		s.Actors = append(s.Actors, a)
	}
	return s
}

// state returns a description of the turn.
func (t *turn) state() history.Turn {
	s := history.Turn{Run: t.run.Call.ID, Due: t.run.Clock.Due()}
	var open []*store.Asked
	for i := range t.run.Last() {
		if ask := &t.run.Last()[i]; ask.Open() && ask.IsCall() {
			open = append(open, ask)
		}
	}
	slices.SortFunc(open, func(a, b *store.Asked) int { return a.Call.Compare(b.Call) })
	for _, ask := range open {
		s.Open, s.OpenDue = append(s.Open, ask.Call), append(s.OpenDue, ask.Clock.Due())
	}
	return s
}

// Size counts the contents of a cell. It equals the totals of State, without
// visiting every actor.
type Size struct {
	Actors      int            // in memory or being loaded
	Queued      int            // calls waiting in mailboxes, and outcomes of detached calls that wait for their turn
	ByLane      [actor.Low]int // the same by lane, from High to Low
	Outstanding int            // unanswered calls made by actors of the cell
	Remembered  int            // bytes of outcomes held by journaled actors
}

// Size returns the current size of the cell.
func (c *Cell) Size() Size {
	s := c.size
	s.Actors = c.actors.count
	return s
}

// updateSize replaces the actor's share of the cell's size by its current size.
func (act *activation) updateSize(c *Cell) {
	now := Size{Queued: act.mailbox.Count(), ByLane: act.mailbox.CountByLane(), Outstanding: act.pending()}
	for _, run := range (mail{c, act}).queue() {
		now.Queued++
		now.ByLane[run.Call.Lane-1]++
	}
	if act.durable {
		now.Remembered = act.evictOutcomes(c)
	}
	if now != act.counted {
		act.resize(c, now)
	}
}

// removeFromSize subtracts the actor's share from the cell's size, and from its memory.
func (act *activation) removeFromSize(c *Cell) {
	c.residents.remove(act)
	if act.counted != (Size{}) {
		act.resize(c, Size{})
	}
}

func (act *activation) resize(c *Cell, to Size) {
	c.size.Queued += to.Queued - act.counted.Queued
	for i, n := range to.ByLane {
		c.size.ByLane[i] += n - act.counted.ByLane[i]
	}
	c.size.Outstanding += to.Outstanding - act.counted.Outstanding
	c.size.Remembered += to.Remembered - act.counted.Remembered
	if change := to.Outstanding - act.counted.Outstanding; change != 0 {
		c.measureOutstanding(act.id.Agent, change)
	}
	act.counted = to
}
