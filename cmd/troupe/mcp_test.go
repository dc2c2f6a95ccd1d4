// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// bridge is a client of troupe mcp, which runs in a process of its own.
type bridge struct {
	*testing.T
	session *mcp.ClientSession

	mu       sync.Mutex
	progress []string
}

func startBridge(t *testing.T, url string, args ...string) *bridge {
	t.Helper()
	b := &bridge{T: t}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.progress = append(b.progress, r.Params.Message)
		}})
	c := programCmd(append([]string{"mcp", "--server", url}, args...)...)
	c.Stderr = os.Stderr
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	if b.session, err = client.Connect(ctx, &mcp.CommandTransport{Command: c}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.session.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bridge) tools() (names []string) {
	b.Helper()
	for tool, err := range b.session.Tools(b.Context(), nil) {
		if err != nil {
			b.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	return names
}

// call returns the result of a tool, and its texts.
func (b *bridge) call(tool string, arguments map[string]any) (out mcpAnswer, failed bool, texts []string) {
	b.Helper()
	p := &mcp.CallToolParams{Name: tool, Arguments: arguments}
	p.SetProgressToken("p")
	r, err := b.session.CallTool(b.Context(), p)
	if err != nil {
		b.Fatal(tool, err)
	}
	for _, c := range r.Content {
		texts = append(texts, c.(*mcp.TextContent).Text)
	}
	if !r.IsError {
		structured, _ := json.Marshal(r.StructuredContent)
		if err := json.Unmarshal(structured, &out); err != nil {
			b.Fatal(err)
		}
	}
	return out, r.IsError, texts
}

// The agents of a server are tools, whose conversations continue.
func TestAgentsAreMCPTools(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir, "--agents", writeFiles(t, `>> scribe.toml
name = "scribe"
description = "Writes what it is asked to."
agents = ["helper.de"]
>> helper.toml
name = "helper.de"
`))
	b := startBridge(t, s.url, "--wait", "30s")
	helper := mcpToolName("helper.de")
	if got := b.tools(); fmt.Sprint(got) != fmt.Sprint([]string{helper, "ask_scribe", "cancel_run", "wait_for_run"}) && len(got) != 4 {
		t.Errorf("got tools %v", got)
	}
	first, failed, texts := b.call("ask_scribe", map[string]any{"message": "ask helper.de: say one"})
	if failed || first.Status != "DONE" || first.Answer != "one" || texts[0] != "one" || !strings.Contains(texts[1], first.Session) {
		t.Fatalf("got %+v, %q", first, texts)
	}
	waitUntil(t, "progress", func() bool { // which may arrive after the answer
		b.mu.Lock()
		defer b.mu.Unlock()
		return strings.Contains(strings.Join(b.progress, "\n"), "agent called child")
	})
	if again, _, texts := b.call("ask_scribe", map[string]any{"message": "list my messages", "session_id": first.Session}); again.Session != first.Session || texts[0] != "1. ask helper.de: say one" {
		t.Errorf("got %+v, %q", again, texts)
	}
	for _, c := range []struct {
		tool      string
		arguments map[string]any
		want      string
	}{
		{"ask_scribe", map[string]any{}, "message"},
		{"ask_scribe", map[string]any{"message": ""}, "empty"},
		{"ask_scribe", map[string]any{"message": "x", "session_id": "a/b"}, "session_id"},
		{"wait_for_run", map[string]any{"run_id": "x"}, "run_id"},
		{"wait_for_run", map[string]any{"run_id": "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"}, "run_not_found"},
	} {
		if _, failed, texts := b.call(c.tool, c.arguments); !failed || !strings.Contains(texts[0], c.want) {
			t.Errorf("%s %v: got %v, %q, want an error with %q", c.tool, c.arguments, failed, texts, c.want)
		}
	}
	if late, failed, texts := b.call("cancel_run", map[string]any{"run_id": first.Run}); failed || late.Status != "DONE" {
		t.Errorf("got %+v, %q, want the end of the run", late, texts)
	}
	// The list follows the agents of the server.
	for _, body := range []string{`{"name":"extra"}`, `{"name":"quick","durability":"none"}`} {
		var made map[string]any
		if status, err := s.request("POST", "/v1/agents", body, "", &made); status != 201 || err != nil {
			t.Fatal(status, err, made)
		}
	}
	if got := b.tools(); !slices.Contains(got, "ask_extra") {
		t.Errorf("got tools %v after an agent was created", got)
	}
	if out, _, texts := b.call("ask_quick", map[string]any{"message": "say fast"}); out.Answer != "fast" || out.Run != "" || texts[0] != "fast" {
		t.Errorf("got %+v, %q", out, texts)
	}
	var deleted map[string]any
	if status, err := s.request("DELETE", "/v1/agents/extra", "", "", &deleted); status >= 300 || err != nil {
		t.Fatal(status, err)
	}
	if got := b.tools(); slices.Contains(got, "ask_extra") {
		t.Errorf("got tools %v after an agent was deleted", got)
	}
	if got := startBridge(t, s.url, "--agent", "scribe").tools(); fmt.Sprint(got) != "[ask_scribe cancel_run wait_for_run]" {
		t.Errorf("got tools %v, want those of one agent", got)
	}
}

// A call that needs a person returns with the approval, and its answer comes later, also after a
// restart of the server.
func TestMCPToolWaitsForPerson(t *testing.T) {
	p := startPayments(t, "")
	b := startBridge(t, p.server.url, "--wait", "30s")
	out, failed, texts := b.call("ask_boss", map[string]any{"message": script("boss", "20")})
	id := approvalID.FindString(strings.Join(texts, "\n"))
	if failed || out.Status != "PAUSED_WAITING_APPROVAL" || id == "" || !strings.Contains(texts[0], "pays 20 to anna") || !strings.Contains(texts[0], "troupe approvals approve") {
		t.Fatalf("got %+v, %q", out, texts)
	}
	answered := make(chan mcpAnswer, 1)
	go func() {
		var end mcpAnswer
		defer func() { answered <- end }() // also if the call fails
		end, _, _ = b.call("wait_for_run", map[string]any{"run_id": out.Run})
	}()
	p.run(0, []string{"approved payments.transfer"}, nil, "approvals", "approve", id)
	if out := <-answered; out.Status != "DONE" || !strings.Contains(out.Answer, "receipt") || p.paid.Load() != 1 {
		t.Errorf("got %+v after %d payments", out, p.paid.Load())
	}
	// A run that nobody decides about can be cancelled.
	out, _, _ = b.call("ask_payer", map[string]any{"message": script("payer", "30")})
	if done, failed, texts := b.call("cancel_run", map[string]any{"run_id": out.Run}); failed || done.Status != "CANCELLED" {
		t.Errorf("got %+v, %q", done, texts)
	}
	if _, failed, texts := b.call("wait_for_run", map[string]any{"run_id": out.Run}); !failed || !strings.Contains(texts[0], "cancelled") || p.paid.Load() != 1 {
		t.Errorf("got %q after %d payments", texts, p.paid.Load())
	}
}

// A run that takes longer than a call continues.
func TestMCPToolReturnsBeforeLongRun(t *testing.T) {
	p := startPayments(t, "")
	b := startBridge(t, p.server.url, "--wait", "1ms")
	out, _, texts := b.call("ask_boss", map[string]any{"message": "say later"})
	if out.Status != "DONE" && !strings.Contains(texts[0], "call wait_for_run") {
		t.Errorf("got %+v, %q", out, texts)
	}
	for out.Status == "RUNNING" || out.Status == "PAUSED_WAITING_TOOL" {
		out, _, texts = b.call("wait_for_run", map[string]any{"run_id": out.Run})
	}
	if out.Answer != "later" {
		t.Errorf("got %+v, %q", out, texts)
	}
}

// Without a server the first list is an error with its address.
func TestMCPToolsOfAbsentServer(t *testing.T) {
	b := startBridge(t, "http://127.0.0.1:1")
	_, err := b.session.ListTools(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("got %v", err)
	}
}

// Input that is no message is refused with the use of the command.
func TestMCPInputMustBeMessages(t *testing.T) {
	c := programCmd("mcp", "--server", "http://127.0.0.1:1")
	c.Stdin = strings.NewReader("hello\n")
	out, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "an application starts this command") {
		t.Errorf("%v: %s", err, out)
	}
}

