// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

const deskTOML = `
name = "desk"
kind = "orchestrator"
code = "ORC"

[workflow.business_case]
description = "a business case: frame, figures, market and report"
on_step_failure = "POLICY"
compare = { "size" = "the market size" }

[[workflow.business_case.steps]]
name = "frame"
title = "Framework"
capability = "CST_FRAME"
agent = "CST"
inputs = { topic = "{request}", budget = "{inputs.budget}", region = "{inputs.region}" }

[[workflow.business_case.steps]]
name = "figures"
title = "Financial analysis"
capability = "ANL_NPV"
agent = "ANL"
inputs = { scenarios = "{frame.scenarios}", first = ["{frame.lead.name}"] }

[[workflow.business_case.steps]]
name = "market"
title = "Market"
capability = "CHA_SIZE"
parallel = true

[[workflow.business_case.steps]]
name = "report"
title = "Report"
capability = "DOC_GENERATE"
inputs = { npv = "{figures.npv}" }
`

// desk is the environment of an orchestrator: a model that says what it is told, and owners of capabilities.
type desk struct {
	t       *testing.T
	says    []string          // of the model
	owners  map[string]string // by capability
	asked   []string          // capabilities, those of a stage joined by '+'
	inputs  map[string]string // by capability
	context map[string]string // likewise
	records map[string]string // by tool
	prompts []upstream.Prompt
	state   []actor.StateItem
	notes   func() []byte // what the agents have noted; nil, or without a text: it cannot be read
	open    int           // requests of a stage that are made, if not 0; others are refused; less than 0: none is
}

func newDesk(t *testing.T, says ...string) *desk {
	return &desk{t: t, says: says, inputs: map[string]string{}, context: map[string]string{}, records: map[string]string{}, owners: map[string]string{
		"CST_FRAME":    `{"status":"SUCCESS","confidence_level":"HIGH","result_json":{"scenarios":["low","high"],"lead":{"name":"low"},"text":"Two scenarios."}}`,
		"ANL_NPV":      `{"status":"SUCCESS","confidence_level":"MEDIUM","result_json":{"npv":24156.72,"size":5}}`,
		"CHA_SIZE":     `{"status":"SUCCESS","confidence_level":"HIGH","result_json":{"size":6}}`,
		"DOC_GENERATE": `{"status":"SUCCESS","confidence_level":"HIGH","result_json":{"text":"The report is written."}}`,
	}}
}

func (d *desk) answer(ask actor.Ask) actor.Answer {
	switch {
	case ask.Kind == actor.AskModel:
		prompt, err := upstream.DecodePrompt(ask.Body)
		if err != nil {
			d.t.Fatal(err)
		}
		d.prompts = append(d.prompts, prompt)
		say := d.says[0]
		d.says = d.says[1:]
		return completionAnswer(upstream.Completion{Text: say, Finish: upstream.FinishStop})
	case ask.Name == tools.RequestCapability:
		var in struct {
			Code    string         `json:"capability_code"`
			Inputs  jsontext.Value `json:"inputs_json"`
			Context jsontext.Value `json:"context"`
		}
		if err := json.Unmarshal(ask.Parts[0].Bytes, &in); err != nil {
			d.t.Fatal(err)
		}
		d.inputs[in.Code], d.context[in.Code] = string(in.Inputs), string(in.Context)
		if owner, ok := d.owners[in.Code]; ok {
			return text(owner)
		}
		return actor.Answer{Refusal: actor.Refuse(actor.NotFound, "no agent is named cst")}
	}
	if ask.Name == tools.ReadSession {
		if d.notes != nil {
			if b := d.notes(); b != nil {
				return text(string(b))
			}
		}
		return actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "no state of sessions")}
	}
	d.records[ask.Name] = string(ask.Parts[0].Bytes)
	return text("{}")
}

