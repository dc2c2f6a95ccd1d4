// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Ready is the result of one Step. The driver MUST append the entries before it
// performs the effects. The driver owns the entries, effects and events. The slices
// Effects, Events and Measures are reused and are valid only until the next Step.
type Ready struct {
	Entries []store.Entry // to be appended to the node's log in this order and in one commit
	Effects []Effect
	Events  []history.Event
	// Measures are for statistics alone. No behaviour may depend on them.
	Measures []Measure
}

// Effect is one operation for the driver to perform.
type Effect struct {
	ID      actor.EffectID // idempotency key, the same on every attempt; zero if no run requested the effect
	Attempt uint32
	Gated   bool // perform only after the log is durable up to the end of this Ready's entries
	Op      Op
}

// Input is an input of Step. The set is closed.
type Input interface{ input() }

type (
	// Boot starts a cell, after Limits, Agents and Owners. Running lists the
	// effects of the previous incarnation that are still being performed. The
	// driver MUST keep their outcomes until the matching Await. Strikes holds the
	// number of panics of Step for each call.
	Boot struct {
		Running []actor.EffectID
		Strikes []Strike
	}
	// Deliver delivers a message from a cell, or, if From is zero, from a client of
	// this node.
	Deliver struct{ Envelope actor.Envelope }
	// Visit delivers a client's call without an envelope. The cell completes the call, and
	// keeps nothing of it after the step. Subscribed reports whether a subscriber wants the run's
	// events while it runs.
	Visit struct {
		Call       actor.Call
		Subscribed bool
	}
	// Outcome is the result of a Tool, Work, Model or Invoke effect.
	Outcome struct {
		ID      actor.EffectID
		Attempt uint32
		Answer  actor.Answer
	}
	// Streamed is a piece of the answer to a Model or Invoke effect. Pieces arrive
	// in order. The driver MUST step a piece before it sends the next piece.
	Streamed struct {
		ID      actor.EffectID
		Attempt uint32
		Piece   actor.Piece
	}
	// Loaded answers a Load of an actor. Epoch is the epoch of the Load. If the
	// shard was lost and regained since the Load, the epochs differ and the answer
	// is ignored.
	Loaded struct {
		Actor actor.ID
		Epoch actor.Epoch
		Saved store.Saved
	}
	// Recalled answers a Load of an outcome. It has no epoch, because an outcome is
	// the same under every epoch.
	Recalled struct {
		Actor   actor.ID
		Outcome uint64
		Reply   actor.Reply
	}
	// PageLoaded answers a Load of a page of a transcript.
	PageLoaded struct {
		Actor    actor.ID
		Page     actor.Hash
		Messages []actor.ChatMessage
	}
	// LoadFailed answers a Load that failed. Gone reports that the session of the actor
	// was deleted.
	LoadFailed struct {
		Actor   actor.ID
		Epoch   actor.Epoch
		Outcome uint64
		Page    actor.Hash
		Why     string
		Gone    bool
	}
	// Due answers Expiries with actors that have open work. They may come in any
	// order and in several inputs. Last marks the last of them.
	Due struct {
		Actors []actor.ID
		Last   bool
	}
	// Owners replaces the table of shard owners.
	Owners struct{ Table dispatcher.Table }
	// Agents replaces the agent definitions. Runs that started under an older
	// definition keep it. Former holds older definitions, because a new cell has
	// not received earlier Agents inputs. Tools, if not nil, replaces the tools and their
	// policy.
	Agents struct {
		Definitions, Former []actor.Definition
		Tools               *tools.Registry
	}
	// Limits replaces the limits.
	Limits struct{ Limits dispatcher.Limits }
	// CellRestarted reports that a cell of this node started a new incarnation.
	CellRestarted struct{ Cell actor.Address }
	// Forget deletes a session without open runs. The cell answers with Forgot.
	Forget struct{ Session Session }
	// ForgetChecked answers a MayForget. Refusal is nil if the session can be deleted.
	ForgetChecked struct {
		Session Session
		Epoch   actor.Epoch
		Refusal *actor.Refusal
	}
	// Tick advances the time.
	Tick struct{}
)

func (Boot) input()          {}
func (Deliver) input()       {}
func (*Visit) input()        {}
func (Outcome) input()       {}
func (Streamed) input()      {}
func (Loaded) input()        {}
func (Recalled) input()      {}
func (PageLoaded) input()    {}
func (LoadFailed) input()    {}
func (Due) input()           {}
func (Owners) input()        {}
func (Agents) input()        {}
func (Limits) input()        {}
func (CellRestarted) input() {}
func (Forget) input()        {}
func (ForgetChecked) input() {}
func (Tick) input()          {}

