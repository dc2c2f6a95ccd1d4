// SPDX-License-Identifier: Apache-2.0

// Package purity reports what makes a function of its arguments into something else.
//
// Layers 0 to 2 are pure: a cell that is stepped twice with the
// same inputs does the same thing twice, or a seed would replay nothing. The
// analyzer sees types, so it catches what arch_test.go cannot: a map that is
// ranged over, a clock that hides behind another import name, a channel that
// nobody spelled out. Tests are free to do as they like.
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

// Analyzer is silent outside the pure packages.
var Analyzer = &analysis.Analyzer{
	Name:     "purity",
	Doc:      "report goroutines, channels, map order, clocks, global chance and addresses in pure packages",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      run,
}

const module = "github.com/troupe-run/troupe/"

// packages are the pure ones, with all that lies below them; arch_test.go checks
// that none is forgotten.
var purePackages = map[string]bool{
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

// forbidden functions by package; "*" stands for all of them.
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
	useEffect = "; a world turns the crank: return an Effect, and take its outcome as an Input"
	sortKeys  = "; write slices.Sorted(maps.Keys(m)) and range over that"
)

func run(pass *analysis.Pass) (any, error) {
	if !isPure(pass.Pkg.Path()) {
		return nil, nil
	}
	c := &checker{pass: pass}
	c.inspect = pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
	c.inspect.WithStack(nil, c.visit)
	return nil, nil
}

// pure tells whether the path is a pure room's or below one. A vet of a test
// variant has the path "x [x.test]".
func isPure(path string) bool {
	path, _, _ = strings.Cut(path, " ")
	rest, ours := strings.CutPrefix(path, module)
	room, _, _ := strings.Cut(rest, "/")
	return ours && purePackages[strings.TrimSuffix(room, "_test")]
}

type checker struct {
	pass    *analysis.Pass
	inspect *inspector.Inspector
}

func (c *checker) visit(n ast.Node, push bool, stack []ast.Node) (descend bool) {
	if !push {
		return true
	}
	switch n := n.(type) {
	case *ast.File:
		return !strings.HasSuffix(c.pass.Fset.Position(n.Pos()).Filename, "_test.go")
	case *ast.GoStmt:
		c.report(n, "a goroutine below floor 3"+useEffect)
	case *ast.SelectStmt:
		c.report(n, "a select below floor 3"+useEffect)
	case *ast.SendStmt:
		c.report(n, "a send below floor 3"+useEffect)
	case *ast.ChanType:
		c.report(n, "a channel below floor 3"+useEffect)
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			c.report(n, "a receive below floor 3"+useEffect)
		}
	case *ast.RangeStmt:
		c.checkRange(n)
	case *ast.CallExpr:
		c.checkCall(n, stack)
	case *ast.Ident:
		c.checkIdent(n)
	case *ast.BasicLit:
		c.checkLiteral(n)
	}
	return true
}

func (c *checker) checkRange(n *ast.RangeStmt) {
	switch coreType(c.pass.TypesInfo.TypeOf(n.X)).(type) {
	case *types.Map:
		c.report(n, "ranging over a map takes another order each time"+sortKeys)
	case *types.Chan:
		c.report(n, "a receive below floor 3"+useEffect)
	}
}

// core is the type under names and type parameters of one shape.
func coreType(t types.Type) types.Type {
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

// call reports maps.Keys and its like where their order could be seen: anywhere
// but as the argument of slices.Sorted and its like.
func (c *checker) checkCall(n *ast.CallExpr, stack []ast.Node) {
	switch qualifiedName(typeutil.Callee(c.pass.TypesInfo, n)) {
	case "maps.Keys", "maps.Values", "maps.All":
	default:
		return
	}
	if outer, ok := stack[len(stack)-2].(*ast.CallExpr); ok {
		switch qualifiedName(typeutil.Callee(c.pass.TypesInfo, outer)) {
		case "slices.Sorted", "slices.SortedFunc", "slices.SortedStableFunc", "maps.Collect", "maps.Insert":
			return
		}
	}
	c.report(n, "what a map yields comes in another order each time"+sortKeys)
}

// use reports a forbidden function wherever it is named, called or not.
func (c *checker) checkIdent(n *ast.Ident) {
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

// literal reports the verb that prints an address.
func (c *checker) checkLiteral(n *ast.BasicLit) {
	if n.Kind == token.STRING && strings.Contains(constant.StringVal(constant.MakeFromLiteral(n.Value, n.Kind, 0)), "%p") {
		c.report(n, "an address differs in each process; print the ID")
	}
}

func (c *checker) report(n ast.Node, sentence string) { c.pass.ReportRangef(n, "%s", sentence) }

// name is "package.Function", or "" for anything else.
func qualifiedName(o types.Object) string {
	f, ok := o.(*types.Func)
	if !ok || f.Pkg() == nil || f.Signature().Recv() != nil {
		return ""
	}
	return f.Pkg().Path() + "." + f.Name()
}
