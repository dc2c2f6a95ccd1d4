// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/tools"
)

var (
	root    = actor.NewID("root", "s-1")
	planner = actor.NewID("planner", "s-1")
	call    = actor.Call{
		ID: actor.NewCallID(1, 2, 3), Root: actor.NewCallID(1, 2, 4), Parent: actor.NewCallID(1, 2, 4),
		To: planner, Operation: actor.HandleMessageFull, Chain: []actor.ID{root}, Kind: actor.Waiting, Lane: actor.Normal,
		Left: time.Minute, Attempt: 1, Origin: actor.Human, Project: "p-7",
	}
)

// dispatcher.AgentDispatcher implements tools.Dispatcher.
var _ tools.Dispatcher = dispatcher.AgentDispatcher(nil)

func fullContext() tools.ExecutionContext {
	return tools.NewContext(call, 40*time.Second, dispatcher.Asks{})
}

func askTool(name, input string) actor.Ask {
	return actor.Ask{Kind: actor.AskTool, Name: name, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(input)}}}
}

func TestPlanCallAgent(t *testing.T) {
	r := tools.NewRegistry()
	for _, c := range []struct {
		input  string
		target string
		text   string
		within time.Duration
	}{
		{`{"agent_id":"helper","message":"hi"}`, "helper", "hi", 0},
		{`{"message":"","agent_id":"helper/s-2"}`, "helper/s-2", "", 0},
		{` {"agent_id":"a.b_c-D","message":"\u00e4\n","timeout_ms":1} `, "a.b_c-D", "ä\n", time.Millisecond},
		{`{"agent_id":"helper","message":"hi","timeout_ms":1e3}`, "helper", "hi", time.Second},
		{`{"agent_id":"helper","message":"hi","timeout_ms":18446744073709551615}`, "helper", "hi", 1<<63 - 1},
	} {
		ask, done := r.Plan(fullContext(), askTool(tools.CallAgent, c.input))
		if done != nil {
			t.Errorf("%s: got refusal %v", c.input, done.Refusal)
			continue
		}
		want := actor.Ask{Kind: actor.AskCall, Name: c.target, Operation: actor.HandleMessageFull, Parts: actor.Text(c.text), Timeout: c.within}
		if !reflect.DeepEqual(ask, want) {
			t.Errorf("%s becomes %+v, want %+v", c.input, ask, want)
		}
	}
}

