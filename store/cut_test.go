// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// crashKV retains a copy after each Apply: every state that a crash leaves.
type crashKV struct {
	*MemoryKV
	states []*MemoryKV
}

func (k *crashKV) Apply(rows []Row) error {
	err := k.MemoryKV.Apply(rows)
	k.states = append(k.states, k.Clone())
	return err
}

// forgettingLog is a log whose every state is retained.
type forgettingLog struct {
	*testLog
	kv  *crashKV
	end Mark
}

// neededUntil is the time until which outcomes are needed.
const neededUntil actor.Time = 2_000_000_000

// newForgettingLog returns a log of calls by two actors of the session s-1 and one of
// the session s-2. Each actor has a run that is open. The index is flushed.
func newForgettingLog(t *testing.T, open bool) (*forgettingLog, []*entryBuilder) {
	t.Helper()
	f := newEmptyLog(t)
	all := []*entryBuilder{newEntryBuilder(t, "alice"), newEntryBuilder(t, "bob"), newEntryBuilder(t, "carol")}
	all[2].id.Key = "s-2"
	for i := range 6 {
		s := all[i%3]
		text := "answer"
		if i < 3 {
			text = large
		}
		f.add(append(append([]Entry{s.accept("question")}, s.work("found")...), s.end(text))...)
	}
	if open {
		for _, s := range all {
			f.add(append([]Entry{s.accept(large)}, s.work("found")...)...)
		}
	}
	f.flush()
	return f, all
}

// newEmptyLog returns an empty log.
func newEmptyLog(t *testing.T) *forgettingLog {
	t.Helper()
	l := newTestLog(t)
	f := &forgettingLog{testLog: l, kv: &crashKV{MemoryKV: l.m}}
	f.Rows.KV = f.kv
	return f
}

// add writes entries as a Log does.
func (l *forgettingLog) add(entries ...Entry) {
	l.t.Helper()
	for i := range entries {
		if r, ok := entries[i].Record.(Ended); ok {
			r.Until = neededUntil
			entries[i].Record = r
		}
	}
	l.w.Append(entries)
	b, ok := l.w.Next()
	if !ok {
		l.t.Fatal("the writer has no batch")
	}
	if err := l.Append(&b); err != nil {
		l.t.Fatal(err)
	}
	l.w.Written(b.No)
	l.w.Synced(b.No)
	l.end = b.Mark()
}

// cut cuts the log behind a batch.
func (l *forgettingLog) cut(batch uint64, at actor.Time) Cut {
	l.t.Helper()
	upto, err := l.MarkAt("n1", batch)
	if err != nil {
		l.t.Fatal(err)
	}
	c := Cut{Upto: upto, At: at}
	if err := l.Retain("n1", c, func(e Entry) error { l.add(e); return nil }); err != nil {
		l.t.Fatal(err)
	}
	if err := l.MayCut("n1", c); err != nil {
		l.t.Fatal(err)
	}
	l.add(CutEntry("n1", 0, c))
	return c
}

