// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

var walksFile = flag.String("walks", "testdata/walks.json", "file of walks through module Calls, one per line")

// TestWalks runs real cells through walks that TLC generated from the specification
// (tla/Walk.tla). The code must be able to take every step that the specification
// allows. After each step the code must be in the specified state.
func TestWalks(t *testing.T) {
	f, err := os.Open(*walksFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	walks, counts := 0, map[string]int{}
	for lines.Scan() {
		var steps []walkStep
		if err := json.Unmarshal(lines.Bytes(), &steps); err != nil {
			t.Fatalf("line %d: %v", walks+1, err)
		}
		walks++
		if err := newWalker().follow(steps, counts); err != nil {
			t.Errorf("walk %d: %v", walks, err)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for _, action := range []string{"Send", "Ask", "GiveUp", "Admit", "Refuse", "Deliver", "Start", "Reply", "Answer", "Cancel", "Drop", "Sync", "Crash", "Restart"} {
		if counts[action] == 0 {
			t.Errorf("no walk contains action %s", action)
		}
	}
	t.Logf("%d walks followed: %v", walks, counts)
}

// walkStep is one action, with the state of every call after the action.
type walkStep struct {
	action string
	call   int
	turn   int    // of Ask
	kind   string // of Answer and Drop
	actor  string
	flag   bool // Crash: all entries are durable; deliveries: the message stays in the network
	states []callState
}

// callState holds three values: the state of a call at its caller, the outcome of
// the call at its caller, and the state of the call at its callee.
type callState [3]string

func (s *walkStep) UnmarshalJSON(b []byte) error {
	var of json.RawMessage
	if err := json.Unmarshal(b, &[]any{&s.action, &s.call, &of, &s.actor, &s.flag, &s.states}); err != nil {
		return err
	}
	if json.Unmarshal(of, &s.kind) == nil {
		return nil
	}
	return json.Unmarshal(of, &s.turn)
}

// walker is a driver in which each event is triggered by the walk. Each actor has a
// node with one cell, and the clients share a node. The network keeps messages until
// the walk delivers or drops them. Time does not advance.
type walker struct {
	nodes     map[string]*walkNode
	calls     map[int]actor.CallID
	to        map[int]string // callee by call
	parent    map[int]int
	net       map[messageKey][]walkMessage
	decisions map[actor.CallID]Effect // by run: work whose outcome determines the turn's next action
	replies   map[actor.CallID]actor.Reply
	idSeq     uint64
}

// messageKey identifies a message in the specification.
type messageKey struct {
	kind string // req, cancel, or the outcome of the call
	call actor.CallID
}

type walkMessage struct {
	to       string // destination node
	envelope actor.Envelope
}

type walkNode struct {
	name    string
	cell    *Cell
	boots   uint64
	entries []store.Entry
	durable int      // number of durable entries
	gated   []Effect // delayed until the next Sync of the walk
	down    bool
}

const walkClients = "clients"

var walkNow = actor.Time(1_700_000_000 * time.Second)

// walkAgent takes its actions from the walk. Its turn asks for work, and the walk
// supplies the outcome. If the outcome is the name of a callee, the turn calls that
// callee. If the outcome is empty, the turn replies.
type walkAgent struct{}

func (walkAgent) Begin(actor.Begin) actor.Turn { return &walkTurn{} }

type walkTurn struct{ called bool }

func (t *walkTurn) Next(answers []actor.Answer) (actor.Action, error) {
	if len(answers) == 1 && !t.called && answers[0].Refusal == nil {
		if callee := string(answers[0].Parts[0].Bytes); callee != "" {
			t.called = true
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: callee, Operation: actor.HandleMessageFull, Parts: actor.Text("go on")}}}, nil
		}
		return actor.Action{Done: &actor.Outcome{Status: actor.Succeeded, Parts: actor.Text("done")}}, nil
	}
	t.called = false
	return actor.Action{Asks: []actor.Ask{{Kind: actor.AskWork, Name: "decide", Idempotent: true, Work: walkWork}}}, nil
}

func (t *walkTurn) Stop() {}

func walkWork(context.Context) ([]byte, error) { panic("the walk must supply the outcome") }

func walkLimits() dispatcher.Limits {
	l := dispatcher.DefaultLimits()
	l.AgentCallDepthMax, l.AgentConcurrentCallsMax, l.MaxPendingPerActor = 2, 1, 1
	return l
}

func newWalker() *walker {
	w := &walker{nodes: map[string]*walkNode{}, calls: map[int]actor.CallID{}, to: map[int]string{}, parent: map[int]int{}, net: map[messageKey][]walkMessage{},
		decisions: map[actor.CallID]Effect{}, replies: map[actor.CallID]actor.Reply{}}
	for _, name := range []string{"a", "b", "c", walkClients} {
		w.nodes[name] = &walkNode{name: name}
		w.boot(w.nodes[name])
	}
	return w
}

