// SPDX-License-Identifier: Apache-2.0

package troupe

// The rules about docs: what they name is there.

import (
	"fmt"
	"go/ast"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	quoted     = regexp.MustCompile("`([^`\n]+)`")
	plainPath  = regexp.MustCompile(`^(\./)?[A-Za-z0-9._*-]+(/[A-Za-z0-9._*-]+)*/?$`)
	link       = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
	qualified  = regexp.MustCompile(`^([a-z]+)\.([A-Z][A-Za-z0-9]*)(\.[A-Za-z0-9]+)?$`)
	makeTarget = regexp.MustCompile(`(?:^|[\s$(;&|])make ([a-z]+(?:-[a-z]+)*)\b`)
	fences     = regexp.MustCompile("(?ms)^ *```.*?^ *```")
)

// quotes yields what stands between backticks in prose, with its line.
func (f *file) quotes(each func(line int, text string)) {
	fenced := false
	for i, line := range strings.Split(f.text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			each(i+1, m[1])
		}
	}
}

// isPath tells a path of ours from other words between backticks: it ends like
// a file or a folder, or begins with a folder of ours.
func (h *house) isPath(s string) bool {
	if !plainPath.MatchString(s) {
		return false
	}
	s = strings.TrimPrefix(s, "./")
	first, _, deep := strings.Cut(s, "/")
	if slices.Contains(leftBehind, first) {
		return false
	}
	if _, isRoom := rooms[first]; deep && (isRoom || h.has(first) || slices.Contains([]string{"host", "cmd", "internal", "docs"}, first)) {
		return true
	}
	return strings.HasSuffix(s, "/") || slices.Contains([]string{".go", ".md", ".tla", ".cfg", ".mod", ".txt"}, path.Ext(s)) && !strings.HasPrefix(s, "*")
}

// exists tells whether a path written in a doc, perhaps with a star, is there.
func (h *house) exists(p string) bool {
	hits, err := fs.Glob(h.tree, strings.TrimSuffix(strings.TrimPrefix(p, "./"), "/"))
	return err == nil && len(hits) > 0
}

func pathsInDocsExist(h *house) (found []string) {
	for _, f := range h.docs() {
		f.quotes(func(line int, s string) {
			if h.isPath(s) && !h.exists(s) && !h.exists(path.Join(f.dir(), s)) {
				found = append(found, fmt.Sprintf("%s:%d: there is no %s; name what is there, or leave the backticks off a room that is still to come", f.path, line, s))
			}
		})
		for _, m := range link.FindAllStringSubmatch(f.text, -1) {
			if to := path.Join(f.dir(), m[1]); !strings.Contains(m[1], ":") && !h.exists(to) {
				found = append(found, fmt.Sprintf("%s: a link leads to %s, which is not there; correct it", f.path, to))
			}
		}
	}
	return found
}

func namesInDocsExist(h *house) (found []string) {
	exported := map[string]map[string]bool{} // by room, then name
	for _, f := range h.goFiles() {
		if f.isTest() || f.dir() != f.room() {
			continue
		}
		if exported[f.room()] == nil {
			exported[f.room()] = map[string]bool{}
		}
		for _, d := range f.ast.Decls {
			for _, name := range declared(d) {
				exported[f.room()][name] = true
			}
		}
	}
	for _, f := range h.docs() {
		f.quotes(func(line int, s string) {
			m := qualified.FindStringSubmatch(s)
			if m != nil && exported[m[1]] != nil && !exported[m[1]][m[2]] {
				found = append(found, fmt.Sprintf("%s:%d: %s has no %s; write the name it has now", f.path, line, m[1], m[2]))
			}
		})
	}
	return found
}

