// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"sync"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// stagedLog is a log whose commits the test carries out one stage at a time: entries are
// readable only once they are durable, and the callback of the commit runs later.
type stagedLog struct {
	Log
	mu      sync.Mutex
	staged  bool
	commits chan commit
}

type commit struct {
	entries []store.Entry
	after   func()
}

func (l *stagedLog) Commit(entries []store.Entry, after func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.staged {
		l.commits <- commit{entries, after}
		return
	}
	l.Log.Commit(entries, after)
}

// sync makes the entries of a commit durable.
func (l *stagedLog) sync(c commit) {
	durable := make(chan struct{})
	l.Log.Commit(c.entries, func() { close(durable) })
	<-durable
}

// stop carries out the remaining commits. Later ones are no longer staged.
func (l *stagedLog) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.staged = false
	for len(l.commits) > 0 {
		c := <-l.commits
		l.Log.Commit(c.entries, c.after)
	}
}

// watch is a client that subscribes to a run and then reads its events, once at the
// beginning and once for each update.
type watch struct {
	updates <-chan struct{}
	read    func(after uint64) []store.RunEvent
	seen    []uint64
}

func (w *watch) readAll() {
	after := uint64(0)
	if len(w.seen) > 0 {
		after = w.seen[len(w.seen)-1]
	}
	for _, e := range w.read(after) {
		w.seen = append(w.seen, e.Seq)
	}
}

func (w *watch) poll() {
	select {
	case <-w.updates:
		w.readAll()
	default:
	}
}

// A client that subscribes at any point of a run, be it between a step and its sync or
// between the sync and the publication, reads each event once, and as soon as the event
// is published.
func TestSubscriptionMissesNoEvent(t *testing.T) {
	log := &stagedLog{staged: true, commits: make(chan commit, 1000)}
	n := startNode(t, t.TempDir(), func(c *Config) { log.Log, c.Log, c.Cells = c.Log, log, 1 },
		blockingAgent("waits", func(turn *agents.Turn) (string, error) {
			_, err := turn.Wait("go", 0)
			return "done", err
		}))
	t.Cleanup(log.stop)
	points := 0
	for point := 0; point <= points; point++ {
		points = watchFrom(t, n, log, point)
	}
	if points < 7 { // before the run, and three stages of its commits before and after the signal
		t.Errorf("the run had %d points, want at least 7", points)
	}
}

// watchFrom executes a run with a client that subscribes at one of its points. It returns
// the number of points.
func watchFrom(t *testing.T, n *node, log *stagedLog, subscribeAt int) (points int) {
	t.Helper()
	ctx := testContext(t)
	call := n.newCall("waits", fmt.Sprint("s-", subscribeAt), "x")
	read := func(after uint64) []store.RunEvent {
		events, err := n.disk.Events(actor.DefaultTenant, call.ID, after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		return events
	}
	var w *watch
	stop := func() {}
	defer func() { stop() }()
	reach := func() {
		if points == subscribeAt {
			var updates <-chan struct{}
			var err error
			if updates, stop, err = n.Watch(call.ID); err != nil {
				t.Fatal(err)
			}
			w = &watch{updates: updates, read: read}
			w.readAll()
		}
		points++
		if w != nil {
			w.poll()
		}
	}
	asked := make(chan error, 2)
	ask := func(call actor.Call) {
		_, err := n.Ask(ctx, call)
		asked <- err
	}
	reach()
	go ask(call)
	signalled, ended := false, false
	for !ended {
		var c commit
		select {
		case c = <-log.commits:
		case <-ctx.Done():
			t.Fatalf("subscribed at point %d: the run has not ended at point %d", subscribeAt, points)
		}
		if len(c.entries) == 0 { // of the admission
			c.after()
			continue
		}
		reach()
		log.sync(c)
		reach()
		c.after()
		reach()
		events := read(0)
		for _, e := range events {
			switch typ := runs.TypeOf(e.Body); {
			case typ == runs.WaitOpened && !signalled:
				signalled = true
				signal := n.newCall("waits", call.To.Key, "")
				signal.Kind, signal.Parent, signal.Operation = actor.Signal, call.ID, "go"
				go ask(signal)
			case typ == runs.RunDone:
				ended = true
			}
		}
		if w != nil {
			w.check(t, subscribeAt, points, len(events))
		}
	}
	for range 2 {
		for answered := false; !answered; {
			select {
			case err := <-asked:
				if answered = true; err != nil {
					t.Fatal(err)
				}
			case c := <-log.commits:
				log.sync(c)
				c.after()
			}
		}
	}
	return points
}

// check fails unless the client has read each published event once.
func (w *watch) check(t *testing.T, subscribedAt, point, published int) {
	t.Helper()
	for i, seq := range w.seen {
		if seq != uint64(i+1) {
			t.Fatalf("subscribed at point %d: got events %v at point %d", subscribedAt, w.seen, point)
		}
	}
	if len(w.seen) != published {
		t.Fatalf("subscribed at point %d: got %d events at point %d, want %d", subscribedAt, len(w.seen), point, published)
	}
}
