// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// Outcomes referenced by a snapshot are read from their entries, including their
// blobs. An entry may be at any position in a group.
func TestOutcomeFromEntry(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		testOutcomeFromEntry(t, flushed)
	}
}

func testOutcomeFromEntry(t *testing.T, flushed bool) {
	l, s := newTestLog(t), newEntryBuilder(t, "alice")
	l.write(s.accept("hi"), s.end("first"), s.accept("hi"), s.end(large))
	l.write(s.accept("hi"), s.end("third"))
	l.write(s.snapshot(l))
	if flushed {
		l.flush()
	}
	j := s.journal(l)
	for i, want := range []string{"first", large, "third"} {
		reply, n := j.Outcome(s.run(uint64(i + 1)))
		if reply != nil || n != uint64(2*i+2) {
			t.Errorf("outcome %d: got %v, entry %d", i, reply, n)
			continue
		}
		if e, err := l.Outcome(s.id, n); err != nil || e.Call != s.run(uint64(i+1)) || actor.TextOf(e.Reply.Parts) != want {
			t.Errorf("entry %d: got outcome %.40q, error %v", n, actor.TextOf(e.Reply.Parts), err)
		}
	}
	for n, want := range map[uint64]string{5: "l/n1/0000000000000002/00000000: entry 5 of alice/s-1 is not an outcome", 9: "entry 9 of alice/s-1 is missing"} {
		if _, err := l.Outcome(s.id, n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("entry %d: got error %v", n, err)
		}
	}
	if _, err := l.Outcome(actor.NewID("bob", ""), 1); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("unknown actor: got error %v", err)
	}
	l.m.delete(blobKey(s.id, actor.HashOf([]byte(large))))
	if _, err := l.Outcome(s.id, 4); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("missing blob: got error %v", err)
	}
}

func TestEvictedOutcomeWithoutEntryIsRejected(t *testing.T) {
	b := EncodeJournal(&Journal{N: 1, Evicted: []EvictedOutcome{{Call: actor.CallID{1}, N: 9, Until: 9}}})
	at := bytes.Index(b, []byte{9, 18}) // entry number 9 and Until 9
	if at < 0 {
		t.Fatalf("entry number not found in % x", b)
	}
	b[at] = 0
	if _, err := DecodeJournal(b); err == nil || !strings.Contains(err.Error(), "outcome without entry") {
		t.Errorf("got error %v", err)
	}
}

// The size of a snapshot does not depend on the content of outcomes.
func TestSnapshotRefersToOutcomes(t *testing.T) {
	var j Journal
	for i := range 100 {
		id := actor.CallID{byte(i)}
		if err := j.Apply(Ended{Call: id, Until: actor.Forever, Reply: actor.Reply{Call: id, Parts: actor.Text(large)}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(EncodeJournal(&j)); n > 100*40 {
		t.Errorf("snapshot of 100 outcomes: got %d bytes, want at most 4000", n)
	}
}
