// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/specs/linear"
)

func testLimits() Limits {
	return Limits{AgentCallDepthMax: 2, AgentCallTimeoutMax: 40 * time.Second, AgentConcurrentCallsMax: 1, MaxPendingPerActor: 2,
		MailboxBytesMax: 1000, RememberDone: time.Minute, MailboxAgeMax: 20 * time.Second, CallsPerTreeMax: 2, WaitCycleMax: 10 * time.Second, FirstProbeMax: time.Second, WaitTimeoutMax: time.Minute,
		Agents: map[string]Agent{"alice": {}, "bob": {}, "carol": {}, "volatile": {Volatile: true}}}
}

func check(l Limits, steps [][]history.Event) (*Checker, *Violation) {
	c := New(l)
	for i, step := range steps {
		if v := c.Observe(uint64(i), step); v != nil {
			return c, v
		}
	}
	return c, nil
}

// A call waits on n1, then on n2, whose clock is ahead, and again on n1. The expiry of the call
// must not be judged by n1's clock alone.
func TestMovedClockToleratesSkew(t *testing.T) {
	l := testLimits()
	l.Skew = 10 * time.Second
	if _, v := check(l, movedActorBack(51*time.Second).steps); v != nil {
		t.Error(v)
	}
	if _, v := check(l, movedActorBack(49*time.Second).steps); specOf(v) != ExpireOnlyWhenDue {
		t.Error(v)
	}
}

func TestValidHistoriesPass(t *testing.T) {
	for name, builder := range map[string]*historyBuilder{
		"complete call": completeCall(), "held call": heldCall(80 * time.Second), "crash of the caller": callerCrash(true), "volatile caller": volatileCaller(false), "moved actor": movedActor(), "dropped repeat": staleRepeat(),
		"held message that a client reads after the end of a volatile run": lateHeld(),
	} {
		if _, v := check(testLimits(), builder.steps); v != nil {
			t.Errorf("%s: %s", name, v)
		}
	}
	c, _ := check(testLimits(), completeCall().steps)
	if v := c.End(); v != nil {
		t.Error(v)
	}
}

