// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/troupe-run/troupe/actor"

// Channels are the counterpart of calls that write nothing down: a goroutine per
// actor which hands the message on, or back, and does nothing else. It has no
// deadline, no refusal, no supervision; it decodes nothing and looks nobody up.
const channelsCounterpart = "bare channels, a goroutine per actor, no work"

// channelSlots is how much may wait at an actor before its senders do. More of
// them make nothing faster here, and each takes up memory.
const channelSlots = 1

type channelMessage struct {
	parts []actor.Part
	reply chan []actor.Part
}

// startChain starts so many actors, each of which asks the one behind it, and
// returns the first one's channel. Closing that ends them all.
func startChain(actors int) chan channelMessage {
	first := make(chan channelMessage, channelSlots)
	in := first
	for range actors - 1 {
		next := make(chan channelMessage, channelSlots)
		go func(in <-chan channelMessage) {
			defer close(next)
			reply := make(chan []actor.Part, 1)
			for m := range in {
				next <- channelMessage{m.parts, reply}
				m.reply <- <-reply
			}
		}(in)
		in = next
	}
	go func(in <-chan channelMessage) {
		for m := range in {
			m.reply <- m.parts
		}
	}(in)
	return first
}

// channelActors is actors behind channels and the callers who ask them.
type channelActors struct {
	actors  []chan channelMessage
	replies []chan []actor.Part // by caller
}

// newChannelActors starts chains of so many actors each.
func newChannelActors(chains, actors, callers int) *channelActors {
	b := &channelActors{}
	for range chains {
		b.actors = append(b.actors, startChain(actors))
	}
	for range callers {
		b.replies = append(b.replies, make(chan []actor.Part, 1))
	}
	return b
}

// ask asks the first actor of a chain.
func (b *channelActors) ask(caller, chain int, parts []actor.Part) []actor.Part {
	b.actors[chain] <- channelMessage{parts, b.replies[caller]}
	return <-b.replies[caller]
}

func (b *channelActors) close() {
	for _, in := range b.actors {
		close(in)
	}
}
