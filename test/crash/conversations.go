// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"strings"
)

// conversation identifies the transcript of an agent in a session.
type conversation struct{ agent, session string }

// transcript is a page of a conversation.
type transcript struct {
	Messages []message `json:"messages"`
	Before   string    `json:"next_before"`
	Detail   string    `json:"detail"`
}

type message struct {
	ID      string `json:"message_id"`
	Role    string `json:"role"`
	Content string `json:"content"`
	Run     string `json:"run_id"`
}

// auditConversations compares the conversations of all sessions with the acknowledged
// exchanges: each message occurs once, and its acknowledged answer follows it.
func (l *ledger) auditConversations(inst *instance) (messages int) {
	byConversation := map[conversation][]*exchange{}
	for _, e := range l.exchanges {
		if e.run != "" {
			c := conversation{e.agent, e.session}
			byConversation[c] = append(byConversation[c], e)
		}
	}
	for c, exchanges := range byConversation {
		all, err := readConversation(inst, c)
		if err != nil {
			l.report(wrong, "conversation of %s in %s: %v", c.agent, c.session, err)
			continue
		}
		messages += len(all.Messages)
		l.compareConversation(c, &all, exchanges)
	}
	return messages
}

func readConversation(inst *instance, c conversation) (all transcript, err error) {
	for before := ""; ; {
		path := fmt.Sprintf("/v1/sessions/%s/messages?limit=50&agent=%s", c.session, c.agent)
		if before != "" {
			path += "&before=" + before
		}
		var page transcript
		status, err := inst.ask(request{http.MethodGet, path, "", nil}, &page)
		if err != nil || status != http.StatusOK {
			return all, fmt.Errorf("%d %s %w", status, page.Detail, err)
		}
		all.Messages = append(page.Messages, all.Messages...)
		if before = page.Before; before == "" {
			return all, nil
		}
	}
}

// compareConversation reports messages that are missing, duplicated or in another order
// than their exchanges demand.
func (l *ledger) compareConversation(c conversation, all *transcript, exchanges []*exchange) {
	at := map[string]int{} // by run and role, from 1
	ids := map[string]bool{}
	for i, m := range all.Messages {
		key := m.Run + " " + m.Role
		if at[key] != 0 || ids[m.ID] {
			l.report(duplicated, "%s in %s: the message %s of run %s occurs twice", c.agent, c.session, m.Role, m.Run)
		}
		at[key], ids[m.ID] = i+1, true
	}
	for _, e := range exchanges {
		asked, answered := at[e.run+" user"], at[e.run+" assistant"]
		switch {
		case asked == 0 && (e.done || e.end != 0):
			l.report(lost, "%s: its message is not in the conversation", e)
		case asked != 0 && all.Messages[asked-1].Content != e.content:
			l.report(reordered, "%s: the conversation has the message %q", e, all.Messages[asked-1].Content)
		case e.done && answered == 0:
			l.report(lost, "%s: its answer is not in the conversation", e)
		case e.done && all.Messages[answered-1].Content != e.answer:
			l.report(reordered, "%s: the conversation has the answer %q, want %q", e, all.Messages[answered-1].Content, e.answer)
		case answered != 0 && answered != asked+1:
			l.report(reordered, "%s: its answer does not follow its message", e)
		}
	}
	for _, m := range all.Messages {
		if m.Role == "user" && !strings.Contains(m.Content, "word-") {
			l.report(wrong, "%s in %s: %q is no message of a client", c.agent, c.session, m.Content)
		}
	}
}
