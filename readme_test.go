// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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
