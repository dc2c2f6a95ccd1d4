// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
)

// Status is the outcome of a request.
type Status uint8

// The statuses.
const (
	Success  Status = iota + 1
	Partial         // completed with limitations, which the warnings name
	Failed          // ERROR
	TimedOut        // TIMEOUT: the result has what was completed, or is null
)

var statusNames = []string{"", "SUCCESS", "PARTIAL", "ERROR", "TIMEOUT"}

// String returns the name on the wire.
func (s Status) String() string { return statusNames[min(int(s), len(statusNames)-1)] }

// statusOf returns the status that an agent names in capitals or small letters, or 0.
func statusOf(text string) Status {
	return Status(max(slices.Index(statusNames, strings.ToUpper(strings.TrimSpace(text))), 0))
}

// Response is the envelope of a response.
type Response struct {
	ID           string
	Status       Status
	Result       jsontext.Value // an object; nil is null
	Confidence   Confidence
	ErrorCode    string // CATEGORY_SPECIFIC_ERROR
	ErrorMessage string
	Warnings     []string
	Metadata     Metadata
	Notes        []string // what DecodeResponse mended; not on the wire
	ToolError    bool     // the answer was the error of a tool, word for word; not on the wire
}

// Metadata are further facts about a response; absent ones have the zero value.
type Metadata struct {
	Took              actor.Duration // processing_time_ms
	Timed             bool           // Took is known
	SourceVersion     string
	CapabilityVersion string
	CacheStatus       string
	Incomplete        []string       // names of what was not completed
	RetryAfter        actor.Duration // of a refusal that asks for it
	Field             string         // of a Violation
	Alternatives      []string       // agents that own the capability too, if the asked one is not available
	Misrouted         *Misrouted     // the owner says that the request is for another capability
	further           []member       // as the agent wrote them
}

// Check returns the first rule that the response breaks, or nil.
func (r *Response) Check() *Violation {
	bad := func(field, format string, args ...any) *Violation {
		return violation(OutputViolation, field, format, args...)
	}
	switch {
	case r.ID == "":
		return bad("request_id", "is missing")
	case r.Status < Success || r.Status > TimedOut:
		return bad("status", "want SUCCESS, PARTIAL, ERROR or TIMEOUT")
	case r.Status == Success && r.Result == nil:
		return bad("result_json", "want an object with status SUCCESS, not null")
	case r.Result != nil && r.Result.Kind() != '{':
		return bad("result_json", "want an object or null")
	case r.Status == Failed && r.Result != nil:
		return bad("result_json", "want null with status ERROR")
	case r.Status <= Partial && r.Confidence == Unstated:
		return bad("confidence_level", "want HIGH, MEDIUM, LOW or SPECULATIVE with status %s", r.Status)
	case r.Status == Failed && r.ErrorMessage == "":
		return bad("error_message", "want a sentence with status ERROR")
	case r.ErrorCode != "" && !isCode(r.ErrorCode):
		return bad("error_code", "want the form CATEGORY_SPECIFIC_ERROR")
	case r.Status <= Partial && r.ErrorCode+r.ErrorMessage != "":
		return bad("error_code", "is for status ERROR or TIMEOUT")
	}
	return nil
}

// Encode returns the JSON form of a valid response. A response with a limitation has warnings, even
// if there are none.
func (r *Response) Encode() []byte {
	broken := r.Check()
	invariant.Check(broken == nil, "contract: response: %v", broken)
	warnings, result := r.Warnings, r.Result
	if warnings == nil && (r.Status == Partial || r.Status == TimedOut) {
		warnings = []string{}
	}
	if result == nil {
		result = jsontext.Value("null")
	}
	return invariant.Must(json.Marshal(struct {
		ID         string         `json:"request_id"`
		Status     string         `json:"status"`
		Confidence string         `json:"confidence_level,omitzero"`
		Code       string         `json:"error_code,omitzero"`
		Message    string         `json:"error_message,omitzero"`
		Result     jsontext.Value `json:"result_json"`
		Warnings   []string       `json:"warnings,omitzero"`
		Metadata   jsontext.Value `json:"metadata,omitzero"`
	}{r.ID, r.Status.String(), r.Confidence.String(), r.ErrorCode, r.ErrorMessage, result, warnings, r.Metadata.encode()}, jsontext.AllowInvalidUTF8(true)))
}

