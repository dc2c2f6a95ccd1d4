// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

var powerRuns = flag.Int("power-runs", 20, "how many runs the power fails in; make crash has 50")

const (
	powerDir     = "/data"
	powerClients = 5
)

// A kill leaves the pages that the kernel has not written yet; a power failure
// does not. Here it comes each time a gate opens, and each time a client has
// been told something: nothing unsynced is left, or any part of it.
func TestPowerFailureAtEveryAcknowledgement(t *testing.T) {
	p := newPowerTest(vfs.NewCrashableMem(), nil)
	p.run(t, *powerRuns)
	for _, f := range p.failures {
		t.Error(f)
	}
	t.Logf("%d runs, %d power failures, %d of them with nothing unsynced left; after %d the node went on, and ended %d open runs", *powerRuns, p.losses, p.syncedOnly, p.restarted, p.resumed)
	if p.losses < 5**powerRuns || p.restarted < *powerRuns || p.syncedOnly < p.losses/3 || p.resumed == 0 {
		t.Error("that is less than this test is for")
	}
}

// If the log's sync did nothing, the test above would see it.
func TestPowerFailureDetectsSkippedSync(t *testing.T) {
	mem := vfs.NewCrashableMem()
	p := newPowerTest(mem, noSyncFS{mem})
	p.run(t, powerClients)
	if len(p.failures) < p.syncedOnly/2 {
		t.Errorf("%d of %d power failures with nothing unsynced left were seen to lose something", len(p.failures), p.syncedOnly)
	}
	if len(p.failures) > 0 {
		t.Log("it says: ", p.failures[0])
	}
}

// noSyncFS takes the syncs of Pebble's log, and does nothing.
type noSyncFS struct{ vfs.FS }

func (n noSyncFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return wrapLog(name)(n.FS.Create(name, c))
}

func (n noSyncFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return wrapLog(name)(n.FS.ReuseForWrite(old, name, c))
}

func wrapLog(name string) func(vfs.File, error) (vfs.File, error) {
	return func(f vfs.File, err error) (vfs.File, error) {
		if err == nil && strings.HasSuffix(name, ".log") {
			f = noSyncFile{f}
		}
		return f, err
	}
}

type noSyncFile struct{ vfs.File }

func (noSyncFile) Sync() error                { return nil }
func (noSyncFile) SyncData() error            { return nil }
func (noSyncFile) SyncTo(int64) (bool, error) { return true, nil }

// powerTest is a node over a file system that can fail at any moment, and all that
// was promised over it.
type powerTest struct {
	mem *vfs.MemFS
	fs  vfs.FS

	mu       sync.Mutex
	random   *rand.Rand
	promises map[actor.CallID]promise

	powerLosses chan powerLoss
	checked     *sync.Cond // one more was
	losses      int
	syncedOnly  int
	restarted   int
	resumed     int
	failures    []string
}

// promise is what clients were told of a run.
type promise struct {
	to     actor.ID
	text   string // what it was asked
	events [][]byte
	answer string // "" if there was none yet
}

// powerLoss is what a power failure left, and what it had to leave.
type powerLoss struct {
	fs       *vfs.MemFS
	percent  int
	entries  store.Pos
	promises map[actor.CallID]promise
	restart  bool
}

// newPowerTest takes the file system to fail, and the one to write through, if that is another.
func newPowerTest(mem *vfs.MemFS, through vfs.FS) *powerTest {
	p := &powerTest{mem: mem, fs: through, random: rand.New(rand.NewPCG(1, 2)), promises: map[actor.CallID]promise{}, powerLosses: make(chan powerLoss, 16)}
	p.checked = sync.NewCond(&p.mu)
	if p.fs == nil {
		p.fs = mem
	}
	return p
}

