// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// promptRecorder is a model that answers each prompt with one word.
type promptRecorder struct {
	*httptest.Server
	prompts chan upstream.Prompt
}

func newPromptRecorder(t *testing.T) *promptRecorder {
	r := &promptRecorder{prompts: make(chan upstream.Prompt, 16)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err == nil {
			var prompt upstream.Prompt
			if prompt, err = upstream.DecodePrompt(body); err == nil {
				r.prompts <- prompt
			}
		}
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write(upstream.AppendStream(nil, upstream.Completion{Text: "yes", Finish: upstream.FinishStop}, 10))
	}))
	t.Cleanup(r.Close)
	return r
}

// offered sends a message to an agent and returns the tools that its model is offered.
func (r *promptRecorder) offered(t *testing.T, url, agent string) string {
	t.Helper()
	resp, err := http.Post(url+"/v1/agents/"+agent+"/messages", "application/json", strings.NewReader(`{"content":"hello"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode >= 300 {
		t.Fatalf("%s %s %v", resp.Status, body, err)
	}
	select {
	case prompt := <-r.prompts:
		var names []string
		for _, tool := range prompt.Tools {
			names = append(names, tool.Name)
		}
		return strings.Join(names, " ")
	case <-time.After(30 * time.Second):
		t.Fatal("the model got no prompt")
		return ""
	}
}

const weatherFile = `[tool]
tool_name = "weather.get"
description = "Current weather of a city."
url = "http://127.0.0.1:9000/w/{city}"

[tool.input_schema.properties.city]
type = "string"

[tool.input_schema]
type = "object"
`

// A file declares a tool that an agent of another file is offered. The tool is stored, and a
// change of it reaches the agent at once.
func TestToolFileIsOffered(t *testing.T) {
	model := newPromptRecorder(t)
	dir, data := t.TempDir(), filepath.Join(t.TempDir(), "data")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	open := func() (*Service, string) {
		t.Helper()
		s, err := Open(Config{
			Node: node.Config{Data: data, Name: "n1", WriteBuffer: 1 << 20, Limits: dispatcher.DefaultLimits(), FreeFloor: 1,
				Outbound: outbound.Config{Models: map[string]outbound.Model{"m": {URL: model.URL}}, Allow: upstream.AllowLoopback()}},
			Gateway: gateway.Config{},
		}, log)
		if err != nil {
			t.Fatal(err)
		}
		files, err := ReadAgentFiles(dir)
		if err != nil || files.HasErrors() {
			t.Fatal(err, files)
		}
		if err := files.Apply(s, log); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = s.Gateway.Serve(l) }()
		return s, s.Announce(l.Addr())
	}
	stop := func(s *Service) {
		t.Helper()
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
	write("a.toml", "name = \"a\"\nmodel = \"m\"\ntools = [\"weather.get\"]\n")
	write("weather.toml", weatherFile)
	write("camera.toml", "[tool]\ntool_name = \"camera.photo\"\nkind = \"client_tool\"\n")
	s, url := open()
	if got := model.offered(t, url, "a"); got != "weather__get" {
		t.Errorf("the agent is offered %q", got)
	}
	stored, ok := s.Tool("weather.get")
	if !ok || stored.Owner != agents.Operator || len(s.Tools()) != 2 || s.Tools()[0].Kind != tools.KindClient {
		t.Errorf("%+v", s.Tools())
	}

	// A deletion while the node runs, and a new declaration.
	_, warnings, err := s.CallRegistry(t.Context(), agents.OpDeleteTool, []byte(`{"tool_name":"weather.get"}`))
	if err != nil || strings.Join(warnings, ";") != "agent a: tools weather.get are not available on this node" {
		t.Errorf("delete: %v, %v", warnings, err)
	}
	if got := model.offered(t, url, "a"); got != "" {
		t.Errorf("after the deletion the agent is offered %q", got)
	}
	if changed, warnings, err := s.PutTool(t.Context(), stored.Declared); err != nil || !changed || len(warnings) > 0 {
		t.Errorf("put: %t, %v, %v", changed, warnings, err)
	}
	if got := model.offered(t, url, "a"); got != "weather__get" {
		t.Errorf("after it is declared again, the agent is offered %q", got)
	}
	stop(s)

	// The next start changes the tool from its file; without it the tool stays.
	write("weather.toml", strings.Replace(weatherFile, "w/{city}", "v2/{city}", 1))
	s, _ = open()
	if changed, _ := s.Tool("weather.get"); changed.Hash() == stored.Hash() || !strings.Contains(changed.URL, "v2") {
		t.Errorf("the tool has the URL %s", changed.URL)
	}
	stop(s)
	if err := os.Remove(filepath.Join(dir, "weather.toml")); err != nil {
		t.Fatal(err)
	}
	s, url = open()
	if got := model.offered(t, url, "a"); got != "weather__get" {
		t.Errorf("without its file the agent is offered %q", got)
	}
	stop(s)
}

// The configuration has to permit the secret of a header for the host.
func TestToolFileWithUnboundSecretIsRefused(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	d, err := agents.ReadToolTOML("[tool]\ntool_name = \"a\"\nurl = \"http://127.0.0.1:9000/w/{x}\"\nheaders = { Authorization = { env = \"TROUPE_AUTH_W\" } }\n" +
		"input_schema = '{\"type\":\"object\",\"properties\":{\"x\":{}}}'\n")
	if err != nil {
		t.Fatal(err)
	}
	for auth, want := range map[string]string{"": "may not send the secret TROUPE_AUTH_W to 127.0.0.1:9000", "127.0.0.1:9000": "", "http://127.0.0.1:9000/v": "may not send", "http://127.0.0.1:9000/w": ""} {
		t.Setenv("TROUPE_AUTH_W", "secret")
		c := outbound.Config{Allow: upstream.AllowLoopback()}
		if auth != "" {
			c.Auth = map[string]string{"TROUPE_AUTH_W": auth}
		}
		s, err := Open(Config{Node: node.Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", WriteBuffer: 1 << 20, Limits: dispatcher.DefaultLimits(), FreeFloor: 1, Outbound: c}}, log)
		if err != nil {
			t.Fatal(err)
		}
		files := &AgentFiles{Tools: []ToolFile{{"a.toml", d}}}
		if err := files.Apply(s, log); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("bound to %q: got %v, want %q", auth, err, want)
		}
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// The file in the guide has every field and is valid.
func TestToolFileOfGuide(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "guide-agents.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```toml\n[tool]\n")
	text, _, ok := strings.Cut("[tool]\n"+text, "```")
	if !ok {
		t.Fatal("no file of a tool")
	}
	if _, err := agents.ReadToolTOML(text); err != nil {
		t.Error(err)
	}
	const via = "```toml\nvia = \"wasm\"\n"
	_, module, ok := strings.Cut(string(page), via)
	module, _, closed := strings.Cut("[tool]\ntool_name = \"a\"\nvia = \"wasm\"\n"+module, "```")
	if _, err := agents.ReadToolTOML(module); err != nil || !ok || !closed {
		t.Errorf("the file of a module: %v", err)
	}
	const list = "```toml\n[tool]\ntool_name = \"trip.book\"\n"
	_, pipeline, ok := strings.Cut(string(page), list)
	pipeline, _, closed = strings.Cut("[tool]\ntool_name = \"trip.book\"\n"+pipeline, "```")
	if d, err := agents.ReadToolTOML(pipeline); err != nil || !ok || !closed || len(d.Steps) != 2 || d.Steps[1].From["place"] != "/1/id" {
		t.Errorf("the file of a pipeline: %v %+v", err, d)
	}
	text += module + strings.ReplaceAll(pipeline, "[[tool.steps]]", "[tool.steps]")
	for _, field := range tools.DeclaredFields() {
		if !strings.Contains(text, "\n"+field+" = ") && !strings.Contains(text, "\n[tool."+field+"]") {
			t.Errorf("the field %s is missing", field)
		}
	}
}
