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

// Team is agents, and what stands around them in an imagined world.
type Team struct {
	Specs    []agents.Spec      // those that are declared
	Agents   []actor.Definition // those that are written in Go
	Limits   dispatcher.Limits  // the zero value: the defaults
	Asks     []Ask              // none: clients ask anybody for something drawn
	Models   []Rule
	Services []Rule // external agents
	Tools    []Tool
	Signals  []Signal
	Expect   []Expect
}

// Ask is what a client comes with.
type Ask struct {
	Agent     string `toml:"agent"`
	Message   string `toml:"message"`
	TimeoutMS int64  `toml:"timeout_ms"` // 0: 20,000; at most 60,000
}

// Tool is the stand-in for a tool.
type Tool struct {
	Name        string   `toml:"name"`
	Description string   `toml:"description"`
	Schema      string   `toml:"schema"` // of its input; "": any object
	Idempotent  bool     `toml:"idempotent"`
	Says        []string `toml:"says"` // one of them is drawn, each as likely; a story that is made small keeps to the first
}

// Signal is what people say to who waits for it.
type Signal struct {
	Name string   `toml:"name"`
	Says []string `toml:"says"`
}

// Rule is what a stand-in does with what it is told. The first rule that fits is
// taken, and one of its answers drawn, each as likely; a story that is made small
// keeps to the first.
type Rule struct {
	Agent  string   `toml:"agent"`  // whose model, or which external agent; "": any
	When   string   `toml:"when"`   // part of what it was told last; "": any message, but no result of a tool
	Script bool     `toml:"script"` // does what it is told, line by line, as the built-in model does
	Says   []string `toml:"says"`
	Calls  []Call   `toml:"calls"`
	Uses   []Use    `toml:"uses"` // of models alone: a service has no tools but its callers'
}

// Call is another agent that a stand-in has its agent call.
type Call struct {
	Agent   string `toml:"agent"`
	Message string `toml:"message"` // {message} is what the agent was told
}

// Use is a tool that a stand-in has its agent use.
type Use struct {
	Tool  string `toml:"tool"`
	Input string `toml:"input"`
}

// bounds of a team.
const (
	agentsMax = 64
	rulesMax  = 1000
)

// names are all agents of the team.
func (t *Team) names() (names []string) {
	for _, s := range t.Specs {
		names = append(names, s.ID)
	}
	for _, d := range t.Agents {
		names = append(names, d.Name)
	}
	return names
}

// check says what is wrong with a team.
func (t *Team) check() error {
	names := t.names()
	knows := func(what, agent string) error {
		if !slices.Contains(names, agent) {
			return fmt.Errorf("%s names the agent %q; the team has %v", what, agent, names)
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
	}
	for i, a := range t.Asks {
		if err := knows(fmt.Sprintf("ask %d", i+1), a.Agent); err != nil {
			return err
		}
		if a.TimeoutMS < 0 || a.TimeoutMS > sim.TeamLeftMax.Milliseconds() {
			return fmt.Errorf("ask %d: timeout_ms is %d, want 0 to %d", i+1, a.TimeoutMS, sim.TeamLeftMax.Milliseconds())
		}
	}
	for i, r := range slices.Concat(t.Models, t.Services) {
		what, service := fmt.Sprintf("model %d", i+1), i >= len(t.Models)
		if service {
			what = fmt.Sprintf("service %d", i+1-len(t.Models))
		}
		if r.Agent != "" {
			if err := knows(what, r.Agent); err != nil {
				return err
			}
		}
		switch {
		case !r.Script && len(r.Says)+len(r.Calls)+len(r.Uses) == 0:
			return fmt.Errorf("%s answers nothing; give it says, calls, uses, or script = true", what)
		case r.Script && (r.When != "" || len(r.Says)+len(r.Calls)+len(r.Uses) > 0):
			return fmt.Errorf("%s has script = true, which does whatever it is told; take when, says, calls and uses out, or script", what)
		case len(r.Uses) > 0 && service:
			return fmt.Errorf("%s uses a tool; an external agent can say things and call agents, so want says or calls", what)
		}
	}
	for i, x := range t.Expect {
		if err := x.check(); err != nil {
			return fmt.Errorf("expect %d: %w", i+1, err)
		}
		if x.Agent != "" {
			if err := knows(fmt.Sprintf("expect %d", i+1), x.Agent); err != nil {
				return err
			}
		}
	}
	return nil
}

// build is the team as a world plays it.
func (t *Team) build() (*sim.Team, error) {
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	registry := tools.NewRegistry()
	for _, tool := range t.Tools {
		says := tool.Says
		stand := sim.StandIn(tools.Tool{Name: tool.Name, Description: textOr(tool.Description, "A stand-in."), Schema: tool.Schema, Idempotent: tool.Idempotent},
			func(c sim.Rand, _ []byte) string { return pick(c, says, "done") })
		if err := registry.RegisterBuiltin(stand); err != nil {
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
	cast := &sim.Team{Agents: all, Tools: registry, Limits: t.Limits, Model: t.model, Service: t.service, Signal: t.signal}
	for _, a := range t.Asks {
		cast.Asks = append(cast.Asks, sim.TeamAsk{Agent: a.Agent, Message: a.Message, Left: time.Duration(a.TimeoutMS) * time.Millisecond})
	}
	if len(cast.Asks) == 0 {
		for _, name := range t.names() {
			for n := range 3 {
				cast.Asks = append(cast.Asks, sim.TeamAsk{Agent: name, Message: fmt.Sprintf("question %d", n+1)})
			}
		}
	}
	return cast, nil
}

func textOr(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

// pick is one of several texts.
func pick(c sim.Rand, says []string, otherwise string) string {
	if len(says) == 0 {
		return otherwise
	}
	return says[c.Int(len(says))]
}
