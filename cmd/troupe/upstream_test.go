// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/upstream"
)

// streamedEvent is an event as a client reads it from a stream.
type streamedEvent struct {
	Seq     uint64 `json:"seq"`
	Type    string `json:"type"`
	Payload struct {
		Text     string `json:"text"`
		Name     string `json:"name"`
		Discards uint64 `json:"discards_after"`
		Error    struct {
			Code   string `json:"code"`
			Detail string `json:"detail"`
		} `json:"error"`
	} `json:"payload"`
}

// stream sends a message and returns the events of its run. It calls observe with
// each event as the event arrives.
func (s *server) stream(agent, content string, observe func(streamedEvent)) (events []streamedEvent) {
	s.Helper()
	body, _ := json.Marshal(map[string]string{"content": content})
	r, err := http.NewRequest("POST", s.url+"/v1/agents/"+agent+"/messages", strings.NewReader(string(body)))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "text/event-stream")
	response, err := s.client.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e streamedEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			s.Fatalf("%v: %s", err, data)
		}
		events = append(events, e)
		if observe != nil {
			observe(e)
		}
	}
	if len(events) == 0 {
		s.Fatalf("status %d, error %v, no events", response.StatusCode, lines.Err())
	}
	return events
}

// shownText returns the text that a client shows after the events: each delta
// appended, and the deltas that an attempt voids removed.
func shownText(events []streamedEvent) string {
	var shown []streamedEvent
	for _, e := range events {
		switch {
		case e.Type == "agent_stream_delta":
			shown = append(shown, e)
		case e.Type == "attempt" && e.Payload.Discards > 0:
			for len(shown) > 0 && shown[len(shown)-1].Seq > e.Payload.Discards {
				shown = shown[:len(shown)-1]
			}
		}
	}
	var b strings.Builder
	for _, e := range shown {
		b.WriteString(e.Payload.Text)
	}
	return b.String()
}

// registerAgent registers an external agent.
func (s *server) registerAgent(body string) {
	s.Helper()
	var a struct {
		OK     bool   `json:"ok"`
		Detail string `json:"detail"`
	}
	if status, err := s.request("POST", "/v1/agents/register", body, "", &a); err != nil || !a.OK {
		s.Fatalf("%s: %d %s %v", body, status, a.Detail, err)
	}
}

func writeEvents(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		_, _ = io.WriteString(w, e+"\n\n")
	}
	w.(http.Flusher).Flush()
}

// A refusal of POST /v1/chat/completions has the name of the model as its client asked for it, and no
// address. The events of the run, and the log of a request without a run, have both.
func TestModelAddressIsForTheOperator(t *testing.T) {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(400)
		_, _ = fmt.Fprintf(w, `{"error":{"message":"see http://%s/help"}}`, r.Host)
	}))
	defer provider.Close()
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, []byte("[models.big]\nurl = \""+provider.URL+"/v1\"\nmodel = \"vendor-9\"\n[models.lab]\nurl = \"http://10.1.2.3:8000/v1\"\nmodel = \"vendor-9\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--config", config, "--log-level", "info")
	address := strings.TrimPrefix(provider.URL, "http://")
	ask := func(model string, headers ...string) string {
		r, _ := http.NewRequest("POST", s.url+"/v1/chat/completions", strings.NewReader(`{"model":"`+model+`","messages":[{"role":"user","content":"hi"}]}`))
		r.Header.Set("Content-Type", "application/json")
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		response, err := s.client.Do(r)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return string(body)
	}
	answers := make(chan string, 4)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = io.ReadAll(r.Body)
			answers <- ask("big", "x-run-token", r.Header.Get("x-run-token"))
			answers <- ask("lab", "x-run-token", r.Header.Get("x-run-token"))
			writeEvents(w, "event: done\ndata: {\"text\":\"ok\"}")
		}
	}))
	defer service.Close()
	s.registerAgent(`{"agent_id":"outside","endpoint":"` + service.URL + `"}`)
	events := fmt.Sprintf("%+v", s.stream("outside", "hi", nil))
	for _, want := range []string{"model vendor-9 answers 400: see http://" + address, "model vendor-9 cannot be reached: 10.1.2.3: its address is private"} {
		if !strings.Contains(events, want) {
			t.Errorf("want %q in the events of the run, got %s", want, events)
		}
	}
	answers <- ask("big")
	answers <- ask("lab")
	for range 2 {
		for _, want := range []string{`{"error":{"message":"see http://its server/help"}}`, `"model lab cannot be reached: its server: its address is private, which is not allowed"`} {
			if got := <-answers; !strings.Contains(got, want) || strings.Contains(got, "vendor-9") || strings.Contains(got, address) || strings.Contains(got, "10.1.2.3") {
				t.Errorf("a client reads %s, want %s", got, want)
			}
		}
	}
	s.stop(syscall.SIGTERM) // the log is complete then
	log, _ := os.ReadFile(s.log)
	for _, want := range []string{"model vendor-9 answers 400: see http://" + address, "troupe serve --allow 10.1.2.3"} {
		if !strings.Contains(string(log), want) {
			t.Errorf("want %q in the log, got %s", want, log)
		}
	}
}

