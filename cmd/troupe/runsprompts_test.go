// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
)

// promptsConfig is a configuration that records, with a model at a URL.
const promptsConfig = `[record]
prompts = %q
redact = ['\d{4}-\d{4}', '"pin":"\d+"']

[models.big]
url = "%s/v1"
model = "vendor-9"
key_env = "TROUPE_TEST_MODEL_KEY"
`

// recordingServer is a server that records prompts, and the service of its models and tools.
type recordingServer struct {
	*server
	data, config string
	service      *httptest.Server
	fail         bool // the model fails
}

func startRecording(t *testing.T, mode string) *recordingServer {
	t.Setenv("TROUPE_TEST_MODEL_KEY", "sk-live-0123456789abcdef")
	r := &recordingServer{data: filepath.Join(t.TempDir(), "data")}
	r.service = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		body, _ := io.ReadAll(in.Body)
		if r.fail {
			w.WriteHeader(400)
			_, _ = fmt.Fprintf(w, `{"error":{"message":"no %s"}}`, in.Header.Get("Authorization"))
			return
		}
		if strings.Contains(string(body), `"role":"tool"`) || !strings.Contains(string(body), `"tools"`) {
			writeEvents(w, `data: {"model":"vendor-9-b","choices":[{"index":0,"delta":{"content":"It is paid with 4111-1111."}}]}`, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":5,"total_tokens":25}}`, "data: [DONE]")
			return
		}
		writeEvents(w, `data: {"model":"vendor-9-b","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"pay","arguments":"{\"pin\":\"4711\",\"amount\":3}"}}]}}]}`, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14}}`, "data: [DONE]")
	}))
	t.Cleanup(r.service.Close)
	tool := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		_, _ = io.ReadAll(in.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"paid":true}`)
	}))
	t.Cleanup(tool.Close)
	dir := filepath.Dir(r.data)
	r.config = filepath.Join(dir, "troupe.toml")
	files := map[string]string{
		"troupe.toml":       fmt.Sprintf(promptsConfig, mode, r.service.URL),
		"agents/front.toml": "name = \"front\"\nmodel = \"big\"\nprompt = \"You serve customers. The card is 4111-1111.\"\ntools = [\"pay\"]\n",
		"agents/pay.toml":   "[tool]\ntool_name = \"pay\"\ndescription = \"Pays.\"\nurl = \"" + tool.URL + "/\"\n[tool.input_schema]\ntype = \"object\"\n",
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.server = r.start(t)
	return r
}

func (r *recordingServer) start(t *testing.T) *server {
	return startServer(t, r.data, "--config", r.config, "--agents", filepath.Join(filepath.Dir(r.data), "agents"))
}

// send sends a message to an agent in a session, and returns its run.
func (r *recordingServer) send(agent, session, text string) string {
	r.Helper()
	var out struct {
		Run string `json:"run_id"`
	}
	body, _ := json.Marshal(map[string]string{"content": text, "session_id": session})
	if _, err := r.request("POST", "/v1/agents/"+agent+"/messages", string(body), "", &out); err != nil || out.Run == "" {
		r.Fatal(out, err)
	}
	return out.Run
}

// promptPage is the body of GET /v1/runs/{id}/prompts.
type promptPage struct {
	Recording string       `json:"recording"`
	Prompts   []promptView `json:"prompts"`
	Next      uint64       `json:"next_after"`
	Code      string       `json:"code"`
}

// prompts returns the recorded prompts of a run.
func (r *recordingServer) prompts(run, query string) (status int, page promptPage) {
	r.Helper()
	status, err := r.request("GET", "/v1/runs/"+run+"/prompts"+query, "", "", &page)
	if err != nil {
		r.Fatal(err)
	}
	return status, page
}