// foldAll returns the journals of actors, with the outcomes that these retain.
func foldAll(t *testing.T, r Rows, all []*entryBuilder) string {
	t.Helper()
	var b strings.Builder
	for _, s := range all {
		saved, err := r.Load(s.id)
		if errors.As(err, new(Gone)) {
			fmt.Fprintf(&b, "%s gone\n", s.id)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		j, err := Fold(saved)
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range j.Runs {
			fmt.Fprintf(&b, "%s open %s %d steps %s\n", s.id, run.Call.ID, len(run.Steps), short(actor.TextOf(run.Call.Parts)))
		}
		for i := range j.outcomeCount() {
			call, _, _ := j.outcomeKey(i)
			reply, n := j.Outcome(call)
			if reply == nil {
				outcome, err := r.Outcome(s.id, n)
				if err != nil {
					t.Fatal(err)
				}
				reply = &outcome.Reply
			}
			fmt.Fprintf(&b, "%s ended %s %s\n", s.id, call, short(actor.TextOf(reply.Parts)))
		}
	}
	page, err := r.Runs("default", runs.Filter{}, actor.CallID{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range page.All {
		fmt.Fprintf(&b, "%s run %s\n", s.Actor, short(string(s.AppendJSON(nil))))
	}
	err = r.Due([]uint16{'a', 'b', 'c'}, func(id actor.ID) { fmt.Fprintln(&b, "due", id) })
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// short returns a text, or of a long one the hash.
func short(text string) string {
	if len(text) > 400 {
		return actor.HashOf([]byte(text)).String() + text[:80]
	}
	return text
}

// intact checks that a store is verified and examined without a finding.
func intact(t *testing.T, kv KV, anchor Mark) {
	t.Helper()
	for what, verify := range map[string]func(KV, actor.NodeID, Mark) (Mark, error){"Verify": Verify, "VerifyAll": VerifyAll} {
		if _, err := verify(kv, "n1", anchor); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if x, err := Examine(kv, logAt(anchor), nil, nil); err != nil || x.Wrong > 0 {
		t.Errorf("examined: error %v, %+v", err, x.Findings)
	}
}

// CutKeepsOpen: in every state that a crash leaves, open runs, outcomes and lists are those
// of the log before it was cut.
func TestCutKeepsOpen(t *testing.T) {
	for batch := uint64(1); batch <= 9; batch++ {
		l, all := newForgettingLog(t, true)
		want := foldAll(t, l.Rows, all)
		l.kv.states = nil
		c := l.cut(batch, 0)
		if got := foldAll(t, l.Rows, all); got != want {
			t.Errorf("cut of batch %d: got\n%s\nwant\n%s", batch, got, want)
		}
		for i, state := range l.kv.states {
			if got := foldAll(t, recovered(t, state), all); got != want {
				t.Errorf("cut of batch %d, state %d: got\n%s\nwant\n%s", batch, i, got, want)
			}
			intact(t, state, Mark{})
		}
		keys := 0
		_ = l.m.Scan(logKey("n1"), batchKey("n1", batch+1), func(_, _ []byte) bool { keys++; return true })
		if origin, err := Origin(l.m, "n1"); err != nil || origin != c.Upto || keys > 0 {
			t.Errorf("the log begins at %+v, error %v, want %+v; %d rows are left", origin, err, c.Upto, keys)
		}
	}
}

// A second Cut behind the first keeps copies of outcomes, and the actors continue.
func TestCutAgainKeepsOutcomes(t *testing.T) {
	l, all := newForgettingLog(t, true)
	want := foldAll(t, l.Rows, all)
	for _, batch := range []uint64{4, 7, 9} {
		l.cut(batch, 0)
		l.flush()
	}
	first := l.end.Batch - 1
	l.flush()
	l.cut(first, 0) // the batches of the first cuts
	if got := foldAll(t, l.Rows, all); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, s := range all {
		l.add(s.end(large), s.accept("again"))
	}
	want = foldAll(t, l.Rows, all)
	if got := foldAll(t, recovered(t, l.m), all); got != want || strings.Count(want, " ended ") != 9 {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	intact(t, l.m, l.end)
}

// Two cuts that a slow disk delays may copy an outcome into one batch.
func TestOutcomeIsCopiedTwice(t *testing.T) {
	l, _ := newForgettingLog(t, false)
	upto, err := l.MarkAt("n1", 4)
	if err != nil {
		t.Fatal(err)
	}
	var kept []Entry
	for range 2 {
		if err := l.Retain("n1", Cut{Upto: upto}, func(e Entry) error { kept = append(kept, e); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	l.add(kept...)
	if _, err := Verify(l.m, "n1", l.end); err != nil {
		t.Error(err)
	}
}

// Only the last entry of a step has a summary. A start completes the summary of a run that
// began in a step of several entries, because its events may be cut.
func TestRecoveredSummaryNeedsNoEvents(t *testing.T) {
	l := newEmptyLog(t)
	s := newEntryBuilder(t, "alice")
	step := append([]Entry{s.accept("question")}, s.work("found")...)
	step[0].Summary = nil
	l.add(step...)
	want := l.Rows.Index.Rows()
	got := recovered(t, l.m).Index.Rows()
	key := runKey("default", s.run(1))
	if w, g := rowUnder(want, key), rowUnder(got, key); w == nil || !bytes.Equal(w, g) {
		t.Errorf("got summary %q, want %q", g, w)
	}
}

func rowUnder(rows []Row, key []byte) []byte {
	for _, r := range rows {
		if bytes.Equal(r.Key, key) {
			return r.Value
		}
	}
	return nil
}

// Outcomes that are not needed any longer, and content that nothing refers to, are deleted
// with the log. The transcripts refer to the messages and answers of clients' runs.
func TestCutDeletesUnneeded(t *testing.T) {
	l, all := newForgettingLog(t, false)
	found := large + "found"
	l.add(append(append([]Entry{all[0].accept("question")}, all[0].work(found)...), all[0].end("done"))...)
	l.flush()
	if _, ok, _ := l.m.Get(blobKey(all[0].id, actor.HashOf([]byte(found)))); !ok {
		t.Fatal("the answer of a tool is not stored as a blob")
	}
	l.cut(7, neededUntil+1)
	if outcome, err := l.Outcome(all[0].id, 4); err == nil {
		t.Errorf("an outcome that is not needed was kept: %+v", outcome)
	}
	blobs := 0
	_ = l.m.Scan([]byte("t/"), []byte("u"), func(key, _ []byte) bool {
		switch s, ok := parseScoped(key); {
		case ok && s.kind == kindBlob && s.blob == actor.HashOf([]byte(large)).String():
			blobs++
		case ok && (s.kind == kindBlob || s.kind == kindKept || s.kind == kindIndex):
			t.Errorf("key %s is left", key)
		}
		return true
	})
	if blobs != 2 {
		t.Errorf("the large answers of %d sessions are left, want 2", blobs)
	}
	intact(t, l.m, l.end)
}

// A cut writes the pages of transcripts again, also those of an actor whose snapshot is fresh.
// A long conversation takes several snapshots.
func TestCutKeepsPages(t *testing.T) {
	huge := func(i int) string { return fmt.Sprint(strings.Repeat("huge ", PageBytesMax/16), i) }
	for name, text := range map[string]func(int) string{"short": numbered, "huge": huge} {
		l, s := newEmptyLog(t), newEntryBuilder(t, "alice")
		for range 4 {
			l.add(append(s.converse(12, text), s.stored())...)
		}
		l.flush()
		want := texts(t, l.Rows, s.id)
		for _, batch := range []uint64{1, 3, 5, 9} { // the last ones cut what the first ones wrote
			before, states := l.end.Batch, len(l.kv.states)
			l.cut(batch, 0)
			for i, r := range l.kv.states[states:] {
				if got := texts(t, recovered(t, r), s.id); !slices.Equal(got, want) {
					t.Fatalf("%s, cut of batch %d, state %d: got %d messages, want %d", name, batch, i, len(got), len(want))
				}
			}
			if name == "huge" && batch == 3 && l.end.Batch-before < 4 {
				t.Errorf("%d batches for a cut with more than %d bytes of pages", l.end.Batch-before, restoredBytesMax)
			}
			intact(t, l.m, l.end)
			l.flush()
		}
	}
}

func TestDroppedEvents(t *testing.T) {
	l, all := newForgettingLog(t, true)
	run := all[0].run(1)
	l.cut(1, 0)
	_, err := l.Events("default", run, 0, 10)
	if want := (EventsDropped{run, 5}); !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
	if events, err := l.Events("default", all[1].run(1), 0, 10); err != nil || len(events) != 4 {
		t.Errorf("got %d events, error %v, want 4", len(events), err)
	}
}

// A changed number of dropped events is detected by reads and by the examination.
func TestDamagedDroppedRow(t *testing.T) {
	l, all := newForgettingLog(t, true)
	run := all[0].run(1)
	l.cut(1, 0)
	key := droppedKey("default", run)
	value, _, err := l.m.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	for i := range value {
		damaged := bytes.Clone(value)
		damaged[i] ^= 1
		l.m.put(Row{Key: key, Value: damaged})
		if _, err := l.Events("default", run, 0, 10); err == nil || errors.As(err, new(EventsDropped)) {
			t.Errorf("byte %d: got error %v, want one that names the key", i, err)
		}
		if x, err := Examine(l.m, logAt(l.end), nil, nil); err != nil || x.Wrong == 0 {
			t.Errorf("byte %d: not found by the examination: %v", i, err)
		}
	}
}

// The numbers of derived events are not stored with them.
func TestDerivedEventsAreDropped(t *testing.T) {
	l := newEmptyLog(t)
	s := newEntryBuilder(t, "alice")
	entries := append([]Entry{s.accept("question")}, s.work("found")...)
	seq := uint64(0)
	for i := range entries {
		entries[i].Events = nil
		seq = entries[i].NumberEvents(seq)
	}
	l.add(entries...)
	l.add(s.end("done"))
	l.flush()
	l.cut(1, 0)
	run := s.run(1)
	if _, err := l.Events("default", run, 0, 10); seq == 0 || !errors.Is(err, EventsDropped{run, seq + 1}) {
		t.Errorf("got error %v after %d events", err, seq)
	}
	intact(t, l.m, Mark{})
}

func TestCutIsRefused(t *testing.T) {
	l, all := newForgettingLog(t, true)
	upto, err := l.MarkAt("n1", 5)
	if err != nil {
		t.Fatal(err)
	}
	c := Cut{Upto: upto}
	obstacle := func(want Obstacle) {
		t.Helper()
		var got CannotCut
		if err := l.MayCut("n1", c); !errors.As(err, &got) || got.Obstacle != want {
			t.Errorf("got error %v, want %q", err, obstacles[want])
		}
	}
	obstacle(NoSnapshot)
	var kept []Entry
	if err := l.Retain("n1", c, func(e Entry) error { kept = append(kept, e); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, e := range kept {
		if _, ok := e.Record.(Snapshot); ok {
			l.add(e)
		}
	}
	obstacle(OutcomeLost)
	for _, e := range kept {
		if _, ok := e.Record.(Kept); ok {
			l.add(e)
		}
	}
	if err := l.MayCut("n1", c); err != nil {
		t.Fatal(err)
	}
	c.Upto.Pos++
	obstacle(NotInLog)
	c.Upto = l.end
	obstacle(NotIndexed)
	l.add(all[0].end("done"))
	l.m.put(Row{Key: partKey("n2", 1, 0), Value: []byte("?")})
	if err := l.MayCut("n1", c); !errors.Is(err, SeveralLogs{}) {
		t.Errorf("got error %v, want %v", err, SeveralLogs{})
	}
}

// A store that is older than its anchor, or whose origin no entry has cut, is refused.
func TestOriginIsThatOfAnchor(t *testing.T) {
	l, _ := newForgettingLog(t, true)
	before, early := l.m.Clone(), Anchor{End: l.end}
	c := l.cut(4, 0)
	late := Anchor{End: l.end, Origin: c.Upto}
	for what, a := range map[string]Anchor{"anchor before the cut": early, "anchor after the cut": late} {
		if err := CheckOrigin(l.m, "n1", a); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	lost, moved := l.m.Clone(), l.m.Clone()
	lost.delete(OriginKey("n1"))
	other, err := l.MarkAt("n1", 5)
	if err != nil {
		t.Fatal(err)
	}
	moved.put(OriginRow("n1", other))
	moved.deleteRange(logKey("n1"), batchKey("n1", 6))
	for what, kv := range map[string]KV{"older store": before, "origin lost": lost, "batches lost": moved} {
		if err := CheckOrigin(kv, "n1", late); err == nil {
			t.Errorf("%s: not refused", what)
		}
	}
	if err := CheckOrigin(moved, "n1", early); err == nil {
		t.Error("batches lost behind an older anchor: not refused")
	}
}

// ForgottenStays: in every state that a crash leaves, the deletion can be completed, and
// then nothing of the session is found: by a read, or in any row.
func TestForgottenStays(t *testing.T) {
	l, all := newForgettingLog(t, false)
	const marker = "a text of no other session"
	call := func(text string) {
		l.add(append(append([]Entry{all[0].accept(marker)}, all[0].work(marker)...), all[0].end(text))...)
	}
	call(marker + large)
	l.flush()
	call(marker) // in the index only
	want := "alice/s-1 gone\nbob/s-1 gone\n"
	for line := range strings.Lines(foldAll(t, l.Rows, all)) {
		if strings.HasPrefix(line, "carol/s-2") {
			want += line
		}
	}
	if err := l.MayForget("default", "s-1"); err != nil {
		t.Fatal(err)
	}
	l.kv.states = nil
	l.add(ForgottenEntry("default", "s-1", all[0].shard(), 3, 9))
	for more := true; more; {
		var err error
		if more, err = l.Erase("n1", l.end.Batch); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.kv.states) < 3 {
		t.Fatalf("%d states, want the entry, the deletion and the blanking", len(l.kv.states))
	}
	for i, state := range append(l.kv.states, l.m) {
		intact(t, state, Mark{})
		r := recovered(t, state)
		for more := true; more; {
			var err error
			if more, err = r.Erase("n1", l.end.Batch); err != nil {
				t.Fatal(err)
			}
		}
		for what, r := range map[string]Rows{"erased": r, "recovered": recovered(t, state)} {
			if got := foldAll(t, r, all); got != want {
				t.Errorf("state %d, %s: got\n%s\nwant\n%s", i, what, got, want)
			}
			if err := r.MayForget("default", "s-1"); !errors.As(err, new(Gone)) {
				t.Errorf("deleted again: got error %v", err)
			}
			if err := state.Apply(r.Index.Rows()); err != nil {
				t.Fatal(err)
			}
			r.Index.Clear()
			intact(t, state, Mark{})
		}
		_ = state.Scan([]byte{0}, []byte{0xff}, func(key, value []byte) bool {
			if bytes.Contains(value, []byte(marker)) {
				t.Errorf("state %d: key %s holds content of the session", i, key)
			}
			return true
		})
	}
}

// The name of a deleted session is free again behind a Cut that has passed the deletion.
func TestForgottenNameIsFreeBehindCut(t *testing.T) {
	l, all := newForgettingLog(t, false)
	l.add(ForgottenEntry("default", "s-1", 1, 3, 9))
	l.flush()
	forgotten := l.end
	err := l.MayCut("n1", Cut{Upto: forgotten})
	var cannot CannotCut
	if !errors.As(err, &cannot) || cannot.Obstacle != NotErased {
		t.Errorf("cut before the session is erased: got error %v", err)
	}
	for more := true; more; {
		if more, err = l.Erase("n1", forgotten.Batch); err != nil {
			t.Fatal(err)
		}
	}
	l.cut(forgotten.Batch, 0)
	for what, r := range map[string]Rows{"cut": l.Rows, "recovered": recovered(t, l.m)} {
		if saved, err := r.Load(all[0].id); err != nil || saved.Snapshot != nil || len(saved.Entries) > 0 {
			t.Errorf("%s: got %+v, error %v", what, saved, err)
		}
	}
	again := newEntryBuilder(t, "alice")
	again.runs = 100
	l.add(again.accept("new"))
	for what, r := range map[string]Rows{"open": l.Rows, "recovered": recovered(t, l.m)} {
		if saved, err := r.Load(again.id); err != nil || len(saved.Entries) != 1 {
			t.Errorf("%s: got %+v, error %v", what, saved, err)
		}
	}
	intact(t, l.m, l.end)
}

// A group that was blanked, and rows that are missing, are findings unless the log deleted
// their session.
func TestBlankedWithoutForgottenIsDamage(t *testing.T) {
	l, all := newForgettingLog(t, false)
	key := partKey("n1", 1, 0)
	value, _, _ := l.m.Get(key)
	changed, err := blankPart(0, value, tenantSession{"default", "s-1"})
	if err != nil || changed == nil {
		t.Fatal(err)
	}
	forged := tombstone{tenantSession: tenantSession{"default", "s-1"}, node: "n1", batch: 2, stage: stageBlanked}
	for what, rows := range map[string][]Row{"blanked": {{Key: key, Value: changed}}, "with a forged tombstone": {{Key: key, Value: changed}, forged.row()},
		"snapshot lost": {{Key: blobKey(all[0].id, actor.HashOf([]byte(large))), Delete: true}, forged.row()}} {
		m := l.m.Clone()
		if err := m.Apply(rows); err != nil {
			t.Fatal(err)
		}
		if _, err := VerifyAll(m, "n1", l.end); err == nil {
			t.Errorf("%s: verified", what)
		}
		if x, err := Examine(m, logAt(l.end), nil, nil); err != nil || x.Wrong == 0 {
			t.Errorf("%s: error %v, no finding", what, err)
		}
	}
}
