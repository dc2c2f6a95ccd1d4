// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// ListAgents is the name of the tool that lists the agents that its caller may call.
// Models are offered it if the description of call_agent cannot name all of them.
const ListAgents = "list_agents"

// Bounds of the lists of agents that models receive.
const (
	ListedAgentsMax  = 32      // agents in a description or a page
	listedBytesMax   = 4 << 10 // bytes of the list in a description
	summaryBytesMax  = 256     // bytes of one agent's summary
	candidatesMax    = 8       // agents in the error about an ambiguous name
	listAgentsSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "after": {
      "type": "string",
      "description": "The next of the page before; absent for the first page."
    }
  },
  "additionalProperties": false
}`
)

// Agents is the table of the agents that calls can address, by ID and by name.
type Agents struct {
	sorted []*actor.Definition // by ID; without system agents
	byID   map[string]*actor.Definition
	byName map[string][]string // IDs by display name, sorted

	schemas map[schemaOf]*ObjectSchema // of capabilities that were asked for; see Schema
}

type schemaOf struct{ capability, text string }

// Schema returns the compiled schema of a capability. It is compiled at the first request, and not for every
// capability, because most cells ask for few. Only the cell that has the table may call it.
func (a *Agents) Schema(capability, text string) (*ObjectSchema, error) {
	key := schemaOf{capability, text}
	if s := a.schemas[key]; s != nil {
		return s, nil
	}
	s, err := NewObjectSchema(capability, text)
	if err == nil {
		if a.schemas == nil {
			a.schemas = map[schemaOf]*ObjectSchema{}
		}
		a.schemas[key] = s
	}
	return s, err
}

// NewAgents returns the table of the current definitions. It refers to them and does
// not change them.
func NewAgents(definitions []actor.Definition) *Agents {
	a := &Agents{byID: make(map[string]*actor.Definition, len(definitions)), byName: map[string][]string{}}
	for i := range definitions {
		a.byID[definitions[i].Name] = &definitions[i]
	}
	for _, id := range slices.Sorted(maps.Keys(a.byID)) {
		def := a.byID[id]
		if def.System {
			continue
		}
		a.sorted = append(a.sorted, def)
		name := cmp.Or(def.Title, id)
		a.byName[name] = append(a.byName[name], id)
	}
	return a
}

// Resolve returns the target of a call with the agent's ID in place of its name. An
// ID takes precedence over a name. An unknown target is returned unchanged, and the
// refusal of an ambiguous name lists its agents. With callees, the caller may call
// only these agents, and only their names are resolved.
func (a *Agents) Resolve(target string, callees []string) (string, *actor.Refusal) {
	agent, _, _ := strings.Cut(target, "/")
	if a.byID[agent] != nil {
		return target, nil
	}
	ids, key := a.named(target, callees), ""
	if i := strings.LastIndexByte(target, '/'); len(ids) == 0 && i >= 0 {
		ids, key = a.named(target[:i], callees), target[i:]
	}
	switch {
	case len(ids) == 0:
		return target, nil
	case len(ids) == 1:
		return ids[0] + key, nil
	}
	shown, more := strings.Join(ids[:min(len(ids), candidatesMax)], ", "), ""
	if len(ids) > candidatesMax {
		more = fmt.Sprintf(" and %d more", len(ids)-candidatesMax)
	}
	refusal := actor.Refuse(actor.Invalid, "%d agents have the name %.80q: use one agent_id of %s%s", len(ids), strings.TrimSuffix(target, key), shown, more)
	refusal.Field = "agent_id"
	return "", refusal
}

// named returns the IDs of the callees with a display name.
func (a *Agents) named(name string, callees []string) []string {
	ids := a.byName[name]
	if callees == nil {
		return ids
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !slices.Contains(callees, id) })
}

// Asker is an agent that asks for others.
type Asker struct {
	Agent   string
	Callees []string // agents that it may call; nil: any
	User    string   // user of the run in which it asks; it also sees the agents of this user. "": no user
}

// Find returns the agent that a target means, if the asker may see it.
func (a *Agents) Find(by Asker, target string) (*actor.Definition, *actor.Refusal) {
	id, refusal := a.Resolve(target, by.Callees)
	if refusal != nil {
		return nil, refusal
	}
	if def := a.byID[id]; def != nil && a.sees(by, def) {
		return def, nil
	}
	return nil, actor.AgentNotFound(id)
}

// List returns at most n agents that the asker may see, from the first ID after
// the given one, and whether there are more. Without callees these are agents of the operator, of
// clients of this machine without a key, of the owner of the asker, and of its user: the words of others about
// their agents are not to reach its model.
func (a *Agents) List(by Asker, after string, n int) (page []*actor.Definition, more bool) {
	for _, def := range a.sorted {
		switch {
		case def.Name <= after || !a.sees(by, def):
		case len(page) == n:
			return page, true
		default:
			page = append(page, def)
		}
	}
	return page, false
}

func (a *Agents) sees(by Asker, def *actor.Definition) bool {
	return !def.System && def.Name != by.Agent && (by.Callees == nil || slices.Contains(by.Callees, def.Name)) &&
		(a.mayShow(by.Agent, by.Callees, def) || by.User != "" && by.User == def.Owner)
}

// mayShow reports whether the words of an agent about itself may reach the model of a caller.
func (a *Agents) mayShow(caller string, callees []string, def *actor.Definition) bool {
	self := a.byID[caller]
	return callees != nil || def.OfOperator() || def.Owner == actor.LocalUser || self != nil && !self.OfOperator() && self.Owner == def.Owner
}

// Describe returns the description of call_agent for a caller. It lists the agents
// that the caller may call, in the order of their IDs, and reports whether all of them
// fit.
func (a *Agents) Describe(caller string, callees []string) (description string, all bool) {
	page, more := a.List(Asker{Agent: caller, Callees: callees}, "", ListedAgentsMax)
	var list strings.Builder
	for _, def := range page {
		line := "\n- " + def.Name
		if def.Title != "" && def.Title != def.Name {
			line += " (" + def.Title + ")"
		}
		if summary := summaryOf(def); summary != "" {
			line += ": " + summary
		}
		if more = more || list.Len()+len(line) > listedBytesMax; more && list.Len()+len(line) > listedBytesMax {
			break
		}
		list.WriteString(line)
	}
	switch {
	case len(page) == 0:
		return callAgentDescription + " There is no agent to call now.", true
	case more:
		return callAgentDescription + " Some of the agents, by agent_id (" + ListAgents + " returns all):" + list.String(), false
	}
	return callAgentDescription + " The agents, by agent_id:" + list.String(), true
}

// summaryOf returns the description and the capabilities of an agent on one line.
func summaryOf(def *actor.Definition) string {
	summary := def.Doc
	if len(def.Capabilities) > 0 {
		summary += " [" + strings.Join(def.Capabilities, ", ") + "]"
	}
	return actor.FitText(strings.Join(strings.Fields(summary), " "), summaryBytesMax)
}

func listAgents() Tool {
	return Tool{
		Name:           ListAgents,
		Description:    fmt.Sprintf("List the agents that %s can call, %d a page.", CallAgent, ListedAgentsMax),
		Schema:         listAgentsSchema,
		Idempotent:     true,
		ContextHandler: planListAgents,
	}
}

func planListAgents(input []byte, ec ExecutionContext) (actor.Ask, *Result) {
	var in struct {
		After string `json:"after"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return refuse(invalid(ListAgents, "", "want an object")) // unreachable: the schema has accepted the input
	}
	if ec.Agents == nil {
		return refuse(actor.Refuse(actor.Unavailable, "%s: no agents are known in this context", ListAgents))
	}
	type agent struct {
		ID          string `json:"agent_id"`
		Name        string `json:"name"`
		Description string `json:"description,omitzero"`
	}
	out := struct {
		Agents []agent `json:"agents"`
		Next   string  `json:"next,omitzero"`
	}{Agents: []agent{}}
	page, more := ec.Agents.List(Asker{Agent: ec.AgentID, Callees: ec.Callees}, in.After, ListedAgentsMax)
	for _, def := range page {
		out.Agents = append(out.Agents, agent{def.Name, cmp.Or(def.Title, def.Name), summaryOf(def)})
	}
	if more {
		out.Next = page[len(page)-1].Name
	}
	b, err := json.Marshal(out)
	if err != nil {
		return refuse(actor.Refuse(actor.Unavailable, "%s: %v", ListAgents, err))
	}
	result := JSON(b)
	return actor.Ask{}, &result
}

// ReplaceTarget returns the input of a call_agent with another target, or false if
// the input is no object with an agent_id or the target stays.
func ReplaceTarget(input []byte, replace func(target string) string) ([]byte, bool) {
	var members map[string]jsontext.Value
	var target string
	if json.Unmarshal(input, &members) != nil || json.Unmarshal(members["agent_id"], &target) != nil {
		return input, false
	}
	to := replace(target)
	if to == target {
		return input, false
	}
	value, err := json.Marshal(to)
	if err != nil {
		return input, false
	}
	members["agent_id"] = value
	out, err := json.Marshal(members, json.Deterministic(true))
	return out, err == nil
}
