// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"bytes"
	"context"
	"fmt"
	"slices"
)

// AskKind is what an ask wants from the world.
type AskKind uint8

// The kinds of ask.
const (
	AskCall  AskKind = iota + 1 // another agent's answer
	AskTool                     // a tool, by name, with JSON input
	AskWork                     // a function of the agent's own, run outside the cell
	AskSleep                    // nothing but time
	AskWait                     // a signal by name: a person, an event
)

var askNames = [...]string{AskCall: "call", AskTool: "tool", AskWork: "work", AskSleep: "sleep", AskWait: "wait"}

// String is the kind's name.
func (k AskKind) String() string { return nameOf(askNames[:], int(k)) }

// Work is slow or impure code of an agent's own. It runs outside the cell and
// may be given up through ctx.
type Work func(ctx context.Context) ([]byte, error)

// Ask is one thing an agent wants from the world before it goes on.
type Ask struct {
	Kind AskKind
	// Name is the tool, the work, or the signal waited for; for a call it is
	// the target as the agent wrote it: agent, agent/key.
	Name string
	// Operation of a call; empty is HandleMessageFull.
	Operation string
	// Parts is a call's content, a tool's JSON input.
	Parts []Part
	// Timeout is what the agent asks for: of a call or tool, the length of a
	// sleep, the time a Wait stays open. 0 is the default of the kind.
	Timeout Duration
	// Idempotent work or tools are simply done again after a crash; of others
	// the outcome is then unknown.
	Idempotent bool
	// Work is the function itself. It is not written down: after a crash the
	// turn runs again up to here and brings it along.
	Work Work
}

// Answer is what came of one ask: content, or a refusal.
type Answer struct {
	Parts    []Part
	Warnings []string
	Refusal  *Refusal
}

// Outcome ends a turn: content and a status, or a refusal.
type Outcome struct {
	Status   Status
	Parts    []Part
	Warnings []string
	Refusal  *Refusal
}

// Action is what an agent wants next: the answers to some asks, all at once, or
// to end its turn. Exactly one of the two is set.
type Action struct {
	Asks []Ask
	Done *Outcome
}

// Complete ends a turn with content.
func Complete(parts []Part) Action { return Action{Done: &Outcome{Status: Succeeded, Parts: parts}} }

// GiveUp ends a turn with a refusal.
func GiveUp(r *Refusal) Action { return Action{Done: &Outcome{Status: Failed, Refusal: r}} }

// Begin is what a turn starts from. The same Begin and the same answers lead to
// the same actions, on any machine, at any time.
type Begin struct {
	Call Call
	At   Time // when the call was accepted
	Left Duration
}

// Behavior is what the actors of an agent do with a message.
type Behavior interface {
	// Begin starts a turn. It does nothing yet.
	Begin(Begin) Turn
}

// Turn is one message being dealt with.
type Turn interface {
	// Next takes the answers to the asks of the last action, in their order
	// (none at first), and says what is next. An error fails the run.
	Next(answers []Answer) (Action, error)
	// Stop gives the turn up; Next is not called again.
	Stop()
}

// Durability says what of an agent survives a crash.
type Durability uint8

// The durabilities.
const (
	Journaled Durability = iota // every turn is in the log
	Volatile                    // durability = "none": no entry, no load, nothing to gate
)

// Turns says whether an actor keeps its turn while it waits for calls.
type Turns uint8

// The ways of taking turns.
const (
	Serial      Turns = iota // one message from start to end
	Interleaved              // takes others while it waits; its turns share nothing
)

// Recursion says which callers a call may not go back to.
type Recursion uint8

// The two tests of a cycle.
const (
	ByAgent Recursion = iota // none of the same agent, whatever its key
	ByActor                  // none of the same agent and key
)

// Definition is an agent: what its actors do, and how. Hash names it; a run
// keeps the hash it began with.
type Definition struct {
	Name       string
	Hash       Hash
	Doc        string
	Durability Durability
	Turns      Turns
	Recursion  Recursion
	Behavior   Behavior
}

// SameAsks says where the asks of a turn that runs again differ from those it
// made before, if they do. Work functions are not compared.
func SameAsks(before, again []Ask) error {
	if len(before) != len(again) {
		return fmt.Errorf("made %d asks, now makes %d", len(before), len(again))
	}
	for i := range before {
		a, b := before[i], again[i]
		same := a.Kind == b.Kind && a.Name == b.Name && a.Operation == b.Operation &&
			a.Timeout == b.Timeout && a.Idempotent == b.Idempotent && slices.EqualFunc(a.Parts, b.Parts, samePart)
		if !same {
			return fmt.Errorf("ask %d was %s, is now %s", i, a, b)
		}
	}
	return nil
}

func samePart(a, b Part) bool {
	return a.Media == b.Media && a.Blob == b.Blob && bytes.Equal(a.Bytes, b.Bytes)
}

// String names the ask in a few words.
func (a Ask) String() string {
	return fmt.Sprintf("%s %s %.60q within %v", a.Kind, a.Name, TextOf(a.Parts), a.Timeout)
}
