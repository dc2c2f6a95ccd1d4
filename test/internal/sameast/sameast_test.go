// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// base is the module that each case changes.
var base = map[string]string{
	"go.mod":    "module example.org/m\n\ngo 1.26\n",
	"m.go":      "package m\n\nconst V = 1\n",
	"m_test.go": "package m_test\n\nimport \"example.org/m\"\n\nvar v = m.V\n\nfunc get() int { return v }\n",
	"a/a.go": `package a

import (
	"fmt"
	_ "strings"
)

// Limit is a bound.
const Limit = 3

const (
	First = iota
	Second
	Third
)

// Cell is a cell.
type Cell struct {
	Name string ` + "`json:\"name\" help:\"the name\"`" + `
	size int
}

type Ringer interface{ Ring() int }

var _ Ringer = (*Cell)(nil)

type Other = Cell

// Ring adds.
func (c *Cell) Ring() int {
	total := c.size
	for i := range Limit {
		total += i
		c.size = total
	}
	return total
}

//go:noinline
func Report(c *Cell) string {
	peak := c.Ring() + Limit
	return fmt.Sprintf("%s has %d of %v", c.Name, peak, Limit) + "." + fmt.Sprint([]any{1}...)
}

func tail(s []int, n int) []int { return s[n:] }
`,
	"a/on.go":     "//go:build mutants\n\npackage a\n\nconst On = true\n\nfunc on() bool { x := On; return x }\n",
	"a/off.go":    "//go:build !mutants\n\npackage a\n\nconst On = false\n",
	"a/a_test.go": "package a\n\nfunc help() int { return len(tail(nil, 0)) }\n",
	"a/x_test.go": "package a_test\n\nimport \"example.org/m/a\"\n\nfunc helpX() string { return a.Report(&a.Cell{Name: \"x\"}) }\n",
	"b/b.go": `package b

import "example.org/m/a"

const path = "example.org/m/a"

type Pair[T any] struct {
	a.Cell
	left, right T
}

func (p Pair[T]) Ring() int { return p.Cell.Ring() + len(path) }

func use(r any) (int, string) {
	local := struct{ n, N int }{n: a.Limit}
	switch v := r.(type) {
	case interface{ Ring() int }:
		return v.Ring(), "one"
	case int:
		return v + local.n, Pair[int]{left: 1}.Name
	}
	return a.Second, "two"
}
`,
	"nested/go.mod": "module example.org/nested\n\ngo 1.26\n",
	"nested/n.go":   "package nested\n\nfunc f() int { return 1 }\n",
}

// An edit replaces old by new in a file. An edit without old moves the file to
// the path new, or removes it.
type edit struct{ file, old, new string }

// write writes base with edits into a new folder.
func write(t *testing.T, edits ...edit) string {
	t.Helper()
	files := map[string]string{}
	for name, text := range base {
		files[name] = text
	}
	for _, e := range edits {
		text, ok := files[e.file]
		switch {
		case e.old != "" && !strings.Contains(text, e.old):
			t.Fatalf("%s has no %q", e.file, e.old)
		case e.old != "":
			files[e.file] = strings.ReplaceAll(text, e.old, e.new)
		case ok:
			delete(files, e.file)
			files[e.new] = text
			delete(files, "")
		default:
			files[e.file] = e.new
		}
	}
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// moves parses the text of a map.
func moves(t *testing.T, text string) (renames, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "map")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return readRenames(file)
}

type comparison struct {
	name  string
	edits []edit
	moves string
	o     options
	want  string // in a finding; empty if the trees are the same
}

// test runs each comparison.
func test(t *testing.T, all []comparison) {
	older := write(t)
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, err := moves(t, c.moves)
			if err != nil {
				t.Fatal(err)
			}
			if c.o.tags == nil {
				c.o.tags = []string{""}
			}
			r, err := compareTrees(older, write(t, c.edits...), m, c.o)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.String(); len(r.findings) == 0 != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("want %q, got\n%s", c.want, got)
			}
		})
	}
}

