// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// rowReader counts the reads of single rows. It has no other methods of a reader: reading a
// journal panics.
type rowReader struct {
	store.Reader // nil
	from         store.Reader
	tenants      bool
	reads        int
}

func (r *rowReader) Run(tenant string, run actor.CallID) (store.RunOwner, bool, error) {
	r.reads++
	return r.from.Run(tenant, run)
}

func (r *rowReader) Ended(tenant string, run actor.CallID) (bool, error) {
	r.reads++
	return r.from.Ended(tenant, run)
}

func (r *rowReader) Tenants() ([]string, error) {
	r.tenants = true
	return r.from.Tenants()
}

// Whether a run is open is read from its row, however many asks its journal has: external
// agents ask it with each of their requests.
func TestOpenRunReadsNoJournal(t *testing.T) {
	busy := agents.Define("busy", "1", "test agent", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		n, err := strconv.Atoi(t.Message())
		for i := 0; i < n && err == nil; i++ {
			_, err = t.Call("echo", strconv.Itoa(i))
		}
		if err == nil {
			_, err = t.Wait("go", time.Hour)
		}
		return "done", err
	})))
	echo := agents.Define("echo", "1", "test agent", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) { return t.Message(), nil })))
	echo.Durability = actor.Volatile
	node, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), Native: []actor.Definition{busy, echo}, FreeFloor: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	n := sessionNode{node, t}
	defer n.close()
	for _, asks := range []int{1, 40} {
		run := n.NewCallID()
		updates, stop, err := n.Follow(t.Context(), command.Follow{By: testBy, Run: run})
		if err != nil {
			t.Fatal(err)
		}
		until := func(reached func(*runs.Summary) bool) {
			for {
				page, err := command.Find(t.Context(), n, testBy, command.RunsQuery{Limit: 1})
				if err != nil {
					t.Fatal(err)
				}
				if all := page.Page.All; len(all) == 1 && all[0].Run == run && (reached(&all[0]) || all[0].Ended != 0) {
					return
				}
				<-updates
			}
		}
		call := actor.Call{ID: run, To: testBy.ID("busy", "s-"+strconv.Itoa(asks)), Parts: actor.Text(strconv.Itoa(asks))}
		if a, err := n.Invoke(t.Context(), command.Invoke{By: testBy, Call: call}, nil); err != nil || a.Reply.Refusal != nil { // answers once the run waits
			t.Fatal(err, a.Reply.Refusal)
		}
		until(func(s *runs.Summary) bool { return s.Waits == "go" })
		for tenant, want := range map[string]int{testBy.Tenant: 2, "bob": 3} {
			r := &rowReader{from: n.store}
			owner, err := View{Log: r, Tenant: tenant}.OpenRun(run)
			if err != nil || owner.Run != run || owner.Actor != call.To || r.reads != want || r.tenants != (want > 2) {
				t.Errorf("%d asks, looked up by %s: got %+v, error %v, with %d reads (tenants: %v), want %d", asks, tenant, owner, err, r.reads, r.tenants, want)
			}
		}
		if err := n.Cancel(t.Context(), command.Cancel{By: testBy, Run: run, Actor: call.To}); err != nil {
			t.Fatal(err)
		}
		until(func(*runs.Summary) bool { return false })
		stop()
		for _, tenant := range []string{testBy.Tenant, "bob"} {
			if owner, err := (View{Log: &rowReader{from: n.store}, Tenant: tenant}).OpenRun(run); n.refusal(err) != actor.NotFound.String() {
				t.Errorf("%d asks, looked up by %s after the end: got %+v, error %v", asks, tenant, owner, err)
			}
		}
	}
}
