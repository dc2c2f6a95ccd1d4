// SPDX-License-Identifier: Apache-2.0

package sim

// shrinkSteps bounds how much a shrink may simulate, all its tries together.
const shrinkSteps = 600_000

// Shrink looks for the least choices that break the same spec: it zeroes chunks
// of the log and drops them, ever smaller ones, and keeps what still breaks it.
// As 0 is the benign choice, what is left is about the matter.
func Shrink(o Options, r Result) ([]uint32, Result) {
	s := shrink{o: o, spec: r.Broken.Spec, best: r, log: r.Choices, left: shrinkSteps}
	if o.shrinkMax > 0 {
		s.left = o.shrinkMax
	}
	s.try(r.Choices)
	for size := len(s.log) / 2; size > 0 && s.left > 0; size /= 2 {
		for at := 0; at < len(s.log) && s.left > 0; {
			if !s.zero(at, size) && !s.drop(at, size) {
				at += size
				continue
			}
			if at < len(s.log) && allZero(s.log[at:min(at+size, len(s.log))]) {
				at += size
			}
		}
	}
	return s.log, s.best
}

type shrink struct {
	o    Options
	spec string
	log  []uint32
	best Result
	left int // steps
}

// try keeps a log if it breaks the same spec, without what it did not use.
func (s *shrink) try(log []uint32) bool {
	c := NewReplayed(log)
	o := s.o
	o.Chooser, o.StepsMax, o.Events, o.Columns, o.Page = c, s.best.Stats.Steps+s.best.Stats.Steps/4+1, nil, nil, nil
	r := RunSeed(o)
	s.left -= r.Stats.Steps + 1
	if r.Broken == nil || r.Broken.Spec != s.spec {
		return false
	}
	log = log[:min(len(log), c.Used)]
	for len(log) > 0 && log[len(log)-1] == 0 {
		log = log[:len(log)-1]
	}
	s.log, s.best = log, r
	return true
}

func (s *shrink) zero(at, size int) bool {
	end := min(at+size, len(s.log))
	if allZero(s.log[at:end]) {
		return false
	}
	log := append([]uint32(nil), s.log...)
	clear(log[at:end])
	return s.try(log)
}

func (s *shrink) drop(at, size int) bool {
	end := min(at+size, len(s.log))
	return s.try(append(append([]uint32(nil), s.log[:at]...), s.log[end:]...))
}

func allZero(log []uint32) bool {
	for _, v := range log {
		if v != 0 {
			return false
		}
	}
	return true
}