// Each case mutates a valid history. The spec must reject the mutant and accept the original.
func TestEverySpecDetectsViolations(t *testing.T) {
	epoch := func(n actor.Epoch, e history.Event) history.Event { e.Epoch = n; return e }
	detected := map[string]bool{}
	for _, test := range []struct {
		spec, name string
		builder    *historyBuilder
		mutate     func(*historyBuilder)
	}{
		{AcyclicCalls, "call to the caller's own agent", completeCall(), func(t *historyBuilder) { t.nth(history.Ask, 1).Peer = actor.NewID("alice", "two") }},
		{AcyclicCalls, "admitted call with a cycle in its chain", completeCall(), func(t *historyBuilder) {
			t.steps = append(t.steps, newHistory().step("n1", 1, admit(alice, other, child, time.Second, bob, alice)).steps...)
		}},
		{ChainKept, "chain dropped in transit", completeCall(), func(t *historyBuilder) { t.nth(history.Admit, 1).Chain = nil }},
		{ChainKept, "chain dropped on a retry", completeCall(), func(t *historyBuilder) { t.nth(history.Send, 0).Chain = []actor.ID{carol} }},
		{DepthBounded, "three calls above", completeCall(), func(t *historyBuilder) {
			t.steps = append(t.steps, newHistory().step("n1", 1, admit(alice, other, child, time.Second,
				actor.NewID("bob", ""), actor.NewID("carol", ""), actor.NewID("volatile", ""))).steps...)
		}},
		{TimeLeftShrinks, "more time than the caller has", completeCall(), func(t *historyBuilder) {
			t.nth(history.Admit, 0).Left = 20 * time.Second
		}},
		{TimeLeftShrinks, "more time than any call may have", completeCall(), func(t *historyBuilder) { t.nth(history.Ask, 1).Left = 41 * time.Second }},
		{TimeLeftShrinks, "more time when sent", completeCall(), func(t *historyBuilder) { t.nth(history.Send, 0).Left++ }},
		{TimeLeftShrinks, "more time on arrival", completeCall(), func(t *historyBuilder) { t.nth(history.Admit, 1).Left++ }},
		{TimeLeftShrinks, "clock of the turn runs while its call is held", heldCall(80 * time.Second), func(t *historyBuilder) { t.drop(history.Hold, 2) }},
		{OutstandingBounded, "one call above the limit", completeCall(), func(t *historyBuilder) {
			t.steps[2] = slices.Insert(t.steps[2], 4, epoch(1, childCall(alice, root, other, carol, 30*time.Second, alice)))
			t.steps[2][4].From, t.steps[2][4].At = at("n1"), t.now
		}},
		{OutstandingBounded, "refused below the limit", completeCall(), func(t *historyBuilder) {
			e := t.nth(history.Ask, 1)
			e.Kind, e.Call, e.Why, e.Reason, e.Scope = history.Refuse, actor.CallID{}, "caller", actor.Busy, actor.ScopeCaller
		}},
		{OutstandingBounded, "not released", completeCall(), func(t *historyBuilder) { t.nth(history.Answer, 1).Pending = 1 }},
		{MailboxBounded, "one message above the limit", fullMailbox(2, 10), func(t *historyBuilder) { *t = *fullMailbox(3, 10) }},
		{MailboxBounded, "too many bytes", fullMailbox(2, 500), func(t *historyBuilder) { *t = *fullMailbox(2, 501) }},
		{TurnExclusive, "two turns at once", consecutiveTurns(true), func(t *historyBuilder) { *t = *consecutiveTurns(false) }},
		{TurnExclusive, "one turn twice", completeCall(), func(t *historyBuilder) { t.steps[2][3] = t.steps[2][2] }},
		{OneAnswer, "late answer", completeCall(), func(t *historyBuilder) {
			t.steps[len(t.steps)-3] = slices.Insert(t.steps[len(t.steps)-3], 2, *t.nth(history.Answer, 1))
		}},
		{OneAnswer, "call completed twice", completeCall(), func(t *historyBuilder) {
			i := slices.IndexFunc(t.steps, func(s []history.Event) bool { return len(s) > 1 && s[1].Kind == history.Reply })
			t.steps[i] = slices.Insert(t.steps[i], 2, t.steps[i][1])
			t.steps[i][len(t.steps[i])-1].Wrote++
		}},
		{OneAnswer, "two responses", completeCall(), func(t *historyBuilder) { t.perform("n1", "respond", root) }},
		{ReplyToCallerOnly, "sent to another actor", completeCall(), func(t *historyBuilder) { t.nth(history.Send, 1).Peer = carol }},
		{ReplyToCallerOnly, "answer to an unknown call", completeCall(), func(t *historyBuilder) { t.nth(history.Answer, 1).Call = other }},
		{ReplyToCallerOnly, "answer before the call is completed", completeCall(), func(t *historyBuilder) { t.drop(history.Reply, 0) }},
		{ReplyToCallerOnly, "answer with another status", completeCall(), func(t *historyBuilder) { t.nth(history.Reply, 0).Status = actor.Failed }},
		{ReplyToCallerOnly, "answer with another content", completeCall(), func(t *historyBuilder) { t.nth(history.Reply, 0).Digest = 7 }},
		{ReplyToCallerOnly, "response with another content", completeCall(), func(t *historyBuilder) {
			responds := t.nth(history.Perform, 3)
			responds.Status, responds.Digest = actor.Succeeded, 7
		}},
		{Structured, "completed with an open call", completeCall(), func(t *historyBuilder) { t.drop(history.Answer, 1) }},
		{Structured, "expired call not cancelled", heldCall(80 * time.Second), func(t *historyBuilder) { t.drop(history.Send, 1) }},
		{EveryCallEnds, "clock stopped for too long", heldCall(80 * time.Second), func(t *historyBuilder) { t.nth(history.Hold, 1).Until = t.now.Add(time.Hour) }},
		{ReplyToCallerOnly, "repeat of an admitted call refused", completeCall(), func(t *historyBuilder) {
			t.step("n2", 0, history.Event{Kind: history.Refuse, Why: "callee", Actor: bob, Call: child, Reason: actor.Stopped, Attempt: 2})
		}},
		{Structured, "call without a turn", completeCall(), func(t *historyBuilder) { t.drop(history.Start, 0) }},
		{NoWorkPastDeadline, "turn starts after the deadline", delayedStart(time.Minute - 1), func(t *historyBuilder) { *t = *delayedStart(time.Minute) }},
		{NoWorkPastDeadline, "call with no time left", completeCall(), func(t *historyBuilder) { t.nth(history.Ask, 1).Left = 0 }},
		{NoWorkPastDeadline, "request with no time left", completeCall(), func(t *historyBuilder) { t.nth(history.Send, 0).Left = 0 }},
		{AckedIsDurable, "response before sync", completeCall(), func(t *historyBuilder) { t.nth(history.Perform, 3).Synced-- }},
		{AckedIsDurable, "request before sync", completeCall(), func(t *historyBuilder) { t.nth(history.Perform, 0).Synced-- }},
		{AckedIsDurable, "tool effect before sync", completeCall(), func(t *historyBuilder) { t.nth(history.Perform, 1).Synced-- }},
		{AckedIsDurable, "one entry missing", completeCall(), func(t *historyBuilder) { t.nth(history.Append, 0).Wrote-- }},
		{AckedIsDurable, "no entries", completeCall(), func(t *historyBuilder) { t.drop(history.Append, 1) }},
		{AckedIsDurable, "ungated effect", volatileCaller(false), func(t *historyBuilder) { *t = *volatileCaller(true) }},
		{AckedIsDurable, "ungated request", volatileResend(true), func(t *historyBuilder) { *t = *volatileResend(false) }},
		{AckedIsDurable, "refusal and outcome in one step", refusedThenAdmitted(1), func(t *historyBuilder) { *t = *refusedThenAdmitted(2) }},
		{AckedIsDurable, "outcome with another reason than the refusal", refusedThenAdmitted(1), func(t *historyBuilder) { t.nth(history.Refuse, 0).Reason = actor.Unavailable }},
		{AckedIsDurable, "outcome in a later step than the refusal", refusedThenAdmitted(1), func(t *historyBuilder) {
			t.steps = slices.Insert(t.steps, len(t.steps)-1, []history.Event{message(history.Deliver, "cancel", other, bob, carol)})
		}},
		{AckedIsDurable, "forwarded outcome, not a refusal", refusalToClient(false), func(t *historyBuilder) { *t = *refusalToClient(true) }},
		{AckedIsDurable, "outcome, not a refusal", replyOrRefusal(actor.Failed), func(t *historyBuilder) { *t = *replyOrRefusal(actor.Succeeded) }},
		{EffectOncePerAttempt, "tool effect twice", completeCall(), func(t *historyBuilder) { t.perform("n2", "tool", child) }},
		{EffectOncePerAttempt, "call admitted twice", completeCall(), func(t *historyBuilder) {
			t.step("n2", 1, epoch(1, admit(bob, child, root, 30*time.Second, alice)))
		}},
		{EffectOncePerAttempt, "tool effect repeated after a crash", completeCall(), func(t *historyBuilder) { t.crash("n2").perform("n2", "tool", child) }},
		{ExpireOnlyWhenDue, "held call expires early", heldCall(80 * time.Second), func(t *historyBuilder) { *t = *heldCall(80*time.Second - 1) }},
		{ExpireOnlyWhenDue, "Held not applied", heldCall(80 * time.Second), func(t *historyBuilder) { t.drop(history.Hold, 1) }},
		{ExpireOnlyWhenDue, "outdated Resumed applied", heldCall(80 * time.Second), func(t *historyBuilder) {
			e := holdEvent(history.Resume, "ask", alice, child, 1, 0)
			t.step("n1", 1, e)
			t.steps[len(t.steps)-2], t.steps[len(t.steps)-1] = t.steps[len(t.steps)-1], t.steps[len(t.steps)-2]
		}},
		{ExpireOnlyWhenDue, "run expires early", delayedStart(time.Minute - 1), func(t *historyBuilder) {
			t.step("n1", 0, history.Event{Kind: history.Expire, What: "run", Actor: alice, Call: root})
		}},
		{StartsOnlyKnown, "call to an unknown agent", completeCall(), func(t *historyBuilder) { t.nth(history.Ask, 1).Peer = actor.NewID("nobody", "") }},
		{StartsOnlyKnown, "turn of an unknown agent", completeCall(), func(t *historyBuilder) {
			for _, kind := range []history.Kind{history.Activate, history.Admit} {
				t.nth(kind, 0).Actor = actor.NewID("nobody", "")
			}
		}},
		{SingleActivation, "active twice under one epoch", completeCall(), func(t *historyBuilder) { t.step("n2", 0, activate(alice)) }},
		{SingleActivation, "acts after a newer activation", movedActor(), func(t *historyBuilder) { t.step("n1", 1, reply(alice, root)) }},
		{SingleActivation, "acts on another node", completeCall(), func(t *historyBuilder) { t.nth(history.Admit, 1).From = at("n1") }},
		{SingleActivation, "accepts a message for an old epoch", completeCall(), func(t *historyBuilder) { t.nth(history.Deliver, 0).Epoch = 7 }},
		{SingleActivation, "two owners under one epoch", completeCall(), func(t *historyBuilder) { t.nth(history.Claim, 1).ShardLo = 2047 }},
		{FencedWrites, "durable after a newer epoch", movedActor(), func(t *historyBuilder) { t.sync("n1") }},
		{FencedWrites, "kept by a crash", movedActor(), func(t *historyBuilder) { t.synced["n1"] = 2; t.crash("n1") }},
		{NoPhantomRefusal, "waits that never overlapped", brokenWaitCycle(), func(t *historyBuilder) {
			late := answer(alice, root, child)
			late.Status = actor.Failed
			*t = *newHistory()
			r := brokenWaitCycle()
			t.steps = append(t.steps, r.steps[0])
			t.logEnd["n1"] = 2
			t.step("n1", 1, late)
			t.steps = append(t.steps, r.steps[1:]...)
		}},
		{NoPhantomRefusal, "a wait confirmed under another epoch", brokenWaitCycle(), func(t *historyBuilder) { t.nth(history.Confirm, 0).Epoch = 2 }},
		{NoPhantomRefusal, "a wait not confirmed", brokenWaitCycle(), func(t *historyBuilder) { t.drop(history.Confirm, 0) }},
		{NoPhantomRefusal, "more waits than a probe makes hops", brokenWaitCycle(), func(t *historyBuilder) {
			e := t.nth(history.RefuseWaitCycle, 0)
			for len(e.Ring) <= 32 {
				e.Ring = append(slices.Clone(cycleHops[:1]), e.Ring...)
			}
		}},
		{NoPhantomRefusal, "another turn", brokenWaitCycle(), func(t *historyBuilder) {
			ring := slices.Clone(cycleHops)
			ring[0].Turn = root
			t.nth(history.RefuseWaitCycle, 0).Ring = ring
		}},
		{OneVictimPerCycle, "not the newest", brokenWaitCycle(), func(t *historyBuilder) {
			*t = *waitCycle().step("n1", 1, refuseCycle(bob, child), reply(bob, child))
		}},
		{OneVictimPerCycle, "two victims", brokenWaitCycle(), func(t *historyBuilder) {
			ring := slices.Clone(cycleHops)
			ring[0].Stamp = 3
			e := refuseCycle(bob, child)
			e.Ring = ring
			t.step("n1", 1, e, reply(bob, child))
		}},
		{RefusedNeverRuns, "victim runs later", brokenWaitCycle(), func(t *historyBuilder) { t.step("n1", 1, start(alice, other)) }},
		{RefusedNeverRuns, "victim has run before", brokenWaitCycle(), func(t *historyBuilder) { t.step("n1", 1, refuseCycle(alice, root)) }},
		{NoWaitCycle, "detected only by a repeated probe", brokenWaitCycle(), func(t *historyBuilder) { *t = *brokenWaitCycleAfter(2 * time.Second) }},
		{EveryWaitCycleBreaks, "exists for too long", expireCall(brokenWaitCycle()), func(t *historyBuilder) { *t = *expireCall(waitCycle()) }},
		{EffectOncePerAttempt, "model request twice", streamedAnswer(), func(t *historyBuilder) {
			t.perform("n1", "model", root)
			*t.nth(history.Perform, 11) = *t.nth(history.Perform, 0)
		}},
		{EffectOncePerAttempt, "unrepeatable tool under another attempt", calleeReplies(callerOnly()), func(t *historyBuilder) {
			t.nth(history.Perform, 1).Why = Once
			t.perform("n2", "tool", child)
			repeat := t.nth(history.Perform, 3)
			repeat.Why, repeat.Attempt = Once, 2
		}},
		{EffectOncePerAttempt, "unrepeatable agent begins again", streamedAnswer(), func(t *historyBuilder) { t.external("act", 2, 2) }},
		{AttemptAnnounced, "fragment not retracted", streamedAnswer(), func(t *historyBuilder) { t.nth(history.Perform, 5).What = "publish" }},
		{AttemptAnnounced, "one fragment not retracted", streamedAnswer(), func(t *historyBuilder) { t.nth(history.Perform, 5).N = 4 }},
		{AttemptAnnounced, "fragment of an upstream's attempt not retracted", streamedAnswer(), func(t *historyBuilder) {
			t.external("show", 2, 8)
			t.nth(history.Perform, 11).Count = 1
		}},
		{RetriedUnheard, "retried after forwarding", streamedAnswer(), func(t *historyBuilder) {
			t.external("try", 2, 3)
			t.nth(history.Perform, 11).Why = Once
		}},
		{StreamIsDense, "gap", streamReader(1, 2), func(t *historyBuilder) { *t = *streamReader(1, 3) }},
		{StreamIsDense, "event repeated", streamReader(1, 2), func(t *historyBuilder) { *t = *streamReader(1, 1) }},
		{RevokedHearNothing, "event after revocation", streamReader(1, 2), func(t *historyBuilder) { t.nth(history.Perform, 2).What = "revoke" }},
		{EventsTellTruth, "wrong mailbox count", completeCall(), func(t *historyBuilder) { t.nth(history.Admit, 0).Count = 2 }},
		{LaneInherited, "lower lane than requested", completeCall(), func(t *historyBuilder) { t.nth(history.Admit, 1).Lane = actor.Low }},
		{LaneInherited, "requested lane lost", completeCall(), func(t *historyBuilder) { t.nth(history.Ask, 1).Lane = actor.Low }},
		{LaneInherited, "lane of the caller lost", completeCall(), func(t *historyBuilder) { t.nth(history.Admit, 0).Lane = actor.Low }},
		{ContextInherited, "trace of the caller lost", completeCall(), func(t *historyBuilder) { t.nth(history.Admit, 0).Context = 7 }},
		{TreeBudgetKept, "one call above the budget", calleeReplies(callerOnly()), func(t *historyBuilder) {
			t.step("n1", 2, message(history.Deliver, "answered", child, bob, alice), answer(alice, root, child), childCall(alice, root, other, bob, 10*time.Second, alice))
			failed, third := answer(alice, root, other), childCall(alice, root, actor.CallID{5}, bob, 10*time.Second, alice)
			failed.Status, failed.Step, third.Step = actor.Failed, 2, 3
			t.step("n1", 2, failed, third)
		}},
		{CancelledNeverStarts, "cancel overtakes its request", overtakingCancel(), func(t *historyBuilder) { t.step("n2", 1, start(bob, child)) }},
		{CancelledNeverStarts, "durable cancel forgotten in a crash", overtakingCancel(), func(t *historyBuilder) {
			*t = *restartedAfterCancel(true)
		}},
		{LaneIsFIFO, "second call first", queuedInLane(0), func(t *historyBuilder) { *t = *queuedInLane(1) }},
		{NoLaneStarves, "overtaken too often", overtaken(8), func(t *historyBuilder) { *t = *overtaken(9) }},
		{MailboxAgeBounded, "admitted behind an old message", agedMailbox(20 * time.Second), func(t *historyBuilder) { *t = *agedMailbox(20*time.Second + 1) }},
		{WaitHoldsClock, "clock not held", heldCall(80 * time.Second), func(t *historyBuilder) { t.drop(history.Hold, 0) }},
		{WaitHoldsClock, "clock held for too short", heldCall(80 * time.Second), func(t *historyBuilder) { t.nth(history.Hold, 0).Until-- }},
		{WaitHoldsClock, "clock restarted while waiting", heldCall(80 * time.Second), func(t *historyBuilder) {
			t.steps = slices.Insert(t.steps, len(t.steps)-1, newHistory().step("n2", 0, holdEvent(history.Resume, "run", bob, child, 2, 0)).steps...)
		}},
		{WaitHoldsClock, "clock not held for an approval", approvedCall(), func(t *historyBuilder) { t.drop(history.Hold, 0) }},
		{WaitHoldsClock, "clock held after a decision", approvedCall(), func(t *historyBuilder) { t.drop(history.Resume, 1) }},
		{EveryCallEnds, "open call not resent", callerCrash(true), func(t *historyBuilder) { *t = *callerCrash(false) }},
	} {
		if _, v := check(testLimits(), test.builder.steps); v != nil {
			t.Errorf("%s, %s: the unmodified history: %s", test.spec, test.name, v)
			continue
		}
		test.mutate(test.builder)
		_, v := check(testLimits(), test.builder.steps)
		switch {
		case v == nil:
			t.Errorf("%s, %s: not detected", test.spec, test.name)
		case v.Spec != test.spec:
			t.Errorf("%s, %s: detected as %s", test.spec, test.name, v)
		case v.Detail == "" || !strings.HasPrefix(v.String(), test.spec+" violated in step "):
			t.Errorf("%s, %s: got the message %q", test.spec, test.name, v)
		}
		detected[test.spec] = true
	}
	detected[TurnComesBack], detected[OwnedAgain] = true, true           // in TestEndReportsOpenWork
	detected[ClampReported] = true                                       // in TestUnreportedClampIsDetected
	detected[KeyBindsBody] = true                                        // checked by package sim, which knows the bodies
	detected[OnlySucceededAdvances], detected[ApprovalOnce] = true, true // in TestWorkDetectsModelDefects
	for _, spec := range []string{OneOutcomePerCorrelation, DeliveredInOrder, EveryPendingEnds} {
		detected[spec] = true // in TestDetachedCallsAreJudged
	}
	for _, s := range linear.Specs() {
		detected[s[0]] = true // in specs/linear
	}
	for _, spec := range All() {
		if !detected[spec.Name] || !strings.HasSuffix(spec.Meaning, ".") {
			t.Errorf("%s: want a mutant and a sentence as its meaning", spec.Name)
		}
	}
}

