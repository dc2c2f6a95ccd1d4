// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/store"
)

// transcriptJudge checks that the transcript of an actor is what happened: the messages of
// clients whose runs have ended, their answers, and appended messages, in the order of the
// log. It folds the entries that the store has taken by rules of its own, and knows neither
// pages nor snapshots.
type transcriptJudge struct {
	w        *Simulation
	actors   map[actor.ID]*judgedTranscript
	policies map[actor.Hash]int // messages that an agent is given, by the hash of its definition; givenAll: all
	cell     *cell              // that steps
	begun    []begunTurn        // turns that began in its step
	given    map[entryKey]begunTurn
}

// judgedTranscript is the transcript of an actor.
type judgedTranscript struct {
	messages []actor.ChatMessage
	runs     map[actor.CallID]*heardRun
	ended    uint64 // runs
	usage    actor.Usage
}

// heardRun is a run that a client began.
type heardRun struct {
	accepted store.Accepted
	begun    bool
	heard    int // messages when its turn began
	ended    bool
}

// begunTurn is a turn with the messages that it is given.
type begunTurn struct {
	call     actor.CallID
	to       actor.ID
	messages []actor.ChatMessage
}

// entryKey identifies an entry before the store has taken it. Cells that own the actor under
// different epochs may write entries with one number; the store takes one of them.
type entryKey struct {
	actor actor.ID
	n     uint64
	epoch actor.Epoch
}

const givenAll = -1

// longestRead is the number of transcripts that are read at each start of a node and at the
// end: the longest ones.
const longestRead = 12

func newTranscriptJudge(w *Simulation) transcriptJudge {
	return transcriptJudge{w: w, actors: map[actor.ID]*judgedTranscript{}, policies: map[actor.Hash]int{}, given: map[entryKey]begunTurn{}}
}

// start records the policies of the agents of the plan.
func (j *transcriptJudge) start() {
	p := &j.w.plan
	for i := range p.Agents {
		def := &p.Agents[i]
		if spec := p.Specs[def.Name]; spec != nil {
			j.learn(def.Hash, spec)
		} else if def.Kind == actor.Native {
			j.policies[def.Hash] = int(def.Transcript)
		}
	}
}

func (j *transcriptJudge) fail(format string, args ...any) {
	j.w.fail(TranscriptIsWhatHappened, fmt.Sprintf(format, args...))
}

// learn records the policy of an agent. Without a policy, an agent with a journal is given
// the last 100 messages, an external one the last 50.
func (j *transcriptJudge) learn(hash actor.Hash, spec map[string]any) {
	text, _ := spec["transcript"].(string)
	switch _, external := spec["endpoint"]; {
	case text != "":
	case spec["durability"] == "none":
		text = "none"
	case external:
		text = "last:50"
	default:
		text = "last:100"
	}
	n := map[string]int{"none": 0, "all": givenAll}[text]
	if last, ok := strings.CutPrefix(text, "last:"); ok {
		n, _ = strconv.Atoi(last)
	}
	j.policies[hash] = n
}

// learnBody is learn for the body of a request that registers an agent.
func (j *transcriptJudge) learnBody(body []byte) {
	var fields map[string]any
	if spec, err := agents.ReadJSON(body); err == nil && json.Unmarshal(body, &fields) == nil {
		j.learn(spec.Hash(), fields)
	}
}

func (j *transcriptJudge) of(id actor.ID) *judgedTranscript {
	t := j.actors[id]
	if t == nil {
		t = &judgedTranscript{runs: map[actor.CallID]*heardRun{}}
		j.actors[id] = t
	}
	return t
}

// commit records the entries of a batch that the store has taken.
func (j *transcriptJudge) commit(b *store.Batch) {
	for i := range b.Entries {
		e := &b.Entries[i]
		key := entryKey{e.Actor, e.N, e.Epoch}
		switch r := e.Record.(type) {
		case store.Accepted:
			if isMessage(&r.Call) {
				j.accept(e.Actor, r)
			}
		case store.Asking:
			if t, run := j.run(e.Actor, r.Run); run != nil && !run.begun {
				j.begin(key, t, run)
			}
		case store.Ended:
			if t, run := j.run(e.Actor, r.Call); run != nil && !run.ended {
				if !run.begun {
					j.begin(key, t, run)
				}
				t.end(run, &r)
			}
		case store.Appended:
			j.append(e.Actor, &r)
		case store.Forgotten:
			for id := range j.actors {
				if session, ok := id.Session(); ok && session == e.Actor.Key && id.Tenant == e.Actor.Tenant {
					delete(j.actors, id)
				}
			}
		}
	}
}

// isMessage reports whether a call is a message of a client to an agent, or the outcome of a detached call.
func isMessage(call *actor.Call) bool {
	return len(call.Chain) == 0 && (call.Kind == actor.Waiting || call.Kind == actor.OneWay) && call.To.Agent != "troupe" && call.Operation == actor.HandleMessageFull
}

