// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/nearest"
)

// RequestCapability is the name of the tool with which agents ask for a capability, whoever owns it.
const RequestCapability = "request_capability"

const requestCapabilitySchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "capability_code": {
      "type": "string",
      "description": "The capability, such as DOC_GENERATE."
    },
    "inputs_json": {
      "type": "object",
      "description": "Its inputs."
    },
    "target_agent": {
      "type": "string",
      "description": "The agent_id or code of one of its owners; any of them if absent."
    },
    "priority": {
      "enum": ["HIGH", "NORMAL", "LOW"],
      "description": "NORMAL if absent."
    },
    "timeout_ms": {
      "type": "integer",
      "minimum": 1,
      "description": "How long to wait for the response, in milliseconds; that of the capability if absent."
    },
    "context": {
      "type": "object",
      "description": "What the owner should know of the work so far: the words of the user, decisions, constraints, findings."
    }
  },
  "required": ["capability_code", "inputs_json"],
  "additionalProperties": false
}`

const requestCapabilityDescription = "Ask for a capability of another agent and wait for its response, a JSON object with status SUCCESS, PARTIAL, ERROR or TIMEOUT: read the status before the result. " +
	"Use it when another agent owns what is needed, when its domain is another one, when it would do it better, or when data is missing here. Do yourself what is your own task, simple, or as good here. " +
	"After TIMEOUT ask again with more time, go on with what is there, take another way, or tell the user."

// AnswerHint tells an agent that does not know the contract, such as a model, how to answer a request
// whose result has a schema.
func AnswerHint(schema string) string {
	return `Answer with one JSON object and nothing else: {"status": "SUCCESS", "PARTIAL" or "ERROR", "result_json": an object, or null with ERROR, ` +
		`"confidence_level": "HIGH", "MEDIUM", "LOW" or "SPECULATIVE", "warnings": [what is limited], "error_code": like DATA_MISSING_REQUIRED_INPUT, "error_message": a sentence}. ` +
		`result_json has this JSON Schema: ` + cmp.Or(schema, `{"type":"object"}`)
}

func requestCapability() Tool {
	return Tool{
		Name:        RequestCapability,
		Description: requestCapabilityDescription,
		Schema:      requestCapabilitySchema,
		// As call_agent.
		Idempotent:     true,
		ContextHandler: planRequestCapability,
	}
}

// planRequestCapability returns the call of an owner, whose message is the envelope of a request of the
// contract. The recorded call names the owner, so a replay does not choose again.
func planRequestCapability(input []byte, ec ExecutionContext) (actor.Ask, *Result) {
	var in struct {
		Code    string         `json:"capability_code"`
		Inputs  jsontext.Value `json:"inputs_json"`
		Target  string         `json:"target_agent"`
		Lane    string         `json:"priority"`
		Timeout float64        `json:"timeout_ms"`
		Context jsontext.Value `json:"context"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return refuse(invalid(RequestCapability, "", "want an object")) // unreachable: the schema has accepted the input
	}
	if ec.Dispatcher == nil || ec.Agents == nil {
		return refuse(actor.Refuse(actor.Unavailable, "%s: no agents are known in this context", RequestCapability))
	}
	owner, capability, refusal := ec.Agents.owner(in.Code, in.Target, &ec)
	if refusal != nil {
		return refuse(refusal)
	}
	if capability.Input != "" {
		schema, err := ec.Agents.Schema(in.Code, capability.Input)
		if err != nil { // the registry has accepted it
			return refuse(actor.Refuse(actor.Unavailable, "%s: %v", in.Code, err))
		}
		if refusal := schema.Check(in.Inputs); refusal != nil {
			if _, sentences := ReadHints(capability.Input); sentences.For(refusal.Field) != "" {
				refusal.Detail = sentences.For(refusal.Field)
			}
			refusal.Field = strings.TrimSuffix(inputsField+refusal.Field, "/")
			return refuse(refusal)
		}
	}
	if in.Context == nil {
		in.Context = jsontext.Value("{}")
	}
	timeout := cmp.Or(millis(in.Timeout), capability.Timeout)
	envelope, err := json.Marshal(struct {
		Source     string         `json:"source_agent"`
		Target     string         `json:"target_agent"`
		Capability string         `json:"capability_code"`
		ID         string         `json:"request_id"`
		Priority   string         `json:"priority"`
		Timeout    int64          `json:"timeout_ms,omitzero"`
		Inputs     jsontext.Value `json:"inputs_json"`
		Context    jsontext.Value `json:"context,omitzero"`
		Workflow   string         `json:"correlation_id,omitzero"`
	}{ec.AgentID, owner.Name, in.Code, CapabilityRequestID(ec.Call.ID, input),
		cmp.Or(in.Lane, "NORMAL"), timeout.Milliseconds(), in.Inputs, ownContext(in.Context, &ec.Call), cmp.Or(ec.Call.Workflow, ec.Call.Root.String())})
	if err != nil {
		return refuse(invalid(RequestCapability, "inputs_json", "want JSON"))
	}
	message := string(envelope)
	if owner.Kind == actor.Declared {
		message += "\n\n" + AnswerHint(capability.Output)
	}
	return ec.Dispatcher.InvokeWithTimeout(owner.Name, actor.HandleMessageFull, actor.Text(message), timeout), nil
}

// CapabilityRequestID returns the request_id of a request that a run makes with these arguments.
func CapabilityRequestID(run actor.CallID, input []byte) string {
	id := fnv.New128a()
	_, _ = id.Write(append(run[:], input...))
	digest := hex.EncodeToString(id.Sum(nil))
	return fmt.Sprintf("%s-%s-%s-%s-%s", digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:])
}

