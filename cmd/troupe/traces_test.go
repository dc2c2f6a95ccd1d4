// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
)

// otlpSpan is a span as a collector reads it, by the JSON encoding of OTLP.
type otlpSpan struct {
	Trace      string `json:"traceId"`
	ID         string `json:"spanId"`
	Parent     string `json:"parentSpanId"`
	Name       string `json:"name"`
	Kind       int    `json:"kind"`
	From       string `json:"startTimeUnixNano"`
	To         string `json:"endTimeUnixNano"`
	Attributes []struct {
		Key   string `json:"key"`
		Value struct {
			Text  string `json:"stringValue"`
			Count string `json:"intValue"`
		} `json:"value"`
	} `json:"attributes"`
	Links []struct {
		Trace string `json:"traceId"`
		ID    string `json:"spanId"`
	} `json:"links"`
	Status struct {
		Code int `json:"code"`
	} `json:"status"`
}

func (s *otlpSpan) attribute(name string) string {
	for _, a := range s.Attributes {
		if a.Key == name {
			return a.Value.Text + a.Value.Count
		}
	}
	return ""
}

// otlpCollector stands in for a collector. It refuses what the specification does not allow.
type otlpCollector struct {
	*httptest.Server
	mu       sync.Mutex
	spans    []otlpSpan
	text     string
	problems []string
	token    string
}

