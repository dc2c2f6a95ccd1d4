// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// Folding a snapshot, taken at any record, and then the later records yields the same
// journal as folding all records. An invalid record changes nothing.
func TestSnapshotAndTailFoldToSameJournal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all, tail Journal
		now := actor.Time(1_000)
		for range rapid.IntRange(1, 40).Draw(t, "records") {
			now += actor.Time(rapid.IntRange(0, 50).Draw(t, "later"))
			r := drawNext(t, &all, now)
			before := EncodeJournal(&all)
			err := all.Apply(r)
			if tailErr := tail.Apply(r); (err == nil) != (tailErr == nil) {
				t.Fatalf("%+v: got %v, after a snapshot %v", r, err, tailErr)
			}
			if err != nil && !bytes.Equal(before, EncodeJournal(&all)) {
				t.Fatalf("invalid record %+v (%v) changed the journal", r, err)
			}
			if rapid.IntRange(0, 5).Draw(t, "snapshot") == 0 {
				var err error
				if tail, err = DecodeJournal(EncodeJournal(&tail)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if a, b := EncodeJournal(&all), EncodeJournal(&tail); !bytes.Equal(a, b) {
			t.Fatalf("all records fold to\n%+v\nsnapshot and later records fold to\n%+v", all, tail)
		}
	})
}

// drawNext draws a record about the journal's content, mostly a valid one.
func drawNext(t *rapid.T, j *Journal, now actor.Time) Record {
	id := actor.NewID("alice", "")
	call := drawCall(t, id)
	call.Left = actor.Duration(rapid.IntRange(1, 1000).Draw(t, "left"))
	if len(j.Runs) == 0 || rapid.IntRange(0, 3).Draw(t, "another") == 0 {
		if rapid.IntRange(0, 4).Draw(t, "buried") == 0 {
			return Buried{call.ID, now, now + 100}
		}
		return Accepted{call, now, actor.HashOf(nil)}
	}
	run := rapid.SampledFrom(j.Runs).Draw(t, "run")
	step, index := uint32(len(run.Steps)), uint16(0)
	if asks := run.Last(); len(asks) > 0 {
		index = uint16(rapid.IntRange(0, len(asks)-1).Draw(t, "index"))
	}
	until := now + actor.Time(rapid.IntRange(1, 300).Draw(t, "until"))
	switch rapid.IntRange(0, 11).Draw(t, "record") {
	case 0, 1:
		asks := drawAsks(t)
		for i := range asks {
			asks[i].Answer, asks[i].Clock = nil, actor.NewClock(now, 100)
		}
		return Asking{run.Call.ID, now, asks, drawItems(t)}
	case 2, 3:
		return Answered{run.Call.ID, step, index, now, drawAnswer(t), 1, drawPurse(t)}
	case 4:
		return Retried{run.Call.ID, step, index, now, 2}
	case 5:
		return Held{run.Call.ID, step, index, now, 1, until, actor.Hold{}}
	case 6:
		return Resumed{run.Call.ID, step, index, now, 2}
	case 7:
		return Parked{run.Call.ID, now, "why"}
	case 10:
		return Rebased{now - actor.Time(rapid.IntRange(0, 200).Draw(t, "back"))}
	case 8:
		ask := drawAsks(t)[0]
		ask.Answer, ask.Clock, ask.Added = nil, actor.NewClock(now, 100), true
		return Added{run.Call.ID, now, ask}
	case 9:
		return Streamed{run.Call.ID, step, index, now, rapid.Bool().Draw(t, "again"), rapid.Uint64Range(0, 9).Draw(t, "shown"), rapid.SampledFrom([]string{"", "searching", "writing"}).Draw(t, "state"), rapid.SampledFrom([]string{"", "1"}).Draw(t, "detail")}
	default:
		return Ended{Call: run.Call.ID, At: now, Until: until, Reply: actor.Fail(run.Call.ID, actor.Refuse(actor.Stopped, "stopped")), StateUpdates: drawItems(t)}
	}
}

