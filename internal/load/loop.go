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
	// CallersMax is how many may ask at once.
	CallersMax = 16_384
	// Patience is how late an arrival may be sent, where Open does not say. One
	// that no caller was free for in that time is not sent.
	Patience = 100 * time.Millisecond
	// Tries is how often a call is made at most, where Open does not say.
	Tries = 4
	// waitingMax is how many refused calls may wait to be made again.
	waitingMax = 1 << 20
)

// Closed is a loop of so many callers, each of whom asks again once it has its
// answer; one that is refused comes back when it is told to.
type Closed struct {
	Callers int
	For     time.Duration
}

// Run runs the loop against a target.
func (c Closed) Run(ctx context.Context, target Target) (Result, error) {
	if err := bounded("callers", c.Callers, CallersMax); err != nil {
		return Result{}, err
	}
	all, err := callers(target, c.Callers)
	if err != nil {
		return Result{}, err
	}
	defer closeAll(all)
	memory, before := watchMemory(), processor()
	t := newTally(c.For)
	ctx, stop := context.WithTimeout(ctx, c.For)
	defer stop()
	var done sync.WaitGroup
	for i, caller := range all {
		done.Go(func() {
			for ctx.Err() == nil {
				sent := t.since()
				a := caller.Call()
				t.add(i, sent, sent, a)
				if a.Code != "" && !rest(ctx, max(a.After, time.Millisecond)) {
					return
				}
				runtime.Gosched() // who asks cells in this process would otherwise keep its processor
			}
		})
	}
	done.Wait()
	r := t.result()
	r.Callers, r.Processor, r.Memory = c.Callers, processor()-before, memory()
	return r, interrupted(ctx)
}

// Open is a loop into which so many calls arrive each second.
type Open struct {
	Rate     float64
	For      time.Duration
	Callers  int           // so many can be under way; 0: 1024
	Tries    int           // of each call that is refused and told when to come back; 0: Tries
	Patience time.Duration // 0: the constant of that name
}

// Run runs the loop against a target.
func (o Open) Run(ctx context.Context, target Target) (Result, error) {
	if o.Callers == 0 {
		o.Callers = 1024
	}
	if o.Tries == 0 {
		o.Tries = Tries
	}
	if o.Patience == 0 {
		o.Patience = Patience
	}
	if err := bounded("callers", o.Callers, CallersMax); err != nil {
		return Result{}, err
	}
	if !(o.Rate > 0 && o.Rate <= 1e9) {
		return Result{}, fmt.Errorf("a rate of %v a second: want more than 0, and at most 1e9", o.Rate)
	}
	all, err := callers(target, o.Callers)
	if err != nil {
		return Result{}, err
	}
	defer closeAll(all)
	memory, before := watchMemory(), processor()
	ctx, stop := context.WithTimeout(ctx, o.For)
	defer stop()
	a := &arrivals{Open: o, every: float64(time.Second) / o.Rate, tally: newTally(o.For)}
	a.again.first.Store(never)
	var done sync.WaitGroup
	for i, caller := range all {
		done.Go(func() {
			for {
				one, ok := a.next(ctx)
				if !ok {
					return
				}
				sent := a.tally.since()
				answer := caller.Call()
				a.tally.add(i, one.due, sent, answer)
				if answer.Code != "" {
					a.refused(one, answer)
				}
				runtime.Gosched()
			}
		})
	}
	done.Wait()
	r := a.tally.result()
	r.Callers, r.Rate, r.Processor, r.Memory = o.Callers, o.Rate, processor()-before, memory()
	arrived := int64(o.Rate * o.For.Seconds())
	r.Unsent = int(a.unsent.Load() + max(arrived-a.number.Load(), 0)) // with those that were due when the time was over
	r.Again, r.GivenUp, r.Waiting = int(a.retried.Load()), int(a.givenUp.Load()), a.again.len()
	return r, interrupted(ctx)
}

// arrivals says which call is to be made next, and when.
type arrivals struct {
	Open
	every   float64 // ns from one to the next
	number  atomic.Int64
	again   waiting
	tally   *tally
	unsent  atomic.Int64 // no caller was free in time
	retried atomic.Int64
	givenUp atomic.Int64 // refused for good, or as often as it may be tried
}

// arrival is a call that is to be made.
type arrival struct {
	due   time.Duration // when it is to be sent; of one that was refused, when it was told to come back
	tries int           // so far
}

// next waits for a call to be made; false once the time is over. Those that were
// refused and are due go first.
func (a *arrivals) next(ctx context.Context) (arrival, bool) {
	for {
		now := a.tally.since()
		if now >= a.For || ctx.Err() != nil {
			return arrival{}, false
		}
		if one, ok := a.again.pop(now); ok {
			if now-one.due > a.Patience {
				a.unsent.Add(1)
				continue
			}
			a.retried.Add(1)
			return one, true
		}
		n := a.number.Add(1) - 1
		due := time.Duration(float64(n) * a.every)
		switch late := now - due; {
		case due >= a.For:
			return arrival{}, false
		case late > a.Patience:
			a.skip(n, now)
			continue
		case late < 0 && !rest(ctx, -late):
			a.unsent.Add(1)
			return arrival{}, false
		}
		return arrival{due: due}, true
	}
}

// skip leaves out what is too late: the n-th arrival, and all behind it that are
// due already but for the last tenth of the patience.
func (a *arrivals) skip(n int64, now time.Duration) {
	a.unsent.Add(1)
	to := int64(float64(now-a.Patience/10) / a.every)
	for {
		at := a.number.Load()
		if at >= to {
			return
		}
		if a.number.CompareAndSwap(at, to) {
			a.unsent.Add(to - at)
			return
		}
	}
}

// refused has a call come back if that was said to help.
func (a *arrivals) refused(one arrival, answer Answer) {
	one.tries++
	if one.due = a.tally.since() + answer.After; answer.After == 0 || one.tries >= a.Tries || !a.again.push(one) {
		a.givenUp.Add(1)
	}
}

const never = int64(1) << 62

// waiting are refused calls until they are due.
type waiting struct {
	first atomic.Int64 // when the next is due
	mu    sync.Mutex
	queue queue
}

func (w *waiting) push(one arrival) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) >= waitingMax {
		return false
	}
	heap.Push(&w.queue, one)
	w.first.Store(int64(w.queue[0].due))
	return true
}

func (w *waiting) pop(now time.Duration) (arrival, bool) {
	if w.first.Load() > int64(now) {
		return arrival{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 || w.queue[0].due > now {
		return arrival{}, false
	}
	one := heap.Pop(&w.queue).(arrival)
	w.first.Store(never)
	if len(w.queue) > 0 {
		w.first.Store(int64(w.queue[0].due))
	}
	return one, true
}

func (w *waiting) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue)
}

// queue is a heap of arrivals, the next due first.
type queue []arrival

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due < q[j].due }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(arrival)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	one := (*q)[last]
	*q = (*q)[:last]
	return one
}

// rest waits; false if there is nothing to wait for any more.
func rest(ctx context.Context, d time.Duration) bool {
	if d < time.Second/10 { // a context's timer costs more than it is worth
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

// interrupted says that a loop ended before its time was over.
func interrupted(ctx context.Context) error {
	if err := ctx.Err(); err != nil && err != context.DeadlineExceeded {
		return err
	}
	return nil
}

func bounded(what string, n, most int) error {
	if n < 1 || n > most {
		return fmt.Errorf("%d %s: want 1 to %d", n, what, most)
	}
	return nil
}
