// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/specs/linear"
)

func limits() Limits {
	return Limits{AgentCallDepthMax: 2, AgentCallTimeoutMax: 40 * time.Second, AgentConcurrentCallsMax: 1, MaxPendingPerActor: 2,
		MailboxBytesMax: 1000, RememberDone: time.Minute, RingBreaksIn: 10 * time.Second, RingFoundIn: time.Second,
		Agents: map[string]Agent{"alice": {}, "bob": {}, "carol": {}, "volant": {Volatile: true}}}
}

func judge(l Limits, steps [][]history.Event) (*Checker, *Violation) {
	c := New(l)
	for i, step := range steps {
		if v := c.Observe(uint64(i), step); v != nil {
			return c, v
		}
	}
	return c, nil
}

// A call that waited on n1, on n2, whose clock is ahead, and on n1 again, is not
// late by n1's clock alone.
func TestClocksThatMovedMayDiffer(t *testing.T) {
	l := limits()
	l.Skew = 10 * time.Second
	if _, v := judge(l, movesBack(51*time.Second).steps); v != nil {
		t.Error(v)
	}
	if _, v := judge(l, movesBack(49*time.Second).steps); specOf(v) != ExpireOnlyWhenDue {
		t.Error(v)
	}
}

func TestHealthyHistoriesPass(t *testing.T) {
	for name, tale := range map[string]*tale{
		"whole": whole(), "held": held(80 * time.Second), "crashed": crashes(true), "untainted": tainted(false), "moved": moves(), "dropped": dropped(),
	} {
		if _, v := judge(limits(), tale.steps); v != nil {
			t.Errorf("%s: %s", name, v)
		}
	}
	c, _ := judge(limits(), whole().steps)
	if v := c.End(); v != nil {
		t.Error(v)
	}
}

