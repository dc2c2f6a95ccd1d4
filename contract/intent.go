// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Intent is what an orchestrator has understood of a message: the classification of the contract, with
// the members that a plan needs.
type Intent struct {
	Name       string  // primary_intent
	Confidence float64 // from 0 to 1
	Target     Target  // without a capability: none
	Workflow   string  // in place of Target; "": none
	Secondary  []Target
	Limits     jsontext.Value // constraints that the user has set, an object; nil: none
	Missing    []string       // information that only the user has
	Options    []string       // what else the user may mean
	Question   string         // to the user; "": a general one
	Reply      string         // to the user, if no other agent is needed
	Resume     string         // answer to a question about a plan: retry, continue, stop or prefer; "": none
	Prefer     string         // with prefer: the title of the component whose values the user wants
}

// Target is a capability with the agent that is wanted for it.
type Target struct {
	Intent     string
	Agent      string // ID or code; "": any owner
	Capability string
	Inputs     jsontext.Value // an object; nil: none
}

// Bounds of an intent.
const (
	intentTextMax = 2 << 10
	intentListMax = 8
)

// IntentSchema is the JSON Schema of a classification, for the model that makes it.
const IntentSchema = `{"type":"object","properties":{` +
	`"primary_intent":{"type":"string"},` +
	`"intent_confidence":{"type":"number","minimum":0,"maximum":1},` +
	`"target_agent":{"type":["string","null"]},` +
	`"target_capability":{"type":["string","null"]},` +
	`"workflow":{"type":["string","null"]},` +
	`"inputs":{"type":"object"},` +
	`"constraints":{"type":"object"},` +
	`"secondary_intents":{"type":"array","items":{"type":"string"}},` +
	`"secondary_targets":{"type":"array","items":{"type":"object","properties":{"agent":{"type":"string"},"capability":{"type":"string"},"inputs":{"type":"object"}},"required":["capability"]}},` +
	`"missing":{"type":"array","items":{"type":"string"}},` +
	`"options":{"type":"array","items":{"type":"string"}},` +
	`"question":{"type":"string"},` +
	`"reply":{"type":"string"},` +
	`"resume":{"enum":["retry","continue","stop","prefer",""]},` +
	`"prefer":{"type":"string"}` +
	`},"required":["primary_intent","intent_confidence"]}`

// DecodeIntent reads the answer of a model. What can be understood is understood: further members are
// ignored, and null is an absent member.
func DecodeIntent(answer string) (Intent, *Violation) {
	var i Intent
	text := fenced(answer)
	if len(text) > EnvelopeBytesMax {
		return i, violation(OutputViolation, "", "%d bytes exceed the maximum of %d", len(text), EnvelopeBytesMax)
	}
	members, err := membersOf([]byte(text), lenient)
	if err != nil {
		return i, violation(OutputViolation, "", "%v", err)
	}
	line := func(name string) string {
		text, _ := textOf(lastOf(members, name))
		return actor.FitText(strings.TrimSpace(text), intentTextMax)
	}
	var ok bool
	if i.Name = line("primary_intent"); i.Name == "" {
		return i, violation(OutputViolation, "primary_intent", "want a name of what the user wants")
	}
	if i.Confidence, ok = readNumber(lastOf(members, "intent_confidence")); !ok {
		return i, violation(OutputViolation, "intent_confidence", "want a number from 0 to 1")
	}
	// A name that is a list or an object means something. Read as absent, it would end as "nobody does it".
	for _, name := range []string{"target_agent", "target_capability", "workflow"} {
		if v := lastOf(members, name); v != nil && v.Kind() != '"' {
			return i, violation(OutputViolation, name, "want one name or null; further capabilities belong in secondary_targets")
		}
	}
	var v *Violation
	if i.Target, v = readTarget("target_capability", i.Name, line("target_agent"), line("target_capability"), lastOf(members, "inputs")); v != nil {
		return i, v
	}
	if limits := lastOf(members, "constraints"); limits != nil {
		if i.Limits = strictObject(limits); i.Limits == nil || limits.Kind() != '{' {
			return i, violation(OutputViolation, "constraints", "want an object")
		}
	}
	i.Workflow, i.Question, i.Reply = line("workflow"), line("question"), line("reply")
	if i.Secondary, v = readTargets(members); v != nil {
		return i, v
	}
	i.Missing, i.Options = intentTexts(lastOf(members, "missing")), intentTexts(lastOf(members, "options"))
	if i.Resume = strings.ToLower(line("resume")); i.Resume != "" && !slices.Contains([]string{"retry", "continue", "stop", "prefer"}, i.Resume) {
		return i, violation(OutputViolation, "resume", "want retry, continue, stop or prefer")
	}
	i.Prefer = line("prefer")
	return i, nil
}

