// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// field is one thing that a spec may say, whether in TOML or in JSON.
type field struct {
	name string
	kind string // the one kind of agent that has it; "": both
	set  func(s *Spec, v any) error
}

var specFields = []field{
	{"agent_id", "", text(actor.NameBytesMax, func(s *Spec) *string { return &s.ID }, actor.CheckName)},
	{"name", "", text(128, func(s *Spec) *string { return &s.Name }, checkLine)},
	{"kind", "", choice(func(s *Spec) *string { return &s.Kind }, KindDeclared, KindExternal)},
	{"description", "", text(DescriptionMax, func(s *Spec) *string { return &s.Description }, checkLine)},

	{"model", KindDeclared, text(upstream.NameBytesMax, func(s *Spec) *string { return &s.Model }, actor.CheckName)},
	{"prompt", KindDeclared, text(PromptTextMax, func(s *Spec) *string { return &s.Prompt }, nil)},
	{"tools", KindDeclared, list(SpecToolsMax, func(s *Spec) *[]string { return &s.Tools }, checkToolName)},
	{"agents", KindDeclared, list(SpecTargetsMax, func(s *Spec) *[]string { return &s.Agents }, checkTarget)},
	{"on_failure", KindDeclared, choice(func(s *Spec) *string { return &s.OnFailure }, ReturnError, FailRun)},
	{"parameters.temperature", KindDeclared, temperature},
	{"parameters.max_tokens", KindDeclared, integer(1, upstream.MaxTokensMax, func(s *Spec, n int64) { s.Parameters.MaxTokens = int(n) })},
	{"parameters.seed", KindDeclared, integer(math.MinInt64, math.MaxInt64, func(s *Spec, n int64) { s.Parameters.Seed = &n })},

	{"endpoint", KindExternal, text(EndpointMax, func(s *Spec) *string { return &s.Endpoint }, upstream.CheckURL)},
	{"retry", KindExternal, choice(func(s *Spec) *string { return &s.Retry }, RetryNever, RetrySafe)},
	{"concurrency", KindExternal, integer(1, upstream.ConcurrencyMax, func(s *Spec, n int64) { s.Concurrency = int(n) })},
	{"auth.env", KindExternal, text(actor.NameBytesMax, func(s *Spec) *string { return &s.Auth.Env }, checkAuthEnv)},

	{"capabilities", "", list(CapabilitiesMax, func(s *Spec) *[]string { return &s.Capabilities }, actor.CheckName)},
	{"durability", "", choice(func(s *Spec) *string { return &s.Durability }, "journaled", "none")},
	{"turns", "", choice(func(s *Spec) *string { return &s.Turns }, "serial", "interleaved")},
	{"recursion", "", choice(func(s *Spec) *string { return &s.Recursion }, "by_agent", "by_actor")},
	{"limits.steps", KindDeclared, integer(1, modelStepsMax, func(s *Spec, n int64) { s.Limits.Steps = int(n) })},
	{"limits.model_timeout_ms", KindDeclared, integer(1, timeoutMSMax, func(s *Spec, n int64) { s.Limits.ModelTimeoutMS = n })},
	{"limits.tool_timeout_ms", KindDeclared, integer(1, timeoutMSMax, func(s *Spec, n int64) { s.Limits.ToolTimeoutMS = n })},
	{"limits.call_timeout_ms", KindDeclared, integer(1, callTimeoutMSMax, func(s *Spec, n int64) { s.Limits.CallTimeoutMS = n })},
	{"limits.invoke_timeout_ms", KindExternal, integer(1, timeoutMSMax, func(s *Spec, n int64) { s.Limits.InvokeTimeoutMS = n })},
}

// membersMax is how many things a source may say, right or wrong.
const membersMax = 256

// isTable tells whether fields stand below that name.
func isTable(name string) bool {
	return slices.ContainsFunc(specFields, func(f field) bool { return strings.HasPrefix(f.name, name+".") })
}

