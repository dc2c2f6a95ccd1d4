// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// Finding is one defect of a store.
type Finding struct {
	Where string // key or file
	What  string
	Lost  string // data that cannot be read because of the defect; empty if none
}

// FindingsMax is the maximum number of retained findings. Further findings are only
// counted.
const FindingsMax = 1000

// Examination is the result of Examine.
type Examination struct {
	End      Mark // last batch of the chain that could be decoded
	Batches  uint64
	Payloads uint64
	Actors   uint64
	Entries  uint64
	Open     uint64 // open runs
	Runs     uint64
	Events   uint64
	Blobs    uint64
	Bytes    uint64 // total size of keys and values
	Unused   uint64 // blobs without a reference
	Wrong    uint64 // number of findings, including those not retained
	Findings []Finding
}

// Examine checks every key of a store:
//
//   - the chain from its start, and every payload against its digest
//   - the journal of every actor
//   - the indexes against the journals
//
// Unlike VerifyAll, Examine continues after a defect and reports all defects. It does
// not modify the store. The callback event validates the body of a run event. The
// callback progress is called every 4,096 keys with the number of keys read so far.
// Either callback may be nil.
func Examine(kv KV, node actor.NodeID, anchor Mark, event func(body []byte) error, progress func(keys uint64)) (Examination, error) {
	x := examiner{kv: kv, node: node, anchor: anchor, event: event, progress: progress,
		due: map[string]bool{}, used: map[string]bool{}, owners: map[actor.CallID]RunOwner{}, lastEvents: map[actor.CallID]lastEvent{}}
	for _, check := range []func() error{x.checkChain, x.checkActors, x.checkRuns, x.checkEvents, x.checkIndex, x.checkBlobs, x.checkUnknownKeys} {
		if err := check(); err != nil {
			return x.Examination, err
		}
	}
	return x.Examination, nil
}

type examiner struct {
	Examination
	kv         KV
	node       actor.NodeID
	anchor     Mark
	event      func([]byte) error
	progress   func(uint64)
	keys       uint64
	due        map[string]bool            // expected keys of the expiry index
	used       map[string]bool            // keys of referenced blobs
	owners     map[actor.CallID]RunOwner  // owners of runs according to the journals
	lastEvents map[actor.CallID]lastEvent // last event of each run according to the journals
}

// lastEvent is the number of a run's last event, and the entry and actor that hold it.
type lastEvent struct {
	seq   uint64
	entry uint64
	actor actor.ID
}

func (x *examiner) report(where []byte, lost, format string, args ...any) {
	x.Wrong++
	if len(x.Findings) < FindingsMax {
		x.Findings = append(x.Findings, Finding{string(where), fmt.Sprintf(format, args...), lost})
	}
}

// scan calls the callback each for all keys of a prefix and counts these keys. The
// prefix MUST end in a slash.
func (x *examiner) scan(prefix []byte, each func(key, value []byte)) error {
	return x.kv.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		x.Bytes += uint64(len(key) + len(value))
		if x.keys++; x.progress != nil && x.keys%4096 == 0 {
			x.progress(x.keys)
		}
		each(key, value)
		return true
	})
}

// checkChain checks the batches of the node. It continues after gaps.
func (x *examiner) checkChain() error {
	prefix := nodeKey(x.node)
	next, intact := uint64(1), true
	err := x.scan(prefix, func(key, value []byte) {
		no, err := lastNumber(key, len(prefix))
		if err != nil {
			x.report(key, "", "%v", err)
			return
		}
		if no != next {
			x.report(batchKey(x.node, next), "", "batch %d is missing, the next is %d: its entries cannot be verified", next, no)
			intact = false
		}
		next = no + 1
		x.Batches++
		r, err := decodeBatch(value)
		if err != nil {
			x.report(key, "", "batch %d: %v", no, err)
			intact = false
			return
		}
		if intact && (r.prev != x.End.Hash || r.from != x.End.Pos) {
			x.report(key, "", "batch %d does not follow the previous batch", no)
		}
		for _, p := range r.payloads {
			x.Payloads++
			if err := verifyPayload(x.kv, x.node, no, p); err != nil {
				x.report(p.Key, lossOf(p.Key), "batch %d: %v", no, err)
			}
		}
		x.End, intact = Mark{no, r.to, actor.HashOf(value)}, true
		if no == x.anchor.Batch && x.End != x.anchor {
			x.report(key, "", "batch %d does not match the anchor", no)
		}
	})
	if err == nil && x.End.Batch < x.anchor.Batch {
		x.report(batchKey(x.node, x.End.Batch+1), fmt.Sprintf("the batches %d to %d, which had been acknowledged", x.End.Batch+1, x.anchor.Batch),
			"the log ends at batch %d, before its anchor at batch %d", x.End.Batch, x.anchor.Batch)
	}
	return err
}

