// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/internal/command"
)

// Every command of a closed node ends, and none with the error of another package.
func TestClosedNodeRefusesCommands(t *testing.T) {
	n, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ok := func(err error) bool {
		var r *actor.Refusal
		return err == nil || errors.Is(err, command.ErrClosed) || errors.Is(err, context.Canceled) || errors.As(err, &r)
	}
	run := n.NewCallID()
	_, err = n.Invoke(ctx, command.Invoke{By: testBy, Call: actor.Call{ID: run, To: actor.NewID("a", "")}}, nil)
	_, _, registryErr := n.CallRegistry(ctx, agents.OpPut, []byte(`{"name":"helper"}`))
	for _, err := range []error{err, registryErr, n.Cancel(ctx, command.Cancel{By: testBy, Run: run, Actor: actor.NewID("a", "")}), n.Err()} {
		if !ok(err) {
			t.Errorf("got %v, want a refusal or ErrClosed", err)
		}
	}
	for _, q := range []command.Query{command.AgentsQuery{}, command.OwnerQuery{Run: run}, command.RunsQuery{Limit: 1}, command.ActorsQuery{Limit: 1}, command.HealthQuery{}, command.StatsQuery{}} {
		if _, err := n.Lookup(ctx, command.Lookup{By: testBy, Query: q}); !ok(err) {
			t.Errorf("%T: got %v, want a refusal or ErrClosed", q, err)
		}
	}
}

// A second Close waits for the first and returns the same, also with a trace.
func TestCloseTwice(t *testing.T) {
	dir := t.TempDir()
	n, err := Open(Config{Data: filepath.Join(dir, "data"), Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), Trace: filepath.Join(dir, "trace")}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var closes sync.WaitGroup
	for range 3 {
		closes.Go(func() {
			if err := n.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	closes.Wait()
}

// Lookups that run while the node closes return results or ErrClosed.
func TestLookupsDuringClose(t *testing.T) {
	n, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{}, 4)
	var readers sync.WaitGroup
	for range cap(started) {
		readers.Go(func() {
			_, err := n.Lookup(t.Context(), command.Lookup{By: testBy, Query: command.RunsQuery{Limit: 1}})
			started <- struct{}{}
			for err == nil {
				_, err = n.Lookup(t.Context(), command.Lookup{By: testBy, Query: command.RunsQuery{Limit: 1}})
			}
			if !errors.Is(err, command.ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		})
	}
	for range cap(started) {
		<-started
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
	readers.Wait()
}

// Open does not write to the slice of its configuration, which several nodes may
// share.
func TestOpenKeepsConfig(t *testing.T) {
	native := append(make([]actor.Definition, 0, 8), agents.Builtin()...)
	n, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), Native: native, Outbound: outbound.Config{}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if behind := native[:len(native)+1][len(native)]; behind.Name != "" {
		t.Errorf("agent %s was written behind the slice", behind.Name)
	}
}

// A node that fails to open leaves nothing open: the store can be opened again,
// and no goroutine remains.
func TestFailedOpenReleasesEverything(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	good := Config{Data: filepath.Join(dir, "data"), Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits()}
	n, err := Open(good, log)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.CallRegistry(t.Context(), agents.OpPut, []byte(`{"name":"helper"}`)); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"another node":     func(c *Config) { c.Name = "n2" },
		"agent of a store": func(c *Config) { c.Native = []actor.Definition{{Name: "helper"}} },
		"trace":            func(c *Config) { c.Trace = filepath.Join(dir, "none", "trace") },
		"engine": func(c *Config) {
			c.Trace, c.Limits = filepath.Join(dir, "trace"), dispatcher.Limits{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bad := good
			change(&bad)
			for range 3 {
				if n, err := Open(bad, log); err == nil {
					t.Error("the node was opened", n.Close(t.Context()))
				}
			}
			// The goroutines end soon after Open returns. Only a leak takes the whole time.
			for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit); {
				if !running("internal/node.(*traceFile).run", "host/disk.", "host/outbound.") {
					return
				}
				runtime.Gosched()
			}
			t.Errorf("a goroutine remains:\n%s", stacks())
		})
	}
	if n, err = Open(good, log); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

// running reports whether a goroutine runs one of these functions.
func running(functions ...string) bool {
	all := stacks()
	for _, f := range functions {
		if strings.Contains(all, f) {
			return true
		}
	}
	return false
}

// A node refuses commands out of bounds, whoever sends them.
func TestCommandBounds(t *testing.T) {
	n, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), Native: agents.Builtin()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	invalid := func(what string, err error) {
		var r *actor.Refusal
		if !errors.As(err, &r) || r.Reason != actor.Invalid {
			t.Errorf("%s: got %v, want an Invalid refusal", what, err)
		}
	}
	for _, excess := range []int{-1 << 40, 1} {
		for _, q := range []command.Query{command.RunsQuery{Limit: max(-1, command.RunsMax+excess)}, command.EventsQuery{Limit: max(-1, command.EventsMax+excess)},
			command.ActorsQuery{Limit: max(-1, command.ActorsMax+excess)}} {
			_, err := n.Lookup(t.Context(), command.Lookup{By: testBy, Query: q})
			invalid(fmt.Sprintf("%+v", q), err)
		}
	}
	call := actor.Call{ID: n.NewCallID(), Parent: n.NewCallID(), To: actor.NewID("helper", ""), Kind: actor.Signal, Operation: "go", Left: time.Minute}
	a, err := n.Invoke(t.Context(), command.Invoke{By: testBy, Call: call}, nil)
	invalid("a signal was invoked", errors.Join(err, asError(a.Reply.Refusal)))
	call.Kind, call.ID = actor.Waiting, n.NewCallID()
	a, err = n.Signal(t.Context(), command.Signal{By: testBy, Call: call})
	invalid("a call was signalled", errors.Join(err, asError(a.Reply.Refusal)))
}

func asError(r *actor.Refusal) error {
	if r == nil {
		return nil
	}
	return r
}
