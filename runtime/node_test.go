// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// node is a minimal driver: the cells of one process, a log that is durable at
// once, messages in order, and a clock that advances to the next deadline.
type node struct {
	t            *testing.T
	now          actor.Time
	cells        []*Cell
	agents       []actor.Definition
	former       []actor.Definition
	limits       dispatcher.Limits
	routing      dispatcher.Routing
	tools        *tools.Registry
	log          map[actor.ID]store.Saved
	inputs       []func()
	outcomes     map[entryKey]actor.Reply // outcomes recorded in entries
	outcomeReads int                      // number of outcomes read from the log
	replies      map[actor.CallID]actor.Reply
	held         map[actor.CallID]actor.Time
	epoch        actor.Epoch
	entries      int
	runs         map[actor.CallID]*runs.Record
	drop         func(actor.Envelope) bool
	events       map[actor.CallID][]runs.Event
	joined       map[actor.CallID]actor.CallID
	expiryIndex  map[actor.ID]actor.Time // deadline by actor
	external     []externalCall          // requests to models and external agents, in order
	spending     Spending
	aborted      []actor.EffectID
	awaited      []actor.EffectID
	adjusted     []actor.Duration // times left given to Adjust
	toolContexts []tools.ExecutionContext
	calls        []actor.Call              // calls made by clients
	onRespond    func(*Cell, *actor.Reply) // takes the replies to clients instead of the field replies; may be nil
	eventCounts  map[history.Kind]int
	childCalls   int // calls made by turns
	failLoads    int // number of loads that will fail
	pages        pageStore
	pageReads    []actor.Hash // pages read from the log
	failPages    int          // number of reads of pages that will fail
	trace        bool
	paused       bool // inputs stay queued: drain does nothing
	forgotten    map[Session]bool
	forgot       []Forgot // answers to Forget
}

// entryKey identifies the n-th entry of an actor.
type entryKey struct {
	actor actor.ID
	n     uint64
}

func newNode(t *testing.T, cells int, agents ...actor.Definition) *node {
	n := &node{t: t, now: actor.Time(1_700_000_000 * time.Second), agents: agents, limits: dispatcher.DefaultLimits(), tools: tools.NewRegistry(),
		log: map[actor.ID]store.Saved{}, outcomes: map[entryKey]actor.Reply{}, replies: map[actor.CallID]actor.Reply{}, held: map[actor.CallID]actor.Time{},
		runs: map[actor.CallID]*runs.Record{}, eventCounts: map[history.Kind]int{}, events: map[actor.CallID][]runs.Event{}, joined: map[actor.CallID]actor.CallID{}, expiryIndex: map[actor.ID]actor.Time{}, forgotten: map[Session]bool{},
		pages: pageStore{blobs: map[actor.ID]map[actor.Hash][]byte{}}}
	n.restart(cells)
	return n
}

// restart boots new cells from the log.
func (n *node) restart(cells int) {
	n.epoch++
	n.cells, n.inputs, n.external = nil, nil, nil
	table := n.table(cells)
	for i := range cells {
		c := NewCell(Config{Self: actor.Address{Node: "n", Cell: uint16(i), Incarnation: uint64(n.epoch)}, Cells: cells, Seed: uint64(n.epoch)<<8 | uint64(i), Tools: n.tools, Spending: n.spending, Routing: n.routing,
			Failpoints: func(p failpoint.Point) bool { return p == failpoint.SendNow && n.drop != nil }}) // only a message can be lost
		n.cells = append(n.cells, c)
		for _, in := range []Input{Limits{n.limits}, Agents{Definitions: n.agents, Former: n.former}, Owners{table}, Boot{}} {
			n.step(c, in)
		}
	}
}

func (n *node) table(cells int) dispatcher.Table {
	return dispatcher.NewTable(func(shard uint16) dispatcher.Owner {
		return dispatcher.Owner{Node: "n", Cell: uint16(int(shard) % cells), Epoch: n.epoch}
	})
}

