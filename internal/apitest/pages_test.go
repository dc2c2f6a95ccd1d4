// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bufio"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/troupe-run/troupe"
)

// checkSource type-checks a package of one file.
func checkSource(path, text string, of types.Importer) (*types.Package, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "source.go", text, 0)
	if err != nil {
		return nil, err
	}
	return (&types.Config{Importer: of}).Check(path, files, []*ast.File{file}, nil)
}

// codeBlocks returns the blocks of a language in a section of a page.
func codeBlocks(t *testing.T, page, heading, language string) (blocks []string) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(b), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for {
		_, rest, found := strings.Cut(section, "\n```"+language+"\n")
		if !found {
			return blocks
		}
		block, after, _ := strings.Cut(rest, "\n```")
		blocks, section = append(blocks, block+"\n"), after
	}
}

// The programs of the pages print what the pages show.
func TestProgramsOfPages(t *testing.T) {
	for page, heading := range map[string]string{"README.md": "## A Go program", "docs/guide-go.md": "### Approvals"} {
		programs, outputs := codeBlocks(t, page, heading, "go"), codeBlocks(t, page, heading, "text")
		if len(programs) != 1 || len(outputs) != 1 {
			t.Fatalf("%s: %d programs and %d outputs, want one of each", page, len(programs), len(outputs))
		}
		source := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(source, []byte(programs[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		binary := buildProgram(t, source)
		if got := runIn(t, t.TempDir(), binary); got != outputs[0] {
			t.Errorf("the program prints\n%s\n%s shows\n%s", got, page, outputs[0])
		}
	}
}

// buildProgram builds a program with the packages of this checkout.
func buildProgram(t *testing.T, source string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// runIn runs a program in a folder and returns its output.
func runIn(t *testing.T, dir, binary string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), binary, args...)
	command.Dir = dir
	out, err := command.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}

// The example ends by itself, and a run continues after a kill -9 of its process.
func TestExampleEmbed(t *testing.T) {
	binary := buildProgram(t, "./examples/embed")
	t.Setenv("TMPDIR", t.TempDir())
	for _, arg := range []string{"", "kill"} {
		lines := strings.Split(runIn(t, t.TempDir(), binary, strings.Fields(arg)...), "\n")
		if arg == "kill" {
			if lines[0] != "child: signal: killed" {
				t.Errorf("%s: the child ended with %q", arg, lines[0])
			}
			lines = lines[1:]
		}
		if len(lines) < 3 || lines[0] != "after 0 messages: echo one" || lines[1] != "after 2 messages: echo two" || !strings.Contains(lines[2], `"content":"after 4 messages: echo three"`) {
			t.Errorf("%s: %q", arg, lines)
		}
	}
	source, err := os.ReadFile("examples/embed/main.go")
	if n := strings.Count(string(source), "\n"); err != nil || n > 60 {
		t.Errorf("the example has %d lines, want at most 60: %v", n, err)
	}
}

// The external agent of the guide, which has the standard library only, answers, calls another agent and
// passes a refusal on.
func TestExternalAgentOfGuide(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 not found: apt-get install python3 on Debian")
	}
	blocks := codeBlocks(t, "docs/guide-agents.md", "## External agents", "python")
	if len(blocks) == 0 || !strings.Contains(blocks[0], "http.server") {
		t.Fatalf("got programs %q, want one with the standard library first", blocks)
	}
	server, err := troupe.Open(troupe.Config{Temporary: true, Allow: []string{"127.0.0.1"}, Agents: []troupe.Agent{{Name: "helper", Func: func(t *troupe.Turn) (string, error) {
		if t.Message() == "fail" {
			return "", troupe.Refuse(troupe.CodeInvalid, "no idea")
		}
		return "heard " + t.Message(), nil
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(free.Addr().String())
	free.Close()
	source := filepath.Join(t.TempDir(), "scribe.py")
	text := strings.NewReplacer("127.0.0.1:8283", listener.Addr().String(), "9001", port).Replace(blocks[0])
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := exec.CommandContext(t.Context(), python, "-u", source)
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	agent.Stderr = &log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
	})
	defer stop()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "scribe is registered\n" {
		stop()
		t.Fatalf("the agent prints %q, %v\n%s", line, err, log.String())
	}
	if reply, err := server.Call(t.Context(), "scribe", "to be or not"); err != nil || reply.Text != "4 words. The helper answered: heard to be or not" {
		t.Errorf("got %q, %v", reply.Text, err)
	}
	var refusal *troupe.Refusal
	if _, err := server.Call(t.Context(), "scribe", "fail"); !errors.As(err, &refusal) || !strings.Contains(refusal.Error(), "no idea") {
		t.Errorf("got %v, want the refusal of the helper", err)
	}
}

// The agent in Go of the guide compiles in the folder that the guide names.
func TestGoAgentOfGuide(t *testing.T) {
	blocks := codeBlocks(t, "docs/guide-agents.md", "## Agents in Go", "go")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks in Go, want the file and the line of Builtin", len(blocks))
	}
	builtin, err := os.ReadFile("agents/builtin.go")
	if err != nil {
		t.Fatal(err)
	}
	const list = "return []actor.Definition{\n"
	if strings.Count(string(builtin), list) != 1 {
		t.Fatalf("agents/builtin.go has no single %q", list)
	}
	dir, replace := t.TempDir(), map[string]string{}
	for name, content := range map[string]string{"planner.go": blocks[0], "builtin.go": strings.Replace(string(builtin), list, list+blocks[1], 1)} {
		at, err := filepath.Abs(filepath.Join("agents", name))
		if err != nil {
			t.Fatal(err)
		}
		replace[at] = filepath.Join(dir, name)
		if err := os.WriteFile(replace[at], []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "vet", "-overlay", filepath.Join(dir, "overlay.json"), "./agents").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
