// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/runtime"
)

// Budget is what runs may spend on models. The zero value is any amount.
type Budget struct {
	Tree *actor.Purse // a run that a client has begun, and all runs below it; nil: any amount
	Day  *actor.Purse // what a user has begun on a day, likewise
	// Messages is the number of messages that a user may send on a day; 0: any number.
	Messages int64
	Ask      bool // a request beyond the budget waits for a person instead of being refused
}

func (b *Budget) spending(o *outbound.Outbound, c *outbound.Config) runtime.Spending {
	return runtime.Spending{Tree: b.Tree, Day: b.day(), Ask: b.Ask, Models: o.Costs(), Currency: cmp.Or(c.Currency, outbound.DefaultCurrency)}
}

// day returns what the runs of a user draw from on a day; nil if nothing limits them.
func (b *Budget) day() *actor.Purse {
	if b.Day == nil && b.Messages > 0 {
		return &actor.Purse{Tokens: actor.NoLimit, Micros: actor.NoLimit}
	}
	return b.Day
}
