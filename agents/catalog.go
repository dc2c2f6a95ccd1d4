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

// The names under which the registry keeps things.
const (
	agentPrefix  = "agent/"
	formerPrefix = "former/"
	keyPrefix    = "key/"
)

// agentRecord is one agent, as it stands in the journal of the registry.
type agentRecord struct {
	Spec  jsontext.Value `json:"spec"`
	Owner string         `json:"owner"` // the principal that brought it
	At    string         `json:"at"`
}

// formerRecord is what an agent was before.
type formerRecord struct {
	Spec     jsontext.Value `json:"spec"`
	Replaced string         `json:"replaced_at"`
}

// Catalog is what the registry keeps, ready for a world: what cells, doors and
// the way out have to know.
type Catalog struct {
	Definitions []actor.Definition // by name
	Former      []actor.Definition
	Specs       []Spec            // of Definitions
	Keys        []actor.StateItem // records as they were brought, with created_at; named by the key's id
}

// AvailabilityWarnings says what an agent has to do without where only these tools and models
// are there.
func (s *Spec) AvailabilityWarnings(registry *tools.Registry, models []string) (lacks []string) {
	if missing := s.MissingTools(registry); len(missing) > 0 {
		lacks = append(lacks, fmt.Sprintf("agent %s does without the tools %s: this node does not have them", s.ID, strings.Join(missing, ", ")))
	}
	if s.Kind == KindDeclared && !slices.Contains(models, s.Model) {
		lacks = append(lacks, fmt.Sprintf("agent %s asks the model %s, which this node does not know: it knows %s", s.ID, s.Model, strings.Join(models, ", ")))
	}
	return lacks
}

// AgentOf is which agent an item of the registry is; false if it is none.
func AgentOf(item actor.StateItem) (id string, ok bool) {
	return strings.CutPrefix(item.Name, agentPrefix)
}

// CatalogReader reads what the registry keeps, time and again. What it has compiled
// before, and is still kept, it does not compile anew.
type CatalogReader struct {
	tools    *tools.Registry
	compiled map[actor.Hash]compiledAgent // by the value that is kept
}

type compiledAgent struct {
	spec Spec
	def  actor.Definition
}

// NewCatalogReader returns a reader for a program that has these tools.
func NewCatalogReader(registry *tools.Registry) *CatalogReader {
	return &CatalogReader{tools: registry, compiled: map[actor.Hash]compiledAgent{}}
}

// Read reads all that is kept, in the order of names.
func (r *CatalogReader) Read(kept []actor.StateItem) (Catalog, error) {
	var d Catalog
	known := make(map[actor.Hash]compiledAgent, len(r.compiled))
	for _, item := range kept {
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
		known[hash] = a
		if strings.HasPrefix(item.Name, formerPrefix) {
			d.Former = append(d.Former, a.def)
			continue
		}
		d.Definitions, d.Specs = append(d.Definitions, a.def), append(d.Specs, a.spec)
	}
	r.compiled = known
	return d, nil
}

func (r *CatalogReader) compile(item actor.StateItem) (a compiledAgent, err error) {
	switch {
	case strings.HasPrefix(item.Name, agentPrefix):
		a.spec, _, err = decodeAgentRecord(item.Value)
	case strings.HasPrefix(item.Name, formerPrefix):
		var f formerRecord
		if err = json.Unmarshal(item.Value, &f, json.RejectUnknownMembers(true)); err == nil {
			a.spec, err = ReadJSON(f.Spec)
		}
	default:
		return compiledAgent{}, fmt.Errorf("the registry keeps %.80q, which this version does not know: it was written by a later one", item.Name)
	}
	if err == nil {
		a.def, err = Compile(a.spec, r.tools)
	}
	if err != nil {
		return compiledAgent{}, fmt.Errorf("the registry keeps %.80q, which this version cannot read: %w", item.Name, err)
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
