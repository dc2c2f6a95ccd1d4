// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/tools"
)

const weather = `"tool_name":"weather.get","url":"http://127.0.0.1:9000/w","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}`

// module are members of a tool in WebAssembly.
var module = `"tool_name":"a","via":"wasm","sha256":"` + strings.Repeat("0a", 32) + `"`

func TestDeclaredErrors(t *testing.T) {
	for _, c := range []struct{ definition, want string }{
		{``, `want JSON, got nothing`},
		{`[]`, `want a JSON object`},
		{`{"tool_name":"a"}{}`, `want one value, got more`},
		{`{"url":"http://h"}`, `tool_name: is missing; want the name of the tool, like browser.open`},
		{`{` + weather + `,"tool_name":"b"}`, `tool_name: occurs twice`},
		{`{` + weather + `,"name":"b"}`, `name: is another name for tool_name; remove one of them`},
		{`{` + weather + `,"timeout":5}`, `timeout: is unknown; did you mean timeout_ms?`},
		{`{` + weather + `,"colour":5}`, `colour: is unknown; known fields: tool_name, kind, via, description, url`},
		{`{` + weather + `,"kind":"tool"}`, `kind: want server_tool or client_tool, got "tool"`},
		{`{` + weather + `,"kind":7}`, `kind: want text, got 7`},
		{`{` + weather + `,"via":"mcp"}`, `via: want http, wasm or pipeline, got "mcp"`},
		{`{` + weather + `,"via":"wasm"}`, `url: not allowed with via = "wasm"; remove it, or write via = "http"`},
		{`{` + weather + `,"file":"x.wasm"}`, `file: not allowed with via = "http"; remove it, or write via = "wasm"`},
		{`{"tool_name":"a","via":"wasm"}`, `sha256: want the SHA-256 of the module in 64 lower-case hexadecimal digits, got ""`},
		{`{"tool_name":"a","via":"wasm","sha256":"` + strings.Repeat("A", 64) + `"}`, `sha256: want the SHA-256`},
		{`{` + module + `,"grant":["files"]}`, `grant: want clock or random, got "files"`},
		{`{` + module + `,"grant":[""]}`, `grant: want clock or random, got " "`},
		{`{` + module + `,"grant":"clock"}`, `grant: want a list of texts, got text`},
		{`{` + module + `,"grant":["clock","clock"]}`, `grant: names one thing twice`},
		{`{"tool_name":"a","kind":"client_tool","grant":["clock"]}`, `grant: not allowed for a client_tool`},
		{`{` + weather + `,"method":"post"}`, `method: want POST, GET, PUT, PATCH or DELETE, got "post"`},
		{`{` + weather + `,"method":"GET","body":{}}`, `body: not allowed with method GET`},
		{`{` + weather + `,"body":["{town}"]}`, `body: {town} is no property of input_schema`},
		{`{` + weather + `,"body":{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}}`, "nests deeper than 64 levels"},
		{`{` + weather + `,"timeout_ms":0}`, `timeout_ms: want a whole number from 1 to 3600000, got 0`},
		{`{` + weather + `,"timeout_ms":3600001}`, `timeout_ms: want a whole number from 1 to 3600000, got 3600001`},
		{`{` + weather + `,"timeout_ms":"5"}`, `timeout_ms: want a whole number from 1 to 3600000, got text`},
		{`{` + weather + `,"timeout_ms":1e99}`, `timeout_ms: want a whole number from 1 to 3600000, got 1e99`},
		{`{` + weather + `,"concurrency":10001}`, `concurrency: want a whole number from 1 to 10000, got 10001`},
		{`{` + weather + `,"max_result_bytes":-1}`, `max_result_bytes: want a whole number from 1 to 1048576, got -1`},
		{`{` + weather + `,"approval_timeout_ms":7776000001}`, `approval_timeout_ms: want a whole number from 1 to 7776000000`},
		{`{` + weather + `,"policy":"ask"}`, `policy: want allow, require_approval or block, got "ask"`},
		{`{` + weather + `,"on_failure":"retry"}`, `on_failure: want return_error or fail_run, got "retry"`},
		{`{` + weather + `,"idempotent":"yes"}`, `idempotent: want true or false, got text`},
		{`{` + weather + `,"cache_ms":5}`, `cache_ms: needs idempotent = true`},
		{`{` + weather + `,"idempotent":true,"cache_ms":86400001}`, `cache_ms: want a whole number from 1 to 86400000`},
		{`{` + weather + `,"description":"` + strings.Repeat("x", 4097) + `"}`, `description: 4097 bytes, at most 4096 allowed`},
		{`{` + weather + `,"description":"a` + "\u202e" + `b"}`, `description: remove the character U+202E`},
		{`{` + weather + `,"args_summary":"in {{town}}"}`, `args_summary: {{town}} is no property of input_schema`},
		{`{` + weather + `,"args_summary":"in {{city"}`, `args_summary: want pairs of double braces`},
		{`{` + weather + `,"args_summary":"` + strings.Repeat("x", 513) + `"}`, `args_summary: 513 bytes, at most 512 allowed`},
		{`{` + weather + `,"metadata":[1]}`, `metadata: want an object, got a list`},
		{`{` + weather + `,"metadata":{"a":"` + strings.Repeat("x", 16<<10) + `"}}`, `at most 16384 allowed`},
		{`{"tool_name":"a","url":"http://h","input_schema":{"type":"string"}}`, `input_schema: want the JSON schema of an object: want "type": "object" at the top`},
		{`{"tool_name":"a","url":"http://h","input_schema":{"type":"object","properties":{"a":{"type":"strin"}}}}`, `input_schema: want the JSON schema of an object`},
		{`{"tool_name":"a","url":"http://h","input_schema":{"type":"object","$ref":"http://x/y"}}`, `is outside the schema`},
		{`{"tool_name":"a","url":"http://h","input_schema":"{"}`, `input_schema: want a JSON schema or a text with one`},
		{`{"tool_name":"a","url":"http://h","metadata":{"a":"` + strings.Repeat("x", 300<<10) + `"}}`, `at most 122880 allowed`},
		{`{"tool_name":"a","url":"http://h","body":{"a":"` + strings.Repeat("x", 60<<10) + `"}}`, `at most 61440 allowed`},
		{`{"kind":"client_tool",` + weather + `}`, `url: not allowed for a client_tool, which a device of the user performs; remove it`},
		{`{"kind":"client_tool","tool_name":"a","via":"http","method":"GET","headers":{"a":"b"},"body":1}`, "via: not allowed for a client_tool"},
	} {
		_, err := tools.ReadDeclared([]byte(c.definition))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.200s: got %v, want %s", c.definition, err, c.want)
		}
	}
	for definition, want := range map[string]string{
		`{"tool_name":"a b","url":7,"timeout":1,"policy":"x"}`:     "url timeout tool_name policy",
		`{"tool_name":"a","url":"http://h/{b}","input_schema":[]}`: "input_schema",
		`{"tool_name":"a b","kind":7}`:                             "kind",
		`{"name":7}`:                                               "tool_name url",
	} {
		_, err := tools.ReadDeclared([]byte(definition))
		var fields []string
		problems, _ := err.(tools.FieldErrors)
		for _, e := range problems {
			fields = append(fields, e.Field)
		}
		if got := strings.Join(fields, " "); got != want {
			t.Errorf("%s: errors in %s, want %s", definition, got, want)
		}
	}
	_, err := tools.ReadDeclared([]byte(`{"tool_name":"","url":"x","method":"x","policy":"x"}`))
	if problems, ok := err.(tools.FieldErrors); !ok || len(problems) != 4 || problems[1].Field != "url" {
		t.Errorf("not all errors are reported in order: %v", err)
	}
}

