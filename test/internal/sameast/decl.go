// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// A decl is a function, a type, a variable or a constant. Package clauses and
// imports count as declarations.
type decl struct {
	file *file
	name string     // in its own tree: "Cell.ring" for a method
	key  string     // package and name in the newer tree
	id   *ast.Ident // the name of a function; else nil
	toks []*tok
}

// A tok is an identifier, a literal, or a word for a piece of syntax.
type tok struct {
	pos   token.Pos
	kind  token.Token // IDENT, STRING, or another
	text  string      // the value of a string, else the source
	tag   bool        // a struct tag
	decl  *decl
	index int    // in decl.toks
	bind  string // the object that an identifier defines or uses
	full  string // the name to compare; empty for a local name
}

// split finds the declarations of f.
func (t *tree) split(f *file) {
	name := f.syntax.Name.Name
	if strings.TrimSuffix(name, "_test") == path.Base(path.Dir(f.rel)) {
		name = "as its folder"
	}
	t.newHeader(f, f.syntax.Name, "package "+name)
	for _, d := range f.syntax.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				typ, _, _ := strings.Cut(types.ExprString(d.Recv.List[0].Type), "[")
				name = strings.TrimPrefix(typ, "*") + "." + name
			}
			t.newDecl(f, name, nil, d).id = d.Name
		case *ast.GenDecl:
			t.splitGroup(f, d)
		}
	}
}

// splitGroup finds the declarations in d.
func (t *tree) splitGroup(f *file, d *ast.GenDecl) {
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.ImportSpec:
			p, _ := strconv.Unquote(s.Path.Value) // the parser has accepted it
			text := "import " + t.movedImport(p)
			if s.Name != nil && (s.Name.Name == "_" || s.Name.Name == ".") {
				text += " as " + s.Name.Name
			}
			t.newHeader(f, s, text)
		case *ast.ValueSpec:
			t.newDecl(f, s.Names[0].Name, d, s)
		case *ast.TypeSpec:
			t.newDecl(f, s.Name.Name, d, s)
		}
	}
}

// newHeader adds a package clause or an import.
func (t *tree) newHeader(f *file, n ast.Node, text string) {
	d := &decl{file: f, key: fmt.Sprintf("%s: %s (%s)", f.pkg, text, f.when)}
	d.add(n.Pos(), token.COMMENT, text)
	f.decls = append(f.decls, d)
}

// newDecl adds the declaration n, which may be part of a group.
func (t *tree) newDecl(f *file, name string, group *ast.GenDecl, n ast.Node) *decl {
	d := &decl{file: f, name: name, key: f.pkg + "."}
	f.decls = append(f.decls, d)
	dir := path.Dir(f.rel)
	if typ, _, isMethod := strings.Cut(name, "."); isMethod {
		d.key += t.moves.name(dir, typ) + "."
	}
	d.key += t.moves.name(dir, name)
	d.add(n.Pos(), token.COMMENT, "file with "+f.when)
	if group != nil {
		d.add(n.Pos(), token.COMMENT, group.Tok.String())
		d.walk(reflect.ValueOf(group.Doc), n.Pos())
	}
	d.walk(reflect.ValueOf(n), n.Pos())
	for _, x := range d.toks {
		if x.kind == token.IDENT {
			x.bind = "the name " + x.text
			t.idents[x.pos] = x
		}
	}
	return d
}

func (d *decl) add(pos token.Pos, kind token.Token, text string) {
	d.toks = append(d.toks, &tok{pos: pos, kind: kind, text: text, decl: d, index: len(d.toks)})
}

// walk adds the tokens of a piece of syntax.
func (d *decl) walk(v reflect.Value, pos token.Pos) {
	if n, ok := v.Interface().(ast.Node); ok && !v.IsNil() {
		if n.Pos().IsValid() {
			pos = n.Pos()
		}
		if d.addLeaf(n) {
			return
		}
	}
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if !v.IsNil() {
			d.walk(v.Elem(), pos)
		} else if v.Type() != reflect.TypeFor[*ast.CommentGroup]() {
			d.add(pos, token.COMMENT, "nothing")
		}
	case reflect.Struct:
		d.walkFields(v, pos)
	case reflect.Slice:
		for i := range v.Len() {
			d.walk(v.Index(i), pos)
			pos = v.Index(i).Interface().(ast.Node).End()
		}
		d.add(pos, token.COMMENT, "end")
	default:
		d.add(pos, token.COMMENT, fmt.Sprint(v))
	}
}

// walkFields adds the fields of a node. It skips a position unless its presence has
// a meaning, such as that of an ellipsis.
func (d *decl) walkFields(v reflect.Value, pos token.Pos) {
	d.add(pos, token.COMMENT, v.Type().Name())
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		p, isPos := v.Field(i).Interface().(token.Pos)
		switch {
		case !isPos:
			d.walk(v.Field(i), pos)
			if name == "Tag" {
				d.toks[len(d.toks)-1].tag = true
			}
		case p.IsValid() && (name == "Ellipsis" || name == "Assign"):
			d.add(p, token.COMMENT, name)
		}
	}
}

