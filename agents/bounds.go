// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// Limits of a turn, for every kind of agent.
const (
	StepsMax      = 50      // actions with asks; for a declared agent, prompts to its model
	SameToolMax   = 3       // the SameToolMax-th ask for one tool with the same input is refused
	StateBytesMax = 4 << 20 // bytes of the request, the answers so far, the phase and the continuation; includes blobs; several times the largest message
)

// bounded enforces the limits of a turn. A refused ask is answered with the
// refusal, so that the agent can continue without the result.
type bounded struct {
	inner      actor.Turn
	self       actor.ID
	maxSteps   int // maximum number of actions with asks
	steps      int
	bytes      int
	toolCounts map[actor.Hash]int // number of asks by tool and input
	refused    []*actor.Answer    // for each ask of the last action: its refusal, or nil if the ask was issued
}

func bound(begin actor.Begin, maxSteps int, inner actor.Turn) actor.Turn {
	return &bounded{inner: inner, self: begin.Call.To, maxSteps: maxSteps, bytes: actor.SizeOf(begin.Call.Parts)}
}

func (b *bounded) Stop() { b.inner.Stop() }

func (b *bounded) Next(answers []actor.Answer) (actor.Action, error) {
	var refused []actor.RefusedAsk
	for {
		if b.refused != nil {
			merged, err := b.mergeAnswers(answers)
			if err != nil {
				return actor.Action{}, err
			}
			answers = merged
		}
		if b.bytes > StateBytesMax {
			return actor.EndRefused(actor.Refuse(actor.Budget, "%s: %d bytes of data in one turn, at most %d allowed", b.self, b.bytes, StateBytesMax)), nil
		}
		action, err := b.inner.Next(answers)
		if err != nil {
			return actor.Action{}, err
		}
		if (action.Done == nil) == (len(action.Asks) == 0) {
			return actor.Action{}, fmt.Errorf("agent %s: an action must have either asks or an outcome", b.self.Agent)
		}
		refused = append(refused, action.Refused...)
		action.Refused = refused
		if action.Done != nil {
			return action, nil
		}
		if b.steps++; b.steps > b.maxSteps {
			end := actor.EndRefused(actor.Refuse(actor.Budget, "%s: more than %d steps in one turn", b.self, b.maxSteps))
			end.Refused = refused
			return end, nil
		}
		issued := b.refuseRepeats(action.Asks)
		for i, answer := range b.refused {
			if answer != nil {
				refused = append(refused, actor.RefusedAsk{Ask: action.Asks[i], Refusal: answer.Refusal})
			}
		}
		if action.Asks, action.Refused = issued, refused; len(issued) > 0 {
			return action, nil
		}
		answers = nil // every ask was refused
	}
}

// refuseRepeats answers repeated asks with a refusal and returns the others.
func (b *bounded) refuseRepeats(asks []actor.Ask) []actor.Ask {
	b.refused = make([]*actor.Answer, len(asks))
	issued := make([]actor.Ask, 0, len(asks))
	for i, ask := range asks {
		if ask.Kind == actor.AskTool && b.countRepeats(ask) >= SameToolMax {
			b.refused[i] = &actor.Answer{Refusal: actor.Refuse(actor.Rejected,
				"%s was asked for %d times with the same input: it will not say anything else", ask.Name, SameToolMax)}
			continue
		}
		issued = append(issued, ask)
	}
	return issued
}

// countRepeats returns the number of times the turn has made this ask.
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

// mergeAnswers combines the answers to issued asks with the refusals of the others,
// in the order of the asks.
func (b *bounded) mergeAnswers(answers []actor.Answer) ([]actor.Answer, error) {
	all := make([]actor.Answer, len(b.refused))
	next := 0
	for i, refusal := range b.refused {
		switch {
		case refusal != nil:
			all[i] = *refusal
		case next == len(answers):
			return nil, fmt.Errorf("agent %s: too few answers: %d", b.self.Agent, len(answers))
		default:
			all[i] = answers[next]
			next++
		}
		b.bytes += actor.SizeOf(all[i].Parts)
	}
	if next != len(answers) {
		return nil, fmt.Errorf("agent %s: got %d answers to %d asks", b.self.Agent, len(answers), next)
	}
	b.refused = nil
	return all, nil
}
