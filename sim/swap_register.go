// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// swapRegisterName is the agent that implements a swap register. Each message
// writes a unique value and returns the previous one. Package linear checks that
// these swaps are linearizable (LinearKept).
//
//	leave value            writes at once
//	sleep ms, leave value  writes with the reply, after a delay
//	leave value, sleep ms  writes with the ask, before a delay
//	leave value, fail now  fails, so that the value MUST NOT be found
const swapRegisterName = "kim"

func swapRegisterAgent(lossy bool) actor.Definition {
	return actor.Definition{Name: swapRegisterName, Doc: "stores a value and returns the previous one", Behavior: swapRegister{lossy}, Hash: actor.HashOf([]byte(swapRegisterName))}
}

type swapRegister struct{ lossy bool }

// Begin implements actor.Behavior.
func (r swapRegister) Begin(b actor.Begin) actor.Turn {
	t := &swapTurn{words: strings.Fields(strings.ReplaceAll(actor.TextOf(b.Call.Parts), ",", " "))}
	for _, item := range b.ActorState {
		if t.previous = string(item.Value); r.lossy && len(t.previous) > 2 {
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
func (t *swapTurn) Next([]actor.Answer) (actor.Action, error) {
	for len(t.words) > 1 {
		verb, word := t.words[0], t.words[1]
		t.words = t.words[2:]
		if verb == "leave" {
			t.writes = []actor.StateItem{{Name: "value", Value: []byte(word)}}
			continue
		}
		if verb == "fail" {
			failed := actor.EndRefused(actor.Refuse(actor.Rejected, "%s fails as told", swapRegisterName))
			failed.StateUpdates = t.writes
			return failed, nil
		}
		ms, err := strconv.Atoi(word)
		if verb != "sleep" || err != nil {
			return actor.Action{}, actor.Refuse(actor.Invalid, "%s: unknown instruction %q: want leave or sleep", swapRegisterName, verb+" "+word)
		}
		updates := t.writes
		t.writes = nil
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: actor.Duration(ms) * time.Millisecond}}, StateUpdates: updates}, nil
	}
	done := actor.Complete(actor.Text(previousPrefix + t.previous))
	done.StateUpdates = t.writes
	return done, nil
}

const previousPrefix = "found "

// swapMessage draws a value never written before, and a message that writes it.
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

// failingSwap draws a message whose turn fails after it has returned a new value.
func (d generator) failingSwap() string {
	d.w.registerValues++
	return "leave v" + strconv.Itoa(d.w.registerValues) + ", fail now"
}

func (d generator) swapTarget() actor.ID {
	return d.actor(swapRegisterName, d.w.drawKey())
}
