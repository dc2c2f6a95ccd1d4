// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"io"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/troupe-run/troupe/actor"
)

// Judge gathers the histories of one world. Whatever happens in it is told in
// the order in which it happens.
type Judge struct {
	moment int64 // counts what was told: no two things are at once
	keys   book
	owners book
	kept   book
}

// New returns the judge of a world in which nothing has happened.
func New() *Judge {
	return &Judge{keys: book{model: keysModel}, owners: book{model: ownersModel}, kept: book{model: keptModel}}
}

// book is the histories of one kind, each under its name.
type book struct {
	*model
	of    map[string]*story
	order []*story // as they began
}

// story is one history.
type story struct {
	name string
	ops  []*Op
}

// Op is something that has begun, and perhaps ended.
type Op struct {
	who      string
	did      any // one of the operations of its model
	from, to int64
	begun    actor.Time
	ended    actor.Time
}

// open is the end of what has not ended.
const open = int64(1) << 62

func (o *Op) closed() bool { return o.to != open }

func (j *Judge) begin(b *book, name, who string, now actor.Time, did any) *Op {
	j.moment++
	o := &Op{who: who, did: did, from: j.moment, to: open, begun: now, ended: now}
	s := b.of[name]
	if s == nil {
		s = &story{name: name}
		if b.of == nil {
			b.of = map[string]*story{}
		}
		b.of[name], b.order = s, append(b.order, s)
	}
	s.ops = append(s.ops, o)
	return o
}

func (j *Judge) end(o *Op, now actor.Time, did any) {
	j.moment++
	o.did, o.to, o.ended = did, j.moment, now
}

// at is what has no duration.
func (j *Judge) at(b *book, name, who string, now actor.Time, did any) {
	j.end(j.begin(b, name, who, now, did), now, did)
}

// Verdict is what came of all histories.
type Verdict struct {
	Ops       int // that ended
	Histories int
	Undecided int
	Illegal   *Illegal // the first that is none of one machine
}

// Illegal is a history that no single machine has.
type Illegal struct {
	Spec     string
	Sentence string // which, and where every order comes to its end
	picture  func(io.Writer) error
}

// WritePage writes the history as a page that any browser opens: all of its
// operations in time, and the orders that come farthest.
func (i *Illegal) WritePage(out io.Writer) error { return i.picture(out) }

// Check judges all that was told, and takes so long at most for each of the
// three kinds. What is told afterwards is judged the next time.
func (j *Judge) Check(limit time.Duration) (v Verdict) {
	for _, b := range []*book{&j.keys, &j.owners, &j.kept} {
		b.check(limit, &v)
		if v.Illegal != nil {
			break
		}
	}
	return v
}

func (b *book) check(limit time.Duration, v *Verdict) {
	var parts [][]porcupine.Operation
	for _, s := range b.order {
		v.Histories++
		for _, o := range s.ops {
			if o.closed() {
				v.Ops++
			}
		}
		if ops := operations(b.lean(s.ops)); len(ops) > 0 {
			parts = append(parts, ops)
		}
	}
	whole := b.porcupine()
	whole.Partition = func([]porcupine.Operation) [][]porcupine.Operation { return parts }
	switch porcupine.CheckOperationsTimeout(whole, nil, limit) {
	case porcupine.Ok:
	case porcupine.Unknown:
		v.Undecided++
	case porcupine.Illegal:
		for _, s := range b.order {
			if v.Illegal = b.find(s, limit); v.Illegal != nil {
				return
			}
		}
		v.Undecided++ // it was found once, and not again in that time
	}
}

// pictureMax is how many operations a picture shows.
const pictureMax = 500

// find tells of a history, as it is, whether it is illegal, and why.
func (b *book) find(s *story, limit time.Duration) *Illegal {
	m := b.porcupine()
	if porcupine.CheckOperationsTimeout(m, operations(b.lean(s.ops)), limit) != porcupine.Illegal {
		return nil
	}
	ops := operations(b.lean(s.ops))
	result, info := porcupine.Unknown, porcupine.LinearizationInfo{}
	if len(s.ops) <= pictureMax {
		result, info = porcupine.CheckOperationsVerbose(m, operations(s.ops), limit)
	}
	if result == porcupine.Illegal {
		ops = operations(s.ops)
	} else { // too long for a picture: the lean one has to do
		_, info = porcupine.CheckOperationsVerbose(m, ops, limit)
	}
	return &Illegal{Spec: b.spec, Sentence: b.sentence(s, ops, &info),
		picture: func(out io.Writer) error { return porcupine.Visualize(m, info, out) }}
}
