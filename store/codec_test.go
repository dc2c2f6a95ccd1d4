// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

func drawTime(t *rapid.T) actor.Time { return actor.Time(rapid.Int64Range(0, 1<<61).Draw(t, "time")) }

func drawName(t *rapid.T) string { return rapid.StringMatching(`[A-Za-z0-9._-]{1,9}x`).Draw(t, "name") }

func drawID(t *rapid.T) actor.ID {
	return actor.ID{Tenant: drawName(t), Agent: drawName(t), Key: drawName(t)}
}

func drawRun(t *rapid.T) actor.CallID {
	return actor.NewCallID(drawTime(t), rapid.Uint64().Draw(t, "hi"), rapid.Uint64().Draw(t, "lo"))
}

// drawExtensions draws fields with tags that no version defines.
func drawExtensions(t *rapid.T) (x actor.Extensions) {
	for range rapid.IntRange(0, 2).Draw(t, "extensions") {
		x = x.With(rapid.Uint64().Draw(t, "tag"), []byte(drawName(t)))
	}
	return x
}

func drawHold(t *rapid.T) actor.Hold {
	if rapid.Bool().Draw(t, "not held") {
		return actor.Hold{}
	}
	return actor.Hold{Reason: actor.HoldReason(rapid.Uint8().Draw(t, "reason")), Subject: drawName(t), Extensions: drawExtensions(t)}
}

func drawParts(t *rapid.T) []actor.Part {
	var parts []actor.Part
	for range rapid.IntRange(0, 3).Draw(t, "parts") {
		switch rapid.IntRange(0, 3).Draw(t, "part") {
		case 0:
			parts = append(parts, actor.Part{Media: actor.MediaText, Blob: actor.HashOf([]byte(drawName(t))), Size: 7})
		case 1: // on both sides of the size limit of blobs
			n := rapid.IntRange(BlobBytesMin-1, BlobBytesMin+2).Draw(t, "size")
			parts = append(parts, actor.Part{Media: actor.MediaJSON, Bytes: bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, n)})
		default:
			parts = append(parts, actor.Part{Media: actor.MediaText, Bytes: []byte(drawName(t))})
		}
	}
	return parts
}

func drawClock(t *rapid.T) actor.Clock {
	return actor.Clock{Left: actor.Duration(drawTime(t)), Since: drawTime(t), HeldUntil: drawTime(t)}
}

func drawIdempotency(t *rapid.T) actor.Idempotency {
	if rapid.Bool().Draw(t, "promised") {
		return actor.Idempotency{Principal: drawName(t), Route: drawName(t), Key: drawName(t), Body: actor.HashOf(nil)}
	}
	return actor.Idempotency{}
}

func drawCall(t *rapid.T, to actor.ID) actor.Call {
	c := actor.Call{ID: drawRun(t), Root: drawRun(t), Parent: drawRun(t), To: to, Operation: actor.HandleMessageFull,
		Kind: actor.Waiting, Lane: actor.Normal, Left: 5, Attempt: 1, Origin: actor.Human, Budget: rapid.Uint32().Draw(t, "budget"),
		Idempotency: drawIdempotency(t), Stamp: drawTime(t), Parts: drawParts(t), Extensions: drawExtensions(t)}
	for range rapid.IntRange(0, 2).Draw(t, "depth") {
		c.Chain = append(c.Chain, drawID(t))
	}
	if c.IsRoot() {
		c.Root = c.ID
	}
	return c
}

func drawUsage(t *rapid.T) actor.Usage {
	if rapid.Bool().Draw(t, "no usage") {
		return actor.Usage{}
	}
	count := rapid.Int64Range(0, actor.UsageMax)
	return actor.Usage{Input: count.Draw(t, "input"), Output: count.Draw(t, "output"), Total: count.Draw(t, "total")}
}

func drawAnswer(t *rapid.T) actor.Answer {
	if rapid.Bool().Draw(t, "refused") {
		return actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "%s", drawName(t))}
	}
	return actor.Answer{Parts: drawParts(t), Warnings: rapid.SliceOfN(rapid.Just("w"), 1, 2).Draw(t, "warnings"), Usage: drawUsage(t)}
}

