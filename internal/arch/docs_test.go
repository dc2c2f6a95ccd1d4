// SPDX-License-Identifier: Apache-2.0

package arch

// Rules about docs: every path, name and target they mention exists.

import (
	"fmt"
	"go/ast"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

var (
	quoted     = regexp.MustCompile("`([^`\n]+)`")
	plainPath  = regexp.MustCompile(`^(\./)?[A-Za-z0-9._*-]+(/[A-Za-z0-9._*-]+)*/?$`)
	link       = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
	qualified  = regexp.MustCompile(`^([a-z]+)\.([A-Z][A-Za-z0-9]*)(\.[A-Za-z0-9]+)?$`)
	makeTarget = regexp.MustCompile(`(?:^|[\s$(;&|])make ([a-z]+(?:-[a-z]+)*)\b`)
	fences     = regexp.MustCompile("(?ms)^ *```.*?^ *```")
)

// quotes calls the function each for every text between backticks outside code blocks.
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

// isPath reports whether s is a path of this repository: it has the ending of a
// file or folder, or begins with a folder of the repository.
func (c *checkout) isPath(s string) bool {
	if !plainPath.MatchString(s) {
		return false
	}
	s = strings.TrimPrefix(s, "./")
	first, _, deep := strings.Cut(s, "/")
	if slices.Contains(ignored, first) {
		return false
	}
	if _, isPackage := packages[first]; deep && (isPackage || c.has(first) || slices.Contains([]string{"host", "cmd", "internal", "docs"}, first)) {
		return true
	}
	return strings.HasSuffix(s, "/") || slices.Contains([]string{".go", ".md", ".tla", ".cfg", ".mod", ".txt"}, path.Ext(s)) && !strings.HasPrefix(s, "*")
}

// exists reports whether a path of a doc, or a pattern with a star, matches a file.
func (c *checkout) exists(p string) bool {
	hits, err := fs.Glob(c.tree, strings.TrimSuffix(strings.TrimPrefix(p, "./"), "/"))
	return err == nil && len(hits) > 0
}

func pathsInDocsExist(c *checkout) (found []string) {
	for _, f := range c.docs() {
		f.quotes(func(line int, s string) {
			if c.isPath(s) && !c.exists(s) && !c.exists(path.Join(f.dir(), s)) {
				found = append(found, fmt.Sprintf("%s:%d: no file %s; correct the path, or remove the backticks", f.path, line, s))
			}
		})
		for _, m := range link.FindAllStringSubmatch(fences.ReplaceAllString(f.text, ""), -1) {
			if to := path.Join(f.dir(), m[1]); !strings.Contains(m[1], ":") && !c.exists(to) {
				found = append(found, fmt.Sprintf("%s: broken link to %s; correct it", f.path, to))
			}
		}
	}
	return found
}

func exportedNamesInDocsExist(c *checkout) (found []string) {
	exported := map[string]map[string]bool{} // by package, then name
	for _, f := range c.goFiles() {
		if f.isTest() || f.dir() != f.row() {
			continue
		}
		pkg := f.row()
		if pkg == "." {
			pkg = f.ast.Name.Name
		}
		if exported[pkg] == nil {
			exported[pkg] = map[string]bool{}
		}
		for _, d := range f.ast.Decls {
			for _, name := range declared(d) {
				exported[pkg][name] = true
			}
		}
	}
	for _, f := range c.docs() {
		f.quotes(func(line int, s string) {
			m := qualified.FindStringSubmatch(s)
			if m != nil && exported[m[1]] != nil && !exported[m[1]][m[2]] {
				found = append(found, fmt.Sprintf("%s:%d: %s has no exported name %s; write its current name", f.path, line, m[1], m[2]))
			}
		})
	}
	return found
}

// declared returns the package-level names of a declaration.
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

func targetsInDocsExist(c *checkout) (found []string) {
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z]+(?:-[a-z]+)*):`).FindAllStringSubmatch(c.text("Makefile"), -1) {
		targets[m[1]] = true
	}
	for _, f := range c.docs() {
		check := func(text string) {
			for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
				if !targets[m[1]] {
					found = append(found, fmt.Sprintf("%s: the Makefile has no target %s; use one that `make help-all` prints", f.path, m[1]))
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

var (
	testPattern  = regexp.MustCompile(`-(?:run|skip) '\^Test(\w*)(?:\(([^']*)\))?(\$\$)?'`)
	makeVariable = regexp.MustCompile(`(?m)^(\w+) *= *(.*)$`)
)

