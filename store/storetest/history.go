// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// operation is a change of one actor.
type operation uint8

const (
	accept   operation = iota // accept a call
	ask                       // add a step to a run, or answer the ask of its last step
	end                       // end a run
	refuse                    // set the outcome of a call without a run
	bury                      // set a tombstone
	snapshot                  // evict some outcomes and write a snapshot
	detach                    // make a detached call, or end one
	chat                      // many messages: those of runs with their answers, or appended ones
)

// ids are the actors of a history. In text, unlike field by field, a/b sorts after a-b/b. The
// last one belongs to no session.
var ids = []actor.ID{
	{Tenant: "default", Agent: "a", Key: "b"}, {Tenant: "default", Agent: "a-b", Key: "b"}, {Tenant: "default", Agent: "a", Key: "a"},
	{Tenant: "default", Agent: "a", Key: "a-b"}, {Tenant: "other", Agent: "a", Key: "b"}, {Tenant: "other", Agent: "z.1", Key: "c"},
	{Tenant: "other", Agent: "a", Key: actor.DefaultKey},
}

// history draws the entries of several actors. The entries of an actor can be folded.
type history struct {
	t           *rapid.T
	transcripts map[actor.ID][]actor.ChatMessage
	calls       uint64
	runs        []store.RunOwner // all accepted calls
	journals    map[actor.ID]*store.Journal
	events      map[actor.CallID]uint64 // number of the last event of each run
	accepted    map[actor.CallID]*actor.Call
	now         actor.Time
	isFree      func(actor.ID) bool // the session of an actor is not deleted
}

func newHistory(t *rapid.T) *history {
	h := &history{t: t, transcripts: map[actor.ID][]actor.ChatMessage{}, journals: map[actor.ID]*store.Journal{}, events: map[actor.CallID]uint64{}, accepted: map[actor.CallID]*actor.Call{}, now: 1}
	for _, id := range ids {
		h.journals[id] = &store.Journal{}
	}
	return h
}

// shard returns the shard of an actor. All sessions b share one.
func shard(id actor.ID) uint16 { return uint16(id.Key[0]) }

// draw returns the next entries, of one of these operations.
func (h *history) draw(operations []operation) []store.Entry {
	id := rapid.SampledFrom(slices.DeleteFunc(slices.Clone(ids), func(id actor.ID) bool { return !h.isFree(id) })).Draw(h.t, "actor")
	j := h.journals[id]
	h.now += actor.Time(rapid.IntRange(0, 3).Draw(h.t, "time"))
	switch op := rapid.SampledFrom(operations).Draw(h.t, "operation"); op {
	case snapshot:
		for range rapid.IntRange(0, 4).Draw(h.t, "evicted") {
			j.EvictOutcome()
		}
		e := store.Entry{Actor: id, Shard: shard(id), Epoch: 3, N: j.N, Record: store.SnapshotOf(j), WasDue: j.Due(), Due: j.Due()}
		j.Transcript.Stored()
		return []store.Entry{e}
	case chat:
		return h.chat(id)
	default:
		record, run := h.record(id, j, op)
		return []store.Entry{h.entry(id, record, run)}
	}
}

// chat draws messages to an actor, enough for a page of its transcript.
func (h *history) chat(id actor.ID) (all []store.Entry) {
	text := rapid.SampledFrom([]string{"", "x", strings.Repeat("large ", store.BlobBytesMin/5), strings.Repeat("huge ", store.PageBytesMax/16)}).Draw(h.t, "text")
	n, appends := 5, rapid.Bool().Draw(h.t, "appended")
	if appends && len(text) < store.BlobBytesMin {
		n = 40
	}
	for i := range rapid.IntRange(1, n).Draw(h.t, "messages") {
		h.now++
		text := fmt.Sprint(text, i)
		if appends {
			m := actor.ChatMessage{Call: h.call(), Role: actor.RoleTool, Source: actor.FromOperator, At: h.now, Parts: actor.Text(text)}
			all = append(all, h.entry(id, store.Appended{At: h.now, Message: m}, actor.CallID{}))
			continue
		}
		run := h.accept(id, text, false)
		all = append(all, h.entry(id, run, run.Call.ID))
		end := h.ended(run.Call.ID, rapid.SampledFrom([]actor.Status{actor.Succeeded, actor.Failed}).Draw(h.t, "status"))
		all = append(all, h.entry(id, end, end.Call))
	}
	return all
}