func (j *transcriptJudge) run(id actor.ID, call actor.CallID) (*judgedTranscript, *heardRun) {
	t := j.actors[id]
	if t == nil {
		return nil, nil
	}
	return t, t.runs[call]
}

// accept records a message. One that waits for no other run is accepted only if none is open.
func (j *transcriptJudge) accept(id actor.ID, r store.Accepted) {
	t := j.of(id)
	if policy := r.Call.Busy(); policy != actor.BusyQueue {
		for _, run := range slices.SortedFunc(maps.Keys(t.runs), actor.CallID.Compare) {
			if o := t.runs[run]; !o.ended && (o.begun || o.accepted.Call.Kind != actor.OneWay) { // an outcome that waits is not interrupted
				j.fail("message %s to %s with if_busy %s is accepted while run %s is open", r.Call.ID, id, policy, run)
			}
		}
	}
	t.runs[r.Call.ID] = &heardRun{accepted: r}
}

// begin records the entry with which a turn begins, and checks the messages that it is given.
func (j *transcriptJudge) begin(key entryKey, t *judgedTranscript, run *heardRun) {
	run.begun, run.heard = true, len(t.messages)
	if b, ok := j.given[key]; ok && b.call == run.accepted.Call.ID {
		delete(j.given, key)
		j.checkGiven(&b, run)
	}
}

func (t *judgedTranscript) end(run *heardRun, e *store.Ended) {
	call := &run.accepted.Call
	run.ended = true
	t.ended++
	t.usage = t.usage.Add(e.Reply.Tree)
	m := actor.ChatMessage{Call: call.ID, Role: actor.RoleUser, Source: actor.FromUser, At: run.accepted.At, Parts: call.Parts}
	if call.Kind == actor.OneWay {
		of, ok := call.Extensions.Provenance()
		if !ok {
			of.Tool = "unknown"
		}
		m.Source, m.Extensions = actor.FromDelivered, m.Extensions.WithProvenance(of)
	}
	if r := e.Reply.Refusal; r != nil && r.Field == "content" && e.Reply.Extensions.LeftOut() { // the prompt was too long
		m.Extensions = m.Extensions.WithLeftOut()
	}
	t.messages = append(t.messages, m)
	if e.Reply.Refusal == nil {
		t.messages = append(t.messages, actor.ChatMessage{Call: call.ID, Role: actor.RoleAssistant, Source: actor.FromAgent, At: e.At, Parts: e.Reply.Parts})
	}
}

func (j *transcriptJudge) append(id actor.ID, r *store.Appended) {
	t := j.of(id)
	if slices.ContainsFunc(t.messages, func(m actor.ChatMessage) bool { return m.Call == r.Message.Call }) {
		j.fail("message %s is appended to the transcript of %s twice", r.Message.Call, id)
	}
	m := r.Message
	if m.At = r.At; m.Source != actor.FromDelivered {
		m.Source = actor.FromOperator
	}
	t.messages = append(t.messages, m)
	j.w.Stats.Points[MessageAppended]++
}

// window returns the messages that the turn of a run is given.
func (j *transcriptJudge) window(run *heardRun) []actor.ChatMessage {
	t := j.actors[run.accepted.Call.To]
	n, known := j.policies[run.accepted.Definition]
	if t == nil || !known || n == 0 {
		return nil
	}
	if n == givenAll || n > run.heard {
		n = run.heard
	}
	return slices.DeleteFunc(slices.Clone(t.messages[run.heard-n:run.heard]), func(m actor.ChatMessage) bool { return m.Extensions.LeftOut() })
}

// heard returns the messages that the run of a call is given. The run of another actor, or of
// an actor without a journal, is given none.
func (j *transcriptJudge) heard(call *actor.Call) []actor.ChatMessage {
	if _, run := j.run(call.To, call.ID); run != nil && run.begun {
		return j.window(run)
	}
	return nil
}

// beginTurn records that a turn begins in the current step, or checks a turn that is replayed.
// A cell that has lost the actor may begin a turn whose entries the store does not take.
func (j *transcriptJudge) beginTurn(b actor.Begin) {
	turn := begunTurn{b.Call.ID, b.Call.To, b.Transcript}
	_, run := j.run(turn.to, turn.call)
	switch g := j.w.claims.groupOf(dispatcher.ShardOf(turn.to)); {
	case run == nil || !run.begun:
		j.begun = append(j.begun, turn)
	case j.cell != nil && j.w.claims.owner(g) == j.cell.n && j.w.claims.groups[g].cell == j.cell.index:
		if len(turn.messages) > 0 {
			j.w.Stats.Points[TranscriptReplayed]++
		}
		j.checkGiven(&turn, run)
	}
}

