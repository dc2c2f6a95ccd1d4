// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"cmp"
	"math"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// Bounds of a search.
const (
	HitsMax       = 50
	HitsDefault   = 10
	QueryBytesMax = 1 << 10
	queryWordsMax = 16 // words of a query that are searched: the rarest ones
	nearMax       = 5
	nearAtLeast   = 0.6    // share of common words
	nearFactsMax  = 20_000 // facts with a common word that are compared, each counted for each such word
	nearRanked    = 50     // facts of which the shares are computed: those that score best
)

// Hit is a fact that a search has found.
type Hit struct {
	Entity string
	Fact   Fact
	Score  float64
}

// Search returns the facts that match words of the query best. Superseded ones are found on request
// only. Of equal ones the newest is first.
func (x *Index) Search(query string, past bool, limit int) []Hit {
	return x.rank(x.rarest(Words(query), queryWordsMax), past, cmp.Or(limit, HitsDefault))
}

// rarest returns at most n different words that occur, the rarest first.
func (x *Index) rarest(words []string, n int) []string {
	words = slices.Clone(words)
	slices.Sort(words)
	words = slices.DeleteFunc(slices.Compact(words), func(w string) bool { return len(x.postings[w]) == 0 })
	slices.SortStableFunc(words, func(a, b string) int { return len(x.postings[a]) - len(x.postings[b]) })
	return words[:min(n, len(words))]
}

// rank scores documents by BM25 with its usual parameters.
func (x *Index) rank(words []string, past bool, limit int) []Hit {
	const k1, b = 1.2, 0.75
	if x.live == 0 || len(words) == 0 {
		return nil
	}
	mean := float64(x.length) / float64(x.live)
	scores := make([]float32, len(x.docs))
	var found []uint32
	for _, word := range words {
		list := x.postings[word]
		idf := math.Log(1 + (float64(x.live)-float64(len(list))+0.5)/(float64(len(list))+0.5))
		for _, p := range list {
			d := &x.docs[p.doc]
			if d.past && !past {
				continue
			}
			if scores[p.doc] == 0 {
				found = append(found, p.doc)
			}
			tf := float64(p.times)
			scores[p.doc] += float32(idf * tf * (k1 + 1) / (tf + k1*(1-b+b*float64(d.words)/mean)))
		}
	}
	best := topOf(found, limit, func(p, q uint32) int {
		if c := cmp.Compare(scores[q], scores[p]); c != 0 { // of nearly all: the facts themselves are elsewhere in memory
			return c
		}
		e, f := &x.docs[p], &x.docs[q]
		return cmp.Or(cmp.Compare(f.entity.Facts[f.fact].From, e.entity.Facts[e.fact].From), cmp.Compare(q, p))
	})
	var hits []Hit
	for _, id := range best {
		d := &x.docs[id]
		hits = append(hits, Hit{d.entity.Name, d.entity.Facts[d.fact], float64(scores[id])})
	}
	return hits
}

// topOf returns the first n elements in an order, sorted.
func topOf(all []uint32, n int, compare func(a, b uint32) int) []uint32 {
	var top []uint32
	for _, id := range all {
		if len(top) == n && compare(id, top[n-1]) >= 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(top, id, compare)
		top = slices.Insert(top, at, id)
		top = top[:min(n, len(top))]
	}
	return top
}

// Near is a fact that says nearly the same as another text.
type Near struct {
	Entity  string  `json:"entity"`
	Fact    string  `json:"fact"`
	Content string  `json:"content"`
	Share   float64 `json:"share"` // of common words, up to 1
}

// compared returns the words by which facts are compared with a text: the rarest ones, until too many facts have them.
func (x *Index) compared(words []string) []string {
	known := x.rarest(words, len(words))
	for i, facts := 0, 0; i < len(known); i++ {
		if facts += len(x.postings[known[i]]); facts > nearFactsMax {
			return known[:i]
		}
	}
	return known
}

// Near returns valid facts that say nearly the same as a change, the most similar first. The fact of
// the change itself is not among them.
func (x *Index) Near(c *Change) []Near {
	words := Words(c.Content)
	own, id := Key(c.Entity), FactID(c.Content)
	slices.Sort(words)
	words = slices.Compact(words)
	var all []Near
	for _, hit := range x.rank(x.compared(words), false, nearRanked) {
		if hit.Fact.ID == id && Key(hit.Entity) == own {
			continue
		}
		other := Words(hit.Fact.Content)
		slices.Sort(other)
		if s := share(words, slices.Compact(other)); s >= nearAtLeast {
			all = append(all, Near{hit.Entity, hit.Fact.ID, hit.Fact.Content, math.Round(s*100) / 100})
		}
	}
	slices.SortStableFunc(all, func(a, b Near) int { return cmp.Compare(b.Share, a.Share) })
	return all[:min(nearMax, len(all))]
}

// share returns the number of common elements of two sorted sets, relative to that of all.
func share(a, b []string) float64 {
	common := 0
	for _, w := range a {
		if _, ok := slices.BinarySearch(b, w); ok {
			common++
		}
	}
	if all := len(a) + len(b) - common; all > 0 {
		return float64(common) / float64(all)
	}
	return 0
}

// Entity returns an entity with all its facts and its relations, or a refusal.
func (x *Index) Entity(name string) (e Entity, relations []Reached, refusal *actor.Refusal) {
	in := x.entities[Key(name)]
	if in == nil {
		return e, nil, NotFound(name)
	}
	reached, _ := x.step(in, "")
	for i := range reached {
		reached[i].Depth = 1
	}
	return in.Entity, reached, nil
}
