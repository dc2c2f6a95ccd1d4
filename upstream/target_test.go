// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/upstream"
)

func TestTargetRoundTrip(t *testing.T) {
	for _, c := range []struct {
		target upstream.Target
		want   string
	}{
		{upstream.Target{URL: "http://127.0.0.1:9000"}, `{"url":"http://127.0.0.1:9000"}`},
		{upstream.Target{URL: "https://h/a", AuthEnv: "TROUPE_AUTH_A_1", Concurrency: 1024}, `{"url":"https://h/a","auth_env":"TROUPE_AUTH_A_1","concurrency":1024}`},
		{upstream.Target{URL: "http://h", Retry: upstream.RetryPolicy{Tries: 3, Delay: time.Second, DelayMax: time.Minute, Time: time.Hour, Exact: true}},
			`{"url":"http://h","retry":{"attempts":3,"delay_ms":1000,"delay_max_ms":60000,"time_ms":3600000,"exact":true}}`},
	} {
		b := c.target.Encode()
		got, err := upstream.DecodeTarget(b)
		if string(b) != c.want || got != c.target || err != nil {
			t.Errorf("got %s, %+v, %v, want %s", b, got, err, c.want)
		}
	}
}

func TestDecodeInvalidTarget(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{``, "want JSON"},
		{`{}`, "url: want http or https"},
		{`{"url":"http://h","port":1}`, "unknown member"},
		{`{"url":"http://h","URL":"http://i"}`, "unknown member"},
		{`{"url":"http://h","url":"http://i"}`, "duplicate"},
		{`{"url":"http://h"} {}`, "byte"},
		{`{"url":"http://user@h"}`, "contains a user"},
		{`{"url":"http://h","auth_env":"OPENAI_API_KEY"}`, "TROUPE_AUTH_"},
		{`{"url":"http://h","auth_env":"TROUPE_AUTH_"}`, "TROUPE_AUTH_"},
		{`{"url":"http://h","auth_env":"TROUPE_AUTH_x"}`, "TROUPE_AUTH_"},
		{`{"url":"http://h","auth_env":"TROUPE_AUTH_` + strings.Repeat("X", 128) + `"}`, "TROUPE_AUTH_"},
		{`{"url":"http://h","concurrency":-1}`, "want 1 to 1024"},
		{`{"url":"http://h","concurrency":1025}`, "want 1 to 1024"},
		{`{"url":"http://h","retry":{"attempts":21}}`, "retry_attempts: got 21, want 1 (no retry) to 20"},
		{`{"url":"http://h","retry":{"delay_ms":-1}}`, "retry_delay_ms: got -1ms"},
		{`{"url":"http://h","retry":{"delay_ms":5,"delay_max_ms":4}}`, "retry_delay_max_ms: got 4ms, want at least retry_delay_ms, 5ms"},
		{`{"url":"http://h","retry":{"time_ms":9223372036854775807}}`, "maximum of 1h"},
		{`{"url":"http://h/` + strings.Repeat(" ", 4096) + `"}`, "maximum of 4096"},
	} {
		if _, err := upstream.DecodeTarget([]byte(c.line)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80s: got error %v, want %q", c.line, err, c.want)
		}
	}
}
