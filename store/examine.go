// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// Finding is one defect of a store.
type Finding struct {
	Where string // key, range of keys, or file
	What  string
	Lost  string // data that cannot be read because of the defect; empty if none
}

// Bounds of Examine.
const (
	// FindingsMax is the maximum number of retained findings. Further findings are
	// only counted.
	FindingsMax = 1000
	// unreadableMax is the number of unreadable ranges at which Examine ends.
	unreadableMax = 10_000
	// referencesMax is the maximum number of referenced blobs that are remembered. Above
	// it, no blob is counted as unused.
	referencesMax = 1 << 21
)

// Examination is the result of Examine.
type Examination struct {
	End        Mark // last batch of the chain that could be decoded; of several logs the sums, without a hash
	Batches    uint64
	Payloads   uint64
	Actors     uint64
	Entries    uint64
	Open       uint64 // open runs
	Runs       uint64
	Events     uint64
	Blobs      uint64
	Bytes      uint64 // total size of keys and values
	Unused     uint64 // blobs without a reference
	Unreadable uint64 // ranges of keys that the disk cannot read
	Wrong      uint64 // number of findings, including those not retained
	Findings   []Finding
}

// Examine checks every key of a store:
//
//   - the chain from its start, and every payload against its digest
//   - the journal of every actor
//   - the indexes against the journals and the log
//
// Unlike VerifyAll, Examine continues after a defect and reports all defects. It does
// not modify the store. It holds at most one batch, the open runs of one actor without
// their content, and the index of the end of the log. If the index lacks more than
// recoveredFlushes flushes, Examine checks the logs only, and reports that.
//
// The logs are those of the store, by number, with what is known of their ends.
//
// The callback event validates the body of a run event. The callback progress is called
// every 4,096 keys with the number of keys read so far. Either callback may be nil.
func Examine(kv KV, logs []LogEnd, event func(body []byte) error, progress func(keys uint64)) (Examination, error) {
	x := examiner{logs: logs, event: event, progress: progress, index: NewIndex(IndexConfig{}),
		due: map[string]bool{}, references: map[uint64]struct{}{}}
	x.kv = readableKV{kv, &unreadableKeys{report: x.reportUnreadable, scanned: map[string]bool{}}}
	for _, check := range []func() error{x.checkLogs, x.checkActors, x.checkRuns, x.checkEvents, x.checkDue, x.checkBlobs, x.checkDropped, x.checkTombstones, x.checkUnknownKeys} {
		if err := check(); err != nil {
			return x.Examination, err
		}
		if x.Unreadable >= unreadableMax {
			x.report([]byte("l/"), "the rest of the store is not examined", "%d ranges of keys cannot be read", unreadableMax)
			break
		}
		if err := x.index.tooLong(logs[0].Node); err != nil {
			x.report(watermarkKey(logs[0].Node), "the rest of the store is not examined", "%v", err)
			break
		}
	}
	return x.Examination, nil
}

type examiner struct {
	Examination
	kv         readableKV
	logs       []LogEnd
	event      func([]byte) error
	progress   func(uint64)
	keys       uint64
	index      *Index              // of the end of the logs
	due        map[string]bool     // expected keys of the expiry index
	references map[uint64]struct{} // prefixes of the hashes of the keys of referenced blobs
	logged     uint64              // entries in the logs
	accepted   uint64              // runs accepted by the entries
	told       uint64              // run events in the entries
	losses     uint64              // findings of lost data
	cut        bool                // the log of a node does not begin at its first batch
	cutAt      actor.Time          // time of the last Cut in the logs
	deleted    map[tenantSession]bool
}

func (x *examiner) rows() Rows { return Rows{KV: x.kv, Index: x.index} }

func (x *examiner) report(where []byte, lost, format string, args ...any) {
	x.Wrong++
	if lost != "" {
		x.losses++
	}
	if len(x.Findings) < FindingsMax {
		x.Findings = append(x.Findings, Finding{string(where), fmt.Sprintf(format, args...), lost})
	}
}

// scan calls the callback each for all keys of a prefix and counts these keys. The
// prefix MUST end in a slash.
func (x *examiner) scan(prefix []byte, each func(key, value []byte)) error {
	return x.kv.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		x.count(key, value)
		each(key, value)
		return true
	})
}

func (x *examiner) reportUnreadable(from, to []byte, err error) {
	x.Unreadable++
	x.report(fmt.Appendf(nil, "keys from %q to %q", from, to), "the values of these keys", "cannot be read: %v", err)
}

func (x *examiner) count(key, value []byte) {
	x.Bytes += uint64(len(key) + len(value))
	if x.keys++; x.progress != nil && x.keys%4096 == 0 {
		x.progress(x.keys)
	}
}

