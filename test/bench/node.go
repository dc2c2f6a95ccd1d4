// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"github.com/troupe-run/troupe/host/logs"
	"log/slog"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/tools"
)

// readCache is the cache of a store on a machine with 4 GiB of memory or more, in bytes.
const readCache = 64 << 20

// node is an engine over a store as `troupe serve` configures it: a cell for each
// processor, the default limits, and a log that is synced.
type node struct {
	*engine.Engine
	dir  string
	disk *disk.Disk
	log  *logs.Log
}

// openNode starts a node in a folder. The callback change may modify the
// configuration.
func openNode(dir string, change func(*engine.Config), definitions ...actor.Definition) (*node, error) {
	return openNodeWith(dir, disk.Options{ReadCache: readCache}, change, definitions...)
}

// openNodeWith is openNode for a store with options.
func openNodeWith(dir string, options disk.Options, change func(*engine.Config), definitions ...actor.Definition) (*node, error) {
	d, err := disk.Open(dir, "n1", options)
	if err != nil {
		return nil, err
	}
	n := &node{dir: dir, disk: d, log: disk.NewLog(d)}
	config := engine.Config{Node: "n1", Start: d.End().Batch, Log: n.log, Store: d, Agents: definitions,
		Tools: tools.NewRegistry(), Limits: dispatcher.DefaultLimits(), Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&config)
	}
	if n.Engine, err = engine.Start(config); err != nil {
		return nil, errors.Join(err, n.log.Close(), d.Close())
	}
	return n, nil
}

func (n *node) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(n.Engine.Close(ctx), n.log.Close(), n.disk.Close())
}

// withNode opens a node in a temporary folder, calls do, and closes the node.
func (b *bench) withNode(change func(*engine.Config), do func(*node) error, definitions ...actor.Definition) (err error) {
	dir, remove, err := b.tempDir()
	if err != nil {
		return err
	}
	defer remove()
	n, err := openNode(dir, change, definitions...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	return do(n)
}

// ask calls an actor. A refusal, or a reply with another number of parts, is an
// error.
func (n *node) ask(ctx context.Context, to actor.ID, parts []actor.Part) error {
	a, err := n.Ask(ctx, actor.Call{ID: n.NewCallID(), To: to, Parts: parts})
	switch {
	case err != nil:
		return err
	case a.Reply.Refusal != nil:
		return a.Reply.Refusal
	case len(a.Reply.Parts) != len(parts):
		return fmt.Errorf("%s replied with %d parts", to, len(a.Reply.Parts))
	}
	return nil
}

// echo returns an agent that replies with the message it received.
func echo(name string, durability actor.Durability) actor.Definition {
	d := agents.Define(name, "1", "Echoes its message.", echoAgent{})
	d.Durability = durability
	return d
}

type echoAgent struct{}

func (echoAgent) Begin(b actor.Begin) actor.Turn { return echoTurn{b.Call.Parts} }

type echoTurn struct{ parts []actor.Part }

func (t echoTurn) Next([]actor.Answer) (actor.Action, error) { return actor.Complete(t.parts), nil }
func (echoTurn) Stop()                                       {}

// relay returns an agent that forwards its message and replies with the answer. The
// message goes to the agent named by next, under the same key as its own.
func relay(name, next string, durability actor.Durability) actor.Definition {
	d := agents.Define(name, "1", "Forwards its message to another agent.", relayAgent{next: next})
	d.Durability = durability
	return d
}

type relayAgent struct {
	next   string
	leaves bool // calls the agent in another session
}

func (p relayAgent) Begin(b actor.Begin) actor.Turn {
	if p.leaves {
		p.next += "/" + nextSession(b.Call.To.Key)
	}
	return &relayTurn{p.next, b.Call.Parts}
}

type relayTurn struct {
	next  string
	parts []actor.Part
}

func (t *relayTurn) Next(answers []actor.Answer) (actor.Action, error) {
	switch {
	case answers == nil:
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: t.next, Parts: t.parts}}}, nil
	case answers[0].Refusal != nil:
		return actor.EndRefused(answers[0].Refusal), nil
	}
	return actor.Complete(answers[0].Parts), nil
}

func (t *relayTurn) Stop() {}