// Each spec catches its mutants. The tale they are mutants of passes.
func TestEverySpecCatches(t *testing.T) {
	epoch := func(n actor.Epoch, e history.Event) history.Event { e.Epoch = n; return e }
	caught := map[string]bool{}
	for _, test := range []struct {
		spec, name string
		tale       *tale
		mutate     func(*tale)
	}{
		{AcyclicCalls, "back to the caller's agent", whole(), func(t *tale) { t.the(history.Ask, 1).Peer = actor.NewID("alice", "two") }},
		{AcyclicCalls, "a ring taken in", whole(), func(t *tale) {
			t.steps = append(t.steps, newTale().step("n1", 1, admit(alice, other, child, time.Second, bob, alice)).steps...)
		}},
		{AcyclicCalls, "chain dropped on the way", whole(), func(t *tale) { t.the(history.Admit, 1).Chain = nil }},
		{AcyclicCalls, "chain dropped on a retry", whole(), func(t *tale) { t.the(history.Send, 0).Chain = []actor.ID{carol} }},
		{DepthBounded, "three above", whole(), func(t *tale) {
			t.steps = append(t.steps, newTale().step("n1", 1, admit(alice, other, child, time.Second,
				actor.NewID("bob", ""), actor.NewID("carol", ""), actor.NewID("volant", ""))).steps...)
		}},
		{TimeLeftShrinks, "more than its caller has", whole(), func(t *tale) {
			t.the(history.Admit, 0).Left = 20 * time.Second
		}},
		{TimeLeftShrinks, "more than any call may have", whole(), func(t *tale) { t.the(history.Ask, 1).Left = 41 * time.Second }},
		{TimeLeftShrinks, "more on the way", whole(), func(t *tale) { t.the(history.Send, 0).Left++ }},
		{TimeLeftShrinks, "more when it comes", whole(), func(t *tale) { t.the(history.Admit, 1).Left++ }},
		{TimeLeftShrinks, "its turn's clock runs on while it stands still", held(80 * time.Second), func(t *tale) { t.without(history.Hold, 2) }},
		{OutstandingBounded, "a second call", whole(), func(t *tale) {
			t.steps[2] = slices.Insert(t.steps[2], 4, epoch(1, makes(alice, root, other, carol, 30*time.Second, alice)))
			t.steps[2][4].From, t.steps[2][4].At = at("n1"), t.now
		}},
		{OutstandingBounded, "refused for nothing", whole(), func(t *tale) {
			e := t.the(history.Ask, 1)
			e.Kind, e.Call, e.Why, e.Reason, e.Scope = history.Refuse, actor.CallID{}, "caller", actor.Busy, actor.ScopeCaller
		}},
		{OutstandingBounded, "not released", whole(), func(t *tale) { t.the(history.Answer, 1).Pending = 1 }},
		{MailboxBounded, "a third message", mailbox(2, 10), func(t *tale) { *t = *mailbox(3, 10) }},
		{MailboxBounded, "too many bytes", mailbox(2, 500), func(t *tale) { *t = *mailbox(2, 501) }},
		{TurnExclusive, "two turns at once", twoTurns(true), func(t *tale) { *t = *twoTurns(false) }},
		{TurnExclusive, "one turn twice", whole(), func(t *tale) { t.steps[2][3] = t.steps[2][2] }},
		{OneAnswer, "a late answer", whole(), func(t *tale) {
			t.steps[len(t.steps)-3] = slices.Insert(t.steps[len(t.steps)-3], 2, *t.the(history.Answer, 1))
		}},
		{OneAnswer, "two ends", whole(), func(t *tale) {
			i := slices.IndexFunc(t.steps, func(s []history.Event) bool { return len(s) > 1 && s[1].Kind == history.Reply })
			t.steps[i] = slices.Insert(t.steps[i], 2, t.steps[i][1])
			t.steps[i][len(t.steps[i])-1].Wrote++
		}},
		{OneAnswer, "two responses", whole(), func(t *tale) { t.perform("n1", "respond", root) }},
		{ReplyToCallerOnly, "sent to another", whole(), func(t *tale) { t.the(history.Send, 1).Peer = carol }},
		{ReplyToCallerOnly, "never asked", whole(), func(t *tale) { t.the(history.Answer, 1).Call = other }},
		{ReplyToCallerOnly, "before its end", whole(), func(t *tale) { t.without(history.Reply, 0) }},
		{ReplyToCallerOnly, "not what was said", whole(), func(t *tale) { t.the(history.Reply, 0).Status = actor.Failed }},
		{ReplyToCallerOnly, "not with these words", whole(), func(t *tale) { t.the(history.Reply, 0).Said = 7 }},
		{ReplyToCallerOnly, "not with these words, to a client", whole(), func(t *tale) {
			responds := t.the(history.Perform, 3)
			responds.Status, responds.Said = actor.Succeeded, 7
		}},
		{Structured, "ends while its call is open", whole(), func(t *tale) { t.without(history.Answer, 1) }},
		{Structured, "calls without a turn", whole(), func(t *tale) { t.without(history.Start, 0) }},
		{NoWorkPastDeadline, "starts too late", late(time.Minute - 1), func(t *tale) { *t = *late(time.Minute) }},
		{NoWorkPastDeadline, "calls with nothing", whole(), func(t *tale) { t.the(history.Ask, 1).Left = 0 }},
		{NoWorkPastDeadline, "sends with nothing", whole(), func(t *tale) { t.the(history.Send, 0).Left = 0 }},
		{AckedIsDurable, "answered before it is synced", whole(), func(t *tale) { t.the(history.Perform, 3).Synced-- }},
		{AckedIsDurable, "asked before it is synced", whole(), func(t *tale) { t.the(history.Perform, 0).Synced-- }},
		{AckedIsDurable, "worked before it is synced", whole(), func(t *tale) { t.the(history.Perform, 1).Synced-- }},
		{AckedIsDurable, "taken in and not written", whole(), func(t *tale) { t.the(history.Append, 0).Wrote-- }},
		{AckedIsDurable, "nothing written", whole(), func(t *tale) { t.without(history.Append, 1) }},
		{AckedIsDurable, "a gate skipped", tainted(false), func(t *tale) { *t = *tainted(true) }},
		{AckedIsDurable, "a gate skipped for a request", sentBefore(true), func(t *tale) { *t = *sentBefore(false) }},
		{AckedIsDurable, "a refusal, and the outcome with it", declined(1), func(t *tale) { *t = *declined(2) }},
		{AckedIsDurable, "the outcome, refused for something else", declined(1), func(t *tale) { t.the(history.Refuse, 0).Reason = actor.Unavailable }},
		{AckedIsDurable, "the outcome, refused in another step", declined(1), func(t *tale) {
			t.steps = slices.Insert(t.steps, len(t.steps)-1, []history.Event{message(history.Deliver, "cancel", other, bob, carol)})
		}},
		{AckedIsDurable, "an outcome passed on, not a refusal", passedOn(false), func(t *tale) { *t = *passedOn(true) }},
		{AckedIsDurable, "an outcome, not a refusal", refused(actor.Failed), func(t *tale) { *t = *refused(actor.Succeeded) }},
		{EffectOncePerAttempt, "the tool twice", whole(), func(t *tale) { t.perform("n2", "tool", child) }},
		{EffectOncePerAttempt, "the call twice", whole(), func(t *tale) {
			t.step("n2", 1, epoch(1, admit(bob, child, root, 30*time.Second, alice)))
		}},
		{EffectOncePerAttempt, "the tool over a crash", whole(), func(t *tale) { t.crash("n2").perform("n2", "tool", child) }},
		{ExpireOnlyWhenDue, "held", held(80 * time.Second), func(t *tale) { *t = *held(80*time.Second - 1) }},
		{ExpireOnlyWhenDue, "deaf", held(80 * time.Second), func(t *tale) { t.without(history.Hold, 1) }},
		{ExpireOnlyWhenDue, "an old word wins", held(80 * time.Second), func(t *tale) {
			e := still(history.Resume, "ask", alice, child, 1, 0)
			t.step("n1", 1, e)
			t.steps[len(t.steps)-2], t.steps[len(t.steps)-1] = t.steps[len(t.steps)-1], t.steps[len(t.steps)-2]
		}},
		{ExpireOnlyWhenDue, "a run", late(time.Minute - 1), func(t *tale) {
			t.step("n1", 0, history.Event{Kind: history.Expire, What: "run", Actor: alice, Call: root})
		}},
		{StartsOnlyKnown, "nobody is called", whole(), func(t *tale) { t.the(history.Ask, 1).Peer = actor.NewID("nobody", "") }},
		{StartsOnlyKnown, "nobody has a turn", whole(), func(t *tale) {
			for _, kind := range []history.Kind{history.Activate, history.Admit} {
				t.the(kind, 0).Actor = actor.NewID("nobody", "")
			}
		}},
		{SingleActivation, "two under one epoch", whole(), func(t *tale) { t.step("n2", 0, activate(alice)) }},
		{SingleActivation, "acts after a newer one", moves(), func(t *tale) { t.step("n1", 1, reply(alice, root)) }},
		{SingleActivation, "acts where it is not", whole(), func(t *tale) { t.the(history.Admit, 1).From = at("n1") }},
		{SingleActivation, "takes what was sent to an old epoch", whole(), func(t *tale) { t.the(history.Deliver, 0).Epoch = 7 }},
		{SingleActivation, "two owners under one epoch", whole(), func(t *tale) { t.the(history.Claim, 1).ShardLo = 2047 }},
		{FencedWrites, "durable after a newer epoch", moves(), func(t *tale) { t.sync("n1") }},
		{FencedWrites, "kept by a crash", moves(), func(t *tale) { t.synced["n1"] = 2; t.crash("n1") }},
		{NoPhantomRefusal, "the waits never stood together", breaks(), func(t *tale) {
			late := answer(alice, root, child)
			late.Status = actor.Failed
			*t = *newTale()
			r := breaks()
			t.steps = append(t.steps, r.steps[0])
			t.end["n1"] = 2
			t.step("n1", 1, late)
			t.steps = append(t.steps, r.steps[1:]...)
		}},
		{NoPhantomRefusal, "another turn", breaks(), func(t *tale) {
			ring := slices.Clone(theRing)
			ring[0].Turn = root
			t.the(history.RefuseWaitCycle, 0).Ring = ring
		}},
		{OneVictimPerCycle, "not the newest", breaks(), func(t *tale) {
			*t = *rings().step("n1", 1, refuses(bob, child), reply(bob, child))
		}},
		{OneVictimPerCycle, "both", breaks(), func(t *tale) {
			ring := slices.Clone(theRing)
			ring[0].Stamp = 3
			e := refuses(bob, child)
			e.Ring = ring
			t.step("n1", 1, e, reply(bob, child))
		}},
		{RefusedNeverRuns, "it runs after all", breaks(), func(t *tale) { t.step("n1", 1, start(alice, other)) }},
		{RefusedNeverRuns, "it has run", breaks(), func(t *tale) { t.step("n1", 1, refuses(alice, root)) }},
		{NoWaitCycle, "found only by asking again", breaks(), func(t *tale) { *t = *breaksAfter(2 * time.Second) }},
		{EveryWaitCycleBreaks, "stands too long", late30(breaks()), func(t *tale) { *t = *late30(rings()) }},
		{EffectOncePerAttempt, "a model twice", streams(), func(t *tale) {
			t.perform("n1", "model", root)
			*t.the(history.Perform, 11) = *t.the(history.Perform, 0)
		}},
		{EffectOncePerAttempt, "a tool that must not be repeated, as another attempt", works(asks()), func(t *tale) {
			t.the(history.Perform, 1).Why = Once
			t.perform("n2", "tool", child)
			again := t.the(history.Perform, 3)
			again.Why, again.Attempt = Once, 2
		}},
		{EffectOncePerAttempt, "an agent that must not begin again", streams(), func(t *tale) { t.outward("act", 2, 2) }},
		{AttemptAnnounced, "what was shown is not taken back", streams(), func(t *tale) { t.the(history.Perform, 5).What = "publish" }},
		{AttemptAnnounced, "one piece too few is taken back", streams(), func(t *tale) { t.the(history.Perform, 5).N = 4 }},
		{RetriedUnheard, "heard, and tried again", streams(), func(t *tale) { t.outward("try", 2, 3) }},
		{StreamIsDense, "a gap", listens(1, 2), func(t *tale) { *t = *listens(1, 3) }},
		{StreamIsDense, "twice", listens(1, 2), func(t *tale) { *t = *listens(1, 1) }},
		{RevokedHearNothing, "told after all", listens(1, 2), func(t *tale) { t.the(history.Perform, 2).What = "revoke" }},
		{EventsTellTruth, "count of the mailbox", whole(), func(t *tale) { t.the(history.Admit, 0).Count = 2 }},
		{EveryCallEnds, "an open call is not sent again", crashes(true), func(t *tale) { *t = *crashes(false) }},
	} {
		if _, v := judge(limits(), test.tale.steps); v != nil {
			t.Errorf("%s, %s: the healthy twin: %s", test.spec, test.name, v)
			continue
		}
		test.mutate(test.tale)
		_, v := judge(limits(), test.tale.steps)
		switch {
		case v == nil:
			t.Errorf("%s, %s: not caught", test.spec, test.name)
		case v.Spec != test.spec:
			t.Errorf("%s, %s: caught as %s", test.spec, test.name, v)
		case v.Sentence == "" || !strings.HasPrefix(v.String(), test.spec+" broken in step "):
			t.Errorf("%s, %s: says %q", test.spec, test.name, v)
		}
		caught[test.spec] = true
	}
	caught[TurnComesBack], caught[OwnedAgain] = true, true           // in TestEnd
	caught[OnlySucceededAdvances], caught[ApprovalOnce] = true, true // in TestWorkCatchesTheDefectsOfTheModel
	for _, s := range linear.Says() {
		caught[s[0]] = true // in specs/linear
	}
	for _, spec := range All() {
		if !caught[spec.Name] || !strings.HasSuffix(spec.Says, ".") {
			t.Errorf("%s: no mutant, or no sentence", spec.Name)
		}
	}
}

