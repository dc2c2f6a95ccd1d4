// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
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
	// referencesMax is the maximum number of referenced blobs that are remembered per
	// tenant. Above it, no blob of the tenant is counted as unused.
	referencesMax = 1 << 21
)

// Examination is the result of Examine.
type Examination struct {
	End        Mark // last batch of the chain that could be decoded
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
//   - the indexes against the journals
//
// Unlike VerifyAll, Examine continues after a defect and reports all defects. It does
// not modify the store. It reads all keys in order and holds at most one row, one batch
// record, and the open runs of one actor without their content. The callback event
// validates the body of a run event. The callback progress is called every 4,096 keys
// with the number of keys read so far. Either callback may be nil.
func Examine(kv KV, node actor.NodeID, anchor Mark, event func(body []byte) error, progress func(keys uint64)) (Examination, error) {
	x := examiner{kv: kv, node: node, anchor: anchor, event: event, progress: progress,
		chain: chainExaminer{intact: true}, references: map[uint64]struct{}{}}
	origin, err := Origin(kv)
	if err != nil {
		x.report([]byte(OriginKey), "", "%v", err)
	}
	x.End, x.chain.next = origin, origin.Batch+1
	x.scan()
	x.endActor()
	if x.End.Batch < anchor.Batch {
		x.report(batchKey(node, x.End.Batch+1), fmt.Sprintf("the batches %d to %d, which had been acknowledged", x.End.Batch+1, anchor.Batch),
			"the log ends at batch %d, before its anchor at batch %d", x.End.Batch, anchor.Batch)
	}
	if x.indexed != x.due {
		x.findUnexpected()
	}
	return x.Examination, nil
}

type examiner struct {
	Examination
	kv       KV
	node     actor.NodeID
	anchor   Mark
	event    func([]byte) error
	progress func(uint64)
	keys     uint64

	chain  chainExaminer
	actor  *actorExaminer // actor being read; nil before the first one
	events eventExaminer

	tenant     string              // tenant of references
	references map[uint64]struct{} // prefixes of the hashes of referenced blobs
	due        uint64              // actors with open runs that the expiry index has
	indexed    uint64              // keys of the expiry index
}

func (x *examiner) report(where []byte, lost, format string, args ...any) {
	x.Wrong++
	if len(x.Findings) < FindingsMax {
		x.Findings = append(x.Findings, Finding{string(where), fmt.Sprintf(format, args...), lost})
	}
}

// scan passes all keys in order to the method key. If the disk cannot read a range of
// keys, scan reports the range and continues behind it.
func (x *examiner) scan() {
	from, to := []byte("\x00"), []byte("\xff")
	for {
		last := slices.Clone(from)
		err := x.kv.Scan(from, to, func(key, value []byte) bool {
			last = append(last[:0], key...)
			x.Bytes += uint64(len(key) + len(value))
			if x.keys++; x.progress != nil && x.keys%4096 == 0 {
				x.progress(x.keys)
			}
			x.key(key, value)
			return true
		})
		if err == nil {
			return
		}
		from = nextReadable(x.kv, last, to)
		x.Unreadable++
		x.report(fmt.Appendf(nil, "keys from %q to %q", last, from), "the values of these keys", "cannot be read: %v", err)
		if bytes.Equal(from, to) {
			return
		}
		if x.Unreadable == unreadableMax {
			x.report(from, "nothing after this key is examined", "%d ranges of keys cannot be read", unreadableMax)
			return
		}
	}
}

// key checks one key by its kind.
func (x *examiner) key(key, value []byte) {
	parts := strings.Split(string(key), "/")
	family := ""
	if parts[0] == "t" && len(parts) > 2 {
		if family = parts[2]; parts[1] != x.tenant {
			x.tenant, x.references = parts[1], map[uint64]struct{}{}
		}
	}
	switch {
	case string(key) == FormatKey, string(key) == OriginKey:
	case parts[0] == "n" && len(parts) == 3:
		if parts[1] == string(x.node) {
			x.checkBatch(key, value)
		}
	case family == "a" && len(parts) == 6:
		x.checkActorRow(actor.ID{Tenant: parts[1], Agent: parts[3], Key: parts[4]}, key, value, parts[5] == "s")
	case family == "b" && len(parts) == 4:
		x.checkBlob(key, value, parts[3])
	case family == "e" && len(parts) == 5:
		x.checkEvents(key, value, parts[3], len(key)-len(parts[4]))
	case family == "r" && len(parts) == 4:
		x.checkOwner(key, value, parts[3])
	case parts[0] == "x" && len(parts) == 6:
		x.indexed++
	default:
		x.report(key, "", "unknown kind of key")
	}
}

// chainExaminer is the position of an examination in the chain of batches.
type chainExaminer struct {
	next   uint64 // number of the next batch
	intact bool   // whether the previous batch could be decoded
}

// checkBatch checks the next batch of the node and its payloads.
func (x *examiner) checkBatch(key, value []byte) {
	c := &x.chain
	no, err := lastNumber(key, len(nodeKey(x.node)))
	if err != nil {
		x.report(key, "", "%v", err)
		return
	}
	if no != c.next {
		x.report(batchKey(x.node, c.next), "", "batch %d is missing, the next is %d: its entries cannot be verified", c.next, no)
		c.intact = false
	}
	c.next = no + 1
	x.Batches++
	r, err := decodeBatch(value)
	if err != nil {
		x.report(key, "", "batch %d: %v", no, err)
		c.intact = false
		return
	}
	if c.intact && (r.prev != x.End.Hash || r.from != x.End.Pos) {
		x.report(key, "", "batch %d does not follow the previous batch", no)
	}
	for _, p := range r.payloads {
		x.Payloads++
		if err := verifyPayload(x.kv, x.node, no, p); err != nil {
			x.report(p.Key, lossOf(p.Key), "batch %d: %v", no, err)
		}
	}
	x.End, c.intact = Mark{no, r.to, actor.HashOf(value)}, true
	if no == x.anchor.Batch && x.End != x.anchor {
		x.report(key, "", "batch %d does not match the anchor", no)
	}
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

// checkOwner checks the owner of a run. The examination of the actor that accepted the
// run has compared it with the entry.
func (x *examiner) checkOwner(key, value []byte, run string) {
	id, err := actor.ParseCallID(run)
	if err != nil {
		x.report(key, "", "%v", err)
		return
	}
	x.Runs++
	if _, err := decodeSummary(id, value); err != nil {
		x.report(key, lossOf(key), "%v", err)
	}
}

// eventExaminer is the position of an examination in the events of a run.
type eventExaminer struct {
	run  actor.CallID
	next uint64 // number of the next event
}

// checkEvents checks that the events of a run are dense, and passes their bodies to
// x.event. The argument prefix is the length of the key before the number.
func (x *examiner) checkEvents(key, value []byte, run string, prefix int) {
	of, err := actor.ParseCallID(run)
	if err != nil {
		x.report(key, "", "%v", err)
		return
	}
	v := &x.events
	if of != v.run {
		*v = eventExaminer{of, 1}
	}
	err = readEvents(key, prefix, value, func(seq uint64, body []byte) error {
		x.Events++
		if seq != v.next {
			x.report(key, "earlier events of the run", "event %d of run %s is missing, the next is %d", v.next, of, seq)
		}
		v.next = seq + 1
		if x.event == nil {
			return nil
		}
		return x.event(body)
	})
	if err != nil {
		x.report(key, lossOf(key), "%v", err)
	}
}

// checkBlob checks a blob against the hash in its key.
func (x *examiner) checkBlob(key, value []byte, name string) {
	x.Blobs++
	_, _, content, err := unseal(value)
	hash := actor.HashOf(content)
	if err == nil && hash.String() != name {
		err = fmt.Errorf("does not match the hash in its key")
	}
	if err != nil {
		x.report(key, lossOf(key), "%v", err)
		return
	}
	if _, ok := x.references[hashPrefix(hash)]; !ok && len(x.references) < referencesMax {
		x.Unused++
	}
}

// findUnexpected reports the keys of the expiry index whose actor has no open run due
// then.
func (x *examiner) findUnexpected() {
	prefix := []byte("x/")
	//nolint:errcheck // x.scan has reported unreadable keys
	x.kv.Scan(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
		_, id, err := parseDueKey(key)
		if err != nil {
			x.report(key, "", "%v", err)
			return true
		}
		if want, known := x.expectedDue(id); known && string(want) != string(key) {
			x.report(key, "", "the expiry index has an actor without an open run due then")
		}
		return true
	})
}