// quickRetries are the limits of an agent that is asked again at once.
const quickRetries = `"limits":{"retry_delay_ms":1,"retry_delay_max_ms":5}`

// A service breaks after part of its answer was shown, then answers.
func TestBrokenAnswerIsAskedForAgain(t *testing.T) {
	var asked atomic.Int64
	seen := make(chan struct{}, 8)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		delta, done := "event: delta\ndata: {\"text\":\"%s\"}", "event: done\ndata: {}"
		if strings.HasSuffix(r.URL.Path, "/chat/completions") {
			delta, done = `data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}`, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]"
		}
		if asked.Add(1) == 1 {
			writeEvents(w, fmt.Sprintf(delta, "Hel"))
			<-seen
			panic(http.ErrAbortHandler)
		}
		writeEvents(w, fmt.Sprintf(delta, "Hello"), done)
	}))
	defer service.Close()
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, []byte("[models.big]\nurl = \""+service.URL+"/v1\"\nretry_delay = \"1ms\"\nretry_delay_max = \"5ms\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--config", config)
	s.registerAgent(`{"agent_id":"safe","endpoint":"` + service.URL + `","retry":"safe",` + quickRetries + `}`)
	s.registerAgent(`{"agent_id":"unsafe","endpoint":"` + service.URL + `",` + quickRetries + `}`)
	s.putAgent(`{"name":"declared","model":"big"}`)
	for _, c := range []struct {
		agent, end, shown, discarded string
		asked                        int64
	}{
		{"safe", "run_done", "Hello", "Hel", 2},
		{"declared", "run_done", "Hello", "Hel", 2},
		{"unsafe", "run_failed", "Hel", "", 1},
	} {
		asked.Store(0)
		var before string
		var events []streamedEvent
		events = s.stream(c.agent, "hi", func(e streamedEvent) {
			events = append(events, e)
			switch e.Type {
			case "agent_stream_delta":
				if asked.Load() == 1 {
					seen <- struct{}{}
				}
			case "attempt":
				before = shownText(events[:len(events)-1])
				if e.Payload.Discards == 0 || shownText(events) != "" {
					t.Errorf("%s: attempt discards after %d, which leaves %q", c.agent, e.Payload.Discards, shownText(events))
				}
			}
		})
		last := events[len(events)-1]
		if last.Type != c.end || shownText(events) != c.shown || before != c.discarded || asked.Load() != c.asked {
			t.Errorf("%s: ended with %s %q, shown %q, discarded %q, %d requests; want %s %q %q %d", c.agent, last.Type, last.Payload.Error.Detail, shownText(events), before, asked.Load(),
				c.end, c.shown, c.discarded, c.asked)
		}
	}
}

// outage is a service that is down until open is called, on the same address.
type outage struct {
	*testing.T
	address string
	handler http.HandlerFunc
}

