// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// auditEvery is how many seeds share one audit: it takes as long as a sixth of a world.
const auditEvery = 8

// What a world judges besides the specs.
const (
	CellNeverPanics = "CellNeverPanics"
	CodecRoundTrip  = "CodecRoundTrip" // what is sent can be read, and nothing else
	StoreReads      = "StoreReads"     // and what was written
	RotIsTold       = "RotIsTold"      // who starts says what of its data is lost or wrong
	ChainHolds      = "ChainHolds"     // a node's log is one chain
	StoreHolds      = "StoreHolds"     // and all keys say the same
	RegistryHolds   = "RegistryHolds"  // what the registry says is so at every door and cell
	StreamsFold     = "StreamsFold"    // the events of a run are those of one that is over
	Deterministic   = "Deterministic"  // the same seed is the same world
)

// Judged lists the names.
func Judged() []string {
	return []string{CellNeverPanics, CodecRoundTrip, StoreReads, RotIsTold, ChainHolds, StoreHolds, RegistryHolds, StreamsFold, Deterministic}
}

func (w *World) audited() bool { return w.seed%auditEvery == 0 }

// audit looks into the store of a world at rest: each node's log is one chain,
// the indexes say what the journals say, and the streams of all that clients asked for fold to runs that are over.
func (w *World) audit() {
	for _, n := range w.nodes {
		if end, err := store.VerifyAll(w.kv, n.id, n.log.mark); err != nil || end != n.log.mark {
			w.violate(ChainHolds, fmt.Sprintf("the log of %s ends at batch %d, its disk says %d: %v", n.id, n.log.mark.Batch, end.Batch, err))
		}
	}
	n := w.nodes[0] // the nodes share one store
	x, err := store.Examine(w.kv, n.id, n.log.mark, nil, nil)
	if err != nil || x.Wrong > 0 {
		w.violate(StoreHolds, fmt.Sprintf("%d things are wrong with the store, %v: %+v", x.Wrong, err, x.Findings[:min(len(x.Findings), 3)]))
	}
	for _, c := range w.clients {
		if err := w.auditRun(c.call); err != nil {
			w.violate(StreamsFold, fmt.Sprintf("run %s of client %d: %v", c.call, c.no, err))
		}
	}
}

// streamMax is more events than any run has.
const streamMax = 1 << 16

func (w *World) auditRun(run actor.CallID) error {
	stored, err := store.Events(w.kv, actor.DefaultTenant, run, 0, streamMax)
	if err != nil || len(stored) == 0 { // refused, a repeat, or unjournaled
		return err
	}
	events := make([]runs.Event, len(stored))
	for i := range stored {
		if events[i], err = runs.Decode(stored[i].Body); err != nil {
			return fmt.Errorf("event %d: %w", stored[i].Seq, err)
		}
	}
	record, err := runs.Fold(events)
	if err == nil && record.Ended == 0 {
		err = fmt.Errorf("its stream of %d events does not end", len(events))
	}
	return err
}
