// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/store"
)

// corruption is what has become of a node's durable rows while it was down. It touches
// what the node alone may give out: nobody takes its shards meanwhile. Whoever
// starts has to find it and say so; then somebody puts back what a backup has.
type corruption struct {
	fault       Fault
	original    []store.Row // as they were, and as a backup has them
	actors      []actor.ID  // whose they are
	description string
}

// corruptionFaults are the faults of what was durable.
var corruptionFaults = [...]Fault{DiskTornWrite, DiskBitFlip, DiskMisdirected, DiskStale, DiskLostWrite}

// durableRows is what a disk remembers of the rows that it made durable last, for
// rot to befall.
type durableRows struct {
	rows      []store.Row // of actors and of batches, the newest last
	staleRows []store.Row // snapshots as they were before the last
}

// examinationsMax bounds the examinations of a world's store: each reads all there is.
const examinationsMax = 4

// durableRowsMax is how many.
const durableRowsMax = 64

// record takes note of the rows of a batch that is about to be committed.
func (d *durableRows) record(w *Simulation, rows []store.Row) {
	for _, f := range corruptionFaults {
		if w.plan.Odds[f] == 0 {
			continue
		}
		for _, row := range rows {
			if id := actorOfKey(row.Key); !bytes.HasPrefix(row.Key, []byte("n/")) && id.Key == "" || id == agents.RegistryID {
				continue // the registry's journal every node reads that starts
			}
			d.rows = append(d.rows, row)
			if old, ok, err := w.kv.Get(row.Key); ok && err == nil {
				d.staleRows = append(d.staleRows, store.Row{Key: row.Key, Value: bytes.Clone(old)})
			}
		}
		d.rows = d.rows[max(0, len(d.rows)-durableRowsMax):]
		d.staleRows = d.staleRows[max(0, len(d.staleRows)-durableRowsMax):]
		return
	}
}

// actorOfKey is whose entry or snapshot a key holds; zero: nobody's.
func actorOfKey(key []byte) actor.ID {
	rest, ofTenant := bytes.CutPrefix(key, []byte("t/"))
	tenant, rest, _ := bytes.Cut(rest, []byte("/"))
	name, ofActor := bytes.CutPrefix(rest, []byte("a/"))
	if !ofTenant || !ofActor {
		return actor.ID{}
	}
	agent, own, _ := strings.Cut(string(name), "/")
	own, _, _ = strings.Cut(own, "/")
	return actor.ID{Tenant: string(tenant), Agent: agent, Key: own}
}

// injectCorruption may have something happen to what a node that has just died made durable.
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
		w.log.note(w.now, "the disk of %s: %s", d.n.id, d.corruption.description)
	}
}

// corruptible are those of the rows that this node alone has written and may give out.
func (d *disk) corruptible(rows []store.Row) (mine []store.Row) {
	w := d.n.w
	for i, row := range rows {
		id := actorOfKey(row.Key)
		if id.Key != "" {
			if cl := &w.claims.groups[w.claims.groupOf(dispatcher.ShardOf(id))]; cl.node != d.n || cl.releasing {
				continue
			}
		}
		again := slices.ContainsFunc(rows[i+1:], func(o store.Row) bool { return bytes.Equal(o.Key, row.Key) })
		now, ok, err := w.kv.Get(row.Key)
		if ok && err == nil && !again && (id.Key == "" || rowWriter(now) == d.n.id && rowWriter(row.Value) == d.n.id) {
			mine = append(mine, row)
		}
	}
	return mine
}

// rowWriter is the node whose batch a row is of, as its value says.
func rowWriter(value []byte) actor.NodeID {
	return actor.NodeID(actor.NewDecoder(value).String(actor.NameBytesMax))
}

// corrupt makes one of the rows wrong; nil if it cannot be.
func (d *disk) corrupt(f Fault, rows []store.Row) *corruption {
	w := d.n.w
	if f == DiskMisdirected && w.entropy.Int(2) == 1 { // a snapshot for a snapshot is the hardest to tell
		rows = slices.DeleteFunc(rows, func(r store.Row) bool { return !bytes.HasSuffix(r.Key, []byte("/s")) })
	}
	if len(rows) == 0 {
		return nil
	}
	at := len(rows) - 1 // the record of the last batch, if it is that
	if w.entropy.Int(2) == 1 {
		at = w.entropy.Int(len(rows))
	}
	key := rows[at].Key
	now, _, err := w.kv.Get(key)
	if err != nil {
		w.fail(StoreReads, err.Error())
		return nil
	}
	now = bytes.Clone(now)
	r := &corruption{fault: f, original: []store.Row{{Key: key, Value: now}}, actors: []actor.ID{actorOfKey(key)}}
	bad := store.Row{Key: key}
	switch f {
	case DiskTornWrite:
		bad.Value = now[:w.entropy.Int(len(now))]
		r.description = fmt.Sprintf("%s has %d of its %d bytes", key, len(bad.Value), len(now))
	case DiskBitFlip:
		bit := w.entropy.Int(8 * len(now))
		bad.Value = bytes.Clone(now)
		bad.Value[bit/8] ^= 1 << (bit % 8)
		r.description = fmt.Sprintf("bit %d of %s is another", bit, key)
	case DiskMisdirected:
		from := rows[w.entropy.Int(len(rows))].Key
		value, _, err := w.kv.Get(from)
		if err != nil || bytes.Equal(value, now) {
			return nil
		}
		bad.Value = bytes.Clone(value)
		r.description = fmt.Sprintf("%s has the value of %s", key, from)
	case DiskStale:
		if bytes.Equal(rows[at].Value, now) {
			return nil
		}
		bad.Value = rows[at].Value
		r.description = fmt.Sprintf("%s is as it was before", key)
	default:
		bad.Delete = true
		r.description = fmt.Sprintf("%s is not there", key)
	}
	w.restoreRows([]store.Row{bad})
	return r
}

