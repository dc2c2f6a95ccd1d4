// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// batchResult is an element of the response to a batch.
type batchResult struct {
	ID     jsontext.Value `json:"id"`
	Result jsontext.Value `json:"result"`
	Error  jsontext.Value `json:"error"`
}

// BatchAnswers returns the answer of each call from the result of their request, which has been performed. The
// results are a list, or the member results of an object. Each names its call by the ID and has a result or an
// error. If none names a call, they are the results themselves in the order of the calls. The warnings are those of
// the result, which may be the head of a longer one.
func (t HTTPTool) BatchAnswers(calls []BatchCall, result *actor.Part, warnings []string) []actor.Answer {
	elements, err := batchElements(result.Bytes)
	if err != nil && len(warnings) > 0 {
		err = errors.New(strings.Join(warnings, "; "))
	}
	answers := make([]actor.Answer, len(calls))
	byID, named := map[string]batchResult{}, false
	for _, e := range elements {
		var one batchResult
		if e.Kind() != '{' || json.Unmarshal(e, &one) != nil {
			continue
		}
		id, _ := plainText(one.ID)
		if _, again := byID[id]; !again {
			byID[id] = one
		}
		named = named || slices.ContainsFunc(calls, func(c BatchCall) bool { return c.ID == id })
	}
	if err == nil && !named && len(elements) != len(calls) {
		err = fmt.Errorf("a list of %d results without the id of a call", len(elements))
	}
	for i := range calls {
		switch one, ok := byID[calls[i].ID]; {
		case err != nil:
			answers[i].Refusal = t.noResult("answers with %v, want a list of %d results, each with the id of its call", err, len(calls))
		case !named:
			answers[i] = jsonAnswer(elements[i])
		case !ok:
			answers[i].Refusal = t.noResult("answers without a result for this call of %d", len(calls))
		case len(one.Error) > 0 && one.Error.Kind() != 'n':
			answers[i].Refusal = actor.Refuse(actor.Rejected, "tool %s answers: %s", t.Name, actor.FitText(cmp.Or(errorText(one.Error, errorDepthMax), string(one.Error)), statusQuoteMax))
		default:
			answers[i] = jsonAnswer(one.Result)
		}
	}
	return answers
}

// noResult returns the refusal of a call whose request was answered without its result.
func (t HTTPTool) noResult(format string, args ...any) *actor.Refusal {
	r := actor.Refuse(actor.Unavailable, "tool %s %s", t.Name, fmt.Sprintf(format, args...))
	if !t.Idempotent {
		r.Detail += "; it may have been performed"
	}
	return r
}

// batchElements returns the elements of a response to a batch.
func batchElements(b []byte) (elements []jsontext.Value, err error) {
	value, err := StrictJSON(b)
	if err != nil {
		return nil, fmt.Errorf("what is no JSON (%.80q)", b)
	}
	if jsontext.Value(value).Kind() == '{' {
		var wrapped struct {
			Results jsontext.Value `json:"results"`
		}
		if json.Unmarshal(value, &wrapped) == nil && wrapped.Results.Kind() == '[' {
			value = wrapped.Results
		}
	}
	if json.Unmarshal(value, &elements) != nil || elements == nil {
		return nil, fmt.Errorf("%.80s", value)
	}
	return elements, nil
}

func jsonAnswer(value jsontext.Value) actor.Answer {
	if len(value) == 0 {
		value = jsontext.Value("null")
	}
	return actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: value}}}
}
