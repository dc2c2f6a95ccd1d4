// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"github.com/troupe-run/troupe/host/disk"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/store"
)

const testKeep = 30 * 24 * time.Hour

// retainedNode is a node with retention and an agent that waits for the signal go if it is
// asked to wait.
type retainedNode struct {
	*Node
	t    *testing.T
	data string
}

func openRetained(t *testing.T, data string, keep time.Duration) *retainedNode {
	t.Helper()
	return openRetainedLogging(t, data, keep, slog.New(slog.DiscardHandler))
}

func openRetainedLogging(t *testing.T, data string, keep time.Duration, log *slog.Logger) *retainedNode {
	t.Helper()
	agent := agents.Define("agent", "1", "test agent", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		if turn.Message() == "wait" {
			_, err := turn.Wait("go", time.Hour)
			return "went", err
		}
		return "x", nil
	})))
	agent.Transcript = actor.TranscriptAll
	n, err := Open(Config{Data: data, Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), Native: []actor.Definition{agent}, FreeFloor: 1, Keep: keep}, log)
	if err != nil {
		t.Fatal(err)
	}
	return &retainedNode{n, t, data}
}

func (n *retainedNode) ask(by actor.Principal, session, message string) actor.CallID {
	n.t.Helper()
	id := n.NewCallID()
	call := actor.Call{ID: id, To: by.ID("agent", session), Kind: actor.Waiting, Parts: actor.Text(message)}
	if message == "wait" {
		updates, stop, err := n.Follow(n.t.Context(), command.Follow{By: by, Run: id})
		if err != nil {
			n.t.Fatal(err)
		}
		defer stop()
		go func() { _, _ = n.Invoke(n.t.Context(), command.Invoke{By: by, Call: call}, nil) }()
		for {
			<-updates
			if w, err := command.Find(n.t.Context(), n, by, command.WaitingQuery{Run: id}); err == nil && w.Found {
				return id
			}
		}
	}
	a, err := n.Invoke(n.t.Context(), command.Invoke{By: by, Call: call}, nil)
	if err != nil || a.Reply.Refusal != nil {
		n.t.Fatal(err, a.Reply.Refusal)
	}
	return a.Reply.Run
}

func (n *retainedNode) session(by actor.Principal, name string) (command.Session, bool) {
	n.t.Helper()
	s, err := command.Find(n.t.Context(), n, by, command.SessionQuery{Session: name})
	var r *actor.Refusal
	if err != nil && (!errors.As(err, &r) || r.Reason != actor.NotFound) {
		n.t.Fatal(err)
	}
	return s, err == nil
}

func (n *retainedNode) close() {
	n.t.Helper()
	if err := n.Close(n.t.Context()); err != nil {
		n.t.Error(err)
	}
}

// A pass deletes the sessions of all tenants that were idle too long and that have no open
// run. It cuts the log that is older, and keeps what an agent without sessions knows.
func TestRetentionDeletesIdleSessions(t *testing.T) {
	bob := testBy
	bob.Tenant = "bob"
	n := openRetained(t, filepath.Join(t.TempDir(), "data"), testKeep)
	began := n.engine.Now()
	n.ask(testBy, "s-1", "x")
	n.ask(bob, "s-2", "x")
	n.ask(testBy, actor.DefaultKey, "x")
	n.ask(testBy, "s-open", "wait")
	s, ok := n.session(testBy, "s-1")
	if !ok || s.Updated < began || s.Updated > n.engine.Now() {
		t.Errorf("session last changed at %v, want a time since %v", s.Updated, began)
	}
	want := func(what string, want bool) {
		t.Helper()
		for name, by := range map[string]actor.Principal{"s-1": testBy, "s-2": bob} {
			if _, found := n.session(by, name); found != want {
				t.Errorf("%s: session %s is found: %v, want %v", what, name, found, want)
			}
		}
		if s, found := n.session(testBy, "s-open"); !found || len(s.Agents) != 1 || len(s.Agents[0].Open) != 1 {
			t.Errorf("%s: the session with an open run has %+v, found: %v", what, s, found)
		}
	}
	n.Retain(t.Context(), began.Add(testKeep-time.Hour))
	want("before its time", true)
	if origin, err := store.Origin(n.store.(*disk.Disk), "n1"); err != nil || origin.Batch != 0 {
		t.Errorf("the log begins behind batch %d, error %v, want it whole", origin.Batch, err)
	}
	n.Retain(t.Context(), n.engine.Now().Add(testKeep+time.Hour))
	want("after its time", false)
	origin, err := store.Origin(n.store.(*disk.Disk), "n1")
	if err != nil || origin.Batch == 0 {
		t.Errorf("the log begins behind batch %d, error %v, want it cut", origin.Batch, err)
	}
	n.ask(testBy, "s-1", "again") // its name can be used again
	j, err := View{Log: n.store, Tenant: testBy.Tenant}.journal(actor.ID{Tenant: testBy.Tenant, Agent: "agent", Key: actor.DefaultKey})
	if err != nil || j.N == 0 {
		t.Errorf("the agent without sessions has %d entries, error %v", j.N, err)
	}
	if _, err := n.store.(*disk.Disk).VerifyAll(); err != nil {
		t.Error(err)
	}
	n.close()
}

// A session that is used between the check of the retention and its deletion is kept.
func TestRetentionKeepsSessionUsedInTheMeantime(t *testing.T) {
	n := openRetained(t, filepath.Join(t.TempDir(), "data"), testKeep)
	n.ask(testBy, "s-1", "x")
	r := actor.Refuse(actor.Rejected, "used")
	err := n.engine.ForgetIf(t.Context(), testBy.Tenant, "s-1", func() error { return r })
	if !errors.Is(err, error(r)) {
		t.Errorf("got error %v, want %v", err, r)
	}
	if _, found := n.session(testBy, "s-1"); !found {
		t.Error("the session was deleted")
	}
	n.ask(testBy, "s-1", "x") // it is open again
	n.close()
}

// A process that ended before deleted content left the files is followed by one that
// removes it.
func TestStartCompletesPurge(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	n := openRetained(t, data, 0)
	n.ask(testBy, "s-1", "x")
	if err := n.Commands.Forget(t.Context(), command.Forget{By: testBy, Session: "s-1"}); err != nil { // no purge follows
		t.Fatal(err)
	}
	if !n.store.PurgeOwed() {
		t.Error("no purge is owed after a deletion")
	}
	n.close()
	n = openRetained(t, data, testKeep)
	n.Retain(t.Context(), n.engine.Now()) // purges run one at a time
	if n.store.PurgeOwed() {
		t.Error("a purge is owed after a pass")
	}
	n.close()
	if n = openRetained(t, data, 0); n.store.PurgeOwed() {
		t.Error("a purge is owed after the next start")
	}
	n.close()
}