// specOf makes a spec of what a source says. All that is wrong is told at once.
func specOf(members []member) (Spec, error) {
	var s Spec
	var wrong Problems
	if len(members) > membersMax {
		return Spec{}, Problems{{Text: fmt.Sprintf("says %d things, where there are %d to say", len(members), len(specFields))}}
	}
	complain := func(m member, text string) {
		wrong = append(wrong, Problem{Line: m.line, Column: m.col, Field: fmt.Sprintf("%.80s", strings.ToValidUTF8(m.path, "\uFFFD")), Text: text})
	}
	s.Kind = kindOfSource(members)
	for _, m := range members {
		i := slices.IndexFunc(specFields, func(f field) bool { return f.name == m.path })
		if i < 0 {
			_, empty := m.value.(emptyTable)
			switch {
			case !isTable(m.path):
				complain(m, unknownField(m, s.Kind))
			case m.path == "auth" && !empty:
				complain(m, fmt.Sprintf("want a table with env, the name of a variable that holds the secret, like %sHELPER; the secret itself is not kept", upstream.AuthEnvPrefix))
			case !empty:
				complain(m, "want a table, got "+describeValue(m.value))
			}
			continue
		}
		f := specFields[i]
		if f.kind != "" && f.kind != s.Kind {
			complain(m, fmt.Sprintf("an agent of kind %s has none; leave it out", s.Kind))
		} else if err := f.set(&s, m.value); err != nil {
			complain(m, err.Error())
		}
	}
	if len(wrong) == 0 {
		wrong = s.missingFields()
	}
	if len(wrong) > 0 {
		slices.SortStableFunc(wrong, func(a, b Problem) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
		if more := len(wrong) - problemsMax; more > 0 {
			wrong = append(wrong[:problemsMax], Problem{Text: fmt.Sprintf("and %d more", more)})
		}
		return Spec{}, wrong
	}
	s.setDefaults()
	if n := len(s.Encode()); n > SpecBytesMax {
		return Spec{}, Problems{{Text: fmt.Sprintf("it has %d bytes in all, at most %d are kept; shorten the prompt", n, SpecBytesMax)}}
	}
	return s, nil
}

// kindOfSource is what the source says, or what it must mean: who has an endpoint is external.
func kindOfSource(members []member) string {
	kind := KindDeclared
	for _, m := range members {
		if m.path == "kind" && (m.value == KindDeclared || m.value == KindExternal) {
			return m.value.(string)
		}
		if m.path == "endpoint" {
			kind = KindExternal
		}
	}
	return kind
}

// missingFields finds what no single field shows.
func (s *Spec) missingFields() (wrong Problems) {
	switch {
	case s.ID == "" && s.Name == "":
		wrong = append(wrong, Problem{Field: "name", Text: `is missing; say how the agent is called, like name = "helper"`})
	case s.ID == "" && actor.CheckName(s.Name) != nil:
		wrong = append(wrong, Problem{Field: "name", Text: actor.CheckName(s.Name).Error() + `; give it such an agent_id besides`})
	}
	if s.Kind == KindExternal && s.Endpoint == "" {
		wrong = append(wrong, Problem{Field: "endpoint", Text: `is missing; say where the agent answers, like endpoint = "http://127.0.0.1:9001"`})
	}
	return wrong
}

// unknownField says what was perhaps meant.
func unknownField(m member, kind string) string {
	table, last, below := strings.Cut(m.path, ".")
	if !below {
		last = table
	}
	for _, f := range specFields {
		above, name, inTable := strings.Cut(f.name, ".")
		switch {
		case below && !inTable && f.name == last:
			return fmt.Sprintf("is unknown: %s is no part of [%s]; write it before the first [table]", last, table)
		case !below && inTable && name == last:
			return fmt.Sprintf("is unknown: it belongs into [%s]", above)
		}
	}
	best, distance := "", 4
	for _, f := range specFields {
		if d := editDistance(m.path, f.name); d < distance && d*2 < len(f.name) {
			best, distance = f.name, d
		}
	}
	if best != "" {
		return "is unknown; did you mean " + best + "?"
	}
	var names []string
	for _, f := range specFields {
		if f.kind == "" || f.kind == kind {
			names = append(names, f.name)
		}
	}
	return "is unknown; there are: " + strings.Join(names, ", ")
}

// editDistance is how many letters to add, drop or change to come from a to b.
func editDistance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// describeValue names what stands where something else is wanted.
func describeValue(v any) string {
	switch v := v.(type) {
	case string:
		return "text"
	case bool:
		return "true or false"
	case int64:
		return "a whole number"
	case float64:
		return "a number"
	case []any:
		return "a list"
	case unsupported:
		return string(v)
	default:
		return "a table"
	}
}

func text(most int, of func(*Spec) *string, check func(string) error) func(*Spec, any) error {
	return func(s *Spec, v any) error {
		t, ok := v.(string)
		switch {
		case !ok:
			return fmt.Errorf("want text, got %s", describeValue(v))
		case strings.TrimSpace(t) == "":
			return fmt.Errorf("is empty; leave it out, or say something")
		case len(t) > most:
			return fmt.Errorf("%d bytes, at most %d allowed", len(t), most)
		case !utf8.ValidString(t) || strings.ContainsRune(t, 0):
			return fmt.Errorf("want text in UTF-8 without zero bytes")
		}
		if check != nil {
			if err := check(t); err != nil {
				return err
			}
		}
		*of(s) = t
		return nil
	}
}

func choice(of func(*Spec) *string, values ...string) func(*Spec, any) error {
	return func(s *Spec, v any) error {
		t, ok := v.(string)
		if !ok {
			return fmt.Errorf("want %s, got %s", orList(values), describeValue(v))
		}
		if !slices.Contains(values, t) {
			return fmt.Errorf("want %s, got %.40q", orList(values), t)
		}
		*of(s) = t
		return nil
	}
}

func orList(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = `"` + v + `"`
	}
	return strings.Join(quoted, " or ")
}

