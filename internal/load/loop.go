// SPDX-License-Identifier: Apache-2.0

package load

import (
	"container/heap"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// CallersMax is the maximum number of concurrent callers.
	CallersMax = 16_384
	// LatenessMaxDefault is the default of OpenLoop.LatenessMax.
	LatenessMaxDefault = 100 * time.Millisecond
	// TriesDefault is the default of OpenLoop.Tries.
	TriesDefault = 4
	// retriesMax is the maximum number of refused calls waiting for a retry.
	retriesMax = 1 << 20
)

// ClosedLoop is a load of concurrent callers. A caller makes its next call after the
// answer to its last call. After a refusal it waits for the retry delay, but for no
// less than 1 ms.
type ClosedLoop struct {
	Callers int
	For     time.Duration
}

// Run runs the loop against a target. It returns an error if ctx is cancelled.
func (c ClosedLoop) Run(ctx context.Context, target Target) (Result, error) {
	if err := checkRange("callers", c.Callers, CallersMax); err != nil {
		return Result{}, err
	}
	callers, err := newCallers(target, c.Callers)
	if err != nil {
		return Result{}, err
	}
	defer closeAll(callers)
	memory, before := sampleMemory(), processorTime()
	t := newTally(c.For)
	ctx, stop := context.WithTimeout(ctx, c.For)
	defer stop()
	var done sync.WaitGroup
	for i, caller := range callers {
		done.Go(func() {
			for ctx.Err() == nil {
				sent := t.elapsed()
				a := caller.Call()
				t.add(i, sent, sent, a)
				if a.Code != "" && !sleep(ctx, max(a.RetryAfter, time.Millisecond)) {
					return
				}
				runtime.Gosched() // else a caller of cells in this process would keep its processor
			}
		})
	}
	done.Wait()
	r := t.result()
	r.Callers, r.Processor, r.Memory = c.Callers, processorTime()-before, memory()
	return r, cancellation(ctx)
}

// OpenLoop is a load of calls that arrive at a fixed rate per second.
type OpenLoop struct {
	Rate        float64
	For         time.Duration
	Callers     int           // maximum number of concurrent calls; 0 means 1024
	Tries       int           // maximum attempts per call refused with a retry delay; 0 means TriesDefault
	LatenessMax time.Duration // lateness above which an arrival is not sent; 0 means LatenessMaxDefault
}

// Run runs the loop against a target. It returns an error if ctx is cancelled.
func (o OpenLoop) Run(ctx context.Context, target Target) (Result, error) {
	if o.Callers == 0 {
		o.Callers = 1024
	}
	if o.Tries == 0 {
		o.Tries = TriesDefault
	}
	if o.LatenessMax == 0 {
		o.LatenessMax = LatenessMaxDefault
	}
	if err := checkRange("callers", o.Callers, CallersMax); err != nil {
		return Result{}, err
	}
	if !(o.Rate > 0 && o.Rate <= 1e9) {
		return Result{}, fmt.Errorf("rate %v per second: want more than 0 and at most 1e9", o.Rate)
	}
	callers, err := newCallers(target, o.Callers)
	if err != nil {
		return Result{}, err
	}
	defer closeAll(callers)
	memory, before := sampleMemory(), processorTime()
	ctx, stop := context.WithTimeout(ctx, o.For)
	defer stop()
	a := &arrivals{OpenLoop: o, interval: float64(time.Second) / o.Rate, tally: newTally(o.For)}
	a.retries.nextDue.Store(never)
	var done sync.WaitGroup
	for i, caller := range callers {
		done.Go(func() {
			for {
				one, ok := a.next(ctx)
				if !ok {
					return
				}
				sent := a.tally.elapsed()
				answer := caller.Call()
				a.tally.add(i, one.due, sent, answer)
				if answer.Code != "" {
					a.handleRefusal(one, answer)
				}
				runtime.Gosched()
			}
		})
	}
	done.Wait()
	r := a.tally.result()
	r.Callers, r.Rate, r.Processor, r.Memory = o.Callers, o.Rate, processorTime()-before, memory()
	arrived := int64(o.Rate * o.For.Seconds())
	r.Unsent = int(a.unsent.Load() + max(arrived-a.arrived.Load(), 0)) // includes arrivals that no caller took before the end
	r.Retried, r.GivenUp, r.Waiting = int(a.retried.Load()), int(a.givenUp.Load()), a.retries.len()
	return r, cancellation(ctx)
}