// say sends a message, and checks that a replay of the turn makes the same asks.
func (d *desk) say(b actor.Behavior, message string) actor.Outcome {
	d.t.Helper()
	request := begin(message)
	request.ActorState = d.state
	turn := b.Begin(request)
	defer turn.Stop()
	var answers []actor.Answer
	var all [][]actor.Answer
	for {
		action, err := turn.Next(answers)
		if err != nil {
			d.t.Fatal(err)
		}
		if action.Done != nil {
			if err := agents.SameTurn(b, b, request, all); err != nil {
				d.t.Fatal(err)
			}
			for _, u := range action.StateUpdates {
				d.state = slices.DeleteFunc(d.state, func(i actor.StateItem) bool { return i.Name == u.Name })
				if len(u.Value) > 0 {
					d.state = append(d.state, u)
				}
			}
			return *action.Done
		}
		answers = nil
		var stage []string
		for _, ask := range action.Asks {
			if ask.Name == tools.RequestCapability && d.open != 0 && len(stage) >= d.open {
				answers = append(answers, actor.Answer{Refusal: actor.RefuseBusy(actor.ScopeCaller, 0, "too many calls")})
			} else {
				answers = append(answers, d.answer(ask))
			}
			if ask.Name == tools.RequestCapability {
				_, code, _ := strings.Cut(string(ask.Parts[0].Bytes), `{"capability_code":"`)
				code, _, _ = strings.Cut(code, `"`)
				stage = append(stage, code)
			}
		}
		if all = append(all, answers); len(stage) > 0 {
			d.asked = append(d.asked, strings.Join(stage, "+"))
		}
	}
}

func (d *desk) behavior(policy string) actor.Behavior {
	return compileTOML(d.t, strings.ReplaceAll(deskTOML, "POLICY", policy))
}

const wantsCase = `{"primary_intent":"business_case","intent_confidence":0.9,"workflow":"business_case","inputs":{"budget":[1,2]}}`

// A workflow is asked stage by stage. Each step gets its inputs and what was found before, and the answer
// follows the plan.
func TestWorkflowIsAskedByStages(t *testing.T) {
	d := newDesk(t, wantsCase)
	out := d.say(d.behavior("partial"), "Help me enter the market.")
	want := "Framework: Two scenarios. Confidence: high.\n\nFinancial analysis: npv 24156.72, size 5. Confidence: medium.\n\nMarket: size 6. Confidence: high.\n\n" +
		"Report: The report is written. Confidence: high.\n\nThe results differ in the market size: 5 (Financial analysis), 6 (Market). 6 is used: its confidence is higher."
	if got := actor.TextOf(out.Parts); out.Status != actor.Succeeded || got != want {
		t.Errorf("got %v %v\n%s\nwant\n%s", out.Status, out.Refusal, got, want)
	}
	if got := strings.Join(d.asked, " "); got != "CST_FRAME ANL_NPV+CHA_SIZE DOC_GENERATE" {
		t.Errorf("asked %s", got)
	}
	for code, want := range map[string]string{
		"CST_FRAME": `{"budget":[1,2],"topic":"Help me enter the market."}`, "ANL_NPV": `{"first":["low"],"scenarios":["low","high"]}`,
		"CHA_SIZE": `{"budget":[1,2]}`, "DOC_GENERATE": `{"npv":24156.72}`,
	} {
		if d.inputs[code] != want {
			t.Errorf("%s: inputs %s, want %s", code, d.inputs[code], want)
		}
	}
	want = `{"session_id":"s-1","original_request":"Help me enter the market.","workflow_position":"Step 3 of 4 (Market)","prior_agents":["ORC","CST"],` +
		`"prior_outputs":{"frame":{"scenarios":["low","high"],"lead":{"name":"low"},"text":"Two scenarios."}},"constraints":{},"history_ref":"/v1/sessions/s-1/messages?agent=planner","messages":[{"role":"user","content":"Help me enter the market."}]}`
	if d.context["CHA_SIZE"] != want {
		t.Errorf("handed over %s\nwant        %s", d.context["CHA_SIZE"], want)
	}
	if want := `{"course":"plan","primary_intent":"business_case","intent_confidence":0.9,"threshold":0.7,"workflow":"business_case","steps":[{"title":"Framework","capability_code":"CST_FRAME"},{"title":"Financial analysis","capability_code":"ANL_NPV"},{"title":"Market","capability_code":"CHA_SIZE"},{"title":"Report","capability_code":"DOC_GENERATE"}]}`; d.records[tools.RecordRoute] != want {
		t.Errorf("recorded %s", d.records[tools.RecordRoute])
	}
	if got := d.records[tools.RecordJoin]; !strings.Contains(got, `"conflicts":[{"verdict":"differ","fields":["size"],"values":[5,6],"sources":["ANL","CHA_SIZE"],"preferred":1,"why":"its confidence is higher"}]`) {
		t.Errorf("recorded %s", got)
	}
}

