// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"hash/maphash"
	"slices"
	"time"
)

// budget is what a shrink may take: so many steps of all its tries together, and
// so much time.
type budget struct {
	steps int
	time  time.Duration
}

var shrinkBudget = budget{steps: 1_200_000, time: 45 * time.Second}

// tryCost is what a world costs besides its steps, in steps.
const tryCost = 50

// Shrink looks for the shortest story that breaks the same spec. As 0 is the
// benign choice, what is left is about the matter. It asks in this order:
//
//   - Is the end enough? Only those who came last.
//   - Does it need this matter at all: who came, each kind of fault, each part of
//     the plan, the order in which a cell, a link or a disk did things?
//   - Does it need each choice? Chunks of them are made benign or left out, ever
//     smaller ones; then what has to stay is made as small as it can be.
//
// What hangs on a race gets no smaller in this way, because whatever is left out
// has all the rest come at other times. Where a story stays long, it looks for
// another day of the same world, or of the most benign one, that is shorter.
//
// It goes round until nothing gets smaller, or its budget is spent.
func Shrink(o Options, r Result) Result { return newShrink(o, r).run() }

func newShrink(o Options, r Result) *shrink {
	steps, took := cmp.Or(o.shrink.steps, shrinkBudget.steps), cmp.Or(o.shrink.time, shrinkBudget.time)
	return &shrink{o: o, spec: r.Broken.Spec, best: r, left: steps, until: time.Now().Add(took),
		slack: r.Stats.Steps / 50, vain: map[uint64]bool{}, seed: maphash.MakeSeed()}
}

func (s *shrink) run() Result {
	s.try(s.best.Choices) // without what nobody asked for
	s.latest()
	s.matters()
	s.slack = 0
	for before := (size{}); s.size() != before; {
		before = s.size()
		for s.anotherDay() {
			s.matters()
		}
		s.matters()
		s.closeUp()
		s.within()
	}
	return s.hashed()
}

type shrink struct {
	o     Options
	spec  string
	best  Result
	left  int // steps
	until time.Time
	slack int             // so many steps more a story may have, if it has less in it
	vain  map[uint64]bool // choices that were tried
	seed  maphash.Seed
	day   uint64
}

// size is what gets smaller: the steps of a story, how many of its choices are
// not benign, how great they are, how many choices there are, and how late it ends.
type size struct {
	steps, weight, sum, length int
	at                         time.Duration
}

func (s *shrink) size() size { return sizeOf(&s.best) }

func sizeOf(r *Result) size {
	z := size{steps: r.Stats.Steps, at: r.Broken.At}
	for _, st := range r.Choices {
		z.length += len(st.Log)
		for _, v := range st.Log {
			if v != 0 {
				z.weight++
				z.sum += int(v)
			}
		}
	}
	return z
}

func (a size) compare(b size) int {
	return cmp.Or(cmp.Compare(a.steps, b.steps), cmp.Compare(a.weight, b.weight), cmp.Compare(a.sum, b.sum),
		cmp.Compare(a.length, b.length), cmp.Compare(a.at, b.at))
}

func (s *shrink) spent() bool { return s.left <= 0 || !time.Now().Before(s.until) }

// try keeps choices if they break the same spec and are smaller, without what
// was not used.
func (s *shrink) try(choices Choices) bool {
	id := s.hash(choices)
	if s.spent() || s.vain[id] {
		return false
	}
	c := NewReplayed(choices)
	if r, same := s.world(c, s.best.Stats.Steps+s.slack+1); same {
		r.Choices = c.used(choices)
		is, was := sizeOf(&r), s.size()
		if is.compare(was) < 0 || is.steps <= was.steps+s.slack && is.weight < was.weight {
			s.keep(r)
			return true
		}
	}
	s.vain[id] = true
	return false
}

func (s *shrink) keep(r Result) {
	if s.best = r; s.o.Shrunk != nil {
		s.o.Shrunk(r.Stats.Steps)
	}
}

// world tells what comes of a chooser's world within so many steps, and whether it
// breaks the same spec.
func (s *shrink) world(c Chooser, stepsMax int) (r Result, same bool) {
	o := s.o
	o.Chooser, o.Events, o.Columns, o.Page, o.Trace, o.Unhashed = c, nil, nil, nil, nil, true
	o.StepsMax = stepsMax
	r = RunSeed(o)
	s.left -= r.Stats.Steps + tryCost
	return r, r.Broken != nil && r.Broken.Spec == s.spec
}

