// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"cmp"
	"errors"
	"reflect"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// compareTranscript reads a transcript, a part of it, and the pages in the actor's snapshot.
func (x *trial) compareTranscript(id actor.ID, t *store.Transcript, snapshot []byte) {
	want := x.history.transcripts[id]
	if t.Len() != uint64(len(want)) {
		x.t.Fatalf("the transcript of %s has %d messages, want %d", id, t.Len(), len(want))
	}
	from := rapid.IntRange(0, len(want)).Draw(x.t, "from")
	for _, part := range [][2]int{{0, len(want)}, {from, rapid.IntRange(from, len(want)).Draw(x.t, "to")}} {
		got, err := store.ReadTranscript(x.store.Reader, id, t, uint64(part[0]), uint64(part[1]))
		if err != nil || len(got) != part[1]-part[0] {
			x.t.Fatalf("messages %v of %s: got %d, error %v", part, id, len(got), err)
		}
		for i := range got {
			if m := &want[part[0]+i]; !reflect.DeepEqual(&got[i], m) {
				x.t.Fatalf("message %d of %s: got %+v, want %+v", part[0]+i, id, got[i], *m)
			}
		}
	}
	if snapshot != nil {
		for i, page := range must(store.DecodeJournal(snapshot)).Transcript.Pages {
			all, err := store.ReadPage(x.store.Reader, id, page.Hash)
			if err != nil || len(all) != int(page.Messages) {
				x.t.Fatalf("page %d of %s: got %d messages, error %v", i, id, len(all), err)
			}
			for j := range all {
				overwriteParts(all[j].Parts)
			}
		}
	}
	if _, err := x.store.Reader.Blob(id, actor.HashOf([]byte("nothing"))); err == nil {
		x.t.Fatalf("%s has a blob that was not written", id)
	}
}

// compareSessions reads the sessions of a tenant, in pages, and the actors of each.
func (x *trial) compareSessions(tenant string) {
	members := map[string][]actor.ID{}
	var want []string
	for _, id := range ids {
		session, ok := id.Session()
		if ok && id.Tenant == tenant && !x.written.isDeleted(id) && len(x.written.of(id)) > 0 {
			members[session] = append(members[session], id)
			if !slices.Contains(want, session) {
				want = append(want, session)
			}
		}
	}
	slices.SortFunc(want, func(a, b string) int { return strings.Compare(b+"/", a+"/") })
	limit := rapid.IntRange(1, len(want)+1).Draw(x.t, "sessions")
	before := rapid.SampledFrom([]string{"", "a", "a-", "a-b", "b", "zz"}).Draw(x.t, "before")
	want = slices.DeleteFunc(want, func(name string) bool { return before != "" && name+"/" >= before+"/" })
	var got []string
	for from := before; ; {
		names, next, err := x.store.Reader.Sessions(tenant, from, limit)
		if err != nil || len(names) > limit || next != "" && len(names) < limit {
			x.t.Fatalf("sessions of %s before %q: got %q, next %q, error %v, want at most %d", tenant, from, names, next, err, limit)
		}
		got = append(got, names...)
		if from = next; from == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		x.t.Fatalf("sessions of %s before %q, in pages of %d: got %q, want %q", tenant, before, limit, got, want)
	}
	for _, name := range []string{"a", "a-b", "b", "c", actor.DefaultKey} {
		got, err := x.store.Reader.SessionActors(tenant, name)
		if x.written.isDeleted(actor.ID{Tenant: tenant, Agent: "a", Key: name}) {
			if !errors.As(err, new(store.Gone)) {
				x.t.Fatalf("actors of the deleted session %s of %s: got %v, error %v", name, tenant, got, err)
			}
			continue
		}
		slices.SortFunc(members[name], actor.ID.Compare)
		if err != nil || !slices.Equal(got, members[name]) {
			x.t.Fatalf("actors of session %s of %s: got %v, error %v, want %v", name, tenant, got, err, members[name])
		}
	}
}

// compareSessionEvents reads the events of each session in pages. All that were written behind
// the last cut are in them, in the order of their batches and of the numbers of their runs.
func (x *trial) compareSessionEvents(tenant string) {
	type place struct {
		batch uint64
		run   actor.CallID
		seq   uint64
	}
	for _, session := range []string{"a", "a-b", "b", "c"} {
		if x.written.isDeleted(actor.ID{Tenant: tenant, Agent: "a", Key: session}) {
			if page, err := x.store.Reader.SessionEvents(tenant, session, nil, 10); !errors.As(err, new(store.Gone)) {
				x.t.Fatalf("events of the deleted session %s of %s: got %v, error %v", session, tenant, page, err)
			}
			continue
		}
		var cursor runs.SessionCursor
		limit := rapid.IntRange(1, 9).Draw(x.t, "limit")
		var got []place
		for {
			page, err := x.store.Reader.SessionEvents(tenant, session, cursor, limit)
			if dropped := (store.SessionEventsDropped{}); errors.As(err, &dropped) && cursor == nil && dropped.First.At(Node).Batch == x.cutUpto+1 {
				cursor = dropped.First
				continue
			}
			if err != nil || len(page) > limit {
				x.t.Fatalf("events of session %s of %s after %s: got %d, error %v, want at most %d", session, tenant, cursor, len(page), err, limit)
			}
			for _, e := range page {
				got = append(got, place{e.At.Batch, e.Run, e.Seq})
				cursor = cursor.After(e.At)
				single, err := x.store.Reader.Events(tenant, e.Run, e.Seq-1, 1)
				if err != nil || len(single) != 1 || !bytes.Equal(single[0].Body, e.Body) {
					x.t.Fatalf("event %d of run %s: got %q in its session, %v, error %v", e.Seq, e.Run, e.Body, single, err)
				}
			}
			if len(page) < limit {
				break
			}
		}
		end, err := x.store.Reader.SessionEnd(tenant, session)
		if rest, failed := x.store.Reader.SessionEvents(tenant, session, end, 10); err != nil || failed != nil && x.cutUpto == 0 || len(rest) > 0 {
			x.t.Fatalf("events of session %s of %s after its end %s: got %v, errors %v, %v", session, tenant, end, rest, err, failed)
		}
		ahead := runs.SessionCursor{}.After(runs.Position{Node: Node, Batch: x.end.Batch + 1, Index: 1})
		dropped := store.SessionEventsDropped{}
		if page, err := x.store.Reader.SessionEvents(tenant, session, ahead, 10); !errors.As(err, &dropped) || dropped.First.At(Node).Batch != x.end.Batch {
			x.t.Fatalf("events of session %s of %s after the end of the log %+v: got %v, error %v", session, tenant, x.end, page, err)
		}
		last := map[actor.CallID]uint64{}
		for i, e := range got {
			if i > 0 && got[i-1].batch > e.batch || e.seq <= last[e.run] {
				x.t.Fatalf("events of session %s of %s: %v are not in order", session, tenant, got)
			}
			last[e.run] = e.seq
		}
		var want []place
		for _, e := range x.written {
			if key, ok := e.Actor.Session(); !ok || key != session || e.Actor.Tenant != tenant || e.cut {
				continue
			}
			for _, v := range e.WithoutBodies().Events {
				want = append(want, place{e.batch, v.Run, v.Seq})
			}
		}
		byRun := func(a, b place) int { return cmp.Or(a.run.Compare(b.run), cmp.Compare(a.seq, b.seq)) }
		slices.SortFunc(got, byRun)
		slices.SortFunc(want, byRun)
		if !slices.Equal(got, want) {
			x.t.Fatalf("events of session %s of %s: got %v, want %v", session, tenant, got, want)
		}
	}
}
