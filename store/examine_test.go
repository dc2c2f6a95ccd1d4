// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// examinedStore returns a log of two actors and its anchor. Alice has an open run.
func examinedStore(t *testing.T) (*testLog, Mark) {
	l := newTestLog(t)
	for _, name := range []string{"alice", "bob"} {
		s := newEntryBuilder(t, name)
		l.write(s.accept(large))
		l.write(s.work("found")...)
		l.write(s.end(large))
		if name == "alice" {
			l.write(s.snapshot(l))
			l.write(s.accept("once more"))
		}
	}
	return l, l.write()
}

func TestExamineIntactStore(t *testing.T) {
	l, _ := examinedStore(t)
	end, err := VerifyAll(l.m, "n1", Mark{})
	if err != nil {
		t.Fatal(err)
	}
	reported := uint64(0)
	x, err := Examine(l.m, "n1", end, func(body []byte) error {
		if !strings.HasPrefix(string(body), `{"n":`) {
			return fmt.Errorf("unexpected body")
		}
		return nil
	}, func(keys uint64) { reported = keys })
	if err != nil || x.Wrong != 0 {
		t.Fatalf("error %v, findings %+v, want none", err, x.Findings)
	}
	if x.End != end || x.Actors != 2 || x.Entries != 9 || x.Open != 1 || x.Runs != 3 || x.Events != 10 || x.Blobs != 1 || x.Unused != 0 || x.Batches != end.Batch || x.Bytes == 0 || reported > 4096 {
		t.Errorf("unexpected result: %+v", x)
	}
}

func TestExamineReportsDamageAndLoss(t *testing.T) {
	alice, bob := actor.NewID("alice", "s-1"), actor.NewID("bob", "s-1")
	run := newEntryBuilder(t, "bob").run(1)
	put := func(key, value string) func(*MemoryKV) {
		return func(m *MemoryKV) { _ = m.Apply([]Row{{Key: []byte(key), Value: []byte(value)}}) }
	}
	remove := func(key []byte) func(*MemoryKV) { return func(m *MemoryKV) { m.delete(key) } }
	var due []byte
	for _, c := range []struct {
		name   string
		damage func(*MemoryKV)
		where  string
		what   string
		lost   string
	}{
		{"entry changed", func(m *MemoryKV) { corrupt(m, string(entryKey(bob, 2)), 60) }, "/bob/", "differs from the value that was written", "the state of bob/s-1"},
		{"entry lost", remove(entryKey(bob, 2)), "/bob/", "cannot be folded", "the state of bob/s-1"},
		{"outcome lost", remove(entryKey(alice, 4)), "/alice/s-1/0000000000000004", "holds no outcome of call", "the outcome of call"},
		{"last events lost", remove(eventKey("default", run, 4)), "/e/", "is missing", "events of run " + run.String()},
		{"first events lost", remove(eventKey("default", run, 1)), "/e/", "is missing", "earlier events of the run"},
		{"all events lost", func(m *MemoryKV) {
			for _, seq := range []uint64{1, 3, 4} {
				m.delete(eventKey("default", run, seq))
			}
		}, "/e/", "is missing", "events of run " + run.String()},
		{"events rewritten", put(string(eventKey("default", run, 3)), "x"), "/e/", "", "events of run " + run.String()},
		{"owner lost", remove(runKey("default", run)), "/r/", "is missing; the run belongs to bob/s-1", "the owner of run"},
		{"owner changed", func(m *MemoryKV) {
			_ = m.Apply([]Row{{Key: runKey("default", run), Value: appendOwner(nil, alice, run)}})
		}, "/r/", "names owner alice/s-1, want bob/s-1", ""},
		{"root changed", func(m *MemoryKV) {
			_ = m.Apply([]Row{{Key: runKey("default", run), Value: appendOwner(nil, bob, actor.CallID{7})}})
		}, "/r/", "names root ", ""},
		{"summary changed", func(m *MemoryKV) { corrupt(m, string(runKey("default", run)), 60) }, "/r/", "differs from the row that was written", "the owner of run"},
		{"summary of the end lost", func(m *MemoryKV) {
			s := runs.Summary{Run: run, Root: run, Actor: bob, Status: runs.PausedWaitingTool}
			_ = m.Apply([]Row{{Key: runKey("default", run), Value: appendSummary(nil, &s)}})
		}, "/r/", "shows ", ""},
		{"blob changed", func(m *MemoryKV) { corrupt(m, string(blobKey("default", actor.HashOf([]byte(large)))), 99) }, "/b/", "", "content"},
		{"blob lost", remove(blobKey("default", actor.HashOf([]byte(large)))), "/a/", "missing", "the state of"},
		{"batch lost", remove(batchKey("n1", 2)), "n/n1/0000000000000002", "batch 2 is missing", ""},
		{"batch changed", func(m *MemoryKV) { corrupt(m, string(batchKey("n1", 2)), 3) }, "n/n1/", "", ""},
		{"tail lost", func(m *MemoryKV) { m.delete(batchKey("n1", 8)) }, "n/n1/0000000000000008", "before its anchor at batch 8", "the batches 8 to 8"},
		{"index lost", func(m *MemoryKV) { m.delete(due) }, "x/", "lacks an actor", ""},
		{"unexpected index entry", put("x/0062/00000000000000ff/default/bob/s-1", ""), "x/", "without an open run", ""},
		{"unknown key", put("t/default/z/1", "?"), "t/default/z/1", "unknown kind of key", ""},
	} {
		l, _ := examinedStore(t)
		end, err := VerifyAll(l.m, "n1", Mark{})
		if err != nil {
			t.Fatal(err)
		}
		_ = l.m.Scan([]byte("x/"), []byte("y"), func(key, _ []byte) bool { due = append([]byte(nil), key...); return false })
		c.damage(l.m)
		x, err := Examine(l.m, "n1", end, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range x.Findings {
			found = found || strings.Contains(f.Where, c.where) && strings.Contains(f.What, c.what) && strings.Contains(f.Lost, c.lost)
		}
		if !found || x.Wrong != uint64(len(x.Findings)) {
			t.Errorf("%s: finding missing in %+v", c.name, x.Findings)
		}
	}
}

func TestFindingsAreBounded(t *testing.T) {
	l, _ := examinedStore(t)
	for i := range FindingsMax + 5 {
		_ = l.m.Apply([]Row{{Key: fmt.Appendf(nil, "t/default/z/%d", i), Value: nil}})
	}
	if x, err := Examine(l.m, "n1", Mark{}, nil, nil); err != nil || len(x.Findings) != FindingsMax || x.Wrong != FindingsMax+5 {
		t.Errorf("retained %d of %d findings, error %v", len(x.Findings), x.Wrong, err)
	}
}
