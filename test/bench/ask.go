// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// payload is the message of every measured call. It has the length of a short
// question.
var payload = actor.Text("which of these papers speak about flow control?")

var errLostMessage = errors.New("the reply over the channel is incomplete")

// studyAsk measures calls from outside the cells to volatile agents, which append
// nothing to the log.
func studyAsk(b *bench) (rows []row, err error) {
	for _, v := range []struct {
		name            string
		callers, actors int
		floor           floor
	}{
		{"ask, 1 caller", 1, 1, ratioAtLeast(1)},
		{"ask, 64 callers on 1 actor", 64, 1, floor{}},
		{"ask, 64 callers on 64 actors", 64, 64, floor{}},
	} {
		err := b.withNode(nil, func(n *node) error {
			r, err := b.askRow(n, v.name, v.callers, v.actors, v.floor)
			if err == nil {
				rows = append(rows, r)
			}
			return err
		}, echo("echo", actor.Volatile))
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

func (b *bench) askRow(n *node, name string, callers, actors int, f floor) (row, error) {
	var to []actor.ID
	for i := range actors {
		to = append(to, actor.NewID("echo", fmt.Sprintf("session-%d", i)))
	}
	channels := newChannelActors(actors, 1, callers)
	defer channels.close()
	ours := func(caller, _ int) error { return n.ask(b.ctx, to[caller%actors], payload) }
	theirs := func(caller, _ int) error {
		if len(channels.ask(caller, caller%actors, payload)) != len(payload) {
			return errLostMessage
		}
		return nil
	}
	rounds, err := b.runRounds(comparison{name: name,
		ours:   func(n int) (time.Duration, error) { return runConcurrent(callers, n, ours) },
		theirs: func(n int) (time.Duration, error) { return runConcurrent(callers, n, theirs) }})
	if err != nil {
		return row{}, err
	}
	r := latencyRow(name, channelsCounterpart, rounds, f)
	return r, b.addPercentiles(&r, callers, ours, theirs)
}

// addPercentiles adds notes with the latency percentiles of both sides to a row.
// Latencies are measured in separate passes, because reading the clock costs a
// considerable part of an operation.
func (b *bench) addPercentiles(r *row, callers int, ours, theirs func(caller, i int) error) error {
	b.progress("%s: latencies", r.Name)
	for _, side := range []struct {
		name string
		one  func(caller, i int) error
	}{{"ours", ours}, {"counterpart", theirs}} {
		n, err := b.calibrate(func(n int) (time.Duration, error) { return runConcurrent(callers, n, side.one) }, b.sideTime)
		if err != nil {
			return err
		}
		all, err := latencies(callers, min(2*n, latencySamplesMax), side.one)
		if err != nil {
			return err
		}
		r.addNote("%s p50 %v, p99 %v, max %v", side.name, durationFigure(quantile(all, 0.5)), durationFigure(quantile(all, 0.99)), durationFigure(quantile(all, 1)))
	}
	return nil
}

// latencySamplesMax is the maximum number of latencies measured for one side.
const latencySamplesMax = 1_000_000

func durationFigure(d time.Duration) figure { return figure{float64(d), nanoseconds} }
