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
func (m *measurement) entries() (err error) {
	cost := m.row("a call, durable", "entries", "µs", true)
	start := m.row("a restart", "entries", "ms", false)
	size := m.row("heap after a restart", "entries", "MiB", false)
	before := heapMiB()
	m.allEntries = true
	n, dir, err := m.newNode("entries")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	for _, count := range m.sizes(10_000, 1_000_000) {

		// A call to one actor appends two entries.
		enough, err := m.fill("entries", int(n.disk.End().Pos)/2, count/2, func(i int) error { return n.ask(m.ctx, actorID("journaled", i%entryActors)) })
		if err != nil {
			return err
		}
		if !enough {
			omitFrom(count, cost, start, size)
			m.allEntries = false
			break
		}
		c, err := m.callCost(measureCallers, m.iterations(5_000), func(int) error { return n.ask(m.ctx, actorID("journaled", rand.IntN(entryActors))) })
		if err != nil {
			return err
		}
		took, err := m.restart(&n, dir)
		if err != nil {
			return err
		}
		cost.add(count, c)
		start.add(count, took)
		size.add(count, heapGrowth(before))
	}
	return m.openRuns(&n, dir, before)
}

// openRuns measures a restart against the number of open runs. It records the time
// of the first answer to a new call, the time when the last run with interrupted
// work resumes, and the memory used at that time. One in workInterval open runs has
// interrupted work.
func (m *measurement) openRuns(n **node, dir string, before float64) error {
	ready := m.row("a restart, until the first answer", "open runs", "ms", false)
	resumed := m.row("a restart, until all runs resumed", "open runs", "ms", false)
	size := m.row("heap with all of them", "open runs", "MiB", false)
	reached := 0
	sizes := m.sizes(1000, 100_000)
	what := fmt.Sprintf("with %s open runs and %s entries", formatSize(sizes[len(sizes)-1]), formatSize(m.sizes(10_000, 1_000_000)[2]))
	readyFloor := m.floor("ready, "+what, readyMillisMax, "ms")
	resumedFloor := m.floor("from then until a first run resumes, "+what, resumedMillisMax, "ms")
	for _, count := range sizes {
		enough, err := m.fill("open runs", reached, count, func(i int) error { return (*n).startRun(m.ctx, actorID("open", i)) })
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
		m.progress("a restart that finds %d open runs", count)
		began := time.Now()
		next, err := openNode(dir)
		if err != nil {
			return err
		}
		*n = next
		if err := next.ask(m.ctx, actor.NewID("journaled", fmt.Sprint("new-", rand.Uint64()))); err != nil {
			return err
		}
		answered := time.Now()
		var first, last time.Time
		for i := range (count + workInterval - 1) / workInterval {
			select {
			case last = <-next.work.began:
			case <-m.ctx.Done():
				return m.ctx.Err()
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
		if count == sizes[len(sizes)-1] && m.allEntries {
			readyFloor.record(millis(answered.Sub(began)))
			resumedFloor.record(max(0, millis(first.Sub(answered))))
		}
	}
	return nil
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
