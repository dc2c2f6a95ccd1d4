// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/store/storetest"
)

// shardOfKey is the shard of an actor in package storetest.
func shardOfKey(id actor.ID) uint16 { return uint16(id.Key[0]) }

// relog copies a store in memory into one with these logs.
func relog(kv store.KV, from []store.LogEnd, to ...actor.NodeID) (*store.MemoryKV, []store.LogEnd, error) {
	index, err := store.RecoverIndex(kv, store.IndexConfig{}, nil)
	if err == nil {
		err = kv.Apply(index.Rows())
	}
	if err != nil {
		return nil, nil, err
	}
	copied, keys := &store.MemoryKV{}, map[string]bool{}
	ends, err := store.Relog{KV: kv, From: from, To: to, ShardOf: shardOfKey}.Rows(func(r store.Row) error {
		if keys[string(r.Key)] {
			return fmt.Errorf("key %s is copied twice", r.Key)
		}
		keys[string(r.Key)] = true
		return copied.Apply([]store.Row{r})
	})
	return copied, ends, err
}

// contentOf returns what a reader says of a store, without numbers of batches.
func contentOf(kv store.KV, logs int) (string, error) {
	index, err := store.RecoverIndex(kv, store.IndexConfig{}, nil)
	if err != nil {
		return "", err
	}
	r := store.Rows{KV: kv, Index: index, Logs: logs}
	var b strings.Builder
	tenants, err := r.Tenants()
	if err != nil {
		return "", err
	}
	ids := map[actor.ID]bool{}
	for _, tenant := range tenants {
		err := store.EachRun(r, tenant, runs.Filter{Calls: true, System: true}, func(s *runs.Summary) {
			fmt.Fprintf(&b, "run %+v\n", *s)
			ids[s.Actor] = true
			events, err := r.Events(tenant, s.Run, 0, 1000)
			if dropped := (store.EventsDropped{}); errors.As(err, &dropped) && dropped.First > 0 {
				events, err = r.Events(tenant, s.Run, dropped.First-1, 1000)
			}
			fmt.Fprintf(&b, "events %v %v\n", events, err)
		})
		if err != nil {
			return "", err
		}
		names, _, err := r.Sessions(tenant, "", 1000)
		if err != nil {
			return "", err
		}
		for _, name := range names {
			actors, err := r.SessionActors(tenant, name)
			fmt.Fprintf(&b, "session %s %s %v %v\n", tenant, name, actors, err)
			events, err := r.SessionEvents(tenant, name, nil, 1000)
			if dropped := (store.SessionEventsDropped{}); errors.As(err, &dropped) {
				events, err = r.SessionEvents(tenant, name, dropped.First, 1000)
			}
			for _, e := range events {
				fmt.Fprintf(&b, "event %v\n", e.RunEvent)
			}
			if err != nil {
				fmt.Fprintf(&b, "%T\n", err)
			}
			for _, id := range actors {
				saved, err := r.Load(id)
				fmt.Fprintf(&b, "actor %v %x %d %v\n", id, saved.Snapshot, len(saved.Entries), err)
				j, err := store.Fold(saved)
				fmt.Fprintf(&b, "%+v %v\n", j.EffectiveState(), err)
				for _, o := range j.Evicted {
					outcome, err := r.Outcome(id, o.N)
					fmt.Fprintf(&b, "outcome %+v %v\n", outcome, err)
				}
				for _, p := range j.Transcript.Pages {
					page, err := r.Blob(id, p.Hash)
					fmt.Fprintf(&b, "page %x %v\n", page, err)
				}
			}
		}
	}
	err = r.Due([]uint16{'a', 'b', 'c', 'd', 'x'}, func(id actor.ID) { fmt.Fprintf(&b, "due %v\n", id) })
	return b.String(), err
}

