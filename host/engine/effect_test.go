// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// onCell runs a function while the cell is held, and waits for it.
func (n *node) onCell(number int, fn func(c *cell)) {
	n.t.Helper()
	done := make(chan struct{})
	c := n.cells[number]
	c.mailbox.postCompletion(completion{run: func() { fn(c); close(done) }})
	select {
	case <-done:
	case <-testContext(n.t).Done():
		n.t.Fatal("function not run: the cell is blocked")
	}
}

// waitUntil waits until a condition holds on a cell.
func (n *node) waitUntil(number int, condition string, holds func(c *cell) bool) {
	n.t.Helper()
	ctx := testContext(n.t)
	for ok := false; !ok; n.onCell(number, func(c *cell) { ok = holds(c) }) {
		if ctx.Err() != nil {
			n.t.Fatalf("timed out waiting until %s", condition)
		}
		goruntime.Gosched()
	}
}

// volatileBomb returns a volatile agent that panics. A call to it makes its
// cell fail three times without reading the disk.
func volatileBomb() actor.Definition {
	d := rawAgent("bomb", func(actor.Begin) (actor.Action, error) { panic("test failure") })
	d.Durability = actor.Volatile
	return d
}

// gatedStore is a store that loads no actor while the gate is locked.
type gatedStore struct {
	store.Reader
	gate sync.RWMutex
}

func (s *gatedStore) Load(id actor.ID) (store.Saved, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	return s.Reader.Load(id)
}

// A model may answer before the next incarnation of a cell has read the actor.
// The answer is kept until the actor has been read, across any number of
// failures.
func TestResultsAreKeptUntilAwaited(t *testing.T) {
	streamed, resume := make(chan struct{}), make(chan struct{})
	disk := &gatedStore{}
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Cells = 1
		disk.Reader, c.Store = c.Store, disk
		c.Outbound = fakeOutbound(func(_ context.Context, _ string, _ actor.Duration, pass func(actor.Piece)) actor.Answer {
			pass(actor.Piece{Text: "a"})
			close(streamed)
			<-resume
			pass(actor.Piece{Text: "b"})
			return modelReply("ab")
		})
	}, modelAgent(), volatileBomb())
	call := n.newCall("thinker", "s", "x")
	answer := make(chan Answer, 1)
	go func() { answer <- n.askCall(call) }()
	<-streamed
	disk.gate.Lock()
	n.ask("bomb", "b", "x")
	close(resume)
	n.waitUntil(0, "the piece is kept", func(c *cell) bool {
		for _, f := range c.effects {
			return len(f.unclaimed) == 1
		}
		return false
	})
	n.ask("bomb", "c", "x")
	disk.gate.Unlock()
	if a := <-answer; replyText(a) != "ab" {
		t.Errorf("got %+v, want ab", a.Reply)
	}
	if got := streamText(n.waitForEvent(call.ID, runs.RunDone)); got != "ab" {
		t.Errorf("stream has %q, want ab", got)
	}
}

// panicsOnce is an agent that panics on its first answer.
type panicsOnce struct {
	panicked *atomic.Bool
	work     actor.Work
}

func (f panicsOnce) Begin(actor.Begin) actor.Turn { return f }

func (f panicsOnce) Next(answers []actor.Answer) (actor.Action, error) {
	switch {
	case answers == nil:
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskWork, Name: "work", Work: f.work}}}, nil
	case f.panicked.CompareAndSwap(false, true):
		panic("test failure")
	case answers[0].Refusal != nil:
		return actor.EndRefused(answers[0].Refusal), nil
	}
	return actor.Complete(answers[0].Parts), nil
}

func (f panicsOnce) Stop() {}

// An outcome that makes the cell fail is delivered to the next incarnation. The
// work is neither repeated nor reported as unknown.
func TestOutcomeIsRedeliveredAfterPanic(t *testing.T) {
	var done atomic.Int32
	work := func(context.Context) ([]byte, error) { done.Add(1); return []byte("done"), nil }
	n := startNode(t, t.TempDir(), func(c *Config) { c.Cells = 1 },
		agents.Define("worker", "1", "test agent", panicsOnce{&atomic.Bool{}, work}))
	if a := n.ask("worker", "s", "x"); replyText(a) != "done" || done.Load() != 1 {
		t.Errorf("work ran %d times, want 1: %+v", done.Load(), a.Reply)
	}
	n.waitUntil(0, "no effect is left", func(c *cell) bool { return len(c.effects) == 0 })
}

