// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
)

// Author is who wrote an entry of a transcript.
type Author uint8

// The authors.
const (
	ByUser  Author = iota + 1
	ByAgent        // text that the user was shown
	ByTool         // a call of a tool by an agent, with its result
)

// Entry is one entry of the transcript of a session, in order.
type Entry struct {
	Author Author
	Text   string // of the user or the agent; of a tool its result
	Tool   string // ByTool: its name
	Input  string // ByTool: its arguments as JSON
}

// Work is what the platform knows of a session when it hands work over.
type Work struct {
	Session, User string
	Request       string // the user's own words
	Position      Position
	Agents        []string // codes or IDs of the agents that took part, in order
	Outputs       []Output // in the order of the workflow
	Constraints   []Output // stated by the user, or set by agents
	Decisions     []string
	Findings      []string
	Data          []string // references of data that was gathered
	Assumptions   []string
	History       string // reference of the whole conversation
	Transcript    []Entry
}

// Position is the place of a step in its workflow; the zero value is none.
type Position struct {
	Step, Of int
	Name     string
}

// String returns the position as in "Step 3 of 5 (Financial Analysis)".
func (p Position) String() string {
	switch {
	case p.Step == 0:
		return ""
	case p.Name == "":
		return fmt.Sprintf("Step %d of %d", p.Step, p.Of)
	}
	return fmt.Sprintf("Step %d of %d (%s)", p.Step, p.Of, p.Name)
}

// Output is a named value. With Ref the value is stored, and a callee reads it by read_session if it needs it.
type Output struct {
	Name  string
	Value jsontext.Value
	Ref   string
}

// Callee is what the hand-off must know of its reader.
type Callee struct {
	Tools []string // the names of its tools; no other tool is named to it
	// Messages is the maximum number of messages; 0 means MessagesDefault.
	Messages int
}

// Bounds of a hand-off.
const (
	MessagesDefault   = 20
	messageBytesMax   = 4 << 10 // a longer text is cut in the middle
	inlineBytesMax    = 4 << 10 // a larger output is given by its reference
	handoffListMax    = 100     // entries of each list; the last ones
	handoffMembersMax = 100
	outputLevels      = 3 // above an output in the input of request_capability, which one value must not spoil
	requestBytesMax   = 64 << 10
)

// Message is one message of the conversation as a callee sees it. All are text: models call the
// tools that they see others call.
type Message struct {
	Role    string `json:"role"` // user or assistant
	Content string `json:"content"`
}

// Handoff is what a callee is told of the work so far. It holds every constraint, decision, finding
// and assumption of the work up to handoffListMax, and names the number of those left out.
type Handoff struct {
	Session     string         `json:"session_id"`
	User        string         `json:"user_id,omitzero"`
	Request     string         `json:"original_request"`
	Position    string         `json:"workflow_position,omitzero"`
	Agents      []string       `json:"prior_agents"`
	Outputs     jsontext.Value `json:"prior_outputs"`
	Constraints jsontext.Value `json:"constraints"`
	Decisions   []string       `json:"decisions,omitzero"`
	Findings    []string       `json:"findings,omitzero"`
	Data        []string       `json:"data_refs,omitzero"`
	Assumptions []string       `json:"assumptions,omitzero"`
	History     string         `json:"history_ref,omitzero"`
	Messages    []Message      `json:"messages,omitzero"`
	LeftOut     []string       `json:"left_out,omitzero"` // one sentence each
}

// HandOver returns what a callee is told of the work.
func HandOver(w Work, to Callee) Handoff {
	h := Handoff{Session: w.Session, User: w.User, Request: middleOf(w.Request, requestBytesMax), Position: w.Position.String(), History: w.History}
	h.Agents = h.list("agents", w.Agents)
	if h.Agents == nil {
		h.Agents = []string{}
	}
	h.Outputs = h.object("outputs", w.Outputs)
	h.Constraints = h.object("constraints", w.Constraints)
	h.Decisions, h.Findings = h.list("decisions", w.Decisions), h.list("findings", w.Findings)
	h.Data, h.Assumptions = h.list("references of data", w.Data), h.list("assumptions", w.Assumptions)
	h.view(w.Transcript, to)
	return h
}

