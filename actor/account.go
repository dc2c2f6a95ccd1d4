// SPDX-License-Identifier: Apache-2.0

package actor

// Account is what the trees of runs of a user have drawn from the budget of a day and not returned.
//
// A tree draws its purse before it can spend anything, and returns the rest at its end. What the trees of a day spend,
// also those that run at the same time, is therefore never more than its budget and what people have added.
type Account struct {
	Drawn    Purse // of the kinds that the budget limits; Day is the latest on which something was drawn
	Messages int64 // that have drawn on that day
}

// The operations of an account. Call.Purse is the amount.
const (
	OpDraw   = "draw"   // the answer is the purse that was granted
	OpReturn = "return" // what is left of it
)

// MediaPurse is the media type of an encoded purse.
const MediaPurse = "application/vnd.troupe.purse"

// Draw takes what is left of the budget of a day, at most the amount that is wanted, and returns it. A tree that began on
// the day before the last draw draws from the later one. If the last draw was later than that, a clock was ahead. It reports
// false if as many messages as are allowed on a day have drawn; 0 allows any number.
func (a *Account) Draw(want, budget *Purse, messages int64) (granted *Purse, ok bool) {
	if want.Day > a.Drawn.Day || want.Day < a.Drawn.Day-1 {
		*a = Account{Drawn: Purse{Day: want.Day}}
	}
	if messages > 0 && a.Messages >= messages {
		return nil, false
	}
	a.Messages++
	take := func(drawn *int64, want, budget int64) int64 {
		if budget == NoLimit {
			return want
		}
		granted := max(min(want, budget-*drawn), 0)
		*drawn += granted
		return granted
	}
	return &Purse{take(&a.Drawn.Tokens, want.Tokens, budget.Tokens), take(&a.Drawn.Micros, want.Micros, budget.Micros), a.Drawn.Day}, true
}

// Return gives back what is left of a purse. It is negative if more was spent. The rest of a purse of an earlier day
// changes nothing.
func (a *Account) Return(rest *Purse) {
	if rest.Day != a.Drawn.Day {
		return
	}
	give := func(drawn *int64, rest int64) {
		if rest != NoLimit {
			*drawn = max(inRange(*drawn-rest), 0)
		}
	}
	give(&a.Drawn.Tokens, rest.Tokens)
	give(&a.Drawn.Micros, rest.Micros)
}

// EncodePurse returns a purse that is not nil for DecodePurse.
func EncodePurse(p *Purse) []byte {
	var e Encoder
	e.Purse(p)
	return e.Buf
}

// DecodePurse reads a purse.
func DecodePurse(b []byte) (*Purse, error) {
	d := NewDecoder(b)
	p := d.Purse()
	return p, d.End()
}