// checkLogs checks the logs of all nodes, and recovers the index of their ends. It continues
// after gaps.
func (x *examiner) checkLogs() error {
	nodes, err := logNodes(x.kv)
	if err != nil {
		return err
	}
	x.deleted = map[tenantSession]bool{}
	err = x.rows().eachTombstone(func(t tombstone) bool {
		x.deleted[t.tenantSession] = t.stage >= stageDeleted
		return true
	})
	if err != nil {
		x.report([]byte("t/"), "", "%v", err)
	}
	for _, l := range x.logs {
		if !slices.Contains(nodes, l.Node) {
			nodes = append(nodes, l.Node)
		}
	}
	for _, node := range nodes {
		if err := x.checkLog(node); err != nil {
			return err
		}
	}
	if err := x.index.order(x.kv); err != nil {
		x.report([]byte("l/"), "", "the index cannot be completed: %v", err)
	}
	return nil
}

// checkLog checks the log of a node. It compares the chain with the anchor only for the
// logs of the store, because the anchors of others are not known.
func (x *examiner) checkLog(node actor.NodeID) error {
	log := slices.IndexFunc(x.logs, func(l LogEnd) bool { return l.Node == node })
	var anchor Mark
	if log >= 0 {
		anchor = x.logs[log].End
	}
	watermark, ok, err := readWatermark(x.kv, node)
	mark := watermark.batch
	if err != nil {
		x.report(watermarkKey(node), "", "%v", err)
	}
	if !ok {
		mark, _ = lastIndexed(x.kv, node) // damaged rows are reported with their actors
		if err == nil && mark > 0 {
			x.report(watermarkKey(node), "", "is missing, but the rows of the index cover batch %d", mark)
		}
	}
	end, err := Origin(x.kv, node)
	if err != nil {
		x.report(OriginKey(node), "", "%v", err)
	}
	x.cut = x.cut || end.Batch > 0
	next, intact := end.Batch+1, true
	err = scanLog(countedKV{x.kv, x}, node, 1, func(b *storedBatch) bool {
		key := partKey(node, b.no, 0)
		if b.no != next {
			x.report(partKey(node, next, 0), "", "batch %d is missing, the next is %d: its entries cannot be verified", next, b.no)
			intact = false
		}
		next = b.no + 1
		x.Batches++
		if b.err != nil {
			x.report(key, "entries of batch "+fmt.Sprint(b.no), "batch %d: %v", b.no, b.err)
		}
		if b.no > mark && x.index.tooLong(node) == nil {
			if err := x.index.addStored(x.kv, node, b, false); err != nil {
				x.report(key, "", "the index cannot be completed: %v", err)
			}
		}
		x.countGroups(node, log, b)
		r, err := decodeBatch(b.record)
		if err != nil {
			x.report(key, "", "batch %d: %v", b.no, err)
			intact = false
			return true
		}
		if intact && (r.prev != end.Hash || r.from != end.Pos) {
			x.report(key, "", "batch %d does not follow the previous batch", b.no)
		}
		x.Payloads += uint64(len(r.payloads))
		err = r.verifyPayloads(x.kv, node, b, func(key []byte, err error) bool {
			x.report(key, lossOf(key), "batch %d: %v", b.no, err)
			return true
		})
		if err != nil {
			x.report(key, "", "batch %d: %v", b.no, err)
		}
		end, intact = Mark{b.no, r.to, actor.HashOf(b.record)}, true
		if b.no == anchor.Batch && end != anchor {
			x.report(key, "", "batch %d does not match the anchor", b.no)
		}
		return true
	})
	if err == nil && mark >= next {
		x.report(watermarkKey(node), "", "the index covers batch %d, the log ends at batch %d", mark, next-1)
	}
	if log < 0 || err != nil {
		return err
	}
	if len(x.logs) == 1 {
		x.End = end
	} else {
		x.End.Batch, x.End.Pos = x.End.Batch+end.Batch, x.End.Pos+end.Pos
	}
	if end.Batch < anchor.Batch {
		x.report(partKey(node, end.Batch+1, 0), fmt.Sprintf("the batches %d to %d, which had been acknowledged", end.Batch+1, anchor.Batch),
			"the log ends at batch %d, before its anchor at batch %d", end.Batch, anchor.Batch)
	}
	return nil
}

// countedKV counts the keys that a scan passes.
type countedKV struct {
	KV
	x *examiner
}

// Scan implements KV.
func (k countedKV) Scan(from, to []byte, each func(key, value []byte) bool) error {
	return k.KV.Scan(from, to, func(key, value []byte) bool {
		k.x.count(key, value)
		return each(key, value)
	})
}