func drawAsk(t *rapid.T) actor.Ask {
	return actor.Ask{Kind: actor.AskKind(rapid.IntRange(1, int(actor.AskInvoke)).Draw(t, "kind")), Name: drawName(t), Operation: drawName(t),
		Parts: drawParts(t), Timeout: 9, Idempotent: rapid.Bool().Draw(t, "idempotent")}
}

func drawAsks(t *rapid.T) []Asked {
	var asks []Asked
	for range rapid.IntRange(1, 3).Draw(t, "asks") {
		a := Asked{Ask: drawAsk(t), Call: drawRun(t), To: drawID(t), Budget: 3, Stamp: drawTime(t), Clock: drawClock(t), Attempt: 1, Holds: 2, HeldFor: drawHold(t), Retries: 3, StreamedAfter: 4}
		if rapid.Bool().Draw(t, "no call") {
			a.Call = actor.CallID{}
		}
		if rapid.Bool().Draw(t, "answered") {
			answer := drawAnswer(t)
			a.Answer = &answer
		}
		if rapid.Bool().Draw(t, "sent otherwise") {
			a.Sent = ptr(drawAsk(t))
		}
		if rapid.Bool().Draw(t, "added") {
			a.Added, a.Callback, a.CallbackKey = true, drawRun(t), drawIdempotency(t)
		}
		asks = append(asks, a)
	}
	return asks
}

func drawItems(t *rapid.T) []actor.StateItem {
	var items []actor.StateItem
	for range rapid.IntRange(0, 2).Draw(t, "items") {
		items = append(items, actor.StateItem{Name: drawName(t), Value: []byte(drawName(t))})
	}
	return items
}

func drawEnded(t *rapid.T) Ended {
	e := Ended{Call: drawRun(t), At: drawTime(t), Until: drawTime(t), Idempotency: drawIdempotency(t)}
	e.Reply = actor.Reply{Call: e.Call, Run: e.Call, Status: actor.Succeeded, Parts: drawParts(t), Budget: 1, Usage: drawUsage(t), Tree: drawUsage(t), Extensions: drawExtensions(t)}
	if rapid.Bool().Draw(t, "failed") {
		e.Reply = actor.Fail(e.Call, actor.RefuseDepth([]actor.ID{drawID(t)}, drawID(t), 5))
	}
	return e
}

func drawJournal(t *rapid.T) Journal {
	j := Journal{N: rapid.Uint64().Draw(t, "n")}
	for range rapid.IntRange(0, 2).Draw(t, "runs") {
		run := &Run{Call: drawCall(t, drawID(t)), At: drawTime(t), Definition: actor.HashOf(nil), Clock: drawClock(t),
			Holds: 1, Budget: 2, Seq: 3, Parked: drawName(t), StateUpdates: drawItems(t)}
		for range rapid.IntRange(0, 2).Draw(t, "steps") {
			run.Steps = append(run.Steps, Step{drawAsks(t)})
		}
		if len(run.Steps) > 0 {
			run.StartedAt = run.Steps[0].Asks[0].Stamp
		}
		if rapid.Bool().Draw(t, "started at another time") {
			run.StartedAt = drawTime(t)
		}
		for _, step := range run.Steps {
			for _, a := range step.Asks {
				if a.Answer != nil {
					run.Tree = run.Tree.Add(a.Answer.Usage)
					if a.Call.IsZero() {
						run.Usage = run.Usage.Add(a.Answer.Usage)
					}
				}
			}
		}
		j.Runs = append(j.Runs, run)
	}
	for range rapid.IntRange(0, 2).Draw(t, "ended") {
		j.Ended = append(j.Ended, drawEnded(t))
		j.outcomeBytes += j.Ended[len(j.Ended)-1].memorySize()
	}
	for range rapid.IntRange(0, 2).Draw(t, "away") {
		e := drawEnded(t)
		e.n = rapid.Uint64Range(1, 1<<40).Draw(t, "entry")
		j.Evicted = append(j.Evicted, e.evicted())
	}
	for range rapid.IntRange(0, 2).Draw(t, "buried") {
		j.Buried = append(j.Buried, Buried{drawRun(t), drawTime(t), drawTime(t)})
	}
	j.ActorState = drawItems(t)
	return j
}

