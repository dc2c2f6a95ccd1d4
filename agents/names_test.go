// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// An agent cannot have an ID or a name that looks like that of another agent, of the program or of a
// client, unless the operator creates it.
func TestLookAlikeAgentsAreRefused(t *testing.T) {
	f := newRegistryFixture(t)
	f.mustApply(agents.OpPut, `{"agent_id":"fancy-1","name":"Fancy"}`)
	f.mustApply(agents.OpPut, `{"agent_id":"plain"}`)
	for _, principal := range []string{"key:a", "mallory"} {
		f.principal = principal
		for _, c := range []struct{ body, field, want string }{
			{`{"agent_id":"x","name":" fancy "}`, "name", `" fancy " looks like "Fancy", which is that of agent fancy-1 and belongs to key:a; choose another name`},
			{`{"agent_id":"x","name":"Ｆancy"}`, "name", `looks like "Fancy"`},
			{`{"agent_id":"x","name":"FANCY"}`, "name", `looks like "Fancy"`},
			{`{"agent_id":"FANCY"}`, "agent_id", `looks like "Fancy", which is that of agent fancy-1 and belongs to key:a; choose another agent_id`},
			{`{"agent_id":"Plain"}`, "agent_id", `"Plain" looks like "plain"`},
			{`{"agent_id":"x","name":"PLAIN"}`, "name", `looks like "plain"`},
			{`{"agent_id":"Native"}`, "agent_id", "looks like native, an agent of this program"},
			{`{"agent_id":"x","name":"ｎative"}`, "name", "looks like native, an agent of this program"},
			{`{"agent_id":"x","name":"native"}`, "name", "native is part of this program"},
			{`{"agent_id":"x","name":"Fаncy"}`, "name", "mixes letters of the scripts Latin and Cyrillic"},
			{`{"agent_id":"x","name":"ＴＲＯＵＰＥ"}`, "name", "is reserved"},
		} {
			for operation, endpoint := range map[string]string{agents.OpPut: "", agents.OpRegister: `,"endpoint":"http://127.0.0.1:9001"`} {
				out := f.apply(operation, strings.TrimSuffix(c.body, "}")+endpoint+"}")
				if r := out.Refusal; r == nil || r.Field != c.field || !strings.Contains(r.Detail, c.want) {
					t.Errorf("%s of %s: got %+v, want %s: %s", c.body, principal, out, c.field, c.want)
				}
			}
		}
	}
	f.principal = "key:a" // a change does not bring an agent into conflict with itself
	f.mustApply(agents.OpPut, `{"agent_id":"fancy-1","name":"FANCY"}`)
	f.principal = agents.Operator
	f.mustApply(agents.OpPut, `{"agent_id":"Plain","name":"Fancy"}`)
	if out := f.apply(agents.OpPut, `{"agent_id":"PLAIN"}`); out.Refusal == nil || !strings.Contains(out.Refusal.Detail, `looks like "Plain"`) {
		t.Errorf("agents of the operator: %+v", out)
	}
	f.principal = "key:a" // agents that look alike can be changed and deleted
	f.mustApply(agents.OpPut, `{"agent_id":"plain","prompt":"new"}`)
	f.mustApply(agents.OpDelete, `{"agent_id":"plain"}`)
	f.principal = agents.Operator
	f.mustApply(agents.OpPut, `{"agent_id":"Plain","name":"Fancy","prompt":"new"}`)
}

// A key cannot act for a user that looks like the user of another key.
func TestLookAlikeUsersAreRefused(t *testing.T) {
	record := func(id, user string) string {
		return strings.TrimSuffix(keyRecord(id, "a"), "}") + `,"user":"` + user + `"}`
	}
	f := newRegistryFixture(t)
	f.mustApply(agents.OpCreateKey, record("k1", "alice@example.com"))
	f.mustApply(agents.OpCreateKey, record("k2", "alice@example.com"))
	f.mustApply(agents.OpCreateKey, record("k3", "bob"))
	for _, user := range []string{"Alice@example.com", "ａlice@example.com", "BOB"} {
		if r := f.apply(agents.OpCreateKey, record("k4", user)).Refusal; r == nil || r.Reason != actor.Rejected || r.Field != "user" || !strings.Contains(r.Detail, "looks like") {
			t.Errorf("%s: got %+v", user, r)
		}
	}
	f.state["key/k5"] = record("k5", "BOB") // of an earlier version
	f.mustApply(agents.OpCreateKey, record("k6", "BOB"))
	f.mustApply(agents.OpCreateKey, record("k7", "bob"))
}

// A tool cannot have a name that differs from another one in upper and lower case only.
func TestLookAlikeToolsAreRefused(t *testing.T) {
	f := newRegistryFixture(t)
	f.mustApply(agents.OpPutTool, `{"tool_name":"weather.get","url":"http://127.0.0.1:1/"}`)
	for _, principal := range []string{"key:a", "mallory"} {
		f.principal = principal
		if r := f.apply(agents.OpPutTool, `{"tool_name":"Weather.get","url":"http://127.0.0.1:1/"}`).Refusal; r == nil || r.Field != "tool_name" || !strings.Contains(r.Detail, "looks like the tool weather.get, which belongs to key:a") {
			t.Errorf("%s: got %+v", principal, r)
		}
	}
	f.principal = agents.Operator
	f.mustApply(agents.OpPutTool, `{"tool_name":"Weather.get","url":"http://127.0.0.1:1/"}`)
}

// The names of agents of the program that the node does not serve are reserved for the operator and
// for keys with the scope operator. Agents that have one already keep it.
func TestNamesOfUnservedAgentsAreReserved(t *testing.T) {
	bodies := map[string]string{`{"agent_id":"unserved"}`: "agent_id", `{"agent_id":"Unserved"}`: "agent_id", `{"agent_id":"x","name":"ｕnserved"}`: "name"}
	for _, c := range []struct {
		principal string
		rights    actor.Rights
		refused   bool
	}{
		{"key:a", actor.NoRights, true}, {"key:a", actor.NameRights, false}, {"key:a", actor.AllRights, false}, {agents.Operator, actor.NoRights, false},
	} {
		for body, field := range bodies {
			f := newRegistryFixture(t)
			f.principal, f.rights = c.principal, c.rights
			out := f.apply(agents.OpPut, body)
			switch r := out.Refusal; {
			case !c.refused && r != nil:
				t.Errorf("%s of %s with rights %d: %v", body, c.principal, c.rights, r)
			case c.refused && (r == nil || r.Field != field || !strings.Contains(r.Detail, "is reserved for unserved, an agent of this program")):
				t.Errorf("%s of %s: %v", body, c.principal, r)
			}
		}
	}
	f := newRegistryFixture(t)
	f.principal, f.rights = "key:a", actor.NameRights
	f.mustApply(agents.OpPut, `{"agent_id":"unserved"}`)
	f.rights = actor.NoRights
	f.mustApply(agents.OpPut, `{"agent_id":"unserved","prompt":"new"}`)
	f.mustApply(agents.OpDelete, `{"agent_id":"unserved"}`)
	if out := f.apply(agents.OpPut, `{"agent_id":"unserved"}`); out.Refusal == nil {
		t.Error("a deleted agent is created again")
	}
}
