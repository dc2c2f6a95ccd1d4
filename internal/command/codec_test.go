// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// bodies lists every type that a frame can hold.
var bodies = []Body{Invoke{}, Signal{}, Cancel{}, Forget{}, Follow{}, Lookup{}, Do{}, Stop{}, Joined{}, Updated{}, Answer{}, Done{}, Found{}, Failure{}}

// everyQuery, everyAction and everyResult list the values that travel.
var (
	everyQuery  = []Query{AgentsQuery{}, OwnerQuery{}, RunQuery{}, RunsQuery{}, WaitingQuery{}, EventsQuery{}, ActorsQuery{}, HealthQuery{}, StatsQuery{}, SessionsQuery{}, SessionQuery{}, MessagesQuery{}, SessionEventsQuery{}, SessionEndQuery{}, DeviceCallsQuery{}, TasksQuery{}, SchedulesQuery{}, ContextQuery{}, OpenRunQuery{}, WorkingQuery{}, EveryRunQuery{}, ToolsQuery{}, ToolCallQuery{}, ApprovalsQuery{}, GatewayQuery{}, ExternalQuery{}, PermitQuery{}, ModelsQuery{}, MemoryQuery{}, SessionStateQuery{}, PromptsQuery{}, StepsQuery{}, MemberQuery{}, DefinitionsQuery{}}
	everyAction = []Action{StartChat{}, ReadChat{}, CancelChat{}, Heartbeat{}, MakeBackup{}}
	everyResult = []Result{Agents{}, Owner{}, Working{}, Run{}, Runs{}, Waiting{}, Events{}, Actors{}, Health{}, Stats{}, Sessions{}, Session{}, Messages{}, SessionEvents{}, SessionEnd{}, DeviceCalls{}, Tasks{}, Schedules{}, Context{}, EveryRun{}, Tools{}, ToolCall{}, Approvals{}, Gateway{}, External{}, Permit{}, Backup{}, Models{}, Chat{}, ChatPart{}, Memory{}, SessionState{}, Prompts{}, Steps{}, MemberState{}, Definitions{}}
)

// bounds holds the largest value of types whose decoder checks it.
var bounds = map[reflect.Type]uint64{
	reflect.TypeFor[runs.Status](): uint64(runs.Cancelled), reflect.TypeFor[actor.AgentKind](): uint64(actor.External),
	reflect.TypeFor[actor.Durability](): uint64(actor.Volatile), reflect.TypeFor[actor.Scope](): uint64(actor.ScopeNode),
	reflect.TypeFor[actor.AskKind](): uint64(actor.AskInvoke), reflect.TypeFor[runs.ToolStatus](): uint64(runs.ToolStatusTimeout),
	reflect.TypeFor[runs.ApprovalStatus](): uint64(runs.ApprovalStatusExpired), reflect.TypeFor[BackupFailure](): uint64(BackupDiskFull),
}

