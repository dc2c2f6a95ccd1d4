// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// fakeCell is a mailbox whose cell is a function. It has no worker: Schedule
// only counts, or runs the mailbox inline.
type fakeCell struct {
	*mailbox
	receive   func(message any)
	failed    []any
	scheduled int
	inline    bool
	frozen    bool        // keeps the field now constant while a message is handled
	clock     *actor.Time // start of each step, if not nil
}

func newFakeCell(n uint16, slots int) *fakeCell {
	c := &fakeCell{mailbox: newMailbox(n, slots, &coroutinePool{})}
	c.RegisterHandlers(c, c)
	c.running.Store(false)
	return c
}

func linkPeers(cells ...*fakeCell) {
	var peers []*mailbox
	for _, c := range cells {
		peers = append(peers, c.mailbox)
	}
	for _, c := range cells {
		c.peers = peers
	}
}

func (c *fakeCell) InvokeSystemMessage(any) {}
func (c *fakeCell) InvokeUserMessage(message any) {
	if c.frozen {
		c.now = 1
	}
	if c.clock != nil {
		c.now = *c.clock
	}
	c.receive(message)
}
func (c *fakeCell) EscalateFailure(reason, _ any) { c.failed = append(c.failed, reason) }
func (c *fakeCell) Throughput() int               { return 128 }

func (c *fakeCell) Schedule(run func()) {
	if c.scheduled++; c.inline {
		run()
	}
}

func testEnvelope() *actor.Envelope {
	return &actor.Envelope{To: actor.NewID("a", ""), Body: actor.Cancel{Call: actor.NewCallID(1, 2, 3), Reason: actor.Stopped}}
}

// Two cells that send to each other without end hold a client's goroutine only
// for a bounded number of rounds and a bounded time. Then their workers
// continue.
func TestHelpingOtherCellsIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		step time.Duration
		want int
	}{"rounds": {0, helpRoundsMax + 1}, "time": {helpTimeMax / 4, 6}, "last moment": {helpTimeMax, 3}, "one long step": {helpTimeMax + 1, 2}} {
		t.Run(name, func(t *testing.T) {
			a, b := newFakeCell(0, 4), newFakeCell(1, 4)
			linkPeers(a, b)
			clock := actor.Time(1)
			a.clock, b.clock = &clock, &clock
			steps, envelope := 0, testEnvelope()
			sends := func(from, to *fakeCell) func(any) {
				return func(any) {
					clock = clock.Add(test.step)
					steps++
					from.markPeer(to.n)
					if !to.pushFrom(from.n, envelope) {
						t.Fatal("queue is full")
					}
				}
			}
			a.receive, b.receive = sends(a, b), sends(b, a)
			if !a.tryAcquire() {
				t.Fatal("cell is not idle")
			}
			(&runner{waiter: &waiter{}, mailbox: a.mailbox, task: taskDeliver}).run()
			if steps != test.want {
				t.Errorf("got %d steps, want %d", steps, test.want)
			}
			if a.scheduled+b.scheduled != 1 {
				t.Errorf("workers scheduled %d and %d times, want once in total", a.scheduled, b.scheduled)
			}
		})
	}
}

// A client that has its answer delivers nothing for other cells.
func TestClientStopsHelpingOnceAnswered(t *testing.T) {
	a := newFakeCell(0, 16)
	a.frozen = true
	a.now = 1
	linkPeers(a)
	w := &waiter{ready: make(chan struct{}, 1)}
	steps := 0
	a.receive = func(any) {
		if steps++; steps == 3 {
			w.resolve(Answer{})
		}
	}
	for range 10 {
		a.queue.push(testEnvelope())
	}
	a.tryAcquire()
	a.drain(&runner{waiter: w})
	if steps != 3 {
		t.Errorf("got %d steps, want 3", steps)
	}
	a.handOff(&runner{waiter: w})
	if steps != 3 || a.scheduled != 1 || !a.running.Load() {
		t.Errorf("got %d steps and %d schedules, want 3 and 1", steps, a.scheduled)
	}
}

