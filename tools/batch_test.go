// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/tools"
)

func TestBatchIsChecked(t *testing.T) {
	for fields, want := range map[string]string{
		`"url":"http://127.0.0.1/w"`: "",
		`"url":"http://127.0.0.1/w?v=1","method":"PUT","idempotent":true,"fallback":"a.b"`: "",
		`"url":"http://127.0.0.1/{{user}}","identity":"headers"`:                           "",
		`"url":"http://127.0.0.1/{city}"`:                                                  "url: has the place of an argument, but with batch = true one request has the arguments of several calls",
		`"url":"http://127.0.0.1/{{user}}?c={city}","identity":"headers"`:                  "url: has the place of an argument",
		`"url":"http://127.0.0.1/","method":"GET"`:                                         "method: want POST, PUT or PATCH with batch = true, got GET",
		`"url":"http://127.0.0.1/","method":"DELETE"`:                                      "method: want POST, PUT or PATCH with batch = true, got DELETE",
		`"url":"http://127.0.0.1/","body":{"a":"{city}"}`:                                  "body: not allowed with batch = true, whose body is the list of calls",
		`"url":"http://127.0.0.1/","idempotent":true,"cache_ms":7`:                         "cache_ms: not allowed with batch = true",
		`"kind":"client_tool"`:                                                             "batch: not allowed for a client_tool",
		`"via":"wasm","sha256":"` + strings.Repeat("a", 64) + `"`:                          `batch: not allowed with via = "wasm"; remove it, or write via = "http"`,
		`"via":"pipeline","steps":[{"tool":"a.b"}]`:                                        `batch: not allowed with via = "pipeline"`,
		`"url":"http://127.0.0.1/","batch":1`:                                              "batch: want true or false, got 1",
	} {
		if !strings.Contains(fields, `"batch"`) {
			fields += `,"batch":true`
		}
		d, err := tools.ReadDeclared([]byte(`{"tool_name":"weather.get","input_schema":{"type":"object","properties":{"city":{"type":"string"}}},` + fields + `}`))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", fields, err, want)
		}
		if again, err := tools.ReadDeclared(d.Encode()); want == "" && (err != nil || !again.Batch || again.Hash() != d.Hash()) {
			t.Errorf("%s is read again as %s %v", d.Encode(), again.Encode(), err)
		}
	}
}
