// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Ready is what one step wants done, in this order: append, then perform. What is
// in it is the world's, but for the slices of effects and events, which are good
// until the next Step.
type Ready struct {
	Entries []store.Entry // appended, in this order, to the node's one log; never split over two commits
	Effects []Effect
	Events  []history.Event
}

// Effect is one thing for the world to do.
type Effect struct {
	ID      actor.EffectID // the idempotency key, the same on every attempt; zero for what no run asked for
	Attempt uint32
	Gated   bool // hold it back until the log is durable up to its end after this Ready's entries
	Op      Op
}

// Input is what a world tells a cell. The set is closed.
type Input interface{ input() }

type (
	// Boot begins a cell's life, after Limits, Agents and Owners. Running names
	// the effects of the incarnation before that are still being performed; what
	// comes of them is kept until an Await. Strikes counts the steps that panicked, by call.
	Boot struct {
		Running []actor.EffectID
		Strikes []Strike
	}
	// Deliver brings a message: from a cell, or, with a zero From, from a client of this node.
	Deliver struct{ Envelope actor.Envelope }
	// Visit is the Deliver of a client's call, which stays the world's. Followed
	// says that somebody wants to hear of the run while it goes on.
	Visit struct {
		Call       actor.Call
		Subscribed bool
	}
	// Outcome is what came of a Tool, Work, Model or Invoke effect.
	Outcome struct {
		ID      actor.EffectID
		Attempt uint32
		Answer  actor.Answer
	}
	// Streamed is a piece of the answer to a Model or Invoke effect, in order.
	// The next comes when this one was stepped.
	Streamed struct {
		ID      actor.EffectID
		Attempt uint32
		Piece   actor.Piece
	}
	// Loaded answers Load. The epoch is that of the question: an answer to one
	// that was asked before the shard left and came back is of no use.
	Loaded struct {
		Actor actor.ID
		Epoch actor.Epoch
		Saved store.Saved
	}
	// Recalled answers a Load of an outcome, which is the same under every epoch.
	Recalled struct {
		Actor   actor.ID
		Outcome uint64
		Reply   actor.Reply
	}
	// LoadFailed answers Load when the disk has it otherwise.
	LoadFailed struct {
		Actor   actor.ID
		Epoch   actor.Epoch
		Outcome uint64
		Why     string
	}
	// Due answers Expiries: the actors with open work, in any order, all at once or
	// some at a time.
	Due struct{ Actors []actor.ID }
	// Owners replaces the table of owners.
	Owners struct{ Table dispatcher.Table }
	// Agents replaces the agents that exist. Runs under an older definition keep
	// it; Former are older ones that a cell made new has not seen.
	Agents struct{ Definitions, Former []actor.Definition }
	// Limits replaces the limits.
	Limits struct{ Limits dispatcher.Limits }
	// CellRestarted says that a cell of this node began a new incarnation.
	CellRestarted struct{ Cell actor.Address }
	// Tick says that time has passed.
	Tick struct{}
)

func (Boot) input()          {}
func (Deliver) input()       {}
func (*Visit) input()        {}
func (Outcome) input()       {}
func (Streamed) input()      {}
func (Loaded) input()        {}
func (Recalled) input()      {}
func (LoadFailed) input()    {}
func (Due) input()           {}
func (Owners) input()        {}
func (Agents) input()        {}
func (Limits) input()        {}
func (CellRestarted) input() {}
func (Tick) input()          {}

// Strike counts the steps that panicked while they dealt with a call.
type Strike struct {
	Call  actor.CallID
	Times int
}

// Op is what an effect does. The set is closed.
type Op interface{ op() }

type (
	// Send carries a message to a cell: of this node, or of another. The cell holds
	// nothing of it.
	Send struct {
		Node     actor.NodeID
		Cell     uint16
		Envelope actor.Envelope
	}
	// Respond tells a client what came of its call. With HeldUntil set the run
	// goes on without it: its id is all there is to say now.
	Respond struct {
		Call      actor.CallID // the client's call
		Reply     actor.Reply
		HeldUntil actor.Time
	}
	// Joined tells a waiting client that its call repeats an open run, and which.
	Joined struct{ Call, Run actor.CallID }
	// Publish shows a run's event to who watches it.
	Publish struct{ Event store.RunEvent }
	// Tool runs a tool of the registry.
	Tool struct {
		Name    string
		Input   []byte
		Context tools.ExecutionContext
		Left    actor.Duration
	}
	// Work runs a function of the agent's own.
	Work struct {
		Name string
		Func actor.Work
		Left actor.Duration
	}
	// Model asks a model. The answer's one part is an upstream.Completion.
	Model struct {
		Name string
		Body []byte     // an upstream.Prompt
		Call actor.Call // on whose behalf
		Left actor.Duration
	}
	// Invoke has an external agent deal with the call. The answer's one part is
	// an upstream.Completion.
	Invoke struct {
		Name       string
		Target     []byte // where it is, as the ask had it
		Idempotent bool   // asking it twice does no harm
		Call       actor.Call
		Left       actor.Duration
	}
	// Abort gives up the effect of the same ID and attempt. Its
	// outcome is not waited for.
	Abort struct{}
	// Await says that the cell is ready for what comes of the effect of the same
	// ID and attempt, which an incarnation before it had begun.
	Await struct{}
	// Load reads an actor, or only the outcome that one of its entries says. It is
	// gated, so that it never overtakes the actor's own entries.
	Load struct {
		Actor   actor.ID
		Epoch   actor.Epoch
		Outcome uint64 // the entry's number; 0: all of the actor
	}
	// Expiries asks for the actors of these shards that have open work.
	Expiries struct{ Shards []uint16 }
)

func (Send) op()     {}
func (Respond) op()  {}
func (Joined) op()   {}
func (Publish) op()  {}
func (Tool) op()     {}
func (Work) op()     {}
func (Model) op()    {}
func (Invoke) op()   {}
func (Abort) op()    {}
func (Await) op()    {}
func (Load) op()     {}
func (Expiries) op() {}
