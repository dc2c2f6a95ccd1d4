// SPDX-License-Identifier: Apache-2.0

// Package purity is an analyzer that reports code whose result depends on more than
// its arguments.
//
// Layers 0 to 2 MUST be pure: a cell that is stepped twice with the same inputs
// produces the same results. Otherwise a seed cannot be replayed. The analyzer uses
// type information and therefore finds what arch_test.go cannot: iteration over a map,
// a clock under another import name, a channel of a named or inferred type. Tests are
// exempt.
package purity

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// Analyzer reports impure code in the pure packages, and nothing in other packages.
var Analyzer = &analysis.Analyzer{
	Name:     "purity",
	Doc:      "report goroutines, channels, map order, clocks, global random sources and addresses in pure packages",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      run,
}

const module = "github.com/troupe-run/troupe/"

// packages are the pure packages, including those below them. arch_test.go checks
// that the list is complete.
var packages = map[string]bool{
	"actor":      true,
	"dispatcher": true,
	"history":    true,
	"runs":       true,
	"store":      true,
	"upstream":   true,
	"tools":      true,
	"runtime":    true,
	"agents":     true,
	"ingress":    true,
	"specs":      true,
}

// forbidden holds the forbidden functions by package; "*" means all functions.
var forbidden = map[string]map[string]bool{
	"time":         set("Now Since Until Sleep After AfterFunc Tick NewTimer NewTicker"),
	"math/rand":    set("*"),
	"math/rand/v2": set("Int IntN Int32 Int32N Int64 Int64N Uint Uint32 Uint32N Uint64 Uint64N UintN N Float32 Float64 ExpFloat64 NormFloat64 Perm Shuffle"),
	"crypto/rand":  set("*"),
	"hash/maphash": set("*"),
}

func set(names string) map[string]bool {
	m := map[string]bool{}
	for _, n := range strings.Fields(names) {
		m[n] = true
	}
	return m
}

const (
	thread  = "; return an Effect and receive its outcome as an Input"
	inOrder = "; range over slices.Sorted(maps.Keys(m))"
)

func run(pass *analysis.Pass) (any, error) {
	if !pure(pass.Pkg.Path()) {
		return nil, nil
	}
	c := &checker{pass: pass}
	c.inspect = pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
	c.inspect.WithStack(nil, c.node)
	return nil, nil
}

// pure reports whether path is a pure package or below one. The path of a test
// variant is "x [x.test]".
func pure(path string) bool {
	path, _, _ = strings.Cut(path, " ")
	rest, ours := strings.CutPrefix(path, module)
	top, _, _ := strings.Cut(rest, "/")
	return ours && packages[strings.TrimSuffix(top, "_test")]
}

type checker struct {
	pass    *analysis.Pass
	inspect *inspector.Inspector
}

func (c *checker) node(n ast.Node, push bool, stack []ast.Node) (descend bool) {
	if !push {
		return true
	}
	switch n := n.(type) {
	case *ast.File:
		return !strings.HasSuffix(c.pass.Fset.Position(n.Pos()).Filename, "_test.go")
	case *ast.GoStmt:
		c.report(n, "a goroutine below layer 3"+thread)
	case *ast.SelectStmt:
		c.report(n, "a select below layer 3"+thread)
	case *ast.SendStmt:
		c.report(n, "a send below layer 3"+thread)
	case *ast.ChanType:
		c.report(n, "a channel below layer 3"+thread)
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			c.report(n, "a receive below layer 3"+thread)
		}
	case *ast.RangeStmt:
		c.ranges(n)
	case *ast.CallExpr:
		c.call(n, stack)
	case *ast.Ident:
		c.use(n)
	case *ast.BasicLit:
		c.literal(n)
	}
	return true
}

func (c *checker) ranges(n *ast.RangeStmt) {
	switch core(c.pass.TypesInfo.TypeOf(n.X)).(type) {
	case *types.Map:
		c.report(n, "ranging over a map has another order each time"+inOrder)
	case *types.Chan:
		c.report(n, "a receive below layer 3"+thread)
	}
}

// core returns the underlying type of t. For a type parameter with a single type in
// its constraint, it returns the underlying type of that type.
func core(t types.Type) types.Type {
	if p, ok := t.(*types.TypeParam); ok {
		if iface, ok := p.Constraint().Underlying().(*types.Interface); ok && iface.NumEmbeddeds() == 1 {
			if u, ok := iface.EmbeddedType(0).(*types.Union); ok && u.Len() == 1 {
				return u.Term(0).Type().Underlying()
			}
			return iface.EmbeddedType(0).Underlying()
		}
	}
	return t.Underlying()
}

// call reports calls of maps.Keys, maps.Values and maps.All, except as the argument of
// a function whose result does not depend on their order, such as slices.Sorted.
func (c *checker) call(n *ast.CallExpr, stack []ast.Node) {
	switch name(typeutil.Callee(c.pass.TypesInfo, n)) {
	case "maps.Keys", "maps.Values", "maps.All":
	default:
		return
	}
	if outer, ok := stack[len(stack)-2].(*ast.CallExpr); ok {
		switch name(typeutil.Callee(c.pass.TypesInfo, outer)) {
		case "slices.Sorted", "slices.SortedFunc", "slices.SortedStableFunc", "maps.Collect", "maps.Insert":
			return
		}
	}
	c.report(n, "the elements of a map are in another order each time"+inOrder)
}

// use reports each reference to a forbidden function, called or not.
func (c *checker) use(n *ast.Ident) {
	f, ok := c.pass.TypesInfo.Uses[n].(*types.Func)
	if !ok || f.Pkg() == nil || f.Signature().Recv() != nil {
		return
	}
	names := forbidden[f.Pkg().Path()]
	if !names["*"] && !names[f.Name()] {
		return
	}
	if f.Pkg().Path() == "time" {
		c.report(n, "the clock of this process; time arrives as an argument of Step")
		return
	}
	c.report(n, "chance of this process; draw from the cell's own stream")
}

// literal reports string literals with %p, the verb that prints an address.
func (c *checker) literal(n *ast.BasicLit) {
	if n.Kind == token.STRING && strings.Contains(constant.StringVal(constant.MakeFromLiteral(n.Value, n.Kind, 0)), "%p") {
		c.report(n, "an address differs in each process; print the ID")
	}
}

func (c *checker) report(n ast.Node, sentence string) { c.pass.ReportRangef(n, "%s", sentence) }

// name returns "package.Function", or "" if o is not a function.
func name(o types.Object) string {
	f, ok := o.(*types.Func)
	if !ok || f.Pkg() == nil || f.Signature().Recv() != nil {
		return ""
	}
	return f.Pkg().Path() + "." + f.Name()
}