func TestDeclaredNames(t *testing.T) {
	for name, want := range map[string]string{
		"browser.open": "", "a": "", "get-weather_now": "", "A.b.C": "", "_a": "", strings.Repeat("x", 64): "",
		"":                             "is missing",
		"a b":                          "want only letters",
		"ä":                            "want only letters",
		"a/b":                          "want only letters",
		".a":                           "want parts",
		"a.":                           "want parts",
		"a..b":                         "want parts",
		"a__b":                         `want neither "__" nor '_' next to '.'`,
		"a_.b":                         `want neither "__" nor '_' next to '.'`,
		"a._b":                         `want neither "__" nor '_' next to '.'`,
		strings.Repeat("x", 65):        "at most 64 characters",
		strings.Repeat("x", 62) + ".y": "each '.' counts as two",
		"troupe":                       "reserved",
		"Troupe.x":                     "reserved",
		tools.CallAgent:                "is a tool of this program",
		tools.ListAgents:               "is a tool of this program",
		"Call_Agent":                   "differs from call_agent, a tool of this program, only in case; choose another name",
		"LIST_AGENTS":                  "differs from list_agents",
		"call-agent":                   "",
	} {
		d := tools.Declared{Name: name, URL: "http://h"}
		err := d.Check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), "tool_name: ") || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", name, err, want)
		}
	}
}