// A call or a wait that requests more than the maximum is reported by the step that makes it.
func TestUnreportedClampIsDetected(t *testing.T) {
	long, longWait := completeCall(), func(given time.Duration) *historyBuilder {
		w := heldCall(0)
		w.nth(history.Ask, 2).Given = given
		return w
	}
	long.nth(history.Ask, 1).Given = 41 * time.Second
	for _, test := range []struct {
		builder *historyBuilder
		steps   int
		reports int
		spec    string
	}{{completeCall(), 3, 0, ""}, {long, 3, 1, ""}, {long, 3, 0, ClampReported}, {completeCall(), 3, 1, ClampReported},
		{longWait(time.Minute), 6, 0, ""}, {longWait(time.Minute + 1), 6, 1, ""}, {longWait(time.Minute + 1), 6, 0, ClampReported}, {longWait(time.Minute), 6, 1, ClampReported}} {
		c, _ := check(testLimits(), test.builder.steps[:test.steps])
		if v := c.ObserveReports(test.reports); specOf(v) != test.spec {
			t.Errorf("%d reports: %v, want %q", test.reports, v, test.spec)
		}
	}
}

// A cancel that was lost in a crash before it was durable does not forbid the call.
func TestLostCancelAllowsCall(t *testing.T) {
	if _, v := check(testLimits(), restartedAfterCancel(false).steps); v != nil {
		t.Error(v)
	}
}

