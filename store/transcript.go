// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// A page of a transcript is closed at one of these sizes.
const (
	PageMessagesMax = 64
	PageBytesMax    = 256 << 10
)

// Transcript is the conversation of an actor: the fold of the messages of its root runs,
// their answers, and appended messages. Most of a long conversation lies in closed pages,
// which are blobs, so that a snapshot does not repeat it. The zero Transcript is empty.
type Transcript struct {
	Pages []Page              // closed pages, oldest first
	Tail  []actor.ChatMessage // messages of the open page, oldest first

	Began actor.Time  // time of the first message; 0 if there is none
	Last  actor.Time  // time of the last one
	Runs  uint64      // ended root runs
	Usage actor.Usage // of these runs, with the runs below them

	closed    uint64 // messages in Pages
	tailBytes int    // content of Tail in bytes
}

// Page is a closed page. Its content is the encoding of its messages, in which each part
// above BlobBytesMin is a reference to a blob.
type Page struct {
	Hash     actor.Hash // of the content
	Messages uint32     // at most PageMessagesMax

	content *pageContent // nil once a snapshot with the content is in the log; it is no part of a journal's encoding
}

// pageContent is the content of a page with the blobs that it refers to.
type pageContent struct {
	page  []byte
	blobs [][]byte
}

// Len returns the number of messages.
func (t *Transcript) Len() uint64 { return t.closed + uint64(len(t.Tail)) }

// add appends a message, and closes the page if it is full.
func (t *Transcript) add(m actor.ChatMessage) {
	if t.Len() == 0 {
		t.Began = m.At
	}
	t.Last = m.At
	t.Tail = append(t.Tail, m)
	t.tailBytes += actor.SizeOf(m.Parts)
	if len(t.Tail) < PageMessagesMax && t.tailBytes < PageBytesMax {
		return
	}
	content := encodePage(t.Tail)
	t.Pages = append(t.Pages, Page{Hash: actor.HashOf(content.page), Messages: uint32(len(t.Tail)), content: content})
	t.closed += uint64(len(t.Tail))
	t.Tail, t.tailBytes = nil, 0
}

func encodePage(messages []actor.ChatMessage) *pageContent {
	var p pageContent
	size := 0
	for i := range messages {
		size += 64 + actor.SizeOf(messages[i].Parts)
	}
	e := actor.Encoder{Buf: make([]byte, 0, min(size, 2*PageBytesMax))}
	e.Uint(uint64(len(messages)))
	for i := range messages {
		m := messages[i]
		if anyLarge(m.Parts) {
			m.Parts = slices.Clone(m.Parts)
			for j, part := range m.Parts {
				if len(part.Bytes) > BlobBytesMin {
					m.Parts[j] = actor.Part{Media: part.Media, Blob: actor.HashOf(part.Bytes), Size: uint64(len(part.Bytes))}
					p.blobs = append(p.blobs, part.Bytes)
				}
			}
		}
		e.ChatMessage(&m)
	}
	p.page = e.Buf
	return &p
}

// decodePage returns the messages of a page. References to blobs are left.
func decodePage(content []byte) ([]actor.ChatMessage, error) {
	d := newDecoder(content)
	all := decodeList(d, d.Count(PageMessagesMax, "messages of a page"), d.ChatMessage)
	if err := d.End(); err != nil {
		return nil, fmt.Errorf("page of a transcript: %w", err)
	}
	return all, nil
}

// readPage returns the messages of a page with the blobs that the callback returns.
func readPage(content []byte, blob func(actor.Hash) ([]byte, error)) ([]actor.ChatMessage, error) {
	all, err := decodePage(content)
	if err != nil {
		return nil, err
	}
	for i := range all {
		for j, part := range all[i].Parts {
			if part.Blob.IsZero() {
				continue
			}
			b, err := blob(part.Blob)
			if err != nil {
				return nil, err
			}
			all[i].Parts[j] = actor.Part{Media: part.Media, Bytes: b}
		}
	}
	return all, nil
}

