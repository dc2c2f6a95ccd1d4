// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
)

// An operator finds the places of one kind of mistake.
type operator struct {
	name string
	does string
	find func(f *finder, n ast.Node)
}

// operators is the table of operators. A draw selects each with the same probability.
var operators = []operator{
	{"guard", "delete an if whose body leaves the block", deleteGuard},
	{"case", "delete a case of a switch without a tag", deleteCase},
	{"negate", "negate the condition of an if", negateCondition},
	{"operand", "delete an operand of && or ||", dropOperand},
	{"boundary", "swap < and <=, > and >=", moveBoundary},
	{"arithmetic", "swap + and -, replace * by + and / by *", swapArithmetic},
	{"literal", "add 1 to an integer, or subtract 1", changeLiteral},
	{"bound", "delete or swap min and max, or double a limit", replaceBound},
	{"swap", "swap two arguments of the same type, or the operands of - and /", swapOperands},
	{"copy", "use the original instead of a copy", dropCopy},
	{"event", "drop an event", dropEvent},
	{"statement", "drop a call, an assignment or an increment", dropStatement},
	{"result", "ignore an error, a refusal or a bool that a call returned", ignoreResult},
	{"return", "return nil or the opposite", replaceReturn},
	{"constant", "use another constant of the same type", replaceConstant},
	{"field", "leave a field of a struct at zero", dropField},
	{"jump", "break instead of continue", replaceJump},
}

func deleteGuard(f *finder, n ast.Node) {
	if s, ok := n.(*ast.IfStmt); ok && s.Else == nil && leaves(s.Body) && !testsTheSimulator(s.Cond) {
		f.condition(s.Cond, "false")
	}
}

// leaves reports whether a block ends with a jump.
func leaves(b *ast.BlockStmt) bool {
	if len(b.List) == 0 {
		return false
	}
	switch b.List[len(b.List)-1].(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		return true
	}
	return false
}

func deleteCase(f *finder, n ast.Node) {
	s, ok := n.(*ast.SwitchStmt)
	if !ok || s.Tag != nil {
		return
	}
	for _, c := range s.Body.List {
		for _, e := range c.(*ast.CaseClause).List {
			if !testsTheSimulator(e) {
				f.condition(e, "false")
			}
		}
	}
}

func negateCondition(f *finder, n ast.Node) {
	if s, ok := n.(*ast.IfStmt); ok && !testsTheSimulator(s.Cond) {
		f.condition(s.Cond, "!("+f.src(s.Cond)+")")
	}
}

func dropOperand(f *finder, n ast.Node) {
	if e, ok := n.(*ast.BinaryExpr); ok && (e.Op == token.LAND || e.Op == token.LOR) {
		f.condition(e, "("+f.src(e.X)+")")
		f.condition(e, "("+f.src(e.Y)+")")
	}
}

func moveBoundary(f *finder, n ast.Node) {
	if e, ok := n.(*ast.BinaryExpr); ok {
		swapped := map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}
		if op := swapped[e.Op]; op != "" {
			f.condition(e, f.src(e.X)+" "+op+" "+f.src(e.Y))
		}
	}
}

func swapArithmetic(f *finder, n ast.Node) {
	swapped := map[token.Token]string{token.ADD: " - ", token.SUB: " + ", token.MUL: " + ", token.QUO: " * "}
	if e, ok := n.(*ast.BinaryExpr); ok && swapped[e.Op] != "" && isInteger(f.typeOf(e)) {
		f.value(e, f.operand(e.X)+swapped[e.Op]+f.operand(e.Y))
	}
}

// operand returns the text of e, in parentheses if it is an operation.
func (f *finder) operand(e ast.Expr) string {
	if _, ok := e.(*ast.BinaryExpr); ok {
		return "(" + f.src(e) + ")"
	}
	return f.src(e)
}

func changeLiteral(f *finder, n ast.Node) {
	e, ok := n.(*ast.BasicLit)
	if !ok || e.Kind != token.INT {
		return
	}
	v, err := strconv.ParseUint(e.Value, 0, 63)
	if err != nil {
		return
	}
	f.value(e, strconv.FormatUint(v+1, 10))
	if v > 0 {
		f.value(e, strconv.FormatUint(v-1, 10))
	}
}

