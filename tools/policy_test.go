// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

func ofOperator(agent string) tools.Caller {
	return tools.Caller{Agent: agent, Owner: actor.OperatorUser}
}

func newPolicy(t *testing.T, rules []tools.Rule, defaults ...string) *tools.Policy {
	t.Helper()
	defaults = append(defaults, "", "")
	p, err := tools.NewPolicy(rules, defaults[0], defaults[1])
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func declared(name, kind, policy string) *tools.Tool {
	return &tools.Tool{Name: name, Declared: &tools.Declared{Name: name, Kind: kind, Policy: policy}}
}

func TestPolicyOrder(t *testing.T) {
	p := newPolicy(t, []tools.Rule{
		{Tool: "payments.*", Agent: "audit-?", Decision: "allow"},
		{Tool: "payments.*", When: "args.amount > 100", Decision: "require_approval"},
		{Tool: "*.drop", Decision: "block"},
	}, "require_approval", "block")
	for _, c := range []struct{ agent, tool, kind, own, input, want string }{
		{"audit-1", "payments.send", tools.KindServer, "block", `{"amount":500}`, "allow by rule 1 (payments.*)"},
		{"audit-12", "payments.send", tools.KindServer, "block", `{"amount":500}`, "require_approval by rule 2 (payments.*)"},
		{"planner", "payments.send", tools.KindServer, "block", `{"amount":100}`, "block by policy of the tool"},
		{"planner", "payments.drop", tools.KindServer, "allow", `{"amount":1}`, "block by rule 3 (*.drop)"},
		{"planner", "weather", tools.KindServer, "", `{}`, "require_approval by default of server_tool"},
		{"planner", "weather", "", "", `{}`, "require_approval by default of server_tool"},
		{"planner", "camera", tools.KindClient, "", `{}`, "block by default of client_tool"},
		{"planner", "camera", tools.KindClient, "allow", `{}`, "allow by policy of the tool"},
	} {
		v := p.Decide(ofOperator(c.agent), declared(c.tool, c.kind, c.own), []byte(c.input))
		if got := v.Decision.String() + " by " + v.Rule; got != c.want {
			t.Errorf("%s %s %s: got %s, want %s", c.agent, c.tool, c.input, got, c.want)
		}
	}
	for _, p := range []*tools.Policy{p, newPolicy(t, []tools.Rule{{Tool: "*", Decision: "block"}}, "block")} {
		if v := p.Decide(ofOperator("planner"), &tools.Tool{Name: tools.CallAgent}, nil); v.Decision.String() != "allow" {
			t.Errorf("a tool of this program: got %+v", v)
		}
	}
	named := newPolicy(t, []tools.Rule{{Tool: tools.CallAgent, When: `args.agent_id == "b"`, Decision: "block"}, {Tool: "call_*", Decision: "block"}}, "block")
	for input, want := range map[string]string{`{"agent_id":"b"}`: "block", `{"agent_id":"c"}`: "allow"} {
		if v := named.Decide(ofOperator("planner"), &tools.Tool{Name: tools.CallAgent}, []byte(input)); v.Decision.String() != want {
			t.Errorf("a rule names a tool of this program, which is called with %s: got %+v", input, v)
		}
	}
	var none *tools.Policy
	if v := none.Decide(ofOperator("planner"), declared("a", tools.KindClient, ""), nil); v.Decision.String() != "allow" || v.Rule != "default of client_tool" {
		t.Errorf("no policy: got %+v", v)
	}
}

// A user may give an agent any ID that is free. A rule that allows calls of named agents is not
// theirs, unless it says so; other rules hold for everyone's agents.
func TestPolicyAsksWhoseAgent(t *testing.T) {
	p := newPolicy(t, []tools.Rule{
		{Tool: "pay", Agent: "audit-*", Decision: "allow"},
		{Tool: "pay", Agent: "mine-*", Owner: "alice", Decision: "allow"},
		{Tool: "pay", Owner: "carol", Decision: "block"},
		{Tool: "pay", Agent: "slow-*", Decision: "require_approval"},
		{Tool: "read", Decision: "allow"},
		{Tool: "ship", Agent: "*", Owner: "operator", Decision: "allow"},
	}, "block")
	for _, c := range []struct{ owner, agent, tool, want string }{
		{"operator", "audit-1", "pay", "allow by rule 1 (pay)"},
		{"mallory", "audit-1", "pay", "block by default of server_tool"},
		{"", "audit-1", "pay", "block by default of server_tool"}, // a record of an earlier version
		{"Operator", "audit-1", "pay", "block by default of server_tool"},
		{"alice", "mine-1", "pay", "allow by rule 2 (pay)"},
		{"mallory", "mine-1", "pay", "block by default of server_tool"},
		{"operator", "mine-1", "pay", "block by default of server_tool"},
		{"carol", "x", "pay", "block by rule 3 (pay)"},
		{"mallory", "slow-1", "pay", "require_approval by rule 4 (pay)"},
		{"operator", "slow-1", "pay", "require_approval by rule 4 (pay)"},
		{"mallory", "x", "read", "allow by rule 5 (read)"},
		{"operator", "x", "ship", "allow by rule 6 (ship)"},
		{"mallory", "x", "ship", "block by default of server_tool"},
	} {
		by := tools.Caller{Agent: c.agent, Owner: c.owner}
		v := p.Decide(by, declared(c.tool, tools.KindServer, ""), nil)
		if got := v.Decision.String() + " by " + v.Rule; got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
		if possible := p.Possible(by, declared(c.tool, tools.KindServer, "")); len(possible) != 1 || possible[0] != v {
			t.Errorf("%+v: possible %+v, decided %+v", c, possible, v)
		}
	}
	if got := p.Narrowed(); !slices.Equal(got, []int{1}) {
		t.Errorf("rules that leave the owner open: %v", got)
	}
}

func TestPossibleVerdicts(t *testing.T) {
	p := newPolicy(t, []tools.Rule{
		{Tool: "pay", Agent: "a*", When: "args.n > 1", Decision: "require_approval"},
		{Tool: "other", Decision: "block"},
		{Tool: "p*", Agent: "b", Decision: "block"},
	}, "block")
	var none *tools.Policy
	for _, c := range []struct {
		p           *tools.Policy
		agent, want string
	}{
		{p, "a", "require_approval: rule 1 (pay) when args.n > 1; allow: policy of the tool"},
		{p, "b", "block: rule 3 (p*)"},
		{p, "c", "allow: policy of the tool"},
		{none, "a", "allow: policy of the tool"},
	} {
		var all []string
		for _, v := range c.p.Possible(ofOperator(c.agent), declared("pay", tools.KindServer, "allow")) {
			all = append(all, v.Decision.String()+": "+v.Rule)
		}
		if got := strings.Join(all, "; "); got != c.want {
			t.Errorf("%s: got %s, want %s", c.agent, got, c.want)
		}
	}
}

func TestConditions(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 63) + "1" + strings.Repeat("}", 63)
	for _, c := range []struct {
		when, input   string
		blocks, allow bool // whether the rule applies if its decision is to block, and to allow
	}{
		{`args.n > 100`, `{"n":101}`, true, true},
		{`args.n > 100`, `{"n":100}`, false, false},
		{`args.n >= 100`, `{"n":1e2}`, true, true},
		{`args.n<100`, `{"n":99.999}`, true, true},
		{`args.n <= -1.5e3`, `{"n":-1500}`, true, true},
		{`args.n > 100`, `{"n":1e308}`, true, true},
		{`args.n > 100`, `{"n":18446744073709551617}`, true, true},
		{`args.n == 9007199254740993`, `{"n":9007199254740992}`, false, false},
		{`args.n == 9007199254740993`, `{"n":9007199254740993.0}`, true, true},
		{`args.n > 9007199254740992`, `{"n":9007199254740993}`, true, true},
		{`args.n <= 9007199254740992`, `{"n":9007199254740993}`, false, false},
		{`args.n > 18446744073709551616`, `{"n":18446744073709551617}`, true, true},
		{`args.n < 0.30000000000000000001`, `{"n":0.3}`, true, true},
		{`args.n in [12345678901234567890]`, `{"n":12345678901234567891}`, false, false},
		{`args.n > 100`, `{"n":1e999}`, true, false}, // no valid input
		{`args.n > 100`, `{"n":"101"}`, true, false},
		{`args.n > 100`, `{"n":[101]}`, true, false},
		{`args.n > 100`, `{"m":101}`, true, false},
		{`args.n > 100`, `[]`, true, false},
		{`args.n > 100`, `null`, true, false},
		{`args.n > 100`, ``, true, false},
		{`args.n != 100`, `{"n":100}`, false, false},
		{`args.n != 100`, `{"n":99}`, true, true},
		{`args.n < 100`, `{}`, true, false},
		{`args.n == 100`, `{"n":"100"}`, true, false},
		{`args.n == 100`, `{}`, true, false},
		{`args.n == 100`, `{"n":99}`, false, false},
		{`args.n != 100`, `{"n":"100"}`, true, false},
		{`args.n != 100`, `{"n":[]}`, true, false},
		{`args.n != 100`, `{}`, true, false},
		{`args.n != 100`, `junk`, true, false},
		{`args.n != null`, `{"n":1}`, true, true},
		{`args.n != null`, `{"n":null}`, false, false},
		{`args.n != null`, `{}`, true, false},
		{`args.n == null`, `{"n":null}`, true, true},
		{`args.n == null`, `{}`, true, false},
		{`args.n == true`, `{"n":true}`, true, true},
		{`args.n == true`, `{"n":1}`, true, false},
		{`args.n != true`, `{"n":"true"}`, true, false},
		{`args.s == "a b"`, `{"s":"a b"}`, true, true},
		{`args.s < "b"`, `{"s":"a"}`, true, true},
		{`args.s >= "b"`, `{"s":5}`, true, false},
		{`args.s in ["a", 1, null]`, `{"s":"a"}`, true, true},
		{`args.s in ["a", 1, null]`, `{"s":1.0}`, true, true},
		{`args.s in ["a", 1, null]`, `{"s":null}`, true, true},
		{`args.s in ["a", 1, null]`, `{"s":["a"]}`, true, false},
		{`args.s in ["a", 1]`, `{"s":"b"}`, false, false},
		{`args.s in ["a", 1]`, `{"s":2}`, false, false},
		{`args.s in ["a", 1]`, `{"s":true}`, true, false},
		{`args.s in ["a", 1]`, `{"s":null}`, true, false},
		{`args.s in ["a"]`, `{"s":7}`, true, false},
		{`args.s in ["a"]`, `{"s":{}}`, true, false},
		{`args.s matches "prod"`, `{}`, true, false},
		{`args.s in ["a"]`, `{}`, true, false},
		{`args.s matches "^prod-[0-9]+$"`, `{"s":"prod-12"}`, true, true},
		{`args.s matches "^prod-[0-9]+$"`, `{"s":"xprod-12"}`, false, false},
		{`args.s matches "prod"`, `{"s":7}`, true, false},
		{`args.s matches "(a*)*b"`, `{"s":"` + strings.Repeat("a", 16<<10) + `"}`, false, false},
		{`args.s matches "prod"`, `{"s":"` + strings.Repeat("a", 16<<10+1) + `"}`, true, false}, // too long: undetermined
		{`args.n < 9`, `{"n":1,"N":100}`, true, false},                                          // another argument is alike: a service may read either
		{`args.n > 9`, `{"N":100,"n":1}`, true, false},
		{`args.n > 9`, `{"N":1}`, true, false},
		{`args.user_id == "a"`, `{"user_id":"a","userId":"b"}`, true, false},
		{`args.key == "a"`, `{"key":"a","\u212aey":"b"}`, true, false}, // the sign of Kelvin
		{`args.a.b == 1`, `{"a":{"b":1,"B":2}}`, true, false},
		{`args.a.b == 1`, `{"A":{"b":2},"a":{"b":1}}`, true, false},
		{`args.a == 1`, `{"a":1,"aa":2,"b":{"A":3}}`, true, true},
		{`args.a.b.c == 1`, `{"a":{"b":{"c":1}}}`, true, true},
		{`args.a.b.c == 1`, `{"a":{"b":1}}`, true, false},
		{`args.a.b.c == 1`, `{"a":[{"b":{"c":1}}]}`, true, false},
		{`args` + strings.Repeat(".a", 63) + ` == 1`, deep, true, true},
		{`args.a == 1`, strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100), true, false},
	} {
		for decision, want := range map[string]bool{"block": c.blocks, "require_approval": c.blocks, "allow": c.allow} {
			p := newPolicy(t, []tools.Rule{{Tool: "*", When: c.when, Decision: decision}})
			v := p.Decide(ofOperator("a"), declared("t", tools.KindServer, "require_approval"), []byte(c.input))
			if got := v.Rule == "rule 1 (*)"; got != want {
				t.Errorf("%s with %.60s to %s: applies is %t, want %t", c.when, c.input, decision, got, want)
			}
		}
	}
}

