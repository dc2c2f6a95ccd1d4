// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"testing"
)

// heldLease is a lease that a test takes away and gives back.
type heldLease struct {
	valid   atomic.Bool
	waits   chan struct{} // receives a value when something waits for the lease
	renewed chan struct{}
}

func (l *heldLease) Serves() bool { return l.valid.Load() }

func (l *heldLease) Await(stop <-chan struct{}) {
	l.waits <- struct{}{}
	select {
	case <-l.renewed:
	case <-stop:
	}
}

// A node without its lease takes no step, and goes on once it has it again. It stops
// without waiting for it.
func TestNodeWaitsForItsLease(t *testing.T) {
	lease := &heldLease{waits: make(chan struct{}, 64), renewed: make(chan struct{})}
	lease.valid.Store(true)
	n := startNode(t, t.TempDir(), func(c *Config) { c.Lease = lease }, echoAgent())
	n.ask("echo", "a", "before")
	lease.valid.Store(false)
	answered := make(chan Answer, 1)
	go func() { answered <- n.ask("echo", "a", "meanwhile") }()
	<-lease.waits
	select {
	case a := <-answered:
		t.Errorf("a node without its lease answers %v", a)
	default:
	}
	lease.valid.Store(true)
	close(lease.renewed)
	<-answered
	lease.valid.Store(false) // Close, by the cleanup, waits for nothing
}
