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

// Each mutant in the code has exactly one entry in the list, each entry names a
// mutant in the code, and its spec exists.
func TestGuardsMatchMutantsInCode(t *testing.T) {
	var inCode []string
	root := os.DirFS("..")
	mutantCall := regexp.MustCompile(`mutant\.On\("([a-z-]+)"\)`)
	for _, pkg := range []string{"actor", "dispatcher", "runtime", "store", "agents", "tools", "runs", "upstream", "ingress", "host"} {
		err := fs.WalkDir(root, pkg, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := fs.ReadFile(root, path)
			for _, m := range mutantCall.FindAllStringSubmatch(string(text), -1) {
				inCode = append(inCode, m[1])
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(inCode)
	inCode = slices.Compact(inCode)
	var listed []string
	for _, g := range Guards() {
		listed = append(listed, g.Mutant)
		if !slices.Contains(Properties(), g.Spec) && !slices.ContainsFunc(specs.All(), func(s specs.Spec) bool { return s.Name == g.Spec }) {
			t.Errorf("mutant %s: unknown spec %s", g.Mutant, g.Spec)
		}
	}
	slices.Sort(listed)
	if !slices.Equal(inCode, listed) {
		t.Errorf("mutants in the code: %v\nmutants in the list: %v", inCode, listed)
	}
}
