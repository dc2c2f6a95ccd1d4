// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/service"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the transcripts")

// writeFiles creates a folder with the files of text. Each starts with a line
// ">> name".
func writeFiles(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for file := range strings.SplitSeq("\n"+text, "\n>> ") {
		name, body, _ := strings.Cut(file, "\n")
		if name == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCheckTranscripts(t *testing.T) {
	path := filepath.Join("testdata", "check.txt")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(b), "\n== ")
	out := head
	for section := range strings.SplitSeq(rest, "\n== ") {
		title, body, _ := strings.Cut(section, "\n")
		text, want, _ := strings.Cut(body, "\n--\n")
		dir := writeFiles(t, text)
		var stdout, stderr bytes.Buffer
		code := run([]string{"check", dir}, streams{&stdout, &stderr})
		got := fmt.Sprintf("%s%s%d", stdout.String(), prefixStderr(stderr.String()), code)
		got = strings.ReplaceAll(got, dir, "DIR")
		if got != strings.TrimSpace(want) && !*rewrite {
			t.Errorf("%s: got\n%s\nwant\n%s", title, got, want)
		}
		out += fmt.Sprintf("\n== %s\n%s\n--\n%s\n", title, text, got)
		checkJSON(t, title, dir, code)
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(out), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func prefixStderr(stderr string) (out string) {
	for line := range strings.Lines(stderr) {
		out += "2> " + line
	}
	return out
}

// checkJSON checks that --json gives the same exit code and well-formed problems.
func checkJSON(t *testing.T, title, dir string, want int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run([]string{"check", "--json", dir}, streams{&stdout, &stderr}); code != want {
		t.Errorf("%s: exit code %d with --json, %d without", title, code, want)
	}
	if stderr.Len() > 0 {
		return // the folder itself is invalid
	}
	var in struct {
		Agents []struct {
			ID string `json:"agent_id"`
		} `json:"agents"`
		Problems []service.FileProblem `json:"problems"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &in); err != nil {
		t.Fatalf("%s: invalid JSON: %v in %s", title, err, stdout.Bytes())
	}
	mistakes := 0
	for _, p := range in.Problems {
		if p.File == "" || p.Text == "" {
			t.Errorf("%s: problem without file or text: %+v", title, p)
		}
		if !p.Warning {
			mistakes++
		}
	}
	if (mistakes > 0) != (want != 0) {
		t.Errorf("%s: %d mistakes with exit code %d", title, mistakes, want)
	}
}

func TestAgentFilesAreBounded(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "big.toml"), bytes.Repeat([]byte("#\n"), agents.SourceBytesMax), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := service.ReadAgentFiles(dir)
	if err != nil || !files.HasErrors() || !strings.Contains(files.Problems[0].Text, "more than 131072 bytes") {
		t.Errorf("large file: want a problem, got %+v, %v", files, err)
	}
	for n := range service.AgentFilesMax {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.toml", n)), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := service.ReadAgentFiles(dir); err == nil || !strings.Contains(err.Error(), "more than 1024 files") {
		t.Errorf("too many files: want an error, got %v", err)
	}
	if _, err := service.ReadAgentFiles(filepath.Join(dir, "none")); err == nil {
		t.Error("missing folder: want an error, got none")
	}
}

func TestCheckWarnsOfUnknownModel(t *testing.T) {
	dir := writeFiles(t, ">> a.toml\nname = \"a\"\nmodel = \"big\"\n>> b.toml\nname = \"b\"\n>> c.toml\nname = \"c\"\nmodel = \"small\"\n>> d.toml\nname = \"d\"\nendpoint = \"http://127.0.0.1:9001\"")
	config := filepath.Join(t.TempDir(), "troupe.toml")
	if err := os.WriteFile(config, []byte("[models.big]\nurl = \"https://api.example.com/v1\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	code := run([]string{"check", dir, "--config", config}, streams{&stdout, &stderr})
	if want := filepath.Join(dir, "c.toml") + ": warning: model: the configuration has no model small; want one of big, scripted\n"; code != 0 || stdout.String() != want {
		t.Errorf("exit code %d, stdout %q, want %q", code, stdout.String(), want)
	}
}

// With --config check reports all errors with which serve does not start, and serve starts without
// them.
func TestCheckValidatesAsServe(t *testing.T) {
	t.Setenv("TROUPE_TEST_CHECK_KEY", "x")
	good := ">> ok.toml\nname = \"ok\"\n>> far.toml\nname = \"far\"\nendpoint = \"https://far.example\"\nauth.env = \"TROUPE_AUTH_FAR\""
	valid := "cells = 1\nkeep = \"30d\"\nkeyless = \"off\"\nallow = [\"10.0.0.0/8\"]\nready = true\nwatch = true\n[models.big]\nurl = \"https://x.example/v1\"\nkey_env = \"TROUPE_TEST_CHECK_KEY\"\n" +
		"[auth]\nTROUPE_AUTH_FAR = \"far.example\"\n"
	lead := func(name, needs, provides string) string {
		return fmt.Sprintf("\n>> %s.toml\nname = %q\nkind = \"orchestrator\"\n[[provides]]\ncode = %q\ndescription = \"d\"\n[workflow.w]\ndescription = \"d\"\n[[workflow.w.steps]]\ncapability = %q", name, name, provides, needs)
	}
	for _, c := range []struct {
		files, config string
		want          []string // none: serve starts
	}{
		{good, valid, nil},
		{good, strings.Replace(valid, "TROUPE_AUTH_FAR =", "TROUPE_AUTH_NEAR =", 1), []string{"auth.env: the server may not send the secret TROUPE_AUTH_FAR"}},
		{good, "foo = 1\nbar = 2\n" + valid, []string{"troupe.toml: foo is unknown; want one of advertise, agents, allow,", "troupe.toml: bar is unknown"}},
		{good, strings.Replace(valid, "30d", "1s", 1), []string{"troupe.toml: --keep: want a time such as 30d"}},
		{good, "listen = 5\ngrace = 1\n" + strings.Replace(valid, `"off"`, `"maybe"`, 1), []string{"listen: want text in quotes, got 5", "grace: want a duration", `keyless: want one of on,off, got "maybe"`}},
		{good, "listen = \"x\"\nhosts = [\"a/b\"]\n" + valid, []string{"--listen x: want host:port", "--hosts: got"}},
		{good, "role = \"ingress\"\n" + strings.Replace(valid, "watch = true\n", "", 1), []string{"--role ingress: want --orchestrator"}},
		{good, strings.Replace(valid, "https://x", "ftp://x", 1) + "[models.scripted]\nurl = \"https://x.example\"\n[models.many]\nurl = \"https://x.example\"\nretry_attempts = 99\n[models.bare]\nurl = \"https://x.example\"\nkey_env = \"TROUPE_TEST_UNSET_KEY\"\n",
			[]string{"models.big.url: ", "models: scripted is built in", "models.many.retry_attempts: ", "models.bare.key_env: the environment variable TROUPE_TEST_UNSET_KEY is not set"}},
		{good, valid + "PATH = \"a.example\"\n[limits]\nrun_timeout_ms = -1\n", []string{"auth: want the name of a variable like TROUPE_AUTH_HELPER", "limits: run_timeout_ms"}},
		{good + "\n>> ok2.toml\nname = \"OK\"\n>> x.toml\nname = \"Far\"\nagent_id = \"x\"", valid, []string{"ok2.toml: agent_id: OK looks like the agent ok in ", "x.toml: name: Far looks like the agent far in "}},
		{good + lead("a", "B_DONE", "A_DONE") + lead("b", "C_DONE", "B_DONE") + "\n>> c.toml\nname = \"c\"\n[[provides]]\ncode = \"C_DONE\"\ndescription = \"d\"", valid, nil},
		{good + lead("a", "B_DONE", "A_DONE") + lead("b", "A_DONE", "B_DONE"), valid, []string{"a.toml: workflow: waits for", "b.toml: workflow: waits for"}},
		{good + "\n>> helper.toml\nname = \"helper\"", valid, []string{"helper.toml: agent_id: helper looks like helper, an agent of this program"}},
	} {
		dir := writeFiles(t, c.files)
		config := filepath.Join(t.TempDir(), "troupe.toml")
		if err := os.WriteFile(config, []byte(c.config), 0o600); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		code := run([]string{"check", dir, "--config", config}, streams{&stdout, &stderr})
		if (code != 0) != (len(c.want) > 0) {
			t.Errorf("%q: exit code %d\n%s%s", c.config, code, &stdout, &stderr)
		}
		for _, want := range c.want {
			if !strings.Contains(stdout.String(), want) {
				t.Errorf("%q: want %q in\n%s", c.config, want, &stdout)
			}
		}
		if data := filepath.Join(t.TempDir(), "data"); len(c.want) == 0 {
			startServer(t, data, "--agents", dir, "--config", config).stop(syscall.SIGTERM)
		} else if code, out, _ := runProgram(t, "serve", "--data", data, "--agents", dir, "--config", config); code == 0 || out != "" {
			t.Errorf("%q: serve: exit code %d, %s", c.config, code, out)
		}
	}
}

// The folder of a project is one also if its own configuration is named. Another configuration is for a folder of agents.
func TestCheckProjectWithItsConfiguration(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "project")
	var out bytes.Buffer
	if code := run([]string{"init", dir}, streams{&out, &out}); code != 0 {
		t.Fatal(code, out.String())
	}
	for _, args := range [][]string{{dir}, {dir, "--config", filepath.Join(dir, projectConfig)}} {
		out.Reset()
		if code := run(append([]string{"check"}, args...), streams{&out, &out}); code != 0 || !strings.Contains(out.String(), "mistakes=0") || strings.Contains(out.String(), "agents=0") {
			t.Errorf("%q: exit code %d\n%s", args, code, &out)
		}
	}
}

func TestCheckStrict(t *testing.T) {
	dir := writeFiles(t, ">> a.toml\nname = \"a\"\nagents = [\"gone\"]")
	for args, want := range map[string]int{"": 0, "--strict": 1, "--strict --json": 1} {
		var out bytes.Buffer
		if code := run(append([]string{"check", dir}, strings.Fields(args)...), streams{&out, &out}); code != want {
			t.Errorf("%q: exit code %d, want %d\n%s", args, code, want, &out)
		}
	}
}
