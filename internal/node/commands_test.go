// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
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
		{command.PromptsQuery{Run: run, Limit: 1}, actor.Rejected}, // without the scope operator
		{command.StepsQuery{Run: run, Limit: 1}, actor.Rejected},   // likewise
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

// The runs of all namespaces are an operator's. A page reads 64 namespaces at most, and
// the list continues when the namespace of its cursor has gone.
func TestRunsOfEveryNamespace(t *testing.T) {
	n := openTestNode(t)
	const namespaces = namespacesMerged + 6
	for i := range namespaces {
		by := actor.Principal{Tenant: fmt.Sprintf("u%03d", i)}
		call := actor.Call{ID: n.NewCallID(), To: by.ID("helper", "s"), Left: time.Minute, Parts: actor.Text("hello")}
		if a, err := n.Invoke(t.Context(), command.Invoke{By: by, Call: call}, nil); err != nil || a.Reply.Refusal != nil {
			t.Fatal(a, err)
		}
	}
	var r *actor.Refusal
	for _, q := range []command.Query{command.EveryRunQuery{Limit: 1}, command.ApprovalsQuery{EveryUser: true}} {
		if _, err := n.Lookup(t.Context(), command.Lookup{By: testBy, Query: q}); !errors.As(err, &r) || r.Reason != actor.Rejected {
			t.Errorf("%T without the scope operator: %v", q, err)
		}
	}
	operator := actor.NewPrincipal("olga", "", "operator")
	find := func(q command.EveryRunQuery) command.EveryRun {
		page, err := command.Find(t.Context(), n, operator, q)
		if err != nil {
			t.Fatal(err)
		}
		return page
	}
	if _, err := n.Lookup(t.Context(), command.Lookup{By: operator, Query: command.EveryRunQuery{Limit: command.RunsMax + 1}}); !errors.As(err, &r) || r.Reason != actor.Invalid {
		t.Errorf("above the limit: %v", err)
	}
	first := find(command.EveryRunQuery{Limit: command.RunsMax})
	if len(first.Page.All) != namespacesPerPage || first.From != fmt.Sprintf("u%03d", namespacesPerPage) || !first.Page.Next.IsZero() {
		t.Errorf("first page: %d runs, next %q", len(first.Page.All), first.From)
	}
	sixth := fmt.Sprintf("u%03d", namespaces-6) // before the end
	rest := find(command.EveryRunQuery{From: sixth, Limit: command.RunsMax})
	if len(rest.Page.All) != 6 || rest.From != "" || rest.Page.All[0].Actor.Tenant != sixth {
		t.Errorf("last page: %d runs, next %q", len(rest.Page.All), rest.From)
	}
	if gone := find(command.EveryRunQuery{From: sixth + "-gone", Before: actor.NewCallID(1, 2, 3), Limit: command.RunsMax}); len(gone.Page.All) != 5 {
		t.Errorf("after a namespace that has gone: %d runs", len(gone.Page.All))
	}
	if one := find(command.EveryRunQuery{From: "u001", Limit: 1}); len(one.Page.All) != 1 || one.From != "u002" {
		t.Errorf("page of one run: %+v", one)
	}
}

// A list of approvals can be read to its end, and those of a root run are found behind any
// number of others.
func TestApprovalsBeyondOnePage(t *testing.T) {
	const count = 2*command.ApprovalsMax + 1
	all := func() (all []command.Approval) {
		for i := range count {
			id := runs.ToolCallID{Run: actor.CallID{1, byte(i)}, Step: uint32(count - i)}
			all = append(all, command.Approval{ID: id, Root: actor.CallID{byte(1 + i/(count-1))}, Created: actor.Time(1 + i/4)})
		}
		return all
	}
	if page := pageOf(all(), command.ApprovalsQuery{Root: actor.CallID{2}}); len(page.All) != 1 || page.More || page.All[0].Root != (actor.CallID{2}) {
		t.Errorf("%d approvals of the root run, more %t", len(page.All), page.More)
	}
	for limit, pages := range map[int]int{0: 3, 1 << 20: 3, 500: 5} {
		seen := map[runs.ToolCallID]bool{}
		q, read := command.ApprovalsQuery{Limit: limit}, 0
		for more := true; more; read++ {
			page := pageOf(all(), q)
			for _, a := range page.All {
				if a.Position().Compare(q.After) <= 0 {
					t.Fatalf("%v follows %v", a.Position(), q.After)
				}
				q.After, seen[a.ID] = a.Position(), true
			}
			more = page.More
		}
		if len(seen) != count || read != pages {
			t.Errorf("limit %d: %d approvals in %d pages", limit, len(seen), read)
		}
	}
}

