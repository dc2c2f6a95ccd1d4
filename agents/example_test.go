// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// Planner calls two agents at once, continues if the second call fails, and waits
// for the approval of a person.
type Planner struct{}

func (Planner) Turn(t *agents.Turn) (string, error) {
	answers := t.All(
		agents.Call("research", "find papers on "+t.Message(), agents.Within(20*time.Second)),
		agents.Call("archive", t.Message()),
	)
	papers, err := answers[0].Text()
	if err != nil {
		return "", fmt.Errorf("without papers there is no plan: %w", err)
	}
	older, err := answers[1].Text()
	if err != nil {
		t.Warn("nothing from the archive: %v", err)
		older = "nothing"
	}
	if _, err := t.Wait("approved", time.Hour); err != nil {
		return "", err
	}
	return "Read " + papers + "; before that, " + older + ".", nil
}

func ExampleTurn() {
	planner := agents.Define("planner", "1", "Plans what to read.", agents.Blocking(Planner{}))

	// In this example research knows two papers, and archive does not exist.
	answer := func(_ context.Context, ask actor.Ask) actor.Answer {
		fmt.Println("asked:", ask)
		switch ask.Name {
		case "research":
			return actor.Answer{Parts: actor.Text("two papers")}
		case "archive":
			return actor.Answer{Refusal: actor.Refuse(actor.NotFound, "no agent is named archive")}
		default:
			return actor.Answer{}
		}
	}
	request := actor.Begin{Call: actor.Call{To: actor.NewID("planner", "s-42"), Parts: actor.Text("whales")}}
	out, err := agents.ExecuteAgentRequest(context.Background(), planner.Behavior, request, answer)
	fmt.Println(out.Status, err)
	fmt.Println(actor.TextOf(out.Parts))
	fmt.Println(out.Warnings)

	// Output:
	// asked: call research "find papers on whales" within 20s
	// asked: call archive "whales" within 0s
	// asked: wait approved "" within 1h0m0s
	// partial <nil>
	// Read two papers; before that, nothing.
	// [nothing from the archive: AgentNotFound: no agent is named archive]
}

// A refusal keeps its reason. The caller of the planner can thus distinguish a busy
// agent from a missing one.
func ExampleTurn_refused() {
	busy := func(context.Context, actor.Ask) actor.Answer {
		return actor.Answer{Refusal: actor.RefuseBusy(actor.ScopeCallee, time.Second, "research/s-42 has 128 messages waiting")}
	}
	request := actor.Begin{Call: actor.Call{To: actor.NewID("planner", "s-42")}}
	out, _ := agents.ExecuteAgentRequest(context.Background(), agents.Blocking(Planner{}), request, busy)

	var refusal *actor.Refusal
	fmt.Println(errors.As(out.Refusal, &refusal), refusal.Reason, refusal.RetryAfter)
	fmt.Println(refusal)

	// Output:
	// true Busy 1s
	// AgentBusy: without papers there is no plan: research/s-42 has 128 messages waiting
}

// A simpler planner, written as a transition. All its data is in the state.
func ExampleNext() {
	next := func(config agents.Config, state agents.State) (agents.Action, error) {
		switch state.Phase {
		case "":
			return agents.Continue("asked", nil, agents.Call("research", state.Message())), nil
		default:
			papers, err := state.Last()[0].Text()
			return agents.Complete(config.Name + " found " + papers), err
		}
	}
	state := agents.State{Request: actor.Begin{Call: actor.Call{Parts: actor.Text("whales")}}}
	config := agents.Config{Name: "planner"}

	first, _ := agents.ExecuteAgentStep(next, config, state)
	fmt.Println(first.Asks[0])

	state.Phase, state.Continuation = first.Phase, first.Continuation
	state.Answers = append(state.Answers, []actor.Answer{{Parts: actor.Text("two papers")}})
	last, _ := agents.ExecuteAgentStep(next, config, state)
	fmt.Println(actor.TextOf(last.Done.Parts))

	// Output:
	// call research "whales" within 0s
	// planner found two papers
}
