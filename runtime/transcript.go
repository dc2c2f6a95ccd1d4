// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/store"
)

// Transcripts. The turn of a client's message gets the earlier messages of the conversation. These
// are the messages that the transcript had when the turn began, except those that were left out
// because a model refused them as too long. A replay gets the same messages. Closed pages of the
// transcript are not in memory: a message stays in its mailbox until the pages for its turn have been
// read from the log, and a restored turn is replayed only then.

// earlier are the messages of the conversation that a turn is given.
type earlier struct {
	messages []actor.ChatMessage
	complete bool // messages was read
	waits    bool // for pages
}

// transcripts is the part of a cell that gives turns their transcripts.
type transcripts struct {
	cell *Cell
	act  *activation
}

// pageCache are the pages of an actor's transcript that its open runs need.
type pageCache struct {
	pages   map[actor.Hash][]actor.ChatMessage
	bytes   int // of pages
	reading []actor.Hash
	retryAt actor.Time // time at which failed reads are repeated; 0 if none failed
}

func (p *pageCache) get(name actor.Hash) ([]actor.ChatMessage, bool) {
	messages, ok := p.pages[name]
	return messages, ok
}

// add adds a page that was read. It returns false if no run waits for the page.
func (p *pageCache) add(name actor.Hash, messages []actor.ChatMessage) bool {
	i := slices.Index(p.reading, name)
	if i < 0 {
		return false
	}
	p.reading = slices.Delete(p.reading, i, i+1)
	if p.pages == nil {
		p.pages = map[actor.Hash][]actor.ChatMessage{}
	}
	p.pages[name] = messages
	p.bytes += pageSize(messages)
	return true
}

func (p *pageCache) remove(name actor.Hash) {
	p.bytes -= pageSize(p.pages[name])
	delete(p.pages, name)
}

// hasPages reports whether the next message of an actor may begin its turn. If not, it
// requests the pages that are missing.
func (s transcripts) hasPages() bool {
	c, act := s.cell, s.act
	if !act.durable || len(act.journal.Transcript.Pages) == 0 {
		return true
	}
	ready := true
	for _, run := range act.journal.Runs {
		if !run.Started() {
			ready = s.hasEarlierPages(run, c.definitions.of(run)) && ready
		}
	}
	return ready
}

// readTranscript gives a turn the earlier messages. It returns false if the turn has to
// wait for pages of the transcript.
func (t *turn) readTranscript(c *Cell) bool {
	e := &t.earlier
	if e.complete || t.def == nil {
		return true
	}
	n := t.act.journal.Transcript.Len() // Asking records it in Run.Heard, within the step in which the turn begins
	if t.run.Started() {
		n = t.run.Heard
	}
	e.messages, e.complete = transcripts{c, t.act}.earlierMessages(t.run, t.def, n)
	e.waits = !e.complete
	return e.complete
}

// earlierMessages returns the messages that the turn of a run is given, of a transcript with
// n messages. If pages are missing, it requests them and returns false.
func (s transcripts) earlierMessages(run *store.Run, def *actor.Definition, n uint64) ([]actor.ChatMessage, bool) {
	act := s.act
	if def == nil || def.Transcript == actor.TranscriptNone || !act.durable || !run.Call.IsRoot() {
		return nil, true
	}
	messages, missing := act.journal.Transcript.Range(def.Transcript.Window(n), n, act.pageCache.get)
	s.requestPages(missing)
	if len(missing) > 0 {
		return nil, false
	}
	return slices.DeleteFunc(messages, func(m actor.ChatMessage) bool { return m.Extensions.LeftOut() }), true
}

// hasEarlierPages is earlierMessages for a run that has not begun. It decodes no page.
func (s transcripts) hasEarlierPages(run *store.Run, def *actor.Definition) bool {
	act := s.act
	if def == nil || def.Transcript == actor.TranscriptNone || !run.Call.IsRoot() {
		return true
	}
	n := act.journal.Transcript.Len()
	missing := act.journal.Transcript.Missing(def.Transcript.Window(n), n, act.pageCache.get)
	s.requestPages(missing)
	return len(missing) == 0
}

