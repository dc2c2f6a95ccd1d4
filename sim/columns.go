// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// Columns prints a run for people: one line per event, one column per node. Calls are
// numbered in order of appearance. Appended entries are not printed, only the position
// up to which the log is durable. Effects are printed only if they reach clients or
// upstream services.
type Columns struct {
	out         io.Writer
	width       int // of a line, in characters
	nodes       []actor.NodeID
	columnWidth int // in characters
	callNumbers map[actor.CallID]int
	line        []byte
}

// ColumnsWidth is the usual width of a line, in characters.
const ColumnsWidth = 132

// NewColumns returns a printer of lines of at most width characters, all columns
// included.
func NewColumns(out io.Writer, width int) *Columns {
	return &Columns{out: out, width: width, callNumbers: map[actor.CallID]int{}}
}

const stampWidth = 10

func (c *Columns) begin(w *Simulation) {
	for _, n := range w.nodes {
		c.nodes = append(c.nodes, n.id)
	}
	c.columnWidth = max(20, (c.width-stampWidth)/len(c.nodes)-2)
	c.line = append(c.line[:0], strings.Repeat(" ", stampWidth)...)
	for i, n := range c.nodes {
		cells := "1 cell"
		if w.plan.Cells[i] > 1 {
			cells = fmt.Sprintf("%d cells", w.plan.Cells[i])
		}
		c.column(fmt.Sprintf("%s, %s", n, cells))
	}
	c.endLine()
}

func (c *Columns) column(text string) {
	if utf8.RuneCountInString(text) > c.columnWidth {
		text = string([]rune(text)[:c.columnWidth-1]) + "…"
	}
	c.line = append(append(c.line, ' ', ' '), text...)
	c.line = append(c.line, strings.Repeat(" ", c.columnWidth-utf8.RuneCountInString(text))...)
}

func (c *Columns) endLine() {
	c.out.Write(append(bytes.TrimRight(c.line, " "), '\n')) //nolint:errcheck // output that cannot be written is dropped
}

// fault prints a fault across all columns.
func (c *Columns) fault(now actor.Time, f Fault, what string) {
	fmt.Fprintf(c.out, "%*s  *** %s: %s\n", stampWidth, stamp(now), f, what)
}

func (c *Columns) event(now actor.Time, e *history.Event) {
	text := c.describe(e)
	if text == "" {
		return
	}
	c.line = fmt.Appendf(c.line[:0], "%*s", stampWidth, stamp(now))
	for _, n := range c.nodes {
		if n != e.From.Node {
			c.column("·")
			continue
		}
		c.column(text)
	}
	c.endLine()
}

func stamp(now actor.Time) string { return fmt.Sprintf("%.4fs", now.Sub(Origin).Seconds()) }

// callNumber returns the number of a call, formatted as in " #7".
func (c *Columns) callNumber(id actor.CallID) string {
	if id.IsZero() {
		return ""
	}
	n := c.callNumbers[id]
	if n == 0 {
		n = len(c.callNumbers) + 1
		c.callNumbers[id] = n
	}
	return fmt.Sprintf(" #%d", n)
}

// describe returns an event in a few words, or "" for an event that is not printed.
func (c *Columns) describe(e *history.Event) string {
	self := shortID(e.Actor)
	switch e.Kind {
	case history.Ask:
		switch e.What {
		case "client":
			return "client calls " + shortID(e.Peer) + c.callNumber(e.Call)
		case "call":
			return self + " calls " + shortID(e.Peer) + c.callNumber(e.Call)
		}
		return self + " asks for " + e.What
	case history.Answer:
		return self + " gets " + e.What + c.callNumber(e.Call) + reasonSuffix(e)
	case history.Send:
		return "→ " + e.What + c.callNumber(e.Call) + " to " + shortID(e.Peer)
	case history.Deliver:
		return "← " + e.What + c.callNumber(e.Call) + " for " + self
	case history.Drop:
		return "drops " + e.What + c.callNumber(e.Call) + ": " + e.Why
	case history.Admit:
		return self + " admits" + c.callNumber(e.Call)
	case history.Refuse:
		return self + " refused" + c.callNumber(e.Call) + reasonSuffix(e)
	case history.Start:
		return self + " starts" + c.callNumber(e.Call)
	case history.Reply:
		return self + " ends" + c.callNumber(e.Call) + reasonSuffix(e)
	case history.Queue:
		return self + " queues" + c.callNumber(e.Call) + " behind" + c.callNumber(e.Parent)
	case history.Probe:
		return "forwards the probe of" + c.callNumber(e.Call)
	case history.ProbeHome:
		return fmt.Sprintf("the probe of%s returned: %d hops", c.callNumber(e.Call), e.N)
	case history.Confirm:
		return "second lap:" + c.callNumber(e.Call) + " still waits"
	case history.RefuseWaitCycle:
		return self + " refuses" + c.callNumber(e.Call) + ": wait cycle"
	case history.Reprobe:
		return self + " probes again" + c.callNumber(e.Call)
	case history.Expire:
		if e.What == "sleep" {
			return ""
		}
		return self + " times out: " + e.What + c.callNumber(e.Call)
	case history.Cancel:
		return self + " cancels" + c.callNumber(e.Call)
	case history.Hold:
		return self + " held: " + e.What + c.callNumber(e.Call)
	case history.Resume:
		return self + " resumes: " + e.What + c.callNumber(e.Call)
	case history.Activate:
		return "+ " + self
	case history.Deactivate:
		return "- " + self + ": " + e.Why
	case history.Claim, history.Lose:
		return fmt.Sprintf("%s shards %d-%d, epoch %d", strings.ToLower(e.Kind.String()), e.ShardLo, e.ShardHi-1, e.Epoch)
	case history.Sync:
		return fmt.Sprintf("durable up to %d", e.Synced)
	case history.Crash:
		return "CRASH: " + e.Why
	case history.Restart:
		return "RESTART"
	case history.Append:
		return ""
	case history.Perform:
		switch {
		case e.What == "respond" && e.Status == 0:
			return "⇒ client" + c.callNumber(e.Call) + " is held"
		case e.What == "respond":
			return "⇒ client" + c.callNumber(e.Call) + " " + e.Status.String() + reasonSuffix(e)
		case e.What == "try":
			return fmt.Sprintf("⇒ upstream request for%s, attempt %d", c.callNumber(e.Call), e.N)
		case e.What == "show":
			return fmt.Sprintf("⇒ publishes a piece of%s, event %d", c.callNumber(e.Call), e.N)
		case e.What == "take back":
			return fmt.Sprintf("retracts pieces of%s after event %d", c.callNumber(e.Call), e.N)
		}
		return ""
	}
	return self + " " + strings.ToLower(e.Kind.String()) + c.callNumber(e.Call)
}

// reasonSuffix returns the reason of a refusal as a suffix, or "" without one.
func reasonSuffix(e *history.Event) string {
	if e.Reason == 0 {
		return ""
	}
	return ": " + e.Reason.String()
}

func shortID(id actor.ID) string {
	if id == (actor.ID{}) {
		return "client"
	}
	return id.String()
}
