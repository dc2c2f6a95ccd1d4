// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// notebook is the actor that has the notes of a session.
type notebook struct {
	t     *testing.T
	state []actor.StateItem
}

// note notes an entry, and returns the answer or the text of the refusal.
func (b *notebook) note(agent, entry string) string {
	b.t.Helper()
	request := begin(strings.TrimSuffix(entry, "}") + `,"agent_id":"` + agent + `","run_id":"r-` + agent + `"}`)
	request.Call.Operation, request.ActorState = agents.OpNote, b.state
	turn := agents.Contexts().Behavior.Begin(request)
	defer turn.Stop()
	action, err := turn.Next(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if action.Done.Refusal != nil {
		return action.Done.Refusal.Detail
	}
	for _, u := range action.StateUpdates {
		b.state = slices.DeleteFunc(b.state, func(i actor.StateItem) bool { return i.Name == u.Name })
		if len(u.Value) > 0 {
			b.state = append(b.state, u)
		}
	}
	slices.SortFunc(b.state, func(x, y actor.StateItem) int { return strings.Compare(x.Name, y.Name) })
	return actor.TextOf(action.Done.Parts)
}

// Entries have versions and say who noted them.
func TestNotesAreVersionedAndAttributed(t *testing.T) {
	b := &notebook{t: t}
	for _, c := range []struct{ agent, entry, want string }{
		{"cst", `{"kind":"constraint","name":"budget","value":[1,2]}`, `{"status":"noted","version":1}`},
		{"cst", `{"kind":"constraint","name":"budget","value":[1, 2]}`, `{"status":"unchanged","version":1}`},
		{"anl", `{"kind":"constraint","name":"budget","value":[1,3]}`, `{"status":"replaced","version":2}`},
		{"anl", `{"kind":"decision","value":"Enter in spring."}`, `{"status":"noted","version":1}`},
		{"cst", `{"kind":"decision","value":"Enter in spring."}`, `{"status":"unchanged","version":1}`},
		{"anl", `{"kind":"finding","name":"budget","value":"It is enough."}`, `{"status":"noted","version":1}`},
		{"anl", `{"kind":"data","value":"table prices"}`, `{"status":"noted","version":1}`},
		{"anl", `{"kind":"data","name":"gone","value":1}`, `{"status":"noted","version":1}`},
		{"cst", `{"kind":"data","name":"gone","value":null}`, `{"status":"removed"}`},
		{"cst", `{"kind":"data","name":"gone","value":null}`, `{"status":"unchanged"}`},
		{"anl", `{"kind":"state","value":{"done":1}}`, `{"status":"noted","version":1}`},
		{"cst", `{"kind":"state","value":"waits"}`, `{"status":"noted","version":1}`},
		{"anl", `{"kind":"state","value":{"done":2}}`, `{"status":"replaced","version":2}`},

		{"anl", `{"kind":"rumour","value":1}`, `note_session: kind: "rumour": want`},
		{"anl", `{"kind":"constraint","value":1}`, "name: is missing: a constraint has one"},
		{"anl", `{"kind":"state","name":"x","value":1}`, "name: want none"},
		{"anl", `{"kind":"data","name":"` + strings.Repeat("x", 129) + `","value":1}`, "name: want a line of at most 128 bytes"},
		{"anl", `{"kind":"data","name":"a\nb","value":1}`, "name: want a line"},
		{"anl", `{"kind":"decision","value":null}`, "name: is missing: name the entry that is removed"},
		{"anl", `{"kind":"decision","value":"` + strings.Repeat("x", agents.NoteBytesMax) + `"}`, "4098 bytes, at most 4096 allowed"},
		{"anl", `{"kind":"decision","value":1,"why":2}`, "note_session:"},
		{"anl", `{"kind":"decision"}`, "value: want JSON"},
	} {
		if got := b.note(c.agent, c.entry); !strings.HasPrefix(got, c.want) && !strings.Contains(got, c.want) {
			t.Errorf("%s notes %.80s: got %s, want %s", c.agent, c.entry, got, c.want)
		}
	}
	s := agents.NewSessionState(b.state, map[string]agents.AgentState{"orc": {}})
	at := s.Notes[0].At
	want := strings.ReplaceAll(`{"workflow":null,"agents":{"anl":{"state":{"done":2},"version":2,"run_id":"r-anl","at":"AT"},"cst":{"state":"waits","version":1,"run_id":"r-cst","at":"AT"},"orc":{}},`+
		`"notes":[{"kind":"constraint","name":"budget","value":[1,3],"version":2,"agent_id":"anl","run_id":"r-anl","at":"AT"},`+
		`{"kind":"decision","value":"Enter in spring.","version":1,"agent_id":"anl","run_id":"r-anl","at":"AT"},`+
		`{"kind":"finding","name":"budget","value":"It is enough.","version":1,"agent_id":"anl","run_id":"r-anl","at":"AT"},`+
		`{"kind":"data","value":"table prices","version":1,"agent_id":"anl","run_id":"r-anl","at":"AT"}]}`, "AT", at)
	if got := string(s.Encode()); at == "" || got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The number of entries of a session is bounded, and one that is full can be changed.
func TestNotesAreBounded(t *testing.T) {
	b := &notebook{t: t}
	for i := range agents.NotesMax {
		if got := b.note("anl", fmt.Sprintf(`{"kind":"finding","name":"n%d","value":%d}`, i, i)); !strings.Contains(got, "noted") {
			t.Fatal(got)
		}
	}
	for _, c := range []struct{ entry, want string }{
		{`{"kind":"finding","value":"more"}`, "the session has 100 entries, at most 100 allowed: replace one by its kind and name, or remove one with the value null"},
		{`{"kind":"finding","name":"n7","value":"other"}`, `{"status":"replaced","version":2}`},
		{`{"kind":"finding","name":"n8","value":null}`, `{"status":"removed"}`},
		{`{"kind":"finding","value":"more"}`, `{"status":"noted","version":1}`},
	} {
		if got := b.note("anl", c.entry); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %s", c.entry, got, c.want)
		}
	}
	if s := agents.NewSessionState(b.state, nil); len(s.Notes) != agents.NotesMax || string(s.Notes[7].Value) != `"other"` || s.Notes[99].Name != "" {
		t.Errorf("%d notes, the last %+v", len(s.Notes), s.Notes[99])
	}
}

// What an agent has noted is handed to those that are asked after it.
func TestNotesAreHandedOver(t *testing.T) {
	d, b := newDesk(t, wantsCase), &notebook{t: t}
	d.notes = func() []byte {
		if d.context["CST_FRAME"] != "" { // it has been asked
			for _, kind := range []string{"decision", "finding", "data", "constraint", "assumption", "state"} {
				name := ""
				if kind == "constraint" || kind == "finding" {
					name = `"name":"` + kind[:4] + `",`
				}
				b.note("cst", `{"kind":"`+kind+`",`+name+`"value":"a `+kind+`"}`)
			}
		}
		s := agents.NewSessionState(b.state, nil)
		return s.Encode()
	}
	if out := d.say(d.behavior("partial"), "Help me enter the market."); out.Status != actor.Succeeded {
		t.Fatal(out)
	}
	const noted = `"constraints":{"cons":"a constraint"},"decisions":["a decision"],"findings":["find: a finding"],"data_refs":["a data"],"assumptions":["a assumption"]`
	for code, knows := range map[string]bool{"CST_FRAME": false, "ANL_NPV": true, "CHA_SIZE": true, "DOC_GENERATE": true} {
		if strings.Contains(d.context[code], noted) != knows {
			t.Errorf("%s is told %s", code, d.context[code])
		}
	}
}

// Without an answer about the notes, a workflow goes on with those that it has.
func TestNotesThatCannotBeRead(t *testing.T) {
	d := newDesk(t, wantsCase)
	reads := 0
	d.notes = func() []byte {
		if reads++; reads > 1 {
			return nil
		}
		return []byte(`{"workflow":null,"agents":{},"notes":[{"kind":"decision","value":"go","version":1,"agent_id":"x","run_id":"y","at":"z"}]}`)
	}
	if out := d.say(d.behavior("partial"), "Help me enter the market."); out.Status != actor.Succeeded || reads != 3 {
		t.Fatal(reads, out)
	}
	for code, context := range d.context {
		if !strings.Contains(context, `"decisions":["go"]`) {
			t.Errorf("%s is told %s", code, context)
		}
	}
}

// What a workflow waits for, and what each step has answered.
func TestStateOfAWorkflow(t *testing.T) {
	d := newDesk(t, wantsCase)
	d.owners["ANL_NPV"] = `{"status":"ERROR","error_code":"DATA_NONE","error_message":"there are no figures","result_json":null}`
	d.say(d.behavior("ask"), "Help me enter the market.")
	w := agents.KeptWorkflow("desk", d.state)
	if w == nil || w.Agent != "desk" || !strings.Contains(w.Question, "Financial analysis could not be completed.") || fmt.Sprint(w.Steps) != "[{Framework CST_FRAME SUCCESS} {Financial analysis ANL_NPV ERROR} {Market CHA_SIZE SUCCESS} {Report DOC_GENERATE WAITING}]" {
		t.Errorf("%+v", w)
	}
	if w := agents.KeptWorkflow("desk", nil); w != nil {
		t.Errorf("%+v", w)
	}
	ask := agents.Tool(tools.RequestCapability, map[string]any{"capability_code": "ANL_NPV", "inputs_json": map[string]any{}})
	answered := func(body string) *actor.Answer { a := text(body); return &a }
	for want, answer := range map[string]*actor.Answer{"WORKING": nil, "PARTIAL": answered(`{"status":"PARTIAL"}`), "SUCCESS": answered("done"), "TIMEOUT": {Refusal: actor.Refuse(actor.Deadline, "late")}, "ERROR": {Refusal: actor.Refuse(actor.Invalid, "no")}} {
		if s, ok := agents.StepOf(&ask, answer); !ok || s.Capability != "ANL_NPV" || s.Status != want {
			t.Errorf("%+v %v, want %s", s, ok, want)
		}
	}
	other := agents.Tool(tools.CallAgent, map[string]any{})
	if _, ok := agents.StepOf(&other, nil); ok {
		t.Error("another ask is a step")
	}
}

// The state of an external agent is what it has noted or reported last, and its version counts both.
func TestReportedStateOfAnAgent(t *testing.T) {
	run, text := actor.CallID{7}, `","version":%d,"run_id":"`+actor.CallID{7}.String()+`","at":"%s"}`
	at := func(s int) actor.Time { return actor.Time(s) * actor.Time(time.Second) }
	note := func(s int) []actor.StateItem {
		return []actor.StateItem{{Name: "n/00000001", Value: []byte(`{"kind":"state","value":"noted","version":2,"agent_id":"scout","run_id":"` + run.String() + `","at":"` + runs.FormatTime(at(s)) + `"}`)}}
	}
	for _, c := range []struct {
		items []actor.StateItem
		state agents.AgentState
		want  string
	}{
		{nil, agents.AgentState{}, `{}`},
		{nil, agents.Reported("searching", `{"n":1}`, 3, run, at(5)), `{"state":"searching","detail":{"n":1` + strings.Replace(fmt.Sprintf(text, 3, runs.FormatTime(at(5))), `"`, `}`, 1)},
		{nil, agents.Reported("", "", 1, run, at(5)), `{"state":"` + fmt.Sprintf(text, 1, runs.FormatTime(at(5)))},
		{nil, agents.Reported("a\"b", `{"n":1,"n":2}`, 1, run, at(5)), `{"state":"a\"b` + fmt.Sprintf(text, 1, runs.FormatTime(at(5)))},
		{note(4), agents.Reported("searching", "", 3, run, at(5)), `{"state":"searching` + fmt.Sprintf(text, 5, runs.FormatTime(at(5)))},
		{note(6), agents.Reported("searching", `1`, 3, run, at(5)), `{"state":"noted` + fmt.Sprintf(text, 5, runs.FormatTime(at(6)))},
	} {
		s := agents.NewSessionState(c.items, map[string]agents.AgentState{"scout": c.state})
		if got, want := string(s.Encode()), `{"workflow":null,"agents":{"scout":`+c.want+`},"notes":[]}`; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// The steps of a plan are there before they are asked. A request is that of the first step with its capability that was
// not asked, a repeat that of its first time, and a plan that goes on has its results.
func TestStateOfAPlan(t *testing.T) {
	record := func(resume string) *actor.Ask {
		ask := agents.Tool(tools.RecordRoute, jsontext.Value(`{"course":"plan"`+resume+`,"steps":[{"title":"One","capability_code":"A_B"},{"title":"Two","capability_code":"A_B"},{"title":"Three","capability_code":"C_D"}]}`))
		return &ask
	}
	request := func(code string, n int) *actor.Ask {
		ask := agents.Tool(tools.RequestCapability, map[string]any{"capability_code": code, "inputs_json": map[string]int{"n": n}})
		return &ask
	}
	done, refused := text(`{"status":"SUCCESS"}`), actor.Answer{Refusal: actor.Refuse(actor.Busy, "full")}
	kept := &agents.WorkflowState{Steps: []agents.StepState{{Title: "One", Capability: "A_B", Status: "SUCCESS"}, {Title: "Two", Capability: "A_B", Status: "ERROR"}, {Title: "Three", Capability: "C_D", Status: "WAITING"}}}
	const resume = `,"resume":"retry"`
	for _, c := range []struct {
		name string
		asks []agents.AskOf
		want string
	}{
		{"nothing", nil, ""},
		{"no plan", []agents.AskOf{{Ask: request("C_D", 1)}, {Ask: request("A_B", 1), Answer: &done}}, "[{ C_D WORKING} { A_B SUCCESS}]"},
		{"not begun", []agents.AskOf{{Ask: record("")}}, "[{One A_B WAITING} {Two A_B WAITING} {Three C_D WAITING}]"},
		{"begun", []agents.AskOf{{Ask: record("")}, {Ask: request("A_B", 1), Answer: &done}, {Ask: request("A_B", 2)}}, "[{One A_B SUCCESS} {Two A_B WORKING} {Three C_D WAITING}]"},
		{"repeated", []agents.AskOf{{Ask: record("")}, {Ask: request("A_B", 1), Answer: &refused}, {Ask: request("A_B", 1), Answer: &done}}, "[{One A_B SUCCESS} {Two A_B WAITING} {Three C_D WAITING}]"},
		{"out of order", []agents.AskOf{{Ask: record("")}, {Ask: request("C_D", 1)}}, "[{One A_B WAITING} {Two A_B WAITING} {Three C_D WORKING}]"},
		{"not in the plan", []agents.AskOf{{Ask: record("")}, {Ask: request("E_F", 1)}}, "[{One A_B WAITING} {Two A_B WAITING} {Three C_D WAITING} { E_F WORKING}]"},
		{"resumed", []agents.AskOf{{Ask: record(resume)}}, "[{One A_B SUCCESS} {Two A_B ERROR} {Three C_D WAITING}]"},
		{"resumed and begun", []agents.AskOf{{Ask: record(resume)}, {Ask: request("A_B", 2)}}, "[{One A_B SUCCESS} {Two A_B WORKING} {Three C_D WAITING}]"},
		{"a misrouted step", []agents.AskOf{{Ask: record("")}, {Ask: request("C_D", 1), Answer: &done}, {Ask: record("")}}, "[{One A_B WAITING} {Two A_B WAITING} {Three C_D SUCCESS}]"},
	} {
		got := ""
		if w := agents.RunningWorkflow("desk", actor.CallID{1}, c.asks, kept); w != nil {
			got = fmt.Sprint(w.Steps)
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}
