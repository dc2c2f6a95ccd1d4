// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// registryFixture is the registry with its persistent state, and a node that applies
// its announcements.
type registryFixture struct {
	t             interface{ Fatalf(string, ...any) }
	def           actor.Definition
	tools         *tools.Registry
	state         map[string]string
	announced     map[string]string
	reader        *agents.CatalogReader
	warnings      []string
	announceFails bool                   // announcements are refused
	open          func(hash string) bool // whether an open run needs the definition; nil: unknown
	now           actor.Time
	principal     string
}

func newRegistryFixture(t interface{ Fatalf(string, ...any) }) *registryFixture {
	f := &registryFixture{t: t, def: agents.Registry("native"), tools: tools.NewRegistry(), state: map[string]string{}, announced: map[string]string{}, now: actor.Time(time.Hour), principal: "key:a"}
	f.reader = agents.NewCatalogReader(f.tools)
	err := f.tools.RegisterBuiltin(tools.Tool{Name: agents.ToolAnnounce, Schema: agents.AnnounceSchema, Idempotent: true, Handler: f.announce})
	if err == nil {
		err = f.tools.RegisterBuiltin(tools.Tool{Name: agents.ToolOpen, Schema: agents.OpenSchema, Idempotent: true, Handler: f.findOpen})
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	return f
}

func (f *registryFixture) findOpen(_ context.Context, input []byte) tools.Result {
	asked, err := agents.ReadDefinitions(input)
	if err != nil {
		f.t.Fatalf("%v", err)
	}
	if f.open == nil {
		return tools.Refused(actor.Refuse(actor.Unavailable, "loading"))
	}
	open := []actor.Hash{}
	for _, hash := range asked {
		if f.open(hash.String()) {
			open = append(open, hash)
		}
	}
	return tools.JSON(agents.EncodeOpen(open))
}

func (f *registryFixture) announce(_ context.Context, input []byte) tools.Result {
	if f.announceFails {
		return tools.Refused(actor.Refuse(actor.Deadline, "no answer from a cell"))
	}
	items, err := agents.ReadAnnouncement(input)
	if err != nil {
		f.t.Fatalf("%v", err)
	}
	for _, i := range items {
		f.announced[i.Name] = string(i.Value)
		if len(i.Value) == 0 {
			delete(f.announced, i.Name)
		}
	}
	return tools.Result{Parts: actor.Text("{}"), Warnings: f.warnings}
}

func (f *registryFixture) items() []actor.StateItem {
	var items []actor.StateItem
	for _, name := range slices.Sorted(maps.Keys(f.state)) {
		items = append(items, actor.StateItem{Name: name, Value: []byte(f.state[name])})
	}
	return items
}

func (f *registryFixture) begin(operation, body string) actor.Begin {
	b := begin("")
	b.Call.To, b.Call.Chain, b.Call.Operation, b.Call.Principal = agents.RegistryID, nil, operation, f.principal
	b.Call.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(body)}}
	b.At, b.ActorState = f.now, f.items()
	return b
}

// apply runs one turn. State updates are applied with the step that makes them, as in
// a journal.
func (f *registryFixture) apply(operation, body string) actor.Outcome {
	b := f.begin(operation, body)
	turn := f.def.Behavior.Begin(b)
	defer turn.Stop()
	var stepAnswers []actor.Answer
	var answers [][]actor.Answer
	for {
		action, err := turn.Next(stepAnswers)
		if err != nil {
			f.t.Fatalf("%v", err)
		}
		if len(action.StateUpdates) > actor.StateUpdatesMax {
			f.t.Fatalf("%d state updates in one action", len(action.StateUpdates))
		}
		for _, i := range action.StateUpdates {
			if len(i.Name) > actor.StateItemNameBytesMax || len(i.Value) > actor.StateItemValueBytesMax {
				f.t.Fatalf("item %s of %d bytes exceeds the limits", i.Name, len(i.Value))
			}
			f.state[i.Name] = string(i.Value)
			if len(i.Value) == 0 {
				delete(f.state, i.Name)
			}
		}
		if action.Done != nil {
			if err := agents.SameTurn(f.def.Behavior, f.def.Behavior, b, answers); err != nil {
				f.t.Fatalf("replay differs: %v", err)
			}
			return *action.Done
		}
		stepAnswers = nil
		for _, ask := range action.Asks {
			ec := tools.NewContext(b.Call, time.Minute, nil)
			planned, done := f.tools.Plan(ec, ask)
			if done == nil {
				result := f.tools.Execute(context.Background(), planned.Name, planned.Parts[0].Bytes, ec)
				done = &result
			}
			stepAnswers = append(stepAnswers, *done)
		}
		answers = append(answers, stepAnswers)
	}
}

