// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// longLog returns a log of this many calls, by two actors in turn, without rows of the
// index, and its end. Each call has four entries.
func longLog(t *testing.T, calls int) (l *testLog, all []*entryBuilder, end Mark) {
	t.Helper()
	l = newTestLog(t)
	l.Index.full = 8 * calls
	all = []*entryBuilder{newEntryBuilder(t, "alice"), newEntryBuilder(t, "bob")}
	all[1].runs = uint64(calls) // no run of the other
	for i := range calls {
		s := all[i%2]
		end = l.write(append(append([]Entry{s.accept("question")}, s.work("found")...), s.end(fmt.Sprint("answer ", i)))...)
		s.state.dropOutcomes()
	}
	return l, all, end
}

// readsOf returns the results of reads of the actors and all runs.
func readsOf(t *testing.T, r Reader, all []*entryBuilder) string {
	t.Helper()
	var b strings.Builder
	for _, s := range all {
		saved, err := r.Load(s.id)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range saved.Entries {
			fmt.Fprintf(&b, "%s %d %x\n", e.Actor, e.N, EncodeEntry(e))
		}
	}
	page, err := r.Runs("default", runs.Filter{}, actor.CallID{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range page.All {
		events, err := r.Events("default", s.Run, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %v\n", s.AppendJSON(nil), events)
	}
	return b.String()
}

// Only the last entry of a step has a summary. A start completes the summary of a run that
// began in a step of several entries.
func TestRecoveryCompletesSummaryOfStep(t *testing.T) {
	l := newTestLog(t)
	s := newEntryBuilder(t, "alice")
	step := append([]Entry{s.accept("question")}, s.work("found")...)
	step[0].Summary = nil
	l.write(step...)
	summary := func(x *Index) (value []byte) {
		for _, row := range x.Rows() {
			if bytes.Equal(row.Key, runKey("default", s.run(1))) {
				value = row.Value
			}
		}
		return value
	}
	want := summary(l.Rows.Index)
	if got := summary(recovered(t, l.m).Index); want == nil || !bytes.Equal(got, want) {
		t.Errorf("got summary %q, want %q", got, want)
	}
}

// A start that finds no rows of the index writes them, and holds no more entries than a
// running node does.
func TestRecoveryFlushesLongLog(t *testing.T) {
	const full, calls = 10, 100
	l, all, end := longLog(t, calls)
	want := readsOf(t, l, all)
	flushes := 0
	index, err := RecoverIndex(l.m, IndexConfig{Entries: full}, func(rows []Row) error {
		flushes++
		spans := 0
		for _, row := range rows {
			if s, ok := parseScoped(row.Key); ok && s.kind == kindIndex {
				found, err := decodeSpans(row.Value)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range found {
					spans += int(s.last - s.first + 1)
				}
			}
		}
		if spans < full || spans >= full+4 {
			t.Errorf("flush %d has %d entries, want one batch more than %d at most", flushes, spans, full-1)
		}
		return l.m.Apply(rows)
	})
	if err != nil || flushes < 4*calls/(full+4) || index.Entries() >= full {
		t.Errorf("%d flushes, %d entries left, error %v", flushes, index.Entries(), err)
	}
	for what, r := range map[string]Rows{"recovered": {KV: l.m, Index: index}, "recovered again": recovered(t, l.m)} {
		if got := readsOf(t, r, all); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
		}
	}
	if x, err := Examine(l.m, logAt(end), nil, nil); err != nil || x.Wrong != 0 || x.Entries != 4*calls || x.Runs != calls {
		t.Errorf("error %v, %+v", err, x)
	}
}

// A log without rows of the index that may not be written is refused if it is long. An
// examination verifies its chain and reports it.
func TestLongLogWithoutIndexIsRefused(t *testing.T) {
	const calls = 20
	l, _, _ := longLog(t, calls)
	for entries, refused := range map[int]bool{1: true, 2: false} { // bounds of 64 and of 128 entries
		index, err := RecoverIndex(l.m, IndexConfig{Entries: entries}, nil)
		if refused != (err != nil && strings.Contains(err.Error(), "more than 64 entries of the log are not in the index: start the node")) || index.Entries() > 68 && refused {
			t.Errorf("flush after %d entries: %d entries in the index, error %v", entries, index.Entries(), err)
		}
	}
	l, _, end := longLog(t, recoveredFlushes*IndexEntries/4+1)
	x, err := Examine(l.m, logAt(end), nil, nil)
	if err != nil || x.Wrong != 1 || x.Findings[0].Where != "w/n1" || x.Findings[0].Lost == "" || x.End != end {
		t.Errorf("error %v, %+v", err, x.Findings)
	}
}

// The rows with a batch have the watermark of its log only: a transaction of a few of many logs writes few rows.
func TestRowsWithABatchLeaveOtherWatermarks(t *testing.T) {
	x := NewIndex(IndexConfig{})
	w := NewWriters(WriterConfig{}, []LogEnd{{Node: "n1"}, {Node: "n2"}, {Node: "n3"}})
	for shard := range uint16(6) {
		w.Append([]Entry{{Actor: actor.NewID("a", fmt.Sprint(shard)), Shard: shard, Epoch: 1, N: 1, Record: Rebased{At: 1}}})
		all, _ := w.Take()
		w.Seal(all)
		b := &all.Batches[0]
		var marks []string
		for _, r := range x.RowsWith(b, func(string, *runs.Summary) {}) {
			if bytes.HasPrefix(r.Key, []byte("w/")) {
				marks = append(marks, string(r.Key))
			}
		}
		if want := string(watermarkKey(b.Node)); len(marks) != 1 || marks[0] != want {
			t.Errorf("a batch of %s has the watermarks %s", b.Node, marks)
		}
	}
}
