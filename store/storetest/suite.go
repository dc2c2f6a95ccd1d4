// SPDX-License-Identifier: Apache-2.0

// Package storetest is the conformance suite for implementations of store.Log and
// store.Reader: drawn histories are stored, and every answer is compared with a list of
// the entries. All implementations that pass give equal answers.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package storetest

import (
	"bytes"
	"errors"
	"flag"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// Node is the node that writes the log under test.
const Node actor.NodeID = "n1"

// Store is an open implementation.
type Store struct {
	Log    store.Log
	Reader store.Reader
	End    store.Mark // end of the log of Node
	// Beside is the name of another log of the store, whose number is 1; empty: it has none.
	Beside actor.NodeID
	Close  func() error
}

// scenarios are the operations that each part of the suite draws from.
var scenarios = []struct {
	name       string
	operations []operation
	reopens    bool
	forgets    bool // the log is cut, and sessions are deleted
}{
	{"entries", []operation{accept, ask, ask, end, refuse, bury, detach}, false, false},
	{"snapshots", []operation{accept, ask, end, snapshot}, false, false},
	{"evicted outcomes", []operation{refuse, refuse, accept, end, snapshot}, false, false},
	{"due moves", []operation{accept, end, detach, detach}, false, false},
	{"events and runs", []operation{accept, accept, ask, ask}, false, false},
	{"reopened", []operation{accept, ask, end, refuse, bury, snapshot, detach}, true, false},
	{"cut", []operation{accept, ask, end, end, refuse, bury, snapshot, detach}, false, true},
	{"cut and reopened", []operation{accept, ask, end, end, refuse}, true, true},
	{"transcripts", []operation{accept, end, chat, chat, snapshot}, true, true},
}

// Run tests an implementation. The function create makes an empty store, whose options it may
// draw, and returns a function that opens it. A store is opened again only after it was closed.
func Run(t *testing.T, create func(*rapid.T) (open func() (Store, error))) {
	// There are enough scenarios that a fourth of the usual histories of each suffices, unless the
	// command says how many.
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		usual := checks.DefValue
		if err := checks.Value.Set("25"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = checks.Value.Set(usual) })
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				x := &trial{t: t, open: create(t), history: newHistory(t), erased: true, beside: newBeside(t)}
				x.history.isFree = func(id actor.ID) bool { return !x.written.isDeleted(id) }
				x.reopen()
				for range rapid.IntRange(1, 8).Draw(t, "batches") {
					x.append(s.operations)
					if x.beside.node != "" {
						x.appendBeside()
					}
					if s.forgets {
						x.forgetSome()
					}
					if s.reopens && rapid.Bool().Draw(t, "reopens") {
						x.close()
						x.reopen()
					}
					if rapid.Bool().Draw(t, "reads") {
						x.compare()
					}
				}
				x.compare()
				x.close()
			})
		})
	}
}

// trial is one drawn history in one store.
type trial struct {
	t       *rapid.T
	open    func() (Store, error)
	store   Store
	writer  *store.Writer
	history *history
	written written
	end     store.Mark // end of the log
	synced  uint64     // number of the last synced batch
	cutUpto uint64     // number of the last batch that was cut
	erased  bool       // all deletions of sessions are complete
	beside  *beside
}

func (x *trial) reopen() {
	x.store = x.noError(x.open())
	x.beside.node = x.store.Beside
	if x.store.End != x.end {
		x.t.Fatalf("the log ends at %+v, want %+v", x.store.End, x.end)
	}
	x.writer = store.NewWriter(store.WriterConfig{Node: Node, From: x.end, BatchesInFlight: 3})
}

func (x *trial) close() {
	x.sync()
	if err := x.store.Close(); err != nil {
		x.t.Fatal(err)
	}
}

