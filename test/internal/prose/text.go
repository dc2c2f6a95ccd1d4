// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// A text is one comment, message, test name, or paragraph or table row of a page.
type text struct {
	file    string
	line    int
	content string
}

// section returns the package or page the text belongs to.
func (t text) section() string {
	if path.Ext(t.file) == ".md" {
		return t.file
	}
	return path.Dir(t.file)
}

func (t text) hits() (n int) {
	for _, g := range groups {
		n += g.count(t.content)
	}
	return n
}

// textsOf returns the texts of a Go or Markdown file.
func textsOf(name string, content []byte) ([]text, error) {
	if path.Ext(name) == ".md" {
		return pageTexts(name, string(content)), nil
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var texts []text
	add := func(pos token.Pos, content string) {
		if strings.TrimSpace(content) != "" {
			texts = append(texts, text{name, fset.Position(pos).Line, content})
		}
	}
	for _, group := range file.Comments {
		add(group.Pos(), strings.ReplaceAll(group.Text(), "SPDX-License-Identifier: Apache-2.0", ""))
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if testName.MatchString(n.Name.Name) {
				add(n.Pos(), words(n.Name.Name))
			}
			if n.Name.Name == "Help" && n.Body != nil {
				ast.Inspect(n.Body, func(n ast.Node) bool {
					if e, ok := n.(ast.Expr); ok {
						message(e, add)
					}
					return true
				})
			}
		case *ast.CallExpr:
			if printers.MatchString(calleeName(n.Fun)) {
				for _, arg := range n.Args {
					message(arg, add)
				}
			}
		case *ast.Field:
			if n.Tag != nil {
				tag, _ := strconv.Unquote(n.Tag.Value)
				add(n.Tag.Pos(), reflect.StructTag(tag).Get("help"))
			}
		case *ast.ValueSpec:
			for _, v := range n.Values {
				if len(n.Names) == 1 && strings.HasSuffix(strings.ToLower(n.Names[0].Name), "usage") {
					message(v, add)
				}
			}
		}
		return true
	})
	return texts, nil
}

var (
	testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]`)
	// printers are the names of functions whose arguments are messages.
	printers = regexp.MustCompile(`^(Errorf?|Fatalf?|Logf?|Skipf?|New|Run|Print(f|ln)?|Fprint(f|ln)?|Sprintf|Appendf|panic|Debug|Info|Warn|Check|Refuse\w*|fail|failf|violate|complain|report|LogAttrs)$`)
)

func calleeName(fun ast.Expr) string {
	switch fun := fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		return fun.Sel.Name
	}
	return ""
}

// message adds a string literal, or the literals of a concatenation, if it has
// at least three words.
func message(e ast.Expr, add func(token.Pos, string)) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING && len(strings.Fields(s)) >= 3 {
			add(e.Pos(), s)
		}
	case *ast.BinaryExpr:
		message(e.X, add)
		message(e.Y, add)
	}
}

// words splits a name in camel case: TestRecordRoundTrip is "test record round trip".
func words(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// pageTexts returns the paragraphs of a page, without its code blocks.
func pageTexts(name, content string) (texts []text) {
	fenced := false
	paragraph := text{file: name}
	flush := func() {
		if paragraph.content != "" {
			texts = append(texts, paragraph)
		}
		paragraph = text{file: name}
	}
	for i, line := range strings.Split(content, "\n") {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			fenced = !fenced
		}
		if fence || fenced || strings.TrimSpace(line) == "" || strings.HasPrefix(line, "|") {
			flush()
		}
		if fence || fenced || strings.TrimSpace(line) == "" {
			continue
		}
		if paragraph.content == "" {
			paragraph.line = i + 1
		}
		paragraph.content += line + "\n"
	}
	flush()
	return texts
}