func newOutage(t *testing.T, handler http.HandlerFunc) *outage {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &outage{t, l.Addr().String(), handler}
}

func (o *outage) open() {
	o.Helper()
	l, err := net.Listen("tcp", o.address)
	if err != nil {
		o.Fatal(err)
	}
	server := &http.Server{Handler: o.handler}
	go func() { _ = server.Serve(l) }()
	o.Cleanup(func() { _ = server.Close() })
}

// A service that restarts within the time for retries costs no run, whether its
// connections are refused or it answers 500 or 503.
func TestRestartOfServiceCostsNoRun(t *testing.T) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		if strings.HasSuffix(r.URL.Path, "/chat/completions") {
			writeEvents(w, strings.TrimSpace(string(upstream.AppendStream(nil, upstream.Completion{Text: "back", Finish: upstream.FinishStop}, 9))))
			return
		}
		writeEvents(w, "event: delta\ndata: {\"text\":\"back\"}", "event: done\ndata: {}")
	}
	var failing atomic.Int64
	failing.Store(500)
	sick := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := failing.Load(); status != 200 {
			w.WriteHeader(int(status))
			return
		}
		answer(w, r)
	}))
	defer sick.Close()
	dir := t.TempDir()
	down := map[string]*outage{}
	config := ""
	for _, name := range []string{"model", "safe", "unsafe"} {
		down[name] = newOutage(t, answer)
	}
	for name, url := range map[string]string{"down": "http://" + down["model"].address, "sick": sick.URL} {
		config += "[models." + name + "]\nurl = \"" + url + "\"\nretry_attempts = 20\nretry_delay = \"1ms\"\nretry_delay_max = \"5ms\"\n"
	}
	path := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--config", path)
	quick := `"limits":{"retry_attempts":20,"retry_delay_ms":1,"retry_delay_max_ms":5}`
	s.putAgent(`{"name":"model","model":"down"}`)
	s.putAgent(`{"name":"sick-model","model":"sick"}`)
	s.registerAgent(`{"agent_id":"safe","endpoint":"http://` + down["safe"].address + `","retry":"safe",` + quick + `}`)
	s.registerAgent(`{"agent_id":"unsafe","endpoint":"http://` + down["unsafe"].address + `",` + quick + `}`)
	s.registerAgent(`{"agent_id":"sick-agent","endpoint":"` + sick.URL + `","retry":"safe",` + quick + `}`)
	for _, c := range []struct {
		agent  string
		status int64
	}{{"model", 0}, {"safe", 0}, {"unsafe", 0}, {"sick-model", 500}, {"sick-model", 503}, {"sick-agent", 500}, {"sick-agent", 503}} {
		failing.Store(c.status)
		attempts := 0
		events := s.stream(c.agent, "hi", func(e streamedEvent) {
			if e.Type != "attempt" {
				return
			}
			if attempts++; attempts != 2 {
				return
			}
			if c.status == 0 {
				down[c.agent].open()
			}
			failing.Store(200)
		})
		last := events[len(events)-1]
		if last.Type != "run_done" || last.Payload.Text != "back" || attempts < 2 {
			t.Errorf("%s: ended with %s %q %q after %d attempts", c.agent, last.Type, last.Payload.Text, last.Payload.Error.Detail, attempts)
		}
	}
}

