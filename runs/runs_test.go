// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

var (
	parent = actor.NewCallID(1_700_000_000_000_000_000, 1, 2)
	child  = actor.NewCallID(1_700_000_000_000_000_000, 3, 4)
	alice  = actor.NewID("alice", "s-1")
	bob    = actor.NewID("bob", "s-1")
)

func TestRunTransitions(t *testing.T) {
	want := strings.Fields(`
		unknown(0)>RUNNING
		RUNNING>PAUSED_WAITING_APPROVAL RUNNING>PAUSED_WAITING_TOOL RUNNING>DONE RUNNING>FAILED RUNNING>CANCELLED
		PAUSED_WAITING_APPROVAL>RUNNING PAUSED_WAITING_APPROVAL>PAUSED_WAITING_TOOL PAUSED_WAITING_APPROVAL>FAILED PAUSED_WAITING_APPROVAL>CANCELLED
		PAUSED_WAITING_TOOL>RUNNING PAUSED_WAITING_TOOL>PAUSED_WAITING_APPROVAL PAUSED_WAITING_TOOL>FAILED PAUSED_WAITING_TOOL>CANCELLED`)
	all := append([]Status{0}, append(Statuses(), 7)...)
	for _, from := range all {
		for _, to := range all {
			step := from.String() + ">" + to.String()
			if err := Transition(from, to); (err == nil) != slices.Contains(want, step) {
				t.Errorf("%s: got error %v", step, err)
			}
		}
	}
	for _, s := range Statuses() {
		if again, err := ParseStatus(s.String()); err != nil || again != s {
			t.Errorf("%s parses as %v, %v", s, again, err)
		}
		if s.Ended() != (len(runTransitions[s]) == 0) {
			t.Errorf("%s: got Ended %v, but transitions to %v", s, s.Ended(), runTransitions[s])
		}
	}
	if s, err := ParseStatus("running"); err == nil {
		t.Errorf("running parses as %v", s)
	}
}

func TestCallAndAgentState(t *testing.T) {
	deadline, busy := actor.Refuse(actor.Deadline, "late"), actor.Refuse(actor.Busy, "full")
	for _, c := range []struct {
		status Status
		why    *actor.Refusal
		want   string
	}{
		{Running, nil, "Pending Running"},
		{PausedWaitingApproval, actor.Refuse(actor.Unavailable, "diverged"), "Pending Parked"},
		{PausedWaitingTool, nil, "Pending Waiting"},
		{PausedWaitingApproval, nil, "Pending Paused"},
		{Done, nil, "Completed "},
		{Failed, deadline, "TimedOut "},
		{Cancelled, deadline, "TimedOut "},
		{Failed, busy, "Failed "},
		{Cancelled, busy, "Failed "},
	} {
		if got := CallState(c.status, c.why) + " " + AgentState(c.status, 1, c.why); got != c.want {
			t.Errorf("%s, %v: %q, want %q", c.status, c.why, got, c.want)
		}
	}
	if got := AgentState(Running, 0, nil); got != AgentQueued {
		t.Errorf("before the turn: %s", got)
	}
}

func TestTimeFormatMatchesStandardLibrary(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, at actor.Time) {
		want := time.Unix(0, int64(at)).UTC().Format("2006-01-02T15:04:05.000000000Z")
		if got := FormatTime(at); got != want {
			t.Fatalf("%d formats as %s, want %s", at, got, want)
		}
		if again, err := ParseTime(want); err != nil || again != at {
			t.Fatalf("%s parses as %d, %v, want %d", want, again, err, at)
		}
	}
	for _, text := range []string{"1970-01-01T00:00:00Z", "1969-12-31T23:59:59.999999999Z", "2000-02-29T12:00:00Z",
		"2100-02-28T23:59:59Z", "2100-03-01T00:00:00Z", "2026-12-31T00:00:00.1Z"} {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		check(t, actor.Time(at.UnixNano()))
	}
	check(t, actor.Forever)
	check(t, -actor.Forever)
	rapid.Check(t, func(t *rapid.T) { check(t, actor.Time(rapid.Int64().Draw(t, "at"))) })
	for _, text := range []string{"", "2026-11-21", "2026-02-30T00:00:00.000000000Z", "2026-11-21T24:00:00.000000000Z",
		"2026-11-21T00:00:00.000000000z", "2026-11-21T00:00:00.00000000aZ", "9999-11-21T00:00:00.000000000Z"} {
		if at, err := ParseTime(text); err == nil {
			t.Errorf("%q parses as %s", text, FormatTime(at))
		}
	}
}

