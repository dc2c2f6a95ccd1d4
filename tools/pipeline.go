// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// ViaPipeline is the way of a tool that is a fixed list of calls of other tools, with results of earlier ones as arguments.
const ViaPipeline = "pipeline"

// MediaPipeline is the media type of the result of a pipeline, which is its steps: the turn that has called it performs
// them. They are in the journal with it, so a replay does not depend on the definition.
const MediaPipeline = "application/vnd.troupe.pipeline"

// Bounds of a pipeline.
const (
	PipelineStepsMax = 8
	pointerBytesMax  = 256
)

// PipelineStep is a call of a tool in a pipeline.
type PipelineStep struct {
	Tool string                    `json:"tool"`
	Args map[string]jsontext.Value `json:"args,omitzero"` // fixed arguments
	// From has JSON Pointers (RFC 6901) by the names of arguments: /input is the arguments of the pipeline, /1 the result of
	// its first step.
	From map[string]string `json:"from,omitzero"`
}

// inputToken begins a pointer into the arguments of a pipeline.
const inputToken = "input"

// Plan returns the result of a pipeline.
func (d *Declared) Plan() Result {
	return Result{Parts: []actor.Part{{Media: MediaPipeline, Bytes: invariant.Must(json.Marshal(d.Steps, json.Deterministic(true)))}}}
}

// ReadPlan returns the steps in the result of a pipeline, or false for any other result.
func ReadPlan(r *Result) (steps []PipelineStep, ok bool) {
	if r.Refusal != nil || len(r.Parts) != 1 || r.Parts[0].Media != MediaPipeline || json.Unmarshal(r.Parts[0].Bytes, &steps) != nil {
		return nil, false
	}
	return steps, len(steps) > 0 && len(steps) <= PipelineStepsMax
}

// checkSteps returns the error of the steps of a pipeline.
func (d *Declared) checkSteps() (problems FieldErrors) {
	report := func(field, format string, args ...any) {
		problems = append(problems, FieldError{field, fmt.Sprintf(format, args...)})
	}
	for _, name := range []string{"timeout_ms", "cache_ms", "concurrency", "max_result_bytes", "on_failure", "fallback"} {
		f := &declaredFields[slices.IndexFunc(declaredFields, func(f declaredField) bool { return f.name == name })]
		if f.number(d) != 0 || !isZero(f.target(d)) {
			report(name, "not allowed with via = %q, whose tools have their own; remove it", ViaPipeline)
		}
	}
	if n := len(d.Steps); n == 0 || n > PipelineStepsMax {
		report("steps", "want 1 to %d tables with tool, args and from, got %d", PipelineStepsMax, n)
		return problems
	}
	for i := range d.Steps {
		step := &d.Steps[i]
		place := fmt.Sprintf("step %d: ", i+1)
		if step.Tool == d.Name && d.Name != "" {
			report("steps", "%stool: is the pipeline itself", place)
		} else if err := checkStandIn(step.Tool); err != nil {
			report("steps", "%stool: %v", place, err)
		}
		for _, name := range slices.Sorted(maps.Keys(step.From)) {
			if _, both := step.Args[name]; both {
				report("steps", "%s%.80q is in args and in from; remove one of them", place, name)
			}
			if err := checkPointer(step.From[name], i); err != nil {
				report("steps", "%sfrom.%.80s: %v", place, name, err)
			}
		}
	}
	return problems
}

// checkPointer returns an error unless a pointer leads into the arguments or an earlier result.
func checkPointer(text string, before int) error {
	tokens, err := pointerTokens(text)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(tokens[0]); tokens[0] != inputToken && (err != nil || n < 1 || n > before || strconv.Itoa(n) != tokens[0]) {
		if before == 0 {
			return fmt.Errorf("%.80q: want a pointer that begins with /%s", text, inputToken)
		}
		return fmt.Errorf("%.80q: want a pointer that begins with /%s, or with the number of an earlier step, from /1 to /%d", text, inputToken, before)
	}
	return nil
}