// losePower fails the power and has what is left looked at.
func (p *powerTest) losePower(entries store.Pos, revive bool) {
	p.mu.Lock()
	percent := []int{0, 0, 100, 1 + p.random.IntN(99)}[p.random.IntN(4)]
	if revive {
		percent = 0
	}
	o := powerLoss{percent: percent, entries: entries, promises: make(map[actor.CallID]promise, len(p.promises)), restart: revive}
	for run, t := range p.promises {
		o.promises[run] = t
	}
	o.fs = p.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: p.random})
	p.mu.Unlock()
	p.powerLosses <- o
}

// record notes what a client was told of a run.
func (p *powerTest) record(run actor.CallID, note func(*promise)) {
	p.mu.Lock()
	t := p.promises[run]
	note(&t)
	p.promises[run] = t
	p.mu.Unlock()
}

// powerLossLog is a log whose power fails whenever one of its gates opens.
type powerLossLog struct {
	*Log
	test *powerTest
	mu   sync.Mutex
	pos  store.Pos
}

// Commit implements engine.Log. After must not be kept waiting for the lock.
func (g *powerLossLog) Commit(entries []store.Entry, after func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pos += store.Pos(len(entries))
	at := g.pos
	g.Log.Commit(entries, func() {
		if after != nil {
			g.test.losePower(at, false)
			after()
		}
	})
}

