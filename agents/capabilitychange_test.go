// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// rowsOf returns the owners and the description of each capability of a catalog.
func (f *registryFixture) rowsOf() []string {
	var all []string
	catalog := f.catalog()
	for i := range catalog.Definitions {
		d := &catalog.Definitions[i]
		for k := range d.Provides {
			c := &d.Provides[k]
			all = append(all, fmt.Sprintf("%s %s: %s%s", c.Code, d.Name, c.Description, c.Input))
		}
	}
	slices.Sort(all)
	return all
}

// All owners of a capability change at once, which none could alone.
func TestCapabilityIsChangedForAllOwners(t *testing.T) {
	f := newRegistryFixture(t)
	for _, name := range []string{"ann", "bob"} {
		f.mustApply(agents.OpPut, `{"name":"`+name+`","provides":[{"code":"ANL_NPV","description":"d"}]}`)
	}
	f.mustApply(agents.OpRegister, `{"name":"eve","code":"EVE","endpoint":"http://127.0.0.1:9001"}`)
	if out := f.apply(agents.OpPut, `{"name":"ann","provides":[{"code":"ANL_NPV","description":"other"}]}`); out.Refusal == nil || !strings.Contains(out.Refusal.Detail, "declares it otherwise") {
		t.Fatalf("got %v", out.Refusal)
	}
	row := func(members string) string { return `{"capability_code":"ANL_NPV",` + members + `}` }
	for _, c := range []struct {
		operation, body string
		created         bool
		changed         bool
		want            []string
	}{
		{agents.OpPutCapability, row(`"description":"d"`), false, false, []string{"ANL_NPV ann: d", "ANL_NPV bob: d"}},
		{agents.OpPutCapability, row(`"description":"e","input_schema":{"type":"object"}`), false, true, []string{`ANL_NPV ann: e{"type":"object"}`, `ANL_NPV bob: e{"type":"object"}`}},
		{agents.OpPutCapability, row(`"description":"e","owner_agents":["EVE","bob","eve"]`), false, true, []string{"ANL_NPV bob: e", "ANL_NPV eve: e"}},
		{agents.OpPutCapability, `{"capability_code":"DOC_MAKE","description":"m","owner_agents":["ann"]}`, true, true, []string{"ANL_NPV bob: e", "ANL_NPV eve: e", "DOC_MAKE ann: m"}},
		{agents.OpDeleteCapability, `{"capability_code":"ANL_NPV"}`, false, true, []string{"DOC_MAKE ann: m"}},
		{agents.OpDeleteCapability, `{"capability_code":"ANL_NPV"}`, false, false, []string{"DOC_MAKE ann: m"}},
	} {
		answer := f.mustApply(c.operation, c.body)
		if got := f.rowsOf(); answer["created"] != c.created || answer["changed"] != c.changed || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v\n%q, want\n%q", c.body, answer, got, c.want)
		}
		if !reflect.DeepEqual(f.state, f.announced) {
			t.Errorf("%s: state %v\nannounced %v", c.body, f.state, f.announced)
		}
	}
	if catalog := f.catalog(); len(catalog.Definitions) != 3 || catalog.Definitions[2].Code != "EVE" || len(catalog.Former) == 0 {
		t.Errorf("the agents are not what they were: %+v", catalog)
	}
}

