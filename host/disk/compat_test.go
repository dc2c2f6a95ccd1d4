// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/v2; only allowed while no release has written it")

// testdata/v2 is a store of format 2. Every later version of that format MUST open it
// and find its content. That content, including the output of entryGenerator, never
// changes. A version that stores more kinds of data gets its own directory under testdata.
const fixture = "testdata/v2"

// Carol's runs cover every kind of record.
var (
	carol  = actor.NewID("carol", "s-2")
	dave   = actor.ID{Tenant: "acme", Agent: "dave", Key: "main"}
	first  = actor.NewCallID(1_000_000_000_000, 1, 1) // has ended
	second = actor.NewCallID(2_000_000_000_000, 2, 2) // has asked, was answered, and waits
	child  = actor.NewCallID(2_500_000_000_000, 3, 3)
	buried = actor.NewCallID(3_000_000_000_000, 4, 4)
	parked = actor.NewCallID(4_000_000_000_000, 5, 5)
)

const hour = actor.Duration(3_600_000_000_000)

// secondEvents are the events of the run second.
var secondEvents = [2]string{
	string(runs.Encode(runs.Event{Run: second, Seq: 1, At: 1_000_000_000_000, Type: runs.RunStarted, Actor: carol, Kind: actor.Waiting.String(),
		Operation: actor.HandleMessageFull, Origin: actor.Human.String(), Root: first, Parent: first, Chain: []actor.ID{dave}, Depth: 1, Left: hour})),
	string(runs.Encode(runs.Event{Run: second, Seq: 2, At: 1_000_000_000_000, Type: runs.RunPaused, Name: "held", Child: child, Until: actor.Time(1_000_000_000_000).Add(hour)})),
}

func TestFixtureStaysReadable(t *testing.T) {
	if *rewrite {
		writeFixture(t)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(fixture)); err != nil {
		t.Fatal(err)
	}
	for _, options := range []Options{{ReadOnly: true}, {}} {
		d := mustOpen(t, dir, options)
		readFixture(t, d)
		mustClose(t, d)
	}
	// The store can be appended to.
	d := mustOpen(t, dir, Options{})
	l, s := NewLog(d), newEntryGenerator("alice")
	for s.n < 21 {
		s.next()
	}
	commit(l, s.next())
	if n, err := checkEntries(d, s.id); n != 22 || err != nil {
		t.Errorf("got %d entries, error %v, want 22", n, err)
	}
	mustClose(t, l)
}

// The fixture is a whole store: an examination finds nothing wrong with it.
func TestFixtureIsWhole(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(fixture)); err != nil {
		t.Fatal(err)
	}
	if x := examine(t, dir); x.Wrong != 0 || x.Entries != 34 || x.Events != 23 {
		t.Errorf("got %+v", x)
	}
}

func readFixture(t *testing.T, d *Disk) {
	t.Helper()
	if n, err := checkEntries(d, actor.NewID("alice", "s-1")); n != 21 || err != nil {
		t.Errorf("alice: got %d entries, error %v, want 21", n, err)
	}
	if end, err := d.VerifyAll(); err != nil || end.Pos != 21+12+1+1 {
		t.Errorf("chain ends at %+v, error %v", end, err)
	}
	saved, err := d.Load(carol)
	if err != nil || saved.Snapshot == nil || len(saved.Entries) != 3 {
		t.Fatalf("carol: got %d bytes of snapshot, %d entries, error %v", len(saved.Snapshot), len(saved.Entries), err)
	}
	j, err := store.Fold(saved)
	if err != nil {
		t.Fatal(err)
	}
	outcome, err := d.Outcome(carol, 3) // the snapshot refers to it
	if err != nil {
		t.Fatal(err)
	}
	reply := &outcome.Reply
	run := j.Run(second)
	if j.N != 12 || run == nil || !j.IsBuried(buried) {
		t.Fatalf("carol: got journal %+v", j)
	}
	if promised, _, ok := j.FindByKey(actor.Idempotency{Principal: "p", Route: "r", Key: "k"}); !ok || promised != first ||
		actor.TextOf(reply.Parts) != entryText(7) || reply.Warnings[0] != "slow" {
		t.Errorf("first: got %+v, promised for %s", reply, promised)
	}
	call, tool := run.Last()[0], run.Last()[1]
	if call.To != dave || call.Call != child || call.Budget != 40 || call.Holds != 2 || call.Answer == nil || actor.TextOf(call.Answer.Parts) != entryText(14) {
		t.Errorf("got call %+v", call)
	}
	if tool.Attempt != 2 || !tool.Open() || tool.Sent == nil || tool.Sent.Name != "look_up" || actor.TextOf(tool.Ask.Parts) != entryText(7) {
		t.Errorf("got tool %+v", tool)
	}
	if run.Seq != 2 || run.Budget != 99-1-40+30 || run.Call.Chain[0] != dave || run.Clock.HeldUntil != 0 {
		t.Errorf("second: got %+v", run)
	}
	if p := j.Run(parked); p == nil || p.Parked != "asked another question" {
		t.Errorf("parked: got %+v", p)
	}
	var due []actor.ID
	err = d.Due([]uint16{uint16('a'), 7}, func(id actor.ID) { due = append(due, id) })
	if err != nil || !slices.Equal(due, []actor.ID{carol, actor.NewID("alice", "s-1")}) {
		t.Errorf("got due actors %v, error %v", due, err)
	}
	owner, ok, err := d.Run(actor.DefaultTenant, second)
	if !ok || err != nil || owner != (store.RunOwner{Run: second, Root: first, Actor: carol}) {
		t.Errorf("second: got owner %+v, %v, error %v", owner, ok, err)
	}
	events, err := d.Events(actor.DefaultTenant, second, 0, 9)
	if err != nil || len(events) != 2 || string(events[0].Body) != secondEvents[0] || string(events[1].Body) != secondEvents[1] {
		t.Errorf("second: got events %v, error %v", events, err)
	}
	if n, err := d.Load(dave); err != nil || len(n.Entries) != 1 {
		t.Errorf("dave: got %+v, error %v", n, err)
	}
}

