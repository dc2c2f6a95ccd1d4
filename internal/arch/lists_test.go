// SPDX-License-Identifier: Apache-2.0

package arch

// Rules about lists: a list that a reader takes for the whole names all of it, and nothing else.

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// names compares a list of a page with the names that exist.
func names(page, kind string, listed, exist []string) (found []string) {
	for _, name := range exist {
		if !slices.Contains(listed, name) {
			found = append(found, fmt.Sprintf("%s: the list of %s lacks %s; add it", page, kind, name))
		}
	}
	for _, name := range listed {
		if !slices.Contains(exist, name) {
			found = append(found, fmt.Sprintf("%s: the list of %s names %s, which does not exist; remove it", page, kind, name))
		}
	}
	return found
}

var listedFile = regexp.MustCompile(`(?m)^\t(\S+\.go) `)

// fileListsAreComplete compares the section Files of a package comment with the files of the package.
func fileListsAreComplete(c *checkout) (found []string) {
	for _, f := range c.goFiles() {
		_, list, ok := strings.Cut(f.ast.Doc.Text(), "\n# Files\n")
		if !ok {
			continue
		}
		list, _, _ = strings.Cut(list, "\n# ")
		var listed, exist []string
		for _, m := range listedFile.FindAllStringSubmatch(list, -1) {
			listed = append(listed, m[1])
		}
		for _, other := range c.goFiles() {
			if other.dir() == f.dir() && !other.isTest() && other != f {
				exist = append(exist, strings.TrimPrefix(other.path, f.dir()+"/"))
			}
		}
		found = append(found, names(f.path, "files", listed, exist)...)
	}
	return found
}

var listedRoutes = regexp.MustCompile(`(?m)^\t((?:[A-Z]+ )+) *(/\S*)((?: :[a-z]+)*)$`)

// routeListIsComplete compares the routes of the package comment of host/gateway with the table
// of routes. A line of the comment has methods, a path, and further verbs of the path:
//
//	GET POST  /v1/agents
//	POST      /v1/agents/{id}:heartbeat :invoke
func routeListIsComplete(c *checkout) (found []string) {
	const page, table = "host/gateway/doc.go", "host/gateway/routes.go"
	var listed, exist []string
	texts := map[string]string{} // constants of the package
	for _, f := range c.goFiles() {
		if f.path == page {
			for _, m := range listedRoutes.FindAllStringSubmatch(f.ast.Doc.Text(), -1) {
				path, _, _ := strings.Cut(m[2], ":")
				for _, method := range strings.Fields(m[1]) {
					listed = append(listed, method+" "+m[2])
					for _, verb := range strings.Fields(m[3]) {
						listed = append(listed, method+" "+path+verb)
					}
				}
			}
		}
		if f.dir() == "host/gateway" && !f.isTest() {
			ast.Inspect(f.ast, func(n ast.Node) bool {
				if v, ok := n.(*ast.ValueSpec); ok && len(v.Names) == len(v.Values) {
					for i, name := range v.Names {
						texts[name.Name] = text(v.Values[i], nil)
					}
				}
				return true
			})
		}
	}
	for _, f := range c.goFiles() {
		if f.path != table {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			row, ok := n.(*ast.CompositeLit)
			if !ok || row.Type != nil || len(row.Elts) < 2 {
				return true
			}
			if method, ok := row.Elts[0].(*ast.Ident); ok {
				methods := map[string]string{"get": "GET", "post": "POST", "put": "PUT", "del": "DELETE"}
				exist = append(exist, methods[method.Name]+" "+text(row.Elts[1], texts))
			}
			return true
		})
	}
	return names(page, "routes", listed, exist)
}

// text returns the value of a string literal, or of a constant.
func text(e ast.Expr, constants map[string]string) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return s
	case *ast.Ident:
		return constants[e.Name]
	}
	return ""
}

var (
	recordName = regexp.MustCompile("(?:entry|entries|the records?)\\s`([A-Z]\\w*)`|`([A-Z]\\w*)`\\s(?:entry|record)\\b")
	capital    = regexp.MustCompile("`([A-Z]\\w*)`")
	callFlow   = regexp.MustCompile(`(?ms)^## One call through the packages$.*?(^## |\z)`)
)

// recordsInDocsExist checks names that docs call entries or records of the log, and every
// capitalized name of the page that follows one call.
func recordsInDocsExist(c *checkout) (found []string) {
	var records []string
	for _, f := range c.goFiles() {
		if f.dir() == "store" && !f.isTest() {
			records = append(records, f.membersOf("at")...)
		}
	}
	for _, f := range c.docs() {
		hits := recordName.FindAllStringSubmatch(f.text, -1)
		if f.path == "docs/ARCHITECTURE.md" {
			hits = append(hits, capital.FindAllStringSubmatch(callFlow.FindString(f.text), -1)...)
		}
		reported := map[string]bool{}
		for _, m := range hits {
			if name := strings.Join(m[1:], ""); !slices.Contains(records, name) && !reported[name] {
				reported[name] = true
				found = append(found, fmt.Sprintf("%s: the log has no record %s; write a name of store/record.go", f.path, name))
			}
		}
	}
	return found
}

// membersOf returns the types with a method that marks the members of a closed set.
func (f *file) membersOf(marker string) (members []string) {
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && fn.Name.Name == marker {
			members = append(members, receiver(fn.Recv.List[0].Type))
		}
	}
	return members
}

// closedSetsAreInOneFile finds members of an interface outside its file, if its comment says that
// the set is closed: a reader takes that file for the whole.
func closedSetsAreInOneFile(c *checkout) (found []string) {
	for _, f := range c.goFiles() {
		for _, d := range f.ast.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.TYPE || !strings.Contains(strings.Join(strings.Fields(decl.Doc.Text()), " "), "is closed.") {
				continue
			}
			set, ok := decl.Specs[0].(*ast.TypeSpec).Type.(*ast.InterfaceType)
			if !ok || len(set.Methods.List) != 1 || len(set.Methods.List[0].Names) != 1 {
				continue
			}
			for _, other := range c.goFiles() {
				if other == f || other.dir() != f.dir() || other.isTest() {
					continue
				}
				for _, member := range other.membersOf(set.Methods.List[0].Names[0].Name) {
					found = append(found, fmt.Sprintf("%s: %s belongs to the closed set of %s; declare it there", other.path, member, f.path))
				}
			}
		}
	}
	return found
}
