// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"github.com/troupe-run/troupe/host/logs"
	"maps"
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

var powerRuns = flag.Int("power-runs", 20, "number of runs with power failures; make crash uses 50")

const (
	powerDir     = "/data"
	powerClients = 5
)

// A killed process keeps the pages that the kernel has not written yet; a power
// failure does not. The test loses power whenever a gate opens and whenever a
// client learns something of a run. Afterwards none, all or a random part of
// the unsynced data is left.
func TestPowerFailureAtEveryAcknowledgement(t *testing.T) {
	p := newPowerTest(vfs.NewCrashableMem(), nil)
	p.run(t, *powerRuns)
	for _, f := range p.failures {
		t.Error(f)
	}
	t.Logf("%d runs, %d power failures, %d of them without unsynced data; %d restarted nodes completed %d open runs", *powerRuns, p.losses, p.syncedOnly, p.restarted, p.resumed)
	if p.losses < 5**powerRuns || p.restarted < *powerRuns || p.syncedOnly < p.losses/3 || p.resumed == 0 {
		t.Error("too few power failures or resumed runs")
	}
}

// The test above would detect a log whose sync does nothing.
func TestPowerFailureDetectsSkippedSync(t *testing.T) {
	mem := vfs.NewCrashableMem()
	p := newPowerTest(mem, noSyncFS{mem})
	p.run(t, powerClients)
	if len(p.failures) < p.syncedOnly/2 {
		t.Errorf("%d of %d power failures without unsynced data were detected as losses", len(p.failures), p.syncedOnly)
	}
	if len(p.failures) > 0 {
		t.Log("first failure: ", p.failures[0])
	}
}

// noSyncFS is a file system that ignores syncs of Pebble's log.
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

// powerTest is a node over a file system that can lose power at any moment,
// with everything that was promised to clients.
type powerTest struct {
	mem *vfs.MemFS
	fs  vfs.FS

	mu       sync.Mutex
	random   *rand.Rand
	promises map[actor.CallID]promise

	powerLosses chan powerLoss
	inspect     func(context.Context, powerLoss) // called for each power loss, one at a time
	checked     *sync.Cond                       // signalled after each check
	losses      int
	syncedOnly  int
	restarted   int
	resumed     int
	failures    []string
}

// promise holds the replies about a run that a client has received.
type promise struct {
	to     actor.ID
	text   string // message of the run
	events [][]byte
	answer string // "" if there was no answer yet
	// only the events are known: no client called the run and knows its answer
	eventsOnly bool
}

// powerLoss is the file system after a power failure and the promises made
// before.
type powerLoss struct {
	fs       vfs.FS
	percent  int
	entries  store.Pos
	promises map[actor.CallID]promise
	restart  bool
}

// newPowerTest returns a test that loses the power of mem. The node uses the
// file system given by the parameter through, or mem itself if through is nil.
func newPowerTest(mem *vfs.MemFS, through vfs.FS) *powerTest {
	p := &powerTest{mem: mem, fs: through, random: rand.New(rand.NewPCG(1, 2)), promises: map[actor.CallID]promise{}, powerLosses: make(chan powerLoss, 16)}
	p.checked, p.inspect = sync.NewCond(&p.mu), p.check
	if p.fs == nil {
		p.fs = mem
	}
	return p
}

// losePower simulates a power failure and queues the remains for a check.
func (p *powerTest) losePower(entries store.Pos, restart bool) {
	p.mu.Lock()
	percent := []int{0, 0, 100, 1 + p.random.IntN(99)}[p.random.IntN(4)]
	if restart {
		percent = 0
	}
	o := powerLoss{percent: percent, entries: entries, promises: maps.Clone(p.promises), restart: restart}
	o.fs = p.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: p.random})
	p.mu.Unlock()
	p.powerLosses <- o
}

// record updates the promise of a run.
func (p *powerTest) record(run actor.CallID, update func(*promise)) {
	p.mu.Lock()
	t := p.promises[run]
	update(&t)
	p.promises[run] = t
	p.mu.Unlock()
}

// powerLossLog is a log that loses power whenever one of its gates opens.
type powerLossLog struct {
	*logs.Log
	test *powerTest
	mu   sync.Mutex
	pos  store.Pos
}

// Commit implements engine.Log. The callback after may run while g.mu is held
// and MUST NOT wait for that lock.
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

// run lets clients call agents and checks each power loss concurrently.
func (p *powerTest) run(t *testing.T, count int) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	judged := make(chan struct{})
	go func() {
		defer close(judged)
		for o := range p.powerLosses {
			p.inspect(ctx, o)
			p.mu.Lock()
			p.checked.Broadcast()
			p.mu.Unlock()
		}
	}()
	n, err := startPowerNode(p.fs, func(l *logs.Log) engine.Log { return &powerLossLog{Log: l, test: p} })
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

