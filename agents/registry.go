// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// RegistryID is the system actor that maintains the agents, the declared tools and the API
// keys.
var RegistryID = actor.NewID(actor.SystemAgent, "registry")

// Operator is the principal of the node's own requests to the registry, for agents in
// its files and on its command line. It may change the agents and tools of any principal,
// and then owns them. Requests with scope admin have its rights; records name who made them.
const Operator = actor.OperatorUser

// Operations of the registry. The request and the reply of each are one JSON part.
const (
	OpPut       = "agent.put"      // spec of a declared agent
	OpRegister  = "agent.register" // spec of an external agent
	OpDelete    = "agent.delete"   // {"agent_id"}
	OpCreateKey = "key.create"     // record of a key with the digest of its secret, never the secret
	OpRevokeKey = "key.revoke"     // {"key_id"}
	OpIssue     = "key.issue"      // {"key_id"}: the key has issued a client token

	OpPutTool    = "tool.put"    // definition of a tool: tools.Declared
	OpDeleteTool = "tool.delete" // {"tool_name"}

	OpPutCapability    = "capability.put"    // a row of the catalog
	OpDeleteCapability = "capability.delete" // {"capability_code"}
)

// ToolAnnounce is the tool with which the registry publishes a change to its node:
// {"items":[{"name":…, "value":…}]}, with an empty value for a deleted item. It
// returns when every cell has applied the change. Its warnings name the tools and
// models that agents need and the node does not have.
const ToolAnnounce = "troupe.announce"

// AnnounceSchema is the JSON schema of the input of ToolAnnounce.
const AnnounceSchema = `{"type":"object","properties":{"items":{"type":"array","items":{"type":"object",
"properties":{"name":{"type":"string"},"value":{"type":"string"}},"required":["name","value"],"additionalProperties":false}}},
"required":["items"],"additionalProperties":false}`

// Limits of the registry.
const (
	KeysMax     = 1024
	keyBytesMax = 4 << 10
)

// NativeNames are the names of the agents that are part of the program.
type NativeNames struct {
	Served   []string // no other agent has one
	Reserved []string // of agents that are not served: a new agent has one only with actor.NameRights

	Provided []string // codes of the capabilities of those that are served
}

// Registry returns the definition of the registry with these quotas.
func Registry(quotas Quotas, native NativeNames) actor.Definition {
	next := func(_ Config, state State) (Action, error) { return registryStep(quotas, native, state) }
	def := Define(RegistryID.Agent, "1", "Maintains the agents and API keys.", Pure(Config{Name: RegistryID.Agent, Version: "1"}, next))
	def.System = true
	return def
}

// change is the result of an operation.
type change struct {
	updates []actor.StateItem
	answer  any
	absent  *actor.Refusal // refusal if the item to delete did not exist; returned after the announcement

	candidates []string // hashes of definitions; the operation is repeated with the result of ToolOpen
}

// registryStep executes one operation. If the quota of its principal is used up, it
// first asks which former definitions open runs need. It persists the change, then announces it,
// and then replies. An unchanged item is announced too: a client may repeat an
// operation because an earlier announcement was lost.
func registryStep(quotas Quotas, native NativeNames, state State) (Action, error) {
	call := state.Request.Call
	s := registryState{items: state.Request.ActorState, now: state.Request.At, principal: call.Principal, native: native.Served, provided: native.Provided, quotas: quotas}
	s.by.User = actor.FitText(call.Principal, runs.NameBytesMax)
	var rights actor.Rights
	if s.by.Key, rights = call.Authority(); rights == actor.AllRights {
		s.principal = Operator
	}
	if rights == actor.NoRights && s.principal != Operator {
		s.reserved = native.Reserved
	}
	c, refusal := s.apply(call.Operation, contentOf(call.Parts))
	answers := state.Answers
	if refusal == nil && len(c.candidates) > 0 {
		if len(answers) == 0 {
			return Continue("checking", nil, Tool(ToolOpen, encodeCandidates(c.candidates))), nil
		}
		s.open, s.asked = readOpen(answers[0][0]), true
		answers = answers[1:]
		c, refusal = s.apply(call.Operation, contentOf(call.Parts))
	}
	if refusal != nil {
		return EndRefused(refusal), nil
	}
	if len(answers) == 0 {
		action := Continue("announcing", nil, Tool(ToolAnnounce, encodeAnnouncement(c.updates)))
		action.StateUpdates = c.updates
		return action, nil
	}
	announced := state.Last()[0]
	switch r := announced.Refusal; {
	case c.absent != nil && r != nil:
		return EndRefused(actor.RefuseUnavailable(time.Second, "deleted, but not applied by the whole node: %v; retry", r)), nil
	case c.absent != nil:
		return EndRefused(c.absent), nil
	}
	answer := []actor.Part{{Media: actor.MediaJSON, Bytes: invariant.Must(json.Marshal(c.answer, json.Deterministic(true)))}}
	outcome := actor.Outcome{Status: actor.Succeeded, Parts: answer, Warnings: announced.Warnings}
	if len(announced.Warnings) > 0 {
		outcome.Status = actor.Partial
	}
	if r := announced.Refusal; r != nil {
		outcome.Status = actor.Partial
		outcome.Warnings = []string{"persisted, but not applied by the whole node: " + r.Error() + "; retry, or restart the node"}
	}
	return Action{Action: actor.Action{Done: &outcome}}, nil
}

// encodeAnnouncement returns the input of ToolAnnounce.
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

// ReadAnnouncement decodes the input of ToolAnnounce.
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
