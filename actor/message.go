// SPDX-License-Identifier: Apache-2.0

package actor

// Message is a message between cells. The set of implementations is closed.
type Message interface {
	// Subject returns the ID of the call that the message is about.
	Subject() CallID
	// Name returns the name of the message in histories.
	Name() string
}

// Request asks an actor for a turn. The same call may be delivered more than once.
type Request struct{ Call Call }

// Answered delivers the outcome of a call to the calling actor or client.
type Answered struct{ Reply Reply }

// Cancel notifies an actor that its caller no longer waits for the call, or that a
// client cancels the run.
type Cancel struct {
	Call   CallID
	Reason Reason // Deadline or Stopped
	By     string // user of the client that cancelled the run; empty for a caller
}

// Held notifies a caller that the call waits for a person. The field Until is the
// latest end of the wait. Of two Held messages for one call, the message with the
// higher N is newer.
type Held struct {
	Call  CallID
	N     uint64
	Until Time
	For   Hold
}

// Resumed notifies a caller that a held call has resumed.
type Resumed struct {
	Call CallID
	N    uint64
}

// Open answers a repeated Request whose turn has not ended.
type Open struct {
	Call  CallID
	N     uint64
	Until Time // if not 0, the turn is held until then
	For   Hold // zero if the turn is not held
}

// Probe follows the wait-for edges between calls and turns to detect a wait cycle.
// It makes two laps:
//
//  1. In lap one Confirm is 0, and the probe asks which turns the call To waits
//     for. A probe that returns to the call From has found a cycle.
//  2. Lap two confirms hop by hop that each wait still exists. It ends at the
//     call to be refused.
//
// If a turn waits for several calls, the probe is split into several probes, which
// share the value of Branches. BranchesMax therefore bounds the number of concurrent
// probes of one call.
type Probe struct {
	From, To CallID
	Hops     []Hop
	Branches uint32 // maximum number of probes into which this probe may be split
	Confirm  uint32 // hop to confirm, from 1; 0 in lap one
}

// Hop is one edge of a wait cycle: the call waits for the turn. If Call equals Turn,
// the turn processes the call. Otherwise the call is queued behind the turn.
type Hop struct {
	Call  CallID
	Actor ID // actor that owns the mailbox and the turn
	Turn  CallID
	Epoch Epoch
	Stamp Time // creation time of Call; the newest queued call is refused
}

// Queued reports whether the call waits in a mailbox.
func (h Hop) Queued() bool { return h.Call != h.Turn }

func (m Request) Subject() CallID  { return m.Call.ID }
func (m Answered) Subject() CallID { return m.Reply.Call }
func (m Cancel) Subject() CallID   { return m.Call }
func (m Held) Subject() CallID     { return m.Call }
func (m Resumed) Subject() CallID  { return m.Call }
func (m Open) Subject() CallID     { return m.Call }
func (m Probe) Subject() CallID    { return m.To }

func (Request) Name() string  { return "request" }
func (Answered) Name() string { return "answered" }
func (Cancel) Name() string   { return "cancel" }
func (Held) Name() string     { return "held" }
func (Resumed) Name() string  { return "resumed" }
func (Open) Name() string     { return "open" }
func (Probe) Name() string    { return "probe" }

// Envelope is a message with its source and destination.
type Envelope struct {
	From     Address // sending cell; zero for a client of this node
	To       ID      // destination actor; zero if ToClient is set
	ToClient Address // cell at which the client waits; zero if To is set
	// Epoch is the sender's view of the epoch of To's shard. A cell that owns
	// the shard under another epoch drops the message.
	Epoch Epoch
	// Durable reports whether the facts in the message are in a log.
	Durable bool
	Body    Message
}