func TestPolicyErrors(t *testing.T) {
	for _, c := range []struct {
		rule tools.Rule
		want string
	}{
		{tools.Rule{Decision: "allow"}, "rule 2: tool: is missing"},
		{tools.Rule{Tool: "pay ments", Decision: "allow"}, "rule 2: tool: want at most 128 letters"},
		{tools.Rule{Tool: strings.Repeat("*", 129), Decision: "allow"}, "rule 2: tool: want at most 128"},
		{tools.Rule{Tool: "*", Agent: "a/b", Decision: "allow"}, "rule 2: agent: want at most 128"},
		{tools.Rule{Tool: "*", Owner: "a\nb", Decision: "allow"}, `rule 2: owner: want the user whose agents are meant, or "operator", got "a\nb"`},
		{tools.Rule{Tool: "*"}, "rule 2: decision: is missing; want one of allow, require_approval and block"},
		{tools.Rule{Tool: tools.MemoryForget, Decision: "require_approval"}, "rule 2: decision: memory_forget is a tool of this program, whose calls wait for nobody; want allow or block"},
		{tools.Rule{Tool: tools.NoteSession, Decision: "require_approval"}, "rule 2: decision: note_session is a tool of this program"},
		{tools.Rule{Tool: tools.AgentCall, Decision: "require_approval"}, "rule 2: decision: agent_call is a tool of this program, whose calls wait for nobody; want allow or block"},
		{tools.Rule{Tool: "*", Decision: "deny"}, `rule 2: decision: want one of allow, require_approval and block, got "deny"`},
		{when("amount > 1"), "rule 2: when: want a comparison like args.amount > 100"},
		{when("args > 1"), "want a comparison"},
		{when("args.a"), "the operator is missing"},
		{when("args.a..b > 1"), "want names of letters"},
		{when("args.a[0] > 1"), "want names of letters"},
		{when("args.ä > 1"), "want names of letters"},
		{when("args" + strings.Repeat(".a", 65) + " > 1"), "at most 64 allowed"},
		{when("args.a => 1"), "want one of the operators"},
		{when("args.a contains 1"), "want one of the operators == != <= >= < > in matches"},
		{when("args.a > "), "want a constant in JSON after >"},
		{when("args.a > x"), "want a constant in JSON after >"},
		{when("args.a > 1 or true"), "want a constant in JSON"},
		{when("args.a > 1e999"), "out of the range of a float"},
		{when("args.a > true"), "want a number or a text after >"},
		{when("args.a == {}"), "want a number, a text, true, false or null after =="},
		{when("args.a == [1]"), "no list after another operator"},
		{when(`args.a in "a"`), "want a list after in"},
		{when(`args.a in 5`), "want a list after in"},
		{when(`args.a in []`), "want a list of"},
		{when(`args.a in [[1]]`), "want a list of"},
		{when(`args.a matches 5`), "want a regular expression in quotes"},
		{when(`args.a matches "("`), "want a regular expression after matches"},
		{when(`args.a matches "((a{1000}){1000}){1000}"`), "want a regular expression after matches"},
		{when(`args.a == "` + strings.Repeat("x", 1024) + `"`), "at most 1024 allowed"},
	} {
		_, err := tools.NewPolicy([]tools.Rule{{Tool: "*", Decision: "allow"}, c.rule}, "", "")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %s", c.rule, err, c.want)
		}
	}
	if _, err := tools.NewPolicy(nil, "deny", ""); err == nil || !strings.Contains(err.Error(), "policy_default: server_tool: want one of") {
		t.Errorf("server default: got %v", err)
	}
	if _, err := tools.NewPolicy(nil, "", "deny"); err == nil || !strings.Contains(err.Error(), "policy_default: client_tool: want one of") {
		t.Errorf("client default: got %v", err)
	}
	if _, err := tools.NewPolicy(make([]tools.Rule, 257), "", ""); err == nil || !strings.Contains(err.Error(), "at most 256 allowed") {
		t.Errorf("257 rules: got %v", err)
	}
}