// hashed is the best, which was tried without its log.
func (s *shrink) hashed() Result {
	o := s.o
	o.Chooser, o.Events, o.Columns, o.Page, o.Trace = NewReplayed(s.best.Choices), nil, nil, nil, nil
	r := RunSeed(o)
	r.Choices = s.best.Choices
	return r
}

func (s *shrink) hash(choices Choices) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	for _, st := range choices {
		maphash.WriteComparable(&h, st.ID)
		maphash.WriteComparable(&h, len(st.Log))
		for _, v := range st.Log {
			maphash.WriteComparable(&h, v)
		}
	}
	return h.Sum64()
}

// latest leaves out who came before the end: all but the last, the last two, the
// last four, in the most benign world, in that of the plan, and in the one that was.
// A story that is long because it took so long to happen is short then, and cheap
// to go on with.
func (s *shrink) latest() {
	whole := slices.Clone(s.best.Choices)
	idle := func(st Stream) bool {
		return about(st.ID) == aboutArrival || st.ID == planOrders || st.ID == planLength && s.o.Long
	}
	for _, leftOut := range [...]func(Stream) bool{
		func(Stream) bool { return true },
		func(st Stream) bool { return about(st.ID) != aboutPlan || idle(st) },
		idle,
	} {
		if s.latestOf(slices.DeleteFunc(slices.Clone(whole), leftOut)) {
			return
		}
	}
}

// latestOf brings those who came last into a world to which nobody comes, at about
// the time when they came, or a little later.
func (s *shrink) latestOf(quiet Choices) bool {
	if s.spent() {
		return false
	}
	c := NewReplayed(quiet)
	r, same := s.world(c, s.best.Stats.Steps)
	if same || r.Stats.Workload == 0 {
		return same && s.try(quiet)
	}
	slots := 0 // at each of which somebody may come
	for id := range c.streams {
		if about(id) == aboutArrival {
			slots++
		}
	}
	came, end := s.of(aboutArrival), s.best.Broken.At
	slot := func(at time.Duration) StreamID { return StreamID(at * time.Duration(slots) / r.Stats.Workload) }
	for last := 1; last < len(came)/2; last *= 2 {
		first := came[len(came)-last]
		for _, at := range [...]time.Duration{end - end*time.Duration(last)/time.Duration(len(came)), end} {
			choices := slices.Clone(quiet)
			for _, st := range s.best.Choices {
				if about(st.ID) == aboutArrival && st.ID >= first {
					choices = append(choices, Stream{ID: st.ID - first + aboutArrival + slot(at), Log: st.Log})
				}
			}
			if s.try(choices) {
				return true
			}
		}
	}
	return false
}

// A story of so many steps is short. To make one so it is given a part of what
// is left, a few times.
const (
	short   = 60
	dayPart = 4
)

// anotherDay looks for a shorter story in worlds of the same plan, and in the most
// benign one, whose other choices are drawn anew.
func (s *shrink) anotherDay() bool {
	most := s.best.Stats.Steps
	left, until := s.left-s.left/dayPart, time.Now().Add(time.Until(s.until)/dayPart)
	for ; most > short && s.left > left && time.Now().Before(until); s.day++ {
		var plan Choices
		if s.day%2 == 0 {
			plan = slices.DeleteFunc(slices.Clone(s.best.Choices), func(st Stream) bool { return about(st.ID) != aboutPlan })
		}
		c := &redrawn{plan: NewReplayed(plan), day: NewDrawn(mix(s.o.Seed, s.day))}
		if r, same := s.world(c, most*3/4); same {
			day := slices.DeleteFunc(c.day.Choices(), func(st Stream) bool { return about(st.ID) == aboutPlan })
			r.Choices = append(plan, day...)
			s.keep(r)
			s.try(r.Choices)
			return true
		}
	}
	return false
}

// redrawn chooses the plan as it was, and all else anew.
type redrawn struct {
	Chooser
	plan *Replayed
	day  *Drawn
}

// Turn implements Chooser.
func (r *redrawn) Turn(to StreamID) {
	if r.Chooser = r.day; about(to) == aboutPlan {
		r.Chooser = r.plan
	}
	r.Chooser.Turn(to)
}

