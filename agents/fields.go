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
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/internal/nearest"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// field is one field of a spec, in TOML and in JSON.
type field struct {
	name string
	kind string // kind of agent that has the field; empty: every kind
	set  func(s *Spec, v any) error
}

var specFields = []field{
	{"agent_id", "", text(actor.NameBytesMax, func(s *Spec) *string { return &s.ID }, actor.CheckName)},
	{"name", "", text(128, func(s *Spec) *string { return &s.Name }, checkLine)},
	{"kind", "", choice(func(s *Spec) *string { return &s.Kind }, KindDeclared, KindOrchestrator, KindExternal)},
	{"description", "", text(DescriptionMax, func(s *Spec) *string { return &s.Description }, checkLine)},

	{"model", modelled, text(upstream.NameBytesMax, func(s *Spec) *string { return &s.Model }, actor.CheckName)},
	{"prompt", modelled, text(PromptTextMax, func(s *Spec) *string { return &s.Prompt }, nil)},
	{"tools", KindDeclared, list(SpecToolsMax, func(s *Spec) *[]string { return &s.Tools }, checkToolName)},
	{"agents", modelled, list(SpecTargetsMax, func(s *Spec) *[]string { return &s.Agents }, checkTarget)},
	{outputField, KindDeclared, setOutput},
	{"on_failure", KindDeclared, choice(func(s *Spec) *string { return &s.OnFailure }, ReturnError, FailRun)},
	{"memory.search", remembering, boolean(func(s *Spec, b bool) { s.Memory.Search = b })},
	{"memory.create", remembering, boolean(func(s *Spec, b bool) { s.Memory.Create = b })},
	{"memory.traverse", remembering, boolean(func(s *Spec, b bool) { s.Memory.Traverse = b })},
	{"memory.forget", remembering, boolean(func(s *Spec, b bool) { s.Memory.Forget = b })},
	{"memory.scope", remembering, setMemoryScope},
	{"parameters.temperature", modelled, number(2, func(s *Spec, f float64) { s.Parameters.Temperature = &f })},
	{"parameters.max_tokens", modelled, integer(1, upstream.MaxTokensMax, func(s *Spec, n int64) { s.Parameters.MaxTokens = int(n) })},
	{"parameters.seed", modelled, integer(math.MinInt64, math.MaxInt64, func(s *Spec, n int64) { s.Parameters.Seed = &n })},

	{"threshold", KindOrchestrator, number(1, func(s *Spec, f float64) { s.Threshold = &f })},
	{workflowTable + ".NAME", KindOrchestrator, workflow},
	{scheduleTable + ".NAME", "", schedule},

	{"endpoint", KindExternal, text(EndpointMax, func(s *Spec) *string { return &s.Endpoint }, upstream.CheckURL)},
	{"retry", KindExternal, choice(func(s *Spec) *string { return &s.Retry }, RetryNever, RetryMatched, RetrySafe)},
	{"concurrency", KindExternal, integer(1, upstream.ConcurrencyMax, func(s *Spec, n int64) { s.Concurrency = int(n) })},
	{"auth.env", KindExternal, text(actor.NameBytesMax, func(s *Spec) *string { return &s.Auth.Env }, checkAuthEnv)},
	{sealedField, KindExternal, text(upstream.SealedBytesMax, func(s *Spec) *string { return &s.Auth.Sealed }, nil)},

	{"skills", "", list(SkillsMax, func(s *Spec) *[]string { return &s.Skills }, actor.CheckName)},
	{"agent_call.correlation", "", boolean(func(s *Spec, b bool) { s.Routing.Correlation = &b })},
	{"agent_call.return_to", "", boolean(func(s *Spec, b bool) { s.Routing.ReturnTo = &b })},
	{"agent_call.responses", "", boolean(func(s *Spec, b bool) { s.Routing.Responses = &b })},
	{"agent_call.timeouts", "", boolean(func(s *Spec, b bool) { s.Routing.Timeouts = &b })},
	{"agent_call.channel", "", boolean(func(s *Spec, b bool) { s.Routing.Channel = &b })},
	{"coalesce", "", boolean(func(s *Spec, b bool) { s.Coalesce = b })},
	{capabilitiesField, "", capabilities},
	{detailsField, KindExternal, details},
	{"code", "", text(3, func(s *Spec) *string { return &s.Code }, nil)},
	{providesField, "", provides},
	{"user_text", "", choice(func(s *Spec) *string { return &s.UserText }, contract.FlagCodes.String(), contract.RedactCodes.String(), contract.KeepCodes.String())},
	{"durability", "", choice(func(s *Spec) *string { return &s.Durability }, "journaled", "none")},
	{"turns", "", choice(func(s *Spec) *string { return &s.Turns }, "serial", "interleaved")},
	{"recursion", "", choice(func(s *Spec) *string { return &s.Recursion }, "by_agent", "by_actor")},
	{"priority", "", choice(func(s *Spec) *string { return &s.Priority }, "normal", "high", "low", "NORMAL", "HIGH", "LOW")},
	{"transcript", "", text(actor.NameBytesMax, func(s *Spec) *string { return &s.Transcript }, checkTranscript)},
	{"default_session", "", choice(func(s *Spec) *string { return &s.DefaultSession }, actor.DefaultKey)},
	{"max_active", "", integer(1, maxActiveMax, func(s *Spec, n int64) { s.MaxActive = int(n) })},
	{"budget.tokens", "", integer(1, actor.UsageMax, func(s *Spec, n int64) { s.Budget.Tokens = &n })},
	{"budget.money", "", money(func(s *Spec, f float64) { s.Budget.Money = &f })},
	{"budget.report_tokens", "", integer(0, actor.UsageMax, func(s *Spec, n int64) { s.Budget.ReportTokens = &n })},
	{"budget.report_money", "", money(func(s *Spec, f float64) { s.Budget.ReportMoney = &f })},
	{"limits.steps", KindDeclared, integer(1, modelStepsMax, func(s *Spec, n int64) { s.Limits.Steps = int(n) })},
	{"limits.model_timeout_ms", modelled, integer(1, timeoutMSMax, func(s *Spec, n int64) { s.Limits.ModelTimeoutMS = n })},
	{"limits.tool_timeout_ms", KindDeclared, integer(1, timeoutMSMax, func(s *Spec, n int64) { s.Limits.ToolTimeoutMS = n })},
	{"limits.call_timeout_ms", modelled, integer(1, callTimeoutMSMax, func(s *Spec, n int64) { s.Limits.CallTimeoutMS = n })},
	{"limits.invoke_timeout_ms", KindExternal, integer(1, timeoutMSMax, func(s *Spec, n int64) { s.Limits.InvokeTimeoutMS = n })},
	{"limits.retry_attempts", KindExternal, integer(1, upstream.TriesMax, func(s *Spec, n int64) { s.Limits.RetryAttempts = int(n) })},
	{"limits.retry_delay_ms", KindExternal, integer(1, timeoutMSMax, func(s *Spec, n int64) { s.Limits.RetryDelayMS = n })},
	{"limits.retry_delay_max_ms", KindExternal, integer(1, timeoutMSMax, func(s *Spec, n int64) { s.Limits.RetryDelayMaxMS = n })},
	{"limits.retry_time_ms", KindExternal, integer(1, timeoutMSMax, func(s *Spec, n int64) { s.Limits.RetryTimeMS = n })},
	{"limits.retry_jitter", KindExternal, boolean(func(s *Spec, b bool) { s.Limits.RetryJitter = &b })},
}

