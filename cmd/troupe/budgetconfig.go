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
	UserTokens *int64   `toml:"user_tokens_per_day"`
	UserMoney  *float64 `toml:"user_money_per_day"`
	Messages   *int64   `toml:"user_messages_per_day"`
	AtLimit    string   `toml:"at_limit"`
}

// budgetFields are the fields of the table budget.
var budgetFields = []string{"tree_tokens", "tree_money", "user_tokens_per_day", "user_money_per_day", "user_messages_per_day", "at_limit"}

// The values of at_limit.
const (
	atLimitFail = "fail"
	atLimitAsk  = "ask"
)

// read returns the settings of the table.
func (t *budgetTable) read() (b node.Budget, err error) {
	if b.Tree, err = readPurse("tree_tokens", t.TreeTokens, "tree_money", t.TreeMoney); err != nil {
		return b, err
	}
	if b.Day, err = readPurse("user_tokens_per_day", t.UserTokens, "user_money_per_day", t.UserMoney); err != nil {
		return b, err
	}
	if t.Messages != nil {
		if b.Messages = *t.Messages; b.Messages < 1 {
			return b, fmt.Errorf("user_messages_per_day: got %d, want a number of messages from 1", b.Messages)
		}
	}
	switch t.AtLimit {
	case "", atLimitFail:
	case atLimitAsk:
		b.Ask = true
	default:
		return b, fmt.Errorf("at_limit: got %.40q, want %q or %q", t.AtLimit, atLimitFail, atLimitAsk)
	}
	if b.Tree == nil && b.Day == nil && t.AtLimit != "" {
		return b, fmt.Errorf("at_limit: there is no limit; set tree_tokens, tree_money, user_tokens_per_day or user_money_per_day")
	}
	return b, nil
}

// readPurse returns the purse in two fields, or nil if none is set.
func readPurse(tokensField string, tokens *int64, moneyField string, money *float64) (p *actor.Purse, err error) {
	if tokens == nil && money == nil {
		return nil, nil
	}
	p = &actor.Purse{Tokens: actor.NoLimit, Micros: actor.NoLimit}
	if tokens != nil {
		if p.Tokens = *tokens; p.Tokens < 1 || p.Tokens > actor.UsageMax {
			return nil, fmt.Errorf("%s: got %d, want a number of tokens from 1", tokensField, p.Tokens)
		}
	}
	if money != nil {
		if p.Micros, err = actor.ParseMoney(*money); err != nil {
			return nil, fmt.Errorf("%s: %w", moneyField, err)
		}
	}
	return p, nil
}