// The status of a response is looked at before its result, and decides what is asked next.
func TestStepsThatFail(t *testing.T) {
	const failed = `{"status":"ERROR","error_code":"DATA_NONE","error_message":"there are no figures","result_json":{"npv":1}}`
	for policy, c := range map[string]struct {
		asked, text, refusal string
		warnings             string
	}{
		"partial": {"CST_FRAME ANL_NPV+CHA_SIZE", "Financial analysis: Could not be completed: there are no figures.\n\nMarket: size 6. Confidence: high.\n\n" +
			"Report: Could not be completed: Financial analysis is needed for it, and was not completed.", "", "Financial analysis: error, Report: not begun"},
		"fail": {"CST_FRAME ANL_NPV+CHA_SIZE", "", "Financial analysis could not be completed: there are no figures", ""},
		"ask": {"CST_FRAME ANL_NPV+CHA_SIZE", "Report: Could not be completed: it was not begun.\n\n" +
			"Financial analysis could not be completed. Should I try it again, go on without it, or stop?", "", "Financial analysis: error, Report: not begun"},
	} {
		d := newDesk(t, wantsCase)
		d.owners["ANL_NPV"] = failed
		out := d.say(d.behavior(policy), "Help me.")
		got := actor.TextOf(out.Parts)
		if warnings := strings.Join(out.Warnings, ", "); warnings != c.warnings {
			t.Errorf("%s: warns %q", policy, warnings)
		}
		if asked := strings.Join(d.asked, " "); asked != c.asked || !strings.HasSuffix(got, c.text) {
			t.Errorf("%s: asked %s, said\n%s", policy, asked, got)
		}
		if (c.refusal == "") != (out.Refusal == nil) || out.Refusal != nil && out.Refusal.Detail != c.refusal || c.refusal == "" && out.Status != actor.Partial {
			t.Errorf("%s: %v %v", policy, out.Status, out.Refusal)
		}
	}
}

// An agent passes the error of its tool on, with the host that it has asked. A user reads that the step failed, and no host.
func TestErrorsOfToolsAreNotForUsers(t *testing.T) {
	const failed = `{"status":"ERROR","error_code":"DATA_NONE","error_message":"rates: dial tcp 10.0.0.7:5432: connection refused"}`
	for _, c := range []struct {
		policy, userText string
		shown            bool
	}{{"partial", "redact", false}, {"fail", "redact", false}, {"ask", "redact", false}, {"partial", "flag", true}, {"partial", "off", true}} {
		d := newDesk(t, wantsCase)
		d.owners["ANL_NPV"] = failed
		d.owners["CHA_SIZE"] = `{"status":"PARTIAL","confidence_level":"LOW","result_json":{"size":6},"warnings":["GET https://crm.internal/deals: 503"]}`
		b := compileTOML(t, strings.Replace(strings.ReplaceAll(deskTOML, "POLICY", c.policy), `code = "ORC"`, "code = \"ORC\"\nuser_text = \""+c.userText+"\"", 1))
		out := d.say(b, "Help me.")
		got := actor.TextOf(out.Parts)
		if out.Refusal != nil {
			got = out.Refusal.Detail
		}
		for _, word := range []string{"10.0.0.7", "crm.internal"} {
			if c.policy != "fail" && strings.Contains(got, word) != c.shown || !c.shown && strings.Contains(got+strings.Join(out.Warnings, " "), word) {
				t.Errorf("%s, %s: got %s %q", c.policy, c.userText, got, out.Warnings)
			}
		}
		if want := "an error occurred"; strings.Contains(got, want) == c.shown {
			t.Errorf("%s, %s: got %s", c.policy, c.userText, got)
		}
		if flagged := strings.Contains(strings.Join(out.Warnings, " "), "the answer names 10.0.0.7:5432, https://crm.internal/deals, which users should not read"); flagged != (c.userText == "flag") {
			t.Errorf("%s, %s: warns %q", c.policy, c.userText, out.Warnings)
		}
	}
}

