// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// capabilityChange is a row of the catalog as it should be. The rows are what agents declare. All owners declare a
// capability alike, so they cannot be changed one by one: a change applies to all agents that own the capability
// before or afterwards, in one action.
type capabilityChange struct {
	Capability Capability
	Owners     []string // IDs or codes; nil: those that own it
}

// rowFields are the members of a row that are none of a declaration.
const (
	rowCode   = "capability_code"
	rowOwners = "owner_agents"
)

// readCapabilityChange reads a row in the form in which the catalog shows it.
func readCapabilityChange(body string) (c capabilityChange, r *actor.Refusal) {
	err := eachField(jsontext.Value(body), append([]string{rowCode, rowOwners}, capabilityFields[1:]...), func(name string, v jsontext.Value) error {
		switch name {
		case rowCode:
			name = "code"
		case rowOwners:
			c.Owners = []string{}
			return json.Unmarshal(v, &c.Owners)
		}
		return c.Capability.set(name, v)
	})
	if err == nil {
		one := Spec{ID: "a", Provides: []Capability{c.Capability}}
		if problems := one.checkDeclaration(); len(problems) > 0 {
			err = problems
		}
	}
	if err != nil {
		return c, actor.Refuse(actor.Invalid, "capability: %s", strings.TrimPrefix(err.Error(), providesField+": "))
	}
	return c, nil
}

// capabilityAnswer is the reply to a change of a row.
type capabilityAnswer struct {
	OK      bool     `json:"ok"`
	Code    string   `json:"capability_code"`
	Owners  []string `json:"owner_agents"`
	Created bool     `json:"created"`
	Changed bool     `json:"changed"`
}

// putCapability makes the agents of a row its owners, and no other agents. The agents belong to whom they did.
func (s registryState) putCapability(body string) (change, *actor.Refusal) {
	c, refusal := readCapabilityChange(body)
	if refusal != nil {
		return change{}, refusal
	}
	former := s.ownersOf(c.Capability.Code)
	owners := former
	if c.Owners != nil {
		owners = nil
		for _, name := range c.Owners {
			id, refusal := s.named(name)
			if refusal != nil {
				return change{}, refusal
			}
			if !slices.Contains(owners, id) {
				owners = append(owners, id)
			}
		}
	}
	if len(owners) == 0 {
		refusal := actor.Refuse(actor.Invalid, "%s: names no agent: want the agents that own %s; to remove it, delete it", rowOwners, c.Capability.Code)
		refusal.Field = rowOwners
		return change{}, refusal
	}
	slices.Sort(owners)
	answer := capabilityAnswer{true, c.Capability.Code, owners, len(former) == 0, false}
	return s.changeOwners(c.Capability.Code, &c.Capability, former, answer)
}

// deleteCapability takes a capability from all of its owners.
func (s registryState) deleteCapability(body string) (change, *actor.Refusal) {
	code, refusal := nameMember(body, rowCode)
	if refusal != nil {
		return change{}, refusal
	}
	return s.changeOwners(code, nil, s.ownersOf(code), capabilityAnswer{OK: true, Code: code, Owners: []string{}})
}

// changeOwners declares a capability for the owners of the answer, and takes it from all other former owners.
func (s registryState) changeOwners(code string, c *Capability, former []string, answer capabilityAnswer) (change, *actor.Refusal) {
	if slices.Contains(s.provided, code) {
		return change{}, actor.Refuse(actor.Rejected, "%s is a capability of an agent that is part of this program, which alone changes it", code)
	}
	// Owners of one capability are asked each other's requests, so a client may change it only if all are its own.
	for _, id := range slices.Concat(former, answer.Owners) {
		if owner := s.owner(id); c != nil && !s.owns(owner) {
			return change{}, s.checkOwner(id, owner)
		}
	}
	var updates []actor.StateItem
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(former, answer.Owners))))
	for _, id := range all {
		previous, _ := s.agent(id)
		next := previous
		next.Provides = slices.Clone(previous.Provides)
		at := slices.IndexFunc(next.Provides, func(k Capability) bool { return k.Code == code })
		switch owns := slices.Contains(answer.Owners, id); {
		case owns && at >= 0:
			next.Provides[at] = *c
		case owns:
			next.Provides = append(next.Provides, *c)
		default:
			next.Provides = slices.Delete(next.Provides, at, at+1)
		}
		next, err := readNewJSON(next.Encode())
		if err != nil {
			return change{}, actor.Refuse(actor.Invalid, "agent %s: %v", id, err)
		}
		owner, item := s.owner(id), actor.StateItem{Name: agentPrefix + id}
		if next.Hash() == previous.Hash() {
			if s.owns(owner) { // announced again
				item.Value = s.value(item.Name)
				updates = append(updates, item)
			}
			continue
		}
		answer.Changed = true
		if refusal := s.checkOwner(id, owner); refusal != nil {
			return change{}, refusal
		}
		if item.Value = s.encodeAgent(next); owner != s.self() { // an administrator changes the agent of another, who keeps it
			record, err := readAgentRecord(s.value(item.Name))
			if err != nil {
				return change{}, actor.Refuse(actor.Unavailable, "agent %s: %v", id, err)
			}
			item.Value = record.with(next)
		}
		updates = append(updates, item, s.retired(previous, owner))
	}
	if !answer.Changed {
		return change{updates: updates, answer: answer}, nil
	}
	return s.makeRoom(all[0], change{updates: updates, answer: answer})
}

// ownersOf returns the agents of the registry that declare a capability.
func (s registryState) ownersOf(code string) (all []string) {
	for _, item := range s.items {
		if id, isAgent := AgentOf(item); isAgent {
			spec, _ := s.agent(id)
			if slices.ContainsFunc(spec.Provides, func(c Capability) bool { return c.Code == code }) {
				all = append(all, id)
			}
		}
	}
	return all
}

// named returns the ID of an agent of the registry, which may be given by its code.
func (s registryState) named(name string) (string, *actor.Refusal) {
	if _, exists := s.agent(name); exists {
		return name, nil
	}
	for _, item := range s.items {
		if id, isAgent := AgentOf(item); isAgent {
			if spec, _ := s.agent(id); spec.Code != "" && spec.Code == name {
				return id, nil
			}
		}
	}
	refusal := actor.Refuse(actor.Invalid, "%s: %.80q is no agent that was declared or registered here", rowOwners, name)
	if slices.Contains(s.native, name) {
		refusal = actor.Refuse(actor.Rejected, "%s: %s is part of this program, which alone declares what it does", rowOwners, name)
	}
	refusal.Field = rowOwners
	return "", refusal
}
