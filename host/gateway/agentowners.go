// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// agentOwners knows the principals that registered external agents. A request with a run token
// takes the share of one of them, and is not to cost a list of all agents: an ingress would
// fetch it. The zero value is ready to use.
type agentOwners struct {
	mu   sync.Mutex
	by   map[string]string // by agent; "" for one that is known to have none
	read time.Time
}

const (
	// agentOwnersAge is the maximum age of the table. A name that the table lacks is looked
	// up at once, so that new agents of a principal never have shares of their own.
	agentOwnersAge     = time.Second
	agentOwnersTimeout = time.Second
)

// of returns the principal that registered an external agent, or "" if none did, or if the
// node does not answer. Agents of the operator are those of files and of administrators. They
// have no principal whose share they could take.
func (o *agentOwners) of(node command.Node, agent string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if owner, known := o.by[agent]; known && time.Since(o.read) < agentOwnersAge {
		return owner
	}
	ctx, cancel := context.WithTimeout(context.Background(), agentOwnersTimeout)
	defer cancel()
	found, err := command.Find(ctx, node, localCaller.Principal, command.AgentsQuery{})
	if err == nil || o.by == nil {
		o.by = map[string]string{}
	}
	for i := range found.All {
		if a := &found.All[i]; a.Kind == actor.External {
			o.by[a.Name] = registrar(a.Owner)
		}
	}
	owner := o.by[agent]
	o.read, o.by[agent] = time.Now(), owner
	return owner
}

// registrar returns an owner of an agent, or "" if that is the operator.
func registrar(owner string) string {
	if owner == actor.OperatorUser {
		return ""
	}
	return owner
}
