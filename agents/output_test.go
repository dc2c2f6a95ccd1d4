// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/upstream"
)

const counting = `name = "counter"
output_schema = { type = "object", required = ["n"], additionalProperties = false, properties = { n = { type = "integer" }, note = { type = "string" } } }
`

// TestAnswerFollowsOutputSchema covers the forms in which models write an object, and what becomes of others.
func TestAnswerFollowsOutputSchema(t *testing.T) {
	length := func(text string) upstream.Completion {
		return upstream.Completion{Text: text, Finish: upstream.FinishLength}
	}
	for name, c := range map[string]struct {
		script  []upstream.Completion
		want    string // the answer; else the beginning of the detail of the refusal
		refused string
		prompts int
		asked   string // part of the last prompt
	}{
		"at once":                       {script: texts(`{"n":1}`), want: `{"n":1}`, prompts: 1},
		"with white space":              {script: texts("\uFEFF \n{ \"n\" : 1.0e0 }\n"), want: `{"n":1.0e0}`, prompts: 1},
		"fenced":                        {script: texts("Here you are:\n```json\n{\"n\": 1}\n```\nBye."), want: `{"n":1}`, prompts: 1},
		"fenced on one line":            {script: texts("```{\"n\":1}```"), want: `{"n":1}`, prompts: 1},
		"with a fence in a text":        {script: texts("```json\n{\"n\":1,\"note\":\"```go\\nx\\n```\"}\n```"), want: "{\"n\":1,\"note\":\"```go\\nx\\n```\"}", prompts: 1},
		"asked again":                   {script: texts(`{"m":1}`, `{"n":1}`), want: `{"n":1}`, prompts: 2, asked: "The answer breaks its JSON Schema: m: is unknown; n: is missing. Answer again"},
		"asked again once":              {script: texts(`one`, `{"n":"1"}`, `{"n":1}`), refused: `the answer of model scripted of counter breaks output_schema: n: want integer, got string`, prompts: 2},
		"prose around it":               {script: texts(`The number is {"n":1}.`, `{"n":1}`), want: `{"n":1}`, prompts: 2, asked: "not JSON after byte 0"},
		"prose after it":                {script: texts(`{"n":1} is it.`, `{"n":1}`), want: `{"n":1}`, prompts: 2, asked: "not JSON after byte 8"},
		"two objects":                   {script: texts(`{"n":1}{"n":2}`, `{"n":1}`), want: `{"n":1}`, prompts: 2, asked: "want one value, got more"},
		"a list":                        {script: texts(`[{"n":1}]`, `{"n":1}`), want: `{"n":1}`, prompts: 2, asked: "want object, got array"},
		"as a text":                     {script: texts(`"{\"n\":1}"`, `{"n":1}`), want: `{"n":1}`, prompts: 2, asked: "want object, got string"},
		"with a member twice":           {script: texts(`{"n":1,"n":2}`, `{"n":1}`), want: `{"n":1}`, prompts: 2, asked: "n: occurs twice"},
		"beyond numbers":                {script: texts(`{"n":1e999}`, `{"n":1}`), want: `{"n":1}`, prompts: 2, asked: "n: "},
		"too deep":                      {script: texts(`{"n":`+strings.Repeat("[", 100)+strings.Repeat("]", 100)+`}`, `{"n":1}`), want: `{"n":1}`, prompts: 2, asked: "deeper than 64"},
		"nothing":                       {script: texts("", `{"n":1}`), want: `{"n":1}`, prompts: 2, asked: "want JSON, got nothing"},
		"cut":                           {script: []upstream.Completion{length(`{"n":1,"note":"abc`)}, refused: `the answer of model scripted of counter breaks output_schema: it was cut at its limit of tokens; raise max_tokens`, prompts: 1},
		"cut after its end":             {script: []upstream.Completion{length(`{"n":1}`)}, want: `{"n":1}`, prompts: 1},
		"filtered":                      {script: []upstream.Completion{{Text: `{"n":`, Finish: upstream.FinishFilter}}, refused: "the answer of model scripted of counter breaks output_schema: the upstream filtered", prompts: 1},
		"after a tool":                  {script: append([]upstream.Completion{toolCompletion(`text.echo {"text":"x"}`)}, texts(`{"n":1}`)...), want: `{"n":1}`, prompts: 2, asked: `{"text":"x"}`},
		"a tool when it is asked again": {script: append(append(texts("one"), toolCompletion(`text.echo {"text":"x"}`)), texts(`{"n":1}`)...), want: `{"n":1}`, prompts: 3, asked: `{"text":"x"}`},
		"an unknown tool before":        {script: append([]upstream.Completion{toolCompletion(`nothing {}`)}, texts("one", `{"n":1}`)...), want: `{"n":1}`, prompts: 3, asked: "Answer again"},
		"again after a tool":            {script: append(append(texts("one"), toolCompletion(`text.echo {"text":"x"}`)), texts(`two`, `{"n":1}`)...), refused: "the answer of model scripted of counter breaks output_schema: not JSON", prompts: 3},
	} {
		t.Run(name, func(t *testing.T) {
			f := newLoopFixture(t, c.script...)
			out := f.execute(compileTOML(t, counting+`tools = ["text.echo"]`), "Count.")
			if c.refused != "" {
				if r := out.Refusal; r == nil || r.Reason != actor.Rejected || r.Code != "OUTPUT_SCHEMA_VIOLATION" || r.Field != "" || !strings.HasPrefix(r.Detail, c.refused) {
					t.Errorf("%+v, want %s", out.Refusal, c.refused)
				}
			} else if actor.TextOf(out.Parts) != c.want || out.Refusal != nil {
				t.Errorf("%+v, want %s", out, c.want)
			}
			if len(f.prompts) != c.prompts {
				t.Errorf("%d prompts, want %d", len(f.prompts), c.prompts)
			}
			if last := f.prompts[len(f.prompts)-1]; !strings.Contains(last.Messages[len(last.Messages)-1].Text, c.asked) {
				t.Errorf("the last message is %q, want %q in it", last.Messages[len(last.Messages)-1].Text, c.asked)
			}
			if !strings.HasSuffix(f.prompts[0].Messages[0].Text, `"required":["n"],"type":"object"}`) {
				t.Errorf("the model was told %q", f.prompts[0].Messages[0].Text)
			}
		})
	}
}