// A line that is no message is skipped, and a request in it is refused.
func TestMCPSkipsBadLines(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--agents", writeFiles(t, ">> scribe.toml\nname = \"scribe\"\n"))
	c := programCmd("mcp", "--server", s.url)
	c.Stdin = strings.NewReader(strings.Join([]string{"hello", "\uFEFF{}", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		"[]", "[1]", "\x00\xff", `{"jsonrpc":"2.0"}`, `{"jsonrpc":"2.0","id":7,`, `{"jsonrpc":"1.0","id":8,"method":"ping"}`, strings.Repeat("x", inputLineMax+1),
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"level":"info"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"ask_scribe","arguments":{"message":"say one"}}}`}, "\n"))
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil || !strings.Contains(string(out), `"answer":"one"`) || !strings.Contains(string(out), `"id":8,"error":{"code":-32600`) {
		t.Errorf("%v: %s", err, out)
	}
	if n := strings.Count(stderr.String(), "is skipped"); n != skippedLogged {
		t.Errorf("%d lines are named, want %d:\n%.2000s", n, skippedLogged, stderr.String())
	}
}

// Requests before the end of the input are answered.
func TestMCPAnswersBeforeItEnds(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--agents", writeFiles(t, ">> scribe.toml\nname = \"scribe\"\n"))
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	for _, last := range []string{"", "no message\n"} {
		c := programCmd("mcp", "--server", s.url)
		c.Stdin = strings.NewReader(initialize + "\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" +
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"ask_scribe","arguments":{"message":"say one"}}}` + "\n" + last)
		out, _ := c.Output()
		if !strings.Contains(string(out), `"answer":"one"`) {
			t.Errorf("got %s", out)
		}
	}
}

