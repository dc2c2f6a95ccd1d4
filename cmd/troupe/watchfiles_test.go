// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
)

// The files of agents and tools apply while the server runs. Each answer of the model is
// the first message of its prompt, the system prompt.
func TestWatchAppliesChangedFiles(t *testing.T) {
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request modelRequest
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		delta, _ := json.Marshal(request.Messages[0].Content)
		writeEvents(w, `data: {"choices":[{"index":0,"delta":{"content":`+string(delta)+`}}]}`, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, "data: [DONE]")
	}))
	defer model.Close()
	agents := writeFiles(t, ">> planner.toml\nname = \"planner\"\nmodel = \"big\"\nprompt = \"first\"")
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, []byte("[models.big]\nurl = \""+model.URL+"/v1\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--agents", agents, "--config", config, "--watch", "--log-level", "info")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(agents, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	logged := func(want string) {
		t.Helper()
		waitUntil(t, "log line "+want, func() bool {
			b, err := os.ReadFile(s.log)
			return err == nil && strings.Contains(string(b), want)
		})
	}
	answers := func(agent, want string) {
		t.Helper()
		if status, a := s.call(agent, "hello"); status != 200 || !strings.Contains(a.Content, want) {
			t.Errorf("%s: status %d, answer %q, want %q", agent, status, a.Content, want)
		}
	}
	answers("planner", "first")

	write("planner.toml", "name = \"planner\"\nmodel = \"big\"\nprompt = \"second\"\nagents = [\"planner\"]\n")
	logged(`"agent planner: agents, prompt changed"`)
	answers("planner", "second")

	write("pay.toml", "[tool]\ntool_name = \"pay\"\nurl = \"http://127.0.0.1:9/pay\"\n\n[tool.input_schema]\ntype = \"object\"\n")
	logged(`"tool pay: added"`)
	write("pay.toml", "[tool]\ntool_name = \"pay\"\nurl = \"http://127.0.0.1:9/pay\"\npolicy = \"block\"\n\n[tool.input_schema]\ntype = \"object\"\n")
	logged(`"tool pay: policy changed"`)

	// The warning of a change is logged once.
	write("warned.toml", "name = \"warned\"\nmodel = \"big\"\ntools = [\"gone\"]\n")
	logged(`"agent warned: added"`)
	b, err := os.ReadFile(s.log)
	if n := strings.Count(string(b), "agent warned: tools"); err != nil || n != 1 || strings.Contains(string(b), "warned: agent warned") {
		t.Errorf("%v, %d warnings in\n%s", err, n, b)
	}

	// A broken file is named. Nothing changes, not even by the files that are right.
	write("scout.toml", "name = \"scout\"\nprompt = 7\n")
	logged("scout.toml:2:")
	write("planner.toml", "name = \"planner\"\nmodel = \"big\"\nprompt = \"third\"\n")
	logged("not applied: all definitions stay")
	answers("planner", "second")
	write("scout.toml", "name = \"scout\"\nmodel = \"big\"\nprompt = \"I look\"\n")
	logged(`"agent scout: added"`)
	answers("scout", "I look")
	answers("planner", "third")

	// As at a start, an agent without a file stays.
	if err := os.Remove(filepath.Join(agents, "scout.toml")); err != nil {
		t.Fatal(err)
	}
	logged("agent scout: no file declares it any more; it stays until it is deleted: troupe agents delete scout --data " + filepath.Join(dir, "data"))
	answers("scout", "I look")
	if err := os.Remove(filepath.Join(agents, "pay.toml")); err != nil {
		t.Fatal(err)
	}
	logged("tool pay: no file declares it any more; it stays until it is deleted: troupe tools delete pay --data " + filepath.Join(dir, "data"))
	for _, command := range [][]string{{"agents", "delete", "scout"}, {"tools", "delete", "pay"}} { // as the log suggests
		if code, _, message := runProgram(t, append(command, "--server", s.url)...); code != 1 || !strings.Contains(message, strings.Join(command, " ")+" --data DIR") || strings.Contains(message, "choose another") {
			t.Errorf("troupe %v as a client: exit code %d, %s", command, code, message)
		}
		if code, _, message := runProgram(t, append(command, "--data", filepath.Join(dir, "data"))...); code != 0 || !strings.Contains(message, command[2]+" is deleted") {
			t.Errorf("troupe %v as the owner: exit code %d, %s", command, code, message)
		}
	}
	if status, _ := s.call("scout", "hello"); status != 404 {
		t.Errorf("the deleted agent: status %d", status)
	}

	// A changed configuration is named, and one that is as before again.
	before, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte("cells = 1\n"+string(before)), 0o600); err != nil {
		t.Fatal(err)
	}
	logged(`"configuration changed: this applies at the next start; to check it: troupe check ` + agents + " --config " + config + `"`)
	if err := os.WriteFile(config, before, 0o600); err != nil {
		t.Fatal(err)
	}
	logged(`"configuration: it is again the one in use"`)
	answers("planner", "third")

	// A folder that was replaced is watched again.
	if err := os.Rename(agents, agents+"-old"); err != nil {
		t.Fatal(err)
	}
	logged("agent files not read: all definitions stay")
	if err := os.Mkdir(agents, 0o700); err != nil {
		t.Fatal(err)
	}
	write("planner.toml", "name = \"planner\"\nmodel = \"big\"\nprompt = \"fourth\"\n")
	logged(`"agent planner: prompt changed","node":"n1","file":"` + filepath.Join(agents, "planner.toml"))
	waitUntil(t, "the fourth prompt", func() bool {
		_, a := s.call("planner", "hello")
		return strings.Contains(a.Content, "fourth")
	})
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestWatchRequiresAgents(t *testing.T) {
	if code, _, stderr := runProgram(t, "serve", "--watch", "--data", t.TempDir()); code != 2 || !strings.Contains(stderr, "--watch requires --agents DIR") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// In a folder of troupe init, --watch alone serves its agents. Any flag, variable or agents that
// name other files take precedence, and without --watch nothing is read.
func TestWatchServesProject(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "team")
	if code, _, stderr := runProgram(t, "init", dir); code != 0 {
		t.Fatal(stderr)
	}
	t.Chdir(dir)
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--watch", "--log-level", "info")
	if status, a := s.call("coordinator", "Ask the helper agent to say hello"); status != 200 || a.Content != "hello" {
		t.Errorf("status %d, answer %q", status, a.Content)
	}
	if log, err := os.ReadFile(s.log); err != nil || !strings.Contains(string(log), filepath.Join(dir, "troupe.toml")) {
		t.Errorf("%v, no configuration in\n%s", err, log)
	}
	other := filepath.Join(t.TempDir(), "other.toml")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ env, want string }{
		{"", ""},
		{"TROUPE_CONFIG=" + other, "or agents = \"DIR\" in " + other},
		{"TROUPE_AGENTS=agents", ""},
	} {
		name, value, set := strings.Cut(c.env, "=")
		if set {
			t.Setenv(name, value)
		}
		var cli CLI
		_, err := newParser(&cli, streams{io.Discard, io.Discard}).Parse([]string{"serve", "--watch"})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.env, err)
		}
		if wantConfig := !set; (string(cli.Serve.Config) == filepath.Join(dir, "troupe.toml")) != wantConfig {
			t.Errorf("%q: configuration %q", c.env, cli.Serve.Config)
		}
		if set {
			os.Unsetenv(name)
		}
	}
	var cli CLI
	if _, err := newParser(&cli, streams{io.Discard, io.Discard}).Parse([]string{"serve"}); err != nil || cli.Serve.Config != "" || cli.Serve.Agents != "" {
		t.Errorf("without --watch: configuration %q, agents %q, error %v", cli.Serve.Config, cli.Serve.Agents, err)
	}
	if err := os.WriteFile("troupe.toml", []byte("lisen = \"x\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := runProgram(t, "serve", "--watch"); code == 0 || !strings.Contains(stderr, "troupe.toml: lisen is unknown") {
		t.Errorf("broken configuration: exit code %d, %s", code, stderr)
	}
}

