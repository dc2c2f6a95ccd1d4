// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package node

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/host/traces"
	"github.com/troupe-run/troupe/host/webhooks"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/postgrestest"
	"github.com/troupe-run/troupe/placement"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// inbox notes the ids of deliveries and counts spans.
type inbox struct {
	*httptest.Server
	mu    sync.Mutex
	ids   []string // sorted
	spans int
	away  bool // it takes nothing
}

func newInbox(t *testing.T) *inbox {
	b := &inbox{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.away {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if id := r.Header.Get("webhook-id"); id != "" {
			b.ids = append(b.ids, id)
			slices.Sort(b.ids)
			return
		}
		b.spans += strings.Count(string(body), `"spanId"`)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *inbox) received() (ids []string, spans int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.ids), b.spans
}

func (b *inbox) set(away bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = away
}

// sharedNode is a node of a cluster whose store has several logs.
type sharedNode struct {
	*retainedNode
	cluster *postgres.Cluster
}

func openShared(t *testing.T, url, data string, logs int, b *inbox) sharedNode {
	t.Helper()
	cluster, err := postgres.Join(postgres.ClusterConfig{URL: url, Name: "team", Node: "n1", Address: "here", Timing: placement.Default, Logs: logs,
		Lost: func(line string) { t.Error(line) }})
	if err != nil {
		t.Fatal(err)
	}
	return sharedNode{openHooked(t, url, data, b, cluster), cluster}
}

// openHooked opens a node with a webhook and traces on a store in a database, or in its folder.
func openHooked(t *testing.T, url, data string, b *inbox, cluster *postgres.Cluster) *retainedNode {
	t.Helper()
	agent := agents.Define("agent", "1", "test agent", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		switch turn.Message() {
		case "wait":
			_, err := turn.Wait("go", time.Hour)
			return "went", err
		case "fail":
			return "", errors.New("it fails")
		}
		return "x", nil
	})))
	agent.Transcript = actor.TranscriptAll
	n, err := Open(Config{Data: data, Store: url, Cluster: cluster, Connect: func(MemberSide) Members { return noMembers{} }, Name: "n1", Cells: 2, Limits: dispatcher.DefaultLimits(), Native: []actor.Definition{agent}, Keep: testKeep,
		Outbound: outbound.Config{Allow: upstream.AllowLoopback(), Env: func(string) (string, bool) { return "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz", true }},
		Webhooks: []webhooks.Config{{Name: "ops", URL: b.URL, SecretEnv: "SECRET"}}, Traces: traces.Config{Endpoint: b.URL}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Placed(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &retainedNode{n, t, data}
}

// noMembers are the other members of a cluster that has only one.
type noMembers struct{}

func (noMembers) SetMembers([]Member)                              {}
func (noMembers) Send(string, uint16, *actor.Envelope) (sent bool) { return false }
func (noMembers) Node(string) (command.Node, error)                { return nil, command.ErrClosed }
func (noMembers) Close()                                           {}

func (n sharedNode) end() {
	n.t.Helper()
	n.close()
	if err := n.cluster.Close(); err != nil {
		n.t.Error(err)
	}
}

// fail makes a run that fails in each of some sessions, and returns the ids of their deliveries.
func (n *retainedNode) fail(sessions ...string) (ids []string) {
	n.t.Helper()
	for _, session := range sessions {
		id := n.NewCallID()
		a, err := n.Invoke(n.t.Context(), command.Invoke{By: testBy, Call: actor.Call{ID: id, To: testBy.ID("agent", session), Kind: actor.Waiting, Parts: actor.Text("fail")}}, nil)
		if err != nil || a.Reply.Refusal == nil {
			n.t.Fatalf("a run that fails: %+v, %v", a.Reply, err)
		}
		ids = append(ids, fmt.Sprintf("run_failed-%s.", id))
	}
	slices.Sort(ids)
	return ids
}

// until waits until something holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// A node on a store with several logs serves sessions of all of them, continues after a restart, deletes, cuts
// each log, and delivers each notice and each span once.
func TestPostgresNodeWithSeveralLogs(t *testing.T) {
	const logs, sessions = 5, 25
	server := postgrestest.Start(t)
	url, data, b := server.Database(), filepath.Join(t.TempDir(), "data"), newInbox(t)
	n := openShared(t, url, data, logs, b)
	var failed []string
	for i := range sessions {
		session := fmt.Sprintf("s-%d", i)
		n.ask(testBy, session, "x")
		failed = append(failed, n.fail(session)...)
	}
	open := n.ask(testBy, "s-open", "wait")
	slices.Sort(failed)
	delivered := func() bool { ids, _ := b.received(); return len(ids) >= sessions }
	until(t, "each failure is delivered", delivered)
	until(t, "spans of each run are sent", func() bool { _, spans := b.received(); return spans >= 2*sessions })
	check := func(when string) {
		t.Helper()
		ids, _ := b.received()
		if len(ids) != sessions {
			t.Fatalf("%s: %d deliveries, want %d", when, len(ids), sessions)
		}
		for i, id := range ids {
			if !strings.HasPrefix(id, failed[i]) {
				t.Errorf("%s: delivery %s, want that of %s", when, id, failed[i])
			}
		}
	}
	check("at first")
	for i := range logs {
		if at := n.log.Synced(i).End; at.Batch == 0 {
			t.Errorf("log %d has no batch", i)
		}
	}
	if s := n.hooks.stats(); len(s) != 1 || s[0].Delivered != sessions || s[0].Name != "ops" {
		t.Errorf("figures of the webhook: %+v", s)
	}
	if s := n.engine.Stats(); len(s.Cells) != logs {
		t.Errorf("%d cells, want %d", len(s.Cells), logs)
	}
	if err := n.Forget(t.Context(), command.Forget{By: testBy, Session: "s-1"}); err != nil {
		t.Error(err)
	}
	if _, err := n.Backup("b"); !errors.Is(err, error(errDatabaseBackup)) {
		t.Errorf("backup: %v", err)
	}
	n.end()

	_, before := b.received()
	n = openShared(t, url, data, 1, b) // the number of logs is that of the store
	if batches, entries := n.End(); batches < logs || entries < 2*sessions {
		t.Errorf("the logs have %d batches, %d entries", batches, entries)
	}
	for i := range sessions {
		if _, found := n.session(testBy, fmt.Sprintf("s-%d", i)); found != (i != 1) {
			t.Errorf("session %d is found: %v", i, found)
		}
	}
	a, err := n.Signal(t.Context(), command.Signal{By: testBy, Call: actor.Call{ID: n.NewCallID(), Parent: open, To: testBy.ID("agent", "s-open"), Kind: actor.Signal, Operation: "go", Left: time.Minute}})
	if err != nil || a.Reply.Refusal != nil {
		t.Errorf("signal: %+v, %v", a.Reply, err)
	}
	until(t, "the open run ends", func() bool {
		s, found := n.session(testBy, "s-open")
		return found && len(s.Agents) == 1 && len(s.Agents[0].Open) == 0
	})
	until(t, "the spans of the open run are sent", func() bool { _, spans := b.received(); return spans > before })
	cut := func() bool {
		n.Retain(t.Context(), n.engine.Now().Add(testKeep+time.Hour))
		for i := range logs {
			if n.log.Synced(i).Origin.Batch == 0 {
				return false
			}
		}
		return true
	}
	until(t, "each log is cut", cut)
	for i := range sessions {
		if _, found := n.session(testBy, fmt.Sprintf("s-%d", i)); found {
			t.Errorf("session %d is found after its time", i)
		}
	}
	n.ask(testBy, "s-2", "again")
	check("at the end")
	n.end()

	x, err := postgres.Examine(url, nil)
	if err != nil || x.Wrong != 0 {
		t.Errorf("examined: %+v, %v", x, err)
	}
	x.Batches, x.Payloads, x.Bytes, x.End = 0, 0, 0, store.Mark{} // those of a copy are others
	folder, again := filepath.Join(t.TempDir(), "copy"), server.Database()
	if _, err := postgres.IntoFolder(folder, url, nil, nil); err != nil {
		t.Fatal(err)
	}
	same := func(what string, y store.Examination, err error) {
		t.Helper()
		if y.Batches, y.Payloads, y.Bytes, y.End = 0, 0, 0, (store.Mark{}); err != nil || !reflect.DeepEqual(y, x) || x.Entries == 0 {
			t.Errorf("%s: examined %+v, %v, want %+v", what, y, err, x)
		}
	}
	y, err := disk.Examine(folder, disk.Options{}, nil)
	same("the copy in a folder", y, err)
	if _, _, err := postgres.FromFolder(again, folder, nil, nil, nil); err != nil {
		t.Fatal(err)
	}
	y, err = postgres.Examine(again, nil)
	same("the copy in another database", y, err)
	if files, err := filepath.Glob(filepath.Join(data, "[wt]*")); err != nil || len(files) != 0 {
		t.Errorf("files of webhooks and traces beside the database: %v, %v", files, err)
	}
}

// What a webhook and traces of a folder had not delivered when its store was copied into a database is delivered from
// there, once, and nothing else.
func TestPostgresContinuesDeliveries(t *testing.T) {
	const sessions = 40
	url, data, b := postgrestest.Start(t).Database(), filepath.Join(t.TempDir(), "data"), newInbox(t)
	var all []string
	for i := range sessions {
		all = append(all, fmt.Sprintf("s-%d", i))
	}
	n := openHooked(t, "", data, b, nil)
	want := n.fail(all...)
	until(t, "each failure is delivered", func() bool { ids, _ := b.received(); return len(ids) == sessions })
	until(t, "their spans are sent", func() bool { _, spans := b.received(); return spans >= sessions && n.traces.stats().Waiting == 0 })
	_, before := b.received()
	b.set(true)
	want = append(want, n.fail(all...)...)
	slices.Sort(want)
	n.close()

	batches, err := Positions(data)
	if err != nil || len(batches) < 2 {
		t.Fatalf("positions %d, %v", batches, err)
	}
	_, moved, err := postgres.FromFolder(url, data, batches, nil, nil)
	if err == nil {
		err = errors.Join(MovePositions(data, url, moved), MarkPlace(data, url))
	}
	if err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(data, "*", "*.json")); err != nil || len(left) != 0 {
		t.Errorf("positions beside the database: %v, %v", left, err)
	}
	b.set(false)
	n = openHooked(t, url, filepath.Join(t.TempDir(), "other"), b, nil)
	until(t, "the rest is delivered", func() bool { ids, _ := b.received(); return len(ids) >= 2*sessions })
	until(t, "the rest of the spans is sent", func() bool { _, spans := b.received(); return spans >= 2*before })
	want = append(want, n.fail("s-1", "s-2")...)
	slices.Sort(want)
	until(t, "new failures are delivered", func() bool { ids, _ := b.received(); return len(ids) >= 2*sessions+2 })
	n.close()
	ids, spans := b.received()
	if len(ids) != len(want) || spans > 2*before+10 {
		t.Fatalf("%d deliveries, %d spans, want %d and about %d", len(ids), spans, len(want), 2*before)
	}
	for i := range ids {
		if !strings.HasPrefix(ids[i], want[i]) {
			t.Errorf("delivery %s, want that of %s", ids[i], want[i])
		}
	}
}

// A process with another folder continues the deliveries of each log where the one before ended, and one that gets the
// logs back continues where the other ended: each notice is delivered once.
func TestPostgresOtherFolderContinuesDeliveries(t *testing.T) {
	const sessions, logs = 12, 5
	url, b := postgrestest.Start(t).Database(), newInbox(t)
	var all []string
	for i := range sessions {
		all = append(all, fmt.Sprintf("s-%d", i))
	}
	want := 0
	received := func(when string) {
		t.Helper()
		until(t, when+": all are delivered", func() bool { ids, spans := b.received(); return len(ids) >= want && spans >= want })
		ids, _ := b.received()
		if n := len(ids); n != want || len(slices.Compact(ids)) != want {
			t.Errorf("%s: %d deliveries, %d different, want %d", when, n, len(slices.Compact(ids)), want)
		}
	}
	folders := []string{filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "data")}
	for round := range 4 {
		when := fmt.Sprintf("process %d", round+1)
		n := openShared(t, url, folders[round%2], logs, b)
		received(when + " at first")
		want += len(n.fail(all...))
		received(when)
		b.set(true)
		want += len(n.fail(all...)) // which the next process delivers
		n.end()
		b.set(false)
	}
}

func TestPostgresPositions(t *testing.T) {
	server := postgrestest.Start(t)
	n := openShared(t, server.Database(), t.TempDir(), 2, newInbox(t))
	defer n.end()
	s := n.store.(*postgres.Store)
	testPositions(t, func(kind string, log int) logs.Positions { return s.Positions("test "+kind, log) })
	testTakeOver(t, s.Positions("taken over", 0))
}