// A volatile actor that lost a call may admit it again. Effects of the lost run may continue, and
// do not count as a repetition of the new run's effects. Without the loss, a second beginning is
// a violation.
func TestLostVolatileRunMayStillAct(t *testing.T) {
	build := func(forgets bool) *historyBuilder {
		t := newHistory()
		invoke := func() {
			t.step("n1", 0, start(volatileActor, root), history.Event{Kind: history.Ask, What: "invoke", Actor: volatileActor, Parent: root, Step: 1})
			t.step("n1", 0, history.Event{Kind: history.Perform, What: "invoke", Why: Once, Call: root, Step: 1, Attempt: 1})
		}
		t.step("n1", 0, activate(volatileActor), admit(volatileActor, root, actor.CallID{}, time.Minute))
		invoke()
		if forgets {
			t.step("n1", 0, history.Event{Kind: history.Deactivate, Actor: volatileActor, Why: "lost"}, activate(volatileActor), admit(volatileActor, root, actor.CallID{}, time.Minute))
			invoke()
		}
		return t.external("act", 1, 1).external("act", 1, 1)
	}
	if _, v := check(testLimits(), build(true).steps); v != nil {
		t.Errorf("after losing the call: %s", v)
	}
	if _, v := check(testLimits(), build(false).steps); v == nil || v.Spec != EffectOncePerAttempt {
		t.Errorf("without losing the call: got %v", v)
	}
}

