// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/node"
)

// micros is a purse without a limit of tokens.
func micros(n int64) *actor.Purse { return &actor.Purse{Tokens: actor.NoLimit, Micros: n} }

func TestConfigBudget(t *testing.T) {
	for _, c := range []struct {
		text, err string
		want      node.Budget
	}{
		{"", "", node.Budget{}},
		{"tree_tokens = 500000", "", node.Budget{Tree: &actor.Purse{Tokens: 500_000, Micros: actor.NoLimit}}},
		{"tree_money = 0.45\nat_limit = \"ask\"", "", node.Budget{Tree: &actor.Purse{Tokens: actor.NoLimit, Micros: 450_000}, Ask: true}},
		{"user_money_per_day = 20\ntree_money = 2\nat_limit = \"ask\"", "", node.Budget{Tree: micros(2_000_000), Day: micros(20_000_000), Ask: true}},
		{"user_tokens_per_day = 5000", "", node.Budget{Day: &actor.Purse{Tokens: 5000, Micros: actor.NoLimit}}},
		{"user_tokens_per_day = 0", "budget.user_tokens_per_day: got 0, want a number of tokens from 1", node.Budget{}},
		{"user_messages_per_day = 500", "", node.Budget{Messages: 500}},
		{"user_messages_per_day = 0", "budget.user_messages_per_day: got 0, want a number of messages from 1", node.Budget{}},
		{"user_messages_per_day = \"5\"", "budget.user_messages_per_day", node.Budget{}},
		{"user_messages_per_day = 5\nat_limit = \"ask\"", "budget.at_limit: there is no limit", node.Budget{}},
		{"user_money_per_day = -0.5", "budget.user_money_per_day: got -0.5, want an amount from 0", node.Budget{}},
		{"tree_tokens = 0", "budget.tree_tokens: got 0, want a number of tokens from 1", node.Budget{}},
		{"tree_tokens = -5", "budget.tree_tokens", node.Budget{}},
		{"tree_money = -1", "budget.tree_money: got -1, want an amount from 0", node.Budget{}},
		{"tree_money = 1e300", "budget.tree_money", node.Budget{}},
		{"tree_money = nan", "budget.tree_money", node.Budget{}},
		{"tree_money = \"2 USD\"", "tree_money", node.Budget{}},
		{"tree_tokens = 5\nat_limit = \"stop\"", "budget.at_limit: got \"stop\", want \"fail\" or \"ask\"", node.Budget{}},
		{"at_limit = \"ask\"", "budget.at_limit: there is no limit; set tree_tokens, tree_money, user_tokens_per_day or user_money_per_day", node.Budget{}},
		{"tree_mony = 1", "budget.tree_mony is unknown; did you mean tree_money", node.Budget{}},
	} {
		path := filepath.Join(t.TempDir(), "troupe.toml")
		if err := os.WriteFile(path, []byte("[budget]\n"+c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		config, err := readConfig(path)
		if err != nil || c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v, want %q", c.text, err, c.err)
			}
			continue
		}
		got := config.Budget
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v", c.text, got)
		}
	}
}
