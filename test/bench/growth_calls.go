// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
)

const (
	fillCallers    = 256 // concurrent callers while actors or entries are created
	measureCallers = 64  // concurrent callers while calls are measured
	repetitions    = 3   // repetitions of a measurement, of which the median counts
)

// actorID returns the n-th actor of an agent. Its printed ID has 24 bytes.
func actorID(agent string, n int) actor.ID {
	return actor.NewID(agent, fmt.Sprintf("%0*d", 24-len(agent)-1, n))
}

// newNode starts a node on a new folder.
func (b *bench) newNode(what string) (*growthNode, string, error) {
	dir := b.newDir(what)
	n, err := openGrowthNode(dir)
	return n, dir, err
}

// fill calls the function do with each number in the range [from, to). It returns
// false as soon as the rest would take more than two thirds of the time left.
func (b *bench) fill(what string, from, to int, do func(i int) error) (enough bool, err error) {
	const slice = 10_000
	for at := from; at < to; at += slice {
		b.progress("%s: %d of %d", what, at, to)
		began := time.Now()
		if _, err := eachOf(fillCallers, min(slice, to-at), func(i int) error { return do(at + i) }); err != nil {
			return false, err
		}
		slices := time.Duration((to-at)/slice + 1)
		if time.Since(began)*slices > time.Until(b.growth.deadline)*2/3 {
			return false, nil
		}
	}
	return true, b.ctx.Err()
}

// callCost returns the time per call in µs: elapsed time divided by the number of
// calls.
func (b *bench) callCost(callers, count int, one func(i int) error) (float64, error) {
	var costs []float64
	for range repetitions {
		took, err := eachOf(callers, count, one)
		if err == nil {
			err = b.ctx.Err()
		}
		if err != nil {
			return 0, err
		}
		costs = append(costs, float64(took.Microseconds())/float64(count))
	}
	slices.Sort(costs)
	return costs[repetitions/2], nil
}

// heapGrowth returns the growth of the live heap in MiB. The parameter before is
// the earlier size. The result is at least 0.1, because smaller values are noise.
func heapGrowth(before float64) float64 { return max(0.1, heapMiB()-before) }

// heapMiB returns the size of the live heap in MiB. The resident set size would
// depend on earlier measurements.
func heapMiB() float64 {
	runtime.GC()
	runtime.GC() // collects objects whose finalizers ran
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc) / (1 << 20)
}

// resident measures calls and memory against the number of volatile actors in
// memory.
func (b *bench) resident() (err error) {
	cost := b.growth.curve("a call, unjournaled", "actors in memory", "µs", true)
	size := b.growth.curve("heap, unjournaled", "actors in memory", "MiB", false)
	n, _, err := b.newNode("resident")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	reached, before := 0, heapMiB()
	for _, count := range b.sizes(1000, 1_000_000) {
		enough, err := b.fill("actors in memory", reached, count, func(i int) error { return n.hello(b.ctx, actorID("volatile", i)) })
		if err != nil {
			return err
		}
		if !enough {
			omitFrom(count, cost, size)
			return nil
		}
		reached = count
		size.add(count, heapGrowth(before))
		c, err := b.callCost(measureCallers, b.iterations(20_000), func(int) error { return n.hello(b.ctx, actorID("volatile", rand.IntN(count))) })
		if err != nil {
			return err
		}
		cost.add(count, c)
	}
	return nil
}

// callers measures calls against the number of concurrent callers.
func (b *bench) callers() (err error) {
	rows := []*curve{b.growth.curve("a call, durable", "callers", "µs", true), b.growth.curve("a call, unjournaled", "callers", "µs", true)}
	n, _, err := b.newNode("callers")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	for count := 1; count <= 1024; count *= 4 {
		for i, agent := range []string{"journaled", "volatile"} {
			b.progress("%d callers of %s", count, agent)
			c, err := b.callCost(count, b.iterations(200+100*count), func(int) error { return n.hello(b.ctx, actorID(agent, rand.IntN(1024))) })
			if err != nil {
				return err
			}
			rows[i].add(count, c)
		}
	}
	return nil
}

// actors measures calls, memory and a restart against the number of journaled
// actors.
func (b *bench) manyActors() (err error) {
	cost := b.growth.curve("a call, durable", "actors", "µs", true)
	size := b.growth.curve("heap", "actors", "MiB", false)
	start := b.growth.curve("a restart", "actors", "ms", false)
	before := heapMiB()
	n, dir, err := b.newNode("actors")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	reached := 0
	for _, count := range b.sizes(1000, 100_000) {
		enough, err := b.fill("actors", reached, count, func(i int) error { return n.hello(b.ctx, actorID("journaled", i)) })
		if err != nil {
			return err
		}
		if !enough {
			omitFrom(count, cost, size, start)
			return nil
		}
		reached = count
		size.add(count, heapGrowth(before))
		c, err := b.callCost(measureCallers, b.iterations(5_000), func(int) error { return n.hello(b.ctx, actorID("journaled", rand.IntN(count))) })
		if err != nil {
			return err
		}
		cost.add(count, c)
		took, err := b.restart(&n, dir)
		if err != nil {
			return err
		}
		start.add(count, took)
		// All actors are recovered, so that the next size again measures actors in
		// memory.
		if _, err := b.fill("actors recovered", 0, count, func(i int) error { return n.hello(b.ctx, actorID("journaled", i)) }); err != nil {
			return err
		}
	}
	return nil
}

// restart closes a node and starts the next one on its folder. It returns the time
// in ms from opening the folder to the first answer of a new actor.
func (b *bench) restart(n **growthNode, dir string) (float64, error) {
	if err := (*n).close(); err != nil {
		return 0, err
	}
	began := time.Now()
	next, err := openGrowthNode(dir)
	if err != nil {
		return 0, err
	}
	*n = next
	if err := next.hello(b.ctx, actor.NewID("journaled", fmt.Sprint("new-", rand.Uint64()))); err != nil {
		return 0, err
	}
	return float64(time.Since(began).Microseconds()) / 1000, nil
}
