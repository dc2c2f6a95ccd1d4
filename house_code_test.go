// SPDX-License-Identifier: Apache-2.0

package troupe

// The rules about code: what a room may import, and what it may do.

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

func everyPackageHasARoom(h *house) (found []string) {
	for _, f := range h.goFiles() {
		if f.room() == "" {
			found = append(found, f.path+": this folder has no row in the table of rooms; move the file, or add a row to house_test.go")
		}
	}
	return found
}

func importsFollowTheTable(h *house) (found []string) {
	for _, f := range h.goFiles() {
		for _, spec := range f.ast.Imports {
			p, _ := strconv.Unquote(spec.Path.Value)
			if why := mayNotImport(f, p); why != "" {
				found = append(found, fmt.Sprintf("%s: %s may not import %s; %s", f.at(spec.Pos()), f.room(), p, why))
			}
		}
	}
	return found
}

// mayNotImport says why f may not import p, or "".
func mayNotImport(f *file, p string) string {
	r := rooms[f.room()]
	under := func(roots []string) bool {
		return slices.ContainsFunc(roots, func(root string) bool { return p == root || strings.HasPrefix(p, root+"/") })
	}
	switch {
	case p == module || strings.HasPrefix(p, module+"/"):
		to := roomOf(strings.TrimPrefix(strings.TrimPrefix(p, module), "/"))
		if to == f.room() || slices.Contains(r.ours, to) || slices.Contains(underAll, to) {
			return ""
		}
		if floor := rooms[to].floor; f.isTest() && to != "" && floor <= r.floor && floor < 3 {
			return "" // a test may look at any pure room that stands no higher
		}
		if len(r.ours) == 0 {
			return "it stands on nothing of ours: move the line to a room above"
		}
		return "it may import " + strings.Join(r.ours, ", ") + ": move the line to a room above, or pass a value in"
	case strings.Contains(strings.Split(p, "/")[0], "."):
		if under(r.theirs) || under(pureModules) || f.isTest() && under(testModules) {
			return ""
		}
		return "a module of others enters through the table in house_test.go and a question in docs/RATIONALE.md"
	case !f.pure() || slices.Contains(pureStd, p) || slices.Contains(r.std, p):
		return ""
	default:
		if why, ok := insteadOf[p]; ok {
			return why
		}
		return "floors 0-2 are pure: if the package is a function of its arguments, add it to pureStd in house_test.go; else return an Effect"
	}
}

// everyDependencyAnswersAQuestion looks for the name of each module that go.mod
// requires directly in a heading or a paragraph of docs/RATIONALE.md.
func everyDependencyAnswersAQuestion(h *house) (found []string) {
	const page = "docs/RATIONALE.md"
	for i, line := range strings.Split(h.text("go.mod"), "\n") {
		m := regexp.MustCompile(`^(?:require )?\s*([a-z0-9.-]+\.[a-z]+/\S+) v\S+$`).FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := path.Base(regexp.MustCompile(`/v[0-9]+$`).ReplaceAllString(m[1], ""))
		if !strings.Contains(strings.ToLower(h.text(page)), name) {
			found = append(found, fmt.Sprintf("go.mod:%d: why %s? Answer in %s, or do without it", i+1, m[1], page))
		}
	}
	return found
}

func pureFloorsUsePureNames(h *house) (found []string) {
	for _, f := range h.goFiles() {
		if !f.pure() {
			continue
		}
		imported := map[string]string{} // name in this file to path
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
					found = append(found, f.at(n.Pos())+": an address differs in each process; print the ID")
				}
			}
			return true
		})
	}
	return found
}

func pureFloorsHaveOneThread(h *house) (found []string) {
	for _, f := range h.goFiles() {
		if !f.pure() {
			continue
		}
		say := func(n ast.Node, what string) {
			found = append(found, f.at(n.Pos())+": "+what+" below floor 3; a world turns the crank: return an Effect, and take its outcome as an Input")
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				say(n, "a goroutine")
			case *ast.SelectStmt:
				say(n, "a select")
			case *ast.ChanType:
				say(n, "a channel")
			case *ast.SendStmt:
				say(n, "a send")
			case *ast.UnaryExpr:
				if n.Op == token.ARROW {
					say(n, "a receive")
				}
			}
			return true
		})
	}
	return found
}

func everyPackageHasItsSentence(h *house) (found []string) {
	sentence := map[string]string{} // by folder
	name := map[string]string{}
	for _, f := range h.goFiles() {
		if f.isTest() {
			continue
		}
		name[f.dir()] = f.ast.Name.Name
		if f.ast.Doc == nil {
			continue
		}
		if sentence[f.dir()] != "" {
			found = append(found, f.path+": a second package doc; keep one, in the file a reader opens first")
		}
		sentence[f.dir()] = f.ast.Doc.Text()
	}
	for _, dir := range sorted(name) {
		want := "Package " + name[dir] + " "
		if name[dir] == "main" {
			want = "Command " + path.Base(dir) + " "
		}
		first, _, _ := strings.Cut(sentence[dir], "\n\n")
		if !strings.HasPrefix(first, want) || !strings.Contains(first, ".") {
			found = append(found, fmt.Sprintf("%s: no sentence of its own; begin its doc with %q and say in one sentence what it is for", dir, want+"…"))
		}
	}
	return found
}

func everyFileNamesItsLicence(h *house) (found []string) {
	for _, f := range h.goFiles() {
		const line = "// SPDX-License-Identifier: Apache-2.0\n"
		if !strings.HasPrefix(f.text, line) {
			found = append(found, f.path+":1: the first line of a Go file is "+strings.TrimSpace(line))
		}
	}
	return found
}

func nothingIsLeftForLater(h *house) (found []string) {
	marks := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)
	for _, f := range h.files {
		for i, line := range strings.Split(f.text, "\n") {
			if mark := marks.FindString(line); mark != "" {
				found = append(found, fmt.Sprintf("%s:%d: %s; code says what is: do it now, or open an issue", f.path, i+1, mark))
			}
		}
	}
	return found
}

func testsDoNotSleep(h *house) (found []string) {
	return h.selectors(func(f *file, x, sel string) string {
		if f.isTest() && x == "time" && sel == "Sleep" {
			return "a test that sleeps is slow or flaky; wait for a signal, or use testing/synctest"
		}
		return ""
	})
}

func onlyTheEngineMakesProps(h *house) (found []string) {
	return h.selectors(func(f *file, _, sel string) string {
		if strings.HasPrefix(sel, "Props"+"From") && f.room() != "host/engine" {
			return "an actor without our Mailbox and Dispatcher would run on threads of its own; spawn it through host/engine"
		}
		return ""
	})
}

// selectors collects what judge says of each x.sel in the tree.
func (h *house) selectors(judge func(f *file, x, sel string) string) (found []string) {
	for _, f := range h.goFiles() {
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
