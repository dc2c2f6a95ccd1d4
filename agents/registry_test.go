// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
)

func TestPutUpdateAndDeleteAgent(t *testing.T) {
	f := newRegistryFixture(t)
	first := f.mustApply(agents.OpPut, `{"name":"helper"}`)
	if first["agent_id"] != "helper" || first["created"] != true || first["changed"] != true || first["kind"] != "declared" {
		t.Errorf("%v", first)
	}
	d := f.catalog()
	if len(d.Definitions) != 1 || d.Definitions[0].Hash.String() != first["definition"] || len(d.Former) != 0 {
		t.Fatalf("%+v", d)
	}
	if repeated := f.mustApply(agents.OpPut, ` {"name": "helper"} `); repeated["created"] != false || repeated["changed"] != false || repeated["definition"] != first["definition"] {
		t.Errorf("%v", repeated)
	}
	other := f.mustApply(agents.OpPut, `{"name":"helper","prompt":"You help."}`)
	if other["created"] != false || other["changed"] != true || other["definition"] == first["definition"] {
		t.Errorf("%v", other)
	}
	// Runs that began with the first definition still find it.
	if d := f.catalog(); len(d.Definitions) != 1 || d.Definitions[0].Hash.String() != other["definition"] || len(d.Former) != 1 || d.Former[0].Hash.String() != first["definition"] {
		t.Errorf("%+v", d)
	}
	f.mustApply(agents.OpRegister, `{"agent_id":"pythia","endpoint":"http://127.0.0.1:9001"}`)
	if got := names(f.catalog().Definitions); !slices.Equal(got, []string{"helper", "pythia"}) {
		t.Errorf("agents %v", got)
	}
	f.mustApply(agents.OpDelete, `{"agent_id":"helper"}`)
	if d := f.catalog(); !slices.Equal(names(d.Definitions), []string{"pythia"}) || len(d.Former) != 2 {
		t.Errorf("%+v", d)
	}
	if !reflect.DeepEqual(f.state, f.announced) {
		t.Errorf("state %v\nannounced %v", f.state, f.announced)
	}
	if repeated := f.mustApply(agents.OpPut, `{"name":"helper"}`); repeated["created"] != true {
		t.Errorf("%v", repeated)
	}
}