// encode returns the members that have a value, or nil.
func (m *Metadata) encode() jsontext.Value {
	text := func(s string) jsontext.Value {
		if s == "" {
			return nil
		}
		return invariant.Must(json.Marshal(s))
	}
	number := func(known bool, d actor.Duration) jsontext.Value {
		if !known {
			return nil
		}
		return jsontext.Value(strconv.FormatInt(d.Milliseconds(), 10))
	}
	texts := func(list []string) jsontext.Value {
		if len(list) == 0 {
			return nil
		}
		return invariant.Must(json.Marshal(list))
	}
	all := []member{
		{"processing_time_ms", number(m.Timed, m.Took)}, {"source_version", text(m.SourceVersion)},
		{"capability_version", text(m.CapabilityVersion)}, {"cache_status", text(m.CacheStatus)},
		{"retry_after_ms", number(m.RetryAfter > 0, m.RetryAfter)}, {"field", text(m.Field)}, {"incomplete", texts(m.Incomplete)},
		{"alternatives", texts(m.Alternatives)}, {misroutedMember, m.Misrouted.encode()},
	}
	all = slices.DeleteFunc(append(all, m.further...), func(m member) bool { return m.value == nil })
	if len(all) == 0 {
		return nil
	}
	return encodeMembers(all)
}

func encodeMembers(all []member) jsontext.Value {
	b := []byte{'{'}
	for i, m := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, invariant.Must(json.Marshal(m.name))...), ':'), m.value...)
	}
	return append(b, '}')
}

// AnswerHint tells an agent that does not know the contract, such as a model, how to answer a request.
func AnswerHint(k *actor.Capability) string {
	return tools.AnswerHint(k.Output)
}

// Refused returns the response to a request that a refusal ended.
func Refused(id string, r *actor.Refusal) Response {
	out := Response{ID: id, Status: Failed, ErrorCode: r.Reason.Info().Code, ErrorMessage: cmp.Or(r.Detail, r.Error())}
	if r.Reason == actor.Deadline {
		out.Status = TimedOut
	}
	if code := codeOf(r.Code); code != "" { // of the agent itself
		out.ErrorCode = code
	}
	out.Metadata.RetryAfter, out.Metadata.Field = r.RetryAfter, r.Field
	return out
}

// Invalid returns the response to a request, or in place of a response, that breaks a rule.
func Invalid(id string, v *Violation) Response {
	return Response{ID: id, Status: Failed, ErrorCode: v.Code, ErrorMessage: v.Error(), Metadata: Metadata{Field: v.Field}}
}

// lenient are the options for what agents write. They allow doubled members, whose last value counts, and halves of
// characters.
var lenient = jsontext.Options(json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)))

// DecodeResponse reads the answer of an agent to the request with an ID. The answer is an envelope,
// alone or in a fenced block. Any other object is the result itself: see isEnvelope. An answer that is not a JSON object
// becomes a result with the member text. An empty answer is PARTIAL, and the error of a tool is ERROR. With a Violation
// the caller answers Invalid and keeps the original.
func DecodeResponse(answer, id string, levels Levels) (Response, *Violation) {
	r := Response{ID: id}
	if len(answer) > EnvelopeBytesMax {
		return r, violation(OutputViolation, "", "%d bytes exceed the maximum of %d", len(answer), EnvelopeBytesMax)
	}
	text := fenced(answer)
	members, err := membersOf([]byte(text), lenient)
	switch {
	case text == "": // some models end a turn without text after their tool calls, which may have succeeded
		r.Status, r.Confidence, r.Warnings = Partial, levels.Of(BrokenConfidence), []string{"the answer is empty"}
		r.note("the answer is empty")
		return r, nil
	case err != nil && reasonOfTool(text) != 0: // a failure, whatever its agent took it for
		reason := reasonOfTool(text)
		r.Status, r.ErrorCode, r.ErrorMessage, r.ToolError = Failed, reason.Info().Code, actor.FitText(strings.ToValidUTF8(text, "\uFFFD"), toolErrorBytesMax), true
		r.note("the answer is the error of a tool")
		return r, r.Check()
	case err != nil:
		r.Status, r.Confidence = Success, levels.Of(TextConfidence)
		if strings.HasPrefix(text, "{") {
			r.Confidence = levels.Of(BrokenConfidence)
		}
		r.Result = encodeMembers([]member{{"text", invariant.Must(json.Marshal(strings.ToValidUTF8(answer, "\uFFFD")))}})
		r.note("the answer is no envelope: its text is the result")
		return r, nil
	case !isEnvelope(members, id):
		r.Status, r.Confidence, r.Result = Success, levels.Of(TextConfidence), strictObject(jsontext.Value(text))
		if c, ok := levels.readConfidence(lastOf(members, "confidence")); ok {
			r.Confidence = c
		}
		r.note("the answer is no envelope: it is the result")
		return r, r.Check()
	}
	if v := r.readEnvelope(members, levels); v != nil {
		return r, v
	}
	return r, r.Check()
}

// toolError begins what an agent with a model is told of a tool call that failed; the type of the reason follows.
const (
	toolError         = "error "
	toolErrorBytesMax = 2 << 10 // of it in a response
)

