// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
)

const weatherTOML = `# the weather
[tool]
tool_name = "weather.get"
description = """
Current weather
of a city."""
url = "http://127.0.0.1:9000/{city}"
method = "GET"
headers = { Authorization = { env = "TROUPE_AUTH_W" }, X-A = "text" }
timeout_ms = 10_000
idempotent = true
args_summary = "weather of {{city}}"

[tool.input_schema]
type = "object"
required = ["city"]

[tool.input_schema.properties.city]
type = "string"

[tool.metadata]
team = "blue"
limits = [1, 2.5]
`

func TestReadToolTOML(t *testing.T) {
	want, err := tools.ReadDeclared([]byte(`{"tool_name":"weather.get","description":"Current weather\nof a city.","url":"http://127.0.0.1:9000/{city}","method":"GET",
		"headers":{"Authorization":{"env":"TROUPE_AUTH_W"},"X-A":{"value":"text"}},"timeout_ms":10000,"idempotent":true,"args_summary":"weather of {{city}}",
		"input_schema":{"properties":{"city":{"type":"string"}},"required":["city"],"type":"object"},"metadata":{"limits":[1,2.5],"team":"blue"}}`))
	if err != nil {
		t.Fatal(err)
	}
	withText := strings.Split(weatherTOML, "\n[tool.input_schema]")[0] +
		"input_schema = '{\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"],\"type\":\"object\"}'\nmetadata = { team = \"blue\", limits = [1, 2.5] }\n"
	for _, text := range []string{weatherTOML, withText} {
		got, err := agents.ReadToolTOML(text)
		if err != nil || got.Hash() != want.Hash() {
			t.Errorf("%v\n%s\n%s", err, got.Encode(), want.Encode())
		}
		if !agents.IsToolTOML(text) {
			t.Error("not taken for a tool")
		}
	}
	for _, text := range []string{`name = "tool"`, "name = \"a\"\nprompt = \"\"\"\n[tool]\n\"\"\"", "[tools]", "[tool", ""} {
		if agents.IsToolTOML(text) {
			t.Errorf("taken for a tool: %s", text)
		}
	}
}

func TestToolTOMLErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{``, "tool: is missing; want a table [tool]"},
		{`[tool`, "1:5: not TOML"},
		{"tool = 5", "1:1: tool: want one table [tool] of at most 256 fields, got a whole number"},
		{"[[tool]]\ntool_name = \"a\"", "1:3: tool: want one table [tool] of at most 256 fields, got a list of tables"},
		{"[tool]", "tool_name: is missing"},
		{"name = \"x\"\n[tool]\ntool_name = \"a\"\nurl = \"http://h\"", "1:1: name: is unknown in the file of a tool; move it below [tool]"},
		{"[tool]\ntool_name = \"a\"\nurl = \"http://h\"\ntime_ms = 5", "4:1: time_ms: is unknown; did you mean timeout_ms?"},
		{"[tool]\ntool_name = \"a\"\n\n  url = \"h\"", "4:3: url: want http or https"},
		{"[tool]\ntool_name = \"a\"\nurl = \"http://h\"\ntimeout_ms = 1979-05-27", "4:1: timeout_ms: contains a date or time"},
		{"[tool]\ntool_name = \"a\"\nurl = \"http://h\"\nbody = { a = [nan] }", "4:1: body: contains NaN"},
		{"[tool]\ntool_name = \"a\"\nurl = \"http://h\"\n[tool.headers]\nX-A = \"b\"\nHost = \"c\"", "6:1: headers.Host: is set by the server"},
		{"[tool]\ntool_name = \"a\"\nurl = \"http://h\"\n\n[tool.input_schema]\ntype = \"string\"", `5:7: input_schema: want the JSON schema of an object`},
		{"[tool]\ntool_name = \"a\"\nurl = 5\npolicy = 7", "3:1: url: want text, got 5\n4:1: policy: want text, got 7"},
		{"[tool]\ntool_name = \"a\"\nbody = " + strings.Repeat("[", 40) + strings.Repeat("]", 40), "3:40: nests deeper than 32 levels"},
		{"[tool]\n#" + strings.Repeat("x", agents.SourceBytesMax), "at most 131072 allowed"},
	} {
		_, err := agents.ReadToolTOML(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.100s:\ngot  %v\nwant %s", c.text, err, c.want)
		}
	}
}

func FuzzReadToolTOML(f *testing.F) {
	f.Add(weatherTOML)
	f.Add("[tool]\ntool_name = \"a\"\nbody = [{ a = 1 }]\n[[tool.metadata.x]]\n")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := agents.ReadToolTOML(text)
		if err == nil && !agents.IsToolTOML(text) {
			t.Fatal("read, but not taken for a tool")
		}
		if err == nil && d.Check() != nil {
			t.Fatal(d.Check())
		}
	})
}
