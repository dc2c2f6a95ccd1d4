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
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// onCell does something on the thread of a cell, and waits.
func (n *node) onCell(number int, do func(c *cell)) {
	n.t.Helper()
	done := make(chan struct{})
	c := n.cells[number]
	c.mailbox.postCompletion(completion{run: func() { do(c); close(done) }})
	select {
	case <-done:
	case <-testContext(n.t).Done():
		n.t.Fatal("the cell does nothing")
	}
}

// waitUntil waits until something is so on the thread of a cell.
func (n *node) waitUntil(number int, what string, is func(c *cell) bool) {
	n.t.Helper()
	ctx := testContext(n.t)
	for ok := false; !ok; n.onCell(number, func(c *cell) { ok = is(c) }) {
		if ctx.Err() != nil {
			n.t.Fatalf("never: %s", what)
		}
		goruntime.Gosched()
	}
}

// volatileBomb makes its cell fail three times, without a look at the disk.
func volatileBomb() actor.Definition {
	d := rawAgent("bomb", func(actor.Begin) (actor.Action, error) { panic("as told") })
	d.Durability = actor.Volatile
	return d
}

// gatedStore is a store that nobody can read while it is held.
type gatedStore struct {
	store.KV
	gate sync.RWMutex
}

func (s *gatedStore) Scan(from, to []byte, each func(key, value []byte) bool) error {
	s.gate.RLock()
	defer s.gate.RUnlock()
	return s.KV.Scan(from, to, each)
}

func (s *gatedStore) ScanBack(from, to []byte, each func(key, value []byte) bool) error {
	s.gate.RLock()
	defer s.gate.RUnlock()
	return s.KV.ScanBack(from, to, each)
}

func (s *gatedStore) Get(key []byte) ([]byte, bool, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	return s.KV.Get(key)
}

// What comes of a model while the next incarnation of its cell has not read the
// actor yet is kept until it has, over as many falls as there are.
func TestResultsAreKeptUntilAwaited(t *testing.T) {
	shown, on := make(chan struct{}), make(chan struct{})
	disk := &gatedStore{}
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Cells = 1
		disk.KV, c.Store = c.Store, disk
		c.Outbound = fakeOutbound(func(_ context.Context, _ string, _ actor.Duration, pass func(actor.Piece)) actor.Answer {
			pass(actor.Piece{Text: "a"})
			close(shown)
			<-on
			pass(actor.Piece{Text: "b"})
			return modelReply("ab")
		})
	}, modelAgent(), volatileBomb())
	call := n.newCall("thinker", "s", "x")
	answer := make(chan Answer, 1)
	go func() { answer <- n.askCall(call) }()
	<-shown
	disk.gate.Lock()
	n.ask("bomb", "b", "x")
	close(on)
	n.waitUntil(0, "the piece is kept", func(c *cell) bool {
		for _, f := range c.effects {
			return len(f.unclaimed) == 1
		}
		return false
	})
	n.ask("bomb", "c", "x")
	disk.gate.Unlock()
	if a := <-answer; replyText(a) != "ab" {
		t.Errorf("got %+v", a.Reply)
	}
	if got := streamText(n.waitForEvent(call.ID, runs.RunDone)); got != "ab" {
		t.Errorf("the stream has %q", got)
	}
}

// panicsOnce panics over the first answer it gets.
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
		panic("as told")
	case answers[0].Refusal != nil:
		return actor.EndRefused(answers[0].Refusal), nil
	}
	return actor.Complete(answers[0].Parts), nil
}

func (f panicsOnce) Stop() {}

// An outcome over which the cell falls is given to the next incarnation: what
// was done is not done again, nor unknown.
func TestOutcomeIsRedeliveredAfterPanic(t *testing.T) {
	var done atomic.Int32
	work := func(context.Context) ([]byte, error) { done.Add(1); return []byte("done"), nil }
	n := startNode(t, t.TempDir(), func(c *Config) { c.Cells = 1 },
		agents.Define("worker", "1", "of a test", panicsOnce{&atomic.Bool{}, work}))
	if a := n.ask("worker", "s", "x"); replyText(a) != "done" || done.Load() != 1 {
		t.Errorf("done %d times: %+v", done.Load(), a.Reply)
	}
	n.waitUntil(0, "nothing is under way", func(c *cell) bool { return len(c.effects) == 0 })
}

