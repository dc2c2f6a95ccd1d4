// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/node"
)

// budgetTable is the table budget of a configuration.
type budgetTable struct {
	TreeTokens *int64   `toml:"tree_tokens"`
	TreeMoney  *float64 `toml:"tree_money"`
	AtLimit    string   `toml:"at_limit"`
}

// budgetFields are the fields of the table budget.
var budgetFields = []string{"tree_tokens", "tree_money", "at_limit"}

// The values of at_limit.
const (
	atLimitFail = "fail"
	atLimitAsk  = "ask"
)

// read returns the settings of the table.
func (t *budgetTable) read() (b node.Budget, err error) {
	if t.TreeTokens != nil || t.TreeMoney != nil {
		b.Tree = &actor.Purse{Tokens: actor.NoLimit, Micros: actor.NoLimit}
	}
	if t.TreeTokens != nil {
		if b.Tree.Tokens = *t.TreeTokens; b.Tree.Tokens < 1 || b.Tree.Tokens > actor.UsageMax {
			return b, fmt.Errorf("tree_tokens: got %d, want a number of tokens from 1", b.Tree.Tokens)
		}
	}
	if t.TreeMoney != nil {
		if b.Tree.Micros, err = actor.ParseMoney(*t.TreeMoney); err != nil {
			return b, fmt.Errorf("tree_money: %w", err)
		}
	}
	switch t.AtLimit {
	case "", atLimitFail:
	case atLimitAsk:
		b.Ask = true
	default:
		return b, fmt.Errorf("at_limit: got %.40q, want %q or %q", t.AtLimit, atLimitFail, atLimitAsk)
	}
	if b.Tree == nil && t.AtLimit != "" {
		return b, fmt.Errorf("at_limit: there is no limit; set tree_tokens or tree_money")
	}
	return b, nil
}
