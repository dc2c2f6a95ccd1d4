// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// Record is one change of one actor. The set of implementations is closed.
type Record interface{ at() actor.Time }

// Accepted adds a call to the mailbox. The call will get a turn or, without a turn, an
// outcome.
type Accepted struct {
	Call       actor.Call // Call.Left is the time left at At
	At         actor.Time
	Definition actor.Hash // agent definition at acceptance; the run keeps it
}

// Asking adds the next step to a run: one action of its turn, with at least one ask.
type Asking struct {
	Run          actor.CallID
	At           actor.Time
	Asks         []Asked
	StateUpdates []actor.StateItem
}

// Added adds an ask to the last step of a run. The ask is a call made by the external
// agent that another ask of that step invoked. Added asks follow the asks of the turn
// in the step. The turn does not see the added asks.
type Added struct {
	Run actor.CallID
	At  actor.Time
	Ask Asked
}

// Streamed records that a piece of an answer was published, or that the host retries
// an ask.
type Streamed struct {
	Run           actor.CallID
	Step          uint32
	Index         uint16
	At            actor.Time
	Retry         bool   // the host retries
	StreamedAfter uint64 // Seq of the run's last event before the piece; 0 if no piece is published
	State         string // that the agent reports of itself in the piece; "" if it reports none
	Detail        string // JSON value that belongs to State; may be empty
}

// Answered sets the answer of an ask.
type Answered struct {
	Run    actor.CallID
	Step   uint32 // from 1
	Index  uint16 // from 0
	At     actor.Time
	Answer actor.Answer
	Budget uint32       // unused part of a call's share, returned to the run
	Purse  *actor.Purse // unspent part of what the ask was given, returned to the run; negative if it was exceeded
}

// Retried starts a new attempt of an ask that is not a call.
type Retried struct {
	Run     actor.CallID
	Step    uint32
	Index   uint16
	At      actor.Time
	Attempt uint32
}

// Held stops the clock of an ask because its callee waits for a person. N orders the
// Held and Resumed records of one ask: the record with the highest N is in effect.
type Held struct {
	Run   actor.CallID
	Step  uint32
	Index uint16
	At    actor.Time
	N     uint64
	Until actor.Time
	For   actor.Hold
}

// Resumed restarts the clock of an ask.
type Resumed struct {
	Run   actor.CallID
	Step  uint32
	Index uint16
	At    actor.Time
	N     uint64
}

// Resolved decides about an ask that waits for a decision. If it is approved, the ask is
// performed with the time left. Otherwise Answered follows in the same step.
type Resolved struct {
	Run    actor.CallID
	Step   uint32
	Index  uint16
	At     actor.Time
	Status runs.ApprovalStatus
	Left   actor.Duration // of an approved ask
	Detail string         // reason that the person gave, or why it expired
	Raise  *actor.Purse   // what a person adds to the purse of the run; nil: nothing
}

// Drawn gives a run the purse that it was granted by the account of its user.
type Drawn struct {
	Run   actor.CallID
	At    actor.Time
	Purse *actor.Purse
}

// Parked stops a run whose turn diverged from its recorded asks during replay. The
// run stays open until its deadline, or until a further record without a detail
// resumes it.
type Parked struct {
	Run    actor.CallID
	At     actor.Time
	Detail string
}

// Rebased moves clocks that started in the future to At. See Journal.HasFutureClock.
type Rebased struct{ At actor.Time }

// Ended sets the only outcome of a call, which is kept for duplicates until the time
// in Until. It ends the run of the same ID, if any. A refused call or a signal has no
// run.
type Ended struct {
	Call         actor.CallID
	At           actor.Time
	Reply        actor.Reply
	Until        actor.Time
	Idempotency  actor.Idempotency
	StateUpdates []actor.StateItem
	n            uint64 // number of the entry with this record; 0 if not yet in a journal
}

// Buried is a tombstone: the call was cancelled before it arrived. The call MUST NOT
// be accepted before the time in Until.
type Buried struct {
	Call  actor.CallID
	At    actor.Time
	Until actor.Time
}

// Appended adds a message to the transcript of an actor, without a run.
type Appended struct {
	At      actor.Time
	Message actor.ChatMessage // Message.Call is the call that appended it
}

// Detached adds a detached call of a run to the mail of its actor.
type Detached struct{ Pending Pending }

// Settled is the first outcome of a detached call. The same step accepts the run whose message it is.
type Settled struct {
	Call actor.CallID
	At   actor.Time
	Run  actor.CallID   // that has the message
	Left actor.Duration // time for which a late answer is awaited; 0 if the callee has answered
}

// Noticed sets what the callee of a detached call waits for. It is no outcome. N orders these records
// as in Held.
type Noticed struct {
	Call actor.CallID
	At   actor.Time
	N    uint64
	For  actor.Hold
}