func list(most int, of func(*Spec) *[]string, check func(string) error) func(*Spec, any) error {
	return func(s *Spec, v any) error {
		values, ok := v.([]any)
		if !ok {
			return fmt.Errorf(`want a list of texts, like ["a", "b"], got %s`, describeValue(v))
		}
		if len(values) > most {
			return fmt.Errorf("%d entries, at most %d allowed", len(values), most)
		}
		names := make([]string, 0, len(values))
		for i, v := range values {
			name, ok := v.(string)
			if !ok {
				return fmt.Errorf("entry %d: want text, got %s", i+1, describeValue(v))
			}
			if err := check(name); err != nil {
				return fmt.Errorf("entry %d: %w", i+1, err)
			}
			if slices.Contains(names, name) {
				return fmt.Errorf("entry %d: %q is there twice; say it once", i+1, name)
			}
			names = append(names, name)
		}
		*of(s) = names
		return nil
	}
}

func integer(least, most int64, set func(*Spec, int64)) func(*Spec, any) error {
	return func(s *Spec, v any) error {
		n, ok := v.(int64)
		switch {
		case !ok:
			return fmt.Errorf("want a whole number, got %s", describeValue(v))
		case n < least || n > most:
			return fmt.Errorf("%d: want %d to %d", n, least, most)
		}
		set(s, n)
		return nil
	}
}

func temperature(s *Spec, v any) error {
	t, ok := v.(float64)
	if n, isWhole := v.(int64); isWhole {
		t, ok = float64(n), true
	}
	switch {
	case !ok:
		return fmt.Errorf("want a number, got %s", describeValue(v))
	case !(t >= 0 && t <= 2):
		return fmt.Errorf("%v: want 0 to 2", t)
	}
	t += 0 // of the two zeros the one without a sign
	s.Parameters.Temperature = &t
	return nil
}

// checkLine is for what stands in lists, on terminals too.
func checkLine(line string) error {
	if strings.ContainsFunc(line, unicode.IsControl) {
		return fmt.Errorf("want one line without control characters")
	}
	return nil
}

func checkToolName(name string) error {
	switch {
	case strings.HasPrefix(name, reservedToolsPrefix):
		return fmt.Errorf("%.80q: tools named %s… are not for agents", name, reservedToolsPrefix)
	case len(name) > tools.NameBytesMax || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" || name == "":
		return fmt.Errorf("%.80q: want 1 to %d letters, digits, '.', '_' and '-'", name, tools.NameBytesMax)
	}
	return nil
}

func checkTarget(name string) error {
	if strings.Contains(name, "/") {
		return fmt.Errorf("%.80q: want an agent alone, without a session", name)
	}
	return actor.CheckName(name)
}

func checkAuthEnv(name string) error {
	rest, ok := strings.CutPrefix(name, upstream.AuthEnvPrefix)
	if !ok || rest == "" || strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
		return fmt.Errorf("%.80q: want the name of a variable like %sHELPER", name, upstream.AuthEnvPrefix)
	}
	return nil
}
