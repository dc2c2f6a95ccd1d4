// SPDX-License-Identifier: Apache-2.0

package sim

import (
	_ "embed" // the page template
	"fmt"
	"html"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
)

// Page renders a run as one self-contained HTML file. Time runs downwards. Each actor
// has a lane per node, messages are arrows, and a lost message ends in a cross. A node
// that is down, cut off or paused has a band next to its lanes. A click on an event
// shows the state of its cell at that time.
type Page struct {
	world        *Simulation
	columns      *Columns // describes events and numbers calls
	lanes        []pageLane
	rows         []pageRow
	bands        []pageBand
	states       []string       // states of cells, as text
	stateNumbers map[string]int // number of each state
	openSends    map[string][]int
	unshown      []history.Event // events of the step unshownStep that have no row
	unshownStep  int
	dropped      int // number of rows dropped from the beginning
}

// PageRowsMax is the maximum number of events on a page. Only the last ones are kept,
// as a longer page would be unusable.
const PageRowsMax = 20_000

type pageLane struct {
	Node string `json:"node"`
	Name string `json:"name"`
}

// pageRow is one event or fault.
type pageRow struct {
	T     int64  `json:"t"` // nanoseconds since Origin
	Step  int    `json:"step"`
	Lane  int    `json:"lane"`
	Kind  string `json:"kind"`
	Text  string `json:"text"`
	Line  string `json:"line"`           // the event in full
	Call  string `json:"call,omitzero"`  // number of the call
	To    int    `json:"to,omitzero"`    // 1 + row in which the sent message arrives
	Lost  bool   `json:"lost,omitzero"`  // the sent message never arrives
	Open  string `json:"open,omitzero"`  // where the sent message is at the end of the run; "": it is not on its way
	State int    `json:"state,omitzero"` // 1 + index into states
}

type pageBand struct {
	Node        string     `json:"node"`
	Why         string     `json:"why"`
	From        int64      `json:"from"`
	Until       int64      `json:"until"`
	expectedEnd actor.Time // announced end
}

// NewPage returns an empty page.
func NewPage() *Page {
	return &Page{columns: NewColumns(io.Discard, ColumnsWidth), stateNumbers: map[string]int{}, openSends: map[string][]int{}}
}

func (p *Page) begin(w *Simulation) {
	p.world = w
	p.laneIndex("", "clients")
	for _, n := range w.nodes {
		p.laneIndex(string(n.id), "node")
	}
}

// laneIndex returns the index of an actor's lane at a node, and adds the lane if it is
// new.
func (p *Page) laneIndex(node, name string) int {
	l := pageLane{node, name}
	if i := slices.Index(p.lanes, l); i >= 0 {
		return i
	}
	p.lanes = append(p.lanes, l)
	return len(p.lanes) - 1
}

func (p *Page) event(now actor.Time, e *history.Event) {
	p.update(now)
	text := p.columns.describe(e)
	switch {
	case e.Kind == history.Append:
		text = fmt.Sprintf("appends %d, the log ends at %d", e.Wrote, e.Pos)
	case text == "":
		if step := p.world.Stats.Steps; p.unshownStep != step {
			p.unshown, p.unshownStep = p.unshown[:0], step
		}
		p.unshown = append(p.unshown, *e)
		return
	}
	at := p.addEvent(now, e, text)
	switch e.Kind {
	case history.Send:
		route := messageRoute(e.What, e.Call, e.Peer)
		p.rows[at].Lost = true // until the message arrives
		p.openSends[route] = append(p.openSends[route], at)
	case history.Deliver:
		route := messageRoute(e.What, e.Call, e.Actor)
		if from := p.openSends[route]; len(from) > 0 {
			p.rows[from[0]].To, p.rows[from[0]].Lost = at+1, false
			p.openSends[route] = from[1:]
		}
	}
}

// messageRoute identifies a message by its name, its call and its receiver.
func messageRoute(name string, call actor.CallID, to actor.ID) string {
	return name + "/" + call.String() + "/" + to.String()
}

