// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// node is an engine over a real store, as serve makes one.
type node struct {
	*Engine
	t    testing.TB
	disk *disk.Disk
	log  *disk.Log
	said *listener
}

// listener is a log that a test can wait on.
type listener struct {
	mu    sync.Mutex
	lines bytes.Buffer
	more  chan struct{}
}

func (l *listener) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines.Write(b)
	select {
	case l.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (l *listener) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.lines.String(), text)
}

func (l *listener) await(ctx context.Context, text string) bool {
	for !l.has(text) {
		select {
		case <-l.more:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func start(t testing.TB, dir string, change func(*Config), definitions ...actor.Definition) *node {
	t.Helper()
	d, err := disk.Open(dir, "n1", disk.Options{FreeFloor: 1})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, disk: d, log: disk.NewLog(d), said: &listener{more: make(chan struct{}, 1)}}
	config := Config{Node: "n1", Start: d.End().Batch, Log: n.log, Store: d, Agents: append(agents.Builtin(), definitions...),
		Tools: tools.NewRegistry(), Limits: dispatcher.DefaultLimits(), Logger: slog.New(slog.NewJSONHandler(n.said, nil)), Cells: 2}
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
	if err := n.Engine.Close(patient(n.t)); err != nil {
		n.t.Error(err)
	}
	for _, c := range []interface{ Close() error }{n.log, n.disk} {
		if err := c.Close(); err != nil {
			n.t.Error(err)
		}
	}
	n.disk = nil
}

func (n *node) call(agent, key, text string) actor.Call {
	return actor.Call{ID: n.NewCallID(), To: actor.NewID(agent, key), Parts: actor.Text(text)}
}

func (n *node) ask(agent, key, text string) Answer {
	n.t.Helper()
	return n.await(n.call(agent, key, text))
}

func (n *node) await(call actor.Call) Answer {
	n.t.Helper()
	a, err := n.Ask(patient(n.t), call)
	if err != nil {
		n.t.Errorf("%s: %v", call.To, err)
	}
	return a
}

func (n *node) signal(run actor.CallID, to actor.ID, name string) Answer {
	n.t.Helper()
	call := n.call(to.Agent, to.Key, "")
	call.Kind, call.Parent, call.Operation = actor.Signal, run, name
	return n.await(call)
}

// events waits until the run's stream has an event of the type, and returns it all.
func (n *node) events(run actor.CallID, last runs.Type) []runs.Event {
	n.t.Helper()
	ctx := patient(n.t)
	news, stop := n.Watch(run)
	defer stop()
	var all []runs.Event
	for {
		err := n.Read(ctx, func(kv store.KV) error {
			raw, err := store.Events(kv, actor.DefaultTenant, run, uint64(len(all)), 1_000_000)
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
			n.t.Fatalf("run %s never has %s, but %d events", run, last, len(all))
		}
	}
}

// outcome waits for the run's end and is what it said.
func (n *node) outcome(run actor.CallID) string {
	n.t.Helper()
	all := n.events(run, runs.RunDone)
	return all[len(all)-1].Text
}

func text(a Answer) string { return actor.TextOf(a.Reply.Parts) }

func blocking(name string, turn func(*agents.Turn) (string, error)) actor.Definition {
	return agents.Define(name, "1", "of a test", agents.Blocking(agents.Func(turn)))
}

// raw is an agent without the nets that package agents spans.
type raw struct {
	next func(actor.Begin) (actor.Action, error)
	at   actor.Begin
}

func (r raw) Begin(b actor.Begin) actor.Turn { r.at = b; return r }

func (r raw) Next([]actor.Answer) (actor.Action, error) { return r.next(r.at) }

func (r raw) Stop() {}

func rawAgent(name string, next func(actor.Begin) (actor.Action, error)) actor.Definition {
	return agents.Define(name, "1", "of a test", raw{next: next})
}

func TestACallIsAnswered(t *testing.T) {
	n := start(t, t.TempDir(), nil)
	a := n.ask("helper", "s-1", "xyzzy")
	if text(a) != "response from helper: xyzzy" || a.Reply.Status != actor.Succeeded {
		t.Errorf("got %+v", a)
	}
	if a := n.ask("nobody", "s-1", "x"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.NotFound {
		t.Errorf("an unknown agent: %+v", a)
	}
	if a := n.ask("no body", "s-1", "x"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Invalid {
		t.Errorf("an illegal name: %+v", a)
	}
}

func TestARunOutlivesItsProcess(t *testing.T) {
	dir := t.TempDir()
	n := start(t, dir, nil)
	held := n.ask("coordinator", "s-1", "xyzzy")
	run := held.Reply.Run
	if held.HeldUntil == 0 || run.IsZero() {
		t.Fatalf("not held: %+v", held)
	}
	before := n.events(run, runs.WaitOpened)
	epoch := n.epochs[0]
	n.close()

	n = start(t, dir, nil)
	if n.epochs[0] <= epoch {
		t.Errorf("epoch %d after %d", n.epochs[0], epoch)
	}
	to := actor.NewID("coordinator", "s-1")
	if a := n.signal(run, to, "stop"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Rejected {
		t.Errorf("a signal nobody waits for: %+v", a)
	}
	if a := n.signal(run, to, "go"); a.Reply.Refusal != nil {
		t.Errorf("signal: %+v", a)
	}
	all := n.events(run, runs.RunDone)
	record, err := runs.Fold(all)
	if err != nil || !strings.Contains(record.Text, "xyzzy") || len(record.Children) != 1 {
		t.Errorf("%+v, %v", record, err)
	}
	for i := range before {
		if before[i].String() != all[i].String() {
			t.Errorf("event %d was %v, is %v", i+1, before[i], all[i])
		}
	}
	helpers := 0
	if err := n.Read(patient(t), func(kv store.KV) error {
		owners, err := store.Runs(kv, actor.DefaultTenant, 100, false)
		for _, o := range owners {
			if o.Actor.Agent == "helper" {
				helpers++
			}
		}
		return err
	}); err != nil || helpers != 1 {
		t.Errorf("the helper was asked %d times, %v", helpers, err)
	}
}

// Turns that wait, tools under way, clients that wait: all of it ends with Close.
func TestCloseLeavesNoGoroutine(t *testing.T) {
	before := goruntime.NumGoroutine()
	busy := make(chan struct{})
	n := start(t, t.TempDir(), nil,
		blocking("worker", func(turn *agents.Turn) (string, error) {
			b, err := turn.Do("wait", func(ctx context.Context) ([]byte, error) {
				close(busy)
				<-ctx.Done()
				return nil, ctx.Err()
			})
			return string(b), err
		}))
	n.ask("coordinator", "s-1", "xyzzy") // its coroutine stands at the wait
	waiting := make(chan Answer)
	go func() { waiting <- n.ask("worker", "s-1", "x") }()
	<-busy
	n.close()
	a := <-waiting
	if a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Unavailable {
		t.Errorf("who waited got %+v", a)
	}
	if a, _ := n.Ask(patient(t), n.call("helper", "s-1", "x")); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Unavailable {
		t.Errorf("who came too late got %+v", a)
	}
	gone(t, before+1)
}

// Two cells that fill each other's rings: everybody gets an answer, some that there is no room.
func TestFullRingsDoNotLockCellsUp(t *testing.T) {
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
	n := start(t, t.TempDir(), func(c *Config) { c.RingSlots = 4 },
		blocking("a", ping("c")), blocking("b", ping("d")),
		blocking("c", func(*agents.Turn) (string, error) { return "c", nil }),
		blocking("d", func(*agents.Turn) (string, error) { return "d", nil }))
	var ok, busy atomic.Int32
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for j := range 5 {
				agent := string("ab"[i%2])
				a := n.ask(agent, fmt.Sprintf("k-%d-%d", i, j), "x")
				switch r := a.Reply.Refusal; {
				case r == nil && text(a) == "ok":
					ok.Add(1)
				case r != nil && r.Reason == actor.Busy && r.Scope == actor.ScopeNode:
					busy.Add(1)
				default:
					t.Errorf("got %+v", a)
				}
			}
		})
	}
	all.Wait()
	if ok.Load() == 0 {
		t.Error("nobody was served")
	}
	t.Logf("%d served, %d refused", ok.Load(), busy.Load())
	for _, c := range n.cells {
		if left := c.spilled.Load(); left != 0 {
			t.Errorf("cell %d still has %d messages to hand over", c.n, left)
		}
	}
}

// It is named whoever runs it: the cell's own goroutine, once the actor has been
// read, or the client's that found the cell idle.
func TestALongStepIsNamedWhileItRuns(t *testing.T) {
	for name, durability := range map[string]actor.Durability{"by the cell": actor.Journaled, "by the client": actor.Volatile} {
		t.Run(name, func(t *testing.T) {
			var n *node
			ctx := patient(t)
			ready := make(chan struct{})
			slow := rawAgent("slow", func(actor.Begin) (actor.Action, error) {
				<-ready
				if !n.said.await(ctx, "a step takes long") {
					return actor.Complete(actor.Text("nobody noticed")), nil
				}
				return actor.Complete(actor.Text("seen")), nil
			})
			slow.Durability = durability
			n = start(t, t.TempDir(), nil, slow)
			close(ready)
			a := n.ask("slow", "s-1", "x")
			if text(a) != "seen" || !n.said.has("slow/s-1") && durability == actor.Volatile {
				t.Errorf("got %+v", a)
			}
		})
	}
}

func TestWhatComesOfWork(t *testing.T) {
	do := func(name string, within time.Duration, work actor.Work) actor.Definition {
		return blocking(name, func(turn *agents.Turn) (string, error) {
			b, err := turn.Do("work", work, agents.Within(within))
			return string(b), err
		})
	}
	n := start(t, t.TempDir(), func(c *Config) { c.EffectsMax = 1 },
		do("fine", time.Minute, func(context.Context) ([]byte, error) { return []byte("done"), nil }),
		do("fails", time.Minute, func(context.Context) ([]byte, error) { return nil, errors.New("no luck") }),
		do("panics", time.Minute, func(context.Context) ([]byte, error) { panic("as told") }),
		do("leaves", time.Minute, func(context.Context) ([]byte, error) { goruntime.Goexit(); return nil, nil }),
		do("floods", time.Minute, func(context.Context) ([]byte, error) { return make([]byte, 2<<20), nil }),
		do("hangs", 50*time.Millisecond, func(ctx context.Context) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }))
	if a := n.ask("fine", "s", "x"); text(a) != "done" {
		t.Errorf("fine: %+v", a)
	}
	for name, want := range map[string]struct {
		reason actor.Reason
		says   string
	}{
		"fails":  {actor.Unavailable, "no luck"},
		"panics": {actor.Unavailable, "panic: as told"},
		"leaves": {actor.Unavailable, "ended its goroutine"},
		"floods": {actor.Rejected, "over 1048576"},
		"hangs":  {actor.Deadline, "timeout"},
	} {
		a := n.ask(name, "s", "x")
		for ctx := patient(t); a.Reply.Refusal != nil && a.Reply.Refusal.Reason == actor.Busy && ctx.Err() == nil; {
			a = n.ask(name, "s", "x") // who asked before may be told a moment before there is room again
		}
		if r := a.Reply.Refusal; r == nil || r.Reason != want.reason || !strings.Contains(r.Error(), want.says) {
			t.Errorf("%s: %+v", name, a.Reply.Refusal)
		}
	}
}

func TestEffectsAreBounded(t *testing.T) {
	let := make(chan struct{})
	began := make(chan struct{}, 8)
	n := start(t, t.TempDir(), func(c *Config) { c.EffectsMax = 2 },
		blocking("worker", func(turn *agents.Turn) (string, error) {
			b, err := turn.Do("work", func(ctx context.Context) ([]byte, error) {
				began <- struct{}{}
				<-let
				return []byte("done"), nil
			})
			return string(b), err
		}))
	answers := make(chan Answer, 2)
	for i := range 2 {
		go func() { answers <- n.ask("worker", fmt.Sprint(i), "x") }()
	}
	<-began
	<-began
	if a := n.ask("worker", "third", "x"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Busy || a.Reply.Refusal.Scope != actor.ScopeNode {
		t.Errorf("the third: %+v", a)
	}
	close(let)
	for range 2 {
		if a := <-answers; text(a) != "done" {
			t.Errorf("got %+v", a)
		}
	}
}

func TestDrainLetsTheWaitingFinish(t *testing.T) {
	let, began := make(chan struct{}), make(chan struct{})
	n := start(t, t.TempDir(), nil, blocking("worker", func(turn *agents.Turn) (string, error) {
		b, err := turn.Do("work", func(ctx context.Context) ([]byte, error) { close(began); <-let; return []byte("done"), nil })
		return string(b), err
	}))
	answer := make(chan Answer, 1)
	go func() { answer <- n.ask("worker", "s", "x") }()
	<-began
	n.clients.drain()
	if a := n.ask("helper", "s", "x"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Unavailable {
		t.Errorf("a new one: %+v", a)
	}
	close(let)
	n.Drain(patient(t))
	if a := <-answer; text(a) != "done" {
		t.Errorf("got %+v", a)
	}
}

func TestAClientMayLeave(t *testing.T) {
	let, began := make(chan struct{}), make(chan struct{})
	n := start(t, t.TempDir(), nil, blocking("worker", func(turn *agents.Turn) (string, error) {
		b, err := turn.Do("work", func(ctx context.Context) ([]byte, error) { close(began); <-let; return []byte("done"), nil })
		return string(b), err
	}))
	call := n.call("worker", "s", "x")
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() { _, err := n.Ask(ctx, call); left <- err }()
	<-began
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(let)
	n.events(call.ID, runs.RunDone)
}

func TestARingKeepsTheOrderOfEachSender(t *testing.T) {
	const senders, each = 8, 5000
	r := newRing(16)
	for s := range senders {
		go func() {
			for i := range each {
				env := actor.Envelope{To: actor.NewID("a", ""), Epoch: actor.Epoch(s), Body: actor.Cancel{Call: actor.NewCallID(1, 2, uint64(i)), Reason: actor.Stopped}}
				for !r.put(&env) {
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
	if r.len() != 0 || r.ready() {
		t.Error("it is not empty")
	}
	letter := &actor.Envelope{To: actor.NewID("a", "")}
	for range 16 {
		if !r.put(letter) {
			t.Fatal("no room for as many as it has slots")
		}
	}
	if r.put(letter) {
		t.Error("one more than it has slots")
	}
	for range 16 {
		if !r.pop(&actor.Envelope{}) {
			t.Error("less than was put in")
		}
	}
	for i := range r.slots {
		if r.slots[i].letter.To != (actor.ID{}) {
			t.Errorf("slot %d holds on to what was taken out", i)
		}
	}
}

func TestTimeNeverGoesBack(t *testing.T) {
	c := newClock()
	last := c.now()
	for range 10_000 {
		if now := c.now(); now < last {
			t.Fatalf("%d after %d", now, last)
		} else {
			last = now
		}
	}
	if c.until(last.Add(-time.Hour)) != 0 || c.until(last.Add(time.Hour)) <= 59*time.Minute {
		t.Error("until")
	}
}

func TestCloseDoesNotWaitForAStepThatDoesNotEnd(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	n := start(t, t.TempDir(), nil, agents.Define("stuck", "1", "", agents.Blocking(agents.Func(func(*agents.Turn) (string, error) {
		close(begun)
		<-release
		return "", nil
	}))))
	go n.Ask(patient(t), n.call("stuck", "", "x")) //nolint:errcheck // it is not answered
	<-begun
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		closed <- n.Engine.Close(ctx)
	}()
	select {
	case <-closed:
	case <-patient(t).Done():
		t.Error("Close waits although its time is over")
	}
	if !n.said.has("does not end") {
		t.Error("nobody is told which cell it was")
	}
	close(release)
}

// pickyLog is a log that may be full.
type pickyLog struct {
	Log
	full    atomic.Bool
	backlog atomic.Int64
}

func (l *pickyLog) Full() error {
	if l.full.Load() {
		return errors.New("storage full, as told")
	}
	return l.Log.Full()
}

func (l *pickyLog) Backlog() int { return l.Log.Backlog() + int(l.backlog.Load()) }

// A node whose log can take no more refuses new calls, says why, and takes them
// again when there is room.
func TestNoCallIsTakenThatCannotBeWritten(t *testing.T) {
	log := &pickyLog{}
	n := start(t, t.TempDir(), func(c *Config) { log.Log, c.Log = c.Log, log }, echo())
	until := func(what string, is func(*actor.Refusal) bool) {
		t.Helper()
		for ctx := patient(t); !is(n.ask("echo", "s", "x").Reply.Refusal); {
			if ctx.Err() != nil {
				t.Fatalf("never %s", what)
			}
		}
	}
	taken := func(r *actor.Refusal) bool { return r == nil }
	until("taken", taken)
	log.full.Store(true)
	until("refused", func(r *actor.Refusal) bool {
		return r != nil && r.Reason == actor.Unavailable && strings.Contains(r.Error(), "as told") && r.RetryAfter > 0
	})
	if n.Ready() == nil {
		t.Error("it says that it is ready")
	}
	log.full.Store(false)
	until("taken again", taken)
	log.backlog.Store(backlogMax + 1)
	until("refused", func(r *actor.Refusal) bool { return r != nil && r.Reason == actor.Busy && r.Scope == actor.ScopeNode })
	log.backlog.Store(0)
	until("taken again", taken)
}
