// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// A repeat sends the whole message in the same session, once the user has been told what the run and those below it have
// performed, and has agreed if another call could have a second effect.
func TestRunsRepeat(t *testing.T) {
	held, performed := make(chan struct{}), atomic.Int64{}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			select {
			case <-held:
			case <-r.Context().Done():
				return
			}
		}
		performed.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"ok":true}`))
	}))
	defer service.Close()
	tool := func(name, more string) string {
		return ">> " + name + ".toml\n[tool]\ntool_name = \"" + name + "\"\nurl = \"" + service.URL + "/" + name + "\"\n" + more + "\n"
	}
	files := writeFiles(t, tool("book", "")+tool("look", "idempotent = true")+tool("held", "idempotent = true")+tool("pay", "policy = \"require_approval\"")+
		">> front.toml\nname = \"front\"\nmodel = \"scripted\"\nprompt = \"x\"\ntools = [\"book\", \"look\", \"held\", \"pay\", \"call_agent\"]\nagents = [\"back\"]\n"+
		">> back.toml\nname = \"back\"\nmodel = \"scripted\"\nprompt = \"x\"\ntools = [\"book\"]\n")
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir, "--agents", files)
	program := func(args ...string) (code int, out, errs string) {
		t.Helper()
		return runProgram(t, append(args, "--server", s.url)...)
	}
	begin := func(session, text string) string {
		t.Helper()
		code, out, errs := program("call", "front", text, "--session", session, "--async")
		if code != 0 {
			t.Fatal(errs)
		}
		return strings.TrimSpace(out)
	}
	waits := func(run, status string) {
		t.Helper()
		waitUntil(t, run+" to be "+status, func() bool {
			_, out, _ := program("runs", "show", run)
			return strings.Contains(out, status)
		})
	}
	refused := func(run, why string, flags ...string) {
		t.Helper()
		before := performed.Load()
		code, out, errs := program(append([]string{"runs", "repeat", run}, flags...)...)
		if code != exitFailed || out != "" || !strings.Contains(errs, why) || performed.Load() != before {
			t.Errorf("exit code %d, %s%s\nwant %q", code, out, errs, why)
		}
	}

	for name, want := range map[string]bool{"look": true, "book": false, "none": false} { // for another user too: tools are those of all
		for _, namespace := range []string{"", "anna"} {
			if got := (client{server: s.url, namespace: namespace}).isIdempotent(name); got != want {
				t.Errorf("tool %s is idempotent for %q: %v", name, namespace, got)
			}
		}
	}

	// The message names the tools that were performed, also in the runs below, and no others.
	run := begin("s1", "use look {}\nask back: use book {\"n\": 1}\nthen\nuse book {\"n\": 2}\nthen\nuse held {}")
	waits(run, "PAUSED_WAITING_TOOL")
	waitUntil(t, "two calls of book", func() bool { return performed.Load() == 3 })
	refused(run, "is open (PAUSED_WAITING_TOOL)")
	if code, _, errs := program("runs", "cancel", run); code != 0 {
		t.Fatal(errs)
	}
	refused(run, "not all are idempotent")
	_, _, errs := program("runs", "repeat", run)
	for _, line := range []string{"  look  done  {}\n", "  book  done  {\"n\":2}\n", "  held  outcome unknown  {}\n", "  book  done  {\"n\":1}  by back/s1, run "} {
		if !strings.Contains(errs, line) {
			t.Errorf("no line %q in\n%s", line, errs)
		}
	}
	_, list, _ := program("runs", "list", "--root", run, "--agent", "back", "--json")
	_, child, _ := strings.Cut(list, `"run_id": "`)
	refused(child[:36], "to repeat the root of its tree, if that failed:\n  troupe runs repeat "+run)
	close(held)
	code, out, errs := runProgram(t, hintedCommands(t, errs)[0]...) // as it was printed, with --yes
	if code != 0 || strings.Count(out, `{"ok":true}`) != 4 || !strings.Contains(errs, "performed before its end") {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	sent := func(session string) (all []string) {
		t.Helper()
		var page struct {
			Messages []struct {
				Content string `json:"content"`
				Role    string `json:"role"`
			} `json:"messages"`
		}
		if _, err := s.request("GET", "/v1/sessions/"+session+"/messages?agent=front", "", "", &page); err != nil {
			t.Fatal(err)
		}
		for _, m := range page.Messages {
			if m.Role == "user" {
				all = append(all, m.Content)
			}
		}
		return all
	}
	if all := sent("s1"); len(all) != 2 || all[0] != all[1] {
		t.Errorf("%q", all)
	}
	_, list, _ = program("runs", "list", "--limit", "1", "--json")
	_, again, _ := strings.Cut(list, `"run_id": "`)
	refused(again[:36], "has succeeded, and is not repeated", "--yes")

	// Nothing was performed by a call that a person has not approved, so no agreement is needed. The message has more
	// than its event, over a restart too.
	long := "say " + strings.Repeat("é", 3000)
	run = begin("s2", long+"\nuse pay {}")
	waits(run, "PAUSED_WAITING_APPROVAL")
	if code, _, errs := program("runs", "cancel", run); code != 0 {
		t.Fatal(errs)
	}
	s.stop(syscall.SIGKILL)
	s = startServer(t, dir, "--agents", files)
	code, out, errs = program("runs", "repeat", run, "--async")
	if code != 0 || strings.Contains(errs, "performed") {
		t.Fatal(code, out, errs)
	}
	again = strings.TrimSpace(out)
	waits(again, "PAUSED_WAITING_APPROVAL")
	if code, _, errs := program("runs", "cancel", again); code != 0 {
		t.Fatal(errs)
	}
	if all := sent("s2"); len(all) != 2 || all[0] != long+"\nuse pay {}" || all[1] != all[0] {
		t.Errorf("%d messages, the first of %d bytes", len(all), len(all[0]))
	}
	refused("01a22d3c-33d9-7fe6-93d0-20e23eaa6d00", "run_not_found")
}