// entry returns the next entry of an actor, and applies it. The run of its events may be zero.
func (h *history) entry(id actor.ID, record store.Record, run actor.CallID) store.Entry {
	j := h.journals[id]
	e := store.Entry{Actor: id, Shard: shard(id), Epoch: 3, Record: record, WasDue: j.Due()}
	h.converse(id, record)
	summary, changed, err := j.ApplySummarized(e.Record)
	if err != nil {
		h.t.Fatalf("the drawn record %+v is not valid: %v", e.Record, err)
	}
	if changed {
		e.Summary = &summary
	}
	switch {
	case run.IsZero():
	case rapid.Bool().Draw(h.t, "with bodies"):
		for range rapid.IntRange(0, 3).Draw(h.t, "events") {
			h.events[run]++
			e.Events = append(e.Events, store.RunEvent{Run: run, Seq: h.events[run], Body: fmt.Appendf(nil, `{"%d":%q}`, h.events[run], h.text())})
		}
	default:
		h.show(&e)
		after := h.events[run]
		h.events[run] = e.NumberEvents(after)
		if n, want := h.events[run]-after, len(derivedEvents(&e)); n != uint64(want) {
			h.t.Fatalf("%+v has %d events, want %d", e, n, want)
		}
	}
	e.N, e.Due = j.N, j.Due()
	return e
}

// converse adds the messages of a record to the transcript of an actor.
func (h *history) converse(id actor.ID, record store.Record) {
	add := func(m actor.ChatMessage) {
		m.Parts = actor.CloneParts(m.Parts)
		h.transcripts[id] = append(h.transcripts[id], m)
	}
	switch r := record.(type) {
	case store.Appended:
		add(r.Message)
	case store.Ended:
		run := h.journals[id].Run(r.Call)
		if run == nil || !run.Call.Parent.IsZero() {
			return // no message of a client
		}
		add(actor.ChatMessage{Call: r.Call, Role: actor.RoleUser, Source: actor.FromUser, At: run.At, Parts: run.Call.Parts})
		if r.Reply.Status == actor.Succeeded {
			add(actor.ChatMessage{Call: r.Call, Role: actor.RoleAssistant, Source: actor.FromAgent, At: r.At, Parts: r.Reply.Parts})
		}
	}
}

// show sets the part of the derived events of an entry that its record lacks.
func (h *history) show(e *store.Entry) {
	began := rapid.Bool().Draw(h.t, "turn begins")
	switch r := e.Record.(type) {
	case store.Asking:
		e.Shown = store.Shown{Began: began, Left: 1_000_000_000, Call: h.accepted[r.Run], Step: 1}
	case store.Answered:
		e.Shown.Ask = &store.ShownAsk{Kind: actor.AskTool, Name: "look"}
	case store.Ended:
		e.Shown = store.Shown{Began: began, Left: 1_000_000_000, Call: h.accepted[r.Call]}
	}
}

// event is an event that a history MUST have. Of a derived event, which has no body here,
// the suite checks the type and the text.
type event struct {
	store.RunEvent
	shows runs.Type
	text  string
}

