// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const apiPath = "github.com/troupe-run/troupe"

// apiPaths are the packages for programs. They show types of each other only.
var apiPaths = []string{apiPath, apiPath + "/troupetest"}

// apiNamesMax is the maximum number of exported names of package troupe. Each is a promise.
const apiNamesMax = 160

// newImporter returns an importer of compiled packages: those with a promise and the packages that they need.
func newImporter(t *testing.T) types.Importer {
	t.Helper()
	command := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", ".", "./troupetest")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("no package %s", path)
		}
		return os.Open(files[path])
	})
}

// apiWalk finds the types that the exported API of a package shows.
type apiWalk struct {
	foreign []string // places that show a type of another package of this module
	names   int      // exported functions, types, constants, variables and methods
	seen    map[types.Type]bool
}

// walk adds the types that a type shows to a program that uses it.
func (w *apiWalk) walk(at string, t types.Type) {
	if w.seen[t] {
		return
	}
	w.seen[t] = true
	switch t := t.(type) {
	case *types.Alias:
		w.declared(at, t.Obj())
		w.walk(at, types.Unalias(t))
	case *types.Named:
		w.declared(at, t.Obj())
		for arg := range t.TypeArgs().Types() {
			w.walk(at, arg)
		}
	case *types.Pointer:
		w.walk(at, t.Elem())
	case *types.Slice:
		w.walk(at, t.Elem())
	case *types.Array:
		w.walk(at, t.Elem())
	case *types.Chan:
		w.walk(at, t.Elem())
	case *types.Map:
		w.walk(at, t.Key())
		w.walk(at, t.Elem())
	case *types.Tuple:
		for v := range t.Variables() {
			w.walk(at, v.Type())
		}
	case *types.Signature:
		w.walk(at, t.Params())
		w.walk(at, t.Results())
		for p := range t.TypeParams().TypeParams() {
			w.walk(at, p.Constraint())
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() || f.Embedded() {
				w.walk(at+"."+f.Name(), f.Type())
			}
		}
	case *types.Union:
		for term := range t.Terms() {
			w.walk(at, term.Type())
		}
	case *types.Interface:
		for m := range t.Methods() {
			w.walk(at+"."+m.Name(), m.Type())
		}
		for e := range t.EmbeddedTypes() {
			w.walk(at, e)
		}
	}
}

// declared adds a type by its name.
func (w *apiWalk) declared(at string, name *types.TypeName) {
	switch pkg := name.Pkg(); {
	case pkg == nil || slices.Contains(apiPaths, pkg.Path()) && name.Exported():
	case pkg.Path() == apiPath, strings.HasPrefix(pkg.Path(), apiPath+"/"):
		w.foreign = append(w.foreign, fmt.Sprintf("%s shows %s.%s", at, pkg.Name(), name.Name()))
	}
}

// object adds an exported object of a package.
func (w *apiWalk) object(o types.Object) {
	w.names++
	w.walk(o.Name(), o.Type())
	name, ok := o.(*types.TypeName)
	if !ok {
		return
	}
	w.walk(o.Name(), name.Type().Underlying())
	methods := types.NewMethodSet(types.NewPointer(name.Type()))
	for m := range methods.Methods() {
		if m.Obj().Exported() {
			w.names++
			w.walk(o.Name()+"."+m.Obj().Name(), m.Type())
		}
	}
}

func walkAPI(pkg *types.Package) *apiWalk {
	w := &apiWalk{seen: map[types.Type]bool{}}
	for _, name := range pkg.Scope().Names() {
		if o := pkg.Scope().Lookup(name); o.Exported() {
			w.object(o)
		}
	}
	return w
}

func TestAPIShowsOwnTypesOnly(t *testing.T) {
	all := newImporter(t)
	for _, path := range apiPaths {
		pkg, err := all.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		w := walkAPI(pkg)
		for _, place := range w.foreign {
			t.Errorf("%s: %s: other packages below the root have no compatibility promise; declare a type of this one", path, place)
		}
		if w.names == 0 || w.names > apiNamesMax {
			t.Errorf("%s: %d exported names, at most %d allowed", path, w.names, apiNamesMax)
		}
	}
}

// Each way to show a type of another package is found.
func TestAPIWalkFindsForeignTypes(t *testing.T) {
	other := types.NewPackage(apiPath+"/actor", "actor")
	call := types.NewNamed(types.NewTypeName(token.NoPos, other, "Call", nil), types.NewStruct(nil, nil), nil)
	for source, want := range map[string]int{
		"type A = actor.Call":                                    1,
		"type A struct{ B []*actor.Call }":                       1,
		"type A struct{ b actor.Call }":                          0,
		"type A struct{ actor.Call }":                            1,
		"type a struct{}; type B struct{ a }":                    1,
		"type A struct{}; func (*A) B(map[string]actor.Call) {}": 1,
		"type A struct{}; func (A) b(actor.Call) {}":             0,
		"func A() (chan actor.Call, error) { panic(0) }":         1,
		"func A(func([2]actor.Call)) {}":                         1,
		"func A[T interface{ ~int | actor.Call }]() {}":          1,
		"type A interface{ B(actor.Call) }":                      1,
		"type A[T any] struct{}; type B = A[actor.Call]":         1,
		"var A = actor.Call{}":                                   1,
		"func a(actor.Call) {}":                                  0,
	} {
		text := "package troupe; import \"" + apiPath + "/actor\"; var _ actor.Call; " + source
		pkg, err := checkSource(apiPath, text, importerFunc(func(path string) (*types.Package, error) {
			if path != other.Path() {
				return nil, errors.New(path)
			}
			other.Scope().Insert(call.Obj())
			other.MarkComplete()
			return other, nil
		}))
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		if w := walkAPI(pkg); len(w.foreign) != want {
			t.Errorf("%s: found %q, want %d", source, w.foreign, want)
		}
	}
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }
