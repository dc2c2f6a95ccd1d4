// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// Class classifies a failure by whether a retry can help.
type Class uint8

// The classes.
const (
	Refused   Class = iota + 1 // the upstream is healthy and rejected the request: a retry is useless
	Throttled                  // the upstream did not accept the request: retry later
	Unreached                  // the request was not sent
	Broken                     // no usable response, and the request may have been processed
)

var classNames = [...]string{Refused: "refused", Throttled: "throttled", Unreached: "unreached", Broken: "broken"}

// String returns the name of the class.
func (c Class) String() string {
	if c == 0 || int(c) >= len(classNames) {
		return fmt.Sprintf("unknown(%d)", c)
	}
	return classNames[c]
}

// Failure is the reason why an attempt failed.
type Failure struct {
	Class   Class
	Refusal *actor.Refusal
	After   actor.Duration // delay requested by the upstream; 0 if none
	Code    string         // as the upstream reported it, without secrets; may be empty

	Object []byte // JSON object with the error as the upstream sent it, without secrets; nil if there is none

	reported upstreamError // as the upstream sent it
}

func fail(class Class, reason actor.Reason, format string, args ...any) *Failure {
	return &Failure{Class: class, Refusal: actor.Refuse(reason, format, args...)}
}

// RetryAfterMax is the maximum delay accepted from an upstream.
const RetryAfterMax = time.Hour

// statusRule maps an HTTP status to a class and a reason.
type statusRule struct {
	status int
	class  Class
	reason actor.Reason
}

// statusRules lists the exceptions. Any other status is Broken if it is below 300 or
// at least 500, and Refused otherwise.
var statusRules = []statusRule{
	{404, Refused, actor.Unavailable}, // NotFound is reserved for agents unknown to this node
	{408, Throttled, actor.Unavailable},
	{409, Throttled, actor.Busy},
	{425, Throttled, actor.Unavailable},
	{429, Throttled, actor.Busy},
	{501, Refused, actor.Unavailable},
	{503, Throttled, actor.Unavailable},
	{505, Refused, actor.Unavailable},
	{529, Throttled, actor.Unavailable}, // "overloaded" at some upstreams
}

// modelReason returns the reason for a request that the provider of a model refused.
func modelReason(status int, e upstreamError) actor.Reason {
	switch code := e.code + " " + e.kind; {
	case status == 401 || status == 403 || containsAny(code, "invalid_api_key", "authentication_error", "permission_error", "permission_denied"):
		return actor.ModelAuth
	case status == 404 || containsAny(code, "model_not_found", "not_found_error"):
		return actor.ModelNotFound
	}
	return actor.ModelRejected
}

func containsAny(text string, words ...string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) })
}

// ofModel converts the failure of a request that the provider of a model refused.
func (f *Failure) ofModel(status int, e upstreamError) *Failure {
	if f.Class == Refused && (f.Refusal.Reason == actor.Rejected || status == 404) {
		f.Refusal.Reason = modelReason(status, e)
	}
	if f.Refusal.Reason == actor.ModelRejected && (status == 200 || status == 400 || status == 413 || status == 422) && e.saysTooLong() {
		f.Refusal.Field = actor.ContentField
	}
	f.markTooLong(e)
	return f
}

// statusClass returns the class and the reason of a status.
func statusClass(status int) (Class, actor.Reason) {
	if i := slices.IndexFunc(statusRules, func(m statusRule) bool { return m.status == status }); i >= 0 {
		return statusRules[i].class, statusRules[i].reason
	}
	if status >= 500 || status < 300 {
		return Broken, actor.Unavailable
	}
	return Refused, actor.Rejected
}

// StatusFailure returns the failure for a response with a status other than 200.
// Body is the part of the body received. Now is the time at which the head
// arrived. The reasons of a model differ from those of an agent.
func StatusFailure(name string, model bool, status int, headers []Header, body []byte, secrets Secrets, now actor.Time) *Failure {
	f := &Failure{}
	var reason actor.Reason
	f.Class, reason = statusClass(status)
	reported := parseError(body)
	if class := reported.retryClass(); class != 0 && status >= 400 {
		f.Class = class
	}
	if f.Class == Refused && reported.hasTooLongCode() { // some servers send it with status 500
		reason = actor.Rejected
	}
	// Official client libraries obey this header, so upstreams rely on it.
	switch lookup(headers, "x-should-retry") {
	case "false":
		f.Class = Refused
	case "true":
		if f.Class == Refused {
			f.Class = Throttled
		}
	}
	if f.Class != Refused {
		f.After = RetryAfter(headers, now)
	} else if reason == actor.Busy {
		reason = actor.Rejected // Busy would invite a retry
	}
	f.Refusal = actor.Refuse(reason, "%s answers %d%s", name, status, reported.describe(secrets))
	if reason == actor.Busy {
		f.Refusal.Scope = actor.ScopeCallee
	}
	f.Refusal.RetryAfter = f.After
	f.reported, f.Object = reported, errorObject(body, secrets)
	f.Code = secrets.quote(cmp.Or(reported.code, reported.kind), NameBytesMax)
	if model {
		return f.ofModel(status, reported)
	}
	f.markTooLong(reported)
	return f
}

