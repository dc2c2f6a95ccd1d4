// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"testing"

	"github.com/troupe-run/troupe/signals"
)

// A mistake in what is added to a budget names the member, over HTTP and the channel alike.
func TestDecisionNamesMembersOfRaise(t *testing.T) {
	for _, c := range []struct{ raise, field, detail string }{
		{`{"tokens":"x"}`, "raise.tokens", "raise.tokens: wrong JSON type"},
		{`{"tokens":1.5}`, "raise.tokens", "raise.tokens: wrong JSON type"},
		{`{"tokens":99999999999999999999}`, "raise.tokens", "raise.tokens: wrong JSON type"},
		{`{"tokens":true}`, "raise.tokens", "raise.tokens: wrong JSON type"},
		{`{"tokens":-1}`, "raise.tokens", "raise.tokens: got -1, want a number of tokens from 0"},
		{`{"money":"5"}`, "raise.money", "raise.money: wrong JSON type"},
		{`{"money":-0.01}`, "raise.money", "raise.money: got -0.01, want an amount from 0 to 1000000000"},
		{`{"money":1e300}`, "raise.money", "raise.money: got 1e+300, want an amount from 0 to 1000000000"},
		{`{"money":0.0000001}`, "raise.money", "raise.money: got 1e-07, want at most 6 decimals"},
		{`{"mony":5}`, "raise.mony", "raise.mony: is unknown; did you mean money? want tokens, money"},
		{`{"cost":{"a":1}}`, "raise.cost", "raise.cost: is unknown; want tokens, money"},
		{`5`, "raise", "raise: wrong JSON type"},
		{`[1]`, "raise", "raise: wrong JSON type"},
		{`{}`, "raise", "raise: want tokens or money above 0; without raise the budget gets as much again as a tree has"},
		{`{"tokens":0,"money":0}`, "raise", "raise: want tokens or money above 0; without raise the budget gets as much again as a tree has"},
	} {
		_, r := DecodeDecision([]byte(`{"decision":"approve","raise":` + c.raise + `}`))
		if r == nil || r.Field != c.field || r.Detail != c.detail {
			t.Errorf("%s: got %+v, want %s", c.raise, r, c.detail)
		}
		_, r = decodeDecision([]byte(`{"type":"approval_decision","approval_id":"ap_01a22d50-89fe-7ef8-98e6-5640f131d178.1.0","decision":"approve","raise":` + c.raise + `}`))
		if r == nil || r.Field != c.field || r.Detail != c.detail {
			t.Errorf("channel, %s: got %+v, want %s", c.raise, r, c.detail)
		}
	}
	if _, r := DecodeDecision([]byte(`{"decision":"reject","raise":{"tokens":1}}`)); r == nil || r.Field != "raise" {
		t.Errorf("a rejection that raises: %+v", r)
	}
	const both = `"decision":"approve","raise":{"tokens":7,"money":0.5}}`
	want := signals.Raise{Tokens: 7, Micros: 500_000}
	if d, r := DecodeDecision([]byte(`{` + both)); r != nil || *d.Raise != want {
		t.Errorf("%+v, %v", d.Raise, r)
	}
	if d, r := decodeDecision([]byte(`{"type":"approval_decision","approval_id":"ap_01a22d50-89fe-7ef8-98e6-5640f131d178.1.0",` + both)); r != nil || *d.Decision.Raise != want {
		t.Errorf("channel: %+v, %v", d.Decision.Raise, r)
	}
}
