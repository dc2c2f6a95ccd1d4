// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// converse appends messages to the log, each of a run with an answer, and returns the
// entries.
func (s *entryBuilder) converse(runs int, text func(i int) string) (all []Entry) {
	for i := range runs {
		accepted, end := s.accept(text(2*i)), s.end(text(2*i+1))
		end.Events[0].Seq = 3
		all = append(all, accepted, end)
	}
	return all
}

// stored returns a snapshot as a cell writes it: later ones do not repeat the pages.
func (s *entryBuilder) stored() Entry {
	e := Entry{Actor: s.id, Shard: s.shard(), Epoch: 3, N: s.state.N, Record: SnapshotOf(&s.state), WasDue: s.due, Due: s.due}
	s.state.Transcript.Stored()
	return e
}

// texts returns the stored transcript of an actor, a text for each message.
func texts(t *testing.T, r Rows, id actor.ID) (all []string) {
	t.Helper()
	saved, err := r.Load(id)
	if err != nil {
		t.Fatal(err)
	}
	j, err := Fold(saved)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := ReadTranscript(r, id, &j.Transcript, 0, j.Transcript.Len())
	if err != nil {
		t.Fatal(err)
	}
	for i := range messages {
		all = append(all, messages[i].Role.String()+" "+actor.TextOf(messages[i].Parts))
	}
	return all
}

func numbered(i int) string { return fmt.Sprint("text ", i) }

// messagesOf returns n messages of one part each.
func messagesOf(n, size int) (all []actor.ChatMessage) {
	for i := range n {
		text := numbered(i)
		m := actor.ChatMessage{Call: actor.NewCallID(1, 1, uint64(i)), Role: actor.RoleUser, Source: actor.FromUser, At: actor.Time(i + 1), Parts: actor.Text(text + strings.Repeat("x", max(0, size-len(text))))}
		all = append(all, m)
	}
	return all
}

func transcriptOf(all []actor.ChatMessage) (t Transcript) {
	for i := range all {
		t.add(all[i])
	}
	return t
}

// A page is closed with PageMessagesMax messages, or with the message that makes it as large
// as PageBytesMax.
func TestPagesClose(t *testing.T) {
	for _, c := range []struct{ messages, size, pages, tail int }{
		{0, 0, 0, 0}, {63, 0, 0, 63}, {64, 0, 1, 0}, {65, 0, 1, 1}, {128, 0, 2, 0}, {200, 0, 3, 8},
		{1, PageBytesMax - 99, 0, 1}, {1, PageBytesMax, 1, 0}, {7, PageBytesMax / 4, 1, 3}, {8, PageBytesMax / 4, 2, 0},
	} {
		all := messagesOf(c.messages, c.size)
		got := transcriptOf(all)
		if len(got.Pages) != c.pages || len(got.Tail) != c.tail || got.Len() != uint64(c.messages) {
			t.Errorf("%d messages of %d bytes: got %d pages and %d more of %d, want %d and %d", c.messages, c.size, len(got.Pages), len(got.Tail), got.Len(), c.pages, c.tail)
		}
		if c.messages > 0 && (got.Began != 1 || got.Last != actor.Time(c.messages)) {
			t.Errorf("%d messages: from %d to %d", c.messages, got.Began, got.Last)
		}
	}
}

