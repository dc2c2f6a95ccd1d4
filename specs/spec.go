// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/specs/linear"
)

// Spec is a property that must hold. It has the name of its counterpart in tla/.
type Spec struct {
	Name    string
	Meaning string
}

// Names of the specs.
const (
	SingleActivation     = "SingleActivation"
	FencedWrites         = "FencedWrites"
	AcyclicCalls         = "AcyclicCalls"
	DepthBounded         = "DepthBounded"
	TimeLeftShrinks      = "TimeLeftShrinks"
	OutstandingBounded   = "OutstandingBounded"
	MailboxBounded       = "MailboxBounded"
	TurnExclusive        = "TurnExclusive"
	OneAnswer            = "OneAnswer"
	ReplyToCallerOnly    = "ReplyToCallerOnly"
	Structured           = "Structured"
	NoWorkPastDeadline   = "NoWorkPastDeadline"
	AckedIsDurable       = "AckedIsDurable"
	EffectOncePerAttempt = "EffectOncePerAttempt"
	ExpireOnlyWhenDue    = "ExpireOnlyWhenDue"
	StartsOnlyKnown      = "StartsOnlyKnown"
	NoPhantomRefusal     = "NoPhantomRefusal"
	OneVictimPerCycle    = "OneVictimPerCycle"
	RefusedNeverRuns     = "RefusedNeverRuns"
	NoWaitCycle          = "NoWaitCycle"
	AttemptAnnounced     = "AttemptAnnounced"
	RetriedUnheard       = "RetriedUnheard"
	StreamIsDense        = "StreamIsDense"
	RevokedHearNothing   = "RevokedHearNothing"
	EventsTellTruth      = "EventsTellTruth"
	EveryCallEnds        = "EveryCallEnds"
	TurnComesBack        = "TurnComesBack"
	EveryWaitCycleBreaks = "EveryWaitCycleBreaks"
	OwnedAgain           = "OwnedAgain"
	LaneInherited        = "LaneInherited"
	ContextInherited     = "ContextInherited"
	ClampReported        = "ClampReported"
	ChainKept            = "ChainKept"
	TreeBudgetKept       = "TreeBudgetKept"
	CancelledNeverStarts = "CancelledNeverStarts"
	LaneIsFIFO           = "LaneIsFIFO"
	NoLaneStarves        = "NoLaneStarves"
	MailboxAgeBounded    = "MailboxAgeBounded"
	KeyBindsBody         = "KeyBindsBody"
	WaitHoldsClock       = "WaitHoldsClock"

	// Those of Replies.
	OneOutcomePerCorrelation = "OneOutcomePerCorrelation"
	DeliveredInOrder         = "DeliveredInOrder"
	EveryPendingEnds         = "EveryPendingEnds"

	// Those of Work.
	OnlySucceededAdvances = "OnlySucceededAdvances"
	ApprovalOnce          = "ApprovalOnce"
)

