// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/shares"
)

// The shares of a node. A test compares docs/limits.md with them.
var (
	// RegistryShares bound the commands under way that change agents, tools and keys. All together are
	// fewer than the mailbox of the registry holds by default, so no client keeps an administrator
	// from revoking a key.
	RegistryShares = shares.Bounds{Max: 96, Each: 32, Reserved: 32}
	// RegistryTurns bound how many of them the registry has at the same time. The others wait, and
	// keys take turns. Administrators do not wait.
	RegistryTurns = shares.QueueBounds{Open: 2, Waiting: int(RegistryShares.Max), Each: int(RegistryShares.Each)}
	// SubscriptionShares are the subscriptions to runs and sessions.
	SubscriptionShares = shares.Bounds{Max: engine.WatchersMax, Each: engine.WatchersMax / 4, Reserved: engine.WatchersMax / 8}
)

// shareKey returns the key under which a principal takes shares: its API key, or its user if it
// has none.
func shareKey(by *actor.Principal) string { return cmp.Or(by.Key, "user "+by.User) }

// registryCalls are the commands that change the registry. One takes its share until the registry
// has answered, also if its client leaves before.
type registryCalls struct {
	*shares.Shares[string]
	turns *shares.Queue
}

func newRegistryCalls() registryCalls {
	return registryCalls{shares.New[string](RegistryShares), new(shares.Queue)}
}

func (r registryCalls) take(key string, admin bool) *actor.Refusal {
	switch scope := r.Take(key, 1, admin); scope {
	case actor.NoScope:
		return nil
	case actor.ScopeCaller:
		return actor.RefuseBusy(scope, time.Second, "%d changes of agents, tools and keys from you are under way, which is the limit: wait for their answers", RegistryShares.Each)
	default:
		return actor.RefuseBusy(scope, time.Second, "%d changes of agents, tools and keys are under way, which is the limit: retry later", r.Taken())
	}
}

// invoke asks the registry and waits for the answer until ctx ends. The change is that of the
// principal, which alone determines its rights; calls of other actors inherit none.
func (r registryCalls) invoke(ctx context.Context, e *engine.Engine, by actor.Principal, call actor.Call) (engine.Answer, error) {
	key, admin, rights := shareKey(&by), ingress.Allows(by, ingress.ScopeAdmin), actor.NoRights
	switch {
	case admin:
		rights = actor.AllRights
	case ingress.Allows(by, ingress.ScopeOperator):
		rights = actor.NameRights
	}
	call.SetAuthority(by.Key, rights)
	if busy := r.take(key, admin); busy != nil {
		return engine.Answer{Reply: actor.Fail(call.ID, busy)}, nil
	}
	if !admin {
		switch err := r.turns.Acquire(ctx, key, RegistryTurns); {
		case errors.Is(err, context.DeadlineExceeded):
			r.Give(key, 1)
			return engine.Answer{Reply: actor.Fail(call.ID, actor.RefuseBusy(actor.ScopeNode, time.Second, "changes of agents, tools and keys took all the time of the request, and it did not begin: retry later"))}, nil
		case err != nil:
			r.Give(key, 1)
			return engine.Answer{}, err
		}
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
		defer func() {
			if !admin {
				r.turns.Release(key)
			}
			r.Give(key, 1)
		}()
		ask := e.Ask
		if slices.Contains([]string{agents.OpDelete, agents.OpRevokeKey, agents.OpDeleteTool, agents.OpDeleteCapability}, call.Operation) {
			ask = e.AskDeletion
		}
		a, err := ask(waiting, call)
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
