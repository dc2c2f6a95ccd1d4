// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
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
	return actor.Hold{Reason: actor.HoldReason(rapid.Uint8().Draw(t, "reason")), Subject: drawName(t), Name: drawName(t), Text: drawName(t), Extensions: drawExtensions(t)}
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
	u := actor.Usage{Input: count.Draw(t, "input"), Output: count.Draw(t, "output"), Total: count.Draw(t, "total")}
	if rapid.Bool().Draw(t, "priced") {
		u.Cached, u.Priced, u.Cost = count.Draw(t, "cached"), 1+u.Total/2, count.Draw(t, "cost")
	}
	return u
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
		a := Asked{Ask: drawAsk(t), Call: drawRun(t), To: drawID(t), Budget: 3, Purse: drawPurse(t), Stamp: drawTime(t), Clock: drawClock(t), Attempt: 1, Holds: 2, HeldFor: drawHold(t), Retries: 3, StreamedAfter: 4}
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
		if rapid.Bool().Draw(t, "tool") {
			a.Verdict, a.ResultMax, a.FailsRun = Verdict{runs.Allow, drawName(t)}, 7, rapid.Bool().Draw(t, "fails run")
			a.OnDevice = rapid.Bool().Draw(t, "on a device")
		}
		if rapid.Bool().Draw(t, "waits") {
			a.Await = &Await{actor.HashOf(nil), drawName(t), runs.ApprovalStatusPending}
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
	j := Journal{N: rapid.Uint64().Draw(t, "n"), At: drawTime(t)}
	if rapid.Bool().Draw(t, "reported") {
		j.Reported = Reported{"searching", `{"n":1}`, rapid.Uint64Range(1, 9).Draw(t, "version"), drawRun(t), drawTime(t)}
	}
	for range rapid.IntRange(0, 2).Draw(t, "runs") {
		run := &Run{Call: drawCall(t, drawID(t)), At: drawTime(t), Definition: actor.HashOf(nil), Clock: drawClock(t),
			Holds: 1, Budget: 2, Purse: drawPurse(t), Seq: 3, Parked: drawName(t), StateUpdates: drawItems(t), Heard: rapid.Uint64Range(0, 9).Draw(t, "heard"), HeldTo: drawTime(t)}
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
						switch kind := a.Out().Kind; {
						case kind == actor.AskModel && a.Answer.Refusal == nil:
							run.Spent = run.Spent.Add(a.ShownName(), a.Answer.Usage)
						case kind == actor.AskInvoke && a.Answer.Usage != actor.Usage{}:
							run.Spent = run.Spent.Add("", a.Answer.Usage)
						}
					}
				}
			}
		}
		j.Runs = append(j.Runs, run)
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
	j.stateBytes = itemsSize(j.ActorState)
	j.Transcript, j.Extensions = drawTranscript(t), drawExtensions(t)
	for range rapid.IntRange(0, 2).Draw(t, "detached") {
		j.Mail.Rows = append(j.Mail.Rows, drawPending(t))
		j.Mail.Late = append(j.Mail.Late, LateResponse{drawRun(t), []byte(drawName(t))})
	}
	return j
}

func drawPurse(t *rapid.T) *actor.Purse {
	amount := rapid.OneOf(rapid.Int64Range(-actor.UsageMax, actor.UsageMax), rapid.Just[int64](actor.NoLimit))
	return rapid.OneOf(rapid.Just[*actor.Purse](nil), rapid.Ptr(rapid.Custom(func(t *rapid.T) actor.Purse {
		return actor.Purse{Tokens: amount.Draw(t, "tokens"), Micros: amount.Draw(t, "micros")}
	}), false)).Draw(t, "purse")
}

func drawPending(t *rapid.T) Pending {
	return Pending{Call: drawCall(t, drawID(t)), Tool: drawName(t), Skill: drawName(t), Client: drawName(t), At: drawTime(t), Clock: drawClock(t), Reserve: 5, Purse: drawPurse(t), Waits: drawHold(t), Holds: 6, Late: rapid.Bool().Draw(t, "late"), Cancelled: rapid.Bool().Draw(t, "cancelled")}
}

func drawMessage(t *rapid.T, parts []actor.Part) actor.ChatMessage {
	return actor.ChatMessage{Call: drawRun(t), Role: actor.Role(rapid.IntRange(1, int(actor.RoleTool)).Draw(t, "role")),
		Source: actor.Source(rapid.IntRange(1, int(actor.FromDelivered)).Draw(t, "source")), At: drawTime(t), Parts: parts, Extensions: drawExtensions(t)}
}

