// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// Prefixes of the registry's item names.
const (
	agentPrefix  = "agent/"
	formerPrefix = "former/"
	keyPrefix    = "key/"
	toolPrefix   = "tool/"
)

// agentRecord is the registry's record of an agent.
type agentRecord struct {
	Spec       jsontext.Value `json:"spec"`
	Owner      string         `json:"owner"` // principal that may change and delete the agent
	At         string         `json:"at"`
	AcceptedBy string         `json:"accepted_by,omitzero"`        // user of the last request for this definition; unknown in older records
	Key        string         `json:"accepted_by_key_id,omitzero"` // ID of its API key
	Former     []string       `json:"former_owners,omitempty"`     // at most formerOwnersMax, the last ones
}

func readAgentRecord(value []byte) (r agentRecord, err error) { return r, json.Unmarshal(value, &r) }

// with returns the record for a changed spec, which stays that of its owner.
func (r agentRecord) with(changed Spec) []byte {
	r.Spec = changed.Encode()
	return invariant.Must(json.Marshal(r))
}

// formerOwnersMax is the number of former owners that a record names.
const formerOwnersMax = 16

// formerRecord is the registry's record of a replaced or deleted definition.
type formerRecord struct {
	Spec       jsontext.Value `json:"spec"`
	Replaced   string         `json:"replaced_at"`
	Owner      string         `json:"owner,omitzero"`       // owner of the agent at that time; unknown in older records
	AcceptedBy string         `json:"accepted_by,omitzero"` // see agentRecord
	Key        string         `json:"accepted_by_key_id,omitzero"`
}

// Catalog is the decoded state of the registry, as cells, gateways and the
// outbound layer need it.
type Catalog struct {
	Definitions []actor.Definition // sorted by name
	Former      []actor.Definition
	Specs       []Spec            // specs of Definitions, in the same order
	Owners      []string          // owners of Definitions, in the same order
	Changed     []actor.Time      // when Definitions were stored, in the same order
	AcceptedBy  []Acceptance      // authors of Definitions, in the same order
	Keys        []actor.StateItem // key records with created_at; the name is the key ID
	Tools       []DeclaredTool    // declared tools, sorted by name
	Hidden      []string          // declared tools that are left out, because this program has tools of these names
	Invalid     []InvalidTool     // declared tools that are left out, because this version refuses their definitions
	Registry    *tools.Registry   // tools of this program and declared tools, with the policy
}

// Acceptance is the author of a stored definition.
type Acceptance struct {
	User string
	Key  string // ID of the API key; "": none
}

// InvalidTool is a stored tool whose definition violates the rules of this version.
type InvalidTool struct {
	Name string
	Err  tools.FieldErrors
}

