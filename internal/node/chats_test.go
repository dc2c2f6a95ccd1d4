// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/internal/command"
)

// countedChats is the chatEngine of a test.
type countedChats struct {
	ids      byte
	recorded []actor.Answer
}

func (e *countedChats) NewCallID() actor.CallID {
	e.ids++
	return actor.CallID{0: 1, 14: e.ids, 15: 1}
}

func (e *countedChats) RecordChat(_, _ string, _ actor.Duration, answer actor.Answer) {
	e.recorded = append(e.recorded, answer)
}

var (
	anna = actor.NewPrincipal("anna", "")
	bert = actor.NewPrincipal("bert", "")
)

// testChats runs a test with the requests of anna to the scripted model, which sends a piece
// after each pace.
func testChats(t *testing.T, pace time.Duration, test func(c *chats, e *countedChats, begin func() actor.CallID)) {
	synctest.Test(t, func(t *testing.T) {
		o, err := outbound.New(outbound.Config{Pace: pace, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		e := &countedChats{}
		c := newChats(o, e, time.Hour)
		test(c, e, func() actor.CallID {
			chat, err := c.add(anna, command.StartChat{Body: []byte(`{"model":"scripted","stream":true,"messages":[{"role":"user","content":"a text of several pieces"}]}`)})
			if err != nil {
				t.Fatal(err)
			}
			return chat.ID
		})
		synctest.Wait()
		if len(c.open) != 0 {
			t.Errorf("%d requests are open", len(c.open))
		}
	})
}

func reasonOf(err error) actor.Reason {
	var r *actor.Refusal
	_ = errors.As(err, &r)
	if r == nil {
		return 0
	}
	return r.Reason
}

// A request is read and cancelled by its own principal only, and begins with the first part.
func TestChatBelongsToItsPrincipal(t *testing.T) {
	testChats(t, time.Second, func(c *chats, e *countedChats, begin func() actor.CallID) {
		first, second := begin(), begin()
		for _, a := range []command.Action{command.ReadChat{Chat: first}, command.CancelChat{Chat: first}} {
			if _, err := c.do(context.Background(), command.Do{By: bert, Action: a}); reasonOf(err) != actor.NotFound {
				t.Errorf("%+v by another principal: %v", a, err)
			}
		}
		if err := c.stop(anna, second); err != nil || len(e.recorded) != 0 {
			t.Errorf("%v, %d recorded before a part was asked for", err, len(e.recorded))
		}
		text, last := "", command.ChatPart{}
		for !last.Last {
			var err error
			if last, err = c.part(context.Background(), anna, first); err != nil {
				t.Fatal(err)
			}
			text += string(last.Bytes)
		}
		if !strings.Contains(text, "several") || !strings.HasSuffix(text, "data: [DONE]\n\n") || len(e.recorded) != 1 || e.recorded[0].Refusal != nil {
			t.Errorf("got %s, recorded %+v", text, e.recorded)
		}
		if _, err := c.part(context.Background(), anna, first); reasonOf(err) != actor.NotFound {
			t.Errorf("a part behind the last one: %v", err)
		}
	})
}

// A request without a reader is cancelled, before and after it has begun.
func TestForgottenChatIsCancelled(t *testing.T) {
	testChats(t, time.Minute, func(c *chats, e *countedChats, begin func() actor.CallID) {
		begin()
		begun := begin()
		role, err := c.part(context.Background(), anna, begun)
		beat, err2 := c.part(context.Background(), anna, begun)
		if err != nil || err2 != nil || len(role.Bytes) == 0 || len(beat.Bytes) != 0 || beat.Last {
			t.Errorf("got %+v, %v, %+v, %v", role, err, beat, err2)
		}
		<-time.After(chatIdleMax + time.Second)
		synctest.Wait()
		if len(e.recorded) != 1 || e.recorded[0].Refusal == nil || e.recorded[0].Refusal.Reason != actor.Stopped {
			t.Errorf("recorded %+v", e.recorded)
		}
	})
}

func TestChatsAreBounded(t *testing.T) {
	testChats(t, time.Minute, func(c *chats, _ *countedChats, begin func() actor.CallID) {
		id := begin()
		one := c.open[id]
		for i := range ChatsMax - 1 {
			c.open[actor.CallID{1: byte(i >> 8), 2: byte(i), 3: 1}] = one
		}
		if _, err := c.do(context.Background(), command.Do{By: anna, Action: command.StartChat{Body: []byte(`{"model":"scripted","messages":[{"role":"user","content":"x"}]}`)}}); reasonOf(err) != actor.Busy {
			t.Errorf("got %v, want a refusal as busy", err)
		}
		clear(c.open)
		c.end(id, one)
	})
	if _, err := (*chats)(nil).do(context.Background(), command.Do{}); reasonOf(err) != actor.Rejected {
		t.Errorf("a node without models: %v", err)
	}
}