func (w *walker) boot(n *walkNode) {
	n.boots++
	n.cell = NewCell(Config{Self: actor.Address{Node: actor.NodeID(n.name), Incarnation: n.boots}, Seed: n.boots<<8 | uint64(n.name[0]), Tools: tools.NewRegistry()})
	var agents []actor.Definition
	for _, name := range []string{"a", "b", "c"} {
		agents = append(agents, actor.Definition{Name: name, Hash: actor.HashOf([]byte(name)), Behavior: walkAgent{}})
	}
	table := dispatcher.NewTable(func(shard uint16) dispatcher.Owner {
		for _, agent := range []string{"a", "b", "c"} {
			if dispatcher.ShardOf(actor.NewID(agent, "")) == shard {
				return dispatcher.Owner{Node: actor.NodeID(agent), Epoch: 1}
			}
		}
		return dispatcher.Owner{Node: walkClients, Epoch: 1}
	})
	for _, in := range []Input{Limits{walkLimits()}, Agents{Definitions: agents}, Owners{table}, Boot{}} {
		w.step(n, in)
	}
}

// step steps a node's cell. Gated messages wait for the Sync of the walk. Other
// effects are performed at once; reads return the durable entries only.
func (w *walker) step(n *walkNode, in Input) {
	ready := n.cell.Step(walkNow, in)
	n.entries = append(n.entries, ready.Entries...)
	for _, e := range ready.Effects {
		switch op := e.Op.(type) {
		case Load:
			w.step(n, Loaded{Actor: op.Actor, Epoch: op.Epoch, Saved: n.saved(op.Actor)})
		case Expiries:
			if id := actor.NewID(n.name, ""); n.hasOpenRuns(id) {
				w.step(n, Due{Actors: []actor.ID{id}})
			}
		case Work:
			w.decisions[e.ID.Run] = e
		case Send:
			if _, probe := op.Envelope.Body.(actor.Probe); probe {
				continue // not sent: probes only find wait cycles that last, and the walks contain none
			}
			if e.Gated {
				n.gated = append(n.gated, e)
			} else {
				w.send(op)
			}
		case Respond: // released at once: the clients' node has no entries to sync
			w.replies[op.Call] = op.Reply
		}
	}
}

func (n *walkNode) saved(id actor.ID) store.Saved {
	var s store.Saved
	for _, e := range n.entries[:n.durable] {
		if e.Actor == id {
			s.Entries = append(s.Entries, invariant.Must(store.DecodeEntry(store.EncodeEntry(e))))
		}
	}
	return s
}

// hasOpenRuns reports whether the durable entries hold open runs of the actor.
func (n *walkNode) hasOpenRuns(id actor.ID) bool {
	journal := invariant.Must(store.Fold(n.saved(id)))
	return len(journal.Runs) > 0
}

func (w *walker) send(op Send) {
	env := invariant.Must(actor.Decode(actor.Encode(op.Envelope)))
	key := messageKey{call: env.Body.Subject()}
	switch m := env.Body.(type) {
	case actor.Request:
		key.kind = "req"
	case actor.Cancel:
		key.kind = "cancel"
	case actor.Answered:
		key.kind = "ok"
		if r := m.Reply.Refusal; r != nil {
			key.kind = map[actor.Reason]string{actor.Busy: "busy", actor.Stopped: "stop"}[r.Reason]
		}
	default:
		return // a walk has no action for an Open message
	}
	w.net[key] = append(w.net[key], walkMessage{string(op.Node), env})
}

// deliver delivers a message. If keep is set, the message also stays in the
// network.
func (w *walker) deliver(kind string, call int, keep bool) error {
	key := messageKey{kind, w.calls[call]}
	messages := w.net[key]
	if len(messages) == 0 {
		return fmt.Errorf("the message was not sent")
	}
	if !keep {
		delete(w.net, key)
	}
	w.step(w.nodes[messages[0].to], Deliver{messages[0].envelope})
	return nil
}

// decide sets the next action of a turn: a call to the actor named by the argument
// callee, or the reply if callee is empty.
func (w *walker) decide(call int, callee string) error {
	e, ok := w.decisions[w.calls[call]]
	if !ok {
		return fmt.Errorf("the turn does not wait for a decision")
	}
	delete(w.decisions, w.calls[call])
	w.step(w.nodes[w.to[call]], Outcome{ID: e.ID, Attempt: e.Attempt, Answer: actor.Answer{Parts: actor.Text(callee)}})
	return nil
}

func (w *walker) follow(steps []walkStep, counts map[string]int) error {
	for i := range steps {
		s := &steps[i]
		counts[s.action]++
		if s.action == "Start" || s.action == "Rest" {
			continue // nothing to apply: a cell starts a turn in the same step that enables it
		}
		if err := w.apply(s); err != nil {
			return fmt.Errorf("step %d, %s %d %v%s: %w", i+1, s.action, s.call, s.actor, s.kind, err)
		}
		last := i
		for last+1 < len(steps) && steps[last+1].action == "Start" {
			last++
		}
		if last == len(steps)-1 {
			return nil // not comparable: the walk may end before the Start that the cell has taken
		}
		if err := w.compare(steps[last].states); err != nil {
			return fmt.Errorf("after step %d, %s %d %v%s: %w", i+1, s.action, s.call, s.actor, s.kind, err)
		}
	}
	return nil
}

