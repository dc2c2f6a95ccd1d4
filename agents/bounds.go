// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// The bounds of a turn, however it is written.
const (
	StepsMax      = 50      // actions that ask; of a declared agent, those that ask its model
	SameToolMax   = 3       // the third ask for the same tool with the same input is refused
	StateBytesMax = 1 << 20 // request, answers so far and continuation, inline
)

// bounded keeps a turn within its bounds. What it refuses the agent hears as the
// answer to its ask, so that it can do something else.
type bounded struct {
	inner      actor.Turn
	self       actor.ID
	maxSteps   int // steps
	steps      int
	bytes      int
	toolCounts map[actor.Hash]int // how often each was asked for
	refused    []*actor.Answer    // beside the last asks: what was answered here
}

func bound(begin actor.Begin, steps int, inner actor.Turn) actor.Turn {
	return &bounded{inner: inner, self: begin.Call.To, maxSteps: steps, bytes: actor.SizeOf(begin.Call.Parts)}
}

func (b *bounded) Stop() { b.inner.Stop() }

func (b *bounded) Next(answers []actor.Answer) (actor.Action, error) {
	for {
		if b.refused != nil {
			merged, err := b.mergeAnswers(answers)
			if err != nil {
				return actor.Action{}, err
			}
			answers = merged
		}
		if b.bytes > StateBytesMax {
			return actor.EndRefused(actor.Refuse(actor.Budget, "%s has gathered %d bytes in its turn, at most %d allowed", b.self, b.bytes, StateBytesMax)), nil
		}
		action, err := b.inner.Next(answers)
		if err != nil {
			return actor.Action{}, err
		}
		if (action.Done == nil) == (len(action.Asks) == 0) {
			return actor.Action{}, fmt.Errorf("agent %s: an action asks or ends, one of the two", b.self.Agent)
		}
		if action.Done != nil {
			return action, nil
		}
		if b.steps++; b.steps > b.maxSteps {
			return actor.EndRefused(actor.Refuse(actor.Budget, "%s wants to make more than %d steps in its turn", b.self, b.maxSteps)), nil
		}
		if action.Asks = b.refuseRepeats(action.Asks); len(action.Asks) > 0 {
			return action, nil
		}
		answers = nil // all were answered here
	}
}

// refuseRepeats answers the asks that repeat themselves, and returns the others.
func (b *bounded) refuseRepeats(asks []actor.Ask) []actor.Ask {
	b.refused = make([]*actor.Answer, len(asks))
	out := make([]actor.Ask, 0, len(asks))
	for i, ask := range asks {
		if ask.Kind == actor.AskTool && b.countRepeats(ask) >= SameToolMax {
			b.refused[i] = &actor.Answer{Refusal: actor.Refuse(actor.Rejected,
				"%s was asked for %d times with the same input: it will not say anything else", ask.Name, SameToolMax)}
			continue
		}
		out = append(out, ask)
	}
	return out
}

// countRepeats counts how often the turn has asked for this.
func (b *bounded) countRepeats(ask actor.Ask) int {
	var e actor.Encoder
	e.String(ask.Name)
	e.Parts(ask.Parts)
	if b.toolCounts == nil {
		b.toolCounts = map[actor.Hash]int{}
	}
	id := actor.HashOf(e.Buf)
	b.toolCounts[id]++
	return b.toolCounts[id]
}

// mergeAnswers puts the answers of the world beside those given here.
func (b *bounded) mergeAnswers(answers []actor.Answer) ([]actor.Answer, error) {
	all := make([]actor.Answer, len(b.refused))
	next := 0
	for i, held := range b.refused {
		switch {
		case held != nil:
			all[i] = *held
		case next == len(answers):
			return nil, fmt.Errorf("agent %s: %d answers are too few", b.self.Agent, len(answers))
		default:
			all[i] = answers[next]
			next++
		}
		b.bytes += actor.SizeOf(all[i].Parts)
	}
	if next != len(answers) {
		return nil, fmt.Errorf("agent %s: %d answers to %d asks", b.self.Agent, len(answers), next)
	}
	b.refused = nil
	return all, nil
}