// modelled is the kind of a field that declared agents and orchestrators have.
const modelled = "modelled"

// remembering is the kind of a field that declared and external agents have.
const remembering = "remembering"

// allows reports whether agents of a kind have the field.
func (f *field) allows(kind string) bool {
	return f.kind == "" || f.kind == kind || f.kind == modelled && kind != KindExternal || f.kind == remembering && kind != KindOrchestrator
}

// fieldAt returns the field of a path, or nil.
func fieldAt(path string) *field {
	if table, _, ok := strings.Cut(path, "."); ok && hasNamedTables(table) {
		path = table + ".NAME"
	}
	if i := slices.IndexFunc(specFields, func(f field) bool { return f.name == path }); i >= 0 {
		return &specFields[i]
	}
	return nil
}

// maxActiveMax is the largest number of running turns that a spec can allow.
const maxActiveMax = 1 << 20

func checkTranscript(policy string) error {
	_, err := actor.ParseTranscriptPolicy(policy)
	return err
}

// membersMax is the maximum number of members in a source, valid or not.
const membersMax = 256

// hasNamedTables reports whether the members of a table are tables, whose names the author chooses.
func hasNamedTables(table string) bool { return table == workflowTable || table == scheduleTable }

// isTable reports whether name is a table with fields.
func isTable(name string) bool {
	return slices.ContainsFunc(specFields, func(f field) bool { return strings.HasPrefix(f.name, name+".") })
}

