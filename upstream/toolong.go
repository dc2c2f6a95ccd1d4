// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// tooLongCodes are the codes and types of errors that report a prompt which is too long.
var tooLongCodes = []string{"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "string_above_max_length", "request_too_large", "model_context_window_exceeded"}

// tooLongTexts are parts of messages, in lower case, that report the same without a code. All parts of one
// line are in a message.
var tooLongTexts = [...][]string{
	{"context length"}, {"context window"}, {"context size"}, {"context limit"}, {"context overflow"}, {"context the overflows"},
	{"prompt is too long"}, {"prompt too long"}, {"input is too long"}, {"messages is too long"}, {"too large for model"},
	{"too many tokens"}, {"too many input tokens"}, {"token limit", "exceed"}, {"reduce the length of the messages"},
	{"maximum prompt length"}, {"range of input length"}, {"prompt token", "exceed"}, {"input token", "exceed"}, {"inputs", "must have less than", "tokens"},
	{"input length", "exceed"},
}

// saysTooLong reports whether the error of a model reports a prompt that is too long.
func (e upstreamError) saysTooLong() bool {
	text := strings.ToLower(e.message)
	return slices.ContainsFunc(tooLongTexts[:], func(parts []string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
	})
}

func (e upstreamError) hasTooLongCode() bool {
	return slices.Contains(tooLongCodes, e.code) || slices.Contains(tooLongCodes, e.kind)
}

// markTooLong marks the refusal of a failure whose code reports a prompt that is too long.
func (f *Failure) markTooLong(e upstreamError) {
	if f.Class == Refused && e.hasTooLongCode() {
		f.Refusal.Field = actor.ContentField
	}
}
