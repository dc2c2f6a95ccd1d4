// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
)

// A form is the syntax that makes a replacement selectable at run time.
type form int

const (
	condition form = iota // an expression of type bool
	value                 // any other expression
	statement             // a statement of a list that declares nothing
	followUp              // a statement, with another one added after it
)

// A site is one possible mutant: the replacement of a node by a text.
type site struct {
	file       *file
	function   string // name of the enclosing function, with its receiver
	operator   string
	start, end int // offsets of the replaced text
	text       string
	form       form
	typ        string // form value: the type of the expression
	comparable bool   // the values of the original and of the mutant can be compared
	ordinal    int    // number of the site among those with the same key, from 1
}

// sites returns every mutant of the tree, by operator, in the order of the source.
func (t *tree) sites() map[string][]*site {
	found := map[string][]*site{}
	var all []*site
	for _, p := range t.packages {
		for _, f := range p.files {
			w := &walk{tree: t, file: f, skipped: map[ast.Node]bool{}}
			ast.Inspect(f.ast, w.visit)
			all = append(all, w.found...)
		}
	}
	ordinals := map[string]int{}
	for _, s := range all {
		s.ordinal = 1
		ordinals[s.key()]++
		s.ordinal = ordinals[s.key()]
		found[s.operator] = append(found[s.operator], s)
	}
	return found
}

// key identifies the site as long as its line does not change.
func (s *site) key() string {
	before, after := s.lines()
	words := []string{s.file.pkg.dir + "." + s.function, s.operator, before, after}
	if s.ordinal > 1 {
		words[1] += "#" + strconv.Itoa(s.ordinal)
	}
	return strings.Join(words, "\t")
}

// line returns the number of the line at which the replaced text begins.
func (s *site) line() int { return 1 + strings.Count(string(s.file.src[:s.start]), "\n") }

// lines returns the lines that the mutant changes, before and after, on one line each.
// Of a long line, only the surroundings of the change are shown.
func (s *site) lines() (before, after string) {
	src := string(s.file.src)
	from := strings.LastIndexByte(src[:s.start], '\n') + 1
	to := len(src)
	if n := strings.IndexByte(src[s.end:], '\n'); n >= 0 {
		to = s.end + n
	}
	before, after = collapse(src[from:to]), collapse(src[from:s.start]+s.text+src[s.end:to])
	same := 0
	for same < min(len(before), len(after)) && before[same] == after[same] {
		same++
	}
	sameEnd := 0
	for sameEnd < min(len(before), len(after))-same && before[len(before)-1-sameEnd] == after[len(after)-1-sameEnd] {
		sameEnd++
	}
	return shorten(before, same, sameEnd), shorten(after, same, sameEnd)
}

// contextMax is the number of bytes shown on each side of a change.
const contextMax = 70

// shorten cuts a line whose first and last bytes, in these numbers, are the same in the
// mutant.
func shorten(line string, same, sameEnd int) string {
	if cut := len(line) - sameEnd + contextMax; cut < len(line) {
		line = strings.ToValidUTF8(line[:cut], "") + "…"
	}
	if cut := same - contextMax; cut > 0 {
		line = "…" + strings.ToValidUTF8(line[cut:], "")
	}
	return line
}

// collapse replaces each run of white space by one space.
func collapse(text string) string { return strings.Join(strings.Fields(text), " ") }

// walk finds the sites of one file.
type walk struct {
	tree     *tree
	file     *file
	stack    []ast.Node
	skipped  map[ast.Node]bool
	function string
	found    []*site
}

// visit is the callback of ast.Inspect.
func (w *walk) visit(n ast.Node) bool {
	if n == nil {
		w.stack = w.stack[:len(w.stack)-1]
		return true
	}
	if w.skipped[n] || w.excluded(n) {
		return false
	}
	if f, ok := n.(*ast.FuncDecl); ok {
		w.function = functionName(f)
	}
	w.skipParts(n)
	for _, o := range operators {
		o.find(&finder{walk: w, operator: o.name}, n)
	}
	w.stack = append(w.stack, n)
	return true
}

// functionName returns the name of a function, with the type of its receiver.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	return typ.(*ast.Ident).Name + "." + f.Name.Name
}

// wordingMethods only produce text for readers.
var wordingMethods = []string{"String", "GoString", "Format", "Error"}

// excluded reports whether n and all below it are left out:
//
//   - declarations outside of functions, and types and constants in them
//   - methods that only produce text for readers
//   - assertions, and calls that only produce wording
//   - counters: a name that ends in stats
//   - capacities: the calls of slices.Grow, and the third argument of make
//   - an expression, condition or simple statement that calls mutant.On or a failpoint
func (w *walk) excluded(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ImportSpec, *ast.TypeSpec, *ast.StructType, *ast.InterfaceType, *ast.FuncType, *ast.ArrayType, *ast.MapType:
		return true
	case *ast.GenDecl:
		return n.Tok != token.VAR || len(w.stack) == 1
	case *ast.FuncDecl:
		return n.Body == nil || n.Recv != nil && slices.Contains(wordingMethods, n.Name.Name)
	case *ast.CallExpr:
		qualifier, name := calleeName(n)
		return qualifier == "invariant" || qualifier == "fmt" || qualifier == "errors" || name == "panic" || name == "Grow"
	case *ast.SelectorExpr:
		return strings.HasSuffix(strings.ToLower(n.Sel.Name), "stats")
	case *ast.AssignStmt, *ast.ExprStmt, *ast.ReturnStmt, *ast.IncDecStmt, *ast.DeferStmt:
		return testsTheSimulator(n)
	case ast.Expr:
		return testsTheSimulator(n)
	}
	return false
}

// skipParts marks the parts of n in which no replacement compiles or changes more than
// wording.
func (w *walk) skipParts(n ast.Node) {
	skip := func(all ...ast.Expr) {
		for _, e := range all {
			w.skipped[e] = true
		}
	}
	switch n := n.(type) {
	case *ast.IfStmt:
		if testsTheSimulator(n.Cond) {
			if n.Init != nil {
				w.skipped[n.Init] = true
			}
			if selectsAMutant(n.Cond) {
				w.skipped[n.Body] = true
			}
		}
	case *ast.SwitchStmt:
		if n.Tag == nil {
			return
		}
		for _, c := range n.Body.List {
			skip(c.(*ast.CaseClause).List...)
		}
	case *ast.KeyValueExpr:
		skip(n.Key)
	case *ast.CallExpr:
		if _, name := calleeName(n); name == "make" && len(n.Args) == 3 {
			skip(n.Args[2])
		}
		for i, a := range n.Args {
			if lit, ok := a.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				skip(n.Args[i:]...) // a wording and the values that it shows
				return
			}
		}
	}
}

// testsTheSimulator reports whether n calls mutant.On or a failpoint, except in function
// literals.
func testsTheSimulator(n ast.Node) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.SelectorExpr:
			x, _ := n.X.(*ast.Ident)
			found = found || x != nil && (x.Name == "mutant" || x.Name == "failpoint")
		}
		return !found
	})
	return found
}

// selectsAMutant reports whether a condition can be true because a mutant is enabled.
func selectsAMutant(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.UnaryExpr:
		return false
	case *ast.BinaryExpr:
		return selectsAMutant(e.X) || selectsAMutant(e.Y)
	case *ast.ParenExpr:
		return selectsAMutant(e.X)
	}
	return testsTheSimulator(e)
}

// calleeName returns the package or operand and the name of the called function.
func calleeName(call *ast.CallExpr) (qualifier, name string) {
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		return "", f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			qualifier = x.Name
		}
		return qualifier, f.Sel.Name
	}
	return "", ""
}

// A finder adds the sites of one operator.
type finder struct {
	*walk
	operator string
}