func drawRecordOf(t *rapid.T, of actor.ID, tag int) Record {
	run, at := drawRun(t), drawTime(t)
	switch tag {
	case tagAccepted:
		return Accepted{drawCall(t, of), at, actor.HashOf(run[:])}
	case tagAsking:
		return Asking{run, at, drawAsks(t), drawItems(t)}
	case tagAdded:
		return Added{run, at, drawAsks(t)[0]}
	case tagRebased:
		return Rebased{at}
	case tagCut:
		return Cut{Mark{7, 8, actor.HashOf(run[:])}, at}
	case tagForgotten:
		return Forgotten{at}
	case tagKept:
		return Kept{drawEnded(t)}
	case tagStreamed:
		return Streamed{run, 3, 1, at, true, 5}
	case tagAnswered:
		return Answered{run, 3, 1, at, drawAnswer(t), 4}
	case tagRetried:
		return Retried{run, 3, 1, at, 2}
	case tagHeld:
		return Held{run, 3, 1, at, 7, drawTime(t), drawHold(t)}
	case tagResumed:
		return Resumed{run, 3, 1, at, 8}
	case tagParked:
		return Parked{run, at, drawName(t)}
	case tagEnded:
		e := drawEnded(t)
		e.StateUpdates = drawItems(t)
		return e
	case tagBuried:
		return Buried{run, at, drawTime(t)}
	default:
		j := drawJournal(t)
		return Snapshot{Journal: EncodeJournal(&j)}
	}
}

// drawShown draws every field of a Shown.
func drawShown(t *rapid.T) (s Shown) {
	if rapid.Bool().Draw(t, "has events") {
		s.Seq, s.N = rapid.Uint64Range(1, 1<<40).Draw(t, "seq"), rapid.Uint32Range(1, 9).Draw(t, "events")
	}
	switch rapid.IntRange(0, 2).Draw(t, "shown call") {
	case 0:
		s.Began, s.Left = true, actor.Duration(drawTime(t))
		s.Call = &actor.Call{Root: drawRun(t), Parent: drawRun(t), Operation: drawName(t), Kind: actor.Waiting, Lane: actor.High, Attempt: 2,
			Principal: drawName(t), Origin: actor.Agent, Project: drawName(t), Chain: []actor.ID{drawID(t)}}
	case 1:
		s.Call = &actor.Call{Chain: []actor.ID{drawID(t), drawID(t)}}
	}
	s.Step, s.Index = rapid.Uint32Range(0, 9).Draw(t, "step"), rapid.Uint16Range(0, 9).Draw(t, "index")
	if rapid.Bool().Draw(t, "refused asks") {
		s.Refused = drawAsks(t)
	}
	s.Clamped = rapid.SliceOfN(rapid.Uint16(), 1, 3).Draw(t, "clamped")
	if rapid.Bool().Draw(t, "not clamped") {
		s.Clamped = nil
	}
	if rapid.Bool().Draw(t, "shown ask") {
		s.Ask = &ShownAsk{Kind: actor.AskCall, Name: drawName(t), Took: actor.Duration(drawTime(t)), Held: rapid.Bool().Draw(t, "held")}
		if rapid.Bool().Draw(t, "child") {
			s.Ask.Child, s.Ask.To, s.Ask.Status = drawRun(t), drawID(t), actor.Partial
		}
		if rapid.Bool().Draw(t, "signal") {
			s.Ask.Principal, s.Ask.Origin = drawName(t), actor.Human
		}
		if rapid.Bool().Draw(t, "attempt") {
			s.Ask.Attempt, s.Ask.Discards = 2, 3
		}
		if rapid.Bool().Draw(t, "piece") {
			s.Ask.Piece = actor.Piece{Text: drawName(t), State: drawName(t), Detail: drawName(t), Retry: actor.Refuse(actor.Busy, "%s", drawName(t))}
		}
	}
	return s
}

