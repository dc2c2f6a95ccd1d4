// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"reflect"

	"github.com/troupe-run/troupe/actor"
)

// checkSize compares the cell's Size with its State after every step, and checks
// that idleState was not changed.
func (n *node) checkSize(c *Cell) {
	n.t.Helper()
	var want Size
	for _, a := range c.State().Actors {
		want.Actors++
		want.Queued += len(a.Queue)
		for _, t := range a.Turns {
			want.Outstanding += len(t.Open)
		}
	}
	for _, act := range c.actors.ordered() {
		for _, q := range act.mailbox.Calls() {
			want.ByLane[q.Lane-1]++
		}
		for _, run := range (mail{c, act}).queue() {
			want.ByLane[run.Call.Lane-1]++
		}
		if act.durable {
			want.Remembered += act.journal.OutcomeBytes()
		}
	}
	resident := 0
	for _, act := range c.actors.ordered() {
		if act.durable && act.loaded {
			resident += act.memorySize()
		}
		pages := 0
		for _, messages := range act.pageCache.pages {
			pages += pageSize(messages)
		}
		if act.pageCache.bytes != pages {
			n.t.Fatalf("%v counts %d bytes of pages of %s, want %d", c.Self(), act.pageCache.bytes, act.id, pages)
		}
		if at := act.residence; at.user != nil && (!act.durable || at.idle != act.idle()) {
			n.t.Fatalf("%v counts %s as idle: %v", c.Self(), act.id, at.idle)
		}
	}
	if c.residents.bytes != resident || c.residents.excess(c.limits.ActorBytesMax) != nil {
		n.t.Fatalf("%v counts %d bytes of actors, want %d, and none above %d", c.Self(), c.residents.bytes, resident, c.limits.ActorBytesMax)
	}
	n.checkDefinitions(c)
	if want.Remembered > c.limits.RememberBytes {
		n.t.Fatalf("%v holds %d bytes of outcomes, want at most %d", c.Self(), want.Remembered, c.limits.RememberBytes)
	}
	if !reflect.DeepEqual(*c.idleState, activeState{}) {
		n.t.Fatalf("%v: idleState was changed: %+v", c.Self(), *c.idleState)
	}
	if got := c.Size(); got != want {
		n.t.Fatalf("%v: got size %+v, want %+v", c.Self(), got, want)
	}
}

// checkDefinitions compares the counts of open runs by definition, and of actors that
// must be loaded, with the actors.
func (n *node) checkDefinitions(c *Cell) {
	n.t.Helper()
	runs, unloaded := map[actor.Hash]int{}, 0
	for _, act := range c.actors.ordered() {
		for _, run := range act.journal.Runs {
			runs[run.Definition]++
		}
		if act.mustLoad && !(act.loaded && act.durable) {
			unloaded++
		}
	}
	for hash, def := range c.definitions.byHash {
		if def.runs != runs[hash] || def.runs == 0 && def.listedIn != c.definitions.version {
			n.t.Fatalf("%v counts %d runs of definition %v of version %d, want %d and version %d", c.Self(), def.runs, hash, def.listedIn, runs[hash], c.definitions.version)
		}
		delete(runs, hash)
	}
	if len(runs) > 0 || unloaded != c.recovery.unloaded {
		n.t.Fatalf("%v dropped definitions of open runs: %v; it counts %d actors to be loaded, want %d", c.Self(), runs, c.recovery.unloaded, unloaded)
	}
}
