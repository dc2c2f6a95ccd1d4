// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// swapRegisterName is the agent of a world that keeps something from message to
// message: each leaves a value, which nobody else leaves, and is told the one
// that was left before. Whether that was so, linear.Kept judges.
//
//	leave value           at once
//	sleep ms, leave value with the answer, after a while
//	leave value, sleep ms before it, with what is asked
const swapRegisterName = "kim"

func swapRegisterAgent(forgetful bool) actor.Definition {
	return actor.Definition{Name: swapRegisterName, Doc: "keeps what the last message left", Behavior: swapRegister{forgetful}, Hash: actor.HashOf([]byte(swapRegisterName))}
}

type swapRegister struct{ forgetful bool }

// Begin implements actor.Behavior.
func (k swapRegister) Begin(b actor.Begin) actor.Turn {
	t := &swapTurn{words: strings.Fields(strings.ReplaceAll(actor.TextOf(b.Call.Parts), ",", " "))}
	for _, item := range b.ActorState {
		if t.previous = string(item.Value); k.forgetful && len(t.previous) > 2 {
			t.previous = ""
		}
	}
	return t
}

type swapTurn struct {
	words    []string
	previous string
	writes   []actor.StateItem
}

// Stop implements actor.Turn.
func (*swapTurn) Stop() {}

// Next implements actor.Turn.
func (k *swapTurn) Next([]actor.Answer) (actor.Action, error) {
	for len(k.words) > 1 {
		verb, word := k.words[0], k.words[1]
		k.words = k.words[2:]
		if verb == "leave" {
			k.writes = []actor.StateItem{{Name: "value", Value: []byte(word)}}
			continue
		}
		ms, err := strconv.Atoi(word)
		if verb != "sleep" || err != nil {
			return actor.Action{}, actor.Refuse(actor.Invalid, "%s knows leave and sleep, not %q", swapRegisterName, verb+" "+word)
		}
		keep := k.writes
		k.writes = nil
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: actor.Duration(ms) * time.Millisecond}}, StateUpdates: keep}, nil
	}
	done := actor.Complete(actor.Text(previousPrefix + k.previous))
	done.StateUpdates = k.writes
	return done, nil
}

const previousPrefix = "found "

// swapMessage draws a value that nobody has left, and how it is to be left.
func (d generator) swapMessage() (value, message string) {
	w := d.w
	w.registerValues++
	value = "v" + strconv.Itoa(w.registerValues)
	switch w.entropy.Int(4) {
	case 2:
		return value, "sleep " + strconv.Itoa(w.entropy.Int(300)) + ", leave " + value
	case 3:
		return value, "leave " + value + ", sleep " + strconv.Itoa(w.entropy.Int(300))
	}
	return value, "leave " + value
}

func (d generator) swapTarget() actor.ID {
	return actor.NewID(swapRegisterName, "s"+strconv.Itoa(d.w.entropy.Int(d.w.plan.Keys)))
}
