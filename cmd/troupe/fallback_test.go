// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
)

// TestFallbackOfModelIsRecorded follows an answer that another model gives: events, costs and figures name that one, also
// after the server was killed.
func TestFallbackOfModelIsRecorded(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		if strings.HasPrefix(in.URL.Path, "/big/") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		writeEvents(w, `data: {"choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":"stop"}]}`,
			`data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`, "data: [DONE]")
	}))
	t.Cleanup(service.Close)
	dir := t.TempDir()
	data, config, agents := filepath.Join(dir, "data"), filepath.Join(dir, "troupe.toml"), filepath.Join(dir, "agents")
	models := fmt.Sprintf("[models.big]\nurl = %[1]q\nfallback = [\"small\"]\nprice_input = 5\nprice_output = 5\n[models.small]\nurl = %[2]q\nprice_input = 2\nprice_output = 2\n",
		service.URL+"/big", service.URL+"/small")
	if err := os.Mkdir(agents, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{config: models, filepath.Join(agents, "a.toml"): "name = \"a\"\nmodel = \"big\"\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := startServer(t, data, "--config", config, "--agents", agents)
	var names []string
	for _, e := range s.stream("a", "hi", nil) {
		switch e.Type {
		case "llm_call_started", "llm_call_done":
			names = append(names, e.Type+" "+e.Payload.Name)
		case "attempt":
			names = append(names, e.Payload.Error.Code+" "+e.Payload.Error.Detail)
		}
	}
	want := []string{"llm_call_started big", "agent_unavailable model big answers 503; model small is asked", "llm_call_done small"}
	if fmt.Sprint(names) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", names, want)
	}
	check := func(when string) {
		t.Helper()
		code, out, errs := runProgram(t, "usage", "--json", "--server", s.url, "--by", "model")
		var got usageReport
		if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil {
			t.Fatal(code, err, out, errs)
		}
		if want := (usageRow{Model: "small", Runs: 1, Answers: 1, Input: 7, Output: 3, Total: 10, Cost: 20}); len(got.Rows) != 1 || got.Rows[0] != want {
			t.Errorf("%s: got %+v, want %+v", when, got.Rows, want)
		}
	}
	check("before")
	s.stop(syscall.SIGKILL)
	s = startServer(t, data, "--config", config, "--agents", agents)
	check("after a kill")
	// The check of the files names what is wrong with a fallback.
	if err := os.WriteFile(config, []byte(strings.Replace(models, `["small"]`, `["smal"]`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := runProgram(t, "check", "--config", config, agents); code == 0 || !strings.Contains(out+errs, `models.big.fallback: "smal" is no model; did you mean small?`) {
		t.Errorf("check: %d %s %s", code, out, errs)
	}
}
