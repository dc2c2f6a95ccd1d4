// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/troupe-run/troupe/actor"

// Record is one change of one actor. The set is closed.
type Record interface{ at() actor.Time }

// Accepted: the call is in the mailbox, and will have its turn or an outcome.
type Accepted struct {
	Call       actor.Call // with the time it had left
	At         actor.Time
	Definition actor.Hash // the agent it began with
}

// Asking: the run's turn has made its next action, a step of one or more asks.
type Asking struct {
	Run  actor.CallID
	At   actor.Time
	Asks []Asked
	Keep []actor.StateItem
}

// Added: the external agent that an ask of the run's last step invoked has made
// a call of its own. It stands behind the turn's own asks, which do not see it.
type Added struct {
	Run actor.CallID
	At  actor.Time
	Ask Asked
}

// Streamed: a piece of an answer was shown, or what was asked is asked again by
// the world, nothing having been shown.
type Streamed struct {
	Run   actor.CallID
	Step  uint32
	Index uint16
	At    actor.Time
	Again bool
	Shown uint64 // the run's last event before the piece; 0 if none is shown
}

// Answered: an ask has its answer.
type Answered struct {
	Run    actor.CallID
	Step   uint32 // from 1
	Index  uint16 // from 0
	At     actor.Time
	Answer actor.Answer
	Budget uint32 // what a call brings back of its share
}

// Retried: an ask that is no call goes to the world once more, under a new attempt.
type Retried struct {
	Run     actor.CallID
	Step    uint32
	Index   uint16
	At      actor.Time
	Attempt uint32
}

// Held: the callee of an ask waits for a person. Of several the higher N counts.
type Held struct {
	Run   actor.CallID
	Step  uint32
	Index uint16
	At    actor.Time
	N     uint64
	Until actor.Time
}

// Resumed: the callee goes on.
type Resumed struct {
	Run   actor.CallID
	Step  uint32
	Index uint16
	At    actor.Time
	N     uint64
}

// Parked: the turn does not go the way its answers say it went. It stays as it
// is until its time runs out.
type Parked struct {
	Run    actor.CallID
	At     actor.Time
	Detail string
}

// Rebased: clocks that began in the future begin now.
type Rebased struct{ At actor.Time }

// Ended: the call has its one outcome, remembered for repeats until an instant.
// It ends the run of that name; a refused or signalling call has none.
type Ended struct {
	Call        actor.CallID
	At          actor.Time
	Reply       actor.Reply
	Until       actor.Time
	Idempotency actor.Idempotency
	Keep        []actor.StateItem
	n           uint64 // of the entry that says so, once it is in a journal; 0: not known
}

// Buried: the call was cancelled before it came; it will not be taken.
type Buried struct {
	Call  actor.CallID
	At    actor.Time
	Until actor.Time
}

// Snapshot: all of the above up to here, folded. It takes no number of its own.
// Of outcomes it holds which entries say them: those stay.
type Snapshot struct {
	Journal      []byte
	noLargeParts bool // no part in it is large: it need not be looked through
}

// SnapshotOf is the journal as it is now.
func SnapshotOf(j *Journal) Snapshot {
	s := Snapshot{Journal: EncodeJournal(j), noLargeParts: true}
	look := func(parts []actor.Part) { s.noLargeParts = s.noLargeParts && !anyLarge(parts) }
	for _, run := range j.Runs {
		look(run.Call.Parts)
		for i := range run.Steps {
			visitAskParts(run.Steps[i].Asks, look)
		}
	}
	for i := range j.Ended {
		if j.Ended[i].n == 0 {
			look(j.Ended[i].Reply.Parts)
		}
	}
	return s
}

func (r Accepted) at() actor.Time { return r.At }
func (r Asking) at() actor.Time   { return r.At }
func (r Added) at() actor.Time    { return r.At }
func (r Streamed) at() actor.Time { return r.At }
func (r Answered) at() actor.Time { return r.At }
func (r Retried) at() actor.Time  { return r.At }
func (r Held) at() actor.Time     { return r.At }
func (r Resumed) at() actor.Time  { return r.At }
func (r Parked) at() actor.Time   { return r.At }
func (r Rebased) at() actor.Time  { return r.At }
func (r Ended) at() actor.Time    { return r.At }
func (r Buried) at() actor.Time   { return r.At }
func (Snapshot) at() actor.Time   { return 0 }

// RunEvent is one event of a run, as people and clients see it; Body is its
// canonical JSON.
type RunEvent struct {
	Run  actor.CallID
	Seq  uint64 // dense per run, from 1
	Body []byte
}

// Entry is a record in its place: what an actor changed, under which epoch, as
// its n-th, and what is written along with it.
type Entry struct {
	Actor  actor.ID
	Shard  uint16 // of the actor
	Epoch  actor.Epoch
	N      uint64 // per actor, from 1; a Snapshot has that of the last entry it holds
	Record Record
	Events []RunEvent
	// WasDue and Due are the actor's place in the expiry index before and after:
	// the earliest deadline of its open runs, 0 for none.
	WasDue, Due actor.Time
}