// An external agent that has not begun an invocation may be invoked again by the same activation,
// for example at the address of a new registration, even if it must not be repeated.
func TestUnbegunInvocationMoves(t *testing.T) {
	invoke := func(b *historyBuilder, attempt uint32) {
		b.step("n1", 0, history.Event{Kind: history.Perform, What: "invoke", Why: Once, Call: root, Step: 1, Attempt: attempt})
	}
	for name, test := range map[string]struct {
		between func(*historyBuilder)
		spec    string
	}{
		"never left":            {func(*historyBuilder) {}, ""},
		"agent not reached":     {func(b *historyBuilder) { b.external("try", 1, 1) }, ""},
		"agent has begun":       {func(b *historyBuilder) { b.external("try", 1, 1).external("act", 1, 1) }, EffectOncePerAttempt},
		"by a later activation": {func(b *historyBuilder) { b.crash("n1").step("n1", 0, activate(alice)) }, EffectOncePerAttempt},
	} {
		b := newHistory()
		b.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root),
			history.Event{Kind: history.Ask, What: "invoke", Actor: alice, Parent: root, Step: 1})
		b.sync("n1")
		invoke(b, 1)
		test.between(b)
		invoke(b, 2)
		if _, v := check(testLimits(), b.steps); specOf(v) != test.spec {
			t.Errorf("%s: %v, want %q", name, v, test.spec)
		}
	}
}

