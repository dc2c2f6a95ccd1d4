// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var comment = regexp.MustCompile(`\\\*.*`)

// properties returns the names listed under INVARIANTS and PROPERTIES in a config.
func properties(config string) (names []string) {
	listing := false
	for _, word := range strings.Fields(comment.ReplaceAllString(config, "")) {
		switch {
		case word == strings.ToUpper(word) && len(word) > 2:
			listing = strings.HasPrefix(word, "INVARIANT") || strings.HasPrefix(word, "PROPERT")
		case listing:
			names = append(names, word)
		}
	}
	return names
}

// Properties in tla/ and specs in Go have the same names, except those in the lists Model-only and
// Go-only of tla/README.md. A name in a list exists on that side only.
func TestSpecNamesMatchTLA(t *testing.T) {
	inModels := map[string]bool{}
	for _, path := range globbed(t, "../tla/*.cfg") {
		for _, name := range properties(readFile(t, path)) {
			inModels[name] = true
		}
	}
	inGo := map[string]bool{}
	for _, s := range All() {
		inGo[s.Name] = true
	}
	modelOnly, goOnly := namesUnder(t, "Model-only"), namesUnder(t, "Go-only")
	for _, name := range slices.Sorted(maps.Keys(inModels)) {
		if inGo[name] == modelOnly[name] {
			t.Errorf("%s is a property of the models: it is a Go spec (%v) or listed under Model-only (%v), want one of both", name, inGo[name], modelOnly[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(inGo)) {
		if inModels[name] == goOnly[name] {
			t.Errorf("%s is a Go spec: it is a property of the models (%v) or listed under Go-only (%v), want one of both", name, inModels[name], goOnly[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(goOnly)) {
		if !inGo[name] {
			t.Errorf("%s is listed under Go-only, but All does not list it", name)
		}
	}
	modules := ""
	for _, path := range globbed(t, "../tla/*.tla") {
		modules += readFile(t, path)
	}
	for _, name := range slices.Sorted(maps.Keys(modelOnly)) {
		if inGo[name] || !regexp.MustCompile(`(?m)^`+name+`\b.*==`).MatchString(modules) {
			t.Errorf("%s is listed under Model-only, but All lists it (%v) or no module defines it", name, inGo[name])
		}
	}
	if len(inModels) < 20 || len(modelOnly) == 0 || len(goOnly) == 0 {
		t.Errorf("%d properties, %d names under Model-only and %d under Go-only: the test does not read them all", len(inModels), len(modelOnly), len(goOnly))
	}
}

func globbed(t *testing.T, pattern string) []string {
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %v, %v", pattern, paths, err)
	}
	return paths
}

// namesUnder returns the names in the first column of the table below a heading of tla/README.md.
func namesUnder(t *testing.T, heading string) map[string]bool {
	_, text, ok := strings.Cut(readFile(t, "../tla/README.md"), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("tla/README.md has no heading %s", heading)
	}
	_, table, _ := strings.Cut(text, "|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	names := map[string]bool{}
	for _, row := range strings.Split(table, "\n") {
		for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
			names[m[1]] = true
		}
	}
	return names
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