// drawInto fills in every exported field of v, so that a field without an
// encoding fails the round trip.
func drawInto(t *rapid.T, v reflect.Value) {
	switch p := v.Addr().Interface().(type) {
	case *actor.CallID:
		*p = drawCallID(t)
	case *actor.ID:
		*p = drawID(t)
	case *actor.Principal:
		*p = actor.Principal{Tenant: drawName(t), User: drawText(t), Key: drawName(t)}
		for range rapid.IntRange(0, 3).Draw(t, "scopes") {
			p.Scopes = append(p.Scopes, drawName(t))
		}
	case *actor.Call:
		*p = drawCall(t)
	case *actor.Reply:
		*p = actor.Reply{Extensions: drawExtensions(t), Call: drawCallID(t), Run: drawCallID(t), Status: actor.Succeeded, Parts: actor.Text(drawName(t)), Warnings: []string{drawText(t)}, Budget: rapid.Uint32().Draw(t, "budget")}
	case **runs.Approval:
		if rapid.Bool().Draw(t, "approval") {
			*p = &runs.Approval{}
			drawInto(t, reflect.ValueOf(*p).Elem())
		}
	case *[]actor.Part:
		*p = actor.Text("x" + drawName(t))
	case *actor.ChatMessage:
		*p = actor.ChatMessage{Call: drawCallID(t), Role: actor.RoleTool, Source: actor.FromOperator, At: 9, Parts: actor.Text(drawName(t)), Extensions: drawExtensions(t)}
	case *actor.Usage:
		count := rapid.Int64Range(0, actor.UsageMax)
		*p = actor.Usage{Input: count.Draw(t, "input"), Output: count.Draw(t, "output"), Total: count.Draw(t, "total")}
	case **actor.Refusal:
		if rapid.Bool().Draw(t, "refused") {
			*p = &actor.Refusal{Reason: actor.Busy, Scope: actor.ScopeNode, Detail: drawText(t), Field: drawText(t), Chain: []actor.ID{drawID(t)}, RetryAfter: 5, Code: drawName(t), Timeout: 7}
		}
	case *Query:
		q := reflect.New(reflect.TypeOf(rapid.SampledFrom(everyQuery).Draw(t, "query"))).Elem()
		drawInto(t, q)
		*p = q.Interface().(Query)
	case *Action:
		a := reflect.New(reflect.TypeOf(rapid.SampledFrom(everyAction).Draw(t, "action"))).Elem()
		drawInto(t, a)
		*p = a.Interface().(Action)
	case *Result:
		r := reflect.New(reflect.TypeOf(rapid.SampledFrom(everyResult).Draw(t, "result"))).Elem()
		drawInto(t, r)
		*p = r.Interface().(Result)
	default:
		drawKind(t, v)
	}
}

func drawKind(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(drawText(t))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64Range(0, 1<<62).Draw(t, "int"))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		most, ok := bounds[v.Type()]
		if !ok {
			most = 1<<v.Type().Bits() - 1
		}
		v.SetUint(rapid.Uint64Range(0, most).Draw(t, "uint"))
	case reflect.Array:
		for i := range v.Len() {
			drawInto(t, v.Index(i))
		}
	case reflect.Slice:
		if n := rapid.IntRange(0, 3).Draw(t, "length"); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			drawInto(t, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				drawInto(t, v.Field(i))
			}
		}
	default:
		t.Fatalf("%s is not drawn", v.Type())
	}
}

// drawExtensions draws fields with tags that no version defines.
func drawExtensions(t *rapid.T) (x actor.Extensions) {
	for range rapid.IntRange(0, 2).Draw(t, "extensions") {
		x = x.With(rapid.Uint64().Draw(t, "tag"), []byte(drawText(t)))
	}
	return x
}

func drawText(t *rapid.T) string { return rapid.StringN(0, 20, 40).Draw(t, "text") }

func drawName(t *rapid.T) string { return rapid.StringMatching(`[A-Za-z0-9_-]{1,12}`).Draw(t, "name") }

func drawID(t *rapid.T) actor.ID {
	return actor.ID{Tenant: drawName(t), Agent: drawName(t), Key: drawName(t)}
}

func drawCallID(t *rapid.T) actor.CallID {
	return actor.NewCallID(actor.Time(rapid.Int64Range(0, 1<<60).Draw(t, "at")), rapid.Uint64().Draw(t, "hi"), rapid.Uint64().Draw(t, "lo"))
}

func drawCall(t *rapid.T) actor.Call {
	c := actor.Call{ID: drawCallID(t), Parent: drawCallID(t), To: drawID(t), Operation: drawName(t), Left: 5, Principal: drawName(t),
		Idempotency: actor.Idempotency{Principal: drawName(t), Route: drawName(t), Key: drawName(t)}, Workflow: drawName(t), Trace: drawName(t), Parts: actor.Text(drawName(t)), Extensions: drawExtensions(t)}
	c.SetClientDefaults()
	return c
}