func (n *node) step(c *Cell, in Input) {
	if n.trace {
		n.t.Logf("%v <- %T%+v", c.Self(), in, in)
	}
	r := c.Step(n.now, in)
	n.checkSize(c)
	for _, e := range r.Events {
		n.eventCounts[e.Kind]++
		if e.Kind == history.Ask && !e.Call.IsZero() && !e.Parent.IsZero() {
			n.childCalls++
		}
		if n.trace {
			n.t.Log("   ", e.String())
		}
	}
	for _, e := range r.Entries {
		n.entries++
		if _, ok := e.Record.(store.Forgotten); ok {
			n.forgotten[Session{e.Actor.Tenant, e.Actor.Key}] = true
			continue
		}
		if session, ok := e.Actor.Session(); ok && n.forgotten[Session{e.Actor.Tenant, session}] {
			n.t.Errorf("entry %d of %s follows the deletion of its session", e.N, e.Actor)
		}
		if e.WasDue != n.expiryIndex[e.Actor] {
			n.t.Errorf("entry %d of %s removes expiry index key %v, want %v", e.N, e.Actor, e.WasDue, n.expiryIndex[e.Actor])
		}
		n.expiryIndex[e.Actor] = e.Due
		saved := n.log[e.Actor]
		if s, ok := e.Record.(store.Snapshot); ok {
			n.pages.put(e.Actor, s.Pages)
			saved = store.Saved{Snapshot: s.Journal}
		} else {
			b := store.EncodeEntry(e)
			decoded, err := store.DecodeEntry(b)
			invariant.Check(err == nil, "entry: %v", err)
			saved.Entries = append(saved.Entries, decoded)
			for _, ev := range invariant.Must(decoded.AllEvents()) {
				n.fold(ev)
			}
			if ended, ok := decoded.Record.(store.Ended); ok {
				n.outcomes[entryKey{e.Actor, e.N}] = ended.Reply
			}
		}
		n.log[e.Actor] = saved
	}
	for _, e := range r.Effects {
		n.perform(c, e)
	}
}

// pageStore holds the pages of transcripts. It reads nothing else.
type pageStore struct {
	store.Reader
	blobs map[actor.ID]map[actor.Hash][]byte
}

func (p pageStore) put(id actor.ID, blobs [][]byte) {
	if p.blobs[id] == nil {
		p.blobs[id] = map[actor.Hash][]byte{}
	}
	for _, b := range blobs {
		p.blobs[id][actor.HashOf(b)] = b
	}
}

func (p pageStore) Blob(id actor.ID, name actor.Hash) ([]byte, error) {
	b, ok := p.blobs[id][name]
	if !ok {
		return nil, fmt.Errorf("blob %s of %s is missing", name, id)
	}
	return b, nil
}

// fold checks each run's events against the allowed state transitions.
func (n *node) fold(e store.RunEvent) {
	ev, err := runs.Decode(e.Body)
	invariant.Check(err == nil, "run event: %v", err)
	if n.runs[e.Run] == nil {
		n.runs[e.Run] = &runs.Record{}
	}
	if err := n.runs[e.Run].Apply(&ev); err != nil {
		n.t.Errorf("%v", err)
	}
	n.events[e.Run] = append(n.events[e.Run], ev)
}