var all = []Spec{
	{SingleActivation, "An actor is active on at most one cell under one epoch. No cell acts for it, or accepts its messages, under another epoch."},
	{FencedWrites, "An entry decided under an old epoch never becomes durable after a newer epoch has taken over."},
	{AcyclicCalls, "No agent occurs twice in a chain of calls."},
	{DepthBounded, "The number of calls above a call does not exceed the limit."},
	{TimeLeftShrinks, "A call never has more time left than the turn that waits for it, nor more than the limit for one call."},
	{OutstandingBounded, "The number of calls an actor waits for does not exceed the limit, and a call is refused for it only at the limit."},
	{MailboxBounded, "Neither the number nor the size of the messages queued in a mailbox exceeds its limit."},
	{TurnExclusive, "A serial actor processes one message at a time, and each message has at most one turn."},
	{OneAnswer, "A call ends at most once: at its callee, at its caller, and for a client that waits for it."},
	{ReplyToCallerOnly, "An outcome is sent only to the caller of its call. Every repeat of the request gets the outcome recorded by the callee."},
	{Structured, "Every open call has an open turn that waits for it: a turn ends only in a step that cancels its open calls."},
	{NoWorkPastDeadline, "No turn starts, no call is made and no request is sent without time left."},
	{AckedIsDurable, "Decisions of an actor are appended to the log in the same step, and whatever leaves the node is durable there."},
	{EffectOncePerAttempt, "A call is admitted once. Each attempt of an effect is performed at most once, and an effect that must not be repeated at most once in total. An invocation is performed once its agent has begun it."},
	{ExpireOnlyWhenDue, "A call expires only after its clock has run for its whole time left."},
	{StartsOnlyKnown, "Only actors of existing agents are called and have turns."},
	{NoPhantomRefusal, "A call is refused to break a wait cycle only if all waits of the cycle existed at one instant while it was queued."},
	{OneVictimPerCycle, "One call of a wait cycle is refused: the newest of those that are queued."},
	{RefusedNeverRuns, "A call refused to break a wait cycle has never had a turn and never will."},
	{NoWaitCycle, "No wait cycle exists without a probe under way: the wait that closes the cycle detects it, unless a message is lost."},
	{AttemptAnnounced, "A fragment of an answer is shown only after the fragments of earlier attempts were retracted."},
	{RetriedUnheard, "An upstream request that must not be repeated is not retried after a part of its response was forwarded."},
	{StreamIsDense, "A client receives each event of a run exactly once and in order, across disconnects."},
	{RevokedHearNothing, "No event of a stream is delivered to a client whose key has been revoked."},
	{EventsTellTruth, "The state of a cell equals the state derived from its events."},
	{EveryCallEnds, "Every call ends, and is resent until it does."},
	{TurnComesBack, "Every turn ends."},
	{EveryWaitCycleBreaks, "Every wait cycle is broken before a call of it expires."},
	{OwnedAgain, "A shard without an owner gets one again, once nodes run and messages arrive in time."},
	{LaneInherited, "A call has the lane of its caller, or the lower one that its ask requests."},
	{ContextInherited, "A call has the principal, project, workflow and trace of its caller."},
	{ClampReported, "The events of a run report each call or wait that requests more time than the maximum."},
	{ChainKept, "A call carries the chain it was made with, even if an agent writes to its copy."},
	{TreeBudgetKept, "The calls of a tree do not exceed its budget."},
	{CancelledNeverStarts, "A call whose cancel has reached its actor never has a turn, even if it arrives later."},
	{LaneIsFIFO, "The calls of one lane start in the order in which they were admitted."},
	{NoLaneStarves, "The first call of a lane is overtaken by a bounded number of calls of higher lanes."},
	{MailboxAgeBounded, "A mailbox whose oldest message has waited for too long admits no call."},
	{KeyBindsBody, "A request that repeats an idempotency key with another body is refused; with the same body it is not."},
	{WaitHoldsClock, "The clock of a run is held while its turn waits for a person, and not afterwards."},
	{OneOutcomePerCorrelation, "A detached call has one outcome, the first of answer, failure and time-out, and one message in the transcript."},
	{DeliveredInOrder, "The messages of outcomes have their turns in the order of the outcomes, one after the other."},
	{EveryPendingEnds, "Every detached call comes back, and is resent until it does, unless its session is deleted."},
	{OnlySucceededAdvances, "A run continues with a result only if the tool call succeeded."},
	{ApprovalOnce, "A decision on an approval is final and in time, and permits one tool call with the arguments that were shown."},
}

// All returns the specs: those checked by a Checker and those of package linear, which checks
// whole histories.
func All() []Spec {
	list := slices.Clone(all)
	for _, s := range linear.Specs() {
		list = append(list, Spec{s[0], s[1]})
	}
	return list
}

// Violation describes a spec that did not hold.
type Violation struct {
	Spec   string
	Detail string        // the participants and the failed condition
	Event  history.Event // event that revealed the violation; zero if there is none
	Step   uint64
}

// String returns the name of the spec, the step, the detail, the event and the meaning of the
// spec.
func (v *Violation) String() string {
	s := fmt.Sprintf("%s violated in step %d: %s", v.Spec, v.Step, v.Detail)
	if v.Event.Kind != 0 {
		s += "\n  " + v.Event.String()
	}
	for _, spec := range all {
		if spec.Name == v.Spec {
			s += "\n  " + spec.Meaning
		}
	}
	return s
}
