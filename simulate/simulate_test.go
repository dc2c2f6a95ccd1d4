// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/sim"
	"github.com/troupe-run/troupe/upstream"
)

const project = "../examples/project"

func mustLoad(t *testing.T, dir string) *Team {
	t.Helper()
	team, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return team
}

// The bug of the example project is reported with the calls that lead to it. Without
// the bug all expectations hold.
func TestExampleProjectHasCycle(t *testing.T) {
	team := mustLoad(t, project)
	r, err := Run(team, Options{Seeds: 2})
	if err != nil {
		t.Fatal(err)
	}
	if r.OK() || !strings.Contains(r.Failures[0].Property, "Cycle") || !strings.Contains(r.Failures[0].Detail, "billing/") {
		t.Fatalf("failures %+v, want a Cycle at billing", r.Failures)
	}
	var b strings.Builder
	r.Print(&b, func(seed uint64) string { return fmt.Sprint("see seed ", seed) })
	for _, want := range []string{"client requests", "shipping → billing", " of 2 simulations: at most 0 Cycle refusals in a simulation", "see seed 1\n", "maximum call depth 2"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report does not contain %q:\n%s", want, b.String())
		}
	}
	team.Models = slices.DeleteFunc(team.Models, func(r Rule) bool { return r.Agent == "shipping" })
	team.Models = append(team.Models, Rule{Agent: "shipping", Says: []string{"It is on its way."}})
	Test(t, team, Options{Seeds: 2})
}

func TestSameSeedSameResult(t *testing.T) {
	team := mustLoad(t, project)
	one, err1 := Run(team, Options{First: 7, Seeds: 1})
	two, err2 := Run(team, Options{First: 7, Seeds: 1})
	if err1 != nil || err2 != nil || !reflect.DeepEqual(one, two) {
		t.Errorf("%+v, %v\n%+v, %v", one, err1, two, err2)
	}
}

// A team may have agents of any kind. A folder that contains only agents, and no
// sim.toml, is a team.
func TestTeamOfAllAgentKinds(t *testing.T) {
	team := mustLoad(t, "../examples/team")
	team.Agents = append(team.Agents, agents.Define("clerk", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		reply, err := t.Call("helper", t.Message())
		if err != nil {
			return "", err
		}
		if _, err := t.Tool("stamp", nil); err != nil {
			return "", err
		}
		signal, err := t.Wait("approved", time.Minute)
		return reply + string(signal), err
	}))))
	outside, err := agents.ReadTOML("name = \"ext\"\nendpoint = \"http://ext.example\"\n")
	if err != nil {
		t.Fatal(err)
	}
	team.Specs = append(team.Specs, outside)
	team.Tools = []Tool{{Name: "stamp"}}
	team.Signals = []Signal{{Name: "approved", Says: []string{" yes"}}}
	percent := 40 // some requests wait for a signal that never arrives
	team.Expect = []Expect{{SucceededPercent: &percent}}
	r := Test(t, team, Options{Seeds: 2, Faultless: true})
	if len(r.Total.Agents) != 4 || r.Total.Depth < 1 || r.Total.Held == 0 || len(r.Faults) > 0 {
		t.Errorf("%+v, %v", r.Total, r.Faults)
	}
}

// An agent whose result depends on more than its message is detected, because its
// replayed turn differs.
func TestNondeterministicAgentIsDetected(t *testing.T) {
	var turns atomic.Int64 // seeds run at the same time
	team := &Team{Agents: []actor.Definition{agents.Define("impure", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		return fmt.Sprint(turns.Add(1)), nil
	})))}}
	r, err := Run(team, Options{Seeds: 10, Faultless: true})
	found := slices.ContainsFunc(r.Failures, func(f Failure) bool { return f.Property == sim.SameTurns })
	if err != nil || !found { // a seed without a replayed turn differs from its second run
		t.Errorf("%+v, %v", r, err)
	}
}