func (n *node) perform(c *Cell, e Effect) {
	later := func(c *Cell, in Input) { n.inputs = append(n.inputs, func() { n.step(c, in) }) }
	switch op := e.Op.(type) {
	case Send:
		if n.drop != nil && n.drop(op.Envelope) {
			return
		}
		env := invariant.Must(actor.Decode(actor.Encode(op.Envelope)))
		later(n.cells[op.Cell], Deliver{env})
	case Respond:
		if op.HeldUntil != 0 {
			n.held[op.Call] = op.HeldUntil
			return
		}
		if n.onRespond != nil {
			n.onRespond(c, &op.Reply)
			return
		}
		_, twice := n.replies[op.Call]
		invariant.Check(!twice, "call %s got two replies", op.Call)
		n.replies[op.Call] = op.Reply
	case Load:
		if n.failLoads > 0 {
			n.failLoads--
			later(c, op.Failed("disk failure"))
			return
		}
		if op.Page != (actor.Hash{}) {
			if !e.Gated {
				n.t.Errorf("a page of %s is read before the entries of its actor are durable", op.Actor)
			}
			if n.failPages > 0 {
				n.failPages--
				later(c, op.Failed("disk failure"))
				return
			}
			n.pageReads = append(n.pageReads, op.Page)
			in, err := op.Read(n.pages)
			invariant.Check(err == nil, "page %s: %v", op.Page, err)
			later(c, in)
			return
		}
		if op.Outcome > 0 {
			n.outcomeReads++
			reply, ok := n.outcomes[entryKey{op.Actor, op.Outcome}]
			invariant.Check(ok, "entry %d of %s records no outcome", op.Outcome, op.Actor)
			later(c, Recalled{Actor: op.Actor, Outcome: op.Outcome, Reply: reply})
			return
		}
		if session, ok := op.Actor.Session(); ok && n.forgotten[Session{op.Actor.Tenant, session}] {
			later(c, LoadFailed{Actor: op.Actor, Epoch: op.Epoch, Gone: true})
			return
		}
		later(c, Loaded{Actor: op.Actor, Epoch: op.Epoch, Saved: n.log[op.Actor]})
	case Expiries:
		var due []actor.ID
		for id, saved := range n.log {
			j, err := store.Fold(saved)
			invariant.Check(err == nil, "fold: %v", err)
			if j.Due() != 0 && c.owner(dispatcher.ShardOf(id)).Cell == c.self.Cell {
				due = append(due, id)
			}
		}
		later(c, Due{Actors: due, Last: true})
	case MayForget:
		later(c, ForgetChecked{Session: op.Session, Epoch: op.Epoch})
	case Forgot:
		n.forgot = append(n.forgot, op)
	case Work:
		b, err := op.Func(n.t.Context())
		answer := actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: b}}}
		if err != nil {
			answer = actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "%v", err)}
		}
		later(c, Outcome{ID: e.ID, Attempt: e.Attempt, Answer: answer})
	case Model, Invoke:
		n.external = append(n.external, externalCall{c, e})
	case Abort:
		n.aborted = append(n.aborted, e.ID)
	case Adjust:
		n.adjusted = append(n.adjusted, op.Left)
	case Await:
		n.awaited = append(n.awaited, e.ID)
	case Joined:
		n.joined[op.Call] = op.Run
	case Tool:
		if op.Declared != nil {
			n.external = append(n.external, externalCall{c, e})
			return
		}
		n.toolContexts = append(n.toolContexts, op.Context)
		later(c, Outcome{ID: e.ID, Attempt: e.Attempt, Answer: n.tools.Execute(n.t.Context(), op.Name, op.Input, op.Context)})
	}
}

// externalCall is a request in progress at a model or external agent.
type externalCall struct {
	cell   *Cell
	effect Effect
}

// sendPiece delivers a piece of the answer, sendOutcome the complete answer.
func (n *node) sendPiece(o externalCall, piece actor.Piece) {
	n.step(o.cell, Streamed{o.effect.ID, o.effect.Attempt, piece})
	n.drain()
}

func (n *node) sendOutcome(o externalCall, answer actor.Answer) {
	n.step(o.cell, Outcome{o.effect.ID, o.effect.Attempt, answer})
	n.drain()
}

// drain steps all queued inputs.
func (n *node) drain() {
	if n.paused {
		return
	}
	for len(n.inputs) > 0 {
		in := n.inputs[0]
		n.inputs = n.inputs[1:]
		in()
	}
}