// What nobody awaits any more, because who asked has forgotten, is dropped when
// its time is over.
func TestUnawaitedOutcomeIsDropped(t *testing.T) {
	begun, let := make(chan struct{}), make(chan struct{})
	var once sync.Once
	worker := blockingAgent("worker", func(turn *agents.Turn) (string, error) {
		_, err := turn.Do("work", func(context.Context) ([]byte, error) {
			once.Do(func() { close(begun) })
			<-let
			return nil, nil
		}, agents.Within(300*time.Millisecond))
		return "", err
	})
	worker.Durability = actor.Volatile
	n := startNode(t, t.TempDir(), func(c *Config) { c.Cells = 1 }, worker, volatileBomb())
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan struct{})
	go func() { n.Ask(ctx, n.newCall("worker", "s", "x")); close(left) }() //nolint:errcheck // it leaves
	<-begun
	leave()
	<-left
	n.ask("bomb", "b", "x")
	close(let)
	n.waitUntil(0, "the outcome is dropped", func(c *cell) bool { return len(c.effects) == 0 })
}

// What did not get through its gate in time is not done, and not remembered:
// whose turn it was may be forgotten, and give nothing up.
func TestExpiredGatedEffectIsDropped(t *testing.T) {
	n := startNode(t, t.TempDir(), func(c *Config) { c.Cells = 1 })
	var begun sync.WaitGroup
	for i := range byte(20) {
		n.onCell(0, func(c *cell) {
			e := runtime.Effect{ID: actor.EffectID{Run: actor.CallID{1, i}}, Attempt: 1}
			begin := c.prepareEffect(e, actor.AskWork, 0, func(context.Context, func(actor.Piece)) actor.Answer {
				t.Error("it is done all the same")
				return actor.Answer{}
			})
			begun.Go(begin) // as the log does, which waits for no cell
		})
	}
	begun.Wait()
	n.waitUntil(0, "nothing is under way", func(c *cell) bool { return len(c.effects) == 0 })
}

// An actor that writes nothing down begins anew with its cell, and asks under the
// same name: what it had asked before is given up, and nothing of it is taken for
// the new answer.
func TestReissuedEffectReplacesEarlierOne(t *testing.T) {
	var asked atomic.Int32
	first, over := make(chan struct{}), make(chan struct{})
	d := modelAgent()
	d.Durability = actor.Volatile
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Cells = 1
		c.Outbound = fakeOutbound(func(ctx context.Context, _ string, _ actor.Duration, pass func(actor.Piece)) actor.Answer {
			if asked.Add(1) == 1 {
				close(first)
				<-ctx.Done()
				pass(actor.Piece{Text: "old"})
				close(over)
				return modelReply("old")
			}
			select {
			case <-over:
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
		t.Errorf("%q after %d asks: %v", replyText(a), asked.Load(), a.Reply.Refusal)
	}
	n.waitUntil(0, "nothing is under way", func(c *cell) bool { return len(c.effects) == 0 })
}

// A cell hears of the first few actors with open work before the rest were found,
// and of each of them once.
func TestDueActorsAreReportedInGrowingBatches(t *testing.T) {
	const open = 5 * dueBatchMin
	w, kv := store.NewWriter(store.WriterConfig{Node: "n1"}), &store.Memory{}
	var want []actor.ID
	for i := range open {
		id := actor.NewID("alice", fmt.Sprintf("%05d", i))
		want = append(want, id)
		w.Append([]store.Entry{{Actor: id, Shard: 7, Epoch: 1, N: 1, Record: store.Rebased{At: 1}, Due: actor.Time(1 + i)}})
	}
	b, _ := w.Next()
	if err := kv.Apply(b.Rows); err != nil {
		t.Fatal(err)
	}
	var sizes []int
	var got []actor.ID
	e := &Engine{config: Config{Store: kv}}
	e.findDue([]uint16{7}, func(in runtime.Input) {
		got = append(got, in.(runtime.Due).Actors...)
		sizes = append(sizes, len(in.(runtime.Due).Actors))
	})
	if !slices.Equal(got, want) {
		t.Errorf("%d actors are told of, %d have open work", len(got), len(want))
	}
	if want := []int{dueBatchMin, 2 * dueBatchMin, 2 * dueBatchMin}; !slices.Equal(sizes, want) {
		t.Errorf("told of %v at a time, want %v", sizes, want)
	}
}