// drawFrame returns a frame with a body of a type that bodies lists.
func drawFrame(t *rapid.T) Frame {
	v := reflect.New(reflect.TypeOf(rapid.SampledFrom(bodies).Draw(t, "body"))).Elem()
	drawInto(t, v)
	f := Frame{Number: rapid.Uint64().Draw(t, "number"), Body: v.Interface().(Body)}
	switch m := f.Body.(type) {
	case Invoke:
		m.Call.To.Tenant = m.By.Tenant
		f.Body = m
	case Cancel:
		m.Actor.Tenant = m.By.Tenant
		f.Body = m
	case Signal:
		m.Call.To.Tenant = m.By.Tenant
		m.Call.Kind = actor.Signal
		f.Body = m
	case Answer:
		if m.HeldUntil != 0 {
			m.Reply = actor.Reply{Call: m.Reply.Call, Run: m.Reply.Run}
		}
		f.Body = m
	case Failure:
		m.Kind = FailedInternal
		if m.Refusal != nil {
			m.Kind = FailedRefused
		} else if m.Dropped.First%2 == 1 {
			m.Kind = FailedDropped
		}
		if m.Kind != FailedDropped {
			m.Dropped = EventsDropped{}
		}
		f.Body = m
	}
	return f
}

func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFrame(t)
		b, err := AppendFrame(nil, f)
		if err != nil {
			t.Fatalf("%+v: %v", f, err)
		}
		got, err := DecodeFrame(b)
		if err != nil || !reflect.DeepEqual(got, f) {
			t.Fatalf("got  %+v, %v\nwant %+v", got, err, f)
		}
	})
}

// A run that waits for a person looks the same at an ingress.
func TestRunHasItsApprovalsAcrossLink(t *testing.T) {
	id := actor.NewCallID(1, 2, 3)
	call := runs.ToolCallID{Run: id, Step: 1}
	bob := actor.ID{Tenant: "default", Agent: "bob", Key: "k"}
	events := []runs.Event{
		{Type: runs.UserInput, Actor: bob, Text: "pay"},
		{Type: runs.RunStarted, Actor: bob, Kind: "waiting", Operation: actor.HandleMessageFull, Origin: "human", Root: id},
		{Type: runs.ToolCallCreated, Name: "pay", Kind: runs.KindTool, Step: 1, Text: `{"amount":5}`},
		{Type: runs.PolicyDecision, Name: "pay", Kind: "require_approval", Step: 1, Text: "rule 1"},
		{Type: runs.ApprovalCreated, Name: "pay", Step: 1, Until: 9e9, Text: "pays 5", Approval: call.Approval()},
	}
	for i := range events {
		events[i].Run, events[i].Seq, events[i].At = id, uint64(i+1), actor.Time(i+1)
	}
	record, err := runs.Fold(events)
	if err != nil {
		t.Fatal(err)
	}
	record.Key = "0123456789abcdef"
	b, err := AppendFrame(nil, Frame{1, Found{Run{Record: record}}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := DecodeFrame(b)
	if err != nil {
		t.Fatal(err)
	}
	got := f.Body.(Found).Result.(Run).Record
	if want := string(record.AppendJSON(nil)); string(got.AppendJSON(nil)) != want || !strings.Contains(want, `"approvals":[{`) || !strings.Contains(want, `"key_id"`) {
		t.Errorf("got %s\nwant %s", got.AppendJSON(nil), want)
	}
}

// Every proper prefix of a frame is rejected, and so is a frame with one more
// byte.
func TestTruncatedFrameIsRejected(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, err := AppendFrame(nil, drawFrame(t))
		if err != nil {
			t.Fatal(err)
		}
		for n := range b {
			if f, err := DecodeFrame(b[:n]); err == nil {
				t.Fatalf("%d of %d bytes decode to %+v", n, len(b), f)
			}
		}
		if _, err := DecodeFrame(append(b, 0)); err == nil {
			t.Fatal("a frame with one more byte was accepted")
		}
	})
}

