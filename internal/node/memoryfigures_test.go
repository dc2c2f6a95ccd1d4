// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/memory"
)

var memoryEntities = flag.Int("memory-entities", 2_000, "entities of TestMemoryFigures; the figures of the documentation are those of 100000")

// The time of searches in a large scope, of a change beside that of a call of an agent, and of the first search after a
// restart. Only the results are judged: times are printed.
func TestMemoryFigures(t *testing.T) {
	const writers, samples = 64, 400
	n := *memoryEntities
	data := filepath.Join(t.TempDir(), "data")
	node := openRemembering(t, data)
	rng := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 20_000)
	for i := range words {
		words[i] = fmt.Sprintf("w%05d", i)
	}
	zipf := rand.NewZipf(rng, 1.1, 8, uint64(len(words)-1))
	text := func(length int) (s string) {
		for range length {
			s += words[zipf.Uint64()] + " "
		}
		return s
	}
	contents := make([]string, n)
	for i := range contents {
		contents[i] = text(12)
	}
	begin := time.Now()
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := w; i < n; i += writers {
				c := memory.Change{Entity: fmt.Sprintf("e%06d", i), Content: contents[i]}
				_, r := node.change(testBy, memory.Workspace, "", memory.OpCreate, c)
				for r != nil && r.Reason == actor.Busy { // each waits for a second
					_, r = node.change(testBy, memory.Workspace, "", memory.OpCreate, c)
				}
				if r != nil {
					t.Error(r)
					return
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d entities, %d at a time: %.0f a second", n, writers, float64(n)/time.Since(begin).Seconds())
	report := func(what string, count int, one func(i int)) {
		t.Helper()
		var took []time.Duration
		for i := range count {
			at := time.Now()
			one(i)
			took = append(took, time.Since(at))
		}
		slices.Sort(took)
		t.Logf("%-28s p50 %8.2f ms  p99 %8.2f ms", what, took[count/2].Seconds()*1e3, took[count*99/100].Seconds()*1e3)
	}
	search := func(query string) {
		t.Helper()
		if _, err := node.find(testBy, command.MemoryQuery{Kind: command.MemorySearch, Scope: "workspace", Text: query}); err != nil {
			t.Fatal(err)
		}
	}
	search("e000000") // builds the index
	queries := make([]string, samples)
	for i := range queries {
		queries[i] = text(4)
	}
	report("search, 4 words by frequency", samples, func(i int) { search(queries[i]) })
	report("search, a rare word", samples, func(int) { search(words[10_000+rng.IntN(10_000)]) })
	report("create", samples/4, func(i int) {
		if _, r := node.change(testBy, memory.Workspace, "", memory.OpCreate, memory.Change{Entity: fmt.Sprintf("late%d", i), Content: text(12)}); r != nil {
			t.Fatal(r)
		}
	})
	report("call with a built-in model", samples/4, func(int) { node.say("clerk", "s-1", "say hi") })
	report("call of an agent in Go", samples/4, func(i int) { node.say("echo", fmt.Sprint("s-", i%8), "hi") })
	node.close()
	begin = time.Now()
	node = openRemembering(t, data)
	opened := time.Since(begin)
	var found string
	for found == "" {
		m, err := node.find(testBy, command.MemoryQuery{Kind: command.MemorySearch, Scope: "workspace", Text: fmt.Sprintf("e%06d", n-1)})
		var r *actor.Refusal
		if err != nil && (!errors.As(err, &r) || r.Reason != actor.Busy) {
			t.Fatal(err)
		}
		found = m
	}
	t.Logf("restart: open %.2f s, the first search answered after %.2f s", opened.Seconds(), time.Since(begin).Seconds())
	if want := fmt.Sprintf(`"entity":"e%06d"`, n-1); !strings.Contains(found, want) {
		t.Errorf("after the restart %s, want %s", found, want)
	}
	node.close()
}
