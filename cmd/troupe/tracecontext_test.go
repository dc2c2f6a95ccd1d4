// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A model and an external agent receive the trace context of the request as W3C
// Trace Context defines it. An invalid traceparent discards the tracestate too.
func TestTraceContextIsForwarded(t *testing.T) {
	got := make(chan http.Header, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.NotFound(w, r)
			return
		}
		got <- r.Header
		w.Header().Set("Content-Type", "text/event-stream")
		if strings.HasSuffix(r.URL.Path, "/invoke") {
			_, _ = fmt.Fprint(w, "event: delta\ndata: {\"text\":\"hello\"}\n\nevent: done\ndata: {}\n\n")
			return
		}
		_, _ = fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[models.big]\nurl = %q\n", upstream.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--config", config)
	var out struct {
		Detail string `json:"detail"`
	}
	for path, body := range map[string]string{"/v1/agents": `{"name":"declared","prompt":"answer","model":"big"}`,
		"/v1/agents/register": fmt.Sprintf(`{"agent_id":"external","endpoint":%q}`, upstream.URL)} {
		if status, err := s.request("POST", path, body, "", &out); status != http.StatusCreated {
			t.Fatalf("%d %+v %v", status, out, err)
		}
	}
	const ids = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
	const parent = "00-" + ids + "-01"
	long, members := strings.Repeat("v", 200), strings.Split(strings.Repeat("x", 33), "")
	for i := range members {
		members[i] = fmt.Sprintf("k%d=v", i)
	}
	for name, c := range map[string]struct {
		parent     []string
		state      []string
		wantParent string // "" means none of the request
		wantState  string
	}{
		"version 00":                   {[]string{parent}, nil, parent, ""},
		"unknown flags of version 00":  {[]string{"00-" + ids + "-ff"}, nil, "00-" + ids + "-ff", ""},
		"version 00 with a suffix":     {[]string{parent + "-x"}, []string{"a=1"}, "", ""},
		"later version":                {[]string{"cc-" + ids + "-01"}, []string{"a=1"}, parent, "a=1"},
		"later version, more fields":   {[]string{"01-" + ids + "-03-what-the-future-brings"}, nil, parent, ""},
		"later version, not sampled":   {[]string{"fe-" + ids + "-f0"}, nil, "00-" + ids + "-00", ""},
		"later version, bad separator": {[]string{"01-" + ids + "-01.x"}, nil, "", ""},
		"version ff":                   {[]string{"ff-" + ids + "-01"}, []string{"a=1"}, "", ""},
		"zero trace":                   {[]string{"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01"}, nil, "", ""},
		"zero parent":                  {[]string{"00-4bf92f3577b34da6a3ce929d0e0e4736-" + strings.Repeat("0", 16) + "-01"}, nil, "", ""},
		"upper case":                   {[]string{strings.ToUpper(parent)}, nil, "", ""},
		"two parents":                  {[]string{parent, parent}, []string{"a=1"}, "", ""},
		"state without parent":         {nil, []string{"a=1"}, "", ""},
		"several states":               {[]string{parent}, []string{"a=1, b=x y ,", "1t@sys=v"}, parent, "a=1,b=x y,1t@sys=v"},
		"duplicate key":                {[]string{parent}, []string{"a=1,a=2"}, parent, ""},
		"malformed key":                {[]string{parent}, []string{"A=1"}, parent, ""},
		"malformed value":              {[]string{parent}, []string{"a=1=2"}, parent, ""},
		"no value":                     {[]string{parent}, []string{"a"}, parent, ""},
		"32 members":                   {[]string{parent}, []string{strings.Join(members[:32], ",")}, parent, strings.Join(members[:32], ",")},
		"33 members":                   {[]string{parent}, []string{strings.Join(members, ",")}, parent, ""},
		"long members go first":        {[]string{parent}, []string{"a=" + long + ",b=" + long + ",c=" + long + ",d=1"}, parent, "a=" + long + ",b=" + long + ",d=1"},
		"then the last members":        {[]string{parent}, []string{strings.Repeat("a", 100) + "=" + long + ",b=" + long[:100] + ",c=" + long[:100] + ",d=" + long[:100] + ",e=" + long[:100] + ",f=" + long[:100]}, parent, "b=" + long[:100] + ",c=" + long[:100] + ",d=" + long[:100] + ",e=" + long[:100]},
		"512 characters":               {[]string{parent}, []string{"a=" + strings.Repeat("v", 254) + ",b=" + strings.Repeat("v", 253)}, parent, "a=" + strings.Repeat("v", 254) + ",b=" + strings.Repeat("v", 253)},
	} {
		for _, agent := range []string{"declared", "external"} {
			t.Run(name+", "+agent, func(t *testing.T) {
				r, err := http.NewRequest("POST", s.url+"/v1/agents/"+agent+"/messages", strings.NewReader(`{"content":"hello"}`))
				if err != nil {
					t.Fatal(err)
				}
				r.Header = http.Header{"Content-Type": {"application/json"}, "Traceparent": c.parent, "Tracestate": c.state}
				response, err := s.client.Do(r)
				if err != nil || response.StatusCode != http.StatusOK {
					t.Fatalf("%v %v", response, err)
				}
				_ = response.Body.Close()
				h := <-got
				forwarded := h.Get("traceparent")
				if c.wantParent == "" && strings.Contains(forwarded, "4bf92f") || c.wantParent != "" && forwarded != c.wantParent || h.Get("tracestate") != c.wantState {
					t.Errorf("got traceparent %q and tracestate %q, want %q and %q", forwarded, h.Get("tracestate"), c.wantParent, c.wantState)
				}
			})
		}
	}
}

// A name that looks like another one is refused where agents and keys are created.
func TestInvisibleCharactersInNamesAreRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir)
	s.useAdminKey(dir)
	for _, c := range []rune{'\u202e', '\u2066', '\u200b', '\u200d', '\u2060', '\ufeff', '\u00ad', '\u061c', '\u3164', '\ufe0f', '\u2028', '\U000e0041', '\u034f'} {
		for path, body := range map[string]string{
			"/v1/agents":            `{"agent_id":"a","name":"he%clper"}`,
			"/v1/agents/register":   `{"agent_id":"a","name":"he%clper","endpoint":"http://127.0.0.1:1"}`,
			"/v1/keys":              `{"name":"he%clper","scopes":["read"]}`,
			"/v1/agents/a/messages": `{"content":"x","session":"he%clper"}`,
		} {
			var out struct {
				Field  string `json:"field"`
				Detail string `json:"detail"`
			}
			status, err := s.request("POST", path, fmt.Sprintf(body, c), "", &out)
			if status != http.StatusBadRequest || out.Field != "name" && !strings.HasPrefix(out.Field, "session") || out.Field == "name" && strings.ContainsRune(out.Detail, c) {
				t.Errorf("%s with %U: %d %+v %v", path, c, status, out, err)
			}
		}
	}
	var out struct{}
	if status, err := s.request("POST", "/v1/agents", `{"agent_id":"a","name":"Hélène 助手"}`, "", &out); status != http.StatusCreated {
		t.Errorf("%d %v", status, err)
	}
}
