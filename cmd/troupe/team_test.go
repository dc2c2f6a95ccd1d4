// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const kdap = "../../examples/kdap"

// jsonOf returns a JSON value in its canonical form.
func jsonOf(t *testing.T, v jsontext.Value) string {
	t.Helper()
	v = v.Clone()
	if err := v.Canonicalize(); err != nil {
		t.Fatalf("%s: %v", v, err)
	}
	return string(v)
}

func readKdap(t *testing.T, name string) jsontext.Value {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(kdap, "golden", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The team of the contract answers as one: its answers are those of the golden files, the contract's own examples come
// out, and no user reads a code.
func TestExampleTeam(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--agents", kdap)
	var run struct {
		Run    string `json:"run_id"`
		Answer string `json:"content"`
	}
	say := func(text string) string {
		t.Helper()
		body, _ := json.Marshal(map[string]string{"content": text, "session_id": "sess-789"})
		if code, err := s.request("POST", "/v1/agents/orc/messages", string(body), "", &run); code != 200 || err != nil {
			t.Fatal(code, err)
		}
		return run.Answer
	}
	for _, c := range []struct{ file, text string }{
		{"business_case.txt", "Help me build a business case for market entry"}, {"market_view.txt", "Please look at the market"}, {"options.txt", "Show me figures"},
		{"projection.txt", "I need a projection"}, {"cannot.txt", "How is the weather?"}, {"reply.txt", "hello"}, {"question.txt", "Well"},
	} {
		got, want := say(c.text), string(readKdap(t, c.file))
		if got+"\n" != want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.file, got, want)
		}
		for _, code := range []string{"ORC", "ANL", "AUD", "CHA", "SPO", "DOC", "PRF", "CST", "CHG"} {
			if strings.Contains(got, code) {
				t.Errorf("%s names %s", c.file, code)
			}
		}
	}

	say("Help me build a business case for market entry")
	code, out, stderr := runProgram(t, "runs", "events", run.Run, "--json", "--server", s.url)
	if code != 0 {
		t.Fatal(stderr)
	}
	var envelope string
	for line := range strings.Lines(out) {
		var event struct {
			Type    string `json:"type"`
			Payload struct {
				Actor string `json:"actor"`
				Text  string `json:"text"`
			} `json:"payload"`
		}
		if json.Unmarshal([]byte(line), &event) == nil && event.Type == "agent_called_child" && event.Payload.Actor == "anl/sess-789" {
			envelope, _, _ = strings.Cut(event.Payload.Text, "\n\n")
		}
	}
	var request struct {
		Source     string         `json:"source_agent"`
		Capability string         `json:"capability_code"`
		Inputs     jsontext.Value `json:"inputs_json"`
		Context    jsontext.Value `json:"context"`
	}
	if err := json.Unmarshal([]byte(envelope), &request); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	var handed, want map[string]jsontext.Value
	if json.Unmarshal(request.Context, &handed) != nil || json.Unmarshal(readKdap(t, "handoff.json"), &want) != nil {
		t.Fatalf("%s", request.Context)
	}
	for _, name := range []string{"session_id", "original_request", "workflow_position", "prior_agents", "prior_outputs", "constraints"} {
		if got := jsonOf(t, handed[name]); got != jsonOf(t, want[name]) {
			t.Errorf("%s: handed over %s, want %s", name, got, want[name])
		}
	}

	for name, agent := range map[string]string{"success": "anl", "partial": "aud", "error": "anl"} {
		var got, want map[string]jsontext.Value
		if code, err := s.request("POST", "/v1/agents/"+agent+":invoke", string(readKdap(t, "request_"+name+".json")), "", &got); code != 200 || err != nil {
			t.Fatal(name, code, err)
		}
		if err := json.Unmarshal(readKdap(t, name+".json"), &want); err != nil {
			t.Fatal(err)
		}
		for member, value := range want {
			if member != "metadata" && jsonOf(t, got[member]) != jsonOf(t, value) {
				t.Errorf("%s: %s: got %s, want %s", name, member, got[member], value)
			}
		}
	}
}

