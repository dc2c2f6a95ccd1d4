// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/mutant"
)

// LoadActor reads what a KV holds of an actor. Blobs are put back in their
// places; of the entries' events only run and number come along. What is damaged
// or missing is an error that names its key.
func LoadActor(kv KV, id actor.ID) (Saved, error) {
	blob := func(h actor.Hash) ([]byte, error) { return loadBlob(kv, id.Tenant, h) }
	var saved Saved
	n := uint64(0)
	if value, ok, err := kv.Get(snapshotKey(id)); err != nil {
		return Saved{}, err
	} else if ok {
		e, err := readEntry(id, snapshotKey(id), value, blob)
		if err != nil {
			return Saved{}, err
		}
		s, ok := e.Record.(Snapshot)
		if !ok {
			return Saved{}, fmt.Errorf("key %s: holds %T, not a snapshot", snapshotKey(id), e.Record)
		}
		saved.Snapshot, n = s.Journal, e.N
	}
	var wrong error
	prefix := len(actorKey(id))
	err := kv.Scan(entryKey(id, n+1), snapshotKey(id), func(key, value []byte) bool {
		at, err := lastNumber(key, prefix)
		if err != nil {
			wrong = err
		} else if n++; at != n {
			wrong = fmt.Errorf("key %s: is missing, the next is %s", entryKey(id, n), key)
		} else if e, err := readEntry(id, key, value, blob); err != nil {
			wrong = err
		} else if e.N != n {
			wrong = fmt.Errorf("key %s: holds entry %d", key, e.N)
		} else {
			saved.Entries = append(saved.Entries, e)
		}
		return wrong == nil
	})
	if wrong != nil {
		err = wrong
	}
	if err != nil {
		return Saved{}, err
	}
	return saved, nil
}

func readEntry(id actor.ID, key, value []byte, blob func(actor.Hash) ([]byte, error)) (Entry, error) {
	_, _, content, err := unseal(value)
	if err != nil {
		return Entry{}, fmt.Errorf("key %s: %w", key, err)
	}
	e, err := unpackEntry(content, blob)
	if err != nil {
		return Entry{}, fmt.Errorf("key %s: %w", key, err)
	}
	if e.Actor != id {
		return Entry{}, fmt.Errorf("key %s: holds an entry of %s", key, e.Actor)
	}
	return e, nil
}

// loadBlob reads content by its name, and sees that it is that content.
func loadBlob(kv KV, tenant string, name actor.Hash) ([]byte, error) {
	key := blobKey(tenant, name)
	value, ok, err := kv.Get(key)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("blob %s is missing", key)
	}
	_, _, content, err := unseal(value)
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", key, err)
	}
	if actor.HashOf(content) != name {
		return nil, fmt.Errorf("blob %s holds other content", key)
	}
	return bytes.Clone(content), nil
}

// Fold makes an actor's journal of what was saved of it.
func Fold(saved Saved) (Journal, error) {
	var j Journal
	if saved.Snapshot != nil {
		var err error
		if j, err = DecodeJournal(saved.Snapshot); err != nil {
			return Journal{}, err
		}
	}
	for _, e := range saved.Entries {
		if err := j.ApplyEntry(e); err != nil {
			return Journal{}, fmt.Errorf("%s: %w", e.Actor, err)
		}
	}
	if mutant.On("key-forgotten-at-restart") {
		for i := range j.Ended {
			j.Ended[i].Idempotency = actor.Idempotency{}
		}
	}
	return j, nil
}

// DueActors lists the actors of these shards that have open work.
func DueActors(kv KV, shards []uint16) ([]actor.ID, error) {
	if len(shards) == 0 {
		return nil, nil
	}
	wanted := make([]bool, int(slices.Max(shards))+1)
	for _, s := range shards {
		wanted[s] = true
	}
	var ids []actor.ID
	var wrong error
	err := kv.Scan(shardKey(slices.Min(shards)), after(shardKey(slices.Max(shards))), func(key, _ []byte) bool {
		shard, id, err := parseDueKey(key)
		if err != nil {
			wrong = err
			return false
		}
		if int(shard) < len(wanted) && wanted[shard] {
			ids = append(ids, id)
		}
		return true
	})
	if wrong != nil {
		err = wrong
	}
	return ids, err
}