func writeFixture(t *testing.T) {
	t.Helper()
	if err := os.RemoveAll(fixture); err != nil {
		t.Fatal(err)
	}
	d := mustOpen(t, fixture, Options{IndexEntries: 10}) // part of the index in rows, part only in the log
	l, alice := NewLog(d), newEntryGenerator("alice")
	for range 14 {
		commit(l, alice.next())
	}
	if err := d.db.Flush(); err != nil { // part of it in sstables, part in the write-ahead log
		t.Fatal(err)
	}
	n, lastDue := uint64(0), actor.Time(0)
	entry := func(due actor.Time, r store.Record, events ...store.RunEvent) store.Entry {
		if _, ok := r.(store.Snapshot); !ok {
			n++
		}
		e := store.Entry{Actor: carol, Shard: 7, Epoch: 5, N: n, Record: r, Events: events, WasDue: lastDue, Due: due}
		lastDue = due
		return e
	}
	at := actor.Time(1_000_000_000_000)
	call := func(id actor.CallID) actor.Call {
		return actor.Call{ID: id, Root: first, Parent: first, To: carol, Operation: actor.HandleMessageFull, Chain: []actor.ID{dave}, Kind: actor.Waiting,
			Lane: actor.High, Left: hour, Attempt: 1, Principal: "p", Origin: actor.Human, Project: "x", Budget: 99, Workflow: "w", Trace: "t", Stamp: at,
			Via: actor.Address{Node: "n1", Cell: 1, Incarnation: 2}, Parts: actor.Text(entryText(7))}
	}
	root := call(first)
	root.Chain, root.Parent = nil, actor.CallID{}
	root.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k", Body: actor.HashOf(nil)}
	due := at.Add(hour)
	commit(l,
		entry(due, store.Accepted{Call: root, At: at, Definition: actor.HashOf([]byte("v1"))}),
		entry(due, store.Accepted{Call: call(second), At: at}, store.RunEvent{Run: second, Seq: 1, Body: []byte(secondEvents[0])}),
		entry(due, store.Ended{Call: first, At: at, Until: actor.Forever, Idempotency: root.Idempotency,
			Reply: actor.Reply{Call: first, Run: first, Status: actor.Partial, Parts: actor.Text(entryText(7)), Warnings: []string{"slow"}}}))
	commit(l,
		entry(due, store.Asking{Run: second, At: at, Asks: []store.Asked{
			{Ask: actor.Ask{Kind: actor.AskCall, Name: "dave", Parts: actor.Text("hello"), Timeout: hour}, Call: child, To: dave, Budget: 40, Stamp: at, Clock: actor.NewClock(at, hour), Attempt: 1},
			{Ask: actor.Ask{Kind: actor.AskTool, Name: "look", Parts: actor.Text(entryText(7)), Idempotent: true}, Sent: &actor.Ask{Kind: actor.AskTool, Name: "look_up"}, Clock: actor.NewClock(at, hour), Attempt: 1},
		}}),
		entry(due, store.Retried{Run: second, Step: 1, Index: 1, At: at, Attempt: 2}),
		entry(due, store.Held{Run: second, Step: 1, At: at, N: 1, Until: at.Add(hour)}, store.RunEvent{Run: second, Seq: 2, Body: []byte(secondEvents[1])}),
		entry(due, store.Resumed{Run: second, Step: 1, At: at, N: 2}),
		entry(due, store.Answered{Run: second, Step: 1, At: at, Answer: actor.Answer{Parts: actor.Text(entryText(14))}, Budget: 30}),
		entry(due, store.Accepted{Call: call(parked), At: at}))
	saved, err := d.Load(carol)
	if err != nil {
		t.Fatal(err)
	}
	j, err := store.Fold(saved)
	if err != nil {
		t.Fatal(err)
	}
	commit(l, entry(due, store.Snapshot{Journal: store.EncodeJournal(&j)}))
	commit(l,
		entry(due, store.Parked{Run: parked, At: at, Detail: "asked another question"}),
		entry(due, store.Buried{Call: buried, At: at, Until: actor.Forever}),
		entry(due, store.Ended{Call: child, At: at, Until: actor.Forever, Reply: actor.Fail(child, actor.RefuseCycle([]actor.ID{dave}, carol))}))
	commit(l, store.Entry{Actor: dave, Shard: 9, Epoch: 5, N: 1, Record: store.Buried{Call: child, At: at, Until: actor.Forever}})
	for alice.n < 21 {
		commit(l, alice.next())
	}
	mustClose(t, l, d)
	for _, name := range []string{lockFile, filepath.Join(pebbleDir, lockFile)} {
		if err := os.Remove(filepath.Join(fixture, name)); err != nil {
			t.Fatal(err)
		}
	}
}