// sampleRun returns the events of a run with all event types except RunFailed and
// RunCancelled.
func sampleRun() []Event {
	n, at := uint64(0), actor.Time(1_700_000_000_000_000_000)
	next := func(e Event) Event {
		n++
		at += 1_000_001
		e.Run, e.Seq, e.At = parent, n, at
		return e
	}
	return []Event{
		next(Event{Type: UserInput, Actor: alice, Text: "hi", Origin: "human"}),
		next(Event{Type: RunStarted, Actor: alice, Kind: "waiting", Operation: actor.HandleMessageFull, Origin: "human", Root: parent, Left: time.Minute}),
		next(Event{Type: TimeoutClamped, Step: 1, Asked: time.Hour, Left: 5 * time.Minute}),
		next(Event{Type: AgentCalledChild, Step: 1, Actor: bob, Child: child, Depth: 1, Chain: []actor.ID{alice}, Left: 30 * time.Second, Text: "hello"}),
		next(Event{Type: AgentCallRefused, Step: 1, Index: 1, Name: "alice", Refusal: actor.RefuseCycle(nil, alice)}),
		next(Event{Type: ToolCallCreated, Step: 1, Index: 2, Name: "browser.open", Kind: KindTool, Text: "{}"}),
		next(Event{Type: ToolDispatched, Step: 1, Index: 2, Name: "browser.open", Attempt: 1}),
		next(Event{Type: Attempt, Attempt: 2}),
		next(Event{Type: ToolResult, Step: 1, Index: 2, Name: "browser.open", Status: actor.Failed, Refusal: actor.Refuse(actor.Unknown, "who knows")}),
		next(Event{Type: RunPaused, Name: "held", Child: child}),
		next(Event{Type: RunResumed, Child: child}),
		next(Event{Type: AgentChildDone, Step: 1, Child: child, Status: actor.Succeeded, Text: "hello yourself"}),
		next(Event{Type: WaitOpened, Step: 2, Name: "go", Until: at.Add(10 * time.Minute)}),
		next(Event{Type: WaitOpened, Step: 2, Index: 1, Name: "stop", Until: at.Add(time.Minute)}),
		next(Event{Type: WaitExpired, Step: 2, Index: 1, Name: "stop"}),
		next(Event{Type: SignalReceived, Step: 2, Name: "go", Text: `{"ok":true}`}),
		next(Event{Type: LLMCallStarted, Step: 3, Name: "scripted", Left: 2 * time.Minute, Text: "what bob said"}),
		next(Event{Type: AgentStreamDelta, Step: 3, Text: "bob"}),
		next(Event{Type: Attempt, Attempt: 2, Step: 3, Discards: 17}),
		next(Event{Type: AgentStreamDelta, Step: 3, Text: "bob says "}),
		next(Event{Type: AgentStreamDelta, Step: 3, Text: "hello"}),
		next(Event{Type: LLMCallDone, Step: 3, Name: "scripted", Status: actor.Succeeded, Text: "bob says hello", Took: 20 * time.Millisecond, Usage: Usage{Input: 10, Output: 3, Total: 13}}),
		next(Event{Type: AgentInvokeStarted, Step: 3, Index: 1, Name: "carol", Left: time.Minute}),
		next(Event{Type: AgentStateChanged, Step: 3, Index: 1, Name: "reading", Text: `{"page":1}`}),
		next(Event{Type: AgentInvokeDone, Step: 3, Index: 1, Name: "carol", Status: actor.Failed, Refusal: actor.Refuse(actor.Unavailable, "gone")}),
		next(Event{Type: MessageLeftOut, Name: parent.String() + ".0"}),
		next(Event{Type: RunDone, Status: actor.Partial, Text: "bob says hello", Usage: Usage{Input: 10, Output: 3, Total: 13}, Warnings: []string{"the page was not read"}}),
	}
}

