// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/internal/command"
)

// leavingNode is one of several orchestrators. It holds calls until the test releases them.
type leavingNode struct {
	testNode
	leaving, frozen atomic.Bool
	invoked         chan *leavingNode
	release         chan struct{}
}

func (n *leavingNode) Lookup(ctx context.Context, in command.Lookup) (command.Result, error) {
	if _, ok := in.Query.(command.HealthQuery); !ok {
		return n.testNode.Lookup(ctx, in)
	}
	if n.frozen.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if n.leaving.Load() {
		return command.Health{Reason: "it leaves"}, nil
	}
	return command.Health{}, nil
}

func (n *leavingNode) Invoke(ctx context.Context, in command.Invoke, _ func(actor.CallID)) (command.Answer, error) {
	n.invoked <- n
	select {
	case <-n.release:
		return command.Answer{Reply: actor.Reply{Call: in.Call.ID, Run: in.Call.ID, Status: actor.Succeeded}}, nil
	case <-ctx.Done():
		return command.Answer{}, ctx.Err()
	}
}

// An ingress changes to another orchestrator when its own leaves, which still answers what it has taken, or when it does not
// answer. Subscriptions go along.
func TestIngressChangesItsOrchestrator(t *testing.T) {
	invoked := make(chan *leavingNode, 1)
	var all []*leavingNode
	var addresses []Address
	for range 2 {
		n := &leavingNode{testNode: testNode{followed: make(chan struct{}, 4)}, invoked: invoked, release: make(chan struct{})}
		a := Address{Path: filepath.Join(privateDir(t), SocketName)}
		serve(t, &a, n)
		all, addresses = append(all, n), append(addresses, a)
	}
	n, err := Connect(t.Context(), addresses, new(gateway.Keys), quietly)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	call := func() chan error {
		ended := make(chan error, 1)
		go func() {
			id := n.NewCallID()
			a, err := n.Invoke(context.Background(), command.Invoke{By: self, Call: actor.Call{ID: id, To: actor.NewID("helper", "")}}, nil)
			if err == nil && a.Reply.Run != id {
				err = errors.New("another answer")
			}
			ended <- err
		}()
		return ended
	}
	other := func(one *leavingNode) *leavingNode {
		if one == all[0] {
			return all[1]
		}
		return all[0]
	}
	updates, unfollow, err := n.Follow(t.Context(), command.Follow{By: self, Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	defer unfollow()
	<-updates

	first := call()
	from := <-invoked
	<-from.followed
	from.leaving.Store(true)
	<-other(from).followed
	<-updates
	second := call()
	if to := <-invoked; to != other(from) {
		t.Error("a call after the change reaches the orchestrator that leaves")
	}
	close(from.release)
	if err := <-first; err != nil {
		t.Errorf("the call at the orchestrator that leaves: %v", err)
	}

	from.leaving.Store(false)
	from.release = make(chan struct{})
	other(from).frozen.Store(true)
	<-from.followed
	if err := <-second; !errors.Is(err, command.ErrClosed) {
		t.Errorf("the call at the orchestrator that does not answer: %v", err)
	}
	close(from.release)
	third := call()
	if to := <-invoked; to != from {
		t.Error("a call reaches the orchestrator that does not answer")
	}
	if err := <-third; err != nil {
		t.Error(err)
	}
}
