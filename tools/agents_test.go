// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// The words of a user about an agent of its own reach neither the models of other users nor those
// of the operator, unless an agent names that one as its target.
func TestListedAgentsAreOfOperatorAndOwn(t *testing.T) {
	agent := func(name, owner string, kind actor.AgentKind) actor.Definition {
		return actor.Definition{Name: name, Owner: owner, Kind: kind, Doc: "about " + name}
	}
	all := tools.NewAgents([]actor.Definition{
		agent("alice1", "alice", actor.Declared), agent("alice2", "alice", actor.External),
		agent("bob1", "bob", actor.Declared), agent("bob2", "bob", actor.External),
		agent("file1", actor.OperatorUser, actor.Declared), agent("file2", actor.OperatorUser, actor.External),
		agent("go1", "", actor.Native), agent("here1", actor.LocalUser, actor.External), agent("old1", "", actor.Declared),
	})
	listed := regexp.MustCompile(`about (\w+)`)
	for _, c := range []struct {
		caller  string
		callees []string
		want    string
	}{
		{"alice1", nil, "alice2 file1 file2 go1 here1"},
		{"bob2", nil, "bob1 file1 file2 go1 here1"},
		{"file1", nil, "file2 go1 here1"},
		{"go1", nil, "file1 file2 here1"},
		{"old1", nil, "file1 file2 go1 here1"},
		{"deleted", nil, "file1 file2 go1 here1"},
		{"file1", []string{"alice1", "go1"}, "alice1 go1"},
		{"file1", []string{}, ""},
	} {
		description, _ := all.Describe(c.caller, c.callees)
		_, result := tools.NewRegistry().Plan(tools.ExecutionContext{AgentID: c.caller, Call: actor.Call{To: actor.ID{Tenant: actor.DefaultTenant, Agent: c.caller, Key: "k"}}, ProjectID: "", CallChain: []string{}, Agents: all, Callees: c.callees},
			actor.Ask{Kind: actor.AskTool, Name: tools.ListAgents, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{}`)}}})
		if result == nil || result.Refusal != nil {
			t.Fatalf("%s: %+v", c.caller, result)
		}
		for where, text := range map[string]string{"description": description, "list": string(result.Parts[0].Bytes)} {
			var names []string
			for _, m := range listed.FindAllStringSubmatch(text, -1) {
				names = append(names, m[1])
			}
			if got := strings.Join(names, " "); got != c.want {
				t.Errorf("%s of %s with %v: got %s, want %s", where, c.caller, c.callees, got, c.want)
			}
		}
	}
}

// The schema of a capability is compiled once for a table of agents.
func TestSchemaOfCapabilityIsCompiledOnce(t *testing.T) {
	a := tools.NewAgents(nil)
	first, err := a.Schema("ANL_NPV", `{"type":"object","required":["x"]}`)
	again, _ := a.Schema("ANL_NPV", `{"type":"object","required":["x"]}`)
	changed, _ := a.Schema("ANL_NPV", `{"type":"object"}`)
	if err != nil || first != again || first == changed {
		t.Errorf("got %p %p %p, %v", first, again, changed, err)
	}
	if r := first.Check([]byte("{}")); r == nil || changed.Check([]byte("{}")) != nil {
		t.Errorf("got %v", r)
	}
	for range 2 {
		if _, err := a.Schema("ANL_NPV", `{"type":"string"}`); err == nil {
			t.Error("a schema of no object is accepted")
		}
	}
}
