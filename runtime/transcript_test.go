// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
)

// hearing returns an agent that completes with the messages that it is given.
func hearing() script {
	return func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
		return actor.Complete(actor.Text(heard(b))), nil
	}
}

// heard returns the messages that a turn is given: initials of their roles, and their texts up
// to the first space.
func heard(b actor.Begin) string {
	var all []string
	for i := range b.Transcript {
		m := &b.Transcript[i]
		text, _, _ := strings.Cut(actor.TextOf(m.Parts), " ")
		all = append(all, m.Role.String()[:1]+":"+text)
	}
	return strings.Join(all, " ")
}

// hearingAfterSignal returns an agent that waits for a signal and completes with the messages
// that it was given.
func hearingAfterSignal() script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskWait, Name: "go", Timeout: time.Minute}}}, nil
		}
		return actor.Complete(actor.Text(heard(b))), nil
	}
}

func given(p actor.TranscriptPolicy) func(*actor.Definition) {
	return func(d *actor.Definition) { d.Transcript = p }
}

// appends makes a message to be sent the signal that appends a message with this role.
func appends(role actor.Role) func(*actor.Call) {
	return func(c *actor.Call) { c.Kind, c.Operation = actor.Signal, signals.OpAppend; c.SetRole(role) }
}

func signalTo(run actor.CallID) func(*actor.Call) {
	return func(c *actor.Call) { c.Kind, c.Parent, c.Operation = actor.Signal, run, "go" }
}

// wantAnswer compares the answer of a run, also of one whose client knows that it is held.
func (n *node) wantAnswer(run actor.CallID, want string) {
	n.t.Helper()
	if got := n.runs[run].Text; got != want {
		n.t.Errorf("got %q, want %q", got, want)
	}
}

// transcript returns the transcript of an actor in the log.
func (n *node) transcript(to string) (all []string) {
	n.t.Helper()
	id, err := actor.ParseID(to)
	if err != nil {
		n.t.Fatal(err)
	}
	j, err := store.Fold(n.log[id])
	if err != nil {
		n.t.Fatal(err)
	}
	messages, err := store.ReadTranscript(n.pages, id, &j.Transcript, 0, j.Transcript.Len())
	if err != nil {
		n.t.Fatal(err)
	}
	for i := range messages {
		all = append(all, fmt.Sprintf("%s %s %s", messages[i].Source, messages[i].Role, actor.TextOf(messages[i].Parts)))
	}
	return all
}

// longConversation returns a node whose actor a/s has a transcript of two stored pages and 4
// more messages, m0 to m131. The actor is not in memory.
func longConversation(t *testing.T, s script, options ...func(*actor.Definition)) *node {
	n := newNode(t, 1, agent("a", s, options...))
	n.cells[0].failpoints = func(p failpoint.Point) bool { return p == failpoint.SnapshotNow }
	for i := range 2*store.PageMessagesMax + 4 {
		n.want(n.send("a/s", fmt.Sprint("m", i), appends(actor.RoleUser)), "")
	}
	if n.restart(1); len(n.pages.blobs[actor.NewID("a", "s")]) != 2 {
		t.Fatalf("%d pages are stored, want 2", len(n.pages.blobs[actor.NewID("a", "s")]))
	}
	return n
}

// messages returns what hearing shows of the messages of longConversation.
func messages(from, to int) string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint("u:m", i))
	}
	return strings.Join(all, " ")
}

// A turn is given the part of the conversation that the policy of its agent selects, without
// its own message.
func TestTurnBeginsWithTranscript(t *testing.T) {
	for policy, want := range map[actor.TranscriptPolicy]string{
		actor.TranscriptNone: "", actor.TranscriptAll: "u:one a: u:two a:%s s:three", 1: "s:three", 2: "a:%s s:three", 4: "a: u:two a:%s s:three", 99: "u:one a: u:two a:%s s:three",
	} {
		n := newNode(t, 1, agent("a", hearing(), given(policy)))
		n.want(n.send("a/s", "one"), "")
		second := n.send("a/s", "two")
		n.want(n.send("a/s", "three", appends(actor.RoleSystem)), "")
		if n.restart(1); strings.Contains(want, "%s") {
			want = fmt.Sprintf(want, strings.Split(n.result(second), " ")[0])
		}
		n.want(n.send("a/s", "four"), want)
		n.want(n.send("a/other", "x"), "")
	}
}

