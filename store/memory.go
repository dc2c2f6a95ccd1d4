// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// Memory is a Log and a Reader in memory for the logs of several nodes. It holds entries
// and no rows. It shares only the codec of entries and the filter of runs with Rows, so
// that each can be compared with the other. Entries are copied on the way in and out. The
// zero Memory is empty and ready to use.
type Memory struct {
	// Holds reports whether a node owns a shard under an epoch. If it is nil, no batch is
	// fenced.
	Holds func(actor.NodeID, ShardEpoch) bool
	// Interrupts decides whether the result of an Append is lost, and whether the batch is
	// stored nevertheless. If it is nil, no result is lost.
	Interrupts func(*Batch) (lost, stored bool)
	// Logs is the number of logs, of which each shard has one: see LogOf; 0 means 1.
	Logs int

	ends    map[actor.NodeID]Mark   // end of each node's log
	marks   map[actor.NodeID][]Mark // of the batches that were not cut
	cuts    map[actor.NodeID]uint64 // last batch that was cut
	dead    map[tenantSession]*deletion
	dropped map[tenantRun]uint64 // last event of a run that was cut
	actors  map[actor.ID]*actorEntries
	open    map[actor.ID]openActor
	runs    map[string][]runs.Summary // of each tenant, oldest first
	events  map[tenantRun][]memoryEvent
}

// actorEntries are the entries of an actor. Each is encoded without its summary and
// without the bodies of its events.
type actorEntries struct {
	node     actor.NodeID  // that has written the last one
	all      []memoryEntry // entry n at index n-1-cut
	cut      uint64        // number of the last entry that was cut
	snapshot []byte        // the newest one; nil if there is none
	in       uint64        // batch with the snapshot
	n        uint64        // number of the last entry that the snapshot includes
	kept     map[uint64]memoryEntry
	blobs    map[actor.Hash]memoryBlob // pages of the transcript, and the parts that they refer to
}

type memoryBlob struct {
	content []byte
	batch   uint64
}

// end returns the number of the last entry.
func (a *actorEntries) end() uint64 { return a.cut + uint64(len(a.all)) }

// memoryEntry is an encoded entry, its node and its batch.
type memoryEntry struct {
	encoded []byte
	node    actor.NodeID
	batch   uint64
}

type memoryEvent struct {
	RunEvent
	node  actor.NodeID
	batch uint64
}

// deletion is a deleted session.
type deletion struct {
	node  actor.NodeID
	batch uint64 // with the entry
	done  bool
}

// openActor is an actor with open runs, the first of which is due at the time in due.
type openActor struct {
	shard uint16
	due   actor.Time
	name  string // tenant, agent and key
}

type tenantRun struct {
	tenant string
	run    actor.CallID
}

var (
	_ Log    = (*Memory)(nil)
	_ Reader = (*Memory)(nil)
)

// Append implements Log.
func (m *Memory) Append(b *Batch) error {
	if err := m.check(b); err != nil {
		return err
	}
	if m.Interrupts != nil {
		if lost, stored := m.Interrupts(b); lost {
			if stored {
				m.store(b)
			}
			return Unknown{b.No}
		}
	}
	m.store(b)
	return nil
}

// check returns an error if the batch is fenced, or does not continue the log of its node
// and the entries of its actors.
func (m *Memory) check(b *Batch) error {
	if m.Holds != nil {
		lost := slices.DeleteFunc(slices.Clone(b.Shards), func(s ShardEpoch) bool { return m.Holds(b.Node, s) })
		if len(lost) > 0 {
			return Fenced{lost}
		}
	}
	if end := m.ends[b.Node]; b.From != end {
		return fmt.Errorf("batch %d of %s continues batch %d, but its log ends at batch %d", b.No, b.Node, b.From.Batch, end.Batch)
	}
	ends := map[actor.ID]uint64{}
	for i := range b.Entries {
		e := &b.Entries[i]
		n, ok := ends[e.Actor]
		if a := m.actors[e.Actor]; !ok && a != nil {
			n = a.end()
		}
		if !isNumbered(e.Record) {
			if e.N > n {
				return fmt.Errorf("batch %d of %s: %T of %s has number %d, but its last entry is %d", b.No, b.Node, e.Record, e.Actor, e.N, n)
			}
			continue
		}
		if n++; e.N != n {
			return fmt.Errorf("batch %d of %s: entry %d of %s has number %d", b.No, b.Node, n, e.Actor, e.N)
		}
		ends[e.Actor] = n
	}
	return nil
}

func (m *Memory) store(b *Batch) {
	if m.ends == nil {
		m.ends, m.actors, m.open = map[actor.NodeID]Mark{}, map[actor.ID]*actorEntries{}, map[actor.ID]openActor{}
		m.runs, m.events = map[string][]runs.Summary{}, map[tenantRun][]memoryEvent{}
		m.marks, m.cuts, m.dead, m.dropped = map[actor.NodeID][]Mark{}, map[actor.NodeID]uint64{}, map[tenantSession]*deletion{}, map[tenantRun]uint64{}
	}
	m.marks[b.Node] = append(m.marks[b.Node], b.Mark())
	for i := range b.Entries {
		switch r := b.Entries[i].Record.(type) {
		case Cut:
			m.deleteFront(b.Node, r.Upto.Batch)
		case Forgotten:
			id := b.Entries[i].Actor
			m.dead[tenantSession{id.Tenant, id.Key}] = &deletion{node: b.Node, batch: b.No}
		default:
			m.storeEntry(&b.Entries[i], b.Node, b.No)
		}
	}
	m.ends[b.Node] = b.Mark()
}

