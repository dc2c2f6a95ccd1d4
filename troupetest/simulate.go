// SPDX-License-Identifier: Apache-2.0

package troupetest

import (
	"strings"
	"time"

	"github.com/troupe-run/troupe"
	"github.com/troupe-run/troupe/internal/program"
	"github.com/troupe-run/troupe/simulate"
)

// Team is a set of agents with stubs of their environment. Where no rule of a stub applies, its answer
// depends on the seed.
type Team struct {
	Agents []troupe.Agent
	Tools  []troupe.Tool // their functions run; policies are not simulated: every call is allowed
	// folder of declared agents, as for troupe sim --project: agents/*.toml and sim.toml, or the files alone;
	// empty for none
	Project string

	Asks     []Request // requests of clients; if empty, generated messages to all agents
	Models   []Rule    // answers of models; the first rule that matches
	Services []Rule    // answers of external agents, likewise
	Stubs    []Stub    // results of tools; one with the name of a tool in Tools replaces it
	Signals  []Signal  // content of signals of persons; there is a default
	Expect   []Expect
}

// Request is a request of a client.
type Request struct {
	Agent   string
	Message string
	Timeout time.Duration // 0: 20 s; at most 1 min
}

// Rule is a rule for answers of models or external agents. One of its answers is picked with equal
// probability.
type Rule struct {
	Agent  string   // agent that prompts the model, or external agent; empty: any
	When   string   // text in the last message; empty: any message but the result of a tool
	Says   []string // texts
	Calls  []CallOf // calls of other agents
	Uses   []Use    // calls of tools; models only
	Script bool     // instead of the others: follows the instructions in the message, as the built-in model
}

// CallOf is a call of another agent by a model or an external agent.
type CallOf struct {
	Agent   string
	Message string // {message} is replaced by the message of the caller
}

// Stub is a tool without a function.
type Stub struct {
	Name        string
	Description string
	Schema      string // of the arguments, in JSON; empty: any object
	Idempotent  bool
	Says        []string // results, one picked with equal probability; empty: "done"
}

// Signal has the contents of the signals with a name. One is picked with equal probability.
type Signal struct {
	Name string
	Says []string
}

// Expect is an expectation in addition to the rules of the runtime. Exactly one of Refusals,
// SucceededPercent, DepthAtMost and FanOutAtMost is set.
type Expect struct {
	Agent            string // only calls of this agent; empty: all
	Refusals         string // code of a refusal such as call_cycle, its reason such as Cycle, or any; at most AtMost of them in one simulation
	AtMost           int
	SucceededPercent int // minimum, of the requests of clients in all simulations
	DepthAtMost      int // calls above any call
	FanOutAtMost     int // concurrent calls of one turn
}

// Options select the simulations.
type Options struct {
	First     uint64 // first seed; 0: 1
	Seeds     int    // number of consecutive seeds; 0: 20
	Faultless bool   // no faults
	Dir       string // folder for reports of failures; empty: none
}

// Failure is a violation.
type Failure struct {
	Seed     uint64 // repeat it with Options{First: Seed, Seeds: 1}
	Property string // violated rule of the runtime, or expectation
	Detail   string
}

// Report is the result of all simulations.
type Report struct {
	Seeds     int
	Requests  int // of clients
	Succeeded int // of them, completely or partially
	Refused   int
	Failures  []Failure
	text      string
}

// String returns the report as text: outcomes, refusals by reason and call, faults with an effect, and
// failures.
func (r *Report) String() string { return r.text }

// Simulate runs the team. The error is that of an invalid team.
func Simulate(team Team, o Options) (*Report, error) {
	t, err := team.build()
	if err != nil {
		return nil, err
	}
	result, err := simulate.Run(t, simulate.Options{First: o.First, Seeds: o.Seeds, Faultless: o.Faultless, Dir: o.Dir})
	if err != nil {
		return nil, err
	}
	total := &result.Total
	r := &Report{Seeds: result.Seeds, Requests: total.Asked, Succeeded: total.Succeeded + total.Partial, Refused: total.Refused}
	for _, f := range result.Failures {
		r.Failures = append(r.Failures, Failure{f.Seed, f.Property, f.Detail})
	}
	var b strings.Builder
	result.Print(&b, nil)
	r.text = b.String()
	return r, nil
}

// Test runs the team as part of a test, which fails if a rule or an expectation is violated, and if
// no request of a client succeeded: refusals alone violate no rule. The log of the test has the report.
func Test(tb TB, team Team, o Options) *Report {
	tb.Helper()
	r, err := Simulate(team, o)
	switch {
	case err != nil:
		tb.Fatalf("%v", err)
		return nil
	case len(r.Failures) > 0:
		tb.Fatalf("%s", r)
	case r.Requests > 0 && r.Succeeded == 0:
		tb.Fatalf("none of %d requests of clients succeeded; run a turn with Start to see the error of an agent\n%s", r.Requests, r)
	default:
		tb.Logf("%s", r)
	}
	return r
}

// build returns the team for the simulator.
func (t *Team) build() (*simulate.Team, error) {
	p, err := program.Troupe.New(t.Agents, t.Tools)
	if err != nil {
		return nil, err
	}
	out := &simulate.Team{}
	if t.Project != "" {
		if out, err = simulate.Load(t.Project); err != nil {
			return nil, err
		}
	}
	out.Agents, out.Local = append(out.Agents, p.Agents...), p.Local
	for _, a := range t.Asks {
		out.Asks = append(out.Asks, simulate.Ask{Agent: a.Agent, Message: a.Message, TimeoutMS: a.Timeout.Milliseconds()})
	}
	out.Models, out.Services = append(out.Models, rules(t.Models)...), append(out.Services, rules(t.Services)...)
	for _, s := range t.Stubs {
		out.Tools = append(out.Tools, simulate.Tool(s))
	}
	for _, s := range t.Signals {
		out.Signals = append(out.Signals, simulate.Signal(s))
	}
	for _, x := range t.Expect {
		out.Expect = append(out.Expect, simulate.Expect{Agent: x.Agent, Refusals: x.Refusals, AtMost: x.AtMost,
			SucceededPercent: set(x.SucceededPercent), DepthAtMost: set(x.DepthAtMost), FanOutAtMost: set(x.FanOutAtMost)})
	}
	return out, nil
}

func rules(all []Rule) (out []simulate.Rule) {
	for _, r := range all {
		rule := simulate.Rule{Agent: r.Agent, When: r.When, Script: r.Script, Says: r.Says}
		for _, c := range r.Calls {
			rule.Calls = append(rule.Calls, simulate.Call(c))
		}
		for _, u := range r.Uses {
			rule.Uses = append(rule.Uses, simulate.Use{Tool: u.Tool, Input: u.Args})
		}
		out = append(out, rule)
	}
	return out
}

// set returns nil for a number that is not set.
func set(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}
