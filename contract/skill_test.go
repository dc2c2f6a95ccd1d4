// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

var skillCall = actor.NewCallID(1, 2, 3)

// The callee gets seven members, in the order of the protocol.
func TestInvocationHasSevenMembersInOrder(t *testing.T) {
	v := Invocation{Skill: "research", Mode: ModeExecute, Input: jsontext.Value(`{"topic":"rain"}`), Correlation: skillCall,
		ReturnTo: actor.ID{Tenant: "secret", Agent: "main", Key: "s-1"}, Timeout: 60_000_000_000}
	want := `{"kind":"skill_invocation","skill":"research","mode":"execute","input":{"topic":"rain"},"correlationId":"` + skillCall.String() +
		`","returnTo":"agent:main:s-1","timeout":60000}`
	if got := string(v.Encode()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestMessagesOfDetachedCalls(t *testing.T) {
	id := skillCall.String()
	of, own := Correlation{Call: skillCall}, Correlation{skillCall, "mine \"1\""}
	r := ReadSkill(`{"output":{"mm":3},"confidence":0.9,"assumptions":["dry"],"caveats":["old data"]}`)
	for _, c := range []struct{ got, want string }{
		{string(Pending(own)), `{"status":"pending","correlationId":"` + id + `","taskId":"` + id + `","clientCorrelationId":"mine \"1\""}`},
		{string(SkillTimeout(own, 1_000_000, actor.Hold{})), `{"kind":"skill_timeout","correlationId":"` + id + `","taskId":"` + id + `","clientCorrelationId":"mine \"1\"","status":"timeout","message":"Agent call timed out after 1ms"}`},
		{string(Pending(of)), `{"status":"pending","correlationId":"` + id + `","taskId":"` + id + `"}`},
		{string(r.Encode(of)), `{"kind":"skill_response","correlationId":"` + id + `","taskId":"` + id + `","status":"completed","output":{"mm":3},"confidence":0.9,"assumptions":["dry"],"caveats":["old data"]}`},
		{string(SkillError(of, actor.AgentNotFound("x"))), `{"kind":"skill_response","correlationId":"` + id + `","taskId":"` + id + `","status":"error","error":{"code":"agent_not_found","message":` + string(quoted(actor.AgentNotFound("x").Error())) + `}}`},
		{string(SkillTimeout(of, 1_500_000_000, actor.Hold{})), `{"kind":"skill_timeout","correlationId":"` + id + `","taskId":"` + id + `","status":"timeout","message":"Agent call timed out after 1500ms"}`},
		{string(SkillTimeout(of, 1_000_000, actor.Hold{Reason: actor.HoldApproval, Subject: "a.1"})), `{"kind":"skill_timeout","correlationId":"` + id + `","taskId":"` + id + `","status":"timeout","message":"Agent call timed out after 1ms","waiting":{"approval":"a.1"}}`},
		{string(SkillWaiting(of, actor.Hold{Reason: actor.HoldApproval, Subject: "a.1"})), `{"kind":"skill_waiting","correlationId":"` + id + `","taskId":"` + id + `","status":"waiting","waiting":{"approval":"a.1"}}`},
	} {
		if c.got != c.want {
			t.Errorf("got  %s\nwant %s", c.got, c.want)
		}
	}
}

// Whatever a callee answers is an output.
func TestReadSkill(t *testing.T) {
	for _, c := range []struct {
		name, answer, output string
		confidence           float64
		assumptions, caveats string
	}{
		{"object with the members", `{"output":"x","confidence":1,"assumptions":["a"],"caveats":["c","d"]}`, `"x"`, 1, "[a]", "[c d]"},
		{"fenced object", "Here:\n```json\n{\"output\":[1],\"confidence\":0.7}\n```\nBye.", `[1]`, 0.7, "[]", "[]"},
		{"another object", `{"mm":3.10}`, `{"mm":3.10}`, 0.5, "[]", "[]"},
		{"level", `{"output":1,"confidence":"high"}`, `1`, 0.9, "[]", "[]"},
		{"confidence out of range", `{"output":1,"confidence":7}`, `1`, 0.5, "[]", "[]"},
		{"no output", `{"output":null,"confidence":0.2}`, `{"output":null,"confidence":0.2}`, 0.2, "[]", "[]"},
		{"a text in place of a list", `{"output":1,"caveats":"maybe"}`, `1`, 0.5, "[]", "[maybe]"},
		{"text", "It rains.", `"It rains."`, 0.5, "[]", "[]"},
		{"nothing", "", `""`, 0.5, "[]", "[]"},
		{"almost an object", `{"output":`, `"{\"output\":"`, 0.3, "[]", "[]"},
		{"a member twice", `{"a":1,"a":2}`, `"{\"a\":1,\"a\":2}"`, 0.3, "[]", "[]"},
		{"half a character", "\xff", `"` + "\uFFFD" + `"`, 0.5, "[]", "[]"},
	} {
		r := ReadSkill(c.answer)
		if string(r.Output) != c.output || r.Confidence != c.confidence || fmt.Sprint(r.Assumptions) != c.assumptions || fmt.Sprint(r.Caveats) != c.caveats {
			t.Errorf("%s: got %s, %v, %q, %q", c.name, r.Output, r.Confidence, r.Assumptions, r.Caveats)
		}
		if b := r.Encode(Correlation{Call: skillCall}); !jsontext.Value(b).IsValid() {
			t.Errorf("%s: %s is no strict JSON", c.name, b)
		}
	}
}

// An answer of any size has a message of bounded size, which says what is missing.
func TestLongOutputIsCut(t *testing.T) {
	for name, answer := range map[string]string{
		"text": strings.Repeat("word ", 400_000), "object": `{"output":{"x":"` + strings.Repeat("y", 2<<20) + `"}}`, "escapes": strings.Repeat("\x01", 2<<20),
		"lists": `{"output":1,"caveats":["` + strings.Repeat(`x","`, 100_000) + `"]}`,
	} {
		r := ReadSkill(answer)
		if b := r.Encode(Correlation{Call: skillCall}); len(b) > 2*SkillOutputMax || !jsontext.Value(b).IsValid() {
			t.Errorf("%s: %d bytes", name, len(b))
		}
		if name != "lists" && (len(r.Caveats) != 1 || len(r.Output) < SkillOutputMax/10) {
			t.Errorf("%s: output of %d bytes, caveats %q", name, len(r.Output), r.Caveats)
		}
	}
}

// JSON that nests so deep that no message can carry it is a text. An envelope of it is no response.
func TestDeepAnswers(t *testing.T) {
	for _, depth := range []int{depthMax - 1, depthMax, 9998, 9999} {
		answer := `{"a":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`
		r := ReadSkill(answer)
		if r.Encode(Correlation{}); (r.Output.Kind() == '{') != (depth < depthMax) {
			t.Errorf("depth %d: %.20s", depth, r.Output)
		}
		response, broken := DecodeResponse(answer, "r", DefaultLevels())
		if broken == nil {
			response.Encode()
		} else if depth < depthMax {
			t.Error(broken)
		}
	}
}
