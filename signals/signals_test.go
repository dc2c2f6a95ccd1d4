// SPDX-License-Identifier: Apache-2.0

package signals

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

var (
	to  = actor.NewID("worker", "s-1")
	run = actor.NewCallID(1, 2, 3)
)

// roundTrip sends a content and returns what the run receives.
func roundTrip[C Content](t *testing.T, c C) (string, C) {
	t.Helper()
	call := New(to, run, c)
	if call.Kind != actor.Signal || call.To != to || call.Parent != run || call.Operation != c.Operation() {
		t.Errorf("got %+v, want a signal %s to %s of %s", call, c.Operation(), run, to)
	}
	if len(call.Parts) == 0 {
		return "", c
	}
	got, r := Decode[C](&call)
	if r != nil {
		t.Errorf("%s: %v", call.Parts[0].Bytes, r)
	}
	return string(call.Parts[0].Bytes), got
}

// The text of a content is part of what a simulation hashes, and of what an earlier version of
// this program has sent.
func TestContents(t *testing.T) {
	decide := Decide{Approval: "ap_1", Approve: true, Reason: "fine"}
	result := GiveResult{ToolCall: "tc_1", Error: "no"}
	end := EndModel{ID: "tc_1", Reason: "busy", Detail: "later"}
	call := CallAgent{Agent: "helper", Message: "hi", TimeoutMS: 5}
	model := AddModel{Model: "m", Request: ModelRequest{ID: "r"}}
	check := func(text, want string, same bool) {
		t.Helper()
		if text != want || !same {
			t.Errorf("got %s (same: %t), want %s", text, same, want)
		}
	}
	text, gotDecide := roundTrip(t, decide)
	check(text, `{"approval_id":"ap_1","approve":true,"reason":"fine"}`, gotDecide == decide)
	text, gotResult := roundTrip(t, result)
	check(text, `{"tool_call_id":"tc_1","ok":false,"error":"no"}`, gotResult.Error == "no" && gotResult.ToolCall == "tc_1")
	text, gotEnd := roundTrip(t, end)
	check(text, `{"detail":"later","llm_call_id":"tc_1","reason":"busy"}`, gotEnd == end)
	text, gotCall := roundTrip(t, call)
	check(text, `{"agent_id":"helper","message":"hi","timeout_ms":5}`, gotCall == call)
	text, gotModel := roundTrip(t, model)
	check(text, `{"model":"m","request":{"request_id":"r"}}`, gotModel == model)
	text, gotTool := roundTrip(t, AddTool{Tool: "pay", Args: []byte(`{"n":1}`)})
	check(text, `{"args":{"n":1},"tool_name":"pay"}`, gotTool.Tool == "pay" && string(gotTool.Args) == `{"n":1}`)
	text, _ = roundTrip(t, Retry{})
	check(text, "", true)
}

func TestInvalidContents(t *testing.T) {
	for text, want := range map[string]string{
		``:                                     "want a decision about an approval",
		`{`:                                    "want a decision about an approval",
		`{"approval_id":1}`:                    "want a decision about an approval",
		`{"approval_id":"ap_1","approve":"x"}`: "want a decision about an approval",
		`{"approval_id":"ap_1","more":1}`:      "want a decision about an approval",
	} {
		call := actor.Call{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(text)}}}
		if _, r := Decode[Decide](&call); r == nil || r.Reason != actor.Invalid || r.Detail != want {
			t.Errorf("%s: got %v, want %s", text, r, want)
		}
	}
	if _, r := Decode[Decide](&actor.Call{}); r == nil {
		t.Error("a signal without content was decoded")
	}
	if _, ok := ReadAddedTool(AddedModel{ID: "tc_1"}.Parts()); ok {
		t.Error("the answer to AddModel was read as that to AddTool")
	}
}

// No client can send a command as a signal by its name.
func TestCheckName(t *testing.T) {
	for _, c := range []Content{CallAgent{}, AddTool{}, AddModel{}, EndModel{}, Decide{}, GiveResult{}, Retry{}} {
		if err := CheckName(c.Operation()); err == nil || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("%s: got %v, want a reserved name", c.Operation(), err)
		}
	}
	if err := CheckName("go"); err != nil {
		t.Error(err)
	}
}
