// SPDX-License-Identifier: Apache-2.0

package history

import (
	"strconv"

	"github.com/troupe-run/troupe/actor"
)

// Kind is the kind of a protocol step, named after its TLA+ action.
type Kind uint8

// The kinds. The host or the simulator records Crash, Restart, Claim, Lose, Append,
// Sync and Perform. A cell emits events of the other kinds, in the field Events of its
// Ready.
const (
	Activate        Kind = iota + 1 // an actor becomes active under an epoch
	Deactivate                      // an actor leaves memory
	Send                            // a message is sent to an actor or a waiting client
	Deliver                         // a message arrives
	Drop                            // a message is discarded without a reply; Why is the reason
	Admit                           // a call is accepted into a mailbox
	Refuse                          // a call is refused before its turn starts
	Start                           // the turn of a call starts
	Ask                             // a turn makes an ask; Call is the child call if the ask is a call
	Answer                          // an ask is answered; the turn may resume
	Reply                           // a turn ends with its outcome
	Expire                          // the deadline of an ask or of a run has passed
	Cancel                          // the caller cancels an open waiting call
	Hold                            // a clock stops while a turn waits for a person
	Resume                          // a held clock restarts
	Crash                           // a node stops and loses its unsynced entries
	Restart                         // a node, or one of its cells, starts again
	Claim                           // a cell becomes owner of shards under an epoch
	Lose                            // a cell loses ownership of shards
	Append                          // entries are appended to a node's log; Pos is its end
	Sync                            // a node's log becomes durable up to Synced
	Perform                         // an effect becomes visible outside the node
	Queue                           // a call waits in a mailbox behind the turn Parent
	Probe                           // the first round of wait cycle detection follows a wait
	ProbeHome                       // the first round has returned: there is a wait cycle
	Confirm                         // the second round confirms a wait
	RefuseWaitCycle                 // the second round has returned: the newest call of Ring is refused
	Reprobe                         // a call that still waits starts a new probe
	Detach                          // a turn makes a detached call
	Settle                          // the first outcome of a detached call is recorded with its message; What is answer, failure or timeout
	Late                            // a detached call without a wait ends; What is answer, failure, expired or discarded
)

var kindNames = [...]string{Activate: "Activate", Deactivate: "Deactivate", Send: "Send", Deliver: "Deliver", Drop: "Drop",
	Admit: "Admit", Refuse: "Refuse", Start: "Start", Ask: "Ask", Answer: "Answer", Reply: "Reply", Expire: "Expire",
	Cancel: "Cancel", Hold: "Hold", Resume: "Resume", Crash: "Crash", Restart: "Restart", Claim: "Claim", Lose: "Lose",
	Append: "Append", Sync: "Sync", Perform: "Perform",
	Queue: "Queue", Probe: "Probe", ProbeHome: "ProbeHome", Confirm: "Confirm", RefuseWaitCycle: "RefuseWaitCycle", Reprobe: "Reprobe",
	Detach: "Detach", Settle: "Settle", Late: "Late"}

// Kinds returns all kinds in order.
func Kinds() []Kind {
	all := make([]Kind, 0, len(kindNames)-1)
	for k := Activate; int(k) < len(kindNames); k++ {
		all = append(all, k)
	}
	return all
}

// Set is a set of kinds.
type Set uint64

// SetOf returns the set of these kinds.
func SetOf(kinds ...Kind) Set {
	var s Set
	for _, k := range kinds {
		s |= 1 << k
	}
	return s
}

// Has reports whether a kind is in the set.
func (s Set) Has(k Kind) bool { return s>>k&1 != 0 }

// String returns the name of the kind.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return "unknown(" + strconv.Itoa(int(k)) + ")"
	}
	return kindNames[k]
}

// Delivered is the What of the Admit of a run whose message is the outcome of a detached call.
const Delivered = "delivered"

// Cancelled is the What of the Late of a reminder that a client has cancelled.
const Cancelled = "cancelled"

// Reminder is the What of a Detach that nobody is asked by.
const Reminder = "reminder"

// Silent is the What of a Detach whose outcome is not delivered.
const Silent = "silent"

// Parked is the What of a Hold and a Resume of a run that is parked and continues, Queued the
// Why of one whose turn has made no step.
const (
	Parked = "parked"
	Queued = "queued"
)