// ToolErrorText returns what an agent with a model is told of a tool call that failed.
func ToolErrorText(r *actor.Refusal) string {
	return toolError + r.Reason.Info().Type + ": " + r.Error()
}

// IsToolError reports whether an answer is such a text, which an agent passes on.
func IsToolError(answer string) bool { return reasonOfTool(answer) != 0 }

// reasonOfTool returns the reason in such a text, which an agent passes on as its answer; 0 if it is another text.
func reasonOfTool(text string) actor.Reason {
	rest, ok := strings.CutPrefix(text, toolError)
	if !ok {
		return 0
	}
	kind, _, ok := strings.Cut(rest, ": ")
	for _, reason := range actor.Reasons() {
		if ok && reason.Info().Type == kind {
			return reason
		}
	}
	return 0
}

// responseMembers are the members of an envelope.
var responseMembers = []string{"request_id", "status", "result_json", "confidence_level", "confidence", "error_code", "error_message", "warnings", "metadata", misroutedMember}

// isEnvelope reports whether an object is a response to the request with an ID. The result of a capability may have a
// member status too, such as the status of an order. So an object with a status is an envelope only if it has
//
//   - the ID of the request, or the member result_json,
//   - or a status of the contract, with a confidence or an error,
//   - or only members of envelopes, with a status other than SUCCESS or an error: such a short failure MUST NOT be read
//     as a result.
func isEnvelope(members []member, id string) bool {
	if len(members) == 1 && members[0].name == misroutedMember {
		return true
	}
	has := func(name string) bool { return lastOf(members, name) != nil }
	if !slices.ContainsFunc(members, func(m member) bool { return m.name == "status" }) {
		return false
	}
	given, _ := textOf(lastOf(members, "request_id"))
	if given == id || slices.ContainsFunc(members, func(m member) bool { return m.name == "result_json" }) {
		return true
	}
	text, _ := textOf(lastOf(members, "status"))
	status := statusOf(text)
	explained := has("confidence_level") || has("error_code") || has("error_message")
	foreign := slices.ContainsFunc(members, func(m member) bool { return !slices.Contains(responseMembers, m.name) })
	return status != 0 && explained || !foreign && (explained || status > Success)
}

// fenced returns the JSON object in the first fenced block of a text, or the text.
func fenced(answer string) string {
	text := strings.TrimSpace(strings.TrimPrefix(answer, "\uFEFF"))
	if strings.HasPrefix(text, "{") {
		return text
	}
	if _, block, ok := strings.Cut(text, "```"); ok {
		_, block, _ = strings.Cut(block, "\n") // the name of the language
		if block, _, ok = strings.Cut(block, "```"); ok && strings.HasPrefix(strings.TrimSpace(block), "{") {
			return strings.TrimSpace(block)
		}
	}
	return text
}

func (r *Response) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// lastOf returns the value of the last member of that name, or nil.
func lastOf(members []member, name string) (v jsontext.Value) {
	for _, m := range members {
		if m.name == name && m.value.Kind() != 'n' {
			v = m.value
		}
	}
	return v
}

// readEnvelope reads the members of an envelope. What cannot mean anything is a Violation.
func (r *Response) readEnvelope(members []member, levels Levels) *Violation {
	get := func(name string) jsontext.Value { return lastOf(members, name) }
	if v := get("request_id"); v == nil {
		r.note("request_id is missing")
	} else if text, _ := textOf(v); text != r.ID {
		return violation(OutputViolation, "request_id", "want that of the request, %s", r.ID)
	}
	status, _ := textOf(get("status"))
	r.Status = statusOf(status)
	if v := r.readResult(get("result_json")); v != nil {
		return v
	}
	v := get("confidence_level")
	if v == nil {
		v = get("confidence")
	}
	if v != nil {
		var ok bool
		if r.Confidence, ok = levels.readConfidence(v); !ok {
			return violation(OutputViolation, "confidence_level", "want HIGH, MEDIUM, LOW or SPECULATIVE")
		}
	}
	code, _ := textOf(get("error_code"))
	r.ErrorCode = r.readCode(code)
	r.ErrorMessage, _ = textOf(get("error_message"))
	if r.Status <= Partial && r.ErrorCode+r.ErrorMessage != "" {
		r.note("an error with status %s is left out", r.Status)
		r.ErrorCode, r.ErrorMessage = "", ""
	}
	if r.Warnings = r.readTexts("warnings", get("warnings")); r.Status == Success && len(r.Warnings) > 0 {
		r.note("warnings with status SUCCESS")
	}
	r.readMetadata(get("metadata"))
	r.readMisrouted(get(misroutedMember))
	return nil
}