func when(text string) tools.Rule { return tools.Rule{Tool: "*", When: text, Decision: "allow"} }

func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"*", "a.b", true}, {"a", "a", true}, {"a", "ab", false}, {"a?", "ab", true}, {"a?", "a", false}, {"a*c", "abbc", true},
		{"a*c", "abbcd", false}, {"*.get", "x.y.get", true}, {"a**b", "ab", true}, {"*a*b*c*", "xxaxbxcx", true}, {"*a*b*c*", "xxaxcxbx", false},
		{strings.Repeat("*a", 64), strings.Repeat("a", 63) + "b", false},
	} {
		p := newPolicy(t, []tools.Rule{{Tool: c.glob, Decision: "block"}})
		if got := p.Decide(ofOperator("x"), declared(c.name, tools.KindServer, ""), nil).Decision.String() == "block"; got != c.want {
			t.Errorf("%s matches %s: %t", c.glob, c.name, got)
		}
	}
}

func FuzzConditions(f *testing.F) {
	f.Add(`args.a > 1`, []byte(`{"a":1}`))
	f.Add(`args.a.b matches "^x"`, []byte(`{"a":{"b":"x"}}`))
	f.Add(`args.a in [1,"a",null]`, []byte(`{"a":null}`))
	f.Fuzz(func(t *testing.T, when string, input []byte) {
		for _, decision := range []string{"allow", "block"} {
			p, err := tools.NewPolicy([]tools.Rule{{Tool: "*", When: when, Decision: decision}}, "", "")
			if err != nil {
				return
			}
			first := p.Decide(ofOperator("a"), declared("t", tools.KindServer, ""), input)
			if again := p.Decide(ofOperator("a"), declared("t", tools.KindServer, ""), input); again != first {
				t.Fatal(fmt.Sprint(first, again))
			}
		}
	})
}
