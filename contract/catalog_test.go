// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/tools"
)

// npv is the capability of the examples.
func npv() actor.Capability {
	return actor.Capability{Code: "ANL_NPV", Version: "1.0", Description: "Net present value of cash flows.", UserText: "the financial implications",
		Input: `{"type":"object","required":["cash_flows","discount_rate"],"properties":{
			"cash_flows":{"type":"array","items":{"type":"number"},"minItems":2,
				"x-error-message":"Cash flows array must contain at least two values (initial investment and one return period)"},
			"discount_rate":{"type":"number","minimum":0},"periods":{"enum":["annual","monthly"]}}}`,
		Output:  `{"type":"object","required":["npv"],"properties":{"npv":{"type":"number"}}}`,
		Example: jsontext.Value(`{"cash_flows":[-1,2],"discount_rate":0.1}`)}
}

func catalog(t *testing.T, all ...Declaration) *Catalog {
	t.Helper()
	c, err := NewCatalog(all)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDeclarations(t *testing.T) {
	with := func(change func(*actor.Capability)) []Declaration {
		k := npv()
		change(&k)
		return []Declaration{{"analyst", "ANL", []actor.Capability{k}}}
	}
	other := npv()
	other.Version = "2.0"
	for want, all := range map[string][]Declaration{
		"":                                     {{"analyst", "ANL", []actor.Capability{npv()}}, {"second", "", []actor.Capability{npv()}}, {"idle", "ORC", nil}},
		"agent b: code ANL belongs to agent a": {{"a", "ANL", nil}, {"b", "ANL", nil}},
		`agent a: code "anl": want three capitals`:                          {{"a", "anl", nil}},
		`agent "a b": only letters`:                                         {{"a b", "", nil}},
		"agent a: capability ANL_NPV: is declared twice":                    {{"a", "", []actor.Capability{npv(), npv()}}},
		"agent b: capability ANL_NPV: agent a declares it otherwise":        {{"a", "", []actor.Capability{npv()}}, {"b", "", []actor.Capability{other}}},
		"code: want words of capitals":                                      with(func(k *actor.Capability) { k.Code = "npv" }),
		"description: want 1 to":                                            with(func(k *actor.Capability) { k.Description = "" }),
		"user_text: want a line":                                            with(func(k *actor.Capability) { k.UserText = "a\nb" }),
		"version: want at most":                                             with(func(k *actor.Capability) { k.Version = strings.Repeat("1", 65) }),
		"timeout_ms: want 1 to":                                             with(func(k *actor.Capability) { k.Timeout = 25 * time.Hour }),
		"input schema: want the JSON schema of an object":                   with(func(k *actor.Capability) { k.Input = `{"type":"array"}` }),
		"input schema: a $ref leads back to the subschema that contains it": with(func(k *actor.Capability) { k.Input = `{"type":"object","properties":{"next":{"$ref":"#"}}}` }),
		"output schema: a $ref leads back":                                  with(func(k *actor.Capability) { k.Output = `{"type":"object","properties":{"next":{"$ref":"#"}}}` }),
		"input schema: want the JSON schema of an object: ":                 with(func(k *actor.Capability) { k.Input = `{"type":"object","$ref":"file:///etc/passwd"}` }),
		"example: inputs_json/discount_rate: is missing":                    with(func(k *actor.Capability) { k.Example = jsontext.Value(`{"cash_flows":[1,2]}`) }),
		"example: Cash flows array must contain at least two values (":      with(func(k *actor.Capability) { k.Example = jsontext.Value(`{"cash_flows":[1],"discount_rate":0}`) }),
	} {
		_, err := NewCatalog(all)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// The error of the example comes out to the letter.
func TestInputsAndResultsFitTheirSchemas(t *testing.T) {
	c := catalog(t, Declaration{"analyst", "ANL", []actor.Capability{npv(), {Code: "ANL_FREE", Description: "d"}}})
	in, _ := DecodeRequest(readExample(t, "request"))
	if v := c.CheckInputs("ANL_NPV", in.Inputs); v != nil {
		t.Errorf("the inputs of the example: %v", v)
	}
	want, _ := DecodeResponse(string(readExample(t, "error")), "sess-789-20250118-143105", DefaultLevels())
	got := Invalid(want.ID, c.CheckInputs("ANL_NPV", jsontext.Value(`{"cash_flows":[-100000],"discount_rate":0.12}`)))
	if got.ErrorCode != want.ErrorCode || got.ErrorMessage != want.ErrorMessage || got.Metadata.Field != "inputs_json/cash_flows" {
		t.Errorf("got %s %q, want %s %q", got.ErrorCode, got.ErrorMessage, want.ErrorCode, want.ErrorMessage)
	}
	for inputs, want := range map[string]string{
		`{"cash_flows":[1,2]}`:                               "DATA_MISSING_REQUIRED_INPUT inputs_json/discount_rate: is missing",
		`{"cash_flows":[1,"x"],"discount_rate":0}`:           "INPUT_VALIDATION_FAILED Cash flows array",
		`{"cash_flows":[1,2],"discount_rate":-1}`:            "INPUT_VALIDATION_FAILED inputs_json/discount_rate: ",
		`{"cash_flows":[1,2],"discount_rate":0,"periods":1}`: "INPUT_VALIDATION_FAILED inputs_json/periods: ",
	} {
		if v := c.CheckInputs("ANL_NPV", jsontext.Value(inputs)); v == nil || !strings.HasPrefix(v.Code+" "+v.Error(), want) {
			t.Errorf("%s: got %v, want %s", inputs, v, want)
		}
	}
	if v := c.CheckInputs("ANL_FREE", jsontext.Value(`{"any":[1]}`)); v != nil {
		t.Error(v)
	}
	for result, want := range map[string]string{`{"npv":1}`: "", `{"npv":"1"}`: "result_json/npv", `{}`: "result_json/npv", `[]`: "result_json"} {
		v := c.CheckResult("ANL_NPV", &Response{Result: jsontext.Value(result)})
		if (v == nil) != (want == "") || v != nil && (v.Code != OutputViolation || v.Field != want) {
			t.Errorf("%s: got %v, want %q", result, v, want)
		}
	}
	if v := c.CheckResult("ANL_NPV", &Response{}); v != nil {
		t.Errorf("no result: %v", v)
	}
}

func TestUnknownCapabilityNamesNearOnes(t *testing.T) {
	c := catalog(t, Declaration{"a", "", []actor.Capability{{Code: "DOC_GENERATE", Description: "d"}, {Code: "DOC_GENERATOR", Description: "d"}, {Code: "ANL_NPV", Description: "d"}}})
	for code, want := range map[string]string{
		"DOC_GENERAT": "did you mean DOC_GENERATE or DOC_GENERATOR?",
		"XYZ_UNKNOWN": "XYZ_UNKNOWN is no registered capability",
	} {
		_, v := c.Find(code)
		if v == nil || v.Field != "capability_code" || !strings.HasSuffix(v.Rule, want) {
			t.Errorf("%s: got %v, want %q", code, v, want)
		}
	}
	k, v := c.Find("ANL_NPV")
	if v != nil || k.Code != "ANL_NPV" {
		t.Error(k, v)
	}
	if got := (&Request{}).TimeoutFor(k); got != TimeoutDefault {
		t.Errorf("got the timeout %v", got)
	}
	slow := actor.Capability{Timeout: time.Hour}
	if got, given := (&Request{}).TimeoutFor(&slow), (&Request{Timeout: time.Second}).TimeoutFor(&slow); got != time.Hour || given != time.Second {
		t.Errorf("got the timeouts %v and %v", got, given)
	}
}

func TestRoutes(t *testing.T) {
	k := []actor.Capability{{Code: "DOC_GENERATE", Description: "d"}}
	c := catalog(t, Declaration{"a", "AAA", k}, Declaration{"b", "BBB", k}, Declaration{"c", "", k}, Declaration{"other", "OTH", []actor.Capability{{Code: "OTH_ONE", Description: "d"}}})
	open := actor.RefuseUnavailable(4*time.Second, "circuit open")
	later := actor.RefuseUnavailable(9*time.Second, "circuit open")
	for name, test := range map[string]struct {
		target, code   string
		load           map[string]int
		down           map[string]*actor.Refusal
		want, why, bad string
	}{
		"least loaded":      {"", "DOC_GENERATE", map[string]int{"a": 3, "b": 1, "c": 2}, nil, "b", "least loaded", ""},
		"healthy ones only": {"", "DOC_GENERATE", map[string]int{"a": 3, "b": 1, "c": 2}, map[string]*actor.Refusal{"b": open}, "c", "least loaded", ""},
		"only owner":        {"", "OTH_ONE", nil, nil, "other", "only owner", ""},
		"by ID":             {"c", "DOC_GENERATE", map[string]int{"c": 9}, nil, "c", "named", ""},
		"by code":           {"BBB", "DOC_GENERATE", nil, nil, "b", "named", ""},
		"named and down":    {"BBB", "DOC_GENERATE", nil, map[string]*actor.Refusal{"b": open}, "b", "named", "circuit open"},
		"no owner":          {"other", "DOC_GENERATE", nil, nil, "", "", "capability_code: agent other does not own DOC_GENERATE; its owners are a, b, c"},
		"no agent":          {"ZZZ", "DOC_GENERATE", nil, nil, "", "", "capability_code: agent ZZZ does not own DOC_GENERATE; its owners are a, b, c"},
		"no capability":     {"", "DOC_GENERAT", nil, nil, "", "", "capability_code: DOC_GENERAT is no registered capability; did you mean DOC_GENERATE?"},
		"all down":          {"", "DOC_GENERATE", nil, map[string]*actor.Refusal{"a": later, "b": open, "c": later}, "", "", "DOC_GENERATE: none of its 3 owners is available: circuit open"},
	} {
		choice, v, refusal := c.Route(test.target, test.code, "s", func(agent string) (int, *actor.Refusal) { return test.load[agent], test.down[agent] })
		bad := ""
		switch {
		case v != nil:
			bad = v.Error()
		case refusal != nil:
			bad = refusal.Detail
		}
		if choice.Agent != test.want || choice.Why != test.why || bad != test.bad {
			t.Errorf("%s: got %+v %q, want %s, %s, %q", name, choice, bad, test.want, test.why, test.bad)
		}
		if name == "all down" && (refusal.Reason != actor.Unavailable || refusal.RetryAfter != 4*time.Second || len(choice.Candidates) != 3) {
			t.Errorf("%s: %+v with %+v", name, refusal, choice)
		}
	}
}

// A session stays with its owner, sessions are spread, and an owner that leaves moves only its own.
func TestTiesStayWithTheirSession(t *testing.T) {
	owners := func(n int) *Catalog {
		var all []Declaration
		for i := range n {
			all = append(all, Declaration{fmt.Sprintf("agent-%d", i), "", []actor.Capability{{Code: "DOC_GENERATE", Description: "d"}}})
		}
		return catalog(t, all...)
	}
	idle := func(string) (int, *actor.Refusal) { return 0, nil }
	five, four := owners(5), owners(4)
	count := map[string]int{}
	for i := range 1000 {
		session := fmt.Sprintf("s-%d", i)
		choice, _, _ := five.Route("", "DOC_GENERATE", session, idle)
		again, _, _ := five.Route("", "DOC_GENERATE", session, idle)
		if again.Agent != choice.Agent || choice.Why != "tie" {
			t.Fatalf("%s: %+v, then %+v", session, choice, again)
		}
		count[choice.Agent]++
		if fewer, _, _ := four.Route("", "DOC_GENERATE", session, idle); choice.Agent != "agent-4" && fewer.Agent != choice.Agent {
			t.Fatalf("%s moved from %s to %s when agent-4 left", session, choice.Agent, fewer.Agent)
		}
	}
	for agent, n := range count {
		if n < 120 || n > 280 {
			t.Errorf("%s gets %d of 1000 sessions", agent, n)
		}
	}
	if choice, _, _ := owners(40).Route("", "DOC_GENERATE", "s", idle); len(choice.Candidates) != candidatesMax || choice.Owners != 40 || !slices.IsSortedFunc(choice.Candidates, func(a, b Candidate) int { return strings.Compare(a.Agent, b.Agent) }) {
		t.Errorf("%+v", choice)
	}
}

// BenchmarkRoute routes among 1,000 agents, ten of which own each capability.
func BenchmarkRoute(b *testing.B) {
	var all []Declaration
	loads := map[string]int{}
	for i := range 1000 {
		agent := fmt.Sprintf("agent-%d", i)
		loads[agent] = i % 3
		all = append(all, Declaration{agent, "", []actor.Capability{{Code: fmt.Sprintf("CAP_%d", i%100), Description: "d"}}})
	}
	c, err := NewCatalog(all)
	if err != nil {
		b.Fatal(err)
	}
	state := func(agent string) (int, *actor.Refusal) { return loads[agent], nil }
	for b.Loop() {
		if choice, _, _ := c.Route("", "CAP_42", "session-7", state); choice.Agent == "" {
			b.Fatal("no owner")
		}
	}
}

// A catalog takes the compiled schemas of a former one for capabilities that have not changed.
func TestSchemasAreCompiledOnce(t *testing.T) {
	former := catalog(t, Declaration{"analyst", "ANL", []actor.Capability{npv()}})
	changed := npv()
	changed.Output = `{"type":"object"}`
	example := npv()
	example.Example = jsontext.Value(`{"cash_flows":[-1,3],"discount_rate":0.1}`)
	for name, c := range map[string]struct {
		capability actor.Capability
		again      bool
	}{"same": {npv(), true}, "another schema": {changed, false}, "another example": {example, false}} {
		next, err := NewCatalog([]Declaration{{"second", "", []actor.Capability{c.capability}}}, nil, former)
		if err != nil {
			t.Fatal(err)
		}
		if again := next.row("ANL_NPV").input == former.row("ANL_NPV").input; again != c.again {
			t.Errorf("%s: the schema of the former catalog is used: %t, want %t", name, again, c.again)
		}
		if owners := next.row("ANL_NPV").ownerNames(); owners != "second" {
			t.Errorf("%s: the owners are %s", name, owners)
		}
	}
}

// A session stays with one owner, whether an agent asks with the tool or a service with an envelope.
func TestToolAndEnvelopeChooseTheSameOwner(t *testing.T) {
	k := actor.Capability{Code: "DOC_GENERATE", Description: "d"}
	var declared []Declaration
	var defs []actor.Definition
	for _, name := range []string{"a", "b", "c"} {
		declared = append(declared, Declaration{Agent: name, Capabilities: []actor.Capability{k}})
		defs = append(defs, actor.Definition{Name: name, Kind: actor.External, Provides: []actor.Capability{k}})
	}
	c, registry, agents := catalog(t, declared...), tools.NewRegistry(), tools.NewAgents(defs)
	seen := map[string]bool{}
	for i := range 30 {
		session := fmt.Sprint("s-", i)
		choice, _, _ := c.Route("", k.Code, session, func(string) (int, *actor.Refusal) { return 0, nil })
		call := actor.Call{To: actor.ID{Tenant: actor.DefaultTenant, Agent: "asker", Key: session}}
		ask, result := registry.Plan(tools.ExecutionContext{AgentID: "asker", Call: call, CallChain: []string{}, Agents: agents, Dispatcher: dispatcher.Asks{}},
			actor.Ask{Kind: actor.AskTool, Name: tools.RequestCapability, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"capability_code":"DOC_GENERATE","inputs_json":{}}`)}}})
		if result != nil || ask.Name != choice.Agent+"/"+session && ask.Name != choice.Agent {
			t.Fatalf("%s: the tool chooses %q (%+v), an envelope %s", session, ask.Name, result, choice.Agent)
		}
		seen[choice.Agent] = true
	}
	if len(seen) != 3 {
		t.Errorf("the sessions have %d of 3 owners", len(seen))
	}
}
