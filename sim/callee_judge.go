// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/tools"
)

// crowdSize is the number of agents of a crowd: more than the description of call_agent
// and one page of list_agents have room for.
const crowdSize = 70

// drawCrowd adds the agents of a crowd to some plans. Only list_agents names all of them.
func (p *Plan) drawCrowd(c Entropy) {
	if c.Int(4) < 3 {
		return
	}
	for i := range crowdSize {
		name := fmt.Sprintf("crowd-%02d", i)
		p.Agents = append(p.Agents, actor.Definition{Name: name, Doc: "one of a crowd", Behavior: scriptAgent{}, Hash: actor.HashOf([]byte(name))})
	}
	p.Crowd = true
}

// crowdLines make a declared agent list the agents that it may call.
var crowdLines = [...]string{"use list_agents", `use list_agents {"after":"crowd-07"}`, `use list_agents {"after":"crowd-31"}`, `use list_agents {"after":"dora"}`, `use list_agents {"after":"zz"}`}

// callees returns the agents that a declared agent of the plan may call. It returns false
// if the agent may call any.
func (p *Plan) callees(agent string) ([]string, bool) {
	all, ok := p.Specs[agent]["agents"].([]string)
	return all, ok
}

// checkCallee checks that the spec of an agent permits a call that it makes.
func (s *judgedStep) checkCallee(e *history.Event) {
	if all, ok := s.w.plan.callees(e.Actor.Agent); ok && !slices.Contains(all, e.Peer.Agent) {
		s.fail("calls %s, but the spec of %s permits only %q", e.Peer, e.Actor, all)
	}
}

// checkResults checks the results of calls in a prompt: those of agents that the caller
// may not call, and the lists of agents.
func (s *upstreamConn) checkResults(sent *wirePrompt) {
	p, self := &s.exchange.n.w.plan, s.exchange.call.To.Agent
	allowed, limited := p.callees(self)
	for _, m := range sent.Messages {
		for _, call := range m.Calls {
			at := slices.IndexFunc(sent.Messages, func(r wireMessage) bool { return r.CallID == call.ID })
			if at < 0 {
				continue
			}
			result := sent.Messages[at].Content
			var in struct {
				Agent   string `json:"agent_id"`
				Message string `json:"message"`
				After   string `json:"after"`
			}
			if json.Unmarshal([]byte(call.Function.Arguments), &in) != nil {
				continue
			}
			target, _, _ := strings.Cut(in.Agent, "/")
			switch call.Function.Name {
			case tools.CallAgent:
				if limited && target != "" && in.Message != "" && !slices.Contains(allowed, target) && !strings.Contains(result, "may not call") {
					s.checkWire("the result of a call to "+in.Agent, result, "a refusal: the caller may not call it")
				}
			case tools.ListAgents:
				s.checkListed(self, in.After, result)
			}
		}
	}
}

// checkListed checks a page of list_agents. With a registry, it may have other agents too.
func (s *upstreamConn) checkListed(self, after, result string) {
	w := s.exchange.n.w
	var page struct {
		Agents []struct {
			ID string `json:"agent_id"`
		} `json:"agents"`
		Next string `json:"next"`
	}
	if json.Unmarshal([]byte(result), &page) != nil || w.plan.Odds[AgentNotFound] > 0 { // the list lacks a withdrawn agent
		return
	}
	allowed, limited := w.plan.callees(self)
	var want, got []string
	for i := range w.plan.Agents {
		name := w.plan.Agents[i].Name
		if name > after && name != self && (!limited || slices.Contains(allowed, name)) {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	for _, a := range page.Agents {
		if slices.ContainsFunc(w.plan.Agents, func(d actor.Definition) bool { return d.Name == a.ID }) || !w.hasRegistry() {
			got = append(got, a.ID)
		}
	}
	if w.hasRegistry() {
		want = want[:min(len(got), len(want))]
	} else if len(want) > 32 {
		want = want[:32]
		s.checkWire("the next page", page.Next, want[31])
	}
	s.checkWire("the list of agents", strings.Join(got, " "), strings.Join(want, " "))
}
