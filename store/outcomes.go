// SPDX-License-Identifier: Apache-2.0

package store

import (
	"math/bits"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// A journal recognises repeated calls by these items, each of which it retains until the
// time in the item's field Until:
//
//   - outcomes of calls
//   - tombstones of calls cancelled before arrival
//
// A complete outcome includes the reply. Eviction replaces it by a reference to its log
// entry. A repeat is then still recognised, and the reply is read from that entry.

// EvictedOutcome is a reference to an outcome in the log.
type EvictedOutcome struct {
	Call        actor.CallID
	N           uint64 // number of the entry with the outcome
	Until       actor.Time
	Idempotency *actor.Idempotency // idempotency key of the call; nil if it had none
}

func (e *Ended) evicted() EvictedOutcome {
	a := EvictedOutcome{Call: e.Call, N: e.n, Until: e.Until}
	if !e.Idempotency.IsZero() {
		key := e.Idempotency
		a.Idempotency = &key
	}
	return a
}

// key returns the idempotency key of the outcome's call, or zero if the call had none.
func (a *EvictedOutcome) key() actor.Idempotency {
	if a.Idempotency == nil {
		return actor.Idempotency{}
	}
	return *a.Idempotency
}

// outcomeOverhead is the approximate memory in bytes of an outcome without content.
const outcomeOverhead = 400

// memorySize returns the approximate memory in bytes of a complete outcome.
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

// OutcomeBytes returns the approximate memory in bytes of the complete outcomes.
func (j *Journal) OutcomeBytes() int { return j.outcomeBytes }

// addOutcome retains the outcome of the next entry.
func (j *Journal) addOutcome(e Ended) {
	e.n = j.N + 1
	j.outcomeBytes += e.memorySize()
	j.Ended = append(j.Ended, e)
}

// EvictOutcome replaces the oldest complete outcome by a reference. It reports whether
// an outcome was replaced.
func (j *Journal) EvictOutcome() bool {
	if len(j.Ended) == 0 {
		return false
	}
	j.Evicted = append(j.Evicted, j.Ended[0].evicted())
	j.dropFirstEnded()
	return true
}

// dropFirstEnded removes the oldest complete outcome.
func (j *Journal) dropFirstEnded() {
	j.outcomeBytes -= j.Ended[0].memorySize()
	j.Ended[0] = Ended{}
	if j.Ended = j.Ended[1:]; len(j.Ended) == 0 {
		j.Ended = nil
	}
}

// indexMin is the maximum number of outcomes and tombstones that are searched without
// an index. Most of the many actors retain few items, so the bound saves the memory of
// their indexes.
const indexMin = 16

// outcomeIndex indexes Evicted, Ended and Buried. It is built and updated on lookup.
type outcomeIndex struct {
	calls                map[actor.CallID]int // ordinal of the first outcome with this call, counted since the index was created
	keys                 map[actor.Idempotency]int
	buried               map[actor.CallID]bool
	outcomes, tombstones int  // number of indexed items of Evicted and Ended, and of Buried
	forgotten            int  // number of outcomes dropped since the index was created: the ordinal of the first retained one
	duplicates           bool // whether a call or key occurs more than once; if so, dropping an outcome discards the index
}

// outcomeCount returns the number of retained outcomes.
func (j *Journal) outcomeCount() int { return len(j.Evicted) + len(j.Ended) }

// outcome returns the i-th retained outcome. An evicted outcome is the first result, a
// complete outcome the second. The other result is nil.
func (j *Journal) outcome(i int) (*EvictedOutcome, *Ended) {
	if i < len(j.Evicted) {
		return &j.Evicted[i], nil
	}
	return nil, &j.Ended[i-len(j.Evicted)]
}

// outcomeKey returns the call, the idempotency key and the expiry of the i-th outcome.
func (j *Journal) outcomeKey(i int) (actor.CallID, actor.Idempotency, actor.Time) {
	evicted, ended := j.outcome(i)
	if ended != nil {
		return ended.Call, ended.Idempotency, ended.Until
	}
	return evicted.Call, evicted.key(), evicted.Until
}

// findOutcome returns the position of the first outcome that matches. Without an index
// it calls the callback match for each outcome. With an index it calls the callback
// lookup instead.
func (j *Journal) findOutcome(match func(actor.CallID, actor.Idempotency) bool, lookup func(*outcomeIndex) (int, bool)) (int, bool) {
	if !j.unindexed() {
		i, ok := lookup(j.updateIndex())
		return i - j.index.forgotten, ok
	}
	for i := range j.outcomeCount() {
		if call, key, _ := j.outcomeKey(i); match(call, key) {
			return i, true
		}
	}
	return 0, false
}

// Outcome returns the retained outcome of a call. If it is evicted, the reply is nil
// and the entry number is set. A complete outcome whose entry is unknown has number 0.
// Without an outcome, the reply is nil and the number is 0.
func (j *Journal) Outcome(id actor.CallID) (*actor.Reply, uint64) {
	i, ok := j.findOutcome(func(call actor.CallID, _ actor.Idempotency) bool { return call == id },
		func(x *outcomeIndex) (int, bool) { i, ok := x.calls[id]; return i, ok })
	if !ok {
		return nil, 0
	}
	evicted, ended := j.outcome(i)
	if ended != nil {
		return &ended.Reply, ended.n
	}
	return nil, evicted.N
}

// HasEnded reports whether an outcome of the call is retained.
func (j *Journal) HasEnded(id actor.CallID) bool {
	reply, n := j.Outcome(id)
	return reply != nil || n > 0
}

// IsBuried reports whether the journal has a tombstone of the call: the call was
// cancelled before it arrived.
func (j *Journal) IsBuried(id actor.CallID) bool {
	if j.unindexed() {
		return slices.ContainsFunc(j.Buried, func(b Buried) bool { return b.Call == id })
	}
	return j.updateIndex().buried[id]
}

// unindexed reports whether lookups scan the retained items, because at most indexMin
// are retained.
func (j *Journal) unindexed() bool { return j.outcomeCount()+len(j.Buried) <= indexMin }

// updateIndex indexes the items added since the last call and returns the index. The
// first of several items with the same call or key takes precedence.
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

// FindByKey returns the call with an idempotency key, and the hash of its body. It
// searches the open runs, the messages that added open asks, and the retained outcomes.
func (j *Journal) FindByKey(key actor.Idempotency) (call actor.CallID, body actor.Hash, ok bool) {
	if key.IsZero() {
		return actor.CallID{}, actor.Hash{}, false
	}
	for _, r := range j.Runs {
		if r.Call.Idempotency.Same(key) {
			return r.Call.ID, r.Call.Idempotency.Body, true
		}
		asks := r.Last()
		for i := range asks {
			if a := &asks[i]; a.Added && a.Open() && a.CallbackKey.Same(key) {
				return a.Callback, a.CallbackKey.Body, true
			}
		}
	}
	i, ok := j.findOutcome(func(_ actor.CallID, found actor.Idempotency) bool { return found.Same(key) },
		func(x *outcomeIndex) (int, bool) { i, ok := x.keys[withoutBody(key)]; return i, ok })
	if !ok {
		return actor.CallID{}, actor.Hash{}, false
	}
	call, found, _ := j.outcomeKey(i)
	return call, found.Body, true
}

// withoutBody returns the key with a zero body hash, for comparison.
func withoutBody(key actor.Idempotency) actor.Idempotency {
	key.Body = actor.Hash{}
	return key
}

// RetainsOutcomes reports whether the journal retains an outcome for duplicates.
func (j *Journal) RetainsOutcomes(now actor.Time) bool {
	return slices.ContainsFunc(j.Evicted, func(e EvictedOutcome) bool { return e.Until >= now }) ||
		slices.ContainsFunc(j.Ended, func(e Ended) bool { return e.Until >= now })
}

// expireOutcomes drops expired outcomes and tombstones. Every call drops the expired
// items at the front. An expired item may follow an item that expires later. Therefore
// about every n-th call scans all n retained items. The amortised cost per call is
// constant.
func (j *Journal) expireOutcomes(now actor.Time) {
	for j.outcomeCount() > 0 && j.firstExpired(now) {
		j.dropFirstOutcome()
	}
	for len(j.Buried) > 0 && j.Buried[0].Until < now {
		j.dropFirstTombstone()
	}
	outcomes, buried := j.outcomeCount(), len(j.Buried)
	if j.N%(1<<bits.Len(uint(outcomes+buried))) != 0 {
		return // an index that has become unnecessary is discarded in the next full pass
	}
	j.Evicted = slices.DeleteFunc(j.Evicted, func(a EvictedOutcome) bool { return a.Until < now })
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

// firstExpired reports whether the first outcome has expired.
func (j *Journal) firstExpired(now actor.Time) bool {
	_, _, until := j.outcomeKey(0)
	return until < now
}

// dropFirstOutcome removes the first outcome, also from the index.
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
	if len(j.Evicted) == 0 {
		j.dropFirstEnded()
		return
	}
	j.Evicted[0] = EvictedOutcome{}
	j.Evicted = j.Evicted[1:]
}

// TrimOutcomes drops the oldest outcomes while the complete outcomes together exceed
// maxBytes. It always keeps the newest outcome. Only volatile actors use it: their
// outcomes are in no log and therefore cannot be evicted.
func (j *Journal) TrimOutcomes(maxBytes int) {
	for j.outcomeBytes > maxBytes && len(j.Ended) > 1 {
		j.dropFirstOutcome()
	}
}

// dropFirstTombstone removes the first tombstone, also from the index.
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