// Range returns messages from pages that are stored, from pages that are not, and from the
// tail. It asks for those stored pages only that it needs.
func TestTranscriptRange(t *testing.T) {
	all := messagesOf(3*PageMessagesMax+10, 0)
	all[70].Parts = append(all[70].Parts, actor.Part{Media: actor.MediaJSON, Bytes: []byte(large)}) // in a blob
	c := transcriptOf(all)
	pages := map[actor.Hash][]actor.ChatMessage{}
	for i := range c.Pages[:2] {
		p := &c.Pages[i]
		pages[p.Hash], _ = p.messages()
		p.content = nil
	}
	for _, r := range []struct {
		from, to uint64
		asked    []int
	}{{0, 0, nil}, {0, 1, []int{0}}, {0, 64, []int{0}}, {63, 65, []int{0, 1}}, {64, 128, []int{1}}, {70, 71, []int{1}}, {128, 202, nil}, {127, 128, []int{1}},
		{0, 202, []int{0, 1}}, {191, 193, nil}, {192, 202, nil}, {200, 200, nil}, {190, 999, nil}, {5, 5, nil}, {999, 1000, nil}, {9, 8, nil}} {
		var asked []actor.Hash
		read := func(page actor.Hash) ([]actor.ChatMessage, bool) {
			asked = append(asked, page)
			return pages[page], true
		}
		got, missing := c.Range(r.from, r.to, read)
		from := min(r.from, c.Len())
		if want := all[from:max(from, min(r.to, c.Len()))]; len(missing) > 0 || len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("%d to %d: got %d messages, %d missing pages, want %d", r.from, r.to, len(got), len(missing), len(want))
		}
		var want []actor.Hash
		for _, i := range r.asked {
			want = append(want, c.Pages[i].Hash)
		}
		if !slices.Equal(asked, want) {
			t.Errorf("%d to %d: asks for %d pages, want %d", r.from, r.to, len(asked), len(want))
		}
		if _, missing = c.Range(r.from, r.to, func(actor.Hash) ([]actor.ChatMessage, bool) { return nil, false }); !slices.Equal(missing, want) {
			t.Errorf("%d to %d: %d pages are missing, want %d", r.from, r.to, len(missing), len(want))
		}
		if again := c.Missing(r.from, r.to, func(actor.Hash) ([]actor.ChatMessage, bool) { return nil, false }); !slices.Equal(again, missing) {
			t.Errorf("%d to %d: Missing lists %d pages, Range %d", r.from, r.to, len(again), len(missing))
		}
	}
	short := func(page actor.Hash) ([]actor.ChatMessage, bool) { return pages[page][1:], true }
	if _, missing := c.Range(0, 1, short); len(missing) != 1 {
		t.Error("a page that lacks a message is not missing")
	}
	if missing := c.Missing(0, 1, short); len(missing) != 1 {
		t.Error("a page that lacks a message is not missing, for Missing")
	}
}