func TestUndecodableFrameIsNotEncoded(t *testing.T) {
	call := actor.Call{ID: actor.NewCallID(1, 2, 3), To: actor.NewID("a", "")}
	call.SetClientDefaults()
	signal := call
	signal.Kind = actor.Signal
	for name, body := range map[string]Body{
		"call without id":     Invoke{By: testBy},
		"no principal":        Invoke{Call: call},
		"no tenant":           Lookup{actor.Principal{User: "alice"}, HealthQuery{}},
		"tenant with a slash": Follow{By: actor.Principal{Tenant: "a/b"}, Run: testRun},
		"call to a tenant":    Invoke{actor.Principal{Tenant: "acme"}, call},
		"signal to a tenant":  Signal{actor.Principal{Tenant: "acme"}, signal},
		"cancel in a tenant":  Cancel{actor.Principal{Tenant: "acme"}, testRun, testActor},
		"long user":           Lookup{actor.NewPrincipal(strings.Repeat("u", actor.PrincipalTextBytesMax+1), ""), HealthQuery{}},
		"long key":            Lookup{actor.NewPrincipal("", strings.Repeat("k", actor.PrincipalTextBytesMax+1)), HealthQuery{}},
		"long scope":          Lookup{actor.NewPrincipal("", "", strings.Repeat("s", actor.NameBytesMax+1)), HealthQuery{}},
		"many scopes":         Lookup{actor.NewPrincipal("", "", make([]string, actor.PrincipalScopesMax+1)...), HealthQuery{}},
		"user of no UTF-8":    Lookup{actor.NewPrincipal("\xff", ""), HealthQuery{}},
		"signal as call":      Invoke{testBy, signal},
		"call as signal":      Signal{testBy, call},
		"invalid UTF-8":       Failure{Kind: FailedInternal, Text: "\xff"},
		"failure of no kind":  Failure{},
		"refusal without one": Failure{Kind: FailedRefused},
		"long text":           Found{Health{Reason: strings.Repeat("x", textMax+1)}},
		"large frame":         Found{Events{All: []Event{{1, make([]byte, FrameBytesMax)}}}},
		"negative size":       Found{Stats{Clients: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			if b, err := AppendFrame([]byte("before"), Frame{1, body}); err == nil || string(b) != "before" {
				t.Errorf("%.20q, %v", b, err)
			}
		})
	}
}

func TestOtherVersionIsRejected(t *testing.T) {
	b, err := AppendFrame(nil, Frame{1, Stop{}})
	if err != nil {
		t.Fatal(err)
	}
	b[0] = CodecVersion + 1
	if _, err := DecodeFrame(b); err == nil || !strings.Contains(err.Error(), "written in version 15, this program reads version 14") {
		t.Error(err)
	}
}

// A frame that is accepted encodes to the same bytes.
func FuzzDecodeFrame(f *testing.F) {
	for _, body := range bodies {
		if b, err := AppendFrame(nil, Frame{1, body}); err == nil {
			f.Add(b)
		}
	}
	for _, r := range everyResult {
		if b, err := AppendFrame(nil, Frame{1, Found{r}}); err == nil {
			f.Add(b)
		}
	}
	for _, a := range everyAction {
		if b, err := AppendFrame(nil, Frame{1, Do{testBy, a}}); err == nil {
			f.Add(b)
		}
	}
	for _, q := range everyQuery {
		if b, err := AppendFrame(nil, Frame{1, Lookup{testBy, q}}); err == nil {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := DecodeFrame(b)
		if err != nil {
			return
		}
		again, err := AppendFrame(nil, frame)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x decodes to %+v, which encodes to %x, %v", b, frame, again, err)
		}
	})
}
