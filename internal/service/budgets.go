// SPDX-License-Identifier: Apache-2.0

package service

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/outbound"
)

// CheckBudgets adds a warning for each agent whose model has no price although a budget of money bounds its runs. It adds
// another for each agent whose own budget exceeds a budget of the server. The arguments are the budget of the tree of a
// message and that of a user for a day, nil if there is none; ask is set if an operator is asked at the limit.
func (f *AgentFiles) CheckBudgets(tree, day *actor.Purse, ask bool, models map[string]outbound.Model) {
	effect := "is refused"
	if ask {
		effect = "waits for an operator"
	}
	for _, a := range f.Agents {
		own := a.Spec.Budget
		bound := ""
		switch {
		case own.Money != nil:
			bound = "the budget of the agent"
		case limitsMoney(tree):
			bound = "tree_money in [budget]"
		case limitsMoney(day):
			bound = "user_money_per_day in [budget]"
		}
		if model := a.Spec.Model; bound != "" && a.Spec.HasModel() && !hasPrice(model, models) {
			f.warn(a.Path, "model", "%s bounds money, and model %s has no price, so each request to it %s; set price_input and price_output in [models.%[2]s]", bound, model, effect)
		}
		for _, limit := range []struct {
			name  string
			purse *actor.Purse
		}{{"tree", tree}, {"user", day}} {
			if limit.purse == nil {
				continue
			}
			suffix := map[string]string{"tree": "", "user": "_per_day"}[limit.name]
			if n := limit.purse.Tokens; own.Tokens != nil && n != actor.NoLimit && *own.Tokens > n {
				f.warn(a.Path, "budget.tokens", "%d is more than %s_tokens%s in [budget], %d, which bounds the runs of this agent too", *own.Tokens, limit.name, suffix, n)
			}
			if n := limit.purse.Micros; own.Money != nil && n != actor.NoLimit {
				if micros, err := actor.ParseMoney(*own.Money); err == nil && micros > n {
					f.warn(a.Path, "budget.money", "%s is more than %s_money%s in [budget], %s, which bounds the runs of this agent too", actor.ShowMoney(micros), limit.name, suffix, actor.ShowMoney(n))
				}
			}
		}
	}
}

func limitsMoney(p *actor.Purse) bool { return p != nil && p.Micros != actor.NoLimit }

// hasPrice reports whether a model has a price; true for one that the configuration does not have: it is built in and costs
// nothing, or does not exist, which is reported elsewhere.
func hasPrice(name string, models map[string]outbound.Model) bool {
	m, ok := models[name]
	price, err := m.Price()
	return !ok || err != nil || price.Known
}