// addEvent appends the row of an event and returns its index.
func (p *Page) addEvent(now actor.Time, e *history.Event, text string) int {
	row := pageRow{T: int64(now - Origin), Kind: e.Kind.String(), Text: text, Line: e.String(), Call: p.callNumber(e)}
	switch {
	case e.Kind == history.Perform, e.Kind == history.Ask && e.What == "client":
		row.Lane = p.laneIndex("", "clients")
	case e.Actor != actor.ID{}:
		row.Lane, row.State = p.laneIndex(string(e.From.Node), e.Actor.String()), p.cellState(e)
	default:
		row.Lane, row.State = p.laneIndex(string(e.From.Node), "node"), p.cellState(e)
	}
	return p.addRow(row)
}

// addRow appends a row and returns its index.
func (p *Page) addRow(r pageRow) int {
	r.Step = p.world.Stats.Steps
	p.rows = append(p.rows, r)
	return len(p.rows) - 1
}

// dropRows drops the first n rows, since the end of a run matters most.
func (p *Page) dropRows(n int) {
	p.dropped += n
	p.rows = slices.Clone(p.rows[n:])
	states := p.states
	p.states = nil
	clear(p.stateNumbers)
	for i := range p.rows {
		r := &p.rows[i]
		r.To = max(0, r.To-n)
		if r.State > 0 {
			r.State = p.stateNumber(states[r.State-1])
		}
	}
	for key, at := range p.openSends {
		at = slices.DeleteFunc(at, func(i int) bool { return i < n })
		for i := range at {
			at[i] -= n
		}
		p.openSends[key] = at
	}
}

// stateNumber returns the number of a state, 1 for the first.
func (p *Page) stateNumber(text string) int {
	if p.stateNumbers[text] == 0 {
		p.states = append(p.states, text)
		p.stateNumbers[text] = len(p.states)
	}
	return p.stateNumbers[text]
}

func (p *Page) callNumber(e *history.Event) string {
	return strings.TrimSpace(p.columns.callNumber(e.Call))
}

// cellState returns the number of the present state of the event's cell, or 0 if the
// cell is gone.
func (p *Page) cellState(e *history.Event) int {
	n := p.world.nodeByID(e.From.Node)
	if n == nil || !n.up || int(e.From.Cell) >= len(n.cells) || n.cells[e.From.Cell].stopped {
		return 0
	}
	var b strings.Builder
	for _, a := range n.cells[e.From.Cell].core.State().Actors {
		fmt.Fprintf(&b, "%s epoch %d", a.ID, a.Epoch)
		if !a.Loaded {
			b.WriteString(" (loading)")
		}
		for _, t := range a.Turns {
			b.WriteString("\n    turn of" + p.columns.callNumber(t.Run))
			for i, open := range t.Open {
				b.WriteString([...]string{" waits for", ""}[min(i, 1)] + p.columns.callNumber(open))
			}
		}
		for _, q := range a.Queue {
			b.WriteString("\n    queued" + p.columns.callNumber(q))
		}
		b.WriteByte('\n')
	}
	return p.stateNumber(b.String())
}

func (p *Page) fault(now actor.Time, f Fault, what string) {
	p.update(now)
	p.addRow(pageRow{T: int64(now - Origin), Lane: -1, Kind: "Fault", Text: f.String() + ": " + what, Line: "fault " + f.String() + ": " + what})
}

// update records which nodes are down, paused or cut off, and makes room for one more
// row.
func (p *Page) update(now actor.Time) {
	if len(p.rows) == PageRowsMax {
		p.dropRows(PageRowsMax / 4)
	}
	w := p.world
	for i, n := range w.nodes {
		p.updateBand(now, n, "down", !n.up && n.process > 0, actor.Forever)
		p.updateBand(now, n, "paused", n.up && n.pausedUntil > now, n.pausedUntil)
		p.updateBand(now, n, "cut off from the store", w.net.storeCutUntil[i] > now, w.net.storeCutUntil[i])
		var until actor.Time
		for j := range w.nodes {
			until = max(until, w.net.blocked[i][j].until)
		}
		p.updateBand(now, n, "cut off from other nodes", until > now, until)
	}
}

// updateBand opens or closes a band of a node. A band ends no later than announced.
func (p *Page) updateBand(now actor.Time, n *node, why string, on bool, until actor.Time) {
	open := slices.IndexFunc(p.bands, func(b pageBand) bool { return b.Node == string(n.id) && b.Why == why && b.Until == 0 })
	switch {
	case open >= 0 && !on:
		b := &p.bands[open]
		b.Until = int64(min(now, b.expectedEnd) - Origin)
	case open >= 0:
		p.bands[open].expectedEnd = max(p.bands[open].expectedEnd, until)
	case on:
		p.bands = append(p.bands, pageBand{Node: string(n.id), Why: why, From: int64(now - Origin), expectedEnd: until})
	}
}

