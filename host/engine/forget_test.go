// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// A deleted session is not found by clients, before and after a restart. Its runs are not
// read, and other sessions are as before.
func TestDeletedSession(t *testing.T) {
	dir := t.TempDir()
	n := startNode(t, dir, nil, wordAgent("agent", "done"))
	first := n.ask("agent", "s-1", "x")
	news, stop, err := n.WatchSession(actor.DefaultTenant, "s-1")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := n.Forget(testContext(t), actor.DefaultTenant, "s-1"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-news:
	case <-testContext(t).Done():
		t.Error("the deletion is no news of the session")
	}
	for range 2 {
		if a := n.ask("agent", "s-1", "x"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.NotFound {
			t.Errorf("got %+v, want a refusal as NotFound", a.Reply)
		}
		if a := n.ask("agent", "s-2", "x"); a.Reply.Refusal != nil {
			t.Errorf("another session: %v", a.Reply.Refusal)
		}
		err := n.Read(testContext(t), func(r store.Reader) error {
			_, found, err := r.Run(actor.DefaultTenant, first.Reply.Run)
			events, eventsErr := r.Events(actor.DefaultTenant, first.Reply.Run, 0, 10)
			if found || len(events) > 0 {
				t.Errorf("the run is found: %v, with %d events", found, len(events))
			}
			return errors.Join(err, eventsErr)
		})
		if err != nil {
			t.Error(err)
		}
		n.close()
		n = startNode(t, dir, nil, wordAgent("agent", "done"))
	}
	var refusal *actor.Refusal
	if err := n.Forget(testContext(t), actor.DefaultTenant, "s-1"); !errors.As(err, &refusal) || refusal.Reason != actor.NotFound {
		t.Errorf("a second deletion: got %v, want a refusal as NotFound", err)
	}
}

func TestSessionWithOpenRunIsNotDeleted(t *testing.T) {
	n := startNode(t, t.TempDir(), nil, wordAgent("agent", "done"))
	held := n.newCall("agent", "s-1", "wait")
	run := n.askCall(held).Reply.Run
	var refusal *actor.Refusal
	if err := n.Forget(testContext(t), actor.DefaultTenant, "s-1"); !errors.As(err, &refusal) || refusal.Reason != actor.Rejected {
		t.Errorf("got %v, want a refusal as Rejected", err)
	}
	if a := n.signal(run, held.To, "go"); a.Reply.Refusal != nil {
		t.Errorf("the open run cannot resume: %v", a.Reply.Refusal)
	}
	n.waitForEvent(run, runs.RunDone)
	if err := n.Forget(testContext(t), actor.DefaultTenant, "s-1"); err != nil {
		t.Error(err)
	}
}