// Trying again asks only for what has not succeeded, and going on keeps what has failed.
func TestAnswersAboutAFailedStep(t *testing.T) {
	const resume = `{"primary_intent":"answer","intent_confidence":1,"resume":"%s"}`
	for answer, want := range map[string]string{"retry": "ANL_NPV DOC_GENERATE", "continue": "", "stop": ""} {
		d := newDesk(t, wantsCase, fmt.Sprintf(resume, answer))
		npv := d.owners["ANL_NPV"]
		d.owners["ANL_NPV"] = `{"status":"ERROR","error_message":"no figures","result_json":null}`
		b := d.behavior("ask")
		d.say(b, "Help me.")
		if len(d.state) == 0 {
			t.Fatal("nothing is kept")
		}
		d.owners["ANL_NPV"], d.asked = npv, nil
		out := d.say(b, "Well, "+answer)
		if got := strings.Join(d.asked, " "); got != want {
			t.Errorf("%s: asked %q, want %q", answer, got, want)
		}
		if (answer == "retry") != (out.Status == actor.Succeeded) || !strings.HasPrefix(actor.TextOf(out.Parts), "Framework: Two scenarios.") || len(d.state) != 0 {
			t.Errorf("%s: %v %s, keeps %v", answer, out.Status, actor.TextOf(out.Parts), d.state)
		}
		if prompt := d.prompts[len(d.prompts)-1].Messages[0].Text; !strings.Contains(prompt, "Should I try it again") {
			t.Errorf("the model is not told what the user was asked:\n%s", prompt)
		}
	}
}

// An answer that is no JSON is asked for once more, and then the user is asked.
func TestUnreadableIntent(t *testing.T) {
	d := newDesk(t, "Let me see.", wantsCase)
	if d.say(d.behavior("partial"), "Help me."); len(d.asked) != 3 || len(d.prompts) != 2 {
		t.Errorf("asked %v after %d prompts", d.asked, len(d.prompts))
	}
	last := d.prompts[1].Messages
	if got := last[len(last)-1].Text; !strings.Contains(got, "want a JSON object") {
		t.Errorf("asked again with %q", got)
	}
	d = newDesk(t, `{"primary_intent":"x","intent_confidence":1,"workflow":"busines_case"}`, "Sorry.")
	out := d.say(d.behavior("partial"), "Help me.")
	if got := actor.TextOf(out.Parts); !strings.HasPrefix(got, "I am not sure") || len(d.asked) != 0 || out.Status != actor.Succeeded {
		t.Errorf("got %v %q, asked %v", out.Status, got, d.asked)
	}
	last = d.prompts[1].Messages
	if got := last[len(last)-1].Text; !strings.Contains(got, "did you mean business_case?") {
		t.Errorf("asked again with %q", got)
	}
}

// Without a workflow the target and the secondary targets are asked in order; their inputs are no templates.
func TestTargetsAreAskedInOrder(t *testing.T) {
	d := newDesk(t, `{"primary_intent":"financial_projection","intent_confidence":0.85,"target_agent":"ANL","target_capability":"ANL_NPV","inputs":{"note":"{request}"},`+
		`"secondary_intents":["document_generation"],"secondary_targets":[{"agent":"DOC","capability":"DOC_GENERATE"}]}`)
	out := d.say(d.behavior("partial"), "Project it and write it down.")
	if got := strings.Join(d.asked, " "); got != "ANL_NPV DOC_GENERATE" || d.inputs["ANL_NPV"] != `{"note":"{request}"}` || d.inputs["DOC_GENERATE"] != "{}" {
		t.Errorf("asked %s with %v", got, d.inputs)
	}
	if got := actor.TextOf(out.Parts); !strings.HasPrefix(got, "Financial projection: npv 24156.72") || !strings.Contains(d.context["DOC_GENERATE"], `"prior_agents":["ORC","ANL"],"prior_outputs":{"result_1":{"npv"`) {
		t.Errorf("got %s, handed over %s", got, d.context["DOC_GENERATE"])
	}
	d = newDesk(t, `{"primary_intent":"x","intent_confidence":1,"target_capability":"XYZ_NONE"}`)
	out = d.say(d.behavior("partial"), "Do it.")
	if got := actor.TextOf(out.Parts); got != "X: Could not be completed: it is not available now." {
		t.Errorf("got %q", got)
	}
}