// lookup returns the trimmed value of the first field with that name.
func lookup(headers []Header, name string) string {
	for _, h := range headers {
		if strings.EqualFold(h.Name, name) {
			return strings.TrimSpace(h.Value)
		}
	}
	return ""
}

// RetryAfter returns the delay requested by an upstream, at most RetryAfterMax.
// The header holds milliseconds, seconds or a date. A date is relative to the Date
// header of the response if present, else to now.
func RetryAfter(headers []Header, now actor.Time) actor.Duration {
	if ms, ok := parseDigits(lookup(headers, "retry-after-ms")); ok {
		return actor.Duration(min(ms, int64(RetryAfterMax/time.Millisecond))) * time.Millisecond
	}
	value := lookup(headers, "retry-after")
	if s, ok := parseDigits(value); ok {
		return actor.Duration(min(s, int64(RetryAfterMax/time.Second))) * time.Second
	}
	until, ok := ParseHTTPDate(value)
	if !ok {
		return 0
	}
	if at, ok := ParseHTTPDate(lookup(headers, "date")); ok {
		now = at
	}
	if until <= now {
		return 0
	}
	return min(until.Sub(now), RetryAfterMax)
}

// ParseHTTPDate parses a date in one of the three formats of HTTP.
func ParseHTTPDate(text string) (actor.Time, bool) {
	var day, month, year, clock string
	switch f := strings.Fields(text); {
	case len(f) == 6 && f[5] == "GMT": // Sun, 06 Nov 1994 08:49:37 GMT
		day, month, year, clock = f[1], f[2], f[3], f[4]
	case len(f) == 5: // Sun Nov  6 08:49:37 1994
		day, month, year, clock = f[2], f[1], f[4], f[3]
	case len(f) == 4 && f[3] == "GMT": // Sunday, 06-Nov-94 08:49:37 GMT
		date := strings.Split(f[1], "-")
		if len(date) != 3 {
			return 0, false
		}
		day, month, year, clock = date[0], date[1], "20"+date[2], f[2]
		if date[2] >= "70" {
			year = "19" + date[2]
		}
	default:
		return 0, false
	}
	at := strings.Index("JanFebMarAprMayJunJulAugSepOctNovDec", month)
	if len(month) != 3 || at%3 != 0 {
		return 0, false
	}
	if len(day) == 1 {
		day = "0" + day
	}
	t, err := runs.ParseTime(fmt.Sprintf("%s-%02d-%sT%s.000000000Z", year, at/3+1, day, clock))
	return t, err == nil
}

// upstreamError is an error as reported by an upstream.
type upstreamError struct{ message, kind, code, param string }

// parseError extracts the error from a response body or an event. It returns a zero value if
// there is none. A body that is not JSON is the message, unless it is a page of HTML.
func parseError(body []byte) upstreamError {
	body = onlyError(body)
	var w struct {
		Error   jsontext.Value `json:"error"`
		Code    jsontext.Value `json:"code"`
		Message jsontext.Value `json:"message"`
		Detail  jsontext.Value `json:"detail"`
		Param   jsontext.Value `json:"param"`
	}
	if unmarshal(body, &w, lenient) != nil {
		return upstreamError{message: textOnly(body)}
	}
	if len(w.Error) > 0 && w.Error.Kind() != 'n' {
		return parseErrorMember(w.Error)
	}
	return upstreamError{message: cmp.Or(errorText(w.Message, errorDepthMax), errorText(w.Detail, errorDepthMax)), code: scalarText(w.Code), param: scalarText(w.Param)}
}

// onlyError returns the error in a list of one, which some servers send, and other bodies unchanged.
func onlyError(body []byte) []byte {
	if text := bytes.TrimSpace(body); len(text) > 0 && text[0] == '[' {
		var all []jsontext.Value
		if unmarshal(text, &all, lenient) == nil && len(all) == 1 && all[0].Kind() == '{' {
			return all[0]
		}
	}
	return body
}

// errorObjectMax is the maximum size in bytes of an error that is passed on.
const errorObjectMax = 16 << 10

// errorObject returns an object with a member error to be passed on as it is, but for secrets. It returns
// nil for anything else.
func errorObject(body []byte, secrets Secrets) []byte {
	body = bytes.TrimSpace(onlyError(body))
	if len(body) == 0 || len(body) > errorObjectMax || body[0] != '{' {
		return nil
	}
	object := []byte(secrets.redact(string(body)))
	var at members
	if at.read(object) != nil {
		return nil
	}
	if kind := at.value(object, "error").Kind(); kind != '{' && kind != '"' {
		return nil
	}
	return object
}

