// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/troupe-run/troupe/actor"

// channelsCounterpart names the counterpart of volatile calls: a goroutine per
// actor that only forwards a message or returns it. It has no deadlines, refusals
// or supervision. It decodes nothing and looks up no names.
const channelsCounterpart = "bare channels, a goroutine per actor, no work"

// channelSlots is the capacity of an actor's channel, in messages. A sender blocks
// when the channel is full. A larger capacity does not increase throughput here,
// and it uses more memory.
const channelSlots = 1

type channelMessage struct {
	parts []actor.Part
	reply chan []actor.Part
}

// startChain starts a chain of goroutines, each of which asks the next one. It
// returns the channel of the first. Closing that channel ends all of them.
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

// channelActors holds chains of actors behind channels, and the reply channels of
// their callers.
type channelActors struct {
	actors  []chan channelMessage
	replies []chan []actor.Part // indexed by caller
}

// newChannelActors starts chains of the given number of actors each.
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

// ask sends parts to the first actor of a chain and returns the reply.
func (b *channelActors) ask(caller, chain int, parts []actor.Part) []actor.Part {
	b.actors[chain] <- channelMessage{parts, b.replies[caller]}
	return <-b.replies[caller]
}

func (b *channelActors) close() {
	for _, in := range b.actors {
		close(in)
	}
}
