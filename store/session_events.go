// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// SessionEvent is an event of a run in a session.
type SessionEvent struct {
	RunEvent
	At runs.Position
}

// SessionEventsDropped is the error of a read that begins before events of the session that
// were cut, or behind the end of the log, as after the store was restored from a backup.
type SessionEventsDropped struct {
	Tenant, Session string
	First           runs.SessionCursor // position before the first event that is left
}

// Error implements error.
func (e SessionEventsDropped) Error() string {
	return fmt.Sprintf("events of session %s before %s were dropped", e.Session, e.First)
}

// sessionBatch collects the events of a session in one batch. Writers group the entries of a
// batch by actor, so their order between actors is restored from the calls that the events
// show. It depends on nothing but the content of the batch: each reader finds the same one.
type sessionBatch struct {
	order  []actor.CallID // runs by their first event
	byRun  map[actor.CallID][]batchEvent
	called map[actor.CallID]bool // runs called in the batch
	done   []RunEvent
}

type batchEvent struct {
	RunEvent
	kind  runs.Type
	child actor.CallID
}

// add adds the events of an entry. The entries of an actor MUST be added in order, and actors
// in the order of their IDs.
func (b *sessionBatch) add(events []batchEvent) {
	for _, e := range events {
		if b.byRun == nil {
			b.byRun, b.called = map[actor.CallID][]batchEvent{}, map[actor.CallID]bool{}
		}
		if len(b.byRun[e.Run]) == 0 {
			b.order = append(b.order, e.Run)
		}
		b.byRun[e.Run] = append(b.byRun[e.Run], e)
		if e.kind == runs.AgentCalledChild {
			b.called[e.child] = true
		}
	}
}

// batchEvents returns the events of an entry.
func (e *Entry) batchEvents() ([]batchEvent, error) {
	all, err := e.AllEvents()
	derived := e.RunEvents()
	var events []batchEvent
	for i := range all {
		next := batchEvent{RunEvent: all[i]}
		if j := i - len(e.Events); j >= 0 {
			next.kind, next.child = derived[j].Type, derived[j].Child
		}
		events = append(events, next)
	}
	return events, err
}

// events returns the events in order: those of a run by their numbers, and those of a call
// between the event that shows the call and the one that shows its outcome.
func (b *sessionBatch) events() []RunEvent {
	for _, run := range b.order {
		if !b.called[run] {
			b.emit(run)
		}
	}
	for _, run := range b.order { // damaged events could name each other as callers
		b.emit(run)
	}
	return b.done
}

func (b *sessionBatch) emit(run actor.CallID) {
	all := b.byRun[run]
	b.byRun[run] = nil
	for i := range all {
		if all[i].kind == runs.AgentChildDone {
			b.emit(all[i].child)
		}
		b.done = append(b.done, all[i].RunEvent)
		if all[i].kind == runs.AgentCalledChild {
			b.emit(all[i].child)
		}
	}
}

// appendAfter appends the events of a batch that follow a position, at most limit in all.
func (b *sessionBatch) appendAfter(page []SessionEvent, at, after runs.Position, limit int) []SessionEvent {
	for i, e := range b.events() {
		if at.Index = uint32(i) + 1; at.Batch == after.Batch && at.Index <= after.Index {
			continue
		}
		if len(page) == limit {
			return page
		}
		page = append(page, SessionEvent{e, at})
	}
	return page
}

// usersActors returns the actors of a session without the runtime's own ones.
func usersActors(r Reader, tenant, session string) ([]actor.ID, error) {
	ids, err := r.SessionActors(tenant, session)
	return slices.DeleteFunc(ids, func(id actor.ID) bool { return actor.IsSystemAgent(id.Agent) }), err
}

// batchSpan is the place of entries of an actor.
type batchSpan struct {
	id actor.ID
	span
}

// SessionEvents implements Reader.
func (r Rows) SessionEvents(tenant, session string, after runs.SessionCursor, limit int) ([]SessionEvent, error) {
	page, err := r.sessionEvents(tenant, session, after, limit)
	if gone := r.gone(actor.ID{Tenant: tenant, Agent: actor.SessionAgent, Key: session}); gone != nil {
		return nil, gone
	}
	if dropped := r.sessionDropped(tenant, session, after); dropped != nil { // also if they are cut during the read
		return nil, dropped
	}
	if err == nil && len(page) == 0 {
		err = aheadOfLog(tenant, session, after, r.lastBatch)
	}
	return page, err
}

