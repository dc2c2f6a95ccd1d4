// SPDX-License-Identifier: Apache-2.0

package arch

// Rules about code: imports, purity, and the form of Go files.

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func everyPackageHasARow(c *checkout) (found []string) {
	for _, f := range c.goFiles() {
		if f.row() == "" {
			found = append(found, f.path+": the folder has no row in the table of packages; move the file, or add a row to internal/arch/arch_test.go")
		}
	}
	return found
}

func importsFollowTheTable(c *checkout) (found []string) {
	for _, f := range c.goFiles() {
		for _, spec := range f.ast.Imports {
			p, _ := strconv.Unquote(spec.Path.Value)
			if why := mayNotImport(f, p); why != "" {
				found = append(found, fmt.Sprintf("%s: %s may not import %s; %s", f.at(spec.Pos()), f.row(), p, why))
			}
		}
	}
	return found
}

// mayNotImport returns the reason why f may not import p, or "".
func mayNotImport(f *file, p string) string {
	r := packages[f.row()]
	under := func(roots []string) bool {
		return slices.ContainsFunc(roots, func(root string) bool { return p == root || strings.HasPrefix(p, root+"/") })
	}
	switch {
	case p == module || strings.HasPrefix(p, module+"/"):
		to := rowOf(path.Clean(strings.TrimPrefix(strings.TrimPrefix(p, module), "/")))
		if to == f.row() || slices.Contains(r.ours, to) || slices.Contains(common, to) {
			return ""
		}
		if f.isTest() && slices.Contains(r.tests, to) {
			return ""
		}
		if layer := packages[to].layer; f.isTest() && to != "" && layer <= r.layer && layer < 3 {
			return "" // tests may import any pure package of their own layer or below
		}
		if len(r.ours) == 0 {
			return "it imports no package of this module: move the code to a package above"
		}
		return "it may import " + strings.Join(r.ours, ", ") + ": move the code to a package above, or pass a value in"
	case strings.Contains(strings.Split(p, "/")[0], "."):
		if under(r.theirs) || under(pureModules) || f.isTest() && under(testModules) {
			return ""
		}
		return "a new dependency needs a row in internal/arch/arch_test.go and an entry in docs/RATIONALE.md"
	case !f.pure() || slices.Contains(pureStd, p) || slices.Contains(r.std, p):
		return ""
	default:
		if why, ok := insteadOf[p]; ok {
			return why
		}
		return "layers 0-2 are pure: if the package is a function of its arguments, add it to pureStd in internal/arch/arch_test.go; else return an Effect"
	}
}

// everyDependencyHasARationale requires that docs/RATIONALE.md names each module
// that go.mod requires directly.
func everyDependencyHasARationale(c *checkout) (found []string) {
	const page = "docs/RATIONALE.md"
	for i, line := range strings.Split(c.text("go.mod"), "\n") {
		m := regexp.MustCompile(`^(?:require )?\s*([a-z0-9.-]+\.[a-z]+/\S+) v\S+$`).FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := path.Base(regexp.MustCompile(`/v[0-9]+$`).ReplaceAllString(m[1], ""))
		if !strings.Contains(strings.ToLower(c.text(page)), name) {
			found = append(found, fmt.Sprintf("go.mod:%d: why %s? Answer in %s, or remove it", i+1, m[1], page))
		}
	}
	return found
}

func pureLayersUsePureNames(c *checkout) (found []string) {
	for _, f := range c.goFiles() {
		if !f.pure() {
			continue
		}
		imported := map[string]string{} // import path by the name used in this file
		for _, spec := range f.ast.Imports {
			p, _ := strconv.Unquote(spec.Path.Value)
			if _, ok := pureNames[p]; !ok {
				continue
			}
			name := path.Base(strings.TrimSuffix(p, "/v2"))
			if spec.Name != nil {
				name = spec.Name.Name
			}
			imported[name] = p
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && imported[x.Name] != "" && !slices.Contains(pureNames[imported[x.Name]], n.Sel.Name) {
					found = append(found, fmt.Sprintf("%s: %s.%s is not pure; %s", f.at(n.Pos()), x.Name, n.Sel.Name, insteadOf[imported[x.Name]]))
				}
			case *ast.BasicLit:
				if n.Kind == token.STRING && strings.Contains(n.Value, "%"+"p") {
					found = append(found, f.at(n.Pos())+": addresses differ between processes; print the ID")
				}
			}
			return true
		})
	}
	return found
}

func pureLayersHaveNoConcurrency(c *checkout) (found []string) {
	for _, f := range c.goFiles() {
		if !f.pure() {
			continue
		}
		report := func(n ast.Node, what string) {
			found = append(found, f.at(n.Pos())+": "+what+" below layer 3; return an Effect and receive its outcome as an Input")
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				report(n, "a goroutine")
			case *ast.SelectStmt:
				report(n, "a select")
			case *ast.ChanType:
				report(n, "a channel")
			case *ast.SendStmt:
				report(n, "a send")
			case *ast.UnaryExpr:
				if n.Op == token.ARROW {
					report(n, "a receive")
				}
			}
			return true
		})
	}
	return found
}