// grepFolder returns the files below a folder with a text.
func grepFolder(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if b, _ := os.ReadFile(path); bytes.Contains(b, []byte(text)) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// A think-act loop is recorded as its model saw it, over kill -9, and leaves with its session.
func TestPromptsAreRecorded(t *testing.T) {
	r := startRecording(t, "all")
	run := r.send("front", "s1", "please pay SENTINEL-81")
	status, page := r.prompts(run, "")
	if status != 200 || page.Recording != "all" || len(page.Prompts) != 2 {
		t.Fatalf("%d %+v", status, page)
	}
	first, second := page.Prompts[0], page.Prompts[1]
	if first.Step != 1 || first.Agent != "front" || first.Model != "big" || first.Provider != "vendor-9-b" || first.Status != 200 || first.Usage.Input != 10 || second.Usage.Total != 25 {
		t.Errorf("got %+v and %+v", first, second)
	}
	for text, want := range map[string]string{
		string(first.Request):  `"model":"vendor-9"`,
		string(first.Answer):   `"name":"pay"`,
		string(second.Request): `{\"paid\":true}`,
		string(second.Answer):  `It is paid with [redacted].`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got %s, want %s in it", text, want)
		}
	}
	if request := string(first.Request); !strings.Contains(request, "The card is [redacted].") || !strings.Contains(request, "SENTINEL-81") || !strings.Contains(request, `"description":"Pays."`) {
		t.Errorf("got %s", request)
	}
	if _, page := r.prompts(run, "?limit=1"); len(page.Prompts) != 1 || page.Next != 1 {
		t.Errorf("got %+v", page)
	}
	if _, page := r.prompts(run, "?after=1&limit=1"); len(page.Prompts) != 1 || page.Prompts[0].Step != 2 || page.Next != 0 {
		t.Errorf("got %+v", page)
	}
	code, out, stderr := runProgram(t, "runs", "prompts", "--server", r.url, run)
	for _, want := range []string{"request 1 at ", "agent front, model big (vendor-9-b), status 200", "10 + 4 tokens", "system: You serve customers.", "user: please pay SENTINEL-81", "request 2 at "} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%d %s %s, want %s", code, out, stderr, want)
		}
	}
	r.server.stop(syscall.SIGKILL)
	if code, out, stderr := runProgram(t, "runs", "prompts", "--data", r.data, run, "--step", "2", "--json"); code != 0 || strings.Count(out, "\n") != 1 || !strings.HasPrefix(out, `{"step":2,`) {
		t.Errorf("%d %s %s", code, out, stderr)
	}
	r.server = r.start(t)
	if _, page := r.prompts(run, ""); len(page.Prompts) != 2 {
		t.Errorf("after kill -9: %+v", page)
	}
	for _, secret := range []string{"4111-1111", "sk-live-0123456789abcdef", `"pin\":\"4711`} {
		if found := grepFolder(t, filepath.Join(r.data, "prompts"), secret); len(found) > 0 {
			t.Errorf("%s is in %v", secret, found)
		}
	}
	if len(grepFolder(t, filepath.Join(r.data, "prompts"), "SENTINEL-81")) != 1 {
		t.Error("the message is not recorded")
	}
	if status, _ := r.request("DELETE", "/v1/sessions/s1", "", "", new(any)); status != 204 && status != 200 {
		t.Fatal(status)
	}
	if found := grepFolder(t, filepath.Join(r.data, "prompts"), "SENTINEL-81"); len(found) > 0 {
		t.Errorf("after the deletion of the session its text is in %v", found)
	}
	if status, _ := r.prompts(run, ""); status != 404 {
		t.Errorf("got %d for a run of a deleted session", status)
	}
	if code, _, stderr := runProgram(t, "runs", "prompts", "--server", r.url, r.send("front", "s2", "x"), "--step", "9"); code == 0 || !strings.Contains(stderr, "no recorded request 9") {
		t.Errorf("%d %s", code, stderr)
	}
}

// Only operators read prompts, and those of another user by name only.
func TestPromptsAreForOperators(t *testing.T) {
	r := startRecording(t, "all")
	key := func(args ...string) string {
		code, out, stderr := runProgram(t, append([]string{"keys", "create", "--data", r.data}, args...)...)
		if code != 0 {
			t.Fatal(stderr)
		}
		return strings.TrimSpace(out)
	}
	alice := key("--user", "alice", "--scope", "call", "--scope", "read")
	operator, bob := key("--scope", "operator", "--scope", "read"), key("--user", "bob", "--scope", "operator", "--scope", "call")
	website := key("--scope", "operator") // that issues tokens
	customer := key("--user", "alice", "--scope", "chat", "--agent", "front")
	r.apiKey = alice
	run := r.send("front", "s1", "please pay")
	for _, c := range []struct {
		name, key, query string
		status           int
	}{
		{"its user", alice, "", 403},
		{"a customer", customer, "", 403},
		{"an operator", operator, "?user=alice", 200},
		{"an operator that may not read", website, "?user=alice", 403},
		{"an operator without the user", operator, "", 404},
		{"another user", bob, "", 404},
	} {
		r.apiKey = c.key
		if status, page := r.prompts(run, c.query); status != c.status || status == 200 && len(page.Prompts) != 2 {
			t.Errorf("%s: got %d %+v, want %d", c.name, status, page, c.status)
		}
	}
	r.apiKey = operator
	for _, query := range []string{"?after=-1", "?limit=0", "?limit=101", "?other=1"} {
		if status, page := r.prompts(run, query); status != 400 {
			t.Errorf("%s: got %d %+v", query, status, page)
		}
	}
}