// declared are the names that a declaration adds to its package.
func declared(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			names = append(names, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}

func targetsInDocsExist(h *house) (found []string) {
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z]+(?:-[a-z]+)*):`).FindAllStringSubmatch(h.text("Makefile"), -1) {
		targets[m[1]] = true
	}
	for _, f := range h.docs() {
		check := func(text string) {
			for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
				if !targets[m[1]] {
					found = append(found, fmt.Sprintf("%s: the Makefile has no target %s; write one that `make` prints", f.path, m[1]))
				}
			}
		}
		f.quotes(func(_ int, s string) { check(s) })
		for _, block := range fences.FindAllString(f.text, -1) {
			check(block)
		}
	}
	return found
}

// outsideNamesStandWhereDocsSay reads the tables of docs/NAMES.md: each name in
// backticks in the first column is found in one of the paths in backticks in
// the second, unless that says `later`.
func outsideNamesStandWhereDocsSay(h *house) (found []string) {
	for i, line := range strings.Split(h.text("docs/NAMES.md"), "\n") {
		cells := strings.Split(line, "|")
		if !strings.HasPrefix(line, "|") || len(cells) < 4 || strings.Contains(cells[2], "`later`") {
			continue
		}
		var places []string
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			places = append(places, m[1])
		}
		names := quoted.FindAllStringSubmatch(cells[1], -1)
		if len(names) > 0 && len(places) == 0 {
			found = append(found, fmt.Sprintf("docs/NAMES.md:%d: the second column names no place; put the path in backticks, or `later`", i+1))
			continue
		}
		for _, m := range names {
			if !slices.ContainsFunc(places, func(p string) bool { return h.contains(p, m[1]) }) {
				found = append(found, fmt.Sprintf("docs/NAMES.md:%d: %s does not stand in %s; correct the place, or mark the row `later`", i+1, m[1], strings.Join(places, ", ")))
			}
		}
	}
	return found
}

// contains tells whether a file, or a file anywhere in a folder, holds the words
// with nothing joined to them.
func (h *house) contains(p, words string) bool {
	whole := regexp.MustCompile(`(^|\W)` + regexp.QuoteMeta(words) + `(\W|$)`)
	hit := false
	fs.WalkDir(h.tree, strings.TrimSuffix(p, "/"), func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && whole.MatchString(h.text(p)) {
			hit = true
		}
		if hit || err != nil {
			return fs.SkipAll
		}
		return nil
	})
	return hit
}

// errorsHasTheTableOfRefusals reads the table of reasons in actor/refusal.go:
// all that its row says of a reason stands in the row of docs/errors.md.
func errorsHasTheTableOfRefusals(h *house) (found []string) {
	const code, page = "actor/refusal.go", "docs/errors.md"
	i := slices.IndexFunc(h.files, func(f *file) bool { return f.path == code })
	if i < 0 {
		return nil
	}
	rows := map[string][]string{} // cells by the reason in backticks
	for _, line := range strings.Split(h.text(page), "\n") {
		if m := regexp.MustCompile("^\\| `([A-Za-z]+)` (\\|.*)").FindStringSubmatch(line); m != nil {
			rows[m[1]] = strings.Split(m[2], "|")
		}
	}
	f := h.files[i]
	ast.Inspect(f.ast, func(n ast.Node) bool {
		pair, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		reason, isName := pair.Key.(*ast.Ident)
		row, isRow := pair.Value.(*ast.CompositeLit)
		if !isName || !isRow {
			return true
		}
		for _, e := range row.Elts {
			lit, ok := e.(*ast.BasicLit)
			if !ok {
				continue
			}
			word := strings.Trim(lit.Value, `"`)
			if word != reason.Name && !slices.ContainsFunc(rows[reason.Name], func(cell string) bool {
				return strings.TrimSpace(cell) == word || strings.HasPrefix(strings.TrimSpace(cell), word+" (")
			}) {
				found = append(found, fmt.Sprintf("%s: the row of %s does not say %s, as %s does; make them alike", page, reason.Name, word, f.at(lit.Pos())))
			}
		}
		return false
	})
	return found
}

func architectureNamesEveryRoom(h *house) (found []string) {
	const page = "docs/ARCHITECTURE.md"
	seen := map[string]bool{}
	for _, f := range h.goFiles() {
		r := f.room()
		if seen[r] || r == "" || r == "." {
			continue
		}
		seen[r] = true
		if !regexp.MustCompile(`(?m)(^|[^\w/])` + regexp.QuoteMeta(r) + `([^\w/]|$)`).MatchString(h.text(page)) {
			found = append(found, fmt.Sprintf("%s: the room %s is not on the map; give it a line", page, r))
		}
	}
	return found
}

func analyzerKnowsThePureRooms(h *house) (found []string) {
	const page = "internal/tools/purity/purity.go"
	text := h.text(page)
	if text == "" {
		return nil
	}
	for _, r := range below3 {
		if !strings.Contains(r, "/") && !strings.Contains(text, strconv.Quote(r)+":") {
			found = append(found, fmt.Sprintf("%s: %q is missing from its pure rooms; add it", page, r))
		}
	}
	return found
}

func sorted(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