// drawTranscript draws a transcript some of whose pages have content.
func drawTranscript(t *rapid.T) Transcript {
	c := Transcript{Began: drawTime(t), Last: drawTime(t), Runs: rapid.Uint64().Draw(t, "runs"), Usage: drawUsage(t)}
	for range rapid.IntRange(0, 3).Draw(t, "pages") {
		var messages []actor.ChatMessage
		for range rapid.IntRange(1, 3).Draw(t, "messages") {
			messages = append(messages, drawMessage(t, slices.DeleteFunc(drawParts(t), func(p actor.Part) bool { return !p.Blob.IsZero() })))
		}
		p := Page{Hash: actor.HashOf(encodePage(messages).page), Messages: uint32(len(messages))}
		c.Pages, c.closed = append(c.Pages, p), c.closed+uint64(len(messages))
	}
	for range rapid.IntRange(0, 2).Draw(t, "tail") {
		m := drawMessage(t, drawParts(t))
		c.Tail, c.tailBytes = append(c.Tail, m), c.tailBytes+actor.SizeOf(m.Parts)
	}
	return c
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
		return Streamed{run, 3, 1, at, true, 5, "searching", `{"n":1}`}
	case tagAnswered:
		return Answered{run, 3, 1, at, drawAnswer(t), 4, drawPurse(t)}
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
	case tagResolved:
		return Resolved{run, 3, 1, at, runs.ApprovalStatusApproved, 9, drawName(t), drawPurse(t)}
	case tagAppended:
		return Appended{at, drawMessage(t, drawParts(t))}
	case tagDetached:
		return Detached{drawPending(t)}
	case tagSettled:
		return Settled{run, at, drawRun(t), 7}
	case tagNoticed:
		return Noticed{run, at, 5, drawHold(t)}
	case tagDrawn:
		return Drawn{run, at, drawPurse(t)}
	case tagLate:
		return Late{run, at, actor.Partial, []byte(drawName(t)), 9}
	default:
		j := drawJournal(t)
		return Snapshot{Journal: EncodeJournal(&j), Pages: rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 1, 9), 1, 3).Draw(t, "pages")}
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
		if rapid.Bool().Draw(t, "detached") {
			s.Call.Kind = actor.Detached
			s.Call.Extensions = s.Call.Extensions.WithChannel(actor.Switch(rapid.IntRange(0, 2).Draw(t, "channel")))
		}
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
		N: rapid.Uint64Range(1, 1<<40).Draw(t, "n"), Record: drawRecordOf(t, id, rapid.IntRange(tagAccepted, tagDrawn).Draw(t, "tag")), WasDue: drawTime(t), Due: drawTime(t), Extensions: drawExtensions(t)}
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
		for tag := tagAccepted; tag <= tagDrawn; tag++ {
			e := Entry{Actor: actor.NewID("a", ""), N: 1}
			e.Record = drawRecordOf(t, e.Actor, tag)
			e, _ = DecodeEntry(EncodeEntry(e))
			nonZero(reflect.ValueOf(e.Record), seen)
		}
		nonZero(reflect.ValueOf(j), seen)
	})
	for _, v := range []any{Entry{}, Shown{}, ShownAsk{}, RunEvent{}, Accepted{}, Asking{}, Answered{}, Retried{}, Held{}, Resumed{}, Parked{}, Ended{},
		Buried{}, Added{}, Streamed{}, Rebased{}, Cut{}, Forgotten{}, Kept{}, Mark{}, actor.StateItem{}, Snapshot{}, Journal{}, Reported{}, Transcript{}, Page{}, Appended{}, actor.ChatMessage{}, EvictedOutcome{}, Run{}, Step{}, Asked{}, actor.Hold{}, actor.Clock{}, actor.Answer{}, actor.Usage{}} {
		for i := range reflect.TypeOf(v).NumField() {
			field := reflect.TypeOf(v).Field(i)
			if name := fmt.Sprintf("%T.%s", v, field.Name); field.IsExported() && !seen[name] && name != "store.Entry.Summary" && name != "store.Journal.Ended" { // unexported fields are derived, summaries are in the index only, and a snapshot refers to outcomes
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
	newer, older := bytes.Clone(b), bytes.Clone(b)
	newer[0], older[0] = CodecVersion+1, CodecVersion-1
	unknown := bytes.Clone(b)
	unknown[bytes.IndexByte(b[18:], tagBuried)+18] = 99
	for _, c := range []struct {
		b    []byte
		want string
	}{{newer, fmt.Sprintf("entry written in version %d, this program reads version %d", CodecVersion+1, CodecVersion)},
		{older, fmt.Sprintf("entry written in version %d, this program reads version %d", CodecVersion-1, CodecVersion)}, {unknown, "unknown record 99"}, {nil, "invalid varint"}, {append(b, 0), "1 bytes too many"}} {
		if _, err := DecodeEntry(c.b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	if _, err := DecodeJournal([]byte{99}); err == nil || !strings.Contains(err.Error(), "snapshot written in version 99") {
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
		if e, err := DecodeEntry(b); err == nil && !bytes.Equal(EncodeEntry(e), b) {
			t.Errorf("accepted % x, encoded % x", b, EncodeEntry(e))
		}
		if j, err := DecodeJournal(b); err == nil && !bytes.Equal(EncodeJournal(&j), b) {
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
