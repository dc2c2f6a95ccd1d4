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
	list := func(text string) []string { return []string{text, text} }
	for body, want := range map[string][]string{
		`[{"id":"r.1.0","result":{"t":1}},{"id":"r.1.2","result":"x"}]`:                      {`{"t":1}`, `"x"`},
		`[{"id":"r.1.2","result":2},{"id":"r.1.0","result":1}]`:                              {`1`, `2`},
		`{"results":[{"id":"r.1.2","result":2},{"id":"r.1.0","result":1}],"took_ms":3}`:      {`1`, `2`},
		`[{"id":"r.1.0"},{"id":"r.1.2","result":null,"error":null}]`:                         {`null`, `null`},
		`[{"id":"r.1.0","result":1,"error":"no"},{"id":"r.1.2","error":{"message":"full"}}]`: {"tool t answers: no", "tool t answers: full"},
		`[{"id":"r.1.0","error":{"loc":["a"],"msg":"late"}},{"id":"r.1.2","error":{"c":7}}]`: {"tool t answers: a: late", `tool t answers: {"c":7}`},
		`[{"id":"r.1.0","error":false},{"id":"r.1.2","result":0}]`:                           {`null`, `0`},
		`[{"id":"r.1.0","result":1}]`:                                                        {`1`, "tool t answers without a result for this call of 2"},
		`[{"id":"r.1.0","result":1},{"id":"r.1.0","result":2},{"id":"other","result":3},7]`:  {`1`, "tool t answers without a result for this call of 2"},
		`[{"id":7,"name":"Graz"},{"id":8,"name":"Oslo"}]`:                                    list("tool t answers without a result for this call of 2"),
		`[{"id":"r.1.0","result":1,"error":""},{"id":"r.1.2","result":2,"error":[]}]`:        {`1`, `2`},
		`[{"id":"r.1.0","result":1,"error":0},{"id":"r.1.2","result":2,"error":{}}]`:         {`1`, `2`},
		`[{"id":"r.1.0","error":"` + strings.Repeat("y", 9000) + `"},1]`:                     {"tool t answers: " + strings.Repeat("y", 1021) + "…", "tool t answers without a result for this call of 2"},
		`[{"id":"0","error":"bad"},{"id":"1","result":2}]`:                                   list("tool t answers without a result for this call of 2"),
		`[{"city":"Graz"},{"error":{},"t":1}]`:                                               {`{"city":"Graz"}`, `{"error":{},"t":1}`},
		`{"took_ms":3,"more":[{}],"results":[1,2]}`:                                          {`1`, `2`},
		`[21.5,null]`:                {`21.5`, `null`},
		`[{"result":1},{"error":2}]`: {`1`, "tool t answers: 2"},
		"\ufeff [1, NaN]":            {`1`, `null`},
		`[1]`:                        list("tool t answers with a list of 1 results without ids, want a list of 2 results, each with the id of its call"),
		`[]`:                         list("tool t answers with a list of 0 results without ids, want a list of 2 results, each with the id of its call"),
		`{"city":"Graz"}`:            list(`tool t answers with {"city":"Graz"}, want a list of 2 results, each with the id of its call`),
		`null`:                       list(`tool t answers with null, want a list of 2 results, each with the id of its call`),
		``:                           list(`tool t answers with what is no JSON (""), want a list of 2 results, each with the id of its call`),
		`<html>`:                     list(`tool t answers with what is no JSON ("<html>"), want a list of 2 results, each with the id of its call`),
		`[{"id":"r.1.0","result":"` + strings.Repeat("y", 100) + `"},{"id":"r.1.2","result":1}`: list(`tool t answers with what is no JSON ("[{\"id\":\"r.1.0\",\"result\":\"` + strings.Repeat("y", 55) + `"), want a list of 2 results, each with the id of its call`),
	} {
		for _, tool := range []upstream.HTTPTool{{Name: "t"}, {Name: "t", Idempotent: true}} {
			for i, a := range tool.BatchAnswers(batchCalls, &actor.Part{Media: actor.MediaJSON, Bytes: []byte(body)}, nil) {
				got, expected := actor.TextOf(a.Parts), want[i]
				if a.Refusal != nil {
					got = a.Refusal.Detail
				}
				reason := map[bool]actor.Reason{true: actor.Unavailable, false: actor.Unknown}[tool.Idempotent]
				if a.Refusal != nil && a.Refusal.Reason != reason && a.Refusal.Reason != actor.Rejected {
					t.Errorf("%s: call %d got %v", body, i, a.Refusal.Reason)
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
	for head, want := range map[string]string{`[1,`: "1", `{"results":[{"id":"r.1.0","result":1},{"id":"r.1.2","result":"yyy`: "1",
		`[{"id":"r.1.0","result":1}`: "1", `{"took":1,"resu`: "", "[{\"id\":\"r.1.0\",\"result\":1,\"x\":\"\xff\",\"y\":1,\"y\":2},": "1",
		"[" + strings.Repeat("[", 2000) + "\"\xff\"" + strings.Repeat("]", 2000) + ",2,": ""} {
		cut := upstream.HTTPTool{Name: "t", Idempotent: true}.BatchAnswers(batchCalls, &actor.Part{Media: actor.MediaText, Bytes: []byte(head)}, []string{"it is too long"})
		if want != "" && (cut[0].Refusal != nil || string(cut[0].Parts[0].Bytes) != want) || want == "" && cut[0].Refusal == nil {
			t.Errorf("%.80q: %+v", head, cut[0])
		}
		if cut[1].Refusal == nil || want != "" && cut[1].Refusal.Detail != "tool t has cut the result of this call: all results of a request have at most 1048560 bytes" {
			t.Errorf("%.80q: %+v", head, cut[1])
		}
	}
}