// aheadOfLog returns an error if a cursor is behind the end of a log.
func aheadOfLog(tenant, session string, after runs.SessionCursor, lastBatch func(actor.NodeID) (uint64, error)) error {
	first, ahead := after, false
	for _, p := range after {
		last, err := lastBatch(p.Node)
		if err != nil {
			return err
		}
		if p.Batch > last+1 || p.Batch == last+1 && p.Index > 0 { // a cut leaves cursors before the next batch
			first, ahead = first.After(runs.Position{Node: p.Node, Batch: last, Index: math.MaxUint32}), true
		}
	}
	if !ahead {
		return nil
	}
	return SessionEventsDropped{tenant, session, first}
}

// lastBatch returns the number of the last batch in the log of a node.
func (r Rows) lastBatch(node actor.NodeID) (last uint64, err error) {
	origin, err := Origin(r.KV, node)
	if err != nil {
		return 0, err
	}
	last = origin.Batch
	prefix := logKey(node)
	var failure error
	err = r.KV.ScanBack(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
		last, _, failure = parsePartKey(key, len(prefix))
		return false
	})
	return last, cmp.Or(failure, err)
}

func (r Rows) sessionEvents(tenant, session string, after runs.SessionCursor, limit int) (page []SessionEvent, err error) {
	ids, err := usersActors(r, tenant, session)
	if err != nil {
		return nil, err
	}
	places := map[actor.NodeID]map[uint64][]batchSpan{}
	for _, id := range ids {
		spans, err := r.spansAfter(id, after)
		if err != nil {
			return nil, err
		}
		for _, s := range spans {
			if from := after.At(s.at.node); s.at.batch < from.Batch {
				continue
			}
			if places[s.at.node] == nil {
				places[s.at.node] = map[uint64][]batchSpan{}
			}
			places[s.at.node][s.at.batch] = append(places[s.at.node][s.at.batch], batchSpan{id, s})
		}
	}
	reader := groupReader{kv: r.KV}
	for _, node := range slices.Sorted(maps.Keys(places)) {
		for _, no := range slices.Sorted(maps.Keys(places[node])) {
			if len(page) == limit {
				return page, nil
			}
			var batch sessionBatch
			for _, s := range places[node][no] {
				if err := reader.entries(s.id, s.span, r.shownBlob, func(e Entry) error {
					events, err := e.batchEvents()
					batch.add(events)
					return err
				}); err != nil {
					return nil, err
				}
			}
			page = batch.appendAfter(page, runs.Position{Node: node, Batch: no}, after.At(node), limit)
		}
	}
	return page, nil
}

// shownBlob is a blobReader for those entries only that show events.
func (r Rows) shownBlob(e *Entry, name actor.Hash) ([]byte, error) {
	if e.EventCount() == 0 {
		return nil, nil
	}
	return r.blob(e, name)
}

// SessionEnd implements Reader.
func (r Rows) SessionEnd(tenant, session string) (end runs.SessionCursor, err error) {
	ids, err := usersActors(r, tenant, session)
	for _, id := range ids {
		last := r.tail(id)
		var failure error
		prefix := indexPrefix(id)
		if err == nil {
			err = r.KV.ScanBack(prefix, prefixEnd(prefix), func(key, value []byte) bool {
				var s []span
				s, failure = readSpans(key, value)
				last = append(last, s...)
				return false
			})
		}
		if err = cmp.Or(failure, err); err != nil {
			return nil, err
		}
		for _, s := range last {
			end = behindBatch(end, s.at.node, s.at.batch)
		}
	}
	return end, err
}

// behindBatch returns the cursor behind all events of a batch, if the cursor precedes it.
func behindBatch(end runs.SessionCursor, node actor.NodeID, batch uint64) runs.SessionCursor {
	if end.At(node).Batch >= batch {
		return end
	}
	return end.After(runs.Position{Node: node, Batch: batch, Index: math.MaxUint32})
}

// spansAfter returns the places of an actor's entries from the batch of a cursor on, and maybe
// earlier ones.
func (r Rows) spansAfter(id actor.ID, after runs.SessionCursor) ([]span, error) {
	all := r.tail(id)
	var failure error
	prefix := indexPrefix(id)
	err := r.KV.ScanBack(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		var s []span
		if s, failure = readSpans(key, value); failure != nil {
			return false
		}
		all = append(all, s...)
		// Entries of one node are in the order of its batches. Those of several are not.
		return len(after) != 1 || slices.ContainsFunc(s, func(s span) bool { return s.at.node != after[0].Node }) ||
			len(s) > 0 && s[0].at.batch >= after[0].Batch
	})
	if err := cmp.Or(failure, err); err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	return slices.CompactFunc(all, func(a, b span) bool { return a == b }), nil // a flush shows the tail twice
}