// With "failed" the prompts of a failed run stay, without the key that its provider has quoted, and nothing is recorded
// without a setting.
func TestFailedPrompts(t *testing.T) {
	r := startRecording(t, "failed")
	r.fail = true
	run := r.send("front", "s1", "please pay")
	_, page := r.prompts(run, "")
	if len(page.Prompts) == 0 || page.Prompts[0].Error == nil || page.Prompts[0].Status != 400 || page.Prompts[0].Answer != nil {
		t.Errorf("got %+v", page)
	}
	if found := grepFolder(t, filepath.Join(r.data, "prompts"), "sk-live"); len(found) > 0 {
		t.Errorf("the key is in %v", found)
	}
	r.fail = false
	done := r.send("front", "s2", "please pay")
	waitUntil(t, "the prompts of a run that succeeded leave", func() bool {
		_, page := r.prompts(done, "")
		return len(page.Prompts) == 0
	})
	if code, _, stderr := runProgram(t, "runs", "prompts", "--server", r.url, done); code != 0 || !strings.Contains(stderr, `prompts = "failed" in [record] keeps only those of failed runs`) {
		t.Errorf("%d %s", code, stderr)
	}
	if _, page := r.prompts(run, ""); len(page.Prompts) == 0 {
		t.Error("those of the failed run left too")
	}
	r.server.stop(syscall.SIGTERM)
	if err := os.WriteFile(r.config, []byte(fmt.Sprintf(promptsConfig, "off", r.service.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	r.server = r.start(t)
	off := r.send("front", "s3", "please pay")
	if _, page := r.prompts(off, ""); page.Recording != "off" || len(page.Prompts) != 0 {
		t.Errorf("got %+v", page)
	}
	if code, _, stderr := runProgram(t, "runs", "prompts", "--server", r.url, off); code != 0 || !strings.Contains(stderr, `set prompts = "failed" or "all" in [record]`) {
		t.Errorf("%d %s", code, stderr)
	}
	if _, page := r.prompts(run, ""); len(page.Prompts) == 0 {
		t.Error("what was recorded before is not shown")
	}
}

// A request of an external agent to a model is recorded as it was sent, also when the agent leaves before its end.
func TestExternalPromptsAreRecorded(t *testing.T) {
	r := startRecording(t, "all")
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		if in.Method != http.MethodPost {
			return
		}
		_, _ = io.ReadAll(in.Body)
		for _, stream := range []string{"true", "false"} {
			ask, _ := http.NewRequest("POST", r.url+"/v1/chat/completions", strings.NewReader(`{"model":"big","stream":`+stream+`,"seed":7,"messages":[{"role":"user","content":[{"type":"text","text":"from outside"}]}]}`))
			ask.Header.Set("Content-Type", "application/json")
			ask.Header.Set("x-run-token", in.Header.Get("x-run-token"))
			if response, err := r.client.Do(ask); err == nil {
				_, _ = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
		}
		writeEvents(w, "event: done\ndata: {\"text\":\"ok\"}")
	}))
	defer service.Close()
	r.registerAgent(`{"agent_id":"outside","endpoint":"` + service.URL + `"}`)
	run := r.send("outside", "s1", "hi")
	_, page := r.prompts(run, "")
	if len(page.Prompts) != 2 {
		t.Fatalf("got %+v", page)
	}
	streamed := page.Prompts[0]
	if request := string(streamed.Request); !streamed.External || streamed.Agent != "outside" || !strings.Contains(request, `"seed":7`) || !strings.Contains(request, `"model":"vendor-9"`) || !strings.Contains(request, "from outside") {
		t.Errorf("got %+v", streamed)
	}
	if !strings.Contains(string(streamed.Answer), "It is paid with [redacted].") || streamed.Usage == nil || streamed.Usage.Total != 25 {
		t.Errorf("got %s %+v", streamed.Answer, streamed.Usage)
	}
}

func TestRecordTable(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"[record]\nprompts = \"all\"\nkeep = \"30d\"\nredact = ['\\d+']\n", ""},
		{"[record]\nprompts = \"some\"\n", `record.prompts: want "off", "failed" or "all", got "some"`},
		{"[record]\nkeep = \"1s\"\n", "record.keep: want a time such as 30d or 12h"},
		{"[record]\nredact = ['(']\n", "record.redact: pattern 1: error parsing regexp"},
		{"[record]\npromts = \"all\"\n", "did you mean prompts"},
		{"[recrd]\nprompts = \"all\"\n", "did you mean"},
	} {
		path := filepath.Join(t.TempDir(), "troupe.toml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		config, err := readConfig(path)
		if c.want == "" && (err != nil || config.Record.Prompts != "all" || config.Record.Keep.Hours() != 720) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) && c.text[:5] != "[recr" {
			t.Errorf("%s: got %+v, %v, want %s", c.text, config.Record, err, c.want)
		}
	}
}

// A process of a cluster refuses to record before it stands by.
func TestClusterRecordsNoPrompts(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, []byte("[record]\nprompts = \"all\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := runProgram(t, "serve", "--role", "orchestrator", "--data", filepath.Join(dir, "data"), "--store", "postgres://127.0.0.1:1/none", "--cluster", "c", "--config", config)
	if code == 0 || !strings.Contains(stderr, "record.prompts: a process of a cluster records no prompts") {
		t.Errorf("%d %s", code, stderr)
	}
}