// Calls of agents, and agents without a journal, are given no messages and keep none.
func TestCallsAreGivenNothing(t *testing.T) {
	n := newNode(t, 1, agent("a", calling("b")), agent("b", hearing(), given(actor.TranscriptAll)), agent("v", hearing(), given(actor.TranscriptAll), volatile))
	n.want(n.send("b/s", "one"), "")
	n.want(n.send("a/s", "two"), "a()")
	n.want(n.send("b/s", "three"), "u:one a:")
	n.want(n.send("v/s", "one"), "")
	n.want(n.send("v/s", "two", func(c *actor.Call) { c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k"} }), "")
	n.want(n.send("v/s", "three"), "")
	if len(n.pageReads) > 0 || n.cells[0].actors.find(actor.NewID("v", "s")).journal.Transcript.Len() > 0 {
		t.Error("a volatile actor keeps a transcript")
	}
}

// A run that failed leaves its message without an answer. An appended message stands where it
// was written.
func TestTranscriptOfFailedRun(t *testing.T) {
	n := newNode(t, 1, agent("a", waiting(time.Minute), given(actor.TranscriptAll)))
	run := n.send("a/s", "one")
	n.want(n.send("a/s", "in between", appends(actor.RoleTool)), "")
	n.deliver(actor.NewID("a", "s"), actor.Cancel{Call: run, Reason: actor.Stopped})
	n.drain()
	run = n.send("a/s", "two")
	n.want(n.send("a/s", "yes", signalTo(run)), "")
	n.wantAnswer(run, "went yes")
	want := []string{"operator tool in between", "user user one", "user user two", "agent assistant went yes"}
	if got := n.transcript("a/s"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A turn waits until the stored pages that it needs are read, each once.
func TestTurnWaitsForPages(t *testing.T) {
	for _, c := range []struct {
		policy actor.TranscriptPolicy
		from   int
		reads  int
	}{{actor.TranscriptNone, 132, 0}, {4, 128, 0}, {5, 127, 1}, {68, 64, 1}, {69, 63, 2}, {actor.TranscriptAll, 0, 2}} {
		n := longConversation(t, hearing(), given(c.policy))
		run := n.send("a/s", "question")
		if n.want(run, messages(c.from, 132)); len(n.pageReads) != c.reads {
			t.Errorf("%s: %d pages are read, want %d", c.policy, len(n.pageReads), c.reads)
		}
		n.wantStream(run, "1 user_input", "2 run_started", "3 run_done")
	}
}

// Turns of one actor that need the same pages read them once. They are dropped with the last
// turn.
func TestTurnsSharePages(t *testing.T) {
	n := longConversation(t, hearingAfterSignal(), given(actor.TranscriptAll), interleaved)
	first, second := n.send("a/s", "one"), n.send("a/s", "two")
	if len(n.pageReads) != 2 {
		t.Errorf("%d pages are read, want 2", len(n.pageReads))
	}
	n.send("a/s", "yes", signalTo(second))
	n.send("a/s", "yes", signalTo(first))
	n.wantAnswer(first, messages(0, 132))
	n.wantAnswer(second, messages(0, 132))
	if act := n.cells[0].actors.find(actor.NewID("a", "s")); act.pageCache.pages != nil {
		t.Error("pages stay in memory without a turn")
	}
}

// A replayed turn is given the same as at first, although messages were added and stored
// in the meantime.
func TestReplayIsGivenTheSame(t *testing.T) {
	n := longConversation(t, hearingAfterSignal(), given(100), interleaved)
	run := n.send("a/s", "question")
	other := n.send("a/s", "another")
	n.send("a/s", "yes", signalTo(other))
	n.wantAnswer(other, messages(32, 132))
	n.cells[0].failpoints = func(p failpoint.Point) bool { return p == failpoint.SnapshotNow }
	for i := range store.PageMessagesMax {
		n.send("a/s", fmt.Sprint("later", i), appends(actor.RoleUser))
	}
	n.pageReads = nil
	n.restart(1)
	n.drain()
	n.send("a/s", "yes", signalTo(run))
	if n.wantAnswer(run, messages(32, 132)); len(n.pageReads) != 3 {
		t.Errorf("%d pages are read, want those of the messages 32 to 131", len(n.pageReads))
	}
}

// A replay begins once the pages are read. Answers that arrive before are not lost, and effects
// are repeated after it.
func TestReplayWaitsForPages(t *testing.T) {
	models := func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskModel, Name: "m", Parts: actor.Text("x"), Body: []byte(heard(b))}, {Kind: actor.AskWait, Name: "go", Timeout: time.Minute}}}, nil
		}
		return actor.Complete(actor.Text(answerText(answers[0][1]) + " " + heard(b))), nil
	}
	n := longConversation(t, models, given(5))
	run := n.send("a/s", "question")
	n.paused = true
	n.restart(1)
	for len(n.pageReads) < 2 { // until the page is read for the second time
		in := n.inputs[0]
		n.inputs = n.inputs[1:]
		in()
	}
	if len(n.external) > 0 {
		t.Fatal("the request to the model is repeated before the replay")
	}
	page := n.inputs
	n.inputs = nil
	n.paused = false
	n.want(n.send("a/s", "yes", signalTo(run)), "")
	n.advance(10 * time.Second) // timers fire
	if n.want(run, "nothing"); len(n.external) > 0 {
		t.Fatal("the request to the model is repeated before the replay")
	}
	n.inputs = append(n.inputs, page...)
	if n.drain(); len(n.external) != 1 || string(n.external[0].effect.Op.(Model).Body) != messages(127, 132) {
		t.Fatalf("got %d requests to the model, want one with the same prompt", len(n.external))
	}
	n.sendOutcome(n.external[0], completion("done"))
	n.wantAnswer(run, "yes "+messages(127, 132))
}