// lossOf describes the data that is lost with the value of a key.
func lossOf(key []byte) string {
	parts := strings.Split(string(key), "/")
	switch {
	case len(parts) == 6 && parts[0] == "t" && parts[2] == "a":
		return fmt.Sprintf("the state of %s from there on", actor.ID{Tenant: parts[1], Agent: parts[3], Key: parts[4]})
	case len(parts) == 5 && parts[2] == "e":
		return "events of run " + parts[3]
	case len(parts) == 4 && parts[2] == "r":
		return "the owner of run " + parts[3]
	case len(parts) == 4 && parts[2] == "b":
		return "content referenced by an entry"
	}
	return ""
}

// checkActors reads the entries of every actor, including those before its snapshot,
// and checks its journal.
func (x *examiner) checkActors() error {
	var id actor.ID
	var entries []Entry
	var snapshot *Entry
	flush := func() {
		if id != (actor.ID{}) {
			x.checkActor(id, entries, snapshot)
		}
		entries, snapshot = nil, nil
	}
	err := x.scan([]byte("t/"), func(key, value []byte) {
		parts := strings.Split(string(key), "/")
		if len(parts) != 6 || parts[2] != "a" {
			return
		}
		of := actor.ID{Tenant: parts[1], Agent: parts[3], Key: parts[4]}
		if of != id {
			flush()
			id = of
		}
		err := readEntries(id, key, value, func(h actor.Hash) ([]byte, error) {
			x.used[string(blobKey(id.Tenant, h))] = true
			return loadBlob(x.kv, id.Tenant, h)
		}, func(e Entry) error {
			if _, ok := e.Record.(Snapshot); ok {
				snapshot = &e
				return nil
			}
			x.Entries++
			for _, ev := range e.Events {
				if ev.Seq > x.lastEvents[ev.Run].seq {
					x.lastEvents[ev.Run] = lastEvent{ev.Seq, e.N, id}
				}
			}
			if a, ok := e.Record.(Accepted); ok {
				x.owners[a.Call.ID] = RunOwner{Run: a.Call.ID, Root: a.Call.Root, Actor: id}
			}
			entries = append(entries, e)
			return nil
		})
		if err != nil {
			x.report(key, lossOf(key), "%v", err)
		}
	})
	flush()
	return err
}

// checkActor folds one journal from its snapshot, or from the first entry without one.
// It checks that the entry named by each evicted outcome holds that outcome.
func (x *examiner) checkActor(id actor.ID, entries []Entry, snapshot *Entry) {
	x.Actors++
	saved, shard := Saved{Entries: entries}, uint16(0)
	if len(entries) > 0 {
		shard = entries[len(entries)-1].Shard
	}
	if snapshot != nil {
		body, _ := snapshot.Record.(Snapshot)
		saved.Snapshot, shard = body.Journal, snapshot.Shard
		saved.Entries = slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.N <= snapshot.N })
	}
	journal, err := Fold(saved)
	if err != nil {
		x.report(actorKey(id), "the state of "+id.String(), "its entries cannot be folded: %v", err)
		return
	}
	if snapshot != nil && journal.N != snapshot.N+uint64(len(saved.Entries)) {
		x.report(snapshotKey(id), "", "holds the state after %d entries, want %d", journal.N-uint64(len(saved.Entries)), snapshot.N)
	}
	for i := range journal.Evicted {
		a := &journal.Evicted[i]
		at, ok := slices.BinarySearchFunc(entries, a.N, func(e Entry, n uint64) int { return cmp.Compare(e.N, n) })
		var outcome Ended
		if ok {
			outcome, _ = entries[at].Record.(Ended)
		}
		if outcome.Call != a.Call {
			x.report(entryKey(id, a.N), fmt.Sprintf("the outcome of call %s", a.Call), "holds no outcome of call %s, although the snapshot refers to it", a.Call)
		}
	}
	x.Open += uint64(len(journal.Runs))
	if due := journal.Due(); due != 0 {
		x.due[string(dueKey(shard, due, id))] = true
	}
}