// stepped assigns the turns that began in a step to the entries that record it. A turn that is
// in no entry belongs to an actor without a journal.
func (j *transcriptJudge) stepped(entries []store.Entry) {
	for _, b := range j.begun {
		at := slices.IndexFunc(entries, func(e store.Entry) bool {
			switch r := e.Record.(type) {
			case store.Asking:
				return r.Run == b.call
			case store.Ended:
				return r.Call == b.call
			}
			return false
		})
		switch {
		case at >= 0:
			e := &entries[at]
			j.given[entryKey{e.Actor, e.N, e.Epoch}] = b
		case len(b.messages) > 0:
			j.fail("the turn %s of %s is given %d messages, but leaves no entry", b.call, b.to, len(b.messages))
		}
	}
	j.begun = nil
}

// checkGiven compares the messages that a turn is given with those of the transcript when it
// began.
func (j *transcriptJudge) checkGiven(b *begunTurn, run *heardRun) {
	if _, known := j.policies[run.accepted.Definition]; known {
		if what := differentMessages(b.messages, j.window(run)); what != "" {
			j.fail("the turn of run %s of %s, which began after %d messages, is given %s", b.call, b.to, run.heard, what)
		}
	}
}

// differentMessages describes the first difference of two lists of messages, or returns "".
func differentMessages(got, want []actor.ChatMessage) string {
	for i := range min(len(got), len(want)) {
		if g, w := &got[i], &want[i]; g.Role != w.Role || g.Call != w.Call || g.Source != w.Source || g.At != w.At || !sameParts(g.Parts, w.Parts) {
			return fmt.Sprintf("%d messages, of which number %d is %.300s, want %.300s", len(got), i, messageText(g), messageText(w))
		}
	}
	if len(got) != len(want) {
		return fmt.Sprintf("%d messages, want %d", len(got), len(want))
	}
	return ""
}

func sameParts(got, want []actor.Part) bool {
	return slices.EqualFunc(got, want, func(g, w actor.Part) bool {
		return g.Media == w.Media && bytes.Equal(g.Bytes, w.Bytes) && g.Blob == w.Blob && g.Size == w.Size
	})
}

func messageText(m *actor.ChatMessage) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s from %s at %d:", m.Role, m.Call, m.Source, m.At)
	for _, p := range m.Parts {
		fmt.Fprintf(&b, " %s %q", p.Media, p.Bytes)
	}
	return b.String()
}

// acknowledged checks that a message whose answer a client has received is in the transcript.
func (j *transcriptJudge) acknowledged(to actor.ID, reply *actor.Reply) {
	t := j.actors[to]
	if t == nil { // its session was deleted
		return
	}
	if !slices.ContainsFunc(t.messages, func(m actor.ChatMessage) bool {
		return m.Call == reply.Run && m.Source != actor.FromUser && (m.Source == actor.FromOperator || sameParts(m.Parts, reply.Parts))
	}) {
		j.fail("the transcript of %s lacks the message of run %s that a client knows", to, reply.Run)
	}
}

// checkStored checks the longest stored transcripts, in an audited world all, and counts those
// with pages.
func (j *transcriptJudge) checkStored() {
	if !j.w.judgesBytes || j.w.isCorrupt() || j.w.violation != nil {
		return
	}
	ids := slices.SortedFunc(maps.Keys(j.actors), func(a, b actor.ID) int {
		return cmp.Or(cmp.Compare(len(j.actors[b].messages), len(j.actors[a].messages)), a.Compare(b))
	})
	if !j.w.auditEnabled() {
		ids = ids[:min(longestRead, len(ids))]
	}
	for _, id := range ids {
		if what := j.checkActor(id, j.actors[id]); what != "" {
			j.fail("the stored transcript of %s has %s", id, what)
			return
		}
	}
}

func (j *transcriptJudge) checkActor(id actor.ID, want *judgedTranscript) string {
	saved, err := j.w.store.Load(id)
	if err != nil {
		return err.Error()
	}
	journal, err := store.Fold(saved)
	if err != nil {
		return err.Error()
	}
	t := &journal.Transcript
	messages, err := store.ReadTranscript(j.w.store, id, t, 0, t.Len())
	if err != nil {
		return err.Error()
	}
	if len(t.Pages) > 0 {
		j.w.Stats.Audit.TranscriptIsWhatHappened++
	}
	if what := differentMessages(messages, want.messages); what != "" {
		return what
	}
	var began, last actor.Time
	if n := len(want.messages); n > 0 {
		began, last = want.messages[0].At, want.messages[n-1].At
	}
	if t.Began != began || t.Last != last || t.Runs != want.ended || t.Usage != want.usage {
		return fmt.Sprintf("%d runs from %d to %d with usage %+v, want %d from %d to %d with %+v", t.Runs, t.Began, t.Last, t.Usage, want.ended, began, last, want.usage)
	}
	return ""
}
