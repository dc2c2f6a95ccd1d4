// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
)

func TestSpecBudget(t *testing.T) {
	for _, c := range []struct {
		text, err       string
		purse, reserved *actor.Purse
	}{
		{"", "", nil, nil},
		{"budget = { money = 0.50 }", "", &actor.Purse{Tokens: actor.NoLimit, Micros: 500_000}, nil},
		{"[budget]\ntokens = 9000\nmoney = 2\nreport_tokens = 0\nreport_money = 0.000001", "", &actor.Purse{Tokens: 9000, Micros: 2_000_000}, &actor.Purse{Micros: 1}},
		{"[budget]\nreport_tokens = 100", "", nil, &actor.Purse{Tokens: 100, Micros: actor.NoLimit}},
		{"[budget]\ntokens = 0", "budget.tokens: 0: want 1 to", nil, nil},
		{"[budget]\ntokens = 1.5", "budget.tokens: want a whole number", nil, nil},
		{"[budget]\nmoney = -1", "budget.money", nil, nil},
		{"[budget]\nmoney = 0.0000001", "budget.money: got 1e-07, want at most 6 decimals", nil, nil},
		{"[budget]\nmoney = nan", "budget.money", nil, nil},
		{"[budget]\nmoney = \"1 euro\"", "budget.money: want a number", nil, nil},
		{"[budget]\ndollars = 1", "budget.dollars", nil, nil},
	} {
		spec, err := agents.ReadTOML("agent_id = \"front\"\n" + c.text)
		if err != nil || c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v, want %q", c.text, err, c.err)
			}
			continue
		}
		def, err := agents.Compile(spec, tools.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		same := func(a, b *actor.Purse) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
		if !same(def.Purse, c.purse) || !same(def.Reserve, c.reserved) {
			t.Errorf("%s: got %+v and %+v", c.text, def.Purse, def.Reserve)
		}
	}
}
