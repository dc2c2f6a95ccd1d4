// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// The bytes that are approved and sent are the same for equal arguments only, and whole numbers keep
// their digits. The schema is checked by digits too.
func TestNumbersOfArguments(t *testing.T) {
	const schema = `{"type":"object","properties":{"n":{"type":"integer","maximum":18446744073709551615},"x":{"type":"number"}}}`
	r, err := tools.NewRegistry().With([]tools.Declared{{Name: "pay", URL: "http://h", InputSchema: []byte(schema)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ input, want string }{ // the arguments as sent, or a part of the refusal
		{`{"n": 9007199254740992}`, `{"n":9007199254740992}`},
		{`{"n": 9007199254740993}`, `{"n":9007199254740993}`},
		{`{"n": 9007199254740993.0}`, `{"n":9007199254740993}`},
		{`{"n": 9.007199254740993e15}`, `{"n":9007199254740993}`},
		{`{"n": -12345678901234567890}`, `{"n":-12345678901234567890}`},
		{`{"n": 18446744073709551615}`, `{"n":18446744073709551615}`},
		{`{"n": 18446744073709551616}`, "n: want at most 18446744073709551615, got 18446744073709551616"},
		{`{"x": 100000000000000000000000000000000001}`, `{"x":100000000000000000000000000000000001}`},
		{`{"n": 1e3, "x": 0.10}`, `{"n":1000,"x":0.1}`},
		{`{"x": 1e30}`, `{"x":1e+30}`},
		{`{"n": -0, "x": -0.0}`, `{"n":0,"x":0}`},
		{`{"n": 9007199254740993.5}`, "n: want integer, got number"},
		{`{"x": 0.12345678901234567890}`, "the number 0.12345678901234567890 has more digits"},
		{`{"x": 1e400}`, "out of the range of a float"},
		{`{"x": 1e-400}`, "out of the range of a float"},
		{`{"x": 1e-99999999999}`, "out of the range of a float"},
		{`{"n": 1, "n": 2}`, "n: occurs twice"},
	} {
		ask, refused := r.Plan(fullContext(), askTool("pay", c.input))
		switch {
		case refused != nil && (refused.Refusal.Reason != actor.Invalid || !strings.Contains(refused.Refusal.Detail, c.want)):
			t.Errorf("%s: got %v, want %s", c.input, refused.Refusal, c.want)
		case refused == nil && string(ask.Parts[0].Bytes) != c.want:
			t.Errorf("%s becomes %s, want %s", c.input, ask.Parts[0].Bytes, c.want)
		}
	}
}

// Patterns that cannot be checked here do not refuse a tool of a server, nor input that it may accept.
func TestPatternsLeftToServer(t *testing.T) {
	const email = `{"type":"string","pattern":"^(?=.{1,64}@).+$"}`
	for _, c := range []struct{ schema, valid, invalid, unchecked string }{
		{`{"type":"object","properties":{"to":` + email + `}}`, `{"to":"a"}`, `{"to":5}`, "/properties/to/pattern"},
		{`{"type":"object","properties":{"pattern":` + email + `,"const":` + email + `}}`, `{"pattern":"a"}`, `{"const":5}`, "/properties/const/pattern /properties/pattern/pattern"},
		{`{"type":"object","const":{"pattern":"(?=a)"}}`, `{"pattern":"(?=a)"}`, `{}`, ""},
		{`{"type":"object","properties":{"to":{"not":` + email + `}}}`, `{"to":"a"}`, `[]`, "/properties/to/not/pattern"},
		{`{"type":"object","properties":{"to":{"oneOf":[` + email + `,{"type":"string"}]}}}`, `{"to":"a"}`, `[]`, "/properties/to/oneOf/pattern"},
		{`{"type":"object","if":{"properties":{"to":` + email + `}},"then":false}`, `{"to":"a"}`, `[]`, "/if/properties/to/pattern"},
		{`{"type":"object","properties":{"to":{"contains":` + email + `,"maxContains":1}}}`, `{"to":["a","b"]}`, `[]`, "/properties/to/contains/pattern"},
		{`{"type":"object","patternProperties":{"^(?!x)":{"type":"string"}},"additionalProperties":false}`, `{"a":"b"}`, `[]`, "/patternProperties"},
		{`{"type":"object","patternProperties":{"^x":` + email + `},"additionalProperties":false}`, `{"x":"b"}`, `{"a":"b"}`, "/patternProperties/pattern"},
		{`{"type":"object","properties":{"to":{"$ref":"#/$defs/mail"}},"$defs":{"mail":` + email + `}}`, `{"to":"a"}`, `{"to":5}`, "/$defs/mail/pattern"},
		{patternSchema("^a{1,1000}b{1,1000}c{1,1000}d{1,1000}e{1,1000}$"), `{"a":"x"}`, `{"a":5}`, "/properties/a/pattern"},
		{patternSchema("^a$"), `{"a":"a"}`, `{"a":"b"}`, ""},
	} {
		d := tools.Declared{Name: "mail.send", InputSchema: []byte(c.schema)}
		tool, err := tools.OfServer(d, func(_ context.Context, input []byte) tools.Result { return tools.Text(string(input)) })
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		if got := strings.Join(tool.Unchecked(), " "); got != c.unchecked {
			t.Errorf("%s: %s unchecked, want %s", c.schema, got, c.unchecked)
		}
		if tool.Schema != c.schema {
			t.Errorf("%s is offered as %s", c.schema, tool.Schema)
		}
		r := tools.NewRegistry()
		if err := r.Register(tool); err != nil {
			t.Fatal(err)
		}
		if _, refused := r.Plan(fullContext(), askTool("mail.send", c.valid)); refused != nil {
			t.Errorf("%s: %s is refused: %v", c.schema, c.valid, refused.Refusal)
		}
		if _, refused := r.Plan(fullContext(), askTool("mail.send", c.invalid)); refused == nil {
			t.Errorf("%s: %s is not refused", c.schema, c.invalid)
		}
		if c.unchecked != "" {
			if _, err := tools.Local(d, tool.Handler); err == nil {
				t.Errorf("%s: a function of a program has no server that checks its input", c.schema)
			}
		}
	}
}

// A long result was the result of a tool that was performed.
func TestLongResultIsCut(t *testing.T) {
	r := tools.NewRegistry()
	tool, err := tools.OfServer(tools.Declared{Name: "long"}, func(context.Context, []byte) tools.Result {
		return tools.JSON([]byte(`"` + strings.Repeat("ä", tools.ResultBytesMax) + `"`))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Register(tool); err != nil {
		t.Fatal(err)
	}
	got := r.Execute(t.Context(), "long", []byte(`{}`), fullContext())
	if got.Refusal != nil || len(got.Warnings) != 1 || actor.CheckParts(got.Parts, tools.ResultBytesMax) != nil || !strings.HasPrefix(string(got.Parts[0].Bytes), `"ää`) {
		t.Errorf("got %v, %q", got.Refusal, got.Warnings)
	}
}

// The schemas that others declare are those of tools, with patterns that are left to the server, and numbers keep their
// digits: 9007199254740993 is the maximum of one, and one more is refused.
func TestForeignSchemasAreTools(t *testing.T) {
	files, _ := filepath.Glob("../test/foreign/schemas/*.json")
	if len(files) < 4 {
		t.Fatalf("%d schemas", len(files))
	}
	inputs := map[string][2]string{ // one that the schema admits, and one that it does not
		"email-lookahead": {`{"to":"anna@example.com"}`, `{}`},
		"long-number":     {`{"id":9007199254740993}`, `{"id":9007199254740994}`},
		"optional":        {`{"filter":null,"limit":5}`, `{"limit":"5x"}`},
	}
	for _, file := range files {
		schema, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		tool, err := tools.OfServer(tools.Declared{Name: "a.b", InputSchema: schema}, func(_ context.Context, input []byte) tools.Result { return tools.Text(string(input)) })
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if unchecked := tool.Unchecked(); (len(unchecked) > 0) != (name == "email-lookahead") {
			t.Errorf("%s: %v unchecked", name, unchecked)
		}
		r := tools.NewRegistry()
		if err := r.Register(tool); err != nil {
			t.Fatal(err)
		}
		good, bad := `{}`, `[]`
		if in, ok := inputs[name]; ok {
			good, bad = in[0], in[1]
		}
		if ask, refused := r.Plan(fullContext(), askTool("a.b", good)); refused != nil || string(ask.Parts[0].Bytes) != good {
			t.Errorf("%s: %s becomes %v, %v", name, good, ask.Parts, refused)
		}
		if _, refused := r.Plan(fullContext(), askTool("a.b", bad)); refused == nil {
			t.Errorf("%s: %s is admitted", name, bad)
		}
	}
}
