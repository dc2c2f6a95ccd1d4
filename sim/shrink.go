// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"hash/maphash"
	"slices"
	"time"
)

// budget limits a shrink: the total number of steps of all its runs, and its time.
type budget struct {
	steps int
	time  time.Duration
}

var defaultBudget = budget{steps: 1_200_000, time: 45 * time.Second}

// runOverheadSteps is the fixed cost of a run, expressed in steps.
const runOverheadSteps = 50

// Shrink searches for the shortest run that violates the same spec. The benign choice
// is always 0, so the choices that remain nonzero are relevant to the failure. Shrink
// makes these passes, in this order:
//
//   - Drop causes: all but the last arrivals, then some of the arrivals, fault rounds
//     and registry operations.
//   - Zero whole topics: the arrivals, each kind of fault, each part of the plan, the
//     order of events in a cell, a link or a disk.
//   - Zero or delete chunks of choices, in decreasing sizes, and then minimize the
//     values that have to stay.
//
// The passes rarely shrink a failure that depends on a race, because every deletion
// changes the time of all later events. If the run stays long, Shrink searches for a
// shorter failure with other random choices, under the same plan or the benign plan.
//
// Shrink repeats these passes until none makes progress, or the budget is spent.
func Shrink(o Options, r Result) Result { return newShrink(o, r).run() }

func newShrink(o Options, r Result) *shrinker {
	steps, duration := cmp.Or(o.shrink.steps, defaultBudget.steps), cmp.Or(o.shrink.time, defaultBudget.time)
	return &shrinker{options: o, spec: r.Violation.Spec, original: r, best: r, stepsLeft: steps, deadline: time.Now().Add(duration),
		slack: r.Stats.Steps / 50, rejected: map[uint64]bool{}, hashSeed: maphash.MakeSeed()}
}

func (s *shrinker) run() Result {
	s.try(s.best.Choices) // drops choices that were never requested
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
	stepsLeft int // remaining steps of the budget
	deadline  time.Time
	slack     int             // extra steps allowed to a candidate with fewer nonzero choices
	rejected  map[uint64]bool // hashes of candidates that were rejected
	hashSeed  maphash.Seed
	redraws   uint64
}

// runSize is the measure that a shrink minimizes, in the order of its fields: steps,
// number of nonzero choices, their sum, number of choices, and time of the violation.
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