// A mailbox delivers nothing between a panic and the next incarnation.
func TestSuspendedMailboxDeliversNothing(t *testing.T) {
	a := newFakeCell(0, 16)
	linkPeers(a)
	steps := 0
	a.receive = func(any) {
		if steps++; steps == 1 {
			panic("test failure")
		}
	}
	a.queue.push(testEnvelope())
	a.queue.push(testEnvelope())
	a.tryAcquire()
	a.drain(&runner{})
	if len(a.failed) != 1 || steps != 1 {
		t.Fatalf("got %d steps and failures %v, want one of each", steps, a.failed)
	}
	a.suspended.Store(true)
	a.drain(&runner{})
	a.handOff(&runner{})
	if steps != 1 || a.scheduled != 0 || a.hasWork() {
		t.Errorf("got %d steps and %d schedules, want 1 and 0", steps, a.scheduled)
	}
	a.suspended.Store(false)
	if !a.hasWork() {
		t.Error("queued message was lost")
	}
}

// A cell that found a queue full gets a tick as soon as there is room.
func TestBlockedSenderIsWokenWhenQueueDrains(t *testing.T) {
	a, b := newFakeCell(0, 2), newFakeCell(1, 2)
	linkPeers(a, b)
	ticks := 0
	a.receive = func(any) { ticks++ }
	b.receive = func(any) {}
	for b.pushFrom(0, testEnvelope()) {
	}
	b.tryAcquire()
	b.drain(&runner{})
	b.handOff(&runner{})
	if ticks != 1 {
		t.Errorf("got %d ticks, want 1", ticks)
	}
}

// A call to an idle cell is delivered at once on the caller's goroutine, but
// never before messages that were enqueued earlier.
func TestDirectAskDoesNotOvertakeQueuedMessages(t *testing.T) {
	a := newFakeCell(0, 16)
	a.frozen = true
	a.now = 1
	linkPeers(a)
	var got []uint32
	a.receive = func(m any) {
		switch m := m.(type) {
		case *waiter:
			got = append(got, m.request.Call.Attempt)
		case *runtime.Deliver:
			got = append(got, m.Envelope.Body.(actor.Request).Call.Attempt)
		}
	}
	c := &cell{engine: &Engine{clients: newClients(16)}, mailbox: a.mailbox}
	newWaiter := func(n uint32) *waiter {
		return &waiter{request: runtime.Visit{Call: actor.Call{Attempt: n}}, ready: make(chan struct{}, 1)}
	}
	enqueue := func(n uint32) { c.enqueueClient(&actor.Envelope{Body: actor.Request{Call: actor.Call{Attempt: n}}}) }
	if !c.ask(newWaiter(1)) || len(got) != 1 || a.scheduled != 0 || a.running.Load() {
		t.Errorf("idle cell got %v and was scheduled %d times", got, a.scheduled)
	}
	enqueue(2)
	enqueue(3)
	if !c.ask(newWaiter(4)) || fmt.Sprint(got) != "[1 2 3 4]" {
		t.Errorf("got %v", got)
	}
	a.tryAcquire()
	if !c.ask(newWaiter(5)) || len(got) != 4 {
		t.Errorf("busy cell got %v", got)
	}
	a.handOff(&runner{})
	if fmt.Sprint(got) != "[1 2 3 4 5]" {
		t.Errorf("after handOff got %v", got)
	}
	// A call to a restarting cell waits.
	a.suspended.Store(true)
	if !c.ask(newWaiter(6)) || len(got) != 5 || a.running.Load() {
		t.Errorf("suspended cell got %v", got)
	}
}

