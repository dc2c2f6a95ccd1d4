// SPDX-License-Identifier: Apache-2.0

package actor

// Message is what cells say to each other. The set is closed.
type Message interface {
	// Subject is the call that the message is about.
	Subject() CallID
	// Name is what histories call it.
	Name() string
}

// Request asks an actor for a turn. The same call may come more than once.
type Request struct{ Call Call }

// Answered carries the outcome of a call back to where it came from.
type Answered struct{ Reply Reply }

// Cancel tells an actor that nobody waits for the call any more.
type Cancel struct {
	Call   CallID
	Reason Reason // Deadline or Stopped
}

// Held tells a caller that the call waits for a person, until an instant at
// most. Of two with the same call the higher N is the later.
type Held struct {
	Call  CallID
	N     uint64
	Until Time
}

// Resumed tells a caller that a held call goes on.
type Resumed struct {
	Call CallID
	N    uint64
}

// Open answers a repeated Request whose turn is not over yet.
type Open struct {
	Call  CallID
	N     uint64
	Until Time // not 0: held until then
}

// Probe goes along the waits of calls for turns and of turns for calls, to find
// out whether they close a ring. Lap one has Confirm 0 and asks what To waits
// for; back at the call From it knows a ring. Lap two confirms hop by hop that
// each wait still stands, and ends at the call that is refused.
//
// Where a turn waits for several calls a probe divides, and so do its Ways: from
// one call at most so many probes are ever under way.
type Probe struct {
	From, To CallID
	Hops     []Hop
	Branches uint32 // into how many it may still divide, itself counted
	Confirm  uint32 // the hop to confirm, from 1; 0 in lap one
}

// Hop is one wait of a ring: Call waits for Turn. If they are the same the call
// has the turn; else it is queued behind it.
type Hop struct {
	Call  CallID
	Actor ID // whose mailbox or turn it is
	Turn  CallID
	Epoch Epoch
	Stamp Time // of the call: the newest queued one is refused
}

// Queued tells whether the call waits in a mailbox.
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

// Envelope is a message and its address.
type Envelope struct {
	From     Address // the cell that sent it; zero for a client of this node
	To       ID      // the actor addressed; zero if Back is set
	ToClient Address // the cell of the node at which a client waits; zero if To is set
	// Epoch is the owner's of To's shard as the sender knows it: a cell that
	// owns the shard under another one does not take the message.
	Epoch Epoch
	// Durable says that what the message tells of stands in a log.
	Durable bool
	Body    Message
}