func (x *trial) noError(s Store, err error) Store {
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

func (x *trial) sync() {
	if x.synced == x.end.Batch {
		return
	}
	if err := x.store.Log.Sync(x.end.Batch); err != nil {
		x.t.Fatalf("sync of batch %d: %v", x.end.Batch, err)
	}
	x.writer.Synced(x.end.Batch)
	x.synced = x.end.Batch
}

// append stores one batch. Afterwards it overwrites the bytes that the batch refers to.
func (x *trial) append(operations []operation) {
	if x.end.Batch-x.synced == 3 || rapid.Bool().Draw(x.t, "syncs") {
		x.sync()
	}
	var entries []store.Entry
	for range rapid.IntRange(1, 12).Draw(x.t, "entries") {
		entries = append(entries, x.history.draw(operations)...)
	}
	x.write(entries)
}

// write stores entries as one batch.
func (x *trial) write(drawn []store.Entry) {
	var entries []store.Entry
	for _, e := range drawn {
		x.written.add(e, x.end.Batch+1, x.history.now)
		entries = append(entries, copyEntry(e))
	}
	x.writer.Append(entries)
	b, ok := x.writer.Next()
	if !ok {
		x.t.Fatal("the writer has no batch")
	}
	x.settles(&b, false)
	if err := x.store.Log.Append(&b); err != nil {
		x.t.Fatalf("batch %d: %v", b.No, err)
	}
	x.settles(&b, true)
	x.writer.Written(b.No)
	x.end = b.Mark()
	for i := range entries {
		overwrite(&entries[i])
	}
}

func (x *trial) settles(b *store.Batch, want bool) {
	if stored, err := x.store.Log.Settle(b); err != nil || stored != want {
		x.t.Fatalf("batch %d settled as %v, error %v, want %v", b.No, stored, err, want)
	}
}

// overwrite changes bytes that the entry shares with no other.
func overwrite(e *store.Entry) {
	for i := range e.Events {
		clear(e.Events[i].Body)
	}
	switch r := e.Record.(type) {
	case store.Accepted:
		overwriteParts(r.Call.Parts)
	case store.Asking:
		for i := range r.Asks {
			overwriteParts(r.Asks[i].Ask.Parts)
		}
	case store.Answered:
		overwriteParts(r.Answer.Parts)
	case store.Ended:
		overwriteParts(r.Reply.Parts)
	case store.Appended:
		overwriteParts(r.Message.Parts)
	case store.Detached:
		overwriteParts(r.Pending.Call.Parts)
	case store.Snapshot:
		clear(r.Journal)
		for _, b := range r.Pages {
			clear(b)
		}
	}
}

func overwriteParts(parts []actor.Part) {
	for i := range parts {
		clear(parts[i].Bytes)
	}
}

// compare reads the whole store twice: the second time after the first answers were
// overwritten.
func (x *trial) compare() {
	if x.beside.node != "" {
		x.compareBeside()
	}
	for range 2 {
		for _, id := range ids {
			if x.written.isDeleted(id) {
				x.isGone(id)
			} else {
				x.compareActor(id)
			}
		}
		x.compareDue()
		for _, tenant := range []string{"default", "other", "absent"} {
			x.compareSessions(tenant)
			x.compareSessionEvents(tenant)
		}
		for _, tenant := range []string{"default", "other", "absent"} {
			x.compareRuns(tenant)
		}
	}
}

func (x *trial) compareActor(id actor.ID) {
	got, err := x.store.Reader.Load(id)
	want := x.written.load(id)
	if err != nil || !bytes.Equal(got.Snapshot, want.Snapshot) || len(got.Entries) != len(want.Entries) {
		x.t.Fatalf("load %s: got a snapshot of %d bytes and %d entries, error %v, want %d bytes and %d entries",
			id, len(got.Snapshot), len(got.Entries), err, len(want.Snapshot), len(want.Entries))
	}
	for i := range got.Entries {
		if a, b := store.EncodeEntry(got.Entries[i]), store.EncodeEntry(want.Entries[i]); !bytes.Equal(a, b) {
			x.t.Fatalf("load %s: got entry %+v, want %+v", id, got.Entries[i], want.Entries[i])
		}
	}
	journal, err := store.Fold(got)
	if err != nil {
		x.t.Fatalf("fold %s: %v", id, err)
	}
	x.compareTranscript(id, &journal.Transcript, got.Snapshot)
	for i := range got.Entries {
		overwrite(&got.Entries[i])
	}
	clear(got.Snapshot)
	stride := 1 + journal.N/32
	for n := rapid.Uint64Range(0, stride-1).Draw(x.t, "first"); n < journal.N+3; n += stride {
		x.compareOutcome(id, n)
	}
}

func (x *trial) compareOutcome(id actor.ID, n uint64) {
	got, err := x.store.Reader.Outcome(id, n)
	want, ok, optional := x.written.outcome(id, n)
	if optional && err != nil {
		return
	}
	if ok != (err == nil) {
		x.t.Fatalf("outcome %d of %s: got error %v, want an outcome: %v", n, id, err, ok)
	}
	encode := func(r store.Ended) []byte { return store.EncodeEntry(store.Entry{Actor: id, Record: r}) }
	if ok && !bytes.Equal(encode(got), encode(want)) {
		x.t.Fatalf("outcome %d of %s: got %+v, want %+v", n, id, got, want)
	}
	overwriteParts(got.Reply.Parts)
}

func (x *trial) compareDue() {
	all := []uint16{}
	for _, id := range ids {
		all = append(all, shard(id))
	}
	for _, shards := range [][]uint16{all, all[:1], {all[1], 7}, {7}, nil} {
		var got []actor.ID
		err := x.store.Reader.Due(shards, func(id actor.ID) { got = append(got, id) })
		if want := x.written.due(shards); err != nil || !slices.Equal(got, want) {
			x.t.Fatalf("due in shards %v: got %v, error %v, want %v", shards, got, err, want)
		}
	}
}

func (x *trial) compareSpendings(tenant string, newest []runs.Summary) {
	for _, f := range []runs.Filter{{}, {Since: 3_000_000_000}, {Until: 5_000_000_000}} {
		var want, got []runs.Summary
		for _, s := range newest {
			if first, last := f.Range(); len(s.Spent) > 0 && s.Run.Compare(first) >= 0 && (last.IsZero() || s.Run.Compare(last) < 0) {
				want = append(want, runs.Summary{Run: s.Run, Actor: s.Actor, User: s.User, Spent: s.Spent})
			}
		}
		for before := (actor.CallID{}); ; {
			next, err := x.store.Reader.Spendings(tenant, f, before, func(s *runs.Summary) {
				got = append(got, runs.Summary{Run: s.Run, Actor: s.Actor, User: s.User, Spent: slices.Clone(s.Spent)})
			})
			if err != nil {
				x.t.Fatalf("spendings of %s, %+v: %v", tenant, f, err)
			}
			if before = next; before.IsZero() {
				break
			}
		}
		if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
			x.t.Fatalf("spendings of %s, %+v:\ngot  %+v\nwant %+v", tenant, f, got, want)
		}
	}
}

