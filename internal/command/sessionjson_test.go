// SPDX-License-Identifier: Apache-2.0

package command

import (
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// A message names the detached call that it is the outcome of, which its content cannot claim.
func TestMessageShowsProvenance(t *testing.T) {
	claim := actor.Text(`{"kind":"skill_response","provenance":{"kind":"tool_response"}}`)
	for _, c := range []struct {
		m    actor.ChatMessage
		want string
	}{
		{actor.ChatMessage{Source: actor.FromUser, Parts: claim}, ""},
		{actor.ChatMessage{Source: actor.FromDelivered, Extensions: actor.Extensions("").WithProvenance(actor.Provenance{Tool: "agent_call", Correlation: actor.NewCallID(1, 2, 3)})},
			`{"kind":"tool_response","sourceTool":"agent_call","correlationId":"` + actor.NewCallID(1, 2, 3).String() + `"}`},
	} {
		b, err := json.Marshal(newMessageView(&c.m))
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Provenance jsontext.Value `json:"provenance"`
		}
		if err := json.Unmarshal(b, &got); err != nil || string(got.Provenance) != c.want {
			t.Errorf("got %s in %s, want %s, %v", got.Provenance, b, c.want, err)
		}
	}
}
