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
	size := g.row("memory after a restart", "entries", "MiB", false)
	before := memory()
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
	return g.openRuns(&n, dir)
}

// openRuns measures a restart against the runs that it finds open: when it has
// answered a new call, when it has taken up a first and when the last of a few
// that stand among all of them, and what it holds in memory then.
func (g *growth) openRuns(n **node, dir string) error {
	ready := g.row("a restart, until the first answer", "open runs", "ms", false)
	resumed := g.row("a restart, until all go on", "open runs", "ms", false)
	size := g.row("memory with all of them", "open runs", "MiB", false)
	works := min(worksMax, g.few(worksMax))
	there, before := 0, memory()
	sizes := g.sizes(1000, 100_000)
	for _, count := range sizes {
		// Of a hundred runs, or more, one has work that the next start does again.
		enough, err := g.fill("open runs", there, count, func(i int) error {
			if i < works {
				return (*n).begin(g.ctx, actor.NewID("works", fmt.Sprint(i)))
			}
			return (*n).begin(g.ctx, name("sleeps", i))
		})
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
		for i := range min(works, count) {
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
		if count == sizes[len(sizes)-1] {
			what := fmt.Sprintf("%d open runs and %d entries", count, next.disk.End().Pos)
			g.floor("ready, with "+what, ms(answered.Sub(began)), readyMost, "ms")
			g.floor("the first run goes on after that, with "+what, max(0, ms(first.Sub(answered))), resumedMost, "ms")
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
