// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// Index answers questions about one scope. It holds nothing that the state does not hold: what is
// forgotten leaves it with the change that forgets it.
type Index struct {
	position uint64
	entities map[string]*indexed // by Key
	names    []string            // folded name and Key of each entity, sorted; see nameKey
	docs     []doc               // one for each fact, in the order of their indexing; zero if removed
	live     int                 // docs that are not removed
	length   int                 // words of live docs
	postings map[string][]posting
	bytes    int // approximate size in memory
}

type indexed struct {
	Entity
	docs []uint32 // of its facts, in their order
}

// doc is one fact as it is searched: the words of its content, and those of the name of its entity.
type doc struct {
	entity *indexed
	fact   int
	words  int32
	past   bool     // the fact is superseded
	text   []string // its different words, sorted
}

type posting struct {
	doc   uint32
	times uint32 // occurrences of the word
}

// docOverhead is the approximate size of a fact in an Index beside its text.
const docOverhead = 400

// NewIndex returns the index of a state, whose items are sorted by name.
func NewIndex(items []actor.StateItem) (*Index, error) {
	x := &Index{entities: map[string]*indexed{}, postings: map[string][]posting{}, position: positionOf(items)}
	for _, item := range items {
		key, ok := strings.CutPrefix(item.Name, entityPrefix)
		if !ok {
			continue
		}
		e, err := decodeEntity(item.Value)
		if err != nil {
			return nil, fmt.Errorf("entity %s: %w", key, err)
		}
		x.add(key, e)
		x.names = append(x.names, nameKey(e.Name, key))
	}
	slices.Sort(x.names)
	return x, nil
}

// Position returns the number of changes that the index has seen.
func (x *Index) Position() uint64 { return x.position }

// Len returns the number of entities.
func (x *Index) Len() int { return len(x.entities) }

// Bytes returns the approximate size of the index in memory.
func (x *Index) Bytes() int { return x.bytes }

// Follow applies a change that the actor of the scope has accepted. It returns false if another change
// follows the position of the index, or if the actor gave another answer. The index MUST then be built again.
func (x *Index) Follow(operation string, c *Change, answer *Answer) bool {
	if answer.Position <= x.position {
		return true
	}
	if answer.Position != x.position+1 {
		return false
	}
	updates, own, refusal := Apply(operation, c, x.stateOf(c), answer.At)
	if refusal != nil || own.Status != answer.Status || len(updates) == 0 {
		return false
	}
	for _, item := range updates {
		key, ok := strings.CutPrefix(item.Name, entityPrefix)
		if !ok {
			continue
		}
		if former := x.entities[key]; former != nil {
			x.remove(key, former)
			x.rename(nameKey(former.Name, key), "")
		}
		if len(item.Value) == 0 {
			continue
		}
		e, err := decodeEntity(item.Value)
		if err != nil {
			return false
		}
		x.add(key, e)
		x.rename("", nameKey(e.Name, key))
	}
	x.position = answer.Position
	return true
}

// stateOf returns the part of the state on which a change depends, but for the tombstones: an answer of
// Forgotten that they cause changes nothing.
func (x *Index) stateOf(c *Change) []actor.StateItem {
	var items []actor.StateItem
	add := func(name string) {
		key := Key(name)
		if e := x.entities[key]; e != nil {
			items = append(items, actor.StateItem{Name: entityPrefix + key, Value: e.encode()})
		}
	}
	add(c.Entity)
	for _, rel := range c.Relations {
		add(rel.To)
	}
	slices.SortFunc(items, func(a, b actor.StateItem) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(items, func(a, b actor.StateItem) bool { return a.Name == b.Name })
}

// nameKey orders entities by their names.
func nameKey(name, key string) string { return strings.ToLower(name) + "\x00" + key }

func (x *Index) rename(from, to string) {
	if from != "" {
		if at, ok := slices.BinarySearch(x.names, from); ok {
			x.names = slices.Delete(x.names, at, at+1)
		}
	}
	if to != "" {
		at, _ := slices.BinarySearch(x.names, to)
		x.names = slices.Insert(x.names, at, to)
	}
}

func (x *Index) add(key string, e *Entity) {
	in := &indexed{Entity: *e}
	x.entities[key] = in
	x.bytes += docOverhead + 2*len(e.Name)
	name := Words(e.Name)
	for i := range in.Facts {
		id := uint32(len(x.docs))
		words := append(slices.Clone(name), Words(in.Facts[i].Content)...)
		slices.Sort(words)
		d := doc{entity: in, fact: i, words: int32(len(words)), past: !in.Facts[i].Valid()}
		for from := 0; from < len(words); {
			to := from + 1
			for to < len(words) && words[to] == words[from] {
				to++
			}
			d.text = append(d.text, words[from])
			x.postings[words[from]] = append(x.postings[words[from]], posting{id, uint32(to - from)})
			from = to
		}
		x.docs, in.docs = append(x.docs, d), append(in.docs, id)
		x.live++
		x.length += int(d.words)
		x.bytes += x.sizeOf(in, i)
	}
}

// sizeOf returns the approximate size of a fact.
func (x *Index) sizeOf(in *indexed, fact int) int { return docOverhead + 4*len(in.Facts[fact].Content) }

func (x *Index) remove(key string, in *indexed) {
	for i, id := range in.docs {
		d := &x.docs[id]
		for _, word := range d.text {
			list := x.postings[word]
			at, _ := slices.BinarySearchFunc(list, id, func(p posting, id uint32) int { return int(p.doc) - int(id) })
			if list = slices.Delete(list, at, at+1); len(list) == 0 {
				delete(x.postings, word)
				continue
			}
			x.postings[word] = list
		}
		x.live--
		x.length -= int(d.words)
		x.bytes -= x.sizeOf(in, i)
		*d = doc{}
	}
	x.bytes -= docOverhead + 2*len(in.Name)
	delete(x.entities, key)
}
