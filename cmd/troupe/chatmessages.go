// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/ingress"
)

// take handles a message of the server.
func (c *chat) take(m *channelMessage) error {
	switch {
	case m.lost != nil && (m.last || !c.connected):
		return m.lost
	case m.lost != nil:
		if !c.lost {
			c.lost = true
			c.note("%v; connecting again", m.lost)
		}
		return nil
	case m.ready():
		if c.lost {
			c.note("connected again")
		}
		c.connected, c.lost = true, false
		return nil
	}
	if c.command.JSON && (c.live || m.answers()) {
		if _, err := fmt.Fprintf(c.out, "%s\n", m.raw); err != nil {
			return err
		}
	}
	switch {
	case m.answers():
		c.takeAnswer(m)
		return nil
	case m.is(ingress.StateLive):
		c.showHistory()
		return nil
	case m.Type == ingress.ChannelError && m.Run == "":
		switch {
		case m.Code == "session_not_found":
			c.showHistory() // the first message begins it
			return nil
		case m.Code == "session_deleted" && m.Session == c.channel.where():
			return fmt.Errorf("session %s was deleted; to begin another:\n  %s", m.Session, c.flags.hint("chat", []string{c.command.Agent}))
		}
		c.note("%s: %s", m.Code, m.text())
		return nil
	case m.Type == ingress.ChannelToolRequest:
		c.addQuestion(m, m.ToolCall)
		return nil
	}
	return c.takeEvent(m)
}

// takeAnswer handles the answer to a request.
func (c *chat) takeAnswer(m *channelMessage) {
	q := c.sent[m.Request]
	delete(c.sent, m.Request)
	switch {
	case m.Type == ingress.ChannelError:
		c.failed = c.failed || q == nil
		c.note("%s: %s", m.Code, m.text())
		if q != nil && m.Code != "approval_decided" && m.Code != "tool_call_ended" && c.runs[q.message.Run] != nil {
			delete(c.answered, q.key())
			c.questions, c.asked = slices.Insert(c.questions, 0, q), false
		}
	case m.Run != "" && q == nil && c.runs[m.Run] == nil && m.Session == c.channel.where() && !slices.Contains(c.ended, m.Run):
		c.runs[m.Run] = &chatRun{agent: c.command.Agent} // run_started follows
	}
}

// takeEvent handles a message about a run.
func (c *chat) takeEvent(m *channelMessage) error {
	run := c.runs[m.Run]
	if run == nil {
		run = &chatRun{agent: cmp.Or(m.Agent, c.command.Agent)}
		c.runs[m.Run] = run
	}
	switch m.Type {
	case ingress.ChannelRunStarted:
		run.agent = cmp.Or(m.Agent, run.agent)
		if !c.live {
			c.history = append(c.history, "> "+oneLine(m.text()))
		}
	case ingress.ChannelDelta:
		run.deltas = append(run.deltas, m.Text)
		return c.print(m.Text)
	case ingress.ChannelState:
		return c.takeState(m, run)
	case ingress.ChannelApprovalRequired:
		c.addQuestion(m, m.Approval)
	case ingress.ChannelDone, ingress.ChannelError:
		c.endRun(m, run)
	}
	return nil
}

// endRun handles the end of a run.
func (c *chat) endRun(m *channelMessage, run *chatRun) {
	delete(c.runs, m.Run)
	c.ended = append(c.ended[max(0, len(c.ended)-endedRuns+1):], m.Run)
	c.questions = slices.DeleteFunc(c.questions, func(q *question) bool { return q.message.Run == m.Run })
	c.asked = c.asked && len(c.questions) > 0
	text := cmp.Or(m.Text, strings.Join(run.deltas, ""))
	if m.Type == ingress.ChannelError {
		text = fmt.Sprintf("%s: %s", m.Code, m.text())
	}
	switch {
	case !c.live:
		c.history = append(c.history, text)
	case m.Type == ingress.ChannelError:
		c.failed = true
		c.note("%s", text)
	case c.streaming && !strings.HasSuffix(text, "\n"):
		c.midLine = true
		c.endLine()
	case c.streaming || c.command.JSON:
		c.midLine = false
	default:
		c.endLine()
		fmt.Fprintln(c.out, strings.TrimSuffix(text, "\n"))
	}
}

// takeState handles the state of a run.
func (c *chat) takeState(m *channelMessage, run *chatRun) error {
	d := m.stateDetail()
	switch {
	case m.State == ingress.StateRetrying:
		run.deltas = run.deltas[:max(0, len(run.deltas)-d.Void)]
		if c.live && c.streaming {
			c.note("the answer is generated again")
			return c.print(strings.Join(run.deltas, ""))
		}
		return nil
	case d.Decision != "":
		c.withdraw(d.Approval)
	case d.ended():
		c.withdraw(d.ToolCall)
	}
	if text := d.text(); text != "" {
		if m.State == ingress.StateWaitingSignal {
			text += "; to continue:\n  " + c.flags.hint("runs signal", []string{m.Run, d.Name})
		}
		c.status(text)
	}
	return nil
}

// status prints what a run does.
func (c *chat) status(text string) {
	if c.live {
		c.note("[%s]", text)
	}
}

// print prints a piece of an answer.
func (c *chat) print(text string) error {
	if !c.live || !c.streaming || text == "" {
		return nil
	}
	if c.prompted {
		c.endLine()
	}
	_, err := io.WriteString(c.out, text)
	c.midLine = !strings.HasSuffix(text, "\n")
	return err
}

// showHistory prints the latest of the earlier messages.
func (c *chat) showHistory() {
	if c.live {
		return
	}
	c.live = true
	if c.interactive {
		for _, line := range c.history[max(0, len(c.history)-historyLines):] {
			fmt.Fprintln(c.err, line)
		}
	}
	c.history = nil
	for _, run := range c.runs {
		_ = c.print(strings.Join(run.deltas, ""))
	}
}