// Each client gets the answer to its own call, whichever goroutine steps the
// cell, even if other clients cancel and cells fail.
func TestConcurrentClientsGetTheirOwnAnswers(t *testing.T) {
	bomb := rawAgent("bomb", func(actor.Begin) (actor.Action, error) { goruntime.Goexit(); return actor.Action{}, nil })
	bomb.Durability = actor.Volatile
	n := startNode(t, t.TempDir(), func(c *Config) { c.QueueSlots = 64 }, echoAgent(), chainAgent("c1", "c2/a"), chainAgent("c2", "c3/"+keyOnOtherCell("c2/a", 2)), chainAgent("c3", "echo"), bomb)
	var all sync.WaitGroup
	var cancelled, answeredCount atomic.Int32
	for i := range 16 {
		all.Go(func() {
			agent := []string{"echo", "c1"}[i%2]
			for j := range 100 {
				call := n.newCall(agent, fmt.Sprintf("%d-%d", i, j%3), fmt.Sprintf("%d.%d", i, j))
				ctx, cancel := context.WithCancel(testContext(t))
				if j%10 == 9 {
					go cancel()
				}
				a, err := n.Ask(ctx, call)
				cancel()
				switch {
				case err != nil && j%10 == 9:
					cancelled.Add(1)
				case err != nil:
					t.Error(err)
				case a.Reply.Call != call.ID || a.Reply.Refusal == nil && replyText(a) != actor.TextOf(call.Parts):
					t.Errorf("asked %v, got %+v", call.ID, a.Reply)
				case a.Reply.Refusal == nil:
					answeredCount.Add(1)
				}
			}
		})
	}
	for i := range 5 {
		a := n.ask("bomb", fmt.Sprint(i), "x")
		for a.Reply.Refusal != nil && a.Reply.Refusal.Reason == actor.Busy { // the queue is short and may be full
			goruntime.Gosched()
			a = n.ask("bomb", fmt.Sprint(i), "x")
		}
		if a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Unavailable {
			t.Errorf("bomb: %+v", a.Reply)
		}
	}
	all.Wait()
	if answeredCount.Load() < 1000 {
		t.Errorf("%d were answered, %d cancelled", answeredCount.Load(), cancelled.Load())
	}
}

// A subscriber to a volatile run is notified of its events. Subscribers to
// other runs are not.
func TestWatchNotifiesOnlyItsRun(t *testing.T) {
	n := startNode(t, t.TempDir(), nil, echoAgent())
	for _, busy := range []bool{false, true} { // stepped by the client, then by the cell's worker
		call := n.newCall("echo", "s", "x")
		news, stop, _ := n.Watch(call.ID)
		other, stopOther, _ := n.Watch(n.NewCallID())
		if m := n.cellOf(call.To).mailbox; busy {
			for !m.tryAcquire() {
				goruntime.Gosched()
			}
			go func() {
				for m.queue.len() == 0 {
					goruntime.Gosched()
				}
				m.handOff(&runner{})
			}()
		}
		if a := n.askCall(call); replyText(a) != "x" {
			t.Fatalf("got %+v, want x", a)
		}
		select {
		case <-news:
		default:
			t.Errorf("busy %v: subscriber was not notified", busy)
		}
		select {
		case <-other:
			t.Error("notified of another run")
		default:
		}
		stop()
		stopOther()
	}
}

// Failed cells leave no goroutine behind, whether they panicked or called
// Goexit.
func TestFailedCellsLeakNoGoroutines(t *testing.T) {
	before := goruntime.NumGoroutine()
	n := startNode(t, t.TempDir(), nil,
		rawAgent("panics", func(actor.Begin) (actor.Action, error) { panic("test failure") }),
		rawAgent("leaves", func(actor.Begin) (actor.Action, error) { goruntime.Goexit(); return actor.Action{}, nil }))
	for i := range 5 {
		n.ask("panics", fmt.Sprint(i), "x")
		n.ask("leaves", fmt.Sprint(i), "x")
	}
	if !n.logOutput.contains("mailbox_test.go") {
		t.Error("log has no stack trace of the failed step")
	}
	n.close()
	waitForGoroutines(t, before+1)
}

