// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// A tree is the Go code of one version of a module.
type tree struct {
	root, module string
	moves        renames // leads to the names of the newer tree
	fset         *token.FileSet
	files        map[string]*file   // by path
	idents       map[token.Pos]*tok // of all files
	units        map[string][]*unit // by build tags
	others       map[string]bool    // import paths outside of the module
}

// A file is one Go file of a tree.
type file struct {
	rel, newRel string // its paths below the root, in its own tree and in the newer one
	pkg         string // the folder of its package in the newer tree
	when        string // the conditions under which it is built
	syntax      *ast.File
	decls       []*decl
	allowed     bool            // -allow leaves the file out
	tags        map[string]bool // the sets of build tags that select the file
}

// A unit is a package, with or without its tests.
type unit struct {
	ImportPath, Dir, ForTest, Export string
	GoFiles                          []string
	ImportMap                        map[string]string
	Module                           struct {
		Main      bool
		Path, Dir string
	}
}

// readTree reads the module in root.
func readTree(root string, moves renames, o options) (*tree, error) {
	t := &tree{moves: moves, fset: token.NewFileSet(), files: map[string]*file{},
		idents: map[token.Pos]*tok{}, units: map[string][]*unit{}, others: map[string]bool{}}
	for _, tags := range o.tags {
		all, err := goList(root, "-deps", "-test", "-tags="+tags, "-json=ImportPath,Dir,ForTest,GoFiles,ImportMap,Module", "./...")
		if err != nil {
			return nil, err
		}
		for _, u := range all {
			switch {
			case !u.Module.Main:
				t.others[u.ImportPath] = true
			case !strings.HasSuffix(u.ImportPath, ".test"):
				t.module, t.root = u.Module.Path, u.Module.Dir
				t.units[tags] = append(t.units[tags], u)
			}
		}
	}
	return t, filepath.WalkDir(t.root, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err == nil && e.IsDir() && name != t.root && e.Name()[0] == '.':
			return fs.SkipDir
		case err == nil && !e.IsDir() && path.Ext(name) == ".go":
			return t.read(name, o.allow)
		}
		return err
	})
}

// read parses one file.
func (t *tree) read(name string, allow []string) error {
	rel, err := filepath.Rel(t.root, name)
	if err != nil {
		return err
	}
	f := &file{rel: filepath.ToSlash(rel), tags: map[string]bool{}}
	if f.syntax, err = parser.ParseFile(t.fset, name, nil, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		return err
	}
	t.files[name] = f
	f.newRel = t.moves.path(f.rel)
	f.pkg = path.Dir(f.newRel)
	if strings.HasSuffix(f.syntax.Name.Name, "_test") {
		f.pkg += "_test"
	}
	for _, glob := range allow {
		older, _ := path.Match(glob, f.rel) // a bad glob matches nothing
		newer, _ := path.Match(glob, f.newRel)
		f.allowed = f.allowed || older || newer
	}
	f.when = fmt.Sprintf("test %v", strings.HasSuffix(f.rel, "_test.go"))
	for _, g := range f.syntax.Comments {
		for _, c := range g.List {
			if c.Pos() < f.syntax.Package && strings.HasPrefix(c.Text, "//go:") {
				f.when += " " + c.Text
			}
		}
	}
	t.split(f)
	return nil
}

// goList runs go list in root.
func goList(root string, args ...string) (all []*unit, err error) {
	out, err := output("go", append([]string{"-C", root, "list", "-e"}, args...)...)
	for d := json.NewDecoder(bytes.NewReader(out)); err == nil && d.More(); {
		all = append(all, &unit{})
		err = d.Decode(all[len(all)-1])
	}
	return all, err
}

// importOthers returns an importer for packages outside of the module, which
// reads their export data.
func importOthers(root string, trees ...*tree) (types.Importer, error) {
	args := []string{"-export", "-deps", "-json=ImportPath,Export", "unsafe"}
	for _, t := range trees {
		args = slices.AppendSeq(args, maps.Keys(t.others))
	}
	all, err := goList(root, args...)
	export := map[string]string{}
	for _, u := range all {
		export[u.ImportPath] = u.Export
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(p string) (io.ReadCloser, error) {
		return os.Open(export[p])
	}), err
}

type importFunc func(string) (*types.Package, error)

func (f importFunc) Import(p string) (*types.Package, error) { return f(p) }

// check type-checks the packages that tags select, and sets the objects of
// their identifiers. The go command lists a package after those it imports.
func (t *tree) check(others types.Importer, tags string) error {
	done := map[string]*types.Package{}
	for _, u := range t.units[tags] {
		importPath, _, _ := strings.Cut(u.ImportPath, " ")
		conf := types.Config{Sizes: types.SizesFor("gc", runtime.GOARCH)}
		// A variant for the tests of another package has the same function bodies. They
		// are checked once.
		conf.IgnoreFuncBodies = u.ForTest != "" && strings.TrimSuffix(importPath, "_test") != u.ForTest
		conf.Importer = importFunc(func(p string) (*types.Package, error) {
			if q, ok := u.ImportMap[p]; ok {
				p = q
			}
			if done[p] != nil {
				return done[p], nil
			}
			return others.Import(p)
		})
		info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
		var syntax []*ast.File
		for _, name := range u.GoFiles {
			f := t.files[filepath.Join(u.Dir, name)]
			f.tags[tags] = true
			syntax = append(syntax, f.syntax)
		}
		var err error
		if done[u.ImportPath], err = conf.Check(importPath, t.fset, syntax, info); err != nil {
			return fmt.Errorf("type check with tags %q: %w", tags, err)
		}
		t.bind(info)
	}
	return nil
}