// testsInMakefileExist checks each alternative of a pattern after -run or -skip. go test
// passes if a pattern matches no test, so a renamed test would be omitted silently.
func testsInMakefileExist(c *checkout) (found []string) {
	var tests []string
	for _, f := range c.goFiles() {
		for _, d := range f.ast.Decls {
			tests = append(tests, declared(d)...)
		}
	}
	text := c.text("Makefile")
	for _, m := range makeVariable.FindAllStringSubmatch(text, -1) {
		text = strings.ReplaceAll(text, "$("+m[1]+")", m[2])
	}
	for _, m := range testPattern.FindAllStringSubmatch(text, -1) {
		for _, rest := range strings.Split(m[2], "|") {
			name := "Test" + m[1] + rest
			matches := func(test string) bool {
				return test == name || m[3] == "" && strings.HasPrefix(test, name)
			}
			if !slices.ContainsFunc(tests, matches) {
				found = append(found, fmt.Sprintf("Makefile: no test named %s; correct the pattern", name))
			}
		}
	}
	return found
}

var stageLine = regexp.MustCompile(`^(?:\[ .* \] \|\| )?(stage|beside) (\S+) `)

// stagesEndInTime adds the expected seconds of the stages of .ci/run, for a core change and for
// any other. Those between beside and join run while the command of beside does.
func stagesEndInTime(c *checkout) (found []string) {
	const script = ".ci/run"
	text := c.text(script)
	forms := []struct {
		name string
		skip string // block of the other form
		most int
	}{{"for a core change", "outside", 25 * 60}, {"for any other change", "core", 12 * 60}}
	for _, form := range forms {
		sum, beside, before, block := 0, 0, 0, ""
		for i, line := range strings.Split(text, "\n") {
			line = strings.TrimSpace(line)
			switch {
			case line == `if [ "$core" = yes ]; then`:
				block = "core"
			case line == "else" && block == "core":
				block = "outside"
			case line == "fi":
				block = ""
			case line == "join":
				sum = max(sum, before+beside)
			}
			m := stageLine.FindStringSubmatch(line)
			if m == nil || block == form.skip {
				continue
			}
			seconds, err := strconv.Atoi(m[2])
			if err != nil && form.skip == "core" {
				found = append(found, fmt.Sprintf("%s:%d: the stage lacks its expected seconds; add them before the command", script, i+1))
			}
			if m[1] == "beside" {
				before, beside = sum, seconds
			} else {
				sum += seconds
			}
		}
		if sum > form.most {
			found = append(found, fmt.Sprintf("%s: %s the stages take %d s, more than %d; move a part to make nightly", script, form.name, sum, form.most))
		}
	}
	return found
}

// externalNamesAreFound reads the tables of names in docs/NAMES.md. Each name in backticks
// in the first column must occur in one of the paths of the second column. If that
// column contains `later`, the name must occur in none of them.
func externalNamesAreFound(c *checkout) (found []string) {
	for i, line := range strings.Split(c.text("docs/NAMES.md"), "\n") {
		cells := strings.Split(line, "|")
		if !strings.HasPrefix(line, "|") || len(cells) < 4 || requirementCell.MatchString(cells[1]) {
			continue
		}
		later := strings.Contains(cells[2], "`later`")
		var places []string
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			if m[1] != "later" {
				places = append(places, m[1])
			}
		}
		names := quoted.FindAllStringSubmatch(cells[1], -1)
		if len(names) > 0 && len(places) == 0 {
			found = append(found, fmt.Sprintf("docs/NAMES.md:%d: the second column has no place; put the path in backticks, after `later` if it lacks the name", i+1))
			continue
		}
		for _, m := range names {
			stands := slices.ContainsFunc(places, func(p string) bool { return c.contains(p, m[1]) })
			if stands && later {
				found = append(found, fmt.Sprintf("docs/NAMES.md:%d: %s is found in %s; remove `later`", i+1, m[1], strings.Join(places, ", ")))
			}
			if !stands && !later {
				found = append(found, fmt.Sprintf("docs/NAMES.md:%d: %s is not found in %s; correct the place, or mark the row `later`", i+1, m[1], strings.Join(places, ", ")))
			}
		}
	}
	return found
}

