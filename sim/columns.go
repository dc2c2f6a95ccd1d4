// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// Columns shows a world to a person: one line for each event, one column for
// each node. Messages show as they are sent and taken, what the log does as it
// becomes durable; effects are left out.
type Columns struct {
	out   io.Writer
	nodes []actor.NodeID
	wide  int
	line  []byte
}

// NewColumns writes columns.
func NewColumns(out io.Writer) *Columns { return &Columns{out: out} }

const columnsWidth = 132

func (c *Columns) begin(w *World) {
	for _, n := range w.nodes {
		c.nodes = append(c.nodes, n.id)
	}
	c.wide = max(24, (columnsWidth-11)/len(c.nodes)-2)
	fmt.Fprintf(c.out, "%10s", "")
	for i, n := range c.nodes {
		fmt.Fprintf(c.out, "  %-*s", c.wide, fmt.Sprintf("%s: %d cells", n, w.plan.Cells[i]))
	}
	fmt.Fprintln(c.out)
}

// fault shows what the world does, across the columns.
func (c *Columns) fault(now actor.Time, f Fault, what string) {
	fmt.Fprintf(c.out, "%s  *** %s: %s\n", stamp(now), f, what)
}

func (c *Columns) event(now actor.Time, e *history.Event) {
	text := describe(e)
	if text == "" {
		return
	}
	text = cut(text, c.wide)
	c.line = append(c.line[:0], stamp(now)...)
	for _, n := range c.nodes {
		c.line = append(c.line, ' ', ' ')
		if n != e.From.Node {
			c.line = append(c.line, "·"...)
			c.line = append(c.line, strings.Repeat(" ", c.wide-1)...)
			continue
		}
		c.line = append(c.line, text...)
		c.line = append(c.line, strings.Repeat(" ", c.wide-utf8.RuneCountInString(text))...)
	}
	c.out.Write(append([]byte(strings.TrimRight(string(c.line), " ")), '\n'))
}

func stamp(now actor.Time) string { return fmt.Sprintf("%9.4fs", now.Sub(Origin).Seconds()) }

func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// describe is an event in a few words; "" for one that columns leave out.
func describe(e *history.Event) string {
	call := ""
	if !e.Call.IsZero() {
		call = " " + e.Call.Short()
	}
	who := brief(e.Actor)
	switch e.Kind {
	case history.Ask:
		if e.What == "client" {
			return "client asks " + brief(e.Peer) + call
		}
		if e.What == "call" {
			return who + " asks " + brief(e.Peer) + call
		}
		return who + " wants " + e.What
	case history.Answer:
		if e.Reason != 0 {
			return who + " gets " + e.What + " " + e.Reason.String() + call
		}
		return who + " gets " + e.What + call
	case history.Send:
		return "→ " + e.What + " " + brief(e.Peer) + call
	case history.Deliver:
		return "← " + e.What + " " + brief(e.Actor) + call
	case history.Admit:
		return fmt.Sprintf("%s takes%s (%d)", who, call, e.Count)
	case history.Refuse:
		return who + " refused " + e.Reason.String() + call
	case history.Start:
		return who + " begins" + call
	case history.Reply:
		if e.Reason != 0 {
			return who + " ends " + e.Reason.String() + call
		}
		return who + " ends" + call
	case history.Drop:
		return "dropped " + e.What + " (" + e.Why + ")" + call
	case history.Expire, history.Cancel, history.Hold, history.Resume:
		return who + " " + strings.ToLower(e.Kind.String()) + call
	case history.Activate:
		return fmt.Sprintf("+ %s epoch %d", who, e.Epoch)
	case history.Deactivate:
		return "- " + who + " " + e.Why
	case history.Claim, history.Lose:
		return fmt.Sprintf("%s %d-%d epoch %d", strings.ToLower(e.Kind.String()), e.ShardLo, e.ShardHi, e.Epoch)
	case history.Sync:
		return fmt.Sprintf("durable to %d", e.Synced)
	case history.Append:
		return fmt.Sprintf("log to %d", e.Pos)
	case history.Crash:
		return "CRASH: " + e.Why
	case history.Restart:
		return "RESTART"
	case history.Perform:
		if e.What == "respond" {
			return "⇒ client" + call + " " + e.Status.String()
		}
	}
	return ""
}

func brief(id actor.ID) string {
	if id == (actor.ID{}) {
		return "client"
	}
	return id.Agent + "/" + id.Key
}