// specOf builds a spec from the members of a source. It returns all problems at
// once.
func specOf(members []member) (Spec, error) {
	var s Spec
	var problems Problems
	if len(members) > membersMax {
		return Spec{}, Problems{{Text: fmt.Sprintf("has %d members, at most %d allowed", len(members), membersMax)}}
	}
	report := func(m member, text string) {
		problems = append(problems, Problem{Line: m.line, Column: m.col, Field: fmt.Sprintf("%.80s", strings.ToValidUTF8(m.path, "\uFFFD")), Text: text})
	}
	s.Kind = kindOfSource(members)
	for _, m := range members {
		f := fieldAt(m.path)
		if f == nil {
			_, empty := m.value.(emptyTable)
			switch {
			case !isTable(m.path):
				report(m, unknownField(m, s.Kind))
			case m.path == "auth" && !empty:
				report(m, fmt.Sprintf("want a table with env, the name of the environment variable with the secret, like %sHELPER; the secret itself is not stored", upstream.AuthEnvPrefix))
			case !empty:
				report(m, "want a table, got "+describeValue(m.value))
			}
			continue
		}
		if !f.allows(s.Kind) {
			report(m, fmt.Sprintf("not allowed for an agent of kind %s; remove it", s.Kind))
		} else {
			for _, err := range mistakesOf(f.set(&s, m.value)) {
				report(m, err.Error())
			}
		}
	}
	if len(problems) == 0 {
		problems = s.missingFields()
	}
	if len(problems) > 0 {
		slices.SortStableFunc(problems, func(a, b Problem) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
		if more := len(problems) - problemsMax; more > 0 {
			problems = append(problems[:problemsMax], Problem{Text: fmt.Sprintf("and %d more", more)})
		}
		return Spec{}, problems
	}
	s.setDefaults()
	if n := len(s.Encode()); n > SpecBytesMax {
		return Spec{}, Problems{{Text: fmt.Sprintf("the spec has %d bytes, at most %d allowed; shorten the prompt", n, SpecBytesMax)}}
	}
	return s, nil
}

// newSpecOf builds a new spec from the members of a source. It refuses a reserved name, a name of
// mixed scripts, schemas that cannot be compiled, and a name or description of which a reader sees something else than its characters. Specs
// stored by earlier versions may have them, so specOf does not check it.
func newSpecOf(members []member) (Spec, error) {
	s, err := specOf(members)
	if err != nil {
		return Spec{}, err
	}
	var problems Problems
	report := func(field, text string) {
		p := Problem{Field: field, Text: text}
		if i := slices.IndexFunc(members, func(m member) bool { return m.path == field }); i >= 0 {
			p.Line, p.Column = members[i].line, members[i].col
		}
		problems = append(problems, p)
	}
	idField := "agent_id"
	if !slices.ContainsFunc(members, func(m member) bool { return m.path == idField }) {
		idField = "name" // the default of the ID
	}
	if err := actor.CheckUnreserved(s.ID); err != nil {
		report(idField, err.Error())
	}
	for _, p := range append(s.checkDeclaration(), s.checkOutput()...) {
		report(p.Field, p.Text)
	}
	if err := actor.CheckUnreserved(s.Name); err != nil && s.Name != s.ID {
		report("name", err.Error())
	}
	if err := actor.CheckScripts(s.Name); err != nil {
		report("name", err.Error())
	}
	for _, f := range []struct{ field, text string }{{"name", s.Name}, {"description", s.Description}} {
		if i := strings.IndexFunc(f.text, actor.IsInvisible); i >= 0 {
			c := []rune(f.text[i:])[0]
			report(f.field, fmt.Sprintf("remove the character %U: it is invisible or changes the direction of the text", c))
		}
	}
	if len(problems) > 0 {
		return Spec{}, problems
	}
	return s, nil
}

// kindOfSource returns the kind in the source. If that is missing, an endpoint
// implies an external agent.
func kindOfSource(members []member) string {
	kind := KindDeclared
	for _, m := range members {
		if m.path == "kind" && (m.value == KindDeclared || m.value == KindOrchestrator || m.value == KindExternal) {
			return m.value.(string)
		}
		if m.path == "endpoint" {
			kind = KindExternal
		}
	}
	return kind
}

// missingFields returns the problems that involve more than one field.
func (s *Spec) missingFields() (problems Problems) {
	switch {
	case s.ID == "" && s.Name == "":
		problems = append(problems, Problem{Field: "name", Text: `is missing; want the name of the agent, like name = "helper"`})
	case s.ID == "" && actor.CheckName(s.Name) != nil:
		problems = append(problems, Problem{Field: "name", Text: actor.CheckName(s.Name).Error() + `; add a valid agent_id`})
	}
	if err := s.RetryPolicy().Check("retry_attempts", "retry_delay_ms", "retry_delay_max_ms", "retry_time_ms"); err != nil {
		problems = append(problems, Problem{Field: "limits", Text: err.Error()})
	}
	problems = append(problems, s.scheduleProblems()...)
	problems = append(problems, s.unkeptTools()...)
	problems = append(problems, s.outputConflicts()...)
	if s.Kind == KindOrchestrator {
		problems = append(problems, s.orchestratorProblems()...)
	}
	if s.Auth.Env != "" && s.Auth.Sealed != "" {
		problems = append(problems, Problem{Field: "auth", Text: "want one credential: env, or another form"})
	}
	if s.Kind == KindExternal && s.Endpoint == "" {
		problems = append(problems, Problem{Field: "endpoint", Text: `is missing; want the URL of the agent, like endpoint = "http://127.0.0.1:9001"`})
	}
	return problems
}

// unkeptTools returns the problem of tools whose calls an agent with durability none would not keep, so that each of
// them would be refused.
func (s *Spec) unkeptTools() Problems {
	var unkept []string
	for _, name := range s.Tools {
		if tools.IsDetached(name) {
			unkept = append(unkept, name)
		}
	}
	if s.Durability != "none" || len(unkept) == 0 {
		return nil
	}
	return Problems{{Field: "tools", Text: "not allowed for an agent with durability none, which keeps no pending calls and reminders: " + strings.Join(unkept, ", ") + "; remove them, or durability"}}
}

// unknownField returns an error text for an unknown field, with a suggestion if a
// known field is similar.
func unknownField(m member, kind string) string {
	table, last, nested := strings.Cut(m.path, ".")
	if !nested {
		last = table
	}
	for _, f := range specFields {
		parent, name, inTable := strings.Cut(f.name, ".")
		switch {
		case nested && !inTable && f.name == last:
			return fmt.Sprintf("is unknown: %s is not a key of [%s]; move it before the first [table]", last, table)
		case !nested && inTable && name == last:
			return fmt.Sprintf("is unknown: it belongs in [%s]", parent)
		}
	}
	var names []string
	for _, f := range specFields {
		names = append(names, f.name)
	}
	if best := nearest.Of(m.path, names); best != "" {
		return "is unknown; did you mean " + best + "?"
	}
	names = nil
	for _, f := range specFields {
		if f.allows(kind) && f.name != sealedField && f.name != detailsField {
			names = append(names, f.name)
		}
	}
	return "is unknown; known fields: " + strings.Join(names, ", ")
}

// describeValue returns the type of an unexpected value, for error texts.
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
	case objects:
		return "a list of tables"
	case namedObject:
		return "a table"
	default:
		return "a table"
	}
}

