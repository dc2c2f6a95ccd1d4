// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/internal/command"
)

// A process that ended between the entry that deletes a session and the deletion of its
// rows is followed by one that completes the deletion before it serves clients.
func TestStartCompletesDeletion(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	echo := agents.Define("echo", "1", "test agent", agents.Blocking(agents.Func(func(*agents.Turn) (string, error) { return "x", nil })))
	open := func() *Node {
		n, err := Open(Config{Data: data, Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), Native: []actor.Definition{echo}, FreeFloor: 1}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	run := map[string]actor.CallID{}
	n := open()
	for _, session := range []string{"s-1", "s-2"} {
		a, err := n.Invoke(t.Context(), command.Invoke{By: testBy, Call: actor.Call{ID: n.NewCallID(), To: actor.NewID("echo", session), Parts: actor.Text("x")}}, nil)
		if err != nil || a.Reply.Refusal != nil {
			t.Fatal(err, a.Reply.Refusal)
		}
		run[session] = a.Reply.Run
	}
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(data, "n1", disk.Options{FreeFloor: 1, WriteBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	l := disk.NewLog(d)
	err = l.Forget(actor.DefaultTenant, "s-1", dispatcher.ShardOf(actor.NewID("echo", "s-1")), 1<<40, 1)
	if err = errors.Join(err, l.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
	n = open()
	for session, want := range map[string]bool{"s-1": false, "s-2": true} {
		_, err := n.Lookup(t.Context(), command.Lookup{By: testBy, Query: command.OwnerQuery{Run: run[session]}})
		var refusal *actor.Refusal
		if found := err == nil; found != want || !found && (!errors.As(err, &refusal) || refusal.Reason != actor.NotFound) {
			t.Errorf("run of session %s: got error %v, want it found: %v", session, err, want)
		}
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
