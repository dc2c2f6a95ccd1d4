// SPDX-License-Identifier: Apache-2.0

package arch

// Rules about sizes. Each limit is the present value and only goes down, so that a
// new feature arrives as a type of its own and checks grow no faster than the product.

import (
	"cmp"
	"fmt"
	"go/ast"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// typeMethodsMax is the maximum number of methods of a type without a row in methodsMax.
const typeMethodsMax = 60

// methodsMax is the number of methods of each larger type, without those in tests and with those
// of the types that only embed it.
var methodsMax = map[string]int{
	"host/gateway.Server": 125,
	"sim.Simulation":      230,
	"specs.Checker":       81,
}

// machinery are the folders with code and data that check the product. They are not part of it.
var machinery = strings.Fields(`.ci internal/arch internal/failpoint internal/load internal/mdsection internal/mutant internal/servertest
	internal/tools placement/placementtest sim specs store/storetest test tla`)

// machineryPercentMax is the maximum number of lines of machinery per 100 lines of the
// product. It must be lowered when it is machineryPercentSlack above the measured value.
const (
	machineryPercentMax   = 53
	machineryPercentSlack = 5
)

// typesDoNotGrow counts the methods of each type, with those of types that are the same type
// under another name.
func typesDoNotGrow(c *checkout) (found []string) {
	methods, same := map[string]int{}, map[string]string{}
	for _, f := range c.goFiles() {
		if f.isTest() {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv != nil {
					methods[f.dir()+"."+receiver(n.Recv.List[0].Type)]++
				}
				return false
			case *ast.TypeSpec:
				if other := sameType(n); other != "" {
					same[f.dir()+"."+n.Name.Name] = f.dir() + "." + other
				}
				return false
			}
			return true
		})
	}
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		other := name
		for range same { // a chain has at most all of them
			other = cmp.Or(same[other], other)
		}
		if other != name {
			methods[other] += methods[name]
			delete(methods, name)
		}
	}
	for name, n := range methods {
		limit := cmp.Or(methodsMax[name], typeMethodsMax)
		switch {
		case n > limit:
			found = append(found, fmt.Sprintf("%s has %d methods, the maximum is %d; give the new code a type of its own", name, n, limit))
		case n <= typeMethodsMax && limit > typeMethodsMax:
			found = append(found, fmt.Sprintf("%s has %d methods; remove its row in internal/arch/size_test.go", name, n))
		case n < limit && limit > typeMethodsMax:
			found = append(found, fmt.Sprintf("%s has %d methods; lower its %d in internal/arch/size_test.go", name, n, limit))
		}
	}
	slices.Sort(found)
	return found
}

// sameType returns the type of the package that a type only embeds, or whose alias it is; else "".
// Methods of such a type are methods of the other one: they share its fields and nothing else.
func sameType(t *ast.TypeSpec) string {
	if t.Assign.IsValid() {
		return receiver(t.Type)
	}
	if s, ok := t.Type.(*ast.StructType); ok && s.Fields.NumFields() == 1 && len(s.Fields.List[0].Names) == 0 {
		return receiver(s.Fields.List[0].Type)
	}
	return ""
}

// receiver returns the name of the type of a receiver.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// machineryDoesNotGrow compares the lines of machinery with those of the product.
func machineryDoesNotGrow(c *checkout) []string {
	lines := c.linesByPurpose()
	if !c.has("go.mod") || lines["product"] == 0 {
		return nil // part of a checkout
	}
	const page = "internal/arch/size_test.go"
	switch percent := 100 * lines["machinery"] / lines["product"]; {
	case percent > machineryPercentMax:
		return []string{fmt.Sprintf("%s: %d lines of machinery are %d %% of %d lines of product, the maximum is %d %%; delete checks that find nothing",
			page, lines["machinery"], percent, lines["product"], machineryPercentMax)}
	case percent < machineryPercentMax-machineryPercentSlack:
		return []string{fmt.Sprintf("%s: machinery is %d %% of the product; lower machineryPercentMax to it", page, percent)}
	}
	return nil
}

// linesByPurpose counts the lines of product, tests and machinery. Pages, examples and
// generated figures are not counted.
func (c *checkout) linesByPurpose() map[string]int {
	lines := map[string]int{}
	fs.WalkDir(c.tree, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && (d.Name() == ".git" || slices.Contains(ignored, p)) {
				return fs.SkipDir
			}
			return err
		}
		if to := purpose(p); to != "" {
			lines[to] += strings.Count(c.text(p), "\n")
		}
		return nil
	})
	return lines
}

// purpose returns the purpose of a file, or "" if its lines are not counted.
func purpose(p string) string {
	in := func(dir string) bool { return strings.HasPrefix(p, dir+"/") }
	first, _, _ := strings.Cut(p, "/")
	switch ext := path.Ext(p); {
	case slices.Contains([]string{".gz", ".svg", ".sum", ".mod"}, ext) || first == "docs" || first == "examples":
		return ""
	case slices.ContainsFunc(machinery, in) || p == "Makefile":
		return "machinery"
	case strings.HasSuffix(p, "_test.go") || strings.Contains(p, "testdata/"):
		return "tests"
	case ext == ".go":
		return "product"
	}
	return ""
}
