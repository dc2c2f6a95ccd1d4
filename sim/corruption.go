// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/store"
)

// corruption describes damage to a node's durable rows that happened while the node
// was down. Only rows that this node alone may serve are damaged, and no other node
// adopts its shards before the repair. The next start MUST detect and report the
// damage, unless the damage changes no readable state. The rows are then restored, as
// if from a backup.
type corruption struct {
	fault       Fault
	original    []store.Row // the rows before the damage
	actors      []actor.ID  // owners of the damaged rows
	description string
}

// corruptionFaults are the faults that damage durable rows.
var corruptionFaults = [...]Fault{DiskTornWrite, DiskBitFlip, DiskMisdirected, DiskStale, DiskLostWrite}

// durableRows are the most recently committed rows of a disk, from which
// injectCorruption selects the row to damage.
type durableRows struct {
	rows      []durableRow // newest last
	staleRows []durableRow // previous values of rows that were overwritten, newest last
}

// durableRow is a row of a batch, and the actors whose state it holds.
type durableRow struct {
	store.Row
	actors []actor.ID
}

// examinationsMax is the maximum number of store examinations per run. Each one reads
// the whole store.
const examinationsMax = 4

// durableRowsMax is the maximum length of each list in durableRows.
const durableRowsMax = 64

// record remembers the rows of a batch that is about to be committed.
func (d *durableRows) record(w *Simulation, b *store.Batch) {
	for _, f := range corruptionFaults {
		if w.plan.Odds[f] == 0 {
			continue
		}
		for _, row := range b.Rows {
			ids := actorsOfRow(row.Key, b)
			if slices.Contains(ids, agents.RegistryID) {
				continue // every node reads the registry's journal when it starts, so it is excluded
			}
			d.rows = append(d.rows, durableRow{row, ids})
			if old, ok, err := w.store.kv.Get(row.Key); ok && err == nil {
				d.staleRows = append(d.staleRows, durableRow{store.Row{Key: row.Key, Value: bytes.Clone(old)}, ids})
			}
		}
		d.rows = d.rows[max(0, len(d.rows)-durableRowsMax):]
		d.staleRows = d.staleRows[max(0, len(d.staleRows)-durableRowsMax):]
		return
	}
}

// actorsOfRow returns the actors whose entries or snapshot a row of a batch holds. For a blob,
// these are all actors in the batch that may refer to it.
func actorsOfRow(key []byte, b *store.Batch) (ids []actor.ID) {
	parts := strings.Split(string(key), "/")
	for i := range b.Entries {
		e := &b.Entries[i]
		_, snapshot := e.Record.(store.Snapshot)
		of := false
		switch {
		case parts[0] == "l":
			part, err := strconv.ParseUint(parts[len(parts)-1], 16, 32)
			of = err == nil && !snapshot && b.Places[i].Part == uint32(part)
		case isSnapshotKey(key):
			of = snapshot && bytes.Equal(key, store.SnapshotKey(e.Actor))
		case rowKind(key) == "b":
			of = rowScope(key) == rowScope(store.SnapshotKey(e.Actor))
		}
		if of && !slices.Contains(ids, e.Actor) {
			ids = append(ids, e.Actor)
		}
	}
	return ids
}

// isSnapshotKey reports whether a row holds a snapshot.
func isSnapshotKey(key []byte) bool { return rowKind(key) == "a" }

// injectCorruption may damage rows that a crashed node had made durable.
func (d *disk) injectCorruption() {
	w := d.n.w
	for _, f := range corruptionFaults {
		if d.corruption != nil || !w.faultFires(f) {
			continue
		}
		rows := d.corruptible(d.recent.rows)
		if f == DiskStale {
			rows = d.corruptible(d.recent.staleRows)
		}
		if len(rows) > 0 {
			d.corruption = d.corrupt(f, rows)
		}
	}
	if d.corruption != nil {
		w.log.note(w.now, "corruption on %s: %s", d.n.id, d.corruption.description)
	}
}

// corruptible returns the rows that this node has written and that only this node may
// serve.
func (d *disk) corruptible(rows []durableRow) (own []durableRow) {
	w := d.n.w
	for i, row := range rows {
		if slices.ContainsFunc(row.actors, func(id actor.ID) bool {
			g := w.claims.groupOf(dispatcher.ShardOf(id))
			_, member := w.claims.table.find(string(d.n.id)) // otherwise the group is anybody's
			return w.claims.owner(g) != d.n || w.claims.groups[g].releasing || !member
		}) {
			continue
		}
		rewritten := slices.ContainsFunc(rows[i+1:], func(o durableRow) bool { return bytes.Equal(o.Key, row.Key) })
		current, ok, err := w.store.kv.Get(row.Key)
		sealed := isSnapshotKey(row.Key) || rowKind(row.Key) == "b"
		if ok && err == nil && !rewritten && (!sealed || rowWriter(current) == d.n.id && rowWriter(row.Value) == d.n.id) {
			own = append(own, row)
		}
	}
	return own
}

