// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/disk"
)

// Bounds on a node whose sessions become idle.
const (
	idleMemoryMax = 120  // memory after two passivation times, in percent of that before the sessions
	changeStopMax = 5000 // median duration of a change of the agents, which stops each cell, in µs
)

const (
	idlePassivate = time.Minute
	idleWarmUp    = 1000 // sessions before the first measurement, which fill buffers and pools
	idleChanges   = 25   // changes of the agents while the sessions are in memory
	idleAgents    = 1024
	idlePoll      = time.Second
	smallBuffer   = 4 << 20 // size of a write buffer that bounds the memory of durable runs
)

// population is a number of calls to sessions of one agent.
type population struct {
	agent           string
	calls, sessions int
	warmUp          int // calls before, to idleWarmUp sessions
	buffer          uint64
}

// idle measures the memory of a node before, with and after many sessions, and the time
// for which a change of the agents stops its cells. It is the first study, because the
// resident memory of a process depends on earlier ones. It does not count towards the
// time limit.
//
// The memory of durable runs does not return to that before, because Pebble retains its
// write buffers. It is shown for two sizes of them, the smaller first.
func (b *bench) idle() error {
	began := time.Now()
	defer func() { b.growth.deadline = b.growth.deadline.Add(time.Since(began)) }()
	scale := 1
	if b.quick {
		scale = 100
	}
	stop := b.growth.limit("a change of 1 of 1,024 agents, actors in memory", changeStopMax, "µs")
	after := b.growth.limit("memory after volatile sessions, of that before", idleMemoryMax, "%")
	volatile := population{agent: "volatile", calls: 500_000 / scale, sessions: 500_000 / scale, warmUp: 10 * idleWarmUp / scale, buffer: smallBuffer}
	part, err := b.idleAfter(volatile, idleMemoryMax, func(n *growthNode) error {
		took, err := b.changeAgents(n)
		if err == nil {
			stop.record(float64(took[len(took)/2].Microseconds()))
			b.growth.note("%d changes of the agents took %v to %v, the median %v", len(took), took[0], took[len(took)-1], took[len(took)/2])
		}
		return err
	})
	if err != nil {
		return err
	}
	after.record(part)
	durable := population{agent: "journaled", calls: 10_000 / scale, sessions: 500 / scale, warmUp: idleWarmUp / scale}
	for _, durable.buffer = range []uint64{smallBuffer, disk.WriteBuffer} {
		if _, err := b.idleAfter(durable, 0, nil); err != nil {
			return err
		}
	}
	return nil
}

// idleAfter makes calls to sessions, calls the function during, and waits until they are
// idle: two passivation times, or until the memory is at most the given percentage of
// that before. It returns the percentage. The memory before is that after a warm-up,
// with the garbage of a node under light load.
func (b *bench) idleAfter(p population, enough float64, during func(*growthNode) error) (percent float64, err error) {
	passivate := idlePassivate
	if b.quick {
		passivate = time.Second
	}
	n, err := openGrowthNodeWith(b.newDir(fmt.Sprintf("idle-%s-%d", p.agent, p.buffer)), passivate, p.buffer)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	ask := func(i int) error { return n.hello(b.ctx, actorID(p.agent, i)) }
	if _, err := eachOf(fillCallers, p.warmUp, func(i int) error { return ask(i % idleWarmUp) }); err != nil {
		return 0, err
	}
	before := residentMiB()
	b.progress("%s: %d calls to %d sessions", p.agent, p.calls, p.sessions)
	if _, err := eachOf(fillCallers, p.calls, func(i int) error { return ask(i % p.sessions) }); err != nil {
		return 0, err
	}
	if during != nil {
		if err := during(n); err != nil {
			return 0, err
		}
	}
	full, last := residentMiB(), time.Now()
	now := full
	for now > before*enough/100 && time.Since(last) < 2*passivate {
		b.progress("%s: %.0f MiB %v after the last call", p.agent, now, time.Since(last).Round(time.Second))
		select {
		case <-time.After(idlePoll):
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
		now = residentMiB()
	}
	b.growth.note("memory of %d calls to %d %s sessions, write buffers of %d MiB: %.0f MiB before, %.0f MiB after the calls, %.0f MiB %v later (passivation after %v)",
		p.calls, p.sessions, p.agent, p.buffer>>20, before, full, now, time.Since(last).Round(time.Second), passivate)
	return 100 * now / before, nil
}

// changeAgents changes one agent of many several times and returns the sorted durations
// of the changes. A change ends when every cell has applied it.
func (b *bench) changeAgents(n *growthNode) (took []time.Duration, err error) {
	all := n.definitions()
	for i := len(all); i < idleAgents; i++ {
		all = append(all, agents.Define(fmt.Sprintf("other-%d", i), "1", "Is not called.", echoAgent{}))
	}
	for i := range idleChanges {
		all = slices.Clone(all)
		last := &all[len(all)-1]
		former := *last
		*last = agents.Define(last.Name, fmt.Sprint(i+2), last.Doc, echoAgent{})
		began := time.Now()
		if err := n.Define(b.ctx, all, []actor.Definition{former}, nil); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took, b.ctx.Err()
}

// residentMiB returns the resident set size of the process in MiB.
func residentMiB() float64 { return residentBytes() / (1 << 20) }