func (w *walker) apply(s *walkStep) error {
	n := w.nodes[s.actor]
	clients := w.nodes[walkClients]
	switch s.action {
	case "Send":
		w.idSeq++
		id := actor.NewCallID(walkNow, w.idSeq, 7)
		w.calls[s.call], w.to[s.call] = id, s.actor
		delete(w.parent, s.call) // a crash may have removed an earlier call of that number
		to := actor.NewID(s.actor, "")
		w.step(clients, Deliver{actor.Envelope{To: to, Body: actor.Request{Call: actor.Call{ID: id, Root: id, To: to, Operation: actor.HandleMessageFull,
			Kind: actor.Waiting, Lane: actor.Normal, Left: time.Minute, Attempt: 1, Principal: "walker", Origin: actor.Human, Parts: actor.Text("begin")}}}})
	case "GiveUp":
		w.step(clients, Deliver{actor.Envelope{To: actor.NewID(w.to[s.call], ""), Body: actor.Cancel{Call: w.calls[s.call], Reason: actor.Stopped}}})
	case "Ask":
		caller := w.nodes[w.to[s.turn]]
		before := w.openCalls(s.turn)
		if err := w.decide(s.turn, s.actor); err != nil {
			return err
		}
		for _, id := range w.openCalls(s.turn) {
			if !slices.Contains(before, id) {
				w.calls[s.call], w.to[s.call], w.parent[s.call] = id, s.actor, s.turn
				return nil
			}
		}
		return fmt.Errorf("%s did not make the call", caller.name)
	case "Reply":
		return w.decide(s.call, "")
	case "Admit", "Refuse", "Deliver":
		return w.deliver("req", s.call, s.flag)
	case "Cancel":
		return w.deliver("cancel", s.call, s.flag)
	case "Answer":
		return w.deliver(s.kind, s.call, s.flag)
	case "Drop":
		delete(w.net, messageKey{s.kind, w.calls[s.call]})
	case "Sync":
		n.durable = len(n.entries)
		gated := n.gated
		n.gated = nil
		for _, e := range gated {
			w.send(e.Op.(Send))
		}
	case "Crash":
		if s.flag {
			n.durable = len(n.entries)
		}
		n.entries, n.gated, n.down = n.entries[:n.durable], nil, true
		n.cell.Abandon()
	case "Restart":
		n.down = false
		w.boot(n)
	default:
		return fmt.Errorf("unknown action")
	}
	return nil
}

func (w *walker) turn(call int) (history.Turn, bool) {
	n := w.nodes[w.to[call]]
	if n == nil || n.down {
		return history.Turn{}, false
	}
	for _, a := range n.cell.State().Actors {
		for _, t := range a.Turns {
			if t.Run == w.calls[call] {
				return t, true
			}
		}
	}
	return history.Turn{}, false
}

func (w *walker) openCalls(call int) []actor.CallID {
	t, _ := w.turn(call)
	return t.Open
}

// compare compares the cells with the state of every call in the walk.
func (w *walker) compare(states []callState) error {
	for i, s := range states {
		c := i + 1
		if s[0] == "free" {
			delete(w.calls, c) // the call was never made, or a crash removed it
			continue
		}
		if err := w.compareCaller(c, s); err != nil {
			return err
		}
		n := w.nodes[w.to[c]]
		if n.down {
			continue
		}
		_, running := w.turn(c)
		queued := false
		for _, a := range n.cell.State().Actors {
			queued = queued || slices.Contains(a.Queue, w.calls[c])
		}
		if running != (s[2] == "run" || s[2] == "await") || queued != (s[2] == "queued") {
			return fmt.Errorf("call %d: want state %q at %s, got queued %v and running %v", c, s[2], n.name, queued, running)
		}
	}
	return nil
}

func (w *walker) compareCaller(c int, s callState) error {
	p, nested := w.parent[c]
	if !nested {
		reply, replied := w.replies[w.calls[c]]
		switch {
		case s[1] == "cancel": // a client that has cancelled still waits for the reply
		case replied != (s[0] == "done"):
			return fmt.Errorf("client call %d: want state %q, got replied %v", c, s[0], replied)
		case replied && (reply.Refusal == nil) != (s[1] == "ok"):
			return fmt.Errorf("client call %d: want outcome %q, got refusal %v", c, s[1], reply.Refusal)
		}
		return nil
	}
	if w.nodes[w.to[p]].down {
		return nil
	}
	if open := slices.Contains(w.openCalls(p), w.calls[c]); open != (s[0] == "wait") {
		return fmt.Errorf("call %d: want state %q at its caller %s, got open %v", c, s[0], w.to[p], open)
	}
	return nil
}