// run has clients tell agents things, and judges each failure meanwhile.
func (p *powerTest) run(t *testing.T, count int) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	judged := make(chan struct{})
	go func() {
		defer close(judged)
		for o := range p.powerLosses {
			p.check(ctx, o)
			p.mu.Lock()
			p.checked.Broadcast()
			p.mu.Unlock()
		}
	}()
	n, err := startPowerNode(p.fs, func(l *Log) engine.Log { return &powerLossLog{Log: l, test: p} })
	if err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	for c := range powerClients {
		clients.Go(func() {
			for i := range count / powerClients {
				agent := []string{"helper", "coordinator", "team", "teller"}[(i+c)%4]
				if err := p.ask(ctx, n, agent, fmt.Sprintf("s-%d", c), fmt.Sprintf("word-%d-%d", c, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	if err := n.close(ctx); err != nil {
		t.Error(err)
	}
	close(p.powerLosses)
	<-judged
}

// isBusy tells whether a client is told to come back: those who look hold the disk
// up where that is slow. It comes back when they have seen one failure more.
func (p *powerTest) isBusy(r *actor.Refusal) bool {
	if r == nil || r.Reason != actor.Busy {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.powerLosses) > 0 {
		p.checked.Wait()
	}
	return true
}

// ask is one client's run, from the message to the end of its stream.
func (p *powerTest) ask(ctx context.Context, n *powerNode, agent, key, text string) error {
	call := actor.Call{ID: n.NewCallID(), To: actor.NewID(agent, key), Parts: actor.Text(text)}
	if agent == "teller" {
		call.Parts = actor.Text("Ask the helper agent " + text + "\nsay " + strings.Repeat(text+" ", 40))
	}
	said := actor.TextOf(call.Parts)
	a, err := n.Ask(ctx, call)
	for err == nil && p.isBusy(a.Reply.Refusal) {
		call.ID = n.NewCallID()
		a, err = n.Ask(ctx, call)
	}
	if err != nil || a.Reply.Refusal != nil {
		return fmt.Errorf("%s: %v, %v", call.To, err, a.Reply.Refusal)
	}
	p.record(call.ID, func(t *promise) { t.to, t.text, t.answer = call.To, said, actor.TextOf(a.Reply.Parts) })
	p.losePower(0, true)
	if a.HeldUntil != 0 {
		err := n.signal(ctx, call.ID, call.To)
		for refusal, ok := errors.AsType[*actor.Refusal](err); ok && p.isBusy(refusal); refusal, ok = errors.AsType[*actor.Refusal](err) {
			err = n.signal(ctx, call.ID, call.To)
		}
		if err != nil {
			return err
		}
		p.losePower(0, true)
	}
	_, err = n.readRun(ctx, call.ID, func(events [][]byte) {
		p.record(call.ID, func(t *promise) { t.events = events })
		p.losePower(0, false)
	})
	return err
}

// check opens what a failure left: all that was promised is there, and a node
// goes on with it.
func (p *powerTest) check(ctx context.Context, o powerLoss) {
	p.losses++
	if o.percent == 0 {
		p.syncedOnly++
	}
	if err := p.verify(ctx, o); err != nil {
		p.failures = append(p.failures, fmt.Sprintf("power failure %d, %d%% of the unsynced left, %d entries and %d runs promised: %v", p.losses, o.percent, o.entries, len(o.promises), err))
	}
}

func (p *powerTest) verify(ctx context.Context, o powerLoss) error {
	d, err := Open(powerDir, "n1", Options{fs: o.fs})
	if err != nil {
		return err
	}
	if o.restart {
		_, err = d.VerifyAll()
	}
	if d.End().Pos < o.entries {
		err = errors.Join(err, fmt.Errorf("the log ends at %d", d.End().Pos))
	}
	for run, t := range o.promises {
		err = errors.Join(err, t.verify(d, run, false))
	}
	if err = errors.Join(err, d.Close()); err != nil || !o.restart {
		return err
	}
	p.restarted++
	return p.resume(ctx, o)
}

// resume starts a node on what is left, and sees every run to its end.
func (p *powerTest) resume(ctx context.Context, o powerLoss) error {
	n, err := startPowerNode(o.fs, func(l *Log) engine.Log { return l })
	if err != nil {
		return err
	}
	all, err := store.Runs(n.disk, actor.DefaultTenant, 1000, false)
	for _, run := range all {
		record, e := recordOf(n.disk, run.Run)
		if err = errors.Join(err, e); e != nil || record.Ended != 0 {
			continue
		}
		p.resumed++
		if run.Actor.Agent == "coordinator" {
			err = errors.Join(err, n.finishCoordinator(ctx, run.Run, run.Actor))
			continue
		}
		_, e = n.readRun(ctx, run.Run, nil)
		err = errors.Join(err, e)
	}
	for run, t := range o.promises {
		err = errors.Join(err, t.verify(n.disk, run, true))
	}
	return errors.Join(err, n.close(ctx))
}

// verify sees that the run is as its client was told, and, once it is over, that
// it says what it should.
func (t promise) verify(kv store.KV, run actor.CallID, over bool) error {
	events, err := store.Events(kv, actor.DefaultTenant, run, 0, 1000)
	switch {
	case err != nil:
		return err
	case len(events) == 0 || len(events) < len(t.events):
		return fmt.Errorf("run %s of %s: %d events are left of %d", run, t.to, len(events), len(t.events))
	}
	for i, e := range t.events {
		if !bytes.Equal(events[i].Body, e) {
			return fmt.Errorf("run %s of %s: event %d was %s, is %s", run, t.to, i+1, e, events[i].Body)
		}
	}
	var said runs.Said
	record, err := recordOf(kv, run)
	for _, e := range events {
		d, e := runs.Decode(e.Body)
		err = errors.Join(err, e)
		said.Take(&d)
	}
	if err != nil {
		return err
	}
	answer := t.answer
	if answer == "" && over {
		answer = "I asked the helper. It said: response from helper: " + t.text // it was held, and let go
	}
	if answer == "" {
		return nil
	}
	streamed, any := said.Streamed()
	switch {
	case record.Status != runs.Done || record.Text != answer:
		return fmt.Errorf("run %s of %s: is %s and says %q, its client was told %q", run, t.to, record.Status, record.Text, answer)
	case any != (t.to.Agent == "teller") || any && streamed != answer:
		return fmt.Errorf("run %s of %s: streamed %q, its client was told %q", run, t.to, streamed, answer)
	}
	return nil
}

func recordOf(kv store.KV, run actor.CallID) (runs.Record, error) {
	var record runs.Record
	events, err := store.Events(kv, actor.DefaultTenant, run, 0, 1000)
	for _, raw := range events {
		e, wrong := runs.Decode(raw.Body)
		err = errors.Join(err, wrong, record.Apply(&e))
	}
	return record, err
}