func TestForbidden(t *testing.T) {
	text := options{text: true}
	test(t, []comparison{
		{name: "operator", edits: []edit{{"a/a.go", "total += i", "total -= i"}}, want: "a/a.go:33: syntax, want +=, got -="},
		{name: "constant", edits: []edit{{"a/a.go", "Limit = 3", "Limit = 4"}}, want: "a/a.go:9: syntax, want 3, got 4"},
		{name: "captured", edits: []edit{{"a/a.go", "Limit", "Peak"}, {"b/b.go", "Limit", "Peak"}, {"a/a.go", "peak", "Peak"}},
			moves: "a.Limit Peak", want: "a/a.go:42: object of Peak, want token 3 of a.Peak, got token 23 of its declaration"},
		{name: "shadowed", edits: []edit{{"b/b.go", "case int:", "case int:\n\t\tlocal := local"}}, want: "b/b.go:20: syntax, want ReturnStmt, got AssignStmt"},
		{name: "other local", edits: []edit{{"a/a.go", "c.size = total", "c.size = i"}}, want: "a/a.go:34: object of i, want token 23 of its declaration, got token 31"},
		{name: "unlisted rename", edits: []edit{{"a/a.go", "tail", "rest"}, {"a/a_test.go", "tail", "rest"}}, want: "a/a.go:45: declaration, want none, got a.rest"},
		{name: "unlisted field", edits: []edit{{"a/a.go", "size", "extent"}}, want: "a/a.go:20: name that no line of the map permits, want size, got extent"},
		{name: "other new name", edits: []edit{{"a/a.go", "size", "extent"}}, moves: "a.Cell.size length", want: "want length, got extent"},
		{name: "interface method", edits: []edit{{"a/a.go", "Ringer interface{ Ring() int }", "Ringer interface{ Bell() int }"}, {"a/a.go", "var _ Ringer = (*Cell)(nil)", ""}}, want: "want Ring, got Bell"},
		{name: "local interface", edits: []edit{{"b/b.go", "interface{ Ring() int }:", "interface{ Bell() int }:"}, {"b/b.go", "v.Ring()", "v.Bell()"}}, want: "b/b.go:17: name that no line"},
		{name: "local exported field", edits: []edit{{"b/b.go", "n, N int", "n, M int"}}, want: "b/b.go:15: name that no line of the map permits, want N, got M"},
		{name: "dropped statement", edits: []edit{{"a/a.go", "\t\tc.size = total\n", ""}}, want: "a/a.go:33: syntax, want AssignStmt, got end"},
		{name: "added statement", edits: []edit{{"a/a.go", "\t\tc.size = total\n", "\t\tc.size = total\n\t\tc.size = total\n"}}, want: "a/a.go:35: syntax, want end, got AssignStmt"},
		{name: "reordered statements", edits: []edit{{"a/a.go", "total += i\n\t\tc.size = total", "c.size = total\n\t\ttotal += i"}}, want: "a/a.go:33: syntax, want total, got SelectorExpr"},
		{name: "string", edits: []edit{{"b/b.go", `"one"`, `"eins"`}}, want: `b/b.go:18: string, want "one", got "eins"`},
		{name: "key", edits: []edit{{"b/b.go", `"one"`, `"eins"`}}, o: text, want: `b/b.go:18: string of one word, which may be a key, want "one", got "eins"`},
		{name: "format verb", edits: []edit{{"a/a.go", "has %d of %v", "has %v of %d"}}, o: text, want: `a/a.go:42: format verbs, want "%s %d %v", got "%s %v %d"`},
		{name: "struct tag", edits: []edit{{"a/a.go", `json:"name"`, `json:"title"`}}, o: text, want: "a/a.go:19: struct tag"},
		{name: "help without text", edits: []edit{{"a/a.go", "the name", "a name"}}, want: "a/a.go:19: string"},
		{name: "iota", edits: []edit{{"a/a.go", "\tSecond\n\tThird\n", "\tThird\n\tSecond\n"}}, want: "a/a.go:13: object of Third, want itself with value 2 of untyped int, got itself with value 1 of untyped int"},
		{name: "type of a constant", edits: []edit{{"a/a.go", "First = iota", "First int = iota"}}, want: "a/a.go:13: object of Second, want itself with value 1 of untyped int, got itself with value 1 of int"},
		{name: "removed", edits: []edit{{"a/a.go", "type Other = Cell\n", ""}}, want: "a/a.go:27: declaration, want a.Other (at this line of BASE), got none"},
		{name: "alias", edits: []edit{{"a/a.go", "Other = Cell", "Other Cell"}}, want: "a/a.go:27: syntax, want Assign"},
		{name: "variadic", edits: []edit{{"a/a.go", "[]any{1}...", "[]any{1}"}}, want: "a/a.go:42: syntax, want Ellipsis"},
		{name: "bounds", edits: []edit{{"a/a.go", "s[n:]", "s[:n]"}}, want: "a/a.go:45: syntax, want n, got nothing"},
		{name: "directive", edits: []edit{{"a/a.go", "//go:noinline\n", ""}}, want: "a/a.go:39: syntax, want //go:noinline"},
		{name: "blank import", edits: []edit{{"a/a.go", "\t_ \"strings\"\n", ""}}, want: "want a: import strings as _ (test false) (at this line of BASE), got none"},
		{name: "other import", edits: []edit{{"a/a.go", `_ "strings"`, `_ "bytes"`}}, want: "got a: import bytes as _"},
		{name: "blank declaration", edits: []edit{{"a/a.go", "var _ Ringer = (*Cell)(nil)", "var _ Ringer = &Cell{}"}}, want: "a/a.go:25: declaration"},
		{name: "into a test file", edits: []edit{{"a/a.go", "type Other = Cell\n", ""}, {"a/a_test.go", "func help", "type Other = Cell\n\nfunc help"}}, want: "a/a_test.go:3: syntax, want file with test false, got file with test true"},
		{name: "constraint", edits: []edit{{"a/a_test.go", "package", "//go:build !mutants\n\npackage"}}, want: "a/a_test.go:5: syntax, want file with test true, got file with test true //go:build !mutants"},
		{name: "under tags", edits: []edit{{"a/on.go", "true", "!false"}}, o: options{tags: []string{"", "mutants"}}, want: "a/on.go:5: syntax"},
		{name: "unselected file", edits: []edit{{"a/on.go", "true", "!false"}}, want: "a/on.go:5: syntax"},
		{name: "nested module", edits: []edit{{"nested/n.go", "return 1", "return 2"}}, want: "nested/n.go:3: syntax, want 1, got 2"},
		{name: "name in a nested module", edits: []edit{{"nested/n.go", "f()", "g()"}}, want: "nested/n.go: nested.g"},
		{name: "test of a package", edits: []edit{{"a/x_test.go", `Name: "x"`, `Name: "y"`}}, want: "a/x_test.go:5: string"},
		{name: "package clause", edits: []edit{{"b/b.go", "package b", "package main"}}, want: "b/b.go:1: declaration, want none, got b: package main"},
	})
}

