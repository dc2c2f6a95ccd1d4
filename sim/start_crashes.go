// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// startCrashes crashes one node while it starts, before a chosen disk operation. A start
// begins with a crash of the node. It ends when the cells have read the actors with open
// work, have processed all inputs, and nothing waits for the disk. A test enumerates the
// operations.
type startCrashes struct {
	node      int   // index of the node
	step      int   // minimum number of steps of the node before its first crash
	before    []int // for each start in turn, the operation that the crash precedes, from 1; 0: none
	losesTail bool  // the crashes lose all batches that are written and not synced

	crashed  bool // the first crash has happened
	starts   []startOperations
	starting bool
	booted   bool // the cells of this start have booted
	reads    int  // number of reads of the cells in progress
}

// startOperations are the names of the disk operations of a start, in order.
type startOperations []string

const (
	// startOperationsMax bounds a start under constant load.
	startOperationsMax = 48
	// openTurnsMin is the minimum number of actors that the first crash interrupts.
	openTurnsMin = 2
	// reopenDelay is the time from a crash to the next start. It is short, so the node
	// still owns its shards and has their open work to resume.
	reopenDelay = 50 * time.Millisecond
)

// concern reports whether the crashes are those of this node.
func (s *startCrashes) concern(n *node) bool { return s != nil && n.index == s.node }

// afterStep ends the start of a node that has recovered. It reports whether the node
// crashes for the first time.
func (s *startCrashes) afterStep(n *node) (crashes bool) {
	if !s.concern(n) || !n.up {
		return false
	}
	if s.starting && s.booted && s.reads == 0 && n.log.released() == n.log.writer.End() && len(n.log.inFlight) == 0 && !n.hasInputs() {
		s.starting = false
	}
	if s.step--; s.crashed || s.step > 0 || n.openTurns() < openTurnsMin {
		return false
	}
	s.crashed = true
	return true
}

// openTurns returns the number of actors of the node with an open turn.
func (n *node) openTurns() (count int) {
	for _, c := range n.cells {
		for _, a := range c.core.State().Actors {
			if len(a.Turns) > 0 {
				count++
			}
		}
	}
	return count
}

func (n *node) hasInputs() bool {
	for _, c := range n.cells {
		if len(c.inputs) > 0 {
			return true
		}
	}
	return false
}

// begin begins the start that follows a crash of the node.
func (s *startCrashes) begin(n *node) {
	if s.concern(n) && s.crashed && len(s.starts) <= len(s.before) {
		s.starts, s.starting, s.booted, s.reads = append(s.starts, nil), true, false, 0
	}
}

// boot records that the cells of the node have booted.
func (s *startCrashes) boot(n *node) {
	if s.concern(n) {
		s.booted = true
	}
}

// precede counts a disk operation of a start. It reports whether the process crashes
// before it.
func (s *startCrashes) precede(n *node, operation string) (crashes bool) {
	if !s.concern(n) || !s.starting {
		return false
	}
	i := len(s.starts) - 1
	if s.starts[i] = append(s.starts[i], operation); len(s.starts[i]) == startOperationsMax {
		s.starting = false
	}
	return i < len(s.before) && s.before[i] == len(s.starts[i])
}

// done reports whether all starts are over.
func (s *startCrashes) done() bool { return len(s.starts) > len(s.before) && !s.starting }