// Outcomes and tombstones of a busy actor are found through the index until they
// expire, and never afterwards.
func TestOutcomesAreFoundUntilExpiry(t *testing.T) {
	var j Journal
	call := func(n int) actor.CallID { return actor.CallID{0: 1, 12: byte(n >> 16), 13: byte(n >> 8), 14: byte(n)} }
	key := func(n int) actor.Idempotency { return actor.Idempotency{Key: call(n).String()} }
	apply := func(r Record) {
		t.Helper()
		if err := j.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	const calls, retained = 20_000, 5_000
	for n := range calls {
		now := actor.Time(n)
		apply(Accepted{Call: actor.Call{ID: call(n), Idempotency: key(n)}, At: now})
		apply(Ended{Call: call(n), At: now, Until: now + retained, Idempotency: key(n)})
		apply(Buried{Call: call(calls + n), At: now, Until: now + retained})
		if n%3 == 0 {
			j.EvictOutcome()
		}
		if e := call(max(0, n-retained/2)); !j.HasEnded(e) || !j.IsBuried(call(calls+max(0, n-retained/2))) {
			t.Fatalf("call %d expired too early", n)
		}
	}
	if id, _, ok := j.FindByKey(key(calls - 1)); !ok || id != call(calls-1) {
		t.Errorf("last key belongs to %s, %v", id, ok)
	}
	if j.HasEnded(call(0)) || j.IsBuried(call(calls)) || j.HasEnded(call(calls)) {
		t.Error("expired outcomes or tombstones are retained")
	}
	if _, _, ok := j.FindByKey(key(0)); ok {
		t.Error("an expired key is retained")
	}
	if j.outcomeCount() > retained*11/10 || len(j.Buried) > retained*11/10 {
		t.Errorf("retained %d outcomes and %d tombstones, want about %d", j.outcomeCount(), len(j.Buried), retained)
	}
}

// Expired outcomes are dropped even if an earlier outcome has not expired. This holds
// for any number of records between the full passes.
func TestLongLivedOutcomeDoesNotRetainOthers(t *testing.T) {
	for first := range 4 {
		var j Journal
		apply := func(r Record) {
			t.Helper()
			if err := j.Apply(r); err != nil {
				t.Fatal(err)
			}
		}
		for range first {
			apply(Rebased{})
		}
		apply(Ended{Until: actor.Forever})
		apply(Buried{Until: actor.Forever})
		for n := range 20_000 {
			now := actor.Time(n)
			call := actor.Call{ID: actor.CallID{0: 1, 12: byte(n >> 8), 13: byte(n)}}
			apply(Accepted{Call: call, At: now})
			apply(Asking{Run: call.ID, At: now, Asks: []Asked{{}}})
			apply(Answered{Run: call.ID, Step: 1, At: now})
			apply(Ended{Call: call.ID, At: now, Until: now + 100})
		}
		if len(j.Ended) > 500 || !j.IsBuried(actor.CallID{}) || !j.HasEnded(actor.CallID{}) {
			t.Errorf("after %d records: retained %d outcomes", first, len(j.Ended))
		}
	}
}

// Calls and keys occur repeatedly, and outcomes expire. The index finds the same outcome
// as a scan: the first retained one.
func TestOutcomeIndexAgainstScan(t *testing.T) {
	for seed := range uint64(60) {
		var j Journal
		chance := rand.New(rand.NewPCG(seed, 1))
		name := func() actor.CallID { return actor.CallID{0: byte(1 + chance.IntN(4*indexMin))} }
		for n := range 600 {
			now := actor.Time(n)
			until := now + actor.Time(chance.IntN(1+int(seed)))
			var r Record = Buried{Call: name(), At: now, Until: until}
			if chance.IntN(2) == 0 {
				r = Ended{Call: name(), At: now, Until: until, Idempotency: actor.Idempotency{Key: name().String(), Body: actor.Hash{0: byte(n)}}}
			}
			if err := j.Apply(r); err != nil {
				t.Fatal(err)
			}
			if chance.IntN(3) == 0 {
				j.EvictOutcome()
			}
			id := name()
			var first, promised *EvictedOutcome // of all retained outcomes, evicted or complete
			held := 0
			for i := range j.outcomeCount() {
				evicted, ended := j.outcome(i)
				if ended != nil {
					a := ended.evicted()
					evicted, held = &a, held+ended.memorySize()
				}
				if first == nil && evicted.Call == id {
					first = evicted
				}
				if promised == nil && evicted.key().Key == id.String() {
					promised = evicted
				}
			}
			if _, n := j.Outcome(id); (n == 0) != (first == nil) || first != nil && n != first.N {
				t.Fatalf("outcome of %s: got entry %d, want %+v", id, n, first)
			}
			if _, body, ok := j.FindByKey(actor.Idempotency{Key: id.String()}); ok != (promised != nil) || ok && body != promised.Idempotency.Body {
				t.Fatalf("key of %s: got %v, want %+v", id, ok, promised)
			}
			if j.OutcomeBytes() != held {
				t.Fatalf("got %d bytes of outcomes, want %d", j.OutcomeBytes(), held)
			}
			if there := slices.ContainsFunc(j.Buried, func(b Buried) bool { return b.Call == id }); j.IsBuried(id) != there {
				t.Fatalf("tombstone of %s: got %v, want %v", id, !there, there)
			}
		}
	}
}

// TestStateSizes compares the sizes of a state with those of the state itself.
func TestStateSizes(t *testing.T) {
	items := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) actor.StateItem {
		return actor.StateItem{Name: rapid.SampledFrom([]string{"a", "bb", "ccc"}).Draw(t, "name"), Value: []byte(rapid.StringN(0, 3, -1).Draw(t, "value"))}
	}), 0, 4)
	sizeOf := func(j *Journal) (s StateSize) {
		for _, item := range j.EffectiveState() {
			s.Items, s.Bytes = s.Items+1, s.Bytes+len(item.Name)+len(item.Value)
		}
		return s
	}
	rapid.Check(t, func(t *rapid.T) {
		var j Journal
		for range rapid.IntRange(0, 3).Draw(t, "ended runs") {
			j.updateState(items.Draw(t, "state"))
		}
		for range rapid.IntRange(0, 2).Draw(t, "open runs") {
			j.Runs = append(j.Runs, &Run{StateUpdates: items.Draw(t, "updates of a run")})
		}
		further := items.Draw(t, "further updates")
		with := j
		with.Runs = append(slices.Clone(j.Runs), &Run{StateUpdates: further})
		before, after := j.StateSizes(further)
		if want := sizeOf(&j); before != want {
			t.Fatalf("got %+v before, want %+v", before, want)
		}
		if want := sizeOf(&with); after != want {
			t.Fatalf("got %+v after, want %+v", after, want)
		}
	})
}

