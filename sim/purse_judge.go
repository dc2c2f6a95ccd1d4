// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/upstream"
)

// spending returns what the runs of the world may spend on models.
func (p *Plan) spending() runtime.Spending {
	of := func(tokens int64) *actor.Purse {
		if tokens == 0 {
			return nil
		}
		return &actor.Purse{Tokens: tokens, Micros: actor.NoLimit}
	}
	s := runtime.Spending{Tree: of(p.TreeTokens), Day: of(p.DayTokens)}
	if s.Day == nil && p.DayMessages > 0 {
		s.Day = of(actor.NoLimit)
	}
	return s
}

// limitsSpending reports whether the runs of the world may not spend any amount.
func (p *Plan) limitsSpending() bool { return p.TreeTokens+p.DayTokens+p.DayMessages > 0 }

// treeTokens returns the most that a tree may spend: a quarter of the budget of a day if it has no limit of its own.
func (p *Plan) treeTokens() int64 {
	switch {
	case p.DayTokens == 0:
		return p.TreeTokens
	case p.TreeTokens == 0:
		return max(p.DayTokens/4, 1)
	}
	return min(p.TreeTokens, p.DayTokens)
}

// spend sets what a model reports in a world whose spending is limited: most often all that the request allows.
func spend(w *Simulation, c *upstream.Completion, p upstream.Prompt) {
	if !w.plan.limitsSpending() || p.MaxTokens == 0 {
		return
	}
	u := upstream.Usage{Known: true, Input: 1, Output: int64(p.MaxTokens)}
	if w.entropy.Int(3) == 2 {
		u.Output = int64(w.entropy.Int(p.MaxTokens))
	}
	u.Total = u.Input + u.Output
	c.Usage = u
}

// repeatedCalls counts the calls to volatile actors that are accepted again, because a crash has lost their runs and what
// these have spent: each has the purse of its call anew. A journaled run keeps its purse.
type repeatedCalls struct {
	accepted map[actor.CallID]bool
	byRoot   map[actor.CallID]int64
	byUser   map[string]int64
}

func newRepeatedCalls() repeatedCalls {
	return repeatedCalls{map[actor.CallID]bool{}, map[actor.CallID]int64{}, map[string]int64{}}
}

func (r *repeatedCalls) event(e *history.Event) {
	if e.Kind != history.Admit || e.Durable {
		return
	}
	if r.accepted[e.Call] {
		r.byRoot[e.Root]++
		r.byUser[e.Actor.Tenant]++
	}
	r.accepted[e.Call] = true
}

// purseJudge adds up what models have reported in the stored events of all runs, and compares each tree with its
// purse, and each user with the budget of the days. What the cells have reserved does not matter here.
type purseJudge struct {
	*Simulation
	spent  map[actor.CallID]int64 // by root
	byUser map[string]int64
	begun  map[string]int64 // messages whose turn asked a model or an agent, by user
}

// check reads the events of all runs.
func (j purseJudge) check() {
	if !j.plan.limitsSpending() || j.retention != nil || j.isCorrupt() {
		return
	}
	for i := range j.plan.Namespaces {
		var last actor.CallID
		for next := true; next; next = !last.IsZero() {
			page, err := j.store.Runs(namespaceName(i), runs.Filter{Calls: true}, last, 100)
			if err != nil {
				j.fail(StoreReads, fmt.Sprintf("list of runs: %v", err))
				return
			}
			for k := range page.All {
				j.read(namespaceName(i), &page.All[k])
			}
			last = page.Next
		}
	}
}

func (j purseJudge) read(tenant string, r *runs.Summary) {
	stored, err := j.store.Events(tenant, r.Run, 0, streamEventsMax)
	if err != nil {
		j.fail(StoreReads, fmt.Sprintf("events of run %s: %v", r.Run, err))
		return
	}
	of := map[runs.Type]bool{}
	for i := range stored {
		e, err := runs.Decode(stored[i].Body)
		switch {
		case err != nil:
			j.fail(StoreReads, fmt.Sprintf("event %d of run %s: %v", stored[i].Seq, r.Run, err))
			return
		case e.Type != runs.LLMCallDone:
			of[e.Type] = e.Type != runs.UserInput || e.Origin != actor.Agent.String() // outcomes and reminders are no messages
			continue
		case e.Refusal != nil && e.Refusal.Reason == actor.Budget:
			j.Stats.Audit.NeverOverspent++
		}
		j.spent[r.Root] += e.Usage.Total
		j.byUser[tenant] += e.Usage.Total
	}
	switch {
	case j.plan.DayMessages == 0 || !of[runs.UserInput]:
	case of[runs.LLMCallStarted] || of[runs.AgentInvokeStarted] || of[runs.AgentCalledChild]:
		j.begun[tenant]++
	case r.Refusal != nil && r.Refusal.Reason == actor.Budget:
		j.Stats.Audit.NeverOverspent++
	}
	days := actor.DayOf(j.now) - actor.DayOf(Origin) + 1
	again := j.repeated.byUser[tenant]
	if spent := j.byUser[tenant]; j.plan.DayTokens > 0 && spent > days*j.plan.DayTokens+again*j.plan.treeTokens() {
		j.fail(NeverOverspent, fmt.Sprintf("the models of user %s have taken %d tokens in %d days, at most %d a day allowed, and %d for each of %d repeated calls",
			tenant, spent, days, j.plan.DayTokens, j.plan.treeTokens(), again))
	}
	if begun := j.begun[tenant]; j.plan.DayMessages > 0 && begun > days*j.plan.DayMessages {
		j.fail(NeverOverspent, fmt.Sprintf("%d messages of user %s asked models or agents in %d days, at most %d a day allowed", begun, tenant, days, j.plan.DayMessages))
	}
	again = j.repeated.byRoot[r.Root]
	if spent := j.spent[r.Root]; j.plan.TreeTokens > 0 && spent > j.plan.TreeTokens+again*j.plan.treeTokens() {
		j.fail(NeverOverspent, fmt.Sprintf("the models of the tree of run %s have taken %d tokens, at most %d allowed, and as many for each of %d repeated calls", r.Root, spent, j.plan.TreeTokens, again))
	}
}
