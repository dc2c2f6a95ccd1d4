// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"
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
	for _, flushed := range []bool{false, true} {
		testExamineIntactStore(t, flushed)
	}
}

func testExamineIntactStore(t *testing.T, flushed bool) {
	l, _ := examinedStore(t)
	if flushed {
		l.flush()
	}
	end, err := VerifyAll(l.m, "n1", Mark{})
	if err != nil {
		t.Fatal(err)
	}
	reported := uint64(0)
	x, err := Examine(l.m, logAt(end), func(body []byte) error {
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
	part := func(batch uint64) string { return string(partKey("n1", batch, 0)) }
	drop := func(key []byte, n int) func(*MemoryKV) { // the last n spans of an index row
		return func(m *MemoryKV) {
			v, _, _ := m.Get(key)
			spans, err := decodeSpans(v)
			if err != nil || len(spans) <= n {
				panic(fmt.Sprintf("%s: %d spans, %v", key, len(spans), err))
			}
			_ = m.Apply([]Row{{Key: key, Value: encodeSpans(spans[:len(spans)-n])}})
		}
	}
	extend := func(key []byte) func(*MemoryKV) { // the last span of an index row
		return func(m *MemoryKV) {
			v, _, _ := m.Get(key)
			spans, err := decodeSpans(v)
			if err != nil {
				panic(err)
			}
			spans[len(spans)-1].last += 16
			_ = m.Apply([]Row{{Key: key, Value: encodeSpans(spans)}})
		}
	}
	var due []byte
	for _, c := range []struct {
		name   string
		damage func(*MemoryKV)
		where  string
		what   string
		lost   string
	}{
		{"entry changed", func(m *MemoryKV) { corrupt(m, part(7), 200) }, part(7), "differs from the value that was written", "entries of the batch"},
		{"part cut", func(m *MemoryKV) { v, _, _ := m.Get([]byte(part(7))); put(part(7), string(v[:len(v)-1]))(m) }, part(7), "", "the state of bob/s-1"},
		{"index cut", drop(indexKey(bob, 1), 1), "w/", "the index refers to 8 entries, the logs hold 9", ""},
		{"index row extended", extend(indexKey(bob, 1)), "l/n1/", "by its index", "the state of bob/s-1"},
		{"outcome lost", remove([]byte(part(3))), string(indexKey(alice, 4)), "holds no outcome of call", "the outcome of call"},
		{"index row lost", remove(indexKey(bob, 1)), "w/", "the index refers to 5 entries, the logs hold 9", ""},
		{"index row changed", put(string(indexKey(bob, 1)), "x"), "/i/bob/", "", "the state of bob/s-1"},
		{"index of another actor", func(m *MemoryKV) { v, _, _ := m.Get(indexKey(alice, 1)); put(string(indexKey(bob, 1)), string(v))(m) }, "l/n1/", "holds an entry of alice/s-1, want bob/s-1", "the state of bob/s-1"},
		{"index below the snapshot lost", remove(indexKey(alice, 1)), "/a/alice", "is a snapshot of an actor that has no entry", ""},
		{"last events lost", drop(eventKey("default", run, 1), 1), "t/", "the index refers to 9 run events, the entries hold 10", ""},
		{"all events lost", remove(eventKey("default", run, 1)), "t/", "the index refers to 6 run events, the entries hold 10", ""},
		{"events rewritten", put(string(eventKey("default", run, 1)), "x"), "/e/", "", "events of run " + run.String()},
		{"watermark changed", func(m *MemoryKV) { corrupt(m, "w/n1", 1) }, "w/n1", "checksum mismatch", ""},
		{"owner lost", remove(runKey("default", run)), "/r/", "is missing; the run belongs to bob/s-1", "the owner of run"},
		{"owner changed", func(m *MemoryKV) {
			s := runs.Summary{Run: run, Root: run, Actor: alice, Status: runs.Done}
			_ = m.Apply([]Row{{Key: runKey("default", run), Value: appendSummary(nil, &s)}})
		}, "/r/", "names owner alice/s-1, want bob/s-1", ""},
		{"root changed", func(m *MemoryKV) {
			s := runs.Summary{Run: run, Root: actor.CallID{7}, Actor: bob, Status: runs.Done}
			_ = m.Apply([]Row{{Key: runKey("default", run), Value: appendSummary(nil, &s)}})
		}, "/r/", "names root ", ""},
		{"summary changed", func(m *MemoryKV) { corrupt(m, string(runKey("default", run)), 60) }, "/r/", "differs from the row that was written", "the owner of run"},
		{"summary of the end lost", func(m *MemoryKV) {
			s := runs.Summary{Run: run, Root: run, Actor: bob, Status: runs.PausedWaitingTool}
			_ = m.Apply([]Row{{Key: runKey("default", run), Value: appendSummary(nil, &s)}})
		}, "/r/", "shows ", ""},
		{"blob changed", func(m *MemoryKV) { corrupt(m, string(blobKey(bob, actor.HashOf([]byte(large)))), 99) }, "/b/", "", "content"},
		{"blob lost", remove(blobKey(bob, actor.HashOf([]byte(large)))), "l/n1/", "missing", "the state of"},
		{"batch lost", func(m *MemoryKV) { m.delete([]byte(part(2))) }, part(2), "batch 2 is missing", ""},
		{"batch changed", func(m *MemoryKV) { corrupt(m, part(2), 5) }, "l/n1/", "", ""},
		{"tail lost", func(m *MemoryKV) { m.delete([]byte(part(8))) }, part(8), "before its anchor at batch 8", "the batches 8 to 8"},
		{"index lost", func(m *MemoryKV) { m.delete(due) }, "x/", "lacks an actor", ""},
		{"unexpected index entry", put("x/0062/00000000000000ff/default/bob/s-1", ""), "x/", "without an open run", ""},
		{"unknown key", put("t/default/z/1", "?"), "t/default/z/1", "unknown kind of key", ""},
	} {
		l, _ := examinedStore(t)
		l.flush()
		end, err := VerifyAll(l.m, "n1", Mark{})
		if err != nil {
			t.Fatal(err)
		}
		_ = l.m.Scan([]byte("x/"), []byte("y"), func(key, _ []byte) bool { due = append([]byte(nil), key...); return false })
		c.damage(l.m)
		x, err := Examine(l.m, logAt(end), nil, nil)
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

// A page of a transcript that is lost or damaged, or a blob that it refers to, is a finding that
// names the session and the lost messages.
func TestExamineReportsLostPages(t *testing.T) {
	l, s := newTestLog(t), newEntryBuilder(t, "alice")
	text := func(i int) string {
		if i%PageMessagesMax == 7 {
			return fmt.Sprint(large, i)
		}
		return numbered(i)
	}
	for range 3 {
		l.write(append(s.converse(PageMessagesMax/2, text), s.stored())...)
	}
	anchor := l.write()
	l.flush()
	if x, err := Examine(l.m, logAt(anchor), nil, nil); err != nil || x.Wrong > 0 || x.Unused > 0 {
		t.Fatalf("error %v, %+v", err, x)
	}
	page := blobKey(s.id, l.page(s.id, 1))
	part := blobKey(s.id, actor.HashOf([]byte(text(7))))
	for name, c := range map[string]struct {
		damage func(*MemoryKV)
		what   string
	}{
		"page lost":    {func(m *MemoryKV) { m.delete(page) }, "blob " + string(page) + " is missing"},
		"page changed": {func(m *MemoryKV) { corrupt(m, string(page), 99) }, "blob " + string(page) + " does not match its hash"},
		"part lost":    {func(m *MemoryKV) { m.delete(part) }, "blob " + string(part) + " is missing"},
		"part changed": {func(m *MemoryKV) { corrupt(m, string(part), 99) }, "blob " + string(part) + " does not match its hash"},
	} {
		m := l.m.Clone()
		c.damage(m)
		x, err := Examine(m, logAt(anchor), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		found := slices.ContainsFunc(x.Findings, func(f Finding) bool {
			return f.Where == string(page) && f.What == c.what && f.Lost == "messages 65 to 128 of the conversation of alice/s-1"
		})
		if !found {
			t.Errorf("%s: finding missing in %+v", name, x.Findings)
		}
	}
}

// page returns the hash of the n-th page of an actor's transcript.
func (l *testLog) page(id actor.ID, n int) actor.Hash {
	l.t.Helper()
	saved, err := l.Load(id)
	if err != nil {
		l.t.Fatal(err)
	}
	j, err := Fold(saved)
	if err != nil {
		l.t.Fatal(err)
	}
	return j.Transcript.Pages[n].Hash
}

// The events of an entry show content that the log holds in a blob. If the blob is damaged,
// no reader misses them silently, and later events can be read.
func TestDamagedBlobLosesItsEvents(t *testing.T) {
	bob := actor.NewID("bob", "s-1")
	blob := blobKey(bob, actor.HashOf([]byte(large)))
	for name, damage := range map[string]func(*MemoryKV){
		"changed": func(m *MemoryKV) { corrupt(m, string(blob), 99) },
		"lost":    func(m *MemoryKV) { m.delete(blob) },
	} {
		l, s := newTestLog(t), newEntryBuilder(t, "bob")
		accepted := s.accept(large)
		accepted.Events = nil
		done := s.end("bye")
		done.Events, done.Shown = nil, Shown{Call: &actor.Call{}}
		if last := done.NumberEvents(accepted.NumberEvents(0)); last != 2 {
			t.Fatalf("%s: got %d events, want 2", name, last)
		}
		anchor := l.write(accepted, done)
		l.flush()
		run := s.run(1)
		if all, err := l.Events("default", run, 0, 9); err != nil || len(all) != 2 {
			t.Fatalf("%s: got %d events before the damage, error %v", name, len(all), err)
		}
		damage(l.m)
		if all, err := l.Events("default", run, 0, 9); err == nil || !strings.Contains(err.Error(), string(blob)) {
			t.Errorf("%s: got %d events, error %v, want an error that names %s", name, len(all), err, blob)
		}
		if all, err := l.Events("default", run, 1, 9); err != nil || len(all) != 1 || all[0].Seq != 2 {
			t.Errorf("%s: got %v after event 1, error %v, want event 2", name, all, err)
		}
		x, err := Examine(l.m, logAt(anchor), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range x.Findings {
			found = found || strings.Contains(f.What, "events 1 to 1 of run "+run.String()) && strings.Contains(f.What, string(blob)) && strings.Contains(f.Lost, "the events of its runs")
		}
		if !found {
			t.Errorf("%s: no finding names the lost event: %+v", name, x.Findings)
		}
	}
}

func TestFindingsAreBounded(t *testing.T) {
	l, _ := examinedStore(t)
	for i := range FindingsMax + 5 {
		_ = l.m.Apply([]Row{{Key: fmt.Appendf(nil, "t/default/z/%d", i), Value: nil}})
	}
	if x, err := Examine(l.m, logAt(Mark{}), nil, nil); err != nil || len(x.Findings) != FindingsMax || x.Wrong != FindingsMax+5 {
		t.Errorf("retained %d of %d findings, error %v", len(x.Findings), x.Wrong, err)
	}
}

// logAt returns the only log of a store, which ends at a mark.
func logAt(end Mark) []LogEnd { return []LogEnd{{"n1", Anchor{End: end}}} }

// Of a store with several logs, all are examined, and an entry in the log of another shard is found.
func TestExamineSeveralLogs(t *testing.T) {
	kv := &MemoryKV{}
	logs := []LogEnd{{Node: "n1"}, {Node: "n2"}}
	rows := Rows{KV: kv, Index: NewIndex(IndexConfig{Entries: 1}), Logs: len(logs)}
	add := func(w *Writers, shard uint16, name string) {
		t.Helper()
		w.Append([]Entry{{Actor: actor.NewID(name, "s"), Shard: shard, Epoch: 1, N: 1, Record: Rebased{At: 1}}})
		all, ok := w.Take()
		if !ok {
			t.Fatal("nothing waits")
		}
		w.Seal(all)
		for i := range all.Batches {
			b := &all.Batches[i]
			if err := rows.Append(b); err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(logs, func(l LogEnd) bool { return l.Node == b.Node })
			logs[at].End = b.Mark()
		}
	}
	add(NewWriters(WriterConfig{}, logs), 0, "a")
	add(NewWriters(WriterConfig{}, logs), 5, "b")
	x, err := Examine(kv, logs, nil, nil)
	if err != nil || x.Wrong > 0 || x.Batches != 2 || x.Actors != 2 || x.End != (Mark{Batch: 2, Pos: 2}) {
		t.Fatalf("examined %+v, error %v", x, err)
	}
	behind := []LogEnd{logs[0], {"n2", Anchor{End: Mark{Batch: 2}}}}
	if x, err := Examine(kv, behind, nil, nil); err != nil || x.Wrong != 1 || !strings.Contains(x.Findings[0].What, "ends at batch 1, before its anchor at batch 2") {
		t.Errorf("a lost batch of the second log: examined %+v, error %v", x, err)
	}
	add(NewWriters(WriterConfig{}, logs[1:]), 8, "c")
	if x, err := Examine(kv, logs, nil, nil); err != nil || x.Wrong != 1 || !strings.Contains(x.Findings[0].What, "c/s is in log 1, want log 0") {
		t.Errorf("an entry in the wrong log: examined %+v, error %v", x, err)
	}
}
