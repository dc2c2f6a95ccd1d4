// SPDX-License-Identifier: Apache-2.0

// Package store violates each rule, and contains permitted code close to it.
package store

import (
	crypt "crypto/rand"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	clock "time"
)

type table map[string]int

func threads(c <-chan int, d chan<- int) { // want `a channel` `a channel`
	go threads(c, d) // want `a goroutine`
	select {}        // want `a select`
	d <- 1           // want `a send`
	<-c              // want `a receive`
	for range c {    // want `a receive`
	}
}

func order[M ~map[K]V, K comparable, V any](m M, named table) []string {
	for range m { // want `ranging over a map`
	}
	for k := range named { // want `ranging over a map`
		delete(named, k)
	}
	for range maps.Keys(named) { // want `an iterator over a map`
	}
	values := maps.Values(named) // want `an iterator over a map`
	_ = slices.Collect(values)
	_ = slices.Collect(maps.Keys(named)) // want `an iterator over a map`

	clear(named)
	copied := maps.Clone(named)
	maps.Insert(copied, maps.All(named))
	for _, k := range slices.Sorted(maps.Keys(copied)) {
		_ = k
	}
	return slices.SortedFunc(maps.Keys(named), func(a, b string) int { return len(a) - len(b) })
}

func clocks(t clock.Time) clock.Duration {
	_ = clock.Now()      // want `the clock of the process`
	late := clock.Since  // want `the clock of the process`
	clock.Sleep(late(t)) // want `the clock of the process`
	return t.Sub(t.Add(clock.Second))
}

func chance(r *rand.Rand, b []byte) {
	_ = rand.IntN(7) // want `randomness of the process`
	crypt.Read(b)    // want `randomness of the process`
	_ = r.IntN(7)
	_ = rand.New(rand.NewPCG(1, 2))
}

func address(v any) string {
	return fmt.Sprintf("%v at %p", v, v) // want `an address`
}
