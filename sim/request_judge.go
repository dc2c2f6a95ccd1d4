// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/upstream"
)

// wireHeader returns the value of a header as a server sees it, or "".
func wireHeader(r upstream.Request, name string) string {
	for _, h := range r.Headers {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

// checkWire checks one value of a request.
func (s *upstreamConn) checkWire(what, got, want string) {
	if got != want {
		s.exchange.n.w.fail(RequestAsAsked, fmt.Sprintf("the server of the %s receives %s %.200q, want %.200q", s, what, got, want))
	}
}

// checkHead checks the parts of a request that each server receives. A request to one
// server presents nothing that belongs to another.
func (s *upstreamConn) checkHead(r upstream.Request, url string) {
	s.exchange.n.w.Stats.Audit.RequestAsAsked++
	s.checkWire("the method and URL", r.Method+" "+r.URL, "POST "+url)
	s.checkWire("the content type", wireHeader(r, "content-type"), "application/json")
	for _, h := range r.Headers {
		if secret := h.Name == "authorization" || h.Name == "x-run-token"; secret && !h.Secret {
			s.exchange.n.w.fail(NobodyAstray, "the secret in "+h.Name+" is not marked as one")
		}
	}
}

// checkModelRequest checks a request as the server of a model receives it, against the
// prompt that its run made.
func (s *upstreamConn) checkModelRequest(r upstream.Request, received *upstream.Prompt) {
	p := s.exchange.prompt
	base := "http://" + p.Model
	if p.Model == modelNames[1] {
		base += ":8080/v1"
	}
	s.checkHead(r, base+"/chat/completions")
	s.checkWire("the run token", wireHeader(r, "x-run-token"), "")
	var wire wirePrompt
	if err := json.Unmarshal(r.Body, &wire); err != nil {
		s.checkWire("a body", err.Error(), "JSON")
		return
	}
	wantMax, wantOther := p.MaxTokens, 0
	if p.Model == modelNames[1] {
		wantMax, wantOther = 0, p.MaxTokens
	}
	s.checkWire("the options", fmt.Sprint(wire.Model, wire.Stream, wire.WithUsage.Include, wire.MaxTokens, wire.MaxCompletionTokens),
		fmt.Sprint(p.Model, true, true, wantMax, wantOther))
	s.checkWire("the parameters", fmt.Sprint(number(received.Temperature), number(received.Seed)), fmt.Sprint(number(p.Temperature), number(p.Seed)))
	messages := turns(p.Messages, func(m *upstream.Message) (string, *string, bool) {
		return m.Role.String(), &m.Text, m.CallID != "" || len(m.Calls) > 0 || m.Kept != ""
	}, upstream.Message{Role: upstream.User, Text: startOfConversation})
	s.checkWire("the number of messages", fmt.Sprint(len(received.Messages)), fmt.Sprint(len(messages)))
	for i := range min(len(received.Messages), len(messages)) {
		s.checkMessage(i, &received.Messages[i], &messages[i])
	}
	s.checkWire("tools", toolNames(received), toolNames(p))
	if s.exchange.n.w.team == nil { // a team's agent may transform its message
		s.checkHeard(p)
	}
	s.checkConversation(received)
	s.checkPromptBytes(&wire)
}

// checkHeard checks the messages that a prompt has after its system message: the earlier ones
// that the agent is given, and that of the run.
func (s *upstreamConn) checkHeard(p *upstream.Prompt) {
	heard := s.exchange.n.w.transcripts.heard(s.exchange.call)
	if len(p.Messages) < len(heard)+2 {
		s.checkWire("a prompt of", fmt.Sprint(len(p.Messages), " messages"), fmt.Sprint(len(heard)+2, " or more"))
		return
	}
	for i := range heard {
		m := &p.Messages[i+1]
		s.checkWire(fmt.Sprintf("earlier message %d", i), m.Role.String()+" "+strings.ToValidUTF8(m.Text, "\uFFFD"), wireRole(heard[i].Role)+" "+wireText(heard[i].Parts))
	}
	m := &p.Messages[len(heard)+1]
	s.checkWire("the message", m.Role.String()+" "+strings.ToValidUTF8(m.Text, "\uFFFD"), "user "+wireText(s.exchange.call.Parts))
}

// wireRole returns the role of an earlier message as an upstream sees it. A result of a tool
// without its tool call is a message of the user.
func wireRole(r actor.Role) string {
	return [...]string{actor.RoleUser: "user", actor.RoleAssistant: "assistant", actor.RoleSystem: "system", actor.RoleTool: "user"}[r]
}

// wireText returns the content of a message as an upstream sees it.
func wireText(parts []actor.Part) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Media == actor.MediaText || p.Media == actor.MediaJSON {
			b.Write(p.Bytes)
		} else {
			fmt.Fprintf(&b, "[%s, %d bytes]", p.Media, len(p.Bytes))
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// checkHeardMessages checks the earlier messages of an invocation.
func (s *upstreamConn) checkHeardMessages(body []byte) {
	w := s.exchange.n.w
	var wire struct {
		Messages []struct{ Role, Content string } `json:"messages"`
	}
	if err := json.Unmarshal(body, &wire); err != nil || w.team != nil {
		return
	}
	heard := w.transcripts.heard(s.exchange.call)
	s.checkWire("the number of earlier messages", fmt.Sprint(len(wire.Messages)), fmt.Sprint(len(heard)))
	for i := range min(len(wire.Messages), len(heard)) {
		s.checkWire(fmt.Sprintf("earlier message %d", i), wire.Messages[i].Role+" "+wire.Messages[i].Content, wireRole(heard[i].Role)+" "+wireText(heard[i].Parts))
	}
}

// checkMessage compares one message of a prompt. Arguments that are no JSON object are
// not sent: many servers reject them.
func (s *upstreamConn) checkMessage(i int, got, want *upstream.Message) {
	text := strings.ToValidUTF8(want.Text, "\uFFFD")
	if text == "" && want.CallID != "" {
		text = "(empty)" // a result is sent as a word
	}
	if got.Role != want.Role || got.Text != text || got.CallID != want.CallID || len(got.Calls) != len(want.Calls) {
		s.checkWire(fmt.Sprintf("message %d", i), fmt.Sprint(got), fmt.Sprint(want))
	}
	for j := range min(len(got.Calls), len(want.Calls)) {
		call, arguments := want.Calls[j], got.Calls[j].Arguments
		switch {
		case !isObject(arguments):
			s.checkWire("the arguments of a call", arguments, "a JSON object")
		case isObject(call.Arguments):
			s.checkWire("the arguments of a call", arguments, strings.TrimSpace(call.Arguments))
		}
		s.checkWire("a call", got.Calls[j].ID+" "+got.Calls[j].Name, call.ID+" "+wireName(call.Name))
	}
}

// wireName returns the name of a tool as servers of models accept it: letters, digits,
// '_' and '-', at most 64 bytes.
func wireName(name string) string {
	b := []byte(name)
	for i, c := range b {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", rune(c)) {
			b[i] = '_'
		}
	}
	return string(b[:min(len(b), 64)])
}

// isObject reports whether the text is one JSON object in which no name occurs twice.
func isObject(text string) bool {
	v := jsontext.Value(text)
	return v.IsValid() && v.Kind() == '{'
}

// checkConversation checks that the results of tool calls follow their calls, in order.
func (s *upstreamConn) checkConversation(p *upstream.Prompt) {
	var open []string
	for _, m := range p.Messages {
		if m.Role == upstream.Tool {
			if len(open) == 0 {
				s.checkWire("a result of call", m.CallID, "no call")
				return
			}
			s.checkWire("a result of call", m.CallID, open[0])
			open = open[1:]
			continue
		}
		s.checkWire("calls without result", strings.Join(open, " "), "")
		for _, c := range m.Calls {
			open = append(open, c.ID)
		}
	}
	s.checkWire("calls without result", strings.Join(open, " "), "")
}

func number[T any](n *T) string {
	if n == nil {
		return "default"
	}
	return fmt.Sprint(*n)
}

func toolNames(p *upstream.Prompt) string {
	var b strings.Builder
	for _, t := range p.Tools {
		b.WriteString(strings.ReplaceAll(t.Name, ".", "_") + ":" + t.Description + " ")
	}
	return b.String()
}

// checkInvocation checks a request as an external agent receives it, against the call
// that caused it.
func (s *upstreamConn) checkInvocation(r upstream.Request, in invocation) {
	w, call := s.exchange.n.w, s.exchange.call
	if w.team == nil {
		s.checkHead(r, "http://"+call.To.Agent+hostSuffix+"/invoke")
	}
	run := call.ID.String()
	s.checkWire("the ids", fmt.Sprint(in[exampleAgent], " ", in[exampleSession], " ", in[exampleRun]), fmt.Sprint(call.To.Agent, " ", call.To.Key, " ", run))
	s.checkWire("the id headers", wireHeader(r, "x-session-id")+" "+wireHeader(r, "x-run-id"), call.To.Key+" "+run)
	s.checkWire("the role", in[exampleRole], exampleRole)
	s.checkWire("the message", in[exampleContent], strings.ToValidUTF8(actor.TextOf(call.Parts), "\uFFFD"))
	s.checkWire("the context", in[exampleUser]+" "+in[projectMember], call.Principal+" "+call.Project)
	trace, state, _ := strings.Cut(call.Trace, " ")
	if trace == "" {
		trace = fmt.Sprintf("00-%x-%x-00", call.Root[:], call.ID[8:])
	}
	s.checkWire("the trace", wireHeader(r, "traceparent")+" "+wireHeader(r, "tracestate"), trace+" "+state)
	if of, id, refusal := ingress.ReadToken(w.tokenSecret(), wireHeader(r, "x-run-token")); refusal != nil || of != call.ID || id != call.To {
		s.checkWire("a token of", fmt.Sprint(of, " ", id), fmt.Sprint(call.ID, " ", call.To))
	}
}

// judgedHealth is the health of an external agent as the documentation defines it: an
// agent is unhealthy after 45 s without a sign of life, after a poll with an error, and
// for a second after an invocation that found no service.
type judgedHealth struct {
	agent   string
	seen    actor.Time
	unwell  bool
	circuit judgedCircuit

	// The first and the last invocation that could not connect; 0 after a sign of life.
	unreachedSince, unreached actor.Time
}

// reached records a sign of life.
func (h *judgedHealth) reached() {
	h.unreachedSince, h.unreached = 0, 0
	h.circuit.reached()
}

// judgedHealth returns the health of an agent. A node regards an agent that it does not
// know yet as healthy.
func (n *node) judgedHealth(agent string) *judgedHealth {
	h := n.upstreams.judged[agent]
	if h == nil {
		h = &judgedHealth{agent: agent, seen: n.agentHealth(agent).known.LastSeen(), circuit: judgedCircuit{config: n.w.plan.Breaker}}
		n.upstreams.judged[agent] = h
	}
	return h
}

func (h *judgedHealth) recordPoll(now actor.Time, status int) {
	if status != 0 {
		h.reached()
	}
	switch status {
	case 0, 404, 405:
	case 200:
		h.seen, h.unwell = now, false
	default:
		h.unwell = true
	}
}

// healthy reports whether the agent may be invoked as far as its health decides, without its circuit.
func (h *judgedHealth) healthy(now actor.Time) bool {
	return !h.unwell && now <= h.seen.Add(45*time.Second) && (h.unreached == 0 || now >= h.unreached.Add(time.Second))
}
