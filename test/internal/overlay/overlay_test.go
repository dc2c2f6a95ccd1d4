// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"
)

// All rows of this repository apply, and leave Go files. `make mutants` compiles them.
func TestRowsApply(t *testing.T) {
	sources, err := mutated(os.DirFS("../../.."))
	if err != nil || len(sources) == 0 {
		t.Fatalf("%d sources, error %v", len(sources), err)
	}
	for path, text := range sources {
		if _, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution); err != nil {
			t.Error(err)
		}
	}
}

func TestRows(t *testing.T) {
	const source, imports = "package p\n\n\tif a {\n\t}\n\tif b {\n\t}\n", "package p; import \"github.com/troupe-run/troupe/internal/mutant\"\n\n"
	for _, tt := range []struct {
		rows string
		want string // the source without its first lines, or
		err  string // a part of the error
	}{
		{"@ m\n-\tif a {\n+\tif a && !mutant.On(\"m\") {\n", "\tif a && !mutant.On(\"m\") {\n\t}\n\tif b {\n\t}\n", ""},
		{"@ m n\n-\tif a {\n-\t}\n+\tm\n\n@ n\n+\tn\n \tif b {\n+\tn", "\tm\n\tn\n\tif b {\n\tn\n\t}\n", ""},
		{"\n@ m\n-\tif c {\n+\tm\n", "", "test/mutants/p/p.txt:2: m: p/p.go does not have the lines of this row; adapt the row"},
		{"@ m\n-if a {\n+m\n", "", "does not have the lines"}, // a part of a line
		{"@ m\n-\t}\n+\tm\n", "", "more than once"},
		{"@ m\n-\tif a {\n+\tif b {\n@ m n\n-\tif b {\n+\tm\n", "", "test/mutants/p/p.txt:4: m n: p/p.go has the lines of this row more than once"},
		{"-\tif a {\n", "", `test/mutants/p/p.txt:1: "-\tif a {" begins neither`},
		{"@ m\nif a {\n", "", "test/mutants/p/p.txt:2"},
		{"@ m\n+\tm\n", "", "test/mutants/p/p.txt:1: m: a row needs"},
		{"@ m\n \tif a {\n", "", "m: a row needs"},
	} {
		got, err := mutated(fstest.MapFS{"p/p.go": {Data: []byte(source)}, "test/mutants/p/p.txt": {Data: []byte(tt.rows)}})
		if tt.err == "" && (err != nil || got["p/p.go"] != imports+tt.want) || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%q: got %q, error %v", tt.rows, got["p/p.go"], err)
		}
	}
	if _, err := mutated(fstest.MapFS{"test/mutants/p/q.txt": {}}); err == nil || !strings.Contains(err.Error(), "p/q.go") {
		t.Errorf("rows without a source: %v", err)
	}
}

func TestOverlayIsBuilt(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.CopyFS(".", fstest.MapFS{
		"go.mod":               {Data: []byte("module github.com/troupe-run/troupe\n\ngo 1.26\n")},
		"internal/mutant/m.go": {Data: []byte("package mutant\n\nfunc On(name string) string { return name }\n")},
		"p/p.go":               {Data: []byte("package main\n\nfunc main() {\n\tprintln()\n}\n")},
		"test/mutants/p/p.txt": {Data: []byte("@ m\n-\tprintln()\n+\tprintln(mutant.On(\"m\"))\n")},
	}); err != nil {
		t.Fatal(err)
	}
	if err := run("build", []string{"-o", "program", "./p"}); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("./program").CombinedOutput(); err != nil || string(output) != "m\n" {
		t.Errorf("printed %q, error %v", output, err)
	}
}
