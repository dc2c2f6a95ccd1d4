// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// Purses. What a tree of runs may spend on models is divided like its calls: see actor.Purse. The entry of a request
// to a model takes the most that its answer can cost from the purse of the run, and the entry of the answer
// returns what was not spent. A request that costs more than the purse has is refused, or waits for a
// person, who adds to the purse.

// Spending is what the runs of a cell may spend on models. The zero value is any amount.
type Spending struct {
	Tree     *actor.Purse // of a tree of runs; nil: any amount
	Day      *actor.Purse // of all trees of a user that begin on a day; nil: any amount. It needs the agent of the accounts
	Ask      bool         // a request beyond a purse waits for a person instead of being refused
	Models   map[string]ModelCost
	Currency string // of all amounts of money
}

// ModelCost is what the answers of a model can cost.
type ModelCost struct {
	Price        upstream.Price
	AnswerTokens int64 // of the longest answer to a request that names no maximum; 0: AnswerTokensDefault
}

const (
	// AnswerTokensDefault is taken for the answer of a model if the request names no maximum, and is its maximum then.
	AnswerTokensDefault = 4096
	// tokensMost bounds what a request may name, so that sums do not overflow.
	tokensMost = actor.UsageMax / 2
	// keptPart is the part of a purse that calls are not given if the agent reserves nothing: the caller needs it to
	// use their answers.
	keptPart = 8
	// detachedPurse is the part of a purse that a detached call is given.
	detachedPurse = 4
)

// purses divides the purses of the runs of a cell.
type purses struct {
	cell *Cell
	turn *turn
}

// root returns the purse of a call that begins a tree.
func (v *env) rootPurse(def *actor.Definition) *actor.Purse {
	tree := v.spending.Tree
	if def != nil {
		tree = tree.Capped(def.Purse)
	}
	return v.spending.inDay(tree)
}

// keep returns what the calls of a turn are not given.
func (s purses) keep() *actor.Purse {
	if s.turn.def != nil && s.turn.def.Reserve != nil {
		return s.turn.def.Reserve
	}
	return s.turn.purse.Part(keptPart, nil)
}

// share returns the part of the purse that each of n calls is given.
func (s purses) share(n int) *actor.Purse { return s.turn.purse.Part(n, s.keep()) }

// give takes the part of a call from the purse. A callee has its own budget also if its caller has none.
func (s purses) give(share *actor.Purse, callee *actor.Definition) *actor.Purse {
	if callee != nil {
		share = share.Capped(callee.Purse)
	}
	s.turn.purse = s.turn.purse.Less(share)
	return share
}

// plan takes the most that the answer to a request can cost from the purse, or returns a refusal. The request may
// have to wait for a person instead.
func (s purses) plan(a *store.Asked, out *actor.Ask) *actor.Refusal {
	t := s.turn
	if t.purse == nil {
		return nil
	}
	need, priced := s.most(out)
	if priced && t.purse.Covers(need) {
		a.Purse = &need
		t.purse = t.purse.Less(a.Purse)
		return nil
	}
	why := s.missing(out.Name, need, priced)
	switch {
	case !s.cell.spending.Ask || a.Added || !t.act.durable: // the connection of an added request cannot wait, and nothing keeps a volatile run
		return actor.Refuse(actor.Budget, "%s", why)
	case s.cell.active.waiting(t.act.id.Tenant) >= ApprovalsPerUserMax:
		return actor.RefuseBusy(actor.ScopeCaller, approvalsRetryAfter, "%d calls of this user wait for a person, which is the limit: decide about some of them first", ApprovalsPerUserMax)
	}
	a.Purse = &need
	a.Await = &store.Await{Summary: actor.FitText(why, actor.TextBytesMax), Status: runs.ApprovalStatusPending}
	a.Clock = actor.NewClock(s.cell.now, min(s.cell.limits.ApprovalTimeout, s.cell.limits.WaitTimeoutMax))
	return nil
}

