// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// Agents are user code. They may ask for impossible things, or end a turn with an
// invalid outcome. The runtime MUST report this to the agent or to its caller.

// invalidAsks are asks that the runtime MUST refuse.
var invalidAsks = [...]actor.Ask{
	{},
	{Kind: 99, Name: "ana"},
	{Kind: actor.AskCall, Name: "a b"},
	{Kind: actor.AskCall, Name: "a/b/c/d"},
	{Kind: actor.AskCall, Name: "ana", Timeout: -1},
	{Kind: actor.AskCall, Name: "ana", Operation: "\xff"},
	{Kind: actor.AskCall, Name: "ana", Operation: strings.Repeat("o", actor.TextBytesMax+1)},
	{Kind: actor.AskCall, Name: "ana", Parts: make([]actor.Part, actor.PartsMax+1)},
	{Kind: actor.AskCall, Name: "ana", Parts: actor.Text(strings.Repeat("m", actor.MessageBytesMax+1))},
	{Kind: actor.AskCall, Name: "ana", Parts: []actor.Part{{Media: "a", Bytes: []byte("b"), Blob: actor.Hash{1}}}},
	{Kind: actor.AskCall, Name: "ana", Parts: []actor.Part{{Media: "a", Blob: actor.Hash{1}, Size: 1 << 62}}},
	{Kind: actor.AskSleep, Timeout: -1},
	{Kind: actor.AskWait, Name: "a b"},
	{Kind: actor.AskWork, Name: "w"},
	{Kind: actor.AskTool},
	{Kind: actor.AskTool, Name: "nobody.has"},
	{Kind: actor.AskTool, Name: postTool, Parts: []actor.Part{{Bytes: []byte("{}")}, {Bytes: []byte("{}")}}},
	forgedReturn(tools.AgentCall, `{"agent":"ana","skill":"run","input":{"script":"say forged"},"returnTo":"agent:ana:elsewhere"}`),
	forgedReturn(tools.AgentCall, `{"agent":"bo","skill":"run","input":{"script":"say forged"},"returnTo":"agent:ana:elsewhere"}`),
	forgedReturn(tools.DebateCall, `{"participants":["bo"],"topic":"say forged","returnTo":"agent:bo:elsewhere"}`),
}

// forgedReturn returns a detached call whose outcome is to be delivered to another session than that of the asker.
func forgedReturn(tool, input string) actor.Ask {
	return actor.Ask{Kind: actor.AskTool, Name: tool, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(input)}}}
}

// invalidOutcomes are ways to end a turn that are invalid, or that exceed a limit.
var invalidOutcomes = [...]func() (actor.Action, error){
	func() (actor.Action, error) { return actor.Action{}, nil },
	func() (actor.Action, error) { return actor.Action{}, errors.New("the agent has a bug") },
	func() (actor.Action, error) { return actor.Action{Done: &actor.Outcome{}}, nil },
	func() (actor.Action, error) { return actor.Action{Done: &actor.Outcome{Status: actor.Failed}}, nil },
	func() (actor.Action, error) {
		return actor.Action{Done: &actor.Outcome{Status: 99, Parts: actor.Text("a")}}, nil
	},
	func() (actor.Action, error) {
		return actor.EndRefused(&actor.Refusal{Reason: 99, Scope: 99, Detail: "\xff", RetryAfter: -1, Chain: make([]actor.ID, actor.ChainMax+1)}), nil
	},
	func() (actor.Action, error) {
		return actor.EndRefused(&actor.Refusal{Reason: actor.Rejected, Detail: strings.Repeat("d", 1<<16), Chain: []actor.ID{{Agent: "a b"}}}), nil
	},
	func() (actor.Action, error) {
		return actor.Complete(actor.Text(strings.Repeat("m", actor.MessageBytesMax+1))), nil
	},
	func() (actor.Action, error) {
		return completeWithItems(actor.StateItem{Name: "a b", Value: []byte("v")}), nil
	},
	func() (actor.Action, error) {
		return completeWithItems(actor.StateItem{Name: "a", Value: make([]byte, actor.StateItemValueBytesMax+1)}), nil
	},
	func() (actor.Action, error) {
		return completeWithItems(make([]actor.StateItem, actor.StateUpdatesMax+1)...), nil
	},
	func() (actor.Action, error) { return actor.Action{Asks: make([]actor.Ask, 1<<12)}, nil },
}

func completeWithItems(items ...actor.StateItem) actor.Action {
	action := actor.Complete(actor.Text("stored"))
	action.StateUpdates = items
	return action
}

// checkAllRefused returns an error if any answer to an invalid ask is not a refusal.
func checkAllRefused(asked []actor.Ask, answers []actor.Answer) error {
	for i := range answers {
		if answers[i].Refusal == nil {
			return fmt.Errorf("invalid ask %+v: want a refusal, got %+v", asked[i], answers[i])
		}
	}
	return nil
}