func replaceBound(f *finder, n ast.Node) {
	switch e := n.(type) {
	case *ast.CallExpr:
		fn, ok := e.Fun.(*ast.Ident)
		if !ok || fn.Name != "min" && fn.Name != "max" || len(e.Args) < 2 || f.typeOf(e) == nil || f.isConstant(e) {
			return
		}
		for _, a := range e.Args {
			name, _ := f.typeName(f.typeOf(e))
			f.value(e, name+"("+f.src(a)+")") // the conversion gives constants their type
		}
		other := map[string]string{"min": "max", "max": "min"}[fn.Name]
		f.value(e, other+f.src(e)[len(fn.Name):])
	case *ast.BinaryExpr:
		if !slices.Contains([]token.Token{token.LSS, token.LEQ, token.GTR, token.GEQ}, e.Op) {
			return
		}
		if f.isLimit(e.Y) {
			f.condition(e, f.src(e.X)+" "+e.Op.String()+" 2*("+f.src(e.Y)+")")
		}
		if f.isLimit(e.X) {
			f.condition(e, "2*("+f.src(e.X)+") "+e.Op.String()+" "+f.src(e.Y))
		}
	}
}

// isLimit reports whether e is an integer with the name of a limit, or a named constant.
func (f *finder) isLimit(e ast.Expr) bool {
	o := f.object(e)
	if o == nil || !isInteger(f.typeOf(e)) {
		return false
	}
	_, constant := o.(*types.Const)
	lower := strings.ToLower(o.Name())
	return constant || strings.HasSuffix(lower, "max") || strings.HasSuffix(lower, "min") || strings.HasSuffix(lower, "limit")
}

// symmetric functions return the same for swapped arguments.
var symmetric = []string{"min", "max", "Equal", "EqualFold", "ConstantTimeCompare", "Same"}

func swapOperands(f *finder, n ast.Node) {
	switch e := n.(type) {
	case *ast.BinaryExpr:
		if (e.Op == token.SUB || e.Op == token.QUO) && isInteger(f.typeOf(e)) && !f.isConstant(e) {
			f.value(e, f.operand(e.Y)+" "+e.Op.String()+" "+f.operand(e.X))
		}
	case *ast.CallExpr:
		if _, name := calleeName(e); slices.Contains(symmetric, name) || e.Ellipsis.IsValid() {
			return
		}
		for i := 1; i < len(e.Args); i++ {
			a, b := f.typeOf(e.Args[i-1]), f.typeOf(e.Args[i])
			if a == nil || b == nil || !types.Identical(a, b) || f.skipped[e.Args[i]] {
				continue
			}
			from, to := f.tree.offset(e.Pos()), f.tree.offset(e.End())
			ax, ay := f.tree.offset(e.Args[i-1].Pos()), f.tree.offset(e.Args[i-1].End())
			bx, by := f.tree.offset(e.Args[i].Pos()), f.tree.offset(e.Args[i].End())
			src := f.file.src
			f.call(e, string(src[from:ax])+string(src[bx:by])+string(src[ay:bx])+string(src[ax:ay])+string(src[by:to]))
		}
	}
}

// call adds the replacement of a call that returns any number of results.
func (f *finder) call(e *ast.CallExpr, text string) {
	if s, ok := f.parent().(*ast.ExprStmt); ok {
		if len(f.stack) < 2 {
			return
		}
		outer := *f.walk
		outer.stack = f.stack[:len(f.stack)-1]
		g := &finder{walk: &outer, operator: f.operator}
		g.statement(s, text)
		f.found = outer.found
		return
	}
	f.value(e, text)
}

func dropCopy(f *finder, n ast.Node) {
	e, ok := n.(*ast.CallExpr)
	if !ok {
		return
	}
	qualifier, name := calleeName(e)
	switch {
	case name == "Clone" && slices.Contains([]string{"slices", "bytes", "maps", "strings"}, qualifier) && len(e.Args) == 1:
		f.value(e, f.src(e.Args[0]))
	case name == "Clone" && len(e.Args) == 0:
		f.value(e, f.src(e.Fun.(*ast.SelectorExpr).X))
	case name == "append" && e.Ellipsis.IsValid() && len(e.Args) == 2 && f.isEmptySlice(e.Args[0]):
		f.value(e, f.src(e.Args[1]))
	}
}

// isEmptySlice reports whether e is the conversion of nil to a slice type.
func (f *finder) isEmptySlice(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return false
	}
	return f.file.pkg.info.Types[call.Fun].IsType() && f.file.pkg.info.Types[call.Args[0]].IsNil()
}

// isEvent reports whether a statement is the call of a function that emits an event.
func isEvent(s *ast.ExprStmt) bool {
	call, ok := s.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	_, name := calleeName(call)
	lower := strings.ToLower(name)
	return strings.HasPrefix(lower, "emit") || strings.HasPrefix(lower, "publish") || strings.HasPrefix(lower, "announce") || strings.HasSuffix(lower, "event")
}

func dropEvent(f *finder, n ast.Node) {
	if s, ok := n.(*ast.ExprStmt); ok && isEvent(s) {
		f.statement(s, "")
	}
}