// The error of a provider reaches the client, the run's event and the log with its
// own code and in the provider's words, but without the key.
func TestErrorOfProviderIsReported(t *testing.T) {
	const key = "sk-canary-5f2c1e"
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		status, code, _ := strings.Cut(strings.Split(r.URL.Path, "/")[1], "-")
		n := 0
		_, _ = fmt.Sscan(status, &n)
		w.WriteHeader(n)
		_, _ = fmt.Fprintf(w, `{"error":{"message":"the words of the provider about %s","code":%q}}`, r.Header.Get("Authorization"), code)
	}))
	defer provider.Close()
	cases := []struct {
		path, code string
		status     int
	}{
		{"401-invalid_api_key", "model_auth", 502},
		{"403-denied", "model_auth", 502},
		{"404-model_not_found", "model_not_found", 502},
		{"400-bad_prompt", "model_rejected", 502},
		{"429-insufficient_quota", "model_rejected", 502},
		{"503-overloaded_error", "agent_unavailable", 503},
	}
	dir := t.TempDir()
	config := ""
	for _, c := range cases {
		config += "[models.m" + c.path + "]\nurl = \"" + provider.URL + "/" + c.path + "\"\nkey_env = \"TEST_PROVIDER_KEY\"\nretry_attempts = 2\nretry_delay = \"1ms\"\nretry_delay_max = \"5ms\"\n"
	}
	path := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_PROVIDER_KEY", key)
	s := startServer(t, filepath.Join(dir, "data"), "--config", path, "--log-level", "info")
	s.putAgent(`{"name":"lost","model":"missing"}`)
	for _, c := range append(cases, struct {
		path, code string
		status     int
	}{"lost", "model_not_found", 502}) {
		agent, words := c.path, "the words of the provider about ***"
		if c.path == "lost" {
			words = `unknown model "missing"`
		} else {
			agent = "a" + c.path
			s.putAgent(`{"name":"` + agent + `","model":"m` + c.path + `"}`)
		}
		var a struct {
			Run        string `json:"run_id"`
			Detail     string `json:"detail"`
			Code       string `json:"code"`
			RetryAfter int    `json:"retry_after"`
		}
		status, err := s.request("POST", "/v1/agents/"+agent+"/messages", `{"content":"hi"}`, "", &a)
		if err != nil || status != c.status || a.Code != c.code || !strings.Contains(a.Detail, words) || a.Run == "" || (a.RetryAfter > 0) != (status == 503) {
			t.Errorf("%s: status %d, %+v, %v; want %d %s", c.path, status, a, err, c.status, c.code)
		}
		events := s.stream(agent, "hi", nil)
		if last := events[len(events)-1].Payload.Error; last.Code != c.code || !strings.Contains(last.Detail, words) {
			t.Errorf("%s: last event %+v", c.path, last)
		}
		log, _ := os.ReadFile(s.log)
		var ended, request bool
		for line := range strings.Lines(string(log)) {
			var l struct {
				Message string   `json:"msg"`
				Run     string   `json:"run"`
				Code    string   `json:"code"`
				Detail  string   `json:"detail"`
				Took    *float64 `json:"ms"`
			}
			_ = json.Unmarshal([]byte(line), &l)
			if l.Run != "" && (l.Message == "ended" && l.Took == nil || strings.Contains(line, `:""`)) {
				t.Errorf("a run ended without its duration, or with an empty member: %s", line)
			}
			if l.Run == a.Run && l.Code == c.code && strings.Contains(l.Detail, words) {
				ended, request = ended || l.Message == "ended", request || l.Message == "request"
			}
		}
		if !ended || request != (status == 502) {
			t.Errorf("%s: run logged %v, request logged %v:\n%s", c.path, ended, request, log)
		}
		if strings.Contains(string(log)+fmt.Sprint(events)+a.Detail, key[:9]) {
			t.Errorf("%s: the key is visible", c.path)
		}
	}
}

