// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	cells "github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the table of allocations")

const (
	allocsTable = "testdata/allocs.txt"
	allocsHead  = `# Allocations and bytes of one operation. TestAllocations compares the code with this table;
# make allocs REWRITE=1 rewrites it. Review the diff: it is the cost of the change.
`
	// bytesTolerance is the permitted relative difference in bytes. Maps grow at
	// random points.
	bytesTolerance = 0.02
)

// operations lists the operations of the table. The field make prepares an
// operation and returns it. All operations are pure, so that the counts are exact
// and reproducible.
var operations = []struct {
	name string
	make func(t *testing.T) func()
}{
	{"ask, volatile agent", func(t *testing.T) func() {
		return newCellLoop(t, echo("echo", actor.Volatile)).ask("echo")
	}},
	{"chain of 5 calls and back, volatile agents, one cell", func(t *testing.T) func() {
		var links []actor.Definition
		for i := range chainCalls {
			links = append(links, relay(link(i), link(i+1), actor.Volatile))
		}
		return newCellLoop(t, append(links, echo(link(chainCalls), actor.Volatile))...).ask(link(0))
	}},
	{"ask, durable, including the rows for the disk", func(t *testing.T) func() {
		return newCellLoop(t, echo("echo", actor.Journaled)).ask("echo")
	}},
	{"ask with a nested ask, durable, including the rows for the disk", func(t *testing.T) func() {
		return newCellLoop(t, echo("echo", actor.Journaled), relay("relay", "echo", actor.Journaled)).ask("relay")
	}},
	{"encode a message between cells", func(t *testing.T) func() {
		env := envelope()
		b := actor.Encode(env)
		return func() { b = actor.Append(b[:0], env) }
	}},
	{"decode a message between cells", func(t *testing.T) func() {
		b := actor.Encode(envelope())
		return func() { invariant.Must(actor.Decode(b)) }
	}},
	{"encode a log entry", func(t *testing.T) func() {
		e := entry()
		return func() { store.EncodeEntry(e) }
	}},
	{"decode a log entry", func(t *testing.T) func() {
		b := store.EncodeEntry(entry())
		return func() { invariant.Must(store.DecodeEntry(b)) }
	}},
	{"encode a run event", func(t *testing.T) func() {
		e := event()
		b := runs.Encode(e)
		return func() { b = runs.Append(b[:0], e) }
	}},
	{"decode a run event", func(t *testing.T) func() {
		b := runs.Encode(event())
		return func() { invariant.Must(runs.Decode(b)) }
	}},
	{"encode a server-sent event", func(t *testing.T) func() {
		f := runs.Frame{Name: "agent_stream_delta", ID: "17", Data: string(runs.Encode(event()))}
		b := f.Append(nil)
		return func() { b = f.Append(b[:0]) }
	}},
	{"decode a client message from JSON", func(t *testing.T) func() {
		body := []byte(`{"content":"which of these papers speak about flow control?","session":"session-7","timeout_ms":30000}`)
		return func() {
			if _, r := ingress.Message(actor.NewPrincipal("u", ""), "echo", body); r != nil {
				panic(r)
			}
		}
	}},
	{"encode a prompt for a model to JSON", func(t *testing.T) func() {
		p := upstream.Prompt{Messages: []upstream.Message{{Role: upstream.System, Text: "Look it up."}, {Role: upstream.User, Text: "What is backpressure?"}}}
		return func() { p.Encode() }
	}},
}

// TestAllocations compares the allocations of each operation with the table. It
// ignores time.
func TestAllocations(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector adds allocations")
	}
	var table bytes.Buffer
	table.WriteString(allocsHead)
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	now := map[string]cost{}
	for _, o := range operations {
		c := measureAllocs(o.make(t))
		now[o.name] = c
		fmt.Fprintf(w, "%d\t%d\t  %s\n", c.allocs, c.bytes, o.name)
	}
	w.Flush()
	if *rewrite {
		if err := os.WriteFile(allocsTable, table.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	expected, err := readAllocs()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range operations {
		want, ok := expected[o.name]
		if got := now[o.name]; !ok || !got.matches(want) {
			t.Errorf("%s: got %d allocations and %d bytes, want %d and %d", o.name, got.allocs, got.bytes, want.allocs, want.bytes)
		}
		delete(expected, o.name)
	}
	for name := range expected {
		t.Errorf("%s: the table has a row for an unknown operation", name)
	}
	if t.Failed() {
		t.Log("to accept the new counts, run make allocs REWRITE=1 and review the diff")
	}
}

// cost is the number of allocations and bytes of one operation.
type cost struct{ allocs, bytes int64 }

// matches reports whether the allocations are equal and the bytes are within
// bytesTolerance.
func (c cost) matches(expected cost) bool {
	return c.allocs == expected.allocs && math.Abs(float64(c.bytes-expected.bytes)) <= bytesTolerance*float64(expected.bytes)
}

// measureAllocs repeats an operation and returns its mean cost. The repetitions
// spread the cost of buffers that grow occasionally. Garbage collection is off,
// because it would empty the pools.
func measureAllocs(op func()) cost {
	const often = 1000
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for range often {
		op()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range often {
		op()
	}
	runtime.ReadMemStats(&after)
	return cost{int64(after.Mallocs-before.Mallocs) / often, int64(after.TotalAlloc-before.TotalAlloc) / often}
}

func readAllocs() (map[string]cost, error) {
	b, err := os.ReadFile(allocsTable)
	if err != nil {
		return nil, err
	}
	expected := map[string]cost{}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var c cost
		if _, err := fmt.Sscan(line, &c.allocs, &c.bytes); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", allocsTable, line, err)
		}
		words := strings.Fields(line)
		expected[strings.Join(words[2:], " ")] = c
	}
	return expected, nil
}