// A volatile actor that has moved restarts its attempt numbers. Its former owner may still retry
// under the same number.
func TestFormerOwnerMayStillRetry(t *testing.T) {
	builder := streamedAnswer()
	repeat := history.Event{Kind: history.Perform, What: "try", Call: root, Step: 1, Attempt: 2, N: 3, Why: Once}
	if _, v := check(testLimits(), builder.step("n2", 0, repeat).steps); v != nil {
		t.Errorf("retry by another node: %s", v)
	}
	if _, v := check(testLimits(), builder.step("n1", 0, repeat).steps); v == nil || v.Spec != RetriedUnheard {
		t.Errorf("retry by the same node: got %v", v)
	}
}

// The step that retracts a fragment may come before the fragment is shown. A crash then stops
// the retraction from being shown, but readers find it in the log.
func TestRetractionBeforeFragment(t *testing.T) {
	builder := newHistory()
	builder.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root))
	builder.external("take back", 0, 2)
	builder.nth(history.Perform, 0).Count = 4
	builder.external("show", 1, 3).external("show", 2, 6)
	if _, v := check(testLimits(), builder.steps); v != nil {
		t.Errorf("event 4 retracts event 3: %s", v)
	}
	builder.nth(history.Perform, 0).Count = 3
	if _, v := check(testLimits(), builder.steps); v == nil || v.Spec != AttemptAnnounced {
		t.Errorf("event 3 is not retracted: got %v", v)
	}
}

