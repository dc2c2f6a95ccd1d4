// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// outputField is the field of the schema of an agent's answers.
const outputField = "output_schema"

// outputName begins the refusals of the schema.
const outputName = "answer"

// setOutput sets the schema of the answers from a table, or from a text that holds it as JSON.
func setOutput(s *Spec, v any) (err error) {
	var raw jsontext.Value
	switch v := v.(type) {
	case namedObject:
		raw = v.value
	case string:
		raw = jsontext.Value(strings.TrimSpace(v))
	default:
		return fmt.Errorf("want a JSON Schema as a table or as text, got %s", describeValue(v))
	}
	if s.Output, err = readObject(raw); err == nil && s.Output == nil {
		err = fmt.Errorf("is empty; remove it or set a value")
	}
	return err
}

func newOutput(s *Spec) (*tools.ObjectSchema, error) {
	return tools.NewObjectSchema(outputName, string(s.Output))
}

// checkOutput returns the problem of the schema of the answers, if it cannot be compiled.
func (s *Spec) checkOutput() Problems {
	if s.Output == nil {
		return nil
	}
	if _, err := newOutput(s); err != nil {
		return Problems{{Field: outputField, Text: err.Error()}}
	}
	return nil
}

// outputConflicts returns the problems of a schema of the answers beside fields with which answers are not
// what the schema describes.
func (s *Spec) outputConflicts() Problems {
	switch {
	case s.Output == nil:
	case len(s.Provides) > 0:
		return Problems{{Field: outputField, Text: "not allowed beside [[provides]], each of which has an output_schema of its own; remove one of them"}}
	case s.UserText == contract.RedactCodes.String():
		return Problems{{Field: outputField, Text: `not allowed beside user_text = "redact", which changes words of answers; use "flag"`}}
	}
	return nil
}

// outputHint tells the model the form of its answers. The text MUST NOT change: a stored turn whose prompts
// differ would not replay.
func (s *Spec) outputHint() string {
	if s.Output == nil {
		return ""
	}
	return "\n\nAnswer with one JSON object and nothing else. It has this JSON Schema: " + string(s.Output)
}

// finishObject ends the turn with the object in a completion, which may stand in a fenced block. If the
// completion breaks the schema, the turn ends with a refusal, and finishObject returns the broken rule. It
// returns none if the answer was cut or filtered: another one would be as well.
func (t modelLoop) finishObject(c upstream.Completion, warnings []string) (action Action, broken string) {
	action = endTurn(t.modelName(), c, warnings)
	if action.Done.Refusal != nil {
		return action, ""
	}
	object := jsontext.Value(objectIn(c.Text))
	refusal := t.output.Check(object)
	if refusal == nil {
		if err := object.Compact(); err != nil { // unreachable: the check has parsed it
			return EndRefused(actor.Refuse(actor.Unavailable, "%s: %v", t.modelName(), err)), ""
		}
		action.Done.Parts = actor.Text(string(object))
		return action, ""
	}
	broken = strings.TrimPrefix(refusal.Detail, outputName+": ")
	refuse := func(format string, args ...any) Action {
		r := actor.Refuse(actor.Rejected, "the answer of %s breaks %s: "+format, append([]any{t.modelName(), outputField}, args...)...)
		r.Code = contract.OutputViolation
		return EndRefused(r)
	}
	switch c.Finish {
	case upstream.FinishLength:
		return refuse("it was cut at its limit of tokens; raise max_tokens in [parameters], or ask for less"), ""
	case upstream.FinishFilter:
		return refuse("the upstream filtered a part of it"), ""
	}
	return refuse("%s", broken), broken
}

// objectIn returns the JSON object with which the first fenced block of a text is filled, or the text.
func objectIn(text string) string {
	text = strings.TrimSpace(strings.TrimPrefix(text, "\uFEFF"))
	_, block, fenced := strings.Cut(text, "```")
	if !fenced || strings.HasPrefix(text, "{") {
		return text
	}
	block = strings.TrimLeft(block, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \t\r\n") // the name of the language
	object, err := jsontext.NewDecoder(strings.NewReader(block)).ReadValue()                                 // a text in it may have fences as well
	if err != nil || object.Kind() != '{' || !strings.HasPrefix(strings.TrimSpace(block[len(object):]), "```") {
		return text
	}
	return string(object)
}

// reject appends an answer that breaks the schema, and asks for another one.
func (d *conversation) reject(c upstream.Completion, broken string) {
	if c.Text != "" {
		d.messages = append(d.messages, upstream.Message{Role: upstream.Assistant, Text: c.Text, Kept: c.Kept})
	}
	d.latest = "The answer breaks its JSON Schema: " + broken + ". Answer again, with the corrected JSON object alone."
	d.messages = append(d.messages, upstream.Message{Role: upstream.User, Text: d.latest})
}
