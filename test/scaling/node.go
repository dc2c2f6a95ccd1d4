// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/tools"
)

// node is an engine over a store. It has no gateway.
type node struct {
	disk   *disk.Disk
	log    *disk.Log
	engine *engine.Engine
	work   *longWork
}

// openNode starts a node on a folder. Its actors stay in memory, to be measured.
func openNode(dir string) (*node, error) { return openNodeWith(dir, time.Hour, disk.WriteBuffer) }

// openNodeWith starts a node with a passivation time and a size of the store's write
// buffers.
func openNodeWith(dir string, passivate time.Duration, buffer uint64) (*node, error) {
	quiet := slog.New(slog.DiscardHandler)
	d, err := disk.Open(dir, "n1", disk.Options{Logger: quiet, WriteBuffer: buffer})
	if err != nil {
		return nil, err
	}
	n := &node{disk: d, log: disk.NewLog(d), work: &longWork{began: make(chan time.Time, 1024)}}
	limits := dispatcher.DefaultLimits()
	limits.PassivateAfter, limits.ActorsPerCellMax, limits.MaxActivePerAgent = passivate, 1<<21, 1<<20
	n.engine, err = engine.Start(engine.Config{Node: "n1", Start: d.End().Batch, Log: n.log, Store: d, Agents: n.definitions(),
		Tools: tools.NewRegistry(), Limits: limits, Logger: quiet, QueueSlots: 4096})
	if err != nil {
		return nil, errors.Join(err, n.log.Close(), d.Close())
	}
	return n, nil
}

func (n *node) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(n.engine.Close(ctx), n.log.Close(), n.disk.Close())
}

// definitions returns the agents. Their own work is negligible.
func (n *node) definitions() []actor.Definition {
	volatile := agents.Define("volatile", "1", "Replies and appends nothing to the log.", echoAgent{})
	volatile.Durability = actor.Volatile
	return []actor.Definition{volatile,
		agents.Define("journaled", "1", "Replies and appends entries to the log.", echoAgent{}),
		agents.Define("talker", "1", "Holds conversations.", talkAgent{}),
		agents.Define("open", "1", "Waits for hours. Some of its runs start long work, which the next start repeats.",
			agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
				if n, _ := strconv.Atoi(t.Self().Key); n%workInterval > 0 {
					return "", t.Sleep(time.Hour)
				}
				_, err := t.Do("work", n.work.run, agents.Idempotent(), agents.Within(time.Hour))
				return "", err
			})))}
}

type echoAgent struct{}

func (echoAgent) Begin(b actor.Begin) actor.Turn { return echoTurn{b.Call.Parts} }

type echoTurn struct{ parts []actor.Part }

func (a echoTurn) Next([]actor.Answer) (actor.Action, error) { return actor.Complete(a.parts), nil }
func (echoTurn) Stop()                                       {}

// workInterval is the interval of open runs with external work: one run in
// workInterval has work in progress when its node stops. An engine performs at most
// 1,024 works at a time.
const workInterval = 100

// longWork reports when it begins, and lasts until it is cancelled.
type longWork struct{ began chan time.Time }

func (w *longWork) run(ctx context.Context) ([]byte, error) {
	select {
	case w.began <- time.Now():
	default:
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// ask makes one call and waits for its answer.
func (n *node) ask(ctx context.Context, to actor.ID) error {
	a, err := n.engine.Ask(ctx, actor.Call{ID: n.engine.NewCallID(), To: to, Parts: actor.Text("hello")})
	switch {
	case err != nil:
		return err
	case a.Reply.Refusal != nil:
		return a.Reply.Refusal
	}
	return nil
}

// startRun makes a call whose run does not end, and waits until the run has begun.
func (n *node) startRun(ctx context.Context, to actor.ID) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	call := actor.Call{ID: n.engine.NewCallID(), To: to, Parts: actor.Text("hello"), Left: time.Hour}
	news, stop, err := n.engine.Watch(call.ID)
	if err != nil {
		return err
	}
	defer stop()
	refused := make(chan error, 1)
	go func() {
		a, err := n.engine.Ask(ctx, call)
		if err == nil {
			err = fmt.Errorf("%s: the run ended: %v", to, a.Reply)
		}
		refused <- err
	}()
	select {
	case <-news:
		leave()
		<-refused
		return nil
	case err := <-refused:
		return err
	}
}

// runConcurrent performs count operations with the given number of callers and
// returns the total time.
func runConcurrent(at, count int, do func(i int) error) (time.Duration, error) {
	var next atomic.Int64
	var once sync.Once
	var failed error
	began := time.Now()
	var callers sync.WaitGroup
	for range min(at, count) {
		callers.Go(func() {
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					once.Do(func() { failed = fmt.Errorf("call %d of %d: %w", i, count, err) })
					next.Store(int64(count))
				}
			}
		})
	}
	callers.Wait()
	return time.Since(began), failed
}