func TestRegistryRejectsInvalidOperations(t *testing.T) {
	f := newRegistryFixture(t)
	f.mustApply(agents.OpPut, `{"name":"helper"}`)
	f.mustApply(agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:9001"}`)
	f.mustApply(agents.OpCreateKey, keyRecord("k1", "a"))
	before := maps.Clone(f.state)
	f.principal = "key:b"
	for _, c := range []struct {
		operation, body string
		reason          actor.Reason
		field, want     string
	}{
		{agents.OpPut, `{"nam":"x"}`, actor.Invalid, "nam", "did you mean name?"},
		{agents.OpPut, `{"name":"x","model":7}`, actor.Invalid, "model", "want text"},
		{agents.OpPut, `{"name":"x","endpoint":"http://127.0.0.1:9001"}`, actor.Invalid, "endpoint", "register an external agent"},
		{agents.OpRegister, `{"name":"x"}`, actor.Invalid, "endpoint", "is missing"},
		{agents.OpPut, `{"name":"troupe"}`, actor.Invalid, "name", `name: "troupe" is reserved`},
		{agents.OpPut, `{"agent_id":"troupe.session"}`, actor.Invalid, "agent_id", `such as "team.session"`},
		{agents.OpPut, `{"agent_id":"Troupe.X","name":"x"}`, actor.Invalid, "agent_id", "is reserved"},
		{agents.OpPut, `{"agent_id":"x","name":" Troupe.x "}`, actor.Invalid, "name", "is reserved"},
		{agents.OpRegister, `{"agent_id":"troupe.proxy","endpoint":"http://127.0.0.1:9001"}`, actor.Invalid, "agent_id", "is reserved"},
		{agents.OpPut, `{"name":"native"}`, actor.Rejected, "", "part of this program"},
		{agents.OpPut, `{"name":"pythia"}`, actor.Rejected, "", "pythia belongs to key:a"},
		{agents.OpRegister, `{"name":"helper","endpoint":"http://127.0.0.1:9001"}`, actor.Rejected, "", "helper belongs to key:a"},
		{agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:6666"}`, actor.Rejected, "", "pythia belongs to key:a: only that principal or a key with scope admin"},
		{agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:9001","concurrency":3}`, actor.Rejected, "", "pythia belongs to key:a"},
		{agents.OpDelete, `{"agent_id":"pythia"}`, actor.Rejected, "", "pythia belongs to key:a"},
		{agents.OpDelete, `{"agent_id":"helper"}`, actor.Rejected, "", "helper belongs to key:a"},
		{agents.OpDelete, `{"agent_id":"nobody"}`, actor.NotFound, "", "no agent is named nobody"},
		{agents.OpDelete, `{"agent_id":"native"}`, actor.Rejected, "", "cannot be deleted"},
		{agents.OpDelete, `{"agent_id":"a/b"}`, actor.Invalid, "agent_id", "only letters"},
		{agents.OpDelete, `{}`, actor.Invalid, "agent_id", "is missing"},
		{agents.OpDelete, ``, actor.Invalid, "agent_id", "is missing"},
		{agents.OpCreateKey, keyRecord("k1", "b"), actor.Rejected, "", "key k1 exists with another digest"},
		{agents.OpCreateKey, `{"key_id":"k2"}`, actor.Invalid, "digest", "64 hexadecimal digits"},
		{agents.OpCreateKey, strings.Replace(keyRecord("k2", "a"), `{`, `{"secret":"x",`, 1), actor.Invalid, "", "send only its digest"},
		{agents.OpCreateKey, strings.Replace(keyRecord("k2", "a"), `{`, `{"note":"`+strings.Repeat("x", 5000)+`",`, 1), actor.Invalid, "", "at most 4096 bytes"},
		{agents.OpCreateKey, `{"digest":"x"}`, actor.Invalid, "key_id", "is missing"},
		{agents.OpRevokeKey, `{"key_id":"k9"}`, actor.NotFound, "key_id", "no key is named k9"},
		{agents.OpIssue, `{"key_id":"k9"}`, actor.NotFound, "key_id", "no key is named k9"},
		{agents.OpIssue, `{}`, actor.Invalid, "key_id", "is missing"},
		{"agent.frob", `{}`, actor.Invalid, "", "want operation agent.put"},
	} {
		out := f.apply(c.operation, c.body)
		if out.Refusal == nil || out.Refusal.Reason != c.reason || out.Refusal.Field != c.field || !strings.Contains(out.Refusal.Detail, c.want) {
			t.Errorf("%s %.80s: %+v %+v", c.operation, c.body, out, out.Refusal)
		}
	}
	if !reflect.DeepEqual(before, f.state) {
		t.Errorf("a refused operation changed the state from %v to %v", before, f.state)
	}
	// Others may repeat the registration, which leaves the agent to its owner. The owner
	// may change it, but not its kind.
	f.mustApply(agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:9001"}`)
	f.principal = "key:a"
	f.mustApply(agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:9002","concurrency":3}`)
	if out := f.apply(agents.OpPut, `{"name":"pythia"}`); out.Refusal == nil || !strings.Contains(out.Refusal.Detail, "is an agent of kind external; delete it first") {
		t.Errorf("%+v", out)
	}
	// The operator may replace any agent, and then owns it.
	f.principal = agents.Operator
	f.mustApply(agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:9003"}`)
	f.mustApply(agents.OpPut, `{"name":"pythia"}`)
	f.mustApply(agents.OpRegister, `{"name":"helper","endpoint":"http://127.0.0.1:9004"}`)
	f.principal = "key:a"
	f.mustApply(agents.OpPut, `{"name":"squatted"}`)
	f.principal = agents.Operator
	f.mustApply(agents.OpPut, `{"name":"squatted"}`)
	f.principal = "key:a"
	for _, id := range []string{"pythia", "helper", "squatted"} {
		if out := f.apply(agents.OpDelete, `{"agent_id":"`+id+`"}`); out.Refusal == nil || !strings.Contains(out.Refusal.Detail, "belongs to operator") {
			t.Errorf("%s: %+v", id, out)
		}
	}
}

// An agent of an earlier version that has a reserved name continues to work. It can be
// deleted, but not changed.
func TestStoredAgentWithReservedName(t *testing.T) {
	f := newRegistryFixture(t)
	for _, f.principal = range []string{"key:a", agents.Operator} {
		spec, err := agents.ReadJSON([]byte(`{"agent_id":"troupe.session","name":"troupe.session"}`))
		if err != nil {
			t.Fatal(err)
		}
		f.state["agent/troupe.session"] = fmt.Sprintf(`{"spec":%s,"owner":%q,"at":"x"}`, spec.Encode(), f.principal)
		if got := names(f.catalog().Definitions); !slices.Equal(got, []string{"troupe.session"}) {
			t.Errorf("agents %v", got)
		}
		if out := f.apply(agents.OpPut, `{"name":"troupe.session","prompt":"Be brief."}`); out.Refusal == nil || out.Refusal.Field != "name" {
			t.Errorf("%s: %+v", f.principal, out)
		}
		f.mustApply(agents.OpDelete, `{"agent_id":"troupe.session"}`)
	}
}

func keyRecord(id, digit string) string {
	return fmt.Sprintf(`{"key_id":%q,"name":"ci","digest":%q,"scopes":["call"]}`, id, strings.Repeat(digit, 64))
}

func TestCreateAndRevokeKeys(t *testing.T) {
	f := newRegistryFixture(t)
	f.mustApply(agents.OpCreateKey, keyRecord("k1", "a"))
	f.now = f.now.Add(time.Hour)
	f.mustApply(agents.OpCreateKey, keyRecord("k1", "a")) // repeated
	keys := f.catalog().Keys
	if len(keys) != 1 || keys[0].Name != "k1" || !strings.Contains(string(keys[0].Value), `"created_at":"1970-01-01T01:00:00`) {
		t.Errorf("%s", keys)
	}
	f.mustApply(agents.OpIssue, `{"key_id":"k1"}`)
	f.mustApply(agents.OpCreateKey, keyRecord("k1", "a")) // repeated: it has issued a token still
	if keys = f.catalog().Keys; len(keys) != 1 || !strings.Contains(string(keys[0].Value), `"issues_tokens":true`) || !strings.Contains(string(keys[0].Value), `"name":"ci"`) {
		t.Errorf("%s", keys)
	}
	f.mustApply(agents.OpRevokeKey, `{"key_id":"k1"}`)
	if keys := f.catalog().Keys; len(keys) != 0 || len(f.announced) != 0 {
		t.Errorf("%s, announced %v", keys, f.announced)
	}
}

func TestRepeatedPutAnnouncesAgain(t *testing.T) {
	f := newRegistryFixture(t)
	f.announceFails = true
	out := f.apply(agents.OpPut, `{"name":"helper"}`)
	if out.Status != actor.Partial || len(out.Warnings) != 1 || len(f.state) != 1 || len(f.announced) != 0 {
		t.Fatalf("%+v, state %v", out, f.state)
	}
	f.announceFails = false
	f.mustApply(agents.OpPut, `{"name":"helper"}`)
	if !reflect.DeepEqual(f.state, f.announced) {
		t.Errorf("state %v, announced %v", f.state, f.announced)
	}
}

// A deletion whose announcement was lost is announced again when it is repeated,
// although the item does not exist any longer.
func TestRepeatedRemovalAnnouncesAgain(t *testing.T) {
	for _, test := range []struct{ operation, body, remove, what string }{
		{agents.OpPut, `{"name":"helper"}`, agents.OpDelete, `{"agent_id":"helper"}`},
		{agents.OpCreateKey, keyRecord("k1", "a"), agents.OpRevokeKey, `{"key_id":"k1"}`},
	} {
		f := newRegistryFixture(t)
		f.mustApply(test.operation, test.body)
		announced := len(f.announced)
		f.announceFails = true
		if out := f.apply(test.remove, test.what); out.Status != actor.Partial || len(f.announced) != announced {
			t.Fatalf("%+v, announced %v", out, f.announced)
		}
		if out := f.apply(test.remove, test.what); out.Refusal == nil || out.Refusal.Reason != actor.Unavailable {
			t.Errorf("failed announcement: %+v", out)
		}
		f.announceFails = false
		if out := f.apply(test.remove, test.what); out.Refusal == nil || out.Refusal.Reason != actor.NotFound {
			t.Errorf("%+v", out)
		}
		for name := range f.announced {
			if !strings.HasPrefix(name, "former/") {
				t.Errorf("%s: %s is still announced", test.remove, name)
			}
		}
	}
}

// A change by the operator makes the operator the owner, and so does a request of the
// operator for the definition that the agent has. No other principal takes an agent over.
func TestOperatorBecomesOwner(t *testing.T) {
	for name, body := range map[string]string{"changed": `{"name":"a","prompt":"new"}`, "same": `{"name":"a"}`} {
		f := newRegistryFixture(t)
		first := f.mustApply(agents.OpPut, `{"name":"a"}`)
		f.principal = "other"
		if f.apply(agents.OpPut, `{"name":"a"}`); f.owner("a") != "key:a" {
			t.Errorf("%s: the owner is %s after a request of another client", name, f.owner("a"))
		}
		f.principal = agents.Operator
		if f.mustApply(agents.OpPut, body); f.owner("a") != agents.Operator {
			t.Errorf("%s: the owner is %s, want the operator", name, f.owner("a"))
		}
		accepted := map[string]string{"agent/a": agents.Operator}
		if name == "changed" {
			accepted["former/a/"+first["definition"].(string)] = "key:a"
		}
		if got := f.acceptedBy(); !maps.Equal(got, accepted) {
			t.Errorf("%s: the definitions were accepted by %v, want %v", name, got, accepted)
		}
		f.principal = "key:a"
		if out := f.apply(agents.OpDelete, `{"agent_id":"a"}`); out.Refusal == nil || out.Refusal.Reason != actor.Rejected {
			t.Errorf("%s: the former owner deletes the agent: %+v", name, out)
		}
	}
}

// A client cannot give its agent the name or the ID of another principal's agent, by
// which calls would reach neither. Its own agents and those of the operator may share
// a name.
func TestClientCannotTakeNameInUse(t *testing.T) {
	f := newRegistryFixture(t)
	f.mustApply(agents.OpPut, `{"agent_id":"another"}`) // precedes the agent with the name
	f.mustApply(agents.OpPut, `{"agent_id":"billing-1","name":"Billing <&>"}`)
	refused := func(operation, body, want string) {
		t.Helper()
		out := f.apply(operation, body)
		if r := out.Refusal; r == nil || r.Reason != actor.Rejected || r.Field != "name" || !strings.Contains(r.Detail, want) {
			t.Errorf("%s: %+v, want %s", body, out, want)
		}
	}
	f.principal = "mallory"
	refused(agents.OpPut, `{"agent_id":"m","name":"Billing <&>"}`, "the name of agent billing-1, which belongs to key:a; choose another name")
	refused(agents.OpRegister, `{"agent_id":"m","name":"billing-1","endpoint":"http://127.0.0.1:1"}`, "billing-1 is the ID of an agent")
	f.mustApply(agents.OpPut, `{"agent_id":"m","name":"Mine"}`)
	refused(agents.OpPut, `{"agent_id":"m","name":"Billing <&>"}`, "the name of agent billing-1")
	f.mustApply(agents.OpPut, `{"agent_id":"m2","name":"Mine"}`)
	f.principal = agents.Operator
	f.mustApply(agents.OpPut, `{"agent_id":"o","name":"Mine"}`)
	f.principal = "mallory" // a name that was in use before remains
	f.mustApply(agents.OpPut, `{"agent_id":"m","name":"Mine","prompt":"new"}`)
}

func TestCatalogReaderRejectsUnknownRecords(t *testing.T) {
	for _, item := range []actor.StateItem{{Name: "team/x", Value: []byte("{}")}, {Name: "agent/x", Value: []byte(`{"spec":{"name":"x","soul":1},"owner":"","at":""}`)},
		{Name: "former/x/1", Value: []byte(`{"spec":{},"replaced_at":""}`)}, {Name: "agent/x", Value: []byte("[")}} {
		if _, err := agents.NewCatalogReader(tools.NewRegistry()).Read([]actor.StateItem{item}); err == nil || !strings.Contains(err.Error(), item.Name) {
			t.Errorf("%s: %v", item, err)
		}
	}
}

func TestAvailabilityWarnings(t *testing.T) {
	for text, want := range map[string]string{
		`{"name":"x"}`: "",
		`{"name":"x","tools":["browser.open","call_agent"]}`: "agent x: tools browser.open are not available on this node",
		`{"name":"x","model":"big"}`:                         "agent x: model big is not configured on this node, which has scripted",
		`{"name":"x","model":"big","tools":["a","b"]}`:       "agent x: tools a, b are not available on this node; agent x: model big is not configured on this node, which has scripted",
		`{"name":"x","endpoint":"http://127.0.0.1:9001"}`:    "",
		`{"name":"x","endpoint":"http://h:1/py/invoke/"}`:    "agent x: messages go to http://h:1/py/invoke/invoke, because the server adds /invoke to the endpoint; if that is wrong, register http://h:1/py",
	} {
		spec, err := agents.ReadJSON([]byte(text))
		if got := strings.Join(spec.AvailabilityWarnings(tools.NewRegistry(), []string{"scripted"}), "; "); err != nil || got != want {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	// Warnings of the node are returned to the client that created the agent.
	f := newRegistryFixture(t)
	f.warnings = []string{"agent x: model big is not configured"}
	if out := f.apply(agents.OpPut, `{"name":"x"}`); out.Status != actor.Partial || !slices.Equal(out.Warnings, f.warnings) {
		t.Errorf("%+v", out)
	}
	for name, want := range map[string]string{"agent/x": "x", "former/x/1": "", "key/x": ""} {
		if id, ok := agents.AgentOf(actor.StateItem{Name: name}); ok != (want != "") || ok && id != want {
			t.Errorf("%s: %q %v", name, id, ok)
		}
	}
}

// A client cannot change the durability of an agent with open runs, neither by an
// update nor by deleting and creating it again. The operator can.
func TestClientCannotChangeDurability(t *testing.T) {
	f := newRegistryFixture(t)
	for _, id := range []string{"x", "y"} {
		f.principal = id
		f.mustApply(agents.OpPut, `{"name":"a","durability":"journaled"}`)
		expectRefusal := func(step string) {
			t.Helper()
			out := f.apply(agents.OpPut, `{"name":"a","durability":"none"}`)
			if out.Refusal == nil || out.Refusal.Reason != actor.Rejected || out.Refusal.Field != "durability" {
				t.Errorf("%s: %+v", step, out)
			}
		}
		expectRefusal("update")
		f.mustApply(agents.OpPut, `{"name":"a","durability":"journaled","prompt":"Be brief."}`)
		f.mustApply(agents.OpDelete, `{"agent_id":"a"}`)
		expectRefusal("delete and create")
		f.now = f.now.Add(agents.FormerRetention + time.Hour)
		f.mustApply(agents.OpPut, `{"name":"a","durability":"none"}`)
		f.mustApply(agents.OpDelete, `{"agent_id":"a"}`)
		f.now = f.now.Add(agents.FormerRetention + time.Hour)
	}
	f.mustApply(agents.OpPut, `{"name":"a","durability":"none"}`)
	f.principal = agents.Operator
	f.mustApply(agents.OpPut, `{"name":"a","durability":"journaled"}`)
	f.mustApply(agents.OpDelete, `{"agent_id":"a"}`)
	f.mustApply(agents.OpPut, `{"name":"a","durability":"none"}`)
}

func BenchmarkReadCatalog(b *testing.B) {
	var items []actor.StateItem
	for n := range agents.AgentsMax {
		spec, err := agents.ReadJSON(fmt.Appendf(nil, `{"name":"a%d"}`, n))
		if err != nil {
			b.Fatal(err)
		}
		items = append(items, actor.StateItem{Name: "agent/" + spec.ID, Value: fmt.Appendf(nil, `{"spec":%s,"owner":"","at":""}`, spec.Encode())})
	}
	reader := agents.NewCatalogReader(tools.NewRegistry())
	for b.Loop() {
		if _, err := reader.Read(items); err != nil {
			b.Fatal(err)
		}
	}
}

// Records name the user and the key that made a change, also if it has the rights of the operator.
// No member of a request replaces them.
func TestRecordsNameTheirMaker(t *testing.T) {
	f := newRegistryFixture(t)
	record := func(name string) (r struct {
		Owner   string `json:"owner"`
		By      string `json:"accepted_by"`
		Key     string `json:"accepted_by_key_id"`
		Created string `json:"created_by"`
		WithKey string `json:"created_by_key_id"`
	}) {
		if err := json.Unmarshal([]byte(f.state[name]), &r); err != nil {
			t.Fatalf("%s: %q: %v", name, f.state[name], err)
		}
		return r
	}
	digest := strings.Repeat("0a", 32)
	forged := `"created_by":"operator","created_by_key_id":"ff"`
	for _, c := range []struct {
		key         string
		rights      actor.Rights
		owner, name string
	}{{"k1", actor.AllRights, agents.Operator, "x1"}, {"k2", actor.NameRights, "alice", "x2"}, {"", actor.NoRights, "alice", "x3"}} {
		f.principal, f.key, f.rights = "alice", c.key, c.rights
		f.apply(agents.OpPut, `{"agent_id":"`+c.name+`"}`)
		f.apply(agents.OpPutTool, `{"tool_name":"`+c.name+`","url":"http://127.0.0.1:1/"}`)
		f.apply(agents.OpCreateKey, `{"key_id":"`+c.name+`","digest":"`+digest+`",`+forged+`}`)
		for _, prefix := range []string{"agent/", "tool/"} {
			if r := record(prefix + c.name); r.Owner != c.owner || r.By != "alice" || r.Key != c.key {
				t.Errorf("%s%s: %+v, want owner %s and maker alice with key %q", prefix, c.name, r, c.owner, c.key)
			}
		}
		if r := record("key/" + c.name); r.Created != "alice" || r.WithKey != c.key {
			t.Errorf("key %s: %+v, want maker alice with key %q", c.name, r, c.key)
		}
	}
}

// Two agents may provide a capability if they declare it alike, and a code belongs to one agent.
func TestProvidesConflict(t *testing.T) {
	f := newRegistryFixture(t)
	const npv = `"provides":[{"code":"ANL_NPV","description":"A value."}]`
	f.mustApply(agents.OpPut, `{"name":"first","code":"ANL",`+npv+`}`)
	f.mustApply(agents.OpPut, `{"name":"second",`+npv+`}`)
	for _, c := range []struct{ body, field, want string }{
		{`{"name":"third","code":"ANL"}`, "code", "code ANL belongs to agent first"},
		{`{"name":"ANL"}`, "name", "ANL is the code of agent first"},
		{`{"agent_id":"other","name":"ANL"}`, "name", "ANL is the code of agent first"},
		{`{"name":"third","provides":[{"code":"ANL_NPV","description":"Another value."}]}`, "provides", "agent first declares it otherwise"},
		{`{"name":"second","provides":[{"code":"ANL_NPV","description":"d","version":"2"}]}`, "provides", "agent first declares it otherwise"},
	} {
		if r := f.apply(agents.OpPut, c.body).Refusal; r == nil || r.Reason != actor.Rejected || !strings.Contains(r.Detail, c.want) || r.Field != c.field {
			t.Errorf("%s: got %v, want %s", c.body, r, c.want)
		}
	}
	f.mustApply(agents.OpPut, `{"name":"DOC"}`)
	if r := f.apply(agents.OpPut, `{"name":"third","code":"DOC"}`).Refusal; r == nil || !strings.Contains(r.Detail, "code DOC is the name of agent DOC") {
		t.Errorf("%v", r)
	}
	f.mustApply(agents.OpDelete, `{"agent_id":"second"}`)
	f.mustApply(agents.OpPut, `{"name":"first","provides":[{"code":"ANL_NPV","description":"Another value."}]}`)
}

// What clients have named their agents does not hold up the operator's: a code of a new agent is taken from theirs, as
// code, name and ID. A client gets it back from no one.
func TestCodeOfOperatorIsTakenFromClients(t *testing.T) {
	f := newRegistryFixture(t)
	f.mustApply(agents.OpPut, `{"agent_id":"ANL"}`)
	f.mustApply(agents.OpPut, `{"agent_id":"named","name":"ANL"}`)
	f.mustApply(agents.OpPut, `{"agent_id":"bob","name":"Bob"}`)
	f.principal = agents.Operator
	first := f.mustApply(agents.OpPut, `{"agent_id":"analyst","code":"ANL"}`)
	f.mustApply(agents.OpPut, `{"agent_id":"analyst","code":"ANL"}`)
	var got []string
	for _, s := range f.catalog().Specs {
		got = append(got, s.ID+" "+s.Name+" "+s.Code)
	}
	if want := []string{"analyst analyst ANL", "bob Bob ", "named named "}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if want := []string{"agent ANL of key:a was removed: its ID is the code of the agent analyst, which a file declares",
		"agent named of key:a has lost its name ANL: a file declares that for the agent analyst"}; fmt.Sprint(first["displaced"]) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", first["displaced"], want)
	}
	f.principal = "key:a"
	for _, body := range []string{`{"agent_id":"ANL"}`, `{"agent_id":"named","name":"ANL"}`} {
		if out := f.apply(agents.OpPut, body); out.Refusal == nil || out.Refusal.Field != "name" || !strings.Contains(out.Refusal.Detail, "ANL is the code of agent analyst") {
			t.Errorf("%s: %+v", body, out)
		}
	}
}

// A file wins over what an administrator has stored, also for an agent of a file, and an administrator over no client:
// the agent to delete first is named. Files hold each other up.
func TestFileWinsOverAdministrators(t *testing.T) {
	f := newRegistryFixture(t)
	as := func(principal string, rights actor.Rights, operation, body string) actor.Outcome {
		f.principal, f.rights = principal, rights
		return f.apply(operation, body)
	}
	const helper = `{"name":"helper","code":"HLP","provides":[{"code":"HLP_SAY","description":"Says."}]}`
	const second = `{"name":"second","provides":[{"code":"HLP_SAY","description":"Says."}]}`
	for i, c := range []struct {
		principal       string
		rights          actor.Rights
		operation, body string
		refusal         string
		displaced       int
	}{
		{"bob", actor.NoRights, agents.OpPut, `{"name":"b1"}`, "", 0},
		{"bob", actor.NoRights, agents.OpPut, `{"name":"ZZZ"}`, "", 0},
		{agents.Operator, actor.NoRights, agents.OpPut, helper, "", 0},
		{agents.Operator, actor.NoRights, agents.OpPut, second, "", 0},
		{agents.Operator, actor.NoRights, agents.OpPut, `{"name":"third","code":"HLP"}`, "code HLP belongs to agent helper", 0},
		{"ann", actor.AllRights, agents.OpPut, `{"name":"zop","code":"ZZZ"}`, "code ZZZ is the name of agent ZZZ: delete that agent first", 0},
		{"ann", actor.AllRights, agents.OpPut, `{"name":"adm","code":"ADM"}`, "", 0},
		{"ann", actor.AllRights, agents.OpPutCapability, `{"capability_code":"HLP_SAY","description":"Says both.","owner_agents":["helper","second","b1"]}`, "", 0},
		{"bob", actor.NoRights, agents.OpPut, `{"name":"b1","prompt":"x","provides":[{"code":"HLP_SAY","description":"Says both."}]}`, "", 0},
		{"bob", actor.NoRights, agents.OpPut, `{"name":"b1","prompt":"x","provides":[{"code":"HLP_SAY","description":"Says mine."}]}`, "belongs to another principal", 0},
		{"ann", actor.AllRights, agents.OpPut, `{"name":"helper","prompt":"p","code":"HLP","provides":[{"code":"HLP_SAY","description":"Says both."}]}`, "", 0},
		{agents.Operator, actor.NoRights, agents.OpPut, helper, "", 2}, // second and b1
		{agents.Operator, actor.NoRights, agents.OpPut, second, "", 0},
		{agents.Operator, actor.NoRights, agents.OpPut, `{"agent_id":"named","name":"adm","code":"ADM"}`, "", 1},
		{agents.Operator, actor.NoRights, agents.OpPut, `{"name":"zop","code":"ZZZ"}`, "", 1},
		{agents.Operator, actor.NoRights, agents.OpPut, `{"name":"second","provides":[{"code":"HLP_SAY","description":"Says otherwise."}]}`, "agent helper declares it otherwise", 0},
	} {
		out := as(c.principal, c.rights, c.operation, c.body)
		switch {
		case c.refusal != "":
			if out.Refusal == nil || out.Refusal.Reason != actor.Rejected || !strings.Contains(out.Refusal.Detail, c.refusal) {
				t.Errorf("%d %s: got %v, want %s", i, c.body, out.Refusal, c.refusal)
			}
		case out.Refusal != nil:
			t.Errorf("%d %s: %v", i, c.body, out.Refusal)
		case strings.Count(string(out.Parts[0].Bytes), "which a file declares")+strings.Count(string(out.Parts[0].Bytes), "a file declares that") != c.displaced:
			t.Errorf("%d %s: got %s, want %d displaced", i, c.body, out.Parts[0].Bytes, c.displaced)
		}
	}
	if got, want := f.rowsOf(), []string{"HLP_SAY helper: Says.", "HLP_SAY second: Says."}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if f.owner("b1") != "bob" || strings.Contains(f.state["agent/b1"], "former_owners") || strings.Contains(f.state["agent/adm"], "ADM") {
		t.Errorf("got %s and %s", f.state["agent/b1"], f.state["agent/adm"])
	}
}

// However many agents a client has named so, a file is stored in actions of the permitted size.
func TestFileDisplacesManyAgents(t *testing.T) {
	f := newRegistryFixture(t)
	for i := range actor.StateUpdatesMax {
		f.mustApply(agents.OpPut, fmt.Sprintf(`{"name":"a%d","provides":[{"code":"HLP_SAY","description":"d"}]}`, i))
	}
	f.principal = agents.Operator
	lost := 0
	for more := true; more; {
		answer := f.mustApply(agents.OpPut, `{"name":"helper","provides":[{"code":"HLP_SAY","description":"d"}]}`)
		all, _ := answer["displaced"].([]any)
		lost += len(all)
		more, _ = answer["more"].(bool)
	}
	if got := f.rowsOf(); lost != actor.StateUpdatesMax || !slices.Equal(got, []string{"HLP_SAY helper: d"}) {
		t.Errorf("%d have lost it, %q remain", lost, got)
	}
}

// An agent that remembers may list a tool of its memory too, and has it once: models refuse two tools of one name.
func TestMemoryToolIsOfferedOnce(t *testing.T) {
	spec, err := agents.ReadJSON([]byte(`{"name":"x","tools":["memory_search","call_agent"],"memory":{"search":true,"create":true}}`))
	if got := spec.MissingTools(tools.NewRegistry()); err != nil || !slices.Equal(got, []string{"memory_search", "memory_create"}) {
		t.Errorf("%q, %v", got, err)
	}
}