func TestEndReportsOpenWork(t *testing.T) {
	for name, test := range map[string]struct {
		builder *historyBuilder
		spec    string
	}{
		"all work completed":           {completeCall(), ""},
		"client waiting":               {newHistory().step("n1", 0, clientCall(alice)), EveryCallEnds},
		"node of the client crashed":   {newHistory().step("n1", 0, clientCall(alice)).crash("n1"), ""},
		"cell of the client restarted": {newHistory().step("n1", 0, clientCall(alice)).step("n1", 0, history.Event{Kind: history.Restart}), ""},
		"call queued":                  {newHistory().step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute)), EveryCallEnds},
		"turn not completed":           {delayedStart(time.Second), TurnComesBack},
		"call undone by a crash":       {delayedStart(time.Second).crash("n1"), ""},
		"shard with a new owner":       {claimedShards().step("n1", 0, history.Event{Kind: history.Lose, ShardHi: 8}).step("n2", 0, history.Event{Kind: history.Claim, Epoch: 2, ShardHi: 8}), ""},
		"shard without owner":          {claimedShards().step("n1", 0, history.Event{Kind: history.Lose, ShardHi: 8}), OwnedAgain},
	} {
		c, v := check(testLimits(), test.builder.steps)
		if v == nil {
			v = c.End()
		}
		if got := specOf(v); got != test.spec {
			t.Errorf("%s: %s, want %q", name, v, test.spec)
		}
	}
}

func specOf(v *Violation) string {
	if v == nil {
		return ""
	}
	return v.Spec
}

// Changes undone by a crash may be made again; durable changes must not.
func TestCrashUndoesUnsyncedChanges(t *testing.T) {
	repeat := func(t *historyBuilder) *historyBuilder {
		t.crash("n1")
		return t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root), reply(alice, root))
	}
	complete := func(sync bool) *historyBuilder {
		t := newHistory()
		t.step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root))
		t.step("n1", 1, reply(alice, root))
		if sync {
			t.sync("n1")
		}
		return repeat(t)
	}
	if _, v := check(testLimits(), complete(false).steps); v != nil {
		t.Error(v)
	}
	if _, v := check(testLimits(), complete(true).steps); specOf(v) != EffectOncePerAttempt {
		t.Error(v)
	}
	// The run was admitted durably, but its turn was not: it is queued again.
	admittedOnly := newHistory()
	admittedOnly.step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute)).sync("n1")
	admittedOnly.step("n1", 1, start(alice, root), childCall(alice, root, child, bob, time.Second, alice))
	admittedOnly.crash("n1").step("n1", 0, activate(alice))
	c, v := check(testLimits(), admittedOnly.steps)
	if v != nil {
		t.Fatal(v)
	}
	state := history.State{Cell: at("n1"), Actors: []history.Actor{{ID: alice, Epoch: 1, Loaded: true, Queue: []actor.CallID{root}, Bytes: 10}}}
	if v := c.Compare(state); v != nil {
		t.Error(v)
	}
	state.Actors[0].Queue = nil
	if v := c.Compare(state); specOf(v) != EventsTellTruth {
		t.Error(v)
	}
}

func TestCompareDetectsStateDivergence(t *testing.T) {
	healthy := func() history.State {
		return history.State{Cell: at("n1"), Actors: []history.Actor{{ID: alice, Epoch: 1, Loaded: true,
			Turns: []history.Turn{{Run: root, Open: []actor.CallID{child}}}}, {ID: bob}}}
	}
	for name, change := range map[string]func(*history.State){
		"":                      func(*history.State) {},
		"another epoch":         func(s *history.State) { s.Actors[0].Epoch = 2 },
		"not active":            func(s *history.State) { s.Actors = nil },
		"one more active actor": func(s *history.State) { s.Actors[1].Loaded = true },
		"answered call":         func(s *history.State) { s.Actors[0].Turns[0].Open = nil },
		"no turn":               func(s *history.State) { s.Actors[0].Turns = nil },
		"another turn":          func(s *history.State) { s.Actors[0].Turns = append(s.Actors[0].Turns, history.Turn{Run: other}) },
		"queued call":           func(s *history.State) { s.Actors[0].Queue = []actor.CallID{other} },
		"bytes":                 func(s *history.State) { s.Actors[0].Bytes = 1 },
	} {
		c, v := check(testLimits(), callerOnly().steps)
		if v != nil {
			t.Fatal(v)
		}
		s := healthy()
		change(&s)
		want := EventsTellTruth
		if name == "" {
			want = ""
		}
		if v := c.Compare(s); specOf(v) != want {
			t.Errorf("%q: %s", name, v)
		}
	}
}

