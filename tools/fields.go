// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/nearest"
	"github.com/troupe-run/troupe/runs"
)

// FieldError is one error in the definition of a tool.
type FieldError struct {
	Field string // such as timeout_ms or headers.Accept; empty: the whole definition
	Text  string // description of the error and of valid values
}

// Error returns the field and the text.
func (e FieldError) Error() string {
	if e.Field == "" {
		return e.Text
	}
	return e.Field + ": " + e.Text
}

// FieldErrors is the error of the definition of a tool. It lists all of them, in the order
// of the fields.
type FieldErrors []FieldError

// Error returns one error per line.
func (e FieldErrors) Error() string {
	lines := make([]string, 0, len(e))
	for _, one := range e {
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

// declaredField is one field of a declared tool, in TOML and in JSON.
type declaredField struct {
	name     string
	want     string // description of its type
	server   bool   // not allowed for a client tool
	via      string // of a server tool, the only way that the field belongs to; "": any
	target   func(d *Declared) any
	min, max int64 // of a number
}

var declaredFields = []declaredField{
	{name: "tool_name", want: "text", target: func(d *Declared) any { return &d.Name }},
	{name: "kind", want: "text", target: func(d *Declared) any { return &d.Kind }},
	{name: "via", want: "text", server: true, target: func(d *Declared) any { return &d.Via }},
	{name: "description", want: "text", target: func(d *Declared) any { return &d.Description }},
	{name: "url", want: "text", server: true, via: ViaHTTP, target: func(d *Declared) any { return &d.URL }},
	{name: "method", want: "text", server: true, via: ViaHTTP, target: func(d *Declared) any { return &d.Method }},
	{name: "headers", want: "a table of headers", server: true, via: ViaHTTP, target: func(d *Declared) any { return &d.Headers }},
	{name: "identity", want: "text", server: true, via: ViaHTTP, target: func(d *Declared) any { return &d.Identity }},
	{name: "body", want: "JSON", server: true, via: ViaHTTP, target: func(d *Declared) any { return &d.Body }},
	{name: "file", want: "text", server: true, via: ViaWasm, target: func(d *Declared) any { return &d.File }},
	{name: "sha256", want: "text", server: true, via: ViaWasm, target: func(d *Declared) any { return &d.SHA256 }},
	{name: "grant", want: "a list of texts", server: true, via: ViaWasm, target: func(d *Declared) any { return &d.Grant }},
	{name: "steps", want: "a list of tables with tool, args and from", server: true, via: ViaPipeline, target: func(d *Declared) any { return &d.Steps }},
	{name: "input_schema", want: "a JSON schema", target: func(d *Declared) any { return &d.InputSchema }},
	{name: "timeout_ms", min: 1, max: TimeoutMax.Milliseconds(), target: func(d *Declared) any { return &d.TimeoutMS }},
	{name: "idempotent", want: "true or false", target: func(d *Declared) any { return &d.Idempotent }},
	{name: "batch", want: "true or false", server: true, via: ViaHTTP, target: func(d *Declared) any { return &d.Batch }},
	{name: "cache_ms", server: true, min: 1, max: CacheMax.Milliseconds(), target: func(d *Declared) any { return &d.CacheMS }},
	{name: "concurrency", min: 1, max: ConcurrencyMax, target: func(d *Declared) any { return &d.Concurrency }},
	{name: "max_result_bytes", min: 1, max: ResultBytesMax, target: func(d *Declared) any { return &d.MaxResultBytes }},
	{name: "policy", want: "text", target: func(d *Declared) any { return &d.Policy }},
	{name: "approver", want: "text", target: func(d *Declared) any { return &d.Approver }},
	{name: "approval_timeout_ms", min: 1, max: ApprovalTimeoutMax.Milliseconds(), target: func(d *Declared) any { return &d.ApprovalTimeoutMS }},
	{name: "args_summary", want: "text", target: func(d *Declared) any { return &d.ArgsSummary }},
	{name: "on_failure", want: "text", target: func(d *Declared) any { return &d.OnFailure }},
	{name: "fallback", want: "text", target: func(d *Declared) any { return &d.Fallback }},
	{name: "metadata", want: "an object", target: func(d *Declared) any { return &d.Metadata }},
}

func (f *declaredField) wanted() string {
	if f.max > 0 {
		return fmt.Sprintf("a whole number from %d to %d", f.min, f.max)
	}
	return f.want
}

// DeclaredFields returns the names of the fields of a declared tool.
func DeclaredFields() []string {
	names := make([]string, 0, len(declaredFields))
	for _, f := range declaredFields {
		names = append(names, f.name)
	}
	return names
}

// ReadDeclared decodes the definition of a tool and sets the fields that are absent to
// their defaults, so that two definitions of the same meaning have the same hash. The key
// name is accepted for tool_name, and null for an absent field. The error is of type
// FieldErrors.
func ReadDeclared(b []byte) (Declared, error) {
	if len(b) > 2*DeclaredBytesMax {
		return Declared{}, FieldErrors{{Text: fmt.Sprintf("%d bytes, at most %d allowed", len(b), 2*DeclaredBytesMax)}}
	}
	members, err := objectMembers(b)
	if err != nil {
		return Declared{}, FieldErrors{*err}
	}
	var d Declared
	var problems FieldErrors
	for _, m := range members {
		if m.value.Kind() == 'n' {
			continue
		}
		if err := d.set(m.name, m.value); err != nil {
			problems = append(problems, *err)
		}
	}
	var further FieldErrors
	d.schema, further = d.check()
	if problems = withFurther(problems, further); len(problems) > 0 {
		return Declared{}, problems
	}
	d.setDefaults()
	if n := len(d.Encode()); n > DeclaredBytesMax {
		return Declared{}, FieldErrors{{Text: fmt.Sprintf("the definition has %d bytes, at most %d allowed", n, DeclaredBytesMax)}}
	}
	return d, nil
}

// withFurther appends those errors of a definition that do not follow from the errors found
// while its fields were decoded.
func withFurther(decoded, further FieldErrors) FieldErrors {
	reported := func(field string) bool {
		return slices.ContainsFunc(decoded, func(e FieldError) bool { return rootField(e.Field) == field })
	}
	if reported("kind") { // it decides which fields are allowed
		return decoded
	}
	problems := decoded
	for _, e := range further {
		field := rootField(e.Field)
		placeholders := field == "url" || field == "body" || field == "args_summary" // input_schema has their names
		if !reported(field) && !(placeholders && reported("input_schema")) {
			problems = append(problems, e)
		}
	}
	return problems
}

// rootField returns the field of a definition to which a path belongs.
func rootField(path string) string {
	root, _, _ := strings.Cut(path, ".")
	if root == "name" {
		return "tool_name"
	}
	return root
}

// declaredMember is one member of a JSON object.
type declaredMember struct {
	name  string
	value jsontext.Value
}

// objectMembers returns the members of an object. It checks the nesting and the numbers of
// the whole value.
func objectMembers(b []byte) ([]declaredMember, *FieldError) {
	if _, p := parse(b); p != nil {
		return nil, &FieldError{strings.ReplaceAll(p.field, "/", "."), p.message}
	}
	dec := jsontext.NewDecoder(bytes.NewReader(b))
	if dec.PeekKind() != '{' {
		return nil, &FieldError{"", "want a JSON object"}
	}
	_, err := dec.ReadToken()
	var members []declaredMember
	for err == nil && dec.PeekKind() != '}' {
		var name jsontext.Token
		var value jsontext.Value
		if name, err = dec.ReadToken(); err == nil {
			key := name.String()
			value, err = dec.ReadValue()
			members = append(members, declaredMember{key, value.Clone()})
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, &FieldError{"", err.Error()} // unreachable: the value was parsed
	}
	return members, nil
}

// set decodes a field.
func (d *Declared) set(name string, value jsontext.Value) *FieldError {
	if name == "name" {
		name = "tool_name"
		if d.Name != "" {
			return &FieldError{"name", "is another name for tool_name; remove one of them"}
		}
	}
	i := slices.IndexFunc(declaredFields, func(f declaredField) bool { return f.name == name })
	if i < 0 {
		text := "is unknown; known fields: " + strings.Join(DeclaredFields(), ", ")
		if best := nearest.Of(name, DeclaredFields()); best != "" {
			text = "is unknown; did you mean " + best + "?"
		}
		return &FieldError{shortened(name), text}
	}
	f := &declaredFields[i]
	if name == "headers" && value.Kind() == '{' {
		return d.setHeaders(value)
	}
	target := f.target(d)
	if name == "tool_name" && d.Name != "" {
		return &FieldError{name, "is another name for name; remove one of them"}
	}
	if raw, ok := target.(*jsontext.Value); ok {
		return setJSON(f, raw, value)
	}
	if err := json.Unmarshal(value, target, json.RejectUnknownMembers(name == "steps")); err != nil || f.max > 0 && f.number(d) == 0 {
		return &FieldError{name, "want " + f.wanted() + ", got " + describe(value)}
	}
	return nil
}

// setJSON sets a field that holds JSON. A schema may also be a text with JSON, because TOML
// is not suited to deep tables.
func setJSON(f *declaredField, target *jsontext.Value, value jsontext.Value) *FieldError {
	if f.name == "input_schema" && value.Kind() == '"' {
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			return &FieldError{f.name, "want " + f.want}
		}
		value = jsontext.Value(text)
		if _, p := parse(value); p != nil {
			return &FieldError{f.name, "want a JSON schema or a text with one: " + p.String()}
		}
	}
	compact := value.Clone()
	if err := compact.Compact(); err != nil {
		return &FieldError{f.name, "want " + f.want}
	}
	*target = compact
	return nil
}

// setHeaders decodes the headers. A text is short for a table with value.
func (d *Declared) setHeaders(value jsontext.Value) *FieldError {
	members, err := objectMembers(value)
	if err != nil {
		return &FieldError{strings.TrimSuffix("headers."+err.Field, "."), err.Text}
	}
	if len(members) > HeadersMax {
		return &FieldError{"headers", fmt.Sprintf("%d headers, at most %d allowed", len(members), HeadersMax)}
	}
	d.Headers = make(map[string]Header, len(members))
	for _, m := range members {
		var h Header
		field := "headers." + shortened(m.name)
		switch m.value.Kind() {
		case '"':
			if err := json.Unmarshal(m.value, &h.Value); err != nil {
				return &FieldError{field, "want text"}
			}
		case '{':
			if err := json.Unmarshal(m.value, &h, json.RejectUnknownMembers(true)); err != nil {
				return &FieldError{field, "want a table with value or env, each a text"}
			}
		default:
			return &FieldError{field, "want a text, or a table with value or env, got " + describe(m.value)}
		}
		d.Headers[m.name] = h
	}
	return nil
}

// describe returns the type of a JSON value, or a short number itself.
func describe(value jsontext.Value) string {
	switch value.Kind() {
	case '"':
		return "text"
	case 't', 'f':
		return "true or false"
	case '0':
		return fmt.Sprintf("%.40s", value)
	case '[':
		return "a list"
	case 'n':
		return "null"
	default:
		return "a table"
	}
}

func shortened(name string) string { return fmt.Sprintf("%.80s", strings.ToValidUTF8(name, "\uFFFD")) }

// number returns the value of a field with a number.
func (f *declaredField) number(d *Declared) int64 {
	switch n := f.target(d).(type) {
	case *int64:
		return *n
	case *int:
		return int64(*n)
	}
	return 0
}

// setDefaults sets the fields that are zero.
func (d *Declared) setDefaults() {
	d.Kind = cmp.Or(d.Kind, KindServer)
	if d.Kind == KindServer {
		switch d.Via = cmp.Or(d.Via, ViaHTTP); d.Via {
		case ViaHTTP:
			d.Method = cmp.Or(d.Method, Methods[0])
		case ViaWasm:
			d.Idempotent = true // a module has no effect outside
		case ViaPipeline:
			d.Idempotent = true // its steps are calls of their own
		}
	}
	if len(d.Headers) == 0 {
		d.Headers = nil
	}
	if len(d.InputSchema) == 0 {
		d.InputSchema = jsontext.Value(defaultInputSchema)
	}
	if d.Via == ViaPipeline {
		return
	}
	d.Concurrency = cmp.Or(d.Concurrency, ConcurrencyDefault)
	d.MaxResultBytes = d.ResultBytesMax()
}

// Check returns all errors of the definition as FieldErrors, or nil. A field that is zero
// counts as absent.
func (d *Declared) Check() error {
	_, problems := d.check()
	if len(problems) == 0 && len(d.Encode()) > DeclaredBytesMax {
		problems = FieldErrors{{Text: fmt.Sprintf("the definition has more than %d bytes", DeclaredBytesMax)}}
	}
	if len(problems) == 0 {
		return nil
	}
	return problems
}

// check returns the errors and the compiled input schema.
func (d *Declared) check() (s *schema, problems FieldErrors) {
	report := func(field, format string, args ...any) {
		problems = append(problems, FieldError{field, fmt.Sprintf(format, args...)})
	}
	choice := func(field, value string, choices ...string) {
		if value != "" && !slices.Contains(choices, value) {
			report(field, "want %s, got %.40q", orList(choices), value)
		}
	}
	if err := checkDeclaredName(d.Name); err != nil {
		report("tool_name", "%v", err)
	}
	choice("kind", d.Kind, KindServer, KindClient)
	if d.Kind == KindClient {
		for _, f := range declaredFields {
			if f.server && !isZero(f.target(d)) {
				report(f.name, "not allowed for a %s, which a device of the user performs; remove it", KindClient)
			}
		}
	} else {
		choice("via", d.Via, declarable...)
		choice("method", d.Method, Methods...)
		for _, f := range declaredFields {
			if via := cmp.Or(d.Via, ViaHTTP); f.via != "" && f.via != via && !isZero(f.target(d)) && slices.Contains(declarable, via) {
				report(f.name, "not allowed with via = %q; remove it, or write via = %q", via, f.via)
			}
		}
	}
	if err := checkText(d.Description, DescriptionBytesMax); err != nil {
		report("description", "%v", err)
	}
	properties, s, err := compileInput(string(d.InputSchema), d.lenient)
	if err != nil {
		report("input_schema", "%v", err)
	}
	// Without a valid schema the placeholders cannot be checked.
	known := func(name string) bool { return err != nil || properties[name] }
	if d.Kind != KindClient && d.Via == ViaWasm {
		if !isSHA256(d.SHA256) {
			report("sha256", "want the SHA-256 of the module in %d lower-case hexadecimal digits, got %.80q", SHA256Digits, d.SHA256)
		}
		for _, g := range d.Grant {
			choice("grant", cmp.Or(g, " "), GrantClock, GrantRandom)
		}
		if slices.Sort(d.Grant); len(slices.Compact(slices.Clone(d.Grant))) != len(d.Grant) {
			report("grant", "names one thing twice; remove one of them")
		}
		if err := checkText(d.File, urlBytesMax); err != nil {
			report("file", "%v", err)
		}
	}
	if d.Kind != KindClient && d.Via == ViaPipeline {
		problems = append(problems, d.checkSteps()...)
	} else if d.Kind != KindClient && d.Via != ViaWasm {
		choice("identity", d.Identity, Identities...)
		ofIdentity := func(name string) bool { return strings.HasPrefix(name, identityHeaderPrefix) || known(name) }
		if err := cmp.Or(d.checkIdentity(d.URL, true), checkURL(withoutIdentity(d.URL), ofIdentity)); err != nil {
			report("url", "%v", err)
		}
		if err := d.checkIdentity(string(d.Body), false); err != nil {
			report("body", "%v", err)
		}
		problems = append(append(problems, d.checkHeaders()...), d.checkBatch()...)
		if len(d.Body) > 0 {
			switch body, p := parse(d.Body); {
			case p != nil:
				report("body", "%s", p.String())
			case d.Method == "GET":
				report("body", "not allowed with method GET; remove it, or choose another method")
			default:
				if name, ok := unknownPlaceholder(body, known); ok {
					report("body", "{%.80s} is no property of input_schema", name)
				}
			}
		}
	}
	for i := range declaredFields {
		f := &declaredFields[i]
		if n := f.number(d); f.max > 0 && n != 0 && (n < f.min || n > f.max) {
			report(f.name, "want %s, got %d", f.wanted(), n)
		}
	}
	if d.CacheMS != 0 && !d.Idempotent && d.Via != ViaWasm {
		report("cache_ms", "needs idempotent = true: a result is kept only if another call would have the same effect")
	}
	choice("policy", d.Policy, runs.Allow.String(), runs.RequireApproval.String(), runs.Block.String())
	choice("approver", d.Approver, runs.Approvers...)
	if err := checkSummary(d.ArgsSummary, known); err != nil {
		report("args_summary", "%v", err)
	}
	choice("on_failure", d.OnFailure, ReturnError, FailRun)
	if d.Fallback == d.Name && d.Name != "" {
		report("fallback", "is the tool itself; remove it")
	} else if d.Fallback != "" {
		if err := checkStandIn(d.Fallback); err != nil {
			report("fallback", "%v", err)
		}
	}
	if len(d.Metadata) > 0 {
		switch _, p := parse(d.Metadata); {
		case p != nil:
			report("metadata", "%s", p.String())
		case d.Metadata.Kind() != '{':
			report("metadata", "want an object, got %s", describe(d.Metadata))
		case len(d.Metadata) > MetadataBytesMax:
			report("metadata", "%d bytes, at most %d allowed", len(d.Metadata), MetadataBytesMax)
		}
	}
	order := DeclaredFields()
	slices.SortStableFunc(problems, func(a, b FieldError) int {
		field := func(e FieldError) int { return slices.Index(order, rootField(e.Field)) }
		return cmp.Compare(field(a), field(b))
	})
	return s, problems
}

func isZero(target any) bool {
	switch v := target.(type) {
	case *string:
		return *v == ""
	case *jsontext.Value:
		return len(*v) == 0
	case *map[string]Header:
		return len(*v) == 0
	case *[]string:
		return len(*v) == 0
	case *[]PipelineStep:
		return len(*v) == 0
	case *bool:
		return !*v
	}
	return true
}

// declarable are the ways that users may declare.
var declarable = []string{ViaHTTP, ViaWasm, ViaPipeline}

func isSHA256(text string) bool {
	return len(text) == SHA256Digits && strings.Trim(text, "0123456789abcdef") == ""
}

func orList(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
}

// checkText returns an error unless text is valid and of at most limit bytes. Its reader
// sees all its characters.
func checkText(text string, limit int) error {
	if len(text) > limit {
		return fmt.Errorf("%d bytes, at most %d allowed", len(text), limit)
	}
	for _, c := range text {
		if c == '\uFFFD' || unicode.IsControl(c) && c != '\n' && c != '\t' || actor.IsInvisible(c) {
			return fmt.Errorf("remove the character %U: only visible text in UTF-8 is allowed", c)
		}
	}
	return nil
}

// compileInput compiles an input schema and returns the names of its properties.
func compileInput(text string, lenient bool) (properties map[string]bool, s *schema, err error) {
	text = cmp.Or(text, defaultInputSchema)
	if s, err = compile(text, lenient); err != nil {
		return nil, nil, fmt.Errorf("want the JSON schema of an object: %.300s", strings.Join(strings.Fields(err.Error()), " "))
	}
	if err := s.bound(); err != nil {
		return nil, nil, err
	}
	var top struct {
		Properties map[string]jsontext.Value `json:"properties"`
	}
	if err := json.Unmarshal([]byte(text), &top); err != nil {
		return nil, nil, errors.New("properties: want an object")
	}
	properties = make(map[string]bool, len(top.Properties))
	for _, name := range slices.Sorted(maps.Keys(top.Properties)) {
		properties[name] = true
	}
	return properties, s, nil
}

// checkURL returns an error that describes the first violation of a URL's rules. The model
// MUST NOT choose the host, so placeholders are allowed after it only.
func checkURL(text string, known func(string) bool) error {
	const example = "http://127.0.0.1:9000/weather"
	if text == "" {
		return fmt.Errorf("is missing; want the URL that performs the tool, like %s", example)
	}
	if len(text) > urlBytesMax {
		return fmt.Errorf("%d bytes, at most %d allowed", len(text), urlBytesMax)
	}
	for _, c := range text {
		if c <= ' ' || c == 0x7f || c == '\\' || c == '\uFFFD' || actor.IsInvisible(c) {
			return fmt.Errorf("contains blanks, control characters or backslashes")
		}
	}
	host, rest, _ := strings.Cut(text, "://")
	if at := strings.IndexAny(rest, "/?"); at >= 0 {
		host, rest = host+"://"+rest[:at], rest[at:]
	} else {
		host, rest = text, ""
	}
	if strings.ContainsAny(host, "{}") {
		return fmt.Errorf("placeholders like {name} are allowed after the host only")
	}
	plain := host
	for rest != "" {
		open := strings.IndexAny(rest, "{}")
		if open < 0 {
			plain += rest
			break
		}
		end := strings.IndexAny(rest[open+1:], "{}")
		if rest[open] == '}' || end < 0 || rest[open+1+end] == '{' {
			return fmt.Errorf("want pairs of braces, like {city}")
		}
		if name := rest[open+1 : open+1+end]; !known(name) {
			return fmt.Errorf("{%.80s} is no property of input_schema", name)
		} else if inParameterName(plain + rest[:open]) {
			return fmt.Errorf("{%.80s} is in the name of a query parameter; placeholders are allowed in values only", name)
		}
		plain, rest = plain+rest[:open]+"x", rest[open+end+2:]
	}
	u, err := url.Parse(plain)
	switch {
	case err != nil || u.Opaque != "":
		return fmt.Errorf("invalid; want one like %s", example)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("want http or https, got %.20q; write it like %s", u.Scheme, example)
	case u.Hostname() == "":
		return fmt.Errorf("has no host; write it like %s", example)
	case u.Port() != "" && !validPort(u.Port()):
		return fmt.Errorf("port %.20q: want 1 to 65535", u.Port())
	case u.User != nil:
		return fmt.Errorf("contains a user; use headers")
	case strings.Contains(plain, "#"):
		return fmt.Errorf("contains a fragment; remove it")
	}
	return nil
}

// inParameterName reports whether a URL that begins with the text continues with a part of
// the name of a query parameter. Its value has begun after the first '='.
func inParameterName(begin string) bool {
	_, query, ok := strings.Cut(begin, "?")
	last := query[strings.LastIndexAny(query, "&;")+1:]
	return ok && !strings.Contains(last, "=")
}

func validPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return err == nil && port > 0
}

// ownHeaders are the headers that belong to the connection, or that the server sets.
var ownHeaders = []string{"accept-encoding", "connection", "content-encoding", "content-length", "expect", "host", "idempotency-key", "keep-alive",
	"te", "trailer", "transfer-encoding", "upgrade"}

func (d *Declared) checkHeaders() (problems FieldErrors) {
	if len(d.Headers) > HeadersMax {
		return FieldErrors{{"headers", fmt.Sprintf("%d headers, at most %d allowed", len(d.Headers), HeadersMax)}}
	}
	used := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		h, lower := d.Headers[name], strings.ToLower(name)
		report := func(format string, args ...any) {
			problems = append(problems, FieldError{"headers." + shortened(name), fmt.Sprintf(format, args...)})
		}
		rest, isAuth := strings.CutPrefix(h.Env, HeaderEnvPrefix)
		switch {
		case name == "" || len(name) > NameBytesMax || strings.Trim(lower, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
			report("want the name of a header: 1 to %d letters, digits, '-' and '_'", NameBytesMax)
		case slices.Contains(ownHeaders, lower) || strings.HasPrefix(lower, "proxy-") || strings.HasPrefix(strings.ReplaceAll(lower, "_", "-"), identityHeaderPrefix):
			report("is set by the server; remove it")
		case used[lower]:
			report("occurs twice; names differ in upper and lower case only")
		case (h.Value == "") == (h.Env == ""):
			report("want either value, a text, or env, the name of the environment variable with the text")
		case h.Env != "" && (!isAuth || rest == "" || len(h.Env) > NameBytesMax || strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != ""):
			report("env: want the name of a variable like %sWEATHER, got %.80q", HeaderEnvPrefix, h.Env)
		case len(h.Value) > HeaderBytesMax:
			report("%d bytes, at most %d allowed", len(h.Value), HeaderBytesMax)
		case strings.ContainsFunc(h.Value, func(c rune) bool { return c < ' ' && c != '\t' || c > '~' }) || strings.Trim(h.Value, " \t") != h.Value:
			report("want printable ASCII without blanks at the ends")
		case d.checkIdentity(h.Value, false) != nil:
			report("%v", d.checkIdentity(h.Value, false))
		}
		used[lower] = true
	}
	return problems
}

// unknownPlaceholder returns the first text "{name}" in a body for which known is false.
func unknownPlaceholder(body any, known func(string) bool) (string, bool) {
	switch v := body.(type) {
	case string:
		if name, ok := Placeholder(v); ok && !known(name) {
			return name, true
		}
	case []any:
		for _, item := range v {
			if name, ok := unknownPlaceholder(item, known); ok {
				return name, true
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if name, ok := unknownPlaceholder(v[key], known); ok {
				return name, true
			}
		}
	}
	return "", false
}

// Placeholder returns the name of the argument that replaces a text of a body: name for
// "{name}", or false if the text stays.
func Placeholder(text string) (name string, ok bool) {
	inner, ok := strings.CutPrefix(text, "{")
	name, closed := strings.CutSuffix(inner, "}")
	return name, ok && closed && name != "" && !strings.ContainsAny(name, "{}")
}