// Faults that users of other systems have reported: only the first of several hand-offs is made, a hand-off replaces another
// to the same agent, a failing branch loses the results of the others, a branch lacks the message of the user, an empty
// answer counts as success, and a plain answer is changed into another form.
func TestFaultsOfOtherTeams(t *testing.T) {
	d := newDesk(t, `{"primary_intent":"both","intent_confidence":1,"target_agent":"\u0060ANL\u0060","target_capability":"anl_npv","inputs":{"rate":1},`+
		`"secondary_targets":[{"capability":"ANL_NPV","inputs":{"rate":2}},{"capability":"CHA_SIZE"},{"capability":"**DOC_GENERATE**"}]}`)
	d.owners["CHA_SIZE"], d.owners["DOC_GENERATE"] = "", `{"status":"shipped","pages":7}`
	out := d.say(d.behavior("partial"), "Value it at both rates, and the size.")
	if got := strings.Join(d.asked, " "); got != "ANL_NPV ANL_NPV CHA_SIZE DOC_GENERATE" || d.inputs["ANL_NPV"] != `{"rate":2}` {
		t.Errorf("asked %s, the second with %s", got, d.inputs["ANL_NPV"])
	}
	got := actor.TextOf(out.Parts)
	for _, want := range []string{"Both: npv 24156.72", "Part 2: npv 24156.72", "Part 3: Limitation: the answer is empty. Confidence: low.", "Part 4: status shipped, pages 7."} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
	if out.Status != actor.Partial {
		t.Errorf("the run is %v", out.Status)
	}
	d = newDesk(t, wantsCase)
	d.owners["ANL_NPV"] = `{"status":"TIMEOUT"}`
	got = actor.TextOf(d.say(d.behavior("partial"), "My own words.").Parts)
	if !strings.Contains(got, "Financial analysis: Was not completed in time.") || !strings.Contains(got, "Market: size 6.") {
		t.Errorf("beside a branch that is late: %s", got)
	}
	for code, context := range d.context {
		if !strings.Contains(context, `"original_request":"My own words."`) {
			t.Errorf("%s is told %s", code, context)
		}
	}
}

func TestOrchestratorsThatAreRefused(t *testing.T) {
	const head = "name = \"desk\"\nkind = \"orchestrator\"\n"
	step := func(text string) string {
		return head + "[workflow.w]\ndescription = \"d\"\n[[workflow.w.steps]]\n" + text
	}
	for toml, want := range map[string]string{
		head + "threshold = 2":                                       "3:1: threshold: 2: want 0 to 1",
		head + "threshold = -0.1":                                    "3:1: threshold: -0.1: want 0 to 1",
		head + "tools = [\"call_agent\"]":                            "3:1: tools: not allowed for an agent of kind orchestrator; remove it",
		"name = \"a\"\nthreshold = 0.5":                              "2:1: threshold: not allowed for an agent of kind declared; remove it",
		head + "durability = \"none\"":                               "durability: an orchestrator keeps what its steps have answered; remove it",
		head + "user_text = \"on\"":                                  `3:1: user_text: want "flag" or "redact" or "off", got "on"`,
		head + "[workflow.w]\ndescription = \"d\"":                   "workflow.w: steps: is empty; add a table [[workflow.w.steps]] with the capability of the first step",
		head + "[workflow]\nw = 1":                                   "workflow.w: want a table [workflow.NAME] with description, on_step_failure, on_conflict, compare, terms, steps, got a whole number",
		head + "[workflow.w]\nstep = []":                             "workflow.w: step: is unknown; did you mean steps?",
		head + "[workflow.w]\non_step_failure = \"x\"":               `workflow.w: on_step_failure: want "partial" or "fail" or "ask"`,
		step("title = \"t\""):                                        `steps: step 1: capability: is missing; want the code of a capability, like capability = "DOC_GENERATE"`,
		step("capability = \"A_B\"\nparallel = true"):                "steps: step 1: parallel: the first step has no step before it",
		step("capability = \"A_B\"\ninputs = { a = \"{later.x}\" }"): "steps: step 1: inputs: {later.x}: no step is named so; want one of request, inputs",
		step("capability = \"A_B\"\n[[workflow.w.steps]]\ncapability = \"C_D\"\nparallel = true\ninputs = { a = \"{a_b.x}\" }"): "steps: step 2: inputs: {a_b.x}: step a_b has no result yet",
		step("capability = \"A_B\"\n[[workflow.w.steps]]\ncapability = \"A_B\""):                                                "steps: step 2: name: a_b is the name of an earlier step",
		step("capability = \"A_B\"\n[[provides]]\ncode = \"A_B\"\ndescription = \"d\""):                                         "workflow.w: steps: step 1: A_B is provided by this agent, so the workflow would call itself; name a capability of another agent",
	} {
		_, err := agents.ReadTOML(toml)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", toml, err, want)
		}
	}
}