// waitForGoroutines waits until the number of goroutines is at most limit.
func waitForGoroutines(t *testing.T, limit int) {
	t.Helper()
	ctx := testContext(t)
	for goruntime.NumGoroutine() > limit { // the last goroutines of Pebble end late
		if ctx.Err() != nil {
			buf := make([]byte, 1<<20)
			t.Fatalf("got %d goroutines, want at most %d\n%s", goruntime.NumGoroutine(), limit, buf[:goruntime.Stack(buf, true)])
		}
		goruntime.Gosched()
	}
}

// The watchdog polls while a cell steps and stops when it is idle.
func TestWatchdogStopsWhenCellIsIdle(t *testing.T) {
	n := startNode(t, t.TempDir(), nil, echoAgent())
	n.ask("echo", "s", "x")
	ctx := testContext(t)
	for _, c := range n.cells {
		for c.watchdog.active.Load() {
			if ctx.Err() != nil {
				t.Fatalf("cell %d is idle, but its watchdog is active", c.n)
			}
			goruntime.Gosched()
		}
	}
}

// A call that arrives while the holder is leaving the cell is delivered: either
// the holder or the caller delivers it.
func TestAskRacingHandOffIsNotLost(t *testing.T) {
	a := newFakeCell(0, 16)
	linkPeers(a)
	a.inline = true
	got := 0
	a.receive = func(any) { got++ }
	c := &cell{engine: &Engine{clients: newClients(16)}, mailbox: a.mailbox}
	w := &waiter{ready: make(chan struct{}, 1)}
	var round, held, released atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for last := int64(0); last >= 0; {
			now := round.Load()
			if now == last {
				goruntime.Gosched()
				continue
			}
			if last = now; now > 0 && a.tryAcquire() {
				held.Store(now)
				for range now % 128 { // varies the time at which the holder leaves the cell
					a.hasWork()
				}
				a.handOff(&runner{})
				released.Store(now)
			}
		}
	}()
	for i := range 10_000 {
		round.Add(1)
		for held.Load() != round.Load() {
			goruntime.Gosched()
		}
		c.ask(w)
		for released.Load() != round.Load() {
			goruntime.Gosched()
		}
		if got != i+1 {
			t.Fatalf("after call %d: %d were delivered", i, got)
		}
	}
	round.Store(-1)
	<-done
}

// A caller that finds a cell busy spins while the steps are quick and no other
// caller has spun in vain. Without the second condition, a thousand callers
// would spin a thousand times as much.
func TestOnlyOneCallerSpinsOnBusyCell(t *testing.T) {
	a := newFakeCell(0, 16)
	var quick atomic.Bool
	check := func(acquired bool, spins int) {
		t.Helper()
		if h, n := a.spinAcquire(&quick); h != acquired || n != spins {
			t.Errorf("got %v after %d spins, want %v after %d", h, n, acquired, spins)
		}
	}
	check(true, 0)
	check(false, 0)
	quick.Store(true)
	check(false, busySpins)
	a.pushFrom(1, testEnvelope())
	check(false, 0)
	a.running.Store(false)
	check(true, 0)
}

// A quarter of the queue is reserved for messages from cells. The whole queue
// is reserved while the cell's own messages wait for a full queue.
func TestQueueReservesSlotsForCells(t *testing.T) {
	a := newFakeCell(0, 16)
	c := &cell{mailbox: a.mailbox}
	for i := range 13 {
		if ok := c.enqueueClient(&actor.Envelope{}); ok != (i < 12) {
			t.Errorf("message %d: enqueued %v", i, ok)
		}
	}
	for range 4 {
		if !a.pushFrom(1, testEnvelope()) {
			t.Error("no slot for a message from a cell")
		}
	}
	a.queue = newQueue(16)
	c.overflowCount.Store(1)
	if c.enqueueClient(&actor.Envelope{}) {
		t.Error("client message enqueued while the cell's own messages wait")
	}
	c.overflowCount.Store(0)
	if !c.enqueueClient(&actor.Envelope{}) {
		t.Error("client message refused although there is room")
	}
}
