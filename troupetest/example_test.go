// SPDX-License-Identifier: Apache-2.0

package troupetest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/troupe-run/troupe"
	"github.com/troupe-run/troupe/troupetest"
)

// planner asks two agents at once and continues without the second.
var planner = troupe.Agent{Name: "planner", Func: func(t *troupe.Turn) (string, error) {
	answers := t.All(troupe.Call("research", t.Message()), troupe.Call("archive", t.Message()))
	papers, err := answers[0].Text()
	if err != nil {
		return "", fmt.Errorf("without papers there is no plan: %w", err)
	}
	if err := answers[1].Err(); err != nil {
		t.Warn("nothing from the archive: %v", err)
	}
	return "Read " + papers + ".", nil
}}

// research looks papers up with a tool.
var research = troupe.Agent{Name: "research", Func: func(t *troupe.Turn) (string, error) {
	b, err := t.Tool("library.search", query{t.Message()})
	return string(b), err
}}

type query struct {
	Topic string `json:"topic"`
}

var search = troupe.NewTool("library.search", "Searches the library.",
	func(_ context.Context, q query) (string, error) { return "two papers on " + q.Topic, nil }, troupe.Idempotent())

func TestPlannerWithoutArchive(tb *testing.T) {
	t := troupetest.Start(tb, planner, "whales")
	t.Expect(troupetest.Call("archive")).Refuse(troupe.CodeAgentNotFound, "no archive")
	t.Expect(troupetest.Call("research").Containing("whales")).Answer("two papers")
	t.CompletesPartially("Read two papers.", "nothing from the archive")
}

func TestResearchSearches(tb *testing.T) {
	t := troupetest.Start(tb, research, "whales", troupetest.WithTools(search))
	t.Expect(troupetest.Tool("library.search").With(`{"topic": "whales"}`)).Perform()
	t.Completes("two papers on whales")
}

// The team loses no message while nodes crash and messages are lost.
func TestPlanningUnderFaults(t *testing.T) {
	troupetest.Test(t, troupetest.Team{
		Agents: []troupe.Agent{planner, research},
		Tools:  []troupe.Tool{search},
		Asks:   []troupetest.Request{{Agent: "planner", Message: "whales"}},
		Expect: []troupetest.Expect{{SucceededPercent: 50}, {Refusals: "Cycle"}, {DepthAtMost: 1}},
	}, troupetest.Options{Seeds: 3})
}

// Two agents that call each other are found without a server.
func ExampleSimulate() {
	asks := func(name, other string) troupe.Agent {
		return troupe.Agent{Name: name, Func: func(t *troupe.Turn) (string, error) { return t.Call(other, t.Message()) }}
	}
	report, err := troupetest.Simulate(troupetest.Team{
		Agents: []troupe.Agent{asks("left", "right"), asks("right", "left")},
		Asks:   []troupetest.Request{{Agent: "left", Message: "who has the answer?"}},
		Expect: []troupetest.Expect{{Refusals: "Cycle"}},
	}, troupetest.Options{Seeds: 2, Faultless: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Succeeded, "requests succeeded;", report.Failures[0].Property)
	// Output:
	// 0 requests succeeded; at most 0 Cycle refusals in a simulation
}
