// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/ingress"
)

// Bounds of the commands under way that change agents, tools and keys. Their sum is less than
// the mailbox of the registry holds by default, so no client keeps an administrator from
// revoking a key. A test compares docs/limits.md with them.
const (
	RegistryCallsMax      = 96
	RegistryCallsEach     = 32
	RegistryCallsReserved = 32 // for administrators, whom RegistryCallsEach does not bound
)

// registryCalls are these commands. One takes its share until the registry has answered, also if
// its client leaves before.
type registryCalls struct {
	mu    sync.Mutex
	taken int
	by    map[string]int // by API key, or user without one
}

func (r *registryCalls) take(key string, admin bool) *actor.Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := RegistryCallsMax
	if !admin {
		limit -= RegistryCallsReserved
	}
	switch {
	case !admin && r.by[key] >= RegistryCallsEach:
		return actor.RefuseBusy(actor.ScopeCaller, time.Second, "%d changes of agents, tools and keys from you are under way, which is the limit: wait for their answers", RegistryCallsEach)
	case r.taken >= limit:
		return actor.RefuseBusy(actor.ScopeNode, time.Second, "%d changes of agents, tools and keys are under way, which is the limit: retry later", limit)
	}
	if r.by == nil {
		r.by = map[string]int{}
	}
	r.taken++
	r.by[key]++
	return nil
}

func (r *registryCalls) give(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken--
	if r.by[key]--; r.by[key] == 0 {
		delete(r.by, key)
	}
}

// invoke asks the registry and waits for the answer until ctx ends.
func (r *registryCalls) invoke(ctx context.Context, e *engine.Engine, by actor.Principal, call actor.Call) (engine.Answer, error) {
	key := cmp.Or(by.Key, "user "+by.User)
	if busy := r.take(key, ingress.Allows(by, ingress.ScopeAdmin)); busy != nil {
		return engine.Answer{Reply: actor.Fail(call.ID, busy)}, nil
	}
	type answer struct {
		engine.Answer
		error
	}
	answered := make(chan answer, 1)
	waiting, cancel := context.Background(), func() {}
	if deadline, ok := ctx.Deadline(); ok {
		waiting, cancel = context.WithDeadline(waiting, deadline)
	}
	go func() {
		defer cancel()
		defer r.give(key)
		a, err := e.Ask(waiting, call)
		answered <- answer{a, err}
	}()
	select {
	case a := <-answered:
		return a.Answer, a.error
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			a := <-answered // the same deadline ends the wait for it
			return a.Answer, a.error
		}
		return engine.Answer{}, ctx.Err()
	}
}
