// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/ingress"
)

// nodeConfig is the configuration of a node.
type nodeConfig struct {
	Data   string
	Name   string
	Cells  int
	Limits dispatcher.Limits
	// Outbound configures the egress. openNode sets its token and its logger.
	Outbound outbound.Config
	Native   []actor.Definition // agents written in Go
	Trace    string             // path of the history trace; empty for none
}

// node is a running node without a gateway: disk, log, cells and egress.
type node struct {
	dir      string
	secret   []byte // signing secret of run tokens
	disk     *disk.Disk
	log      *disk.Log
	catalog  *catalogSync
	outbound *outbound.Outbound
	engine   *engine.Engine
	trace    *traceFile
}

// openNode opens the store and starts the cells on it. The agents are loaded before
// the cells start, so that open runs resume with their definitions.
func openNode(c nodeConfig, log *slog.Logger) (_ *node, err error) {
	n := &node{dir: c.Data}
	if n.disk, err = disk.Open(c.Data, actor.NodeID(c.Name), disk.Options{Logger: log}); err != nil {
		return nil, err
	}
	n.log = disk.NewLog(n.disk)
	defer func() {
		if err == nil {
			return
		}
		if n.outbound != nil {
			n.outbound.Close()
		}
		err = errors.Join(err, n.log.Close(), n.disk.Close(), n.trace.Close())
	}()
	if n.secret, err = n.disk.Secret(); err != nil {
		return nil, err
	}
	if n.catalog, err = loadCatalog(n.disk, c.Native, log); err != nil {
		return nil, err
	}
	c.Outbound.Logger = log
	c.Outbound.Token = func(run actor.CallID, id actor.ID) string { return ingress.MintToken(n.secret, run, id) }
	if n.outbound, err = outbound.New(c.Outbound); err != nil {
		return nil, err
	}
	definitions, former := n.catalog.definitions()
	if c.Trace != "" {
		if n.trace, err = openTrace(c.Trace, c.Name, c.Limits, definitions, log); err != nil {
			return nil, err
		}
	}
	n.outbound.SetAgents(n.catalog.externalAgents()) // before a run can call them
	n.engine, err = engine.Start(engine.Config{
		Node: actor.NodeID(c.Name), Start: n.disk.End().Batch, Log: n.log, Store: n.disk, Agents: definitions, Former: former,
		Tools: n.catalog.tools, Outbound: n.outbound, Limits: c.Limits, Logger: log, Cells: c.Cells,
		Trace: n.trace.recorder(),
	})
	if err != nil {
		return nil, err
	}
	n.catalog.attach(n.engine, n.outbound, n.trace)
	return n, nil
}

// registryTimeout is the maximum duration of a registry operation.
const registryTimeout = 30 * time.Second

// callRegistry performs a registry operation as the operator and returns the answer
// as JSON.
func (n *node) callRegistry(ctx context.Context, operation string, body []byte) (answer []byte, warnings []string, err error) {
	a, err := n.engine.Ask(ctx, actor.Call{ID: n.engine.NewCallID(), To: agents.RegistryID, Operation: operation, Left: registryTimeout,
		Principal: agents.Operator, Origin: actor.System, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: body}}})
	switch {
	case err != nil:
		return nil, nil, err
	case a.Reply.Refusal != nil:
		return nil, nil, a.Reply.Refusal
	case len(a.Reply.Parts) != 1:
		return nil, nil, fmt.Errorf("%s: no answer from the registry in time", operation)
	}
	return a.Reply.Parts[0].Bytes, a.Reply.Warnings, nil
}

// putAgentFiles stores the agents of files in the registry. Unchanged agents are
// skipped. An agent whose file is gone stays. A stored agent that the registry
// refuses to change as busy keeps its definition.
func (n *node) putAgentFiles(files *agentFiles, log *slog.Logger) error {
	for _, file := range files.Agents {
		if known, ok := n.catalog.spec(file.Spec.ID); ok && known.Hash() == file.Spec.Hash() {
			continue
		}
		operation := agents.OpPut
		if file.Spec.Kind == agents.KindExternal {
			operation = agents.OpRegister
		}
		ctx, cancel := context.WithTimeout(context.Background(), registryTimeout)
		var warnings []string
		err := retryBusy(ctx, func() (err error) {
			_, warnings, err = n.callRegistry(ctx, operation, file.Spec.Encode())
			return err
		})
		cancel()
		var refusal *actor.Refusal
		if _, known := n.catalog.spec(file.Spec.ID); known && errors.As(err, &refusal) && refusal.Reason == actor.Busy {
			log.Warn("agent file not applied: the registry is busy, the agent is unchanged", "agent", file.Spec.ID, "file", file.Path, "error", err.Error())
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file.Path, err)
		}
		log.Info("agent file applied", "agent", file.Spec.ID, "file", file.Path, "warnings", warnings)
	}
	return nil
}

// retryBusy repeats op while it is refused as busy with a retry delay of at most
// registryTimeout, until ctx ends. A starting node may be busy with resumed runs.
func retryBusy(ctx context.Context, op func() error) error {
	for {
		err := op()
		var r *actor.Refusal
		if !errors.As(err, &r) || r.Reason != actor.Busy || r.RetryAfter == 0 || r.RetryAfter > registryTimeout {
			return err
		}
		select {
		case <-time.After(r.RetryAfter):
		case <-ctx.Done():
			return err
		}
	}
}

// close stops the cells, the egress, the log, the disk and the trace, in this order.
// Clients that still wait are refused. Open runs stay in the log.
func (n *node) close(ctx context.Context) error {
	err := n.engine.Close(ctx)
	n.outbound.Close()
	return errors.Join(err, n.log.Close(), n.disk.Close(), n.trace.Close())
}