// A page that cannot be read is read again later, until the run expires.
func TestFailedPageIsReadAgain(t *testing.T) {
	n := longConversation(t, hearing(), given(actor.TranscriptAll))
	n.failPages = 3
	run := n.send("a/s", "question")
	n.want(run, "nothing")
	n.advance(n.limits.ResendAfter)
	n.want(run, "nothing")
	n.advance(n.limits.ResendAfter)
	n.want(run, messages(0, 132))
	n.failPages = 1 << 20
	run = n.send("a/s", "question")
	n.advance(n.limits.RunTimeoutDefault)
	n.want(run, "Deadline")
	if failed := 1<<20 - n.failPages; failed < 10 || failed > 2*(2+int(n.limits.RunTimeoutDefault/n.limits.ResendAfter)) {
		t.Errorf("pages were read %d times in %v", failed, n.limits.RunTimeoutDefault)
	}
	n.failPages = 0
	n.want(n.send("a/s", "again"), messages(0, 132)+" u:question a:u:m0 u:question")
}

// A page with another number of messages than the snapshot states is like one that cannot be read.
func TestWrongPageIsReadAgainLater(t *testing.T) {
	n := longConversation(t, hearing(), given(actor.TranscriptAll))
	n.paused = true
	n.send("a/s", "question")
	for len(n.pageReads) == 0 {
		in := n.inputs[0]
		n.inputs = n.inputs[1:]
		in()
	}
	c, id := n.cells[0], actor.NewID("a", "s")
	n.step(c, PageLoaded{Actor: id, Page: n.pageReads[0], Messages: make([]actor.ChatMessage, 3)})
	if n.inputs = nil; len(n.pageReads) != 2 {
		t.Errorf("%d pages are read, want both, each once", len(n.pageReads))
	}
	if at, ok := c.NextDeadline(); !ok || at > n.now.Add(n.limits.ResendAfter) {
		t.Error("the page is not read again")
	}
}

