// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
)

// shownDescriptionMax is the maximum number of bytes of a description that models get of an agent or a capability.
const shownDescriptionMax = 1 << 10

// agentView is an agent as models get it.
type agentView struct {
	ID           string         `json:"agent_id"`
	Name         string         `json:"name"`
	Kind         string         `json:"kind"`
	Description  string         `json:"description,omitzero"`
	Capabilities []string       `json:"capabilities,omitempty"` // tags
	Skills       []string       `json:"skills,omitempty"`
	Code         string         `json:"code,omitzero"`
	Provides     []providedView `json:"provides,omitempty"`
	Own          bool           `json:"own,omitzero"`        // it belongs to the user
	Definition   jsontext.Value `json:"definition,omitzero"` // likewise
}

type providedView struct {
	Code        string `json:"capability_code"`
	Description string `json:"description,omitzero"`
}

func viewAgent(def *actor.Definition, user string) agentView {
	v := agentView{ID: def.Name, Name: cmp.Or(def.Title, def.Name), Kind: def.Kind.String(), Description: actor.FitText(def.Doc, shownDescriptionMax), Own: user != "" && def.Owner == user}
	var spec struct {
		Kind string `json:"kind"`
	}
	if def.Spec != nil && json.Unmarshal(def.Spec, &spec) == nil {
		v.Kind = cmp.Or(spec.Kind, v.Kind)
	}
	return v
}

// ViewAgent returns an agent as models get it. Its definition, with the prompt, is shown to its owner alone.
func ViewAgent(def *actor.Definition, user string) []byte {
	v := viewAgent(def, user)
	v.Capabilities, v.Skills, v.Code = def.Capabilities, def.Skills, def.Code
	for i := range def.Provides {
		p := &def.Provides[i]
		v.Provides = append(v.Provides, providedView{p.Code, actor.FitText(p.Description, shownDescriptionMax)})
	}
	if v.Own {
		v.Definition = slices.Clone(def.Spec)
	}
	return invariant.Must(json.Marshal(v, json.Deterministic(true)))
}

// ListAgents returns a page of agents after an ID as models get it.
func ListAgents(all *tools.Agents, by tools.Asker, after string) []byte {
	out := struct {
		Agents []agentView `json:"agents"`
		Next   string      `json:"next,omitzero"`
	}{Agents: []agentView{}}
	page, more := all.List(by, after, tools.ListedAgentsMax)
	for _, def := range page {
		out.Agents = append(out.Agents, viewAgent(def, by.User))
	}
	if more {
		out.Next = page[len(page)-1].Name
	}
	return invariant.Must(json.Marshal(out, json.Deterministic(true)))
}