// Completed calls and served clients must be discarded in time.
func TestCheckerMemoryIsBounded(t *testing.T) {
	c := New(testLimits())
	for i := range 10_000 {
		builder := roundTrip(i)
		if i > 0 {
			builder.steps[2] = slices.DeleteFunc(builder.steps[2], func(e history.Event) bool { return e.Kind == history.Activate })
		}
		for _, step := range builder.steps[1:] {
			if v := c.Observe(uint64(i), step); v != nil {
				t.Fatal(v)
			}
		}
	}
	if n := len(c.runs) + len(c.clients) + len(c.expiries) + len(c.nodes["n1"].changes); n > 3000 {
		t.Errorf("%d calls, clients and changes retained, want at most 3000", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	const trips = 200
	var steps [][]history.Event
	events := 0
	for i := range trips {
		builder := newHistory()
		builder.now = builder.now.Add(actor.Duration(i) * time.Second)
		builder.logEnd["n1"], builder.logEnd["n2"] = uint64(4*i), uint64(4*i)
		trip := callerReplies(calleeReplies(callerOnlyFrom(builder)))
		for _, step := range trip.steps[min(i, 1):] { // shards are claimed only once
			for j := range step {
				for _, id := range []*actor.CallID{&step[j].Call, &step[j].Parent, &step[j].Root} {
					if !id.IsZero() {
						id[14], id[15] = byte(i>>8), byte(i)
					}
				}
			}
			if i > 0 {
				step = slices.DeleteFunc(step, func(e history.Event) bool { return e.Kind == history.Activate })
			}
			events += len(step)
			steps = append(steps, step)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, v := check(testLimits(), steps); v != nil {
			b.Fatal(v)
		}
	}
	b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// A turn that was parked before its first step is queued in the log. It begins again after a crash, unless its first
// step is in the log too.
func TestTurnParkedBeforeItsFirstStepBeginsAgain(t *testing.T) {
	for stepped, want := range map[bool]string{false: "", true: TurnExclusive} {
		h := newHistory()
		parked := func(kind history.Kind, n uint64, until actor.Time) []history.Event {
			e := holdEvent(kind, history.Parked, alice, root, n, until)
			e.Why = history.Queued
			return []history.Event{e, holdEvent(kind, "run", alice, root, n, until)}
		}
		h.step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute))
		h.step("n1", 1, append([]history.Event{start(alice, root)}, parked(history.Hold, 1, h.now.Add(time.Minute))...)...).sync("n1")
		h.step("n1", 2, append(parked(history.Resume, 2, 0), childCall(alice, root, child, bob, 30*time.Second, alice))...)
		if stepped {
			h.sync("n1")
		}
		h.crash("n1").step("n1", 1, append(append([]history.Event{activate(alice)}, parked(history.Resume, 2, 0)...), start(alice, root))...)
		if _, v := check(testLimits(), h.steps); specOf(v) != want {
			t.Errorf("with its first step in the log %v: %v, want %q", stepped, v, want)
		}
	}
}

// The answer of a volatile actor may arrive after the actor has become journaled, and has recorded another one.
func TestForgottenAnswerArrives(t *testing.T) {
	limits := testLimits()
	limits.Agents["volatile"] = Agent{Volatile: true, Changing: true}
	for digest, want := range map[uint32]string{1: "", 2: "", 3: ReplyToCallerOnly} {
		h := newHistory()
		answers := func(durable bool, wrote int, digest uint32) {
			active, done := activate(volatileActor), reply(volatileActor, root)
			active.Durable, done.Durable, done.Digest = durable, durable, digest
			h.step("n1", wrote, active, admit(volatileActor, root, actor.CallID{}, time.Minute), start(volatileActor, root), done)
		}
		h.step("n1", 0, clientCall(volatileActor))
		answers(false, 0, 1)
		h.step("n1", 0, history.Event{Kind: history.Deactivate, Actor: volatileActor})
		answers(true, 2, 2)
		h.sync("n1").perform("n1", "respond", root)
		h.nth(history.Perform, 0).Digest = digest
		if _, v := check(limits, h.steps); specOf(v) != want {
			t.Errorf("answer %d: %v, want %q", digest, v, want)
		}
	}
}
