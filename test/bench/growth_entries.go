// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Bounds on a start that finds the largest measured numbers of open runs and
// entries.
const (
	readyMillisMax   = 2000 // until the first answer, in ms
	resumedMillisMax = 1000 // from the first answer until an open run resumes, in ms
)

// entryActors is the number of actors that share the entries.
const entryActors = 1000

// entries measures calls, memory and a restart against the number of entries in the
// log. On the largest log it also measures the cost of open runs at a restart.
func (b *bench) entries() (err error) {
	cost := b.growth.curve("a call, durable", "entries", "µs", true)
	start := b.growth.curve("a restart", "entries", "ms", false)
	size := b.growth.curve("heap after a restart", "entries", "MiB", false)
	before := heapMiB()
	b.growth.allEntries = true
	n, dir, err := b.newNode("entries")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	for _, count := range b.sizes(10_000, 1_000_000) {

		// A call to one actor appends two entries.
		enough, err := b.fill("entries", int(n.disk.End().Pos)/2, count/2, func(i int) error { return n.hello(b.ctx, actorID("journaled", i%entryActors)) })
		if err != nil {
			return err
		}
		if !enough {
			omitFrom(count, cost, start, size)
			b.growth.allEntries = false
			break
		}
		c, err := b.callCost(measureCallers, b.iterations(5_000), func(int) error { return n.hello(b.ctx, actorID("journaled", rand.IntN(entryActors))) })
		if err != nil {
			return err
		}
		took, err := b.restart(&n, dir)
		if err != nil {
			return err
		}
		cost.add(count, c)
		start.add(count, took)
		size.add(count, heapGrowth(before))
	}
	return b.openRuns(&n, dir, before)
}

// openRuns measures a restart against the number of open runs. It records the time
// of the first answer to a new call, the time when the last run with interrupted
// work resumes, and the memory used at that time. One in workInterval open runs has
// interrupted work.
func (b *bench) openRuns(n **growthNode, dir string, before float64) error {
	ready := b.growth.curve("a restart, until the first answer", "open runs", "ms", false)
	resumed := b.growth.curve("a restart, until all runs resumed", "open runs", "ms", false)
	size := b.growth.curve("heap with all of them", "open runs", "MiB", false)
	reached := 0
	sizes := b.sizes(1000, 100_000)
	what := fmt.Sprintf("with %s open runs and %s entries", formatSize(sizes[len(sizes)-1]), formatSize(b.sizes(10_000, 1_000_000)[2]))
	readyFloor := b.growth.limit("ready, "+what, readyMillisMax, "ms")
	resumedFloor := b.growth.limit("from then until a first run resumes, "+what, resumedMillisMax, "ms")
	for _, count := range sizes {
		enough, err := b.fill("open runs", reached, count, func(i int) error { return (*n).startRun(b.ctx, actorID("open", i)) })
		if err != nil {
			return err
		}
		if !enough {
			omitFrom(count, ready, resumed, size)
			return nil
		}
		reached = count
		if err := (*n).close(); err != nil {
			return err
		}
		b.progress("a restart that finds %d open runs", count)
		began := time.Now()
		next, err := openGrowthNode(dir)
		if err != nil {
			return err
		}
		*n = next
		if err := next.hello(b.ctx, actor.NewID("journaled", fmt.Sprint("new-", rand.Uint64()))); err != nil {
			return err
		}
		answered := time.Now()
		var first, last time.Time
		for i := range (count + workInterval - 1) / workInterval {
			select {
			case last = <-next.work.began:
			case <-b.ctx.Done():
				return b.ctx.Err()
			case <-time.After(time.Minute):
				return errors.New("an open run did not resume within a minute")
			}
			if i == 0 {
				first = last
			}
		}
		ready.add(count, millis(answered.Sub(began)))
		resumed.add(count, millis(last.Sub(began)))
		size.add(count, heapGrowth(before))
		if count == sizes[len(sizes)-1] && b.growth.allEntries {
			readyFloor.record(millis(answered.Sub(began)))
			resumedFloor.record(max(0, millis(first.Sub(answered))))
		}
	}
	return nil
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
