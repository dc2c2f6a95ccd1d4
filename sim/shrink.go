// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"slices"
)

// shrinkSteps bounds how much a shrink may simulate, all its tries together.
const shrinkSteps = 1_000_000

// Shrink looks for the least choices that break the same spec. It makes streams
// benign, all of a matter, many, then each, and within what is left chunks of
// choices, ever smaller ones; what still breaks the spec in no more steps it
// keeps. As 0 is the benign choice, what is left is about the matter.
func Shrink(o Options, r Result) Result {
	s := shrink{o: o, spec: r.Broken.Spec, best: r, left: shrinkSteps}
	s.try(r.Choices)
	for before := -1; s.weight() != before && s.left > 0; {
		before = s.weight()
		for about := range StreamID(len(aboutNames)) {
			s.without(func(st Stream) bool { return st.ID>>24 == about })
		}
		s.streams()
		s.within()
	}
	return s.best
}

type shrink struct {
	o    Options
	spec string
	best Result
	left int // steps
}

// weight is how many choices are not benign.
func (s *shrink) weight() int {
	n := 0
	for _, st := range s.best.Choices {
		for _, v := range st.Log {
			if v != 0 {
				n++
			}
		}
	}
	return n
}

// try keeps choices if they break the same spec, without what was not used.
func (s *shrink) try(choices Choices) bool {
	if s.left <= 0 {
		return false
	}
	c := NewReplayed(choices)
	o := s.o
	o.Chooser, o.Events, o.Columns, o.Page = c, nil, nil, nil
	o.StepsMax = s.best.Stats.Steps + s.best.Stats.Steps/50 + 1
	r := RunSeed(o)
	s.left -= r.Stats.Steps + 50 // a world that does nothing takes time, too
	if r.Broken == nil || r.Broken.Spec != s.spec {
		return false
	}
	r.Choices = c.used(choices)
	s.best = r
	return true
}

// without makes some of the streams benign, if they can be.
func (s *shrink) without(these func(Stream) bool) bool {
	left := slices.DeleteFunc(slices.Clone(s.best.Choices), these)
	return len(left) < len(s.best.Choices) && s.try(left)
}

// streams makes streams benign, many at once first.
func (s *shrink) streams() {
	for size := len(s.best.Choices) / 2; size > 0; size /= 2 {
		for at := 0; at < len(s.best.Choices); {
			end := min(at+size, len(s.best.Choices))
			if !s.try(slices.Delete(slices.Clone(s.best.Choices), at, end)) {
				at = end
			}
		}
	}
}

// within makes chunks of each stream benign, or leaves them out; then it makes
// what has to stay as small as it can be.
func (s *shrink) within() {
	ids := make([]Stream, len(s.best.Choices))
	copy(ids, s.best.Choices)
	slices.SortFunc(ids, func(a, b Stream) int { return cmp.Compare(len(b.Log), len(a.Log)) })
	for _, st := range ids {
		for size := len(st.Log); size > 0; size /= 2 {
			for at := 0; at < len(s.log(st.ID)); {
				if s.zero(st.ID, at, size) {
					at += size
				} else if !s.drop(st.ID, at, size) {
					at += size
				}
			}
		}
		for at := 0; at < len(s.log(st.ID)); at++ {
			for v := s.log(st.ID)[at] / 2; v > 0 && s.with(st.ID, func(log []uint32) []uint32 { log[at] = v; return log }); v /= 2 {
				if at >= len(s.log(st.ID)) {
					break
				}
			}
		}
	}
}

func (s *shrink) log(id StreamID) []uint32 {
	for _, st := range s.best.Choices {
		if st.ID == id {
			return st.Log
		}
	}
	return nil
}

// with tries a stream as change makes it.
func (s *shrink) with(id StreamID, change func(log []uint32) []uint32) bool {
	all := slices.Clone(s.best.Choices)
	for i := range all {
		if all[i].ID == id {
			all[i].Log = change(slices.Clone(all[i].Log))
		}
	}
	return s.try(all)
}

func (s *shrink) zero(id StreamID, at, size int) bool {
	log := s.log(id)
	end := min(at+size, len(log))
	if !slices.ContainsFunc(log[at:end], func(v uint32) bool { return v != 0 }) {
		return false
	}
	return s.with(id, func(log []uint32) []uint32 { clear(log[at:end]); return log })
}

func (s *shrink) drop(id StreamID, at, size int) bool {
	end := min(at+size, len(s.log(id)))
	return s.with(id, func(log []uint32) []uint32 { return slices.Delete(log, at, end) })
}
