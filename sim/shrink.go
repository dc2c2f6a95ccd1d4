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

var defaultBudget = budget{steps: 1_200_000, time: 45 * time.Second}

// runOverheadSteps is what a world costs besides its steps, in steps.
const runOverheadSteps = 50

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

func newShrink(o Options, r Result) *shrinker {
	steps, took := cmp.Or(o.shrink.steps, defaultBudget.steps), cmp.Or(o.shrink.time, defaultBudget.time)
	return &shrinker{options: o, spec: r.Violation.Spec, original: r, best: r, stepsLeft: steps, deadline: time.Now().Add(took),
		slack: r.Stats.Steps / 50, rejected: map[uint64]bool{}, hashSeed: maphash.MakeSeed()}
}

func (s *shrinker) run() Result {
	s.try(s.best.Choices) // without what nobody asked for
	s.dropCauses()
	s.zeroTopics()
	s.slack = 0
	for before := (runSize{}); s.bestSize() != before; {
		before = s.bestSize()
		for s.redrawChoices() {
			s.zeroTopics()
		}
		s.zeroTopics()
		s.dropCauseChunks(1)
		s.compactArrivals()
		s.minimizeStreams()
	}
	return s.rerunBest()
}

type shrinker struct {
	options   Options
	spec      string
	original  Result
	best      Result
	stepsLeft int // steps
	deadline  time.Time
	slack     int             // so many steps more a story may have, if it has less in it
	rejected  map[uint64]bool // choices that were tried
	hashSeed  maphash.Seed
	redraws   uint64
}

// runSize is what gets smaller: the steps of a story, how many of its choices are
// not benign, how great they are, how many choices there are, and how late it ends.
type runSize struct {
	steps, nonzero, sum, choices int
	elapsed                      time.Duration
}

func (s *shrinker) bestSize() runSize { return sizeOfRun(&s.best) }

func sizeOfRun(r *Result) runSize {
	z := runSize{steps: r.Stats.Steps, elapsed: r.Violation.At}
	for _, st := range r.Choices {
		z.choices += len(st.Log)
		for _, v := range st.Log {
			if v != 0 {
				z.nonzero++
				z.sum += int(v)
			}
		}
	}
	return z
}

func (a runSize) compare(b runSize) int {
	return cmp.Or(cmp.Compare(a.steps, b.steps), cmp.Compare(a.nonzero, b.nonzero), cmp.Compare(a.sum, b.sum),
		cmp.Compare(a.choices, b.choices), cmp.Compare(a.elapsed, b.elapsed))
}

func (s *shrinker) exhausted() bool { return s.stepsLeft <= 0 || !time.Now().Before(s.deadline) }

// try keeps choices if they break the same spec and are smaller, without what
// was not used.
func (s *shrinker) try(choices Choices) bool {
	id := s.hashChoices(choices)
	if s.exhausted() || s.rejected[id] {
		return false
	}
	c := NewReplayedEntropy(choices)
	if r, same := s.runCandidate(c, s.best.Stats.Steps+s.slack+1); same {
		r.Choices = c.trimmed(choices)
		is, was := sizeOfRun(&r), s.bestSize()
		if is.compare(was) < 0 || is.steps <= was.steps+s.slack && is.nonzero < was.nonzero {
			s.accept(r)
			return true
		}
	}
	s.rejected[id] = true
	return false
}

func (s *shrinker) accept(r Result) {
	if s.best = r; s.options.OnShrunk != nil {
		s.options.OnShrunk(r.Stats.Steps)
	}
}

// runCandidate tells what comes of a chooser's world within so many steps, and whether it
// breaks the same spec.
func (s *shrinker) runCandidate(c Entropy, stepsMax int) (r Result, same bool) {
	o := s.options
	o.Entropy, o.Events, o.Columns, o.Page, o.Trace = c, nil, nil, nil, nil
	o.Unhashed = s.spec != NobodyAstray // what is written down nowhere shows no secret
	if o.StepsMax = stepsMax; o.Plain {
		o.StepsMax = min(stepsMax, plainSteps)
	}
	r = RunSeed(o)
	s.stepsLeft -= r.Stats.Steps + runOverheadSteps
	return r, r.Violation != nil && r.Violation.Spec == s.spec
}

// rerunBest is the best, which was tried without its log. If it is not what it was
// then, what was found is all there is.
func (s *shrinker) rerunBest() Result {
	o := s.options
	o.Entropy, o.Events, o.Columns, o.Page, o.Trace = NewReplayedEntropy(s.best.Choices), nil, nil, nil, nil
	r := RunSeed(o)
	if r.Violation == nil || r.Violation.Spec != s.spec {
		return s.original
	}
	r.Choices = s.best.Choices
	return r
}

