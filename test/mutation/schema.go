// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// selector is the name under which a rewritten file imports internal/mutant.
const selector = "drawn_"

// schema returns the text of f with all mutants of f that are in the list. The number
// of a mutant is its index. Each is selected at run time; without a selection the file
// behaves as before.
func (t *tree) schema(f *file, all []*site) []byte {
	var here []numbered
	for n, s := range all {
		if s.file == f {
			here = append(here, numbered{n, s})
		}
	}
	slices.SortStableFunc(here, func(a, b numbered) int { // outer sites first
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.end, a.end))
	})
	name := t.offset(f.ast.Name.End())
	return slices.Concat(f.src[:name], fmt.Appendf(nil, "; import %s %q", selector, t.module+"/internal/mutant"),
		[]byte(rewrite(f.src, name, len(f.src), here)))
}

// numbered is a site with its number in the list.
type numbered struct {
	n int
	*site
}

// rewrite returns the text between two offsets with these mutants, outer sites first.
func rewrite(src []byte, from, to int, all []numbered) string {
	var b strings.Builder
	for len(all) > 0 {
		m := all[0]
		inner := 1
		for inner < len(all) && all[inner].start < m.end {
			inner++
		}
		b.Write(src[from:m.start])
		b.WriteString(m.selectable(rewrite(src, m.start, m.end, all[1:inner])))
		from, all = m.end, all[inner:]
	}
	b.Write(src[from:to])
	return b.String()
}

// selectable returns the text of a node that behaves as the original, or as the mutant
// if it is selected.
func (m numbered) selectable(original string) string {
	number := strconv.Itoa(m.n)
	on, compared := selector+".Drawn("+number+")", ""
	if m.comparable && withoutEffect(m.text) {
		on, compared = selector+".Selected("+number+")", selector+".Differs("+number+", "+original+", func() "+cmp.Or(m.typ, "bool")+" { return "+m.text+" })"
	}
	switch m.form {
	case condition:
		original = cmp.Or(compared, original)
		return fmt.Sprintf("(%s && (%s) || !%s && (%s))", on, m.text, on, original)
	case value:
		original = cmp.Or(compared, original)
		return fmt.Sprintf("func() %s { if %s { return %s }; return %s }()", m.typ, on, m.text, original)
	case statement:
		return fmt.Sprintf("if %s { %s } else { %s }", on, m.text, original)
	default:
		added := m.text[m.end-m.start:]
		return original + "; if " + on + " { " + strings.TrimPrefix(added, "; ") + " }"
	}
}

// withoutEffect reports whether the evaluation of an expression changes nothing: it calls
// only functions of the language that return a value.
func withoutEffect(text string) bool {
	e, err := parser.ParseExpr(text)
	pure := err == nil
	if !pure {
		return false
	}
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			id, ok := n.Fun.(*ast.Ident)
			pure = pure && ok && (slices.Contains([]string{"len", "cap", "min", "max"}, id.Name) || isBasicType(id.Name))
		case *ast.FuncLit:
			pure = false
		case *ast.UnaryExpr:
			pure = pure && n.Op != token.ARROW
		}
		return pure
	})
	return pure
}

func isBasicType(name string) bool {
	_, ok := types.Universe.Lookup(name).(*types.TypeName)
	return ok
}

// writeOverlay writes the rewritten files and the list of them that go build -overlay
// reads. It returns the path of the list.
func (t *tree) writeOverlay(dir string, all []*site) (string, error) {
	replace := map[string]string{}
	for _, s := range all {
		// With another ending than .go, ./... does not take the folder for a package.
		path := filepath.Join(dir, "src", strings.ReplaceAll(s.file.path, "/", "_")+".txt")
		replace[filepath.Join(t.root, filepath.FromSlash(s.file.path))] = path
		if err := writeIfChanged(path, t.schema(s.file, all)); err != nil {
			return "", err
		}
	}
	list, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, writeIfChanged(path, list)
}

// writeIfChanged writes a file and its folders, unless the file has this content.
func writeIfChanged(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}