// pointerTokens returns the unescaped tokens of a JSON Pointer.
func pointerTokens(text string) ([]string, error) {
	if len(text) > pointerBytesMax || !strings.HasPrefix(text, "/") {
		return nil, fmt.Errorf("%.80q: want a JSON Pointer of at most %d bytes, like /%s/city", text, pointerBytesMax, inputToken)
	}
	tokens := strings.Split(text[1:], "/")
	for i, t := range tokens {
		if rest := strings.NewReplacer("~0", "", "~1", "").Replace(t); strings.Contains(rest, "~") {
			return nil, fmt.Errorf("%.80q: want ~0 for '~' and ~1 for '/'", text)
		}
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(t, "~1", "/"), "~0", "~")
	}
	return tokens, nil
}

// Arguments returns the arguments of a step, from those of the pipeline and the results of earlier steps.
func (s *PipelineStep) Arguments(input jsontext.Value, results []jsontext.Value) ([]byte, error) {
	args := maps.Clone(s.Args)
	if args == nil {
		args = map[string]jsontext.Value{}
	}
	for _, name := range slices.Sorted(maps.Keys(s.From)) {
		value, err := lookUp(s.From[name], input, results)
		if err != nil {
			return nil, fmt.Errorf("argument %.80q: %.80s: %w", name, s.From[name], err)
		}
		args[name] = value
	}
	b, err := json.Marshal(args, json.Deterministic(true))
	if err == nil && len(b) > InputBytesMax {
		err = fmt.Errorf("arguments of %d bytes, at most %d allowed", len(b), InputBytesMax)
	}
	return b, err
}

// lookUp returns the value that a pointer leads to.
func lookUp(pointer string, input jsontext.Value, results []jsontext.Value) (jsontext.Value, error) {
	tokens, err := pointerTokens(pointer)
	if err != nil {
		return nil, err
	}
	value := input
	if tokens[0] != inputToken {
		n, err := strconv.Atoi(tokens[0])
		if err != nil || n < 1 || n > len(results) {
			return nil, errors.New("there is no such step")
		}
		value = results[n-1]
	}
	for _, token := range tokens[1:] {
		var members map[string]jsontext.Value
		var items []jsontext.Value
		switch value.Kind() {
		case '{':
			if err := json.Unmarshal(value, &members); err != nil {
				return nil, errors.New("an object cannot be read")
			}
			next, ok := members[token]
			if !ok {
				return nil, fmt.Errorf("there is no member %.80q", token)
			}
			value = next
		case '[':
			n, err := strconv.Atoi(token)
			if json.Unmarshal(value, &items) != nil || err != nil || n < 0 || n >= len(items) || strconv.Itoa(n) != token {
				return nil, fmt.Errorf("there is no item %.80q of %d", token, len(items))
			}
			value = items[n]
		default:
			return nil, fmt.Errorf("there is no %.80q in %s", token, describe(value))
		}
	}
	return value, nil
}

// ResultValue returns a result as a JSON value: one that is no JSON is a text.
func ResultValue(r *Result) jsontext.Value {
	var text strings.Builder
	for _, p := range r.Parts {
		if p.Media == actor.MediaJSON && len(r.Parts) == 1 {
			if v := jsontext.Value(bytes.Clone(p.Bytes)); v.Compact() == nil {
				return v
			}
		}
		text.Write(p.Bytes)
	}
	return invariant.Must(json.Marshal(strings.ToValidUTF8(text.String(), "\uFFFD")))
}

// CheckStep returns an error if the tool of a step is a pipeline, or requires an argument that the step does not give.
func (d *Declared) CheckStep(i int, tool *Tool) error {
	step := &d.Steps[i]
	if tool.Declared != nil && tool.Declared.Via == ViaPipeline {
		return fmt.Errorf("step %d: %s is a pipeline itself; call its tools", i+1, tool.Name)
	}
	for _, name := range shapeOf(tool.Schema).Required {
		if _, fixed := step.Args[name]; !fixed && step.From[name] == "" {
			return fmt.Errorf("step %d: %s requires the argument %.80q: add it to args or from", i+1, tool.Name, name)
		}
	}
	return nil
}