func (s *shrinker) hashChoices(choices Choices) uint64 {
	var h maphash.Hash
	h.SetSeed(s.hashSeed)
	for _, st := range choices {
		maphash.WriteComparable(&h, st.ID)
		maphash.WriteComparable(&h, len(st.Log))
		for _, v := range st.Log {
			maphash.WriteComparable(&h, v)
		}
	}
	return h.Sum64()
}

// dropCauses leaves out who came, strikes and orders, with all that was chosen on
// their account: what is left happens when it did, because who does not come lets
// the same time pass. All but those at the end first, in the most benign world, in
// that of the plan, and in the one that was. A story that is long because it took
// so long to happen is short then, and cheap to go on with.
func (s *shrinker) dropCauses() {
	whole := s.best.Choices
	idle := func(st Stream) bool { return st.ID == planRegistry || st.ID == planLength && s.options.Long }
	for _, leftOut := range [...]func(Stream) bool{
		func(st Stream) bool { return st.ID.cause() == 0 },
		func(st Stream) bool { return st.ID.cause() == 0 && topicOf(st.ID) != topicPlan || idle(st) },
		idle,
	} {
		rest := slices.DeleteFunc(slices.Clone(whole), leftOut)
		all := causesIn(rest)
		for last := 1; last < len(all); last *= 2 {
			if s.try(s.withoutCauses(rest, all[:len(all)-last])) {
				break
			}
		}
		if len(s.best.Choices) < len(whole)/2 {
			break
		}
	}
	if s.options.Long {
		s.dropCauseChunks(1)
	} else {
		s.dropCauseChunks(8) // a shorter day is sooner found than who can be spared
	}
}

// dropCauseChunks leaves out those of each kind, many at once first, but no fewer than
// so many.
func (s *shrinker) dropCauseChunks(least int) {
	for _, kind := range [...]StreamID{topicArrival, topicRegistry, topicWorld} {
		of := func() []StreamID {
			return slices.DeleteFunc(causesIn(s.best.Choices), func(id StreamID) bool { return topicOf(id) != kind })
		}
		for size := len(of()); size >= least; size /= 2 {
			for at := 0; !s.exhausted(); {
				all := of()
				if at >= len(all) {
					break
				}
				if !s.try(s.withoutCauses(s.best.Choices, all[at:min(at+size, len(all))])) {
					at += size
				}
			}
		}
	}
}

// causesIn are those on which something was chosen besides when the next one
// comes, in about the order of time.
func causesIn(choices Choices) (all []StreamID) {
	most := map[StreamID]StreamID{}
	seen := map[StreamID]bool{}
	for _, st := range choices {
		id := st.ID.cause()
		if id == 0 || seen[id] || st.ID == id.withCause(id) && topicOf(id) == topicArrival && len(st.Log) <= arrivalGapChoices ||
			topicOf(st.ID) == topicRegistry && st.Log[0] == 0 {
			continue
		}
		seen[id] = true
		most[topicOf(id)] = max(most[topicOf(id)], id&ownerMask)
		all = append(all, id)
	}
	when := func(id StreamID) float64 { return float64(id&ownerMask) / float64(most[topicOf(id)]+1) }
	slices.SortFunc(all, func(a, b StreamID) int { return cmp.Or(cmp.Compare(when(a), when(b)), cmp.Compare(a, b)) })
	return all
}

// arrivalGapChoices say when the next one comes.
const arrivalGapChoices = 2

// withoutCauses is choices without some accounts.
func (s *shrinker) withoutCauses(choices Choices, accounts []StreamID) (rest Choices) {
	out := make(map[StreamID]bool, len(accounts))
	for _, id := range accounts {
		out[id] = true
	}
	gap := arrivalGapChoices
	if !s.options.Long {
		gap-- // no pace
	}
	for _, st := range choices {
		switch id, last := st.ID.cause(), len(st.Log)-1; {
		case !out[id]:
			rest = append(rest, st)
		case st.ID == id.withCause(id) && topicOf(id) == topicArrival:
			rest = append(rest, Stream{st.ID, st.Log[:min(gap, len(st.Log))]})
		case topicOf(id) == topicRegistry && st.ID == StreamID(topicRegistry).withCause(id):
			rest = append(rest, Stream{st.ID, []uint32{0, st.Log[last]}})
		}
	}
	return rest
}

// A story of so many steps is short. To make one so it is given a part of what
// is left, a few times.
const (
	shortRunSteps       = 60
	redrawBudgetDivisor = 4
)

