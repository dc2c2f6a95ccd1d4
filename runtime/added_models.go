// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// Added model requests. An external agent that works on a run may ask a model through this
// server. The gateway passes the request on and the answer back, both byte by byte, so the
// cell performs nothing: a signal with the operation AddModel records the request before it
// is sent, and one with EndModel its outcome before the agent reads the end of the answer.
// The run keeps neither the prompt nor the answer.

// AddModel is the operation of a signal that adds a model request to its run. Its content is
// the JSON of an AddedModel, and the answer is that of an AddedModelCall.
const AddModel = actor.ReservedOperation + "model"

// EndModel is the operation of a signal with the outcome of an added model request. Its
// content is the JSON of an EndedModel.
const EndModel = actor.ReservedOperation + "model_end"

// ModelCallField is the field of the refusal of an outcome for a request that is not open.
const ModelCallField = "llm_call_id"

// AddedModel is the content of an AddModel signal.
type AddedModel struct {
	Model   string             `json:"model"`
	Request store.ModelRequest `json:"request"`
}

// AddedModelCall is the content of the answer to an AddModel signal.
type AddedModelCall struct {
	ID string `json:"llm_call_id"`
}

// EndedModel is the content of an EndModel signal.
type EndedModel struct {
	ID         string `json:"llm_call_id"`
	Completion string `json:"completion,omitzero"` // of package upstream, without text
	Reason     string `json:"reason,omitzero"`     // type of the refusal, if the request has failed
	Detail     string `json:"detail,omitzero"`
}

// addedModels records the model requests of external agents.
type addedModels struct{ *Cell }

// add handles an AddModel signal.
func (c addedModels) add(t *turn, call *actor.Call, durable bool) {
	var in AddedModel
	if len(call.Parts) != 1 || json.Unmarshal(call.Parts[0].Bytes, &in, json.RejectUnknownMembers(true)) != nil || in.Request.ID == "" {
		c.refuse(t.act, call, actor.Refuse(actor.Invalid, "want a model request"))
		return
	}
	id := addedAsks(c).add(t, call, &actor.Ask{Kind: actor.AskModel, Name: in.Model, Parts: in.Request.Parts()}, durable)
	if id.Run.IsZero() {
		return
	}
	c.recordOutcome(t.act, call, &actor.Reply{Call: call.ID, Run: call.Parent, Status: actor.Succeeded, Budget: call.Budget,
		Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: invariant.Must(json.Marshal(AddedModelCall{id.String()}))}}}, true)
}

// end handles an EndModel signal.
func (c addedModels) end(t *turn, call *actor.Call, durable bool) {
	i, answer, refusal := c.find(t, call)
	if refusal != nil {
		c.refuse(t.act, call, refusal)
		return
	}
	t.taint = t.taint || durable
	c.answerResult(t, i, answer)
	c.recordOutcome(t.act, call, &actor.Reply{Call: call.ID, Run: call.Parent, Status: actor.Succeeded, Budget: call.Budget}, true)
}

// find returns the outcome in a signal and the index of the ask that waits for it.
func (c addedModels) find(t *turn, call *actor.Call) (i int, answer actor.Answer, refusal *actor.Refusal) {
	var in EndedModel
	if len(call.Parts) != 1 || json.Unmarshal(call.Parts[0].Bytes, &in, json.RejectUnknownMembers(true)) != nil {
		return 0, answer, actor.Refuse(actor.Invalid, "want the outcome of a model request")
	}
	id, err := runs.ParseToolCallID(in.ID)
	if i = int(id.Index); err != nil || id.Run != t.run.Call.ID || id.Step != t.step() || i >= len(t.run.Last()) ||
		!isAddedModel(&t.run.Last()[i]) || !t.run.Last()[i].Open() {
		r := actor.Refuse(actor.NotFound, "run %s has no open model request %.80q", t.run.Call.ID, in.ID)
		r.Field = ModelCallField // the run itself is open
		return 0, answer, r
	}
	if in.Reason != "" {
		return i, actor.Answer{Refusal: &actor.Refusal{Reason: reasonOf(in.Reason), Detail: actor.FitText(in.Detail, actor.TextBytesMax)}}, nil
	}
	completion, err := upstream.DecodeCompletion([]byte(in.Completion))
	if err != nil {
		return 0, answer, actor.Refuse(actor.Invalid, "%v", err)
	}
	return i, actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: completion.Encode()}}, Usage: usageOf(completion)}, nil
}

// reasonOf returns the reason with a type, Unavailable for an unknown one.
func reasonOf(text string) actor.Reason {
	for _, r := range actor.Reasons() {
		if r.Info().Type == text {
			return r
		}
	}
	return actor.Unavailable
}

// interrupt answers a request that was open when its node stopped: its connection is gone.
func (c addedModels) interrupt(t *turn, i int) {
	c.answerResult(t, i, actor.Answer{Refusal: actor.Refuse(actor.Unknown, "the server stopped during the request to the model: its outcome is unknown")})
}

// isAddedModel reports whether an ask was added by AddModel. The gateway performs it.
func isAddedModel(a *store.Asked) bool { return a.Added && a.Ask.Kind == actor.AskModel }
