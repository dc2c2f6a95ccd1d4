// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"github.com/troupe-run/troupe/host/logs"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// entryGenerator generates the entries of one actor: a sequence of calls, each
// in two entries. Every seventh entry has a message that is stored as a blob.
type entryGenerator struct {
	id    actor.ID
	n     uint64
	due   actor.Time
	state store.Journal
}

func newEntryGenerator(name string) *entryGenerator {
	return &entryGenerator{id: actor.NewID(name, "s-1")}
}

func entryText(n uint64) string {
	if n%7 == 0 {
		return strings.Repeat(fmt.Sprintf("large %d ", n), store.BlobBytesMin/7)
	}
	return fmt.Sprintf("message %d", n)
}

func (s *entryGenerator) next() store.Entry {
	s.n++
	name := actor.HashOf([]byte(s.id.Agent))
	run := actor.NewCallID(actor.Time((s.n+1)/2*1_000_000_000), uint64(name[0]), binary.BigEndian.Uint64(name[1:]))
	e := store.Entry{Actor: s.id, Shard: uint16(s.id.Agent[0]), Epoch: 1, N: s.n, WasDue: s.due}
	if s.n%2 == 1 {
		e.Record = store.Accepted{At: actor.Time(s.n), Call: actor.Call{ID: run, Root: run, To: s.id, Operation: actor.HandleMessageFull,
			Kind: actor.Waiting, Lane: actor.Normal, Left: 1000, Attempt: 1, Origin: actor.Human, Parts: actor.Text(entryText(s.n))}}
		e.Events = []store.RunEvent{{Run: run, Seq: 1, Body: runs.Encode(runs.Event{Run: run, Seq: 1, At: e.Record.(store.Accepted).At, Type: runs.UserInput, Actor: s.id, Text: "go"})}}
		e.Due = actor.Time(s.n) + 1000
	} else {
		e.Record = store.Ended{Call: run, At: actor.Time(s.n), Until: actor.Forever,
			Reply: actor.Reply{Call: run, Run: run, Status: actor.Succeeded, Parts: actor.Text(entryText(s.n))}}
		e.Events = []store.RunEvent{{Run: run, Seq: 2, Body: runs.Encode(runs.Event{Run: run, Seq: 2, At: e.Record.(store.Ended).At, Type: runs.RunDone, Status: actor.Succeeded, Text: "gone"})}}
	}
	s.due = e.Due
	if summary, changed, err := s.state.ApplyEntrySummarized(e); err == nil && changed {
		e.Summary = &summary
	}
	return e
}

// nextEntries returns the next count entries.
func nextEntries(s *entryGenerator, count int) (all []store.Entry) {
	for range count {
		all = append(all, s.next())
	}
	return all
}

// checkEntries checks that each entry of the actor in a store is the one that
// its generator produces, and each message of its transcript. It returns the number of
// entries.
func checkEntries(log store.Reader, id actor.ID) (uint64, error) {
	saved, err := log.Load(id)
	if err != nil {
		return 0, err
	}
	s := &entryGenerator{id: id}
	if saved.Snapshot != nil { // the log was cut
		j, err := store.DecodeJournal(saved.Snapshot)
		if err != nil {
			return 0, err
		}
		nextEntries(s, int(j.N))
		if want := store.SnapshotOf(&s.state).Journal; !bytes.Equal(saved.Snapshot, want) {
			return s.n, fmt.Errorf("the snapshot of entry %d has %d bytes, want other %d", j.N, len(saved.Snapshot), len(want))
		}
	}
	for _, e := range saved.Entries {
		want := s.next()
		want.Events[0].Body, want.Summary = nil, nil
		if !bytes.Equal(store.EncodeEntry(e), store.EncodeEntry(want)) {
			return s.n, fmt.Errorf("entry %d is %+v, want %+v", s.n, e, want)
		}
		events, err := log.Events(id.Tenant, want.Events[0].Run, want.Events[0].Seq-1, 1)
		if err != nil || len(events) != 1 {
			return s.n, fmt.Errorf("entry %d: got events %v, error %v", s.n, events, err)
		}
	}
	j, err := store.Fold(saved)
	if err != nil {
		return s.n, err
	}
	messages, err := store.ReadTranscript(log, id, &j.Transcript, 0, j.Transcript.Len())
	if err != nil || len(messages) != int(s.n/2*2) {
		return s.n, errors.Join(err, fmt.Errorf("%d messages after %d entries", len(messages), s.n))
	}
	for i := range messages {
		if got := actor.TextOf(messages[i].Parts); got != entryText(uint64(i+1)) {
			return s.n, fmt.Errorf("message %d is %.40q, want %.40q", i, got, entryText(uint64(i+1)))
		}
	}
	return s.n, nil
}

func mustOpen(t testing.TB, dir string, options Options) *Disk {
	t.Helper()
	if options.WriteBuffer == 0 {
		options.WriteBuffer = 1 << 20 // the write-ahead log takes this much of the disk at once
	}
	d, err := Open(dir, "n1", options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// commit appends entries and waits until they are durable.
func commit(l *logs.Log, entries ...store.Entry) {
	done := make(chan struct{})
	l.Commit(entries, func() { close(done) })
	<-done
}

func mustClose(t testing.TB, closers ...interface{ Close() error }) {
	t.Helper()
	for _, c := range closers {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