func readTarget(field, intent, agent, code string, inputs jsontext.Value) (Target, *Violation) {
	code = bare(code)
	if !strings.ContainsAny(code, " \t\n") {
		code = cmp.Or(codeOf(code), code)
	}
	t := Target{Intent: intent, Agent: bare(agent), Capability: code}
	if code != "" && !isCode(code) {
		return t, violation(OutputViolation, field, "want the code of a capability such as DOC_GENERATE, or null")
	}
	if inputs != nil {
		if t.Inputs = strictObject(inputs); t.Inputs == nil || inputs.Kind() != '{' {
			return t, violation(OutputViolation, "inputs", "want an object")
		}
	}
	return t, nil
}

// bare returns a name without the marks that models write around it.
func bare(name string) string { return strings.Trim(name, " \t\n\"'`*") }

// readTargets reads secondary_targets, whose intents have the same places in secondary_intents.
func readTargets(members []member) (all []Target, v *Violation) {
	names := intentTexts(lastOf(members, "secondary_intents"))
	var items []jsontext.Value
	if list := lastOf(members, "secondary_targets"); list != nil && json.Unmarshal(list, &items, lenient) != nil {
		return nil, violation(OutputViolation, "secondary_targets", "want a list of objects")
	}
	if len(items) > intentListMax { // what the user wants is not left out without a word
		return nil, violation(OutputViolation, "secondary_targets", "%d entries: want at most %d", len(items), intentListMax)
	}
	for i, item := range items {
		fields, err := membersOf(item, lenient)
		if err != nil {
			return nil, violation(OutputViolation, "secondary_targets", "want a list of objects")
		}
		agent, _ := textOf(lastOf(fields, "agent"))
		code, _ := textOf(lastOf(fields, "capability"))
		name := ""
		if i < len(names) {
			name = names[i]
		}
		t, v := readTarget("secondary_targets", name, agent, code, lastOf(fields, "inputs"))
		if v != nil {
			return nil, v
		}
		if t.Capability != "" {
			all = append(all, t)
		}
	}
	return all, nil
}

func intentTexts(v jsontext.Value) []string {
	texts := skillTexts(v)
	texts = slices.DeleteFunc(texts, func(t string) bool { return strings.TrimSpace(t) == "" })
	return texts[:min(len(texts), intentListMax)]
}

// Course is what an orchestrator does about a message.
type Course string

// The courses.
const (
	CoursePlan     Course = "plan"     // the target or the workflow is asked
	CourseReply    Course = "reply"    // no other agent is needed
	CourseQuestion Course = "question" // too little is known
	CourseOptions  Course = "options"  // the user may mean several things
	CourseCannot   Course = "cannot"   // no agent does it
)

// Texts for users where the model has none.
const (
	AnyQuestion  = "I am not sure what you would like to have done. Could you say it in other words?"
	optionsStart = "Which of these do you mean?"
	cannotText   = "I cannot help with that: nobody here does it."
)

// Decide returns the course for an intent, and the text for the user unless it is a plan. A confidence
// below the threshold never begins a plan.
func (i *Intent) Decide(threshold float64) (Course, string) {
	routed := i.Workflow != "" || i.Target.Capability != ""
	switch {
	case len(i.Options) > 1 && (i.Confidence < threshold || !routed):
		return CourseOptions, optionsStart + "\n- " + strings.Join(i.Options, "\n- ")
	case i.Confidence < threshold:
		return CourseQuestion, cmp.Or(i.Question, AnyQuestion)
	case len(i.Missing) > 0:
		return CourseQuestion, cmp.Or(i.Question, "To do that I need to know: "+strings.Join(i.Missing, ", ")+".")
	case routed:
		return CoursePlan, ""
	case i.Reply != "":
		return CourseReply, i.Reply
	}
	return CourseCannot, cannotText
}