// A spec is what it was after a way through JSON.
func TestOrchestratorSpecAsJSON(t *testing.T) {
	spec, err := agents.ReadTOML(strings.ReplaceAll(deskTOML, "POLICY", "ask"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := agents.ReadJSON(spec.Encode())
	if err != nil || string(again.Encode()) != string(spec.Encode()) || *again.Threshold != 0.7 || again.UserText != "redact" || again.Workflows["business_case"].OnConflict != "prefer" {
		t.Errorf("got %s %v\nwant %s", again.Encode(), err, spec.Encode())
	}
}

// A workflow names capabilities that other agents provide.
func TestRegistryRefusesUnknownCapabilities(t *testing.T) {
	f := newRegistryFixture(t)
	const owner = `{"name":"analyst","provides":[{"code":"ANL_NPV","description":"d"}]}`
	const user = `{"name":"desk","kind":"orchestrator","workflow":{"case":{"description":"d","steps":[{"capability":"%s"}]}}}`
	for code, want := range map[string]string{
		"ANL_NPV":     "workflow.case: steps: step 1: no agent provides ANL_NPV; create first the agent that has it in [[provides]]",
		"CST_PLANNER": "workflow.case: steps: step 1: no agent provides CST_PLANNER; create first",
	} {
		if out := f.apply(agents.OpPut, fmt.Sprintf(user, code)); out.Refusal == nil || !strings.Contains(out.Refusal.Detail, want) || out.Refusal.Field != "workflow.case" {
			t.Errorf("%s: got %v, want %s", code, out.Refusal, want)
		}
	}
	f.mustApply(agents.OpPut, owner)
	if out := f.apply(agents.OpPut, fmt.Sprintf(user, "ANL_NVP")); out.Refusal == nil || !strings.Contains(out.Refusal.Detail, "no agent provides ANL_NVP; did you mean ANL_NPV?") {
		t.Errorf("got %v", out.Refusal)
	}
	f.mustApply(agents.OpPut, fmt.Sprintf(user, "ANL_NPV"))

	// One of a file may wait for an agent that registers later. What is a slip of the hand depends on files alone.
	f.principal = agents.Operator
	f.mustApply(agents.OpPut, fmt.Sprintf(user, "ANL_NVP"))
	f.mustApply(agents.OpPut, fmt.Sprintf(user, "EXT_ONE"))
	f.mustApply(agents.OpPut, `{"name":"ext","provides":[{"code":"EXT_TWO","description":"d"}]}`)
	if out := f.apply(agents.OpPut, fmt.Sprintf(user, "EXT_TWOO")); out.Refusal == nil || !strings.Contains(out.Refusal.Detail, "did you mean EXT_TWO?") {
		t.Errorf("got %v", out.Refusal)
	}
}

// A conflict that the user decides waits for the answer, and asks for nothing again.
func TestUserDecidesAConflict(t *testing.T) {
	const toml = "compare = { \"size\" = \"the market size\" }\non_conflict = \"ask\"\n"
	b := compileTOML(t, strings.NewReplacer("POLICY", "partial", "compare = { \"size\" = \"the market size\" }\n", toml).Replace(deskTOML))
	d := newDesk(t, wantsCase, `{"primary_intent":"answer","intent_confidence":1,"resume":"prefer","prefer":"Financial analysis"}`)
	out := d.say(b, "Help me.")
	if got := actor.TextOf(out.Parts); !strings.HasSuffix(got, "5 (Financial analysis), 6 (Market).\n\nWhich value of the market size should be used?") || len(d.state) == 0 {
		t.Fatalf("got %s, keeps %d items", got, len(d.state))
	}
	d.asked = nil
	out = d.say(b, "The one of the financial analysis.")
	if got := actor.TextOf(out.Parts); !strings.HasSuffix(got, "5 is used: you have preferred it.") || len(d.asked) != 0 || len(d.state) != 0 {
		t.Errorf("got %s, asked %v, keeps %d items", got, d.asked, len(d.state))
	}
}