// A turn that waits for pages can be cancelled, and its actor takes the next message.
func TestWaitingTurnIsCancelled(t *testing.T) {
	n := longConversation(t, hearing(), given(5))
	n.failPages = 1
	run := n.send("a/s", "question")
	n.deliver(actor.NewID("a", "s"), actor.Cancel{Call: run, Reason: actor.Stopped})
	n.drain()
	n.want(run, "Stopped")
	n.wantStream(run, "1 user_input", "2 run_cancelled")
	n.want(n.send("a/s", "again"), messages(128, 132)+" u:question")
}

// A snapshot of a long conversation comes no later than one of a short conversation: the pages
// that it has stored do not count.
func TestPagesDoNotDelaySnapshots(t *testing.T) {
	n := newNode(t, 1, agent("a", echo()))
	n.limits.SnapshotBytes = 4 << 10
	n.restart(1)
	most := 0
	for i := range 40 * store.PageMessagesMax {
		n.now = n.now.Add(time.Minute) // outcomes expire
		n.send("a/s", strings.Repeat(fmt.Sprint(i, " "), 50), appends(actor.RoleUser))
		most = max(most, len(n.log[actor.NewID("a", "s")].Entries))
	}
	if limit := 3 * store.PageMessagesMax / 2; most > limit {
		t.Errorf("a load reads %d entries, want at most %d", most, limit)
	}
}

// A signal appends a message of any role, once. Its actor runs nothing.
func TestAppendMessage(t *testing.T) {
	system := func(d *actor.Definition) { d.System = true }
	n := newNode(t, 1, agent("a", hearing(), given(actor.TranscriptAll)), agent("v", echo(), volatile), agent(actor.SessionAgent, echo(), system))
	var want []string
	for role := actor.RoleUser; role <= actor.RoleTool; role++ {
		n.want(n.send("a/s", role.String(), appends(role)), "")
		want = append(want, fmt.Sprintf("operator %s %s", role, role))
	}
	key := func(body string) func(*actor.Call) {
		return func(c *actor.Call) {
			c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k", Body: actor.HashOf([]byte(body))}
		}
	}
	first := n.send("a/s", "keyed", appends(actor.RoleUser), key("1"))
	for range 2 {
		again := n.send("a/s", "keyed", appends(actor.RoleUser), key("1"))
		if n.want(again, ""); n.replies[again].Run != first {
			t.Errorf("the repetition is answered as %s, want %s", n.replies[again].Run, first)
		}
		n.want(n.send("a/s", "other", appends(actor.RoleUser), key("2")), "Invalid")
		delete(n.replies, first)
		n.want(n.send("a/s", "keyed", appends(actor.RoleUser), func(c *actor.Call) { c.ID, c.Root, c.Attempt = first, first, 2 }), "nothing")
		n.want(first, "")
		n.restart(1)
		n.drain()
	}
	want = append(want, "operator user keyed")
	for to, reason := range map[string]string{"unknown/s": "NotFound", "v/s": "Rejected", "troupe.session/s": "NotFound"} {
		n.want(n.send(to, "x", appends(actor.RoleUser)), reason)
	}
	n.want(n.send("a/s", "x", func(c *actor.Call) { c.Kind, c.Operation = actor.Signal, signals.OpAppend }), "Invalid")
	if got := n.transcript("a/s"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(n.runs) > 0 {
		t.Errorf("%d runs, want none", len(n.runs))
	}
	n.want(n.send("a/s", "question"), "u:user a:assistant s:system t:tool u:keyed")
}

// An agent that no longer keeps a journal gets no message that would be lost with it.
func TestAppendToFormerlyJournaledAgent(t *testing.T) {
	n := newNode(t, 1, agent("a", echo()))
	n.want(n.send("a/s", "one"), "a:one")
	n.step(n.cells[0], Agents{Definitions: []actor.Definition{agent("a", echo(), volatile, func(d *actor.Definition) { d.Hash = actor.HashOf([]byte("later")) })}})
	n.want(n.send("a/s", "two", appends(actor.RoleUser)), "Rejected")
}
