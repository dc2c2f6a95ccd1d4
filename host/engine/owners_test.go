// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
)

// exchange carries messages between the engines of a test.
type exchange struct {
	t     *testing.T
	mu    sync.Mutex
	nodes map[actor.NodeID]*node
	lose  bool
	lost  chan struct{} // receives a value for each lost message
}

// side is an exchange for one engine.
type side struct{ *exchange }

func (s side) Send(to actor.NodeID, cell uint16, env *actor.Envelope) {
	s.mu.Lock()
	n, lose := s.nodes[to], s.lose
	s.mu.Unlock()
	if lose || n == nil {
		s.lost <- struct{}{}
		return
	}
	message, err := actor.Decode(actor.Encode(*env))
	if err != nil || !n.Deliver(cell, &message) {
		s.t.Errorf("a message to cell %d of %s: %v", cell, to, err)
	}
}

func (side) Changed() {}

// place gives each cell to one of two nodes, and tells both.
func (x *exchange) place(start uint64, of ...actor.NodeID) {
	for name, n := range x.nodes {
		starts, others := make([]uint64, len(of)), make([]dispatcher.Owner, len(of))
		for cell, owner := range of {
			if owner == name {
				starts[cell] = start
			}
			others[cell] = dispatcher.Owner{Node: owner, Cell: uint16(cell), Epoch: epochOf(start, 1)}
		}
		n.SetOwners(starts, others)
	}
}

// The actors of two nodes call each other, wherever their clients are, also after cells have moved and messages were lost.
func TestNodesShareCells(t *testing.T) {
	x := &exchange{t: t, nodes: map[actor.NodeID]*node{}, lost: make(chan struct{}, 1<<10)}
	hold := make(chan struct{})
	for _, name := range []actor.NodeID{"a", "b"} {
		where := rawAgent("where", func(actor.Begin) (actor.Action, error) { return actor.Complete(actor.Text(string(name))), nil })
		held := agents.Define("held", "1", "ends when the test says so", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
			out, err := turn.Do("hold", func(ctx context.Context) ([]byte, error) {
				select {
				case <-hold:
					return []byte(name), nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			})
			return string(out), err
		})))
		caller := agents.Define("caller", "1", "asks the agent where", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
			return turn.Call("where/"+turn.Message(), "?")
		})))
		for _, d := range []*actor.Definition{&where, &held, &caller} {
			d.Durability = actor.Volatile
		}
		x.nodes[name] = startNode(t, t.TempDir(), func(c *Config) { c.Node, c.Cells, c.Peers = name, 4, side{x} }, where, held, caller)
	}
	a, b := x.nodes["a"], x.nodes["b"]
	x.place(1, "a", "a", "b", "b")
	cell := func(agent, key string) uint16 { return dispatcher.ShardOf(actor.NewID(agent, key)) % 4 }
	check := func(when string, of ...actor.NodeID) {
		t.Helper()
		for i := range 40 {
			key := fmt.Sprintf("k-%d", i)
			want := string(of[cell("where", key)])
			for _, n := range []*node{a, b} {
				if got := replyText(n.ask("where", key, "?")); got != want {
					t.Errorf("%s: actor %s runs at %q, want %q", when, key, got, want)
				}
				if got := replyText(n.ask("caller", fmt.Sprintf("c-%d", i), key)); got != want {
					t.Errorf("%s: actor %s, when called, runs at %q, want %q", when, key, got, want)
				}
			}
		}
	}
	check("at first", "a", "a", "b", "b")
	if own := a.Owned(); own[0] == 0 || own[1] == 0 || own[2] != 0 || own[3] != 0 {
		t.Errorf("node a owns %v", own)
	}

	// A run under way is begun again where its cell goes, and its client still gets the answer.
	key := ""
	for i := 0; key == ""; i++ {
		if k := fmt.Sprintf("h-%d", i); cell("held", k) == 1 {
			key = k
		}
	}
	answered := make(chan string, 1)
	go func() { answered <- replyText(a.ask("held", key, "?")) }()
	for a.runningEffects.Load() == 0 {
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	x.place(2, "a", "b", "b", "b")
	if err := a.Settle(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	close(hold)
	if got := <-answered; got != "b" {
		t.Errorf("the run that moved ended at %q", got)
	}
	check("after a move", "a", "b", "b", "b")

	// What was lost is sent again once the nodes are connected again.
	x.mu.Lock()
	x.lose = true
	x.mu.Unlock()
	for i := 0; cell("where", key) != 2; i++ {
		key = fmt.Sprintf("l-%d", i)
	}
	go func() { answered <- replyText(a.ask("where", key, "?")) }()
	<-x.lost
	x.mu.Lock()
	x.lose = false
	x.mu.Unlock()
	a.Reconnected("b")
	b.Reconnected("a")
	if got := <-answered; got != "b" {
		t.Errorf("after a loss: %q", got)
	}
	if a.Deliver(99, &actor.Envelope{From: actor.Address{Node: "b"}}) || a.Deliver(0, &actor.Envelope{}) {
		t.Error("a message without a cell or a sender is taken")
	}
}
