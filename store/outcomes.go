// SPDX-License-Identifier: Apache-2.0

package store

import (
	"math/bits"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// What a journal remembers for repeats: the outcomes of calls until an instant,
// and the calls that were cancelled before they came. An outcome is there whole
// until it is put away; from then on a repeat can be recognised, and what it is
// told is read again from the entry that says it.

// Away is an outcome without what it says.
type Away struct {
	Call    actor.CallID
	N       uint64 // of the entry that says it
	Until   actor.Time
	Promise *actor.Idempotency // nil: it came without a key
}

func (e *Ended) evicted() Away {
	a := Away{Call: e.Call, N: e.n, Until: e.Until}
	if !e.Idempotency.IsZero() {
		key := e.Idempotency
		a.Promise = &key
	}
	return a
}

// key is what the outcome's call promised.
func (a *Away) key() actor.Idempotency {
	if a.Promise == nil {
		return actor.Idempotency{}
	}
	return *a.Promise
}

// outcomeOverhead is about what an outcome takes up that says nothing.
const outcomeOverhead = 400

// memorySize is about what an outcome takes up in memory.
func (e *Ended) memorySize() int {
	n := outcomeOverhead + actor.SizeOf(e.Reply.Parts)
	for _, w := range e.Reply.Warnings {
		n += len(w)
	}
	if r := e.Reply.Refusal; r != nil {
		n += outcomeOverhead + len(r.Detail)
	}
	return n
}

// Held is about what the outcomes that are whole take up in memory.
func (j *Journal) Held() int { return j.outcomeBytes }

// addOutcome adds the outcome that the next entry says.
func (j *Journal) addOutcome(e Ended) {
	e.n = j.N + 1
	j.outcomeBytes += e.memorySize()
	j.Ended = append(j.Ended, e)
}

// PutAway puts the first whole outcome away; false if there is none that can be.
// Where it stands in the log is not known of one that a snapshot of an earlier
// version holds: it stays until its time is over.
func (j *Journal) PutAway() bool {
	if len(j.Ended) == 0 || j.Ended[0].n == 0 {
		return false
	}
	j.Away = append(j.Away, j.Ended[0].evicted())
	j.dropFirstEnded()
	return true
}

// dropFirstEnded takes the first whole outcome out.
func (j *Journal) dropFirstEnded() {
	j.outcomeBytes -= j.Ended[0].memorySize()
	j.Ended[0] = Ended{}
	if j.Ended = j.Ended[1:]; len(j.Ended) == 0 {
		j.Ended = nil
	}
}

// indexMin is how much is remembered before it is worth an index: most actors
// remember little, and there are many of them.
const indexMin = 16

// outcomeIndex finds what is remembered; it is made of Away, Ended and Buried when it is asked.
type outcomeIndex struct {
	calls                map[actor.CallID]int // which outcome it is, of all there were since the index began
	keys                 map[actor.Idempotency]int
	buried               map[actor.CallID]bool
	outcomes, tombstones int  // how many of each are in it
	forgotten            int  // outcomes forgotten since it began: where Away begins
	duplicates           bool // some name stands in it twice
}

// outcomeCount is how many there are, put away or whole.
func (j *Journal) outcomeCount() int { return len(j.Away) + len(j.Ended) }

// outcome is the one at a place, put away or whole.
func (j *Journal) outcome(i int) (*Away, *Ended) {
	if i < len(j.Away) {
		return &j.Away[i], nil
	}
	return nil, &j.Ended[i-len(j.Away)]
}

// outcomeKey is by what an outcome is found: its call, and the key that came with it.
func (j *Journal) outcomeKey(i int) (actor.CallID, actor.Idempotency, actor.Time) {
	away, whole := j.outcome(i)
	if whole != nil {
		return whole.Call, whole.Idempotency, whole.Until
	}
	return away.Call, away.key(), away.Until
}

// findOutcome is the place of the first outcome of a name; false if there is none.
func (j *Journal) findOutcome(is func(actor.CallID, actor.Idempotency) bool, in func(*outcomeIndex) (int, bool)) (int, bool) {
	if !j.unindexed() {
		i, ok := in(j.updateIndex())
		return i - j.index.forgotten, ok
	}
	for i := range j.outcomeCount() {
		if call, key, _ := j.outcomeKey(i); is(call, key) {
			return i, true
		}
	}
	return 0, false
}

// Outcome finds a remembered outcome: what it says, or, if it was put away, the
// number of the entry that says it; nil and 0 if there is none.
func (j *Journal) Outcome(id actor.CallID) (*actor.Reply, uint64) {
	i, ok := j.findOutcome(func(call actor.CallID, _ actor.Idempotency) bool { return call == id },
		func(x *outcomeIndex) (int, bool) { i, ok := x.calls[id]; return i, ok })
	if !ok {
		return nil, 0
	}
	away, whole := j.outcome(i)
	if whole != nil {
		return &whole.Reply, whole.n
	}
	return nil, away.N
}

// HasEnded tells whether an outcome of the call is remembered.
func (j *Journal) HasEnded(id actor.CallID) bool {
	reply, n := j.Outcome(id)
	return reply != nil || n > 0
}

// IsBuried tells whether the call was cancelled before it came.
func (j *Journal) IsBuried(id actor.CallID) bool {
	if j.unindexed() {
		return slices.ContainsFunc(j.Buried, func(b Buried) bool { return b.Call == id })
	}
	return j.updateIndex().buried[id]
}

// unindexed tells whether what is remembered is looked through, without an index.
func (j *Journal) unindexed() bool { return j.outcomeCount()+len(j.Buried) <= indexMin }

// updateIndex brings the index up to date. Of two of a name the first counts.
func (j *Journal) updateIndex() *outcomeIndex {
	if j.index == nil {
		j.index = &outcomeIndex{calls: map[actor.CallID]int{}, keys: map[actor.Idempotency]int{}, buried: map[actor.CallID]bool{}}
	}
	x := j.index
	for ; x.outcomes < j.outcomeCount(); x.outcomes++ {
		call, key, _ := j.outcomeKey(x.outcomes)
		if _, ok := x.calls[call]; ok {
			x.duplicates = true
		} else {
			x.calls[call] = x.forgotten + x.outcomes
		}
		if key = withoutBody(key); !key.IsZero() {
			if _, ok := x.keys[key]; ok {
				x.duplicates = true
			} else {
				x.keys[key] = x.forgotten + x.outcomes
			}
		}
	}
	for ; x.tombstones < len(j.Buried); x.tombstones++ {
		call := j.Buried[x.tombstones].Call
		x.duplicates = x.duplicates || x.buried[call]
		x.buried[call] = true
	}
	return x
}

// Promise finds the call that has the same idempotency key: an open run's, the
// message that added an open call, or a remembered one's; and the body it came with.
func (j *Journal) Promise(key actor.Idempotency) (call actor.CallID, body actor.Hash, ok bool) {
	if key.IsZero() {
		return actor.CallID{}, actor.Hash{}, false
	}
	for _, r := range j.Runs {
		if r.Call.Idempotency.Same(key) {
			return r.Call.ID, r.Call.Idempotency.Body, true
		}
		for i := range r.Last() {
			if a := &r.Last()[i]; a.Added && a.Open() && a.Promise.Same(key) {
				return a.For, a.Promise.Body, true
			}
		}
	}
	i, ok := j.findOutcome(func(_ actor.CallID, promised actor.Idempotency) bool { return promised.Same(key) },
		func(x *outcomeIndex) (int, bool) { i, ok := x.keys[withoutBody(key)]; return i, ok })
	if !ok {
		return actor.CallID{}, actor.Hash{}, false
	}
	call, promised, _ := j.outcomeKey(i)
	return call, promised.Body, true
}

// withoutBody is the key without what came with it.
func withoutBody(key actor.Idempotency) actor.Idempotency {
	key.Body = actor.Hash{}
	return key
}

// expireOutcomes drops what no repeat can ask for any more: with every record what stands
// first, and with one record of about as many as are remembered what stands behind
// something that stays longer. So what it costs does not grow.
func (j *Journal) expireOutcomes(now actor.Time) {
	for j.outcomeCount() > 0 && j.firstExpired(now) {
		j.dropFirstOutcome()
	}
	for len(j.Buried) > 0 && j.Buried[0].Until < now {
		j.dropFirstTombstone()
	}
	outcomes, buried := j.outcomeCount(), len(j.Buried)
	if j.N%(1<<bits.Len(uint(outcomes+buried))) != 0 {
		return // which leaves an index of little for a while
	}
	j.Away = slices.DeleteFunc(j.Away, func(a Away) bool { return a.Until < now })
	j.Ended = slices.DeleteFunc(j.Ended, func(e Ended) bool {
		if e.Until < now {
			j.outcomeBytes -= e.memorySize()
		}
		return e.Until < now
	})
	j.Buried = slices.DeleteFunc(j.Buried, func(b Buried) bool { return b.Until < now })
	if j.outcomeCount() < outcomes || len(j.Buried) < buried {
		j.index = nil
	}
	if j.unindexed() {
		j.index = nil
	}
}

// firstExpired tells whether nobody can ask for the first outcome any more.
func (j *Journal) firstExpired(now actor.Time) bool {
	_, _, until := j.outcomeKey(0)
	return until < now
}

// dropFirstOutcome drops the first outcome.
func (j *Journal) dropFirstOutcome() {
	switch x := j.index; {
	case x == nil:
	case x.duplicates:
		j.index = nil
	case x.outcomes > 0:
		call, key, _ := j.outcomeKey(0)
		delete(x.calls, call)
		delete(x.keys, withoutBody(key))
		x.forgotten++
		x.outcomes--
	}
	if len(j.Away) == 0 {
		j.dropFirstEnded()
		return
	}
	j.Away[0] = Away{}
	j.Away = j.Away[1:]
}

// Shorten forgets the first outcomes while all of them weigh more than so much. It
// is for who has no log to read them from again; the last one stays.
func (j *Journal) Shorten(most int) {
	for j.outcomeBytes > most && len(j.Ended) > 1 {
		j.dropFirstOutcome()
	}
}

// dropFirstTombstone drops the first tombstone.
func (j *Journal) dropFirstTombstone() {
	switch x := j.index; {
	case x == nil:
	case x.duplicates:
		j.index = nil
	case x.tombstones > 0:
		delete(x.buried, j.Buried[0].Call)
		x.tombstones--
	}
	j.Buried = j.Buried[1:]
}
