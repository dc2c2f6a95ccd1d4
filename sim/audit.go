// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
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
	NobodyAstray    = "NobodyAstray"   // a node connects with nobody but whom it may, and shows its secrets to nobody else
	SameTurns       = "SameTurns"      // a turn made once more is the same
	PartsAreSaid    = "PartsAreSaid"   // an answer that was cut off is not called whole
	StreamsFold     = "StreamsFold"    // the events of a run are those of one that is over
	Deterministic   = "Deterministic"  // the same seed is the same world

	WorldNeverPanics = "WorldNeverPanics" // nor does anything around the cells
)

// Properties lists the names.
func Properties() []string {
	return []string{CellNeverPanics, CodecRoundTrip, StoreReads, RotIsTold, ChainHolds, StoreHolds, RegistryHolds, NobodyAstray, SameTurns, PartsAreSaid, StreamsFold, Deterministic, WorldNeverPanics}
}

func (w *Simulation) auditEnabled() bool { return w.seed%auditEvery == 0 }

// audit looks into the store of a world at rest: each node's log is one chain,
// the indexes say what the journals say, and the streams of all that clients asked for fold to runs that are over.
func (w *Simulation) audit() {
	for _, n := range w.nodes {
		if end, err := store.VerifyAll(w.kv, n.id, n.log.mark); err != nil || end != n.log.mark {
			w.fail(ChainHolds, fmt.Sprintf("the log of %s ends at batch %d, its disk says %d: %v", n.id, n.log.mark.Batch, end.Batch, err))
		}
	}
	n := w.nodes[0] // the nodes share one store
	x, err := store.Examine(w.kv, n.id, n.log.mark, nil, nil)
	if err != nil || x.Wrong > 0 {
		w.fail(StoreHolds, fmt.Sprintf("%d things are wrong with the store, %v: %+v", x.Wrong, err, x.Findings[:min(len(x.Findings), 3)]))
	}
	defer w.setStream(w.setStream(topicAudit))
	w.auditCodecs()
	w.auditCorruption()
	for _, c := range w.clients {
		if err := w.auditRun(c.call); err != nil {
			w.fail(StreamsFold, fmt.Sprintf("run %s of client %d: %v", c.call, c.no, err))
		}
	}
}

// streamEventsMax is more events than any run has.
const streamEventsMax = 1 << 16

func (w *Simulation) auditRun(run actor.CallID) error {
	stored, err := store.Events(w.kv, actor.DefaultTenant, run, 0, streamEventsMax)
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

// corruptedRowsMax is of how many rows an audit makes something else, one after the other.
const corruptedRowsMax = 2

// auditCorruption makes a row of the store another, whatever it holds, and puts it back:
// who examines the store is told of it, or reads all that there is as before.
func (w *Simulation) auditCorruption() {
	families := map[string][]store.Row{}
	if err := w.kv.Scan(nil, []byte{0xff}, func(key, _ []byte) bool {
		of := rowKind(key)
		families[of] = append(families[of], store.Row{Key: bytes.Clone(key)})
		return true
	}); err != nil {
		w.fail(StoreReads, err.Error())
		return
	}
	names := slices.Sorted(maps.Keys(families))
	d := &w.nodes[0].log
	for range corruptedRowsMax {
		rows := families[names[w.entropy.Int(len(names))]]
		row := rows[w.entropy.Int(len(rows))]
		r := d.corrupt([...]Fault{DiskLostWrite, DiskTornWrite, DiskBitFlip, DiskMisdirected}[w.entropy.Int(4)], append(rows[:min(len(rows)-1, 8):min(len(rows)-1, 8)], row))
		if r == nil {
			continue
		}
		key := r.original[0].Key
		x, err := store.Examine(w.kv, d.n.id, d.mark, func([]byte) error { return nil }, nil)
		for _, n := range w.nodes[1:] { // who has written it says whether it is as it was
			if err == nil && x.Wrong == 0 {
				_, err = store.VerifyAll(w.kv, n.id, n.log.mark)
			}
		}
		after := w.readRow(key)
		w.restoreRows(r.original)
		switch before := w.readRow(key); {
		case err != nil || x.Wrong > 0:
			w.Stats.Points[CorruptionFound]++
		case after != before:
			w.fail(StoreHolds, fmt.Sprintf("%s; nobody finds anything, and it reads as %.80q, not as %.80q", r.description, after, before))
		}
	}
}

// rowKind is what a key is for: its parts but those that are names or numbers.
func rowKind(key []byte) string {
	parts := strings.Split(string(key), "/")
	switch {
	case parts[0] != "t" || len(parts) < 3:
		return parts[0]
	case parts[len(parts)-1] == "s":
		return "s"
	}
	return parts[2]
}

// readRow is what comes of a row for who reads it, as text.
func (w *Simulation) readRow(key []byte) string {
	parts := strings.Split(string(key), "/")
	switch rowKind(key) {
	case "a", "s":
		return readActors(w.kv, []actor.ID{actorOfKey(key)})[0]
	case "e":
		run, err := actor.ParseCallID(parts[3])
		if err == nil {
			var events []store.RunEvent
			events, err = store.Events(w.kv, parts[1], run, 0, streamEventsMax)
			h := xxhash.New()
			for _, e := range events {
				h.Write(e.Body) //nolint:errcheck // a hash takes all
			}
			return fmt.Sprint(len(events), h.Sum64(), err)
		}
		return err.Error()
	case "r":
		run, err := actor.ParseCallID(parts[3])
		if err == nil {
			owner, ok, err := store.ActorOf(w.kv, parts[1], run)
			all, wrong := store.Runs(w.kv, parts[1], streamEventsMax, false)
			return fmt.Sprint(owner, ok, err, len(all), wrong)
		}
		return err.Error()
	case "x":
		shards := make([]uint16, dispatcher.Shards)
		for i := range shards {
			shards[i] = uint16(i)
		}
		ids, err := store.DueActors(w.kv, shards)
		return fmt.Sprint(ids, err)
	}
	value, ok, err := w.kv.Get(key)
	return fmt.Sprintf("%x %v %v", value, ok, err)
}