// most returns the most that the answer to a request can cost, in the kinds that the purse limits. It reports false if the purse limits money
// and the model has no price. A model that is not in the configuration costs nothing: it is built in, or does not exist.
func (s purses) most(out *actor.Ask) (need actor.Purse, priced bool) {
	prompt, answer := out.PromptTokens, out.AnswerTokens
	if prompt == 0 {
		prompt = upstream.PromptTokens(len(out.Body))
	}
	cost, known := s.cell.spending.Models[out.Name]
	answer = cmp.Or(answer, cost.AnswerTokens, AnswerTokensDefault)
	prompt, answer = min(max(prompt, 0), tokensMost), min(max(answer, 0), tokensMost)
	need = actor.Purse{Tokens: actor.NoLimit, Micros: actor.NoLimit}
	if s.turn.purse.Tokens != actor.NoLimit {
		need.Tokens = prompt + answer
	}
	if s.turn.purse.Micros != actor.NoLimit {
		need.Micros = cost.Price.Worst(prompt, answer)
	}
	return need, cost.Price.Known || !known || s.turn.purse.Micros == actor.NoLimit
}

// answerBound returns the maximum of tokens of an answer that was taken from a purse.
func answerBound(a *store.Asked) int64 {
	if a.Purse == nil {
		return 0
	}
	return AnswerTokensDefault
}

// missing says why a purse does not suffice.
func (s purses) missing(model string, need actor.Purse, priced bool) string {
	if !priced {
		return fmt.Sprintf("the run has a budget of money, and model %s has no price: set price_input and price_output of it", model)
	}
	var all []string
	if left := s.turn.purse.Tokens; need.Tokens != actor.NoLimit && need.Tokens > left {
		all = append(all, fmt.Sprintf("up to %d tokens, and %d are left", need.Tokens, max(left, 0)))
	}
	if left := s.turn.purse.Micros; need.Micros != actor.NoLimit && need.Micros > left {
		all = append(all, fmt.Sprintf("up to %s, and %s is left", s.money(need.Micros), s.money(max(left, 0))))
	}
	least := "the least of its agent's and its message's"
	if day := s.turn.purse.Day; day != 0 {
		least = fmt.Sprintf("the least of its agent's, its message's and what its user had left for %s (UTC)", runs.Day(day-1))
	}
	return fmt.Sprintf("the request to model %s may take %s of the budget of the run, %s; max_tokens of the agent or model bounds its answers", model, strings.Join(all, "; "), least)
}

func (s purses) money(micros int64) string {
	return actor.ShowMoney(micros) + " " + s.cell.spending.Currency
}

// raise returns what the approval of a request adds to the purse: what the person says, or as much again as the tree
// had, and never less than the request needs.
func (s purses) raise(a *store.Asked, given *actor.Purse) *actor.Purse {
	purse := s.turn.run.Purse
	if given == nil {
		given = s.cell.rootPurse(s.turn.def)
	}
	add := func(given, need, left int64) int64 {
		if left == actor.NoLimit || need == actor.NoLimit {
			return 0
		}
		if given == actor.NoLimit {
			given = 0
		}
		return min(max(given, need-left, 0), actor.UsageMax)
	}
	if given == nil {
		given = &actor.Purse{}
	}
	return &actor.Purse{Tokens: add(given.Tokens, a.Purse.Tokens, purse.Tokens), Micros: add(given.Micros, a.Purse.Micros, purse.Micros)}
}

// checkRaise returns a refusal of an amount that would not change the budget of the run.
func (s purses) checkRaise(given *actor.Purse) *actor.Refusal {
	if given == nil {
		return nil
	}
	purse, refusal := s.turn.run.Purse, (*actor.Refusal)(nil)
	switch {
	case purse.Tokens == actor.NoLimit && given.Micros == 0:
		refusal = actor.Refuse(actor.Invalid, "raise: the budget of the run has no limit of tokens: give raise.money (--raise-money) instead of tokens")
	case purse.Micros == actor.NoLimit && given.Tokens == 0:
		refusal = actor.Refuse(actor.Invalid, "raise: the budget of the run has no limit of money: give raise.tokens (--raise-tokens) instead of money")
	default:
		return nil
	}
	refusal.Field = "raise"
	return refusal
}

// unspent returns what comes back of what an ask that is no call was given.
func unspent(a *store.Asked, answer *actor.Answer) *actor.Purse {
	switch {
	case a.Purse == nil, a.Await != nil && a.Await.Status != runs.ApprovalStatusApproved: // nothing was taken
		return nil
	case answer.Refusal == nil && answer.Usage != (actor.Usage{}):
		return a.Purse.Left(answer.Usage)
	case answer.Refusal == nil: // the model does not say what it took
		return nil
	}
	switch answer.Refusal.Reason {
	case actor.Deadline, actor.Unknown, actor.Stopped: // it may go on, and is charged
		return nil
	case actor.Unavailable:
		if a.StreamedAfter > 0 {
			return nil
		}
	}
	return a.Purse
}