// derivedEvents returns the events that an entry of a history shows if they are derived.
func derivedEvents(e *store.Entry) (all []event) {
	add := func(run actor.CallID, shows runs.Type, text []actor.Part) {
		all = append(all, event{store.RunEvent{Run: run, Seq: e.Shown.Seq + uint64(len(all))}, shows, actor.TextOf(text)})
	}
	began := func(run actor.CallID) {
		if e.Shown.Began {
			add(run, runs.RunStarted, nil)
		}
	}
	switch r := e.Record.(type) {
	case store.Accepted:
		if r.Call.Parent.IsZero() {
			add(r.Call.ID, runs.UserInput, r.Call.Parts)
		}
	case store.Asking:
		began(r.Run)
		add(r.Run, runs.ToolCallCreated, r.Asks[0].Ask.Parts)
		add(r.Run, runs.ToolDispatched, nil)
	case store.Answered:
		add(r.Run, runs.ToolResult, r.Answer.Parts)
	case store.Ended:
		began(r.Call)
		if r.Reply.Refusal != nil {
			add(r.Call, runs.RunFailed, nil)
		} else {
			add(r.Call, runs.RunDone, r.Reply.Parts)
		}
	}
	return all
}

// eventsOf returns the events of an entry, written or derived.
func eventsOf(e *store.Entry) (all []event) {
	if e.Shown.N > 0 {
		return derivedEvents(e)
	}
	for _, ev := range e.Events {
		all = append(all, event{RunEvent: ev})
	}
	return all
}

// matches reports whether a read event is the one that a history has.
func (ev *event) matches(got *store.RunEvent) bool {
	if got.Run != ev.Run || got.Seq != ev.Seq {
		return false
	}
	if ev.shows == 0 {
		return bytes.Equal(got.Body, ev.Body)
	}
	v, err := runs.Decode(got.Body)
	return err == nil && v.Run == ev.Run && v.Seq == ev.Seq && v.Type == ev.shows && (v.Text == ev.text || v.Truncated && len(v.Text) == runs.TextBytesMax && strings.HasPrefix(ev.text, v.Text))
}

// record draws a record and returns it with its run, if it has one. An operation on a run
// accepts a call instead if the actor has no open run.
func (h *history) record(id actor.ID, j *store.Journal, op operation) (store.Record, actor.CallID) {
	var run *store.Run
	if len(j.Runs) > 0 {
		run = rapid.SampledFrom(j.Runs).Draw(h.t, "run")
	}
	switch {
	case op == detach && len(j.Mail.Rows) > 0 && rapid.Bool().Draw(h.t, "ends"):
		return h.settled(j), actor.CallID{}
	case op == detach && run != nil:
		c := actor.Call{ID: h.call(), Root: run.Call.Root, Parent: run.Call.ID, To: ids[0], Chain: run.Call.Path(), Operation: actor.HandleMessageFull, Kind: actor.Detached,
			Lane: actor.Normal, Left: 30, Attempt: 1, Origin: actor.Agent, Parts: actor.Text(h.text())}
		left := actor.Duration(rapid.IntRange(1, 20).Draw(h.t, "left"))
		return store.Detached{Pending: store.Pending{Call: c, Tool: "agent_call", Skill: "look", Client: "mine", At: h.now, Clock: actor.NewClock(h.now, left)}}, actor.CallID{}
	case op == refuse:
		return h.ended(h.call(), actor.Failed), actor.CallID{}
	case op == bury:
		return store.Buried{Call: h.call(), At: h.now, Until: h.now + 5}, actor.CallID{}
	case op == accept || run == nil:
		a := h.accept(id, h.text(), rapid.Bool().Draw(h.t, "child"))
		return a, a.Call.ID
	case op == end:
		return h.ended(run.Call.ID, actor.Succeeded), run.Call.ID
	case len(run.Last()) > 0 && run.Last()[0].Open():
		return store.Answered{Run: run.Call.ID, Step: uint32(len(run.Steps)), At: h.now, Answer: actor.Answer{Parts: actor.Text(h.text())}}, run.Call.ID
	default:
		return store.Asking{Run: run.Call.ID, At: h.now, Asks: []store.Asked{{Ask: actor.Ask{Kind: actor.AskTool, Name: "look", Parts: actor.Text(h.text())}, Attempt: 1}}}, run.Call.ID
	}
}

