// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
