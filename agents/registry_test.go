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

// registryFixture is the registry with its journal, and a world that hears its announcements.
type registryFixture struct {
	t             interface{ Fatalf(string, ...any) }
	def           actor.Definition
	tools         *tools.Registry
	state         map[string]string
	announced     map[string]string
	reader        *agents.CatalogReader
	warnings      []string
	announceFails bool // the world does not hear
	now           actor.Time
	principal     string
}

func newRegistryFixture(t interface{ Fatalf(string, ...any) }) *registryFixture {
	o := &registryFixture{t: t, def: agents.Registry("native"), tools: tools.NewRegistry(), state: map[string]string{}, announced: map[string]string{}, now: actor.Time(time.Hour), principal: "key:a"}
	o.reader = agents.NewCatalogReader(o.tools)
	err := o.tools.RegisterBuiltin(tools.Tool{Name: agents.ToolAnnounce, Schema: agents.AnnounceSchema, Idempotent: true, Handler: o.announce})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return o
}

func (o *registryFixture) announce(_ context.Context, input []byte) tools.Result {
	if o.announceFails {
		return tools.Refused(actor.Refuse(actor.Deadline, "a cell does not answer"))
	}
	items, err := agents.ReadAnnouncement(input)
	if err != nil {
		o.t.Fatalf("%v", err)
	}
	for _, i := range items {
		o.announced[i.Name] = string(i.Value)
		if len(i.Value) == 0 {
			delete(o.announced, i.Name)
		}
	}
	return tools.Result{Parts: actor.Text("{}"), Warnings: o.warnings}
}

func (o *registryFixture) items() []actor.StateItem {
	var items []actor.StateItem
	for _, name := range slices.Sorted(maps.Keys(o.state)) {
		items = append(items, actor.StateItem{Name: name, Value: []byte(o.state[name])})
	}
	return items
}

func (o *registryFixture) begin(operation, body string) actor.Begin {
	b := begin("")
	b.Call.To, b.Call.Chain, b.Call.Operation, b.Call.Principal = agents.RegistryID, nil, operation, o.principal
	b.Call.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(body)}}
	b.At, b.ActorState = o.now, o.items()
	return b
}

// apply makes one turn: what it keeps is kept with its step, as in a journal.
func (o *registryFixture) apply(operation, body string) actor.Outcome {
	b := o.begin(operation, body)
	turn := o.def.Behavior.Begin(b)
	defer turn.Stop()
	var given []actor.Answer
	var answers [][]actor.Answer
	for {
		action, err := turn.Next(given)
		if err != nil {
			o.t.Fatalf("%v", err)
		}
		if len(action.StateUpdates) > actor.StateUpdatesMax {
			o.t.Fatalf("keeps %d at once", len(action.StateUpdates))
		}
		for _, i := range action.StateUpdates {
			if len(i.Name) > actor.StateItemNameBytesMax || len(i.Value) > actor.StateItemValueBytesMax {
				o.t.Fatalf("%s of %d bytes is too much to keep", i.Name, len(i.Value))
			}
			o.state[i.Name] = string(i.Value)
			if len(i.Value) == 0 {
				delete(o.state, i.Name)
			}
		}
		if action.Done != nil {
			if err := agents.SameTurn(o.def.Behavior, o.def.Behavior, b, answers); err != nil {
				o.t.Fatalf("made again: %v", err)
			}
			return *action.Done
		}
		given = nil
		for _, ask := range action.Asks {
			ec := tools.NewContext(b.Call, time.Minute, nil)
			planned, done := o.tools.Plan(ec, ask)
			if done == nil {
				result := o.tools.Execute(context.Background(), planned.Name, planned.Parts[0].Bytes, ec)
				done = &result
			}
			given = append(given, *done)
		}
		answers = append(answers, given)
	}
}

