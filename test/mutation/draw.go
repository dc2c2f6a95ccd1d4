// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// draw returns n mutants. The same seed and the same tree give the same mutants. Each
// draw selects an operator, and then one of its sites. A mutant that does not compile is
// replaced by the next draw.
func (t *tree) draw(seed uint64, n int) ([]*site, error) {
	left := t.sites()
	random := rand.New(rand.NewPCG(seed, 0))
	var drawn []*site
	for len(drawn) < n {
		var names []string
		for _, o := range operators {
			if len(left[o.name]) > 0 {
				names = append(names, o.name)
			}
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("the tree has only %d mutants", len(drawn))
		}
		name := names[random.IntN(len(names))]
		i := random.IntN(len(left[name]))
		s := left[name][i]
		left[name] = slices.Delete(left[name], i, i+1)
		if t.compiles(s.file, s.mutated()) && t.compiles(s.file, t.schema(s.file, append(slices.Clone(drawn), s))) {
			drawn = append(drawn, s)
		}
	}
	return drawn, nil
}

// mutated returns the text of the file with this mutant.
func (s *site) mutated() []byte {
	return slices.Concat(s.file.src[:s.start], []byte(s.text), s.file.src[s.end:])
}
