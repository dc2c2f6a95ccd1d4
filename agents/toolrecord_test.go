// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

func TestPutChangeAndDeleteTool(t *testing.T) {
	f := newRegistryFixture(t)
	first := f.mustApply(agents.OpPutTool, `{"tool_name":"weather.get","url":"http://127.0.0.1:9000/w"}`)
	if first["tool_name"] != "weather.get" || first["kind"] != "server_tool" || first["created"] != true || first["changed"] != true {
		t.Errorf("%v", first)
	}
	d := f.catalog()
	if len(d.Tools) != 1 || d.Tools[0].Hash().String() != first["definition"] || d.Tools[0].Owner != "key:a" {
		t.Fatalf("%+v", d.Tools)
	}
	if tool, ok := d.Registry.Tool("weather.get"); !ok || tool.Declared.URL != "http://127.0.0.1:9000/w" {
		t.Errorf("%+v", tool)
	}
	repeated := f.mustApply(agents.OpPutTool, `{"name":"weather.get","url":"http://127.0.0.1:9000/w","concurrency":64}`)
	if repeated["created"] != false || repeated["changed"] != false || repeated["definition"] != first["definition"] {
		t.Errorf("%v", repeated)
	}
	changed := f.mustApply(agents.OpPutTool, `{"tool_name":"weather.get","url":"http://127.0.0.1:9000/w","timeout_ms":5}`)
	if changed["created"] != false || changed["changed"] != true || changed["definition"] == first["definition"] {
		t.Errorf("%v", changed)
	}
	before := maps.Clone(f.state)
	f.principal = "key:b"
	for _, c := range []struct {
		operation, body string
		reason          actor.Reason
		field, want     string
	}{
		{agents.OpPutTool, `{"tool_name":"weather.get","url":"http://127.0.0.1:6666/w"}`, actor.Rejected, "", "weather.get belongs to key:a: only that principal or a key with scope admin"},
		{agents.OpDeleteTool, `{"tool_name":"weather.get"}`, actor.Rejected, "", "weather.get belongs to key:a"},
		{agents.OpDeleteTool, `{"tool_name":"absent"}`, actor.NotFound, "tool_name", "no declared tool is named absent"},
		{agents.OpDeleteTool, `{"name":"weather.get"}`, actor.Invalid, "tool_name", "is missing"},
		{agents.OpPutTool, `{"tool_name":"x","url":"h"}`, actor.Invalid, "url", "want http or https"},
		{agents.OpPutTool, `{"tool_name":"troupe.announce","url":"http://h"}`, actor.Invalid, "tool_name", "is reserved"},
		{agents.OpPutTool, `{"tool_name":"call_agent","url":"http://h"}`, actor.Invalid, "tool_name", "is a tool of this program"},
		{agents.OpPutTool, `x`, actor.Invalid, "", "not JSON"},
	} {
		out := f.apply(c.operation, c.body)
		if out.Refusal == nil || out.Refusal.Reason != c.reason || out.Refusal.Field != c.field || !strings.Contains(out.Refusal.Detail, c.want) {
			t.Errorf("%s %s: %+v %+v", c.operation, c.body, out, out.Refusal)
		}
	}
	if !reflect.DeepEqual(before, f.state) {
		t.Errorf("a refused operation changed the state from %v to %v", before, f.state)
	}
	// Another principal may repeat a definition. The operator takes the tool over.
	f.mustApply(agents.OpPutTool, `{"tool_name":"weather.get","url":"http://127.0.0.1:9000/w","timeout_ms":5}`)
	if got := f.catalog().Tools[0].Owner; got != "key:a" {
		t.Errorf("owner %s", got)
	}
	f.principal = agents.Operator
	f.mustApply(agents.OpPutTool, `{"tool_name":"weather.get","url":"http://127.0.0.1:9000/w","timeout_ms":5}`)
	f.principal = "key:a"
	if out := f.apply(agents.OpDeleteTool, `{"tool_name":"weather.get"}`); out.Refusal == nil || !strings.Contains(out.Refusal.Detail, "belongs to operator") {
		t.Errorf("%+v", out)
	}
	f.principal = agents.Operator
	f.mustApply(agents.OpDeleteTool, `{"tool_name":"weather.get"}`)
	if d := f.catalog(); len(d.Tools) != 0 || len(f.state) != 0 || len(f.announced) != 0 {
		t.Errorf("%+v, state %v, announced %v", d.Tools, f.state, f.announced)
	}
}

// offered returns the names of the tools in the first prompt of an agent.
func offered(t *testing.T, def actor.Definition) string {
	t.Helper()
	turn := def.Behavior.Begin(begin("hello"))
	defer turn.Stop()
	action, err := turn.Next(nil)
	if err != nil {
		t.Fatal(err)
	}
	prompt, err := upstream.DecodePrompt(action.Asks[0].Body)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range prompt.Tools {
		names = append(names, tool.Name)
	}
	return strings.Join(names, " ")
}

// A change of a tool compiles the agents again, in the same step, and without the tool they
// still run.
func TestAgentsFollowChangesOfTools(t *testing.T) {
	f := newRegistryFixture(t)
	f.mustApply(agents.OpPut, `{"name":"a","tools":["call_agent","weather.get"]}`)
	check := func(want, missing string) {
		t.Helper()
		d := f.catalog()
		if got := offered(t, d.Definitions[0]); got != want {
			t.Errorf("offered %s, want %s", got, want)
		}
		if got := strings.Join(d.Specs[0].MissingTools(d.Registry), " "); got != missing {
			t.Errorf("missing %s, want %s", got, missing)
		}
	}
	check("call_agent", "weather.get")
	f.mustApply(agents.OpPutTool, `{"tool_name":"weather.get","url":"http://127.0.0.1:9000/w"}`)
	check("call_agent weather__get", "")
	f.mustApply(agents.OpDeleteTool, `{"tool_name":"weather.get"}`)
	check("call_agent", "weather.get")
}

