// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// listedRun holds some fields of a run in a list.
type listedRun struct {
	Run     string `json:"run_id"`
	Actor   string `json:"actor"`
	User    string `json:"principal"`
	Root    string `json:"root_run_id"`
	Parent  string `json:"parent_run_id"`
	Agent   string `json:"agent_id"`
	Session string `json:"session_id"`
	Status  string `json:"status"`
	Created string `json:"created_at"`
}

type runsPage struct {
	Runs []listedRun `json:"runs"`
	Next string      `json:"next_cursor"`
}

// listAll follows the cursors of a list to its end.
func (d *testGateway) listAll(query string) (all []listedRun, pages int) {
	d.Helper()
	for cursor := ""; ; {
		var page runsPage
		if status := d.doJSON(&page, "GET", "/v1/runs?"+query+cursor, ""); status != http.StatusOK {
			d.Fatalf("%s: %d", query+cursor, status)
		}
		all, pages = append(all, page.Runs...), pages+1
		if page.Next == "" {
			return all, pages
		}
		cursor = "&cursor=" + page.Next
	}
}

// Each filter selects the runs that the test selects from the whole list.
func TestRunListFilters(t *testing.T) {
	d := startGateway(t)
	d.createAgent("maker")
	for i := range 5 {
		d.do("POST", "/v1/agents/helper/messages", fmt.Sprintf(`{"content":"x","session_id":"s-%d"}`, i%2))
		d.do("POST", "/v1/agents/coordinator/messages", fmt.Sprintf(`{"content":"x","session_id":"c-%d"}`, i))
	}
	var all []listedRun
	for _, agent := range []string{"helper", "coordinator"} {
		found, _ := d.listAll("agent_id=" + agent)
		all = append(all, found...)
	}
	slices.SortFunc(all, func(a, b listedRun) int { return strings.Compare(b.Run, a.Run) })
	if len(all) != 15 {
		t.Fatalf("%d runs of two agents, want 15: %+v", len(all), all)
	}
	some := all[slices.IndexFunc(all, func(r listedRun) bool { return r.Parent != "" })]
	middle := all[7].Created[:len("2027-01-31T12:00:00.000")] + "Z"
	isRoot := func(r listedRun) bool { return r.Root == r.Run }
	for query, want := range map[string]func(listedRun) bool{
		"":                                           isRoot,
		"agent_id=helper":                            func(r listedRun) bool { return r.Agent == "helper" },
		"agent_id=helper&session_id=s-1":             func(r listedRun) bool { return r.Agent == "helper" && r.Session == "s-1" },
		"session_id=c-3":                             func(r listedRun) bool { return r.Session == "c-3" },
		"status=DONE":                                func(r listedRun) bool { return isRoot(r) && r.Status == "DONE" },
		"status=PAUSED_WAITING_APPROVAL":             func(r listedRun) bool { return isRoot(r) && r.Status == "PAUSED_WAITING_APPROVAL" },
		"status=FAILED":                              func(listedRun) bool { return false },
		"root_run_id=" + some.Root:                   func(r listedRun) bool { return r.Root == some.Root },
		"parent_run_id=" + some.Parent:               func(r listedRun) bool { return r.Parent == some.Parent },
		"since=1970-01-02T00:00:00Z":                 isRoot,
		"until=1970-01-02T00:00:00Z":                 func(listedRun) bool { return false },
		"agent_id=helper&since=2199-01-01T00:00:00Z": func(listedRun) bool { return false },
	} {
		for _, limit := range []string{"limit=200", "limit=1", "limit=4"} {
			got, pages := d.listAll(strings.TrimPrefix(query+"&"+limit, "&"))
			expected := slices.DeleteFunc(slices.Clone(all), func(r listedRun) bool { return !want(r) })
			if !slices.Equal(got, expected) {
				t.Errorf("%s %s: got %d runs, want %d:\n%+v\n%+v", query, limit, len(got), len(expected), got, expected)
			}
			if limit == "limit=1" && len(expected) > 1 && pages < len(expected) {
				t.Errorf("%s: %d pages of one run, want %d", query, pages, len(expected))
			}
		}
	}
	before, _ := d.listAll("until=" + middle + "&limit=200&agent_id=helper")
	after, _ := d.listAll("since=" + middle + "&limit=200&agent_id=helper")
	helpers, _ := d.listAll("agent_id=helper")
	if !slices.Equal(append(after, before...), helpers) || len(before) == 0 || len(after) == 0 {
		t.Errorf("%d runs before %s and %d after it, want all %d", len(before), middle, len(after), len(helpers))
	}
	system, _ := d.owner().listAll("system=true&agent_id=troupe")
	if len(system) != 1 || system[0].Session != "registry" {
		t.Errorf("runs of the registry: %+v", system)
	}
}