func drawEntry(t *rapid.T) Entry {
	id := drawID(t)
	e := Entry{Actor: id, Shard: rapid.Uint16().Draw(t, "shard"), Epoch: actor.Epoch(rapid.Uint64().Draw(t, "epoch")),
		N: rapid.Uint64Range(1, 1<<40).Draw(t, "n"), Record: drawRecordOf(t, id, rapid.IntRange(tagAccepted, tagKept).Draw(t, "tag")), WasDue: drawTime(t), Due: drawTime(t), Extensions: drawExtensions(t)}
	e.First = rapid.Bool().Draw(t, "first")
	e.Shown = drawShown(t)
	for i := range rapid.IntRange(0, 2).Draw(t, "events") {
		e.Events = append(e.Events, RunEvent{drawRun(t), uint64(i + 1), []byte(`{"type":"` + drawName(t) + `"}`)})
	}
	return e
}

func TestEntryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawEntry(t)
		b := EncodeEntry(want)
		got, err := DecodeEntry(b)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("encoded %+v\ndecoded %+v", want, got)
		}
		for _, cut := range []int{rapid.IntRange(0, len(b)-1).Draw(t, "cut")} {
			if _, err := DecodeEntry(b[:cut]); err == nil {
				t.Fatalf("%d bytes of %d decoded as an entry, want an error", cut, len(b))
			}
		}
	})
}

func TestJournalRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawJournal(t)
		got, err := DecodeJournal(EncodeJournal(&want))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("encoded %+v\ndecoded %+v", want, got)
		}
	})
}

// A field that the codec omits decodes as zero. Each exported field must be non-zero
// in some decoded value.
func TestCodecCoversEveryField(t *testing.T) {
	seen := map[string]bool{}
	rapid.Check(t, func(t *rapid.T) {
		e, _ := DecodeEntry(EncodeEntry(drawEntry(t)))
		j, _ := DecodeJournal(EncodeJournal(ptr(drawJournal(t))))
		nonZero(reflect.ValueOf(e), seen)
		for tag := tagAccepted; tag <= tagKept; tag++ {
			e := Entry{Actor: actor.NewID("a", ""), N: 1}
			e.Record = drawRecordOf(t, e.Actor, tag)
			e, _ = DecodeEntry(EncodeEntry(e))
			nonZero(reflect.ValueOf(e.Record), seen)
		}
		nonZero(reflect.ValueOf(j), seen)
	})
	for _, v := range []any{Entry{}, Shown{}, ShownAsk{}, RunEvent{}, Accepted{}, Asking{}, Answered{}, Retried{}, Held{}, Resumed{}, Parked{}, Ended{},
		Buried{}, Added{}, Streamed{}, Rebased{}, Cut{}, Forgotten{}, Kept{}, Mark{}, actor.StateItem{}, Snapshot{}, Journal{}, EvictedOutcome{}, Run{}, Step{}, Asked{}, actor.Hold{}, actor.Clock{}, actor.Answer{}, actor.Usage{}} {
		for i := range reflect.TypeOf(v).NumField() {
			field := reflect.TypeOf(v).Field(i)
			if name := fmt.Sprintf("%T.%s", v, field.Name); field.IsExported() && !seen[name] && name != "store.Entry.Summary" { // unexported fields are derived, and summaries are in the index only
				t.Errorf("%s is always zero after decoding", name)
			}
		}
	}
}

func ptr[T any](v T) *T { return &v }

func nonZero(v reflect.Value, seen map[string]bool) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			nonZero(v.Elem(), seen)
		}
	case reflect.Slice:
		for i := range v.Len() {
			nonZero(v.Index(i), seen)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				seen[fmt.Sprintf("%s.%s", v.Type(), v.Type().Field(i).Name)] = true
			}
			nonZero(v.Field(i), seen)
		}
	}
}

