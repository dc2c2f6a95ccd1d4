// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"github.com/troupe-run/troupe/host/logs"
	"log/slog"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// powerNode is a node set up like the serve command.
type powerNode struct {
	*engine.Engine
	disk *Disk
	log  *logs.Log
	out  *outbound.Outbound
}

func startPowerNode(fs vfs.FS, through func(*logs.Log) engine.Log) (*powerNode, error) {
	d, err := Open(powerDir, "n1", Options{fs: fs})
	if err != nil {
		return nil, err
	}
	n := &powerNode{disk: d, log: NewLog(d)}
	if n.out, err = outbound.New(outbound.Config{}); err != nil {
		return nil, err
	}
	registry := tools.NewRegistry()
	team, err := powerAgents(registry)
	if err != nil {
		return nil, err
	}
	n.Engine, err = engine.Start(engine.Config{Node: "n1", Start: d.End().Batch, Log: through(n.log), Store: d, Agents: team, Tools: registry,
		Outbound: n.out, Limits: dispatcher.DefaultLimits(), Logger: slog.New(slog.DiscardHandler), Cells: 2})
	return n, err
}

func (n *powerNode) close(ctx context.Context) error {
	err := n.Engine.Close(ctx)
	n.out.Close()
	return errors.Join(err, n.log.Close(), n.disk.Close())
}

// powerAgents returns the agents of agents.Builtin and two more. The built-in
// agents include a helper and an agent that asks the helper and waits. The
// agent team makes two calls at once and works. The agent teller has a model.
func powerAgents(registry *tools.Registry) ([]actor.Definition, error) {
	spec, err := agents.ReadJSON([]byte(`{"agent_id":"teller","name":"teller"}`))
	if err != nil {
		return nil, err
	}
	teller, err := agents.Compile(spec, registry)
	team := agents.Define("team", "1", "Calls two helpers and works.", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		for _, a := range t.All(agents.Call("helper/a", t.Message()), agents.Call("helper/b", t.Message())) {
			if a.Refusal != nil {
				return "", a.Refusal
			}
		}
		b, err := t.Do("work", func(context.Context) ([]byte, error) { return []byte("done"), nil }, agents.Idempotent())
		return t.Message() + " is " + string(b), err
	})))
	return append(agents.Builtin(), team, teller), err
}

func (n *powerNode) signal(ctx context.Context, run actor.CallID, to actor.ID) error {
	a, err := n.Ask(ctx, actor.Call{ID: n.NewCallID(), To: to, Kind: actor.Signal, Parent: run, Operation: "go"})
	if err == nil && a.Reply.Refusal != nil {
		err = a.Reply.Refusal
	}
	return err
}

// finishCoordinator follows a coordinator to its end. It sends the signal if
// the run waits for it.
func (n *powerNode) finishCoordinator(ctx context.Context, run actor.CallID, to actor.ID) error {
	var signalErr error
	signalled := false
	_, err := n.readRun(ctx, run, func(events [][]byte) {
		has := func(what runs.Type) bool {
			return slices.ContainsFunc(events, func(e []byte) bool { return bytes.Contains(e, []byte(`"`+what.String()+`"`)) })
		}
		if has(runs.WaitOpened) && !has(runs.SignalReceived) && !signalled {
			signalled = true
			signalErr = n.signal(ctx, run, to)
		}
	})
	return errors.Join(err, signalErr)
}

// readRun reads the events of a run until the last one.
func (n *powerNode) readRun(ctx context.Context, run actor.CallID, each func([][]byte)) ([][]byte, error) {
	news, stop, err := n.Watch(run)
	if err != nil {
		return nil, err
	}
	defer stop()
	var all [][]byte
	for {
		var page []store.RunEvent
		err := n.Read(ctx, func(log store.Reader) (err error) {
			page, err = log.Events(actor.DefaultTenant, run, uint64(len(all)), 1000)
			return err
		})
		if err != nil {
			return all, fmt.Errorf("run %s: after %d events: %w", run, len(all), err)
		}
		for _, e := range page {
			all = append(all, e.Body)
		}
		if len(page) > 0 {
			if each != nil {
				each(slices.Clone(all))
			}
			if last, err := runs.Decode(all[len(all)-1]); err != nil || last.Type.Ends() {
				return all, err
			}
			continue
		}
		select {
		case <-news:
		case <-ctx.Done():
			return all, fmt.Errorf("run %s: no end after %d events", run, len(all))
		}
	}
}