func TestCallAgentInputErrors(t *testing.T) {
	r := tools.NewRegistry()
	for _, c := range []struct{ input, field, want string }{
		{`{"message":"hi"}`, "agent_id", "call_agent: agent_id: is missing"},
		{`{"agent_id":"helper"}`, "message", "call_agent: message: is missing"},
		{`{}`, "agent_id", "call_agent: agent_id: is missing; message: is missing"},
		{`{"agent_id":7,"message":"hi"}`, "agent_id", "call_agent: agent_id: want string, got number"},
		{`{"agent_id":"helper","message":null}`, "message", "call_agent: message: want string, got null"},
		{`{"agent_id":"helper","message":"hi","timeout_ms":0}`, "timeout_ms", "call_agent: timeout_ms: want at least 1, got 0"},
		{`{"agent_id":"helper","message":"hi","timeout_ms":-5}`, "timeout_ms", "call_agent: timeout_ms: want at least 1, got -5"},
		{`{"agent_id":"helper","message":"hi","timeout_ms":"30"}`, "timeout_ms", "call_agent: timeout_ms: want integer, got string"},
		{`{"agent_id":"helper","message":"hi","timeout_ms":1.5}`, "timeout_ms", "call_agent: timeout_ms: want integer, got number"},
		{`{"agent_id":"helper","message":"hi","timeout_ms":1e999}`, "timeout_ms", "call_agent: timeout_ms: 1e999 is out of the range of a float"},
		{`{"agent_id":"helper","message":"hi","timeout_ms":NaN}`, "timeout_ms", "not JSON after byte"},
		{`{"agent_id":"helper","message":"hi","timeout":5,"b":1}`, "b", "call_agent: b: is unknown; timeout: is unknown"},
		{`{"agent_id":"helper","message":"hi","message":"ho"}`, "message", "call_agent: message: occurs twice"},
		{`{"Agent_ID":"helper","message":"hi"}`, "Agent_ID", "Agent_ID: is unknown; agent_id: is missing"},
		{`{"agent_id":"helper","message":"hi"}{}`, "", "call_agent: want one value, got more"},
		{`{"agent_id":"helper","message":"hi"} x`, "", "not JSON after byte"},
		{`{"agent_id":"helper","message":"hi"`, "", "not JSON"},
		{`["helper","hi"]`, "", "call_agent: want object, got array"},
		{`null`, "", "call_agent: want object, got null"},
		{``, "", "call_agent: want JSON, got nothing"},
		{`{"agent_id":"helper","message":"` + "\xff" + `"}`, "message", "not JSON after byte"},
		{strings.Repeat("[", 100) + strings.Repeat("]", 100), strings.Repeat("0/", 63) + "0", "nests deeper than 64 levels"},
		{`{"agent_id":"agent:helper","message":"hi"}`, "agent_id", "only letters"},
		{`{"agent_id":"","message":"hi"}`, "agent_id", "want 1 to 64 characters"},
		{`{"agent_id":"helper/","message":"hi"}`, "agent_id", "want 1 to 64 characters"},
		{`{"agent_id":"other/helper/s-1","message":"hi"}`, "agent_id", "only letters"},
		{`{"agent_id":"..","message":"hi"}`, "agent_id", "not a name"},
		{`{"agent_id":"helper","message":"` + strings.Repeat("x", tools.InputBytesMax) + `"}`, "", "exceed the maximum of 1048576"},
	} {
		input := fmt.Sprintf("%.80s", c.input)
		ask, done := r.Plan(fullContext(), askTool(tools.CallAgent, c.input))
		if done == nil {
			t.Errorf("%s becomes %+v", input, ask)
			continue
		}
		refusal := done.Refusal
		if refusal == nil || refusal.Reason != actor.Invalid || refusal.Field != c.field || !strings.Contains(refusal.Detail, c.want) {
			t.Errorf("%s: got %+v, want %q at %q", input, refusal, c.want, c.field)
		}
		if !reflect.DeepEqual(ask, actor.Ask{}) {
			t.Errorf("%s: refused, but returned ask %+v", input, ask)
		}
	}
}

// TestInputErrorsAreDeterministic repeats one validation. The validator returns
// problems in map order, so validate has to sort them.
func TestInputErrorsAreDeterministic(t *testing.T) {
	r := tools.NewRegistry()
	input := `{"z":1,"y":2,"x":3,"agent_id":{"a":1},"timeout_ms":"","w":0,"v":0,"u":0,"t":0,"s":0}`
	seen := map[string]bool{}
	for range 200 {
		_, done := r.Plan(fullContext(), askTool(tools.CallAgent, input))
		seen[done.Refusal.Field+" "+done.Refusal.Detail] = true
	}
	want := "agent_id call_agent: agent_id: want string, got object; message: is missing; s: is unknown; t: is unknown; timeout_ms: want integer, got string; u: is unknown; v: is unknown; w: is unknown; and 3 more"
	if len(seen) != 1 || !seen[want] {
		t.Errorf("got %v, want %s", seen, want)
	}
}

func TestCallAskIsChecked(t *testing.T) {
	r := tools.NewRegistry()
	ask, done := r.Plan(fullContext(), actor.Ask{Kind: actor.AskCall, Name: "helper", Parts: actor.Text("hi")})
	if done != nil || ask.Operation != actor.HandleMessageFull {
		t.Errorf("got %+v, %v", ask, done)
	}
	for field, ask := range map[string]actor.Ask{
		"agent_id": {Kind: actor.AskCall, Name: "no body", Parts: actor.Text("hi")},
		"message":  {Kind: actor.AskCall, Name: "helper", Parts: actor.Text(strings.Repeat("x", 1<<20))},
		"timeout":  {Kind: actor.AskCall, Name: "helper", Timeout: -1},
	} {
		if _, done := r.Plan(fullContext(), ask); done == nil || done.Refusal.Field != field {
			t.Errorf("%s: got %+v", field, done)
		}
	}
}

