// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// Class is what a failure means for trying again.
type Class uint8

// The classes.
const (
	Refused   Class = iota + 1 // it is well and said no: asking again is no use
	Throttled                  // it did not take the request: later
	Unreached                  // the request never left
	Broken                     // no usable answer, and it may have acted on the request
)

var classNames = [...]string{Refused: "refused", Throttled: "throttled", Unreached: "unreached", Broken: "broken"}

// String is the class' name.
func (c Class) String() string {
	if c == 0 || int(c) >= len(classNames) {
		return fmt.Sprintf("unknown(%d)", c)
	}
	return classNames[c]
}

// Failure is why an attempt came to nothing.
type Failure struct {
	Class   Class
	Refusal *actor.Refusal
	After   actor.Duration // how long the upstream wants to be left alone; 0 if it did not say
}

func fail(class Class, reason actor.Reason, format string, args ...any) *Failure {
	return &Failure{Class: class, Refusal: actor.Refuse(reason, format, args...)}
}

// RetryAfterMax bounds what an upstream may ask for.
const RetryAfterMax = time.Hour

// statusRule is what a status says of the request.
type statusRule struct {
	status int
	class  Class
	reason actor.Reason
}

// statusRules are those of single statuses; others go by their hundred.
var statusRules = []statusRule{
	{404, Refused, actor.Unavailable}, // NotFound is what this node does not know
	{408, Throttled, actor.Unavailable},
	{409, Throttled, actor.Busy},
	{425, Throttled, actor.Unavailable},
	{429, Throttled, actor.Busy},
	{501, Refused, actor.Unavailable},
	{503, Throttled, actor.Unavailable},
	{505, Refused, actor.Unavailable},
	{529, Throttled, actor.Unavailable}, // overloaded, in the words of some
}

// StatusFailure is what an answer other than 200 means. Body is what came of
// its body, now the instant at which its head came.
func StatusFailure(who string, status int, headers []Header, body []byte, now actor.Time) *Failure {
	f := &Failure{Class: Refused}
	reason := actor.Rejected
	if i := slices.IndexFunc(statusRules, func(m statusRule) bool { return m.status == status }); i >= 0 {
		f.Class, reason = statusRules[i].class, statusRules[i].reason
	} else if status >= 500 || status < 300 {
		f.Class, reason = Broken, actor.Unavailable
	}
	said := parseError(body)
	if class := said.retryClass(); class != 0 && status >= 400 {
		f.Class = class
	}
	// The official clients obey this header, so upstreams rely on it.
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
		reason = actor.Rejected // coming back is no use
	}
	f.Refusal = actor.Refuse(reason, "%s answers %d%s", who, status, said.describe())
	if reason == actor.Busy {
		f.Refusal.Scope = actor.ScopeCallee
	}
	f.Refusal.RetryAfter = f.After
	return f
}

// lookup is the value of the first field of that name, without blanks around it.
func lookup(headers []Header, name string) string {
	for _, h := range headers {
		if strings.EqualFold(h.Name, name) {
			return strings.TrimSpace(h.Value)
		}
	}
	return ""
}

// RetryAfter is how long an upstream wants to be left alone, at most
// RetryAfterMax: in milliseconds, in seconds, or until a date, which is counted
// from its own clock if it tells that.
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

// ParseHTTPDate reads a date in the three forms that HTTP knows.
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

// upstreamError is an error in an upstream's own words.
type upstreamError struct{ message, kind, code string }

// parseError finds the error in a body, as far as there is one.
func parseError(body []byte) upstreamError {
	var w struct {
		Error   jsontext.Value `json:"error"`
		Code    jsontext.Value `json:"code"`
		Message string         `json:"message"`
		Detail  jsontext.Value `json:"detail"`
	}
	if unmarshal(body, &w) != nil {
		return upstreamError{}
	}
	if len(w.Error) > 0 && w.Error.Kind() != 'n' {
		return parseErrorMember(w.Error)
	}
	e := upstreamError{message: w.Message, code: scalarText(w.Code)}
	if e.message == "" {
		e.message = scalarText(w.Detail)
	}
	return e
}

// parseErrorMember reads the member error: an object, or just a text.
func parseErrorMember(value jsontext.Value) upstreamError {
	if text := scalarText(value); text != "" {
		return upstreamError{message: text}
	}
	var w struct {
		Message jsontext.Value `json:"message"`
		Type    jsontext.Value `json:"type"`
		Code    jsontext.Value `json:"code"`
	}
	if unmarshal(value, &w) != nil {
		return upstreamError{}
	}
	return upstreamError{scalarText(w.Message), scalarText(w.Type), scalarText(w.Code)}
}

// scalarText is a text or a number as text.
func scalarText(v jsontext.Value) string {
	if len(v) == 0 {
		return ""
	}
	switch v.Kind() {
	case '"':
		b, err := jsontext.AppendUnquote(nil, v)
		if err != nil {
			return ""
		}
		return string(b)
	case '0':
		return string(v)
	}
	return ""
}

// retryClass is what the error's own code says of trying again; 0 if nothing.
func (e upstreamError) retryClass() Class {
	for _, code := range []string{e.code, e.kind} {
		switch code {
		case "insufficient_quota", "invalid_request_error", "invalid_api_key", "context_length_exceeded", "content_filter":
			return Refused
		case "rate_limit_exceeded", "rate_limit_error", "overloaded_error":
			return Throttled
		}
	}
	return 0
}

// describe is what goes behind "answers 500".
func (e upstreamError) describe() string {
	var b strings.Builder
	code := e.code
	if code == "" {
		code = e.kind
	}
	if code != "" {
		b.WriteString(" " + actor.FitText(code, NameBytesMax))
	}
	if e.message != "" {
		b.WriteString(": " + actor.FitText(e.message, quoteBytesMax))
	}
	return b.String()
}

// failure is an error that came in the middle of an answer.
func (e upstreamError) failure(who string) *Failure {
	f := fail(Broken, actor.Unavailable, "%s broke off with an error%s", who, e.describe())
	if class := e.retryClass(); class != 0 {
		f.Class = class
	}
	if f.Class == Refused {
		f.Refusal.Reason = actor.Rejected
	}
	return f
}