func TestDeclaredURLs(t *testing.T) {
	schema := []byte(`{"type":"object","properties":{"id":{},"q":{}}}`)
	for url, want := range map[string]string{
		"http://h": "", "https://h:8443/a/{id}?q={q}&x=1": "", "http://[::1]:9/{id}{q}": "", "http://h?a={id}": "",
		"":                                      "is missing",
		"/w":                                    "want http or https",
		"ftp://h/w":                             "want http or https",
		"http:///w":                             "has no host",
		"http:w":                                "invalid",
		"http://u:p@h/":                         "contains a user",
		"http://h/#a":                           "contains a fragment",
		"http://h/a b":                          "contains blanks",
		"http://h/\\":                           "contains blanks",
		"http://{id}/":                          "after the host only",
		"http://h:{id}/":                        "after the host only",
		"{id}://h/":                             "after the host only",
		"http://h/{town}":                       "{town} is no property of input_schema",
		"http://h/{}":                           "{} is no property",
		"http://h?{id}=1":                       "{id} is in the name of a query parameter; placeholders are allowed in values only",
		"http://h/{id}?a=1&x{q}=2":              "{q} is in the name",
		"http://h/?a={id}&{q}":                  "{q} is in the name",
		"http://h/?{id}":                        "{id} is in the name",
		"http://h/?a=1;{q}=2":                   "{q} is in the name", // some servers separate by ';'
		"http://h/?a=1={q}&b=?{id}":             "",
		"http://h/{id":                          "want pairs of braces",
		"http://h/id}":                          "want pairs of braces",
		"http://h/{{id}}":                       "want {{user}}, {{session}}, {{agent}} or {{run}}",
		"http://h/{{user}}":                     "needs identity",
		"http://h/%zz":                          "invalid",
		"http://h:99999999/{}":                  "{} is no property",
		"http://h/" + strings.Repeat("a", 2048): "at most 2048 allowed",
	} {
		d := tools.Declared{Name: "a", URL: url, InputSchema: schema}
		err := d.Check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), "url: ") || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", url, err, want)
		}
	}
}

func TestDeclaredHeaders(t *testing.T) {
	for headers, want := range map[string]string{
		`{"Authorization":{"env":"TROUPE_AUTH_W"},"X-A":"text","x-b":{"value":"t"}}`: "",
		`{"a b":"x"}`:             "headers.a b: want the name of a header",
		`{"":"x"}`:                "want the name of a header",
		`{"Host":"x"}`:            "headers.Host: is set by the server",
		`{"Content-Length":"1"}`:  "headers.Content-Length: is set by the server",
		`{"idempotency-key":"x"}`: "headers.idempotency-key: is set by the server",
		`{"Connection":"close"}`:  "is set by the server",
		`{"Proxy-Anything":"x"}`:  "is set by the server",
		`{"X-A":"1","x-a":"2"}`:   "headers.x-a: occurs twice",
		`{"X":{}}`:                "headers.X: want either value",
		`{"X":""}`:                "headers.X: want either value",
		`{"X":{"value":"a","env":"TROUPE_AUTH_W"}}`: "headers.X: want either value",
		`{"X":{"env":"HOME"}}`:                      "headers.X: env: want the name of a variable like TROUPE_AUTH_WEATHER",
		`{"X":{"env":"TROUPE_AUTH_"}}`:              "env: want the name of a variable",
		`{"X":{"val":"a"}}`:                         "headers.X: want a table with value or env",
		`{"X":7}`:                                   "headers.X: want a text, or a table with value or env, got 7",
		`{"X":"a\r\nB: c"}`:                         "headers.X: want printable ASCII",
		`{"X":" a"}`:                                "headers.X: want printable ASCII",
		`{"X":"ä"}`:                                 "headers.X: want printable ASCII",
		`{"X":"` + strings.Repeat("x", 4097) + `"}`: "headers.X: 4097 bytes, at most 4096",
		`{"X":"1","X":"2"}`:                         "headers.X: occurs twice",
		`[]`:                                        "headers: want a table of headers, got a list",
		`{` + manyHeaders(17) + `}`:                 "headers: 17 headers, at most 16 allowed",
	} {
		_, err := tools.ReadDeclared([]byte(`{"tool_name":"a","url":"http://h","headers":` + headers + `}`))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.80s: got %v, want %q", headers, err, want)
		}
	}
}

