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

// rot is what has become of a node's durable rows while it was down. It touches
// what the node alone may give out: nobody takes its shards meanwhile. Whoever
// starts has to find it and say so; then somebody puts back what a backup has.
type rot struct {
	fault Fault
	rows  []store.Row // as they were, and as a backup has them
	of    []actor.ID  // whose they are
	what  string
}

// rots are the faults of what was durable.
var rots = [...]Fault{DiskTornWrite, DiskBitFlip, DiskMisdirected, DiskStale, DiskLostWrite}

// durables is what a disk remembers of the rows that it made durable last, for
// rot to befall.
type durables struct {
	rows  []store.Row // of actors and of batches, the newest last
	stale []store.Row // snapshots as they were before the last
}

// examinedMax bounds the examinations of a world's store: each reads all there is.
const examinedMax = 4

// durablesMax is how many.
const durablesMax = 64

// wrote takes note of the rows of a batch that is about to be committed.
func (d *durables) wrote(w *World, rows []store.Row) {
	for _, f := range rots {
		if w.plan.Odds[f] == 0 {
			continue
		}
		for _, row := range rows {
			if id := actorOf(row.Key); !bytes.HasPrefix(row.Key, []byte("n/")) && id.Key == "" || id == agents.RegistryID {
				continue // the registry's journal every node reads that starts
			}
			d.rows = append(d.rows, row)
			if old, ok, err := w.kv.Get(row.Key); ok && err == nil {
				d.stale = append(d.stale, store.Row{Key: row.Key, Value: bytes.Clone(old)})
			}
		}
		d.rows = d.rows[max(0, len(d.rows)-durablesMax):]
		d.stale = d.stale[max(0, len(d.stale)-durablesMax):]
		return
	}
}