// redrawChoices looks for a shorter story in worlds of the same plan, in the most
// benign one, and in those to which the same come, whose other choices are drawn anew.
func (s *shrinker) redrawChoices() bool {
	most := s.best.Stats.Steps
	left, until := s.stepsLeft-s.stepsLeft/redrawBudgetDivisor, time.Now().Add(time.Until(s.deadline)/redrawBudgetDivisor)
	for ; most > shortRunSteps && s.stepsLeft > left && time.Now().Before(until); s.redraws++ {
		same := [...]func(about StreamID) bool{
			func(about StreamID) bool { return about == topicPlan },
			func(about StreamID) bool { return about == topicPlan || about == topicArrival },
			func(StreamID) bool { return false },
			func(about StreamID) bool { return about == topicPlan || about == topicArrival || about == topicFault },
		}[s.redraws%4]
		kept := slices.DeleteFunc(slices.Clone(s.best.Choices), func(st Stream) bool { return !same(topicOf(st.ID)) })
		c := &partlyRedrawn{isKept: func(about StreamID) bool { return same(about) || about == topicPlan }, kept: NewReplayedEntropy(kept), fresh: NewSeededEntropy(mix(s.options.Seed, s.redraws))}
		if r, broken := s.runCandidate(c, most*3/4); broken {
			day := slices.DeleteFunc(c.fresh.Choices(), func(st Stream) bool { return c.isKept(topicOf(st.ID)) })
			r.Choices = append(kept, day...)
			s.accept(r)
			s.try(r.Choices)
			return true
		}
	}
	return false
}

// partlyRedrawn chooses some as it was, and all else anew.
type partlyRedrawn struct {
	Entropy
	isKept func(about StreamID) bool
	kept   *ReplayedEntropy
	fresh  *SeededEntropy
}

// SetStream implements Chooser.
func (r *partlyRedrawn) SetStream(to StreamID) {
	if r.Entropy = r.fresh; r.isKept(topicOf(to)) {
		r.Entropy = r.kept
	}
	r.Entropy.SetStream(to)
}

func topicOf(id StreamID) StreamID { return id & topicMask }

// zeroTopics makes whole matters benign, or what can be of each. Who came is the
// first, because everything else is about them.
func (s *shrinker) zeroTopics() {
	for i := range topicNames {
		matter := StreamID(i) << 24
		switch {
		case i == 0:
			matter = topicArrival
		case matter == topicArrival:
			matter = topicPlan
		}
		if !s.zeroStreams(func(id StreamID) bool { return topicOf(id) == matter }) {
			s.zeroTopicStreams(matter)
		}
	}
}

// zeroStreams makes some of the streams benign, if they can be.
func (s *shrinker) zeroStreams(these func(StreamID) bool) bool {
	left := slices.DeleteFunc(slices.Clone(s.best.Choices), func(st Stream) bool { return these(st.ID) })
	return len(left) < len(s.best.Choices) && s.try(left)
}

// zeroTopicStreams makes streams of a matter benign, many at once first.
func (s *shrinker) zeroTopicStreams(matter StreamID) {
	for size := len(s.topicStreams(matter)) / 2; size > 0; size /= 2 {
		for at := 0; !s.exhausted(); {
			ids := s.topicStreams(matter)
			if at >= len(ids) {
				break
			}
			some := ids[at:min(at+size, len(ids))]
			if !s.zeroStreams(func(id StreamID) bool { return slices.Contains(some, id.withCause(0)) }) {
				at += size
			}
		}
	}
}