func text(limit int, target func(*Spec) *string, check func(string) error) func(*Spec, any) error {
	return func(s *Spec, v any) error {
		t, ok := v.(string)
		switch {
		case !ok:
			return fmt.Errorf("want text, got %s", describeValue(v))
		case strings.TrimSpace(t) == "":
			return fmt.Errorf("is empty; remove it or set a value")
		case len(t) > limit:
			return fmt.Errorf("%d bytes, at most %d allowed", len(t), limit)
		case !utf8.ValidString(t) || strings.ContainsRune(t, 0):
			return fmt.Errorf("want text in UTF-8 without zero bytes")
		}
		if check != nil {
			if err := check(t); err != nil {
				return err
			}
		}
		*target(s) = t
		return nil
	}
}

func choice(target func(*Spec) *string, values ...string) func(*Spec, any) error {
	return func(s *Spec, v any) error {
		t, ok := v.(string)
		if !ok {
			return fmt.Errorf("want %s, got %s", orList(values), describeValue(v))
		}
		if !slices.Contains(values, t) {
			return fmt.Errorf("want %s, got %.40q", orList(values), t)
		}
		*target(s) = t
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

func list(limit int, target func(*Spec) *[]string, check func(string) error) func(*Spec, any) error {
	return func(s *Spec, v any) error {
		values, ok := v.([]any)
		if !ok {
			return fmt.Errorf(`want a list of text, like ["a", "b"], got %s`, describeValue(v))
		}
		if len(values) > limit {
			return fmt.Errorf("%d entries, at most %d allowed", len(values), limit)
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
				return fmt.Errorf("entry %d: %q is a duplicate", i+1, name)
			}
			names = append(names, name)
		}
		*target(s) = names
		return nil
	}
}

func integer(lowest, highest int64, set func(*Spec, int64)) func(*Spec, any) error {
	return func(s *Spec, v any) error {
		n, ok := v.(int64)
		switch {
		case !ok:
			return fmt.Errorf("want a whole number, got %s", describeValue(v))
		case n < lowest || n > highest:
			return fmt.Errorf("%d: want %d to %d", n, lowest, highest)
		}
		set(s, n)
		return nil
	}
}

func boolean(set func(*Spec, bool)) func(*Spec, any) error {
	return func(s *Spec, v any) error {
		b, ok := v.(bool)
		if !ok {
			return fmt.Errorf("want true or false, got %s", describeValue(v))
		}
		set(s, b)
		return nil
	}
}

// number returns the setter of a number from 0 to a limit.
func number(highest float64, set func(*Spec, float64)) func(*Spec, any) error {
	return func(s *Spec, v any) error {
		t, ok := v.(float64)
		if n, isWhole := v.(int64); isWhole {
			t, ok = float64(n), true
		}
		switch {
		case !ok:
			return fmt.Errorf("want a number, got %s", describeValue(v))
		case !(t >= 0 && t <= highest):
			return fmt.Errorf("%v: want 0 to %v", t, highest)
		}
		set(s, t+0) // turns -0 into 0
		return nil
	}
}

// money reads an amount in units of the currency.
func money(set func(*Spec, float64)) func(*Spec, any) error {
	read := number(moneyMax, set)
	return func(s *Spec, v any) error {
		if f, ok := v.(float64); ok {
			if _, err := actor.ParseMoney(f); err != nil {
				return err
			}
		}
		return read(s, v)
	}
}

// checkLine validates text that is shown in lists and on terminals.
func checkLine(line string) error {
	if strings.ContainsFunc(line, unicode.IsControl) {
		return fmt.Errorf("want one line without control characters")
	}
	return nil
}

func checkToolName(name string) error {
	switch {
	case strings.HasPrefix(name, reservedToolsPrefix):
		return fmt.Errorf("%.80q: the prefix %s is reserved for internal tools", name, reservedToolsPrefix)
	case len(name) > tools.NameBytesMax || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" || name == "":
		return fmt.Errorf("%.80q: want 1 to %d letters, digits, '.', '_' and '-'", name, tools.NameBytesMax)
	}
	return nil
}

func checkTarget(name string) error {
	if strings.Contains(name, "/") {
		return fmt.Errorf("%.80q: want an agent without a session", name)
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