// checkRuns compares the owners of runs with the journals.
func (x *examiner) checkRuns() error {
	seen := map[actor.CallID]bool{}
	err := x.scan([]byte("t/"), func(key, value []byte) {
		parts := strings.Split(string(key), "/")
		if len(parts) != 4 || parts[2] != "r" {
			return
		}
		run, err := actor.ParseCallID(parts[3])
		if err != nil {
			x.report(key, "", "%v", err)
			return
		}
		x.Runs++
		owner, root, err := decodeOwner(value)
		switch of, known := x.owners[run]; {
		case err != nil:
			x.report(key, lossOf(key), "%v", err)
		case known && owner != of.Actor:
			x.report(key, "", "names owner %s, want %s", owner, of.Actor)
		case known && root != of.Root:
			x.report(key, "", "names root %s, want %s", root, of.Root)
		}
		seen[run] = true
	})
	for _, run := range slices.SortedFunc(maps.Keys(x.owners), actor.CallID.Compare) {
		if !seen[run] {
			x.report(runKey(x.owners[run].Actor.Tenant, run), "the owner of run "+run.String(), "is missing; the run belongs to %s", x.owners[run].Actor)
		}
	}
	return err
}

// checkEvents checks that the events of each run are dense and reach the last event
// number in the run's entries. It passes the bodies of the events to x.event.
func (x *examiner) checkEvents() error {
	var run actor.CallID
	next := uint64(1)
	end := func() {
		if last, ok := x.lastEvents[run]; ok && last.seq >= next {
			x.report(eventKey(last.actor.Tenant, run, next), "events of run "+run.String(), "is missing; entry %d of %s has event %d", last.entry, last.actor, last.seq)
		}
		delete(x.lastEvents, run)
	}
	err := x.scan([]byte("t/"), func(key, value []byte) {
		parts := strings.Split(string(key), "/")
		if len(parts) != 5 || parts[2] != "e" {
			return
		}
		of, err := actor.ParseCallID(parts[3])
		if err != nil {
			x.report(key, "", "%v", err)
			return
		}
		if of != run {
			end()
			run, next = of, 1
		}
		err = readEvents(key, len(key)-len(parts[4]), value, func(seq uint64, body []byte) error {
			x.Events++
			if seq != next {
				x.report(key, "earlier events of the run", "event %d of run %s is missing, the next is %d", next, run, seq)
			}
			next = seq + 1
			if x.event == nil {
				return nil
			}
			return x.event(body)
		})
		if err != nil {
			x.report(key, lossOf(key), "%v", err)
		}
	})
	end()
	for _, of := range slices.SortedFunc(maps.Keys(x.lastEvents), actor.CallID.Compare) {
		run, next = of, 1
		end()
	}
	return err
}

// checkIndex compares the expiry index with the open runs.
func (x *examiner) checkIndex() error {
	err := x.scan([]byte("x/"), func(key, _ []byte) {
		if !x.due[string(key)] {
			x.report(key, "", "the expiry index has an actor without an open run due then")
		}
		delete(x.due, string(key))
	})
	for _, key := range slices.Sorted(maps.Keys(x.due)) {
		x.report([]byte(key), "", "the expiry index lacks an actor with open runs: they would not resume after a restart")
	}
	return err
}

// checkBlobs checks the hash of each blob and counts the blobs without a reference.
func (x *examiner) checkBlobs() error {
	return x.scan([]byte("t/"), func(key, value []byte) {
		parts := strings.Split(string(key), "/")
		if len(parts) != 4 || parts[2] != "b" {
			return
		}
		x.Blobs++
		if !x.used[string(key)] {
			x.Unused++
		}
		_, _, content, err := unseal(value)
		if err == nil && actor.HashOf(content).String() != parts[3] {
			err = fmt.Errorf("does not match the hash in its key")
		}
		if err != nil {
			x.report(key, lossOf(key), "%v", err)
		}
	})
}

// checkUnknownKeys reports keys of no known kind.
func (x *examiner) checkUnknownKeys() error {
	return x.kv.Scan([]byte{0}, []byte{0xff}, func(key, _ []byte) bool {
		parts := strings.Split(string(key), "/")
		family := ""
		if parts[0] == "t" && len(parts) > 2 {
			family = parts[2]
		}
		switch {
		case string(key) == FormatKey, parts[0] == "n" && len(parts) == 3:
		case parts[0] == "x" && len(parts) == 6:
		case family == "a" && len(parts) == 6, family == "e" && len(parts) == 5, (family == "r" || family == "b") && len(parts) == 4:
		default:
			x.report(key, "", "unknown kind of key")
		}
		return true
	})
}