// An unjournaled actor that forgot a call takes it again. What it had begun may go
// on meanwhile, and is no second beginning of what it then begins; two beginnings
// without anything forgotten are.
func TestWhatAnActorForgotMayGoOn(t *testing.T) {
	begins := func(forgets bool) *tale {
		t := newTale()
		invoke := func() {
			t.step("n1", 0, start(volant, root), history.Event{Kind: history.Ask, What: "invoke", Actor: volant, Parent: root, Step: 1})
			t.step("n1", 0, history.Event{Kind: history.Perform, What: "invoke", Why: Once, Call: root, Step: 1, Attempt: 1})
		}
		t.step("n1", 0, activate(volant), admit(volant, root, actor.CallID{}, time.Minute))
		invoke()
		if forgets {
			t.step("n1", 0, history.Event{Kind: history.Deactivate, Actor: volant, Why: "lost"}, activate(volant), admit(volant, root, actor.CallID{}, time.Minute))
			invoke()
		}
		return t.outward("act", 1, 1).outward("act", 1, 1)
	}
	if _, v := judge(limits(), begins(true).steps); v != nil {
		t.Errorf("it forgot: %s", v)
	}
	if _, v := judge(limits(), begins(false).steps); v == nil || v.Spec != EffectOncePerAttempt {
		t.Errorf("it forgot nothing: %v", v)
	}
}