func TestIncompleteContextIsRefused(t *testing.T) {
	ec := fullContext()
	if refusal := ec.Check(); refusal != nil {
		t.Fatal(refusal)
	}
	if ec.AgentID != "planner" || ec.ProjectID != "p-7" || ec.CallDepth != 1 || !slices.Equal(ec.CallChain, []string{"root/s-1"}) ||
		ec.Left != 40*time.Second || ec.Call.ID != call.ID || ec.Dispatcher == nil {
		t.Errorf("got context %+v", ec)
	}
	r := tools.NewRegistry()
	for field, remove := range map[string]func(*tools.ExecutionContext){
		"agent_id":   func(ec *tools.ExecutionContext) { ec.AgentID = "" },
		"project_id": func(ec *tools.ExecutionContext) { ec.ProjectID = "" },
		"call_depth": func(ec *tools.ExecutionContext) { ec.CallDepth = 0 },
		"call_chain": func(ec *tools.ExecutionContext) { ec.CallChain = nil },
		"call:":      func(ec *tools.ExecutionContext) { ec.Call = actor.Call{} },
		"dispatcher": func(ec *tools.ExecutionContext) { ec.Dispatcher = nil },
	} {
		ec := fullContext()
		remove(&ec)
		_, done := r.Plan(ec, askTool(tools.CallAgent, `{"agent_id":"helper","message":"hi"}`))
		if done == nil || done.Refusal.Reason != actor.Unavailable || !strings.Contains(done.Refusal.Detail, field) {
			t.Errorf("without %s: got %+v", field, done)
		}
	}
	late := fullContext()
	late.Left = 0
	_, done := registryWithUpper(t).Plan(late, askTool("text.upper", `{}`))
	if done == nil || done.Refusal.Reason != actor.Deadline || !strings.Contains(done.Refusal.Error(), "timeout") {
		t.Errorf("without time left: %+v", done)
	}
}