func (f *registryFixture) catalog() agents.Catalog {
	d, err := f.reader.Read(f.items())
	if err != nil {
		f.t.Fatalf("%v", err)
	}
	// A reader without cached definitions returns the same catalog.
	fresh, err := agents.NewCatalogReader(f.tools).Read(f.items())
	if err != nil || !slices.Equal(hashes(fresh.Definitions), hashes(d.Definitions)) || !slices.Equal(hashes(fresh.Former), hashes(d.Former)) {
		f.t.Fatalf("%v: %+v, then %+v", err, d, fresh)
	}
	return d
}

func hashes(definitions []actor.Definition) (all []actor.Hash) {
	for _, d := range definitions {
		all = append(all, d.Hash)
	}
	return all
}

func names(definitions []actor.Definition) (all []string) {
	for _, d := range definitions {
		all = append(all, d.Name)
	}
	return all
}

func (f *registryFixture) mustApply(operation, body string) map[string]any {
	out := f.apply(operation, body)
	if out.Status != actor.Succeeded {
		f.t.Fatalf("%s %s: %+v", operation, body, out)
	}
	var answer map[string]any
	if err := json.Unmarshal(out.Parts[0].Bytes, &answer); err != nil {
		f.t.Fatalf("%v", err)
	}
	return answer
}

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
		{agents.OpPut, `{"name":"troupe"}`, actor.Rejected, "", "part of this program"},
		{agents.OpPut, `{"name":"native"}`, actor.Rejected, "", "part of this program"},
		{agents.OpPut, `{"name":"pythia"}`, actor.Rejected, "", "pythia belongs to key:a"},
		{agents.OpRegister, `{"name":"helper","endpoint":"http://127.0.0.1:9001"}`, actor.Rejected, "", "helper belongs to key:a"},
		{agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:6666"}`, actor.Rejected, "", "pythia belongs to key:a: only that principal or a key with scope admin"},
		{agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:9001","concurrency":3}`, actor.Rejected, "", "pythia belongs to key:a"},
		{agents.OpDelete, `{"agent_id":"pythia"}`, actor.Rejected, "", "pythia belongs to key:a"},
		{agents.OpDelete, `{"agent_id":"helper"}`, actor.Rejected, "", "helper belongs to key:a"},
		{agents.OpDelete, `{"agent_id":"nobody"}`, actor.NotFound, "", "see GET /v1/agents"},
		{agents.OpDelete, `{"agent_id":"native"}`, actor.Rejected, "", "cannot be deleted"},
		{agents.OpDelete, `{"agent_id":"a/b"}`, actor.Invalid, "agent_id", "only letters"},
		{agents.OpDelete, `{}`, actor.Invalid, "agent_id", "is missing"},
		{agents.OpDelete, ``, actor.Invalid, "agent_id", "is missing"},
		{agents.OpCreateKey, keyRecord("k1", "b"), actor.Rejected, "", "key k1 exists with another digest"},
		{agents.OpCreateKey, `{"key_id":"k2"}`, actor.Invalid, "digest", "64 hexadecimal digits"},
		{agents.OpCreateKey, strings.Replace(keyRecord("k2", "a"), `{`, `{"secret":"x",`, 1), actor.Invalid, "", "send only its digest"},
		{agents.OpCreateKey, strings.Replace(keyRecord("k2", "a"), `{`, `{"note":"`+strings.Repeat("x", 5000)+`",`, 1), actor.Invalid, "", "at most 4096 bytes"},
		{agents.OpCreateKey, `{"digest":"x"}`, actor.Invalid, "key_id", "is missing"},
		{agents.OpRevokeKey, `{"key_id":"k9"}`, actor.NotFound, "", "troupe keys list"},
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

// A principal that changes its agents without end uses up its own quota only. Other
// principals create, change and delete agents as before, and each may delete its own.
func TestPrincipalCannotFillRegistry(t *testing.T) {
	f := newRegistryFixture(t)
	f.open = func(string) bool { return true } // runs need every definition
	f.principal = "bob"
	f.mustApply(agents.OpPut, `{"name":"bobs"}`)
	f.principal = "mallory"
	var refused *actor.Refusal
	for n := 0; refused == nil; n++ {
		if n > 1000 {
			t.Fatal("the quota of a principal has no bound")
		}
		refused = f.apply(agents.OpPut, fmt.Sprintf(`{"name":"m%d","prompt":"%d"}`, n%3, n)).Refusal
	}
	if refused.Reason != actor.Busy || refused.RetryAfter <= 0 || refused.RetryAfter > time.Hour || !strings.Contains(refused.Detail, "mallory") {
		t.Errorf("%+v", refused)
	}
	for _, f.principal = range []string{"bob", agents.Operator} {
		f.mustApply(agents.OpPut, `{"name":"new-`+f.principal+`"}`)
		f.mustApply(agents.OpPut, `{"name":"new-`+f.principal+`","prompt":"changed"}`)
		f.mustApply(agents.OpDelete, `{"agent_id":"new-`+f.principal+`"}`)
	}
	f.principal = "mallory"
	for n := range 3 {
		f.mustApply(agents.OpDelete, fmt.Sprintf(`{"agent_id":"m%d"}`, n))
	}
	if out := f.apply(agents.OpPut, `{"name":"m4"}`); out.Refusal == nil {
		t.Error("deletions freed space that open runs need")
	}
}

// The share of a principal ends before the registry is full of agents, in number and in
// bytes. The operator has a share that others cannot use up.
func TestPrincipalCannotUseUpAgents(t *testing.T) {
	for name, test := range map[string]struct {
		prompt string
		stored int // agents stored directly, because operations take longer
	}{"number": {"", 250}, "bytes": {strings.Repeat("x", 30<<10), 95}} {
		f := newRegistryFixture(t)
		f.open = func(string) bool { return false }
		fill := func(principal string) (created int) {
			f.principal = principal
			for {
				body := fmt.Sprintf(`{"name":"%s-%d","prompt":"x%s"}`, principal, created, test.prompt)
				if created < test.stored && principal != "late" {
					spec, err := agents.ReadJSON([]byte(body))
					if err != nil {
						t.Fatal(err)
					}
					f.state["agent/"+spec.ID] = fmt.Sprintf(`{"spec":%s,"owner":%q,"at":"x"}`, spec.Encode(), principal)
					created++
					continue
				}
				if out := f.apply(agents.OpPut, body); out.Refusal != nil {
					if out.Refusal.Reason != actor.Budget {
						t.Errorf("%s: %+v", name, out.Refusal)
					}
					return created
				}
				created++
			}
		}
		first := fill("mallory")
		for principal := range 3 {
			if got := fill(fmt.Sprint("p", principal)); got != first {
				t.Errorf("%s: principal %d created %d agents, the first %d", name, principal, got, first)
			}
		}
		if got := fill("late"); got != 0 && name == "number" {
			t.Errorf("%s: %d agents beyond the share of all principals", name, got)
		}
		f.principal = agents.Operator
		f.mustApply(agents.OpPut, `{"name":"operators"}`)
		f.mustApply(agents.OpPut, `{"name":"operators","prompt":"changed"}`)
		f.mustApply(agents.OpDelete, `{"agent_id":"mallory-0"}`)
	}
}

// Principals within their quotas cannot together store more former definitions than
// their common share. If open runs need all of them, changes wait.
func TestPrincipalsShareFormerDefinitions(t *testing.T) {
	const principals = (agents.AgentsMax + agents.FormerMax) / agents.PrincipalRecordsMax
	f := newRegistryFixture(t)
	for p := range principals {
		f.principal = fmt.Sprint("p", p)
		f.mustApply(agents.OpPut, fmt.Sprintf(`{"name":"a%d"}`, p))
		for n := range agents.PrincipalRecordsMax - 1 {
			f.state[fmt.Sprintf("former/b%d/%064d", p, n)] = fmt.Sprintf(`{"spec":{"name":"b"},"replaced_at":%q,"owner":"p%d"}`, runs.FormatTime(f.now), p)
		}
	}
	f.principal, f.open = "late", func(string) bool { return true }
	out := f.apply(agents.OpPut, `{"name":"late"}`)
	if out.Refusal == nil || out.Refusal.Reason != actor.Busy || !strings.Contains(out.Refusal.Detail, "all principals together") {
		t.Fatalf("%+v", out)
	}
	f.open = func(string) bool { return false }
	before := len(f.state)
	if f.mustApply(agents.OpPut, `{"name":"late"}`); len(f.state) > before {
		t.Errorf("%d records, %d before", len(f.state), before)
	}
}

// A change by the operator makes the operator the owner, and so does a request of the
// operator for the definition that the agent has. No other principal takes an agent over.
func TestOperatorBecomesOwner(t *testing.T) {
	for name, body := range map[string]string{"changed": `{"name":"a","prompt":"new"}`, "same": `{"name":"a"}`} {
		f := newRegistryFixture(t)
		f.mustApply(agents.OpPut, `{"name":"a"}`)
		f.principal = "other"
		if f.apply(agents.OpPut, `{"name":"a"}`); f.owner("a") != "key:a" {
			t.Errorf("%s: the owner is %s after a request of another client", name, f.owner("a"))
		}
		f.principal = agents.Operator
		if f.mustApply(agents.OpPut, body); f.owner("a") != agents.Operator {
			t.Errorf("%s: the owner is %s, want the operator", name, f.owner("a"))
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
	refused(agents.OpPut, `{"agent_id":"m","name":"Billing <&>"}`, "that of agent billing-1, which belongs to key:a; choose another name")
	refused(agents.OpRegister, `{"agent_id":"m","name":"billing-1","endpoint":"http://127.0.0.1:1"}`, "agent billing-1")
	f.mustApply(agents.OpPut, `{"agent_id":"m","name":"Mine"}`)
	refused(agents.OpPut, `{"agent_id":"m","name":"Billing <&>"}`, "agent billing-1")
	f.mustApply(agents.OpPut, `{"agent_id":"m2","name":"Mine"}`)
	f.principal = agents.Operator
	f.mustApply(agents.OpPut, `{"agent_id":"o","name":"Mine"}`)
	f.principal = "mallory" // a name that was in use before remains
	f.mustApply(agents.OpPut, `{"agent_id":"m","name":"Mine","prompt":"new"}`)
}

// owner returns the owner of an agent in the state of the registry.
func (f *registryFixture) owner(id string) string {
	var record struct {
		Owner string `json:"owner"`
	}
	if err := json.Unmarshal([]byte(f.state["agent/"+id]), &record); err != nil {
		f.t.Fatalf("%v", err)
	}
	return record.Owner
}

// Former definitions that no open run needs are deleted first, the oldest before the
// others. Needed ones are kept however old they are.
func TestUnneededDefinitionsArePruned(t *testing.T) {
	f := newRegistryFixture(t)
	needed := map[string]bool{}
	f.open = func(hash string) bool { return needed[hash] }
	var last string
	for n := range 700 {
		f.now = f.now.Add(time.Second)
		last = f.mustApply(agents.OpPut, fmt.Sprintf(`{"name":"helper","prompt":"%d"}`, n))["definition"].(string)
		if n%100 == 0 {
			needed[last] = true
		}
	}
	kept := map[string]bool{}
	for _, def := range f.catalog().Former {
		kept[def.Hash.String()] = true
	}
	for hash := range needed {
		if !kept[hash] {
			t.Errorf("definition %s was deleted, but an open run needs it", hash)
		}
	}
	if len(kept) > agents.PrincipalRecordsMax || len(kept) < agents.PrincipalRecordsMax/2 || !reflect.DeepEqual(f.state, f.announced) {
		t.Errorf("%d former definitions", len(kept))
	}
}

// While the node does not know its open runs, definitions are kept for FormerRetention.
func TestDefinitionsAreKeptWhileRunsAreUnknown(t *testing.T) {
	f := newRegistryFixture(t)
	put := func(n int) actor.Outcome {
		f.now = f.now.Add(time.Second)
		return f.apply(agents.OpPut, fmt.Sprintf(`{"name":"helper","prompt":"%d"}`, n))
	}
	for n := range agents.PrincipalRecordsMax {
		if out := put(n); out.Refusal != nil {
			t.Fatal(n, out.Refusal)
		}
	}
	if out := put(-1); out.Refusal == nil || out.Refusal.Reason != actor.Busy || out.Refusal.RetryAfter > time.Minute {
		t.Fatalf("%+v", out)
	}
	f.now = f.now.Add(agents.FormerRetention)
	before := len(f.catalog().Former)
	if out := put(-1); out.Refusal != nil {
		t.Fatal(out.Refusal)
	}
	if got := len(f.catalog().Former); got >= before || got < before-100 || !reflect.DeepEqual(f.state, f.announced) {
		t.Errorf("%d former, %d before", got, before)
	}
}

// Agents and definitions stored by earlier versions may exceed the quota. They can
// still be changed and deleted.
func TestStoreBeyondQuota(t *testing.T) {
	f := newRegistryFixture(t)
	for n := range 1000 {
		spec, err := agents.ReadJSON(fmt.Appendf(nil, `{"name":"a%d"}`, n))
		if err != nil {
			t.Fatal(err)
		}
		f.state["agent/"+spec.ID] = fmt.Sprintf(`{"spec":%s,"owner":"key:a","at":"x"}`, spec.Encode())
	}
	for n := range 2000 {
		f.state[fmt.Sprintf("former/y%d/%064d", n, n)] = fmt.Sprintf(`{"spec":{"name":"x"},"replaced_at":%q}%s`, runs.FormatTime(f.now), strings.Repeat(" ", 6<<10))
	}
	f.open = func(string) bool { return false }
	for n := range 200 {
		f.mustApply(agents.OpDelete, fmt.Sprintf(`{"agent_id":"a%d"}`, n))
	}
	f.mustApply(agents.OpPut, `{"name":"a500","prompt":"changed"}`)
	if out := f.apply(agents.OpPut, `{"name":"more"}`); out.Refusal == nil || out.Refusal.Reason != actor.Budget {
		t.Errorf("%+v", out)
	}
	f.principal = "key:b"
	f.mustApply(agents.OpPut, `{"name":"more"}`)
}

func TestRegistryLimits(t *testing.T) {
	f := newRegistryFixture(t)
	for n := range agents.KeysMax {
		f.state[fmt.Sprintf("key/k%d", n)] = keyRecord(fmt.Sprintf("k%d", n), "a")
	}
	if out := f.apply(agents.OpCreateKey, keyRecord("more", "b")); out.Refusal == nil || out.Refusal.Reason != actor.Budget {
		t.Errorf("%+v", out)
	}
	if !agents.Registry().System {
		t.Error("the registry is not a system agent")
	}
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

// After any sequence of operations the registry and its announcements match the
// replies.
func TestRegistryMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newRegistryFixture(t)
		model := map[string]string{} // agent ID to definition hash
		owners := map[string]string{}
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		applyAs := func(t *rapid.T, op, body string) actor.Outcome {
			f.principal = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "who")
			return f.apply(op, body)
		}
		applyPut := func(t *rapid.T, op, id, body string) {
			before := model[id]
			out := applyAs(t, op, body)
			if out.Refusal != nil {
				return
			}
			if before == "" {
				owners[id] = f.principal
			}
			defer func() {
				if before != "" && before != model[id] && owners[id] != f.principal {
					t.Fatalf("%s changed %s of %s", f.principal, id, owners[id])
				}
			}()
			var answer struct{ Definition string }
			if err := json.Unmarshal(out.Parts[0].Bytes, &answer); err != nil {
				t.Fatal(err)
			}
			model[id] = answer.Definition
		}
		checkCatalog := func(t *rapid.T) {
			got := map[string]string{}
			for _, def := range f.catalog().Definitions {
				got[def.Name] = def.Hash.String()
			}
			if !maps.Equal(got, model) {
				t.Fatalf("catalog %v, want %v", got, model)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				id := name.Draw(t, "agent")
				applyPut(t, agents.OpPut, id, fmt.Sprintf(`{"name":%q,"prompt":"%d"}`, id, rapid.IntRange(0, 3).Draw(t, "prompt")))
			},
			"register": func(t *rapid.T) {
				id := name.Draw(t, "agent")
				applyPut(t, agents.OpRegister, id, fmt.Sprintf(`{"name":%q,"endpoint":"http://127.0.0.1:%d"}`, id, rapid.IntRange(9001, 9003).Draw(t, "port")))
			},
			"delete": func(t *rapid.T) {
				id := name.Draw(t, "agent")
				if out := applyAs(t, agents.OpDelete, fmt.Sprintf(`{"agent_id":%q}`, id)); (out.Refusal == nil) != (model[id] != "" && owners[id] == f.principal) {
					t.Fatalf("delete %s: %+v", id, out)
				} else if out.Refusal == nil {
					delete(model, id)
				}
			},
			"advance time": func(t *rapid.T) {
				f.now = f.now.Add(rapid.SampledFrom([]time.Duration{time.Minute, 13 * time.Hour}).Draw(t, "later"))
			},
			"check": checkCatalog,
			"": func(t *rapid.T) {
				if !maps.Equal(f.state, f.announced) {
					t.Fatalf("state %v, announced %v", f.state, f.announced)
				}
			},
		})
		checkCatalog(t)
	})
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