func TestStateUpdatesApplyAtEndOfRun(t *testing.T) {
	item := func(name, value string) actor.StateItem { return actor.StateItem{Name: name, Value: []byte(value)} }
	call := func(n byte) actor.CallID { return actor.CallID{14: n} }
	var j Journal
	apply := func(r Record) {
		t.Helper()
		if err := j.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	ask := []Asked{{Ask: actor.Ask{Kind: actor.AskSleep}}}
	apply(Accepted{Call: actor.Call{ID: call(1)}})
	apply(Ended{Call: call(1), StateUpdates: []actor.StateItem{item("b", "1"), item("a", "1"), item("c", "1")}})
	apply(Accepted{Call: actor.Call{ID: call(2)}})
	apply(Asking{Run: call(2), Asks: ask, StateUpdates: []actor.StateItem{item("b", "2"), item("d", "2")}})
	before := j.ActorState
	if want := []actor.StateItem{item("a", "1"), item("b", "1"), item("c", "1")}; !reflect.DeepEqual(j.ActorState, want) {
		t.Errorf("state during the run: got %s", j.ActorState)
	}
	if want := []actor.StateItem{item("a", "1"), item("b", "2"), item("c", "1"), item("d", "2")}; !reflect.DeepEqual(j.EffectiveState(), want) {
		t.Errorf("effective state during the run: got %s", j.EffectiveState())
	}
	apply(Ended{Call: call(2), StateUpdates: []actor.StateItem{item("a", ""), item("e", "")}})
	if want := []actor.StateItem{item("b", "2"), item("c", "1"), item("d", "2")}; !reflect.DeepEqual(j.ActorState, want) {
		t.Errorf("state after the run: got %s", j.ActorState)
	}
	if len(before) != 3 || string(before[1].Value) != "1" {
		t.Errorf("the previous state changed to %s", before)
	}
}