// requirementsAreMet reads the table of requirements in docs/NAMES.md. The tests of a row and
// its surfaces must exist: routes, flags, paths, Go names, and words of the code. A
// row whose test is `planned` must not have all its surfaces.
func requirementsAreMet(c *checkout) (found []string) {
	const page = "docs/NAMES.md"
	tests, words := map[string]bool{}, map[string]bool{}
	for _, f := range c.files {
		if !strings.HasSuffix(f.path, "_test.go") && (f.ast != nil || path.Ext(f.path) == ".tla") {
			for _, word := range strings.FieldsFunc(f.text, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
				words[word] = true
			}
			continue
		}
		if f.ast == nil {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				tests[fn.Name.Name] = true
			}
		}
	}
	for i, line := range strings.Split(c.text(page), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !requirementCell.MatchString(cells[1]) {
			continue
		}
		breach := func(format string, args ...any) {
			found = append(found, fmt.Sprintf("%s:%d: %s", page, i+1, fmt.Sprintf(format, args...)))
		}
		var missing []string
		surfaces := quoted.FindAllStringSubmatch(cells[2], -1)
		for _, m := range surfaces {
			if !c.hasSurface(m[1], words) {
				missing = append(missing, m[1])
			}
		}
		if strings.TrimSpace(cells[3]) == "`planned`" {
			if len(surfaces) > 0 && len(missing) == 0 {
				breach("%s exists; name its test instead of `planned`", strings.TrimSpace(cells[2]))
			}
			continue
		}
		for _, m := range missing {
			breach("%s is not found; correct the surface, or mark the row `planned`", m)
		}
		names := quoted.FindAllStringSubmatch(cells[3], -1)
		if len(names) == 0 || len(surfaces) == 0 {
			breach("want a surface and a test in backticks, or `planned`")
		}
		for _, m := range names {
			if !tests[m[1]] && !(strings.HasPrefix(m[1], "test_") && c.contains("sdk/python/tests", "def "+m[1])) {
				breach("no test named %s; correct the name", m[1])
			}
		}
	}
	return found
}

var requirementCell = regexp.MustCompile(`^ [A-Z][0-9]+[a-z]? `)

// hasSurface reports whether a surface in docs/NAMES.md exists. The paths of
// routes and flags are read where the code declares them.
func (c *checkout) hasSurface(name string, words map[string]bool) bool {
	flag, isFlag := strings.CutPrefix(name, "--")
	switch {
	case strings.Contains(name, " /"):
		method, path, _ := strings.Cut(name, " ")
		row := "{" + strings.TrimSuffix(strings.ToLower(method), "ete") + ", " + strconv.Quote(path) + "," // del means DELETE
		return strings.Contains(c.text("host/gateway/routes.go"), row)
	case isFlag:
		field := regexp.MustCompile(`(?mi)^\s+` + strings.ReplaceAll(flag, "-", "") + `\s+\S.*help:"`)
		return slices.ContainsFunc(c.goFiles(), func(f *file) bool { return strings.HasPrefix(f.path, "cmd/troupe/") && field.MatchString(f.text) })
	case strings.Contains(name, "/"):
		return c.has(name)
	}
	if _, exported, ok := strings.Cut(name, "."); ok {
		name = exported // the rule on exported names in docs checks the package
	}
	return words[name]
}

// contains reports whether a file, or any file below a folder, contains the words
// as whole words.
func (c *checkout) contains(p, words string) bool {
	whole := regexp.MustCompile(`(^|\W)` + regexp.QuoteMeta(words) + `(\W|$)`)
	hit := false
	fs.WalkDir(c.tree, strings.TrimSuffix(p, "/"), func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && whole.MatchString(c.text(p)) {
			hit = true
		}
		if hit || err != nil {
			return fs.SkipAll
		}
		return nil
	})
	return hit
}

// errorsPageMatchesRefusals compares the table of reasons in actor/refusal.go
// with docs/errors.md: each string of a reason's row must be in the page's row.
func errorsPageMatchesRefusals(c *checkout) (found []string) {
	const code, page = "actor/refusal.go", "docs/errors.md"
	i := slices.IndexFunc(c.files, func(f *file) bool { return f.path == code })
	if i < 0 {
		return nil
	}
	rows := map[string][]string{} // cells by the reason in backticks
	for _, line := range strings.Split(c.text(page), "\n") {
		if m := regexp.MustCompile("^\\| `([A-Za-z]+)` (\\|.*)").FindStringSubmatch(line); m != nil {
			rows[m[1]] = strings.Split(m[2], "|")
		}
	}
	f := c.files[i]
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
				found = append(found, fmt.Sprintf("%s: the row of %s lacks %s, found at %s; make them equal", page, reason.Name, word, f.at(lit.Pos())))
			}
		}
		return false
	})
	return found
}

func architectureNamesEveryPackage(c *checkout) (found []string) {
	const page = "docs/ARCHITECTURE.md"
	seen := map[string]bool{}
	for _, f := range c.goFiles() {
		r := f.row()
		if seen[r] || r == "" || r == "." {
			continue
		}
		seen[r] = true
		if !regexp.MustCompile(`(?m)(^|[^\w/])` + regexp.QuoteMeta(r) + `([^\w/]|$)`).MatchString(c.text(page)) {
			found = append(found, fmt.Sprintf("%s: package %s is missing; add a line", page, r))
		}
	}
	return found
}

func analyzerKnowsThePurePackages(c *checkout) (found []string) {
	const page = "internal/tools/purity/purity.go"
	text := c.text(page)
	if text == "" {
		return nil
	}
	for _, r := range below3 {
		if !strings.Contains(r, "/") && !strings.Contains(text, strconv.Quote(r)+":") {
			found = append(found, fmt.Sprintf("%s: %q is missing from its pure packages; add it", page, r))
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