// rowWriter returns the node whose batch wrote a snapshot or a blob. The name is part of the value.
func rowWriter(value []byte) actor.NodeID {
	return actor.NodeID(actor.NewDecoder(value).String(actor.NameBytesMax))
}

// corrupt damages one of the rows. It returns nil if the fault is not applicable.
func (d *disk) corrupt(f Fault, rows []durableRow) *corruption {
	w := d.n.w
	if f == DiskMisdirected && w.entropy.Int(2) == 1 { // one snapshot in place of another is the hardest case to detect
		rows = slices.DeleteFunc(rows, func(r durableRow) bool { return !isSnapshotKey(r.Key) })
	}
	if len(rows) == 0 {
		return nil
	}
	at := len(rows) - 1 // the last row, which may be a batch record
	if w.entropy.Int(2) == 1 {
		at = w.entropy.Int(len(rows))
	}
	key := rows[at].Key
	current, _, err := w.store.kv.Get(key)
	if err != nil {
		w.fail(StoreReads, err.Error())
		return nil
	}
	if len(current) == 0 && (f == DiskTornWrite || f == DiskBitFlip) {
		return nil // a row of the index may be its key alone
	}
	current = bytes.Clone(current)
	r := &corruption{fault: f, original: []store.Row{{Key: key, Value: current}}, actors: rows[at].actors}
	bad := store.Row{Key: key}
	switch f {
	case DiskTornWrite:
		bad.Value = w.faultyBytes(f, current, current[:w.entropy.Int(len(current))])
		r.description = fmt.Sprintf("%s is truncated to %d of %d bytes", key, len(bad.Value), len(current))
	case DiskBitFlip:
		bit := w.entropy.Int(8 * len(current))
		bad.Value = bytes.Clone(current)
		bad.Value[bit/8] ^= 1 << (bit % 8)
		bad.Value = w.faultyBytes(f, current, bad.Value)
		r.description = fmt.Sprintf("bit %d of %s is flipped", bit, key)
	case DiskMisdirected:
		from := rows[w.entropy.Int(len(rows))].Key
		value, _, err := w.store.kv.Get(from)
		if err != nil || bytes.Equal(value, current) {
			return nil
		}
		bad.Value = w.faultyBytes(f, current, bytes.Clone(value))
		r.description = fmt.Sprintf("%s has the value of %s", key, from)
	case DiskStale:
		if bytes.Equal(rows[at].Value, current) {
			return nil
		}
		bad.Value = w.faultyBytes(f, current, rows[at].Value)
		r.description = fmt.Sprintf("%s has its previous value", key)
	default:
		bad.Delete, bad.Value = w.acts(f), current
		r.description = fmt.Sprintf("%s is missing", key)
	}
	w.restoreRows([]store.Row{bad})
	return r
}

// isCorrupt reports whether a node has damaged rows, which reads of other nodes may meet.
func (w *Simulation) isCorrupt() bool {
	return slices.ContainsFunc(w.nodes, func(n *node) bool { return n.log.corruption != nil })
}

// restoreRows writes the rows to the store without checking ownership.
func (w *Simulation) restoreRows(rows []store.Row) {
	if err := w.store.kv.Apply(rows); err != nil {
		panic("sim: apply rows to the store: " + err.Error())
	}
}

