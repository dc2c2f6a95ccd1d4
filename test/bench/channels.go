// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/troupe-run/troupe/actor"

// Channels are the counterpart of calls that write nothing down: a goroutine per
// actor which hands the message on, or back, and does nothing else. It has no
// deadline, no refusal, no supervision; it decodes nothing and looks nobody up.
const byChannels = "bare channels, a goroutine per actor, no work"

// channelSlots is how much may wait at an actor before its senders do. More of
// them make nothing faster here, and each takes up memory.
const channelSlots = 1

type handOff struct {
	parts []actor.Part
	reply chan []actor.Part
}

// linked starts so many actors, each of which asks the one behind it, and
// returns the first one's channel. Closing that ends them all.
func linked(actors int) chan handOff {
	first := make(chan handOff, channelSlots)
	in := first
	for range actors - 1 {
		next := make(chan handOff, channelSlots)
		go func(in <-chan handOff) {
			defer close(next)
			reply := make(chan []actor.Part, 1)
			for m := range in {
				next <- handOff{m.parts, reply}
				m.reply <- <-reply
			}
		}(in)
		in = next
	}
	go func(in <-chan handOff) {
		for m := range in {
			m.reply <- m.parts
		}
	}(in)
	return first
}

// bare is actors behind channels and the callers who ask them.
type bare struct {
	actors  []chan handOff
	replies []chan []actor.Part // by caller
}

// newBare starts chains of so many actors each.
func newBare(chains, actors, callers int) *bare {
	b := &bare{}
	for range chains {
		b.actors = append(b.actors, linked(actors))
	}
	for range callers {
		b.replies = append(b.replies, make(chan []actor.Part, 1))
	}
	return b
}

// ask asks the first actor of a chain.
func (b *bare) ask(caller, chain int, parts []actor.Part) []actor.Part {
	b.actors[chain] <- handOff{parts, b.replies[caller]}
	return <-b.replies[caller]
}

func (b *bare) close() {
	for _, in := range b.actors {
		close(in)
	}
}
