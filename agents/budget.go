// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"github.com/troupe-run/troupe/actor"
)

// SpecBudget is what a run of an agent and the runs below it may spend on models; nil: as much as the caller gives. The report is the part
// that its calls are not given.
type SpecBudget struct {
	Tokens       *int64   `json:"tokens,omitzero"`
	Money        *float64 `json:"money,omitzero"` // in the currency of the server
	ReportTokens *int64   `json:"report_tokens,omitzero"`
	ReportMoney  *float64 `json:"report_money,omitzero"`
}

// moneyMax is the largest amount of money of a spec.
const moneyMax = actor.MoneyMax / actor.Micro

// purse returns an amount, nil if neither is given.
func purseOf(tokens *int64, money *float64) *actor.Purse {
	if tokens == nil && money == nil {
		return nil
	}
	p := &actor.Purse{Tokens: actor.NoLimit, Micros: actor.NoLimit}
	if tokens != nil {
		p.Tokens = *tokens
	}
	if money != nil {
		p.Micros, _ = actor.ParseMoney(*money) // the field was checked
	}
	return p
}

// purses returns the purse of a run and the part that its calls are not given.
func (b *SpecBudget) purses() (purse, report *actor.Purse) {
	return purseOf(b.Tokens, b.Money), purseOf(b.ReportTokens, b.ReportMoney)
}