// Range returns the messages numbered from, up to and without to. The callback page
// returns the messages of a closed page; if it returns false, the page is listed in
// missing, and the messages are incomplete.
func (t *Transcript) Range(from, to uint64, page func(actor.Hash) ([]actor.ChatMessage, bool)) (all []actor.ChatMessage, missing []actor.Hash) {
	at := uint64(0)
	take := func(messages []actor.ChatMessage, n uint64) {
		first, last := max(from, at), min(to, at+n)
		if messages != nil && first < last {
			all = append(all, messages[first-at:last-at]...)
		}
		at += n
	}
	for i := range t.Pages {
		p := &t.Pages[i]
		n := uint64(p.Messages)
		if at+n <= from || at >= to || from >= to {
			at += n
			continue
		}
		messages, ok := p.messages()
		if !ok {
			messages, ok = page(p.Hash)
		}
		if !ok || len(messages) != int(n) {
			missing = append(missing, p.Hash)
			messages = nil
		}
		take(messages, n)
	}
	take(t.Tail, uint64(len(t.Tail)))
	return all, missing
}

// Missing returns the pages that Range would list as missing. It decodes no page.
func (t *Transcript) Missing(from, to uint64, page func(actor.Hash) ([]actor.ChatMessage, bool)) (missing []actor.Hash) {
	at := uint64(0)
	for i := range t.Pages {
		p := &t.Pages[i]
		first := at
		at += uint64(p.Messages)
		if at <= from || first >= to || from >= to || p.content != nil {
			continue
		}
		if messages, ok := page(p.Hash); !ok || len(messages) != int(p.Messages) {
			missing = append(missing, p.Hash)
		}
	}
	return missing
}

// messages returns the messages of a page whose content no snapshot has stored yet.
func (p *Page) messages() ([]actor.ChatMessage, bool) {
	if p.content == nil {
		return nil, false
	}
	blobs := p.content.blobs // in the order of their references
	return invariant.Must(readPage(p.content.page, func(actor.Hash) (b []byte, _ error) {
		b, blobs = blobs[0], blobs[1:]
		return b, nil
	})), true
}

// size returns the size of the content in bytes; 0 if there is none.
func (p *Page) size() (n int) {
	if p.content != nil {
		n = len(p.content.page)
		for _, b := range p.content.blobs {
			n += len(b)
		}
	}
	return n
}

// Stored drops the content of pages that a snapshot has put into the log.
func (t *Transcript) Stored() {
	for i := range t.Pages {
		t.Pages[i].content = nil
	}
}

// blobs returns the content of pages that is in no snapshot yet.
func (t *Transcript) blobs() (all [][]byte) {
	for i := range t.Pages {
		if c := t.Pages[i].content; c != nil {
			all = append(append(all, c.page), c.blobs...)
		}
	}
	return all
}

// restoredBytesMax is the approximate maximum size in bytes of the content of pages that one
// snapshot writes again. A long conversation takes several.
const restoredBytesMax = 1 << 20

// restore loads the content of the pages that the callback lost selects, so that a snapshot writes
// it again. Whenever more than restoredBytesMax is loaded, it calls write, which writes a snapshot.
// It reports whether content is left that write has not written.
func (t *Transcript) restore(lost func(*Page) (bool, error), blob func(actor.Hash) ([]byte, error), write func() error) (more bool, err error) {
	size := 0
	for i := range t.Pages {
		p := &t.Pages[i]
		if p.content != nil {
			more = true
			continue
		}
		if ok, err := lost(p); err != nil || !ok {
			if err != nil {
				return false, err
			}
			continue
		}
		if p.content, err = readContent(p.Hash, blob); err != nil {
			return false, err
		}
		if size += p.size(); size < restoredBytesMax {
			more = true
			continue
		}
		if err := write(); err != nil {
			return false, err
		}
		t.Stored()
		size, more = 0, false
	}
	return more, nil
}