// checkCopies copies a store into three logs and back, and compares each copy with it.
func checkCopies(kv store.KV, logs []store.LogEnd) error {
	want, err := contentOf(kv, len(logs))
	if err != nil {
		return err
	}
	before, err := store.Examine(kv, logs, nil, nil)
	if err != nil {
		return err
	}
	three, ends, err := relog(kv, logs, "m1", "m2", storetest.Node)
	if err != nil {
		return fmt.Errorf("into three: %w", err)
	}
	one, end, err := relog(three, ends, "m1")
	if err != nil {
		return fmt.Errorf("into one: %w", err)
	}
	for _, of := range []struct {
		kv   store.KV
		logs []store.LogEnd
	}{{three, ends}, {one, end}} {
		x, err := store.Examine(of.kv, of.logs, nil, nil)
		if err != nil || x.Wrong != before.Wrong { // the suite writes snapshots without entries
			return fmt.Errorf("copy in %d logs: %+v, want %+v, error %w", len(of.logs), x.Findings, before.Findings, err)
		}
		if x.Actors != before.Actors || x.Entries != before.Entries || x.Runs != before.Runs || x.Events != before.Events || x.Open != before.Open || x.Blobs != before.Blobs || x.Unused != before.Unused {
			return fmt.Errorf("copy in %d logs: %+v, want %+v", len(of.logs), x, before)
		}
		got, err := contentOf(of.kv, len(of.logs))
		if err != nil || got != want {
			return fmt.Errorf("copy in %d logs, error %w:\n%s\nwant\n%s", len(of.logs), err, got, want)
		}
	}
	return nil
}

// A store is copied into several logs and back with all that it answers. A copy into one log that continues as the
// store itself is the store, and its chain ends in the same hash.
func TestRelogConforms(t *testing.T) {
	storetest.Run(t, func(t *rapid.T) func() (storetest.Store, error) {
		kv := &store.MemoryKV{}
		opened := func() (storetest.Store, error) {
			end, err := store.Verify(kv, storetest.Node, store.Mark{})
			if err != nil {
				return storetest.Store{}, err
			}
			index, err := store.RecoverIndex(kv, store.IndexConfig{}, kv.Apply)
			rows := store.Rows{KV: kv, Index: index}
			return storetest.Store{Log: rows, Reader: rows, End: end, Close: noClose}, err
		}
		return func() (storetest.Store, error) {
			end, err := store.Verify(kv, storetest.Node, store.Mark{})
			if err != nil {
				return storetest.Store{}, err
			}
			origin, err := store.Origin(kv, storetest.Node)
			if err != nil {
				return storetest.Store{}, err
			}
			logs := []store.LogEnd{{Node: storetest.Node, Anchor: store.Anchor{End: end, Origin: origin}}}
			same, ends, err := relog(kv, logs, storetest.Node)
			if err != nil {
				return storetest.Store{}, err
			}
			if !reflect.DeepEqual(ends, logs) {
				return storetest.Store{}, fmt.Errorf("a copy ends at %+v, want %+v", ends, logs)
			}
			kv = same
			s, err := opened()
			s.Close = func() error {
				end, err := store.Verify(kv, storetest.Node, store.Mark{})
				if err != nil {
					return err
				}
				origin, err := store.Origin(kv, storetest.Node)
				if err != nil {
					return err
				}
				return checkCopies(kv, []store.LogEnd{{Node: storetest.Node, Anchor: store.Anchor{End: end, Origin: origin}}})
			}
			return s, err
		}
	})
}

