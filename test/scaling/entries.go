// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// The floors of a start that finds as many open runs and entries as the last size
// of each.
const (
	readyMost   = 2000 // ms
	resumedMost = 1000 // ms
)

// spread is over how many actors entries are spread.
const spread = 1000

// entries measures calls, memory and a restart against entries in the log; then,
// on the largest log, what open runs add to a restart.
func (g *growth) entries() (err error) {
	cost := g.row("a call, durable", "entries", "µs", true)
	start := g.row("a restart", "entries", "ms", false)
	size := g.row("heap after a restart", "entries", "MiB", false)
	before := memory()
	g.full = true
	n, dir, err := g.fresh("entries")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	for _, count := range g.sizes(10_000, 1_000_000) {
		// A call that one actor answers is two entries.
		enough, err := g.fill("entries", int(n.disk.End().Pos)/2, count/2, func(i int) error { return n.ask(g.ctx, name("plain", i%spread)) })
		if err != nil {
			return err
		}
		if !enough {
			leave(count, cost, start, size)
			g.full = false
			break
		}
		c, err := g.cost(askers, g.few(5_000), func(int) error { return n.ask(g.ctx, name("plain", rand.IntN(spread))) })
		if err != nil {
			return err
		}
		took, err := g.restart(&n, dir)
		if err != nil {
			return err
		}
		cost.add(count, c)
		start.add(count, took)
		size.add(count, grown(before))
	}
	return g.openRuns(&n, dir, before)
}

// openRuns measures a restart against the runs that it finds open: when it has
// answered a new call, when it has taken up a first and when the last of a few
// that stand among all of them, and what it holds in memory then.
func (g *growth) openRuns(n **node, dir string, before float64) error {
	ready := g.row("a restart, until the first answer", "open runs", "ms", false)
	resumed := g.row("a restart, until all go on", "open runs", "ms", false)
	size := g.row("heap with all of them", "open runs", "MiB", false)
	there := 0
	sizes := g.sizes(1000, 100_000)
	what := fmt.Sprintf("with %s open runs and %s entries", number(sizes[len(sizes)-1]), number(g.sizes(10_000, 1_000_000)[2]))
	readyFloor := g.floor("ready, "+what, readyMost, "ms")
	resumedFloor := g.floor("from then until a first run goes on, "+what, resumedMost, "ms")
	for _, count := range sizes {
		enough, err := g.fill("open runs", there, count, func(i int) error { return (*n).begin(g.ctx, name("open", i)) })
		if err != nil {
			return err
		}
		if !enough {
			leave(count, ready, resumed, size)
			return nil
		}
		there = count
		if err := (*n).close(); err != nil {
			return err
		}
		g.progress("a restart that finds %d open runs", count)
		began := time.Now()
		next, err := open(dir)
		if err != nil {
			return err
		}
		*n = next
		if err := next.ask(g.ctx, actor.NewID("plain", fmt.Sprint("new-", rand.Uint64()))); err != nil {
			return err
		}
		answered := time.Now()
		var first, last time.Time
		for i := range (count + worksEach - 1) / worksEach {
			select {
			case last = <-next.work.began:
			case <-g.ctx.Done():
				return g.ctx.Err()
			case <-time.After(time.Minute):
				return errors.New("a run that was open does not go on")
			}
			if i == 0 {
				first = last
			}
		}
		ready.add(count, ms(answered.Sub(began)))
		resumed.add(count, ms(last.Sub(began)))
		size.add(count, grown(before))
		if count == sizes[len(sizes)-1] && g.full {
			readyFloor.found(ms(answered.Sub(began)))
			resumedFloor.found(max(0, ms(first.Sub(answered))))
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
