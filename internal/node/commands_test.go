// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/command"
)

// testBy is the principal of commands.
var testBy = actor.NewPrincipal("alice", "")

func openTestNode(t *testing.T) *Node {
	t.Helper()
	n, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Limits: dispatcher.DefaultLimits(), Native: agents.Builtin(), FreeFloor: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n
}

// Queries for more than their bound, or for a run that does not exist, are
// refused.
func TestInvalidQueriesAreRefused(t *testing.T) {
	n := openTestNode(t)
	run := n.NewCallID()
	for _, c := range []struct {
		query command.Query
		want  actor.Reason
	}{
		{command.RunsQuery{Limit: command.RunsMax + 1}, actor.Invalid},
		{command.RunsQuery{Limit: -1}, actor.Invalid},
		{command.EventsQuery{Run: run, Limit: command.EventsMax + 1}, actor.Invalid},
		{command.EventsQuery{Run: run, Limit: 1, Strict: true}, actor.NotFound},
		{command.ActorsQuery{Agent: "helper", Limit: command.ActorsMax + 1}, actor.Invalid},
		{command.OwnerQuery{Run: run}, actor.NotFound},
		{command.RunQuery{Run: run}, actor.NotFound},
		{command.WaitingQuery{Run: run}, actor.NotFound},
	} {
		var r *actor.Refusal
		if _, err := n.Lookup(t.Context(), command.Lookup{By: testBy, Query: c.query}); !errors.As(err, &r) || r.Reason != c.want {
			t.Errorf("%T%+v: got %v, want %s", c.query, c.query, err, c.want)
		}
	}
	if page, err := command.Find(t.Context(), n, testBy, command.EventsQuery{Run: run, After: 7, Limit: 1}); err != nil || len(page.All) > 0 || page.After != 7 {
		t.Errorf("query that is not strict: %+v, %v", page, err)
	}
}

func TestCommandOfWrongKindIsRefused(t *testing.T) {
	n := openTestNode(t)
	call := actor.Call{ID: n.NewCallID(), To: actor.NewID("helper", ""), Left: time.Minute, Parts: actor.Text("hello")}
	if a, err := n.Signal(t.Context(), command.Signal{By: testBy, Call: call}); err != nil || a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Invalid {
		t.Errorf("call as signal: %+v, %v", a, err)
	}
	call.Kind = actor.Signal
	if a, err := n.Invoke(t.Context(), command.Invoke{By: testBy, Call: call}, nil); err != nil || a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Invalid {
		t.Errorf("signal as call: %+v, %v", a, err)
	}
}

// A command reaches actors and runs of its principal's tenant only.
func TestCommandsStayInTheirTenant(t *testing.T) {
	n := openTestNode(t)
	run := n.NewCallID()
	call := actor.Call{ID: run, To: testBy.ID("coordinator", ""), Left: time.Minute, Parts: actor.Text("xyzzy")} // waits for a signal
	if a, err := n.Invoke(t.Context(), command.Invoke{By: testBy, Call: call}, nil); err != nil || a.HeldUntil == 0 {
		t.Fatalf("%+v, %v", a, err)
	}
	queries := []command.Query{command.OwnerQuery{Run: run}, command.RunQuery{Run: run}, command.WaitingQuery{Run: run}, command.EventsQuery{Run: run, Limit: 1, Strict: true}}
	stranger := actor.Principal{Tenant: "acme", User: testBy.User, Scopes: []string{"admin"}}
	for _, q := range queries {
		if _, err := n.Lookup(t.Context(), command.Lookup{By: testBy, Query: q}); err != nil {
			t.Errorf("%T: %v", q, err)
		}
		var r *actor.Refusal
		if found, err := n.Lookup(t.Context(), command.Lookup{By: stranger, Query: q}); !errors.As(err, &r) || r.Reason != actor.NotFound {
			t.Errorf("%T of another tenant: %+v, %v", q, found, err)
		}
	}
	for _, by := range []actor.Principal{testBy, stranger} {
		runs, err := command.Find(t.Context(), n, by, command.RunsQuery{Limit: 10})
		if err != nil || (len(runs.Page.All) > 0) != (by.Tenant == testBy.Tenant) {
			t.Errorf("runs of %s: %+v, %v", by.Tenant, runs, err)
		}
		actors, err := command.Find(t.Context(), n, by, command.ActorsQuery{Agent: "coordinator", Limit: 10})
		if err != nil || (len(actors.All) > 0) != (by.Tenant == testBy.Tenant) {
			t.Errorf("actors of %s: %+v, %v", by.Tenant, actors, err)
		}
	}
	notFound := func(a command.Answer, err error) {
		t.Helper()
		if err != nil || a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.NotFound {
			t.Errorf("%+v, %v", a, err)
		}
	}
	call.ID = n.NewCallID()
	notFound(n.Invoke(t.Context(), command.Invoke{By: stranger, Call: call}, nil))
	call.Kind, call.Parent, call.Operation = actor.Signal, run, "go"
	notFound(n.Signal(t.Context(), command.Signal{By: stranger, Call: call}))
	var r *actor.Refusal
	if err := n.Cancel(t.Context(), command.Cancel{By: stranger, Run: run, Actor: call.To}); !errors.As(err, &r) || r.Reason != actor.NotFound {
		t.Errorf("cancel: %v", err)
	}
	if a, err := n.Signal(t.Context(), command.Signal{By: testBy, Call: call}); err != nil || a.Reply.Refusal != nil {
		t.Errorf("signal of the own tenant: %+v, %v", a, err)
	}
}

// The list of agents is built once per set of agents.
func TestAgentListFollowsRegistry(t *testing.T) {
	n := openTestNode(t)
	list := func() []command.Agent {
		found, err := command.Find(t.Context(), n, testBy, command.AgentsQuery{})
		if err != nil {
			t.Fatal(err)
		}
		return found.All
	}
	before := list()
	if again := list(); &again[0] != &before[0] {
		t.Error("the list was built again without a change")
	}
	spec, err := agents.ReadJSON([]byte(`{"name":"other"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.PutAgent(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if after := list(); len(after) != len(before)+1 || after[len(after)-1].Name != "other" {
		t.Errorf("got %d agents, want other after the %d before", len(after), len(before))
	}
	if allocs := testing.AllocsPerRun(100, func() { list() }); allocs > 0 {
		t.Errorf("a lookup of the agents allocates %v times, want 0", allocs)
	}
}