func everyPackageHasAComment(c *checkout) (found []string) {
	comment := map[string]string{} // by folder
	name := map[string]string{}
	for _, f := range c.goFiles() {
		if f.isTest() {
			continue
		}
		name[f.dir()] = f.ast.Name.Name
		if f.ast.Doc == nil {
			continue
		}
		if comment[f.dir()] != "" {
			found = append(found, f.path+": a second package comment; keep one, in the file a reader opens first")
		}
		comment[f.dir()] = f.ast.Doc.Text()
	}
	for _, dir := range sorted(name) {
		want := "Package " + name[dir] + " "
		if name[dir] == "main" {
			want = "Command " + path.Base(dir) + " "
		}
		first, _, _ := strings.Cut(comment[dir], "\n\n")
		if !strings.HasPrefix(first, want) || !strings.Contains(first, ".") {
			found = append(found, fmt.Sprintf("%s: no package comment; begin it with %q and state the purpose in one sentence", dir, want+"…"))
		}
	}
	return found
}

// promised are the packages whose API is for programs. Each other importable package denies
// a promise in its comment.
var promised = []string{".", "troupetest"}

func everyPackageNamesItsPromise(c *checkout) (found []string) {
	comment := map[string]string{} // by folder
	for _, f := range c.goFiles() {
		dir := f.dir()
		if f.isTest() || f.ast.Name.Name == "main" || slices.Contains(promised, dir) || slices.Contains(strings.Split(dir, "/"), "internal") {
			continue
		}
		comment[dir] += strings.Join(strings.Fields(f.ast.Doc.Text()), " ")
	}
	for _, dir := range sorted(comment) {
		if !strings.Contains(comment[dir], "promise of compatibility") {
			found = append(found, fmt.Sprintf("%s: the package comment does not deny a promise of compatibility; add that sentence, or move the package below internal", dir))
		}
	}
	return found
}

func everyFileHasTheLicenceLine(c *checkout) (found []string) {
	for _, f := range c.goFiles() {
		const line = "// SPDX-License-Identifier: Apache-2.0\n"
		if !strings.HasPrefix(f.text, line) {
			found = append(found, f.path+":1: the first line of a Go file is "+strings.TrimSpace(line))
		}
	}
	return found
}

func noOpenTaskMarks(c *checkout) (found []string) {
	marks := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)
	for _, f := range c.files {
		for i, line := range strings.Split(f.text, "\n") {
			if mark := marks.FindString(line); mark != "" {
				found = append(found, fmt.Sprintf("%s:%d: %s; do it now, or open an issue", f.path, i+1, mark))
			}
		}
	}
	return found
}

func testsDoNotSleep(c *checkout) (found []string) {
	return c.selectors(func(f *file, x, sel string) string {
		if f.isTest() && x == "time" && sel == "Sleep" {
			return "a sleeping test is slow or flaky; wait for a signal, or use testing/synctest"
		}
		return ""
	})
}

func onlyTheEngineMakesProps(c *checkout) (found []string) {
	return c.selectors(func(f *file, _, sel string) string {
		if strings.HasPrefix(sel, "Props"+"From") && f.row() != "host/engine" && f.row() != "test/bench/peers" {
			return "an actor without our Mailbox and Dispatcher runs on goroutines of its own; spawn it through host/engine"
		}
		return ""
	})
}

// rowFiles are the files of the simulator that store, corrupt or audit rows.
var rowFiles = []string{"sim/disk.go", "sim/store.go", "sim/corruption.go", "sim/corruption_audit.go"}

// rowsAreBehindTheSeam keeps the form of a stored log replaceable.
func rowsAreBehindTheSeam(c *checkout) []string {
	return c.selectors(func(f *file, x, sel string) string {
		if x != "store" || !slices.Contains([]string{"KV", "MemoryKV", "Row", "Rows", "Payload"}, sel) {
			return ""
		}
		if f.row() == "store" || f.row() == "host/disk" || f.row() == "host/postgres" || slices.Contains(rowFiles, f.path) || f.row() == "sim" && f.isTest() {
			return ""
		}
		return "read the log through store.Reader; only store, its hosts and the simulated disk know its rows"
	})
}

// selectors returns the findings of the callback judge for each selector expression
// x.sel.
func (c *checkout) selectors(judge func(f *file, x, sel string) string) (found []string) {
	for _, f := range c.goFiles() {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				x, _ := s.X.(*ast.Ident)
				if x == nil {
					x = &ast.Ident{}
				}
				if why := judge(f, x.Name, s.Sel.Name); why != "" {
					found = append(found, fmt.Sprintf("%s: %s.%s; %s", f.at(s.Pos()), x.Name, s.Sel.Name, why))
				}
			}
			return true
		})
	}
	return found
}
