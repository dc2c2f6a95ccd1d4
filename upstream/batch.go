// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// BatchCall is one of the calls of a tool that a request performs together.
type BatchCall struct {
	ID        string         `json:"id"`        // idempotency key of the call, which names its result
	Arguments jsontext.Value `json:"arguments"` // JSON object, which satisfies the schema of the tool
}

// BatchBody returns the body of a request that performs calls.
func BatchBody(calls []BatchCall) []byte { return invariant.Must(json.Marshal(calls)) }

// BatchAnswers returns the answer of each call from the result of their request, which has been performed. The
// results are a list, or the member results of an object. Each names its call by the ID and has a result or an
// error. If none has an ID, they belong to the calls in their order. A result that was cut, as its warnings say, is
// the head of a list, whose complete elements count.
func (t HTTPTool) BatchAnswers(calls []BatchCall, result *actor.Part, warnings []string) []actor.Answer {
	elements, err := batchElements(result.Bytes, len(warnings) > 0)
	byID, named := map[string]*batchResult{}, false
	for i := range elements {
		one := &elements[i]
		if one.ID == nil {
			continue
		}
		named = true
		if _, again := byID[*one.ID]; !again {
			byID[*one.ID] = one
		}
	}
	if err == nil && !named && len(elements) != len(calls) && len(warnings) == 0 {
		err = fmt.Errorf("a list of %d results without ids", len(elements))
	}
	answers := make([]actor.Answer, len(calls))
	for i := range calls {
		one := byID[calls[i].ID]
		if !named && err == nil && i < len(elements) {
			one = &elements[i]
		}
		switch {
		case one != nil && one.failed():
			answers[i].Refusal = actor.Refuse(actor.Rejected, "tool %s answers: %s", t.Name, actor.FitText(cmp.Or(errorText(one.Error, errorDepthMax), string(one.Error)), statusQuoteMax))
		case one != nil:
			answers[i] = jsonAnswer(one.Result)
		case err != nil:
			answers[i].Refusal = t.noResult("answers with %v, want a list of %d results, each with the id of its call", err, len(calls))
		case len(warnings) > 0:
			answers[i].Refusal = t.noResult("has cut the result of this call: all results of a request have at most %d bytes", ToolResultBytesMax)
		default:
			answers[i].Refusal = t.noResult("answers without a result for this call of %d", len(calls))
		}
	}
	return answers
}

// noResult returns the refusal of a call whose request was answered without its result.
func (t HTTPTool) noResult(format string, args ...any) *actor.Refusal {
	reason := actor.Unavailable
	if !t.Idempotent { // it may have been performed
		reason = actor.Unknown
	}
	return actor.Refuse(reason, "tool %s %s", t.Name, fmt.Sprintf(format, args...))
}

// batchResult is an element of the response to a batch.
type batchResult struct {
	ID            *string // nil: it has none
	Result, Error jsontext.Value
}

// failed reports whether the element has an error. Many servers write an empty one beside each result.
func (r *batchResult) failed() bool {
	switch text := string(r.Error); text {
	case "", "null", "false", "0", `""`, "{}", "[]":
		return false
	}
	return true
}

// readBatchResult reads an element. One that has none of the members is the result itself.
func readBatchResult(value jsontext.Value) batchResult {
	var members map[string]jsontext.Value
	if json.Unmarshal(value, &members) != nil {
		return batchResult{Result: value}
	}
	r := batchResult{Result: members["result"], Error: members["error"]}
	if id, ok := members["id"]; ok {
		text, _ := plainText(id)
		r.ID = &text
	}
	if r.ID == nil && r.Result == nil {
		r.Result = value
	}
	return r
}

// batchElements returns the elements of a response to a batch, or those that are complete in its head.
func batchElements(b []byte, head bool) (elements []batchResult, err error) {
	value := b
	if !head {
		if value, err = StrictJSON(b); err != nil {
			return nil, fmt.Errorf("what is no JSON (%.80q)", b)
		}
	}
	d := jsontext.NewDecoder(bytes.NewReader(value), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if d.PeekKind() == '{' { // the list is its member results
		_, _ = d.ReadToken()
		for d.PeekKind() == '"' {
			name, err := d.ReadToken()
			if err != nil || name.String() == "results" {
				break
			}
			if d.SkipValue() != nil {
				break
			}
		}
	}
	if d.PeekKind() != '[' {
		return nil, fmt.Errorf("%.80s", value)
	}
	_, _ = d.ReadToken()
	for d.PeekKind() != ']' {
		element, err := d.ReadValue()
		if err != nil {
			break
		}
		strict, err := StrictJSON(element)
		if err != nil { // the places of those behind it would be wrong
			break
		}
		elements = append(elements, readBatchResult(slices.Clone(strict)))
	}
	return elements, nil
}

func jsonAnswer(value jsontext.Value) actor.Answer {
	if len(value) == 0 {
		value = jsontext.Value("null")
	}
	return actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: value}}}
}
