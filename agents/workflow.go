// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/nearest"
)

// Workflow is a fixed plan of an orchestrator. Its steps are asked one after the other; a parallel step
// together with the step before it. Steps that are asked together are a stage: the next stage begins when
// each of them has its response.
type Workflow struct {
	Description   string            `json:"description"`
	OnStepFailure string            `json:"on_step_failure"`
	OnConflict    string            `json:"on_conflict"`
	Compare       map[string]string `json:"compare,omitzero"` // members that results should agree on, with their titles for users
	Terms         map[string]string `json:"terms,omitzero"`   // words to replace in the answer
	Steps         []Step            `json:"steps"`
}

// Step is one request of a workflow.
type Step struct {
	Name       string         `json:"name"`  // for inputs of later steps
	Title      string         `json:"title"` // for users
	Capability string         `json:"capability"`
	Agent      string         `json:"agent,omitzero"` // one of the owners; "": any
	Parallel   bool           `json:"parallel,omitzero"`
	TimeoutMS  int64          `json:"timeout_ms,omitzero"`
	Inputs     jsontext.Value `json:"inputs,omitzero"` // an object with references; nil: the inputs of the request
}

// What becomes of a workflow after a step without a result.
const (
	StepPartial = "partial" // the other steps are asked, and the answer says what is missing
	StepFail    = "fail"    // no further step is asked, and the run fails
	StepAsk     = "ask"     // the user decides: retry, continue or stop
)

// What becomes of results that differ.
const (
	ConflictPrefer = "prefer" // the higher confidence is used; equal ones are for the user
	ConflictAsk    = "ask"    // the user decides
)

const (
	workflowTable = "workflow"
	// WorkflowsMax is the maximum number of workflows of an orchestrator.
	WorkflowsMax = 32
	titleMax     = 128
	mapMax       = 64 // entries of compare and of terms
)

var (
	workflowFields = []string{"description", "on_step_failure", "on_conflict", "compare", "terms", "steps"}
	stepFields     = []string{"name", "title", "capability", "agent", "parallel", "timeout_ms", "inputs"}
)

// namedObject is the value of a table in a table, as a JSON object.
type namedObject struct {
	name  string
	value jsontext.Value
}

// newNamedObject returns a table of a TOML file as JSON.
func newNamedObject(name string, table map[string]any) any {
	if what := notJSON(table); what != "" {
		return unsupported("a table with " + what)
	}
	return namedObject{name, invariant.Must(json.Marshal(table, json.Deterministic(true)))}
}

// workflow adds a workflow to a spec.
func workflow(s *Spec, v any) error {
	table, ok := v.(namedObject)
	if !ok {
		return fmt.Errorf("want a table [workflow.NAME] with %s, got %s", strings.Join(workflowFields, ", "), describeValue(v))
	}
	if err := actor.CheckName(table.name); err != nil {
		return err
	}
	w := Workflow{OnStepFailure: StepPartial, OnConflict: ConflictPrefer}
	if err := eachField(table.value, workflowFields, w.set); err != nil {
		return err
	}
	if err := w.check(table.name); err != nil {
		return err
	}
	if len(s.Workflows) == WorkflowsMax {
		return fmt.Errorf("more than %d workflows", WorkflowsMax)
	}
	if s.Workflows == nil {
		s.Workflows = map[string]Workflow{}
	}
	s.Workflows[table.name] = w
	return nil
}

// orchestratorProblems returns the problems of an orchestrator that involve more than one field.
func (s *Spec) orchestratorProblems() (problems Problems) {
	if s.Durability == "none" {
		problems = append(problems, Problem{Field: "durability", Text: "an orchestrator keeps what its steps have answered; remove it"})
	}
	if s.Turns == "interleaved" {
		problems = append(problems, Problem{Field: "turns", Text: "an orchestrator has one conversation with its user; remove it"})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Workflows)) {
		for i, step := range s.Workflows[name].Steps {
			if step.Agent != "" && (step.Agent == s.ID || step.Agent == s.Code) || slices.ContainsFunc(s.Provides, func(c Capability) bool { return c.Code == step.Capability }) {
				problems = append(problems, Problem{Field: workflowTable + "." + name, Text: fmt.Sprintf(
					"steps: step %d: %s is provided by this agent, so the workflow would call itself; name a capability of another agent", i+1, step.Capability)})
			}
		}
	}
	return problems
}