func TestRecordStatusPerEvent(t *testing.T) {
	var r Record
	var seen []string
	for _, e := range sampleRun() {
		if err := r.Apply(&e); err != nil {
			t.Fatal(err)
		}
		seen = append(seen, fmt.Sprintf("%s %s", e.Type, r.Status))
	}
	want := `user_input RUNNING
run_started RUNNING
timeout_clamped RUNNING
agent_called_child PAUSED_WAITING_TOOL
agent_call_refused PAUSED_WAITING_TOOL
tool_call_created PAUSED_WAITING_TOOL
tool_dispatched PAUSED_WAITING_TOOL
attempt PAUSED_WAITING_TOOL
tool_result PAUSED_WAITING_TOOL
run_paused PAUSED_WAITING_APPROVAL
run_resumed PAUSED_WAITING_TOOL
agent_child_done RUNNING
wait_opened PAUSED_WAITING_APPROVAL
wait_opened PAUSED_WAITING_APPROVAL
wait_expired PAUSED_WAITING_APPROVAL
signal_received RUNNING
llm_call_started RUNNING
agent_stream_delta RUNNING
attempt RUNNING
agent_stream_delta RUNNING
agent_stream_delta RUNNING
llm_call_done RUNNING
agent_invoke_started RUNNING
agent_state RUNNING
agent_invoke_done RUNNING
message_left_out RUNNING
run_done DONE`
	if got := strings.Join(seen, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if r.Text != "bob says hello" || r.Outcome != actor.Partial || len(r.Warnings) != 1 || r.Attempt != 2 || r.Seq != 27 {
		t.Errorf("got final record %+v", r)
	}
	if len(r.Children) != 2 || r.Children[0].Run != child || r.Children[0].CallState() != CallCompleted ||
		r.Children[1].CallState() != CallFailed || r.Children[1].Target != "alice" {
		t.Errorf("got children %+v", r.Children)
	}
	if js := r.AppendJSON(nil); !jsontext.Value(js).IsValid() || !bytes.Contains(js, []byte(`"status":"DONE","call_state":"Completed","priority":"normal","call_depth":0`)) {
		t.Errorf("got JSON %s", js)
	}
	if len(seen) != len(sampleRun()) {
		t.Error("not all events of the sample run were applied")
	}
}

func TestRecordListsOpenWaits(t *testing.T) {
	r, err := Fold(sampleRun()[:14])
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Waits) != 2 || r.Waits[0].Name != "go" || r.Waits[0].Until == 0 || r.AgentState() != AgentPaused || r.CallState() != CallPending {
		t.Errorf("got record %+v", r)
	}
	if js := string(r.AppendJSON(nil)); !strings.Contains(js, `"waiting_for":[{"name":"go","until":"2023-11-14T22:23:`) {
		t.Errorf("got JSON %s", js)
	}
}

// A record lists the first calls and waits that were given less time than they requested.
func TestRecordListsClampedTimes(t *testing.T) {
	events := sampleRun()[:2]
	for i := range clampedMax + 1 {
		e := Event{Run: parent, Seq: uint64(len(events) + 1), At: events[1].At, Type: TimeoutClamped, Step: 1, Index: uint16(i), Asked: time.Hour, Left: time.Minute}
		if i > 0 {
			e.Name = "go"
		}
		events = append(events, e)
	}
	r, err := Fold(events)
	if err != nil || len(r.Clamped) != clampedMax {
		t.Fatalf("%v, got %+v, want %d", err, r.Clamped, clampedMax)
	}
	if js := string(r.AppendJSON(nil)); !strings.Contains(js, `"clamped":[{"asked_ms":3600000,"time_left_ms":60000},{"name":"go","asked_ms":3600000,"time_left_ms":60000},`) {
		t.Errorf("got JSON %s", js)
	}
}