// The volatile actor that asked is lost with its cell, so no incarnation awaits
// the effect. The outcome is dropped at the effect's deadline.
func TestUnawaitedOutcomeIsDropped(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	worker := blockingAgent("worker", func(turn *agents.Turn) (string, error) {
		_, err := turn.Do("work", func(context.Context) ([]byte, error) {
			once.Do(func() { close(started) })
			<-release
			return nil, nil
		}, agents.Within(300*time.Millisecond))
		return "", err
	})
	worker.Durability = actor.Volatile
	n := startNode(t, t.TempDir(), func(c *Config) { c.Cells = 1 }, worker, volatileBomb())
	ctx, cancel := context.WithCancel(context.Background())
	returned := make(chan struct{})
	go func() { n.Ask(ctx, n.newCall("worker", "s", "x")); close(returned) }() //nolint:errcheck // cancelled
	<-started
	cancel()
	<-returned
	n.ask("bomb", "b", "x")
	close(release)
	n.waitUntil(0, "the outcome is dropped", func(c *cell) bool { return len(c.effects) == 0 })
}

// An effect whose gate opens after its deadline is not started. It is removed
// from the table without an abort, because its turn may no longer exist.
func TestExpiredGatedEffectIsDropped(t *testing.T) {
	n := startNode(t, t.TempDir(), func(c *Config) { c.Cells = 1 })
	var started sync.WaitGroup
	for i := range byte(20) {
		n.onCell(0, func(c *cell) {
			e := runtime.Effect{ID: actor.EffectID{Run: actor.CallID{1, i}}, Attempt: 1}
			startEffect := c.prepareEffect(e, actor.AskWork, 0, func(context.Context, func(actor.Piece)) actor.Answer {
				t.Error("expired effect was performed")
				return actor.Answer{}
			})
			started.Go(startEffect) // like the log, which does not wait for the cell
		})
	}
	started.Wait()
	n.waitUntil(0, "no effect is left", func(c *cell) bool { return len(c.effects) == 0 })
}

// A volatile actor restarts with its cell and reuses the keys of its effects.
// The earlier effect is cancelled, and its results are not taken for results of
// the new effect.
func TestReissuedEffectReplacesEarlierOne(t *testing.T) {
	var asked atomic.Int32
	first, cancelled := make(chan struct{}), make(chan struct{})
	d := modelAgent()
	d.Durability = actor.Volatile
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Cells = 1
		c.Outbound = fakeOutbound(func(ctx context.Context, _ string, _ actor.Duration, pass func(actor.Piece)) actor.Answer {
			if asked.Add(1) == 1 {
				close(first)
				<-ctx.Done()
				pass(actor.Piece{Text: "old"})
				close(cancelled)
				return modelReply("old")
			}
			select {
			case <-cancelled:
			case <-ctx.Done():
			}
			return modelReply("new")
		})
	}, d, volatileBomb())
	call := n.newCall("thinker", "s", "x")
	answer := make(chan Answer, 1)
	go func() { answer <- n.askCall(call) }()
	<-first
	n.ask("bomb", "b", "x")
	if a := <-answer; replyText(a) != "new" {
		t.Errorf("got %q after %d model calls, want new: %v", replyText(a), asked.Load(), a.Reply.Refusal)
	}
	n.waitUntil(0, "no effect is left", func(c *cell) bool { return len(c.effects) == 0 })
}

// A cell receives the first batch of due actors before the other actors have
// been read. It receives each actor once.
func TestDueActorsAreReportedInGrowingBatches(t *testing.T) {
	const open = 5 * dueBatchMin
	d, err := disk.Open(t.TempDir(), "n1", disk.Options{FreeFloor: 1, WriteBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	log := disk.NewLog(d)
	var want []actor.ID
	for i := range open {
		id := actor.NewID("alice", fmt.Sprintf("%05d", i))
		want = append(want, id)
		log.Commit([]store.Entry{{Actor: id, Shard: 7, Epoch: 1, N: 1, Record: store.Rebased{At: 1}, Due: actor.Time(1 + i)}}, nil)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	var sizes []int
	var got []actor.ID
	e := &Engine{config: Config{Store: d}}
	e.findDue([]uint16{7}, func(in runtime.Input) {
		got = append(got, in.(runtime.Due).Actors...)
		sizes = append(sizes, len(in.(runtime.Due).Actors))
	})
	if !slices.Equal(got, want) {
		t.Errorf("got %d actors, want all %d with open work, in order", len(got), len(want))
	}
	if want := []int{dueBatchMin, 2 * dueBatchMin, 2 * dueBatchMin}; !slices.Equal(sizes, want) {
		t.Errorf("got batches of %v actors, want %v", sizes, want)
	}
}
