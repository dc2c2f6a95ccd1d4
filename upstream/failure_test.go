// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

func parseTime(t *testing.T, text string) actor.Time {
	instant, err := runs.ParseTime(text + ".000000000Z")
	if err != nil {
		t.Fatal(err)
	}
	return instant
}

func TestStatusFailure(t *testing.T) {
	header := func(name, value string) []upstream.Header { return []upstream.Header{{Name: name, Value: value}} }
	for _, c := range []struct {
		status  int
		headers []upstream.Header
		body    string
		class   upstream.Class
		reason  actor.Reason
		after   time.Duration
		detail  string
	}{
		{400, nil, `{"error":{"message":"bad","type":"invalid_request_error","param":null,"code":null}}`, upstream.Refused, actor.Rejected, 0, "m answers 400 invalid_request_error: bad"},
		{401, nil, `{"error":{"message":"Incorrect API key","code":"invalid_api_key"}}`, upstream.Refused, actor.Rejected, 0, "m answers 401 invalid_api_key: Incorrect API key"},
		{402, nil, ``, upstream.Refused, actor.Rejected, 0, "m answers 402"},
		{403, nil, `<html>`, upstream.Refused, actor.Rejected, 0, "m answers 403"},
		{404, nil, `{"detail":"no such model"}`, upstream.Refused, actor.Unavailable, 0, "m answers 404: no such model"},
		{408, nil, ``, upstream.Throttled, actor.Unavailable, 0, "m answers 408"},
		{409, nil, ``, upstream.Throttled, actor.Busy, 0, "m answers 409"},
		{418, nil, ``, upstream.Refused, actor.Rejected, 0, "m answers 418"},
		{422, nil, `{"message":"no"}`, upstream.Refused, actor.Rejected, 0, "m answers 422: no"},
		{429, header("Retry-After", "7"), `{"error":{"message":"slow down","code":"rate_limit_exceeded"}}`, upstream.Throttled, actor.Busy, 7 * time.Second, "m answers 429 rate_limit_exceeded: slow down"},
		{429, header("retry-after", "7"), `{"error":{"message":"no money","code":"insufficient_quota"}}`, upstream.Refused, actor.Rejected, 0, "m answers 429 insufficient_quota: no money"},
		{429, header("x-should-retry", "false"), ``, upstream.Refused, actor.Rejected, 0, "m answers 429"},
		{500, nil, `{"error":"boom"}`, upstream.Broken, actor.Unavailable, 0, "m answers 500: boom"},
		{500, header("X-Should-Retry", "false"), ``, upstream.Refused, actor.Unavailable, 0, "m answers 500"},
		{400, header("x-should-retry", "true"), ``, upstream.Throttled, actor.Rejected, 0, "m answers 400"},
		{501, nil, ``, upstream.Refused, actor.Unavailable, 0, "m answers 501"},
		{502, nil, ``, upstream.Broken, actor.Unavailable, 0, "m answers 502"},
		{503, header("Retry-After-Ms", "250"), ``, upstream.Throttled, actor.Unavailable, 250 * time.Millisecond, "m answers 503"},
		{529, nil, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, upstream.Throttled, actor.Unavailable, 0, "m answers 529 overloaded_error: Overloaded"},
		{204, nil, ``, upstream.Broken, actor.Unavailable, 0, "m answers 204"},
		{302, header("Location", "http://169.254.169.254/"), ``, upstream.Refused, actor.Rejected, 0, "m answers 302"},
		{0, nil, ``, upstream.Broken, actor.Unavailable, 0, "m answers 0"},
		{999, nil, `{"error":{"message":["a"],"code":{"b":1}}}`, upstream.Broken, actor.Unavailable, 0, "m answers 999: a"},
		{422, nil, `{"detail":[{"loc":["body","messages",0],"msg":"Field required","type":"missing"},{"msg":"too long"}]}`, upstream.Refused, actor.Rejected, 0, "m answers 422: body.messages.0: Field required; too long"},
		{400, nil, `{"error":{"message":{"detail":"no tools"},"code":20015}}`, upstream.Refused, actor.Rejected, 0, "m answers 400 20015: no tools"},
		{400, nil, `{"error":{"message":[{"message":"a"},"b",null,{}]}}`, upstream.Refused, actor.Rejected, 0, "m answers 400: a; b"},
		{400, nil, `[{"error":{"code":400,"message":"no such field","status":"INVALID_ARGUMENT"}}]`, upstream.Refused, actor.Rejected, 0, "m answers 400 400: no such field"},
		{400, nil, `{"error":["a","b"]}`, upstream.Refused, actor.Rejected, 0, "m answers 400: a; b"},
		{400, nil, `{"message":{"message":"\ud83d"},"code":7}`, upstream.Refused, actor.Rejected, 0, "m answers 400 7: \uFFFD"},
		{400, nil, `{"error":[[[{"message":"deep"}]]]}`, upstream.Refused, actor.Rejected, 0, "m answers 400: deep"},
		{400, nil, `{"error":` + strings.Repeat("[", 9999) + strings.Repeat("]", 9999) + `}`, upstream.Refused, actor.Rejected, 0, "m answers 400"},
		{400, nil, `{"error":[[[[[["too deep"]]]]]]}`, upstream.Refused, actor.Rejected, 0, "m answers 400"},
		{500, nil, " Internal\r\nServer Error\xff\n", upstream.Broken, actor.Unavailable, 0, "m answers 500: Internal Server Error\uFFFD"},
		{500, nil, "\uFEFF <!doctype html>", upstream.Broken, actor.Unavailable, 0, "m answers 500"},
		{500, nil, `{"error":{"message":"cut`, upstream.Broken, actor.Unavailable, 0, "m answers 500"},
		{500, nil, "PNG\x00", upstream.Broken, actor.Unavailable, 0, "m answers 500"},
	} {
		f := upstream.StatusFailure("m", false, c.status, c.headers, []byte(c.body), nil, 0)
		r := f.Refusal
		if f.Class != c.class || r.Reason != c.reason || f.After != c.after || r.RetryAfter != c.after || r.Detail != c.detail {
			t.Errorf("%d %v %s: got %s, %s, after %v: %q", c.status, c.headers, c.body, f.Class, r.Reason, f.After, r.Detail)
		}
		if (r.Scope == actor.ScopeCallee) != (r.Reason == actor.Busy) {
			t.Errorf("%d: %s has scope %q", c.status, r.Reason, r.Scope)
		}
	}
	for _, c := range []struct {
		status int
		body   string
		class  upstream.Class
		reason actor.Reason
	}{
		{401, ``, upstream.Refused, actor.ModelAuth},
		{403, `<html>`, upstream.Refused, actor.ModelAuth},
		{400, `{"error":{"code":"invalid_api_key"}}`, upstream.Refused, actor.ModelAuth},
		{400, `{"error":{"type":"authentication_error"}}`, upstream.Refused, actor.ModelAuth},
		{400, `{"error":{"type":"permission_error"}}`, upstream.Refused, actor.ModelAuth},
		{404, ``, upstream.Refused, actor.ModelNotFound},
		{400, `{"error":{"code":"model_not_found"}}`, upstream.Refused, actor.ModelNotFound},
		{400, `{"error":{"type":"not_found_error"}}`, upstream.Refused, actor.ModelNotFound},
		{422, ``, upstream.Refused, actor.ModelRejected},
		{429, `{"error":{"code":"insufficient_quota"}}`, upstream.Refused, actor.ModelRejected},
		{429, ``, upstream.Throttled, actor.Busy},
		{501, ``, upstream.Refused, actor.Unavailable},
		{500, `{"error":{"code":"model_not_found"}}`, upstream.Refused, actor.Unavailable},
		{503, ``, upstream.Throttled, actor.Unavailable},
	} {
		if f := upstream.StatusFailure("m", true, c.status, nil, []byte(c.body), nil, 0); f.Class != c.class || f.Refusal.Reason != c.reason {
			t.Errorf("model, %d %s: got %s %s, want %s %s", c.status, c.body, f.Class, f.Refusal.Reason, c.class, c.reason)
		}
	}
	long := upstream.StatusFailure("m", false, 500, nil, []byte(`{"error":"`+strings.Repeat("ä", 4000)+`"}`), nil, 0)
	if n := len(long.Refusal.Detail); n > 600 {
		t.Errorf("refusal of %d bytes, want at most 600", n)
	}
}

