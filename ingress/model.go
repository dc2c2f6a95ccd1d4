// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Operations of signals about the model requests of external agents: runtime.AddModel and
// runtime.EndModel.
const (
	AddModelRequest = actor.ReservedOperation + "model"
	EndModelRequest = actor.ReservedOperation + "model_end"
)

// ModelRequest is a request that an external agent sends to a model for its run.
type ModelRequest struct {
	Run   actor.CallID
	Actor actor.ID // of the run
	Model string
	ID    string // of the HTTP request
}

// Add returns the signal that records the request before it is sent.
func (r *ModelRequest) Add() actor.Call {
	return r.signal(AddModelRequest, map[string]any{"model": r.Model, "request": map[string]any{"request_id": r.ID}})
}

// AddedModelRequest returns the ID in the answer to Add, "" if there is none.
func AddedModelRequest(parts []actor.Part) string {
	var out struct {
		ID string `json:"llm_call_id"`
	}
	if len(parts) != 1 || json.Unmarshal(parts[0].Bytes, &out) != nil {
		return ""
	}
	return out.ID
}

// End returns the signal with the outcome of the request that has the ID of Add: a completion
// as package upstream encodes it, or a refusal.
func (r *ModelRequest) End(id string, completion []byte, refusal *actor.Refusal) actor.Call {
	content := map[string]any{"llm_call_id": id}
	if refusal != nil {
		content["reason"], content["detail"] = refusal.Reason.Info().Type, refusal.Detail
	} else {
		content["completion"] = string(completion)
	}
	return r.signal(EndModelRequest, content)
}

func (r *ModelRequest) signal(operation string, content map[string]any) actor.Call {
	body := invariant.Must(json.Marshal(content, json.Deterministic(true)))
	return actor.Call{To: r.Actor, Kind: actor.Signal, Parent: r.Run, Operation: operation, Origin: actor.Agent, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: body}}}
}