// Strike is the number of steps that panicked while handling a call.
type Strike struct {
	Call  actor.CallID
	Times int
}

// Op is the operation of an effect. The set is closed.
type Op interface{ op() }

type (
	// Send carries a message to a cell of this node or of another node. The cell
	// keeps no reference to its contents.
	Send struct {
		Node     actor.NodeID
		Cell     uint16
		Envelope actor.Envelope
	}
	// Respond answers a client's call. If HeldUntil is set, the run is held: the
	// client's wait ends and the run continues. Reply then holds only the ids of
	// call and run.
	Respond struct {
		Call      actor.CallID // id of the client's call
		Reply     actor.Reply
		HeldUntil actor.Time
	}
	// Joined reports to a waiting client that its call duplicates the open run Run.
	Joined struct{ Call, Run actor.CallID }
	// Publish passes a run event to its subscribers. An event without a body means all
	// events of its run up to its number, which are in the log.
	Publish struct{ Event store.RunEvent }
	// Tool runs a tool of the registry, or the declared one. The answer MUST have one part,
	// the result, or a refusal.
	Tool struct {
		Name     string
		Input    []byte
		Context  tools.ExecutionContext
		Left     actor.Duration
		Declared *tools.Declared // nil for a tool with a handler
		Together int             // calls of a tool with batch that leave at once, with this one; 0 or 1: it is alone
	}
	// Work runs a function supplied by the agent.
	Work struct {
		Name string
		Func actor.Work
		Left actor.Duration
	}
	// Model sends a request to a model. The answer MUST have one part, an
	// upstream.Completion.
	Model struct {
		Name string
		Body []byte // encoded upstream.Prompt
		// Tools replace or extend the tools of the prompt. They depend on the agents
		// known at this attempt, so a replay does not compare them.
		Tools []upstream.ToolSpec
		// AnswerTokens is the maximum of tokens of an answer whose prompt and model name none; 0: any number.
		AnswerTokens int64
		Call         actor.Call // originating call
		Volatile     bool       // nothing is written down of its run
		Left         actor.Duration
	}
	// Invoke has an external agent handle the call. The answer MUST have one part,
	// an upstream.Completion. An Adjust replaces Left.
	Invoke struct {
		Name       string
		Target     []byte // location of the agent, as given in the ask
		Idempotent bool   // invoking it twice is safe
		Attempt    uint32 // number of the invocation for its run, from 1
		Call       actor.Call
		Messages   []byte // earlier messages, encoded by upstream.EncodeMessages
		Left       actor.Duration
	}
	// Adjust replaces the time left of the Invoke effect with the same ID and
	// attempt, because a call that its agent added is held or resumed.
	Adjust struct{ Left actor.Duration }
	// Abort stops the effect with the same ID and attempt. Its outcome is ignored.
	Abort struct{}
	// Await requests the outcome of the effect with the same ID and attempt, which
	// the previous incarnation started. The actor is loaded, so the driver may
	// deliver the outcome.
	Await struct{}
	// Load reads an actor, one of its recorded outcomes, or a page of its transcript. It is gated, so that it
	// cannot overtake the actor's own entries.
	Load struct {
		Actor   actor.ID
		Epoch   actor.Epoch
		Outcome uint64     // number of the entry that records the outcome; 0 means the whole actor
		Page    actor.Hash // of its transcript; zero means none
	}
	// Expiries requests the actors of these shards that have open work. The driver
	// answers with one or more Due inputs.
	Expiries struct{ Shards []uint16 }
	// MayForget checks in the store that a session can be deleted. It is gated.
	MayForget struct {
		Session Session
		Epoch   actor.Epoch
	}
	// Forgot ends a Forget. If Refusal is nil, the session stays deleted: the driver then
	// deletes its rows.
	Forgot struct {
		Session Session
		Refusal *actor.Refusal
	}
)

func (Send) op()      {}
func (Respond) op()   {}
func (Joined) op()    {}
func (Publish) op()   {}
func (Tool) op()      {}
func (Work) op()      {}
func (Model) op()     {}
func (Invoke) op()    {}
func (Adjust) op()    {}
func (Abort) op()     {}
func (Await) op()     {}
func (Load) op()      {}
func (Expiries) op()  {}
func (MayForget) op() {}
func (Forgot) op()    {}