func dropStatement(f *finder, n ast.Node) {
	switch s := n.(type) {
	case *ast.ExprStmt:
		if !isEvent(s) && !f.excluded(s.X) {
			f.statement(s, "")
		}
	case *ast.AssignStmt:
		if s.Tok != token.DEFINE && !slices.ContainsFunc(s.Lhs, isBlank) {
			f.statement(s, "")
		}
	case *ast.IncDecStmt, *ast.DeferStmt:
		f.statement(s.(ast.Stmt), "")
	}
}

func isBlank(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "_"
}

func ignoreResult(f *finder, n ast.Node) {
	s, ok := n.(*ast.AssignStmt)
	if !ok || len(s.Rhs) != 1 || isBlank(s.Lhs[len(s.Lhs)-1]) || s.Tok != token.ASSIGN && s.Tok != token.DEFINE {
		return
	}
	last, ok := s.Lhs[len(s.Lhs)-1].(*ast.Ident)
	if !ok {
		return
	}
	o := f.file.pkg.info.Defs[last]
	if o == nil {
		o = f.file.pkg.info.Uses[last]
	}
	_, isCall := s.Rhs[0].(*ast.CallExpr)
	if o == nil || !isCall && len(s.Lhs) == 1 {
		return
	}
	switch name, _ := f.typeName(o.Type()); {
	case isBool(o.Type()):
		f.followUp(s, last.Name+" = true")
	case name == "error", strings.HasSuffix(name, "Refusal"):
		f.followUp(s, last.Name+" = nil")
	}
}

func replaceReturn(f *finder, n ast.Node) {
	s, ok := n.(*ast.ReturnStmt)
	if !ok {
		return
	}
	for i, e := range s.Results {
		typ := f.typeOf(e)
		if typ == nil || f.file.pkg.info.Types[e].IsNil() {
			continue
		}
		instead := ""
		switch typ.Underlying().(type) {
		case *types.Pointer, *types.Slice, *types.Map, *types.Interface, *types.Signature:
			instead = "nil"
		default:
			if !isBool(typ) {
				continue
			}
			instead = "!(" + f.src(e) + ")"
		}
		var results []string
		for j, other := range s.Results {
			if results = append(results, f.src(other)); j == i {
				results[j] = instead
			}
		}
		f.statement(s, "return "+strings.Join(results, ", "))
	}
}

func replaceConstant(f *finder, n ast.Node) {
	e, ok := n.(ast.Expr)
	if !ok {
		return
	}
	if _, ok := f.parent().(*ast.SelectorExpr); ok {
		return
	}
	c, ok := f.object(e).(*types.Const)
	if !ok || c.Pkg() == nil || isBool(c.Type()) {
		return
	}
	if _, named := c.Type().(*types.Named); !named {
		return
	}
	all := constants(c)
	if len(all) < 2 {
		return
	}
	name := all[(slices.Index(all, c)+1)%len(all)].Name()
	if s, ok := e.(*ast.SelectorExpr); ok {
		name = f.src(s.X) + "." + name
	}
	f.value(e, name)
}

func dropField(f *finder, n ast.Node) {
	lit, ok := n.(*ast.CompositeLit)
	if !ok || lit.Type == nil || f.typeOf(lit) == nil {
		return
	}
	if _, ok := f.typeOf(lit).Underlying().(*types.Struct); !ok {
		return
	}
	var whole ast.Expr = lit
	if u, ok := f.parent().(*ast.UnaryExpr); ok && u.Op == token.AND {
		whole = u
	}
	for i, e := range lit.Elts {
		if _, ok := e.(*ast.KeyValueExpr); !ok {
			return
		}
		from, to := f.tree.offset(e.Pos()), f.tree.offset(e.End())
		switch {
		case i+1 < len(lit.Elts):
			to = f.tree.offset(lit.Elts[i+1].Pos())
		case i > 0:
			from = f.tree.offset(lit.Elts[i-1].End())
		}
		src := f.file.src
		f.value(whole, string(src[f.tree.offset(whole.Pos()):from])+string(src[to:f.tree.offset(whole.End())]))
	}
}

func replaceJump(f *finder, n ast.Node) {
	s, ok := n.(*ast.BranchStmt)
	if !ok || s.Tok != token.CONTINUE {
		return
	}
	for i := len(f.stack) - 1; i >= 0; i-- {
		switch f.stack[i].(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			label := ""
			if s.Label != nil {
				label = " " + s.Label.Name
			}
			f.statement(s, "break"+label)
			return
		case *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt, *ast.FuncLit:
			if s.Label == nil {
				return // there, break leaves the switch
			}
		}
	}
}
