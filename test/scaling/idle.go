// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// Bounds on a node whose sessions become idle.
const (
	idleMemoryMax = 120  // memory after two passivation times, in percent of that before the sessions
	changeStopMax = 5000 // median duration of a change of the agents, which stops each cell, in µs
)

const (
	idlePassivate  = time.Minute
	idleWarmUp     = 1000 // sessions before the first measurement, which fill buffers and pools
	idleChanges    = 25   // changes of the agents while the sessions are in memory
	idleAgents     = 1024
	idlePoll       = time.Second
	durableRuns    = 10_000
	durableActors  = 500
	volatileActors = 500_000
)

// idle measures the memory of a node before, with and after many sessions, and the time
// for which a change of the agents stops its cells. It is the first study, because the
// resident memory of a process depends on earlier ones. It does not count towards the
// time limit.
func (m *measurement) idle() error {
	began := time.Now()
	defer func() { m.deadline = m.deadline.Add(time.Since(began)) }()
	stop := m.floor("a change of 1 of 1,024 agents, actors in memory", changeStopMax, "µs")
	err := m.idleAfter("volatile", m.sessions(volatileActors), m.sessions(volatileActors), func(n *node) error {
		took, err := m.changeAgents(n)
		if err == nil {
			stop.record(float64(took[len(took)/2].Microseconds()))
			m.note("%d changes of the agents took %v to %v, the median %v", len(took), took[0], took[len(took)-1], took[len(took)/2])
		}
		return err
	})
	return errors.Join(err, m.idleAfter("journaled", m.sessions(durableRuns), m.sessions(durableActors), nil))
}

// sessions returns the size of a population, smaller in a quick run.
func (m *measurement) sessions(n int) int {
	if m.quick {
		return n / 100
	}
	return n
}

// idleAfter makes calls to the sessions of an agent and waits until its memory is almost
// as before, at most two passivation times. The memory before is that after a warm-up,
// with the garbage that a node under light load has.
func (m *measurement) idleAfter(agent string, calls, sessions int, during func(*node) error) (err error) {
	after := m.floor("memory after "+agent+" sessions, of that before", idleMemoryMax, "%")
	passivate := idlePassivate
	if m.quick {
		passivate = time.Second
	}
	n, err := openNodePassivating(m.newDir("idle-"+agent), passivate)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	ask := func(i int) error { return n.ask(m.ctx, actorID(agent, i)) }
	if _, err := runConcurrent(fillCallers, m.sessions(100*idleWarmUp), func(i int) error { return ask(i % idleWarmUp) }); err != nil {
		return err
	}
	before := residentMiB()
	m.progress("%s: %d calls to %d sessions", agent, calls, sessions)
	if _, err := runConcurrent(fillCallers, calls, func(i int) error { return ask(i % sessions) }); err != nil {
		return err
	}
	if during != nil {
		if err := during(n); err != nil {
			return err
		}
	}
	full, last, most := residentMiB(), time.Now(), before*idleMemoryMax/100
	m.note("memory of %d %s sessions: %.0f MiB before, %.0f MiB after %d calls", sessions, agent, before, full, calls)
	now := full
	for now > most && time.Since(last) < 2*passivate {
		m.progress("%s: %.0f MiB %v after the last call", agent, now, time.Since(last).Round(time.Second))
		select {
		case <-time.After(idlePoll):
		case <-m.ctx.Done():
			return m.ctx.Err()
		}
		now = residentMiB()
	}
	after.record(100 * now / before)
	m.note("%.0f MiB %v after the last call to %s sessions, which leave memory after %v", now, time.Since(last).Round(time.Second), agent, passivate)
	return nil
}

// changeAgents changes one agent of many several times and returns the sorted durations
// of the changes. A change ends when every cell has applied it.
func (m *measurement) changeAgents(n *node) (took []time.Duration, err error) {
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
		if err := n.engine.Define(m.ctx, all, []actor.Definition{former}); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took, m.ctx.Err()
}

// residentMiB returns the resident set size of the process in MiB.
func residentMiB() float64 {
	var size, pages int
	b, _ := os.ReadFile("/proc/self/statm")
	fmt.Sscan(string(b), &size, &pages) //nolint:errcheck // on failure the result is 0, which is conspicuous
	return float64(pages*os.Getpagesize()) / (1 << 20)
}
