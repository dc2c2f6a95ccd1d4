// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/engine"
)

const (
	chainCalls    = 5 // calls between actors; the maximum depth that the default limits allow
	chainSessions = 64
)

// studyChain measures a chain of calls between volatile agents, and the replies
// back. The cell of an actor is determined by the hash of its ID. The rows use
// different sessions, and therefore different placements.
func studyChain(b *bench) (rows []row, err error) {
	var links []actor.Definition
	for i := range chainCalls {
		links = append(links, relay(link(i), link(i+1), actor.Volatile))
	}
	links = append(links, echo(link(chainCalls), actor.Volatile))
	var cells int
	err = b.withNode(func(c *engine.Config) { c.Cells = 0 }, func(n *node) error {
		cells = len(n.Stats().Cells)
		for _, v := range []struct {
			name   string
			accept func(same, hops int) bool
			floor  floor
		}{
			{"chain of 5 calls and back, as names hash", func(int, int) bool { return true }, ratioAtLeast(0.9)},
			{"the same, all in one cell", func(same, hops int) bool { return same == hops }, floor{}},
			{"the same, each call to another cell", func(same, _ int) bool { return same == 0 }, floor{}},
		} {
			keys := sessions(cells, v.accept)
			if keys == nil {
				continue // with a single cell no call leaves it
			}
			r, err := b.chainRow(n, v.name, keys, v.floor)
			if err != nil {
				return err
			}
			rows = append(rows, r)
		}
		return nil
	}, links...)
	return rows, err
}

func link(i int) string { return fmt.Sprintf("link-%d", i) }

// sessions returns keys whose placement of the actors of a chain satisfies accept. It
// returns nil if it finds fewer than chainSessions keys.
func sessions(cells int, accept func(same, hops int) bool) (keys []string) {
	for i := 0; len(keys) < chainSessions && i < 1<<16; i++ {
		key := fmt.Sprintf("session-%d", i)
		same := 0
		for l := range chainCalls {
			if cellOf(link(l), key, cells) == cellOf(link(l+1), key, cells) {
				same++
			}
		}
		if accept(same, chainCalls) {
			keys = append(keys, key)
		}
	}
	return keys
}

func cellOf(agent, key string, cells int) int {
	return int(dispatcher.ShardOf(actor.NewID(agent, key))) % cells
}

func (b *bench) chainRow(n *node, name string, keys []string, f floor) (row, error) {
	var to []actor.ID
	for _, key := range keys {
		to = append(to, actor.NewID(link(0), key))
	}
	channels := newChannelActors(len(keys), chainCalls+1, 1)
	defer channels.close()
	ours := func(_, i int) error { return n.ask(b.ctx, to[i%len(to)], payload) }
	theirs := func(_, i int) error {
		if len(channels.ask(0, i%len(to), payload)) != len(payload) {
			return errLostMessage
		}
		return nil
	}
	rounds, err := b.runRounds(comparison{name: name,
		ours:   func(n int) (time.Duration, error) { return runConcurrent(1, n, ours) },
		theirs: func(n int) (time.Duration, error) { return runConcurrent(1, n, theirs) }})
	if err != nil {
		return row{}, err
	}
	r := latencyRow(name, channelsCounterpart, rounds, f)
	return r, b.addPercentiles(&r, 1, ours, theirs)
}