// CourseMisrouted is the course in the record of a request that its owner has called misrouted.
const CourseMisrouted Course = "misrouted"

// EncodeMisrouted returns the record of a request for the intent that its owner has called misrouted.
func (i *Intent) EncodeMisrouted(capability string, m *Misrouted) []byte {
	all := []member{{"course", quoted(string(CourseMisrouted))}, {"primary_intent", quoted(i.Name)}, {"target_capability", quoted(capability)}, {"suggested", nil}}
	if m.Suggested != "" {
		all[3].value = quoted(m.Suggested)
	}
	return encodeMembers(present(all))
}

// PlannedStep is a step of the plan that a decision has led to.
type PlannedStep struct {
	Title      string `json:"title"`
	Capability string `json:"capability_code"`
}

// ReadPlanned returns the steps of a record that Encode has written, nil if the record has none. It reports whether an
// earlier turn has kept the plan.
func ReadPlanned(record []byte) (steps []PlannedStep, resumed bool) {
	var in struct {
		Steps  []PlannedStep `json:"steps"`
		Resume string        `json:"resume"`
	}
	if json.Unmarshal(record, &in) != nil {
		return nil, false
	}
	return in.Steps, in.Resume != ""
}

// Route is what the record of a decision has for statistics.
type Route struct {
	Intent string // "" if it is no name: a sentence could hold words of a user
	Course Course
}

// ReadRoute reads a record that Encode or EncodeMisrouted has written.
func ReadRoute(record []byte) (Route, bool) {
	var in struct {
		Intent string `json:"primary_intent"`
		Course Course `json:"course"`
	}
	if json.Unmarshal(record, &in) != nil || !slices.Contains([]Course{CoursePlan, CourseReply, CourseQuestion, CourseOptions, CourseCannot, CourseMisrouted}, in.Course) {
		return Route{}, false
	}
	if actor.CheckName(in.Intent) != nil {
		in.Intent = ""
	}
	return Route{in.Intent, in.Course}, true
}

// Encode returns the classification as JSON, for the record.
func (i *Intent) Encode(course Course, threshold float64, steps ...PlannedStep) []byte {
	text := func(s string) jsontext.Value {
		if s == "" {
			return nil
		}
		return quoted(s)
	}
	texts := func(all []string) jsontext.Value {
		if len(all) == 0 {
			return nil
		}
		return list(all)
	}
	number := func(f float64) jsontext.Value { return jsontext.Value(strconv.FormatFloat(f, 'f', -1, 64)) }
	var names []string
	targets := []byte{'['}
	for n, t := range i.Secondary {
		if n > 0 {
			targets = append(targets, ',')
		}
		names = append(names, t.Intent)
		targets = append(targets, encodeMembers(present([]member{{"agent", text(t.Agent)}, {"capability", quoted(t.Capability)}}))...)
	}
	all := []member{
		{"course", quoted(string(course))}, {"primary_intent", quoted(i.Name)}, {"intent_confidence", number(i.Confidence)}, {"threshold", number(threshold)},
		{"target_agent", text(i.Target.Agent)}, {"target_capability", text(i.Target.Capability)}, {"workflow", text(i.Workflow)},
		{"secondary_intents", texts(names)}, {"secondary_targets", nil}, {"missing", texts(i.Missing)}, {"options", texts(i.Options)}, {"resume", text(i.Resume)}, {"prefer", text(i.Prefer)}, {"steps", nil},
	}
	if len(steps) > 0 {
		all[len(all)-1].value = invariant.Must(json.Marshal(steps, jsontext.AllowInvalidUTF8(true)))
	}
	if len(i.Secondary) > 0 {
		all[8].value = append(targets, ']')
	}
	return encodeMembers(present(all))
}

func present(all []member) []member {
	return slices.DeleteFunc(all, func(m member) bool { return m.value == nil })
}
