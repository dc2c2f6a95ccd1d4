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

// studyChain measures a chain of calls between volatile agents, and the replies back: within
// sessions, whose actors share a cell, and through sessions of different cells.
func studyChain(b *bench) (rows []row, err error) {
	var links []actor.Definition
	for i := range chainCalls {
		within, across := relay(link(i), link(i+1), actor.Volatile), relay(hop(i), hop(i+1), actor.Volatile)
		across.Behavior = relayAgent{next: hop(i + 1), leaves: true}
		links = append(links, within, across)
	}
	links = append(links, echo(link(chainCalls), actor.Volatile), echo(hop(chainCalls), actor.Volatile))
	err = b.withNode(func(c *engine.Config) { c.Cells = 0 }, func(n *node) error {
		var keys []string
		for i := range chainSessions {
			keys = append(keys, fmt.Sprintf("session-%d", i))
		}
		r, err := b.chainRow(n, "chain of 5 calls and back, in one session", link(0), keys, ratioAtLeast(0.9))
		if err != nil {
			return err
		}
		rows = append(rows, r)
		if keys = leavingSessions(len(n.Stats().Cells)); keys == nil {
			return nil // with a single cell no call leaves it
		}
		if r, err = b.chainRow(n, "the same, each call to a session of another cell", hop(0), keys, floor{}); err == nil {
			rows = append(rows, r)
		}
		return err
	}, links...)
	return rows, err
}

func link(i int) string { return fmt.Sprintf("link-%d", i) }

func hop(i int) string { return fmt.Sprintf("hop-%d", i) }

// nextSession returns the session that the call of a leaving relay addresses.
func nextSession(key string) string { return key + "-" }

// leavingSessions returns sessions from which each call of a chain leads to another cell. It
// returns nil if it finds fewer than chainSessions.
func leavingSessions(cells int) (keys []string) {
	for i := 0; len(keys) < chainSessions; i++ {
		if i == 1<<16 {
			return nil
		}
		key := fmt.Sprintf("session-%d", i)
		leaves, at := true, key
		for range chainCalls {
			next := nextSession(at)
			leaves, at = leaves && cellOf(at, cells) != cellOf(next, cells), next
		}
		if leaves {
			keys = append(keys, key)
		}
	}
	return keys
}

// cellOf returns the cell of all actors of a session.
func cellOf(session string, cells int) int {
	return int(dispatcher.ShardOf(actor.NewID("any", session))) % cells
}

func (b *bench) chainRow(n *node, name, first string, keys []string, f floor) (row, error) {
	var to []actor.ID
	for _, key := range keys {
		to = append(to, actor.NewID(first, key))
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