// isBusy reports whether a call was refused as Busy. On a slow disk the checks
// slow the node down. After such a refusal isBusy therefore waits until one
// more pending power loss is checked.
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

// ask makes one run, from the call to the end of its events.
func (p *powerTest) ask(ctx context.Context, n *powerNode, agent, key, text string) error {
	call := actor.Call{ID: n.NewCallID(), To: actor.NewID(agent, key), Parts: actor.Text(text)}
	if agent == "teller" {
		call.Parts = actor.Text("Ask the helper agent " + text + "\nsay " + strings.Repeat(text+" ", 40))
	}
	message := actor.TextOf(call.Parts)
	a, err := n.Ask(ctx, call)
	for err == nil && p.isBusy(a.Reply.Refusal) {
		call.ID = n.NewCallID()
		a, err = n.Ask(ctx, call)
	}
	if err != nil || a.Reply.Refusal != nil {
		return fmt.Errorf("%s: %v, %v", call.To, err, a.Reply.Refusal)
	}
	p.record(call.ID, func(t *promise) { t.to, t.text, t.answer = call.To, message, actor.TextOf(a.Reply.Parts) })
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

// check opens the remains of a power failure. It checks that everything promised
// is in the store and that a node resumes from it.
func (p *powerTest) check(ctx context.Context, o powerLoss) {
	p.losses++
	if o.percent == 0 {
		p.syncedOnly++
	}
	if err := p.verify(ctx, o); err != nil {
		p.failures = append(p.failures, fmt.Sprintf("power failure %d, %d%% of unsynced data kept, %d entries and %d runs promised: %v", p.losses, o.percent, o.entries, len(o.promises), err))
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
		err = errors.Join(err, fmt.Errorf("log ends at %d", d.End().Pos))
	}
	for run, t := range o.promises {
		err = errors.Join(err, t.verify(d, run, false))
	}
	if err = errors.Join(err, d.Close()); err != nil || !o.restart {
		return err
	}
	p.restarted++
	return p.resume(ctx, o, func(store.RunOwner, [][]byte) {})
}

// resume starts a node on the remains and follows every run to its end. The
// callback each receives the events of a run so far.
func (p *powerTest) resume(ctx context.Context, o powerLoss, each func(store.RunOwner, [][]byte)) error {
	n, err := startPowerNode(o.fs, func(l *logs.Log) engine.Log { return l })
	if err != nil {
		return err
	}
	var all []store.RunOwner
	err = store.EachRun(n.disk, actor.DefaultTenant, runs.Filter{Calls: true, System: true}, func(s *runs.Summary) {
		all = append(all, store.RunOwner{Run: s.Run, Root: s.Root, Actor: s.Actor})
	})
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
		_, e = n.readRun(ctx, run.Run, func(events [][]byte) { each(run, events) })
		err = errors.Join(err, e)
	}
	for run, t := range o.promises {
		err = errors.Join(err, t.verify(n.disk, run, true))
	}
	return errors.Join(err, n.close(ctx))
}

// verify checks that the store agrees with the promise. If ended is set, the
// run MUST have ended with the reply that its agent gives.
func (t promise) verify(log store.Reader, run actor.CallID, ended bool) error {
	events, err := log.Events(actor.DefaultTenant, run, 0, 1000)
	switch {
	case err != nil:
		return err
	case len(events) == 0 || len(events) < len(t.events):
		return fmt.Errorf("run %s of %s: got %d events, want at least %d", run, t.to, len(events), len(t.events))
	}
	for i, e := range t.events {
		if !bytes.Equal(events[i].Body, e) {
			return fmt.Errorf("run %s of %s: event %d was %s, now %s", run, t.to, i+1, e, events[i].Body)
		}
	}
	var transcript runs.AnswerText
	record, err := recordOf(log, run)
	for _, e := range events {
		d, e := runs.Decode(e.Body)
		err = errors.Join(err, e)
		transcript.Apply(&d)
	}
	if err != nil {
		return err
	}
	answer := t.answer
	if answer == "" && ended && !t.eventsOnly {
		answer = "I asked the helper. It said: response from helper: " + t.text // it was held and then resumed
	}
	if answer == "" {
		return nil
	}
	streamed, any := transcript.Streamed()
	switch {
	case record.Status != runs.Done || record.Text != answer:
		return fmt.Errorf("run %s of %s: status %s, reply %q, but its client got %q", run, t.to, record.Status, record.Text, answer)
	case any != (t.to.Agent == "teller") || any && streamed != answer:
		return fmt.Errorf("run %s of %s: streamed %q, but its client got %q", run, t.to, streamed, answer)
	}
	return nil
}

func recordOf(log store.Reader, run actor.CallID) (runs.Record, error) {
	var record runs.Record
	events, err := log.Events(actor.DefaultTenant, run, 0, 1000)
	for _, raw := range events {
		e, decodeErr := runs.Decode(raw.Body)
		err = errors.Join(err, decodeErr, record.Apply(&e))
	}
	return record, err
}