func newCollector(t *testing.T) *otlpCollector {
	c := &otlpCollector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		defer c.mu.Unlock()
		var in struct {
			Resources []struct {
				Resource struct {
					Attributes []struct {
						Key string `json:"key"`
					} `json:"attributes"`
				} `json:"resource"`
				Scopes []struct {
					Scope struct {
						Name string `json:"name"`
					} `json:"scope"`
					Spans []otlpSpan `json:"spans"`
				} `json:"scopeSpans"`
			} `json:"resourceSpans"`
		}
		if err := json.Unmarshal(b, &in, json.RejectUnknownMembers(false)); err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" || len(in.Resources) != 1 || in.Resources[0].Resource.Attributes[0].Key != "service.name" {
			c.problems = append(c.problems, fmt.Sprintf("%v %s %v", err, r.URL, r.Header))
		}
		c.text, c.token = c.text+string(b), r.Header.Get("Authorization")
		for _, resource := range in.Resources {
			for _, scope := range resource.Scopes {
				for _, s := range scope.Spans {
					c.check(&s)
					c.spans = append(c.spans, s)
				}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *otlpCollector) check(s *otlpSpan) {
	from, err1 := strconv.ParseUint(s.From, 10, 64)
	to, err2 := strconv.ParseUint(s.To, 10, 64)
	trace, err3 := hex.DecodeString(s.Trace)
	id, err4 := hex.DecodeString(s.ID)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || from == 0 || from > to || len(trace) != 16 || len(id) != 8 || s.Name == "" || s.Kind == 0 ||
		s.attribute("gen_ai.operation.name") == "" || s.attribute("gen_ai.agent.name") == "" || s.attribute("gen_ai.conversation.id") == "" {
		c.problems = append(c.problems, fmt.Sprintf("%+v", s))
	}
}

// named returns the spans with a name, each once.
func (c *otlpCollector) named(name string) (all []otlpSpan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[string]bool{}
	for _, s := range c.spans {
		if s.Name == name && !seen[s.ID] {
			seen[s.ID] = true
			all = append(all, s)
		}
	}
	return all
}

// A tree of runs over agents, a tool and a person's decision is one trace, that of the client, over kill -9 and a
// collector that was away. Requests to tools, external agents and models continue it. No span has content.
func TestTracesOfTree(t *testing.T) {
	const client = "4bf92f3577b34da6a3ce929d0e0e4736"
	t.Setenv("TROUPE_TEST_OTEL", "Bearer collector-secret-123")
	collector := newCollector(t)
	var mu sync.Mutex
	parents := map[string][]string{} // traceparent by path
	services := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		if r.Method == http.MethodPost {
			parents[r.URL.Path] = append(parents[r.URL.Path], r.Header.Get("traceparent"))
		}
		mu.Unlock()
		switch r.URL.Path {
		case "/pay":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"paid":true}`)
		case "/v1/chat/completions":
			call := func(name, arguments string) {
				quoted, _ := json.Marshal(arguments)
				writeEvents(w, `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c-`+name+`","type":"function","function":{"name":"`+name+`","arguments":`+string(quoted)+`}}]}}]}`, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14}}`, "data: [DONE]")
			}
			switch strings.Count(string(body), `"role":"tool"`) {
			case 0:
				call("call_agent", `{"agent_id":"outside","message":"SENTINEL"}`)
			case 1:
				call("pay", `{"amount":3}`)
			default:
				writeEvents(w, `data: {"choices":[{"index":0,"delta":{"content":"It is paid."}}]}`, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, "data: [DONE]")
			}
		default: // the external agent
			if r.Method == http.MethodPost {
				writeEvents(w, "event: done\ndata: {\"text\":\"SENTINEL ok\"}")
			}
		}
	}))
	defer services.Close()
	dir := t.TempDir()
	data, config := filepath.Join(dir, "data"), filepath.Join(dir, "troupe.toml")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("troupe.toml", fmt.Sprintf("[otel]\nendpoint = %q\nheader_env = {authorization = \"TROUPE_TEST_OTEL\"}\n[models.big]\nurl = \"%s/v1\"\n", collector.URL, services.URL))
	write("agents/front.toml", "name = \"front\"\nmodel = \"big\"\nprompt = \"SENTINEL\"\ntools = [\"call_agent\", \"pay\"]\n")
	write("agents/pay.toml", "[tool]\ntool_name = \"pay\"\nurl = \""+services.URL+"/pay\"\npolicy = \"require_approval\"\napproval_timeout_ms = 600000\n[tool.input_schema]\ntype = \"object\"\n")
	s := startServer(t, data, "--config", config, "--agents", filepath.Join(dir, "agents"))
	s.registerAgent(`{"agent_id":"outside","endpoint":"` + services.URL + `"}`)
	r, _ := http.NewRequest("POST", s.url+"/v1/agents/front/messages", strings.NewReader(`{"content":"SENTINEL","session_id":"s1"}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("traceparent", "00-"+client+"-00f067aa0ba902b7-01")
	go func() {
		if response, err := s.client.Do(r); err == nil {
			_ = response.Body.Close()
		}
	}()
	waitUntil(t, "the first part of the run is sent", func() bool { return len(collector.named("invoke_agent front")) == 1 })
	first := collector.named("invoke_agent front")[0]
	s.stop(syscall.SIGKILL)
	collector.mu.Lock()
	token := collector.token
	collector.mu.Unlock()
	s = startServer(t, data, "--config", config, "--agents", filepath.Join(dir, "agents"))
	var page struct {
		Approvals []struct {
			ID string `json:"approval_id"`
		} `json:"approvals"`
	}
	waitUntil(t, "the approval waits", func() bool {
		_, err := s.request("GET", "/v1/approvals", "", "", &page)
		return err == nil && len(page.Approvals) == 1
	})
	if code, err := s.request("POST", "/v1/approvals/"+page.Approvals[0].ID+":decide", `{"decision":"approve"}`, "", &struct{}{}); code != 200 || err != nil {
		t.Fatal(code, err)
	}
	waitUntil(t, "the rest of the run is sent", func() bool { return len(collector.named("invoke_agent front")) == 2 })
	second := collector.named("invoke_agent front")[1]
	outside, tools, chats := collector.named("invoke_agent outside"), collector.named("execute_tool pay"), collector.named("chat big")
	if len(outside) != 1 || len(tools) != 1 || len(chats) != 3 {
		t.Fatalf("got %d, %d and %d spans", len(outside), len(tools), len(chats))
	}
	if first.Parent != "00f067aa0ba902b7" || second.Parent != first.Parent || len(second.Links) != 1 || second.Links[0].ID != first.ID || first.attribute("troupe.run.interrupted") != "approval" || outside[0].Parent != first.ID {
		t.Errorf("got %+v\n%+v\n%+v", first, second, outside[0])
	}
	for _, one := range append(append(append(chats, tools...), outside...), first, second) {
		if one.Trace != client || one.Status.Code != 0 {
			t.Errorf("got %+v", one)
		}
	}
	if tools[0].Parent != second.ID || chats[0].Parent != first.ID || chats[0].attribute("gen_ai.usage.input_tokens") != "10" || chats[0].attribute("gen_ai.request.model") != "big" || tools[0].attribute("gen_ai.tool.name") != "pay" || tools[0].attribute("gen_ai.conversation.id") != "s1" {
		t.Errorf("got %+v\n%+v", tools, chats)
	}
	if token != "Bearer collector-secret-123" {
		t.Errorf("got token %q", token)
	}
	mu.Lock()
	defer mu.Unlock()
	want := map[string]string{"/pay": "00-" + client + "-" + tools[0].ID + "-01", "/v1/chat/completions": "00-" + client + "-" + first.ID + "-01"}
	for path, parent := range want {
		if len(parents[path]) == 0 || parents[path][0] != parent {
			t.Errorf("%s got %v, want %s", path, parents[path], parent)
		}
		delete(parents, path)
	}
	agent := regexp.MustCompile("^00-" + client + "-" + outside[0].ID + "-01$")
	for path, all := range parents {
		if !agent.MatchString(all[0]) {
			t.Errorf("%s got %v, want the span of the run %s", path, all, outside[0].ID)
		}
	}
	collector.mu.Lock()
	defer collector.mu.Unlock()
	if len(collector.problems) > 0 || strings.Contains(collector.text, "SENTINEL") {
		t.Errorf("got %v, or content", collector.problems)
	}
	var metrics string
	if response, err := s.client.Get(s.url + "/metrics"); err == nil {
		b, _ := io.ReadAll(response.Body)
		metrics = string(b)
		_ = response.Body.Close()
	}
	if !strings.Contains(metrics, `troupe_trace_spans_total{outcome="dropped"} 0`) {
		t.Error("the metrics have no spans")
	}
}

// A server whose collector is away answers as before.
func TestTracesWithoutCollector(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, []byte("[otel]\nendpoint = \"http://127.0.0.1:1\"\ncontent = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServerWithBuiltins(t, filepath.Join(dir, "data"), "--config", config)
	for range 20 {
		if code, out, stderr := runProgram(t, "call", "--server", s.url, "helper", "hello"); code != 0 || out == "" {
			t.Fatalf("%d %s", code, stderr)
		}
	}
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("got exit code %d", code)
	}
	for text, want := range map[string]string{
		"[otel]\nendpoint = \"nowhere\"\n":                                        "otel.endpoint: ",
		"[otel]\nendpiont = \"http://127.0.0.1:1\"\n":                             "did you mean endpoint",
		"[otel]\nendpoint = \"http://127.0.0.1:1\"\nheader_env = {a = \"B-C\"}\n": "otel.header_env.a: want the name",
	} {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, stderr := runProgram(t, "serve", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--config", config); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %s, want %s", text, code, stderr, want)
		}
	}
}