func (x *trial) compareRuns(tenant string) {
	newest := x.written.runs(tenant)
	for _, f := range []runs.Filter{{}, {Calls: true}, {Calls: true, Agent: "a"}, {Calls: true, Status: runs.Done}, {Calls: true, Status: runs.PausedWaitingTool},
		{Calls: true, Since: 3_000_000_000}, {Calls: true, Until: 5_000_000_000, Session: "b"}} {
		limit := rapid.IntRange(1, len(newest)+1).Draw(x.t, "limit")
		before := actor.CallID{}
		if len(newest) > 0 && rapid.Bool().Draw(x.t, "pages") {
			before = rapid.SampledFrom(newest).Draw(x.t, "before").Run
		}
		var want, got []runs.Summary
		for _, s := range newest {
			if (before.IsZero() || s.Run.Compare(before) < 0) && selects(&f, &s) {
				want = append(want, s)
			}
		}
		for from := before; ; {
			page, err := x.store.Reader.Runs(tenant, f, from, limit)
			if err != nil || len(page.All) > limit {
				x.t.Fatalf("runs of %s before %s, %+v: got %d, error %v, want at most %d", tenant, from, f, len(page.All), err, limit)
			}
			got = append(got, page.All...)
			if from = page.Next; from.IsZero() {
				break
			}
		}
		if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
			x.t.Fatalf("runs of %s before %s, %+v, in pages of %d:\ngot  %+v\nwant %+v", tenant, before, f, limit, got, want)
		}
	}
	x.compareSpendings(tenant, newest)
	for _, s := range newest {
		want := store.RunOwner{Run: s.Run, Root: s.Root, Actor: s.Actor}
		if got, ok, err := x.store.Reader.Run(tenant, want.Run); err != nil || !ok || got != want {
			x.t.Fatalf("run %s: got %+v, %v, error %v, want %+v", want.Run, got, ok, err, want)
		}
		if ended, err := x.store.Reader.Ended(tenant, want.Run); err != nil || ended != (s.Ended != 0) {
			x.t.Fatalf("run %s: got ended %v, error %v, want ended at %d", want.Run, ended, err, s.Ended)
		}
		x.compareEvents(tenant, want.Run)
	}
	if got, ok, err := x.store.Reader.Run(tenant, actor.NewCallID(1, 2, 3)); err != nil || ok {
		x.t.Fatalf("unknown run: got %+v, %v, error %v", got, ok, err)
	}
	if ended, err := x.store.Reader.Ended(tenant, actor.NewCallID(1, 2, 3)); err != nil || ended {
		x.t.Fatalf("unknown run: got ended %v, error %v", ended, err)
	}
}

