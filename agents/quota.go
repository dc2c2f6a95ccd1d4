// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// Agents and former definitions are counted by owner. Each owner has a quota, so that
// none can fill the registry for the others. The operator of the node has a share of
// its own, which no other principal can use up.
//
// A deleted or replaced agent becomes a former definition of the same owner. Its
// deletion therefore leaves the number of records unchanged, and is always accepted.
const (
	AgentsMax           = 1024 // agents of the operator; also those of all other principals together
	FormerMax           = 2048 // likewise, former definitions
	PrincipalAgentsMax  = AgentsMax / 4
	PrincipalRecordsMax = 2 * PrincipalAgentsMax // agents and former definitions of a principal
	shareBytesMax       = actor.ActorStateBytesMax * 3 / 8
	principalBytesMax   = shareBytesMax / 4

	// FormerRetention is the time for which a former definition is kept if the node
	// cannot determine whether an open run needs it.
	FormerRetention = 24 * time.Hour

	openRetry          = 5 * time.Second // retry delay while the node loads its runs
	neededRetry        = time.Minute     // retry delay while open runs need all definitions
	prunedPerActionMax = actor.StateUpdatesMax - 4
)

// ToolOpen is the tool with which the registry asks which former definitions open runs
// need: {"definitions":[…]} with hashes is answered by {"open":[…]}.
const ToolOpen = "troupe.open_definitions"

// OpenSchema is the JSON schema of the input of ToolOpen.
const OpenSchema = `{"type":"object","properties":{"definitions":{"type":"array","items":{"type":"string"}}},
"required":["definitions"],"additionalProperties":false}`

// Quotas are the maximum numbers of agents.
type Quotas struct {
	Agents          int `sim:"1..3"` // agents of the operator; also those of all other principals together
	PrincipalAgents int `sim:"1..2"` // agents of another principal
}

// DefaultQuotas returns the quotas of a node.
func DefaultQuotas() Quotas { return Quotas{AgentsMax, PrincipalAgentsMax} }

// usage counts records of the registry.
type usage struct{ agents, records, bytes int }

func (u *usage) add(r former, sign int) {
	if strings.HasPrefix(r.name, agentPrefix) {
		u.agents += sign
	}
	u.records += sign
	u.bytes += sign * r.bytes
}

func (u usage) exceeds(most usage) bool { return u.records > most.records || u.bytes > most.bytes }

// former is the size of a record and, if it is a former definition, its age.
type former struct {
	name  string
	at    actor.Time // time of its replacement
	bytes int        // length of name and value
}

// demand is the usage of a quota before and after a change.
type demand struct {
	before, after usage
	former        []former // former definitions that the change does not touch
}

func (d *demand) count(r former, before, after bool) {
	if before {
		d.before.add(r, 1)
	}
	if after {
		d.after.add(r, 1)
	}
	if before && after && strings.HasPrefix(r.name, formerPrefix) {
		d.former = append(d.former, r)
	}
}

// retired returns the record that keeps the definition of an agent for the runs that
// began with it.
func (s registryState) retired(previous Spec, owner string) actor.StateItem {
	var record agentRecord
	_ = json.Unmarshal(s.value(agentPrefix+previous.ID), &record)
	return actor.StateItem{Name: formerPrefix + previous.ID + "/" + previous.Hash().String(),
		Value: invariant.Must(json.Marshal(formerRecord{previous.Encode(), runs.FormatTime(s.now), owner, record.AcceptedBy, record.Key}))}
}

// ownerOf returns the owner and the time in a record of an agent or of a former
// definition.
func ownerOf(value []byte) (owner string, replaced actor.Time) {
	var record struct {
		Owner    string `json:"owner"`
		Replaced string `json:"replaced_at"`
	}
	if json.Unmarshal(value, &record) != nil {
		return "", 0
	}
	at, err := runs.ParseTime(record.Replaced)
	if err != nil {
		at = 0
	}
	return record.Owner, at
}

