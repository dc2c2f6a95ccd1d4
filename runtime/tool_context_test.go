// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// A tool runs in the context of the turn that asks for it.
func TestToolRunsInContextOfItsTurn(t *testing.T) {
	n := newNode(t, 1, agent("a", askOnce(actor.Ask{Kind: actor.AskCall, Name: "b", Operation: "x", Timeout: 30 * time.Second})),
		agent("b", askOnce(actor.Ask{Kind: actor.AskTool, Name: "look", Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte("{}")}}})))
	look := tools.Tool{Name: "look", Schema: `{"type":"object"}`, Handler: func(context.Context, []byte) tools.Result { return tools.Result{Parts: actor.Text("seen")} }}
	if err := n.tools.RegisterBuiltin(look); err != nil {
		t.Fatal(err)
	}
	n.send("a", "x", func(c *actor.Call) {
		c.Project, c.Trace, c.Principal = "p-1", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "ann"
	})
	n.advance(time.Second)
	if len(n.toolContexts) != 1 {
		t.Fatalf("the tool ran %d times, want once", len(n.toolContexts))
	}
	ec := n.toolContexts[0]
	if ec.AgentID != "b" || ec.ProjectID != "p-1" || ec.CallDepth != 1 || !slices.Equal(ec.CallChain, []string{"a/main"}) || ec.Left != 30*time.Second {
		t.Errorf("got %+v", ec)
	}
	if c := ec.Call; c.To.Agent != "b" || c.Trace[:2] != "00" || c.Principal != "ann" || c.Root != c.Parent || c.ID.IsZero() {
		t.Errorf("got the call %+v", c)
	}
}
