// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/internal/service"
)

// The files of a new project can be served, called and simulated with the commands that it prints.
func TestInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "my team")
	code, out, message := runProgram(t, "init", dir)
	for _, want := range []string{"serve --config troupe.toml --watch\n", `call coordinator "Ask the helper agent to say hello" --tree` + "\n", "sim --project . --seeds 20\n", "  cd '" + dir + "'\n"} {
		if !strings.Contains(message, want) {
			t.Errorf("the output does not have %q:\n%s", want, message)
		}
	}
	for _, name := range []string{".gitignore", "README.md", "agents/coordinator.toml", "agents/helper.toml", "sim.toml", "troupe.toml"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil || !strings.Contains(out, filepath.Join(dir, name)+"\n") {
			t.Errorf("%s: %v, output\n%s", name, err, out)
		}
	}
	if code != 0 || strings.Count(out, "\n") != 6 {
		t.Fatalf("exit code %d, %s%s", code, out, message)
	}
	t.Chdir(dir)
	if code, out, message := runProgram(t, "check", "agents", "--config", "troupe.toml"); code != 0 || !strings.Contains(out+message, "agents=2 tools=0 mistakes=0 warnings=0") {
		t.Errorf("check: exit code %d: %s%s", code, out, message)
	}
	if code, out, message := runProgram(t, "check", "."); code != 0 || !strings.Contains(out+message, "agents=2 tools=0 mistakes=0 warnings=0") {
		t.Errorf("check of the project: exit code %d: %s%s", code, out, message)
	}
	unread := startServer(t, filepath.Join(t.TempDir(), "data"))
	if text, err := os.ReadFile(unread.log); err != nil || !strings.Contains(string(text), "give --config troupe.toml") {
		t.Errorf("a server that does not read the configuration says %q, %v", text, err)
	}
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--config", "troupe.toml")
	code, out, message = runProgram(t, "call", "coordinator", "Ask the helper agent to say hello", "--tree", "--server", s.url)
	if code != 0 || !strings.HasPrefix(out, "hello\n") || !strings.Contains(out, "└─ helper/") {
		t.Errorf("call: exit code %d: %s%s", code, out, message)
	}
	if code, out, message = runProgram(t, "call", "coordinator", "List my messages", "--continue", "--server", s.url); code != 0 || out != "1. Ask the helper agent to say hello\n" {
		t.Errorf("call --continue: exit code %d: %s%s", code, out, message)
	}
	for _, flags := range [][]string{{"--seeds", "4"}, {"--seeds", "1", "--faults", "none"}} {
		code, out, message := runProgram(t, append([]string{"sim", "--project", "."}, flags...)...)
		if code != 0 || !strings.Contains(out, "all was as expected") || message != "" {
			t.Errorf("sim %v: exit code %d: %s%s", flags, code, out, message)
		}
	}
}

// With a model, both agents use it, and the key stays in the environment.
func TestInitWithModel(t *testing.T) {
	m := &toolModel{}
	m.Server = httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(m.Close)
	dir := filepath.Join(t.TempDir(), "team")
	code, _, message := runProgram(t, "init", dir, "--model", m.URL+"/v1", "--key-env", "INIT_TEST_KEY", "--model-name", `big "2"`)
	if code != 0 || !strings.Contains(message, "  export INIT_TEST_KEY=") {
		t.Fatalf("exit code %d: %s", code, message)
	}
	for folder, want := range map[string]string{dir: "Both agents use the model `main` of `troupe.toml`.", writeProject(t): "The built-in model `scripted`"} {
		if page, err := os.ReadFile(filepath.Join(folder, "README.md")); err != nil || strings.Count(string(page), want) != 1 || strings.Contains(string(page), "{{") {
			t.Errorf("%v: the page of the project:\n%s\nwant %q", err, page, want)
		}
	}
	t.Setenv("INIT_TEST_KEY", "secret")
	t.Chdir(dir)
	config, err := readConfig("troupe.toml")
	if got := config.Models["main"]; err != nil || got.URL != m.URL+"/v1" || got.KeyEnv != "INIT_TEST_KEY" || got.Model != `big "2"` {
		t.Errorf("model %+v, error %v", got, err)
	}
	text, err := os.ReadFile("troupe.toml")
	if err != nil {
		t.Fatal(err)
	}
	_, examples, _ := strings.Cut(string(text), "# [record]\n")
	examples = "[record]" + strings.NewReplacer("\n# Spans", "\n# # Spans", "\n# ", "\n").Replace("\n"+examples)
	whole := filepath.Join(t.TempDir(), "troupe.toml")
	if err := os.WriteFile(whole, []byte(examples), 0o600); err != nil {
		t.Fatal(err)
	}
	if config, err := readConfig(whole); err != nil || config.Record.Prompts != "failed" || config.Traces.Endpoint == "" {
		t.Errorf("examples of tables: %+v %+v, %v\n%s", config.Record, config.Traces, err, examples)
	}
	files, err := service.ReadAgentFiles("agents")
	if err != nil || len(files.Agents) != 2 || files.Agents[0].Spec.Model != "main" || files.Agents[1].Spec.Model != "main" {
		t.Fatalf("%+v %v", files, err)
	}
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--config", "troupe.toml")
	if status, reply := s.call("helper", "hello"); status != 200 || reply.Content != "done" || len(m.take()) != 1 {
		t.Errorf("%d %+v", status, reply)
	}
}

// A folder with files is refused and unchanged, and so are flags without a model.
func TestInitRefuses(t *testing.T) {
	used, empty := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "notes.txt"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(empty, ".git"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{used}, exitFailed, "has files, such as notes.txt; want the name of a new folder"},
		{[]string{filepath.Join(used, "notes.txt")}, exitFailed, "notes.txt is a file; want the name of a new folder"},
		{[]string{filepath.Join(used, "a"), "--key-env", "X"}, exitUsage, "--key-env requires --model URL"},
		{[]string{filepath.Join(used, "a"), "--model-name", "X"}, exitUsage, "--model-name requires --model URL"},
		{[]string{filepath.Join(used, "a"), "--model", "api.example.com"}, exitUsage, "--model: url: "},
		{[]string{filepath.Join(used, "a"), "--model", "https://api.example.com/v1", "--key-env", "sk 123"}, exitUsage, "not the key"},
		{[]string{filepath.Join(used, "a"), "--model", "https://api.example.com/v1", "--key-env", "sk-123"}, exitUsage, "key_env: want the name of an environment variable"},
		{[]string{filepath.Join(used, "a"), "--model", "https://api.example.com/v1/chat/completions"}, exitUsage, "url: ends in /chat/completions, which the server adds; want https://api.example.com/v1\n"},
		{[]string{filepath.Join(used, "a"), "--model", "https://api.example.com/v1", "--model-name", "a\nb"}, exitUsage, "cannot be printed"},
		{[]string{empty}, 0, "serve --config troupe.toml"},
	} {
		if code, _, message := runProgram(t, append([]string{"init"}, c.args...)...); code != c.code || !strings.Contains(message, c.want) {
			t.Errorf("%q: exit code %d, want %d: %s", c.args, code, c.code, message)
		}
	}
	if entries, err := os.ReadDir(used); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}

// writeProject writes a new project with the built-in model and returns its folder.
func writeProject(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "team")
	if code, _, message := runProgram(t, "init", dir); code != 0 {
		t.Fatalf("exit code %d: %s", code, message)
	}
	return dir
}