// The result of a tool that cannot be known has the reason.
func TestMCPToolOfWrongKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir, "--keyless=off", "--agents", writeFiles(t, ">> scribe.toml\nname = \"scribe\"\n"))
	b := startBridge(t, s.url, "--key", "troupe_wrong")
	if _, failed, texts := b.call("ask_scribe", map[string]any{"message": "x"}); !failed || !strings.Contains(texts[0], "key") {
		t.Errorf("got %q", texts)
	}
	s.useAdminKey(dir)
	c := programCmd("mcp", "--server", s.url, "--key", s.apiKey, "--agent", "scrib")
	var stderr strings.Builder
	c.Stderr = &stderr
	if err := c.Run(); err != nil || !strings.Contains(stderr.String(), "no agent scrib now") {
		t.Errorf("%v: %s", err, stderr.String())
	}
}

// A server that does not answer, or whose list does not end, neither delays the start nor keeps the
// command from its end.
func TestMCPToolsOfHostileServer(t *testing.T) {
	requests := make(chan string, 1)
	hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/slow/") {
			requests <- r.URL.Path
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, `{"agents":[],"next_cursor":"same"}`)
	}))
	t.Cleanup(hostile.Close)
	b := startBridge(t, hostile.URL+"/slow") // it initializes
	<-requests
	if err := b.session.Close(); err != nil { // otherwise it is killed
		t.Error(err)
	}
	b = startBridge(t, hostile.URL)
	if _, err := b.session.ListTools(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "do not end") {
		t.Errorf("got %v", err)
	}
	code, out, stderr := runProgram(t, "agents", "list", "--server", "http://u:secret@127.0.0.1:1")
	if code == 0 || !strings.Contains(stderr, "without user") || strings.Contains(out+stderr, "secret") {
		t.Errorf("%d %s%s", code, out, stderr)
	}
}

func TestMCPToolNames(t *testing.T) {
	long := strings.Repeat("x", 80)
	for agent, want := range map[string]string{"helper": "ask_helper", "a-b_C9": "ask_a-b_C9"} {
		if got := mcpToolName(agent); got != want {
			t.Errorf("%s: got %s, want %s", agent, got, want)
		}
	}
	for _, pair := range [][2]string{{"a.b", "a_b"}, {"a.b", "a@b"}, {long, long + "y"}, {"pay.bot", strings.TrimPrefix(mcpToolName("pay.bot"), "ask_")}} {
		one, two := mcpToolName(pair[0]), mcpToolName(pair[1])
		if one == two || len(one) > mcpNameMax || len(two) > mcpNameMax {
			t.Errorf("%q have the names %s and %s", pair, one, two)
		}
	}
}