// sessionDropped returns an error if events of a session that follow a cursor may have been
// cut: entries of a log were, in which an actor of the session has a snapshot, which a cut requires.
func (r Rows) sessionDropped(tenant, session string, after runs.SessionCursor) error {
	nodes, err := logNodes(r.KV)
	if err != nil {
		return err
	}
	var cut []runs.Position // before the first batch that is left
	for _, node := range nodes {
		origin, err := Origin(r.KV, node)
		if err != nil {
			return err
		}
		if origin.Batch > 0 && after.At(node).Batch <= origin.Batch {
			cut = append(cut, runs.Position{Node: node, Batch: origin.Batch + 1})
		}
	}
	if len(cut) == 0 {
		return nil
	}
	at := -1
	prefix := sessionKey(tenant, session).kind(kindSnapshot)
	err = r.KV.Scan(prefix, prefixEnd(prefix), func(_, value []byte) bool {
		if by, _, _, err := unseal(value); err != nil {
			at = 0 // a read of the actor tells what is damaged
		} else {
			at = slices.IndexFunc(cut, func(p runs.Position) bool { return p.Node == by })
		}
		return at < 0
	})
	if err != nil || at < 0 {
		return err
	}
	return SessionEventsDropped{tenant, session, after.After(cut[at])}
}

// SessionEvents implements Reader.
func (m *Memory) SessionEvents(tenant, session string, after runs.SessionCursor, limit int) (page []SessionEvent, err error) {
	ids, err := usersActors(m, tenant, session)
	if err != nil {
		return nil, err
	}
	batches := map[runs.Position]*sessionBatch{}
	snapshots := map[actor.NodeID]bool{}
	for _, id := range ids {
		a := m.actors[id]
		snapshots[a.node] = snapshots[a.node] || a.snapshot != nil
		for _, stored := range a.all {
			e, err := DecodeEntry(stored.encoded)
			if err != nil {
				return nil, err
			}
			at := runs.Position{Node: stored.node, Batch: stored.batch}
			if batches[at] == nil {
				batches[at] = &sessionBatch{}
			}
			batches[at].add(m.batchEvents(e.Actor.Tenant, e.Events))
		}
	}
	first := after
	for _, node := range slices.Sorted(maps.Keys(m.cuts)) {
		cut := m.cuts[node]
		if snapshots[node] && cut > 0 && after.At(node).Batch <= cut {
			first = first.After(runs.Position{Node: node, Batch: cut + 1})
			err = SessionEventsDropped{tenant, session, first}
		}
	}
	if err != nil {
		return nil, err
	}
	places := slices.SortedFunc(maps.Keys(batches), func(a, b runs.Position) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Batch, b.Batch))
	})
	for _, at := range places {
		if from := after.At(at.Node); at.Batch >= from.Batch {
			page = batches[at].appendAfter(page, at, from, limit)
		}
	}
	if len(page) == 0 {
		err = aheadOfLog(tenant, session, after, func(node actor.NodeID) (uint64, error) { return m.ends[node].Batch, nil })
	}
	return page, err
}

// batchEvents returns events with their bodies. Those whose bodies were cut have none.
func (m *Memory) batchEvents(tenant string, numbers []RunEvent) (events []batchEvent) {
	for _, n := range numbers {
		all := m.events[tenantRun{tenant, n.Run}]
		i := slices.IndexFunc(all, func(e memoryEvent) bool { return e.Seq == n.Seq })
		if i < 0 {
			continue
		}
		next := batchEvent{RunEvent: all[i].RunEvent}
		if e, err := runs.Decode(next.Body); err == nil {
			next.kind, next.child = e.Type, e.Child
		}
		events = append(events, next)
	}
	return events
}

// SessionEnd implements Reader.
func (m *Memory) SessionEnd(tenant, session string) (end runs.SessionCursor, err error) {
	ids, err := usersActors(m, tenant, session)
	for _, id := range ids {
		for _, stored := range m.actors[id].all {
			end = behindBatch(end, stored.node, stored.batch)
		}
	}
	return end, err
}