func TestUnknownVersionsAndRecordsAreRejected(t *testing.T) {
	b := EncodeEntry(Entry{Actor: actor.NewID("a", ""), N: 1, Record: Buried{}})
	newer := bytes.Clone(b)
	newer[0] = CodecVersion + 1
	unknown := bytes.Clone(b)
	unknown[bytes.IndexByte(b[18:], tagBuried)+18] = 99
	for _, c := range []struct {
		b    []byte
		want string
	}{{newer, fmt.Sprintf("written in version %d, this program reads up to version %d", CodecVersion+1, CodecVersion)}, {unknown, "unknown record 99"}, {nil, "invalid varint"}, {append(b, 0), "1 bytes too many"}} {
		if _, err := DecodeEntry(c.b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	if _, err := DecodeJournal([]byte{9}); err == nil || !strings.Contains(err.Error(), "snapshot written in version 9") {
		t.Errorf("got %v, want an unknown version", err)
	}
}

func FuzzDecode(f *testing.F) {
	for i := range 40 {
		e := rapid.Custom(drawEntry).Example(i)
		f.Add(EncodeEntry(e))
		if s, ok := e.Record.(Snapshot); ok {
			f.Add(s.Journal)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := DecodeEntry(b); err == nil && b[0] == CodecVersion && !bytes.Equal(EncodeEntry(e), b) {
			t.Errorf("accepted % x, encoded % x", b, EncodeEntry(e))
		}
		if j, err := DecodeJournal(b); err == nil && b[0] == CodecVersion && !bytes.Equal(EncodeJournal(&j), b) {
			t.Errorf("accepted % x, encoded % x", b, EncodeJournal(&j))
		}
		none := func(*Entry, actor.Hash) ([]byte, error) { return nil, fmt.Errorf("no blobs") }
		_ = unpackEntries(b, none, func(Entry) error { return nil })
		_, _, _, _ = unseal(b)
		if r, err := decodeBatch(b); err == nil && !bytes.Equal(r.encode(), b) {
			t.Errorf("batch % x does not encode to the same bytes", b)
		}
	})
}

// Version 1 has no place for the retries of an ask, the number of attempts that streamed,
// or that an agent's own call was added.
func TestVersion1CannotRepresentAsks(t *testing.T) {
	for _, test := range []struct {
		asked  Asked
		beyond bool
	}{{Asked{Attempt: 1}, false}, {Asked{Attempt: 1, Retries: 1}, true}, {Asked{Attempt: 1, StreamedAfter: 1}, true}, {Asked{Attempt: 1, Added: true}, true},
		{Asked{Attempt: 1, HeldFor: actor.Hold{Reason: actor.HoldSignal}}, true}} {
		e := Entry{Actor: actor.NewID("a", "s"), N: 1, Record: Asking{Asks: []Asked{test.asked}}}
		w := &encoder{version1: true}
		if w.entry(&e, e.Record); w.beyondVersion1 != test.beyond {
			t.Errorf("%+v: beyond version 1 is %v, want %v", test.asked, w.beyondVersion1, test.beyond)
		}
	}
}

// Encodings of version 1 decode to the same values. The encoder sets beyondVersion1
// for a value that version 1 cannot represent.
func TestVersion1IsReadable(t *testing.T) {
	representable, beyond := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		e := rapid.Custom(drawEntry).Draw(t, "entry")
		e.First, e.Shown = false, Shown{} // version 1 has the bodies of events
		w := &encoder{version1: true}
		if w.entry(&e, e.Record); w.beyondVersion1 {
			beyond++
			return
		}
		representable++
		back, err := DecodeEntry(w.Buf)
		if err != nil || w.Buf[0] != 1 {
			t.Fatalf("decode % x: %v", w.Buf, err)
		}
		if s, ok := back.Record.(Snapshot); ok {
			j, err := DecodeJournal(s.Journal)
			if err != nil || s.Journal[0] != 1 {
				t.Fatalf("decode journal % x: %v", s.Journal, err)
			}
			back.Record = Snapshot{Journal: EncodeJournal(&j)}
		}
		if !bytes.Equal(EncodeEntry(back), EncodeEntry(e)) {
			t.Fatalf("encoded %+v, decoded %+v", e, back)
		}
	})
	if representable == 0 || beyond == 0 {
		t.Errorf("%d entries fit version 1, %d do not: want some of both", representable, beyond)
	}
}