// addLeaf adds an identifier, a literal or directives, and reports whether n is
// one of them. A sum of literal strings is one literal.
func (d *decl) addLeaf(n ast.Node) bool {
	if s, ok := literal(n); ok {
		d.add(n.Pos(), token.STRING, s)
		return true
	}
	switch n := n.(type) {
	case *ast.Ident:
		d.add(n.Pos(), token.IDENT, n.Name)
		return true
	case *ast.CommentGroup:
		for _, c := range n.List {
			if strings.HasPrefix(c.Text, "//go:") {
				d.add(c.Pos(), token.COMMENT, c.Text)
			}
		}
		return true
	}
	return false
}

// literal returns the value of a literal string or of a sum of them.
func literal(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(n.Value)
		return s, err == nil && n.Kind == token.STRING
	case *ast.BinaryExpr:
		x, ok := literal(n.X)
		y, also := literal(n.Y)
		return x + y, n.Op == token.ADD && ok && also
	}
	return "", false
}

// bind sets the objects of the identifiers in info.
func (t *tree) bind(info *types.Info) {
	for id, o := range info.Defs {
		if x := t.idents[id.Pos()]; x != nil {
			x.bind, x.full = "itself"+t.value(o), x.fullName(o)
		}
	}
	for id, o := range info.Uses {
		if x := t.idents[id.Pos()]; x != nil {
			// An embedded field is in Defs too. Its name is that of its type.
			x.bind, x.full = t.object(o, x.decl), ""
		}
	}
}

// value describes a constant, because it may depend on its place in a group.
func (t *tree) value(o types.Object) string {
	c, ok := o.(*types.Const)
	if !ok || c.Val().Kind() == constant.String {
		return ""
	}
	typ := c.Type().String()
	if n, ok := types.Unalias(c.Type()).(*types.Named); ok {
		typ = t.object(n.Obj(), nil)
	}
	return " with value " + c.Val().ExactString() + " of " + typ
}

// fullName returns the name that x defines, with the type it belongs to. A
// member of a local type belongs to "*". The name of a local object is empty.
func (x *tok) fullName(o types.Object) string {
	v, _ := o.(*types.Var)
	_, isFunc := o.(*types.Func)
	member := isFunc || v != nil && v.IsField()
	d := x.decl
	switch {
	case o == nil:
		return ""
	case d.id != nil && d.id.Pos() == x.pos:
		return d.name
	case member && d.id == nil:
		return d.name + "." + x.text
	case isFunc || member && o.Exported():
		return "*." + x.text
	case o.Parent() == o.Pkg().Scope():
		return x.text
	}
	return ""
}

// object describes o in the same way for both trees. An object of the module is
// described by its declaration and by the index of its token in the declaration.
func (t *tree) object(o types.Object, from *decl) string {
	if p, ok := o.(*types.PkgName); ok {
		return "import " + t.movedImport(p.Imported().Path())
	}
	if o.Pkg() == nil {
		return "builtin " + o.Name()
	}
	if p := strings.TrimSuffix(o.Pkg().Path(), "_test") + "/"; !strings.HasPrefix(p, t.module+"/") {
		return fmt.Sprintf("%s%s (%d)", p, o.Name(), o.Pos())
	}
	x := t.idents[o.Pos()]
	switch {
	case x == nil:
		return "unknown " + o.Name()
	case x.decl == from:
		return fmt.Sprintf("token %d of its declaration", x.index)
	case x.decl.file.allowed:
		return x.decl.key + " with name " + t.moves.name(path.Dir(x.decl.file.rel), x.fullName(o))
	}
	return fmt.Sprintf("token %d of %s", x.index, x.decl.key)
}

// movedImport returns the import path of a package in the newer tree.
func (t *tree) movedImport(p string) string {
	if dir, ok := strings.CutPrefix(p, t.module+"/"); ok {
		return path.Join(t.module, t.moves.path(dir))
	}
	return p
}

// decls returns the declarations of some files by their keys. The contents
// of a declaration with the name "_" belong to its key.
func (t *tree) decls(pick func(*file) bool) map[string]*decl {
	all := map[string]*decl{}
	for _, name := range slices.Sorted(maps.Keys(t.files)) {
		f := t.files[name]
		for i := 0; pick(f) && i < len(f.decls); i++ {
			d := f.decls[i]
			key := d.key
			if len(f.tags) == 0 {
				key = f.newRel + ": " + key
			}
			for _, x := range d.toks {
				if d.name == "_" {
					key += " " + cmp.Or(x.bind, x.text)
				}
			}
			for all[key] != nil && d.name != "" {
				key += " again"
			}
			all[key] = d
		}
	}
	return all
}
