// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// entryBuilder builds the entries of one actor as a cell would write them: runs are
// accepted, ask a tool, receive the answer and end.
type entryBuilder struct {
	t     testing.TB
	id    actor.ID
	n     uint64
	at    actor.Time
	runs  uint64
	due   actor.Time
	state Journal
}

func newEntryBuilder(t testing.TB, name string) *entryBuilder {
	return &entryBuilder{t: t, id: actor.NewID(name, "s-1"), at: 1_000_000_000}
}

func (s *entryBuilder) shard() uint16 { return uint16(s.id.Agent[0]) }

func (s *entryBuilder) run(i uint64) actor.CallID {
	return actor.NewCallID(actor.Time(i*1_000_000_000), uint64(s.id.Agent[0]), i)
}

func (s *entryBuilder) entry(r Record, due actor.Time, events ...RunEvent) Entry {
	s.n++
	e := Entry{Actor: s.id, Shard: s.shard(), Epoch: 3, N: s.n, Record: r, Events: events, WasDue: s.due, Due: due}
	s.due = due
	if summary, changed, err := s.state.ApplyEntrySummarized(e); err == nil && changed {
		e.Summary = &summary
	}
	return e
}

// accept starts the next run.
func (s *entryBuilder) accept(text string) Entry {
	s.runs++
	s.at++
	id := s.run(s.runs)
	c := actor.Call{ID: id, Root: id, To: s.id, Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal,
		Left: 30_000_000_000, Attempt: 1, Origin: actor.Human, Budget: 100, Parts: actor.Text(text)}
	due := s.due
	if due == 0 {
		due = s.at.Add(c.Left)
	}
	return s.entry(Accepted{c, s.at, actor.HashOf([]byte("v1"))}, due, s.event(1), s.event(2))
}

func (s *entryBuilder) event(seq uint64) RunEvent {
	return RunEvent{s.run(s.runs), seq, fmt.Appendf(nil, `{"n":%d}`, seq)}
}

// work adds a step to the last run: an ask for a tool, and its answer.
func (s *entryBuilder) work(answer string) []Entry {
	run := s.run(s.runs)
	return []Entry{
		s.entry(Asking{run, s.at, []Asked{{Ask: actor.Ask{Kind: actor.AskTool, Name: "look"}, Attempt: 1, Clock: actor.NewClock(s.at, 5)}}, nil}, s.due, s.event(3)),
		s.entry(Answered{Run: run, Step: 1, At: s.at, Answer: actor.Answer{Parts: actor.Text(answer)}}, s.due),
	}
}

// end ends the last run.
func (s *entryBuilder) end(text string) Entry {
	run := s.run(s.runs)
	return s.entry(Ended{Call: run, At: s.at, Until: actor.Forever,
		Reply: actor.Reply{Call: run, Run: run, Status: actor.Succeeded, Parts: actor.Text(text)}}, 0, s.event(4))
}

// snapshot returns a snapshot of the actor's journal in the log.
func (s *entryBuilder) snapshot(log Reader) Entry {
	j := s.journal(log)
	return Entry{Actor: s.id, Shard: s.shard(), Epoch: 3, N: j.N, Record: SnapshotOf(&j), WasDue: s.due, Due: s.due}
}

func (s *entryBuilder) journal(log Reader) Journal {
	s.t.Helper()
	saved, err := log.Load(s.id)
	if err != nil {
		s.t.Fatal(err)
	}
	j, err := Fold(saved)
	if err != nil {
		s.t.Fatal(err)
	}
	return j
}

// testLog is a log whose entries are written and synced at once.
type testLog struct {
	t testing.TB
	w *Writer
	m *MemoryKV
	Rows
}

func newTestLog(t testing.TB) *testLog {
	m := &MemoryKV{}
	return &testLog{t, NewWriter(WriterConfig{Node: "n1"}), m, Rows{KV: m, Index: NewIndex(IndexConfig{})}}
}

// flush moves the index to rows.
func (l *testLog) flush() {
	l.t.Helper()
	if err := l.m.Apply(l.Index.Rows()); err != nil {
		l.t.Fatal(err)
	}
	l.Index.Clear()
}

// recovered reads rows with an index that is recovered from them.
func recovered(t interface {
	Helper()
	Fatal(...any)
}, kv KV) Rows {
	t.Helper()
	index, err := RecoverIndex(kv, IndexConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return Rows{KV: kv, Index: index}
}

func (l *testLog) write(entries ...Entry) Mark {
	l.t.Helper()
	l.w.Append(entries)
	var last Mark
	for b, ok := l.w.Next(); ok; b, ok = l.w.Next() {
		if err := l.m.Apply(b.Rows); err != nil {
			l.t.Fatal(err)
		}
		if l.Index.Add(&b) {
			l.flush()
		}
		l.w.Written(b.No)
		l.w.Synced(b.No)
		last = b.Mark()
	}
	return last
}

// large is a text stored as a blob.
var large = string(bytes.Repeat([]byte("large "), BlobBytesMin/6+1))