// startDelay returns the time until a process may start, or 0. A start is delayed if
// the data has a newer format than the program, if the data is damaged, or if the disk
// is full.
func (n *node) startDelay() time.Duration {
	w, d := n.w, &n.log
	if startAt := max(w.now, n.diskFullUntil); recordChange(w, DiskFull, w.now, startAt, "%s cannot start: disk full", n.id) {
		return startAt.Sub(w.now)
	}
	if w.faultFires(NodeNewerData) {
		kv := store.KV(newerFormatStore{w.store.kv})
		if !w.acts(NodeNewerData) {
			kv = w.store.kv
		}
		err := store.CheckFormat(kv)
		if recordChange(w, NodeNewerData, true, err == nil, "%s does not start: %v", n.id, err) {
			return w.between(500*time.Millisecond, 5*time.Second)
		}
		if w.acts(NodeNewerData) {
			w.fail(CorruptionReported, fmt.Sprintf("%s starts on data with an unknown format", n.id))
		}
	}
	if d.corruption != nil {
		d.verifyCorruptStart()
		return w.between(500*time.Millisecond, 5*time.Second)
	}
	anchor, wait := d.readAnchor()
	if wait > 0 {
		return wait
	}
	if (w.auditEnabled() || w.retention != nil || w.startCrashes != nil || anchor != d.mark) && !w.isCorrupt() { // skipped while any node has corrupt rows: Verify could report the rows of another node
		if end, err := w.store.verify(n.id, anchor); err != nil || end != d.mark {
			w.fail(ChainHolds, fmt.Sprintf("start of %s: the log ends at batch %d, want %d: %v", n.id, end.Batch, d.mark.Batch, err))
		}
		if err := w.recoverIndex(); err != nil {
			spec := StoreReads
			if w.retention != nil && len(w.retention.judge.dead) > 0 {
				spec = ForgottenStays // the start reads what is deleted
			}
			w.fail(spec, err.Error())
		}
	}
	return 0
}

// verifyCorruptStart tries to start a node on damaged rows. If the start does not detect
// the corruption, the damage MUST NOT change any state that can be read. The rows are
// then restored.
func (d *disk) verifyCorruptStart() {
	w, n, r := d.n.w, d.n, d.corruption
	w.Stats.Audit.CorruptionReported++
	others := slices.ContainsFunc(w.nodes, func(o *node) bool { return o != n && o.log.corruption != nil }) // whose damage recovery would meet, too
	end, err := store.Verify(w.store.kv, n.id, d.mark)
	if err == nil && !others {
		err = w.recoverIndex()
	}
	var before []string
	if err == nil && end != d.mark {
		w.fail(CorruptionReported, fmt.Sprintf("%s starts after batch %d, but had committed batch %d: %s", n.id, end.Batch, d.mark.Batch, r.description))
	}
	if err == nil {
		before = readActors(w.store, r.actors)
	} else if w.examinations++; w.examinations > examinationsMax {
		w.log.note(w.now, "%s: examination skipped after %d examinations of the store", n.id, examinationsMax)
	} else if w.judgesBytes {
		if x, examineErr := store.Examine(w.store.kv, d.ends(), nil, nil); examineErr != nil || x.Wrong == 0 {
			w.fail(CorruptionReported, fmt.Sprintf("%s does not start: %v; the examination has %d findings, want at least one; error %v", n.id, err, x.Wrong, examineErr))
		}
	}
	w.restoreRows(r.original)
	d.corruption = nil
	if !others {
		if err := w.recoverIndex(); err != nil {
			w.fail(StoreReads, err.Error())
		}
	}
	for i, text := range readActors(w.store, r.actors) {
		switch {
		case err != nil: // the start detected the corruption
		case before[i] == text:
			w.log.note(w.now, "%s: the corruption changes no readable state", n.id)
			return
		default:
			state := "changed"
			if before[i] == "" {
				state = "unreadable"
			}
			w.fail(CorruptionReported, fmt.Sprintf("%s starts without an error, but %s is %s: %s", n.id, r.actors[i], state, r.description))
			return
		}
	}
	recordChange(w, r.fault, true, err == nil, "%s does not start: %v", n.id, err)
	w.log.note(w.now, "%s: rows restored from backup", n.id)
}

// readActors returns the readable state of the actors as text; "" if an actor cannot
// be read.
func readActors(log store.Reader, ids []actor.ID) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		saved, err := log.Load(id)
		if id.Key == "" || err != nil {
			continue
		}
		if journal, err := store.Fold(saved); err == nil {
			all[i] = string(store.EncodeJournal(&journal)) + readOutcomes(log, id, journal.Evicted)
		}
	}
	return all
}

// readOutcomes formats the outcomes that a snapshot refers to.
func readOutcomes(log store.Reader, id actor.ID, away []store.EvictedOutcome) (all string) {
	for i := range away {
		ended, err := log.Outcome(id, away[i].N)
		all += fmt.Sprintf("%s %v\n", store.EncodeEntry(store.Entry{Actor: id, Record: ended}), err)
	}
	return all
}

// newerFormatStore is a store written by a later version of the program.
type newerFormatStore struct{ store.KV }

// Get implements store.KV.
func (k newerFormatStore) Get(key []byte) ([]byte, bool, error) {
	if string(key) == store.FormatKey {
		return fmt.Append(nil, store.FormatVersion+1), true, nil
	}
	return k.KV.Get(key)
}