// settled returns a record about the first detached call of an actor.
func (h *history) settled(j *store.Journal) store.Record {
	row := &j.Mail.Rows[0]
	switch {
	case row.Late || rapid.Bool().Draw(h.t, "nothing delivered"):
		return store.Late{Call: row.Call.ID, At: h.now, Status: actor.Succeeded}
	case rapid.Bool().Draw(h.t, "waits"):
		return store.Noticed{Call: row.Call.ID, At: h.now, For: actor.Hold{Reason: actor.HoldApproval, Subject: "a"}}
	}
	return store.Settled{Call: row.Call.ID, At: h.now, Run: h.call(), Left: actor.Duration(rapid.IntRange(0, 20).Draw(h.t, "left"))}
}

// accept returns the record of a call: of a client, or if possible of an earlier run.
func (h *history) accept(id actor.ID, text string, child bool) store.Accepted {
	c := actor.Call{ID: h.call(), To: id, Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal,
		Left: actor.Duration(rapid.IntRange(1, 20).Draw(h.t, "left")), Attempt: 1, Origin: actor.Human, Budget: 9, Parts: actor.Text(text)}
	c.Root = c.ID
	if len(h.runs) > 0 && child {
		parent := rapid.SampledFrom(h.runs).Draw(h.t, "parent")
		c.Root, c.Parent, c.Chain = parent.Root, parent.Run, []actor.ID{parent.Actor}
	}
	h.runs = append(h.runs, store.RunOwner{Run: c.ID, Root: c.Root, Actor: id})
	h.accepted[c.ID] = &c
	return store.Accepted{Call: c, At: h.now, Definition: actor.HashOf([]byte(id.Agent))}
}

func (h *history) ended(call actor.CallID, status actor.Status) store.Ended {
	reply := actor.Reply{Call: call, Run: call, Status: status, Parts: actor.Text(h.text())}
	if status == actor.Failed {
		reply.Refusal = actor.Refuse(actor.Invalid, "drawn")
	}
	return store.Ended{Call: call, At: h.now, Until: h.now + actor.Time(rapid.IntRange(1, 30).Draw(h.t, "until")), Reply: reply}
}

// call returns a new ID. IDs do not always grow with time, because nodes have clocks of
// their own.
func (h *history) call() actor.CallID {
	h.calls++
	at := actor.Time(rapid.IntRange(1, 9).Draw(h.t, "clock")) * 1_000_000_000
	return actor.NewCallID(at, 1, h.calls)
}

// text draws a text. Some texts are stored as blobs, and several entries share these.
func (h *history) text() string {
	n := rapid.IntRange(0, 12).Draw(h.t, "text")
	if n >= 10 {
		return string(bytes.Repeat([]byte{byte('a' + n)}, store.BlobBytesMin+n))
	}
	return fmt.Sprint("text ", n)
}

// written is a model of a stored log: the list of all its entries.
type written []writtenEntry

// writtenEntry is an entry and its place in the log.
type writtenEntry struct {
	store.Entry
	batch   uint64
	cut     bool       // deleted by a Cut
	cutAt   actor.Time // latest time of a Cut that deleted it or followed: outcomes that expired before are lost
	deleted bool       // with its session
}

// add appends a copy of an entry at the time now. An entry Cut applies to the entries
// before it.
func (w *written) add(e store.Entry, batch uint64, now actor.Time) {
	if c, ok := e.Record.(store.Cut); ok {
		for i := range *w {
			if e := &(*w)[i]; e.batch <= c.Upto.Batch {
				e.cut, e.cutAt = true, max(e.cutAt, c.At, now)
			}
		}
	}
	*w = append(*w, writtenEntry{Entry: copyEntry(e), batch: batch})
}

// copyEntry returns a copy that shares no bytes with the entry.
func copyEntry(e store.Entry) store.Entry {
	c := must(store.DecodeEntry(store.EncodeEntry(e)))
	if e.Summary != nil {
		s := *e.Summary
		c.Summary = &s
	}
	return c
}