// topicStreams is the streams of a matter by number, on any account.
func (s *shrinker) topicStreams(matter StreamID) (ids []StreamID) {
	for _, st := range s.best.Choices {
		if topicOf(st.ID) == matter {
			ids = append(ids, st.ID.withCause(0))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// compactArrivals has those who are left come one after the other, with nobody who stays
// away in between; if that is another story, then at least from the beginning on.
func (s *shrinker) compactArrivals() {
	var came []StreamID
	for _, id := range causesIn(s.best.Choices) {
		if topicOf(id) == topicArrival {
			came = append(came, id)
		}
	}
	if len(came) == 0 {
		return
	}
	if !s.try(s.renumberArrivals(func(id StreamID) (StreamID, bool) {
		i, is := slices.BinarySearch(came, id)
		return topicArrival + StreamID(i), is
	})) {
		s.try(s.renumberArrivals(func(id StreamID) (StreamID, bool) { return id - came[0] + topicArrival, id >= came[0] }))
	}
}

// renumberArrivals is the best with others in the place of who came, or nobody.
func (s *shrinker) renumberArrivals(to func(StreamID) (StreamID, bool)) (all Choices) {
	for _, st := range s.best.Choices {
		account, whose, is := st.ID.cause(), st.ID&ownerMask, true
		if topicOf(account) == topicArrival {
			account, is = to(account)
		}
		if a := topicOf(st.ID); is && (a == topicArrival || a == topicReader && whose != ownerMask) {
			var who StreamID
			who, is = to(topicArrival + whose)
			whose = who & ownerMask
		}
		if is {
			all = append(all, Stream{(topicOf(st.ID) | whose).withCause(account), st.Log})
		}
	}
	return all
}

// minimizeStreams makes chunks of each stream benign, or leaves them out; then it makes
// what has to stay as small as it can be.
func (s *shrinker) minimizeStreams() {
	ids := slices.Clone(s.best.Choices)
	slices.SortFunc(ids, func(a, b Stream) int { return cmp.Compare(len(b.Log), len(a.Log)) })
	for _, st := range ids {
		for size := len(st.Log); size > 0 && !s.exhausted(); size /= 2 {
			for at := 0; at < len(s.choicesOf(st.ID)); {
				if s.zeroChunk(st.ID, at, size) || !s.dropChunk(st.ID, at, size) {
					at += size
				}
			}
		}
	}
	for _, st := range ids {
		for at := 0; at < len(s.choicesOf(st.ID)) && !s.exhausted(); at++ {
			s.minimizeChoice(st.ID, at)
			s.dropElement(st.ID, at)
		}
	}
}

func (s *shrinker) choicesOf(id StreamID) []uint32 {
	for _, st := range s.best.Choices {
		if st.ID == id {
			return st.Log
		}
	}
	return nil
}

// tryChanged tries a stream as change makes it.
func (s *shrinker) tryChanged(id StreamID, change func(log []uint32) []uint32) bool {
	all := slices.Clone(s.best.Choices)
	for i := range all {
		if all[i].ID == id {
			all[i].Log = change(slices.Clone(all[i].Log))
		}
	}
	return s.try(all)
}

func (s *shrinker) zeroChunk(id StreamID, at, size int) bool {
	log := s.choicesOf(id)
	end := min(at+size, len(log))
	if !slices.ContainsFunc(log[at:end], func(v uint32) bool { return v != 0 }) {
		return false
	}
	return s.tryChanged(id, func(log []uint32) []uint32 { clear(log[at:end]); return log })
}

func (s *shrinker) dropChunk(id StreamID, at, size int) bool {
	end := min(at+size, len(s.choicesOf(id)))
	return s.tryChanged(id, func(log []uint32) []uint32 { return slices.Delete(log, at, end) })
}

// minimizeChoice makes a choice smaller: to its half for as long as it goes, then by ever
// less than that, then to the least of a few.
func (s *shrinker) minimizeChoice(id StreamID, at int) {
	to := func(v uint32) bool {
		return at < len(s.choicesOf(id)) && s.tryChanged(id, func(log []uint32) []uint32 { log[at] = v; return log })
	}
	now := func() uint32 {
		if log := s.choicesOf(id); at < len(log) {
			return log[at]
		}
		return 0
	}
	minimizeValue(now, func(v uint32) bool { return !s.exhausted() && to(v) })
}

// minimizeValue tries ever smaller values: of what is tried, and goes, now is the last.
func minimizeValue(now func() uint32, to func(uint32) bool) {
	for v := now() / 2; v > 0 && to(v); v = now() / 2 {
	}
	for by := now() / 4; by > 0; {
		if by >= now() || !to(now()-by) {
			by /= 2
		}
	}
	for v := uint32(1); v < min(now(), linearSearchBelow); v++ {
		to(v)
	}
}

// linearSearchBelow choices are tried one by one.
const linearSearchBelow = 8

// dropElement leaves out one of several things that were drawn one after the other: how
// many there are is one less then, and what was drawn for it is not there.
func (s *shrinker) dropElement(id StreamID, at int) {
	for size := 1; size <= elementChoicesMax; size++ {
		log := s.choicesOf(id)
		if at+1+size > len(log) {
			return
		}
		if log[at] > 0 {
			s.tryChanged(id, func(log []uint32) []uint32 { log[at]--; return slices.Delete(log, at+1, at+1+size) })
		} else if size > 1 {
			s.dropChunk(id, at, size)
		}
	}
}

// elementChoicesMax is of how many choices a thing may be that is left out as one.
const elementChoicesMax = 8