// countGroups counts the entries of a batch and the blobs that they refer to.
func (x *examiner) countGroups(node actor.NodeID, log int, b *storedBatch) {
	for i, group := range b.groups {
		content, err := openGroup(group)
		if err == nil {
			err = unpackEntries(content, noBlob, func(e Entry) error {
				if c, ok := e.Record.(Cut); ok {
					x.cutAt = max(x.cutAt, c.At)
				}
				if of := int(LogOf(e.Shard, max(1, len(x.logs)))); log >= 0 && of != log {
					x.report(partKey(node, b.no, b.places[i].Part), "", "batch %d: an entry of %s is in log %d, want log %d", b.no, e.Actor, log, of)
				}
				if of, ok := sessionOf(e.Actor); isNumbered(e.Record) && !(ok && x.deleted[of]) {
					x.logged++
				}
				return nil
			})
		}
		if err != nil && !errors.As(err, new(Gone)) {
			key := partKey(node, b.no, b.places[i].Part)
			x.report(key, lossOf(key), "batch %d: group %d: %v", b.no, b.places[i].Group, err)
		}
	}
}

// lossOf describes the data that is lost with the value of a key.
func lossOf(key []byte) string {
	switch s, ok := parseScoped(key); {
	case ok && s.kind == kindSnapshot:
		return fmt.Sprintf("the state of %s", s.actor)
	case ok && s.kind == kindIndex:
		return fmt.Sprintf("the state of %s from there on", s.actor)
	case ok && s.kind == kindBlob:
		return "content of an entry, and the events that show it"
	case ok && s.kind == kindKept:
		return fmt.Sprintf("the outcome in entry %d of %s", s.n, s.actor)
	}
	parts := strings.Split(string(key), "/")
	switch {
	case parts[0] == "l":
		return "entries of the batch"
	case len(parts) == 5 && parts[2] == "e":
		return "events of run " + parts[3]
	case len(parts) == 4 && parts[2] == "r":
		return "the owner of run " + parts[3]
	}
	return ""
}

// checkActors checks every actor that has an index row or a snapshot, or entries after the
// watermark. Entries that no actor has are missing in the index.
func (x *examiner) checkActors() error {
	var last actor.ID
	losses := x.losses
	inRows := func(id actor.ID) bool {
		found := false
		_ = x.kv.Scan(indexPrefix(id), prefixEnd(indexPrefix(id)), func(_, _ []byte) bool { found = true; return false })
		return found
	}
	for _, family := range []byte("msy") {
		err := x.eachTenant(family, x.scan, func(key, _ []byte) {
			s, ok := parseScoped(key)
			switch {
			case !ok || s.kind == kindBlob:
			case s.kind == kindIndex && s.actor != last:
				last = s.actor
				x.checkActor(last)
			case s.kind != kindSnapshot || inRows(s.actor) || x.index.actors[s.actor] != nil:
			case x.cut:
				x.checkActor(s.actor)
			default:
				x.report(key, "", "is a snapshot of an actor that has no entry")
			}
		})
		if err != nil {
			return err
		}
	}
	for _, id := range x.index.ids {
		if !inRows(id) {
			x.checkActor(id)
		}
	}
	if x.Entries != x.logged && x.losses == losses {
		x.report([]byte("w/"), "the entries that the index does not refer to", "the index refers to %d entries, the logs hold %d", x.Entries, x.logged)
	}
	return nil
}

// eachTenant scans the rows of a family of all tenants.
func (x *examiner) eachTenant(family byte, scan func(prefix []byte, each func(key, value []byte)) error, each func(key, value []byte)) error {
	tenants, err := namesAfter(x.kv, "t/")
	if err != nil {
		return err
	}
	for _, tenant := range tenants {
		if err := scan(tenantKey(tenant, family), each); err != nil {
			return err
		}
	}
	return nil
}

// checkRuns checks that no row names a run that no entry accepted.
func (x *examiner) checkRuns() error {
	wrong := x.Wrong
	err := x.eachTenant('r', x.scan, func(key, value []byte) {
		parts := strings.Split(string(key), "/")
		run, err := actor.ParseCallID(parts[len(parts)-1])
		if err == nil {
			_, err = decodeSummary(run, value)
		}
		if err != nil {
			x.report(key, lossOf(key), "%v", err)
		}
		x.Runs++
	})
	for _, key := range x.index.runIDs {
		if x.index.runs[key].summary == nil {
			continue
		}
		if _, ok, err := x.kv.Get(runKey(key.tenant, key.run)); err == nil && !ok {
			x.Runs++
		}
	}
	if err == nil && (x.Runs < x.accepted || x.Runs > x.accepted && !x.cut) && x.Wrong == wrong {
		x.report([]byte("t/"), "", "the store has owners of %d runs, its entries accepted %d", x.Runs, x.accepted)
	}
	return err
}