// actorOf is whose entry or snapshot a key holds; zero: nobody's.
func actorOf(key []byte) actor.ID {
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

// decay may have something happen to what a node that has just died made durable.
func (d *disk) decay() {
	w := d.n.w
	for _, f := range rots {
		if d.rot != nil || !w.fault(f) {
			continue
		}
		rows := d.sound(d.last.rows)
		if f == DiskStale {
			rows = d.sound(d.last.stale)
		}
		if len(rows) > 0 {
			d.rot = d.spoil(f, rows)
		}
	}
	if d.rot != nil {
		w.log.world(w.now, "the disk of %s: %s", d.n.id, d.rot.what)
	}
}

// sound are those of the rows that this node alone has written and may give out.
func (d *disk) sound(rows []store.Row) (mine []store.Row) {
	w := d.n.w
	for i, row := range rows {
		id := actorOf(row.Key)
		if id.Key != "" {
			if cl := &w.claims.groups[w.claims.groupOf(dispatcher.ShardOf(id))]; cl.node != d.n || cl.stopping {
				continue
			}
		}
		again := slices.ContainsFunc(rows[i+1:], func(o store.Row) bool { return bytes.Equal(o.Key, row.Key) })
		now, ok, err := w.kv.Get(row.Key)
		if ok && err == nil && !again && (id.Key == "" || writer(now) == d.n.id && writer(row.Value) == d.n.id) {
			mine = append(mine, row)
		}
	}
	return mine
}

// writer is the node whose batch a row is of, as its value says.
func writer(value []byte) actor.NodeID {
	return actor.NodeID(actor.NewDecoder(value).String(actor.NameBytesMax))
}

// spoil makes one of the rows wrong; nil if it cannot be.
func (d *disk) spoil(f Fault, rows []store.Row) *rot {
	w := d.n.w
	if f == DiskMisdirected && w.choose.Int(2) == 1 { // a snapshot for a snapshot is the hardest to tell
		rows = slices.DeleteFunc(rows, func(r store.Row) bool { return !bytes.HasSuffix(r.Key, []byte("/s")) })
	}
	if len(rows) == 0 {
		return nil
	}
	at := len(rows) - 1 // the record of the last batch, if it is that
	if w.choose.Int(2) == 1 {
		at = w.choose.Int(len(rows))
	}
	key := rows[at].Key
	now, _, err := w.kv.Get(key)
	if err != nil {
		w.violate(StoreReads, err.Error())
		return nil
	}
	now = bytes.Clone(now)
	r := &rot{fault: f, rows: []store.Row{{Key: key, Value: now}}, of: []actor.ID{actorOf(key)}}
	bad := store.Row{Key: key}
	switch f {
	case DiskTornWrite:
		bad.Value = now[:w.choose.Int(len(now))]
		r.what = fmt.Sprintf("%s has %d of its %d bytes", key, len(bad.Value), len(now))
	case DiskBitFlip:
		bit := w.choose.Int(8 * len(now))
		bad.Value = bytes.Clone(now)
		bad.Value[bit/8] ^= 1 << (bit % 8)
		r.what = fmt.Sprintf("bit %d of %s is another", bit, key)
	case DiskMisdirected:
		from := rows[w.choose.Int(len(rows))].Key
		value, _, err := w.kv.Get(from)
		if err != nil || bytes.Equal(value, now) {
			return nil
		}
		bad.Value = bytes.Clone(value)
		r.what = fmt.Sprintf("%s has the value of %s", key, from)
	case DiskStale:
		if bytes.Equal(rows[at].Value, now) {
			return nil
		}
		bad.Value = rows[at].Value
		r.what = fmt.Sprintf("%s is as it was before", key)
	default:
		bad.Delete = true
		r.what = fmt.Sprintf("%s is not there", key)
	}
	w.putBack([]store.Row{bad})
	return r
}

// putBack puts rows into the store, whosoever they are.
func (w *World) putBack(rows []store.Row) {
	if err := w.kv.Apply(rows); err != nil {
		panic("sim: the store of the simulator failed: " + err.Error())
	}
}

// refused is how long a process has to wait with its start: its program is not
// the one for what its disk holds, or that is damaged, or has no room; 0: it may.
func (n *node) refused() time.Duration {
	w, d := n.w, &n.log
	if n.full > w.now {
		w.hit(DiskFull, "%s has no room to start", n.id)
		return n.full.Sub(w.now)
	}
	if w.fault(NodeNewerData) {
		err := store.CheckFormat(newer{w.kv})
		if err == nil {
			w.violate(RotIsTold, fmt.Sprintf("%s starts on data of a format that it does not know", n.id))
		}
		w.hit(NodeNewerData, "%s does not start: %v", n.id, err)
		return w.between(500*time.Millisecond, 5*time.Second)
	}
	if d.rot != nil {
		d.looked()
		return w.between(500*time.Millisecond, 5*time.Second)
	}
	anchor, wait := d.anchor()
	if wait > 0 {
		return wait
	}
	if (w.audited() || anchor != d.mark) && !slices.ContainsFunc(w.nodes, func(o *node) bool { return o.log.rot != nil }) { // a row of two nodes may be another's rot
		if end, err := store.Verify(w.kv, n.id, anchor); err != nil || end != d.mark {
			w.violate(ChainHolds, fmt.Sprintf("the log of %s ends at batch %d when it starts, its disk says %d: %v", n.id, end.Batch, d.mark.Batch, err))
		}
	}
	return 0
}

// looked is what a start comes to on a disk with rot: it says what is wrong, and
// is put back; or what is wrong changes nothing that anybody reads.
func (d *disk) looked() {
	w, n, r := d.n.w, d.n, d.rot
	end, err := store.Verify(w.kv, n.id, d.mark)
	var before []string
	if err == nil && end != d.mark {
		w.violate(RotIsTold, fmt.Sprintf("%s starts behind batch %d, and had committed batch %d: %s", n.id, end.Batch, d.mark.Batch, r.what))
	}
	if err == nil {
		before = read(w.kv, r.of)
	} else if w.examined++; w.examined > examinedMax {
		w.log.world(w.now, "%s is not examined: the store has been, %d times", n.id, examinedMax)
	} else if x, wrong := store.Examine(w.kv, n.id, d.mark, nil, nil); wrong != nil || x.Wrong == 0 {
		w.violate(RotIsTold, fmt.Sprintf("%s does not start: %v; an examination finds %d things, %v", n.id, err, x.Wrong, wrong))
	}
	w.putBack(r.rows)
	d.rot = nil
	for i, is := range read(w.kv, r.of) {
		switch {
		case err != nil: // told at the start
		case before[i] == is:
			w.log.world(w.now, "%s: that changes nothing that anybody reads", n.id)
			return
		default:
			now := "another"
			if before[i] == "" {
				now = "nobody that could be read"
			}
			w.violate(RotIsTold, fmt.Sprintf("%s starts, and %s is %s: %s", n.id, r.of[i], now, r.what))
			return
		}
	}
	if err != nil {
		w.hit(r.fault, "%s does not start: %v", n.id, err)
	}
	w.log.world(w.now, "%s has what a backup has", n.id)
}

// read is what actors are, as their rows say; "" is one that cannot be read.
func read(kv store.KV, ids []actor.ID) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		saved, err := store.LoadActor(kv, id)
		if id.Key == "" || err != nil {
			continue
		}
		if journal, err := store.Fold(saved); err == nil {
			all[i] = string(store.EncodeJournal(&journal)) + outcomes(kv, id, journal.Away)
		}
	}
	return all
}

// outcomes is what is read of those that a snapshot names.
func outcomes(kv store.KV, id actor.ID, away []store.Away) (all string) {
	for i := range away {
		ended, err := store.LoadOutcome(kv, id, away[i].N)
		all += fmt.Sprintf("%s %v\n", store.EncodeEntry(store.Entry{Actor: id, Record: ended}), err)
	}
	return all
}

// newer is a store that a later program has written.
type newer struct{ store.KV }

// Get implements store.KV.
func (k newer) Get(key []byte) ([]byte, bool, error) {
	if string(key) == store.FormatKey {
		return fmt.Append(nil, store.FormatVersion+1), true, nil
	}
	return k.KV.Get(key)
}
