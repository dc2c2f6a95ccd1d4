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
	Name string
	Says string
}

// Names of the specs.
const (
	SingleActivation      = "SingleActivation"
	FencedWrites          = "FencedWrites"
	AcyclicCalls          = "AcyclicCalls"
	DepthBounded          = "DepthBounded"
	TimeLeftShrinks       = "TimeLeftShrinks"
	OutstandingBounded    = "OutstandingBounded"
	MailboxBounded        = "MailboxBounded"
	TurnExclusive         = "TurnExclusive"
	OneAnswer             = "OneAnswer"
	ReplyToCallerOnly     = "ReplyToCallerOnly"
	Structured            = "Structured"
	NoWorkPastDeadline    = "NoWorkPastDeadline"
	AckedIsDurable        = "AckedIsDurable"
	EffectOncePerAttempt  = "EffectOncePerAttempt"
	ExpireOnlyWhenDue     = "ExpireOnlyWhenDue"
	StartsOnlyKnown       = "StartsOnlyKnown"
	NoPhantomRefusal      = "NoPhantomRefusal"
	OneVictimPerCycle     = "OneVictimPerCycle"
	RefusedNeverRuns      = "RefusedNeverRuns"
	NoWaitCycle           = "NoWaitCycle"
	AttemptAnnounced      = "AttemptAnnounced"
	RetriedUnheard        = "RetriedUnheard"
	StreamIsDense         = "StreamIsDense"
	RevokedHearNothing    = "RevokedHearNothing"
	EventsTellTruth       = "EventsTellTruth"
	OnlySucceededAdvances = "OnlySucceededAdvances"
	ApprovalOnce          = "ApprovalOnce"
	EveryCallEnds         = "EveryCallEnds"
	TurnComesBack         = "TurnComesBack"
	EveryWaitCycleBreaks  = "EveryWaitCycleBreaks"
	OwnedAgain            = "OwnedAgain"
)

var all = []Spec{
	{SingleActivation, "An actor lives in one place under one epoch, and nobody acts for it, or takes its messages, under another."},
	{FencedWrites, "Nothing that was decided under an old epoch becomes durable once a newer one has taken over."},
	{AcyclicCalls, "No agent stands twice in a chain of calls, and a call carries the chain it was made with."},
	{DepthBounded, "No more calls stand above a call than are allowed."},
	{TimeLeftShrinks, "A call never has more time than the turn that waits for it, nor than a call may have at most."},
	{OutstandingBounded, "An actor waits for no more calls than are allowed, and is refused one only if it does."},
	{MailboxBounded, "No more messages wait in a mailbox, and no more bytes, than are allowed."},
	{TurnExclusive, "A serial actor deals with one message at a time, and each message has its turn once."},
	{OneAnswer, "Every call ends at most once: at its callee, at its caller, and for a client that waits."},
	{ReplyToCallerOnly, "An outcome goes to who made the call, and ends that call with what its callee said, however often it is asked."},
	{Structured, "A call that is waited for has a turn that waits: a turn ends only in a step that cancels its open calls."},
	{NoWorkPastDeadline, "No turn starts, no call is made and no request leaves without time."},
	{AckedIsDurable, "What an actor decides stands in the log behind that step, and what leaves its node is durable there."},
	{EffectOncePerAttempt, "A call is taken once, and what its turn has the world do is done at most once for each attempt, and once at all if it must not be repeated."},
	{ExpireOnlyWhenDue, "A call times out only after the whole time in which its clock had to run."},
	{StartsOnlyKnown, "Only actors whose agent exists are called, and have turns."},
	{NoPhantomRefusal, "A call is refused to break a ring of waits only if they all stood together while it was queued."},
	{OneVictimPerCycle, "One call of a ring of waits is refused: the newest of those that are queued."},
	{RefusedNeverRuns, "A call that was refused to break a ring has never had a turn, and never will."},
	{NoWaitCycle, "No ring of waits stands without a probe on its way: what closes it finds it, unless something is lost."},
	{AttemptAnnounced, "A piece of an answer is shown only when those of the attempts before it were taken back."},
	{RetriedUnheard, "Who stands behind a node is asked again only while nothing of the answer was passed on."},
	{StreamIsDense, "A client hears each event of a run once and in order, however often it loses the stream and comes back."},
	{RevokedHearNothing, "Nobody hears more of a stream once the key with which they listen is revoked."},
	{EventsTellTruth, "What events tell is what a cell's state is."},
	{OnlySucceededAdvances, "A run goes on with a result only from a tool call that succeeded."},
	{ApprovalOnce, "What a person decided is told one way only, came in time, and permits one tool call with the arguments they saw."},
	{EveryCallEnds, "Every call ends, and is asked again until it does."},
	{TurnComesBack, "Every turn ends."},
	{EveryWaitCycleBreaks, "A ring of waits breaks without a time-out."},
	{OwnedAgain, "What nobody owns is owned again, once nodes run and messages come in time."},
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
	Spec     string
	Sentence string        // the participants and the failed condition
	Event    history.Event // event that revealed the violation; zero if there is none
	Step     uint64
}

// String returns the name of the spec, the step, the detail, the event and the meaning of the
// spec.
func (v *Violation) String() string {
	s := fmt.Sprintf("%s broken in step %d: %s", v.Spec, v.Step, v.Sentence)
	if v.Event.Kind != 0 {
		s += "\n  " + v.Event.String()
	}
	for _, spec := range all {
		if spec.Name == v.Spec {
			s += "\n  " + spec.Says
		}
	}
	return s
}