// registryWithUpper returns a registry with an ordinary tool whose schema has an
// internal reference.
func registryWithUpper(t *testing.T) *tools.Registry {
	r := tools.NewRegistry()
	err := r.RegisterBuiltin(tools.Tool{
		Name: "text.upper", Schema: `{"type":"object","properties":{"texts":{"type":"array","items":{"$ref":"#/$defs/text"}}},
			"$defs":{"text":{"type":"string","maxLength":5}}}`,
		Idempotent: true,
		Handler: func(_ context.Context, input []byte) tools.Result {
			switch {
			case strings.Contains(string(input), "panic"):
				panic("test")
			case strings.Contains(string(input), "flood"):
				return tools.Text(strings.Repeat("x", tools.ResultBytesMax+1))
			}
			return tools.JSON([]byte(strings.ToUpper(string(input))))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPlanAndExecuteHandler(t *testing.T) {
	r := registryWithUpper(t)
	ask, done := r.Plan(fullContext(), askTool("text.upper", `{"texts":["a"]}`))
	if done != nil || ask.Kind != actor.AskTool || ask.Timeout != 60*time.Second || !ask.Idempotent {
		t.Fatalf("got %+v, %v", ask, done)
	}
	own := askTool("text.upper", `{}`)
	own.Timeout = time.Second
	if ask, _ := r.Plan(fullContext(), own); ask.Timeout != time.Second {
		t.Errorf("timeout became %v, want 1s", ask.Timeout)
	}
	if ask, done := r.Plan(fullContext(), actor.Ask{Kind: actor.AskTool, Name: "text.upper"}); done != nil || string(ask.Parts[0].Bytes) != "{}" {
		t.Errorf("without input: %+v, %v", ask, done)
	}
	result := r.Execute(context.Background(), "text.upper", ask.Parts[0].Bytes, fullContext())
	if result.Refusal != nil || string(result.Parts[0].Bytes) != `{"TEXTS":["A"]}` || result.Parts[0].Media != actor.MediaJSON {
		t.Errorf("got result %+v", result)
	}
}

func TestToolFailuresAreRefusals(t *testing.T) {
	r := registryWithUpper(t)
	incomplete := fullContext()
	incomplete.ProjectID = ""
	for _, c := range []struct {
		name, input string
		ec          tools.ExecutionContext
		reason      actor.Reason
		want        string
	}{
		{"text.lower", `{}`, fullContext(), actor.NotFound, `no tool is named "text.lower"`},
		{"call_agent", `{}`, fullContext(), actor.Invalid, "only a turn can run"},
		{"text.upper", `{"texts":["toolong"]}`, fullContext(), actor.Invalid, "text.upper: texts/0: want at most 5 characters, got 7"},
		{"text.upper", `{"texts":["panic"]}`, fullContext(), actor.Unavailable, "text.upper: panic: test"},
		{"text.upper", `{}`, incomplete, actor.Unavailable, "project_id"},
	} {
		result := r.Execute(context.Background(), c.name, []byte(c.input), c.ec)
		if result.Refusal == nil || result.Refusal.Reason != c.reason || !strings.Contains(result.Refusal.Detail, c.want) || result.Parts != nil {
			t.Errorf("%s %s: %+v, want %s %s", c.name, c.input, result, c.reason, c.want)
		}
	}
	if _, done := r.Plan(fullContext(), askTool("text.lower", `{}`)); done == nil || done.Refusal.Reason != actor.NotFound {
		t.Errorf("Plan of an unknown tool: got %+v", done)
	}
	blob := actor.Ask{Kind: actor.AskTool, Name: "text.upper", Parts: []actor.Part{{Blob: actor.HashOf(nil)}}}
	if _, done := r.Plan(fullContext(), blob); done == nil || done.Refusal.Reason != actor.Invalid {
		t.Errorf("a blob as input: got %+v", done)
	}
}

func TestContextHandlerReturnsResult(t *testing.T) {
	r := tools.NewRegistry()
	err := r.RegisterBuiltin(tools.Tool{Name: "whoami", Schema: `{"type":"object"}`,
		ContextHandler: func(_ []byte, ec tools.ExecutionContext) (actor.Ask, *tools.Result) {
			result := tools.Text(fmt.Sprintf("%s for %s, %d below %v", ec.AgentID, ec.ProjectID, ec.CallDepth, ec.CallChain))
			return actor.Ask{}, &result
		}})
	if err != nil {
		t.Fatal(err)
	}
	_, done := r.Plan(fullContext(), askTool("whoami", `{}`))
	if done == nil || actor.TextOf(done.Parts) != "planner for p-7, 1 below [root/s-1]" {
		t.Errorf("got %+v", done)
	}
}

func TestPlanOtherAsks(t *testing.T) {
	r := tools.NewRegistry()
	work := func(context.Context) ([]byte, error) { return nil, nil }
	for _, ask := range []actor.Ask{
		{Kind: actor.AskSleep, Timeout: time.Second},
		{Kind: actor.AskWait, Name: "go", Timeout: time.Minute},
		{Kind: actor.AskWork, Name: "count"},
	} {
		if ask.Kind == actor.AskWork {
			ask.Work = work
		}
		if got, done := r.Plan(fullContext(), ask); done != nil || got.Kind != ask.Kind || got.Name != ask.Name || got.Timeout != ask.Timeout {
			t.Errorf("%+v becomes %+v, %v", ask, got, done)
		}
	}
	for _, ask := range []actor.Ask{
		{},
		{Kind: 99},
		{Kind: actor.AskSleep, Timeout: -1},
		{Kind: actor.AskWait},
		{Kind: actor.AskWait, Name: "a b"},
		{Kind: actor.AskWork, Name: "count"},
		{Kind: actor.AskWork, Work: work},
	} {
		if _, done := r.Plan(fullContext(), ask); done == nil || done.Refusal.Reason != actor.Invalid {
			t.Errorf("%+v: got %v, want Invalid", ask, done)
		}
	}
}

func TestRegisterInvalidTool(t *testing.T) {
	handler := func(context.Context, []byte) tools.Result { return tools.Result{} }
	good := tools.Tool{Name: "x", Schema: `{"type":"object"}`, Handler: handler}
	for _, c := range []struct {
		change func(*tools.Tool)
		want   string
	}{
		{func(t *tools.Tool) { t.Name = "" }, "want a name"},
		{func(t *tools.Tool) { t.Name = "a b" }, "name: want only"},
		{func(t *tools.Tool) { t.Name = strings.Repeat("x", 129) }, "want a name of 1 to 128"},
		{func(t *tools.Tool) { t.Name = tools.CallAgent }, "already registered"},
		{func(t *tools.Tool) { t.Handler = nil }, "want either"},
		{func(t *tools.Tool) {
			t.ContextHandler = func([]byte, tools.ExecutionContext) (actor.Ask, *tools.Result) { return actor.Ask{}, nil }
		}, "want either"},
		{func(t *tools.Tool) { t.Timeout = -1 }, "negative timeout"},
		{func(t *tools.Tool) { t.Schema = `{"type":"array"}` }, `"type": "object"`},
		{func(t *tools.Tool) { t.Schema = `{"type":"object"` }, "not JSON"},
		{func(t *tools.Tool) { t.Schema = `{"type":"object","type":"object"}` }, "occurs twice"},
		{func(t *tools.Tool) { t.Schema = `{"type":"object","required":"x"}` }, "required"},
		{func(t *tools.Tool) { t.Schema = `{"type":"object","$ref":"https://example.com/s.json"}` }, "outside the schema"},
		{func(t *tools.Tool) { t.Schema = `{"type":"object","$ref":"file:///etc/passwd"}` }, "outside the schema"},
		{func(t *tools.Tool) { t.Schema = `{"type":"object"}` + strings.Repeat(" ", tools.SchemaBytesMax) }, "exceed the maximum"},
	} {
		tool := good
		c.change(&tool)
		if err := tools.NewRegistry().RegisterBuiltin(tool); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	r := tools.NewRegistry()
	for _, name := range []string{"troupe", "troupe.x", "Troupe.x"} {
		reserved := good
		reserved.Name = name
		if err := r.Register(reserved); err == nil || !strings.Contains(err.Error(), "is reserved") {
			t.Errorf("%s: got %v, want reserved", name, err)
		}
		if err := tools.NewRegistry().RegisterBuiltin(reserved); err != nil {
			t.Errorf("built-in tool: %v", err)
		}
	}
	if err := r.Register(good); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range r.Tools() {
		names = append(names, tool.Name)
	}
	if !slices.Equal(names, []string{tools.AgentCall, tools.AgentPoll, tools.CallAgent, tools.DebateCall, tools.ListAgents, tools.NoteSession, tools.ReadBlob, tools.ReadSession, tools.Remind, tools.RequestCapability, tools.RecordJoin, tools.RecordRoute, "x"}) {
		t.Errorf("got tools %v", names)
	}
}

func TestTargetUsesCallersKey(t *testing.T) {
	for _, c := range []struct {
		name string
		want string
	}{
		{"helper", "helper/s-1"},
		{"helper/x", "helper/x"},
		{"a/b/c", ""},
		{"/x", ""},
		{"a b", ""},
	} {
		id, err := tools.Target(c.name, planner)
		if (err == nil) != (c.want != "") || err == nil && id.String() != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.name, id, err, c.want)
		}
	}
	if id, _ := tools.Target("helper", actor.ID{Tenant: "acme", Agent: "a", Key: "k"}); id.String() != "acme/helper/k" {
		t.Errorf("in another tenant: %s", id)
	}
}

// checkPlan verifies that Plan returns a valid ask or an encodable refusal,
// deterministically, for any input.
func checkPlan(t interface{ Fatalf(string, ...any) }, r *tools.Registry, input []byte) {
	ask, done := r.Plan(fullContext(), askTool(tools.CallAgent, string(input)))
	again, doneAgain := r.Plan(fullContext(), askTool(tools.CallAgent, string(input)))
	if !reflect.DeepEqual(ask, again) || !reflect.DeepEqual(done, doneAgain) {
		t.Fatalf("%q: two different results", input)
	}
	if done == nil {
		if _, err := tools.Target(ask.Name, planner); err != nil || ask.Kind != actor.AskCall || ask.Timeout < 0 {
			t.Fatalf("%q becomes %+v, %v", input, ask, err)
		}
		return
	}
	if done.Refusal == nil || done.Refusal.Reason != actor.Invalid {
		t.Fatalf("%q: got %+v, want Invalid", input, done)
	}
	var e actor.Encoder
	e.Refusal(done.Refusal)
	d := actor.NewDecoder(e.Buf)
	if d.Refusal(); d.End() != nil {
		t.Fatalf("%q: the refusal cannot be decoded: %v", input, d.Err())
	}
}

func TestPlanRandomInput(t *testing.T) {
	r := tools.NewRegistry()
	member := rapid.SampledFrom([]string{`"agent_id":"helper"`, `"agent_id":3`, `"message":"hi"`, `"message":[{}]`, `"timeout_ms":5`,
		`"timeout_ms":0`, `"timeout_ms":1e400`, `"timeout_ms":-0.0`, `"x":{"a":[1,null]}`, `"agent_id"`, `:`, `"\ud800":1`})
	rapid.Check(t, func(t *rapid.T) {
		checkPlan(t, r, []byte("{"+strings.Join(rapid.SliceOfN(member, 0, 5).Draw(t, "members"), ",")+"}"))
	})
}

func FuzzCallAgent(f *testing.F) {
	r := tools.NewRegistry()
	f.Add([]byte(`{"agent_id":"helper/s","message":"hi","timeout_ms":30000}`))
	f.Add([]byte(`{"agent_id":"helper","message":"hi","timeout_ms":1e999,"x":[[[{}]]]}`))
	f.Fuzz(func(t *testing.T, input []byte) { checkPlan(t, r, input) })
}

// TestRegistryConcurrentReads shares one registry between goroutines, for the race
// detector.
func TestRegistryConcurrentReads(t *testing.T) {
	r := registryWithUpper(t)
	done := make(chan bool)
	for range 4 {
		go func() {
			for range 50 {
				_, call := r.Plan(fullContext(), askTool(tools.CallAgent, `{"agent_id":"helper","message":"hi","timeout_ms":0}`))
				_, tool := r.Plan(fullContext(), askTool("text.upper", `{"texts":["a","toolong"]}`))
				if call == nil || tool == nil {
					t.Error("invalid input was accepted")
				}
			}
			done <- true
		}()
	}
	for range 4 {
		<-done
	}
}

func BenchmarkPlanCallAgent(b *testing.B) {
	r, ec := tools.NewRegistry(), fullContext()
	ask := askTool(tools.CallAgent, `{"agent_id":"helper","message":"hi","timeout_ms":30000}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, done := r.Plan(ec, ask); done != nil {
			b.Fatal(done)
		}
	}
}

// A handler that runs within a cell must not terminate it.
func TestPanicOfContextHandlerIsUnavailable(t *testing.T) {
	r := tools.NewRegistry()
	err := r.RegisterBuiltin(tools.Tool{Name: "whoami", Schema: `{"type":"object"}`,
		ContextHandler: func([]byte, tools.ExecutionContext) (actor.Ask, *tools.Result) { panic("lost") }})
	if err != nil {
		t.Fatal(err)
	}
	_, done := r.Plan(fullContext(), askTool("whoami", `{}`))
	if done == nil || done.Refusal == nil || done.Refusal.Reason != actor.Unavailable || done.Refusal.Detail != "whoami: panic: lost" {
		t.Errorf("got %+v, want Unavailable", done)
	}
}
