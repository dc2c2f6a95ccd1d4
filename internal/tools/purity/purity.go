// SPDX-License-Identifier: Apache-2.0

// Package purity reports code whose result depends on more than its arguments.
//
// Layers 0 to 2 MUST be pure: a cell stepped twice with the same inputs returns the
// same results, or a seed could not replay a failure. The analyzer uses types, so it
// detects cases that internal/arch cannot: ranging over a map, a clock under another
// import name, a channel of a named type. Test files are exempt.
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

// Analyzer reports impure code in the pure packages, and nothing elsewhere.
var Analyzer = &analysis.Analyzer{
	Name:     "purity",
	Doc:      "report goroutines, channels, map order, clocks, global randomness and addresses in pure packages",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      run,
}

const module = "github.com/troupe-run/troupe/"

// purePackages lists the pure packages; their subpackages are included. The
// architecture test checks that the list is complete.
var purePackages = map[string]bool{
	"actor":      true,
	"contract":   true,
	"dispatcher": true,
	"history":    true,
	"memory":     true,
	"placement":  true,
	"runs":       true,
	"store":      true,
	"upstream":   true,
	"signals":    true,
	"tools":      true,
	"runtime":    true,
	"agents":     true,
	"ingress":    true,
	"specs":      true,
}

// forbidden lists the forbidden functions by package; "*" means all.
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
	useEffect = "; return an Effect and receive its result as an Input"
	sortKeys  = "; range over slices.Sorted(maps.Keys(m)) instead"
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

// isPure reports whether the path is a pure package or below one. In vet, a test
// variant has the path "x [x.test]".
func isPure(path string) bool {
	path, _, _ = strings.Cut(path, " ")
	rest, ours := strings.CutPrefix(path, module)
	pkg, _, _ := strings.Cut(rest, "/")
	return ours && purePackages[strings.TrimSuffix(pkg, "_test")]
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
		c.report(n, "a goroutine in a pure package"+useEffect)
	case *ast.SelectStmt:
		c.report(n, "a select in a pure package"+useEffect)
	case *ast.SendStmt:
		c.report(n, "a send in a pure package"+useEffect)
	case *ast.ChanType:
		c.report(n, "a channel in a pure package"+useEffect)
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			c.report(n, "a receive in a pure package"+useEffect)
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
		c.report(n, "ranging over a map has no fixed order"+sortKeys)
	case *types.Chan:
		c.report(n, "a receive in a pure package"+useEffect)
	}
}

// coreType returns the underlying type, also of a type parameter with a single term.
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

// checkCall reports maps.Keys, Values and All where their order is visible. It is not
// visible in an argument of slices.Sorted, maps.Collect and similar functions.
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
	c.report(n, "an iterator over a map has no fixed order"+sortKeys)
}

// checkIdent reports every use of a forbidden function, also without a call.
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
		c.report(n, "the clock of the process; use the time passed to Step")
		return
	}
	c.report(n, "randomness of the process; draw from the cell's own stream")
}

// checkLiteral reports the format verb that prints an address.
func (c *checker) checkLiteral(n *ast.BasicLit) {
	if n.Kind == token.STRING && strings.Contains(constant.StringVal(constant.MakeFromLiteral(n.Value, n.Kind, 0)), "%p") {
		c.report(n, "an address differs in each process; print the ID")
	}
}

func (c *checker) report(n ast.Node, sentence string) { c.pass.ReportRangef(n, "%s", sentence) }

// qualifiedName returns "package.Function"; empty for other objects.
func qualifiedName(o types.Object) string {
	f, ok := o.(*types.Func)
	if !ok || f.Pkg() == nil || f.Signature().Recv() != nil {
		return ""
	}
	return f.Pkg().Path() + "." + f.Name()
}
