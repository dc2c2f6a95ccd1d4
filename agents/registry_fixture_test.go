// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
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
	key           string // see actor.Call.SetAuthority
	rights        actor.Rights
}

func newRegistryFixture(t interface{ Fatalf(string, ...any) }) *registryFixture {
	f := &registryFixture{t: t, def: agents.Registry(agents.DefaultQuotas(), agents.NativeNames{Served: []string{"native"}, Reserved: []string{"unserved"}}), tools: tools.NewRegistry(), state: map[string]string{}, announced: map[string]string{}, now: actor.Time(time.Hour), principal: "key:a"}
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
	b.Call.SetAuthority(f.key, f.rights)
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

// acceptedBy returns the principals that the definitions in the state were accepted by.
func (f *registryFixture) acceptedBy() map[string]string {
	all := map[string]string{}
	for name, value := range f.state {
		var record struct {
			AcceptedBy string `json:"accepted_by"`
		}
		if err := json.Unmarshal([]byte(value), &record); err != nil {
			f.t.Fatalf("%v", err)
		}
		all[name] = record.AcceptedBy
	}
	return all
}