// requestPages requests the pages that are missing.
func (s transcripts) requestPages(missing []actor.Hash) {
	c, act := s.cell, s.act
	for _, page := range missing {
		_, wrong := act.pageCache.get(page)
		switch {
		case act.pageCache.retryAt != 0:
		case wrong: // it has another number of messages than the transcript states
			act.pageCache.remove(page)
			act.pageCache.retryAt = c.now.Add(c.limits.ResendAfter)
		case !slices.Contains(act.pageCache.reading, page):
			act.pageCache.reading = append(act.pageCache.reading, page)
			s.loadPage(page)
		}
	}
}

func (s transcripts) loadPage(page actor.Hash) {
	c, act := s.cell, s.act
	c.addEffect(Effect{Gated: true, Op: Load{Actor: act.id, Epoch: act.epoch, Page: page}})
}

// pageLoaded continues the turns that wait for a page.
func (c *Cell) pageLoaded(in PageLoaded) {
	act := c.actors.find(in.Actor)
	switch {
	case act == nil || !act.loaded:
		return
	case c.failpoints.On(failpoint.LoadMisses) && slices.Contains(act.pageCache.reading, in.Page):
		transcripts{c, act}.loadPage(in.Page)
		return
	case !act.pageCache.add(in.Page, in.Messages):
		return
	}
	transcripts{c, act}.continueTranscripts()
}

// continueTranscripts lets the turns continue that have all their pages, and repeats the
// effects that waited for them.
func (s transcripts) continueTranscripts() {
	c, act := s.cell, s.act
	for _, t := range slices.Clone(act.turns) {
		if !t.earlier.waits || !t.readTranscript(c) {
			continue
		}
		for i := range t.run.Last() {
			if a := &t.run.Last()[i]; t.sends[i].replays && a.Open() && !t.ended {
				t.sends[i].replays = false
				t.resumeEffect(c, i)
			}
		}
	}
	c.markDirty(act)
}

// pageFailed repeats the read of a page later.
func (s transcripts) pageFailed(page actor.Hash) {
	c, act := s.cell, s.act
	act.pageCache.reading = slices.DeleteFunc(act.pageCache.reading, func(name actor.Hash) bool { return name == page })
	act.pageCache.retryAt = c.now.Add(c.limits.ResendAfter)
	c.markDirty(act)
}

// retryPages repeats failed reads that are due.
func (s transcripts) retryPages() {
	c, act := s.cell, s.act
	if act.pageCache.retryAt != 0 && c.now >= act.pageCache.retryAt {
		act.pageCache.retryAt = 0
		s.continueTranscripts()
	}
}

// appendMessage handles a signal with the operation Append.
func (s transcripts) appendMessage(call *actor.Call) {
	c, act := s.cell, s.act
	role := call.AppendedRole()
	switch def := c.definitions.current(call.To.Agent); {
	case def == nil || def.System:
		c.refuse(call, actor.AgentNotFound(call.To.Agent))
	case !act.durable || !journaled(def):
		c.refuse(call, actor.Refuse(actor.Rejected, "agent %s has durability none, so it keeps no transcript", call.To.Agent))
	case role == 0:
		c.refuse(call, actor.Refuse(actor.Invalid, "the message has no role"))
	default:
		message := actor.ChatMessage{Call: call.ID, Role: role, Source: call.AppendedSource(), At: c.now, Parts: call.Parts}
		act.record(c, store.Appended{At: c.now, Message: message}, store.Shown{})
		act.recordOutcome(c, call, &actor.Reply{Call: call.ID, Run: call.ID, Status: actor.Succeeded, Budget: call.Budget}, true)
	}
}
