// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// A simulation has agents that follow scripts, and agents whose turns need an upstream:
// declared agents prompt a model, external agents run outside the nodes. A message to a
// declared or external agent consists of lines in the syntax of upstream.Script.
var (
	declaredNames = [...]string{"dora", "dino"}
	externalNames = [...]string{"xan", "xia"}
	modelNames    = [...]string{upstream.ScriptName, "other"}
)

// drawUpstreamAgents draws the declared and external agents of a simulation.
func (p *Plan) drawUpstreamAgents(c Entropy) {
	p.Specs = map[string]map[string]any{}
	for _, name := range declaredNames[:[...]int{1, 0, 2, 1}[c.Int(4)]] {
		spec := declaredSpec(name, modelNames[c.Int(2)], 3+c.Int(6))
		drawModelSettings(c, spec)
		if c.Int(4) == 3 {
			spec["agents"] = p.agentNames(1 + c.Int(len(p.Agents)))
		}
		p.Agents, p.Specs[name] = append(p.Agents, compileAgent(c, spec)), spec
	}
	for _, name := range externalNames[:[...]int{1, 0, 2, 1}[c.Int(4)]] {
		spec := externalSpec(name, [...]string{agents.RetryNever, agents.RetrySafe, agents.RetryMatched}[c.Int(3)])
		drawRetrySettings(c, spec)
		p.Agents, p.Specs[name] = append(p.Agents, compileAgent(c, spec)), spec
	}
}

// agentNames returns the names of the first agents.
func (p *Plan) agentNames(n int) (names []string) {
	for i := range p.Agents[:n] {
		names = append(names, p.Agents[i].Name)
	}
	return names
}

func declaredSpec(name, model string, steps int) map[string]any {
	return map[string]any{"agent_id": name, "kind": agents.KindDeclared, "model": model,
		"tools": []string{tools.CallAgent, clockTool, postTool}, "limits": map[string]any{"steps": steps}}
}

func externalSpec(name, retry string) map[string]any {
	spec := map[string]any{"agent_id": name, "kind": agents.KindExternal, "endpoint": "http://" + name + hostSuffix, "retry": retry}
	if name == externalNames[1] {
		spec["auth"] = map[string]any{"env": authEnv}
	}
	return spec
}

// compileAgent compiles an agent from a spec as a server does, after drawing some of
// its options.
func compileAgent(c Entropy, spec map[string]any) actor.Definition {
	if c.Int(6) == 5 {
		spec["durability"] = "none"
	}
	if policy := [...]string{"", "last:2", "none", "all"}[c.Int(4)]; policy != "" {
		spec["transcript"] = policy
	}
	if c.Int(6) == 5 {
		spec["max_active"] = 1 + c.Int(4)
	}
	if c.Int(5) == 4 {
		spec["turns"] = "interleaved"
	}
	if c.Int(5) == 4 {
		spec["recursion"] = "by_actor"
	}
	return invariant.Must(agents.Compile(invariant.Must(parseSpec(spec)), builtinTools()))
}

// parseSpec parses a spec from JSON, as sent over HTTP. The spec of the second agent of
// each kind is parsed from TOML, as in a file.
func parseSpec(spec map[string]any) (agents.Spec, error) {
	if id := spec["agent_id"]; id == declaredNames[1] || id == externalNames[1] {
		return agents.ReadTOML(string(invariant.Must(toml.Marshal(spec))))
	}
	return agents.ReadJSON(invariant.Must(json.Marshal(spec)))
}

// agentKind returns the kind of an agent, which determines the syntax of its messages.
func (w *Simulation) agentKind(agent string) actor.AgentKind {
	agent, _, _ = strings.Cut(agent, "/")
	for i := range w.plan.Agents {
		if def := &w.plan.Agents[i]; def.Name == agent {
			return def.Kind
		}
	}
	for _, a := range registeredAgents {
		if a.name == agent {
			return a.kind
		}
	}
	return actor.Native
}

// isInward reports whether users see no pieces of the answers of an agent's models.
func isInward(p *Plan, agent string) bool {
	return slices.ContainsFunc(p.Agents, func(d actor.Definition) bool { return d.Name == agent && d.Inward })
}

// message draws a message for an actor, in the syntax of its agent.
func (d generator) message(levels int, to string) string {
	if d.w.agentKind(to) == actor.Native {
		return d.script(levels, to).String()
	}
	lines := d.lines(levels, to)
	if d.singleLine { // a nested message has room for one line
		return lines[0]
	}
	return strings.Join(lines, "\n")
}

// lines draws the lines of a message for a declared or external agent.
func (d generator) lines(levels int, self string) []string {
	w, inner := d.w, generator{d.w, d.tenant, true}
	var all []string
	for i := range 1 + w.entropy.Int(3) {
		if i > 0 && w.entropy.Int(4) == 3 {
			all = append(all, "then")
		}
		all = append(all, inner.line(levels, self))
	}
	switch w.entropy.Int(64) {
	case 63:
		return []string{""}
	case 62:
		return append(all, "ask", "asked for nothing", "ask "+self+":", "ask "+self+" to go")
	}
	if w.entropy.Int(8) == 7 {
		all = append(all, "say "+strings.Repeat("and so on ", 20+w.entropy.Int(60)))
	}
	return all
}

func (d generator) line(levels int, self string) string {
	w := d.w
	if levels > 0 && w.entropy.Int(10) >= 4 {
		call := d.call(levels, self)
		return []string{askLine(call.name, call.script), "please ask the " + call.name + " agent: " + call.script, "ask " + call.name + ": " + call.script}[max(0, w.entropy.Int(8)-5)]
	}
	if w.plan.Crowd && w.entropy.Int(6) == 5 {
		return crowdLines[w.entropy.Int(len(crowdLines))]
	}
	switch w.entropy.Int(4) {
	case 0:
		return "use " + clockTool
	case 1:
		return strings.TrimSpace("use " + postTool + " " + [...]string{"", postInputs[w.entropy.Int(len(postInputs))]}[w.entropy.Int(2)])
	case 2:
		return "use " + clockTool + ` {"time":` + strconv.Itoa(w.entropy.Int(3)) + "}"
	}
	return "say it is " + strconv.Itoa(w.entropy.Int(100)) + " past nine, " + namespaceMarker(d.tenant) + " ééé"
}

// askLine returns the line that makes a declared or external agent call another agent.
func askLine(agent, message string) string { return "ask " + agent + " agent to " + message }
