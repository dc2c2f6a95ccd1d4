// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// fullScope is the state of a scope with EntitiesMax entities, of 12 words each whose frequencies are those of a language.
var fullScope = sync.OnceValues(func() ([]actor.StateItem, func(n int) string) {
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.1, 8, 19_999)
	text := func(n int) string {
		var b strings.Builder
		for range n {
			fmt.Fprintf(&b, "w%05d ", zipf.Uint64())
		}
		return b.String()
	}
	var items []actor.StateItem
	for i := range EntitiesMax {
		e := Entity{Name: fmt.Sprintf("e%06d", i), Created: 1, Facts: []Fact{{ID: "x", Content: text(12), From: 1}}}
		items = append(items, actor.StateItem{Name: entityPrefix + Key(e.Name), Value: e.encode()})
	}
	slices.SortFunc(items, func(a, b actor.StateItem) int { return strings.Compare(a.Name, b.Name) })
	return items, text
})

// The time to build the index of a full scope, as the first search after a restart does.
func BenchmarkNewIndex(b *testing.B) {
	items, _ := fullScope()
	for b.Loop() {
		if _, err := NewIndex(items); err != nil {
			b.Fatal(err)
		}
	}
}

// The time of a search of a full scope with four words, most of which are frequent.
func BenchmarkSearch(b *testing.B) {
	items, text := fullScope()
	x, err := NewIndex(items)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		x.Search(text(4), false, HitsDefault)
	}
}
