// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// branch is the state of one run in a stream: the root, or a run below it.
type branch struct {
	run       actor.CallID
	lastSeq   uint64    // last event enqueued, or already read by the client
	cursorSeq uint64    // number of this run's events that the client's cursor covers
	children  []*branch // runs called by the enqueued events, in call order
	barrier   uint64    // number of the last event before which the descendants were read again
	appended  bool      // an event was appended while this run was being read
	ended     bool      // its last event was enqueued
}

// restore rebuilds the position of the client's cursor. For a single run it reads
// only the last event, to check that it exists. For a tree it reads every event
// up to the cursor, because those events name the runs below.
func (s *Stream) restore() {
	if !s.tree && len(s.cursor) > 1 {
		s.fail(actor.Refuse(actor.Invalid, "cursor %s belongs to a tree of runs: add %s, or send the number of this run's last event", s.cursor, s.treeOption))
		return
	}
	s.restoreNext()
}

// restoreNext selects the next branch whose events up to the cursor must be read.
// Once no branch remains, it starts the stream.
func (s *Stream) restoreNext() {
	for len(s.restoring) > 0 {
		b := s.restoring[len(s.restoring)-1]
		if len(s.cursor) == 0 {
			s.failOutsideTree()
			return
		}
		b.cursorSeq, s.cursor = s.cursor[0], s.cursor[1:]
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
	s.fail(actor.Refuse(actor.Invalid, "the id does not belong to the tree of run %s: send the id of the last event read unchanged, or omit it to start at the first event", s.branches[0].run))
}

// restoreEvent records an event that the client has already read.
func (s *Stream) restoreEvent(b *branch, e *runs.Event) {
	b.lastSeq, b.ended = e.Seq, e.Type.Ends()
	s.addChild(b, e)
}

// restorePage runs after each page of restored events. Once all events of a run
// that the cursor covers have been read, it schedules the runs below.
func (s *Stream) restorePage(b *branch, lastPage bool) {
	if s.ended {
		return
	}
	if b.lastSeq < b.cursorSeq {
		if lastPage {
			s.fail(actor.Refuse(actor.Invalid, "run %s has no event %d yet: send the id of the last event read, or omit it to start at the first event", b.run, b.cursorSeq))
		}
		return
	}
	s.restoring = s.restoring[:len(s.restoring)-1]
	for _, child := range slices.Backward(b.children) {
		s.restoring = append(s.restoring, child)
	}
	s.restoreNext()
}

// start begins to deliver events.
func (s *Stream) start() {
	root := s.branches[0]
	if root.ended { // the client has read everything
		s.end(End{Reason: RunEnded})
		return
	}
	s.started = true
	s.write(func(b []byte) []byte { return runs.AppendRetry(b, s.retry) })
	s.nextPing = s.now.Add(PingInterval)
	for _, b := range slices.Backward(s.branches) {
		if !b.ended {
			s.emit(Watch{b.run})
			s.readQueue = append(s.readQueue, b)
		}
	}
}

// enqueue appends an event to the output queue. It reports whether the next event
// of the same run may follow.
func (s *Stream) enqueue(b *branch, e *runs.Event, body []byte) bool {
	if s.full() || s.readDescendants(b, e) {
		return false
	}
	b.lastSeq = e.Seq
	child := s.addChild(b, e)
	if s.ended {
		return false
	}
	s.writeEvent(e.Type, body)
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

// addChild adds the run that an event reports as called, if the stream covers it
// and does not know it yet. It fails the stream if the tree exceeds TreeRunsMax
// runs.
func (s *Stream) addChild(b *branch, e *runs.Event) *branch {
	if !s.tree || e.Type != runs.AgentCalledChild || slices.ContainsFunc(s.branches, func(o *branch) bool { return o.run == e.Child }) {
		return nil
	}
	if len(s.branches) == TreeRunsMax {
		s.fail(actor.Refuse(actor.Invalid, "run %s has more than %d runs below it: stream each of them separately, without %s", s.branches[0].run, TreeRunsMax-1, strings.TrimPrefix(s.treeOption, "?")))
		return nil
	}
	child := &branch{run: e.Child}
	b.children, s.branches = append(b.children, child), append(s.branches, child)
	return child
}

// readDescendants MUST be called before e, an event of b, is delivered. If e is
// the end of b, the function schedules the open runs below b to be read again.
// If e is the result of a call, the function schedules the open runs that the
// call has started. The events of these runs that were stored before e thus
// precede e. The function reports whether it scheduled any run. It schedules
// runs at most once per event.
func (s *Stream) readDescendants(b *branch, e *runs.Event) bool {
	if b.barrier == e.Seq {
		return false
	}
	var open []*branch
	switch {
	case e.Type.Ends():
		open = b.appendSubtree(nil)[1:]
	case e.Type == runs.AgentChildDone:
		if i := slices.IndexFunc(b.children, func(c *branch) bool { return c.run == e.Child }); i >= 0 {
			open = b.children[i].appendSubtree(nil)
		}
	}
	if open = slices.DeleteFunc(open, func(d *branch) bool { return d.ended }); len(open) == 0 {
		return false
	}
	b.barrier = e.Seq
	slices.Reverse(open) // deepest first
	s.readFirst(append(open, b)...)
	return true
}

// appendSubtree appends the branch and all branches below it to all.
func (b *branch) appendSubtree(all []*branch) []*branch {
	all = append(all, b)
	for _, child := range b.children {
		all = child.appendSubtree(all)
	}
	return all
}

// readFirst moves branches to the front of the read queue.
func (s *Stream) readFirst(branches ...*branch) {
	s.readQueue = slices.DeleteFunc(s.readQueue, func(b *branch) bool { return slices.Contains(branches, b) })
	s.readQueue = append(slices.Clone(branches), s.readQueue...)
}

// appendCursor appends the cursor of a client that has read every enqueued event.
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
