// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/node"
)

func TestConfigBudget(t *testing.T) {
	for _, c := range []struct {
		text, err string
		want      node.Budget
	}{
		{"", "", node.Budget{}},
		{"tree_tokens = 500000", "", node.Budget{Tree: &actor.Purse{Tokens: 500_000, Micros: actor.NoLimit}}},
		{"tree_money = 0.45\nat_limit = \"ask\"", "", node.Budget{Tree: &actor.Purse{Tokens: actor.NoLimit, Micros: 450_000}, Ask: true}},
		{"tree_tokens = 0", "budget.tree_tokens: got 0, want a number of tokens from 1", node.Budget{}},
		{"tree_tokens = -5", "budget.tree_tokens", node.Budget{}},
		{"tree_money = -1", "budget.tree_money: got -1, want an amount from 0", node.Budget{}},
		{"tree_money = 1e300", "budget.tree_money", node.Budget{}},
		{"tree_money = nan", "budget.tree_money", node.Budget{}},
		{"tree_money = \"2 USD\"", "tree_money", node.Budget{}},
		{"tree_tokens = 5\nat_limit = \"stop\"", "budget.at_limit: got \"stop\", want \"fail\" or \"ask\"", node.Budget{}},
		{"at_limit = \"ask\"", "budget.at_limit: there is no limit; set tree_tokens or tree_money", node.Budget{}},
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
		if got.Ask != c.want.Ask || (got.Tree == nil) != (c.want.Tree == nil) || got.Tree != nil && *got.Tree != *c.want.Tree {
			t.Errorf("%s: got %+v", c.text, got)
		}
	}
}