// Late ends a detached call that has timed out, a reminder that is cancelled, or one whose session is deleted. Nothing is delivered. The response
// can be read: see Mail.Late.
type Late struct {
	Call   actor.CallID
	At     actor.Time
	Status actor.Status // of the late answer; 0 if there is none
	// Response is the message that the late answer would have been; empty if there is none.
	Response []byte
	// Left is the time for which the row of a cancelled reminder stays, so that lists show what became of it; 0 drops
	// the row.
	Left actor.Duration
}

// Snapshot is the fold of all earlier records of the actor. It has no entry number
// of its own. It refers to the entries that hold outcomes, so these entries are kept.
type Snapshot struct {
	Journal      []byte
	Pages        [][]byte // pages of the transcript that are in no earlier snapshot, and the parts that they refer to; stored as blobs
	noLargeParts bool     // no part of the journal exceeds BlobBytesMin, so the search for blobs is skipped
}

// SnapshotOf returns a snapshot of the current state of the journal.
func SnapshotOf(j *Journal) Snapshot {
	s := Snapshot{Journal: EncodeJournal(j), Pages: j.Transcript.blobs(), noLargeParts: true}
	check := func(parts []actor.Part) { s.noLargeParts = s.noLargeParts && !anyLarge(parts) }
	for _, run := range j.Runs {
		check(run.Call.Parts)
		for i := range run.Steps {
			visitAskParts(run.Steps[i].Asks, check)
		}
	}
	for i := range j.Transcript.Tail {
		check(j.Transcript.Tail[i].Parts)
	}
	for i := range j.Mail.Rows {
		check(j.Mail.Rows[i].Call.Parts)
	}
	return s
}

// Cut deletes the front of the log of its node, and then the chain begins after its mark. A Log
// performs the deletion in the batch with this entry. The entry belongs to no actor: see
// CutEntry.
type Cut struct {
	Upto Mark       // last deleted batch
	At   actor.Time // outcomes whose time in Until is earlier are not needed any longer
}

// Forgotten deletes a session. Once this entry is durable, Erase deletes the rows of the
// session and its content in the log. The entry belongs to no actor: see ForgottenEntry.
type Forgotten struct{ At actor.Time }

// Kept is a copy of an outcome whose entry is about to be cut. Like a Snapshot it has no
// entry number of its own: N is the number of the entry with the outcome.
type Kept struct{ Outcome Ended }

// isNumbered reports whether a record is the change of an actor with a number of its own.
func isNumbered(r Record) bool {
	switch r.(type) {
	case Snapshot, Kept, Cut, Forgotten:
		return false
	}
	return true
}

func (r Accepted) at() actor.Time  { return r.At }
func (r Asking) at() actor.Time    { return r.At }
func (r Added) at() actor.Time     { return r.At }
func (r Streamed) at() actor.Time  { return r.At }
func (r Answered) at() actor.Time  { return r.At }
func (r Retried) at() actor.Time   { return r.At }
func (r Held) at() actor.Time      { return r.At }
func (r Resumed) at() actor.Time   { return r.At }
func (r Resolved) at() actor.Time  { return r.At }
func (r Drawn) at() actor.Time     { return r.At }
func (r Parked) at() actor.Time    { return r.At }
func (r Rebased) at() actor.Time   { return r.At }
func (r Ended) at() actor.Time     { return r.At }
func (r Buried) at() actor.Time    { return r.At }
func (r Appended) at() actor.Time  { return r.At }
func (r Detached) at() actor.Time  { return r.Pending.At }
func (r Settled) at() actor.Time   { return r.At }
func (r Noticed) at() actor.Time   { return r.At }
func (r Late) at() actor.Time      { return r.At }
func (Snapshot) at() actor.Time    { return 0 }
func (r Cut) at() actor.Time       { return r.At }
func (r Forgotten) at() actor.Time { return r.At }
func (r Kept) at() actor.Time      { return r.Outcome.At }

// RunEvent is one event of a run, as published to clients. Body is its canonical JSON.
type RunEvent struct {
	Run  actor.CallID
	Seq  uint64 // dense per run, from 1
	Body []byte
}

// Entry is a record with its position in the log and the data that is written
// atomically with it: run events and the actor's move in the expiry index.
type Entry struct {
	Actor  actor.ID
	Shard  uint16 // of the actor
	Epoch  actor.Epoch
	N      uint64 // dense per actor, from 1; of a Snapshot, the number of the last entry it includes; of a Kept, that of the outcome; of others without actor 0
	Record Record
	Events []RunEvent
	// WasDue and Due are the actor's times in the expiry index before and after the
	// entry: the earliest deadline of its open runs; 0 if none is open.
	WasDue, Due actor.Time
	// Summary is the summary of the run after the entry, if the entry changes it. An
	// entry that was read from a log has only part of it: see summaryChange.
	Summary *runs.Summary
	// Shown is the part of the derived events that Record lacks. Events are others, which
	// have a body; no cell writes any.
	Shown Shown
	// First is set in the first entry of a step: its entries and their events belong
	// together.
	First bool
	// Extensions are the fields of a later version.
	Extensions actor.Extensions
}