// The runs of an agent whose name begins like that of the system agent are listed.
func TestRunListHidesSystemAgentOnly(t *testing.T) {
	d := startGateway(t)
	for _, name := range []string{"troupes", "troupe-x", "team.troupe"} {
		d.createAgent(name)
		d.do("POST", "/v1/agents/"+name+"/messages", `{"content":"x"}`)
	}
	var listed []string
	all, _ := d.listAll("")
	for _, r := range all {
		listed = append(listed, r.Agent)
	}
	if want := []string{"team.troupe", "troupe-x", "troupes"}; !slices.Equal(listed, want) {
		t.Errorf("got runs of %v, want %v", listed, want)
	}
	found, err := command.Find(t.Context(), d.server.node, actor.NewPrincipal("alice", ""), command.AgentsQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range found.All {
		s := runs.Summary{Actor: actor.NewID(a.Name, "")}
		if f := (runs.Filter{}); f.Selects(&s) == a.System {
			t.Errorf("agent %s, system %v: the list of runs decides otherwise", a.Name, a.System)
		}
	}
}

// A cursor continues its own list only.
func TestRunListRefusesForeignCursors(t *testing.T) {
	d := startGateway(t)
	for range 2 {
		d.do("POST", "/v1/agents/helper/messages", `{"content":"x"}`)
	}
	var page runsPage
	if d.doJSON(&page, "GET", "/v1/runs?limit=1&agent_id=helper", ""); page.Next == "" {
		t.Fatal("no cursor")
	}
	changed := []byte(page.Next)
	if changed[9]++; changed[9] > 'Y' || changed[9] < 'B' {
		changed[9] = 'A'
	}
	for _, query := range []string{"limit=1&cursor=" + page.Next, "limit=1&agent_id=helper&status=DONE&cursor=" + page.Next, "agent_id=helper&cursor=" + page.Next[:len(page.Next)-1],
		"agent_id=helper&cursor=" + page.Next + "AA", "agent_id=helper&cursor=" + string(changed), "agent_id=helper&cursor=x", "agent_id=helper&cursor=" + page.Runs[0].Run} {
		if status, _, body := d.do("GET", "/v1/runs?"+query, ""); status != http.StatusBadRequest || !strings.Contains(body, `"field":"cursor"`) {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
	for field, query := range map[string]string{"limit": "limit=201", "agent_id": "agent_id=..", "status": "status=done", "since": "since=yesterday", "until": "since=2027-01-01T00:00:00Z&until=2027-01-01T00:00:00Z",
		"root_run_id": "root_run_id=1", "parent_run_id": "parent_run_id=1", "system": "system=1", "session_id": "session_id=.."} {
		for _, query := range []string{query, field + "=", field + "=" + strings.Repeat("a", 65)} {
			if status, _, body := d.do("GET", "/v1/runs?"+query, ""); status != http.StatusBadRequest || !strings.Contains(body, `"field":"`+field+`"`) {
				t.Errorf("%s: %d %s", query, status, body)
			}
		}
	}
}

// Lists of agents and keys have pages, too.
func TestNameListsHavePages(t *testing.T) {
	d := startGateway(t)
	for _, name := range []string{"c", "a", "b"} {
		d.createAgent(name)
	}
	var got []string
	for cursor := ""; ; {
		var page struct {
			Agents []struct {
				ID string `json:"agent_id"`
			} `json:"agents"`
			Next string `json:"next_cursor"`
		}
		d.doJSON(&page, "GET", "/v1/agents?limit=2"+cursor, "")
		for _, a := range page.Agents {
			got = append(got, a.ID)
		}
		if page.Next == "" {
			break
		}
		cursor = "&cursor=" + page.Next
		if status, _, body := d.owner().do("GET", "/v1/keys?limit=2"+cursor, ""); status != http.StatusBadRequest || !strings.Contains(body, `"field":"cursor"`) {
			t.Errorf("cursor of another list: %d %s", status, body)
		}
	}
	if want := []string{"a", "b", "c", "coordinator", "helper"}; !slices.Equal(got, want) {
		t.Errorf("got agents %v, want %v", got, want)
	}
	if status, _, body := d.do("GET", "/v1/agents?limit=1001", ""); status != http.StatusBadRequest || !strings.Contains(body, "at most 1000, got 1001") {
		t.Errorf("%d %s", status, body)
	}
}

// heldNode holds lists of runs until their context ends.
type heldNode struct {
	command.Node
	begun, ended chan struct{}
}

func (n heldNode) Lookup(ctx context.Context, l command.Lookup) (command.Result, error) {
	if _, ok := l.Query.(command.RunsQuery); !ok {
		return n.Node.Lookup(ctx, l)
	}
	n.begun <- struct{}{}
	<-ctx.Done()
	n.ended <- struct{}{}
	return nil, ctx.Err()
}

// A principal reads at most scansEach lists at once, and all of them leave places for
// administrators. A request whose client has gone ends its reading.
func TestScansAreBounded(t *testing.T) {
	d := startGateway(t)
	d.do("POST", "/v1/sessions", `{"session_id":"s1"}`, userHeader, "ann")
	users := []user{d.newUser(`"user":"ann","scopes":["read"]`), d.newUser(`"user":"bob","scopes":["read"]`), d.newUser(`"user":"eve","scopes":["read"]`)}
	held := heldNode{d.server.node, make(chan struct{}), make(chan struct{})}
	d.server.node = held
	var conns []net.Conn
	read := func(u user, n int) {
		for range n {
			conn, err := net.Dial("tcp", d.address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			conns = append(conns, conn)
			fmt.Fprintf(conn, "GET /v1/runs HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", d.address, u.key)
			<-held.begun
		}
	}
	read(users[0], scansEach)
	for _, path := range []string{"/v1/runs", "/v1/runs/0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55?tree=1", "/v1/sessions", "/v1/approvals", "/v1/sessions/s1", "/v1/sessions/s1/events", "/v1/runs/0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55/events"} {
		if status, body := users[0].do("GET", path, ""); status != http.StatusTooManyRequests || !strings.Contains(body, fmt.Sprintf("%d requests for lists, sessions and events of yours", scansEach)) {
			t.Errorf("one more of the same user: %s: %d %s", path, status, body)
		}
	}
	read(users[1], ScansMax-scansReserved-scansEach)
	status, headers, body := d.do("GET", "/v1/runs", "", "Authorization", "Bearer "+users[2].key)
	if status != http.StatusServiceUnavailable || headers.Get("Retry-After") == "" || !strings.Contains(body, "requests for lists, sessions and events are open") {
		t.Errorf("one more of another user: %d %v %s", status, headers, body)
	}
	read(d.newUser(`"scopes":["admin"]`), scansReserved)
	for _, conn := range conns {
		_ = conn.Close()
	}
	deadline := time.NewTimer(readTimeout - time.Second) // the requests have this timeout
	defer deadline.Stop()
	for range conns {
		select {
		case <-held.ended:
		case <-deadline.C:
			t.Fatal("a list is still read although its client has gone")
		}
	}
}
