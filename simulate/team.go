// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/sim"
	"github.com/troupe-run/troupe/tools"
)

// Team is a set of agents and the stubs of their environment.
type Team struct {
	Specs    []agents.Spec      // declared and external agents
	Agents   []actor.Definition // agents in Go
	Limits   dispatcher.Limits  // the zero value means the defaults
	Asks     []Ask              // if empty, clients send generated messages to all agents
	Models   []Rule
	Services []Rule // external agents
	Tools    []Tool
	Local    []tools.Tool // of the program; a stub in Tools with the name of one replaces it
	Signals  []Signal
	Expect   []Expect
}

// Ask is a request of a client.
type Ask struct {
	Agent     string `toml:"agent"`
	Message   string `toml:"message"`
	TimeoutMS int64  `toml:"timeout_ms"` // 0 means 20,000; at most 60,000
}

// Tool is the stub of a tool.
type Tool struct {
	Name        string   `toml:"name"`
	Description string   `toml:"description"`
	Schema      string   `toml:"schema"` // of the input; empty: any object
	Idempotent  bool     `toml:"idempotent"`
	Says        []string `toml:"says"` // results, picked with equal probability; shrinking prefers the first
}

// Signal is the stub of a person who sends a signal to a waiting turn.
type Signal struct {
	Name string   `toml:"name"`
	Says []string `toml:"says"`
}

// Rule defines the answers of a stub. The first matching rule is applied, and one of
// its answers is picked with equal probability. Shrinking prefers the first answer.
type Rule struct {
	Agent  string   `toml:"agent"`  // agent of the model, or external agent; empty: any
	When   string   `toml:"when"`   // required text in the last message; empty: any message but a tool result
	Script bool     `toml:"script"` // follow the instructions in the message, as the built-in model does
	Says   []string `toml:"says"`
	Calls  []Call   `toml:"calls"`
	Uses   []Use    `toml:"uses"` // models only; a service has no tools
}

// Call is a call of another agent.
type Call struct {
	Agent   string `toml:"agent"`
	Message string `toml:"message"` // {message} is replaced by the agent's message
}

// Use is a tool call.
type Use struct {
	Tool  string `toml:"tool"`
	Input string `toml:"input"`
}

// Limits of a team.
const (
	agentsMax = 64
	rulesMax  = 1000
)

// names returns the names of all agents of the team.
func (t *Team) names() (names []string) {
	for _, s := range t.Specs {
		names = append(names, s.ID)
	}
	for _, d := range t.Agents {
		names = append(names, d.Name)
	}
	return names
}

// check returns an error if the team is invalid.
func (t *Team) check() error {
	names := t.names()
	checkAgent := func(where, agent string) error {
		if !slices.Contains(names, agent) {
			return fmt.Errorf("%s: unknown agent %q; the team has %v", where, agent, names)
		}
		return nil
	}
	switch {
	case len(names) == 0:
		return fmt.Errorf("the team has no agents")
	case len(names) > agentsMax:
		return fmt.Errorf("the team has %d agents, at most %d can be simulated at once", len(names), agentsMax)
	case len(t.Models)+len(t.Services)+len(t.Tools)+len(t.Asks) > rulesMax:
		return fmt.Errorf("more than %d rules, tools and asks", rulesMax)
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("two agents are named %q", name)
		}
		if err := actor.CheckUnreserved(name); err != nil {
			return fmt.Errorf("agent %w", err)
		}
	}
	for i, a := range t.Asks {
		if err := checkAgent(fmt.Sprintf("ask %d", i+1), a.Agent); err != nil {
			return err
		}
		if a.TimeoutMS < 0 || a.TimeoutMS > sim.TeamLeftMax.Milliseconds() {
			return fmt.Errorf("ask %d: timeout_ms is %d, want 0 to %d", i+1, a.TimeoutMS, sim.TeamLeftMax.Milliseconds())
		}
	}
	for i, r := range slices.Concat(t.Models, t.Services) {
		where, service := fmt.Sprintf("model %d", i+1), i >= len(t.Models)
		if service {
			where = fmt.Sprintf("service %d", i+1-len(t.Models))
		}
		if r.Agent != "" {
			if err := checkAgent(where, r.Agent); err != nil {
				return err
			}
		}
		switch {
		case !r.Script && len(r.Says)+len(r.Calls)+len(r.Uses) == 0:
			return fmt.Errorf("%s has no answers; add says, calls, uses or script = true", where)
		case r.Script && (r.When != "" || len(r.Says)+len(r.Calls)+len(r.Uses) > 0):
			return fmt.Errorf("%s has script = true, which excludes when, says, calls and uses; remove them or script", where)
		case len(r.Uses) > 0 && service:
			return fmt.Errorf("%s uses a tool, which an external agent cannot do; want says or calls", where)
		}
	}
	for i, x := range t.Expect {
		if err := x.check(); err != nil {
			return fmt.Errorf("expect %d: %w", i+1, err)
		}
		if x.Agent != "" {
			if err := checkAgent(fmt.Sprintf("expect %d", i+1), x.Agent); err != nil {
				return err
			}
		}
	}
	return nil
}

// build returns the team in the form that the simulator runs.
func (t *Team) build() (*sim.Team, error) {
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	registry := tools.NewRegistry()
	for _, tool := range t.Tools {
		results := tool.Says
		stub := sim.StandIn(tools.Tool{Name: tool.Name, Description: textOr(tool.Description, "A stub."), Schema: tool.Schema, Idempotent: tool.Idempotent},
			func(c sim.Rand, _ []byte) string { return pick(c, results, "done") })
		if err := registry.Register(stub); err != nil {
			return nil, fmt.Errorf("simulate: %w", err)
		}
	}
	for _, tool := range t.Local {
		if _, stub := registry.Tool(tool.Name); stub {
			continue
		}
		if err := registry.Register(sim.Local(tool)); err != nil {
			return nil, fmt.Errorf("simulate: %w", err)
		}
	}
	all := slices.Clone(t.Agents)
	for _, spec := range t.Specs {
		def, err := agents.Compile(spec, registry)
		if err != nil {
			return nil, fmt.Errorf("simulate: %w", err)
		}
		all = append(all, def)
	}
	team := &sim.Team{Agents: all, Tools: registry, Limits: t.Limits, Model: t.model, Service: t.service, Signal: t.signal}
	for _, a := range t.Asks {
		team.Asks = append(team.Asks, sim.TeamAsk{Agent: a.Agent, Message: a.Message, Left: time.Duration(a.TimeoutMS) * time.Millisecond})
	}
	if len(team.Asks) == 0 {
		for _, name := range t.names() {
			for n := range 3 {
				team.Asks = append(team.Asks, sim.TeamAsk{Agent: name, Message: fmt.Sprintf("question %d", n+1)})
			}
		}
	}
	return team, nil
}

func textOr(text, fallback string) string {
	if text != "" {
		return text
	}
	return fallback
}

// pick returns one of several texts.
func pick(c sim.Rand, texts []string, fallback string) string {
	if len(texts) == 0 {
		return fallback
	}
	return texts[c.Int(len(texts))]
}
