// SPDX-License-Identifier: Apache-2.0

package agentstest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/agents/agentstest"
)

// Planner calls two agents at once and continues if the second call fails.
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
	if _, err := answers[1].Text(); err != nil {
		t.Warn("nothing from the archive: %v", err)
	}
	return "Read " + papers + ".", nil
}

var planner = agents.Define("planner", "1", "Plans what to read.", agents.Blocking(Planner{}))

func TestPlannerWithoutArchive(tb *testing.T) {
	t := agentstest.Start(tb, planner, "whales")
	t.Expect(agentstest.Call("archive")).Refuse(actor.NotFound, "no agent is named archive")
	t.Expect(agentstest.Call("research").Containing("whales").Within(20 * time.Second)).Answer("two papers")
	t.CompletesPartially("Read two papers.", "nothing from the archive")
}

func TestPlannerRequiresPapers(tb *testing.T) {
	t := agentstest.Start(tb, planner, "whales")
	t.Expect(agentstest.Call("archive")).Answer("a shelf")
	t.Expect(agentstest.Call("research")).Refuse(actor.Busy, "16 of 16 messages wait")
	t.Refuses(actor.Busy, "without papers there is no plan")
}

// The test plays the model of a declared agent.
func TestDeclaredAgentForwardsQuestion(tb *testing.T) {
	desk := agentstest.Declared(tb, `
name = "desk"
prompt = "You pass questions on."
tools = ["call_agent"]
agents = ["billing"]
`, nil)
	t := agentstest.Start(tb, desk, "why was I charged twice?")
	t.Expect(agentstest.Model("scripted").Containing("charged twice")).Uses(agentstest.UseCall("billing", "was it twice?"))
	t.Expect(agentstest.Call("billing").Containing("twice")).Answer("once only")
	t.Expect(agentstest.Model("scripted").Containing("once only")).Answer("You were charged once.")
	t.Completes("You were charged once.")
}

func ExampleTurn() {
	tb := printer{}
	t := agentstest.Start(tb, planner, "whales")
	t.Expect(agentstest.Call("research")).Answer("two papers")
	t.Expect(agentstest.Call("library").Containing("whales"))
	// Output:
	// step 1 of planner/main
	// expected: call library containing "whales"
	// got:      call research with text "find papers on whales" within 20s (answered)
	//           call archive with text "whales"
}

// printer is a TB that prints its failures.
type printer struct{}

func (printer) Helper()                           {}
func (printer) Failed() bool                      { return false }
func (printer) Cleanup(func())                    {}
func (printer) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (printer) Fatalf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