// arrivals schedules the calls of an open loop.
type arrivals struct {
	OpenLoop
	interval float64 // nanoseconds between arrivals
	arrived  atomic.Int64
	retries  retryQueue
	tally    *tally
	unsent   atomic.Int64 // arrivals that found no free caller in time
	retried  atomic.Int64
	givenUp  atomic.Int64 // calls refused without a retry delay, or Tries times
}

// arrival is a scheduled call.
type arrival struct {
	due   time.Duration // intended send time; of a retry, the time after its retry delay
	tries int           // number of attempts so far
}

// next waits for the next scheduled call. It returns false after the end of the
// loop. Due retries take precedence.
func (a *arrivals) next(ctx context.Context) (arrival, bool) {
	for {
		now := a.tally.elapsed()
		if now >= a.For || ctx.Err() != nil {
			return arrival{}, false
		}
		if retry, ok := a.retries.pop(now); ok {
			if now-retry.due > a.LatenessMax {
				a.unsent.Add(1)
				continue
			}
			a.retried.Add(1)
			return retry, true
		}
		n := a.arrived.Add(1) - 1
		due := time.Duration(float64(n) * a.interval)
		switch late := now - due; {
		case due >= a.For:
			return arrival{}, false
		case late > a.LatenessMax:
			a.skip(n, now)
			continue
		case late < 0 && !sleep(ctx, -late):
			a.unsent.Add(1)
			return arrival{}, false
		}
		return arrival{due: due}, true
	}
}

// skip counts arrival n as unsent, together with all later arrivals that are already
// late by more than a tenth of LatenessMax.
func (a *arrivals) skip(n int64, now time.Duration) {
	a.unsent.Add(1)
	last := int64(float64(now-a.LatenessMax/10) / a.interval)
	for {
		next := a.arrived.Load()
		if next >= last {
			return
		}
		if a.arrived.CompareAndSwap(next, last) {
			a.unsent.Add(last - next)
			return
		}
	}
}

// handleRefusal schedules a retry if the refusal has a retry delay and attempts are
// left.
func (a *arrivals) handleRefusal(call arrival, answer Outcome) {
	call.tries++
	if call.due = a.tally.elapsed() + answer.RetryAfter; answer.RetryAfter == 0 || call.tries >= a.Tries || !a.retries.push(call) {
		a.givenUp.Add(1)
	}
}

const never = int64(1) << 62

// retryQueue holds refused calls until their retry is due.
type retryQueue struct {
	nextDue atomic.Int64 // time of the next retry; the constant never if there is none
	mu      sync.Mutex
	heap    retryHeap
}

func (w *retryQueue) push(call arrival) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.heap) >= retriesMax {
		return false
	}
	heap.Push(&w.heap, call)
	w.nextDue.Store(int64(w.heap[0].due))
	return true
}

func (w *retryQueue) pop(now time.Duration) (arrival, bool) {
	if w.nextDue.Load() > int64(now) {
		return arrival{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.heap) == 0 || w.heap[0].due > now {
		return arrival{}, false
	}
	call := heap.Pop(&w.heap).(arrival)
	w.nextDue.Store(never)
	if len(w.heap) > 0 {
		w.nextDue.Store(int64(w.heap[0].due))
	}
	return call, true
}

func (w *retryQueue) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.heap)
}

// retryHeap is a heap of arrivals ordered by due time.
type retryHeap []arrival

func (q retryHeap) Len() int           { return len(q) }
func (q retryHeap) Less(i, j int) bool { return q[i].due < q[j].due }
func (q retryHeap) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *retryHeap) Push(x any) { *q = append(*q, x.(arrival)) }

// Pop implements heap.Interface.
func (q *retryHeap) Pop() any {
	last := len(*q) - 1
	call := (*q)[last]
	*q = (*q)[:last]
	return call
}

// sleep waits for d. It reports false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d < time.Second/10 { // a short wait that ignores ctx costs less than a timer
		time.Sleep(d)
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// cancellation returns the error of a loop that was cancelled before its end.
func cancellation(ctx context.Context) error {
	if err := ctx.Err(); err != nil && err != context.DeadlineExceeded {
		return err
	}
	return nil
}

func checkRange(what string, n, limit int) error {
	if n < 1 || n > limit {
		return fmt.Errorf("%d %s: want 1 to %d", n, what, limit)
	}
	return nil
}