// advance advances the clock from deadline to deadline.
func (n *node) advance(d time.Duration) {
	end := n.now.Add(d)
	for {
		n.drain()
		next := end
		for _, c := range n.cells {
			if at, ok := c.NextDeadline(); ok {
				next = min(next, at)
			}
		}
		n.now = max(n.now, next)
		for _, c := range n.cells {
			n.step(c, Tick{})
		}
		if len(n.inputs) == 0 && next >= end {
			return
		}
	}
}

var callCount uint64

// send delivers a client's message and returns the id of its call.
func (n *node) send(to, text string, options ...func(*actor.Call)) actor.CallID {
	n.t.Helper()
	callCount++
	id := actor.NewCallID(n.now, 99, callCount)
	target, err := actor.ParseID(to)
	invariant.Check(err == nil, "%v", err)
	call := actor.Call{ID: id, Root: id, To: target, Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal, Attempt: 1, Origin: actor.Human, Parts: actor.Text(text)}
	for _, f := range options {
		f(&call)
	}
	n.calls = append(n.calls, call)
	n.inputs = append(n.inputs, func() {
		n.step(n.cells[0], Deliver{actor.Envelope{To: call.To, Body: actor.Request{Call: call}}})
	})
	n.drain()
	return id
}

// result returns the text of the reply, or the reason of its refusal.
func (n *node) result(id actor.CallID) string {
	r, ok := n.replies[id]
	switch {
	case !ok:
		return "nothing"
	case r.Refusal != nil:
		return r.Refusal.Reason.String()
	}
	return actor.TextOf(r.Parts)
}

func (n *node) want(id actor.CallID, want string) {
	n.t.Helper()
	if got := n.result(id); got != want {
		refusal := ""
		if r := n.replies[id].Refusal; r != nil {
			refusal = r.Error()
		}
		n.t.Errorf("got %q, want %q %s", got, want, refusal)
	}
}

// script is an agent as a function of its answers so far.
type script func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error)

func (s script) Begin(b actor.Begin) actor.Turn { return &scriptTurn{s: s, b: b} }

type scriptTurn struct {
	s       script
	b       actor.Begin
	answers [][]actor.Answer
}

func (t *scriptTurn) Next(a []actor.Answer) (actor.Action, error) {
	if a != nil {
		t.answers = append(t.answers, a)
	}
	return t.s(t.b, t.answers)
}

func (t *scriptTurn) Stop() {}

func agent(name string, s script, options ...func(*actor.Definition)) actor.Definition {
	d := actor.Definition{Name: name, Hash: actor.HashOf([]byte(name)), Behavior: s}
	for _, f := range options {
		f(&d)
	}
	return d
}

// calling returns an agent that calls the targets one after the other and completes
// with their answers.
func calling(targets ...string) script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) < len(targets) {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: targets[len(answers)], Parts: b.Call.Parts}}}, nil
		}
		text := b.Call.To.Agent + "("
		for _, a := range answers {
			text += answerText(a[0])
		}
		return actor.Complete(actor.Text(text + ")")), nil
	}
}

func answerText(a actor.Answer) string {
	if a.Refusal != nil {
		return a.Refusal.Reason.String()
	}
	return actor.TextOf(a.Parts)
}

func echo() script {
	return func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
		return actor.Complete(append(actor.Text(b.Call.To.Agent+":"), b.Call.Parts...)), nil
	}
}

func waiting(d time.Duration) script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskWait, Name: "go", Timeout: d}}}, nil
		}
		return actor.Complete(actor.Text(fmt.Sprintf("went %s", answerText(answers[0][0])))), nil
	}
}

func sleeping(d time.Duration) script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: d}}}, nil
		}
		return actor.Complete(actor.Text("slept")), nil
	}
}

func (n *node) shard(id actor.ID) uint16 { return dispatcher.ShardOf(id) }