// An unjournaled actor that has moved counts its attempts anew; its owner of
// before may still be trying under the same number.
func TestAnOwnerOfBeforeMayStillTry(t *testing.T) {
	tale := streams()
	again := history.Event{Kind: history.Perform, What: "try", Call: root, Step: 1, Attempt: 2, N: 3}
	if _, v := judge(limits(), tale.step("n2", 0, again).steps); v != nil {
		t.Errorf("another node tries: %s", v)
	}
	if _, v := judge(limits(), tale.step("n1", 0, again).steps); v == nil || v.Spec != RetriedUnheard {
		t.Errorf("the same node tries: %v", v)
	}
}

func TestEnd(t *testing.T) {
	for name, test := range map[string]struct {
		tale *tale
		spec string
	}{
		"all has ended":               {whole(), ""},
		"a client waits":              {newTale().step("n1", 0, clientMakes(alice)), EveryCallEnds},
		"its node is gone":            {newTale().step("n1", 0, clientMakes(alice)).crash("n1"), ""},
		"its cell is gone":            {newTale().step("n1", 0, clientMakes(alice)).step("n1", 0, history.Event{Kind: history.Restart}), ""},
		"a call waits in the mailbox": {newTale().step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute)), EveryCallEnds},
		"a turn has not come back":    {late(time.Second), TurnComesBack},
		"it was never durable":        {late(time.Second).crash("n1"), ""},
		"a shard has another owner":   {owned().step("n1", 0, history.Event{Kind: history.Lose, ShardHi: 8}).step("n2", 0, history.Event{Kind: history.Claim, Epoch: 2, ShardHi: 8}), ""},
		"a shard is nobody's":         {owned().step("n1", 0, history.Event{Kind: history.Lose, ShardHi: 8}), OwnedAgain},
	} {
		c, v := judge(limits(), test.tale.steps)
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

// What a crash takes back may happen again; what it does not may not.
func TestACrashTakesBackWhatWasNotSynced(t *testing.T) {
	again := func(t *tale) *tale {
		t.crash("n1")
		return t.step("n1", 2, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root), reply(alice, root))
	}
	one := func(sync bool) *tale {
		t := newTale()
		t.step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute), start(alice, root))
		t.step("n1", 1, reply(alice, root))
		if sync {
			t.sync("n1")
		}
		return again(t)
	}
	if _, v := judge(limits(), one(false).steps); v != nil {
		t.Error(v)
	}
	if _, v := judge(limits(), one(true).steps); specOf(v) != EffectOncePerAttempt {
		t.Error(v)
	}
	// The run was taken in for good, its turn was not: it waits again.
	half := newTale()
	half.step("n1", 1, activate(alice), admit(alice, root, actor.CallID{}, time.Minute)).sync("n1")
	half.step("n1", 1, start(alice, root), makes(alice, root, child, bob, time.Second, alice))
	half.crash("n1").step("n1", 0, activate(alice))
	c, v := judge(limits(), half.steps)
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

