// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

var firstOutcome, secondOutcome = actor.CallID{11}, actor.CallID{12}

func detach(call actor.CallID, left actor.Duration) history.Event {
	return history.Event{Kind: history.Detach, Actor: alice, Call: call, Parent: root, Peer: bob, Left: left}
}

func settle(call actor.CallID, what string, run actor.CallID) []history.Event {
	return []history.Event{{Kind: history.Settle, Actor: alice, Call: call, What: what, Root: run},
		{Kind: history.Admit, What: history.Delivered, Actor: alice, Call: run, Root: run, Left: time.Minute, Lane: actor.Normal}}
}

func lateAnswer(call actor.CallID, what string) history.Event {
	return history.Event{Kind: history.Late, Actor: alice, Call: call, What: what}
}

// detached: alice makes two detached calls, and her turn ends. The second one is answered, the first one times
// out after 20 s, and is answered later. Between the outcomes alice crashes.
func detached() *historyBuilder {
	t := newHistory()
	t.step("n1", 0, history.Event{Kind: history.Claim, Epoch: 1, ShardHi: 4096}, clientCall(alice))
	t.step("n1", 4, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root), detach(child, 20*time.Second), detach(other, 20*time.Second), reply(alice, root))
	t.sync("n1").perform("n1", "respond", root)
	t.step("n1", 2, append([]history.Event{message(history.Deliver, "answered", other, bob, alice)}, settle(other, "answer", firstOutcome)...)...)
	t.sync("n1").crash("n1")
	t.step("n1", 0, history.Event{Kind: history.Restart}, activate(alice), message(history.Send, "request", child, alice, bob))
	t.steps[len(t.steps)-1][2].Left = time.Second
	t.advance(20*time.Second).step("n1", 2, settle(child, "timeout", secondOutcome)...)
	t.step("n1", 1, start(alice, firstOutcome), reply(alice, firstOutcome), start(alice, secondOutcome))
	t.step("n1", 1, message(history.Deliver, "answered", child, bob, alice), lateAnswer(child, "answer"))
	return t.step("n1", 1, reply(alice, secondOutcome))
}

func TestDetachedCallsAreJudged(t *testing.T) {
	for _, c := range []struct {
		name, spec string
		mutate     func(*historyBuilder)
	}{
		{"valid", "", func(*historyBuilder) {}},
		{"the outcome is undone by a crash", "", func(t *historyBuilder) { // and comes again
			t.steps = slices.Delete(t.steps, 5, 6)
			t.steps[5][0].Synced = 4
			again := message(history.Send, "request", other, alice, bob)
			again.Left, again.At, again.From = time.Second, t.steps[6][0].At, at("n1")
			t.steps[6] = append(t.steps[6], again)
			t.steps = slices.Insert(t.steps, 7, t.steps[4])
		}},
		{"answered twice", OneOutcomePerCorrelation, func(t *historyBuilder) { t.steps = slices.Insert(t.steps, 5, t.steps[4]) }},
		{"answered after the time-out", OneOutcomePerCorrelation, func(t *historyBuilder) {
			t.steps[len(t.steps)-2] = append([]history.Event{t.steps[len(t.steps)-2][0]}, settle(child, "answer", actor.CallID{13})...)
			t.steps[len(t.steps)-2] = newHistory().step("n1", 2, t.steps[len(t.steps)-2]...).steps[0]
		}},
		{"timed out after the answer", OneOutcomePerCorrelation, func(t *historyBuilder) { t.nth(history.Settle, 1).Call = other }},
		{"outcome of a call that was not made", OneOutcomePerCorrelation, func(t *historyBuilder) { t.drop(history.Detach, 1) }},
		{"made twice", OneOutcomePerCorrelation, func(t *historyBuilder) { t.nth(history.Detach, 1).Call = child }},
		{"answer without a reply", OneOutcomePerCorrelation, func(t *historyBuilder) { t.drop(history.Deliver, 0) }},
		{"message without an outcome", OneOutcomePerCorrelation, func(t *historyBuilder) { t.nth(history.Settle, 0).Root = secondOutcome }},
		{"early time-out", ExpireOnlyWhenDue, func(t *historyBuilder) { t.nth(history.Detach, 0).Left++ }},
		{"second outcome first", DeliveredInOrder, func(t *historyBuilder) {
			t.nth(history.Start, 1).Call, t.nth(history.Reply, 1).Call, t.nth(history.Start, 2).Call = secondOutcome, secondOutcome, firstOutcome
		}},
		{"two at once", DeliveredInOrder, func(t *historyBuilder) { t.drop(history.Reply, 1) }},
		{"dropped without an outcome", EveryPendingEnds, func(t *historyBuilder) {
			t.steps = slices.Insert(t.steps, 4, newHistory().step("n1", 1, lateAnswer(child, "expired")).steps[0])
		}},
		{"cancelled and no reminder", EveryPendingEnds, func(t *historyBuilder) {
			t.steps = slices.Insert(t.steps, 4, newHistory().step("n1", 1, lateAnswer(child, history.Cancelled)).steps[0])
		}},
		{"a reminder cancelled after its outcome", EveryPendingEnds, func(t *historyBuilder) {
			t.nth(history.Detach, 0).What = history.Reminder
			t.steps = append(t.steps, newHistory().step("n1", 2, lateAnswer(child, history.Cancelled)).steps[0])
		}},
		{"a reminder delivered after its cancellation", OneOutcomePerCorrelation, func(t *historyBuilder) {
			t.nth(history.Detach, 0).What = history.Reminder
			t.steps = slices.Insert(t.steps, 4, newHistory().step("n1", 1, lateAnswer(child, history.Cancelled)).steps[0])
		}},
		{"dropped twice", EveryPendingEnds, func(t *historyBuilder) { t.steps = slices.Insert(t.steps, len(t.steps)-1, t.steps[len(t.steps)-2]) }},
		{"not sent again", EveryPendingEnds, func(t *historyBuilder) { t.drop(history.Send, 0) }},
		{"pending at the end", EveryPendingEnds, func(t *historyBuilder) { t.steps = t.steps[:4] }},
		{"deleted with its session", "", func(t *historyBuilder) {
			t.steps = append(t.steps[:4], newHistory().step("n1", 2, lateAnswer(child, "discarded"), lateAnswer(other, "discarded")).steps[0])
		}},
		{"one entry missing", AckedIsDurable, func(t *historyBuilder) { t.nth(history.Append, 1).Wrote-- }},
	} {
		b := detached()
		c.mutate(b)
		l := testLimits()
		l.Agents = map[string]Agent{"alice": {Interleaved: true}, "bob": {}}
		checker, v := check(l, b.steps)
		if v == nil {
			v = checker.End()
		}
		if got := specOf(v); got != c.spec {
			t.Errorf("%s: %s, want %q", c.name, v, c.spec)
		}
		if p := checker.Premises; c.name == "valid" && (p.OneOutcomePerCorrelation != 1 || p.DeliveredInOrder != 1 || p.EveryPendingEnds != 1) {
			t.Errorf("got the premises %+v, want 1 each", p)
		}
	}
}
