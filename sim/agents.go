// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Besides those who play scripts, a world has agents whose turns need somebody
// outside: declared ones, who ask a model, and external ones, who are elsewhere.
// They are told in the lines that upstream.Script reads.
var (
	declaredNames = [...]string{"dora", "dino"}
	externalNames = [...]string{"xan", "xia"}
	modelNames    = [...]string{upstream.ScriptName, "other"}
)

// drawUpstreamAgents makes the declared and external agents of a world.
func drawUpstreamAgents(c Entropy) []actor.Definition {
	var all []actor.Definition
	for _, name := range declaredNames[:[...]int{1, 0, 2, 1}[c.Int(4)]] {
		all = append(all, compileAgent(c, declaredSpec(name, modelNames[c.Int(2)], 3+c.Int(6))))
	}
	for _, name := range externalNames[:[...]int{1, 0, 2, 1}[c.Int(4)]] {
		all = append(all, compileAgent(c, externalSpec(name, [...]string{agents.RetryNever, agents.RetrySafe}[c.Int(2)])))
	}
	return all
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

// compileAgent makes an agent of a spec, as a server does it.
func compileAgent(c Entropy, spec map[string]any) actor.Definition {
	if c.Int(6) == 5 {
		spec["durability"] = "none"
	}
	if c.Int(5) == 4 {
		spec["turns"] = "interleaved"
	}
	if c.Int(5) == 4 {
		spec["recursion"] = "by_actor"
	}
	return invariant.Must(agents.Compile(invariant.Must(parseSpec(spec)), builtinTools()))
}

// parseSpec reads a spec as it comes by HTTP, or from a file: the second of each kind does.
func parseSpec(spec map[string]any) (agents.Spec, error) {
	if id := spec["agent_id"]; id == declaredNames[1] || id == externalNames[1] {
		return agents.ReadTOML(string(invariant.Must(toml.Marshal(spec))))
	}
	return agents.ReadJSON(invariant.Must(json.Marshal(spec)))
}

// agentKind is how an agent has to be spoken to.
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

// message draws what an actor is told, in its own language.
func (d generator) message(levels int, to string) string {
	if d.w.agentKind(to) == actor.Native {
		return d.script(levels, to).String()
	}
	lines := d.lines(levels, to)
	if d.singleLine { // one line is all that fits into another
		return lines[0]
	}
	return strings.Join(lines, "\n")
}

// lines draws what a declared or external agent is told.
func (d generator) lines(levels int, self string) []string {
	w, inner := d.w, generator{d.w, true}
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
	switch w.entropy.Int(4) {
	case 0:
		return "use " + clockTool
	case 1:
		return strings.TrimSpace("use " + postTool + " " + [...]string{"", postInputs[w.entropy.Int(len(postInputs))]}[w.entropy.Int(2)])
	case 2:
		return "use " + clockTool + ` {"time":` + strconv.Itoa(w.entropy.Int(3)) + "}"
	}
	return "say it is " + strconv.Itoa(w.entropy.Int(100)) + " past nine, ééé"
}

// askLine tells a declared or external agent to ask another.
func askLine(agent, message string) string { return "ask " + agent + " agent to " + message }