// AvailabilityWarnings returns warnings that name the tools and the model of the
// spec that the node does not have.
func (s *Spec) AvailabilityWarnings(registry *tools.Registry, models []string) (warnings []string) {
	if missing := s.MissingTools(registry); len(missing) > 0 {
		off := ""
		if missing := slices.DeleteFunc(slices.Clone(missing), func(name string) bool { return !tools.IsBuiltin(name) }); len(missing) > 0 {
			off = "; [builtin] tools of the configuration switches on " + strings.Join(missing, ", ")
		}
		warnings = append(warnings, fmt.Sprintf("agent %s: tools %s are not available on this node%s", s.ID, strings.Join(missing, ", "), off))
	}
	if s.HasModel() && !slices.Contains(models, s.Model) {
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
	tools    *tools.Registry              // of the program
	declared map[actor.Hash]DeclaredTool  // by the hash of the item's value
	compiled map[actor.Hash]compiledAgent // likewise
	registry *tools.Registry              // tools of the compiled agents
	names    map[string]actor.Hash        // hashes of the items in registry
}

type compiledAgent struct {
	spec   Spec
	owner  string
	former []string   // owners
	at     actor.Time // when it was stored
	by     Acceptance
	def    actor.Definition
}

// NewCatalogReader returns a reader that compiles agents with the tools and the policy of
// registry, and with the declared tools in the state.
func NewCatalogReader(registry *tools.Registry) *CatalogReader {
	return &CatalogReader{tools: registry, registry: registry, compiled: map[actor.Hash]compiledAgent{}}
}

// Read decodes all items of the registry. They MUST be sorted by name.
func (r *CatalogReader) Read(items []actor.StateItem) (Catalog, error) {
	var d Catalog
	if err := r.readTools(items, &d); err != nil {
		return Catalog{}, err
	}
	compiled := make(map[actor.Hash]compiledAgent, len(r.compiled))
	for _, item := range items {
		if key, ok := strings.CutPrefix(item.Name, keyPrefix); ok {
			d.Keys = append(d.Keys, actor.StateItem{Name: key, Value: item.Value})
			continue
		}
		if _, isTool := ToolOf(item); isTool {
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
		d.Changed, d.AcceptedBy = append(d.Changed, a.at), append(d.AcceptedBy, a.by)
	}
	r.compiled = compiled
	return d, nil
}

// readTools decodes the declared tools. If they have changed, all agents are compiled again,
// because a compiled agent holds the tools that its model is offered.
func (r *CatalogReader) readTools(items []actor.StateItem, d *Catalog) error {
	declared, names := map[actor.Hash]DeclaredTool{}, map[string]actor.Hash{}
	for _, item := range items {
		name, ok := ToolOf(item)
		if !ok {
			continue
		}
		if _, taken := r.tools.Tool(name); taken {
			d.Hidden = append(d.Hidden, name)
			continue
		}
		hash := actor.HashOf(item.Value)
		tool, known := r.declared[hash]
		if !known {
			var err error
			tool, err = decodeToolRecord(item.Value)
			var invalid tools.FieldErrors
			if errors.As(err, &invalid) { // one tool does not prevent the start
				d.Invalid = append(d.Invalid, InvalidTool{name, invalid})
				continue
			}
			if err != nil || tool.Name != name {
				return fmt.Errorf("registry item %.80q: %w", item.Name, cmp.Or(err, errors.New("holds another tool")))
			}
		}
		declared[hash], names[name] = tool, hash
		d.Tools = append(d.Tools, tool)
	}
	if !maps.Equal(names, r.names) {
		all := make([]tools.Declared, 0, len(d.Tools))
		for _, tool := range d.Tools {
			all = append(all, tool.Declared)
		}
		registry, err := r.tools.With(all, r.tools.Policy())
		if err != nil {
			return err
		}
		r.registry, r.names, r.compiled = registry, names, map[actor.Hash]compiledAgent{}
	}
	r.declared = declared
	d.Registry = r.registry
	return nil
}

func (r *CatalogReader) compile(item actor.StateItem) (a compiledAgent, err error) {
	switch {
	case strings.HasPrefix(item.Name, agentPrefix):
		err = a.read(item.Value)
	case strings.HasPrefix(item.Name, formerPrefix):
		var f formerRecord
		if err = json.Unmarshal(item.Value, &f, json.RejectUnknownMembers(true)); err == nil {
			a.owner = f.Owner
			a.spec, err = ReadJSON(f.Spec)
		}
	default:
		return compiledAgent{}, fmt.Errorf("registry item %.80q: unknown to this version, written by a later one", item.Name)
	}
	if err == nil {
		a.def, err = Compile(a.spec, r.registry)
	}
	if err != nil {
		return compiledAgent{}, fmt.Errorf("registry item %.80q: %w", item.Name, err)
	}
	a.def.Owner, a.def.FormerOwners = a.owner, a.former
	return a, nil
}

// read decodes the record of an agent.
func (a *compiledAgent) read(value []byte) (err error) {
	var k agentRecord
	if err := json.Unmarshal(value, &k, json.RejectUnknownMembers(true)); err != nil {
		return err
	}
	a.owner, a.former, a.by = k.Owner, k.Former, Acceptance{k.AcceptedBy, k.Key}
	if at, err := runs.ParseTime(k.At); err == nil {
		a.at = at
	}
	a.spec, err = ReadJSON(k.Spec)
	return err
}