func TestPermitted(t *testing.T) {
	text := options{text: true}
	report := "func Report(c *Cell)"
	begin := strings.Index(base["a/a.go"], "//go:noinline")
	last := base["a/a.go"][begin:]
	test(t, []comparison{
		{name: "nothing"},
		{name: "comments", edits: []edit{{"a/a.go", "// Ring adds.", "// Ring returns\n// a sum."}, {"a/a.go", "total := ", "/* the sum */ total := "}, {"nested/n.go", "func", "// f is one.\nfunc"}, {"m_test.go", "var", "// v is one.\nvar"}}},
		{name: "formatting", edits: []edit{{"a/a.go", "c.Name, peak, Limit)", "\n\t\tc.Name,\n\t\tpeak, Limit,\n\t)"}}},
		{name: "moved declaration", edits: []edit{{"a/a.go", last, ""}, {"a/a.go", "\t\"fmt\"\n", ""}, {"a/new.go", "", "package a\n\nimport \"fmt\"\n\n" + last}}},
		{name: "order", edits: []edit{{"a/a.go", last, ""}, {"a/a.go", "// Limit", last + "\n// Limit"}}},
		{name: "group", edits: []edit{{"a/a.go", "const Limit = 3", "const (\n\tLimit = 3\n\n\tX = 1\n)"}, {"a/a.go", "\n\tX = 1", ""}}},
		{name: "local name", edits: []edit{{"a/a.go", "total", "sum"}, {"b/b.go", "local", "here"}, {"b/b.go", "{ n, N int }{n:", "{ m, N int }{m:"}, {"b/b.go", "here.n", "here.m"}}},
		{name: "import name", edits: []edit{{"b/b.go", "import ", "import first "}, {"b/b.go", "a.Cell\n", "first.Cell\n"}, {"b/b.go", "a.Limit", "first.Limit"}, {"b/b.go", "a.Second", "first.Second"}}},
		{name: "renamed function", edits: []edit{{"a/a.go", "Report", "Tell"}, {"a/x_test.go", "Report", "Tell"}}, moves: "# a map\n\na.Report -> Tell # there\n"},
		{name: "renamed type", edits: []edit{{"a/a.go", "Cell", "Room"}, {"a/x_test.go", "Cell", "Room"}, {"b/b.go", "Cell", "Room"}}, moves: "a.Cell Room"},
		{name: "renamed members", edits: []edit{{"a/a.go", "Ring()", "Bell()"}, {"b/b.go", "Ring()", "Bell()"}, {"a/a.go", "size", "extent"}},
			moves: "a.Cell.Ring Bell\na.Ringer.Ring → Bell\nb.Pair.Ring Bell\na.Cell.size extent"},
		{name: "renamed constant", edits: []edit{{"a/a.go", "\tSecond", "\tMiddle"}, {"b/b.go", "Second", "Middle"}}, moves: "a.Second Middle"},
		{name: "swapped names", edits: []edit{{"b/b.go", "left, right T", "right, left T"}, {"b/b.go", "{left: 1}", "{right: 1}"}}, moves: "b.Pair.left right\nb.Pair.right left"},
		{name: "renamed test helper", edits: []edit{{"a/x_test.go", "helpX", "assist"}, {"a/a_test.go", "help", "assist"}}, moves: "a.help assist\na.helpX assist"},
		{name: "moved folder", edits: []edit{{"a/a.go", "", "c/d/a.go"}, {"a/on.go", "", "c/d/on.go"}, {"a/off.go", "", "c/d/off.go"}, {"a/a_test.go", "", "c/d/a_test.go"}, {"a/x_test.go", "", "c/d/x_test.go"},
			{"c/d/a.go", "package a", "package d"}, {"c/d/on.go", "package a", "package d"}, {"c/d/off.go", "package a", "package d"}, {"c/d/a_test.go", "package a", "package d"}, {"c/d/x_test.go", "package a_test", "package d_test"},
			{"c/d/x_test.go", "m/a", "m/c/d"}, {"c/d/x_test.go", "a.Report(&a.", "d.Report(&d."}, {"b/b.go", "m/a", "m/c/d"}, {"b/b.go", "a.Cell\n", "d.Cell\n"}, {"b/b.go", "a.Limit", "d.Limit"}, {"b/b.go", "a.Second", "d.Second"},
			{"c/d/a.go", "Report", "Tell"}, {"c/d/x_test.go", "Report", "Tell"}, {"c/d/a.go", "tail", "rest"}, {"c/d/a_test.go", "tail", "rest"}},
			moves: "a/ c/d/\na.Report Tell\nc/d.tail rest"},
		{name: "moved file of a nested module", edits: []edit{{"nested/n.go", "", "nested/o.go"}}, moves: "nested/n.go nested/o.go"},
		{name: "text", edits: []edit{{"a/a.go", "%s has %d of %v", "%-10s: %3d, 100%%x of %v"}}, o: text},
		{name: "help", edits: []edit{{"a/a.go", "the name", "a \\\"name\\\""}}, o: text},
		{name: "left out", edits: []edit{{"a/a.go", "Limit = 3", "Limit = 4"}, {"a/a.go", "type Cell struct {", "type Cell struct {\n\tmore int"}}, o: options{allow: []string{"a/a.*"}}},
		{name: "left out and renamed", edits: []edit{{"a/a.go", "Name", "Title"}, {"a/a.go", "type Cell struct {", "type Cell struct {\n\tmore int"}, {"a/x_test.go", "Name", "Title"}, {"b/b.go", "Name", "Title"}}, o: options{allow: []string{"a/a.go"}}, moves: "a.Cell.Name Title"},
		{name: "local name under tags", edits: []edit{{"a/on.go", "x", "y"}}, o: options{tags: []string{"", "mutants"}}},
		{name: "parameter", edits: []edit{{"a/a.go", report, "func Report(cell *Cell)"}, {"a/a.go", "c.Ring()", "cell.Ring()"}, {"a/a.go", "c.Name", "cell.Name"}}},
	})
}