// Requests returns the capabilities in the workflows of the spec.
func (s *Spec) Requests() (codes []string) {
	for _, name := range slices.Sorted(maps.Keys(s.Workflows)) {
		for i := range s.Workflows[name].Steps {
			codes = append(codes, s.Workflows[name].Steps[i].Capability)
		}
	}
	return codes
}

// UnknownCapabilities returns the steps of workflows whose capability is not among the known ones. A misspelt
// capability looks like one of the others; a missing one looks like none of them.
func (s *Spec) UnknownCapabilities(known, others []string) (misspelt, missing Problems) {
	for _, name := range slices.Sorted(maps.Keys(s.Workflows)) {
		for i, step := range s.Workflows[name].Steps {
			if slices.Contains(known, step.Capability) {
				continue
			}
			p := Problem{Field: workflowTable + "." + name, Text: fmt.Sprintf("steps: step %d: no agent provides %s; ", i+1, step.Capability)}
			if near := nearest.Of(step.Capability, others); near != "" {
				p.Text += "did you mean " + near + "?"
				misspelt = append(misspelt, p)
			} else {
				p.Text += "create first the agent that has it in [[provides]]"
				missing = append(missing, p)
			}
		}
	}
	return misspelt, missing
}

// WorkflowWarnings returns warnings that name the steps of workflows whose capabilities are not among the known ones.
func (s *Spec) WorkflowWarnings(known []string) (warnings []string) {
	for _, name := range slices.Sorted(maps.Keys(s.Workflows)) {
		for i, step := range s.Workflows[name].Steps {
			if !slices.Contains(known, step.Capability) {
				warnings = append(warnings, fmt.Sprintf("agent %s: %s.%s: step %d: no agent provides %s, so the step fails until one does", s.ID, workflowTable, name, i+1, step.Capability))
			}
		}
	}
	return warnings
}

// mistakes are all errors of a value that has several. As one error it is the first.
type mistakes []error

// Error implements error.
func (m mistakes) Error() string { return m[0].Error() }

// add adds an error, or all that it consists of, if it is not nil; the format begins each, and %w is the error.
func (m *mistakes) add(err error, format string, args ...any) {
	for _, e := range mistakesOf(err) {
		*m = append(*m, fmt.Errorf(format, append(slices.Clone(args), e)...))
	}
}

// err returns the errors as one, or nil if there are none.
func (m mistakes) err() error {
	if len(m) == 0 {
		return nil
	}
	return m
}

// mistakesOf returns the errors of which an error consists.
func mistakesOf(err error) []error {
	if all, ok := errors.AsType[mistakes](err); ok {
		return all
	} else if err != nil {
		return []error{err}
	}
	return nil
}

