// SPDX-License-Identifier: Apache-2.0

package history

import (
	"strconv"

	"github.com/troupe-run/troupe/actor"
)

// Kind is the protocol step an event is an instance of.
type Kind uint8

// The kinds. Those of a cell come in Ready.Events; Crash, Restart, Claim, Lose,
// Append, Sync and Perform are the world's.
const (
	Activate        Kind = iota + 1 // an actor is in memory, under an epoch
	Deactivate                      // it is not any more
	Send                            // a message leaves for an actor or a waiting client
	Deliver                         // a message has come
	Drop                            // a message was not taken, and nobody is told; Why says why
	Admit                           // a call was accepted into a mailbox
	Refuse                          // a call was answered with a refusal before it had a turn
	Start                           // a call has the turn
	Ask                             // a turn asks for something; Call is the child call, if it is one
	Answer                          // an ask is answered; the turn may go on
	Reply                           // a turn ends with its outcome
	Expire                          // a deadline has passed: an ask's, or a run's own
	Cancel                          // an open waiting call is given up by its caller
	Hold                            // a clock stands still, for a person
	Resume                          // and runs again
	Crash                           // a node is gone, with what it had not synced
	Restart                         // and is back, or a cell of it
	Claim                           // a cell owns shards, under an epoch
	Lose                            // and does not any more
	Append                          // entries were appended to a node's log; Pos is its end
	Sync                            // the log is durable up to Pos
	Perform                         // an effect reaches the world outside the node
	Queue                           // a call waits in a mailbox; Parent is the turn it waits behind
	Probe                           // lap one looks at what a call waits for
	ProbeHome                       // and has come round: there is a ring
	Confirm                         // lap two finds a wait still standing
	RefuseWaitCycle                 // and has been round: the newest call of Ring is refused
	Reprobe                         // a call that still waits asks again
)

var kindNames = [...]string{Activate: "Activate", Deactivate: "Deactivate", Send: "Send", Deliver: "Deliver", Drop: "Drop",
	Admit: "Admit", Refuse: "Refuse", Start: "Start", Ask: "Ask", Answer: "Answer", Reply: "Reply", Expire: "Expire",
	Cancel: "Cancel", Hold: "Hold", Resume: "Resume", Crash: "Crash", Restart: "Restart", Claim: "Claim", Lose: "Lose",
	Append: "Append", Sync: "Sync", Perform: "Perform",
	Queue: "Queue", Probe: "Probe", ProbeHome: "ProbeHome", Confirm: "Confirm", RefuseWaitCycle: "RefuseWaitCycle", Reprobe: "Reprobe"}

// Kinds lists all kinds in their order.
func Kinds() []Kind {
	all := make([]Kind, 0, len(kindNames)-1)
	for k := Activate; int(k) < len(kindNames); k++ {
		all = append(all, k)
	}
	return all
}

// Set is some of the kinds.
type Set uint64

// SetOf is the set of these kinds.
func SetOf(kinds ...Kind) Set {
	var s Set
	for _, k := range kinds {
		s |= 1 << k
	}
	return s
}

// Has tells whether a kind is in the set.
func (s Set) Has(k Kind) bool { return s>>k&1 != 0 }

// String is the kind's name.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return "unknown(" + strconv.Itoa(int(k)) + ")"
	}
	return kindNames[k]
}

// Event is one protocol step. Which fields are set depends on the kind; the
// comments name the kinds where it is not plain.
type Event struct {
	Kind Kind
	At   actor.Time
	From actor.Address // the cell that took the step
	// Actor at whose side it happened, under Epoch.
	Actor actor.ID
	Epoch actor.Epoch
	// Call is the call it is about: of Ask and Answer the child (zero if the
	// ask is no call), of Expire, Hold and Resume the call whose clock it is.
	Call   actor.CallID
	Parent actor.CallID // the run that made Call; of Ask and Answer the run whose turn it is
	Root   actor.CallID
	Peer   actor.ID // the other side: callee of an Ask, sender's or addressee's actor
	What   string   // message, ask or effect: request, answered, cancel …; call, tool, work, sleep, wait; respond …
	Why    string   // Drop, Deactivate, Refuse: the reason in a word
	Chain  []actor.ID
	// Left is the time the call has; ParentLeft what its caller's turn has
	// unheld (Ask). Given is the length of the clock that ran out (Expire).
	Left, ParentLeft, Given actor.Duration
	Attempt                 uint32
	Status                  actor.Status
	Reason                  actor.Reason
	Scope                   actor.Scope
	// Said is a digest of what an outcome says, as SaidIn makes it (Answer of a call,
	// Reply, Perform of a respond).
	Said uint32
	// Count, Bytes of the mailbox after the step (Admit, Start); Pending is the
	// caller's outstanding calls after it (Ask, Answer, Expire, Cancel, Reply).
	Count, Bytes, Pending int
	// N counts the holds of one call; Until is when its clock runs again by itself.
	N     uint64
	Until actor.Time
	// Step and Index name the ask within its turn.
	Step  uint32
	Index uint16
	// Durable: the actor is journaled (Activate, Admit, Start, Reply), the
	// message tells of something in a log (Send, Deliver).
	Durable bool
	// Pos is the end of the node's log after the step's entries (Append,
	// Perform), Synced how far it is durable (Sync, Perform).
	Pos, Synced uint64
	// Wrote is the number of entries that the step appended (Append, Perform).
	Wrote int
	Ring  []actor.Hop // RefuseWaitCycle: the waits that stood together
	// Shards, first and one past the last (Claim, Lose).
	ShardLo, ShardHi uint16
}

// AppendTo writes the event as one line without its end: kind, then name=value
// of each field that is set, always in the same order.
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
	b = appendInt(b, " said=", int64(e.Said))
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

// String is the line that AppendTo writes.
func (e Event) String() string { return string(e.AppendTo(nil)) }

// SaidIn is a digest of what an outcome says (FNV-1a): two that say the same have the same.
func SaidIn(parts []actor.Part, warnings []string) uint32 {
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

// mixDigest is a digest with some bytes more, and where they end.
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