// TestRun compares a working tree with a commit.
func TestRun(t *testing.T) {
	dir := write(t)
	t.Chdir(dir)
	for _, args := range []string{"init -q", "add .", "-c user.name=a -c user.email=a@example.org commit -q -m a"} {
		if out, err := exec.Command("git", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args, err, out)
		}
	}
	file := filepath.Join(t.TempDir(), "map")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	want := "strings in a: 1\nsame: 6 packages, 9 files, 38 declarations, %d renamed names, 1 changed strings\n"
	for _, step := range []struct{ file, old, new, want string }{
		{"a/a.go", "has", "owns", fmt.Sprintf(want, 0)},
		{"b/b.go", "use", "apply", "b/b.go:14: declaration, want none, got b.apply"},
		{file, "", "b.use apply", fmt.Sprintf(want, 1)},
	} {
		text, err := os.ReadFile(step.file)
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.Replace(string(text), step.old, step.new, 1))
		if err := os.WriteFile(step.file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := run("HEAD", file, options{text: true, tags: []string{"", "mutants"}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(r.String(), step.want) {
			t.Errorf("after %s: want %q, got\n%s", step.new, step.want, r)
		}
	}
}

func TestReadRenames(t *testing.T) {
	for _, text := range []string{"a.B", "a c", "a.B c d", "a.B c-d", "a/ b", "a/ b.go", "a.go b/", "a.B c\na.B d"} {
		if m, err := moves(t, text); err == nil {
			t.Errorf("%q: want an error, got %v", text, m)
		}
	}
	m, err := moves(t, "..B C\n.D E\na/ b/\na/c/ c/\na/x.go y/z.go")
	if err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		m.name(".", "B"): "C", m.name(".", "D"): "E", m.name(".", "F.g"): "g",
		m.path("a/d/e.go"): "b/d/e.go", m.path("a/c/e.go"): "c/e.go", m.path("a/x.go"): "y/z.go", m.path("ab/x.go"): "ab/x.go", m.path("a"): "b",
	} {
		if got != want {
			t.Errorf("want %s, got %s", want, got)
		}
	}
}

func TestReportIsBounded(t *testing.T) {
	r := &report{findings: map[finding]bool{}}
	for i := range maxFindings + 7 {
		r.findings[finding{"a.go", i, "x"}] = true
	}
	got := r.String()
	if n := strings.Count(got, "\n"); n != maxFindings+1 || !strings.HasPrefix(got, "a.go:0: x\na.go:1: x\n") || !strings.HasSuffix(got, fmt.Sprintf("and %d more\n", 7)) {
		t.Errorf("want %d lines, got %d:\n%s", maxFindings+1, n, got)
	}
}