// A provider may need a query in its URL and headers of its own.
func TestQueryAndHeadersOfModel(t *testing.T) {
	const key = "azure-canary-77ab"
	var got atomic.Value
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		got.Store(r.URL.String() + " " + r.Header.Get("Api-Key") + " " + r.Header.Get("X-Team") + " " + r.Header.Get("Authorization"))
		w.WriteHeader(400)
		_, _ = fmt.Fprintf(w, `{"error":{"message":"you sent %s"}}`, r.Header.Get("Api-Key"))
	}))
	defer provider.Close()
	dir := t.TempDir()
	path := filepath.Join(dir, "troupe.toml")
	table := "[models.azure]\nurl = \"" + provider.URL + "/openai/deployments/x/?api-version=2024-10-21\"\n"
	if err := os.WriteFile(path, []byte(table+"headers = { X-Team = \"blue\" }\nheader_env = { api-key = \"TEST_PROVIDER_KEY\" }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_PROVIDER_KEY", key)
	s := startServer(t, filepath.Join(dir, "data"), "--config", path, "--log-level", "debug")
	s.putAgent(`{"name":"a","model":"azure"}`)
	if status, a := s.call("a", "hi"); status != 502 || !strings.Contains(a.Detail, "you sent ***") {
		t.Errorf("status %d, %+v", status, a)
	}
	if want := "/openai/deployments/x/chat/completions?api-version=2024-10-21 " + key + " blue "; got.Load() != want {
		t.Errorf("got %q, want %q", got.Load(), want)
	}
	if log, _ := os.ReadFile(s.log); strings.Contains(string(log), key[:9]) {
		t.Errorf("the key is visible: %s", log)
	}
	for fields, want := range map[string]string{
		`headers = { Authorization = "x" }`:                                   "headers: Authorization is reserved: set key_env",
		`headers = { Transfer-Encoding = "x" }`:                               "headers: Transfer-Encoding is reserved",
		`headers = { "a b" = "x" }`:                                           "want the name of a header",
		`headers = { a = "x\ny" }`:                                            "headers.a: want one line",
		`header_env = { a = "" }`:                                             "header_env.a: want the name of an environment variable",
		`header_env = { a = "TEST_PROVIDER_UNSET" }`:                          "models.azure.header_env.a: the environment variable TEST_PROVIDER_UNSET is not set",
		"headers = { a = \"x\" }\nheader_env = { A = \"TEST_PROVIDER_KEY\" }": "header_env: A is set twice",
		`retry_attempts = 21`:                                                 "retry_attempts: got 21, want 1 (no retry) to 20",
		`retry_delay = "2h"`:                                                  "retry_delay: got 2h0m0s",
		`retry_delay_max = "1s"`:                                              "retry_delay_max: got 1s, want at least retry_delay, 2s",
		`retry_time = "2h"`:                                                   "retry_time: got 2h0m0s, want at most 1h0m0s",
	} {
		if err := os.WriteFile(path, []byte(table+fields+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, stderr := runProgram(t, "serve", "--data", filepath.Join(dir, "other"), "--listen", "127.0.0.1:0", "--config", path); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %s; want %s", fields, code, stderr, want)
		}
	}
}

// A message of the documented size reaches every kind of agent, whatever JSON makes
// of it.
func TestLargestMessageReachesEveryKindOfAgent(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		if n < 1<<20-4096 {
			w.WriteHeader(400)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/chat/completions") {
			writeEvents(w, strings.TrimSpace(string(upstream.AppendStream(nil, upstream.Completion{Text: "read", Finish: upstream.FinishStop}, 9))))
			return
		}
		writeEvents(w, "event: delta\ndata: {\"text\":\"read\"}", "event: done\ndata: {}")
	}))
	defer service.Close()
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, []byte("[models.big]\nurl = \""+service.URL+"/v1\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--config", config)
	s.putAgent(`{"name":"scripted"}`)
	s.putAgent(`{"name":"model","model":"big"}`)
	for _, unit := range []string{"x", `\"`, `\u0001`, "\u00e4", "<"} {
		// An agent without contact for some time is unhealthy, and the race detector is slow.
		s.registerAgent(`{"agent_id":"external","endpoint":"` + service.URL + `"}`)
		for _, agent := range []string{"scripted", "model", "external"} {
			head, tail := `{"content":"`, `"}`
			fill := (1<<20 - len(head) - len(tail)) / len(unit)
			var a messageReply
			status, err := s.request("POST", "/v1/agents/"+agent+"/messages", head+strings.Repeat(unit, fill)+tail, "", &a)
			if err != nil || status != 200 {
				t.Errorf("%s, %d × %s: status %d, %s %s, %v", agent, fill, unit, status, a.Code, a.Detail, err)
			}
		}
	}
}