// markOpenMessages marks the messages that have neither arrived nor been lost. Of equal
// messages, the last ones are on their way.
func (p *Page) markOpenMessages() {
	mark := func(where string, env *actor.Envelope) {
		route := messageRoute(env.Body.Name(), env.Body.Subject(), env.To)
		sent := p.openSends[route]
		if last := len(sent) - 1; last >= 0 {
			p.rows[sent[last]].Open, p.rows[sent[last]].Lost = where, false
			p.openSends[route] = sent[:last]
		}
	}
	for _, n := range p.world.nodes {
		for i := range n.gated {
			if send, ok := n.gated[i].effect.Op.(runtime.Send); ok {
				mark("waits until the log is durable", &send.Envelope)
			}
		}
	}
	for i := range p.world.net.flights {
		if f := &p.world.net.flights[i]; !p.world.net.lost(f) && f.message.to.up {
			if env, err := actor.Decode(f.message.bytes); err == nil {
				mark("in flight", &env)
			}
		}
	}
	for _, n := range p.world.nodes {
		for _, c := range n.cells {
			for i := range c.inputs {
				if in, ok := c.inputs[i].in.(runtime.Deliver); ok && !c.stopped {
					mark("in the queue of its cell", &in.Envelope)
				}
			}
		}
	}
}

// revealingRow returns the index of the row of the event that revealed a violation. If
// the event has no row, revealingRow adds one.
func (p *Page) revealingRow(v *Violation) (at int, ok bool) {
	for i, row := range slices.Backward(p.rows) {
		if v.Event != "" && row.Line == v.Event {
			return i, true
		}
	}
	for i := range p.unshown {
		if e := &p.unshown[i]; e.String() == v.Event {
			return p.addEvent(Origin.Add(v.At), e, strings.TrimSpace(strings.ToLower(e.Kind.String())+" "+e.What)), true
		}
	}
	return 0, false
}

//go:embed page/page.html
var pageTemplate string

// WriteTo writes the page of a run that has ended, with its result.
func (p *Page) WriteTo(out io.Writer, r Result) error {
	end := int64(p.world.now - Origin)
	for i := range p.bands {
		if p.bands[i].Until == 0 {
			p.bands[i].Until = end
		}
	}
	p.markOpenMessages()
	data := struct {
		Seed     uint64     `json:"seed"`
		Hash     string     `json:"hash"`
		Lanes    []pageLane `json:"lanes"`
		Rows     []pageRow  `json:"rows"`
		Bands    []pageBand `json:"bands"`
		States   []string   `json:"states"`
		Left     int        `json:"left"`
		Spec     string     `json:"spec"`
		Says     string     `json:"says"`
		Sentence string     `json:"sentence"`
		At       int64      `json:"at"`
		Revealed int        `json:"revealed"` // 1 + row of the event that revealed the violation; 0: none
		// the choice that made the failure inevitable, and 1 + the first row after it; 0: not known
		Inevitable     string `json:"inevitable"`
		InevitableFrom int    `json:"inevitableFrom"`
	}{Seed: r.Seed, Hash: r.Hash, Bands: p.bands, Left: p.dropped}
	title := fmt.Sprintf("seed %d: every spec held", r.Seed)
	if v := r.Violation; v != nil {
		title = fmt.Sprintf("seed %d: %s broken", r.Seed, v.Spec)
		data.Spec, data.Sentence, data.At = v.Spec, v.Detail, int64(v.At)
		if at, ok := p.revealingRow(v); ok {
			data.Revealed = at + 1
		}
		for _, s := range specs.All() {
			if s.Name == v.Spec {
				data.Says = s.Meaning
			}
		}
	}
	if f := r.Inevitability; f != nil {
		data.Inevitable = f.String()
		data.InevitableFrom = 1 + slices.IndexFunc(p.rows, func(row pageRow) bool { return row.T >= int64(f.At) && row.Step >= f.Step })
	}
	data.Lanes, data.Rows, data.States = p.lanes, p.rows, p.states
	body, err := json.Marshal(data, jsontext.EscapeForHTML(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, strings.NewReplacer("{{title}}", html.EscapeString(title), "{{data}}", string(body)).Replace(pageTemplate))
	return err
}