// A file behind links changes without a change of the folder with the first link: the folder is a link,
// and so is the folder to which the link of the file leads, as in a mounted volume. A link that is
// replaced is followed to its new file.
func TestWatchFollowsLinks(t *testing.T) {
	root := t.TempDir()
	at := func(path string) string { return filepath.Join(root, path) }
	write := func(folder, prompt string) {
		t.Helper()
		if err := os.MkdirAll(at(folder), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(folder+"/a.toml"), []byte("name = \"a\"\nprompt = \""+prompt+"\"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, path string) {
		t.Helper()
		if err := os.Symlink(target, at(path+"-new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at(path+"-new"), at(path)); err != nil { // at once, also over a former link
			t.Fatal(err)
		}
	}
	write("v1", "first")
	write("v2", "third")
	write("v3", "fifth")
	if err := os.Mkdir(at("volume"), 0o700); err != nil {
		t.Fatal(err)
	}
	link("../v1", "volume/..data")
	link("..data/a.toml", "volume/a.toml")
	link("volume", "agents")
	s := startServer(t, at("data"), "--agents", at("agents"), "--watch")
	before := s.definition("a")
	for _, step := range []struct {
		what   string
		change func()
	}{
		{"the file was written", func() { write("v1", "second") }},
		{"the link of its folder was replaced", func() { link("../v2", "volume/..data") }},
		{"the new file was written", func() { write("v2", "fourth") }},
		{"the link of the file was replaced", func() { link("../v3/a.toml", "volume/a.toml") }},
		{"the newest file was written", func() { write("v3", "sixth") }},
	} {
		step.change()
		waitUntil(t, "the definition after "+step.what, func() bool { return s.definition("a") != before })
		before = s.definition("a")
	}
}

// definition returns the hash of an agent's definition.
func (s *server) definition(agent string) string {
	s.Helper()
	var a struct {
		Definition string `json:"definition"`
	}
	if status, err := s.request("GET", "/v1/agents/"+agent, "", "", &a); status != 200 || a.Definition == "" {
		s.Fatalf("%d %v", status, err)
	}
	return a.Definition
}

// A file whose read would wait, such as a named pipe in the place of the configuration, keeps the server
// neither from applying others nor from stopping.
func TestWatchDoesNotWaitForAFile(t *testing.T) {
	agents := writeFiles(t, ">> a.toml\nname = \"a\"\nprompt = \"first\"")
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--agents", agents, "--config", config, "--watch", "--log-level", "info")
	logged := func(want string) {
		t.Helper()
		waitUntil(t, "log line "+want, func() bool {
			b, err := os.ReadFile(s.log)
			return err == nil && strings.Contains(string(b), want)
		})
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(pipe, config); err != nil {
		t.Fatal(err)
	}
	logged("configuration cannot be read")
	if err := os.Symlink(config, filepath.Join(agents, "b.toml")); err != nil {
		t.Fatal(err)
	}
	logged("b.toml: open ")
	if err := os.Remove(filepath.Join(agents, "b.toml")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(agents, "a.toml"), []byte("name = \"a\"\nprompt = \"second\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	logged("agent a: prompt changed")
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
