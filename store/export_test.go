// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// A log that was exported lists the same runs after its import.
func TestExportKeepsSummaries(t *testing.T) {
	from, _ := examinedStore(t)
	to := newTestLog(t)
	if err := from.Export(func(e Entry) error { to.write(e); return nil }); err != nil {
		t.Fatal(err)
	}
	want, err := from.Rows.Runs("default", runs.Filter{}, actor.CallID{}, 20)
	if err != nil {
		t.Fatal(err)
	}
	got, err := to.Rows.Runs("default", runs.Filter{}, actor.CallID{}, 20)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, error %v, want %+v", got, err, want)
	}
	count := map[runs.Status]int{}
	for _, s := range got.All {
		count[s.Status]++
	}
	if count[runs.Done] != 2 || count[runs.Running] != 1 {
		t.Errorf("got %v, want 2 runs that ended and 1 that is open", count)
	}
}

// An import keeps a transcript with all its pages. Those of a long conversation are exported in
// several snapshots.
func TestExportKeepsTranscripts(t *testing.T) {
	from, s := newTestLog(t), newEntryBuilder(t, "alice")
	text := func(i int) string { return fmt.Sprint(strings.Repeat("huge ", PageBytesMax/16), i) }
	from.write(append(s.converse(12, text), s.stored())...)
	from.write(append(s.converse(PageMessagesMax, numbered), s.stored())...)
	from.write(s.converse(PageMessagesMax, numbered)...) // in no snapshot
	to, snapshots := newTestLog(t), 0
	err := from.Export(func(e Entry) error {
		if snapshot, ok := e.Record.(Snapshot); ok {
			if snapshots++; e.Size() > restoredBytesMax+2*PageBytesMax || len(snapshot.Pages) == 0 {
				t.Errorf("a snapshot of %d bytes and %d blobs is exported", e.Size(), len(snapshot.Pages))
			}
		}
		to.write(e)
		return nil
	})
	if err != nil || snapshots < 2 {
		t.Fatalf("%d snapshots, error %v", snapshots, err)
	}
	if got, want := texts(t, to.Rows, s.id), texts(t, from.Rows, s.id); len(want) != 2*12+4*PageMessagesMax || !slices.Equal(got, want) {
		t.Errorf("got %d messages, want %d", len(got), len(want))
	}
	to.flush()
	intact(t, to.m, Mark{})
}

// An import keeps the fields that this version does not know: of entries, of their calls
// and replies, and of the calls in a snapshot.
func TestExportKeepsUnknownFields(t *testing.T) {
	x := actor.Extensions("").With(1, []byte("later")).With(900, nil)
	from, s := newTestLog(t), newEntryBuilder(t, "alice")
	accepted := s.accept("hello")
	call := accepted.Record.(Accepted)
	call.Call.Extensions = x
	accepted.Record, accepted.Extensions = call, x
	from.write(accepted)
	from.write(s.snapshot(from))
	ended := s.end("bye")
	outcome := ended.Record.(Ended)
	outcome.Reply.Extensions = x
	ended.Record = outcome
	from.write(ended)
	from.flush()
	to := newTestLog(t)
	if err := from.Export(func(e Entry) error { to.write(e); return nil }); err != nil {
		t.Fatal(err)
	}
	seen := 0
	err := to.Export(func(e Entry) error {
		switch r := e.Record.(type) {
		case Accepted:
			if seen++; e.Extensions != x || r.Call.Extensions != x {
				t.Errorf("entry %d: got extensions %x, of its call %x, want %x", e.N, e.Extensions, r.Call.Extensions, x)
			}
		case Snapshot:
			j, err := DecodeJournal(r.Journal)
			if seen++; err != nil || j.Runs[0].Call.Extensions != x {
				t.Errorf("snapshot: got %+v, error %v, want a call with extensions %x", j, err, x)
			}
		case Ended:
			if seen++; r.Reply.Extensions != x {
				t.Errorf("entry %d: got a reply with extensions %x, want %x", e.N, r.Reply.Extensions, x)
			}
		}
		return nil
	})
	if err != nil || seen != 3 {
		t.Errorf("got %d entries, error %v, want 3", seen, err)
	}
}
