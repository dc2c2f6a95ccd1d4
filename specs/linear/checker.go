// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"io"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/troupe-run/troupe/actor"
)

// Checker collects the histories of one simulation. Its methods MUST be called in the order in
// which the events happen.
type Checker struct {
	lastEvent int64 // number of the last event; no two events are simultaneous
	keys      historySet
	owners    historySet
	swaps     historySet
}

// New returns a checker without histories.
func New() *Checker {
	return &Checker{keys: historySet{model: keysModel}, owners: historySet{model: ownersModel}, swaps: historySet{model: swapsModel}}
}

// historySet holds the histories of one kind by name.
type historySet struct {
	*model
	byName map[string]*history
	order  []*history // in the order of their first operation
}

// history is the operations on one object.
type history struct {
	name string
	ops  []*Op
}

// Op is an operation that has begun and may have returned.
type Op struct {
	process   string
	operation any // input of the operation and, once it returned, its result
	from, to  int64
	startTime actor.Time
	endTime   actor.Time
}

// notReturned is the return time of an operation without a response.
const notReturned = int64(1) << 62

func (o *Op) returned() bool { return o.to != notReturned }

func (j *Checker) begin(b *historySet, name, process string, now actor.Time, op any) *Op {
	j.lastEvent++
	o := &Op{process: process, operation: op, from: j.lastEvent, to: notReturned, startTime: now, endTime: now}
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

func (j *Checker) end(o *Op, now actor.Time, op any) {
	j.lastEvent++
	o.operation, o.to, o.endTime = op, j.lastEvent, now
}

// record adds an operation without duration.
func (j *Checker) record(b *historySet, name, process string, now actor.Time, op any) {
	j.end(j.begin(b, name, process, now, op), now, op)
}

// Verdict is the result of checking all histories.
type Verdict struct {
	Ops       int // number of operations that returned
	Histories int
	Undecided int      // number of checks that exceeded the limit
	Premises  Premises // number of operations that could violate each spec
	Illegal   *Illegal // first history that is not linearizable; nil if there is none
}

// Premises counts, by spec, the operations that could violate it.
type Premises struct{ Keys, Owners, Kept int }

// Illegal describes a history that is not linearizable.
type Illegal struct {
	Spec      string
	Detail    string // the history, and the operation at which the longest linearization ends
	writePage func(io.Writer) error
}

// WritePage writes the history as an HTML page. It shows all operations on a time axis and the
// longest partial linearizations.
func (i *Illegal) WritePage(out io.Writer) error { return i.writePage(out) }

// Check checks all operations recorded so far. The check of each of the three kinds takes at most
// limit. If a kind is illegal, its histories are then checked one by one with the same limit,
// until an illegal history is found. Operations recorded later are covered by the next call.
func (j *Checker) Check(limit time.Duration) (v Verdict) {
	for _, b := range []struct {
		*historySet
		premises *int
	}{{&j.keys, &v.Premises.Keys}, {&j.owners, &v.Premises.Owners}, {&j.swaps, &v.Premises.Kept}} {
		for _, s := range b.order {
			*b.premises += b.premise(s.ops)
		}
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
	combined := b.porcupine()
	combined.Partition = func([]porcupine.Operation) [][]porcupine.Operation { return parts }
	switch porcupine.CheckOperationsTimeout(combined, nil, limit) {
	case porcupine.Ok:
	case porcupine.Unknown:
		v.Undecided++
	case porcupine.Illegal:
		for _, s := range b.order {
			if v.Illegal = b.diagnose(s, limit); v.Illegal != nil {
				return
			}
		}
		v.Undecided++ // illegal at the first check, but not reproduced within the limit
	}
}

// pageOpsMax is the maximum number of operations shown on a page.
const pageOpsMax = 500

// diagnose checks one history by itself. It returns nil if the history is not illegal. The
// explanation uses the full history if that has at most pageOpsMax operations. Otherwise it uses
// the reduced history.
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
	} else { // too long for a page: use the reduced history
		_, info = porcupine.CheckOperationsVerbose(m, ops, limit)
	}
	return &Illegal{Spec: b.spec, Detail: b.explain(s, ops, &info),
		writePage: func(out io.Writer) error { return porcupine.Visualize(m, info, out) }}
}
