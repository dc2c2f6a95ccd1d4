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
	run      actor.CallID
	told     uint64    // its events that the client has, or will have
	goal     uint64    // how many of them it came with
	children []*branch // called among the events that were told, in that order
	gate     uint64    // the event before which those below were looked at once more
	news     bool      // there was some while it was being read
	ended    bool      // its last event was told
}

// open goes through what the client has read. Of one run that is its last event,
// to see that it is there; of a tree all, to learn which runs there are.
func (s *Stream) open() {
	if !s.tree && len(s.cursor) > 1 {
		s.fail(actor.Refuse(actor.Invalid, "%s is a place in a tree of runs: ask with ?tree=1, or give the number of this run's last event", s.cursor))
		return
	}
	s.remind()
}

// remind takes the next branch whose events up to the client's place are to be
// gone through, and begins once there is none.
func (s *Stream) remind() {
	for len(s.recall) > 0 {
		b := s.recall[len(s.recall)-1]
		if len(s.cursor) == 0 {
			s.elsewhere()
			return
		}
		b.goal, s.cursor = s.cursor[0], s.cursor[1:]
		if b.goal > 0 && mutant.On("cursor-off-by-one") {
			b.goal--
		}
		if b.goal > 0 {
			if !s.tree {
				b.told = b.goal - 1
			}
			return
		}
		s.recall = s.recall[:len(s.recall)-1]
	}
	if len(s.cursor) > 0 {
		s.elsewhere()
		return
	}
	s.begin()
}

func (s *Stream) elsewhere() {
	s.fail(actor.Refuse(actor.Invalid, "the id is no place in the tree of run %s: want the id of the last event that was read, as it came, or nothing to begin with the first", s.branches[0].run))
}

// remember notes an event that the client has.
func (s *Stream) remember(b *branch, e *runs.Event) {
	b.told, b.ended = e.Seq, e.Type.Ends()
	s.learn(b, e)
}

// recalled goes on to the runs below, once all that the client has of a run was gone through.
func (s *Stream) recalled(b *branch, noMore bool) {
	if s.ended {
		return
	}
	if b.told < b.goal {
		if noMore {
			s.fail(actor.Refuse(actor.Invalid, "run %s has no event %d yet: want the id of the last event that was read, or nothing to begin with the first", b.run, b.goal))
		}
		return
	}
	s.recall = s.recall[:len(s.recall)-1]
	for _, child := range slices.Backward(b.children) {
		s.recall = append(s.recall, child)
	}
	s.remind()
}

// begin starts to tell.
func (s *Stream) begin() {
	root := s.branches[0]
	if root.ended { // the client has it all
		s.end(End{Why: Over})
		return
	}
	s.begun = true
	s.pending = runs.AppendRetry(nil, s.retry)
	s.ping = s.now.Add(PingEvery)
	for _, b := range slices.Backward(s.branches) {
		if !b.ended {
			s.do(Watch{b.run})
			s.due = append(s.due, b)
		}
	}
}

// tell puts an event into the queue, and tells whether the next of its run may follow.
func (s *Stream) tell(b *branch, e *runs.Event, body []byte) bool {
	if s.full() || s.lookBelow(b, e) {
		return false
	}
	b.told = e.Seq
	child := s.learn(b, e)
	if s.ended {
		return false
	}
	s.pending = runs.Frame{Name: e.Type.String(), ID: string(s.appendID(nil, s.branches[0])), Data: string(body)}.Append(s.pending)
	if e.Type.Ends() {
		b.ended = true
		s.over = b == s.branches[0]
		return false
	}
	if child != nil {
		s.do(Watch{child.run})
		s.first(child, b)
		return false
	}
	return true
}

// learn adds the run that an event tells was called, if it does.
func (s *Stream) learn(b *branch, e *runs.Event) *branch {
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

// lookBelow has the runs below read once more before the event that says that
// they are over: what they said until then is told first.
func (s *Stream) lookBelow(b *branch, e *runs.Event) bool {
	if b.gate == e.Seq {
		return false
	}
	var below []*branch
	switch {
	case e.Type.Ends():
		below = b.open(nil)[1:]
	case e.Type == runs.AgentChildDone:
		if i := slices.IndexFunc(b.children, func(c *branch) bool { return c.run == e.Child }); i >= 0 {
			below = b.children[i].open(nil)
		}
	}
	if below = slices.DeleteFunc(below, func(o *branch) bool { return o.ended }); len(below) == 0 {
		return false
	}
	b.gate = e.Seq
	slices.Reverse(below) // the deepest first
	s.first(append(below, b)...)
	return true
}

// open appends the branch and all below it.
func (b *branch) open(all []*branch) []*branch {
	all = append(all, b)
	for _, child := range b.children {
		all = child.open(all)
	}
	return all
}

// first has branches read before all others.
func (s *Stream) first(branches ...*branch) {
	s.due = slices.DeleteFunc(s.due, func(b *branch) bool { return slices.Contains(branches, b) })
	s.due = append(slices.Clone(branches), s.due...)
}

// appendID writes the client's place once it has all that was told.
func (s *Stream) appendID(id []byte, b *branch) []byte {
	if len(id) > 0 {
		id = append(id, '.')
	}
	id = Cursor{b.told}.appendTo(id)
	for _, child := range b.children {
		id = s.appendID(id, child)
	}
	return id
}