// makeRoom accepts the change of an agent within the quota of its principal, or deletes
// former definitions that no open run needs. If that takes knowledge of the open runs,
// the result has the definitions to ask for.
func (s registryState) makeRoom(id string, c change) (change, *actor.Refusal) {
	var own, share demand
	self := s.self()
	count := func(item actor.StateItem, before, after bool) {
		isFormer := strings.HasPrefix(item.Name, formerPrefix)
		if !isFormer && !strings.HasPrefix(item.Name, agentPrefix) {
			return
		}
		owner, at := ownerOf(item.Value)
		if (owner == Operator) != (self == Operator) {
			return
		}
		f := former{item.Name, at, len(item.Name) + len(item.Value)}
		share.count(f, before, after)
		if owner == self {
			own.count(f, before, after)
		}
	}
	for _, item := range s.items {
		updated := slices.ContainsFunc(c.updates, func(u actor.StateItem) bool { return u.Name == item.Name })
		count(item, true, !updated)
	}
	for _, item := range c.updates {
		count(item, false, true)
	}
	most := usage{s.quotas.PrincipalAgents, PrincipalRecordsMax, principalBytesMax}
	all := usage{s.quotas.Agents, AgentsMax + FormerMax, shareBytesMax}
	who := self
	if self == Operator {
		most, who = all, "the operator"
	}
	switch created := s.value(agentPrefix+id) == nil; {
	case created && own.after.agents > most.agents:
		return change{}, actor.Refuse(actor.Budget, "%s has %d agents, which is the maximum; delete one first", who, most.agents)
	case created && share.after.agents > all.agents:
		return change{}, actor.Refuse(actor.Budget, "the node has %d agents, which is the maximum; ask its operator to delete some", all.agents)
	case own.after.exceeds(most):
		return s.prune(c, who, own, most)
	case share.after.exceeds(all):
		return s.prune(c, "all principals together", share, all)
	}
	return c, nil
}

// prune appends to the change the deletion of definitions that no open run needs.
func (s registryState) prune(c change, who string, d demand, most usage) (change, *actor.Refusal) {
	candidates, used := d.former, d.after
	if used.bytes > most.bytes {
		slices.SortStableFunc(candidates, func(a, b former) int { return cmp.Compare(b.bytes, a.bytes) })
	} else {
		slices.SortStableFunc(candidates, func(a, b former) int { return cmp.Compare(a.at, b.at) })
	}
	if !s.asked && len(candidates) > 0 {
		for _, f := range candidates {
			c.candidates = append(c.candidates, hashOfFormer(f.name))
		}
		return c, nil
	}
	for _, f := range candidates {
		needed := s.open[hashOfFormer(f.name)]
		if s.open == nil {
			needed = s.now.Sub(f.at) <= FormerRetention
		}
		if !needed && len(c.updates) < prunedPerActionMax {
			c.updates = append(c.updates, actor.StateItem{Name: f.name})
			used.add(f, -1)
		}
	}
	switch {
	case !used.exceeds(most), !used.exceeds(d.before): // the second: a store may exceed a limit since before it was introduced
		return c, nil
	case used.records <= most.records && used.bytes > most.bytes:
		return change{}, actor.Refuse(actor.Budget, "the agents and former definitions of %s have %d bytes, at most %d allowed; delete some or shorten prompts", who, used.bytes, most.bytes)
	case s.open == nil && len(candidates) > 0:
		return change{}, actor.RefuseBusy(actor.ScopeCallee, openRetry, "%s has %d agents and former definitions, at most %d allowed, and this node still loads the runs that may need them; retry later", who, used.records, most.records)
	default:
		return change{}, actor.RefuseBusy(actor.ScopeCallee, neededRetry, "%s has %d agents and former definitions that open runs need, at most %d allowed; retry when some have ended", who, used.records, most.records)
	}
}

func hashOfFormer(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// encodeCandidates returns the input of ToolOpen.
func encodeCandidates(hashes []string) []byte {
	return invariant.Must(json.Marshal(map[string][]string{"definitions": hashes}))
}

// readOpen reads the answer of ToolOpen. Without a valid answer the result is nil.
func readOpen(a actor.Answer) map[string]bool {
	var out struct {
		Open []string `json:"open"`
	}
	if a.Refusal != nil || len(a.Parts) != 1 || json.Unmarshal(a.Parts[0].Bytes, &out) != nil || out.Open == nil {
		return nil
	}
	open := map[string]bool{}
	for _, hash := range out.Open {
		open[hash] = true
	}
	return open
}

// ReadDefinitions decodes the input of ToolOpen.
func ReadDefinitions(input []byte) ([]actor.Hash, error) {
	var in struct {
		Definitions []string `json:"definitions"`
	}
	if err := json.Unmarshal(input, &in, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("definitions: %w", err)
	}
	all := make([]actor.Hash, len(in.Definitions))
	for i, text := range in.Definitions {
		b, err := hex.DecodeString(text)
		if err != nil || len(b) != len(all[i]) {
			return nil, fmt.Errorf("definitions: want hashes, got %.80q", text)
		}
		copy(all[i][:], b)
	}
	return all, nil
}

// EncodeOpen returns the result of ToolOpen.
func EncodeOpen(open []actor.Hash) []byte {
	all := make([]string, len(open))
	for i, hash := range open {
		all[i] = hash.String()
	}
	return invariant.Must(json.Marshal(map[string][]string{"open": all}))
}
