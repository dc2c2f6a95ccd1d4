// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Check warns of budgets that would refuse each request, or that another one makes smaller, and of no others.
func TestCheckWarnsOfBudgets(t *testing.T) {
	const models = "[models.big]\nurl = \"https://example.com/v1\"\nprice_input = 1\nprice_output = 2\n" +
		"[models.free]\nurl = \"https://example.com/v1\"\nprice_input = 0\nprice_output = 0\n" +
		"[models.plain]\nurl = \"https://example.com/v1\"\n"
	const noPrice = "model plain has no price, so each request to it "
	for _, c := range []struct {
		name, budget, agent string
		want                []string
	}{
		{"no budget", "", "model = \"plain\"", nil},
		{"tokens need no price", "[budget]\ntree_tokens = 1000", "model = \"plain\"", nil},
		{"a price", "[budget]\ntree_money = 1", "model = \"big\"", nil},
		{"a price of 0", "[budget]\ntree_money = 1", "model = \"free\"", nil},
		{"no price", "[budget]\ntree_money = 1", "model = \"plain\"", []string{"a.toml: warning: model: tree_money in [budget] bounds money, and " + noPrice + "is refused; set price_input and price_output in [models.plain]"}},
		{"no price, ask", "[budget]\ntree_money = 1\nat_limit = \"ask\"", "model = \"plain\"", []string{noPrice + "waits for an operator"}},
		{"no price for a day", "[budget]\nuser_money_per_day = 1", "model = \"plain\"", []string{"user_money_per_day in [budget] bounds money, and " + noPrice}},
		{"no such model", "[budget]\ntree_money = 1", "model = \"lost\"", []string{"the configuration has no model lost"}},
		{"the agent's own", "", "model = \"plain\"\nbudget.money = 0.5", []string{"the budget of the agent bounds money, and " + noPrice}},
		{"scripted costs nothing", "[budget]\ntree_money = 1", "model = \"scripted\"", nil},
		{"as much as the tree", "[budget]\ntree_tokens = 1000\ntree_money = 0.5", "model = \"big\"\nbudget.tokens = 1000\nbudget.money = 0.5", nil},
		{"more than the tree", "[budget]\ntree_tokens = 1000\ntree_money = 0.5", "model = \"big\"\nbudget.tokens = 1001\nbudget.money = 0.500001",
			[]string{"budget.tokens: 1001 is more than tree_tokens in [budget], 1000, which bounds", "budget.money: 0.500001 is more than tree_money in [budget], 0.50, which bounds"}},
		{"more than a day", "[budget]\nuser_tokens_per_day = 1000", "model = \"big\"\nbudget.tokens = 2000", []string{"budget.tokens: 2000 is more than user_tokens_per_day in [budget], 1000"}},
		{"more in the other kind", "[budget]\ntree_tokens = 1000", "model = \"big\"\nbudget.money = 100", nil},
	} {
		files := writeFiles(t, ">> a.toml\nname = \"a\"\nprompt = \"x\"\n"+c.agent)
		config := filepath.Join(t.TempDir(), "troupe.toml")
		if err := os.WriteFile(config, []byte(c.budget+"\n"+models), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := runProgram(t, "check", files, "--config", config)
		if code != 0 || len(c.want) == 0 && out != "" {
			t.Errorf("%s: exit code %d, %s%s", c.name, code, out, errs)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s%s", c.name, want, out, errs)
			}
		}
		if lines := strings.Count(out, "\n"); c.name == "more than the tree" && lines != 2 || len(c.want) == 1 && lines != 1 {
			t.Errorf("%s: %d warnings\n%s", c.name, lines, out)
		}
	}
}
