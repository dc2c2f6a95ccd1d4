// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// heldLog is a log that passes on no commit from hold to release.
type heldLog struct {
	Log
	mu      sync.Mutex
	held    bool
	commits []func()
	barrier chan struct{} // receives a value for each commit without entries that is held
}

func (l *heldLog) Commit(entries []store.Entry, after func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held {
		l.Log.Commit(entries, after)
		return
	}
	l.commits = append(l.commits, func() { l.Log.Commit(entries, after) })
	if len(entries) == 0 {
		l.barrier <- struct{}{}
	}
}

func (l *heldLog) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = true
}

func (l *heldLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, commit := range l.commits {
		commit()
	}
	l.held, l.commits = false, nil
}

// A run that a crash could still undo is in no state that the engine returns.
func TestStateWaitsForLog(t *testing.T) {
	log := &heldLog{barrier: make(chan struct{}, 100)}
	started, first := make(chan struct{}), true
	n := startNode(t, t.TempDir(), func(c *Config) { log.Log, c.Log, c.Cells = c.Log, log, 1 },
		rawAgent("waits", func(actor.Begin) (actor.Action, error) {
			if first {
				first = false
				return actor.Complete(nil), nil
			}
			close(started)
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskWait, Name: "go"}}}, nil
		}))
	n.ask("waits", "s", "load the actor")
	log.hold()
	asked := make(chan error, 1)
	go func() {
		_, err := n.Ask(testContext(t), n.newCall("waits", "s", "x"))
		asked <- err // nil: the run waits
	}()
	<-started
	for len(log.barrier) > 0 { // of the admission
		<-log.barrier
	}
	type result struct {
		runs int
		err  error
	}
	states := make(chan result, 1)
	go func() {
		all, err := n.State(testContext(t))
		r := result{err: err}
		for _, s := range all {
			for _, a := range s.Actors {
				r.runs += len(a.Turns)
			}
		}
		states <- r
	}()
	select {
	case r := <-states:
		log.release()
		t.Fatalf("state before the log is durable: got %d runs, error %v; want none", r.runs, r.err)
	case <-log.barrier:
	}
	log.release()
	if r := <-states; r.runs != 1 || r.err != nil {
		t.Errorf("state after the log is durable: got %d runs, error %v; want 1", r.runs, r.err)
	}
	if err := <-asked; err != nil {
		t.Error(err)
	}
}
