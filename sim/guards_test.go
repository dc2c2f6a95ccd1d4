// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/specs"
)

// The names of the rows of test/mutants, their calls of mutant.On and the list have the same
// mutants, the list has each once, and its spec exists.
func TestGuardsMatchRows(t *testing.T) {
	var called, named []string
	call := regexp.MustCompile(`mutant\.On\("([a-z-]+)"\)`)
	root := os.DirFS("../test/mutants")
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(root, path)
		for line := range strings.Lines(string(text)) {
			for _, m := range call.FindAllStringSubmatch(line, -1) {
				called = append(called, m[1])
			}
			if names, ok := strings.CutPrefix(line, "@ "); ok {
				named = append(named, strings.Fields(names)...)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(called)
	slices.Sort(named)
	called, named = slices.Compact(called), slices.Compact(named)
	var listed []string
	for _, g := range Guards() {
		listed = append(listed, g.Mutant)
		if !slices.Contains(Properties(), g.Spec) && !slices.ContainsFunc(specs.All(), func(s specs.Spec) bool { return s.Name == g.Spec }) {
			t.Errorf("mutant %s: unknown spec %s", g.Mutant, g.Spec)
		}
	}
	slices.Sort(listed)
	if !slices.Equal(called, listed) || !slices.Equal(named, listed) {
		t.Errorf("calls of mutant.On: %v\nnames of the rows: %v\nmutants in the list: %v", called, named, listed)
	}
}