// eachField calls set for each field of a JSON object whose value is not null. The errors name the fields.
func eachField(object jsontext.Value, known []string, set func(name string, v jsontext.Value) error) error {
	var wrong mistakes
	d := jsontext.NewDecoder(strings.NewReader(string(object)))
	if d.PeekKind() != '{' {
		return fmt.Errorf("want a table with %s", strings.Join(known, ", "))
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() == '"' {
		token, err := d.ReadToken()
		if err != nil {
			return err
		}
		name := token.String()
		v, err := d.ReadValue()
		switch {
		case err != nil:
			return err
		case !slices.Contains(known, name):
			if near := nearest.Of(name, known); near != "" {
				wrong = append(wrong, fmt.Errorf("%.80s: is unknown; did you mean %s?", name, near))
			} else {
				wrong = append(wrong, fmt.Errorf("%.80s: is unknown; known fields: %s", name, strings.Join(known, ", ")))
			}
			continue
		case v.Kind() == 'n':
			continue
		}
		wrong.add(set(name, v.Clone()), "%.80s: %w", name)
	}
	return wrong.err()
}

func (w *Workflow) set(field string, v jsontext.Value) error {
	switch field {
	case "description":
		return readLine(&w.Description, v, DescriptionMax)
	case "on_step_failure":
		return readChoice(&w.OnStepFailure, v, StepPartial, StepFail, StepAsk)
	case "on_conflict":
		return readChoice(&w.OnConflict, v, ConflictPrefer, ConflictAsk)
	case "compare":
		return readLines(&w.Compare, v)
	case "terms":
		return readLines(&w.Terms, v)
	}
	var items []jsontext.Value
	if json.Unmarshal(v, &items) != nil {
		return errors.New("want a list of tables [[workflow.NAME.steps]]")
	}
	if n := len(items); n > contract.ComponentsMax {
		return fmt.Errorf("%d steps, at most %d allowed", n, contract.ComponentsMax)
	}
	var wrong mistakes
	for i, item := range items {
		var s Step
		wrong.add(eachField(item, stepFields, s.set), "step %d: %w", i+1)
		w.Steps = append(w.Steps, s)
	}
	return wrong.err()
}

func (s *Step) set(field string, v jsontext.Value) (err error) {
	switch field {
	case "name":
		return readLine(&s.Name, v, titleMax)
	case "title":
		return readLine(&s.Title, v, titleMax)
	case "capability":
		return readLine(&s.Capability, v, titleMax)
	case "agent":
		return readLine(&s.Agent, v, actor.NameBytesMax)
	case "parallel":
		if json.Unmarshal(v, &s.Parallel) != nil {
			return errors.New("want true or false")
		}
	case "timeout_ms":
		if json.Unmarshal(v, &s.TimeoutMS) != nil || s.TimeoutMS < 1 || s.TimeoutMS > callTimeoutMSMax {
			return fmt.Errorf("want 1 to %d milliseconds", callTimeoutMSMax)
		}
	case "inputs":
		s.Inputs, err = readObject(v)
	}
	return err
}

func readLine(to *string, v jsontext.Value, limit int) error {
	if json.Unmarshal(v, to) != nil {
		return errors.New("want text")
	}
	if *to == "" || len(*to) > limit {
		return fmt.Errorf("want 1 to %d bytes", limit)
	}
	return checkLine(*to)
}

func readChoice(to *string, v jsontext.Value, values ...string) error {
	if json.Unmarshal(v, to) != nil || !slices.Contains(values, *to) {
		return fmt.Errorf("want %s", orList(values))
	}
	return nil
}

func readLines(to *map[string]string, v jsontext.Value) error {
	if json.Unmarshal(v, to) != nil || len(*to) > mapMax {
		return fmt.Errorf("want a table of at most %d texts", mapMax)
	}
	for _, name := range slices.Sorted(maps.Keys(*to)) {
		if name == "" || len(name)+len((*to)[name]) > 2*titleMax || checkLine(name+(*to)[name]) != nil {
			return fmt.Errorf("%.80s: want lines of at most %d bytes", name, 2*titleMax)
		}
	}
	return nil
}

// check completes the steps of a workflow.
func (w *Workflow) check(name string) error {
	var wrong mistakes
	if w.Description == "" {
		wrong = append(wrong, errors.New("description: is missing; want a sentence that says when the workflow is wanted"))
	}
	if len(w.Steps) == 0 {
		wrong = append(wrong, fmt.Errorf("steps: is empty; add a table [[workflow.%s.steps]] with the capability of the first step", name))
	}
	for i := range w.Steps {
		wrong.add(w.checkStep(i), "steps: step %d: %w", i+1)
	}
	return wrong.err()
}

func (w *Workflow) checkStep(i int) error {
	s := &w.Steps[i]
	if s.Capability == "" {
		return errors.New(`capability: is missing; want the code of a capability, like capability = "DOC_GENERATE"`)
	}
	if s.Name == "" {
		s.Name = strings.ToLower(s.Capability)
	}
	if s.Title == "" {
		s.Title = titleOf(s.Name, s.Capability, i)
	}
	switch {
	case strings.Trim(s.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "":
		return fmt.Errorf("name: %.80q: want letters, digits, '_' and '-'", s.Name)
	case s.Name == requestReference || s.Name == inputsReference:
		return fmt.Errorf("name: %s means the request in references; choose another name", s.Name)
	case slices.ContainsFunc(w.Steps[:i], func(o Step) bool { return o.Name == s.Name }):
		return fmt.Errorf("name: %s is the name of an earlier step; choose another one", s.Name)
	case s.Parallel && i == 0:
		return errors.New("parallel: the first step has no step before it; remove it here, and set it at the steps that run together with this one")
	}
	began := i // of the step's stage
	for w.Steps[began].Parallel {
		began--
	}
	for _, ref := range references(s.Inputs) {
		from, _, _ := strings.Cut(ref, ".")
		at := slices.IndexFunc(w.Steps, func(o Step) bool { return o.Name == from })
		switch {
		case from == requestReference || from == inputsReference:
		case at < 0:
			names := []string{requestReference, inputsReference}
			for _, o := range w.Steps[:began] {
				names = append(names, o.Name)
			}
			return fmt.Errorf("inputs: {%.80s}: no step is named so; want one of %s", ref, strings.Join(names, ", "))
		case at >= began:
			return fmt.Errorf("inputs: {%.80s}: step %s has no result yet; name an earlier step that does not run together with this one", ref, from)
		}
	}
	return nil
}

// titleOf returns the name of a step as the beginning of a sentence. A name that only repeats the code of the
// capability means nothing to users and is not used.
func titleOf(name, code string, i int) string {
	text := strings.TrimSpace(strings.Map(func(c rune) rune {
		if c == '_' || c == '-' {
			return ' '
		}
		return c
	}, name))
	if text == "" || strings.EqualFold(text, strings.ReplaceAll(code, "_", " ")) {
		return fmt.Sprintf("Part %d", i+1)
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// What a reference can begin with, besides the name of a step.
const (
	requestReference = "request" // the words of the user
	inputsReference  = "inputs"  // what the model has found in them
)

// references returns the references in a value: the texts of the form {NAME} or {NAME.MEMBER}.
func references(v jsontext.Value) (all []string) {
	walkTexts(v, func(text string) jsontext.Value {
		if ref, ok := referenceOf(text); ok {
			all = append(all, ref)
		}
		return nil
	})
	return all
}

func referenceOf(text string) (string, bool) {
	rest, begins := strings.CutPrefix(text, "{")
	ref, ends := strings.CutSuffix(rest, "}")
	return ref, begins && ends && ref != "" && !strings.ContainsAny(ref, "{} ")
}

// walkTexts returns a JSON value in which each text is replaced, if the function returns a value for it.
// A member whose text becomes an empty value is left out.
func walkTexts(v jsontext.Value, replace func(string) jsontext.Value) jsontext.Value {
	switch v.Kind() {
	case '"':
		var text string
		if json.Unmarshal(v, &text) == nil {
			if value := replace(text); value != nil {
				return value
			}
		}
	case '{':
		out := []byte{'{'}
		_ = eachMember(v, func(name jsontext.Value, value jsontext.Value) {
			if value = walkTexts(value, replace); len(value) == 0 {
				return
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(append(append(out, name...), ':'), value...)
		})
		return append(out, '}')
	case '[':
		var items []jsontext.Value
		if json.Unmarshal(v, &items) != nil {
			return v
		}
		out := []byte{'['}
		for _, item := range items {
			if item = walkTexts(item, replace); len(item) == 0 {
				item = jsontext.Value("null")
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, item...)
		}
		return append(out, ']')
	}
	return v
}

// eachMember calls the function with the quoted name and the value of each member of a JSON object.
func eachMember(object jsontext.Value, each func(name, value jsontext.Value)) error {
	d := jsontext.NewDecoder(strings.NewReader(string(object)))
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadValue()
		if err != nil {
			return err
		}
		name = name.Clone()
		value, err := d.ReadValue()
		if err != nil {
			return err
		}
		each(name, value.Clone())
	}
	return nil
}

// memberOf returns the value at a path of names joined by '.', or nil.
func memberOf(v jsontext.Value, path string) (found jsontext.Value) {
	if path == "" || v == nil {
		return v
	}
	name, rest, _ := strings.Cut(path, ".")
	if v.Kind() != '{' {
		return nil
	}
	_ = eachMember(v, func(quoted, value jsontext.Value) {
		var n string
		if json.Unmarshal(quoted, &n) == nil && n == name {
			found = value
		}
	})
	return memberOf(found, rest)
}

// stages returns the indexes of the first step of each stage, and the number of steps.
func stages(steps []Step) (all []int) {
	for i := range steps {
		if !steps[i].Parallel || i == 0 {
			all = append(all, i)
		}
	}
	return append(all, len(steps))
}