func TestRunResumesAfterLastPause(t *testing.T) {
	other := actor.NewCallID(1_700_000_000_000_000_000, 5, 6)
	r, err := Fold(sampleRun()[:5])
	if err != nil {
		t.Fatal(err)
	}
	apply := func(e Event) {
		e.Run, e.Seq, e.At = r.Run, r.Seq+1, r.Created
		if err := r.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	want := func(pauses int, status Status) {
		t.Helper()
		if len(r.Pauses) != pauses || r.Status != status {
			t.Errorf("got %s with pauses %v, want %s with %d", r.Status, r.Pauses, status, pauses)
		}
	}
	apply(Event{Type: RunPaused, Name: "held", Child: child, Until: 1})
	apply(Event{Type: RunPaused, Name: "held", Child: child, Until: 2})
	apply(Event{Type: RunPaused, Name: "held", Child: other, Until: 3})
	want(2, PausedWaitingApproval)
	apply(Event{Type: AgentChildDone, Step: 1, Child: child, Status: actor.Succeeded})
	want(1, PausedWaitingApproval) // an ended call no longer holds the run
	apply(Event{Type: RunResumed, Child: child})
	want(1, PausedWaitingApproval)
	apply(Event{Type: RunResumed, Child: other})
	want(0, Running)
}

func TestFoldRejectsIllegalSequences(t *testing.T) {
	events := sampleRun()
	at := func(n int, change func(*Event)) []Event {
		part := slices.Clone(events[:n])
		change(&part[n-1])
		return part
	}
	last := events[len(events)-1]
	last.Seq++
	for _, c := range []struct {
		events []Event
		want   string
	}{
		{events[1:], "does not follow event 0"},
		{slices.Delete(slices.Clone(events), 4, 5), "does not follow event 4"},
		{append(slices.Clone(events), last), "but the run is DONE"},
		{at(2, func(e *Event) { e.Run = child }), "does not belong to run"},
		{at(2, func(e *Event) { *e = Event{Run: e.Run, Seq: 2, Type: Attempt, Attempt: 2} }), "has not started"},
		{at(3, func(e *Event) { *e = events[1]; e.Seq = 3 }), "started twice"},
		{at(2, func(e *Event) { *e = events[0]; e.Seq = 2 }), "user_input after the first"},
		{at(5, func(e *Event) { *e = last; e.Seq = 5 }), "cannot go from PAUSED_WAITING_TOOL to DONE"},
		{at(9, func(e *Event) { e.Index = 7 }), "no pending tool at 1.7"},
		{at(12, func(e *Event) { e.Child = parent }), "no pending call to run"},
		{at(15, func(e *Event) { e.Name = "walk" }), "no open wait for walk"},
	} {
		if _, err := Fold(c.events); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

func TestRejectedEventLeavesRecordUnchanged(t *testing.T) {
	r, err := Fold(sampleRun()[:13])
	if err != nil {
		t.Fatal(err)
	}
	before := fmt.Sprintf("%+v", r)
	bad := sampleRun()[15]
	bad.Seq, bad.Name = 14, "walk"
	if err := r.Apply(&bad); err == nil || fmt.Sprintf("%+v", r) != before {
		t.Errorf("after %v: got\n%+v\nwant\n%s", err, r, before)
	}
}

func TestEventCheck(t *testing.T) {
	good := Event{Run: parent, Seq: 1, Type: AgentChildDone, Child: child, Step: 1, Status: actor.Succeeded}
	for _, c := range []struct {
		change func(*Event)
		want   string
	}{
		{func(e *Event) { e.Type = 0 }, "unknown type 0"},
		{func(e *Event) { e.Type = 99 }, "unknown type 99"},
		{func(e *Event) { e.Run = actor.CallID{} }, "without run"},
		{func(e *Event) { e.Seq = 0 }, "without number"},
		{func(e *Event) { e.Child = actor.CallID{} }, "agent_child_done without child_run_id"},
		{func(e *Event) { e.Until = 5 }, "agent_child_done with until"},
		{func(e *Event) { e.Step, e.Index = 0, 1 }, "with step 0"},
		{func(e *Event) { e.Status = actor.Failed }, "a refusal: false"},
		{func(e *Event) { *e = sampleRun()[3]; e.Depth = 2 }, "with depth 2 and a chain of 1"},
		{func(e *Event) { *e = sampleRun()[3]; e.Left = -1 }, "negative count"},
	} {
		e := good
		c.change(&e)
		if err := e.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want %s", err, c.want)
		}
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
}

func TestEventEncodingIsStable(t *testing.T) {
	want := map[Type]string{
		RunStarted:       `"payload":{"agent_id":"alice","actor":"alice/s-1","kind":"waiting","operation":"handle_message_full","origin":"human","root_run_id":"` + parent.String() + `","call_depth":0,"call_chain":[],"time_left_ms":60000}}`,
		AgentCalledChild: `"payload":{"agent_id":"bob","actor":"bob/s-1","call_depth":1,"call_chain":["alice/s-1"],"time_left_ms":30000,"step":1,"index":0,"child_run_id":"` + child.String() + `","text":"hello"}}`,
		AgentCallRefused: `"error":{"type":"cycle detected","code":"call_cycle","reason":"Cycle","message":"cycle detected: Cycle detected: alice already in call chain alice/s-1","detail":"Cycle detected: alice already in call chain alice/s-1"}}}`,
		LLMCallDone:      `"payload":{"step":3,"index":0,"name":"scripted","status":"succeeded","text":"bob says hello","took_ms":20,"usage":{"input_tokens":10,"output_tokens":3,"total_tokens":13}}}`,
		SignalReceived:   `"payload":{"step":2,"index":0,"name":"go","text":"{\"ok\":true}"}}`,
		RunDone:          `"type":"run_done","payload":{"status":"partial","text":"bob says hello","warnings":["the page was not read"],"usage":{"input_tokens":10,"output_tokens":3,"total_tokens":13}}}`,
		UserInput:        `{"run_id":"` + parent.String() + `","seq":1,"event_id":"` + parent.String() + `.1","ts":"2023-11-14T22:13:20.001000001Z","type":"user_input","payload":{"agent_id":"alice","actor":"alice/s-1","origin":"human","text":"hi"}}`,
	}
	seen := map[Type]bool{}
	for _, e := range slices.Concat(sampleRun(), approvalRun(ApprovalDecision)[2:], approvalRun(ApprovalExpired)[2:]) {
		seen[e.Type] = true
		js := Encode(e)
		if !bytes.HasSuffix(js, []byte(want[e.Type])) {
			t.Errorf("%s encodes to\n%s\nwant\n%s", e.Type, js, want[e.Type])
		}
		again, err := Decode(js)
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Errorf("%s parses as %+v, %v", js, again, err)
		}
		id := fmt.Sprintf(`"event_id":"%s.%d",`, e.Run, e.Seq)
		if again, err := Decode([]byte(strings.Replace(string(js), id, "", 1))); err != nil || !reflect.DeepEqual(again, e) || !strings.Contains(string(js), id) {
			t.Errorf("%s without its ID, as earlier versions have stored it, parses as %+v, %v", js, again, err)
		}
		if _, err := Decode([]byte(strings.Replace(string(js), id, `"event_id":"x",`, 1))); err == nil {
			t.Errorf("%s parses with another ID", js)
		}
		if e.String() == "" {
			t.Errorf("%s has no text form", js)
		}
	}
	for _, typ := range Types() {
		if again, err := ParseType(typ.String()); err != nil || again != typ {
			t.Errorf("%s parses as %s, %v", typ, again, err)
		}
		if !seen[typ] && typ != RunFailed && typ != RunCancelled {
			t.Errorf("no %s in the sample run", typ)
		}
	}
}

func TestDecodeIsStrict(t *testing.T) {
	good := string(Encode(sampleRun()[3]))
	for _, c := range []struct{ from, to, want string }{
		{`"seq":4`, `"seq":4,"seq":4`, "duplicate"},
		{`"seq":4`, `"seq":4,"more":1`, "unknown"},
		{`"seq":4`, `"Seq":4`, "unknown"},
		{`"seq":4`, `"seq":04`, "invalid"},
		{`"seq":4`, `"seq": 4`, "byte 5"},
		{`"seq":4`, `"seq":0`, "without number"},
		{`agent_called_child`, `agent_called`, "is unknown"},
		{`"bob/s-1"`, `"bob"`, "not in canonical form"},
		{`"agent_id":"bob"`, `"agent_id":"eve"`, "not in canonical form"},
		{`"text":"hello"`, `"text":"` + strings.Repeat("x", TextBytesMax+1) + `"`, "not in canonical form"},
		{`"call_depth":1`, `"call_depth":2`, "chain of 1"},
		{`"time_left_ms":30000`, `"time_left_ms":9223372036854775807`, "invalid duration"},
		{`"step":1`, `"step":-1`, "step"},
		{`}}`, `}} `, "not in canonical form"},
		{`}}`, `}}{}`, "after top-level"},
	} {
		bad := strings.Replace(good, c.from, c.to, 1)
		if bad == good {
			t.Fatalf("nothing to replace: %s", c.from)
		}
		if e, err := Decode([]byte(bad)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s for %s: got %v, %v, want %q", c.to, c.from, e, err, c.want)
		}
	}
	if _, err := Decode(make([]byte, EventBytesMax+1)); err == nil {
		t.Error("too many bytes were accepted")
	}
}

func TestLongTextIsTruncated(t *testing.T) {
	long := strings.Repeat("ä", AnswerBytesMax) // twice AnswerBytesMax bytes
	e := sampleRun()[0]
	e.Text = "x" + long
	again, err := Decode(Encode(e))
	if err != nil || !again.Truncated || len(again.Text) != TextBytesMax-1 || !utf8.ValidString(again.Text) {
		t.Errorf("got %d bytes, truncated %v, error %v", len(again.Text), again.Truncated, err)
	}
	end := sampleRun()[26]
	end.Text = long
	again, err = Decode(Encode(end))
	if err != nil || !again.Truncated || len(again.Text) != AnswerBytesMax {
		t.Errorf("got %d bytes, truncated %v, error %v", len(again.Text), again.Truncated, err)
	}
	e.Text = "a\xffb"
	if again, err = Decode(Encode(e)); err != nil || again.Truncated || again.Text != "a\uFFFDb" {
		t.Errorf("got %q, truncated %v, error %v", again.Text, again.Truncated, err)
	}
}

func TestSetTextKeepsTextParts(t *testing.T) {
	var e Event
	e.SetText(append(actor.Text("see "), actor.Part{Media: actor.MediaJSON, Bytes: []byte(`{}`)}))
	if e.Text != "see {}" || e.Truncated {
		t.Errorf("got %q, truncated %v", e.Text, e.Truncated)
	}
	e = Event{}
	e.SetText([]actor.Part{{Media: "image/png", Bytes: []byte{1}}})
	if e.Text != "" || !e.Truncated {
		t.Errorf("got %q, truncated %v", e.Text, e.Truncated)
	}
}

func TestEncodeInvalidEventPanics(t *testing.T) {
	defer func() {
		if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "run_failed without error") {
			t.Errorf("got panic %v", p)
		}
	}()
	Encode(Event{Run: parent, Seq: 1, Type: RunFailed})
}

func drawRefusal(t *rapid.T) *actor.Refusal {
	r := actor.Refuse(rapid.SampledFrom(actor.Reasons()).Draw(t, "reason"), "%s", rapid.String().Draw(t, "detail"))
	r.Scope = rapid.SampledFrom([]actor.Scope{actor.NoScope, actor.ScopeCaller, actor.ScopeCallee, actor.ScopeNode}).Draw(t, "scope")
	r.Field = rapid.String().Draw(t, "field")
	r.Operation = rapid.String().Draw(t, "operation")
	r.RetryAfter = time.Duration(rapid.Int64Range(0, 1e10).Draw(t, "retry"))
	r.Timeout = time.Duration(rapid.Int64Range(0, 1e10).Draw(t, "timeout"))
	return r
}

// drawEvent draws an event of any type, with any subset of its optional fields.
func drawEvent(t *rapid.T) Event {
	typ := rapid.SampledFrom(Types()).Draw(t, "type")
	e := Event{Run: parent, Seq: rapid.Uint64Range(1, 1<<53).Draw(t, "seq"), At: actor.Time(rapid.Int64().Draw(t, "at")), Type: typ}
	has := types[typ].has | types[typ].may&fields(rapid.Uint32Range(0, uint32(fAll)).Draw(t, "fields"))
	text := func(f fields, to *string, empty int) {
		if has&f != 0 {
			*to = rapid.StringN(1-empty, 20, -1).Draw(t, "text")
		}
	}
	set := func(f fields, do func()) {
		if has&f != 0 {
			do()
		}
	}
	text(fKind, &e.Kind, 0)
	text(fOperation, &e.Operation, 0)
	text(fPrincipal, &e.Principal, 0)
	text(fOrigin, &e.Origin, 0)
	text(fProject, &e.Project, 0)
	text(fPriority, &e.Priority, 0)
	text(fTrace, &e.Trace, 0)
	text(fName, &e.Name, 0)
	text(fText, &e.Text, 1)
	text(fApproval, &e.Approval, 0)
	text(fRequest, &e.Request, 0)
	text(fKey, &e.Key, 0)
	text(fChannel, &e.Channel, 0)
	span := func() time.Duration { return time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "duration")) }
	set(fActor, func() { e.Actor = bob })
	set(fRoot, func() { e.Root = parent })
	set(fParent, func() { e.Parent = parent })
	set(fClaimed, func() { e.Claimed = child })
	set(fDepth, func() {
		e.Depth = rapid.IntRange(0, 5).Draw(t, "depth")
		for range e.Depth {
			e.Chain = append(e.Chain, alice)
		}
	})
	set(fLeft, func() { e.Left = span() })
	set(fAsked, func() { e.Asked = span() })
	set(fPosition, func() {
		e.Step = rapid.Uint32Min(1).Draw(t, "step")
		e.Index = rapid.Uint16().Draw(t, "index")
	})
	set(fChild, func() { e.Child = child })
	set(fUntil, func() { e.Until = actor.Time(rapid.Int64Min(1).Draw(t, "until")) })
	set(fAttempt, func() { e.Attempt = rapid.Uint32Min(1).Draw(t, "attempt") })
	set(fRefusal, func() { e.Refusal = drawRefusal(t) })
	set(fStatus, func() {
		e.Status = rapid.SampledFrom([]actor.Status{actor.Succeeded, actor.Partial}).Draw(t, "status")
		if e.Refusal != nil {
			e.Status = actor.Failed
		}
	})
	set(fWarnings, func() { e.Warnings = rapid.SliceOfN(rapid.String(), 1, 3).Draw(t, "warnings") })
	return e
}

func TestEventRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent(t)
		again, err := Decode(Encode(e))
		if err != nil {
			t.Fatalf("%s: %v", Encode(e), err)
		}
		if typ := TypeOf(Encode(e)); typ != e.Type || TypeOf([]byte(`{"type":"nonsense"`)) != 0 {
			t.Fatalf("type of %s is %s", Encode(e), typ)
		}
		e.fit()
		if !reflect.DeepEqual(again, e) {
			t.Fatalf("%s\nparses as %+v\nwant %+v", Encode(e), again, e)
		}
	})
}

// TestApplyRandomEvents applies random events. The record MUST NOT take an illegal
// transition and MUST NOT change after its end.
func TestApplyRandomEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Record
		for range 30 {
			e := drawEvent(t)
			e.Seq = r.Seq + uint64(rapid.IntRange(1, 2).Draw(t, "gap"))
			before := r
			if err := r.Apply(&e); err != nil {
				if !reflect.DeepEqual(before, r) {
					t.Fatalf("%v changed the record", err)
				}
				continue
			}
			if before.Seq > 0 && before.Status != r.Status && Transition(before.Status, r.Status) != nil {
				t.Fatalf("%s: illegal transition from %s to %s", e.String(), before.Status, r.Status)
			}
			if before.Status.Ended() || r.Seq != before.Seq+1 {
				t.Fatalf("%s was accepted after %s %d", e.String(), before.Status, before.Seq)
			}
			if !jsontext.Value(r.AppendJSON(nil)).IsValid() {
				t.Fatalf("not JSON: %s", r.AppendJSON(nil))
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, e := range sampleRun() {
		f.Add(Encode(e))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Decode(b)
		if err != nil {
			return
		}
		if again := Encode(e); !bytes.Equal(again, b) {
			t.Fatalf("%s encodes to %s", b, again)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	e := sampleRun()[3]
	buf := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		buf = Append(buf[:0], e)
	}
}

func BenchmarkDecode(b *testing.B) {
	js := Encode(sampleRun()[3])
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(js); err != nil {
			b.Fatal(err)
		}
	}
}

// An event that is cut off before the end of its type has none.
func TestTypeOfTruncatedEvent(t *testing.T) {
	for _, e := range sampleRun() {
		b := Encode(e)
		end := bytes.Index(b, []byte(`"type":"`)) + len(`"type":"`) + len(e.Type.String()) + 1
		for n := range b {
			want := Type(0)
			if n >= end {
				want = e.Type
			}
			if got := TypeOf(b[:n]); got != want {
				t.Fatalf("%s: got %v, want %v", b[:n], got, want)
			}
		}
	}
}

// TestFrameDataLineEnds encodes data with each kind of line end. A missed line end
// would let data inject fields into a frame.
func TestFrameDataLineEnds(t *testing.T) {
	for data, want := range map[string]string{"a\rid: 7": "data: a\ndata: id: 7\n\n", "a\r\nb": "data: a\ndata: b\n\n", "a\nb": "data: a\ndata: b\n\n", "a": "data: a\n\n"} {
		if got := string(Frame{Data: data}.Append(nil)); got != want {
			t.Errorf("%q: got %q, want %q", data, got, want)
		}
	}
}

// A name or id with a line end, a zero or invalid UTF-8 would end its field early, or
// could not be sent back in Last-Event-ID.
func TestFrameCheckRejectsNameAndID(t *testing.T) {
	for _, bad := range []string{"a\nb", "a\r", "\x00", "a\xff"} {
		if (Frame{Name: bad}).Check() == nil {
			t.Errorf("the name %q is accepted", bad)
		}
		if (Frame{ID: bad}).Check() == nil {
			t.Errorf("the id %q is accepted", bad)
		}
		if err := (Frame{Name: "n", ID: "7", Data: bad}).Check(); err != nil {
			t.Errorf("the data %q: %v", bad, err)
		}
	}
}

// An event is read although the server shows a part of it, in another order.
func TestDecodePart(t *testing.T) {
	const head = `{"run_id":"0190d5b2-7c3e-7000-8000-000000000001","seq":3,"event_id":"x","ts":"2026-01-01T00:00:00.000000000Z","type":`
	for text, want := range map[string]string{
		head + `"run_failed","payload":{"error":{"code":"agent_busy","retry_after_ms":3000,"type":"AgentBusy"}}}`: "run_failed Busy 3s",
		head + `"run_cancelled","payload":{"error":{"type":"Failed","code":"cancelled"},"new":1}}`:                "run_cancelled Stopped 0s",
		head + `"run_done","payload":{"text":"x","status":"succeeded"}}`:                                          "run_done",
		head + `"run_failed","payload":{"error":{"code":"nonsense"}}}`:                                            "nonsense",
		head + `"run_started","payload":{}}`:                                                                      "run_started",
		head + `"agent_stream_delta","payload":{"text":"x"}}`:                                                     "agent_stream_delta",
		head + `"of_a_later_version","payload":{}}`:                                                               "of_a_later_version",
		`{"seq":3,"type":"run_done"}`:                                                                             "want the run, the number and the type",
		`{"run_id":"0190d5b2-7c3e-7000-8000-000000000001","seq":3}`:                                               "want the run, the number and the type",
		`{`: "unexpected EOF",
	} {
		e, err := DecodePart([]byte(text))
		got := fmt.Sprint(err)
		if err == nil {
			if got = e.Type.String(); e.Refusal != nil {
				got += fmt.Sprintf(" %v %v", e.Refusal.Reason, e.Refusal.RetryAfter)
			}
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
