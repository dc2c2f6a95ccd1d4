// SPDX-License-Identifier: Apache-2.0

package command

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// AppendJSON appends the body of GET /v1/sessions/{id}, of a session of a user.
func (s *Session) AppendJSON(b []byte, user string) []byte {
	v := newSessionView(s)
	v.User = user
	return append(b, invariant.Must(json.Marshal(v, json.Deterministic(true)))...)
}

// AppendJSON appends the body of GET /v1/sessions/{id}/messages.
func (m *Messages) AppendJSON(b []byte) []byte {
	return append(b, invariant.Must(json.Marshal(newMessagesView(m), json.Deterministic(true)))...)
}

// sessionView is the JSON form of a session.
type sessionView struct {
	Session  string             `json:"session_id"`
	User     string             `json:"user_id,omitzero"`
	Title    string             `json:"title,omitzero"`
	Metadata jsontext.Value     `json:"metadata,omitzero"`
	Created  string             `json:"created_at,omitzero"`
	Last     string             `json:"last_message_at,omitzero"`
	Updated  string             `json:"updated_at,omitzero"`
	Agents   []sessionAgentView `json:"agents"`
	Usage    usageView          `json:"usage"`
}

type sessionAgentView struct {
	Agent    string    `json:"agent_id"`
	Messages uint64    `json:"messages"`
	Runs     uint64    `json:"runs"`
	Open     []string  `json:"open_runs,omitempty"`
	Usage    usageView `json:"usage"`
}

type usageView struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
	Total  int64 `json:"total_tokens"`
}

func newUsageView(u actor.Usage) usageView { return usageView{u.Input, u.Output, u.Total} }

func newSessionView(s *Session) sessionView {
	v := sessionView{Session: s.Name, Title: s.Title, Metadata: s.Metadata, Agents: []sessionAgentView{}, Usage: newUsageView(s.Usage())}
	if s.Created != 0 {
		v.Created = runs.FormatTime(s.Created)
	}
	if s.Last != 0 {
		v.Last = runs.FormatTime(s.Last)
	}
	if s.Updated != 0 {
		v.Updated = runs.FormatTime(s.Updated)
	}
	for i := range s.Agents {
		a := &s.Agents[i]
		view := sessionAgentView{Agent: a.Agent, Messages: a.Messages, Runs: a.Runs, Usage: newUsageView(a.Usage)}
		for _, run := range a.Open {
			view.Open = append(view.Open, run.String())
		}
		v.Agents = append(v.Agents, view)
	}
	return v
}

// messageView is the JSON form of a message of a transcript.
type messageView struct {
	ID      string `json:"message_id"`
	Role    string `json:"role"`
	Content string `json:"content"`
	Origin  string `json:"origin"`
	Run     string `json:"run_id,omitzero"` // run that the message began or ended
	At      string `json:"created_at"`

	Provenance provenanceView `json:"provenance,omitzero"`
}

// provenanceView is the JSON form of an actor.Provenance.
type provenanceView struct {
	Kind        string `json:"kind"`
	Tool        string `json:"sourceTool"`
	Correlation string `json:"correlationId"`
}

func newMessageView(m *actor.ChatMessage) messageView {
	v := messageView{ID: m.ID().String(), Role: m.Role.String(), Content: actor.ReadableText(m.Parts), Origin: m.Source.String(), At: runs.FormatTime(m.At)}
	if m.Source == actor.FromUser || m.Source == actor.FromAgent {
		v.Run = m.Call.String()
	}
	if p, ok := m.Extensions.Provenance(); ok {
		v.Provenance = provenanceView{"tool_response", p.Tool, p.Correlation.String()}
	}
	return v
}

// messagesView is the JSON form of a page of a transcript.
type messagesView struct {
	Session  string        `json:"session_id"`
	Agent    string        `json:"agent_id,omitzero"`
	Messages []messageView `json:"messages"` // oldest first
	Total    uint64        `json:"total"`
	Before   string        `json:"next_before,omitzero"` // of the page with older messages
	Open     []messageView `json:"open"`                 // messages whose runs are open
}

func newMessagesView(m *Messages) messagesView {
	v := messagesView{Session: m.Session, Agent: m.Agent, Messages: []messageView{}, Total: m.Total, Open: []messageView{}}
	for i := range m.All {
		v.Messages = append(v.Messages, newMessageView(&m.All[len(m.All)-1-i]))
	}
	if m.More && len(v.Messages) > 0 {
		v.Before = v.Messages[0].ID
	}
	for i := range m.Open {
		v.Open = append(v.Open, newMessageView(&m.Open[i]))
	}
	return v
}
