// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/internal/nearest"
)

// Members of a request that some models refuse. Those of the request itself come first, the others
// are members of its messages and their tool calls.
const (
	optionStreamOptions       = "stream_options"
	optionStream              = "stream"
	optionMaxTokens           = "max_tokens"
	optionMaxCompletionTokens = "max_completion_tokens"
	optionTemperature         = "temperature"
	optionSeed                = "seed"
	optionReasoningContent    = "reasoning_content"
	optionReasoning           = "reasoning"
	optionReasoningDetails    = "reasoning_details"
	optionExtraContent        = "extra_content"
)

// optionalMembers are the members that a request may lack. A refusal that names several is about
// the first of them in this order.
var optionalMembers = []string{optionStreamOptions, optionStream, optionMaxTokens, optionMaxCompletionTokens, optionTemperature, optionSeed,
	optionReasoningContent, optionReasoning, optionReasoningDetails, optionExtraContent}

// CheckOmit returns an error unless each name is a member that requests to models may lack, and
// is there once.
func CheckOmit(names []string) error {
	for i, name := range names {
		switch {
		case name == "model" || name == "messages":
			return fmt.Errorf("%s is required by every model: remove it", name)
		case slices.Contains(names[:i], name):
			return fmt.Errorf("%s is there twice", name)
		case slices.Contains(optionalMembers, name):
			continue
		}
		meant := nearest.Of(name, optionalMembers)
		if meant != "" {
			meant = "; did you mean " + meant
		}
		return fmt.Errorf("%.40q is no optional member of a request%s; want some of %s", name, meant, strings.Join(optionalMembers, ", "))
	}
	return nil
}

// omit removes optional members. A limit of tokens whose name is omitted gets the other name.
func (w *wirePrompt) omit(names []string) {
	has := func(name string) bool { return slices.Contains(names, name) }
	if has(optionMaxTokens) && w.MaxTokens > 0 {
		w.MaxTokens, w.MaxCompletionTokens = 0, w.MaxTokens
	} else if has(optionMaxCompletionTokens) && w.MaxCompletionTokens > 0 {
		w.MaxTokens, w.MaxCompletionTokens = w.MaxCompletionTokens, 0
	}
	if has(optionMaxTokens) && has(optionMaxCompletionTokens) {
		w.MaxTokens, w.MaxCompletionTokens = 0, 0
	}
	if has(optionStream) {
		w.Stream, w.StreamOptions = false, nil
	}
	if has(optionStreamOptions) {
		w.StreamOptions = nil
	}
	if has(optionTemperature) {
		w.Temperature = nil
	}
	if has(optionSeed) {
		w.Seed = nil
	}
	for i := range w.Messages {
		m := &w.Messages[i]
		if has(optionReasoningContent) {
			m.ReasoningContent = nil
		}
		if has(optionReasoning) {
			m.Reasoning = nil
		}
		if has(optionReasoningDetails) {
			m.Details = nil
		}
		for j := range m.Calls {
			if kept := m.Calls[j].Kept; has(optionExtraContent) && kept != nil {
				m.Calls[j].Kept = keptOf(withoutMember(kept, optionExtraContent)).value()
			}
		}
	}
}

// unsupportedWords are parts of the refusals of a member that a model does not have.
var unsupportedWords = []string{"unsupported", "not support", "unrecognized", "unrecognised", "not recognized", "unknown", "unexpected", "extra", "additional",
	"not permitted", "not allowed", "not accepted", "not available", "forbidden", "deprecated", "invalid parameter", "invalid argument"}

// refusesMember reports whether an error is about an optional member. This server chooses the first
// two, so an error that names them suffices. The others are chosen by the author of an agent, or
// needed by the model, so the error must call the member itself unsupported: a refused value stays
// an error.
func (e upstreamError) refusesMember(name string) bool {
	if e.param != name && (slices.Contains(optionalMembers, e.param) || !containsWord(e.message, name)) {
		return false
	}
	text := strings.ToLower(e.code + " " + e.kind + " " + e.message)
	return name == optionStreamOptions || name == optionStream && e.param == name || containsAny(text, unsupportedWords...)
}

// containsWord reports whether text has a word, which letters, digits and '_' continue.
func containsWord(text, word string) bool {
	inWord := func(b byte) bool { return strings.IndexByte(letterBytes+digitBytes+"_", b) >= 0 }
	for from := 0; ; {
		at := strings.Index(text[from:], word)
		if at < 0 {
			return false
		}
		at += from
		from = at + len(word)
		if (at == 0 || !inWord(text[at-1])) && (from == len(text) || !inWord(text[from])) {
			return true
		}
	}
}

// withoutRefused removes from the request the member that the failure of a model names, and reports whether
// there is one. Each member is removed once.
func (m exchangeStep) withoutRefused(f *Failure) bool {
	if f.Class != Refused || m.order.Without == nil || m.status < 400 || m.status > 499 {
		return false
	}
	for _, name := range optionalMembers {
		if slices.Contains(m.omitted, name) || !f.reported.refusesMember(name) {
			continue
		}
		if request, ok := m.order.Without(append(slices.Clone(m.omitted), name)); ok {
			m.omitted = append(m.omitted, name)
			m.order.Request = request
			return true
		}
	}
	return false
}

// without returns the request without the given members in addition to those that are omitted already. It
// reports false if it is the same request.
func (m Model) without(p Prompt) func(names []string) (Request, bool) {
	return func(names []string) (Request, bool) {
		before, after := m, m
		before.Omit = slices.Concat(m.Omit, names[:len(names)-1])
		after.Omit = slices.Concat(m.Omit, names)
		was, refusal := before.Request(p)
		request, later := after.Request(p)
		return request, refusal == nil && later == nil && string(was.Body) != string(request.Body)
	}
}

// without is the same for a request that is passed on: only what the server added can be left out.
func (c *Chat) without(request Request) func(names []string) (Request, bool) {
	if !c.Stream || c.usage || c.options != (span{}) {
		return nil
	}
	return func(names []string) (Request, bool) {
		next := request
		next.Body = withoutMember(request.Body, optionStreamOptions)
		return next, slices.Equal(names, []string{optionStreamOptions}) && len(next.Body) < len(request.Body)
	}
}