func about(id StreamID) StreamID { return id & aboutMask }

// matters makes whole matters benign, or what can be of each. Who came is the
// first, because everything else is about them.
func (s *shrink) matters() {
	for i := range aboutNames {
		matter := StreamID(i) << 24
		switch {
		case i == 0:
			matter = aboutArrival
		case matter == aboutArrival:
			matter = aboutPlan
		}
		if !s.without(func(id StreamID) bool { return about(id) == matter }) {
			s.streams(matter)
		}
	}
}

// without makes some of the streams benign, if they can be.
func (s *shrink) without(these func(StreamID) bool) bool {
	left := slices.DeleteFunc(slices.Clone(s.best.Choices), func(st Stream) bool { return these(st.ID) })
	return len(left) < len(s.best.Choices) && s.try(left)
}

// streams makes streams of a matter benign, many at once first.
func (s *shrink) streams(matter StreamID) {
	for size := len(s.of(matter)) / 2; size > 0; size /= 2 {
		for at := 0; ; {
			ids := s.of(matter)
			if at >= len(ids) {
				break
			}
			some := ids[at:min(at+size, len(ids))]
			if !s.without(func(id StreamID) bool { return slices.Contains(some, id) }) {
				at += size
			}
		}
	}
}

// of is the streams of a matter, by number.
func (s *shrink) of(matter StreamID) (ids []StreamID) {
	for _, st := range s.best.Choices {
		if about(st.ID) == matter {
			ids = append(ids, st.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// closeUp has those who are left come one after the other, with nobody who stays
// away in between; if that is another story, then at least from the beginning on.
func (s *shrink) closeUp() {
	ids := s.of(aboutArrival)
	if len(ids) == 0 {
		return
	}
	renamed := func(to func(i int, id StreamID) StreamID) Choices {
		all := slices.Clone(s.best.Choices)
		for i := range all {
			if at := slices.Index(ids, all[i].ID); at >= 0 {
				all[i].ID = to(at, all[i].ID)
			}
		}
		return all
	}
	if !s.try(renamed(func(i int, _ StreamID) StreamID { return aboutArrival + StreamID(i) })) {
		s.try(renamed(func(_ int, id StreamID) StreamID { return id - ids[0] + aboutArrival }))
	}
}

// within makes chunks of each stream benign, or leaves them out; then it makes
// what has to stay as small as it can be.
func (s *shrink) within() {
	ids := slices.Clone(s.best.Choices)
	slices.SortFunc(ids, func(a, b Stream) int { return cmp.Compare(len(b.Log), len(a.Log)) })
	for _, st := range ids {
		for size := len(st.Log); size > 0 && !s.spent(); size /= 2 {
			for at := 0; at < len(s.log(st.ID)); {
				if s.zero(st.ID, at, size) || !s.drop(st.ID, at, size) {
					at += size
				}
			}
		}
	}
	for _, st := range ids {
		for at := 0; at < len(s.log(st.ID)) && !s.spent(); at++ {
			s.lower(st.ID, at)
			s.prune(st.ID, at)
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

// lower makes a choice smaller: to its half for as long as it goes, then to the
// least of a few.
func (s *shrink) lower(id StreamID, at int) {
	to := func(v uint32) bool {
		return s.with(id, func(log []uint32) []uint32 { log[at] = v; return log })
	}
	now := func() uint32 {
		if log := s.log(id); at < len(log) {
			return log[at]
		}
		return 0
	}
	for v := now() / 2; v > 0 && to(v); v = now() / 2 {
	}
	for v := uint32(1); v < min(now(), fewest); v++ {
		to(v)
	}
}

// fewest choices are tried one by one.
const fewest = 8

// prune leaves out one of several things that were drawn one after the other: how
// many there are is one less then, and what was drawn for it is not there.
func (s *shrink) prune(id StreamID, at int) {
	for size := 1; size <= prunedMost; size++ {
		log := s.log(id)
		if at+1+size > len(log) {
			return
		}
		if log[at] > 0 {
			s.with(id, func(log []uint32) []uint32 { log[at]--; return slices.Delete(log, at+1, at+1+size) })
		} else if size > 1 {
			s.drop(id, at, size)
		}
	}
}

// prunedMost is of how many choices a thing may be that is left out as one.
const prunedMost = 8