// A later version of the program may have a tool with the name of a stored one.
func TestToolsOfTheProgramHideDeclaredOnes(t *testing.T) {
	f := newRegistryFixture(t)
	f.mustApply(agents.OpPutTool, `{"tool_name":"text.echo","url":"http://127.0.0.1:9000/w"}`)
	d, err := agents.NewCatalogReader(testTools(t)).Read(f.items())
	if err != nil || len(d.Tools) != 0 || !reflect.DeepEqual(d.Hidden, []string{"text.echo"}) {
		t.Errorf("%+v, %v", d, err)
	}
	if tool, _ := d.Registry.Tool("text.echo"); tool.Declared != nil {
		t.Error("the tool of the program is hidden")
	}
	for value, want := range map[string]string{
		`{"spec":{"tool_name":"b","url":"http://h"},"owner":"","at":""}`: "holds another tool",
		`{"spec":{},"by":""}`: "unknown",
		`x`:                   "tool/a",
	} {
		_, err := agents.NewCatalogReader(tools.NewRegistry()).Read([]actor.StateItem{{Name: "tool/a", Value: []byte(value)}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "tool/a") {
			t.Errorf("%s: got %v, want %s", value, err, want)
		}
	}
}

// A stored definition that a later version refuses does not prevent the start. Its owner may
// replace or delete it.
func TestInvalidStoredToolsAreLeftOut(t *testing.T) {
	f := newRegistryFixture(t)
	f.state["tool/a"] = `{"spec":{"tool_name":"a","url":"http://h","input_schema":{"type":"object","properties":{"a":{"$ref":"#"}}}},"owner":"key:a","at":""}`
	f.mustApply(agents.OpPutTool, `{"tool_name":"b","url":"http://h"}`)
	d := f.catalog()
	if len(d.Tools) != 1 || d.Tools[0].Name != "b" || len(d.Invalid) != 1 || d.Invalid[0].Name != "a" || !strings.Contains(d.Invalid[0].Err.Error(), "input_schema: a $ref leads back") {
		t.Errorf("tools %+v, invalid %+v", d.Tools, d.Invalid)
	}
	if _, ok := d.Registry.Tool("a"); ok {
		t.Error("the invalid tool is registered")
	}
	f.principal = "key:b"
	for operation, body := range map[string]string{agents.OpPutTool: `{"tool_name":"a","url":"http://h"}`, agents.OpDeleteTool: `{"tool_name":"a"}`} {
		if out := f.apply(operation, body); out.Refusal == nil || out.Refusal.Reason != actor.Rejected {
			t.Errorf("%s of a tool of another principal: %+v", operation, out)
		}
	}
	f.principal = "key:a"
	f.mustApply(agents.OpPutTool, `{"tool_name":"a","url":"http://h"}`)
	if d = f.catalog(); len(d.Tools) != 2 || len(d.Invalid) != 0 {
		t.Errorf("after it was replaced: tools %+v, invalid %+v", d.Tools, d.Invalid)
	}
}

func TestToolQuotas(t *testing.T) {
	f := newRegistryFixture(t)
	put := func(principal string, n int, metadata string) actor.Outcome {
		f.principal = principal
		return f.apply(agents.OpPutTool, fmt.Sprintf(`{"tool_name":"t%d","url":"http://h","metadata":{"a":%q}}`, n, metadata))
	}
	record := func(n int, owner string) {
		f.state[fmt.Sprintf("tool/t%d", n)] = fmt.Sprintf(`{"spec":{"tool_name":"t%d","url":"http://h","metadata":{"a":"x"}},"owner":%q,"at":""}`, n, owner)
	}
	check := func(out actor.Outcome, want string) {
		t.Helper()
		if want == "" && out.Refusal != nil || want != "" && (out.Refusal == nil || out.Refusal.Reason != actor.Budget || !strings.Contains(out.Refusal.Detail, want)) {
			t.Errorf("got %+v %v, want %q", out, out.Refusal, want)
		}
	}
	for n := range 125 {
		record(n, "key:a")
	}
	check(put("key:a", 999, "x"), "key:a: at most 125 tools are allowed")
	check(put("key:a", 7, "y"), "") // a change needs no room
	check(put("key:b", 999, "x"), "")
	for n := 125; n < 500; n++ {
		record(n, fmt.Sprint("key:", n))
	}
	delete(f.state, "tool/t0")
	delete(f.state, "tool/t1")
	check(put("key:c", 1000, "x"), "")
	check(put("key:c", 1001, "x"), "all principals but the operator: at most 500 tools")
	for n := 1001; n < 1500; n++ {
		record(n, agents.Operator)
	}
	check(put(agents.Operator, 2000, "x"), "")
	check(put(agents.Operator, 2001, "x"), "the node: at most 1000 tools")
	f.state = map[string]string{}
	for n := 0; ; n++ {
		out := put("key:a", n, strings.Repeat("x", 15<<10))
		if out.Refusal == nil && n < 40 {
			continue
		}
		check(out, "key:a: the definitions of the tools have")
		check(put("key:a", 0, "x"), "")
		break
	}
	var size int
	for _, value := range f.state {
		var record map[string]any
		if err := json.Unmarshal([]byte(value), &record); err != nil {
			t.Fatal(err)
		}
		size += len(value)
	}
	if size > actor.ActorStateBytesMax/64 {
		t.Errorf("the tools of one principal have %d bytes", size)
	}
}