// readResult reads an object, or a text that holds one. A response with status ERROR has no result.
func (r *Response) readResult(v jsontext.Value) *Violation {
	if text, ok := textOf(v); ok && strings.HasPrefix(strings.TrimSpace(text), "{") {
		v = jsontext.Value(strings.TrimSpace(text))
		r.note("result_json is a text that holds an object")
	}
	switch {
	case v == nil:
		return nil
	case r.Status == Failed:
		if v.Kind() != '{' || strings.Trim(string(v), "{} \t\r\n") != "" {
			r.note("a result with status ERROR is left out")
		}
		return nil
	case v.Kind() != '{':
		return violation(OutputViolation, "result_json", "want an object or null")
	}
	if r.Result = strictObject(v); r.Result == nil {
		return violation(OutputViolation, "result_json", "want a JSON object with each member once")
	}
	return nil
}

// strictObject returns an object as strict JSON, or nil if it cannot be: a member is there twice.
// Halves of characters become U+FFFD, numbers keep their digits.
func strictObject(v jsontext.Value) jsontext.Value {
	v = v.Clone()
	if err := v.Compact(jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(false)); err != nil {
		return nil
	}
	v = jsontext.Value(strings.ToValidUTF8(string(v), "\uFFFD"))
	if !v.IsValid() || depthOf(v) > depthMax {
		return nil
	}
	return v
}

// depthMax bounds the nesting of what an agent answers. Envelopes and messages that carry it nest deeper,
// and no JSON may exceed 10,000 levels.
const depthMax = 1000

// depthOf returns how deep valid JSON nests.
func depthOf(v jsontext.Value) (deepest int) {
	depth, quoted := 0, false
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// readCode returns an error code in its form, or "" if the text cannot be brought into it.
func (r *Response) readCode(text string) string {
	if text != "" && !isCode(text) {
		r.note("error_code %.64q has not the form CATEGORY_SPECIFIC_ERROR", text)
	}
	return codeOf(text)
}

// codeOf returns a text in the form of a code, or "" if it cannot be brought into it.
func codeOf(text string) string {
	code := strings.ToUpper(strings.Map(func(c rune) rune {
		if c == '-' || c == '.' || c == ' ' || c == '/' {
			return '_'
		}
		return c
	}, text))
	if !isCode(code) {
		return ""
	}
	return code
}

// readTexts reads a list of texts, or a text that is meant as one.
func (r *Response) readTexts(name string, v jsontext.Value) (texts []string) {
	if v == nil {
		return nil
	}
	if text, ok := textOf(v); ok {
		r.note("%s is a text", name)
		return []string{text}
	}
	var items []jsontext.Value
	if json.Unmarshal(v, &items, lenient) != nil {
		r.note("%s is no list of texts", name)
		return nil
	}
	for i, item := range items {
		if i == WarningsMax {
			r.note("%d more %s", len(items)-i, name)
			break
		}
		text, ok := textOf(item)
		if !ok {
			text = string(item)
		}
		texts = append(texts, text)
	}
	return texts
}

// readMetadata reads what it can. A malformed member of metadata never makes the answer invalid.
func (r *Response) readMetadata(v jsontext.Value) {
	if v == nil {
		return
	}
	members, err := membersOf(v, lenient)
	if err != nil {
		r.note("metadata is no object")
		return
	}
	m := &r.Metadata
	names, texts := []string{"source_version", "capability_version", "cache_status"}, []*string{&m.SourceVersion, &m.CapabilityVersion, &m.CacheStatus}
	for _, f := range members {
		switch i := slices.Index(names, f.name); {
		case f.value.Kind() == 'n':
		case i >= 0:
			var ok bool
			if *texts[i], ok = textOf(f.value); !ok {
				*texts[i] = string(f.value) // 1.0 is the version that was written so
			}
		case f.name == "processing_time_ms":
			ms, err := strconv.ParseFloat(string(f.value), 64)
			if m.Timed = err == nil && ms >= 0 && ms <= float64(timeoutMax.Milliseconds()); m.Timed {
				m.Took = actor.Duration(ms) * time.Millisecond
			}
		case f.name == misroutedMember:
			r.readMisrouted(f.value)
		case f.name == "retry_after_ms" || f.name == "field" || f.name == "alternatives": // the server says them, not an agent
		case f.name == "incomplete":
			m.Incomplete = r.readTexts(f.name, f.value)
		default:
			if value := strictValue(f.value); value != nil {
				m.further = slices.DeleteFunc(m.further, func(other member) bool { return other.name == f.name })
				m.further = append(m.further, member{strings.ToValidUTF8(f.name, "\uFFFD"), value})
			}
		}
	}
}

// strictValue is strictObject for any value.
func strictValue(v jsontext.Value) jsontext.Value {
	if object := strictObject(jsontext.Value(`{"v":` + string(v) + `}`)); object != nil {
		return object[len(`{"v":`) : len(object)-1]
	}
	return nil
}