func (f *finder) add(n ast.Node, form form, typ, text string) *site {
	s := &site{file: f.file, function: f.function, operator: f.operator, form: form, typ: typ, text: text,
		start: f.tree.offset(n.Pos()), end: f.tree.offset(n.End())}
	if before, after := s.lines(); before != after {
		f.found = append(f.found, s)
	}
	return s
}

// condition adds the replacement of an expression of type bool.
func (f *finder) condition(e ast.Expr, text string) {
	if f.typeOf(e) != nil && isBool(f.typeOf(e)) {
		f.add(e, condition, "", text).comparable = true
	}
}

// value adds the replacement of an expression. Its type must have a name in the file.
func (f *finder) value(e ast.Expr, text string) {
	typ := f.typeOf(e)
	if typ == nil {
		return
	}
	if isBool(typ) {
		f.condition(e, text)
		return
	}
	if name, ok := f.typeName(typ); ok {
		f.add(e, value, name, text).comparable = types.Comparable(typ)
	}
}

// statement adds the replacement of a statement, if it is an element of a list.
func (f *finder) statement(s ast.Stmt, text string) {
	if f.inList() {
		f.add(s, statement, "", text)
	}
}

// followUp adds a statement behind the statement s, if s is an element of a list.
func (f *finder) followUp(s ast.Stmt, added string) {
	if f.inList() {
		f.add(s, followUp, "", f.src(s)+"; "+added)
	}
}

// inList reports whether the visited node is an element of a list of statements.
func (f *finder) inList() bool {
	switch f.parent().(type) {
	case *ast.BlockStmt, *ast.CaseClause:
		return true
	}
	return false
}

func (f *finder) parent() ast.Node      { return f.stack[len(f.stack)-1] }
func (f *finder) src(n ast.Node) string { return f.tree.text(f.file, n) }
func (f *finder) object(e ast.Expr) types.Object {
	switch e := e.(type) {
	case *ast.Ident:
		return f.file.pkg.info.Uses[e]
	case *ast.SelectorExpr:
		return f.file.pkg.info.Uses[e.Sel]
	}
	return nil
}

// typeOf returns the type of an expression that is a value, or nil.
func (f *finder) typeOf(e ast.Expr) types.Type {
	tv, ok := f.file.pkg.info.Types[e]
	if !ok || !tv.IsValue() {
		return nil
	}
	return tv.Type
}

// isConstant reports whether the compiler knows the value of e.
func (f *finder) isConstant(e ast.Expr) bool { return f.file.pkg.info.Types[e].Value != nil }

// typeName returns the name of a type in the file, if all of its parts have one.
func (f *finder) typeName(typ types.Type) (name string, ok bool) {
	ok = true
	qualify := func(p *types.Package) string {
		if p == f.file.pkg.types {
			return ""
		}
		for _, spec := range f.file.ast.Imports {
			if path, _ := strconv.Unquote(spec.Path.Value); path == p.Path() && spec.Name == nil {
				return p.Name()
			}
		}
		ok = false
		return ""
	}
	if basic, is := typ.(*types.Basic); is && basic.Info()&types.IsUntyped != 0 {
		return "", false
	}
	return types.TypeString(typ, qualify), ok
}

func isBool(t types.Type) bool    { return hasInfo(t, types.IsBoolean) }
func isInteger(t types.Type) bool { return t != nil && hasInfo(t, types.IsInteger) }

func hasInfo(t types.Type, info types.BasicInfo) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&info != 0
}

// constants returns the constants with the type of c in the package that declares it,
// ordered by value.
func constants(c *types.Const) (all []*types.Const) {
	scope := c.Pkg().Scope()
	for _, name := range scope.Names() {
		if other, ok := scope.Lookup(name).(*types.Const); ok && types.Identical(other.Type(), c.Type()) {
			all = append(all, other)
		}
	}
	slices.SortStableFunc(all, func(a, b *types.Const) int {
		x, _ := strconv.ParseInt(a.Val().ExactString(), 10, 64)
		y, _ := strconv.ParseInt(b.Val().ExactString(), 10, 64)
		return cmp.Compare(x, y)
	})
	return all
}
