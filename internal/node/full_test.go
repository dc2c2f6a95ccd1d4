// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"log/slog"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/command"
)

// freeBytes returns the free space of the file system of a folder.
func freeBytes(t *testing.T, dir string) uint64 {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Bavail * uint64(stat.Bsize)
}

// While the disk has too little space for new work, sessions, agents and keys can be deleted, and runs
// cancelled.
func TestDeletionsUseTheReserve(t *testing.T) {
	dir := t.TempDir()
	open := func(floor uint64) *Node {
		t.Helper()
		n, err := Open(Config{Data: filepath.Join(dir, "data"), Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), Native: agents.Builtin(), FreeFloor: floor}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	admin := testBy
	admin.Scopes = []string{"admin"}
	invoke := func(n *Node, by actor.Principal, call actor.Call) *actor.Refusal {
		t.Helper()
		call.ID = n.NewCallID()
		a, err := n.Invoke(t.Context(), command.Invoke{By: by, Call: call}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return a.Reply.Refusal
	}
	message := actor.Call{To: actor.NewID("helper", "s-1"), Parts: actor.Text("x")}
	put := actor.Call{To: agents.RegistryID, Operation: agents.OpPut, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"name":"a"}`)}}}
	n := open(1)
	for what, call := range map[string]actor.Call{"message": message, "agent": put} {
		if r := invoke(n, admin, call); r != nil {
			t.Fatal(what, r)
		}
	}
	second := message
	second.To = actor.NewID("helper", "s-2")
	if r := invoke(n, admin, second); r != nil {
		t.Fatal(r)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	n = open(2 * freeBytes(t, dir))
	for what, call := range map[string]actor.Call{"message": message, "agent": put} {
		if r := invoke(n, admin, call); r == nil || r.Info().Type != "storage_full" || r.HTTP() != 503 || r.RetryAfter <= 0 {
			t.Errorf("%s: got %+v", what, r)
		}
	}
	remove := actor.Call{To: agents.RegistryID, Operation: agents.OpDelete, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"agent_id":"a"}`)}}}
	if r := invoke(n, admin, remove); r != nil {
		t.Errorf("an agent cannot be deleted: %v", r)
	}
	if err := n.Forget(t.Context(), command.Forget{By: testBy, Session: "s-1"}); err != nil {
		t.Errorf("a session cannot be deleted: %v", err)
	}
	n.Retain(t.Context(), n.engine.Now().Add(time.Hour)) // as --keep deletes
	if _, err := command.Find(t.Context(), n, testBy, command.SessionQuery{Session: "s-2"}); err == nil {
		t.Error("a session is not deleted by age")
	}
	if err := n.Purge(t.Context()); err != nil {
		t.Errorf("deleted content is left: %v", err)
	}
	_, err := n.Lookup(t.Context(), command.Lookup{By: testBy, Query: command.SessionQuery{Session: "s-1"}})
	var r *actor.Refusal
	if !errors.As(err, &r) || r.Reason != actor.NotFound {
		t.Errorf("the deleted session: %v", err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
