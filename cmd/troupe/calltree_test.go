// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// A run and its tree show what they cost, and a call that has not begun, or ended before, its place below its caller.
func TestTreeShowsCostsAndCallsInTheMailbox(t *testing.T) {
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeEvents(w, `data: {"choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":"stop"}]}`,
			`data: {"choices":[],"usage":{"prompt_tokens":2000,"completion_tokens":300,"total_tokens":2300}}`, "data: [DONE]")
	}))
	defer model.Close()
	held := make(chan struct{})
	tool := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-held:
		case <-r.Context().Done():
		}
		_, _ = w.Write([]byte(`{}`))
	}))
	defer tool.Close()
	defer close(held)
	files := writeFiles(t, ">> hold.toml\n[tool]\ntool_name = \"hold\"\nurl = \""+tool.URL+"\"\n"+
		">> big.toml\nname = \"big\"\nmodel = \"dear\"\nprompt = \"x\"\n"+
		">> slow.toml\nname = \"slow\"\nmodel = \"scripted\"\nprompt = \"x\"\ntools = [\"hold\"]\n"+
		">> front.toml\nname = \"front\"\nmodel = \"scripted\"\nprompt = \"x\"\ntools = [\"call_agent\"]\nagents = [\"big\", \"slow\"]\n")
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, []byte("[models.dear]\nurl = \""+model.URL+"/v1\"\nprice_input = 2.5\nprice_output = 10\n[prices]\ncurrency = \"EUR\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--config", config, "--agents", files)
	program := func(args ...string) string {
		t.Helper()
		code, out, errs := runProgram(t, append(args, "--server", s.url)...)
		if code != 0 {
			t.Fatal(code, out, errs)
		}
		return out
	}
	busy := strings.TrimSpace(program("call", "slow", "use hold {}", "--session", "s1", "--async"))
	waitUntil(t, "the tool", func() bool {
		return strings.Contains(program("runs", "show", busy), "PAUSED_WAITING_TOOL")
	})
	run := strings.TrimSpace(program("call", "front", "ask big: hi\nthen\nask slow: say late", "--session", "s1", "--async"))
	tree := ""
	waitUntil(t, "the call to be queued", func() bool {
		tree = program("runs", "show", run, "--tree")
		return strings.Contains(tree, "slow/s1")
	})
	for _, want := range []string{
		"\ntokens   ", "\nin tree  ", ", cost 0.008 EUR", // 2000 × 2.5 + 300 × 10 millionths
		"├─ big/s1  DONE  depth 1  ", "  cost 0.008 of 0.008 EUR  run ",
		"└─ slow/s1  QUEUED, place 1 in the mailbox  depth 1  time left ",
	} {
		if !strings.Contains(tree, want) {
			t.Errorf("no %q in\n%s", want, tree)
		}
	}
	if strings.Contains(tree, "depth 1  time left 0s") {
		t.Errorf("a queued call has no time left:\n%s", tree)
	}
	program("runs", "cancel", run)
	if tree = program("runs", "show", run, "--tree"); !strings.Contains(tree, "└─ slow/s1  CANCELLED") || strings.Count(tree, "depth 1") != 2 {
		t.Errorf("after the cancellation:\n%s", tree)
	}
	_, list, _ := strings.Cut(program("runs", "list", "--root", run, "--agent", "big", "--json"), `"run_id": "`)
	if out := program("runs", "show", list[:36]); !strings.Contains(out, "\ntokens   2300 (2000 in, 300 out)\ncost     0.008 EUR\n") {
		t.Errorf("a run without calls:\n%s", out)
	}
	program("runs", "cancel", busy)
}

// A failure shows the code that an agent, a tool or a model has reported, on one line.
func TestReportedCodeIsShown(t *testing.T) {
	for text, want := range map[string]string{
		`{"message":"AgentCallRejected: no","code":"call_rejected","reported_code":"FILE\nNOT_FOUND"}`: `AgentCallRejected: no (it reported FILE\nNOT_FOUND)`,
		`{"message":"AgentCallRejected: no"}`: "AgentCallRejected: no",
	} {
		var e runError
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.text() != want {
			t.Errorf("%s: %q, %v, want %q", text, e.text(), err, want)
		}
	}
	for text, want := range map[string]string{
		`{"code":"call_rejected","detail":"no","reported_code":"X_Y"}`:                "call_rejected: no (it reported X_Y)",
		`{"code":"call_rejected","detail":"no","reported_code":"X_Y","run_id":"r-1"}`: "call_rejected: no (it reported X_Y) (see: troupe runs show r-1)",
		`{"code":"call_rejected","detail":"no"}`:                                      "call_rejected: no",
	} {
		if err := (client{}).problem(403, []byte(text)); err.Error() != want {
			t.Errorf("%s: %q, want %q", text, err, want)
		}
	}
}
