// SPDX-License-Identifier: Apache-2.0

package engine

import "testing"

// Garbage is collected each time that half of many actors have left, one collection at a
// time.
func TestGarbageOfManyActorsIsCollected(t *testing.T) {
	collections, may := make(chan struct{}), make(chan struct{})
	g := newGarbage()
	g.collect = func() { collections <- struct{}{}; <-may }
	var s shrinkage
	for _, step := range []struct {
		actors int
		starts bool
	}{
		{garbageActorsMin - 1, false}, {0, false}, // too few
		{4 * garbageActorsMin, false},
		{2*garbageActorsMin + 1, false},
		{2 * garbageActorsMin, true},
		{garbageActorsMin, true},
		{garbageActorsMin / 2, true}, // peak is still at the bound
		{1, false},
		{2 * garbageActorsMin, false},
		{0, true},
	} {
		s.observe(step.actors, g)
		if running := g.running.Load(); running != step.starts {
			t.Fatalf("%d actors: got collection %v, want %v", step.actors, running, step.starts)
		}
		if !step.starts {
			continue
		}
		<-collections
		if g.start() {
			t.Fatal("two collections run at the same time")
		}
		may <- struct{}{}
		g.done.Wait()
	}
}