// TestOutputSchemaKeepsLimitOfSteps checks that the last prompt of a turn is not exceeded to ask again.
func TestOutputSchemaKeepsLimitOfSteps(t *testing.T) {
	f := newLoopFixture(t, texts("one", `{"n":1}`)...)
	out := f.execute(compileTOML(t, counting+"limits = { steps = 1 }"), "Count.")
	if out.Refusal == nil || out.Refusal.Code != "OUTPUT_SCHEMA_VIOLATION" || len(f.prompts) != 1 {
		t.Errorf("%+v after %d prompts", out, len(f.prompts))
	}
}

func texts(all ...string) (script []upstream.Completion) {
	for _, text := range all {
		script = append(script, textCompletion(text))
	}
	return script
}

func TestOutputSchemaIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		`output_schema = '{"type": "object"}'`:                                                     "",
		`output_schema = { type = "object" }`:                                                      "",
		"[output_schema]\ntype = \"object\"":                                                       "",
		`output_schema = ""`:                                                                       "2:1: output_schema: is empty; remove it or set a value",
		`output_schema = 7`:                                                                        "2:1: output_schema: want a JSON Schema as a table or as text, got a whole number",
		`output_schema = '["n"]'`:                                                                  "2:1: output_schema: want a JSON object, as a table or as text",
		`output_schema = '{"type": "object"'`:                                                      "2:1: output_schema: want a JSON object, as a table or as text",
		`output_schema = {}`:                                                                       `2:1: output_schema: want the JSON schema of an object: want "type": "object" at the top`,
		`output_schema = { type = "array" }`:                                                       `2:1: output_schema: want the JSON schema of an object: want "type": "object" at the top`,
		`output_schema = { type = "object", since = 2026-01-01 }`:                                  "2:1: output_schema: want a JSON Schema as a table or as text, got a table with ",
		`output_schema = '{"type":"object","$ref":"https://a/b"}'`:                                 "2:1: output_schema: want the JSON schema of an object: ",
		`output_schema = '{"type":"object","properties":{"a":{"$ref":"#"}}}'`:                      "2:1: output_schema: a $ref leads back",
		"output_schema = { type = \"object\" }\nuser_text = \"redact\"":                            `output_schema: not allowed beside user_text = "redact"`,
		"output_schema = { type = \"object\" }\nkind = \"orchestrator\"":                           "2:1: output_schema: not allowed for an agent of kind orchestrator",
		"output_schema = { type = \"object\" }\nendpoint = \"http://127.0.0.1:1\"":                 "2:1: output_schema: not allowed for an agent of kind external",
		"output_schema = { type = \"object\" }\n[[provides]]\ncode = \"A_B\"\ndescription = \"x\"": "output_schema: not allowed beside [[provides]]",
		`output_schema = '{"type":"object","properties":{"a":{"type":"string","description":"` + strings.Repeat("x", 100000) + `"}}}'`: "the spec has",
	} {
		s, err := agents.ReadTOML("name = \"counter\"\n" + text)
		if got := describeSpec(s, err); want == "" && err != nil || want != "" && !strings.Contains(got, want) {
			t.Errorf("%.100s: got %.200s, want %s", text, got, want)
		}
		checkSpecRoundTrip(t, s, err)
	}
}
