// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
)

const (
	detachedCallers  = 64
	detachedTotal    = 10_000
	detachedTimeout  = 100 * time.Millisecond
	detachedTimeouts = 10 // timed out calls of a caller
)

// outcomes knows when callees have ended and when their askers were told.
type outcomes struct {
	ended     sync.Map // time by correlation
	waits     sync.Map // channel of times by session: the begin of the turn for an outcome
	delivered atomic.Int64
}

// studyDetached measures detached calls: from the end of the callee to the turn of the asker, durable, and how exact
// time-outs are.
func studyDetached(b *bench) (rows []row, err error) {
	o := &outcomes{}
	calls, timeouts := detachedTotal/detachedCallers+1, detachedTimeouts
	if b.quick {
		calls, timeouts = 2, 1
	}
	err = b.withNode(nil, func(n *node) error {
		back, err := o.measure(b.ctx, n, calls, `{"agent":"worker","skill":"x"}`, func(of string, told time.Time) time.Duration {
			ended, _ := o.ended.Load(of)
			return told.Sub(ended.(time.Time))
		})
		if err != nil {
			return err
		}
		told := row{Name: "detached call, 64 callers: end of the callee to the asker's turn, p99", Counterpart: "–", Ours: figure{quantile(back, 0.99), nanoseconds}, Floor: atMost(20e6)}
		told.Low, told.High = told.Ours.Value, told.Ours.Value
		told.addNote("p50 %v, max %v, of %s calls; %s outcomes were delivered", figure{quantile(back, 0.5), nanoseconds}, figure{quantile(back, 1), nanoseconds}, groupDigits(int64(len(back))), groupDigits(o.delivered.Load()))
		late, err := o.measure(b.ctx, n, timeouts, fmt.Sprintf(`{"agent":"sleeper","skill":"x","timeout":%d}`, detachedTimeout.Milliseconds()), func(of string, told time.Time) time.Duration {
			id, _ := actor.ParseCallID(of)
			made := time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16)) // an ID begins with its time
			return (told.Sub(made) - detachedTimeout).Abs()
		})
		if err != nil {
			return err
		}
		timed := row{Name: "detached call, 64 callers: error of a time-out of 100 ms, p99", Counterpart: "–", Ours: figure{quantile(late, 0.99), nanoseconds}, Floor: atMost(50e6)}
		timed.Low, timed.High = timed.Ours.Value, timed.Ours.Value
		timed.addNote("p50 %v, max %v", figure{quantile(late, 0.5), nanoseconds}, figure{quantile(late, 1), nanoseconds})
		rows = []row{told.withVerdict(), timed.withVerdict()}
		return nil
	}, o.asker(), o.worker(), agents.Define("sleeper", "1", "Answers late.", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) { return "", t.Sleep(time.Second) }))))
	return rows, err
}

// measure lets each caller make calls one after the other, and returns their costs.
func (o *outcomes) measure(ctx context.Context, n *node, calls int, input string, cost func(of string, told time.Time) time.Duration) (all []float64, err error) {
	var mu sync.Mutex
	_, err = runConcurrent(detachedCallers, detachedCallers*calls, func(caller, i int) error {
		session := fmt.Sprintf("session-%d", caller)
		told := make(chan outcome, 1)
		o.waits.Store(session, told)
		if err := n.ask(ctx, actor.NewID("asker", session), actor.Text(input)); err != nil {
			return err
		}
		select {
		case at := <-told:
			mu.Lock()
			defer mu.Unlock()
			all = append(all, float64(cost(at.of, at.at)))
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	slices.Sort(all)
	return all, err
}

// outcome is the begin of the turn for an outcome.
type outcome struct {
	of string
	at time.Time
}

// asker returns an agent that makes the call in its message.
func (o *outcomes) asker() actor.Definition {
	return agents.Define("asker", "1", "Makes a detached call.", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		call := t.Request()
		if of, ok := call.Extensions.Provenance(); ok {
			o.delivered.Add(1)
			if told, ok := o.waits.Load(t.Self().Key); ok {
				told.(chan outcome) <- outcome{of.Correlation.String(), time.Now()}
			}
			return "", nil
		}
		_, err := t.Tool(tools.AgentCall, json.RawMessage(t.Message()))
		return "", err
	})))
}

// worker returns an agent that answers at once.
func (o *outcomes) worker() actor.Definition {
	return agents.Define("worker", "1", "Answers at once.", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		_, rest, _ := strings.Cut(t.Message(), `"correlationId":"`)
		of, _, _ := strings.Cut(rest, `"`)
		o.ended.Store(of, time.Now())
		return `{"output":1}`, nil
	})))
}
