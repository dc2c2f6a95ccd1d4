// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"github.com/troupe-run/troupe/host/logs"
	"log/slog"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// node is an engine over a real store, set up like the serve command.
type node struct {
	*Engine
	t         testing.TB
	disk      *disk.Disk
	log       *logs.Log
	logOutput *logBuffer
}

// logBuffer is a log output that a test can wait on.
type logBuffer struct {
	mu      sync.Mutex
	lines   bytes.Buffer
	written chan struct{}
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines.Write(b)
	select {
	case l.written <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (l *logBuffer) contains(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.lines.String(), text)
}

func (l *logBuffer) waitFor(ctx context.Context, text string) bool {
	for !l.contains(text) {
		select {
		case <-l.written:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func startNode(t testing.TB, dir string, change func(*Config), definitions ...actor.Definition) *node {
	t.Helper()
	d, err := disk.Open(dir, "n1", disk.Options{FreeFloor: 1, WriteBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, disk: d, log: disk.NewLog(d), logOutput: &logBuffer{written: make(chan struct{}, 1)}}
	config := Config{Node: "n1", Start: d.End().Batch, Log: n.log, Store: d, Sessions: n.log, Agents: append(agents.Builtin(), definitions...),
		Tools: tools.NewRegistry(), Limits: dispatcher.DefaultLimits(), Logger: slog.New(slog.NewJSONHandler(n.logOutput, nil)), Cells: 2, DiskLagMax: time.Hour}
	if change != nil {
		change(&config)
	}
	if n.Engine, err = Start(config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	return n
}

func (n *node) close() {
	if n.disk == nil {
		return
	}
	if err := n.Engine.Close(testContext(n.t)); err != nil {
		n.t.Error(err)
	}
	for _, c := range []interface{ Close() error }{n.log, n.disk} {
		if err := c.Close(); err != nil {
			n.t.Error(err)
		}
	}
	n.disk = nil
}

func (n *node) newCall(agent, key, text string) actor.Call {
	return actor.Call{ID: n.NewCallID(), To: actor.NewID(agent, key), Parts: actor.Text(text)}
}

func (n *node) ask(agent, key, text string) Answer {
	n.t.Helper()
	return n.askCall(n.newCall(agent, key, text))
}

func (n *node) askCall(call actor.Call) Answer {
	n.t.Helper()
	a, err := n.Ask(testContext(n.t), call)
	if err != nil {
		n.t.Errorf("%s: %v", call.To, err)
	}
	return a
}

func (n *node) signal(run actor.CallID, to actor.ID, name string) Answer {
	n.t.Helper()
	call := n.newCall(to.Agent, to.Key, "")
	call.Kind, call.Parent, call.Operation = actor.Signal, run, name
	return n.askCall(call)
}

// waitForEvent waits until the run has an event of a type and returns all its
// events.
func (n *node) waitForEvent(run actor.CallID, last runs.Type) []runs.Event {
	n.t.Helper()
	ctx := testContext(n.t)
	news, stop, _ := n.Watch(run)
	defer stop()
	var all []runs.Event
	for {
		err := n.Read(ctx, func(log store.Reader) error {
			raw, err := log.Events(actor.DefaultTenant, run, uint64(len(all)), 1_000_000)
			for _, r := range raw {
				e, err := runs.Decode(r.Body)
				if err != nil {
					return err
				}
				all = append(all, e)
			}
			return err
		})
		if err != nil {
			n.t.Fatal(err)
		}
		for _, e := range all {
			if e.Type == last {
				return all
			}
		}
		select {
		case <-news:
		case <-ctx.Done():
			n.t.Fatalf("run %s has no %s among its %d events", run, last, len(all))
		}
	}
}

// waitForResult waits for the end of a run and returns its reply.
func (n *node) waitForResult(run actor.CallID) string {
	n.t.Helper()
	all := n.waitForEvent(run, runs.RunDone)
	return all[len(all)-1].Text
}

func replyText(a Answer) string { return actor.TextOf(a.Reply.Parts) }

func blockingAgent(name string, turn func(*agents.Turn) (string, error)) actor.Definition {
	return agents.Define(name, "1", "test agent", agents.Blocking(agents.Func(turn)))
}

// rawTurn is an agent without the panic recovery and checks of package agents.
type rawTurn struct {
	next func(actor.Begin) (actor.Action, error)
	at   actor.Begin
}

func (r rawTurn) Begin(b actor.Begin) actor.Turn { r.at = b; return r }

func (r rawTurn) Next([]actor.Answer) (actor.Action, error) { return r.next(r.at) }

func (r rawTurn) Stop() {}

func rawAgent(name string, next func(actor.Begin) (actor.Action, error)) actor.Definition {
	return agents.Define(name, "1", "test agent", rawTurn{next: next})
}

func TestAskReturnsReplyOrRefusal(t *testing.T) {
	n := startNode(t, t.TempDir(), nil)
	a := n.ask("helper", "s-1", "xyzzy")
	if replyText(a) != "response from helper: xyzzy" || a.Reply.Status != actor.Succeeded {
		t.Errorf("got %+v, want a reply", a)
	}
	if a := n.ask("nobody", "s-1", "x"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.NotFound {
		t.Errorf("unknown agent: got %+v, want NotFound", a)
	}
	if a := n.ask("no body", "s-1", "x"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Invalid {
		t.Errorf("invalid name: got %+v, want Invalid", a)
	}
	call := n.newCall("helper", "s-1", "x")
	for tag := range uint64(actor.ExtensionsMax + 1) {
		call.Extensions = call.Extensions.With(tag, nil)
	}
	if a := n.askCall(call); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Invalid || !strings.Contains(a.Reply.Refusal.Detail, "more than 32 extensions") {
		t.Errorf("too many extensions: got %+v, want Invalid", a)
	}
}

func TestRunResumesAfterProcessRestart(t *testing.T) {
	dir := t.TempDir()
	n := startNode(t, dir, nil)
	held := n.ask("coordinator", "s-1", "xyzzy")
	run := held.Reply.Run
	if held.HeldUntil == 0 || run.IsZero() {
		t.Fatalf("run is not held: %+v", held)
	}
	before := n.waitForEvent(run, runs.WaitOpened)
	epoch := n.owned.epochs[0]
	n.close()

	n = startNode(t, dir, nil)
	if n.owned.epochs[0] <= epoch {
		t.Errorf("got epoch %d after %d, want a greater one", n.owned.epochs[0], epoch)
	}
	to := actor.NewID("coordinator", "s-1")
	if a := n.signal(run, to, "stop"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Rejected {
		t.Errorf("signal that the run does not wait for: got %+v, want Rejected", a)
	}
	if a := n.signal(run, to, "go"); a.Reply.Refusal != nil {
		t.Errorf("signal refused: %+v", a)
	}
	all := n.waitForEvent(run, runs.RunDone)
	record, err := runs.Fold(all)
	if err != nil || !strings.Contains(record.Text, "xyzzy") || len(record.Children) != 1 {
		t.Errorf("got run %+v, error %v", record, err)
	}
	for i := range before {
		if before[i].String() != all[i].String() {
			t.Errorf("event %d was %v, now %v", i+1, before[i], all[i])
		}
	}
	helpers := 0
	if err := n.Read(testContext(t), func(log store.Reader) error {
		return store.EachRun(log, actor.DefaultTenant, runs.Filter{Agent: "helper", Calls: true}, func(*runs.Summary) { helpers++ })
	}); err != nil || helpers != 1 {
		t.Errorf("helper was called %d times, want 1: %v", helpers, err)
	}
}

// Close ends waiting turns, running tools and waiting clients.
func TestCloseLeavesNoGoroutines(t *testing.T) {
	before := goruntime.NumGoroutine()
	busy := make(chan struct{})
	n := startNode(t, t.TempDir(), nil,
		blockingAgent("worker", func(turn *agents.Turn) (string, error) {
			b, err := turn.Do("wait", func(ctx context.Context) ([]byte, error) {
				close(busy)
				<-ctx.Done()
				return nil, ctx.Err()
			})
			return string(b), err
		}))
	n.ask("coordinator", "s-1", "xyzzy") // leaves its coroutine suspended in a wait
	waiting := make(chan Answer)
	go func() { waiting <- n.ask("worker", "s-1", "x") }()
	<-busy
	n.close()
	a := <-waiting
	if a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Unavailable {
		t.Errorf("waiting client got %+v, want Unavailable", a)
	}
	if a, _ := n.Ask(testContext(t), n.newCall("helper", "s-1", "x")); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Unavailable {
		t.Errorf("late client got %+v, want Unavailable", a)
	}
	waitForGoroutines(t, before+1)
}

// Two cells that fill each other's queues both continue. Every client gets an
// answer, which may be Busy.
func TestFullQueuesDoNotDeadlockCells(t *testing.T) {
	ping := func(to string) func(*agents.Turn) (string, error) {
		return func(turn *agents.Turn) (string, error) {
			var asks []actor.Ask
			for i := range 8 {
				asks = append(asks, agents.Call(fmt.Sprintf("%s/%s-%d", to, turn.Self().Key, i), "x"))
			}
			for _, a := range turn.All(asks...) {
				if err := a.Err(); err != nil {
					return "", err
				}
			}
			return "ok", nil
		}
	}
	n := startNode(t, t.TempDir(), func(c *Config) { c.QueueSlots = 4 },
		blockingAgent("a", ping("c")), blockingAgent("b", ping("d")),
		blockingAgent("c", func(*agents.Turn) (string, error) { return "c", nil }),
		blockingAgent("d", func(*agents.Turn) (string, error) { return "d", nil }))
	var ok, busy atomic.Int32
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for j := range 5 {
				agent := string("ab"[i%2])
				a := n.ask(agent, fmt.Sprintf("k-%d-%d", i, j), "x")
				switch r := a.Reply.Refusal; {
				case r == nil && replyText(a) == "ok":
					ok.Add(1)
				case r != nil && r.Reason == actor.Busy && r.Scope == actor.ScopeNode:
					busy.Add(1)
				default:
					t.Errorf("got %+v, want ok or Busy", a)
				}
			}
		})
	}
	all.Wait()
	if ok.Load() == 0 {
		t.Error("no call was served")
	}
	t.Logf("%d served, %d refused", ok.Load(), busy.Load())
	for _, c := range n.cells {
		if left := c.overflowCount.Load(); left != 0 {
			t.Errorf("cell %d still has %d undelivered messages", c.n, left)
		}
	}
}

// A slow step is reported on both kinds of goroutine. The cell's worker steps a
// journaled actor once the actor has been read. A client that found the cell
// idle steps a volatile actor.
func TestWatchdogReportsSlowStep(t *testing.T) {
	for name, durability := range map[string]actor.Durability{"on the worker": actor.Journaled, "on the client's goroutine": actor.Volatile} {
		t.Run(name, func(t *testing.T) {
			var n *node
			ctx := testContext(t)
			ready := make(chan struct{})
			slow := rawAgent("slow", func(actor.Begin) (actor.Action, error) {
				<-ready
				if !n.logOutput.waitFor(ctx, "slow step") {
					return actor.Complete(actor.Text("not reported")), nil
				}
				return actor.Complete(actor.Text("reported")), nil
			})
			slow.Durability = durability
			n = startNode(t, t.TempDir(), nil, slow)
			close(ready)
			a := n.ask("slow", "s-1", "x")
			if replyText(a) != "reported" || !n.logOutput.contains("slow/s-1") && durability == actor.Volatile {
				t.Errorf("got %+v, want reported", a)
			}
		})
	}
}

func TestWorkOutcomes(t *testing.T) {
	do := func(name string, within time.Duration, work actor.Work) actor.Definition {
		return blockingAgent(name, func(turn *agents.Turn) (string, error) {
			b, err := turn.Do("work", work, agents.Within(within))
			return string(b), err
		})
	}
	n := startNode(t, t.TempDir(), func(c *Config) { c.EffectsMax = 1 },
		do("fine", time.Minute, func(context.Context) ([]byte, error) { return []byte("done"), nil }),
		do("fails", time.Minute, func(context.Context) ([]byte, error) { return nil, errors.New("work failed") }),
		do("panics", time.Minute, func(context.Context) ([]byte, error) { panic("test failure") }),
		do("leaves", time.Minute, func(context.Context) ([]byte, error) { goruntime.Goexit(); return nil, nil }),
		do("floods", time.Minute, func(context.Context) ([]byte, error) { return make([]byte, 2<<20), nil }),
		do("hangs", 50*time.Millisecond, func(ctx context.Context) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }))
	if a := n.ask("fine", "s", "x"); replyText(a) != "done" {
		t.Errorf("fine: got %+v, want done", a)
	}
	for name, want := range map[string]struct {
		reason actor.Reason
		says   string
	}{
		"fails":  {actor.Unavailable, "work failed"},
		"panics": {actor.Unavailable, "panic: test failure"},
		"leaves": {actor.Unavailable, "called runtime.Goexit"},
		"floods": {actor.Rejected, "exceeds 1048576"},
		"hangs":  {actor.Deadline, "timeout"},
	} {
		a := n.ask(name, "s", "x")
		for ctx := testContext(t); a.Reply.Refusal != nil && a.Reply.Refusal.Reason == actor.Busy && ctx.Err() == nil; {
			a = n.ask(name, "s", "x") // an answer may arrive a moment before its effect is released
		}
		if r := a.Reply.Refusal; r == nil || r.Reason != want.reason || !strings.Contains(r.Error(), want.says) {
			t.Errorf("%s: got %+v", name, a.Reply.Refusal)
		}
	}
}

func TestConcurrentEffectsAreBounded(t *testing.T) {
	release := make(chan struct{})
	started := make(chan struct{}, 8)
	n := startNode(t, t.TempDir(), func(c *Config) { c.EffectsMax = 2 },
		blockingAgent("worker", func(turn *agents.Turn) (string, error) {
			b, err := turn.Do("work", func(ctx context.Context) ([]byte, error) {
				started <- struct{}{}
				<-release
				return []byte("done"), nil
			})
			return string(b), err
		}))
	answers := make(chan Answer, 2)
	for i := range 2 {
		go func() { answers <- n.ask("worker", fmt.Sprint(i), "x") }()
	}
	<-started
	<-started
	if a := n.ask("worker", "third", "x"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Busy || a.Reply.Refusal.Scope != actor.ScopeNode {
		t.Errorf("third effect: got %+v, want Busy", a)
	}
	close(release)
	for range 2 {
		if a := <-answers; replyText(a) != "done" {
			t.Errorf("got %+v, want done", a)
		}
	}
}

func TestDrainWaitsForOpenCalls(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{})
	n := startNode(t, t.TempDir(), nil, blockingAgent("worker", func(turn *agents.Turn) (string, error) {
		b, err := turn.Do("work", func(ctx context.Context) ([]byte, error) { close(started); <-release; return []byte("done"), nil })
		return string(b), err
	}))
	answer := make(chan Answer, 1)
	go func() { answer <- n.ask("worker", "s", "x") }()
	<-started
	n.clients.drain()
	if a := n.ask("helper", "s", "x"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Unavailable {
		t.Errorf("new call while draining: got %+v, want Unavailable", a)
	}
	close(release)
	n.Drain(testContext(t))
	if a := <-answer; replyText(a) != "done" {
		t.Errorf("got %+v, want done", a)
	}
}

func TestRunContinuesAfterClientCancels(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{})
	n := startNode(t, t.TempDir(), nil, blockingAgent("worker", func(turn *agents.Turn) (string, error) {
		b, err := turn.Do("work", func(ctx context.Context) ([]byte, error) { close(started); <-release; return []byte("done"), nil })
		return string(b), err
	}))
	call := n.newCall("worker", "s", "x")
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { _, err := n.Ask(ctx, call); result <- err }()
	<-started
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	close(release)
	n.waitForEvent(call.ID, runs.RunDone)
}

func TestQueuePreservesOrderPerSender(t *testing.T) {
	const senders, each = 8, 5000
	r := newQueue(16)
	for s := range senders {
		go func() {
			for i := range each {
				env := actor.Envelope{To: actor.NewID("a", ""), Epoch: actor.Epoch(s), Body: actor.Cancel{Call: actor.NewCallID(1, 2, uint64(i)), Reason: actor.Stopped}}
				for !r.push(&env) {
					goruntime.Gosched()
				}
			}
		}()
	}
	var next [senders]int
	for range senders * each {
		var env actor.Envelope
		for !r.pop(&env) {
			goruntime.Gosched()
		}
		if want := actor.NewCallID(1, 2, uint64(next[env.Epoch])); env.Body.Subject() != want {
			t.Fatalf("sender %d: got %v, want %v", env.Epoch, env.Body.Subject(), want)
		}
		next[env.Epoch]++
	}
	if r.len() != 0 || r.hasNext() {
		t.Error("queue is not empty")
	}
	envelope := &actor.Envelope{To: actor.NewID("a", "")}
	for range 16 {
		if !r.push(envelope) {
			t.Fatal("queue is full before all slots are used")
		}
	}
	if r.push(envelope) {
		t.Error("queue accepts more than its slots")
	}
	for range 16 {
		if !r.pop(&actor.Envelope{}) {
			t.Error("queue is empty before all envelopes are popped")
		}
	}
	for i := range r.slots {
		if r.slots[i].envelope.To != (actor.ID{}) {
			t.Errorf("slot %d still refers to a popped envelope", i)
		}
	}
}

func TestClockIsMonotonic(t *testing.T) {
	c := newClock()
	last := c.now()
	for range 10_000 {
		if now := c.now(); now < last {
			t.Fatalf("got time %d after %d", now, last)
		} else {
			last = now
		}
	}
	if c.until(last.Add(-time.Hour)) != 0 || c.until(last.Add(time.Hour)) <= 59*time.Minute {
		t.Error("until returned a wrong duration")
	}
}

func TestCloseReturnsDespiteStuckStep(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	n := startNode(t, t.TempDir(), nil, agents.Define("stuck", "1", "", agents.Blocking(agents.Func(func(*agents.Turn) (string, error) {
		close(started)
		<-release
		return "", nil
	}))))
	go n.Ask(testContext(t), n.newCall("stuck", "", "x")) //nolint:errcheck // it is not answered
	<-started
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		closed <- n.Engine.Close(ctx)
	}()
	select {
	case <-closed:
	case <-testContext(t).Done():
		t.Error("Close did not return after its context ended")
	}
	if !n.logOutput.contains("still running") {
		t.Error("stuck cell was not logged")
	}
	close(release)
}

// limitedLog is a log that a test can declare full.
type limitedLog struct {
	Log
	full    atomic.Bool
	backlog atomic.Int64
}

func (l *limitedLog) Full() error {
	if l.full.Load() {
		return errors.New("storage full: test failure")
	}
	return l.Log.Full()
}

func (l *limitedLog) Backlog() int { return l.Log.Backlog() + int(l.backlog.Load()) }

// A node whose log is full refuses new calls with the reason. It accepts them
// again once there is room.
func TestFullLogRefusesNewCalls(t *testing.T) {
	log := &limitedLog{}
	n := startNode(t, t.TempDir(), func(c *Config) { log.Log, c.Log = c.Log, log }, echoAgent())
	until := func(what string, is func(*actor.Refusal) bool) {
		t.Helper()
		for ctx := testContext(t); !is(n.ask("echo", "s", "x").Reply.Refusal); {
			if ctx.Err() != nil {
				t.Fatalf("timed out, never %s", what)
			}
		}
	}
	accepted := func(r *actor.Refusal) bool { return r == nil }
	until("accepted", accepted)
	log.full.Store(true)
	until("refused", func(r *actor.Refusal) bool {
		return r != nil && r.Reason == actor.Unavailable && strings.Contains(r.Error(), "test failure") && r.RetryAfter > 0
	})
	if n.Ready() == nil {
		t.Error("Ready returned nil for a full log")
	}
	log.full.Store(false)
	until("accepted again", accepted)
	log.backlog.Store(backlogMax + 1)
	until("refused", func(r *actor.Refusal) bool { return r != nil && r.Reason == actor.Busy && r.Scope == actor.ScopeNode })
	log.backlog.Store(0)
	until("accepted again", accepted)
}

// A negative number is refused before anything starts.
func TestNegativeNumbersAreRefused(t *testing.T) {
	for name, c := range map[string]Config{"Cells": {Cells: -1}, "QueueSlots": {QueueSlots: -1}, "ClientsMax": {ClientsMax: -1}, "WatchersMax": {WatchersMax: -1}, "EffectsMax": {EffectsMax: -1}} {
		if _, err := Start(c); err == nil || !strings.Contains(err.Error(), name+": want at least 1, or 0 for the default, got -1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
