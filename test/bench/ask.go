// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// payload is what callers say: as long as a short question.
var payload = actor.Text("which of these papers speak about flow control?")

var errSilent = errors.New("a channel lost a message")

// studyAsk measures calls from outside of an agent that writes nothing down.
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
		err := b.in(nil, func(n *node) error {
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
	channels := newBare(actors, 1, callers)
	defer channels.close()
	ours := func(caller, _ int) error { return n.ask(b.ctx, to[caller%actors], payload) }
	theirs := func(caller, _ int) error {
		if len(channels.ask(caller, caller%actors, payload)) != len(payload) {
			return errSilent
		}
		return nil
	}
	rounds, err := b.alternate(duel{name: name,
		ours:   func(n int) (time.Duration, error) { return crowd(callers, n, ours) },
		theirs: func(n int) (time.Duration, error) { return crowd(callers, n, theirs) }})
	if err != nil {
		return row{}, err
	}
	r := timed(name, byChannels, rounds, f)
	return r, b.percentiles(&r, callers, ours, theirs)
}

// percentiles puts beside a row how long single operations take, of both sides.
// They are measured apart: looking at the clock costs as much as a part of them.
func (b *bench) percentiles(r *row, callers int, ours, theirs func(caller, i int) error) error {
	b.progress("%s: single ones", r.Name)
	for _, side := range []struct {
		name string
		one  func(caller, i int) error
	}{{"ours", ours}, {"counterpart", theirs}} {
		n, err := b.calibrate(func(n int) (time.Duration, error) { return crowd(callers, n, side.one) }, b.lap)
		if err != nil {
			return err
		}
		all, err := latencies(callers, min(2*n, singles), side.one)
		if err != nil {
			return err
		}
		r.beside("%s p50 %v, p99 %v, max %v", side.name, span(at(all, 0.5)), span(at(all, 0.99)), span(at(all, 1)))
	}
	return nil
}

// singles are as many as are kept at most.
const singles = 1_000_000

func span(d time.Duration) figure { return figure{float64(d), nanoseconds} }