// readContent reads the content of a page.
func readContent(page actor.Hash, blob func(actor.Hash) ([]byte, error)) (*pageContent, error) {
	content, err := blob(page)
	if err != nil {
		return nil, err
	}
	c := &pageContent{page: content}
	_, err = readPage(content, func(name actor.Hash) ([]byte, error) {
		b, err := blob(name)
		c.blobs = append(c.blobs, b)
		return b, err
	})
	return c, err
}

// addRunMessages adds the message of an ended root run and its answer.
func (j *Journal) addRunMessages(run *Run, e *Ended) {
	if !IsMessage(&run.Call) {
		return
	}
	j.Transcript.Runs++
	j.Transcript.Usage = j.Transcript.Usage.Add(run.Tree)
	message := run.Message()
	if e.Reply.Extensions.LeftOut() {
		message.Extensions = message.Extensions.WithLeftOut()
	}
	j.Transcript.add(message)
	if e.Reply.Refusal == nil {
		j.Transcript.add(actor.ChatMessage{Call: run.Call.ID, Role: actor.RoleAssistant, Source: actor.FromAgent, At: e.At, Parts: e.Reply.Parts})
	}
}

// Message returns the message of a run: that of a client, or the outcome of a detached call.
func (r *Run) Message() actor.ChatMessage {
	m := actor.ChatMessage{Call: r.Call.ID, Role: actor.RoleUser, Source: actor.FromUser, At: r.At, Parts: r.Call.Parts}
	if p, ok := r.Call.Extensions.Provenance(); ok {
		m.Source, m.Extensions = actor.FromDelivered, m.Extensions.WithProvenance(p)
	}
	return m
}

// LeavesOut reports whether the message of a run that ends with a refusal is left out of later
// prompts: the prompt was too long, and had nothing of the run but its message. A session would
// fail for ever otherwise. Results of tools are in no later prompt, so a run that has any keeps its message.
func (r *Run) LeavesOut(refusal *actor.Refusal) bool {
	if !refusal.TooLong() || !IsMessage(&r.Call) {
		return false
	}
	for _, step := range r.Steps {
		for i := range step.Asks {
			if kind := step.Asks[i].Out().Kind; kind != actor.AskModel && kind != actor.AskInvoke {
				return false
			}
		}
	}
	return true
}

// IsMessage reports whether a call is a message of a conversation: one of a client to an agent
// of a user.
func IsMessage(call *actor.Call) bool {
	return call.IsRoot() && !actor.IsSystemAgent(call.To.Agent) && call.Operation == actor.HandleMessageFull
}

func (w *encoder) transcript(t *Transcript) {
	w.Uint(uint64(len(t.Pages)))
	for i := range t.Pages {
		p := &t.Pages[i]
		w.Hash(p.Hash)
		w.Uint(uint64(p.Messages))
	}
	w.time(t.Began)
	w.time(t.Last)
	w.Uint(t.Runs)
	w.Usage(t.Usage)
	w.Uint(uint64(len(t.Tail)))
	for i := range t.Tail {
		w.ChatMessage(&t.Tail[i])
	}
}

func (r decoder) transcript() Transcript {
	var t Transcript
	t.Pages = decodeList(r, r.Count(itemsMax, "pages"), func() Page {
		return Page{Hash: r.Hash(), Messages: uint32(r.UintMax(PageMessagesMax, "messages of a page"))}
	})
	t.Began, t.Last, t.Runs, t.Usage = r.time(), r.time(), r.Uint(), r.Usage()
	t.Tail = decodeList(r, r.Count(PageMessagesMax, "messages"), r.ChatMessage)
	for i := range t.Pages {
		t.closed += uint64(t.Pages[i].Messages)
	}
	for i := range t.Tail {
		t.tailBytes += actor.SizeOf(t.Tail[i].Parts)
	}
	return t
}
