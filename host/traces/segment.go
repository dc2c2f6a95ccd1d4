// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"strconv"
	"strings"
	"unicode"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// span is one span, with its attributes in order.
type span struct {
	id, parent runs.SpanID // a zero parent: none
	name       string
	client     bool // it is a request to another service
	from, to   actor.Time
	attributes []attribute
	link       runs.SpanID // span of the same trace that it continues; zero: none
	failed     string      // code of an error
}

// size returns the bytes of the texts of a span.
func (s *span) size() int {
	n := len(s.name)
	for i := range s.attributes {
		n += len(s.attributes[i].text)
	}
	return n
}

type attribute struct {
	name  string
	text  string
	count int64 // if text is ""
}

// spansMax is the maximum number of spans of a segment; those behind it are dropped.
const spansMax = 1000

// segment derives the spans of a run from its events, which it gets in order. The last event, with the number until,
// ends or interrupts the run. The first one follows the interruption before that.
type segment struct {
	run     actor.CallID
	owner   actor.ID
	parent  runs.SpanID // of the spans of the run, unless it is zero
	content bool

	begun    bool
	waits    int // interruptions that have not ended
	own      span
	message  string
	asks     map[place]*span
	ended    []span
	dropped  int
	previous runs.SpanID
	tokens   runs.Usage // of an external agent
}

type place struct {
	step  uint32
	index uint16
}

func newSegment(run actor.CallID, owner actor.ID, content bool) *segment {
	return &segment{run: run, owner: owner, content: content, asks: map[place]*span{}}
}

// begin begins a span of the run.
func (s *segment) begin(id runs.SpanID, at actor.Time) {
	s.begun, s.ended, s.tokens = true, nil, runs.Usage{}
	s.own = span{id: id, parent: s.parent, name: invokeAgent + " " + s.owner.Agent, from: at, link: s.previous, attributes: s.common(invokeAgent)}
}

// common returns the attributes of each span.
func (s *segment) common(operation string) []attribute {
	return []attribute{{name: operationName, text: operation}, {name: providerName, text: providerTroupe}, {name: agentName, text: s.owner.Agent},
		{name: conversationID, text: s.owner.Key}, {name: runID, text: s.run.String()}}
}

// add adds an event. It returns the spans that end with it, if it ends or interrupts the run.
func (s *segment) add(e *runs.Event) (closed []span) {
	switch e.Type {
	case runs.UserInput:
		s.message = e.Text
		return nil
	case runs.RunStarted:
		if s.parent == (runs.SpanID{}) && !e.Parent.IsZero() {
			s.parent = runs.SpanOf(e.Parent)
		}
	}
	if !s.begun && s.waits == 0 {
		s.begin(runs.SpanOf(s.run), e.At)
	}
	switch {
	case e.Continues():
		if s.waits = max(s.waits-1, 0); s.waits == 0 && !s.begun {
			s.begin(runs.SpanAfter(s.run, e.Seq), e.At)
		}
	case e.Interrupts():
		if s.waits++; s.begun {
			reason := e.Name
			if e.Type == runs.WaitOpened {
				reason = "signal"
			}
			s.own.attributes = append(s.own.attributes, attribute{name: interrupt, text: reason})
			return s.close(e)
		}
	case e.Type.Ends():
		if !s.begun { // cancelled while it waited
			s.begin(runs.SpanAfter(s.run, e.Seq), e.At)
		}
		if e.Refusal != nil {
			s.own.failed = e.Refusal.Reason.Info().Type
		}
		if s.content {
			s.own.addMessage(inputMessages, "user", s.message)
			s.own.addMessage(outputMessages, "assistant", e.Text)
		}
		return s.close(e)
	default:
		s.ask(e)
	}
	return nil
}

// close ends the span of the run.
func (s *segment) close(e *runs.Event) []span {
	s.own.to = e.At
	s.own.addTokens(s.tokens)
	s.begun, s.previous = false, s.own.id
	return append(s.ended, s.own)
}

// nameOfTool returns the name of a tool, or "(unknown)" for words of a model that cannot be one.
func nameOfTool(name string) string {
	if len(name) > actor.NameBytesMax || strings.ContainsFunc(name, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-:/", r)
	}) {
		return "(unknown)"
	}
	return name
}

// ask adds an event of a request to a model, a tool or an external agent.
func (s *segment) ask(e *runs.Event) {
	at := place{e.Step, e.Index}
	switch e.Type {
	case runs.LLMCallStarted:
		s.asks[at] = &span{id: runs.SpanOfAsk(s.run, e.Step, e.Index), name: chat + " " + e.Name, client: true, from: e.At,
			attributes: append(s.common(chat), attribute{name: requestModel, text: e.Name})}
	case runs.ToolCallCreated:
		if e.Kind == runs.KindWork { // the agent's own
			return
		}
		id := runs.ToolCallID{Run: s.run, Step: e.Step, Index: e.Index}
		name := nameOfTool(e.Name)
		tool := &span{id: runs.SpanOfAsk(s.run, e.Step, e.Index), name: executeTool + " " + name, client: true, from: e.At,
			attributes: append(s.common(executeTool), attribute{name: toolName, text: name}, attribute{name: toolType, text: toolFunction}, attribute{name: toolCallID, text: id.String()})}
		if s.content {
			tool.add(toolArguments, e.Text)
		}
		s.asks[at] = tool
	case runs.ToolDispatched:
		if tool := s.asks[at]; tool != nil { // a person may have approved it days later
			tool.from = e.At
		}
	case runs.LLMCallDone, runs.ToolResult:
		one := s.asks[at]
		if one == nil {
			return
		}
		delete(s.asks, at)
		one.to, one.parent = e.At, s.own.id
		one.addTokens(e.Usage)
		if e.Refusal != nil {
			one.failed = e.Refusal.Reason.Info().Type
		}
		switch {
		case s.content && e.Type == runs.ToolResult:
			one.add(toolResult, e.Text)
		case s.content:
			one.addMessage(outputMessages, "assistant", e.Text)
		}
		if len(s.ended) >= spansMax-1 {
			s.dropped++
			return
		}
		s.ended = append(s.ended, *one)
	case runs.AgentInvokeDone:
		s.tokens = e.Usage
	}
}

func (s *span) add(name, text string) {
	if text != "" {
		s.attributes = append(s.attributes, attribute{name: name, text: text})
	}
}

// addMessage adds a message in the form of the conventions.
func (s *span) addMessage(name, role, text string) {
	if text != "" {
		s.add(name, `[{"role":"`+role+`","parts":[{"type":"text","content":`+quote(text)+`}]}]`)
	}
}

func (s *span) addTokens(u runs.Usage) {
	if u != (runs.Usage{}) {
		s.attributes = append(s.attributes, attribute{name: inputTokens, count: u.Input}, attribute{name: outputTokens, count: u.Output})
	}
}

func number(n int64) string { return strconv.FormatInt(n, 10) }
