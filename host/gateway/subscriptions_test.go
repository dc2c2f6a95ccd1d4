// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"sync"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// countingNode counts the subscriptions to runs.
type countingNode struct {
	command.Node
	mu   sync.Mutex
	open map[actor.CallID]int
	made int
}

func (n *countingNode) Follow(ctx context.Context, in command.Follow) (<-chan struct{}, func(), error) {
	updates, stop, err := n.Node.Follow(ctx, in)
	if err != nil || in.Run.IsZero() {
		return updates, stop, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made++
	n.open[in.Run]++
	return updates, sync.OnceFunc(func() {
		stop()
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.open[in.Run]--; n.open[in.Run] == 0 {
			delete(n.open, in.Run)
		}
	}), nil
}

// The subscription of a stream to a run below ends with that run, and the others with the stream. Events
// that exist are read without a subscription.
func TestSubscriptionsEndWithTheirRuns(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/coordinator/messages", `{"content":"x"}`) // the run of the helper has ended
	n := &countingNode{Node: d.server.node, open: map[actor.CallID]int{}}
	d.server.node = n
	s := d.openStream("GET", "/v1/runs/"+m.Run+"/events?tree=1", "", "Accept", ingress.EventStream)
	s.readUntil("wait_opened")
	n.mu.Lock()
	if n.made != 2 || len(n.open) != 1 {
		t.Errorf("%d subscriptions of %d are open, want 1 of 2: %v", len(n.open), n.made, n.open)
	}
	n.mu.Unlock()
	if status, _, _ := d.do("GET", "/v1/runs/"+m.Run+"/events", ""); status != 200 || n.made != 2 {
		t.Errorf("reading events: %d, %d subscriptions, want 2", status, n.made)
	}
	d.do("POST", m.Signal.Path, m.Signal.Body)
	s.readUntil("")
	if err := d.server.streams.waitIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.open) != 0 {
		t.Errorf("subscriptions are open behind the stream: %v", n.open)
	}
}
