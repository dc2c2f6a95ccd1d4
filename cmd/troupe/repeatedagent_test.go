// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// An agent that was written from the printed protocol alone, and keeps nothing, pays over 20 kills of the server. One
// payment, and two in parallel whose order changes with each invocation: each has one approval and is made once. If
// it makes another request than before, the run is parked, shows both, and makes none.
func TestPlainAgentPaysOnceOverKills(t *testing.T) {
	const kills = 20
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	var mu sync.Mutex
	paid := map[string]int{} // by arguments
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		paid[string(body)]++
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"receipt":%d}`, len(paid))
	}))
	t.Cleanup(bank.Close)
	payments := func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(paid)
	}
	files := writeFiles(t, `>> pay.toml
[tool]
tool_name = "payments.transfer"
url = "`+bank.URL+`/pay"
policy = "require_approval"
approval_timeout_ms = 3600000
input_schema = '{"type": "object", "properties": {"amount": {}}}'
`)
	dir := filepath.Join(t.TempDir(), "data")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	start := func() *server { return startServerAt(t, dir, address, "--agents", files) }
	s := start()
	lines := startPayAgent(t, python, s.url)
	said := map[string]bool{} // since the last start
	hear := func(want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for !said[want] {
			select {
			case line := <-lines:
				said[line] = true
			case <-ctx.Done():
				text, _ := os.ReadFile(s.log)
				t.Fatalf("the agent did not say %q, but %v\n%s", want, said, text)
			}
		}
	}
	asked := map[string]string{} // arguments of all approvals, by ID
	approvals := func() []approvalView {
		t.Helper()
		var page struct {
			Approvals []approvalView `json:"approvals"`
		}
		waitUntil(t, "the list of approvals", func() bool { // 503 while the server loads its open runs
			code, err := s.request("GET", "/v1/approvals", "", "", &page)
			return err == nil && code == 200
		})
		for _, a := range page.Approvals {
			asked[a.ID] = string(a.Args)
		}
		return page.Approvals
	}
	// approve returns the ID of the tool call.
	approve := func(amount string) string {
		t.Helper()
		for _, a := range approvals() {
			if strings.Contains(string(a.Args), amount) {
				if code, err := s.request("POST", "/v1/approvals/"+a.ID+":decide", `{"decision":"approve"}`, "", &struct{}{}); code != 200 || err != nil {
					t.Fatal(code, err)
				}
				return a.ToolCall
			}
		}
		t.Fatalf("no approval for %s: %+v", amount, asked)
		return ""
	}
	run := map[string]string{} // by message
	for _, text := range []string{"20", "30,31", "41+"} {
		code, out, stderr := runProgram(t, "call", "payer", text, "--session", "s"+text[:2], "--async", "--server", s.url)
		if code != 0 {
			t.Fatal(stderr)
		}
		run[text] = strings.TrimSpace(out)
		for _, amount := range strings.Split(strings.TrimSuffix(text, "+"), ",") {
			hear("asked " + text + " " + amount)
		}
	}
	// The kill comes after the invocation, after the first request, or after all of them.
	moments := []string{"invoked 30,31", "asked 30,31 30", "asked 30,31 31", "asked 20 20"}
	for i := range kills {
		if i == kills/2 {
			id := approve("31")
			waitUntil(t, "the first payment to be recorded", func() bool { // a kill before makes its outcome unknown
				var call struct {
					State string `json:"state"`
				}
				code, err := s.request("GET", "/v1/tool_calls/"+id, "", "", &call)
				return err == nil && code == 200 && call.State == "SUCCEEDED"
			})
		}
		s.stop(syscall.SIGKILL)
		clear(said)
		s = start()
		if i+1 < kills {
			hear(moments[i%len(moments)])
		}
		if want := 4 - len(payments()); len(approvals()) != want {
			t.Fatalf("%d approvals wait after kill %d, want %d: %v", len(approvals()), i+1, want, approvals())
		}
	}
	approve("20")
	approve("30")
	show := func(id string) (r struct {
		Status string `json:"status"`
		State  string `json:"agent_state"`
		Answer string `json:"content"`
		Error  struct {
			Code   string `json:"code"`
			Detail string `json:"detail"`
		} `json:"error"`
	}) {
		t.Helper()
		if code, err := s.request("GET", "/v1/runs/"+id, "", "", &r); code != 200 || err != nil {
			t.Fatal(code, err)
		}
		return r
	}
	for _, text := range []string{"20", "30,31"} {
		waitUntil(t, "the end of "+text, func() bool { return show(run[text]).Status == "DONE" })
	}
	if got, want := payments(), map[string]int{`{"amount":20}`: 1, `{"amount":30}`: 1, `{"amount":31}`: 1}; !maps.Equal(got, want) {
		t.Errorf("payments: %v, want %v", got, want)
	}
	waitUntil(t, "the other request to park its run", func() bool { return show(run["41+"]).State == "Parked" })
	if r := show(run["41+"]); r.State != "Parked" || r.Error.Code != "outcome_unknown" || !strings.Contains(r.Error.Detail, `before: payments.transfer {"amount":41}`) || !strings.Contains(r.Error.Detail, `now: payments.transfer {"amount":`) {
		t.Errorf("the run of the other request: %+v", r)
	}
	approvals()
	if got := slices.Sorted(maps.Values(asked)); !slices.Equal(got, []string{`{"amount":20}`, `{"amount":30}`, `{"amount":31}`, `{"amount":41}`}) {
		t.Errorf("a person was asked for %q, want each payment once", got)
	}
}

// startPayAgent starts the agent and returns what it says after it has registered.
func startPayAgent(t *testing.T, python, url string) <-chan string {
	t.Helper()
	service := exec.Command(python, "testdata/payagent.py", url)
	out, err := service.StdoutPipe()
	if err == nil {
		err = service.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 10_000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() { _ = service.Process.Kill(); <-ended; _ = service.Wait() })
	if line := <-lines; line != "registered" {
		t.Fatal(line)
	}
	return lines
}
