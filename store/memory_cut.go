// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

var _ Forgetter = (*Memory)(nil)

// MarkAt implements Forgetter.
func (m *Memory) MarkAt(node actor.NodeID, batch uint64) (Mark, error) {
	for _, mark := range m.marks[node] {
		if mark.Batch == batch {
			return mark, nil
		}
	}
	return Mark{}, CannotCut{Obstacle: NotInLog}
}

// Retain implements Forgetter.
func (m *Memory) Retain(node actor.NodeID, c Cut, each func(Entry) error) error {
	if err := m.checkCut(node, c); err != nil {
		return err
	}
	for _, id := range m.actorIDs() {
		if m.actors[id].node != node {
			continue
		}
		if err := m.retain(id, c, each); err != nil {
			return err
		}
	}
	return nil
}

// MayCut implements Forgetter.
func (m *Memory) MayCut(node actor.NodeID, c Cut) error {
	for _, of := range m.deletions() {
		if d := m.dead[of]; !d.done && d.node == node && d.batch <= c.Upto.Batch {
			return CannotCut{NotErased, ForgottenEntry(of.tenant, of.session, 0, 0, 0).Actor}
		}
	}
	return m.Retain(node, c, func(e Entry) error {
		if _, ok := e.Record.(Kept); ok {
			return CannotCut{OutcomeLost, e.Actor}
		}
		return CannotCut{NoSnapshot, e.Actor}
	})
}

func (m *Memory) checkCut(node actor.NodeID, c Cut) error {
	if len(m.ends) > max(1, m.Logs) {
		return SeveralLogs{}
	}
	mark, err := m.MarkAt(node, c.Upto.Batch)
	if err == nil && mark != c.Upto {
		err = CannotCut{Obstacle: NotInLog}
	}
	return err
}

func (m *Memory) actorIDs() []actor.ID {
	return slices.SortedFunc(maps.Keys(m.actors), func(a, b actor.ID) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Key, b.Key))
	})
}

func (m *Memory) deletions() []tenantSession {
	return slices.SortedFunc(maps.Keys(m.dead), func(a, b tenantSession) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.session, b.session))
	})
}

