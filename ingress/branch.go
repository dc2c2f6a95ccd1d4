// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/runs"
)

// branch is one run of those that a stream tells of.
type branch struct {
	run       actor.CallID
	lastSeq   uint64    // its events that the client has, or will have
	cursorSeq uint64    // how many of them it came with
	children  []*branch // called among the events that were told, in that order
	barrier   uint64    // the event before which those below were looked at once more
	appended  bool      // there was some while it was being read
	ended     bool      // its last event was told
}

// restore goes through what the client has read. Of one run that is its last event,
// to see that it is there; of a tree all, to learn which runs there are.
func (s *Stream) restore() {
	if !s.tree && len(s.cursor) > 1 {
		s.fail(actor.Refuse(actor.Invalid, "%s is a place in a tree of runs: ask with ?tree=1, or give the number of this run's last event", s.cursor))
		return
	}
	s.restoreNext()
}

// restoreNext takes the next branch whose events up to the client's place are to be
// gone through, and begins once there is none.
func (s *Stream) restoreNext() {
	for len(s.restoring) > 0 {
		b := s.restoring[len(s.restoring)-1]
		if len(s.cursor) == 0 {
			s.failOutsideTree()
			return
		}
		b.cursorSeq, s.cursor = s.cursor[0], s.cursor[1:]
		if b.cursorSeq > 0 && mutant.On("cursor-off-by-one") {
			b.cursorSeq--
		}
		if b.cursorSeq > 0 {
			if !s.tree {
				b.lastSeq = b.cursorSeq - 1
			}
			return
		}
		s.restoring = s.restoring[:len(s.restoring)-1]
	}
	if len(s.cursor) > 0 {
		s.failOutsideTree()
		return
	}
	s.start()
}

func (s *Stream) failOutsideTree() {
	s.fail(actor.Refuse(actor.Invalid, "the id is no place in the tree of run %s: want the id of the last event that was read, as it came, or nothing to begin with the first", s.branches[0].run))
}

// restoreEvent notes an event that the client has.
func (s *Stream) restoreEvent(b *branch, e *runs.Event) {
	b.lastSeq, b.ended = e.Seq, e.Type.Ends()
	s.addChild(b, e)
}

// restorePage goes on to the runs below, once all that the client has of a run was gone through.
func (s *Stream) restorePage(b *branch, noMore bool) {
	if s.ended {
		return
	}
	if b.lastSeq < b.cursorSeq {
		if noMore {
			s.fail(actor.Refuse(actor.Invalid, "run %s has no event %d yet: want the id of the last event that was read, or nothing to begin with the first", b.run, b.cursorSeq))
		}
		return
	}
	s.restoring = s.restoring[:len(s.restoring)-1]
	for _, child := range slices.Backward(b.children) {
		s.restoring = append(s.restoring, child)
	}
	s.restoreNext()
}

// start starts to tell.
func (s *Stream) start() {
	root := s.branches[0]
	if root.ended { // the client has it all
		s.end(End{Reason: RunEnded})
		return
	}
	s.started = true
	s.pending = runs.AppendRetry(nil, s.retry)
	s.nextPing = s.now.Add(PingInterval)
	for _, b := range slices.Backward(s.branches) {
		if !b.ended {
			s.emit(Watch{b.run})
			s.readQueue = append(s.readQueue, b)
		}
	}
}

// enqueue puts an event into the queue, and tells whether the next of its run may follow.
func (s *Stream) enqueue(b *branch, e *runs.Event, body []byte) bool {
	if s.full() || s.readDescendants(b, e) {
		return false
	}
	b.lastSeq = e.Seq
	child := s.addChild(b, e)
	if s.ended {
		return false
	}
	s.pending = runs.Frame{Name: e.Type.String(), ID: string(s.appendCursor(nil, s.branches[0])), Data: string(body)}.Append(s.pending)
	if e.Type.Ends() {
		b.ended = true
		s.rootEnded = b == s.branches[0]
		return false
	}
	if child != nil {
		s.emit(Watch{child.run})
		s.readFirst(child, b)
		return false
	}
	return true
}

// addChild adds the run that an event tells was called, if it does.
func (s *Stream) addChild(b *branch, e *runs.Event) *branch {
	if !s.tree || e.Type != runs.AgentCalledChild || slices.ContainsFunc(s.branches, func(o *branch) bool { return o.run == e.Child }) {
		return nil
	}
	if len(s.branches) == TreeRunsMax {
		s.fail(actor.Refuse(actor.Invalid, "run %s has more than %d runs below it: ask for each of them alone, without tree=1", s.branches[0].run, TreeRunsMax-1))
		return nil
	}
	child := &branch{run: e.Child}
	b.children, s.branches = append(b.children, child), append(s.branches, child)
	return child
}

// readDescendants has the runs below read once more before the event that says that
// they are over: what they said until then is told first.
func (s *Stream) readDescendants(b *branch, e *runs.Event) bool {
	if b.barrier == e.Seq {
		return false
	}
	var below []*branch
	switch {
	case e.Type.Ends():
		below = b.appendSubtree(nil)[1:]
	case e.Type == runs.AgentChildDone:
		if i := slices.IndexFunc(b.children, func(c *branch) bool { return c.run == e.Child }); i >= 0 {
			below = b.children[i].appendSubtree(nil)
		}
	}
	if below = slices.DeleteFunc(below, func(o *branch) bool { return o.ended }); len(below) == 0 {
		return false
	}
	b.barrier = e.Seq
	slices.Reverse(below) // the deepest first
	s.readFirst(append(below, b)...)
	return true
}

// appendSubtree appends the branch and all below it.
func (b *branch) appendSubtree(all []*branch) []*branch {
	all = append(all, b)
	for _, child := range b.children {
		all = child.appendSubtree(all)
	}
	return all
}

// readFirst has branches read before all others.
func (s *Stream) readFirst(branches ...*branch) {
	s.readQueue = slices.DeleteFunc(s.readQueue, func(b *branch) bool { return slices.Contains(branches, b) })
	s.readQueue = append(slices.Clone(branches), s.readQueue...)
}

// appendCursor writes the client's place once it has all that was told.
func (s *Stream) appendCursor(id []byte, b *branch) []byte {
	if len(id) > 0 {
		id = append(id, '.')
	}
	id = Cursor{b.lastSeq}.appendTo(id)
	for _, child := range b.children {
		id = s.appendCursor(id, child)
	}
	return id
}
