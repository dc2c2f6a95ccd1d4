// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"slices"
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
	by   map[string]string // by agent: its owner; "" for one that is known to have none
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
		return registrar(owner)
	}
	o.refresh(node)
	owner := o.by[agent]
	o.by[agent] = owner
	return registrar(owner)
}

// agents returns the external agents of a principal, or with admin also those of the operator, in order
// of their names.
func (o *agentOwners) agents(node command.Node, principal string, admin bool) (names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.by == nil || time.Since(o.read) >= agentOwnersAge {
		o.refresh(node)
	}
	for name, owner := range o.by {
		if owner != "" && (owner == principal || admin && owner == actor.OperatorUser) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// refresh reads the table. The caller holds mu.
func (o *agentOwners) refresh(node command.Node) {
	ctx, cancel := context.WithTimeout(context.Background(), agentOwnersTimeout)
	defer cancel()
	found, err := command.Find(ctx, node, localCaller.Principal, command.AgentsQuery{})
	if err == nil || o.by == nil {
		o.by = map[string]string{}
	}
	for i := range found.All {
		if a := &found.All[i]; a.Kind == actor.External {
			o.by[a.Name] = a.Owner
		}
	}
	o.read = time.Now()
}

// registrar returns an owner of an agent, or "" if that is the operator.
func registrar(owner string) string {
	if owner == actor.OperatorUser {
		return ""
	}
	return owner
}