// Event is one protocol step. The kind determines the fields that are set. Where the
// kinds are not evident, the comment of a field names them in parentheses or before a
// colon.
type Event struct {
	Kind Kind
	At   actor.Time
	From actor.Address // the cell that took the step
	// Actor is the actor at which the step happens, active under Epoch.
	Actor actor.ID
	Epoch actor.Epoch
	// Call is the call that the step is about. Ask, Answer: the child call; zero if
	// the ask is not a call. Expire, Hold, Resume: the call whose clock expires, stops
	// or restarts.
	Call   actor.CallID
	Parent actor.CallID // run that made Call; Ask, Answer: run of the turn
	Root   actor.CallID // Settle: the run that has the message
	Peer   actor.ID     // other actor: callee of an Ask, sender or addressee of a message
	What   string       // kind of message (request, answered, cancel …), ask (call, tool, work, sleep, wait), effect (respond …) or held clock (run, ask, approval, parked)
	Why    string       // Drop, Deactivate, Refuse: reason in one word; Ask: "approval" if it waits for a decision
	// Detail is the sentence of the refusal (Reply, Refuse), for logs. It is free text
	// and no part of a history.
	Detail string `history:"-"`
	Chain  []actor.ID
	// Left is the time left of the call. ParentLeft is the time left of the caller's
	// turn, excluding holds (Ask). Given is the initial time left of the expired clock
	// (Expire), or the requested time of a call or a wait (Ask).
	Left, ParentLeft, Given actor.Duration
	Attempt                 uint32
	Status                  actor.Status
	Reason                  actor.Reason
	Scope                   actor.Scope
	// Digest is the OutcomeDigest of an outcome (Answer of a call, Reply, Perform of a
	// respond). The trace format fixes its printed name.
	Digest uint32
	// Lane is the lane of a call (Admit), or the lane that its ask requests (Ask). The
	// printed form omits Normal.
	Lane actor.Lane
	// Context is the ContextDigest of a call (Admit). Only the specs read it.
	Context uint32 `history:"-"`
	// Count and Bytes are the number and size of the messages in the mailbox after the
	// step (Admit, Start). Count is the number of asks of the action (Ask, Refuse by the
	// caller). Pending is the caller's number of outstanding calls after
	// the step (Ask, Answer, Expire, Cancel, Reply).
	Count, Bytes, Pending int
	// N depends on the kind. Hold, Resume: the ordinal of a hold of one call. Probe,
	// ProbeHome: the number of waits that the probe has followed. Confirm: the ordinal
	// of the confirmed wait. Until is the time at which a held clock restarts by
	// itself (Hold).
	N     uint64
	Until actor.Time
	// Step and Index identify the ask within its turn. Step is the number of steps of
	// the turn (Reply).
	Step  uint32
	Index uint16
	// Durable is set if the actor is journaled (Activate, Admit, Start, Reply), or if the
	// message depends on entries in a log (Send, Deliver).
	Durable bool
	// Pos is the end of the node's log after the step's entries (Append, Perform).
	// Synced is the durable end of the log (Sync, Perform).
	Pos, Synced uint64
	// Wrote is the number of entries appended by the step (Append, Perform).
	Wrote int
	Ring  []actor.Hop // RefuseWaitCycle: the waits of the cycle
	// ShardLo is the first shard. ShardHi is the last shard plus 1 (Claim, Lose).
	ShardLo, ShardHi uint16
}

