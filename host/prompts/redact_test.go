// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func TestRedactedValue(t *testing.T) {
	for _, c := range []struct{ name, pattern, value, want string }{
		{"a text", `\d{4} \d{4}`, `{"a":"card 1234 5678 of bob"}`, `{"a":"card [redacted] of bob"}`},
		{"a list in an object in a list", `secret`, `[{"a":["my secret"]}]`, `[{"a":["my [redacted]"]}]`},
		{"a number", `^49\d+`, `{"n":491234,"m":7}`, `{"n":"[redacted]","m":7}`},
		{"a name", `bob`, `{"bob":1,"x":{"bobby":2}}`, `{"[redacted]":1,"x":{"[redacted]by":2}}`},
		{"escapes", `a"b\nc`, `{"a":"x a\"b\nc y"}`, `{"a":"x [redacted] y"}`},
		{"an escaped letter", `secret`, `{"a":"s\u0065cret"}`, `{"a":"[redacted]"}`},
		{"arguments that are JSON in a text", `"password":"[^"]*"`, `{"arguments":"{\"password\":\"x1\",\"b\":2}"}`, `{"arguments":"{[redacted],\"b\":2}"}`},
		{"a name and its value", `"password":"[^"]*"`, `{"password":"x1","b":"c"}`, `{"password":"[redacted]","b":"c"}`},
		{"a name and its number", `"pin":\d+`, `{"pin":1234,"b":5}`, `{"pin":"[redacted]","b":5}`},
		{"two members", `begin","b":"end`, `{"a":"the begin","b":"end of it","c":"d"}`, `{"a":"[redacted]","b":"[redacted]","c":"d"}`},
		{"texts of two messages", `(?s)key:.*-END`, `[{"role":"user","content":"key: abc"},{"role":"user","content":"def -END"},{"role":"user","content":"x"}]`,
			`[{"role":"user","content":"[redacted]"},{"role":"[redacted]","content":"[redacted]"},{"role":"user","content":"x"}]`},
		{"a name alone", `"n":`, `{"n":1}`, `{"[redacted]":1}`},
		{"no match", `secret`, `{"a":"b"}`, `{"a":"b"}`},
		{"a pattern that matches its replacement", `redacted`, `{"a":"redacted","b":"c"}`, `{"a":"[redacted]","b":"c"}`},
		{"a key of this server", `nothing`, `{"a":"use troupe_abcdefghijklmnop012345 now"}`, `{"a":"use [redacted] now"}`},
		{"a token of a run", `nothing`, `{"a":"x-run-token: troupe-run.abcdefghijklmnop.012345 now"}`, `{"a":"x-run-token: [redacted] now"}`},
		{"texts that are escaped twice", `Müller|5 6`, `{"arguments":"{\"to\":\"say M\\u00fcller 5\\u00206\"}"}`, `{"arguments":"{\"to\":\"say [redacted] [redacted]\"}"}`},
		{"the same member twice", `secret`, `{"a":"secret","a":"b"}`, `{"a":"[redacted]","a":"b"}`},
	} {
		r, err := newRedactor([]string{c.pattern})
		if err != nil {
			t.Fatal(err)
		}
		got := string(r.value(jsontext.Value(c.value)))
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
		if !jsontext.Value(got).IsValid(lenient...) {
			t.Errorf("%s: no JSON: %s", c.name, got)
		}
	}
}

// A text in which a pattern matches as JSON, but not decoded, is looked at once and not once for each match.
func TestManyMatchesInText(t *testing.T) {
	r, err := newRedactor([]string{`[^\s"]{32,}`})
	if err != nil {
		t.Fatal(err)
	}
	v := jsontext.Value(`{"a":"` + strings.Repeat(strings.Repeat("a", 18)+`\n`+strings.Repeat("b", 18)+" ", 25_000) + `","b":"c"}`)
	if got := string(r.value(v)); got != `{"a":"[redacted]","b":"c"}` {
		t.Errorf("got %.100s", got)
	}
}

func TestConfigCheck(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{}, ""},
		{Config{Prompts: "all", Keep: KeepMin, Redact: []string{"x"}}, ""},
		{Config{Prompts: "some"}, `prompts: want "off", "failed" or "all", got "some"`},
		{Config{Keep: 1}, "keep: want at least 1m"},
		{Config{Redact: []string{"("}}, "redact: pattern 1: error parsing regexp"},
		{Config{Redact: []string{"x", "a*"}}, `redact: pattern 2, "a*", matches the empty text`},
		{Config{Redact: []string{strings.Repeat("x", patternBytesMax+1)}}, "pattern 1 has 1001 bytes"},
		{Config{Redact: make([]string, patternsMax+1)}, "got 65 patterns"},
	} {
		err := c.config.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %s", c.config, err, c.want)
		}
	}
}
