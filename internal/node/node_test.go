// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// An agent that was stored but not announced before a crash exists after it. The
// node reads the registry's journal, and the open registry turn completes.
func TestUnannouncedAgentSurvivesCrash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	log := slog.New(slog.DiscardHandler)
	// Without attach, announcements wait.
	d, err := disk.Open(dir, "n1", disk.Options{WriteBuffer: 1 << 20, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	l := disk.NewLog(d)
	detached, err := loadCatalog(d, new(Config), log)
	if err != nil {
		t.Fatal(err)
	}
	definitions, _ := detached.definitions()
	e, err := engine.Start(engine.Config{Node: "n1", Log: l, Store: d, Agents: definitions, Tools: detached.tools, Limits: dispatcher.DefaultLimits(), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	id := e.NewCallID()
	changes, stop, _ := e.Watch(id)
	go func() {
		_, _ = e.Ask(ctx, actor.Call{ID: id, To: agents.RegistryID, Operation: agents.OpPut, Left: time.Minute, Principal: "key:a",
			Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"name":"helper"}`)}}})
	}()
	registered := func() (names []string) {
		err := e.Read(ctx, func(log store.Reader) error {
			saved, err := log.Load(agents.RegistryID)
			if err != nil {
				return err
			}
			journal, err := store.Fold(saved)
			for _, item := range journal.EffectiveState() {
				names = append(names, item.Name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	for !slices.Equal(registered(), []string{"agent/helper"}) {
		select {
		case <-changes:
		case <-ctx.Done():
			t.Fatalf("registry items: want agent/helper, got %v", registered())
		}
	}
	stop()
	if len(detached.catalog.Definitions) != 0 {
		t.Fatal("want no definitions before attach")
	}
	if err := e.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	n, err := Open(Config{Data: dir, Name: "n1", Limits: dispatcher.DefaultLimits(), Outbound: outbound.Config{}}, log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	if _, ok := n.Agent("helper"); !ok {
		t.Error("agent helper is missing from the catalog")
	}
	a, err := n.engine.Ask(ctx, actor.Call{ID: n.engine.NewCallID(), To: actor.NewID("helper", ""), Parts: actor.Text("hello"), Left: time.Minute})
	if err != nil || actor.TextOf(a.Reply.Parts) != "You said: hello" {
		t.Errorf("call of helper: got %+v, %v", a, err)
	}
	// The registry processes one message at a time, so an answer proves that the open
	// turn has completed.
	if _, _, err := n.CallRegistry(ctx, agents.OpDelete, []byte(`{"agent_id":"helper"}`)); err != nil {
		t.Error(err)
	}
	if a, err := n.engine.Ask(ctx, actor.Call{ID: n.engine.NewCallID(), To: actor.NewID("helper", ""), Parts: actor.Text("hello"), Left: time.Minute}); err != nil || a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.NotFound {
		t.Errorf("call of a deleted agent: want NotFound, got %+v, %v", a, err)
	}
}

// An agent that the registry refuses to change keeps its definition. An unchanged
// agent is not stored again.
func TestRefusedChangeKeepsDefinition(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	n, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Limits: dispatcher.DefaultLimits(), Outbound: outbound.Config{}}, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	defer func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	put := func(text string) *actor.Refusal { // by a client; only the operator may change a durability
		a, err := n.engine.Ask(ctx, actor.Call{ID: n.engine.NewCallID(), To: agents.RegistryID, Operation: agents.OpPut, Left: RegistryTimeout,
			Principal: "client", Origin: actor.Human, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(text)}}})
		if err != nil {
			t.Fatal(err)
		}
		return a.Reply.Refusal
	}
	if r := put(`{"name":"helper"}`); r != nil {
		t.Fatal(r)
	}
	before, _ := n.Agent("helper")
	read := func(text string) agents.Spec {
		spec, err := agents.ReadJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return spec
	}
	if r := put(`{"name":"helper","durability":"none"}`); r == nil || r.Reason != actor.Rejected {
		t.Errorf("got %v, want a Rejected refusal", r)
	}
	for _, want := range []bool{true, false} {
		if changed, _, err := n.PutAgent(ctx, read(`{"name":"other"}`)); changed != want || err != nil {
			t.Errorf("changed: got %v, want %v, error %v", changed, want, err)
		}
	}
	if now, _ := n.Agent("helper"); now.Hash() != before.Hash() {
		t.Error("agent helper changed; want the definition before")
	}
	if _, there := n.Agent("other"); !there {
		t.Error("agent other is missing")
	}
}

func TestRetryBusy(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		tries int
	}{{time.Millisecond, 3}, {agents.FormerRetention, 1}, {0, 1}} {
		tries := 0
		err := retryBusy(t.Context(), func() error {
			if tries++; tries == 3 {
				return nil
			}
			return actor.RefuseBusy(actor.ScopeNode, c.after, "much to do")
		})
		if tries != c.tries || (err == nil) != (tries == 3) {
			t.Errorf("after %v: %d tries, %v", c.after, tries, err)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := retryBusy(cancelled, func() error { return actor.RefuseBusy(actor.ScopeNode, RegistryTimeout, "much to do") }); err == nil {
		t.Error("cancelled context: want an error, got none")
	}
}

// A restarted node knows the external agents. Its trace declares agents created
// later.
func TestNodeRestartKeepsExternalAgents(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	config := Config{Data: filepath.Join(dir, "data"), Name: "n1", Limits: dispatcher.DefaultLimits(), Outbound: outbound.Config{}, Trace: filepath.Join(dir, "trace")}
	n, err := Open(config, log)
	if err != nil {
		t.Fatal(err)
	}
	for operation, body := range map[string]string{agents.OpPut: `{"name":"helper"}`, agents.OpRegister: `{"agent_id":"ext","endpoint":"http://127.0.0.1:9"}`} {
		if _, _, err := n.CallRegistry(t.Context(), operation, []byte(body)); err != nil {
			t.Error(err)
		}
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(config.Trace)
	if err != nil || !strings.Contains(string(text), `{"name":"helper"}`) || !strings.Contains(string(text), `{"name":"ext"`) {
		t.Errorf("trace: want agents helper and ext, got error %v, text %s", err, text)
	}
	if n, err = Open(config, log); err != nil {
		t.Fatal(err)
	}
	if at := n.outbound.LastSeen("ext"); at != 0 {
		t.Errorf("agent ext was seen at %v, although it had no contact since the restart", at)
	}
	if !n.outbound.Heartbeat("ext") || n.outbound.LastSeen("ext") == 0 {
		t.Error("agent ext is unknown to the egress after a restart")
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A definition that an open run needs is kept, however often the agent changes.
func TestOpenRunKeepsItsDefinition(t *testing.T) {
	n, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Limits: dispatcher.DefaultLimits(), Native: agents.Builtin(), FreeFloor: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	put := func(prompt string) {
		t.Helper()
		a, err := n.engine.Ask(t.Context(), actor.Call{ID: n.engine.NewCallID(), To: agents.RegistryID, Operation: agents.OpPut, Left: time.Minute, Principal: "key:a",
			Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: fmt.Appendf(nil, `{"name":"asker","prompt":%q}`, prompt)}}})
		if err != nil || a.Reply.Refusal != nil {
			t.Fatal(err, a.Reply.Refusal)
		}
	}
	put("needed")
	spec, _ := n.Agent("asker")
	run := n.engine.NewCallID()
	changes, stop, _ := n.engine.Watch(run)
	defer stop()
	go func() {
		_, _ = n.engine.Ask(t.Context(), actor.Call{ID: run, To: actor.NewID("asker", ""), Parts: actor.Text("Ask the coordinator agent x"), Left: time.Minute})
	}()
	<-changes // the run is open until the coordinator gets a signal
	for i := range agents.PrincipalRecordsMax + 50 {
		put(fmt.Sprint(i))
	}
	n.catalog.mu.Lock()
	defer n.catalog.mu.Unlock()
	kept := n.catalog.catalog.Former
	if len(kept) > agents.PrincipalRecordsMax {
		t.Errorf("%d former definitions, want at most %d", len(kept), agents.PrincipalRecordsMax)
	}
	if !slices.ContainsFunc(kept, func(d actor.Definition) bool { return d.Hash == spec.Hash() }) {
		t.Error("the definition of an open run was deleted")
	}
}

// A repeated registration is a sign of life, like a heartbeat.
func TestRegistrationIsSignOfLife(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := "http://" + closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	n, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Limits: dispatcher.DefaultLimits(), FreeFloor: 1,
		Outbound: outbound.Config{Allow: upstream.AllowLoopback()}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	register := func() {
		t.Helper()
		if _, _, err := n.CallRegistry(t.Context(), agents.OpRegister, fmt.Appendf(nil, `{"name":"ext","endpoint":%q}`, endpoint)); err != nil {
			t.Fatal(err)
		}
	}
	register()
	a, err := n.engine.Ask(t.Context(), actor.Call{ID: n.engine.NewCallID(), To: actor.NewID("ext", ""), Parts: actor.Text("x"), Left: 2 * time.Second})
	if err != nil || a.Reply.Refusal == nil {
		t.Fatalf("%+v %v", a, err)
	}
	before := n.outbound.Healthy("ext")
	seen := n.outbound.LastSeen("ext")
	if register(); !n.outbound.Healthy("ext") || n.outbound.LastSeen("ext") <= seen {
		t.Errorf("healthy: %v before and %v after the registration, last seen %v, then %v", before, n.outbound.Healthy("ext"), seen, n.outbound.LastSeen("ext"))
	}
}