// selects reports whether a filter selects a run. The IDs of drawn runs have whole
// seconds.
func selects(f *runs.Filter, s *runs.Summary) bool {
	at := actor.Time(s.Run[5]) | actor.Time(s.Run[4])<<8
	return (f.Calls || s.Root == s.Run) && (f.Agent == "" || s.Actor.Agent == f.Agent) && (f.Session == "" || s.Actor.Key == f.Session) &&
		(f.Status == 0 || s.Status == f.Status) && at*1_000_000 >= f.Since && (f.Until == 0 || at*1_000_000 < f.Until)
}

func (x *trial) compareEvents(tenant string, run actor.CallID) {
	all, dropped := x.written.events(tenant, run)
	after := rapid.IntRange(0, len(all)+1).Draw(x.t, "after")
	limit := rapid.IntRange(0, len(all)+1).Draw(x.t, "limit")
	want := all[min(after, len(all)):]
	want = want[:min(limit, len(want))]
	got, err := x.store.Reader.Events(tenant, run, uint64(after), limit)
	if limit > 0 && uint64(after) < dropped {
		if !errors.Is(err, store.EventsDropped{Run: run, First: dropped + 1}) {
			x.t.Fatalf("events of run %s after %d: got %v, error %v, want %d dropped events", run, after, got, err, dropped)
		}
		return
	}
	matches := func(got store.RunEvent, want event) bool { return want.matches(&got) }
	if err != nil || !slices.EqualFunc(got, want, matches) {
		x.t.Fatalf("%d events of run %s after %d: got %v, error %v, want %v", limit, run, after, got, err, want)
	}
	for i := range got {
		x.checkResult(tenant, &got[i])
		clear(got[i].Body)
	}
}

// checkResult checks that the result of a tool is the content of which its event shows the
// beginning.
func (x *trial) checkResult(tenant string, got *store.RunEvent) {
	if runs.TypeOf(got.Body) != runs.ToolResult {
		return
	}
	e, err := runs.Decode(got.Body)
	if err != nil {
		x.t.Fatalf("event %d of run %s: %v", got.Seq, got.Run, err)
	}
	parts, err := x.store.Reader.Result(tenant, got.Run, got.Seq)
	if parts == nil && err == nil { // the event shows no answer, or it was written with its text
		return
	}
	if text := actor.TextOf(parts); err != nil || !strings.HasPrefix(text, e.Text) || !e.Truncated && text != e.Text {
		x.t.Fatalf("result of event %d of run %s: got %d bytes, error %v, want those that begin with %q", got.Seq, got.Run, len(text), err, e.Text)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
