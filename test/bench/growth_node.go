// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
)

// growthNode is a node with room for all actors of the studies of growth.
type growthNode struct {
	*node
	work *longWork
}

// openGrowthNode starts a node on a folder. Its actors stay in memory, to be measured.
func openGrowthNode(dir string) (*growthNode, error) {
	return openGrowthNodeWith(dir, time.Hour, disk.WriteBuffer)
}

// openGrowthNodeWith starts a node with a passivation time and a size of the store's write
// buffers.
func openGrowthNodeWith(dir string, passivate time.Duration, buffer uint64) (n *growthNode, err error) {
	n = &growthNode{work: &longWork{began: make(chan time.Time, 1024)}}
	n.node, err = openNodeWith(dir, disk.Options{WriteBuffer: buffer}, func(c *engine.Config) {
		c.Limits.PassivateAfter, c.Limits.ActorsPerCellMax, c.Limits.MaxActivePerAgent = passivate, 1<<21, 1<<20
		c.QueueSlots = 4096
	}, n.definitions()...)
	return n, err
}

// definitions returns the agents. Their own work is negligible.
func (n *growthNode) definitions() []actor.Definition {
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

// hello makes one call and waits for its answer.
func (n *growthNode) hello(ctx context.Context, to actor.ID) error {
	return n.ask(ctx, to, payload)
}

// startRun makes a call whose run does not end, and waits until the run has begun.
func (n *growthNode) startRun(ctx context.Context, to actor.ID) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	call := actor.Call{ID: n.NewCallID(), To: to, Parts: actor.Text("hello"), Left: time.Hour}
	news, stop, err := n.Watch(call.ID)
	if err != nil {
		return err
	}
	defer stop()
	refused := make(chan error, 1)
	go func() {
		a, err := n.Ask(ctx, call)
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