// try runs the choices. If the run violates the same spec and is smaller, try accepts the
// choices, without those that the run did not use. It reports whether it accepted the
// choices.
func (s *shrinker) try(choices Choices) bool {
	id := s.hashChoices(choices)
	if s.exhausted() || s.rejected[id] {
		return false
	}
	c := NewReplayedEntropy(choices)
	if r, same := s.runCandidate(c, s.best.Stats.Steps+s.slack+1); same {
		r.Choices = c.trimmed(choices)
		size, best := sizeOfRun(&r), s.bestSize()
		if size.compare(best) < 0 || size.steps <= best.steps+s.slack && size.nonzero < best.nonzero {
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

// runCandidate runs a simulation with the given entropy, for at most stepsMax steps.
// It also reports whether the run violates the same spec.
func (s *shrinker) runCandidate(c Entropy, stepsMax int) (r Result, same bool) {
	o := s.options.quiet(s.spec)
	o.Entropy = c
	if o.StepsMax = stepsMax; o.Plain && !o.Long {
		o.StepsMax = min(stepsMax, plainSteps)
	}
	r = RunSeed(o)
	s.stepsLeft -= r.Stats.Steps + runOverheadSteps
	return r, r.Violation != nil && r.Violation.Spec == s.spec
}

// quiet returns the options of runs that only reveal whether a spec is violated.
func (o Options) quiet(spec string) Options {
	o.Events, o.Columns, o.Page, o.Trace = nil, nil, nil, nil
	o.Unhashed = spec != NobodyAstray // the check for secrets reads the log, so it must be written
	return o
}

// rerunBest repeats the best run with its log, which candidates omit. If the run no
// longer violates the spec, the original result is returned.
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

// dropCauses removes clients, fault injections and registry operations together with
// the choices they caused. The rest keeps its timing, because a dropped arrival still
// takes the same time. At first it keeps only the last causes and tries three sets of
// other choices:
//
//   - none, so the simulation is benign
//   - the original plan
//   - all
//
// Long-running failures usually become short here, which makes later passes cheap.
func (s *shrinker) dropCauses() {
	all := s.best.Choices
	idle := func(st Stream) bool { return st.ID == planRegistry || st.ID == planLength && s.options.Long }
	for _, omit := range [...]func(Stream) bool{
		func(st Stream) bool { return st.ID.cause() == 0 },
		func(st Stream) bool { return st.ID.cause() == 0 && topicOf(st.ID) != topicPlan || idle(st) },
		idle,
	} {
		rest := slices.DeleteFunc(slices.Clone(all), omit)
		causes := causesIn(rest)
		for last := 1; last < len(causes); last *= 2 {
			if s.try(s.withoutCauses(rest, causes[:len(causes)-last])) {
				break
			}
		}
		if len(s.best.Choices) < len(all)/2 {
			break
		}
	}
	if s.options.Long {
		s.dropCauseChunks(1)
	} else {
		s.dropCauseChunks(8) // redrawing finds a shorter run sooner than dropping single causes
	}
}

// dropCauseChunks drops causes of each kind in chunks of decreasing size. The
// parameter least is the minimum size of a chunk.
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

// causesIn returns the causes of the choices, approximately in the order of time. A
// cause that only determined the time of the next arrival is omitted.
func causesIn(choices Choices) (all []StreamID) {
	last := map[StreamID]StreamID{}
	seen := map[StreamID]bool{}
	for _, st := range choices {
		id := st.ID.cause()
		if id == 0 || seen[id] || st.ID == id.withCause(id) && topicOf(id) == topicArrival && len(st.Log) <= arrivalGapChoices ||
			topicOf(st.ID) == topicRegistry && st.Log[0] == 0 {
			continue
		}
		seen[id] = true
		last[topicOf(id)] = max(last[topicOf(id)], id&ownerMask)
		all = append(all, id)
	}
	when := func(id StreamID) float64 { return float64(id&ownerMask) / float64(last[topicOf(id)]+1) }
	slices.SortFunc(all, func(a, b StreamID) int { return cmp.Or(cmp.Compare(when(a), when(b)), cmp.Compare(a, b)) })
	return all
}

// arrivalGapChoices is the number of leading choices in an arrival stream that
// determine the time until the next arrival: the pace, in long runs only, and the gap.
const arrivalGapChoices = 2

// withoutCauses removes the choices that the given causes led to, and returns the rest. It
// keeps the choices that determine when the next cause occurs.
func (s *shrinker) withoutCauses(choices Choices, causes []StreamID) (rest Choices) {
	out := make(map[StreamID]bool, len(causes))
	for _, id := range causes {
		out[id] = true
	}
	gap := arrivalGapChoices
	if !s.options.Long {
		gap-- // only long runs draw a pace
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

// A run of at most shortRunSteps needs no redrawing. Each redrawChoices call may use
// 1/redrawBudgetDivisor of the remaining budget.
const (
	shortRunSteps       = 60
	redrawBudgetDivisor = 4
)

// redrawChoices searches for a shorter failure with redrawn choices. It cycles through
// four sets of choices to keep:
//
//   - the plan
//   - the plan and the arrivals
//   - nothing
//   - the plan, the arrivals and the faults
func (s *shrinker) redrawChoices() bool {
	steps := s.best.Stats.Steps
	stepsMin, deadline := s.stepsLeft-s.stepsLeft/redrawBudgetDivisor, time.Now().Add(time.Until(s.deadline)/redrawBudgetDivisor)
	for ; steps > shortRunSteps && s.stepsLeft > stepsMin && time.Now().Before(deadline); s.redraws++ {
		isKept := [...]func(topic StreamID) bool{
			func(topic StreamID) bool { return topic == topicPlan },
			func(topic StreamID) bool { return topic == topicPlan || topic == topicArrival },
			func(StreamID) bool { return false },
			func(topic StreamID) bool { return topic == topicPlan || topic == topicArrival || topic == topicFault },
		}[s.redraws%4]
		kept := slices.DeleteFunc(slices.Clone(s.best.Choices), func(st Stream) bool { return !isKept(topicOf(st.ID)) })
		c := &partlyRedrawn{isKept: func(topic StreamID) bool { return isKept(topic) || topic == topicPlan }, kept: NewReplayedEntropy(kept), fresh: NewSeededEntropy(mix(s.options.Seed, s.redraws))}
		if r, violates := s.runCandidate(c, steps*3/4); violates {
			fresh := slices.DeleteFunc(c.fresh.Choices(), func(st Stream) bool { return c.isKept(topicOf(st.ID)) })
			r.Choices = append(kept, fresh...)
			s.accept(r)
			s.try(r.Choices)
			return true
		}
	}
	return false
}

// partlyRedrawn replays the streams of some topics and draws all others again.
type partlyRedrawn struct {
	Entropy
	isKept func(about StreamID) bool
	kept   *ReplayedEntropy
	fresh  *SeededEntropy
}

// SetStream implements Entropy.
func (r *partlyRedrawn) SetStream(to StreamID) {
	if r.Entropy = r.fresh; r.isKept(topicOf(to)) {
		r.Entropy = r.kept
	}
	r.Entropy.SetStream(to)
}

func topicOf(id StreamID) StreamID { return id & topicMask }

// zeroTopics zeroes whole topics, or as many streams of each as possible. Arrivals
// come first, because they cause most of the other choices.
func (s *shrinker) zeroTopics() {
	for i := range topicNames {
		topic := StreamID(i) << 24
		switch {
		case i == 0:
			topic = topicArrival
		case topic == topicArrival:
			topic = topicPlan
		}
		if !s.zeroStreams(func(id StreamID) bool { return topicOf(id) == topic }) {
			s.zeroTopicStreams(topic)
		}
	}
}

// zeroStreams tries to zero the selected streams, and reports whether it did.
func (s *shrinker) zeroStreams(selected func(StreamID) bool) bool {
	rest := slices.DeleteFunc(slices.Clone(s.best.Choices), func(st Stream) bool { return selected(st.ID) })
	return len(rest) < len(s.best.Choices) && s.try(rest)
}

// zeroTopicStreams zeroes the streams of a topic in chunks of decreasing size.
func (s *shrinker) zeroTopicStreams(topic StreamID) {
	for size := len(s.topicStreams(topic)) / 2; size > 0; size /= 2 {
		for at := 0; !s.exhausted(); {
			ids := s.topicStreams(topic)
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

// topicStreams returns the streams of a topic without their causes, sorted.
func (s *shrinker) topicStreams(topic StreamID) (ids []StreamID) {
	for _, st := range s.best.Choices {
		if topicOf(st.ID) == topic {
			ids = append(ids, st.ID.withCause(0))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// compactArrivals renumbers the remaining arrivals without gaps. If that run does not
// violate the spec, compactArrivals only removes the gap before the first arrival.
func (s *shrinker) compactArrivals() {
	var arrivals []StreamID
	for _, id := range causesIn(s.best.Choices) {
		if topicOf(id) == topicArrival {
			arrivals = append(arrivals, id)
		}
	}
	if len(arrivals) == 0 {
		return
	}
	if !s.try(s.renumberArrivals(func(id StreamID) (StreamID, bool) {
		i, found := slices.BinarySearch(arrivals, id)
		return topicArrival + StreamID(i), found
	})) {
		s.try(s.renumberArrivals(func(id StreamID) (StreamID, bool) { return id - arrivals[0] + topicArrival, id >= arrivals[0] }))
	}
}

// renumberArrivals returns the best choices with new arrival numbers. The callback
// returns the new number of an arrival, or false if the arrival is dropped.
func (s *shrinker) renumberArrivals(to func(StreamID) (StreamID, bool)) (all Choices) {
	for _, st := range s.best.Choices {
		cause, owner, ok := st.ID.cause(), st.ID&ownerMask, true
		if topicOf(cause) == topicArrival {
			cause, ok = to(cause)
		}
		if topic := topicOf(st.ID); ok && (topic == topicArrival || topic == topicReader && owner != ownerMask || topic == topicSocket) {
			var reader StreamID
			reader, ok = to(topicArrival + owner)
			owner = reader & ownerMask
		}
		if ok {
			all = append(all, Stream{(topicOf(st.ID) | owner).withCause(cause), st.Log})
		}
	}
	return all
}

// minimizeStreams zeroes or deletes chunks of each stream, and then minimizes the
// single choices that remain.
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

// tryChanged tries the best choices with one stream changed.
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

// minimizeChoice minimizes one choice: it halves the value while possible, then
// subtracts decreasing amounts, and finally tries the smallest values.
func (s *shrinker) minimizeChoice(id StreamID, at int) {
	set := func(v uint32) bool {
		return at < len(s.choicesOf(id)) && s.tryChanged(id, func(log []uint32) []uint32 { log[at] = v; return log })
	}
	get := func() uint32 {
		if log := s.choicesOf(id); at < len(log) {
			return log[at]
		}
		return 0
	}
	minimizeValue(get, func(v uint32) bool { return !s.exhausted() && set(v) })
}

// minimizeValue calls the function try with decreasing values. The function current MUST
// return the last accepted value.
func minimizeValue(current func() uint32, try func(uint32) bool) {
	for v := current() / 2; v > 0 && try(v); v = current() / 2 {
	}
	for by := current() / 4; by > 0; {
		if by >= current() || !try(current()-by) {
			by /= 2
		}
	}
	for v := uint32(1); v < min(current(), linearSearchBelow); v++ {
		try(v)
	}
}

// linearSearchBelow bounds the values that minimizeValue tries one by one.
const linearSearchBelow = 8

// dropElement tries to remove one element of a drawn sequence. It decrements the
// choice at the given index, which is presumably the length of the sequence. It then
// deletes up to elementChoicesMax of the choices that follow.
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

// elementChoicesMax is the maximum number of choices of a removed element.
const elementChoicesMax = 8
