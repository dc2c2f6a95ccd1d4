// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/nearest"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/upstream"
)

// turn is a model that is asked for an answer, and what is left for those after it.
type turn struct {
	*Outbound
	model    *model
	others   int // models that can be asked after it
	deadline actor.Time
}

// inTurn asks a model, and the next ones of its list as long as the one before is not available and no
// piece of an answer was passed on.
func (o *Outbound) inTurn(first *model, deadline actor.Time, onPiece func(actor.Piece), ask func(turn, func(actor.Piece)) *upstream.Outcome) *upstream.Outcome {
	begun := false
	pass := func(p actor.Piece) {
		begun = begun || p.Retry == nil
		onPiece(p)
	}
	for m, others := first, first.next; ; m, others = others[0], others[1:] {
		outcome := ask(turn{o, m, len(others), deadline}, pass)
		if outcome.Refusal == nil && m != first {
			outcome.Completion.Fallback = m.name
		}
		if begun || len(others) == 0 || !outcome.IsAway() || o.now() >= deadline {
			return outcome
		}
		onPiece(outcome.PassOver(others[0].name))
	}
}

// left returns the time that the model may make the request wait.
func (t turn) left() actor.Duration {
	return t.deadline.Sub(t.now()) / actor.Duration(t.others+1)
}

func (t turn) limits() upstream.AttemptLimits {
	return t.model.patience.BeforeOthers(t.deadline.Sub(t.now()), t.others, t.model.config.RetryAttempts > 0)
}

func (t turn) pacer() upstream.Pacer {
	if t.others > 0 {
		return upstream.Impatient{Pacer: t.model.backoff}
	}
	return t.model.backoff
}

// cost returns the most that an answer to a request to the model can cost, whichever of its models answers.
func (m *model) cost() runtime.ModelCost {
	most := runtime.ModelCost{Price: m.price, AnswerTokens: int64(m.config.MaxTokens)}
	most.Price.Known = most.Price.Known || m.name == upstream.ScriptName // it is built in, and costs nothing
	for _, other := range m.next {
		p := &most.Price
		p.Known = p.Known && (other.price.Known || other.name == upstream.ScriptName)
		p.Input, p.CachedInput, p.Output = max(p.Input, other.price.Input), max(p.CachedInput, other.price.CachedInput), max(p.Output, other.price.Output)
		most.AnswerTokens = max(cmp.Or(most.AnswerTokens, runtime.AnswerTokensDefault), cmp.Or(int64(other.config.MaxTokens), runtime.AnswerTokensDefault))
	}
	return most
}

// validateFallback returns an error that names the first invalid model in the list of a model.
func (c *Config) validateFallback(name string) error {
	m := c.Models[name]
	if n := len(m.Fallback); n > upstream.FallbacksMax {
		return fmt.Errorf("got %d models, want at most %d", n, upstream.FallbacksMax)
	}
	known := []string{upstream.ScriptName}
	for other := range c.Models {
		known = append(known, other)
	}
	slices.Sort(known)
	for i, other := range m.Fallback {
		o, configured := c.Models[other]
		switch {
		case other == name:
			return fmt.Errorf("%s is the model itself; remove it", other)
		case slices.Contains(m.Fallback[:i], other):
			return fmt.Errorf("%s is there twice", other)
		case !slices.Contains(known, other):
			if near := nearest.Of(other, known); near != "" {
				return fmt.Errorf("%.80q is no model; did you mean %s?", other, near)
			}
			return fmt.Errorf("%.80q is no model; want some of %s", other, strings.Join(known[:min(len(known), 20)], ", "))
		case (m.PriceInput == nil) != (o.PriceInput == nil):
			if !configured {
				return fmt.Errorf("%s has no price, and %s has one: choose another model", other, name)
			}
			return fmt.Errorf("give both %s and %s prices, or none: an answer of either counts for the budget", name, other)
		}
	}
	return nil
}