// A source with damage, or with a log that nobody names, is not copied.
func TestRelogRefusesDamage(t *testing.T) {
	made := func() (*store.MemoryKV, []store.LogEnd) {
		kv := &store.MemoryKV{}
		w := store.NewWriter(store.WriterConfig{Node: "n1"})
		rows, end := store.Rows{KV: kv, Index: store.NewIndex(store.IndexConfig{Entries: 1})}, store.Mark{}
		for n := range uint64(3) {
			w.Append([]store.Entry{{Actor: actor.NewID("a", fmt.Sprint(n)), Shard: uint16('0' + n), Epoch: 1, N: 1, Record: store.Rebased{At: 1}}})
			b, _ := w.Next()
			if err := rows.Append(&b); err != nil {
				t.Fatal(err)
			}
			w.Written(b.No)
			end = b.Mark()
		}
		return kv, []store.LogEnd{{Node: "n1", Anchor: store.Anchor{End: end}}}
	}
	part := func(node string, batch int) []byte { return fmt.Appendf(nil, "l/%s/%016x/%08x", node, batch, 0) }
	for name, test := range map[string]struct {
		change func(kv *store.MemoryKV, logs []store.LogEnd)
		want   string
	}{
		"none": {func(*store.MemoryKV, []store.LogEnd) {}, ""},
		"a batch is missing": {func(kv *store.MemoryKV, _ []store.LogEnd) {
			_ = kv.Apply([]store.Row{{Key: part("n1", 2), Delete: true}})
		}, "batch 2 of n1 is missing"},
		"the last batch is missing": {func(_ *store.MemoryKV, logs []store.LogEnd) { logs[0].End.Batch++ }, "the log of n1 ends at batch 3, want batch 4"},
		"a batch is changed": {func(kv *store.MemoryKV, _ []store.LogEnd) {
			value, _, _ := kv.Get(part("n1", 2))
			value = bytes.Clone(value)
			value[len(value)-1] ^= 1
			_ = kv.Apply([]store.Row{{Key: part("n1", 2), Value: value}})
		}, "differs from the value that was written"},
		"a log of another node": {func(kv *store.MemoryKV, _ []store.LogEnd) {
			value, _, _ := kv.Get(part("n1", 1))
			_ = kv.Apply([]store.Row{{Key: part("n2", 1), Value: value}})
		}, "key l/n2/: is of no log of the store"},
		"a snapshot that no batch has put": {func(kv *store.MemoryKV, _ []store.LogEnd) {
			var e actor.Encoder
			e.String("n1")
			e.Uint(2)
			e.Raw(make([]byte, 16))
			e.Bytes([]byte("x"))
			_ = kv.Apply([]store.Row{{Key: store.SnapshotKey(actor.NewID("a", "1")), Value: e.Buf}})
		}, "the store has 1 snapshots, blobs and outcomes and 0 deleted sessions, its logs have put 0 and 0"},
	} {
		kv, logs := made()
		test.change(kv, logs)
		_, ends, err := relog(kv, logs, "n1", "n2")
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
		if err == nil && (len(ends) != 2 || ends[0].End.Pos+ends[1].End.Pos != 3 || ends[0].End.Batch != 2 || ends[1].Node != "n2") {
			t.Errorf("%s: logs %+v", name, ends)
		}
	}
}

// The batches of several logs are in the order of their times. A clock that went back moves no batch before an earlier
// one of its log, and of equal times the log with the lower number is first, so that two copies are the same.
func TestRelogMergesLogsByTime(t *testing.T) {
	kv := &store.MemoryKV{}
	var logs []store.LogEnd
	for log, times := range [][]actor.Time{{10, 5, 30}, {10, 20}, nil} {
		node := actor.NodeID(fmt.Sprint("n", log))
		w := store.NewWriter(store.WriterConfig{Node: node})
		rows, end := store.Rows{KV: kv, Index: store.NewIndex(store.IndexConfig{Entries: 1})}, store.Mark{}
		for n, at := range times {
			w.Append([]store.Entry{{Actor: actor.NewID("a", fmt.Sprintf("%d-%d", log, n)), Shard: uint16(log), Epoch: 1, N: 1, Record: store.Rebased{At: at}}})
			b, _ := w.Next()
			if err := rows.Append(&b); err != nil {
				t.Fatal(err)
			}
			w.Written(b.No)
			end = b.Mark()
		}
		logs = append(logs, store.LogEnd{Node: node, Anchor: store.Anchor{End: end}})
	}
	var first []string
	for range 2 {
		var order, rows []string
		r := store.Relog{KV: kv, From: logs, To: []actor.NodeID{"m0", "m1"}, ShardOf: shardOfKey,
			Passed: func(from actor.NodeID, batch uint64, last []uint64) {
				order = append(order, fmt.Sprintf("%s %d %d", from, batch, last))
			}}
		if _, err := r.Rows(func(r store.Row) error { rows = append(rows, fmt.Sprintf("%s %x", r.Key, r.Value)); return nil }); err != nil {
			t.Fatal(err)
		}
		if want := []string{"n0 1 [1 0]", "n0 2 [2 0]", "n1 1 [2 1]", "n1 2 [2 2]", "n0 3 [3 2]"}; !reflect.DeepEqual(order, want) {
			t.Errorf("the batches were copied in the order %q, want %q", order, want)
		}
		if first != nil && !reflect.DeepEqual(rows, first) {
			t.Errorf("a second copy has other rows")
		}
		first = rows
	}
}