// Encode returns the JSON form.
func (h *Handoff) Encode() []byte {
	return invariant.Must(json.Marshal(h, jsontext.AllowInvalidUTF8(true)))
}

// list returns the last entries of a list, and says how many it left out.
func (h *Handoff) list(name string, all []string) []string {
	if more := len(all) - handoffListMax; more > 0 {
		h.LeftOut = append(h.LeftOut, fmt.Sprintf("The first %d %s are left out.", more, name))
		all = all[more:]
	}
	return slices.Clone(all)
}

// object returns named values as an object. Large ones are references.
func (h *Handoff) object(name string, all []Output) jsontext.Value {
	if more := len(all) - handoffMembersMax; more > 0 {
		h.LeftOut = append(h.LeftOut, fmt.Sprintf("The first %d %s are left out.", more, name))
		all = all[more:]
	}
	var members []member
	for _, o := range all {
		value := o.Value
		switch {
		case len(value) > inlineBytesMax && o.Ref != "", len(value) == 0 && o.Ref != "":
			value = invariant.Must(json.Marshal(struct {
				Ref   string `json:"ref"`
				Bytes int    `json:"bytes,omitzero"`
			}{o.Ref, len(value)}))
		case len(value) > inlineBytesMax:
			h.LeftOut = append(h.LeftOut, fmt.Sprintf("The value of %.80s, %d bytes, is left out.", o.Name, len(value)))
			value = jsontext.Value("null")
		case len(value) == 0:
			value = jsontext.Value("null")
		case !tools.Carries(value, outputLevels):
			h.LeftOut = append(h.LeftOut, fmt.Sprintf("The value of %.80s is given as text.", o.Name))
			value = quoted(string(value))
		}
		members = slices.DeleteFunc(members, func(m member) bool { return m.name == o.Name }) // the later value replaces the earlier one
		members = append(members, member{o.Name, value})
	}
	return encodeMembers(members)
}

// view sets the messages: the first message of the user, and the last ones within the bound.
func (h *Handoff) view(transcript []Entry, to Callee) {
	limit := to.Messages
	if limit <= 0 {
		limit = MessagesDefault
	}
	first := slices.IndexFunc(transcript, func(e Entry) bool { return e.Author == ByUser })
	from := max(len(transcript)-limit, 0)
	if first >= 0 && first < from {
		h.Messages = append(h.Messages, transcript[first].message(to))
		from++
	}
	for i := range transcript[from:] {
		h.Messages = append(h.Messages, transcript[from+i].message(to))
	}
	if more := len(transcript) - len(h.Messages); more > 0 {
		h.LeftOut = append(h.LeftOut, fmt.Sprintf("%d messages of the conversation are left out.", more))
	}
}

// message returns an entry as text.
func (e *Entry) message(to Callee) Message {
	switch e.Author {
	case ByUser:
		return Message{"user", middle(e.Text)}
	case ByTool:
		tool := "A tool"
		if slices.Contains(to.Tools, e.Tool) {
			tool = "The tool " + e.Tool
		}
		return Message{"assistant", fmt.Sprintf("(%s was called with %s and returned: %s)", tool, middle(e.Input), middle(e.Text))}
	}
	return Message{"assistant", middle(e.Text)}
}

func middle(text string) string { return middleOf(text, messageBytesMax) }

// middleOf returns a text without its middle, if it is longer than limit.
func middleOf(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= limit {
		return text
	}
	head := actor.FitText(text, limit/2)
	tail := strings.ToValidUTF8(text[len(text)-limit/2:], "")
	return fmt.Sprintf("%s [%d bytes left out] %s", head, len(text)-len(head)-len(tail), tail)
}