// NamesRequest reports whether the begin of a message is that of a request with a request_id.
func NamesRequest(message, requestID string) bool {
	head, _, _ := strings.Cut(message, `,"inputs_json":`)
	return strings.HasPrefix(head, `{"source_agent":`) && strings.Contains(head, `,"request_id":"`+requestID+`",`)
}

// Requested returns the capability of an owner for which an ask of a tool asks; nil if the ask is another one.
func (a *Agents) Requested(ask *actor.Ask, owner string) *actor.Capability {
	if ask.Kind != actor.AskTool || ask.Name != RequestCapability || a == nil || a.byID[owner] == nil {
		return nil
	}
	var in struct {
		Code string `json:"capability_code"`
	}
	if len(ask.Parts) != 1 || json.Unmarshal(ask.Parts[0].Bytes, &in) != nil {
		return nil
	}
	all := a.byID[owner].Provides
	if i := slices.IndexFunc(all, func(c actor.Capability) bool { return c.Code == in.Code }); i >= 0 {
		return &all[i]
	}
	return nil
}

// OtherOwners returns up to three other agents that own a capability and may be asked for it; callees are those
// of the caller, nil for any.
func (a *Agents) OtherOwners(code, caller, owner string, callees []string) (names []string) {
	for _, def := range a.sorted {
		switch {
		case len(names) == ownersShownMax:
			return names
		case def.Name == caller, def.Name == owner, callees != nil && !slices.Contains(callees, def.Name):
		case slices.ContainsFunc(def.Provides, func(c actor.Capability) bool { return c.Code == code }):
			names = append(names, def.Name)
		}
	}
	return names
}

const ownersShownMax = 3

// ownContext returns a context with the session and the user of the caller, which no caller chooses.
func ownContext(context jsontext.Value, call *actor.Call) jsontext.Value {
	var members map[string]jsontext.Value
	if json.Unmarshal(context, &members) != nil {
		return nil
	}
	for _, own := range [...]struct{ name, text string }{{"session_id", call.To.Key}, {"user_id", call.Principal}} {
		value, err := json.Marshal(own.text)
		if err != nil {
			return nil
		}
		members[own.name] = value
	}
	out, err := json.Marshal(members, json.Deterministic(true))
	if err != nil {
		return nil
	}
	return out
}

// OwnerPlace decides, for an owner of a capability and a session, which of several owners gets the
// requests of the session: that with the greatest Weight. It is the same for a request by a tool and for
// one in an envelope, so a session stays with its owner.
type OwnerPlace uint64

// PlaceOf returns the place of an agent, or of a session.
func PlaceOf(name string) OwnerPlace {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return OwnerPlace(h.Sum64())
}

// Weight spreads the bits of both places, so that each session orders the owners anew.
func (p OwnerPlace) Weight(session OwnerPlace) uint64 {
	hi, lo := bits.Mul64(uint64(p^session)^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

// owner returns the agent that gets a request for a capability: the agent that the request names, or else
// an owner that stays the same for a session.
func (a *Agents) owner(code, target string, ec *ExecutionContext) (owner *actor.Definition, capability *actor.Capability, refusal *actor.Refusal) {
	var known, names []string
	var best uint64
	here := PlaceOf(ec.Call.To.Key)
	for _, def := range a.sorted {
		for i := range def.Provides {
			known = append(known, def.Provides[i].Code)
			switch {
			case def.Provides[i].Code != code:
				continue
			case def.Name == ec.AgentID || ec.Requests != nil && !slices.Contains(ec.Requests, def.Name):
				continue
			}
			names = append(names, def.Name)
			if target != "" && target != def.Name && target != def.Code {
				continue
			}
			if weight := PlaceOf(def.Name).Weight(here); owner == nil || weight > best {
				owner, capability, best = def, &def.Provides[i], weight
			}
		}
	}
	switch {
	case owner != nil:
		return owner, capability, nil
	case len(names) > 0:
		refusal = actor.Refuse(actor.Invalid, "agent %.80s does not own %s; its owners are %s", target, code, strings.Join(names[:min(len(names), candidatesMax)], ", "))
		refusal.Field = "target_agent"
		return nil, nil, refusal
	}
	text := fmt.Sprintf("%.80s is a capability of no agent that %s may call", code, ec.AgentID)
	if near := nearest.Of(code, slices.Compact(slices.Sorted(slices.Values(known)))); near != "" && near != code {
		text += "; did you mean " + near + "?"
	}
	refusal = actor.Refuse(actor.Invalid, "%s", text)
	refusal.Field = "capability_code"
	return nil, nil, refusal
}

// DescribeCapabilities returns the description of request_capability for a caller. It lists the
// capabilities of the agents that the caller may call.
func (a *Agents) DescribeCapabilities(caller string, callees []string) string {
	var list strings.Builder
	var listed []string
	for _, def := range a.sorted {
		if def.Name == caller || callees != nil && !slices.Contains(callees, def.Name) || !a.mayShow(caller, callees, def) {
			continue
		}
		for i := range def.Provides {
			c := &def.Provides[i]
			if slices.Contains(listed, c.Code) {
				continue
			}
			line := "\n- " + c.Code + ": " + actor.FitText(strings.Join(strings.Fields(c.Description), " "), summaryBytesMax)
			if list.Len()+len(line) > listedBytesMax {
				return requestCapabilityDescription + " Some of the capabilities:" + list.String()
			}
			listed = append(listed, c.Code)
			list.WriteString(line)
		}
	}
	if len(listed) == 0 {
		return requestCapabilityDescription + " There is no capability to ask for now."
	}
	return requestCapabilityDescription + " The capabilities:" + list.String()
}
