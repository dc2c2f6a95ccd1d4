// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// maxFindings is the number of findings that a report prints at most.
const maxFindings = 50

// A finding is a difference that is not permitted.
type finding struct {
	file string // in the newer tree
	line int
	text string
}

// A report is the outcome of a comparison.
type report struct {
	findings map[finding]bool
	counts   map[string]map[any]bool // what was counted, by kind
}

// String returns the lines that the command prints.
func (r *report) String() string {
	var b strings.Builder
	all := slices.SortedFunc(maps.Keys(r.findings), func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), cmp.Compare(a.text, b.text))
	})
	for _, f := range all[:min(maxFindings, len(all))] {
		fmt.Fprintf(&b, "%s:%d: %s\n", f.file, f.line, f.text)
	}
	if n := len(r.findings) - maxFindings; n > 0 {
		fmt.Fprintf(&b, "and %d more\n", n)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.counts)) {
		if strings.Contains(kind, " ") {
			fmt.Fprintf(&b, "%s: %d\n", kind, len(r.counts[kind]))
		}
	}
	if len(r.findings) == 0 {
		fmt.Fprintf(&b, "same: %d packages, %d files, %d declarations, %d renamed names, %d changed strings\n",
			len(r.counts["packages"]), len(r.counts["files"]), len(r.counts["declarations"]), len(r.counts["names"]), len(r.counts["strings"]))
	}
	return b.String()
}

// count adds a thing to the set of its kind. A repeated thing counts once.
func (r *report) count(kind string, thing any) {
	if r.counts[kind] == nil {
		r.counts[kind] = map[any]bool{}
	}
	r.counts[kind][thing] = true
}

// A comparer compares two trees.
type comparer struct {
	options
	older, newer *tree
	report       *report
}

// compareTrees compares the module in older with the one in newer.
func compareTrees(older, newer string, moves renames, o options) (*report, error) {
	c := &comparer{options: o, report: &report{findings: map[finding]bool{}, counts: map[string]map[any]bool{}}}
	var err error
	if c.older, err = readTree(older, moves, o); err != nil {
		return nil, err
	}
	if c.newer, err = readTree(newer, nil, o); err != nil {
		return nil, err
	}
	others, err := importOthers(newer, c.older, c.newer)
	if err != nil {
		return nil, err
	}
	for _, tags := range o.tags {
		if err := cmp.Or(c.older.check(others, tags), c.newer.check(others, tags)); err != nil {
			return nil, err
		}
		c.compareAll(func(f *file) bool { return f.tags[tags] })
	}
	// The rest is in nested modules, test data, or files with other constraints.
	c.compareAll(func(f *file) bool { return len(f.tags) == 0 })
	return c.report, nil
}

// compareAll pairs the declarations of some files by their keys.
func (c *comparer) compareAll(pick func(*file) bool) {
	older, newer := c.older.decls(pick), c.newer.decls(pick)
	for key, a := range older {
		switch b := newer[key]; {
		case a.file.allowed || b != nil && b.file.allowed:
		case b != nil:
			c.compare(a, b)
		default:
			c.find(c.older, a.toks[0], "declaration, want %s (at this line of BASE), got none", key)
		}
	}
	for key, b := range newer {
		if older[key] == nil && !b.file.allowed {
			c.find(c.newer, b.toks[0], "declaration, want none, got %s", key)
		}
	}
}

// find adds a finding at a token of t.
func (c *comparer) find(t *tree, x *tok, format string, args ...any) {
	line := t.fset.Position(x.pos).Line
	c.report.findings[finding{x.decl.file.newRel, line, fmt.Sprintf(format, args...)}] = true
}

// compare compares a pair of declarations until their syntax differs.
func (c *comparer) compare(a, b *decl) {
	c.report.count("packages", b.file.pkg)
	c.report.count("files", b.file.rel)
	c.report.count("declarations", b.toks[0].pos)
	if len(b.file.tags) == 0 {
		c.report.count("files compared without types", b.file.rel)
	}
	// The lists of tokens end at the same place unless an earlier token differs.
	for i := range min(len(a.toks), len(b.toks)) {
		switch x, y := a.toks[i], b.toks[i]; {
		case x.kind == y.kind && x.kind == token.IDENT:
			c.compareNames(x, y)
		case x.kind == y.kind && x.kind == token.STRING:
			c.compareStrings(x, y)
		case x.kind != y.kind || x.text != y.text:
			c.find(c.newer, y, "syntax, want %s, got %s", x.text, y.text)
			return
		}
	}
}

// compareNames compares the objects of two identifiers, and their names unless
// they are local.
func (c *comparer) compareNames(x, y *tok) {
	dir := path.Dir(x.decl.file.rel)
	if x.bind != y.bind {
		c.find(c.newer, y, "object of %s, want %s, got %s", y.text, x.bind, y.bind)
	} else if want := c.older.moves.name(dir, x.full); x.full != "" && want != y.text {
		c.find(c.newer, y, "name that no line of the map permits, want %s, got %s", want, y.text)
	} else if x.full != "" && x.text != y.text {
		c.report.count("names", dir+"."+x.full)
	}
}

// compareStrings compares the values of two literals.
func (c *comparer) compareStrings(x, y *tok) {
	switch {
	case x.text == y.text || c.older.movedImport(x.text) == y.text:
	case !c.text:
		c.find(c.newer, y, "string, want %q, got %q", x.text, y.text)
	case x.tag && withoutHelp(x.text) != withoutHelp(y.text):
		c.find(c.newer, y, "struct tag, want %q, got %q", withoutHelp(x.text), withoutHelp(y.text))
	case !x.tag && !strings.Contains(x.text, " ") && !strings.HasSuffix(y.decl.file.rel, "_test.go"):
		c.find(c.newer, y, "string of one word, which may be a key, want %q, got %q", x.text, y.text)
	case verbs(x.text) != verbs(y.text):
		c.find(c.newer, y, "format verbs, want %q, got %q", verbs(x.text), verbs(y.text))
	default:
		c.report.count("strings", y.pos)
		c.report.count("strings in "+path.Dir(y.decl.file.rel), y.pos)
	}
}

var (
	help = regexp.MustCompile(`(^|\s)help:"(?:[^"\\]|\\.)*"`)
	verb = regexp.MustCompile(`%[-+#0]*((?:\[\d+\])?\*)?\d*(?:\.(?:((?:\[\d+\])?\*)|\d*))?(\[\d+\])?([a-zA-Z])`)
)

// withoutHelp returns a struct tag without the text of its help.
func withoutHelp(tag string) string { return help.ReplaceAllString(tag, "${1}help") }

// verbs returns the format verbs of a text, with stars and argument indexes but
// without flags, width and precision.
func verbs(text string) string {
	var all []string
	for _, m := range verb.FindAllStringSubmatch(strings.ReplaceAll(text, "%%", ""), -1) {
		all = append(all, "%"+strings.Join(m[1:], ""))
	}
	return strings.Join(all, " ")
}