// textOnly returns a text that is neither JSON nor a page of HTML, on one line. It returns "" for
// anything else, such as JSON that was cut.
func textOnly(body []byte) string {
	text := strings.TrimSpace(strings.TrimPrefix(string(body), "\uFEFF"))
	binary := func(r rune) bool { return r < ' ' && !strings.ContainsRune("\t\r\n", r) }
	if text == "" || strings.Contains("<{[\"", text[:1]) || strings.ContainsFunc(text, binary) {
		return ""
	}
	return validText(strings.Join(strings.Fields(text), " "))
}

// errorText returns the message in a value: a text, an object that has one, after the place in the
// request that it names, or a list of such, at most depth levels deep.
func errorText(value jsontext.Value, depth int) string {
	if len(value) == 0 || depth == 0 {
		return ""
	}
	switch value.Kind() {
	case '[':
		var all []jsontext.Value
		if unmarshal(value, &all, lenient) != nil {
			return ""
		}
		var texts []string
		for _, v := range all[:min(len(all), errorTextsMax)] {
			if text := errorText(v, depth-1); text != "" {
				texts = append(texts, text)
			}
		}
		return strings.Join(texts, "; ")
	case '{':
		var w struct {
			Place   []jsontext.Value `json:"loc"`
			Message jsontext.Value   `json:"message"`
			Short   jsontext.Value   `json:"msg"`
			Detail  jsontext.Value   `json:"detail"`
			Error   jsontext.Value   `json:"error"`
		}
		if unmarshal(value, &w, lenient) != nil {
			return ""
		}
		var text string
		for _, v := range []jsontext.Value{w.Message, w.Short, w.Detail, w.Error} {
			text = cmp.Or(text, errorText(v, depth-1))
		}
		var place []string
		for _, v := range w.Place[:min(len(w.Place), errorTextsMax)] {
			place = append(place, scalarText(v))
		}
		if text != "" && len(place) > 0 {
			return strings.Join(place, ".") + ": " + text
		}
		return text
	}
	return scalarText(value)
}

const (
	errorTextsMax = 8 // maximum number of texts of one list that an error quotes
	errorDepthMax = 5 // maximum depth of such lists and objects
)

// parseErrorMember decodes the JSON member error: a text, an object or a list of such.
func parseErrorMember(value jsontext.Value) upstreamError {
	if value.Kind() != '{' {
		return upstreamError{message: errorText(value, errorDepthMax)}
	}
	var w struct {
		Message jsontext.Value `json:"message"`
		Type    jsontext.Value `json:"type"`
		Code    jsontext.Value `json:"code"`
		Param   jsontext.Value `json:"param"`
	}
	if unmarshal(value, &w, lenient) != nil {
		return upstreamError{}
	}
	return upstreamError{errorText(w.Message, errorDepthMax), scalarText(w.Type), scalarText(w.Code), scalarText(w.Param)}
}

// scalarText returns a JSON string or number as text, and "" for other values.
func scalarText(v jsontext.Value) string {
	if len(v) == 0 {
		return ""
	}
	switch v.Kind() {
	case '"':
		var text string
		if setText(&text, v) != nil {
			return ""
		}
		return validText(text)
	case '0':
		return string(v)
	}
	return ""
}

// retryClass returns the class that the error code implies, or 0 for an unknown
// code.
func (e upstreamError) retryClass() Class {
	for _, code := range []string{e.code, e.kind} {
		if slices.Contains(tooLongCodes, code) {
			return Refused
		}
		switch code {
		case "insufficient_quota", "invalid_request_error", "invalid_api_key", "authentication_error", "permission_error", "model_not_found", "content_filter":
			return Refused
		case "rate_limit_exceeded", "rate_limit_error", "overloaded_error":
			return Throttled
		}
	}
	return 0
}

// describe returns the code and the message, to be appended to "answers 500". Both
// are truncated, without the secrets.
func (e upstreamError) describe(secrets Secrets) string {
	var b strings.Builder
	code := e.code
	if code == "" {
		code = e.kind
	}
	if code != "" {
		b.WriteString(" " + secrets.quote(code, NameBytesMax))
	}
	if e.message != "" {
		b.WriteString(": " + secrets.quote(e.message, quoteBytesMax))
	}
	return b.String()
}

// failure returns the failure for an error within the response of a model.
func (e upstreamError) failure(name string, secrets Secrets) *Failure {
	f := fail(Broken, actor.Unavailable, "%s sent an error%s", name, e.describe(secrets))
	status := 200
	if n, ok := parseDigits(e.code); ok && n >= 400 && n <= 599 {
		status = int(n)
		f.Class, _ = statusClass(status)
	}
	if class := e.retryClass(); class != 0 {
		f.Class = class
	}
	if f.Class == Broken && e.saysTooLong() {
		f.Class = Refused
	}
	if f.Class == Refused {
		f.Refusal.Reason = actor.Rejected
	}
	return f.ofModel(status, e)
}