// A conversation has the messages of clients to agents of users, and the answers to those that
// did not fail. Other calls, and operations other than a message, are no part of it.
func TestTranscriptOfRuns(t *testing.T) {
	s := newEntryBuilder(t, "alice")
	var j Journal
	end := func(change func(*actor.Call), refusal *actor.Refusal) {
		t.Helper()
		s.runs++
		c := actor.Call{ID: s.run(s.runs), Root: s.run(s.runs), To: s.id, Operation: actor.HandleMessageFull, Left: 5, Parts: actor.Text(numbered(int(s.runs)))}
		change(&c)
		usage := actor.Usage{Input: 3, Total: 3}
		for _, r := range []Record{Accepted{Call: c, At: actor.Time(10 * s.runs)},
			Asking{Run: c.ID, At: 1, Asks: []Asked{{Ask: actor.Ask{Kind: actor.AskModel}, Attempt: 1}}},
			Answered{Run: c.ID, Step: 1, At: 2, Answer: actor.Answer{Usage: usage}},
			Ended{Call: c.ID, At: actor.Time(10*s.runs + 1), Until: actor.Forever, Reply: actor.Reply{Call: c.ID, Run: c.ID, Parts: actor.Text("answer"), Refusal: refusal}}} {
			if err := j.Apply(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	root := func(*actor.Call) {}
	end(root, nil)
	end(func(c *actor.Call) { c.Chain, c.Parent = []actor.ID{actor.NewID("bob", "")}, s.run(99) }, nil)
	end(func(c *actor.Call) { c.Operation = "create" }, nil)
	end(func(c *actor.Call) { c.To.Agent = actor.SystemAgent }, nil)
	end(func(c *actor.Call) { c.To.Agent = actor.SessionAgent }, nil)
	end(root, actor.Refuse(actor.Stopped, "cancelled"))
	appended := actor.ChatMessage{Call: s.run(50), Role: actor.RoleSystem, Source: actor.FromOperator, At: 70, Parts: actor.Text("appended")}
	for _, r := range []Record{Appended{At: 70, Message: appended}, Ended{Call: s.run(50), At: 70}, Ended{Call: s.run(51), At: 71, Reply: actor.Reply{Parts: actor.Text("of no run")}}} {
		if err := j.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	message := func(run uint64, role actor.Role, source actor.Source, at actor.Time, text string) actor.ChatMessage {
		return actor.ChatMessage{Call: s.run(run), Role: role, Source: source, At: at, Parts: actor.Text(text)}
	}
	want := []actor.ChatMessage{message(1, actor.RoleUser, actor.FromUser, 10, "text 1"), message(1, actor.RoleAssistant, actor.FromAgent, 11, "answer"),
		message(6, actor.RoleUser, actor.FromUser, 60, "text 6"), appended}
	if c := &j.Transcript; !reflect.DeepEqual(c.Tail, want) || c.Runs != 2 || c.Usage.Total != 6 || c.Began != 10 || c.Last != 70 {
		t.Errorf("got %+v, want %+v", c, want)
	}
}

// Heard is the length of the transcript when the turn makes its first step.
func TestHeardIsLengthAtFirstStep(t *testing.T) {
	s := newEntryBuilder(t, "alice")
	asking := func() Record {
		return Asking{Run: s.run(1), At: 5, Asks: []Asked{{Ask: actor.Ask{Kind: actor.AskTool}, Attempt: 1}}}
	}
	add := func() Record { return Appended{At: 4, Message: messagesOf(1, 0)[0]} }
	s.accept("question")
	for _, r := range []Record{add(), add(), asking(), add(), Answered{Run: s.run(1), Step: 1, At: 5}, add(), asking()} {
		if err := s.state.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	if run := s.state.Run(s.run(1)); run.Heard != 2 || len(run.Steps) != 2 || s.state.Transcript.Len() != 4 {
		t.Errorf("heard %d of %d messages after %d steps, want 2 of 4", run.Heard, s.state.Transcript.Len(), len(run.Steps))
	}
}

// Of several snapshots of an actor in a batch, only the last one is stored, but the pages of
// all: a cell puts each page into one snapshot.
func TestPagesOfSupersededSnapshotAreStored(t *testing.T) {
	l, s := newTestLog(t), newEntryBuilder(t, "alice")
	var all []Entry
	for range 3 {
		all = append(append(all, s.converse(PageMessagesMax/2, numbered)...), s.stored())
	}
	l.write(all...)
	if got := texts(t, l.Rows, s.id); len(got) != 3*PageMessagesMax {
		t.Errorf("got %d messages", len(got))
	}
	if _, err := VerifyAll(l.m, "n1", Mark{}); err != nil {
		t.Error(err)
	}
}

// Sessions are listed in one order, whether their rows are written or in the Index.
func TestSessionsAreInOrder(t *testing.T) {
	want := []string{"b", "ab", "a", "a.c", "a-b", "a-a", "0"}
	for written := range len(want) + 1 {
		l, s := newTestLog(t), newEntryBuilder(t, "alice")
		for i := range want {
			s.id.Key, s.n, s.state = want[(3*i)%len(want)], 0, Journal{}
			if l.write(s.accept("hello")); i+1 == written {
				l.flush()
			}
		}
		for limit := 1; limit <= len(want)+1; limit++ {
			var got []string
			for before := ""; ; {
				page, next, err := l.Sessions("default", before, limit)
				if err != nil || len(page) > limit {
					t.Fatalf("%d sessions, error %v", len(page), err)
				}
				got = append(got, page...)
				if before = next; next == "" {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d rows are written, in pages of %d: got %q, want %q", written, limit, got, want)
			}
		}
	}
}
