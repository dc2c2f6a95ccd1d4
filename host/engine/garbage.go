// SPDX-License-Identifier: Apache-2.0

package engine

import (
	goruntime "runtime"
	"sync"
	"sync/atomic"
)

// garbageActorsMin is the number of actors in a cell from which their garbage is worth a
// collection of its own.
const garbageActorsMin = 10_000

// garbage collects the memory of actors that left their cells. Otherwise an idle process
// collects every two minutes, and releases memory to the system according to the heap in
// use before the last collection. The release would take up to four minutes.
type garbage struct {
	running atomic.Bool
	done    sync.WaitGroup
	collect func()
}

func newGarbage() *garbage {
	return &garbage{collect: func() {
		goruntime.GC()
		goruntime.GC() // the first one found the heap as large as before
	}}
}

// start starts a collection, unless one is running. It reports whether it did.
func (g *garbage) start() bool {
	if !g.running.CompareAndSwap(false, true) {
		return false
	}
	g.done.Go(func() {
		defer g.running.Store(false)
		g.collect()
	})
	return true
}

// shrinkage detects that most actors of a cell left memory.
type shrinkage struct{ peak int } // maximum number of actors since the last collection

// observe starts a collection once half of the actors have left.
func (s *shrinkage) observe(actors int, g *garbage) {
	s.peak = max(s.peak, actors)
	if s.peak >= garbageActorsMin && actors <= s.peak/2 && g.start() {
		s.peak = actors
	}
}