// checkEvents checks that the index leads to every event.
func (x *examiner) checkEvents() error {
	reader := groupReader{kv: x.kv}
	wrong := x.Wrong
	var current actor.CallID // run of the last row
	var last uint64          // its last event in a row
	read := func(key []byte, tenant string, run actor.CallID, spans []span) {
		for _, s := range spans {
			n := s.first
			err := reader.numbers(tenant, run, s, func(ev RunEvent) error {
				x.Events++
				if n++; ev.Seq != n-1 {
					return fmt.Errorf("event %d of run %s is missing, the next is %d", n-1, run, ev.Seq)
				}
				return nil
			})
			if err == nil && n != s.last+1 {
				err = fmt.Errorf("event %d of run %s is missing", n, run)
			}
			if err != nil {
				x.report(key, "events of run "+run.String(), "%v", err)
			}
		}
	}
	err := x.eachTenant('e', x.scan, func(key, value []byte) {
		parts := strings.Split(string(key), "/")
		run, err := actor.ParseCallID(parts[min(3, len(parts)-1)])
		var spans []span
		if err == nil {
			spans, err = decodeSpans(value)
		}
		if err == nil {
			var n uint64
			if n, err = lastNumber(key, len(eventsKey(parts[1], run))); err == nil && (len(spans) == 0 || spans[0].first != n) {
				err = errors.New("does not begin with the event in its key")
			}
		}
		if err != nil {
			x.report(key, lossOf(key), "%v", err)
			return
		}
		if run != current {
			current, last = run, 0
		}
		spans = slices.DeleteFunc(spans, func(s span) bool { return s.last <= last }) // also in an earlier row
		read(key, parts[1], run, spans)
		if len(spans) > 0 {
			last = spans[len(spans)-1].last
		}
	})
	for _, key := range x.index.runIDs {
		read(eventsKey(key.tenant, key.run), key.tenant, key.run, x.index.runs[key].events)
	}
	if err == nil && x.Events != x.told && x.Wrong == wrong {
		x.report([]byte("t/"), "", "the index refers to %d run events, the entries hold %d", x.Events, x.told)
	}
	return err
}

// checkDue compares the expiry index with the open runs.
func (x *examiner) checkDue() error {
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
	check := func(key, value []byte) {
		s, ok := parseScoped(key)
		if !ok || s.kind != kindBlob {
			return
		}
		x.Blobs++
		if _, ok := x.references[hashPrefix(actor.HashOf(key))]; !ok && len(x.references) < referencesMax {
			x.Unused++
		}
		_, _, content, err := unseal(value)
		if err == nil && actor.HashOf(content).String() != s.blob {
			err = errors.New("does not match the hash in its key")
		}
		if err != nil {
			x.report(key, lossOf(key), "%v", err)
		}
	}
	counted := func(prefix []byte, each func(key, value []byte)) error { // the keys were counted before
		return x.kv.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool { each(key, value); return true })
	}
	for _, family := range []byte("msy") {
		if err := x.eachTenant(family, counted, check); err != nil {
			return err
		}
	}
	return nil
}

// checkDropped checks the numbers of the last events that were cut.
func (x *examiner) checkDropped() error {
	return x.eachTenant('d', x.scan, func(key, value []byte) {
		parts := strings.Split(string(key), "/")
		run, err := actor.ParseCallID(parts[len(parts)-1])
		if err == nil {
			_, err = decodeDropped(tenantRun{parts[1], run}, value)
		}
		if err != nil {
			x.report(key, "", "%v", err)
		}
	})
}

// checkTombstones checks that the log holds the entry of each deleted session, and that no
// row of the session is left.
func (x *examiner) checkTombstones() error {
	return x.eachTenant('f', x.scan, func(key, value []byte) {
		parts := strings.Split(string(key), "/")
		t, err := decodeTombstone(tenantSession{parts[1], parts[len(parts)-1]}, value)
		if err == nil && t.stage >= stageDeleted {
			err = verifyForgotten(x.kv, t.tenantSession)
		}
		if err != nil {
			x.report(key, "", "%v", err)
			return
		}
		prefix := sessionKey(t.tenant, t.session)
		err = x.kv.Scan(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
			if t.stage >= stageDeleted {
				x.report(key, "", "belongs to a deleted session")
			}
			return false
		})
		if err != nil {
			x.report(prefix, "", "%v", err)
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
		_, scoped := parseScoped(key)
		switch {
		case string(key) == FormatKey, scoped, parts[0] == "l" && len(parts) == 4, (parts[0] == "w" || parts[0] == "o") && len(parts) == 2:
		case parts[0] == "x" && len(parts) == 6:
		case family == "e" && len(parts) == 5, (family == "r" || family == "d" || family == "f") && len(parts) == 4:
		default:
			x.report(key, "", "unknown kind of key")
		}
		return true
	})
}