func TestRetryAfterIsBounded(t *testing.T) {
	now := parseTime(t, "2026-11-21T08:00:00")
	for _, c := range []struct {
		headers string
		want    time.Duration
	}{
		{"", 0},
		{"retry-after: 0", 0},
		{"retry-after: 120", 2 * time.Minute},
		{"retry-after:  5 ", 5 * time.Second},
		{"retry-after: 3601", time.Hour},
		{"retry-after: 99999999999999999999", time.Hour},
		{"retry-after: -1", 0},
		{"retry-after: 1.5", 0},
		{"retry-after: soon", 0},
		{"retry-after-ms: 1500; retry-after: 9", 1500 * time.Millisecond},
		{"retry-after-ms: x; retry-after: 9", 9 * time.Second},
		{"retry-after: Sat, 21 Nov 2026 08:00:30 GMT", 30 * time.Second},
		{"retry-after: Sat, 21 Nov 2026 07:59:59 GMT", 0},
		{"retry-after: Sat, 21 Nov 2099 08:00:00 GMT", time.Hour},
		{"retry-after: Sat, 21 Nov 2026 08:00:30 GMT; date: Sat, 21 Nov 2026 08:00:20 GMT", 10 * time.Second},
		{"retry-after: Saturday, 21-Nov-26 08:01:00 GMT", time.Minute},
		{"retry-after: Sat Nov 21 08:01:00 2026", time.Minute},
	} {
		var headers []upstream.Header
		for field := range strings.SplitSeq(c.headers, "; ") {
			name, value, _ := strings.Cut(field, ":")
			headers = append(headers, upstream.Header{Name: name, Value: value})
		}
		if got := upstream.RetryAfter(headers, now); got != c.want {
			t.Errorf("%s: got %v, want %v", c.headers, got, c.want)
		}
	}
}

