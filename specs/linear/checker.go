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
	lastEvent int64 // counts what was told: no two things are at once
	keys      historySet
	owners    historySet
	swaps     historySet
}

// New returns the judge of a world in which nothing has happened.
func New() *Judge {
	return &Judge{keys: historySet{model: keysModel}, owners: historySet{model: ownersModel}, swaps: historySet{model: swapsModel}}
}

// historySet is the histories of one kind, each under its name.
type historySet struct {
	*model
	byName map[string]*history
	order  []*history // as they began
}

// history is one history.
type history struct {
	name string
	ops  []*Op
}

// Op is something that has begun, and perhaps ended.
type Op struct {
	process   string
	operation any // one of the operations of its model
	from, to  int64
	startTime actor.Time
	endTime   actor.Time
}

// notReturned is the end of what has not ended.
const notReturned = int64(1) << 62

func (o *Op) returned() bool { return o.to != notReturned }

func (j *Judge) begin(b *historySet, name, who string, now actor.Time, did any) *Op {
	j.lastEvent++
	o := &Op{process: who, operation: did, from: j.lastEvent, to: notReturned, startTime: now, endTime: now}
	s := b.byName[name]
	if s == nil {
		s = &history{name: name}
		if b.byName == nil {
			b.byName = map[string]*history{}
		}
		b.byName[name], b.order = s, append(b.order, s)
	}
	s.ops = append(s.ops, o)
	return o
}

func (j *Judge) end(o *Op, now actor.Time, did any) {
	j.lastEvent++
	o.operation, o.to, o.endTime = did, j.lastEvent, now
}

// record is what has no duration.
func (j *Judge) record(b *historySet, name, who string, now actor.Time, did any) {
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
	Spec      string
	Sentence  string // which, and where every order comes to its end
	writePage func(io.Writer) error
}

// WritePage writes the history as a page that any browser opens: all of its
// operations in time, and the orders that come farthest.
func (i *Illegal) WritePage(out io.Writer) error { return i.writePage(out) }

// Check judges all that was told, and takes so long at most for each of the
// three kinds. What is told afterwards is judged the next time.
func (j *Judge) Check(limit time.Duration) (v Verdict) {
	for _, b := range []*historySet{&j.keys, &j.owners, &j.swaps} {
		b.check(limit, &v)
		if v.Illegal != nil {
			break
		}
	}
	return v
}

func (b *historySet) check(limit time.Duration, v *Verdict) {
	var parts [][]porcupine.Operation
	for _, s := range b.order {
		v.Histories++
		for _, o := range s.ops {
			if o.returned() {
				v.Ops++
			}
		}
		if ops := operations(b.reduce(s.ops)); len(ops) > 0 {
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
			if v.Illegal = b.diagnose(s, limit); v.Illegal != nil {
				return
			}
		}
		v.Undecided++ // it was found once, and not again in that time
	}
}

// pageOpsMax is how many operations a picture shows.
const pageOpsMax = 500

// diagnose tells of a history, as it is, whether it is illegal, and why.
func (b *historySet) diagnose(s *history, limit time.Duration) *Illegal {
	m := b.porcupine()
	if porcupine.CheckOperationsTimeout(m, operations(b.reduce(s.ops)), limit) != porcupine.Illegal {
		return nil
	}
	ops := operations(b.reduce(s.ops))
	result, info := porcupine.Unknown, porcupine.LinearizationInfo{}
	if len(s.ops) <= pageOpsMax {
		result, info = porcupine.CheckOperationsVerbose(m, operations(s.ops), limit)
	}
	if result == porcupine.Illegal {
		ops = operations(s.ops)
	} else { // too long for a picture: the lean one has to do
		_, info = porcupine.CheckOperationsVerbose(m, ops, limit)
	}
	return &Illegal{Spec: b.spec, Sentence: b.explain(s, ops, &info),
		writePage: func(out io.Writer) error { return porcupine.Visualize(m, info, out) }}
}
