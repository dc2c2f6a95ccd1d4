// SPDX-License-Identifier: Apache-2.0

package store

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// A batch holds the entries of an actor together. The events of a call are shown between
// the call and its outcome nevertheless, whichever of them earlier batches hold.
func TestEventsOfACallAreBetweenItsEvents(t *testing.T) {
	ids := map[byte]actor.CallID{}
	for _, name := range []byte("abcd") {
		ids[name] = actor.CallID{name}
	}
	for _, c := range []struct{ name, events, want string }{
		{"one run", "a1 a2 a3", "a1 a2 a3"},
		{"whole call", "a1 a2>b a3<b a4 b1 b2", "a1 a2 b1 b2 a3 a4"},
		{"caller sorts last", "b1 b2 a1 a2>b a3<b", "a1 a2 b1 b2 a3"},
		{"called in an earlier batch", "a3<b a4 b2 b3", "b2 b3 a3 a4"},
		{"not answered yet", "a1>b b1 a2", "a1 b1 a2"},
		{"two levels", "c1 b1 b2>c b3<c a1>b a2<b", "a1 b1 b2 c1 b3 a2"},
		{"two calls at once", "a1>b a2>c a3<c a4<b b1 c1", "a1 b1 a2 c1 a3 a4"},
		{"runs one after the other", "a1 d1 d2 a2", "a1 a2 d1 d2"},
		{"damaged: they call each other", "a1>b b1>a", "a1 b1"},
	} {
		var b sessionBatch
		for text := range strings.FieldsSeq(c.events) {
			e := batchEvent{RunEvent: RunEvent{Run: ids[text[0]], Seq: uint64(text[1] - '0')}, kind: runs.RunStarted}
			switch {
			case len(text) > 2 && text[2] == '>':
				e.kind, e.child = runs.AgentCalledChild, ids[text[3]]
			case len(text) > 2:
				e.kind, e.child = runs.AgentChildDone, ids[text[3]]
			}
			b.add([]batchEvent{e})
		}
		var got []string
		for _, e := range b.events() {
			got = append(got, string(e.Run[:1])+string(rune('0'+e.Seq)))
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: got %s, want %s", c.name, text, c.want)
		}
	}
}

// blobCounter counts the reads of blobs.
type blobCounter struct {
	KV
	reads int
}

func (c *blobCounter) Get(key []byte) ([]byte, bool, error) {
	if k, ok := parseScoped(key); ok && k.kind == kindBlob {
		c.reads++
	}
	return c.KV.Get(key)
}

// A page of events reads the blobs of entries with events only, and no others of their batch.
func TestPageOfEventsReadsBlobsOfEventsOnly(t *testing.T) {
	l, a, b := newTestLog(t), newEntryBuilder(t, "a"), newEntryBuilder(t, "b")
	appended := func(s *entryBuilder, i uint64) Entry {
		id := s.run(1000 + i)
		return s.entry(Appended{s.at, actor.ChatMessage{Call: id, Role: actor.RoleUser, Source: actor.FromUser, At: s.at, Parts: actor.Text(large)}}, s.due)
	}
	l.write(appended(a, 1), appended(b, 1))
	l.write(a.accept(large), appended(b, 2))
	kv := &blobCounter{KV: l.m}
	l.Rows.KV = kv
	page, err := l.SessionEvents(a.id.Tenant, a.id.Key, nil, 10)
	if err != nil || len(page) != 2 || kv.reads > 1 {
		t.Errorf("%d events, %v: %d blobs were read, want at most 1", len(page), err, kv.reads)
	}
	kv.reads = 0
	if _, err := l.Load(a.id); err != nil || kv.reads == 0 {
		t.Errorf("%v: loading reads %d blobs", err, kv.reads)
	}
}
