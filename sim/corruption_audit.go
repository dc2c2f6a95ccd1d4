// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// corruptedRowsMax is the number of rows that an audit corrupts, one after another.
const corruptedRowsMax = 2

// auditCorruption corrupts up to corruptedRowsMax rows of the store, one at a time, and
// restores each row. The kinds of the rows are random. The examination of the store MUST
// report each corruption. Exception: production code still reads the same value from the
// row.
func (w *Simulation) auditCorruption() {
	byKind := map[string][]durableRow{}
	if err := w.store.kv.Scan(nil, []byte{0xff}, func(key, _ []byte) bool {
		kind := rowKind(key)
		byKind[kind] = append(byKind[kind], durableRow{Row: store.Row{Key: bytes.Clone(key)}})
		return true
	}); err != nil {
		w.fail(StoreReads, err.Error())
		return
	}
	kinds := slices.Sorted(maps.Keys(byKind))
	d := &w.nodes[0].log
	for range corruptedRowsMax {
		rows := byKind[kinds[w.entropy.Int(len(kinds))]]
		row := rows[w.entropy.Int(len(rows))]
		r := d.corrupt([...]Fault{DiskLostWrite, DiskTornWrite, DiskBitFlip, DiskMisdirected}[w.entropy.Int(4)], append(rows[:min(len(rows)-1, 8):min(len(rows)-1, 8)], row))
		if r == nil {
			continue
		}
		key := r.original[0].Key
		x, err := store.Examine(w.store.kv, d.ends(), func([]byte) error { return nil }, nil)
		for _, n := range w.nodes[1:] { // a row is verified by the log of the node that wrote it
			if err == nil && x.Wrong == 0 {
				_, err = store.VerifyAll(w.store.kv, n.id, n.log.mark)
			}
		}
		after := w.readRow(key)
		w.restoreRows(r.original)
		switch before := w.readRow(key); {
		case err != nil || x.Wrong > 0:
			w.Stats.Points[CorruptionFound]++
		case after != before:
			w.fail(StoreHolds, fmt.Sprintf("%s; the corruption is not detected, and the row reads as %.80q, want %.80q", r.description, after, before))
		}
	}
	w.auditCorruptReads(byKind)
}

// corruptReads is the number of rows that an audit truncates for reads alone.
const corruptReads = 24

// auditCorruptReads truncates rows, one at a time. Each read of a truncated row MUST fail
// or return the written value, although the store is not examined.
func (w *Simulation) auditCorruptReads(byKind map[string][]durableRow) {
	kinds := slices.DeleteFunc([]string{"a", "e", "i", "l", "r"}, func(kind string) bool { return len(byKind[kind]) == 0 })
	for range corruptReads {
		if len(kinds) == 0 {
			return
		}
		rows := byKind[kinds[w.entropy.Int(len(kinds))]]
		at := w.entropy.Int(len(rows))
		r := w.nodes[0].log.corrupt(DiskTornWrite, rows[at:at+1])
		key := rows[at].Key
		after := w.readParts(key)
		w.restoreRows(r.original)
		before := w.readParts(key)
		for i := range after {
			if after[i] != "" && after[i] != before[i] {
				w.fail(StoreHolds, fmt.Sprintf("%s; part %d is read as %.80q, want %.80q or an error", r.description, i, after[i], before[i]))
			}
		}
		w.Stats.Points[CorruptRowRead]++
	}
}

// readParts returns the values that production code reads from a row. One that it cannot
// read is empty.
func (w *Simulation) readParts(key []byte) (parts []string) {
	add := func(text string, err error) {
		if err != nil {
			text = ""
		}
		parts = append(parts, text)
	}
	ids := w.loadJudge.rows[string(key)]
	if id, ok := store.ActorOfKey(key); ok {
		ids = []actor.ID{id}
	}
	for _, id := range ids {
		w.readActorParts(id, add)
	}
	segments := strings.Split(string(key), "/")
	switch rowKind(key) {
	case "e":
		run := invariant.Must(actor.ParseCallID(segments[3]))
		add(w.readEvents(segments[1], run))
	case "r":
		owner, _, err := w.store.Run(segments[1], invariant.Must(actor.ParseCallID(segments[3])))
		add(fmt.Sprint(owner), err)
	}
	return parts
}

// readActorParts reads the journal of an actor, and the outcomes and events of its entries.
func (w *Simulation) readActorParts(id actor.ID, add func(text string, err error)) {
	saved, err := w.store.Load(id)
	journal, foldErr := store.Fold(saved)
	add(string(store.EncodeJournal(&journal)), cmp.Or(err, foldErr))
	var last actor.CallID
	for _, e := range w.loadJudge.entries[id] {
		if _, ok := e.Record.(store.Ended); ok {
			ended, err := w.store.Outcome(id, e.N)
			add(string(store.EncodeEntry(store.Entry{Actor: id, Record: ended})), err)
		}
		for _, ev := range e.WithoutBodies().Events {
			if ev.Run != last {
				last = ev.Run
				add(w.readEvents(id.Tenant, last))
			}
		}
	}
}

func (w *Simulation) readEvents(tenant string, run actor.CallID) (string, error) {
	events, err := w.store.Events(tenant, run, 0, streamEventsMax)
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintf(&text, "%d %s\n", e.Seq, e.Body)
	}
	return text.String(), err
}

// rowKind returns the kind of a row: for a row of a session or an actor the letter of
// its kind, for another row of a tenant the letter after the tenant, and for all other
// rows the first segment of the key.
func rowKind(key []byte) string {
	parts := strings.Split(string(key), "/")
	switch {
	case parts[0] != "t" || len(parts) < 4:
		return parts[0]
	case len(parts) < 6:
		return parts[2]
	case parts[2] == "y":
		return parts[5]
	}
	return parts[4]
}

// readRow reads a row as production code does and formats the result, or the error.
func (w *Simulation) readRow(key []byte) string {
	parts := strings.Split(string(key), "/")
	switch rowKind(key) {
	case "a", "i":
		id, _ := store.ActorOfKey(key)
		return readActors(w.store, []actor.ID{id})[0]
	case "e":
		run, err := actor.ParseCallID(parts[3])
		if err == nil {
			var events []store.RunEvent
			events, err = w.store.Events(parts[1], run, 0, streamEventsMax)
			h := xxhash.New()
			for _, e := range events {
				h.Write(e.Body) //nolint:errcheck // a hash never returns an error
			}
			return fmt.Sprint(len(events), h.Sum64(), err)
		}
		return err.Error()
	case "r":
		run, err := actor.ParseCallID(parts[3])
		if err == nil {
			owner, ok, err := w.store.Run(parts[1], run)
			var listed []byte
			wrong := store.EachRun(w.store, parts[1], runs.Filter{Calls: true, System: true}, func(s *runs.Summary) {
				if s.Run == run {
					listed = s.AppendJSON(nil)
				}
			})
			return fmt.Sprint(owner, ok, err, string(listed), wrong)
		}
		return err.Error()
	case "x":
		shards := make([]uint16, dispatcher.Shards)
		for i := range shards {
			shards[i] = uint16(i)
		}
		var ids []actor.ID
		err := w.store.Due(shards, func(id actor.ID) { ids = append(ids, id) })
		return fmt.Sprint(ids, err)
	}
	value, ok, err := w.store.kv.Get(key)
	return fmt.Sprintf("%x %v %v", value, ok, err)
}
