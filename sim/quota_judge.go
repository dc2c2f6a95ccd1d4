// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// quotaUsedUp reports whether a principal may create no further agent, by the operations
// that the registry acknowledged.
func (rc *registryClient) quotaUsedUp(principal string) bool {
	own, others := 0, 0
	for _, a := range registeredAgents {
		switch owner := rc.owner[a.name]; {
		case !rc.present[a.name]:
		case owner == principal:
			own++
		case owner != agents.Operator:
			others++
		}
	}
	q := rc.w.plan.Quotas
	if principal == agents.Operator {
		return own >= q.Agents
	}
	return own >= q.PrincipalAgents || own+others >= q.Agents
}

// checkQuotas checks the stored agents against the quotas. Only the operator may exceed
// its own, because it takes over agents of others.
func (rc *registryClient) checkQuotas(items []actor.StateItem) {
	w, all, byOwner := rc.w, 0, map[string]int{}
	for _, item := range items {
		if !strings.HasPrefix(item.Name, "agent/") {
			continue
		}
		var record struct {
			Owner string `json:"owner"`
		}
		if err := json.Unmarshal(item.Value, &record); err != nil {
			w.fail(RegistryHolds, fmt.Sprintf("%s has no owner: %v", item.Name, err))
			return
		}
		if record.Owner == agents.Operator {
			continue
		}
		all++
		byOwner[record.Owner]++
		if q := w.plan.Quotas; all > q.Agents || byOwner[record.Owner] > q.PrincipalAgents {
			w.fail(RegistryHolds, fmt.Sprintf("%d agents of %s and %d of all principals are stored, want at most %d and %d", byOwner[record.Owner], record.Owner, all, q.PrincipalAgents, q.Agents))
			return
		}
	}
}

// anyUncertain reports whether an agent may exist or not, because the reply to an
// operation was lost.
func (rc *registryClient) anyUncertain() bool {
	for subject := range rc.uncertain {
		for _, a := range registeredAgents {
			if a.name == subject {
				return true
			}
		}
	}
	return false
}
