// SPDX-License-Identifier: Apache-2.0

package actor

import "testing"

// What does not exist has a code of its own, which survives the codec. A refusal of an earlier
// version has only the field.
func TestNotFound(t *testing.T) {
	run := NewCallID(1, 2, 3)
	for _, c := range []struct {
		refusal     *Refusal
		code, field string
		http        int
	}{
		{AgentNotFound("x"), "agent_not_found", "", 404},
		{RunNotFound(run), "run_not_found", "", 404},
		{RefuseNotFound(WhatOpenRun, "no"), "run_not_found", "", 404},
		{SessionNotFound("x"), "session_not_found", "session_id", 404},
		{RefuseNotFound(WhatDeleted, "no"), "session_deleted", "session_id", 410},
		{ApprovalNotFound("x"), "approval_not_found", "", 404},
		{ToolCallNotFound("x"), "tool_call_not_found", "", 404},
		{ToolNotFound("x"), "tool_not_found", "tool_name", 404},
		{RefuseNotFound(WhatContext, "no"), "context_not_found", "context_key", 404},
		{RefuseNotFound(WhatKey, "no"), "key_not_found", "key_id", 404},
		{Refuse(NotFound, "an older refusal"), "agent_not_found", "", 404},
		{&Refusal{Reason: NotFound, Detail: "an older refusal", Field: "session_deleted"}, "session_deleted", "session_id", 410},
		{&Refusal{Reason: NotFound, Detail: "an older refusal", Field: "session_id"}, "session_not_found", "session_id", 404},
	} {
		e := Encoder{}
		e.Refusal(c.refusal)
		d := NewDecoder(e.Buf)
		got := d.Refusal()
		if got == nil || got.Info().Type != c.code || got.Field != c.field || got.HTTP() != c.http || got.Detail != c.refusal.Detail {
			t.Errorf("%v: got %+v after the codec, want the code %s, field %q and status %d", c.refusal, got, c.code, c.field, c.http)
		}
	}
}