func (o *registryFixture) catalog() agents.Catalog {
	d, err := o.reader.Read(o.items())
	if err != nil {
		o.t.Fatalf("%v", err)
	}
	// One that has read nothing before comes to the same.
	anew, err := agents.NewCatalogReader(o.tools).Read(o.items())
	if err != nil || !slices.Equal(hashes(anew.Definitions), hashes(d.Definitions)) || !slices.Equal(hashes(anew.Former), hashes(d.Former)) {
		o.t.Fatalf("%v: %+v, then %+v", err, d, anew)
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

func (o *registryFixture) mustApply(operation, body string) map[string]any {
	out := o.apply(operation, body)
	if out.Status != actor.Succeeded {
		o.t.Fatalf("%s %s: %+v", operation, body, out)
	}
	var answer map[string]any
	if err := json.Unmarshal(out.Parts[0].Bytes, &answer); err != nil {
		o.t.Fatalf("%v", err)
	}
	return answer
}

func TestPutUpdateAndDeleteAgent(t *testing.T) {
	o := newRegistryFixture(t)
	first := o.mustApply(agents.OpPut, `{"name":"helper"}`)
	if first["agent_id"] != "helper" || first["created"] != true || first["changed"] != true || first["kind"] != "declared" {
		t.Errorf("%v", first)
	}
	d := o.catalog()
	if len(d.Definitions) != 1 || d.Definitions[0].Hash.String() != first["definition"] || len(d.Former) != 0 {
		t.Fatalf("%+v", d)
	}
	if again := o.mustApply(agents.OpPut, ` {"name": "helper"} `); again["created"] != false || again["changed"] != false || again["definition"] != first["definition"] {
		t.Errorf("%v", again)
	}
	other := o.mustApply(agents.OpPut, `{"name":"helper","prompt":"You help."}`)
	if other["created"] != false || other["changed"] != true || other["definition"] == first["definition"] {
		t.Errorf("%v", other)
	}
	// Runs that began with the first one still find it.
	if d := o.catalog(); len(d.Definitions) != 1 || d.Definitions[0].Hash.String() != other["definition"] || len(d.Former) != 1 || d.Former[0].Hash.String() != first["definition"] {
		t.Errorf("%+v", d)
	}
	o.mustApply(agents.OpRegister, `{"agent_id":"pythia","endpoint":"http://127.0.0.1:9001"}`)
	if got := names(o.catalog().Definitions); !slices.Equal(got, []string{"helper", "pythia"}) {
		t.Errorf("agents %v", got)
	}
	o.mustApply(agents.OpDelete, `{"agent_id":"helper"}`)
	if d := o.catalog(); !slices.Equal(names(d.Definitions), []string{"pythia"}) || len(d.Former) != 2 {
		t.Errorf("%+v", d)
	}
	if !reflect.DeepEqual(o.state, o.announced) {
		t.Errorf("kept %v\nannounced %v", o.state, o.announced)
	}
	if again := o.mustApply(agents.OpPut, `{"name":"helper"}`); again["created"] != true {
		t.Errorf("%v", again)
	}
}

func TestRegistryRejectsInvalidOperations(t *testing.T) {
	o := newRegistryFixture(t)
	o.mustApply(agents.OpPut, `{"name":"helper"}`)
	o.mustApply(agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:9001"}`)
	o.mustApply(agents.OpCreateKey, keyRecord("k1", "a"))
	before := maps.Clone(o.state)
	o.principal = "key:b"
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
		{agents.OpPut, `{"name":"pythia"}`, actor.Rejected, "", "is an agent of kind external: delete it first"},
		{agents.OpRegister, `{"name":"helper","endpoint":"http://127.0.0.1:9001"}`, actor.Rejected, "", "is an agent of kind declared: delete it first"},
		{agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:6666"}`, actor.Rejected, "", "by key:a, who alone may move it"},
		{agents.OpDelete, `{"agent_id":"nobody"}`, actor.NotFound, "", "GET /v1/agents lists those that are"},
		{agents.OpDelete, `{"agent_id":"native"}`, actor.Rejected, "", "cannot be deleted"},
		{agents.OpDelete, `{"agent_id":"a/b"}`, actor.Invalid, "agent_id", "only letters"},
		{agents.OpDelete, `{}`, actor.Invalid, "agent_id", "is missing"},
		{agents.OpDelete, ``, actor.Invalid, "agent_id", "is missing"},
		{agents.OpCreateKey, keyRecord("k1", "b"), actor.Rejected, "", "there is another key k1"},
		{agents.OpCreateKey, `{"key_id":"k2"}`, actor.Invalid, "digest", "64 hexadecimal digits"},
		{agents.OpCreateKey, strings.Replace(keyRecord("k2", "a"), `{`, `{"secret":"x",`, 1), actor.Invalid, "", "never the secret"},
		{agents.OpCreateKey, strings.Replace(keyRecord("k2", "a"), `{`, `{"note":"`+strings.Repeat("x", 5000)+`",`, 1), actor.Invalid, "", "at most 4096 bytes"},
		{agents.OpCreateKey, `{"digest":"x"}`, actor.Invalid, "key_id", "is missing"},
		{agents.OpRevokeKey, `{"key_id":"k9"}`, actor.NotFound, "", "troupe keys list"},
		{"agent.frob", `{}`, actor.Invalid, "", "the registry knows agent.put"},
	} {
		out := o.apply(c.operation, c.body)
		if out.Refusal == nil || out.Refusal.Reason != c.reason || out.Refusal.Field != c.field || !strings.Contains(out.Refusal.Detail, c.want) {
			t.Errorf("%s %.80s: %+v %+v", c.operation, c.body, out, out.Refusal)
		}
	}
	if !reflect.DeepEqual(before, o.state) {
		t.Errorf("what was refused left something: %v, then %v", before, o.state)
	}
	// Whoever registered it may move it; others may say the same again.
	o.mustApply(agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:9001","concurrency":3}`)
	o.mustApply(agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:9002","concurrency":3}`)
	// What stands in the operator's files holds.
	o.principal = agents.Operator
	o.mustApply(agents.OpRegister, `{"name":"pythia","endpoint":"http://127.0.0.1:9003"}`)
	o.mustApply(agents.OpPut, `{"name":"pythia"}`)
	o.mustApply(agents.OpRegister, `{"name":"helper","endpoint":"http://127.0.0.1:9004"}`)
}

func keyRecord(id, digit string) string {
	return fmt.Sprintf(`{"key_id":%q,"name":"ci","digest":%q,"scopes":["call"]}`, id, strings.Repeat(digit, 64))
}

func TestCreateAndRevokeKeys(t *testing.T) {
	o := newRegistryFixture(t)
	o.mustApply(agents.OpCreateKey, keyRecord("k1", "a"))
	o.now = o.now.Add(time.Hour)
	o.mustApply(agents.OpCreateKey, keyRecord("k1", "a")) // says the same again
	keys := o.catalog().Keys
	if len(keys) != 1 || keys[0].Name != "k1" || !strings.Contains(string(keys[0].Value), `"created_at":"1970-01-01T01:00:00`) {
		t.Errorf("%s", keys)
	}
	o.mustApply(agents.OpRevokeKey, `{"key_id":"k1"}`)
	if keys := o.catalog().Keys; len(keys) != 0 || len(o.announced) != 0 {
		t.Errorf("%s, announced %v", keys, o.announced)
	}
}

func TestRepeatedPutAnnouncesAgain(t *testing.T) {
	o := newRegistryFixture(t)
	o.announceFails = true
	out := o.apply(agents.OpPut, `{"name":"helper"}`)
	if out.Status != actor.Partial || len(out.Warnings) != 1 || len(o.state) != 1 || len(o.announced) != 0 {
		t.Fatalf("%+v, kept %v", out, o.state)
	}
	o.announceFails = false
	o.mustApply(agents.OpPut, `{"name":"helper"}`)
	if !reflect.DeepEqual(o.state, o.announced) {
		t.Errorf("kept %v, announced %v", o.state, o.announced)
	}
}

// A removal that was kept, and that the world never heard of, it hears of when it is
// asked for again, though there is nothing left to remove.
func TestRepeatedRemovalAnnouncesAgain(t *testing.T) {
	for _, test := range []struct{ operation, body, remove, what string }{
		{agents.OpPut, `{"name":"helper"}`, agents.OpDelete, `{"agent_id":"helper"}`},
		{agents.OpCreateKey, keyRecord("k1", "a"), agents.OpRevokeKey, `{"key_id":"k1"}`},
	} {
		o := newRegistryFixture(t)
		o.mustApply(test.operation, test.body)
		there := len(o.announced)
		o.announceFails = true
		if out := o.apply(test.remove, test.what); out.Status != actor.Partial || len(o.announced) != there {
			t.Fatalf("%+v, announced %v", out, o.announced)
		}
		if out := o.apply(test.remove, test.what); out.Refusal == nil || out.Refusal.Reason != actor.Unavailable {
			t.Errorf("nobody has heard of it: %+v", out)
		}
		o.announceFails = false
		if out := o.apply(test.remove, test.what); out.Refusal == nil || out.Refusal.Reason != actor.NotFound {
			t.Errorf("%+v", out)
		}
		for name := range o.announced {
			if !strings.HasPrefix(name, "former/") {
				t.Errorf("%s: %s is still there", test.remove, name)
			}
		}
	}
}

// What an agent was is kept for as long as there is room, and for a day whatever
// comes; the oldest goes first.
func TestFormerDefinitionsArePrunedWhenFull(t *testing.T) {
	o := newRegistryFixture(t)
	put := func(n int) actor.Outcome {
		o.now = o.now.Add(time.Second)
		return o.apply(agents.OpPut, fmt.Sprintf(`{"name":"helper","prompt":"%d"}`, n))
	}
	for n := range agents.FormerPerAgentMax + 1 {
		if out := put(n); out.Refusal != nil {
			t.Fatal(out.Refusal)
		}
	}
	out := put(-1)
	if out.Refusal == nil || out.Refusal.Reason != actor.Busy || out.Refusal.RetryAfter <= 0 {
		t.Fatalf("%+v", out)
	}
	if out := o.apply(agents.OpDelete, `{"agent_id":"helper"}`); out.Refusal == nil {
		t.Errorf("%+v", out)
	}
	o.now = o.now.Add(agents.FormerRetention - 10*time.Second)
	before := len(o.catalog().Former)
	o.mustApply(agents.OpPut, `{"name":"other"}`)
	o.mustApply(agents.OpPut, `{"name":"other","prompt":"another"}`)
	if got := len(o.catalog().Former); got != before+1 {
		t.Errorf("%d former after a day, %d before", got, before)
	}
	if out := put(-1); out.Refusal != nil {
		t.Fatal(out.Refusal)
	}
	d := o.catalog()
	for _, def := range d.Former {
		if strings.Contains(string(def.Spec), `"prompt":"0"`) {
			t.Error("the oldest is still there")
		}
	}
	if got := len(d.Former); got >= before || got < before-100 || !reflect.DeepEqual(o.state, o.announced) {
		t.Errorf("%d former, %d before", got, before)
	}
}

// What is there already is not counted twice.
func TestRestoredDefinitionIsNotCountedTwice(t *testing.T) {
	o := newRegistryFixture(t)
	for n := range agents.FormerPerAgentMax {
		o.mustApply(agents.OpPut, fmt.Sprintf(`{"name":"helper","prompt":"%d"}`, n))
	}
	o.mustApply(agents.OpPut, `{"name":"helper","prompt":"0"}`)
	o.mustApply(agents.OpPut, `{"name":"helper","prompt":"1"}`)
}

func TestFormerDefinitionsArePrunedInBatches(t *testing.T) {
	o := newRegistryFixture(t)
	for n := range 200 {
		o.state[fmt.Sprintf("former/x%d/1", n)] = fmt.Sprintf(`{"spec":{"name":"x"},"replaced_at":%q}%s`, runs.FormatTime(o.now), strings.Repeat(" ", 63<<10))
	}
	o.now = o.now.Add(2 * agents.FormerRetention)
	for n := range 5 {
		o.mustApply(agents.OpPut, fmt.Sprintf(`{"name":"helper","prompt":"%d"}`, n))
	}
	if got := len(o.catalog().Former); got <= 4 || got > 200 { // as many as there is room for
		t.Errorf("%d former", got)
	}
	maps.DeleteFunc(o.state, func(name, _ string) bool { return strings.HasPrefix(name, "former/") })
	for n := range agents.FormerMax {
		o.state[fmt.Sprintf("former/y%d/1", n)] = fmt.Sprintf(`{"spec":{"name":"x"},"replaced_at":%q}`, runs.FormatTime(o.now))
	}
	if out := o.apply(agents.OpPut, `{"name":"helper","prompt":"more"}`); out.Refusal == nil || out.Refusal.Reason != actor.Busy {
		t.Errorf("%+v", out)
	}
	if !agents.Registry().System {
		t.Error("anybody may call the registry")
	}
}

func TestRegistryLimits(t *testing.T) {
	o := newRegistryFixture(t)
	for n := range agents.AgentsMax {
		spec, err := agents.ReadJSON(fmt.Appendf(nil, `{"name":"a%d"}`, n))
		if err != nil {
			t.Fatal(err)
		}
		o.state["agent/"+spec.ID] = fmt.Sprintf(`{"spec":%s,"owner":"","at":"x"}`, spec.Encode())
	}
	if out := o.apply(agents.OpPut, `{"name":"more"}`); out.Refusal == nil || out.Refusal.Reason != actor.Budget {
		t.Errorf("%+v", out)
	}
	if out := o.apply(agents.OpPut, `{"name":"a7","prompt":"another"}`); out.Refusal != nil {
		t.Errorf("%+v", out.Refusal)
	}
	for n := range agents.KeysMax {
		o.state[fmt.Sprintf("key/k%d", n)] = keyRecord(fmt.Sprintf("k%d", n), "a")
	}
	if out := o.apply(agents.OpCreateKey, keyRecord("more", "b")); out.Refusal == nil || out.Refusal.Reason != actor.Budget {
		t.Errorf("%+v", out)
	}
	o = newRegistryFixture(t)
	for n := range 500 {
		o.state[fmt.Sprintf("former/x/%03d", n)] = strings.Repeat(" ", 60<<10)
	}
	if out := o.apply(agents.OpPut, `{"name":"more"}`); out.Refusal == nil || !strings.Contains(out.Refusal.Detail, "shorten prompts") {
		t.Errorf("%+v", out)
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
		`{"name":"x","tools":["browser.open","call_agent"]}`: "agent x does without the tools browser.open: this node does not have them",
		`{"name":"x","model":"big"}`:                         "agent x asks the model big, which this node does not know: it knows scripted",
		`{"name":"x","model":"big","tools":["a","b"]}`:       "agent x does without the tools a, b: this node does not have them; agent x asks the model big, which this node does not know: it knows scripted",
		`{"name":"x","endpoint":"http://127.0.0.1:9001"}`:    "",
	} {
		spec, err := agents.ReadJSON([]byte(text))
		if got := strings.Join(spec.AvailabilityWarnings(tools.NewRegistry(), []string{"scripted"}), "; "); err != nil || got != want {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	// A world may say so, and whoever made the agent hears of it.
	o := newRegistryFixture(t)
	o.warnings = []string{"agent x asks the model big"}
	if out := o.apply(agents.OpPut, `{"name":"x"}`); out.Status != actor.Partial || !slices.Equal(out.Warnings, o.warnings) {
		t.Errorf("%+v", out)
	}
	for name, want := range map[string]string{"agent/x": "x", "former/x/1": "", "key/x": ""} {
		if id, ok := agents.AgentOf(actor.StateItem{Name: name}); ok != (want != "") || ok && id != want {
			t.Errorf("%s: %q %v", name, id, ok)
		}
	}
}

// Whether an actor's journal goes on must not change under its open runs, whoever
// wants it, and by whatever way.
func TestDurabilityCannotChange(t *testing.T) {
	o := newRegistryFixture(t)
	for _, o.principal = range []string{"x", agents.Operator} {
		o.mustApply(agents.OpPut, `{"name":"a","durability":"journaled"}`)
		refused := func(what string) {
			t.Helper()
			out := o.apply(agents.OpPut, `{"name":"a","durability":"none"}`)
			if out.Refusal == nil || out.Refusal.Reason != actor.Rejected || out.Refusal.Field != "durability" {
				t.Errorf("%s: %+v", what, out)
			}
		}
		refused("while it is there")
		o.mustApply(agents.OpPut, `{"name":"a","durability":"journaled","prompt":"Be brief."}`)
		o.mustApply(agents.OpDelete, `{"agent_id":"a"}`)
		refused("deleted and made again")
		o.now = o.now.Add(agents.FormerRetention + time.Hour)
		o.mustApply(agents.OpPut, `{"name":"a","durability":"none"}`)
		o.mustApply(agents.OpDelete, `{"agent_id":"a"}`)
		o.now = o.now.Add(agents.FormerRetention + time.Hour)
	}
}

// Whatever is asked of it, in whatever order, the registry keeps what it said it
// would, and the world has heard of it.
func TestRegistryMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newRegistryFixture(t)
		model := map[string]string{} // agent to definition
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		says := func(t *rapid.T, op, body string) actor.Outcome {
			o.principal = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "who")
			return o.apply(op, body)
		}
		puts := func(t *rapid.T, op, id, body string) {
			out := says(t, op, body)
			if out.Refusal != nil {
				return
			}
			var answer struct{ Definition string }
			if err := json.Unmarshal(out.Parts[0].Bytes, &answer); err != nil {
				t.Fatal(err)
			}
			model[id] = answer.Definition
		}
		look := func(t *rapid.T) {
			got := map[string]string{}
			for _, def := range o.catalog().Definitions {
				got[def.Name] = def.Hash.String()
			}
			if !maps.Equal(got, model) {
				t.Fatalf("keeps %v, said %v", got, model)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				id := name.Draw(t, "agent")
				puts(t, agents.OpPut, id, fmt.Sprintf(`{"name":%q,"prompt":"%d"}`, id, rapid.IntRange(0, 3).Draw(t, "prompt")))
			},
			"register": func(t *rapid.T) {
				id := name.Draw(t, "agent")
				puts(t, agents.OpRegister, id, fmt.Sprintf(`{"name":%q,"endpoint":"http://127.0.0.1:%d"}`, id, rapid.IntRange(9001, 9003).Draw(t, "port")))
			},
			"delete": func(t *rapid.T) {
				id := name.Draw(t, "agent")
				if out := says(t, agents.OpDelete, fmt.Sprintf(`{"agent_id":%q}`, id)); (out.Refusal == nil) != (model[id] != "") {
					t.Fatalf("delete %s: %+v", id, out)
				}
				delete(model, id)
			},
			"pass": func(t *rapid.T) {
				o.now = o.now.Add(rapid.SampledFrom([]time.Duration{time.Minute, 13 * time.Hour}).Draw(t, "later"))
			},
			"look": look,
			"": func(t *rapid.T) {
				if !maps.Equal(o.state, o.announced) {
					t.Fatalf("kept %v, announced %v", o.state, o.announced)
				}
			},
		})
		look(t)
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