func TestCompare(t *testing.T) {
	healthy := func() history.State {
		return history.State{Cell: at("n1"), Actors: []history.Actor{{ID: alice, Epoch: 1, Loaded: true,
			Turns: []history.Turn{{Run: root, Open: []actor.CallID{child}}}}, {ID: bob}}}
	}
	for name, change := range map[string]func(*history.State){
		"":                        func(*history.State) {},
		"another epoch":           func(s *history.State) { s.Actors[0].Epoch = 2 },
		"not in memory":           func(s *history.State) { s.Actors = nil },
		"one more in memory":      func(s *history.State) { s.Actors[1].Loaded = true },
		"a call that is answered": func(s *history.State) { s.Actors[0].Turns[0].Open = nil },
		"no turn":                 func(s *history.State) { s.Actors[0].Turns = nil },
		"another turn":            func(s *history.State) { s.Actors[0].Turns = append(s.Actors[0].Turns, history.Turn{Run: other}) },
		"a call in the mailbox":   func(s *history.State) { s.Actors[0].Queue = []actor.CallID{other} },
		"bytes":                   func(s *history.State) { s.Actors[0].Bytes = 1 },
	} {
		c, v := judge(limits(), asks().steps)
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

// Ended calls, and clients that have their answer, are forgotten in time.
func TestNothingIsKeptForGood(t *testing.T) {
	c := New(limits())
	for i := range 10_000 {
		tale := trip(i)
		if i > 0 {
			tale.steps[2] = slices.DeleteFunc(tale.steps[2], func(e history.Event) bool { return e.Kind == history.Activate })
		}
		for _, step := range tale.steps[1:] {
			if v := c.Observe(uint64(i), step); v != nil {
				t.Fatal(v)
			}
		}
	}
	if n := len(c.runs) + len(c.clients) + len(c.pasts) + len(c.nodes["n1"].changes); n > 3000 {
		t.Errorf("%d calls, clients and changes are kept", n)
	}
}

var comment = regexp.MustCompile(`\\\*.*`)

// properties are the names behind INVARIANTS and PROPERTIES in a config.
func properties(config string) (names []string) {
	listing := false
	for _, word := range strings.Fields(comment.ReplaceAllString(config, "")) {
		switch {
		case word == strings.ToUpper(word) && len(word) > 2:
			listing = strings.HasPrefix(word, "INVARIANT") || strings.HasPrefix(word, "PROPERT")
		case listing:
			names = append(names, word)
		}
	}
	return names
}

// The names of tla/ are those of the specs, both ways, but for TLC's own: goals
// that must be reached (Not_), and what tla/README.md lists as Model-only.
// EventsTellTruth speaks of code alone, and so do those of what is streamed and
// of histories as they are seen from outside.
func TestNamesAreThoseOfTLA(t *testing.T) {
	var configs []string
	for _, pattern := range []string{"../tla/*.cfg", "../tla/broken/*.cfg"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no configs match %s: %v", pattern, err)
		}
		configs = append(configs, found...)
	}
	readme, err := os.ReadFile("../tla/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, modelOnly, ok := strings.Cut(string(readme), "## Model-only")
	if !ok {
		t.Fatal("tla/README.md does not say what is Model-only")
	}
	named := map[string]bool{EventsTellTruth: true, AttemptAnnounced: true, RetriedUnheard: true, StreamIsDense: true, RevokedHearNothing: true}
	for _, s := range linear.Says() {
		named[s[0]] = true
	}
	for _, path := range configs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range properties(string(text)) {
			named[name] = true
			known := slices.ContainsFunc(All(), func(s Spec) bool { return s.Name == name })
			if !known && !strings.HasPrefix(name, "Not_") && !strings.Contains(modelOnly, "`"+name+"`") {
				t.Errorf("%s: %s has no spec of that name", path, name)
			}
		}
	}
	for _, spec := range All() {
		if !named[spec.Name] {
			t.Errorf("%s: no config in tla/ checks it", spec.Name)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	const trips = 200
	var steps [][]history.Event
	events := 0
	for i := range trips {
		tale := newTale()
		tale.now = tale.now.Add(actor.Duration(i) * time.Second)
		tale.end["n1"], tale.end["n2"] = uint64(4*i), uint64(4*i)
		trip := ends(works(asksFrom(tale)))
		for _, step := range trip.steps[min(i, 1):] { // shards are claimed once
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
		if _, v := judge(limits(), steps); v != nil {
			b.Fatal(v)
		}
	}
	b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