// retain passes what a Cut would delete of an actor's state: its last entries, if no
// snapshot behind the Cut includes them, and outcomes without a copy after the Cut.
func (m *Memory) retain(id actor.ID, c Cut, each func(Entry) error) error {
	a := m.actors[id]
	if of, ok := sessionOf(id); ok && m.dead[of] != nil {
		return nil
	}
	front := a.cut
	for front < a.end() && a.all[front-a.cut].batch <= c.Upto.Batch {
		front++
	}
	cutsKept := slices.ContainsFunc(slices.Sorted(maps.Keys(a.kept)), func(n uint64) bool { return a.kept[n].batch <= c.Upto.Batch })
	lost := false
	for _, name := range slices.SortedFunc(maps.Keys(a.blobs), func(x, y actor.Hash) int { return cmp.Compare(x.String(), y.String()) }) {
		lost = lost || a.blobs[name].batch <= c.Upto.Batch
	}
	if front == a.cut && (a.snapshot == nil || a.in > c.Upto.Batch) && !cutsKept && !lost {
		return nil
	}
	saved, err := m.Load(id)
	if err != nil {
		return err
	}
	j, err := Fold(saved)
	if err != nil {
		return err
	}
	shard, epoch, err := m.shardOf(a)
	if err != nil {
		return err
	}
	fresh := front == 0 || a.in > c.Upto.Batch && a.n >= front
	write := func() error {
		fresh = true
		return each(Entry{Actor: id, Shard: shard, Epoch: epoch, N: j.N, Record: SnapshotOf(&j), WasDue: j.Due(), Due: j.Due()})
	}
	more, err := j.Transcript.restore(func(p *Page) (bool, error) { return a.blobs[p.Hash].batch <= c.Upto.Batch, nil },
		func(name actor.Hash) ([]byte, error) { return m.Blob(id, name) }, write)
	if err == nil && (more && lost || !fresh) {
		err = write()
	}
	if err != nil {
		return err
	}
	referred := slices.Clone(j.Evicted)
	for _, e := range j.Ended {
		referred = append(referred, e.evicted())
	}
	for _, o := range referred {
		k, ok := a.kept[o.N]
		if o.N > front || o.Until < c.At || ok && k.batch > c.Upto.Batch || !ok && o.N <= a.cut {
			continue
		}
		outcome, err := m.Outcome(id, o.N)
		if err == nil {
			err = each(Entry{Actor: id, Shard: shard, Epoch: epoch, N: o.N, Record: Kept{outcome}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shardOf returns the shard and epoch of the last entry of an actor, or of its snapshot.
func (m *Memory) shardOf(a *actorEntries) (uint16, actor.Epoch, error) {
	encoded := a.snapshot
	if n := len(a.all); n > 0 {
		encoded = a.all[n-1].encoded
	}
	e, err := DecodeEntry(encoded)
	return e.Shard, e.Epoch, err
}

// deleteFront deletes the batches of a node up to this one.
func (m *Memory) deleteFront(node actor.NodeID, upto uint64) {
	m.cuts[node] = upto
	m.marks[node] = slices.DeleteFunc(m.marks[node], func(mark Mark) bool { return mark.Batch <= upto })
	for _, id := range m.actorIDs() {
		a := m.actors[id]
		if a.node != node {
			continue
		}
		for len(a.all) > 0 && a.all[0].batch <= upto {
			a.all, a.cut = a.all[1:], a.cut+1
		}
		maps.DeleteFunc(a.blobs, func(_ actor.Hash, b memoryBlob) bool { return b.batch <= upto })
		maps.DeleteFunc(a.kept, func(_ uint64, k memoryEntry) bool { return k.batch <= upto })
	}
	for _, key := range slices.SortedFunc(maps.Keys(m.events), func(a, b tenantRun) int { return a.run.Compare(b.run) }) {
		events := m.events[key]
		for len(events) > 0 && events[0].node == node && events[0].batch <= upto {
			m.dropped[key] = events[0].Seq
			events = events[1:]
		}
		m.events[key] = events
	}
	maps.DeleteFunc(m.dead, func(_ tenantSession, d *deletion) bool { return d.done && d.node == node && d.batch <= upto })
}

// MayForget implements Forgetter.
func (m *Memory) MayForget(tenant, session string) error {
	of := tenantSession{tenant, session}
	switch {
	case len(m.ends) > max(1, m.Logs):
		return SeveralLogs{}
	case m.dead[of] != nil:
		return Gone{tenant, session}
	}
	for _, id := range m.actorIDs() {
		if s, ok := sessionOf(id); ok && s == of {
			saved, err := m.Load(id)
			if err != nil {
				return err
			}
			j, err := Fold(saved)
			if err != nil {
				return err
			}
			if len(j.Runs) > 0 {
				return OpenRuns{id}
			}
		}
	}
	return nil
}

// isDead reports whether the session of an actor was deleted.
func (m *Memory) isDead(id actor.ID) bool {
	of, ok := sessionOf(id)
	return ok && m.dead[of] != nil
}

// Erase implements Forgetter.
func (m *Memory) Erase(node actor.NodeID, durable uint64) (more bool, err error) {
	for _, of := range m.deletions() {
		d := m.dead[of]
		if d.done || d.node != node || d.batch > durable {
			continue
		}
		d.done = true
		for _, id := range m.actorIDs() {
			if s, ok := sessionOf(id); ok && s == of {
				delete(m.actors, id)
				delete(m.open, id)
			}
		}
		m.runs[of.tenant] = slices.DeleteFunc(m.runs[of.tenant], func(s runs.Summary) bool {
			session, ok := sessionOf(s.Actor)
			if ok = ok && session == of; ok {
				delete(m.events, tenantRun{of.tenant, s.Run})
				delete(m.dropped, tenantRun{of.tenant, s.Run})
			}
			return ok
		})
		return true, nil
	}
	return false, nil
}
