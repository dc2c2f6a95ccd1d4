// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// Prefixes of the registry's item names.
const (
	agentPrefix  = "agent/"
	formerPrefix = "former/"
	keyPrefix    = "key/"
)

// agentRecord is the registry's record of an agent.
type agentRecord struct {
	Spec       jsontext.Value `json:"spec"`
	Owner      string         `json:"owner"` // principal that may change and delete the agent
	At         string         `json:"at"`
	AcceptedBy string         `json:"accepted_by,omitzero"` // principal of the last request for this definition; unknown in older records
}

// formerRecord is the registry's record of a replaced or deleted definition.
type formerRecord struct {
	Spec       jsontext.Value `json:"spec"`
	Replaced   string         `json:"replaced_at"`
	Owner      string         `json:"owner,omitzero"`       // owner of the agent at that time; unknown in older records
	AcceptedBy string         `json:"accepted_by,omitzero"` // see agentRecord
}

// Catalog is the decoded state of the registry, as cells, gateways and the
// outbound layer need it.
type Catalog struct {
	Definitions []actor.Definition // sorted by name
	Former      []actor.Definition
	Specs       []Spec            // specs of Definitions, in the same order
	Owners      []string          // owners of Definitions, in the same order
	Keys        []actor.StateItem // key records with created_at; the name is the key ID
}

// AvailabilityWarnings returns warnings that name the tools and the model of the
// spec that the node does not have.
func (s *Spec) AvailabilityWarnings(registry *tools.Registry, models []string) (warnings []string) {
	if missing := s.MissingTools(registry); len(missing) > 0 {
		warnings = append(warnings, fmt.Sprintf("agent %s: tools %s are not available on this node", s.ID, strings.Join(missing, ", ")))
	}
	if s.Kind == KindDeclared && !slices.Contains(models, s.Model) {
		warnings = append(warnings, fmt.Sprintf("agent %s: model %s is not configured on this node, which has %s", s.ID, s.Model, strings.Join(models, ", ")))
	}
	if base, ok := strings.CutSuffix(strings.TrimRight(s.Endpoint, "/"), "/invoke"); ok {
		warnings = append(warnings, fmt.Sprintf("agent %s: messages go to %s/invoke, because the server adds /invoke to the endpoint; if that is wrong, register %s", s.ID, strings.TrimRight(s.Endpoint, "/"), base))
	}
	return warnings
}

// AgentOf returns the agent ID of an item of the registry, or false if the item is
// not an agent.
func AgentOf(item actor.StateItem) (id string, ok bool) {
	return strings.CutPrefix(item.Name, agentPrefix)
}

// CatalogReader decodes successive states of the registry. It reuses the compiled
// definitions of unchanged items.
type CatalogReader struct {
	tools    *tools.Registry
	compiled map[actor.Hash]compiledAgent // by the hash of the item's value
}

type compiledAgent struct {
	spec  Spec
	owner string
	def   actor.Definition
}

// NewCatalogReader returns a reader that compiles agents with the tools of
// registry.
func NewCatalogReader(registry *tools.Registry) *CatalogReader {
	return &CatalogReader{tools: registry, compiled: map[actor.Hash]compiledAgent{}}
}

// Read decodes all items of the registry. They MUST be sorted by name.
func (r *CatalogReader) Read(items []actor.StateItem) (Catalog, error) {
	var d Catalog
	compiled := make(map[actor.Hash]compiledAgent, len(r.compiled))
	for _, item := range items {
		if key, ok := strings.CutPrefix(item.Name, keyPrefix); ok {
			d.Keys = append(d.Keys, actor.StateItem{Name: key, Value: item.Value})
			continue
		}
		hash := actor.HashOf(item.Value)
		a, ok := r.compiled[hash]
		if !ok {
			var err error
			if a, err = r.compile(item); err != nil {
				return Catalog{}, err
			}
		}
		compiled[hash] = a
		if strings.HasPrefix(item.Name, formerPrefix) {
			d.Former = append(d.Former, a.def)
			continue
		}
		d.Definitions, d.Specs, d.Owners = append(d.Definitions, a.def), append(d.Specs, a.spec), append(d.Owners, a.owner)
	}
	r.compiled = compiled
	return d, nil
}

func (r *CatalogReader) compile(item actor.StateItem) (a compiledAgent, err error) {
	switch {
	case strings.HasPrefix(item.Name, agentPrefix):
		a.spec, a.owner, err = decodeAgentRecord(item.Value)
	case strings.HasPrefix(item.Name, formerPrefix):
		var f formerRecord
		if err = json.Unmarshal(item.Value, &f, json.RejectUnknownMembers(true)); err == nil {
			a.spec, err = ReadJSON(f.Spec)
		}
	default:
		return compiledAgent{}, fmt.Errorf("registry item %.80q: unknown to this version, written by a later one", item.Name)
	}
	if err == nil {
		a.def, err = Compile(a.spec, r.tools)
	}
	if err != nil {
		return compiledAgent{}, fmt.Errorf("registry item %.80q: %w", item.Name, err)
	}
	return a, nil
}

func decodeAgentRecord(value []byte) (Spec, string, error) {
	var k agentRecord
	if err := json.Unmarshal(value, &k, json.RejectUnknownMembers(true)); err != nil {
		return Spec{}, "", err
	}
	spec, err := ReadJSON(k.Spec)
	return spec, k.Owner, err
}