// restoreRows puts rows into the store, whosoever they are.
func (w *Simulation) restoreRows(rows []store.Row) {
	if err := w.kv.Apply(rows); err != nil {
		panic("sim: the store of the simulator failed: " + err.Error())
	}
}

// startDelay is how long a process has to wait with its start: its program is not
// the one for what its disk holds, or that is damaged, or has no room; 0: it may.
func (n *node) startDelay() time.Duration {
	w, d := n.w, &n.log
	if n.diskFullUntil > w.now {
		w.recordFault(DiskFull, "%s has no room to start", n.id)
		return n.diskFullUntil.Sub(w.now)
	}
	if w.faultFires(NodeNewerData) {
		err := store.CheckFormat(newerFormatStore{w.kv})
		if err == nil {
			w.fail(RotIsTold, fmt.Sprintf("%s starts on data of a format that it does not know", n.id))
		}
		w.recordFault(NodeNewerData, "%s does not start: %v", n.id, err)
		return w.between(500*time.Millisecond, 5*time.Second)
	}
	if d.corruption != nil {
		d.verifyCorruptStart()
		return w.between(500*time.Millisecond, 5*time.Second)
	}
	anchor, wait := d.readAnchor()
	if wait > 0 {
		return wait
	}
	if (w.auditEnabled() || anchor != d.mark) && !slices.ContainsFunc(w.nodes, func(o *node) bool { return o.log.corruption != nil }) { // a row of two nodes may be another's rot
		if end, err := store.Verify(w.kv, n.id, anchor); err != nil || end != d.mark {
			w.fail(ChainHolds, fmt.Sprintf("the log of %s ends at batch %d when it starts, its disk says %d: %v", n.id, end.Batch, d.mark.Batch, err))
		}
	}
	return 0
}

// verifyCorruptStart is what a start comes to on a disk with rot: it says what is wrong, and
// is put back; or what is wrong changes nothing that anybody reads.
func (d *disk) verifyCorruptStart() {
	w, n, r := d.n.w, d.n, d.corruption
	end, err := store.Verify(w.kv, n.id, d.mark)
	var before []string
	if err == nil && end != d.mark {
		w.fail(RotIsTold, fmt.Sprintf("%s starts behind batch %d, and had committed batch %d: %s", n.id, end.Batch, d.mark.Batch, r.description))
	}
	if err == nil {
		before = readActors(w.kv, r.actors)
	} else if w.examinations++; w.examinations > examinationsMax {
		w.log.note(w.now, "%s is not examined: the store has been, %d times", n.id, examinationsMax)
	} else if x, wrong := store.Examine(w.kv, n.id, d.mark, nil, nil); wrong != nil || x.Wrong == 0 {
		w.fail(RotIsTold, fmt.Sprintf("%s does not start: %v; an examination finds %d things, %v", n.id, err, x.Wrong, wrong))
	}
	w.restoreRows(r.original)
	d.corruption = nil
	for i, is := range readActors(w.kv, r.actors) {
		switch {
		case err != nil: // told at the start
		case before[i] == is:
			w.log.note(w.now, "%s: that changes nothing that anybody reads", n.id)
			return
		default:
			now := "another"
			if before[i] == "" {
				now = "nobody that could be read"
			}
			w.fail(RotIsTold, fmt.Sprintf("%s starts, and %s is %s: %s", n.id, r.actors[i], now, r.description))
			return
		}
	}
	if err != nil {
		w.recordFault(r.fault, "%s does not start: %v", n.id, err)
	}
	w.log.note(w.now, "%s has what a backup has", n.id)
}

// readActors is what actors are, as their rows say; "" is one that cannot be read.
func readActors(kv store.KV, ids []actor.ID) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		saved, err := store.LoadActor(kv, id)
		if id.Key == "" || err != nil {
			continue
		}
		if journal, err := store.Fold(saved); err == nil {
			all[i] = string(store.EncodeJournal(&journal)) + readOutcomes(kv, id, journal.Away)
		}
	}
	return all
}

// readOutcomes is what is read of those that a snapshot names.
func readOutcomes(kv store.KV, id actor.ID, away []store.Away) (all string) {
	for i := range away {
		ended, err := store.LoadOutcome(kv, id, away[i].N)
		all += fmt.Sprintf("%s %v\n", store.EncodeEntry(store.Entry{Actor: id, Record: ended}), err)
	}
	return all
}

// newerFormatStore is a store that a later program has written.
type newerFormatStore struct{ store.KV }

// Get implements store.KV.
func (k newerFormatStore) Get(key []byte) ([]byte, bool, error) {
	if string(key) == store.FormatKey {
		return fmt.Append(nil, store.FormatVersion+1), true, nil
	}
	return k.KV.Get(key)
}
