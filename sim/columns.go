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

// Columns shows a world to a person: one line for each event, one column for
// each node. Calls are numbered as they come up; of what the log does, only that
// it has become durable shows, of effects only what clients get.
type Columns struct {
	out         io.Writer
	width       int // of the page
	nodes       []actor.NodeID
	columnWidth int // of a column
	callNumbers map[actor.CallID]int
	line        []byte
}

// ColumnsWidth is how many characters a line of columns may take.
const ColumnsWidth = 132

// NewColumns writes columns of so many characters, all of them together.
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
	c.out.Write(append(bytes.TrimRight(c.line, " "), '\n')) //nolint:errcheck // a page that cannot be written is not read
}

// fault shows what the world does, across the columns.
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

// callNumber is the number of a call.
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

// describe is an event in a few words; "" for one that columns leave out.
func (c *Columns) describe(e *history.Event) string {
	who := shortID(e.Actor)
	switch e.Kind {
	case history.Ask:
		switch e.What {
		case "client":
			return "client asks " + shortID(e.Peer) + c.callNumber(e.Call)
		case "call":
			return who + " asks " + shortID(e.Peer) + c.callNumber(e.Call)
		}
		return who + " wants " + e.What
	case history.Answer:
		return who + " gets " + e.What + c.callNumber(e.Call) + reasonSuffix(e)
	case history.Send:
		return "→ " + e.What + c.callNumber(e.Call) + " to " + shortID(e.Peer)
	case history.Deliver:
		return "← " + e.What + c.callNumber(e.Call) + " for " + who
	case history.Drop:
		return "drops " + e.What + c.callNumber(e.Call) + ": " + e.Why
	case history.Admit:
		return who + " takes" + c.callNumber(e.Call)
	case history.Refuse:
		return who + " refused" + c.callNumber(e.Call) + reasonSuffix(e)
	case history.Start:
		return who + " begins" + c.callNumber(e.Call)
	case history.Reply:
		return who + " ends" + c.callNumber(e.Call) + reasonSuffix(e)
	case history.Queue:
		return who + " queues" + c.callNumber(e.Call) + " behind" + c.callNumber(e.Parent)
	case history.Probe:
		return "a probe passes" + c.callNumber(e.Call)
	case history.ProbeHome:
		return fmt.Sprintf("the probe of%s is home: %d hops", c.callNumber(e.Call), e.N)
	case history.Confirm:
		return "lap two:" + c.callNumber(e.Call) + " still waits"
	case history.RefuseWaitCycle:
		return who + " refuses" + c.callNumber(e.Call) + ": a ring"
	case history.Reprobe:
		return who + " probes again" + c.callNumber(e.Call)
	case history.Expire:
		if e.What == "sleep" {
			return ""
		}
		return who + " time is over: " + e.What + c.callNumber(e.Call)
	case history.Cancel:
		return who + " cancels" + c.callNumber(e.Call)
	case history.Hold:
		return who + " held: " + e.What + c.callNumber(e.Call)
	case history.Resume:
		return who + " goes on: " + e.What + c.callNumber(e.Call)
	case history.Activate:
		return "+ " + who
	case history.Deactivate:
		return "- " + who + ": " + e.Why
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
			return "⇒ client" + c.callNumber(e.Call) + " waits for a person"
		case e.What == "respond":
			return "⇒ client" + c.callNumber(e.Call) + " " + e.Status.String() + reasonSuffix(e)
		case e.What == "try":
			return fmt.Sprintf("⇒ asks outside for%s, try %d", c.callNumber(e.Call), e.N)
		case e.What == "show":
			return fmt.Sprintf("⇒ shows a piece of%s, event %d", c.callNumber(e.Call), e.N)
		case e.What == "take back":
			return fmt.Sprintf("takes back of%s what came after event %d", c.callNumber(e.Call), e.N)
		}
		return ""
	}
	return who + " " + strings.ToLower(e.Kind.String()) + c.callNumber(e.Call)
}

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