func (m *Memory) storeEntry(e *Entry, node actor.NodeID, batch uint64) {
	a := m.actors[e.Actor]
	if a == nil {
		a = &actorEntries{kept: map[uint64]memoryEntry{}, blobs: map[actor.Hash]memoryBlob{}}
		m.actors[e.Actor] = a
	}
	a.node = node
	bare := e.WithoutBodies()
	bare.Summary = nil
	for _, ev := range invariant.Must(e.AllEvents()) {
		of := tenantRun{e.Actor.Tenant, ev.Run}
		ev.Body = slices.Clone(ev.Body)
		m.events[of] = append(m.events[of], memoryEvent{ev, node, batch})
	}
	switch r := e.Record.(type) {
	case Snapshot:
		bare.Record = Snapshot{Journal: r.Journal}
		for _, b := range r.Pages {
			a.blobs[actor.HashOf(b)] = memoryBlob{slices.Clone(b), batch}
		}
		if a.snapshot, a.in, a.n = EncodeEntry(bare), batch, e.N; e.N < a.end() {
			return
		}
	case Kept:
		a.kept[e.N] = memoryEntry{EncodeEntry(bare), node, batch}
		return
	default:
		a.all = append(a.all, memoryEntry{EncodeEntry(bare), node, batch})
	}
	if e.Summary != nil {
		m.putRun(e.Actor.Tenant, e.Summary)
	} else if r, ok := e.Record.(Accepted); ok {
		m.putRun(e.Actor.Tenant, &runs.Summary{Run: r.Call.ID, Root: r.Call.Root, Actor: e.Actor})
	}
	if e.Due == 0 {
		delete(m.open, e.Actor)
	} else {
		m.open[e.Actor] = openActor{e.Shard, e.Due, e.Actor.Tenant + "/" + e.Actor.Agent + "/" + e.Actor.Key}
	}
}

// putRun inserts the summary of a run, or replaces an earlier one.
func (m *Memory) putRun(tenant string, s *runs.Summary) {
	all := m.runs[tenant]
	at, ok := searchRun(all, s.Run)
	if !ok {
		all = slices.Insert(all, at, runs.Summary{})
	}
	all[at] = cloneSummary(s)
	m.runs[tenant] = all
}

func cloneSummary(s *runs.Summary) runs.Summary {
	c := *s
	if s.Refusal != nil {
		refusal := *s.Refusal
		refusal.Chain = slices.Clone(refusal.Chain)
		c.Refusal = &refusal
	}
	return c
}

func searchRun(all []runs.Summary, run actor.CallID) (int, bool) {
	return slices.BinarySearchFunc(all, run, func(s runs.Summary, run actor.CallID) int { return s.Run.Compare(run) })
}

// Settle implements Log.
func (m *Memory) Settle(b *Batch) (bool, error) {
	switch end := m.ends[b.Node]; end {
	case b.Mark():
		return true, nil
	case b.From:
		return false, nil
	default:
		return false, fmt.Errorf("batch %d of %s cannot be settled: its log ends at batch %d", b.No, b.Node, end.Batch)
	}
}

// Sync implements Log. A stored batch is as durable as a Memory can be.
func (m *Memory) Sync(uint64) error { return nil }

// End returns the end of a node's log.
func (m *Memory) End(node actor.NodeID) Mark { return m.ends[node] }

// Load implements Reader.
func (m *Memory) Load(id actor.ID) (Saved, error) {
	if of, ok := sessionOf(id); ok && m.dead[of] != nil {
		return Saved{}, Gone{of.tenant, of.session}
	}
	a := m.actors[id]
	if a == nil {
		return Saved{}, nil
	}
	var saved Saved
	if a.snapshot != nil {
		e, err := DecodeEntry(a.snapshot)
		if err != nil {
			return Saved{}, fmt.Errorf("snapshot of %s: %w", id, err)
		}
		saved.Snapshot = e.Record.(Snapshot).Journal
	}
	first := max(a.n, a.cut)
	for i, stored := range a.all[first-a.cut:] {
		e, err := DecodeEntry(stored.encoded)
		if err != nil {
			return Saved{}, fmt.Errorf("entry %d of %s: %w", first+uint64(i)+1, id, err)
		}
		saved.Entries = append(saved.Entries, e)
	}
	return saved, nil
}

// Blob implements Reader.
func (m *Memory) Blob(id actor.ID, name actor.Hash) ([]byte, error) {
	if of, ok := sessionOf(id); ok && m.dead[of] != nil {
		return nil, Gone{of.tenant, of.session}
	}
	if a := m.actors[id]; a != nil && a.blobs[name].batch > 0 {
		return slices.Clone(a.blobs[name].content), nil
	}
	return nil, fmt.Errorf("blob %s of %s is missing", name, id)
}

