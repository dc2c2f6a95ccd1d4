// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// Added model requests. An external agent that works on a run may ask a model through this
// server. The gateway passes the request on and the answer back, both byte by byte, so the
// cell performs nothing: the signal AddModel records the request before it
// is sent, and EndModel its outcome before the agent reads the end of the answer.
// The run keeps neither the prompt nor the answer.

// addModel records a request to a model.
func (s received) addModel() *actor.Refusal {
	in, refusal := signals.Decode[signals.AddModel](s.call)
	if refusal != nil || in.Request.ID == "" {
		return actor.Refuse(actor.Invalid, "want a model request")
	}
	request := store.ModelRequest(in.Request)
	ask := actor.Ask{Kind: actor.AskModel, Name: in.Model, Parts: request.Parts(), PromptTokens: max(in.PromptTokens, 0), AnswerTokens: max(in.AnswerTokens, 0)}
	s.turn.purse = s.turn.run.Purse
	if refusal := (purses{s.cell, s.turn}).plan(&store.Asked{Added: true}, &ask); refusal != nil { // nothing is recorded: it was not sent
		return refusal
	}
	id, refusal := s.addAsk(&ask)
	if id.Run.IsZero() {
		return refusal
	}
	s.done(signals.AddedModel{ID: id.String()}.Parts())
	return nil
}

// endModel records the outcome of a request to a model.
func (s received) endModel() *actor.Refusal {
	i, answer, refusal := s.findModel()
	if refusal != nil {
		return refusal
	}
	s.accept()
	s.turn.answerResult(s.cell, i, answer)
	s.done(nil)
	return nil
}

// findModel returns the outcome in a signal and the index of the ask that waits for it.
func (s received) findModel() (i int, answer actor.Answer, refusal *actor.Refusal) {
	in, refusal := signals.Decode[signals.EndModel](s.call)
	if refusal != nil {
		return 0, answer, refusal
	}
	t := s.turn
	id, err := runs.ParseToolCallID(in.ID)
	i, ok := s.ask(id)
	if err != nil || !ok || !isAddedModel(&t.run.Last()[i]) || !t.run.Last()[i].Open() {
		return 0, answer, actor.RefuseNotFound(actor.WhatModelCall, "run %s has no open model request %.80q", t.run.Call.ID, in.ID)
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

// interruptModel answers a request that was open when its node stopped: its connection is gone.
func interruptModel(c *Cell, t *turn, i int) {
	t.answerResult(c, i, actor.Answer{Refusal: actor.Refuse(actor.Unknown, "the server stopped during the request to the model: its outcome is unknown")})
}

// isAddedModel reports whether an ask is a recorded model request. The gateway performs it.
func isAddedModel(a *store.Asked) bool { return a.Added && a.Ask.Kind == actor.AskModel }