// cellLoop runs one cell and the log writer with a disk that completes every write
// at once.
type cellLoop struct {
	t       *testing.T
	cell    *cells.Cell
	writer  *store.Writer
	now     actor.Time
	id      uint64
	replies int
}

func newCellLoop(t *testing.T, definitions ...actor.Definition) *cellLoop {
	s := &cellLoop{t: t, now: actor.Time(1_700_000_000 * time.Second), writer: store.NewWriter(store.WriterConfig{Node: "n1"}),
		cell: cells.NewCell(cells.Config{Self: actor.Address{Node: "n1", Incarnation: 1}, Seed: 1, Tools: tools.NewRegistry()})}
	table := dispatcher.NewTable(func(uint16) dispatcher.Owner { return dispatcher.Owner{Node: "n1", Epoch: 1} })
	for _, in := range []cells.Input{cells.Limits{Limits: dispatcher.DefaultLimits()}, cells.Agents{Definitions: definitions}, cells.Owners{Table: table}, cells.Boot{}} {
		s.step(in)
	}
	return s
}

// ask returns an operation that sends one call to an actor of the agent and
// requires one reply.
func (s *cellLoop) ask(agent string) func() {
	to := actor.NewID(agent, "session-7")
	return func() {
		s.id++
		s.now = s.now.Add(time.Millisecond)
		call := actor.Call{ID: actor.NewCallID(s.now, 1, s.id), To: to, Kind: actor.Waiting, Lane: actor.Normal, Origin: actor.Human,
			Operation: actor.HandleMessageFull, Attempt: 1, Parts: payload}
		call.Root = call.ID
		before := s.replies
		s.step(cells.Deliver{Envelope: actor.Envelope{To: to, Body: actor.Request{Call: call}}})
		if s.replies != before+1 {
			s.t.Fatalf("%s: got %d replies, want 1", agent, s.replies-before)
		}
	}
}

// step steps the cell, passes its entries through the log writer, and performs its
// effects.
func (s *cellLoop) step(in cells.Input) {
	ready := s.cell.Step(s.now, in)
	s.writer.Append(ready.Entries)
	for b, ok := s.writer.Next(); ok; b, ok = s.writer.Next() {
		s.writer.Written(b.No)
		s.writer.Synced(b.No)
	}
	for _, e := range ready.Effects {
		switch op := e.Op.(type) {
		case cells.Send:
			s.step(cells.Deliver{Envelope: op.Envelope})
		case cells.Load:
			s.step(cells.Loaded{Actor: op.Actor, Epoch: op.Epoch})
		case cells.Respond:
			if op.Reply.Refusal != nil {
				s.t.Fatal(op.Reply.Refusal)
			}
			s.replies++
		}
	}
}

func envelope() actor.Envelope {
	to := actor.NewID("research", "session-7")
	call := actor.Call{ID: actor.CallID{1}, Root: actor.CallID{2}, Parent: actor.CallID{2}, To: to, Operation: actor.HandleMessageFull,
		Chain: []actor.ID{actor.NewID("planner", "session-7")}, Kind: actor.Waiting, Lane: actor.Normal, Left: 30 * time.Second, Attempt: 1,
		Principal: "key:0011223344556677", Origin: actor.Agent, Budget: 50, Parts: payload}
	return actor.Envelope{From: actor.Address{Node: "n1", Cell: 1, Incarnation: 1}, To: to, Epoch: 1, Body: actor.Request{Call: call}}
}

func entry() store.Entry {
	call := envelope().Body.(actor.Request).Call
	return store.Entry{Actor: call.To, Shard: dispatcher.ShardOf(call.To), Epoch: 1, N: 7, Record: store.Accepted{Call: call, At: 1_700_000_000}}
}

func event() runs.Event {
	return runs.Event{Type: runs.AgentStreamDelta, Run: actor.CallID{1}, Seq: 17, At: 1_700_000_000, Step: 1, Text: "Backpressure is "}
}
