// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/upstream"
)

// Bounds of a request for several calls.
const (
	batchCallsMax = 100
	batchBytesMax = actor.MessageBytesMax // of the arguments, if there are several calls
)

// batchWait is the time for which a call waits for those that its step makes at once. They arrive within
// microseconds; one that this node refused, because too many effects are running, never does.
const batchWait = 50 * time.Millisecond

// batches joins calls of tools with batch = true: those that one step of a run makes at once.
type batches struct {
	mu   sync.Mutex
	open map[batchKey]*batch
}

type batchKey struct {
	run  actor.CallID
	step uint32
	tool string
}

// batch are calls that wait for each other.
type batch struct {
	calls []*batchedCall
	gone  chan struct{} // closed when the calls leave, and no further one joins
}

// batchedCall is a call of a tool with batch.
type batchedCall struct {
	ctx    context.Context
	id     actor.EffectID
	op     runtime.Tool
	group  []*batchedCall    // calls of its request, of which the first performs it; set before gone is closed
	answer chan actor.Answer // has room for the only one
}

// join adds a call to those of its step, and returns when they leave: once all of them have joined, or after
// batchWait, or when one of them is cancelled.
func (b *batches) join(call *batchedCall) {
	key := batchKey{call.id.Run, call.id.Step, call.op.Name}
	b.mu.Lock()
	all := b.open[key]
	if all == nil {
		all = &batch{gone: make(chan struct{})}
		b.open[key] = all
	}
	all.calls = append(all.calls, call)
	complete := len(all.calls) >= call.op.Together
	if complete {
		b.leave(key, all)
	}
	b.mu.Unlock()
	if complete {
		return
	}
	timer := time.NewTimer(batchWait)
	defer timer.Stop()
	select {
	case <-all.gone:
		return
	case <-timer.C:
	case <-call.ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[key] == all {
		b.leave(key, all)
	}
}

// leave divides calls into requests.
func (b *batches) leave(key batchKey, all *batch) {
	delete(b.open, key)
	calls := slices.DeleteFunc(all.calls, func(c *batchedCall) bool { return c.ctx.Err() != nil })
	slices.SortFunc(calls, func(x, y *batchedCall) int { return cmp.Compare(x.id.Index, y.id.Index) })
	for len(calls) > 0 {
		n, size := 1, len(calls[0].op.Input)
		for n < min(len(calls), batchCallsMax) && size+len(calls[n].op.Input) <= batchBytesMax {
			size += len(calls[n].op.Input)
			n++
		}
		for _, c := range calls[:n] {
			c.group = calls[:n:n]
		}
		calls = calls[n:]
	}
	close(all.gone)
}

// batched performs a call of a tool with batch together with those that its step makes at once.
func (o *Outbound) batched(ctx context.Context, id actor.EffectID, op *runtime.Tool) actor.Answer {
	call := &batchedCall{ctx: ctx, id: id, op: *op, answer: make(chan actor.Answer, 1)}
	o.batches.join(call)
	if len(call.group) > 0 && call.group[0] == call {
		go o.performBatch(call.group) // the first call too ends by its own context
	}
	select {
	case answer := <-call.answer:
		return answer
	case <-ctx.Done():
	}
	refusal := actor.Refuse(actor.Stopped, "tool %s: the call was cancelled", op.Name)
	if context.Cause(ctx) == context.DeadlineExceeded {
		refusal = actor.Refuse(actor.Deadline, "tool %s: timeout: no time is left", op.Name)
		refusal.Operation, refusal.Timeout = "tool "+op.Name, op.Left
	}
	return refusedAnswer(refusal)
}

// performBatch answers calls by one request. The request goes on as long as one of them waits for its answer, and is
// cancelled when none does. It runs on a goroutine of its own, so a panic is the failure of each call.
func (o *Outbound) performBatch(group []*batchedCall) {
	op := group[0].op
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	answers := make([]actor.Answer, len(group))
	defer func() {
		if p := recover(); p != nil {
			for i := range answers {
				answers[i] = refusedAnswer(actor.Refuse(actor.Unavailable, "panic: %v", p))
			}
		}
		for i, c := range group {
			c.answer <- answers[i]
		}
	}()
	var waiting atomic.Int64
	waiting.Store(int64(len(group)))
	calls := make([]upstream.BatchCall, len(group))
	for i, c := range group {
		calls[i] = upstream.BatchCall{ID: cmp.Or(keyOfEffect(c.id), "1"), Arguments: c.op.Input}
		op.Left = max(op.Left, c.op.Left)
		defer context.AfterFunc(c.ctx, func() {
			if waiting.Add(-1) == 0 {
				cancel(context.Cause(c.ctx))
			}
		})()
	}
	op.Input = upstream.BatchBody(calls)
	whole := o.request(ctx, group[0].id, &op, keyOfBatch(group))
	if whole.Refusal == nil {
		answers = httpTool(op.Declared).BatchAnswers(calls, &whole.Parts[0], whole.Warnings)
		return
	}
	for i := range answers {
		answers[i] = whole
	}
}

// keyOfBatch returns the identity of a request, which its repetition has as well: the run, the step, and the
// indexes of all calls.
func keyOfBatch(group []*batchedCall) string {
	key := keyOfEffect(group[0].id)
	if key == "" {
		return ""
	}
	var b strings.Builder
	b.WriteString(key)
	for _, c := range group[1:] {
		fmt.Fprintf(&b, "+%d", c.id.Index)
	}
	return b.String()
}