// RunOwner says whose run a run is, and under which root.
type RunOwner struct {
	Run   actor.CallID
	Root  actor.CallID
	Actor actor.ID
}

// ActorOf finds the actor that accepted a run.
func ActorOf(kv KV, tenant string, run actor.CallID) (owner RunOwner, ok bool, err error) {
	value, ok, err := kv.Get(runKey(tenant, run))
	if !ok || err != nil {
		return RunOwner{}, false, err
	}
	id, root, err := decodeOwner(value)
	if err != nil {
		return RunOwner{}, false, fmt.Errorf("key %s: %w", runKey(tenant, run), err)
	}
	return RunOwner{run, root, id}, true, nil
}

// Events reads at most limit events of a run behind the one numbered after.
func Events(kv KV, tenant string, run actor.CallID, from uint64, limit int) ([]RunEvent, error) {
	prefix := eventsKey(tenant, run)
	var events []RunEvent
	var wrong error
	err := kv.Scan(eventKey(tenant, run, from+1), after(prefix), func(key, value []byte) bool {
		if len(events) >= limit {
			return false
		}
		seq, err := lastNumber(key, len(prefix))
		if err != nil {
			wrong = err
			return false
		}
		_, _, body, err := unseal(value)
		if err != nil {
			wrong = fmt.Errorf("key %s: %w", key, err)
			return false
		}
		if want := from + uint64(len(events)) + 1; seq != want {
			wrong = fmt.Errorf("key %s: is missing, the next is %s", eventKey(tenant, run, want), key)
			return false
		}
		events = append(events, RunEvent{run, seq, bytes.Clone(body)})
		return true
	})
	if wrong != nil {
		err = wrong
	}
	return events, err
}

// Runs lists the newest runs of a tenant, newest first; the roots alone, if so wished.
// Their ids grow with time, so it reads no further back than it must.
func Runs(kv KV, tenant string, limit int, roots bool) ([]RunOwner, error) {
	return RunsBefore(kv, tenant, actor.CallID{}, limit, roots)
}

// RunsBefore is Runs that are older than one of them; zero stands for one to come.
func RunsBefore(kv KV, tenant string, run actor.CallID, limit int, roots bool) ([]RunOwner, error) {
	prefix := tenantKey(tenant, 'r')
	to := after(prefix)
	if !run.IsZero() {
		to = runKey(tenant, run)
	}
	var newest []RunOwner
	var wrong error
	err := kv.ScanBack(prefix, to, func(key, value []byte) bool {
		if len(newest) >= limit {
			return false
		}
		run, err := actor.ParseCallID(string(key[len(prefix):]))
		if err != nil {
			wrong = fmt.Errorf("key %s: %w", key, err)
			return false
		}
		id, root, err := decodeOwner(value)
		if err != nil {
			wrong = fmt.Errorf("key %s: %w", key, err)
			return false
		}
		if !roots || root == run {
			newest = append(newest, RunOwner{run, root, id})
		}
		return true
	})
	if wrong != nil {
		err = wrong
	}
	if err != nil {
		return nil, err
	}
	return newest, nil
}

// CheckFormat refuses a KV that another version of this format has laid down.
// An empty one is for FormatRow to begin.
func CheckFormat(kv KV) error {
	value, ok, err := kv.Get([]byte(FormatKey))
	if err != nil {
		return err
	}
	if want := FormatRow().Value; ok && !bytes.Equal(value, want) && !mutant.On("newer-format-read") {
		return fmt.Errorf("store of format %.20q, this program reads format %s", value, want)
	}
	return nil
}

// FormatRow says which format the keys and values are of.
func FormatRow() Row {
	return Row{Key: []byte(FormatKey), Value: fmt.Append(nil, FormatVersion)}
}
