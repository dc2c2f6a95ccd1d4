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
	AskCall   AskKind = iota + 1 // another agent's answer
	AskTool                      // a tool, by name, with JSON input
	AskWork                      // a function of the agent's own, run outside the cell
	AskSleep                     // nothing but time
	AskWait                      // a signal by name: a person, an event
	AskModel                     // a model's answer to a prompt
	AskInvoke                    // the answer of an external agent to this turn's message
)

var askNames = [...]string{AskCall: "call", AskTool: "tool", AskWork: "work", AskSleep: "sleep", AskWait: "wait", AskModel: "model", AskInvoke: "invoke"}

// String is the kind's name.
func (k AskKind) String() string { return nameOf(askNames[:], int(k)) }

// Work is slow or impure code of an agent's own. It runs outside the cell and
// may be given up through ctx.
type Work func(ctx context.Context) ([]byte, error)

// Ask is one thing an agent wants from the world before it goes on.
type Ask struct {
	Kind AskKind
	// Name is the tool, the work, or the signal waited for; the model, as this
	// program is told of it, or the external agent; for a call it is the target
	// as the agent wrote it: agent, agent/key.
	Name string
	// Operation of a call; empty is HandleMessageFull.
	Operation string
	// Parts is a call's content, a tool's JSON input; of a model, in a few words,
	// what is new since it was last asked; of an external agent, where it is, as JSON.
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
	// Body is all that a model is asked. It holds what the answers before hold
	// already, and so is not written down either.
	Body []byte
}

// NeedsReplay tells whether what is not written down is needed to ask once more.
func (a *Ask) NeedsReplay() bool { return a.Kind == AskWork || a.Kind == AskModel }

// RunsOutsideCell tells whether the world does it outside the cell, and tells what came of it.
func (a *Ask) RunsOutsideCell() bool {
	return a.Kind == AskTool || a.Kind == AskWork || a.Streams()
}

// Streams tells whether pieces of its answer may come before the whole.
func (a *Ask) Streams() bool { return a.Kind == AskModel || a.Kind == AskInvoke }

// Piece is what comes of a model or an external agent before its answer: text,
// the agent's state, or that the last try came to nothing and another follows.
type Piece struct {
	Text   string
	State  string
	Detail string   // of State: a JSON value, or ""
	Retry  *Refusal // what the last try came to; no text of it was passed on
}

// StateItem is something that an actor keeps from one message to the next.
type StateItem struct {
	Name  string // [A-Za-z0-9._-/]
	Value []byte // empty: it is not kept any more
}

// Bounds of what an actor keeps.
const (
	ActorStateItemsMax     = 8192
	StateItemNameBytesMax  = 256
	StateItemValueBytesMax = 64 << 10
	ActorStateBytesMax     = 32 << 20
	StateUpdatesMax        = 64
)

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
	// StateUpdates is written down with the action: durable before any ask goes out, and
	// before the outcome is told. Only serial, journaled actors keep something.
	StateUpdates []StateItem
}

// Complete ends a turn with content.
func Complete(parts []Part) Action { return Action{Done: &Outcome{Status: Succeeded, Parts: parts}} }

// EndRefused ends a turn with a refusal.
func EndRefused(r *Refusal) Action { return Action{Done: &Outcome{Status: Failed, Refusal: r}} }

// Begin is what a turn starts from. The same Begin and the same answers lead to
// the same actions, on any machine, at any time.
type Begin struct {
	Call       Call
	At         Time // when the call was accepted
	Left       Duration
	ActorState []StateItem // by name: what the actor kept until its turn began
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
	Kind       AgentKind
	Spec       []byte // what it was made of, as JSON; none for a native one
	System     bool   // part of Troupe itself: neither clients nor agents may call it
	Durability Durability
	Turns      Turns
	Recursion  Recursion
	Behavior   Behavior
}

// AgentKind says who wrote an agent, and how.
type AgentKind uint8

// The kinds of agent.
const (
	Native   AgentKind = iota // in Go
	Declared                  // in TOML or JSON: a prompt, a model, tools
	External                  // an HTTP service
)

var agentKindNames = [...]string{Native: "native", Declared: "declared", External: "external"}

// String is the kind's name.
func (k AgentKind) String() string { return nameOf(agentKindNames[:], int(k)) }

// SameAsks says where the asks of a turn that runs again differ from those it
// made before, if they do. What is not written down is not compared.
func SameAsks(before, again []Ask) error {
	if len(before) != len(again) {
		return fmt.Errorf("made %d asks, now makes %d", len(before), len(again))
	}
	for i := range before {
		if a, b := &before[i], &again[i]; !a.Same(b) {
			return fmt.Errorf("ask %d was %s, is now %s", i, a, b)
		}
	}
	return nil
}

// Same tells whether both ask for one thing.
func (a *Ask) Same(b *Ask) bool {
	return a.Kind == b.Kind && a.Name == b.Name && a.Operation == b.Operation &&
		a.Timeout == b.Timeout && a.Idempotent == b.Idempotent && slices.EqualFunc(a.Parts, b.Parts, samePart)
}

func samePart(a, b Part) bool {
	return a.Media == b.Media && a.Blob == b.Blob && bytes.Equal(a.Bytes, b.Bytes)
}

// String names the ask in a few words.
func (a Ask) String() string {
	return fmt.Sprintf("%s %s %.60q within %v", a.Kind, a.Name, TextOf(a.Parts), a.Timeout)
}