// A violated spec leaves a report folder, which names the command to reproduce it.
func TestFailureFolderNamesReplayCommand(t *testing.T) {
	dir := t.TempDir()
	def := agents.Define("panicking", "1", "", panicBehavior{})
	r, err := Run(&Team{Agents: []actor.Definition{def}}, Options{Seeds: 1, Faultless: true, Dir: dir})
	if err != nil || r.OK() || r.Failures[0].Property != "CellNeverPanics" || r.Failures[0].Dir == "" {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, _, err := sim.Replay(r.Failures[0].Dir, false, &strings.Builder{}, sim.Backends{}); err == nil || !strings.Contains(err.Error(), "--project DIR --seed 1") {
		t.Errorf("replay without the team: %v", err)
	}
}

// Violated expectations do not count towards the limit of report folders.
func TestFailureFoldersLimit(t *testing.T) {
	none, dir := 0, t.TempDir()
	team := &Team{Agents: []actor.Definition{agents.Define("panicking", "1", "", panicBehavior{})}, Expect: []Expect{{Refusals: "any", AtMost: none}}}
	r := &Result{}
	for range 5 {
		r.Failures = append(r.Failures, Failure{Property: "at most 0 refusals in a simulation"})
	}
	simTeam, err := team.build()
	if err != nil {
		t.Fatal(err)
	}
	simOptions := sim.Options{Seed: 1, Faultless: true, Team: simTeam}
	broken := sim.RunSeed(simOptions)
	for seed := range uint64(4) {
		broken.Seed = seed
		r.addFailure(Options{Dir: dir}, simOptions, broken)
	}
	for i, f := range r.Failures[5:] {
		if (f.Dir != "") != (i < 3) {
			t.Errorf("report folder of failure %d: %q", i+1, f.Dir)
		}
	}
}

// If an expectation over all simulations fails, it is reported once, with the number of
// simulations and the worst seed.
func TestPrintAggregateFailure(t *testing.T) {
	var b strings.Builder
	(&Result{Seeds: 20, Failures: []Failure{{Seed: 7, Property: "at least 90 %", Aggregate: true}}}).Print(&b, nil)
	if !strings.Contains(b.String(), "FAILED over 20 simulations: at least 90 %\n  seeds 7 (the worst)\n") {
		t.Error(b.String())
	}
}

// panicBehavior panics in Behavior.Begin, outside the recovery of an agent's turn.
type panicBehavior struct{}

func (panicBehavior) Begin(actor.Begin) actor.Turn { panic("requested panic") }

func TestInvalidTeamsAreRejected(t *testing.T) {
	clerk := agents.Define("clerk", "1", "", agents.Blocking(agents.Helper{}))
	none := -1
	for name, test := range map[string]struct {
		team Team
		want string
	}{
		"no agents":                     {Team{}, "no agents"},
		"reserved name":                 {Team{Agents: []actor.Definition{clerk, agents.Define("troupe.x", "1", "", agents.Blocking(agents.Helper{}))}}, `agent "troupe.x" is reserved`},
		"reserved tool name":            {Team{Agents: []actor.Definition{clerk}, Tools: []Tool{{Name: "troupe.x"}}}, `tool "troupe.x" is reserved`},
		"duplicate name":                {Team{Agents: []actor.Definition{clerk, clerk}}, "two agents"},
		"an unknown agent":              {Team{Agents: []actor.Definition{clerk}, Asks: []Ask{{Agent: "clark"}}}, `ask 1: unknown agent "clark"`},
		"excessive timeout":             {Team{Agents: []actor.Definition{clerk}, Asks: []Ask{{Agent: "clerk", TimeoutMS: 60_001}}}, "timeout_ms"},
		"rule for unknown agent":        {Team{Agents: []actor.Definition{clerk}, Models: []Rule{{Agent: "x", Script: true}}}, "model 1"},
		"empty rule":                    {Team{Agents: []actor.Definition{clerk}, Services: []Rule{{}}}, "service 1 has no answers"},
		"invalid tool name":             {Team{Agents: []actor.Definition{clerk}, Tools: []Tool{{Name: "a b"}}}, "a b"},
		"empty expectation":             {Team{Agents: []actor.Definition{clerk}, Expect: []Expect{{}}}, "expect 1: want one of"},
		"unknown reason":                {Team{Agents: []actor.Definition{clerk}, Expect: []Expect{{Refusals: "Boredom"}}}, "want any, a code such as call_cycle, or one of Busy"},
		"negative percentage":           {Team{Agents: []actor.Definition{clerk}, Expect: []Expect{{SucceededPercent: &none}}}, "0 to 100"},
		"expectation for unknown agent": {Team{Agents: []actor.Definition{clerk}, Expect: []Expect{{Refusals: "any", Agent: "x"}}}, `unknown agent "x"`},
		"tool call of a service":        {Team{Agents: []actor.Definition{clerk}, Services: []Rule{{Uses: []Use{{Tool: "t"}}}}}, "service 1 uses a tool"},
		"script with when":              {Team{Agents: []actor.Definition{clerk}, Models: []Rule{{Script: true, When: "x"}}}, "model 1 has script = true"},
		"depth of one agent":            {Team{Agents: []actor.Definition{clerk}, Expect: []Expect{{DepthAtMost: new(int), Agent: "clerk"}}}, "apply to the whole team"},
		"at_most without refusals":      {Team{Agents: []actor.Definition{clerk}, Expect: []Expect{{DepthAtMost: new(int), AtMost: 1}}}, "at_most"},
	} {
		if _, err := Run(&test.team, Options{Seeds: 1}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	for text, want := range map[string]string{
		"[[ask]]\nagnet = 1":                 "ask.agnet is unknown; [[ask]] has agent, message, timeout_ms",
		"asks = 1":                           "asks is unknown; a sim.toml has the tables ask, model",
		"[[model]]\nuses = [{ tol = 1 }]":    "[[model.uses]] has tool, input",
		"[[service]]\nuses = [{ tol = 1 }]":  "[[service]] has",
		"[[ask]\n":                           "line 2",
		"[[ask]]\nagent = 1.":                "line 2",
		strings.Repeat("#", rulesBytesMax+1): "bytes, at most",
	} {
		if err := new(Team).Rules(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
	for name, file := range map[string]string{"missing folder": "", "agents/a.toml": "nmae = 1", "sim.toml": "x"} {
		dir := t.TempDir()
		if path := filepath.Join(dir, name); file != "" {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
				t.Fatal(err)
			}
		} else {
			dir = path
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), filepath.Base(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// choiceList returns the numbers of a list, and then 0.
type choiceList struct{ rest []int }

func (l *choiceList) Int(n int) int {
	i := 0
	if len(l.rest) > 0 {
		i, l.rest = min(l.rest[0], n-1), l.rest[1:]
	}
	return i
}

// A tool of an MCP server that the folder declares is a stub without a rule. A rule replaces it.
func TestToolsOfMCPServersAreStubs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"agents/desk.toml":    "name = \"desk\"\ntools = [\"tracker.find\", \"tracker.add\", \"other.find\"]\n",
		"agents/servers.toml": "[mcp.tracker]\ncommand = \"no-such-program\"\n",
		"sim.toml":            "[[tool]]\nname = \"tracker.add\"\nsays = [\"added\"]\n",
	} {
		if err := os.MkdirAll(filepath.Join(dir, "agents"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	team, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tool := range team.Tools {
		got = append(got, fmt.Sprint(tool.Name, tool.Says))
	}
	if want := []string{"tracker.add[added]", "tracker.find[]"}; !slices.Equal(got, want) {
		t.Errorf("stubs: %q, want %q", got, want)
	}
}

func TestStubRules(t *testing.T) {
	team := &Team{Specs: []agents.Spec{{ID: "a", Agents: []string{"b"}}, {ID: "b"}, {ID: "c"}}, Models: []Rule{
		{Agent: "a", When: "red", Says: []string{"stop"}},
		{Agent: "a", When: "result", Uses: []Use{{Tool: "t", Input: `{"x":1}`}}},
		{Agent: "a", Says: []string{"one", "two"}, Calls: []Call{{Agent: "b", Message: "about {message}"}}},
		{Agent: "b", Script: true},
	}}
	user := func(text string) upstream.Prompt {
		return upstream.Prompt{Messages: []upstream.Message{{Role: upstream.User, Text: text}}}
	}
	used := func(text string) upstream.Prompt {
		p := user("it")
		p.Messages = append(p.Messages, upstream.Message{Role: upstream.Assistant, Calls: []upstream.ToolCall{{ID: "1", Name: "t"}}}, upstream.Message{Role: upstream.Tool, CallID: "1", Text: text})
		return p
	}
	offered := user("anything")
	offered.Tools = []upstream.ToolSpec{{Name: "call_agent", Schema: "{}"}, {Name: "t", Schema: "{}"}}
	for name, test := range map[string]struct {
		agent   string
		prompt  upstream.Prompt
		choices []int
		want    string
	}{
		"rule with when":          {"a", user("a red light"), nil, "stop"},
		"first answer":            {"a", user("it"), nil, "one"},
		"second answer":           {"a", user("it"), []int{1}, "two"},
		"call":                    {"a", user("it"), []int{2}, `call_agent {"agent_id":"b","message":"about it"}`},
		"tool result":             {"a", used("nothing"), nil, "nothing"},
		"tool result with a rule": {"a", used("the result"), nil, `t {"x":1}`},
		"script":                  {"b", user("say hello"), nil, "hello"},
		"default answer":          {"c", offered, nil, "the answer of c"},
		"default call":            {"c", offered, []int{1, 0, 2}, `call_agent {"agent_id":"a","message":"question 3 of c"}`},
		"default tool call":       {"c", offered, []int{2}, `t {}`},
	} {
		completion := team.model(&choiceList{test.choices}, test.agent, test.prompt)
		got := completion.Text
		for _, call := range completion.Calls {
			got += call.Name + " " + call.Arguments
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	// The spec limits the agents that a model may call.
	team.Models = nil
	if completion := team.model(&choiceList{[]int{1, 9}}, "a", offered); !strings.Contains(completion.Calls[0].Arguments, `"agent_id":"b"`) {
		t.Error(completion)
	}
}

func TestExpectations(t *testing.T) {
	report := &sim.Report{Depth: 3, FanOut: 4, Refusals: []sim.RefusalCount{{Reason: actor.Cycle, Agent: "a", Count: 2, FirstExample: "x → a"}, {Reason: actor.Busy, Agent: "b", Count: 3}}}
	three, two := 3, 2
	for _, test := range []struct {
		x    Expect
		want string
	}{
		{Expect{Refusals: "Cycle", AtMost: 2}, ""},
		{Expect{Refusals: "call_cycle", AtMost: 2}, ""},
		{Expect{Refusals: "Cycle", AtMost: 1}, "2, the first: Cycle, x → a"},
		{Expect{Refusals: "Cycle", Agent: "b"}, ""},
		{Expect{Refusals: "any", AtMost: 4}, "5, the first"},
		{Expect{Refusals: "Depth"}, ""},
		{Expect{DepthAtMost: &three}, ""},
		{Expect{DepthAtMost: &two}, "call at depth 3"},
		{Expect{FanOutAtMost: &three}, "4 concurrent calls"},
	} {
		if got := test.x.violation(report); test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", &test.x, got, test.want)
		}
	}
	half := 50
	s := successRate{expect: &Expect{SucceededPercent: &half, Agent: "a"}}
	s.add(1, &sim.Report{Agents: []sim.AgentCount{{Agent: "a", Asked: 4, Succeeded: 3}, {Agent: "b", Asked: 90}}})
	s.add(2, &sim.Report{Agents: []sim.AgentCount{{Agent: "a", Asked: 2, Succeeded: 0}}})
	if s.violation() != nil {
		t.Errorf("50 %% of requests succeeded: %+v", s)
	}
	s.add(3, &sim.Report{Agents: []sim.AgentCount{{Agent: "a", Asked: 2, Succeeded: 0}}})
	if f := s.violation(); f == nil || f.Seed != 2 || !strings.Contains(f.Detail, "3 of 8") {
		t.Errorf("%+v", f)
	}
}