// of returns the entries of an actor that change it, and its snapshots.
func (w written) of(id actor.ID) (all []writtenEntry) {
	for _, e := range w {
		if e.Actor != id || e.deleted {
			continue
		}
		switch e.Record.(type) {
		case store.Cut, store.Forgotten, store.Kept:
		default:
			all = append(all, e)
		}
	}
	return all
}

// deletion returns the entry that deleted the session of an actor, unless a Cut has passed
// it. Then the session is new.
func (w written) deletion(id actor.ID) (e writtenEntry, ok bool) {
	for _, e := range w {
		if _, ok := e.Record.(store.Forgotten); ok && !e.cut && e.Actor.Tenant == id.Tenant && e.Actor.Key == id.Key {
			return e, true
		}
	}
	return e, false
}

func (w written) isDeleted(id actor.ID) bool {
	_, ok := w.deletion(id)
	return ok
}

func (w written) load(id actor.ID) (saved store.Saved) {
	n := uint64(0)
	all := w.of(id)
	for _, e := range all {
		if s, ok := e.Record.(store.Snapshot); ok {
			saved.Snapshot, n = s.Journal, e.N
		}
	}
	for _, e := range all {
		if _, ok := e.Record.(store.Snapshot); !ok && e.N > n {
			e.Summary = nil
			all := eventsOf(&e.Entry)
			e.Events, e.Shown = nil, store.Shown{}
			for _, ev := range all {
				e.Events = append(e.Events, store.RunEvent{Run: ev.Run, Seq: ev.Seq})
			}
			saved.Entries = append(saved.Entries, e.Entry)
		}
	}
	return saved
}

// outcome returns the outcome in an entry, and whether the entry holds one. It is optional
// once the entry is cut, except while the outcome was needed at each Cut.
func (w written) outcome(id actor.ID, n uint64) (outcome store.Ended, ok, optional bool) {
	for _, e := range w.of(id) {
		if r, ok := e.Record.(store.Ended); ok && e.N == n {
			return r, true, e.cut && r.Until < e.cutAt
		}
	}
	return store.Ended{}, false, false
}

func (w written) due(shards []uint16) (all []actor.ID) {
	last := map[actor.ID]store.Entry{}
	for _, id := range ids {
		for _, e := range w.of(id) {
			if e.N >= last[id].N { // a snapshot before a Cut may be older
				last[id] = e.Entry
			}
		}
		if e := last[id]; e.Due != 0 && slices.Contains(shards, e.Shard) {
			all = append(all, id)
		}
	}
	text := func(id actor.ID) string {
		return fmt.Sprintf("%5d %20d %s/%s/%s", last[id].Shard, last[id].Due, id.Tenant, id.Agent, id.Key)
	}
	slices.SortFunc(all, func(a, b actor.ID) int { return bytes.Compare([]byte(text(a)), []byte(text(b))) })
	return all
}

// runs returns the last summaries of the runs of a tenant, newest run first.
func (w written) runs(tenant string) (all []runs.Summary) {
	for _, e := range slices.Backward(w) {
		known := func(s runs.Summary) bool { return s.Run == e.Summary.Run }
		if e.Summary != nil && !e.deleted && e.Actor.Tenant == tenant && !slices.ContainsFunc(all, known) {
			all = append(all, *e.Summary)
		}
	}
	slices.SortFunc(all, func(a, b runs.Summary) int { return b.Run.Compare(a.Run) })
	return all
}

// events returns all events of a run, and the number of the last one that was cut.
func (w written) events(tenant string, run actor.CallID) (all []event, dropped uint64) {
	for _, e := range w {
		if e.Actor.Tenant != tenant || e.deleted {
			continue
		}
		for _, ev := range eventsOf(&e.Entry) {
			if ev.Run != run {
				continue
			}
			if all = append(all, ev); e.cut {
				dropped = ev.Seq
			}
		}
	}
	return all, dropped
}
