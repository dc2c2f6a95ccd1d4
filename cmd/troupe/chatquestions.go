// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"crypto/rand"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// question waits for an answer of the person.
type question struct {
	message channelMessage
	choices []string
	from    time.Time // earlier answers were typed for something else
	others  bool      // somebody else decides; such questions are the last ones
}

// addQuestion adds a question, unless it was asked before.
func (c *chat) addQuestion(m *channelMessage, key string) {
	if c.answered[key] || slices.ContainsFunc(c.questions, func(q *question) bool { return q.key() == key }) {
		return
	}
	at := slices.IndexFunc(c.questions, func(q *question) bool { return q.others })
	if at < 0 {
		at = len(c.questions)
	}
	c.questions = slices.Insert(c.questions, at, &question{message: *m})
}

// asks reports whether a question waits for this person.
func (c *chat) asks() bool { return len(c.questions) > 0 && !c.questions[0].others }

// askOthers shows that somebody else decides about the oldest question. The conversation goes on.
func (c *chat) askOthers() {
	q := c.questions[0]
	q.others = true
	c.questions = append(c.questions[1:], q)
	c.asked = false
	c.note("[a colleague has been asked]")
}

func (q *question) key() string { return cmp.Or(q.message.Approval, q.message.ToolCall) }

// withdraw removes a question that needs no answer.
func (c *chat) withdraw(key string) {
	if i := slices.IndexFunc(c.questions, func(q *question) bool { return q.key() == key }); i >= 0 {
		if i == 0 && c.asked {
			c.asked = false
			c.note("the question above needs no answer")
		}
		c.questions = slices.Delete(c.questions, i, i+1)
	}
}

// ask prints the oldest question, unless it was printed.
func (c *chat) ask() {
	if c.asked || !c.asks() || !c.live {
		return
	}
	c.asked = true
	q := c.questions[0]
	if q.from = time.Now(); c.interactive {
		q.from = q.from.Add(answerDelay)
	}
	m := &q.message
	if m.Approval != "" {
		_, a, err := c.approval(m.Approval)
		if err == nil && a.May != nil && !*a.May {
			c.askOthers()
			c.ask()
			return
		}
		if err != nil {
			a = m.approval()
		}
		c.note("%s: %s", a.question(), oneLine(cmp.Or(m.Summary, a.Summary)))
		if err == nil && !c.command.JSON {
			_ = printArgs(c.err, a.Args)
		}
		return
	}
	var args struct {
		Question string   `json:"question"`
		Choices  []string `json:"choices"`
	}
	if json.Unmarshal(m.Args, &args) != nil || args.Question == "" {
		c.note("%s needs a result, as JSON or text; /decline refuses:", m.Tool)
		if !c.command.JSON {
			_ = printArgs(c.err, m.Args)
		}
		return
	}
	q.choices = args.Choices
	c.note("%s", args.Question)
	for i, choice := range q.choices {
		c.note("  %d  %s", i+1, oneLine(choice))
	}
}

// answer handles the answer to the oldest question.
func (c *chat) answer(text string) {
	q := c.questions[0]
	m := &q.message
	if time.Now().Before(q.from) {
		c.note("typed too early to be an answer")
		return
	}
	r := channelRequest{ID: rand.Text(), Run: m.Run}
	if m.Approval != "" {
		word, reason, _ := strings.Cut(text, " ")
		r.Type, r.Approval, r.Reason = "approval_decision", m.Approval, strings.TrimSpace(reason)
		switch word {
		case "y", "yes":
			r.Decision = "approve"
		case "n", "no":
			r.Decision = "reject"
		default:
			c.note("want y or n, and maybe a reason: y asked Anna")
			return
		}
	} else {
		r.Type, r.ToolCall = "tool_result", m.ToolCall
		r.OK, r.Result = new(bool), q.result(text)
		if *r.OK = text != "/decline"; !*r.OK {
			r.Result, r.Error = nil, map[string]string{"code": "declined", "message": "the person declined"}
		}
	}
	c.answered[q.key()] = true
	c.questions, c.asked = c.questions[1:], false
	c.send(r, q)
}

// result returns the result of a client tool: the chosen text, JSON, or the text itself.
func (q *question) result(text string) jsontext.Value {
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= len(q.choices) {
		text = q.choices[n-1]
	} else if v := jsontext.Value(text); len(q.choices) == 0 && v.IsValid() {
		return v
	}
	b, err := jsontext.AppendQuote(nil, strings.ToValidUTF8(text, "\uFFFD"))
	if err != nil {
		return jsontext.Value(`""`)
	}
	return b
}
