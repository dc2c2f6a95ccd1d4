// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/signals"
)

// sessionNode is a node with agents that hold conversations.
type sessionNode struct {
	*Node
	t *testing.T
}

func openSessionNode(t *testing.T, data string) sessionNode {
	t.Helper()
	turn := func(name string, f func(*agents.Turn) (string, error)) actor.Definition {
		return agents.Define(name, "1", "test agent", agents.Blocking(agents.Func(f)))
	}
	native := []actor.Definition{
		turn("echo", func(t *agents.Turn) (string, error) { return "re: " + t.Message(), nil }),
		turn("caller", func(t *agents.Turn) (string, error) { return t.Call("echo", t.Message()) }),
		turn("asker", func(t *agents.Turn) (string, error) { return t.Call("waiter", t.Message()) }),
		turn("waiter", func(t *agents.Turn) (string, error) {
			_, err := t.Wait("go", time.Minute)
			return "done", err
		}),
	}
	n, err := Open(Config{Data: data, Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), Native: native, FreeFloor: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return sessionNode{n, t}
}

func (n sessionNode) close() {
	n.t.Helper()
	if err := n.Close(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
}

func (n sessionNode) invoke(agent, session, text string) actor.CallID {
	n.t.Helper()
	id := n.NewCallID()
	a, err := n.Invoke(n.t.Context(), command.Invoke{By: testBy, Call: actor.Call{ID: id, To: testBy.ID(agent, session), Parts: actor.Text(text)}}, nil)
	if err != nil || a.Reply.Refusal != nil {
		n.t.Fatal(err, a.Reply.Refusal)
	}
	return id
}

func (n sessionNode) appendText(agent, session, text string) actor.MessageID {
	n.t.Helper()
	call := actor.Call{ID: n.NewCallID(), Kind: actor.Signal, To: testBy.ID(agent, session), Operation: signals.OpAppend, Left: time.Minute, Parts: actor.Text(text)}
	call.SetRole(actor.RoleSystem)
	if a, err := n.Signal(n.t.Context(), command.Signal{By: testBy, Call: call}); err != nil || a.Reply.Refusal != nil {
		n.t.Fatal(err, a.Reply.Refusal)
	}
	return actor.MessageID{Call: call.ID}
}

// refusal returns the reason of a refusal, or "" without an error.
func (n sessionNode) refusal(err error) string {
	n.t.Helper()
	if r := (*actor.Refusal)(nil); errors.As(err, &r) {
		return r.Reason.String()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return ""
}

// session describes a session.
func (n sessionNode) session(name string) string {
	n.t.Helper()
	s, err := command.Find(n.t.Context(), n, testBy, command.SessionQuery{Session: name})
	if err != nil {
		return n.refusal(err)
	}
	var all []string
	for _, a := range s.Agents {
		all = append(all, fmt.Sprintf("%s: %d messages, %d runs, %d open", a.Agent, a.Messages, a.Runs, len(a.Open)))
	}
	return strings.Join(all, "; ")
}

// messages returns a page of messages with their texts, newest first, and the texts of open
// ones.
func (n sessionNode) messages(q command.MessagesQuery) (page command.Messages, text string) {
	n.t.Helper()
	page, err := command.Find(n.t.Context(), n, testBy, q)
	if err != nil {
		return page, n.refusal(err)
	}
	var all []string
	for i := range page.All {
		all = append(all, actor.TextOf(page.All[i].Parts))
	}
	for i := range page.Open {
		all = append(all, "open "+actor.TextOf(page.Open[i].Parts))
	}
	return page, strings.Join(all, "; ")
}

// A session lists the agents that clients talk to, and those with open runs. Agents that were
// only called are no part of it. It is the same after a restart, and gone once it is deleted.
func TestSessions(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	n := openSessionNode(t, data)
	n.invoke("echo", "s-1", "hello")
	n.invoke("caller", "s-2", "one")
	n.appendText("caller", "s-2", "note")
	n.invoke("asker", "s-3", "wait")
	n.invoke("echo", "s-3", "hello")
	n.invoke("echo", actor.DefaultKey, "hello")
	want := map[string]string{
		"s-1":            "echo: 2 messages, 1 runs, 0 open",
		"s-2":            "caller: 3 messages, 1 runs, 0 open",
		"s-3":            "asker: 0 messages, 0 runs, 1 open; echo: 2 messages, 1 runs, 0 open; waiter: 0 messages, 0 runs, 1 open",
		"s-4":            "NotFound",
		actor.DefaultKey: "NotFound",
	}
	for range 2 {
		for name, want := range want {
			if got := n.session(name); got != want {
				t.Errorf("session %s: got %q, want %q", name, got, want)
			}
		}
		for _, limit := range []int{1, 2, 5} {
			var got []string
			for q := (command.SessionsQuery{Limit: limit}); ; {
				page, err := command.Find(t.Context(), n, testBy, q)
				if err != nil || len(page.All) > limit {
					t.Fatalf("%d sessions, error %v", len(page.All), err)
				}
				for i := range page.All {
					got = append(got, page.All[i].Name)
				}
				if q.Before = page.Next; page.Next == "" {
					break
				}
			}
			if want := []string{"s-3", "s-2", "s-1"}; !slices.Equal(got, want) {
				t.Errorf("in pages of %d: got sessions %q, want %q", limit, got, want)
			}
		}
		n.close()
		n = openSessionNode(t, data)
	}
	if err := n.Forget(t.Context(), command.Forget{By: testBy, Session: "s-2"}); err != nil {
		t.Fatal(err)
	}
	if got := n.session("s-2"); got != "NotFound" {
		t.Errorf("a deleted session is %q", got)
	}
	if _, got := n.messages(command.MessagesQuery{Session: "s-2", Limit: 9}); got != "NotFound" {
		t.Errorf("the messages of a deleted session are %q", got)
	}
	if got := n.refusal(n.Forget(t.Context(), command.Forget{By: testBy, Session: "s-3"})); got != "Rejected" {
		t.Errorf("a session with open runs is deleted: %q", got)
	}
	n.close()
}

// The sessions of a page are ordered by their last changes, whatever their names. A session
// began with its first message, description or context, not at the time that its name states.
func TestSessionsAreOrderedByTime(t *testing.T) {
	n := openSessionNode(t, filepath.Join(t.TempDir(), "data"))
	before := actor.Time(time.Now().Add(-time.Second).UnixNano())
	system := func(agent, operation, session string, parts ...actor.Part) {
		t.Helper()
		call := actor.Call{ID: n.NewCallID(), To: testBy.ID(agent, session), Operation: operation, Parts: parts}
		if a, err := n.Invoke(t.Context(), command.Invoke{By: testBy, Call: call}, nil); err != nil || a.Reply.Refusal != nil {
			t.Fatal(err, a.Reply.Refusal)
		}
	}
	describe := func(session string) {
		t.Helper()
		system(actor.SessionAgent, agents.OpDescribe, session, actor.Part{Media: actor.MediaJSON, Bytes: []byte(`{"title":"t"}`)})
	}
	const old = "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55" // a UUIDv7 of 2024
	describe("z-described")
	n.invoke("echo", "y-message", "hello")
	n.invoke("asker", "x-open", "wait")
	n.invoke("echo", "a-both", "hello")
	n.invoke("echo", old, "hello")
	system(actor.ContextAgent, agents.OpContextPut, "b-context", actor.Part{Media: actor.MediaJSON, Bytes: []byte(`{"id":"c","create":true}`)}, actor.Part{Media: agents.MediaContext, Bytes: []byte("1")})
	describe("a-both")
	created := map[string]actor.Time{}
	for _, again := range []bool{false, true} {
		page, err := command.Find(t.Context(), n, testBy, command.SessionsQuery{Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for i := range page.All {
			s := &page.All[i]
			names = append(names, s.Name)
			if s.Created < before || s.Created > s.Updated || again && s.Created != created[s.Name] {
				t.Errorf("session %s: created at %v, changed at %v, before %v", s.Name, s.Created, s.Updated, created[s.Name])
			}
			created[s.Name] = s.Created
		}
		want := []string{"a-both", "b-context", old, "x-open", "y-message", "z-described"}
		if again {
			want = []string{"z-described", "a-both", "b-context", old, "x-open", "y-message"}
		}
		if !slices.Equal(names, want) {
			t.Errorf("got %q, want %q", names, want)
		}
		if created["y-message"] > created["a-both"] || created["z-described"] > created["y-message"] {
			t.Errorf("created at %v", created)
		}
		describe("z-described")
	}
	n.close()
}

// Messages are read backwards, in pages that begin before a message. A session with one
// conversation needs no name of an agent.
func TestMessages(t *testing.T) {
	n := openSessionNode(t, filepath.Join(t.TempDir(), "data"))
	n.invoke("caller", "s-1", "m0")
	note := n.appendText("caller", "s-1", "m2")
	n.invoke("caller", "s-1", "m3")
	n.invoke("asker", "s-2", "waiting")
	for _, c := range []struct {
		q    command.MessagesQuery
		want string
		more bool
	}{
		{command.MessagesQuery{Session: "s-1", Limit: 9}, "re: m3; m3; m2; re: m0; m0", false},
		{command.MessagesQuery{Session: "s-1", Limit: 2}, "re: m3; m3", true},
		{command.MessagesQuery{Session: "s-1", Limit: 2, Before: note}, "re: m0; m0", false},
		{command.MessagesQuery{Session: "s-1", Limit: 1, Before: note}, "re: m0", true},
		{command.MessagesQuery{Session: "s-1", Limit: 9, Agent: "caller"}, "re: m3; m3; m2; re: m0; m0", false},
		{command.MessagesQuery{Session: "s-1", Limit: 9, Agent: "echo"}, "", false},
		{command.MessagesQuery{Session: "s-1", Limit: 9, Agent: "nobody"}, "", false},
		{command.MessagesQuery{Session: "s-1", Limit: 9, Before: actor.MessageID{Call: note.Call, Answer: true}}, "Invalid", false},
		{command.MessagesQuery{Session: "s-2", Limit: 9}, "open waiting", false}, // the agent that it calls has no conversation
		{command.MessagesQuery{Session: "s-3", Limit: 9}, "NotFound", false},
		{command.MessagesQuery{Session: actor.DefaultKey, Limit: 9}, "NotFound", false},
		{command.MessagesQuery{Session: actor.DefaultKey, Limit: 9, Agent: "echo"}, "", false},
		{command.MessagesQuery{Session: "s-1", Limit: command.MessagesMax + 1}, "Invalid", false},
	} {
		if page, got := n.messages(c.q); got != c.want || page.More != c.more {
			t.Errorf("%+v: got %q, more %v, want %q, %v", c.q, got, page.More, c.want, c.more)
		}
	}
	n.invoke("echo", "s-1", "another conversation")
	if _, got := n.messages(command.MessagesQuery{Session: "s-1", Limit: 9}); got != "Invalid" {
		t.Errorf("two conversations: got %q, want a refusal as Invalid", got)
	}
	n.close()
}

// A page of large messages is bounded in bytes. All pages together are the conversation.
func TestPagesOfLargeMessages(t *testing.T) {
	n := openSessionNode(t, filepath.Join(t.TempDir(), "data"))
	const count, size = 24, 1000 << 10
	for i := range count {
		n.appendText("echo", "s-1", fmt.Sprint(i, strings.Repeat(" ", size)))
	}
	read := 0
	for q := (command.MessagesQuery{Session: "s-1", Limit: command.MessagesMax}); ; {
		page, _ := n.messages(q)
		if got := len(page.All) * size; got == 0 || got > messagesBytesMax || page.Total != count {
			t.Fatalf("a page of %d bytes, of %d messages", got, page.Total)
		}
		for i := range page.All {
			if want := fmt.Sprint(count-1-read, " "); !strings.HasPrefix(actor.TextOf(page.All[i].Parts), want) {
				t.Errorf("message %d is %.9q", read, actor.TextOf(page.All[i].Parts))
			}
			read++
		}
		if !page.More {
			break
		}
		q.Before = page.All[len(page.All)-1].ID()
	}
	if read != count {
		t.Errorf("got %d messages, want %d", read, count)
	}
	n.close()
}
