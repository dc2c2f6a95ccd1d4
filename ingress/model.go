// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/signals"
)

// ModelRequest is a request that an external agent sends to a model for its run.
type ModelRequest struct {
	Run   actor.CallID
	Actor actor.ID // of the run
	Model string
	ID    string // of the HTTP request
	// The most tokens that its prompt and its answer can have; 0 is unknown.
	PromptTokens, AnswerTokens int64
}

// Add returns the signal that records the request before it is sent.
func (r *ModelRequest) Add() actor.Call {
	return r.signal(signals.AddModel{Model: r.Model, Request: signals.ModelRequest{ID: r.ID}, PromptTokens: r.PromptTokens, AnswerTokens: r.AnswerTokens})
}

// End returns the signal with the outcome of the request that has the ID of Add: a completion
// as package upstream encodes it, or a refusal.
func (r *ModelRequest) End(id string, completion []byte, refusal *actor.Refusal) actor.Call {
	content := signals.EndModel{ID: id, Completion: string(completion)}
	if refusal != nil {
		content = signals.EndModel{ID: id, Reason: refusal.Reason.Info().Type, Detail: refusal.Detail}
	}
	return r.signal(content)
}

func (r *ModelRequest) signal(c signals.Content) actor.Call {
	call := signals.New(r.Actor, r.Run, c)
	call.Origin = actor.Agent
	return call
}