func TestParseHTTPDate(t *testing.T) {
	want := parseTime(t, "1994-11-06T08:49:37")
	for _, text := range []string{"Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"} {
		if got, ok := upstream.ParseHTTPDate(text); !ok || got != want {
			t.Errorf("%s: got %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{
		"", "Sun", "Sun, 31 Feb 2026 08:49:37 GMT", "Sun, 06 Nov 1994 24:00:00 GMT", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 6 November 1994 08:49:37 GMT",
		"Sun, 06 anF 1994 08:49:37 GMT", "Sun, 06 Nov 94 08:49:37 GMT", "Sunday, 06-Nov 08:49:37 GMT", "a b c d e", "a b c GMT", "a - - GMT",
	} {
		if got, ok := upstream.ParseHTTPDate(text); ok {
			t.Errorf("%q parses as %s", text, runs.FormatTime(got))
		}
	}
}

func FuzzStatusFailure(f *testing.F) {
	f.Add(429, "retry-after", "Sat, 21 Nov 2026 08:00:30 GMT", `{"error":{"message":"x","code":7}}`)
	f.Fuzz(func(t *testing.T, status int, name, value, body string) {
		got := upstream.StatusFailure("m", false, status, []upstream.Header{{Name: name, Value: value}}, []byte(body), nil, 0)
		if got.Class == 0 || got.After < 0 || got.After > upstream.RetryAfterMax || got.Refusal.Detail == "" || len(got.Refusal.Detail) > 1000 {
			t.Errorf("invalid failure %+v", got)
		}
	})
}