// AppendTo appends the event as one line without a newline: the kind, then name=value
// of each non-zero field in a fixed order.
func (e *Event) AppendTo(b []byte) []byte {
	b = append(b, e.Kind.String()...)
	b = appendInt(b, " at=", int64(e.At))
	if !e.From.IsZero() {
		b = e.From.AppendTo(append(b, " from="...))
	}
	b = appendID(b, " actor=", e.Actor)
	b = appendInt(b, " epoch=", int64(e.Epoch))
	b = appendCall(b, " call=", e.Call)
	b = appendCall(b, " parent=", e.Parent)
	b = appendCall(b, " root=", e.Root)
	b = appendID(b, " peer=", e.Peer)
	b = appendText(b, " what=", e.What)
	b = appendText(b, " why=", e.Why)
	if len(e.Chain) > 0 {
		b = append(b, " chain="...)
		for i, a := range e.Chain {
			if i > 0 {
				b = append(b, ',')
			}
			b = a.AppendTo(b)
		}
	}
	b = appendInt(b, " left=", int64(e.Left))
	b = appendInt(b, " parent_left=", int64(e.ParentLeft))
	b = appendInt(b, " given=", int64(e.Given))
	b = appendInt(b, " attempt=", int64(e.Attempt))
	if e.Status != 0 {
		b = appendText(b, " status=", e.Status.String())
	}
	if e.Reason != 0 {
		b = appendText(b, " reason=", e.Reason.String())
	}
	b = appendText(b, " scope=", e.Scope.String())
	b = appendText(b, " lane=", e.lane())
	b = appendInt(b, " said=", int64(e.Digest))
	b = appendInt(b, " count=", int64(e.Count))
	b = appendInt(b, " bytes=", int64(e.Bytes))
	b = appendInt(b, " pending=", int64(e.Pending))
	b = appendInt(b, " n=", int64(e.N))
	b = appendInt(b, " until=", int64(e.Until))
	b = appendInt(b, " step=", int64(e.Step))
	b = appendInt(b, " index=", int64(e.Index))
	if e.Durable {
		b = append(b, " durable"...)
	}
	b = appendInt(b, " pos=", int64(e.Pos))
	b = appendInt(b, " synced=", int64(e.Synced))
	b = appendInt(b, " wrote=", int64(e.Wrote))
	for i, h := range e.Ring {
		b = append(b, [...]string{" ring=", ","}[min(i, 1)]...)
		b = h.Turn.AppendTo(append(h.Call.AppendTo(b), '>'))
	}
	if e.ShardHi > 0 {
		b = strconv.AppendInt(append(b, " shards="...), int64(e.ShardLo), 10)
		b = appendInt(b, "-", int64(e.ShardHi))
	}
	return b
}

// String returns the line that AppendTo appends.
func (e Event) String() string { return string(e.AppendTo(nil)) }

// OutcomeDigest returns a digest (FNV-1a) of the content of an outcome. Equal contents
// have equal digests.
func OutcomeDigest(parts []actor.Part, warnings []string) uint32 {
	sum := uint32(2166136261)
	for i := range parts {
		p := &parts[i]
		sum = mixDigest(mixDigest(mixDigest(sum, p.Media), p.Bytes), p.Blob[:])
	}
	for _, w := range warnings {
		sum = mixDigest(sum, w)
	}
	return sum
}

// ContextDigest returns a digest of the values that a call inherits from its caller unchanged:
// principal, project, workflow and trace. It is 0 if only the principal is set.
func ContextDigest(c *actor.Call) uint32 {
	if c.Project == "" && c.Workflow == "" && c.Trace == "" {
		return 0
	}
	sum := uint32(2166136261)
	for _, text := range [...]string{c.Principal, c.Project, c.Workflow, c.Trace} {
		sum = mixDigest(sum, text)
	}
	return sum
}

// lane returns the printed name of the lane.
func (e *Event) lane() string {
	if e.Lane == 0 || e.Lane == actor.Normal {
		return ""
	}
	return e.Lane.Priority()
}

// mixDigest adds bytes and their number to a digest.
func mixDigest[T string | []byte](sum uint32, b T) uint32 {
	for i := range len(b) {
		sum = (sum ^ uint32(b[i])) * 16777619
	}
	return (sum ^ uint32(len(b))) * 16777619
}

func appendInt(b []byte, name string, v int64) []byte {
	if v == 0 {
		return b
	}
	return strconv.AppendInt(append(b, name...), v, 10)
}

func appendText(b []byte, name, v string) []byte {
	if v == "" {
		return b
	}
	return append(append(b, name...), v...)
}

func appendID(b []byte, name string, v actor.ID) []byte {
	if v == (actor.ID{}) {
		return b
	}
	return v.AppendTo(append(b, name...))
}

func appendCall(b []byte, name string, v actor.CallID) []byte {
	if v.IsZero() {
		return b
	}
	return v.AppendTo(append(b, name...))
}
