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
//   - Who has a part in it: those who came last, or some of all who came, and of
//     the strikes and orders?
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
	return &shrink{o: o, spec: r.Broken.Spec, found: r, best: r, left: steps, until: time.Now().Add(took),
		slack: r.Stats.Steps / 50, vain: map[uint64]bool{}, seed: maphash.MakeSeed()}
}

func (s *shrink) run() Result {
	s.try(s.best.Choices) // without what nobody asked for
	s.accounts()
	s.matters()
	s.slack = 0
	for before := (size{}); s.size() != before; {
		before = s.size()
		for s.anotherDay() {
			s.matters()
		}
		s.matters()
		s.fewerAccounts(1)
		s.closeUp()
		s.within()
	}
	return s.hashed()
}

type shrink struct {
	o     Options
	spec  string
	found Result
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
	o.Chooser, o.Events, o.Columns, o.Page, o.Trace = c, nil, nil, nil, nil
	o.Unhashed = s.spec != NobodyAstray // what is written down nowhere shows no secret
	if o.StepsMax = stepsMax; o.Plain {
		o.StepsMax = min(stepsMax, plainSteps)
	}
	r = RunSeed(o)
	s.left -= r.Stats.Steps + tryCost
	return r, r.Broken != nil && r.Broken.Spec == s.spec
}

