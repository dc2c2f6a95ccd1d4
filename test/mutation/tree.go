// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A tree is the packages that mutants are drawn from, parsed and type-checked.
type tree struct {
	root     string // folder of go.mod
	module   string
	fset     *token.FileSet
	packages []*pkg // in the order of the arguments of load
	importer types.Importer
}

// A pkg is one package of a tree.
type pkg struct {
	path  string // import path
	dir   string // relative to the root
	files []*file
	asts  []*ast.File // of all files, including generated ones
	types *types.Package
	info  *types.Info
}

// A file is one source file of a package. Test files, generated files and files that
// the build excludes are omitted.
type file struct {
	pkg  *pkg
	path string // relative to the root
	src  []byte
	ast  *ast.File
}

// listed is the part of the output of go list that load reads.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Module                  *struct{ Path, Dir string }
	DepOnly                 bool
}

// load reads the packages in these folders of the module at root. They are built with
// the tag mutants.
func load(root string, dirs []string) (*tree, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	args := []string{"list", "-export", "-deps", "-tags", "mutants", "-json=ImportPath,Dir,Export,GoFiles,Module,DepOnly", "./internal/mutant"}
	for _, d := range dirs {
		args = append(args, "./"+d)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	t := &tree{root: root, fset: token.NewFileSet()}
	exports := map[string]string{}
	byDir := map[string]*listed{}
	for d := json.NewDecoder(bytes.NewReader(output)); ; {
		var l listed
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[l.ImportPath] = l.Export
		if !l.DepOnly {
			t.module = l.Module.Path
			byDir[strings.TrimPrefix(strings.TrimPrefix(l.ImportPath, l.Module.Path), "/")] = &l
		}
	}
	t.importer = importer.ForCompiler(t.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, dir := range dirs {
		p, err := t.readPackage(dir, byDir[dir])
		if err != nil {
			return nil, err
		}
		t.packages = append(t.packages, p)
	}
	return t, nil
}

func (t *tree) readPackage(dir string, l *listed) (*pkg, error) {
	p := &pkg{path: l.ImportPath, dir: dir}
	for _, name := range slices.Sorted(slices.Values(l.GoFiles)) {
		src, err := os.ReadFile(filepath.Join(l.Dir, name))
		if err != nil {
			return nil, err
		}
		f := &file{pkg: p, path: filepath.ToSlash(filepath.Join(dir, name)), src: src}
		if f.ast, err = parser.ParseFile(t.fset, f.path, src, parser.ParseComments|parser.SkipObjectResolution); err != nil {
			return nil, err
		}
		p.asts = append(p.asts, f.ast)
		if !ast.IsGenerated(f.ast) {
			p.files = append(p.files, f)
		}
	}
	p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: t.importer}
	var err error
	p.types, err = config.Check(p.path, t.fset, p.asts, p.info)
	return p, err
}

// compiles reports whether the package of f type-checks when src replaces the text of f.
func (t *tree) compiles(f *file, src []byte) bool {
	changed, err := parser.ParseFile(t.fset, f.path, src, parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	all := []*ast.File{changed}
	for _, other := range f.pkg.asts {
		if other != f.ast {
			all = append(all, other)
		}
	}
	config := types.Config{Importer: t.importer, Error: func(error) {}}
	_, err = config.Check(f.pkg.path, t.fset, all, nil)
	return err == nil
}

// offset returns the position of p in the text of its file.
func (t *tree) offset(p token.Pos) int { return t.fset.Position(p).Offset }

// text returns the source text of a node of f.
func (t *tree) text(f *file, n ast.Node) string {
	return string(f.src[t.offset(n.Pos()):t.offset(n.End())])
}
