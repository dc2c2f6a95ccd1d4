// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

var batchCalls = []upstream.BatchCall{{ID: "r.1.0", Arguments: []byte(`{"city":"Graz"}`)}, {ID: "r.1.2", Arguments: []byte(`{"city":"Oslo"}`)}}

func TestBatchRequest(t *testing.T) {
	body := upstream.BatchBody(batchCalls)
	if want := `[{"id":"r.1.0","arguments":{"city":"Graz"}},{"id":"r.1.2","arguments":{"city":"Oslo"}}]`; string(body) != want {
		t.Errorf("got %s, want %s", body, want)
	}
	r, refusal := toolRequest(upstream.HTTPTool{URL: "http://h/w?v=2", Method: "PUT", Batch: true}, string(body))
	if refusal != nil || r.Method != "PUT" || r.URL != "http://h/w?v=2" || string(r.Body) != string(body) {
		t.Errorf("got %v %+v", refusal, r)
	}
}

// TestBatchAnswers checks which call gets which result. Servers lose, double, reorder and rename members.
func TestBatchAnswers(t *testing.T) {
	const unknown = "; it may have been performed"
	list := func(text string) []string { return []string{text, text} }
	for body, want := range map[string][]string{
		`[{"id":"r.1.0","result":{"t":1}},{"id":"r.1.2","result":"x"}]`:                      {`{"t":1}`, `"x"`},
		`[{"id":"r.1.2","result":2},{"id":"r.1.0","result":1}]`:                              {`1`, `2`},
		`{"results":[{"id":"r.1.2","result":2},{"id":"r.1.0","result":1}],"took_ms":3}`:      {`1`, `2`},
		`[{"id":"r.1.0"},{"id":"r.1.2","result":null,"error":null}]`:                         {`null`, `null`},
		`[{"id":"r.1.0","result":1,"error":"no"},{"id":"r.1.2","error":{"message":"full"}}]`: {"tool t answers: no", "tool t answers: full"},
		`[{"id":"r.1.0","error":{"loc":["a"],"msg":"late"}},{"id":"r.1.2","error":{"c":7}}]`: {"tool t answers: a: late", `tool t answers: {"c":7}`},
		`[{"id":"r.1.0","error":false},{"id":"r.1.2","result":0}]`:                           {`tool t answers: false`, `0`},
		`[{"id":"r.1.0","result":1}]`:                                                        {`1`, "tool t answers without a result for this call of 2" + unknown},
		`[{"id":"r.1.0","result":1},{"id":"r.1.0","result":2},{"id":"other","result":3},7]`:  {`1`, "tool t answers without a result for this call of 2" + unknown},
		`[{"id":7,"name":"Graz"},{"id":8,"name":"Oslo"}]`:                                    {`{"id":7,"name":"Graz"}`, `{"id":8,"name":"Oslo"}`},
		`[21.5,null]`:                {`21.5`, `null`},
		`[{"result":1},{"error":2}]`: {`{"result":1}`, `{"error":2}`},
		"\ufeff [1, NaN]":            {`1`, `null`},
		`[1]`:                        list("tool t answers with a list of 1 results without the id of a call, want a list of 2 results, each with the id of its call" + unknown),
		`[]`:                         list("tool t answers with a list of 0 results without the id of a call, want a list of 2 results, each with the id of its call" + unknown),
		`{"city":"Graz"}`:            list(`tool t answers with {"city":"Graz"}, want a list of 2 results, each with the id of its call` + unknown),
		`null`:                       list(`tool t answers with null, want a list of 2 results, each with the id of its call` + unknown),
		``:                           list(`tool t answers with what is no JSON (""), want a list of 2 results, each with the id of its call` + unknown),
		`<html>`:                     list(`tool t answers with what is no JSON ("<html>"), want a list of 2 results, each with the id of its call` + unknown),
		`[{"id":"r.1.0","result":"` + strings.Repeat("y", 100) + `"},{"id":"r.1.2","result":1}`: list(`tool t answers with what is no JSON ("[{\"id\":\"r.1.0\",\"result\":\"` + strings.Repeat("y", 55) + `"), want a list of 2 results, each with the id of its call` + unknown),
	} {
		for _, tool := range []upstream.HTTPTool{{Name: "t"}, {Name: "t", Idempotent: true}} {
			for i, a := range tool.BatchAnswers(batchCalls, &actor.Part{Media: actor.MediaJSON, Bytes: []byte(body)}, nil) {
				got, expected := actor.TextOf(a.Parts), want[i]
				if a.Refusal != nil {
					got = a.Refusal.Detail
				}
				if tool.Idempotent {
					expected = strings.TrimSuffix(expected, unknown)
				}
				if len(a.Parts) == 1 {
					got = string(a.Parts[0].Bytes)
				}
				if got != expected {
					t.Errorf("%s: call %d got %s, want %s", body, i, got, expected)
				}
			}
		}
	}
	cut := upstream.HTTPTool{Name: "t", Idempotent: true}.BatchAnswers(batchCalls, &actor.Part{Media: actor.MediaText, Bytes: []byte(`[1,`)}, []string{"it is too long"})
	if cut[1].Refusal == nil || !strings.HasPrefix(cut[1].Refusal.Detail, "tool t answers with it is too long, want") {
		t.Errorf("%+v", cut)
	}
}