// hashed is the best, which was tried without its log. If it is not what it was
// then, what was found is all there is.
func (s *shrink) hashed() Result {
	o := s.o
	o.Chooser, o.Events, o.Columns, o.Page, o.Trace = NewReplayed(s.best.Choices), nil, nil, nil, nil
	r := RunSeed(o)
	if r.Broken == nil || r.Broken.Spec != s.spec {
		return s.found
	}
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

// accounts leaves out who came, strikes and orders, with all that was chosen on
// their account: what is left happens when it did, because who does not come lets
// the same time pass. All but those at the end first, in the most benign world, in
// that of the plan, and in the one that was. A story that is long because it took
// so long to happen is short then, and cheap to go on with.
func (s *shrink) accounts() {
	whole := s.best.Choices
	idle := func(st Stream) bool { return st.ID == planOrders || st.ID == planLength && s.o.Long }
	for _, leftOut := range [...]func(Stream) bool{
		func(st Stream) bool { return st.ID.account() == 0 },
		func(st Stream) bool { return st.ID.account() == 0 && about(st.ID) != aboutPlan || idle(st) },
		idle,
	} {
		rest := slices.DeleteFunc(slices.Clone(whole), leftOut)
		all := accountsOf(rest)
		for last := 1; last < len(all); last *= 2 {
			if s.try(s.closed(rest, all[:len(all)-last])) {
				break
			}
		}
		if len(s.best.Choices) < len(whole)/2 {
			break
		}
	}
	if s.o.Long {
		s.fewerAccounts(1)
	} else {
		s.fewerAccounts(8) // a shorter day is sooner found than who can be spared
	}
}

// fewerAccounts leaves out those of each kind, many at once first, but no fewer than
// so many.
func (s *shrink) fewerAccounts(least int) {
	for _, kind := range [...]StreamID{aboutArrival, aboutClerk, aboutWorld} {
		of := func() []StreamID {
			return slices.DeleteFunc(accountsOf(s.best.Choices), func(id StreamID) bool { return about(id) != kind })
		}
		for size := len(of()); size >= least; size /= 2 {
			for at := 0; !s.spent(); {
				all := of()
				if at >= len(all) {
					break
				}
				if !s.try(s.closed(s.best.Choices, all[at:min(at+size, len(all))])) {
					at += size
				}
			}
		}
	}
}

// accountsOf are those on which something was chosen besides when the next one
// comes, in about the order of time.
func accountsOf(choices Choices) (all []StreamID) {
	most := map[StreamID]StreamID{}
	seen := map[StreamID]bool{}
	for _, st := range choices {
		id := st.ID.account()
		if id == 0 || seen[id] || st.ID == id.on(id) && about(id) == aboutArrival && len(st.Log) <= gapChoices ||
			about(st.ID) == aboutClerk && st.Log[0] == 0 {
			continue
		}
		seen[id] = true
		most[about(id)] = max(most[about(id)], id&whoseMask)
		all = append(all, id)
	}
	when := func(id StreamID) float64 { return float64(id&whoseMask) / float64(most[about(id)]+1) }
	slices.SortFunc(all, func(a, b StreamID) int { return cmp.Or(cmp.Compare(when(a), when(b)), cmp.Compare(a, b)) })
	return all
}

// gapChoices say when the next one comes.
const gapChoices = 2

// closed is choices without some accounts.
func (s *shrink) closed(choices Choices, accounts []StreamID) (rest Choices) {
	out := make(map[StreamID]bool, len(accounts))
	for _, id := range accounts {
		out[id] = true
	}
	gap := gapChoices
	if !s.o.Long {
		gap-- // no pace
	}
	for _, st := range choices {
		switch id, last := st.ID.account(), len(st.Log)-1; {
		case !out[id]:
			rest = append(rest, st)
		case st.ID == id.on(id) && about(id) == aboutArrival:
			rest = append(rest, Stream{st.ID, st.Log[:min(gap, len(st.Log))]})
		case about(id) == aboutClerk && st.ID == StreamID(aboutClerk).on(id):
			rest = append(rest, Stream{st.ID, []uint32{0, st.Log[last]}})
		}
	}
	return rest
}

// A story of so many steps is short. To make one so it is given a part of what
// is left, a few times.
const (
	short   = 60
	dayPart = 4
)

// anotherDay looks for a shorter story in worlds of the same plan, in the most
// benign one, and in those to which the same come, whose other choices are drawn anew.
func (s *shrink) anotherDay() bool {
	most := s.best.Stats.Steps
	left, until := s.left-s.left/dayPart, time.Now().Add(time.Until(s.until)/dayPart)
	for ; most > short && s.left > left && time.Now().Before(until); s.day++ {
		same := [...]func(about StreamID) bool{
			func(about StreamID) bool { return about == aboutPlan },
			func(about StreamID) bool { return about == aboutPlan || about == aboutArrival },
			func(StreamID) bool { return false },
			func(about StreamID) bool { return about == aboutPlan || about == aboutArrival || about == aboutFault },
		}[s.day%4]
		kept := slices.DeleteFunc(slices.Clone(s.best.Choices), func(st Stream) bool { return !same(about(st.ID)) })
		c := &redrawn{same: func(about StreamID) bool { return same(about) || about == aboutPlan }, kept: NewReplayed(kept), day: NewDrawn(mix(s.o.Seed, s.day))}
		if r, broken := s.world(c, most*3/4); broken {
			day := slices.DeleteFunc(c.day.Choices(), func(st Stream) bool { return c.same(about(st.ID)) })
			r.Choices = append(kept, day...)
			s.keep(r)
			s.try(r.Choices)
			return true
		}
	}
	return false
}

// redrawn chooses some as it was, and all else anew.
type redrawn struct {
	Chooser
	same func(about StreamID) bool
	kept *Replayed
	day  *Drawn
}

// Turn implements Chooser.
func (r *redrawn) Turn(to StreamID) {
	if r.Chooser = r.day; r.same(about(to)) {
		r.Chooser = r.kept
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
		for at := 0; !s.spent(); {
			ids := s.of(matter)
			if at >= len(ids) {
				break
			}
			some := ids[at:min(at+size, len(ids))]
			if !s.without(func(id StreamID) bool { return slices.Contains(some, id.on(0)) }) {
				at += size
			}
		}
	}
}

// of is the streams of a matter by number, on any account.
func (s *shrink) of(matter StreamID) (ids []StreamID) {
	for _, st := range s.best.Choices {
		if about(st.ID) == matter {
			ids = append(ids, st.ID.on(0))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// closeUp has those who are left come one after the other, with nobody who stays
// away in between; if that is another story, then at least from the beginning on.
func (s *shrink) closeUp() {
	var came []StreamID
	for _, id := range accountsOf(s.best.Choices) {
		if about(id) == aboutArrival {
			came = append(came, id)
		}
	}
	if len(came) == 0 {
		return
	}
	if !s.try(s.renumbered(func(id StreamID) (StreamID, bool) {
		i, is := slices.BinarySearch(came, id)
		return aboutArrival + StreamID(i), is
	})) {
		s.try(s.renumbered(func(id StreamID) (StreamID, bool) { return id - came[0] + aboutArrival, id >= came[0] }))
	}
}

// renumbered is the best with others in the place of who came, or nobody.
func (s *shrink) renumbered(to func(StreamID) (StreamID, bool)) (all Choices) {
	for _, st := range s.best.Choices {
		account, whose, is := st.ID.account(), st.ID&whoseMask, true
		if about(account) == aboutArrival {
			account, is = to(account)
		}
		if a := about(st.ID); is && (a == aboutArrival || a == aboutReader && whose != whoseMask) {
			var who StreamID
			who, is = to(aboutArrival + whose)
			whose = who & whoseMask
		}
		if is {
			all = append(all, Stream{(about(st.ID) | whose).on(account), st.Log})
		}
	}
	return all
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

// lower makes a choice smaller: to its half for as long as it goes, then by ever
// less than that, then to the least of a few.
func (s *shrink) lower(id StreamID, at int) {
	to := func(v uint32) bool {
		return at < len(s.log(id)) && s.with(id, func(log []uint32) []uint32 { log[at] = v; return log })
	}
	now := func() uint32 {
		if log := s.log(id); at < len(log) {
			return log[at]
		}
		return 0
	}
	lowered(now, func(v uint32) bool { return !s.spent() && to(v) })
}

// lowered tries ever smaller values: of what is tried, and goes, now is the last.
func lowered(now func() uint32, to func(uint32) bool) {
	for v := now() / 2; v > 0 && to(v); v = now() / 2 {
	}
	for by := now() / 4; by > 0; {
		if by >= now() || !to(now()-by) {
			by /= 2
		}
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