// ledger is a service outside the server: it performs each request once, by its idempotency key.
type stepLedger struct {
	mu      sync.Mutex
	keys    map[string][]string // idempotency keys by step
	arrived chan string         // steps, when their requests come
	held    map[string]bool     // steps whose next request gets no answer
}

// await waits until a request of a step has come.
func (l *stepLedger) await(t *testing.T, step string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		select {
		case came := <-l.arrived:
			if came == step {
				return
			}
		case <-ctx.Done():
			t.Fatalf("no request of step %s", step)
		}
	}
}

func (l *stepLedger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	step := strings.TrimPrefix(r.URL.Path, "/")
	_, _ = io.Copy(io.Discard, r.Body) // only then the end of the connection ends the context
	l.mu.Lock()
	if key := r.Header.Get("Idempotency-Key"); !slices.Contains(l.keys[step], key) {
		l.keys[step] = append(l.keys[step], key)
	}
	hold := l.held[step]
	delete(l.held, step)
	l.mu.Unlock()
	l.arrived <- step
	if hold { // until the server is killed
		<-r.Context().Done()
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"status":"SUCCESS","confidence_level":"HIGH","result_json":{"text":"Did %s."}}`, step)
}

// A workflow of three steps, of which two run together, goes on over 20 kills of its server: at a request of each step,
// before or after it is answered. Each step has its effect once.
func TestWorkflowStepOnceOverKills(t *testing.T) {
	const kills = 20
	l := &stepLedger{keys: map[string][]string{}, held: map[string]bool{}, arrived: make(chan string, 1000)}
	service := httptest.NewServer(l)
	t.Cleanup(service.Close)
	var files strings.Builder
	files.WriteString(">> desk.toml\nname = \"desk\"\nkind = \"orchestrator\"\nprompt = 'on case say {\"primary_intent\":\"case\",\"intent_confidence\":1,\"workflow\":\"case\"}'\n" +
		"[workflow.case]\ndescription = \"a case\"\non_step_failure = \"partial\"\n")
	steps := []string{"one", "two", "three"}
	for i, step := range steps {
		fmt.Fprintf(&files, "[[workflow.case.steps]]\nname = %q\ncapability = \"DO_%s\"\nparallel = %v\n", step, strings.ToUpper(step), i == 2)
	}
	for _, step := range steps {
		fmt.Fprintf(&files, ">> %s.toml\nname = %q\ntools = [\"do.%s\"]\nprompt = 'on inputs_json use do.%s {}'\n[[provides]]\ncode = \"DO_%s\"\ndescription = \"d\"\n"+
			">> tool_%s.toml\n[tool]\ntool_name = \"do.%s\"\nurl = \"%s/%s\"\nidempotent = true\n", step, step, step, step, strings.ToUpper(step), step, step, service.URL, step)
	}
	dir, folder := filepath.Join(t.TempDir(), "data"), writeFiles(t, files.String())
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	start := func() *server { return startServerAt(t, dir, address, "--agents", folder) }
	s := start()
	for i := range kills {
		at := steps[i%len(steps)]
		l.mu.Lock()
		clear(l.keys)
		l.held[at] = i%2 == 0
		l.mu.Unlock()
		code, out, stderr := runProgram(t, "call", "desk", "a case please", "--session", fmt.Sprint("s", i), "--async", "--server", s.url)
		if code != 0 {
			t.Fatal(stderr)
		}
		l.await(t, at)
		s.stop(syscall.SIGKILL)
		s = start()
		var run struct {
			Status string `json:"status"`
			Answer string `json:"text"`
		}
		waitUntil(t, "the end of the run", func() bool { // 503 while the server loads its open runs
			code, err := s.request("GET", "/v1/runs/"+strings.TrimSpace(out), "", "", &run)
			return err == nil && code == 200 && slices.Contains([]string{"DONE", "FAILED"}, run.Status)
		})
		if want := "One: Did one. Confidence: high.\n\nTwo: Did two. Confidence: high.\n\nThree: Did three. Confidence: high."; run.Status != "DONE" || run.Answer != want {
			t.Fatalf("kill %d at %s: the run is %s: %s", i, at, run.Status, run.Answer)
		}
		l.mu.Lock()
		for _, step := range steps {
			if n := len(l.keys[step]); n != 1 {
				t.Errorf("kill %d at %s: step %s was begun %d times", i, at, step, n)
			}
		}
		l.mu.Unlock()
		for len(l.arrived) > 0 {
			<-l.arrived
		}
	}
}

// The answer of a user about results that differ ends what was asked before a kill of the server.
func TestUserDecidesAConflictAfterAKill(t *testing.T) {
	files := ">> desk.toml\nname = \"desk\"\nkind = \"orchestrator\"\nprompt = '''on case say {\"primary_intent\":\"case\",\"intent_confidence\":1,\"workflow\":\"case\"}\n" +
		"on second say {\"primary_intent\":\"answer\",\"intent_confidence\":1,\"resume\":\"prefer\",\"prefer\":\"Two\"}'''\n" +
		"[workflow.case]\ndescription = \"a case\"\non_conflict = \"ask\"\ncompare = { size = \"the size\" }\n"
	for i, name := range []string{"one", "two"} {
		files += fmt.Sprintf("[[workflow.case.steps]]\nname = %q\ncapability = \"SIZE_%s\"\n", name, strings.ToUpper(name))
		files = fmt.Sprintf(">> %s.toml\nname = %q\nprompt = 'on inputs_json say {\"size\":%d}'\n[[provides]]\ncode = \"SIZE_%s\"\ndescription = \"d\"\n", name, name, i+5, strings.ToUpper(name)) + files
	}
	dir, folder := filepath.Join(t.TempDir(), "data"), writeFiles(t, files)
	s := startServer(t, dir, "--agents", folder)
	say := func(text, want string) {
		t.Helper()
		if code, out, stderr := runProgram(t, "call", "desk", text, "--session", "s", "--server", s.url); code != 0 || !strings.Contains(out, want) {
			t.Fatalf("%d %s%s, want %s", code, out, stderr, want)
		}
	}
	say("a case please", "5 (One), 6 (Two).\n\nWhich value of the size should be used?")
	s.stop(syscall.SIGKILL)
	s = startServer(t, dir, "--agents", folder)
	say("the second one please", "6 is used: you have preferred it.")
}

// A result that is too long to be handed over is there for the owner of the next step by its reference: whole, also
// over a kill of the server, and for no other session.
func TestLongResultIsHandedOverByReference(t *testing.T) {
	const said = 20_000
	var url atomic.Value
	invoked := make(chan [2]string, 10) // token and reference of the second step
	read := func(token, ref string) (value string, code string) {
		body, _ := json.Marshal(map[string]any{"args": map[string]string{"output": ref}})
		request, _ := http.NewRequestWithContext(t.Context(), "POST", url.Load().(string)+"/v1/tools/read_session:invoke", bytes.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("x-run-token", token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err.Error()
		}
		defer response.Body.Close()
		var out struct {
			Result struct{ Text string }
			Error  struct{ Code string }
		}
		if err := json.UnmarshalRead(response.Body, &out, json.MatchCaseInsensitiveNames(true)); err != nil {
			return "", err.Error()
		}
		return out.Result.Text, out.Error.Code
	}
	var held atomic.Value // of a chan struct{}: closed, it lets the second step go on
	hold := func() (release func()) {
		wait := make(chan struct{})
		held.Store(wait)
		return func() { close(wait) }
	}
	release := hold()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Message struct{ Content string } `json:"input_message"`
		}
		if json.UnmarshalRead(r.Body, &in, json.MatchCaseInsensitiveNames(true)) != nil { // polls of its health
			return
		}
		text := strings.Repeat("x", said)
		if r.URL.Path == "/two/invoke" {
			_, after, _ := strings.Cut(in.Message.Content, `"prior_outputs":{"one":{"ref":"`)
			ref, _, _ := strings.Cut(after, `"`)
			invoked <- [2]string{r.Header.Get("x-run-token"), ref}
			select {
			case <-held.Load().(chan struct{}):
			case <-r.Context().Done():
				return
			}
			value, _ := read(r.Header.Get("x-run-token"), ref)
			text = fmt.Sprintf("Read %d.", len(value))
		}
		answer, _ := json.Marshal(map[string]any{"status": "SUCCESS", "confidence_level": "HIGH", "result_json": map[string]string{"text": text}})
		delta, _ := json.Marshal(map[string]string{"text": string(answer)})
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: delta\ndata: %s\n\nevent: done\ndata: {}\n\n", delta)
	}))
	t.Cleanup(service.Close)
	files := ">> desk.toml\nname = \"desk\"\nkind = \"orchestrator\"\nprompt = 'on case say {\"primary_intent\":\"case\",\"intent_confidence\":1,\"workflow\":\"case\"}'\n[workflow.case]\ndescription = \"a case\"\n"
	for _, name := range []string{"one", "two"} {
		files += fmt.Sprintf("[[workflow.case.steps]]\nname = %q\ncapability = \"DO_%s\"\n", name, strings.ToUpper(name))
		files = fmt.Sprintf(">> %s.toml\nname = %q\nendpoint = \"%s/%s\"\nretry = \"safe\"\n[[provides]]\ncode = \"DO_%s\"\ndescription = \"d\"\n", name, name, service.URL, name, strings.ToUpper(name)) + files
	}
	dir, folder := filepath.Join(t.TempDir(), "data"), writeFiles(t, files)
	s := startServer(t, dir, "--agents", folder)
	url.Store(s.url)
	begin := func(session string) string {
		t.Helper()
		code, out, stderr := runProgram(t, "call", "desk", "a case please", "--session", session, "--async", "--server", s.url)
		if code != 0 {
			t.Fatal(stderr)
		}
		return strings.TrimSpace(out)
	}
	run := begin("s-1")
	first := <-invoked
	if value, code := read(first[0], first[1]); len(value) != said || first[1] == "" {
		t.Errorf("%q: %d bytes %s", first[1], len(value), code)
	}
	if _, code := read(first[0], "nothing"); code != "invalid_request" {
		t.Errorf("an unknown reference: %s", code)
	}
	s.stop(syscall.SIGKILL)
	s = startServer(t, dir, "--agents", folder)
	url.Store(s.url)
	again := <-invoked
	begin("s-2")
	if other := <-invoked; again[1] != first[1] || other[1] == first[1] {
		t.Errorf("references %q, then %q, in another session %q", first[1], again[1], other[1])
	} else if _, code := read(other[0], first[1]); code != "invalid_request" {
		t.Errorf("the reference of another session: %s", code)
	}
	release()
	var ended struct {
		Status string `json:"status"`
		Answer string `json:"text"`
	}
	var shared struct {
		Workflow *struct{} `json:"workflow"`
	}
	waitUntil(t, "the end of the run", func() bool {
		code, err := s.request("GET", "/v1/runs/"+run, "", "", &ended)
		return err == nil && code == 200 && slices.Contains([]string{"DONE", "FAILED"}, ended.Status)
	})
	if !strings.Contains(ended.Answer, fmt.Sprintf("Two: Read %d.", said)) {
		t.Errorf("%s: …%s", ended.Status, ended.Answer[max(0, len(ended.Answer)-200):])
	}
	// After the end of the workflow the result is still there: for runs of its session, and until that is deleted.
	waitUntil(t, "the end of the other run", func() bool {
		_, err := s.request("GET", "/v1/sessions/s-2/state", "", "", &shared)
		return err == nil && shared.Workflow == nil
	})
	release = hold()
	begin("s-1")
	later := <-invoked
	for ref, want := range map[string]string{first[1]: "", "nothing": "invalid_request", first[1][1:]: "invalid_request", `"`: "invalid_request", strings.Repeat("x", 64): "invalid_request"} {
		if value, code := read(later[0], ref); code != want || want == "" && len(value) != said {
			t.Errorf("after the end, %q: %d bytes %s", ref, len(value), code)
		}
	}
	begin("s-2")
	if other := <-invoked; other[1] == "" {
		t.Error("no reference")
	} else if _, code := read(other[0], first[1]); code != "invalid_request" {
		t.Errorf("after the end, in another session: %s", code)
	}
	release()
}