// A row that cannot be is refused, and changes no owner.
func TestCapabilityChangesThatAreRefused(t *testing.T) {
	f := newRegistryFixture(t)
	f.principal = "acme"
	f.mustApply(agents.OpPut, `{"name":"ann","provides":[{"code":"ANL_NPV","description":"d"}]}`)
	f.mustApply(agents.OpPut, `{"name":"desk","kind":"orchestrator","workflow":{"case":{"description":"d","steps":[{"capability":"ANL_NPV"}]}}}`)
	before := f.rowsOf()
	for _, c := range []struct{ principal, operation, body, want string }{
		{"acme", agents.OpPutCapability, `{"capability_code":"ANL_NPV"}`, "description: want 1 to 4096 bytes"},
		{"acme", agents.OpPutCapability, `{"capability_code":"npv","description":"d"}`, "code: want words of capitals"},
		{"acme", agents.OpPutCapability, `{"description":"d"}`, "code: want words of capitals"},
		{"acme", agents.OpPutCapability, `{"capability_code":"ANL_NPV","description":"d","code":"X"}`, "code: is unknown"},
		{"acme", agents.OpPutCapability, `{"capability_code":"ANL_NPV","description":"d","owner_agents":"ann"}`, "owner_agents"},
		{"acme", agents.OpPutCapability, `{"capability_code":"ANL_NPV","description":"d","owner_agents":[]}`, "owner_agents: names no agent"},
		{"acme", agents.OpPutCapability, `{"capability_code":"ANL_NPV","description":"d","owner_agents":["ann","max"]}`, `"max" is no agent`},
		{"acme", agents.OpPutCapability, `{"capability_code":"DOC_MAKE","description":"d"}`, "owner_agents: names no agent"},
		{"acme", agents.OpPutCapability, `{"capability_code":"ANL_NPV","description":"d","input_schema":{"type":"object","properties":{"a":{"$ref":"#"}}}}`, "recursion is not allowed"},
		{"acme", agents.OpPutCapability, `{"capability_code":"ANL_NPV","description":"d","input_schema":{"type":"object","required":["x"]},"example":{}}`, "example"},
		{"acme", agents.OpPutCapability, `{"capability_code":"ANL_NPV","description":"d","owner_agents":["ann","desk"]}`, "would call itself"},
		{"other", agents.OpPutCapability, `{"capability_code":"ANL_NPV","description":"e"}`, "ann belongs to acme"},
		{"other", agents.OpDeleteCapability, `{"capability_code":"ANL_NPV"}`, "ann belongs to acme"},
		{"acme", agents.OpDeleteCapability, `{}`, "capability_code: is missing"},
		{"acme", agents.OpPutCapability, `[]`, "want a table"},
	} {
		f.principal = c.principal
		if out := f.apply(c.operation, c.body); out.Refusal == nil || !strings.Contains(out.Refusal.Detail, c.want) || out.Refusal.Reason == actor.Unavailable {
			t.Errorf("%s: got %v, want %s", c.body, out.Refusal, c.want)
		}
		if got := f.rowsOf(); !slices.Equal(got, before) {
			t.Fatalf("%s: changed to %v", c.body, got)
		}
	}
}

// The requests of a capability go to agents of one principal only, unless the operator says otherwise. What others
// declare does not hold up the operator, whose files have to be applied at a start.
func TestCapabilityBelongsToOnePrincipal(t *testing.T) {
	f := newRegistryFixture(t)
	f.principal = "alice"
	f.mustApply(agents.OpPut, `{"name":"adoc","code":"ADC","provides":[{"code":"ADC_X","description":"x"}]}`)
	f.principal = "bob"
	f.mustApply(agents.OpRegister, `{"name":"spy","code":"SPY","endpoint":"http://127.0.0.1:9001"}`)
	for _, c := range []struct{ operation, body, want string }{
		{agents.OpPut, `{"name":"bdoc","provides":[{"code":"ADC_X","description":"x"}]}`, "belongs to another principal"},
		{agents.OpPutCapability, `{"capability_code":"ADC_X","description":"x","owner_agents":["adoc","spy"]}`, "adoc belongs to alice"},
		{agents.OpPutCapability, `{"capability_code":"ADC_X","description":"x","owner_agents":["spy"]}`, "adoc belongs to alice"},
		{agents.OpPutCapability, `{"capability_code":"ADC_Z","description":"x","owner_agents":["adoc"]}`, "adoc belongs to alice"},
	} {
		if out := f.apply(c.operation, c.body); out.Refusal == nil || !strings.Contains(out.Refusal.Detail, c.want) {
			t.Errorf("%s: got %v, want %q", c.body, out.Refusal, c.want)
		}
	}
	f.principal = "alice"
	f.mustApply(agents.OpPut, `{"name":"adoc","code":"ADC","provides":[{"code":"ADC_X","description":"y"}]}`)
	f.principal = agents.Operator
	f.mustApply(agents.OpPut, `{"name":"own","code":"ADC","provides":[{"code":"ADC_X","description":"z"}]}`)
	if got := f.rowsOf(); !slices.Equal(got, []string{"ADC_X own: z"}) {
		t.Errorf("got %q", got)
	}
	if !strings.Contains(f.state["agent/adoc"], `"owner":"alice"`) || strings.Contains(f.state["agent/adoc"], "ADC") {
		t.Errorf("got %s", f.state["agent/adoc"])
	}
	f.mustApply(agents.OpPutCapability, `{"capability_code":"ADC_X","description":"z","owner_agents":["own","spy"]}`)
	if got := f.rowsOf(); !slices.Equal(got, []string{"ADC_X own: z", "ADC_X spy: z"}) {
		t.Errorf("got %q", got)
	}
}
