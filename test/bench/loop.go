// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// loopFloor is the maximum time in ns that the think-act loop may add to the tool
// call.
const loopFloor = 1_000_000

// thinkerTOML declares an agent with a model that answers at once and one tool.
// Each of its turns calls the model, the tool, and the model again.
const thinkerTOML = `
agent_id = "thinker"
name = "thinker"
model = "scripted"
prompt = "Look it up."
tools = ["look_up"]
durability = "%s"
`

// studyLoop measures the time that an agent's think-act loop adds to the tool call
// made by the loop.
func studyLoop(b *bench) (rows []row, err error) {
	for _, v := range []struct{ name, durability string }{
		{"think-act loop, added to its tool, nothing written down", "none"},
		{"think-act loop, added to its tool, durable", "journaled"},
	} {
		r, err := b.loopRow(v.name, v.durability)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func (b *bench) loopRow(name, durability string) (r row, err error) {
	dir, remove, err := b.tempDir()
	if err != nil {
		return r, err
	}
	defer remove()
	var toolCalls atomic.Int64
	registry := tools.NewRegistry()
	err = registry.Register(tools.Tool{Name: "look_up", Description: "Looks a word up.", Idempotent: true,
		Schema: `{"type":"object","properties":{"word":{"type":"string"}},"required":["word"],"additionalProperties":false}`,
		Handler: func(context.Context, []byte) tools.Result {
			toolCalls.Add(1)
			return tools.Text("a way to slow a sender down")
		}})
	if err != nil {
		return r, err
	}
	spec, err := agents.ReadTOML(fmt.Sprintf(thinkerTOML, durability))
	if err != nil {
		return r, err
	}
	agent, err := agents.Compile(spec, registry)
	if err != nil {
		return r, err
	}
	out, err := outbound.New(outbound.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return r, err
	}
	defer out.Close()
	n, err := openNode(dir, func(c *engine.Config) { c.Tools, c.Outbound = registry, out }, agent)
	if err != nil {
		return r, err
	}
	const input = `{"word":"backpressure"}`
	message := actor.Text("use look_up " + input)
	var asked, direct int64
	execution := tools.NewContext(actor.Call{ID: n.NewCallID(), To: actor.NewID("thinker", "")}, time.Minute, dispatcher.Asks{})
	loop := func(int, int) error {
		asked++
		return n.ask(b.ctx, actor.NewID("thinker", ""), message)
	}
	tool := func(int, int) error {
		direct++
		if result := registry.Execute(b.ctx, "look_up", []byte(input), execution); result.Refusal != nil {
			return result.Refusal
		}
		return nil
	}
	rounds, err := b.runRounds(comparison{name: name,
		ours:   func(n int) (time.Duration, error) { return runConcurrent(1, n, loop) },
		theirs: func(n int) (time.Duration, error) { return runConcurrent(1, n, tool) }})
	if err != nil {
		return r, errors.Join(err, n.close())
	}
	r = latencyRow(name, "the tool, called directly", addedCosts(rounds), atMost(loopFloor))
	r.Ratio = 0 // an added duration has no ratio
	err = b.addPercentiles(&r, 1, loop, tool)
	modelCalls := modelAttempts(out)
	if err = errors.Join(err, n.close()); err != nil || durability == "none" {
		return r, err
	}
	return r, checkEvents(&r, dir, asked, modelCalls, toolCalls.Load()-direct)
}

// modelAttempts returns the number of attempts made at the scripted model.
func modelAttempts(out *outbound.Outbound) (n int64) {
	for _, s := range out.Stats() {
		if s.Kind == "model" && s.Name == upstream.ScriptName {
			n += int64(s.Attempts)
		}
	}
	return n
}

// checkEvents counts the events of all runs in the store. Each model and tool call
// must have one event for its start and one for its end.
func checkEvents(r *row, dir string, asked, modelCalls, toolCalls int64) (err error) {
	d, err := disk.Open(dir, "", disk.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	counts := map[runs.Type]int64{}
	var all []actor.CallID
	err = store.EachRun(d, actor.DefaultTenant, runs.Filter{System: true}, func(s *runs.Summary) { all = append(all, s.Run) })
	if err == nil && len(all) != int(asked) {
		err = fmt.Errorf("%d runs in the store, want %d", len(all), asked)
	}
	if err != nil {
		return err
	}
	for _, run := range all {
		events, err := d.Events(actor.DefaultTenant, run, 0, 1000)
		if err != nil {
			return err
		}
		for _, body := range events {
			e, err := runs.Decode(body.Body)
			if err != nil {
				return err
			}
			counts[e.Type]++
		}
	}
	checkEventCounts(r, counts, modelCalls, toolCalls)
	return nil
}

// checkEventCounts marks the row as missed unless the events cover all model and
// tool calls.
func checkEventCounts(r *row, counts map[runs.Type]int64, modelCalls, toolCalls int64) {
	performed := 2 * (modelCalls + toolCalls)
	recorded := counts[runs.LLMCallStarted] + counts[runs.LLMCallDone] + counts[runs.ToolCallCreated] + counts[runs.ToolResult]
	r.addNote("%s starts and ends of model and tool calls, %s recorded as events", groupDigits(performed), groupDigits(recorded))
	if performed == 0 || counts[runs.LLMCallStarted] != modelCalls || counts[runs.LLMCallDone] != modelCalls || counts[runs.ToolCallCreated] != toolCalls || counts[runs.ToolResult] != toolCalls {
		r.Met = false
		r.addNote("not all were recorded")
	}
}
