// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// keeperName is the agent of a world that keeps something from message to
// message: each leaves a value, which nobody else leaves, and is told the one
// that was left before. Whether that was so, linear.Kept judges.
//
//	leave value           at once
//	sleep ms, leave value with the answer, after a while
//	leave value, sleep ms before it, with what is asked
const keeperName = "kim"

func keeperAgent(forgetful bool) actor.Definition {
	return actor.Definition{Name: keeperName, Doc: "keeps what the last message left", Behavior: keeper{forgetful}, Hash: actor.HashOf([]byte(keeperName))}
}

type keeper struct{ forgetful bool }

// Begin implements actor.Behavior.
func (k keeper) Begin(b actor.Begin) actor.Turn {
	t := &keeping{words: strings.Fields(strings.ReplaceAll(actor.TextOf(b.Call.Parts), ",", " "))}
	for _, item := range b.ActorState {
		if t.found = string(item.Value); k.forgetful && len(t.found) > 2 {
			t.found = ""
		}
	}
	return t
}

type keeping struct {
	words []string
	found string
	keep  []actor.StateItem
}

// Stop implements actor.Turn.
func (*keeping) Stop() {}

// Next implements actor.Turn.
func (k *keeping) Next([]actor.Answer) (actor.Action, error) {
	for len(k.words) > 1 {
		verb, word := k.words[0], k.words[1]
		k.words = k.words[2:]
		if verb == "leave" {
			k.keep = []actor.StateItem{{Name: "value", Value: []byte(word)}}
			continue
		}
		ms, err := strconv.Atoi(word)
		if verb != "sleep" || err != nil {
			return actor.Action{}, actor.Refuse(actor.Invalid, "%s knows leave and sleep, not %q", keeperName, verb+" "+word)
		}
		keep := k.keep
		k.keep = nil
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: actor.Duration(ms) * time.Millisecond}}, StateUpdates: keep}, nil
	}
	done := actor.Complete(actor.Text(foundMark + k.found))
	done.StateUpdates = k.keep
	return done, nil
}

const foundMark = "found "

// leave draws a value that nobody has left, and how it is to be left.
func (d drawer) leave() (value, message string) {
	w := d.w
	w.values++
	value = "v" + strconv.Itoa(w.values)
	switch w.choose.Int(4) {
	case 2:
		return value, "sleep " + strconv.Itoa(w.choose.Int(300)) + ", leave " + value
	case 3:
		return value, "leave " + value + ", sleep " + strconv.Itoa(w.choose.Int(300))
	}
	return value, "leave " + value
}

func (d drawer) keeper() actor.ID {
	return actor.NewID(keeperName, "s"+strconv.Itoa(d.w.choose.Int(d.w.plan.Keys)))
}
