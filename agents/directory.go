// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
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

// keptAgent is one agent, as it stands in the journal of the registry.
type keptAgent struct {
	Spec  jsontext.Value `json:"spec"`
	Owner string         `json:"owner"` // the principal that brought it
	At    string         `json:"at"`
}

// keptFormer is what an agent was before.
type keptFormer struct {
	Spec     jsontext.Value `json:"spec"`
	Replaced string         `json:"replaced_at"`
}

// Directory is what the registry keeps, ready for a world: what cells, doors and
// the way out have to know.
type Directory struct {
	Definitions []actor.Definition // by name
	Former      []actor.Definition
	Specs       []Spec       // of Definitions
	Keys        []actor.Item // records as they were brought, with created_at; named by the key's id
	Warnings    []string     // of what agents have to do without
}

// ReadDirectory reads what the registry keeps.
func ReadDirectory(kept []actor.Item, registry *tools.Registry) (Directory, error) {
	var d Directory
	for _, item := range kept {
		switch {
		case len(item.Value) == 0:
		case strings.HasPrefix(item.Name, keyPrefix):
			d.Keys = append(d.Keys, actor.Item{Name: strings.TrimPrefix(item.Name, keyPrefix), Value: item.Value})
		case strings.HasPrefix(item.Name, agentPrefix):
			spec, _, err := readAgent(item.Value)
			def, err := compiled(item.Name, spec, err, registry)
			if err != nil {
				return Directory{}, err
			}
			d.Definitions, d.Specs = append(d.Definitions, def), append(d.Specs, spec)
			if missing := spec.MissingTools(registry); len(missing) > 0 {
				d.Warnings = append(d.Warnings, fmt.Sprintf("agent %s does without the tools %s: this program does not have them", spec.ID, strings.Join(missing, ", ")))
			}
		case strings.HasPrefix(item.Name, formerPrefix):
			var f keptFormer
			err := json.Unmarshal(item.Value, &f, json.RejectUnknownMembers(true))
			var spec Spec
			if err == nil {
				spec, err = ReadJSON(f.Spec)
			}
			def, err := compiled(item.Name, spec, err, registry)
			if err != nil {
				return Directory{}, err
			}
			d.Former = append(d.Former, def)
		default:
			return Directory{}, fmt.Errorf("the registry keeps %.80q, which this version does not know: it was written by a later one", item.Name)
		}
	}
	return d, nil
}

func compiled(name string, spec Spec, err error, registry *tools.Registry) (actor.Definition, error) {
	if err == nil {
		var def actor.Definition
		if def, err = Compile(spec, registry); err == nil {
			return def, nil
		}
	}
	return actor.Definition{}, fmt.Errorf("the registry keeps %.80q, which this version cannot read: %w", name, err)
}

func readAgent(value []byte) (Spec, string, error) {
	var k keptAgent
	if err := json.Unmarshal(value, &k, json.RejectUnknownMembers(true)); err != nil {
		return Spec{}, "", err
	}
	spec, err := ReadJSON(k.Spec)
	return spec, k.Owner, err
}