// In a list of all namespaces, one with many old approvals does not push those of others to later
// pages, and each is listed once.
func TestApprovalsOfAllNamespacesTakeTurns(t *testing.T) {
	const count = 900
	all := func() (all []command.Approval) {
		for i := range count {
			all = append(all, command.Approval{ID: runs.ToolCallID{Run: actor.CallID{1, byte(i), byte(i >> 8)}, Step: 1}, Actor: actor.ID{Tenant: "mallory"}, Created: actor.Time(1 + i)})
		}
		for i := range 3 {
			for _, user := range []string{"bob", "carol"} {
				all = append(all, command.Approval{ID: runs.ToolCallID{Run: actor.CallID{2, byte(i), user[0]}, Step: 1}, Actor: actor.ID{Tenant: user}, Created: actor.Time(count + 1 + i)})
			}
		}
		return all
	}
	q, seen, users := command.ApprovalsQuery{Limit: 100, EveryUser: true}, map[runs.ToolCallID]bool{}, []string{}
	for more := true; more; {
		page := pageOf(all(), q)
		for _, a := range page.All {
			q.After, seen[a.ID], users = a.Position(), true, append(users, a.Actor.Tenant)
		}
		more = page.More
	}
	if want := []string{"mallory", "bob", "carol", "mallory", "bob", "carol", "mallory", "bob", "carol", "mallory"}; len(seen) != count+6 || !slices.Equal(users[:10], want) {
		t.Errorf("%d approvals, of %q first", len(seen), users[:10])
	}
	if one := pageOf(all(), command.ApprovalsQuery{Limit: 3}); one.All[2].Created != 3 {
		t.Errorf("a list of one namespace: %+v", one.All[2])
	}
}

// A subscription that has ended leaves its share, and one too many is refused.
func TestEndedSubscriptionsAreReturned(t *testing.T) {
	n := openTestNode(t)
	follow := func() (stop func(), err error) {
		_, stop, err = n.Follow(t.Context(), command.Follow{By: testBy, Run: n.NewCallID()})
		return stop, err
	}
	for range 2 {
		var stops []func()
		for range SubscriptionShares.Each {
			stop, err := follow()
			if err != nil {
				t.Fatal(err)
			}
			stops = append(stops, stop)
		}
		var r *actor.Refusal
		if _, err := follow(); !errors.As(err, &r) || r.Scope != actor.ScopeCaller {
			t.Errorf("one more: %v", err)
		}
		for _, stop := range stops {
			stop()
			stop() // has no effect
		}
	}
}

// heldLease is a lease that a test takes away.
type heldLease struct {
	valid atomic.Bool
	waits chan struct{}
	ended chan struct{}
}

func (l *heldLease) Serves() bool { return l.valid.Load() }

func (l *heldLease) Await(<-chan struct{}) {
	l.waits <- struct{}{}
	<-l.ended
}

// A process that was frozen until its lease had run out answers no query from its memory: its successor may
// have acknowledged an agent that it does not know.
func TestQueriesNeedLease(t *testing.T) {
	for renewed, want := range map[bool]error{true: nil, false: command.ErrClosed} {
		lease := &heldLease{waits: make(chan struct{}, 64), ended: make(chan struct{})}
		lease.valid.Store(true)
		n, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Limits: dispatcher.DefaultLimits(), Native: agents.Builtin(), FreeFloor: 1, Lease: lease}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		lease.valid.Store(false)
		if _, err := n.Lookup(t.Context(), command.Lookup{By: actor.NewPrincipal("", ""), Query: command.HealthQuery{}}); err != nil {
			t.Errorf("health of a process without its lease: %v", err)
		}
		got := make(chan error, 1)
		go func() {
			_, err := n.Lookup(t.Context(), command.Lookup{By: actor.NewPrincipal("", ""), Query: command.AgentsQuery{}})
			got <- err
		}()
		<-lease.waits
		select {
		case err := <-got:
			t.Errorf("answered without the lease: %v", err)
		default:
		}
		lease.valid.Store(renewed)
		close(lease.ended)
		if err := <-got; !errors.Is(err, want) {
			t.Errorf("renewed %v: got %v, want %v", renewed, err, want)
		}
		lease.valid.Store(true)
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}