// Outcome implements Reader.
func (m *Memory) Outcome(id actor.ID, n uint64) (Ended, error) {
	a := m.actors[id]
	if a == nil || n == 0 || n > a.end() {
		return Ended{}, fmt.Errorf("entry %d of %s is missing", n, id)
	}
	stored, ok := a.kept[n]
	switch {
	case n > a.cut:
		stored = a.all[n-1-a.cut]
	case !ok:
		return Ended{}, fmt.Errorf("entry %d of %s was cut", n, id)
	}
	e, err := DecodeEntry(stored.encoded)
	if kept, ok := e.Record.(Kept); ok && err == nil {
		return kept.Outcome, nil
	}
	if err != nil {
		return Ended{}, fmt.Errorf("entry %d of %s: %w", n, id, err)
	}
	outcome, ok := e.Record.(Ended)
	if !ok {
		return Ended{}, fmt.Errorf("entry %d of %s is not an outcome", n, id)
	}
	return outcome, nil
}

// Due implements Reader.
func (m *Memory) Due(shards []uint16, each func(actor.ID)) error {
	wanted := map[uint16]bool{}
	for _, s := range shards {
		wanted[s] = true
	}
	ids := slices.SortedFunc(maps.Keys(m.open), func(a, b actor.ID) int {
		x, y := m.open[a], m.open[b]
		return cmp.Or(cmp.Compare(x.shard, y.shard), cmp.Compare(x.due, y.due), cmp.Compare(x.name, y.name))
	})
	for _, id := range ids {
		if wanted[m.open[id].shard] {
			each(id)
		}
	}
	return nil
}

// Run implements Reader.
func (m *Memory) Run(tenant string, run actor.CallID) (RunOwner, bool, error) {
	at, ok := searchRun(m.runs[tenant], run)
	if !ok {
		return RunOwner{}, false, nil
	}
	s := &m.runs[tenant][at]
	if m.isDead(s.Actor) {
		return RunOwner{}, false, nil
	}
	return RunOwner{s.Run, s.Root, s.Actor}, true, nil
}

// Ended implements Reader.
func (m *Memory) Ended(tenant string, run actor.CallID) (bool, error) {
	at, ok := searchRun(m.runs[tenant], run)
	return ok && m.runs[tenant][at].Ended != 0, nil
}

// Events implements Reader.
func (m *Memory) Events(tenant string, run actor.CallID, after uint64, limit int) ([]RunEvent, error) {
	var page []RunEvent
	if last := m.dropped[tenantRun{tenant, run}]; after < last && limit > 0 {
		return nil, EventsDropped{run, last + 1}
	}
	for _, ev := range m.events[tenantRun{tenant, run}] {
		if len(page) >= limit {
			break
		}
		if ev.Seq <= after {
			continue
		}
		if want := after + uint64(len(page)) + 1; ev.Seq != want {
			return page, fmt.Errorf("event %d of run %s is missing, the next is %d", want, run, ev.Seq)
		}
		ev.Body = slices.Clone(ev.Body)
		page = append(page, ev.RunEvent)
	}
	return page, nil
}

// Result implements Reader.
func (m *Memory) Result(tenant string, run actor.CallID, seq uint64) ([]actor.Part, error) {
	owner, ok, err := m.Run(tenant, run)
	if err != nil || !ok {
		return nil, err
	}
	for _, stored := range m.actors[owner.Actor].all {
		e, err := DecodeEntry(stored.encoded)
		if err != nil {
			return nil, fmt.Errorf("entry of %s: %w", owner.Actor, err)
		}
		if e.shows(run, seq, seq) {
			return answerOf(&e, seq), nil
		}
	}
	return nil, nil
}

// Spendings implements Reader.
func (m *Memory) Spendings(tenant string, f runs.Filter, before actor.CallID, each func(*runs.Summary)) (next actor.CallID, err error) {
	page, err := m.Runs(tenant, runs.Filter{Since: f.Since, Until: f.Until, Calls: true, System: true}, before, ListedRowsMax)
	for i := range page.All {
		if len(page.All[i].Spent) > 0 {
			each(&page.All[i])
		}
	}
	return page.Next, err
}

// Runs implements Reader.
func (m *Memory) Runs(tenant string, f runs.Filter, before actor.CallID, limit int) (runs.Page, error) {
	from, to := f.Range()
	var page runs.Page
	var last actor.CallID
	read := 0
	for i := range slices.Backward(m.runs[tenant]) {
		s := &m.runs[tenant][i]
		if !before.IsZero() && s.Run.Compare(before) >= 0 || !to.IsZero() && s.Run.Compare(to) >= 0 {
			continue
		}
		if s.Run.Compare(from) < 0 {
			break
		}
		if len(page.All) >= limit || read >= ListedRowsMax {
			page.Next = last
			break
		}
		read++
		if last = s.Run; f.Selects(s) && !m.isDead(s.Actor) {
			page.All = append(page.All, cloneSummary(s))
		}
	}
	return page, nil
}
