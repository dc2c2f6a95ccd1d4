// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// besideID is the actor of the log beside the one under test.
var besideID = actor.ID{Tenant: "beside", Agent: "a", Key: "x"}

// beside is another log of the same store, with sessions of its own. It is cut too. Nothing that it does may
// change an answer about the log under test.
type beside struct {
	node    actor.NodeID
	history *history
	end     store.Mark
	cutUpto uint64
}

func newBeside(t *rapid.T) *beside {
	b := &beside{history: newHistory(t)}
	b.history.journals[besideID] = &store.Journal{}
	b.history.calls = 1 << 20 // calls of both logs differ
	return b
}

// appendBeside appends a batch to the other log, and cuts it at times.
func (x *trial) appendBeside() {
	h := x.beside.history
	call := h.accept(besideID, h.text(), false)
	entries := []store.Entry{h.entry(besideID, call, call.Call.ID)}
	if rapid.Bool().Draw(x.t, "ended beside") {
		end := h.ended(call.Call.ID, actor.Succeeded)
		entries = append(entries, h.entry(besideID, end, end.Call))
	}
	x.writeBeside(entries)
	if rapid.IntRange(0, 3).Draw(x.t, "cuts beside") == 0 {
		x.cutBeside()
	}
}

func (x *trial) writeBeside(entries []store.Entry) {
	w := store.NewWriter(store.WriterConfig{Node: x.beside.node, From: x.beside.end})
	w.Append(entries)
	b, _ := w.Next()
	b.Log = 1
	if err := x.store.Log.Append(&b); err != nil {
		x.t.Fatalf("batch %d beside: %v", b.No, err)
	}
	x.beside.end = b.Mark()
}

func (x *trial) cutBeside() {
	log, ok := x.store.Log.(store.Forgetter)
	batch := uint64(rapid.IntRange(1, int(x.beside.end.Batch)).Draw(x.t, "upto beside"))
	if !ok || batch <= x.beside.cutUpto {
		return
	}
	upto, err := log.MarkAt(x.beside.node, batch)
	c := store.Cut{Upto: upto, At: x.beside.history.now}
	var entries []store.Entry
	if err == nil {
		err = log.Retain(x.beside.node, c, func(e store.Entry) error { entries = append(entries, e); return nil })
	}
	if err != nil {
		x.t.Fatalf("cut of batch %d beside: %v", batch, err)
	}
	if len(entries) > 0 {
		x.writeBeside(entries)
	}
	var cannot store.CannotCut
	switch err := log.MayCut(x.beside.node, c); {
	case errors.As(err, &cannot) && cannot.Obstacle == store.NotIndexed:
		return
	case err != nil:
		x.t.Fatalf("cut of batch %d beside: %v", batch, err)
	}
	x.writeBeside([]store.Entry{store.CutEntry(x.beside.node, 1, c)})
	x.beside.cutUpto = batch
}

// compareBeside compares the actor of the other log.
func (x *trial) compareBeside() {
	got, err := x.store.Reader.Load(besideID)
	if err != nil {
		x.t.Fatalf("load %s: %v", besideID, err)
	}
	j, err := store.Fold(got)
	want := x.beside.history.journals[besideID]
	if err != nil || j.N != want.N || len(j.Runs) != len(want.Runs) {
		x.t.Fatalf("%s has %d entries and %d open runs, error %v, want %d and %d", besideID, j.N, len(j.Runs), err, want.N, len(want.Runs))
	}
}