func manyHeaders(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"X-%d":"a"`, i))
	}
	return strings.Join(all, ",")
}

// TestDeclaredIsCanonical shows that an absent field means its default, and that the stored
// form is read unchanged.
func TestDeclaredIsCanonical(t *testing.T) {
	for _, same := range [][]string{
		{`{` + weather + `}`, `{"kind":"server_tool","via":"http","method":"POST","concurrency":64,"max_result_bytes":65536,
			"headers":{},"body":null,"idempotent":false,` + weather + `}`,
			`{ "name" : "weather.get","url":"http://127.0.0.1:9000/w","input_schema":"{\"type\":\"object\", \"properties\":{\"city\":{\"type\":\"string\"}}}"}`},
		{`{"tool_name":"a","kind":"client_tool"}`, `{"tool_name":"a","kind":"client_tool","input_schema":{"type": "object"},"metadata":null}`},
		{`{` + module + `,"cache_ms":5,"grant":["random","clock"]}`, `{` + module + `,"idempotent":true,"cache_ms":5,"grant":["clock","random"]}`},
		{`{"tool_name":"a","url":"http://h","headers":{"X":"1"}}`, `{"tool_name":"a","url":"http://h","headers":{"X":{"value":"1"}}}`},
	} {
		var hash, encoded string
		for i, text := range same {
			d, err := tools.ReadDeclared([]byte(text))
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if again, err := tools.ReadDeclared(d.Encode()); err != nil || !bytes.Equal(again.Encode(), d.Encode()) {
				t.Errorf("%s: read again as %s, %v", d.Encode(), again.Encode(), err)
			}
			if i > 0 && (d.Hash().String() != hash || string(d.Encode()) != encoded) {
				t.Errorf("%s\nand %s differ", d.Encode(), encoded)
			}
			hash, encoded = d.Hash().String(), string(d.Encode())
		}
	}
}

func TestSummary(t *testing.T) {
	for _, c := range []struct{ template, args, want string }{
		{"weather of {{city}}", `{"city":"Rome"}`, "weather of Rome"},
		{"weather of {{ city }}!", `{}`, "weather of (absent)!"},
		{"pay {{amount}} to {{to}}", `{"amount": 1e2, "to": {"a": [1, 2]}}`, `pay 1e2 to {"a":[1,2]}`},
		{"pay {{to}}", `{"to":"Bob\n\u001b[2J\u202eeve\u0000"}`, "pay Bob [2Jeve"},
		{"", `{ "a": 1,  "b": "x" }`, `{"a":1,"b":"x"}`},
		{"x {{a}}", `[1]`, `[1]`},
		{"x", `not json`, `not json`},
		{"{{a}}{{a}}", `{"a":"{{b}}","b":"2"}`, "{{b}}{{b}}"},
		{"pay {{to}} {{amount}}", `{"to":"Bob` + strings.Repeat(` \u00a0\n`, 300) + `Eve","amount":5}`, "pay Bob Eve 5"},
		{"pay {{to}}, {{amount}} EUR", `{"to":"` + strings.Repeat("ä", 300) + `","amount":900}`, "pay " + strings.Repeat("ä", 99) + "…, 900 EUR"},
		{"{{a}}", `{"a":"` + strings.Repeat("ä", 100) + `"}`, strings.Repeat("ä", 100)},
		{"{{a}}|{{b}}", `{"a":"` + strings.Repeat(`\u200b`, 300) + `x","b":" "}`, "x|"},
		{"a  b {{a}}", `{"a":{"k":"` + strings.Repeat("x", 200) + `"}}`, `a  b {"k":"` + strings.Repeat("x", 93) + "…"},
		{"{{a}}, {{b}}, {{c}} EUR", `{"a":"` + strings.Repeat("😀", 300) + `","b":"` + strings.Repeat("😀", 300) + `","c":7}`, strings.Repeat("😀", 41) + "…, " + strings.Repeat("😀", 41) + "…, 7 EUR"},
		{"", `{"a":"` + strings.Repeat("x", 300) + `","b":{"c":[1, " d   e "]}}`, `{"a":"` + strings.Repeat("x", 98) + `…,"b":{"c":[1," d e "]}}`},
		{"", `{"` + strings.Repeat("k", 300) + `":1,"b":2}`, `{"` + strings.Repeat("k", 98) + `…:1,"b":2}`},
	} {
		d := tools.Declared{ArgsSummary: c.template}
		if got := d.Summary([]byte(c.args)); got != c.want {
			t.Errorf("%q of %s is %q, want %q", c.template, c.args, got, c.want)
		}
	}
	long := tools.Declared{ArgsSummary: strings.Repeat("{{a}}", 100)}
	for _, args := range []string{`{"a":"` + strings.Repeat("ä", 100_000) + `"}`, `{"a":"` + strings.Repeat("\xff", 1000) + `"}`} {
		for _, d := range []tools.Declared{long, {}} {
			if got := d.Summary([]byte(args)); len(got) > tools.SummaryBytesMax || !utf8.ValidString(got) {
				t.Errorf("summary of %d bytes: %.80s", len(got), got)
			}
		}
	}
}

