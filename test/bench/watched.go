// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/prompts"
	"github.com/troupe-run/troupe/host/traces"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	nodes "github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/tools"
)

// watchedFloor is the maximum factor by which recorded prompts and traces raise the processor time of a durable
// think-act loop.
const watchedFloor = 1.15

// messagesOfSession is the number of messages after which a watched loop begins another conversation.
const messagesOfSession = 64

// studyWatched measures what it costs to watch a durable think-act loop, and to limit what a user spends: the processor
// time with it, compared with the same without. Both have a node as `troupe serve` opens it.
func studyWatched(b *bench) (rows []row, err error) {
	collector, stop, err := echoServer()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	record := func(c *nodes.Config) { c.Record = prompts.Config{Prompts: prompts.All} }
	trace := func(c *nodes.Config) {
		c.Traces = traces.Config{Endpoint: "http://" + collector}
		c.Outbound.Allow = []string{"127.0.0.0/8"}
	}
	limit := func(c *nodes.Config) { c.Budget.Day = &actor.Purse{Tokens: 1 << 40, Micros: actor.NoLimit} } // which no round reaches
	const loop, call = "think-act loop, durable", "call, nothing written down"
	for _, v := range []struct {
		what, agent, with string
		change            func(*nodes.Config)
		floor             floor
	}{
		{loop, "thinker", "recorded prompts", record, floor{}},
		{loop, "thinker", "recorded prompts and traces", func(c *nodes.Config) { record(c); trace(c) }, floor{"ours", false, watchedFloor}},
		{loop, "thinker", "a limit of tokens for the user's day", limit, floor{}},
		{call, "echo", "a limit of tokens for the user's day", limit, floor{}},
	} {
		r, err := b.watchedRow(v.what+", with "+v.with+": processor time", v.agent, v.change, v.floor)
		if err != nil {
			return rows, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func (b *bench) watchedRow(name, agent string, change func(*nodes.Config), f floor) (r row, err error) {
	ours, err := b.openWatched(agent, change)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, ours.close()) }()
	theirs, err := b.openWatched(agent, func(*nodes.Config) {})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, theirs.close()) }()
	rounds, err := b.runRounds(comparison{name: name, sideTime: time.Second,
		ours:   func(n int) (time.Duration, error) { return ours.loop(b.ctx, n) },
		theirs: func(n int) (time.Duration, error) { return theirs.loop(b.ctx, n) }})
	if err != nil {
		return r, err
	}
	spent := make([]roundCost, len(rounds))
	for i, c := range rounds {
		spent[i] = roundCost{ours: c.oursCPU / c.theirsCPU, theirs: 1}
	}
	r = comparisonRow(name, "the same without", times, spent, func(v float64) float64 { return v }, f)
	middle := func(value func(roundCost) float64) figure { return figure{median(column(rounds, value)), nanoseconds} }
	r.addNote("processor time ours %v, counterpart %v; time ours %v, counterpart %v", middle(func(c roundCost) float64 { return c.oursCPU }), middle(func(c roundCost) float64 { return c.theirsCPU }),
		middle(func(c roundCost) float64 { return c.ours }), middle(func(c roundCost) float64 { return c.theirs }))
	mine, err := allocated(b.ctx, ours)
	if err != nil {
		return r, err
	}
	without, err := allocated(b.ctx, theirs)
	r.addNote("%s allocations, counterpart %s", groupDigits(mine), groupDigits(without))
	return r, err
}

// allocated returns the number of allocations for a message.
func allocated(ctx context.Context, w *watched) (int64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := w.loop(ctx, messagesOfSession)
	runtime.ReadMemStats(&after)
	return int64(after.Mallocs-before.Mallocs) / messagesOfSession, err
}

// watched is a node with an agent that is asked.
type watched struct {
	*nodes.Node
	agent  string
	remove func()
	asked  int
}

func (b *bench) openWatched(agent string, change func(*nodes.Config)) (w *watched, err error) {
	dir, remove, err := b.tempDir()
	if err != nil {
		return nil, err
	}
	lookUp := tools.Tool{Name: "look_up", Description: "Looks a word up.", Idempotent: true,
		Schema:  `{"type":"object","properties":{"word":{"type":"string"}},"required":["word"],"additionalProperties":false}`,
		Handler: func(context.Context, []byte) tools.Result { return tools.Text("a way to slow a sender down") }}
	registry := tools.NewRegistry()
	if err := registry.Register(lookUp); err != nil {
		return nil, err
	}
	spec, err := agents.ReadTOML(fmt.Sprintf(thinkerTOML, "journaled"))
	if err != nil {
		return nil, err
	}
	thinker, err := agents.Compile(spec, registry)
	if err != nil {
		return nil, err
	}
	config := nodes.Config{Data: dir, Name: "n1", Limits: dispatcher.DefaultLimits(), FreeFloor: 1, Native: []actor.Definition{thinker, echo("echo", actor.Volatile)}, Tools: []tools.Tool{lookUp}, Outbound: outbound.Config{}}
	change(&config)
	n, err := nodes.Open(config, slog.New(slog.DiscardHandler))
	if err != nil {
		remove()
		return nil, err
	}
	return &watched{Node: n, agent: agent, remove: remove}, nil
}

func (w *watched) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer w.remove()
	return w.Close(ctx)
}

// loop sends n messages one after another, and waits until what was recorded of them is written.
func (w *watched) loop(ctx context.Context, n int) (time.Duration, error) {
	by, began, last := actor.NewPrincipal("alice", "", string(ingress.ScopeAdmin)), time.Now(), actor.CallID{}
	for range n {
		last = w.NewCallID()
		call := actor.Call{ID: last, To: by.ID(w.agent, "s-"+strconv.Itoa(w.asked/messagesOfSession)), Parts: actor.Text(`use look_up {"word":"backpressure"}`)}
		w.asked++
		a, err := w.Invoke(ctx, command.Invoke{By: by, Call: call}, nil)
		if err != nil {
			return 0, err
		}
		if a.Reply.Refusal != nil {
			return 0, a.Reply.Refusal
		}
	}
	if w.agent == "echo" { // it has no run that could be looked up
		return time.Since(began), nil
	}
	_, err := w.Lookup(ctx, command.Lookup{By: by, Query: command.PromptsQuery{Run: last, Limit: 1}})
	return time.Since(began), err
}
