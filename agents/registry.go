// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/mutant"
)

// RegistryID is the system actor that knows which agents and API keys there are.
var RegistryID = actor.NewID("troupe", "registry")

// Operator is in whose name a node itself asks the registry: for what stands in
// its files and on its command line. It may replace what anybody brought.
const Operator = "operator"

// The operations of the registry: each takes one JSON part and answers with one.
const (
	OpPut       = "agent.put"      // a Spec of a declared agent
	OpRegister  = "agent.register" // a Spec of an external one
	OpDelete    = "agent.delete"   // {"agent_id"}
	OpCreateKey = "key.create"     // a key's record, with the digest of its secret and not the secret
	OpRevokeKey = "key.revoke"     // {"key_id"}
)

// ToolAnnounce is the tool with which the registry tells its world what it keeps
// from now on: {"items":[{"name":…, "value":…}]}, an empty value for what is gone.
// It answers when every cell has it, with warnings of what agents lack there.
const ToolAnnounce = "troupe.announce"

// AnnounceSchema is the schema of its input.
const AnnounceSchema = `{"type":"object","properties":{"items":{"type":"array","items":{"type":"object",
"properties":{"name":{"type":"string"},"value":{"type":"string"}},"required":["name","value"],"additionalProperties":false}}},
"required":["items"],"additionalProperties":false}`

// Bounds of the registry.
const (
	AgentsMax          = 1024
	FormerMax          = 2048
	FormerPerAgentMax  = 256
	KeysMax            = 1024
	FormerRetention    = 24 * time.Hour // at least; longer for as long as there is room
	registryBytesMax   = actor.ActorStateBytesMax * 3 / 4
	formerBytesMax     = registryBytesMax / 2
	prunedPerActionMax = actor.StateUpdatesMax - 4
	keyBytesMax        = 4 << 10
)

// Registry is the registry's definition. Agents written in Go, of these names,
// stand beside it and cannot be replaced.
func Registry(native ...string) actor.Definition {
	next := func(_ Config, state State) (Action, error) { return registryStep(native, state) }
	def := Define(RegistryID.Agent, "1", "Knows which agents and API keys there are.", Pure(Config{Name: RegistryID.Agent, Version: "1"}, next))
	def.System = true
	return def
}

// change is what an operation comes to.
type change struct {
	updates []actor.StateItem
	answer  any
	absent  *actor.Refusal // there was nothing to remove: its caller hears so, once the world was told
}

// registryStep deals with one operation. What it decides is kept before the world
// is told, and its caller hears of it after. It announces what is there already
// too: who repeats himself may do so because the world never heard.
func registryStep(native []string, state State) (Action, error) {
	call := state.Request.Call
	c, refusal := registryState{items: state.Request.ActorState, now: state.Request.At, principal: call.Principal, native: native}.apply(call.Operation, contentOf(call.Parts))
	if refusal != nil {
		return EndRefused(refusal), nil
	}
	if len(state.Answers) == 0 {
		action := Continue("announcing", nil, Tool(ToolAnnounce, encodeAnnouncement(c.updates)))
		if action.StateUpdates = c.updates; mutant.On("registry-forgets") {
			action.StateUpdates = nil
		}
		return action, nil
	}
	heard := state.Last()[0]
	switch r := heard.Refusal; {
	case c.absent != nil && r != nil:
		return EndRefused(actor.Refuse(actor.Unavailable, "it is gone, but not every part of this node has heard of it: %v; ask again", r)), nil
	case c.absent != nil:
		return EndRefused(c.absent), nil
	}
	answer := []actor.Part{{Media: actor.MediaJSON, Bytes: invariant.Must(json.Marshal(c.answer, json.Deterministic(true)))}}
	out := actor.Outcome{Status: actor.Succeeded, Parts: answer, Warnings: heard.Warnings}
	if len(heard.Warnings) > 0 {
		out.Status = actor.Partial
	}
	if r := heard.Refusal; r != nil {
		out.Status = actor.Partial
		out.Warnings = []string{"it is written down, but not every part of this node has heard of it: " + r.Error() + "; the next start of the node makes it good, and so does asking again"}
	}
	return Action{Action: actor.Action{Done: &out}}, nil
}

// encodeAnnouncement is the input of ToolAnnounce.
func encodeAnnouncement(items []actor.StateItem) []byte {
	type item struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	in := struct {
		Items []item `json:"items"`
	}{Items: []item{}}
	for _, i := range items {
		in.Items = append(in.Items, item{i.Name, string(i.Value)})
	}
	return invariant.Must(json.Marshal(in))
}

// ReadAnnouncement reads the input of ToolAnnounce.
func ReadAnnouncement(input []byte) ([]actor.StateItem, error) {
	var in struct {
		Items []struct {
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"items"`
	}
	if err := json.Unmarshal(input, &in, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("announcement: %w", err)
	}
	var items []actor.StateItem
	for _, i := range in.Items {
		items = append(items, actor.StateItem{Name: i.Name, Value: []byte(i.Value)})
	}
	return items, nil
}