func TestSpellingIsReversible(t *testing.T) {
	if got := tools.ModelName("browser.open"); got != "browser__open" {
		t.Errorf("got %s", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-b._]{1,20}`).Draw(t, "name")
		if d := (tools.Declared{Name: name, URL: "http://h"}); d.Check() == nil {
			if got := tools.ToolName(tools.ModelName(name)); got != name {
				t.Fatalf("%s is spelled %s, which means %s", name, tools.ModelName(name), got)
			}
		}
	})
}

func TestDeclaredToolsAreRegistered(t *testing.T) {
	read := func(text string) tools.Declared {
		d, err := tools.ReadDeclared([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	base := tools.NewRegistry()
	r, err := base.With([]tools.Declared{read(`{` + weather + `,"idempotent":true,"timeout_ms":5}`), {Name: "b", URL: "http://h"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tool, ok := r.Tool("weather.get")
	if !ok || !tool.Idempotent || tool.Timeout.Milliseconds() != 5 || tool.Declared == nil {
		t.Errorf("got %+v", tool)
	}
	if _, result := r.Plan(fullContext(), askTool("weather.get", `{"city":7}`)); result == nil || !strings.Contains(result.Refusal.Detail, "city: want string, got number") {
		t.Errorf("invalid input is planned: %+v", result)
	}
	if _, ok := base.Tool("weather.get"); ok {
		t.Error("With has changed the registry")
	}
	if _, err := r.With([]tools.Declared{{Name: "b", URL: "http://h"}}, nil); err == nil || !strings.Contains(err.Error(), "already registered") {
		t.Errorf("a tool was replaced: %v", err)
	}
}

func FuzzReadDeclared(f *testing.F) {
	f.Add([]byte(`{` + weather + `,"headers":{"A":{"env":"TROUPE_AUTH_X"}},"body":{"a":"{city}"},"args_summary":"{{city}}","metadata":{"a":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := tools.ReadDeclared(b)
		if err != nil {
			return
		}
		var members map[string]any
		if err := json.Unmarshal(d.Encode(), &members); err != nil {
			t.Fatal(err)
		}
		if again, err := tools.ReadDeclared(d.Encode()); err != nil || again.Hash() != d.Hash() {
			t.Fatalf("%s is not read back: %v", d.Encode(), err)
		}
		d.Summary(b)
	})
}
