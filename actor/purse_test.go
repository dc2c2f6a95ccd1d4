// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"testing"

	"pgregory.net/rapid"
)

func purse(tokens, micros int64) *Purse { return &Purse{Tokens: tokens, Micros: micros} }

func TestPurse(t *testing.T) {
	for _, test := range []struct {
		name      string
		got, want *Purse
	}{
		{"less", purse(10, 20).Less(purse(3, 4)), purse(7, 16)},
		{"less than there is", purse(10, 20).Less(purse(30, 4)), purse(0, 16)},
		{"less of what is not limited", purse(10, NoLimit).Less(purse(3, 4)), purse(7, NoLimit)},
		{"less an amount without a limit", purse(10, 20).Less(purse(3, NoLimit)), purse(7, 20)},
		{"plus a negative amount", purse(10, 20).Plus(purse(-30, 4)), purse(-20, 24)},
		{"less what a negative one has not", purse(-20, 20).Less(purse(3, 4)), purse(-20, 16)},
		{"part of a negative one", purse(-20, 20).Part(2, nil), purse(0, 10)},
		{"any", (*Purse)(nil).Less(purse(1, 1)), nil},
		{"less nothing", purse(10, 20).Less(nil), purse(10, 20)},
		{"part", purse(10, NoLimit).Part(3, purse(1, 1)), purse(3, NoLimit)},
		{"capped", purse(10, NoLimit).Capped(purse(NoLimit, 5)), purse(10, 5)},
		{"capped, any", (*Purse)(nil).Capped(purse(1, 2)), purse(1, 2)},
		{"empty", purse(10, NoLimit).Empty(), purse(0, NoLimit)},
		{"left", purse(10, NoLimit).Left(Usage{Total: 12, Cost: 5}), purse(-2, NoLimit)},
	} {
		if (test.got == nil) != (test.want == nil) || test.got != nil && *test.got != *test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, test.got, test.want)
		}
	}
	if !purse(10, 0).Covers(*purse(10, 0)) || purse(10, 0).Covers(*purse(10, 1)) || !(*Purse)(nil).Covers(*purse(1, 1)) {
		t.Error("Covers")
	}
}

// Parts together are never more than the purse, and nothing changes a purse that somebody holds.
func TestPartsOfPurse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64Range(0, UsageMax)
		p, keep := purse(amount.Draw(t, "tokens"), amount.Draw(t, "micros")), purse(amount.Draw(t, "kept tokens"), amount.Draw(t, "kept micros"))
		before, n := *p, rapid.IntRange(1, 10).Draw(t, "n")
		part := p.Part(n, keep)
		left := p
		for range n {
			if !left.Covers(*part) {
				t.Fatalf("%d parts of %+v are more than it", n, before)
			}
			left = left.Less(part)
		}
		if *p != before {
			t.Fatal("the purse has changed")
		}
	})
}

// A purse that was written can be read, whatever a model reports and a person adds.
func TestPursesCanBeRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.OneOf(rapid.Int64Range(-UsageMax, UsageMax), rapid.SampledFrom([]int64{-UsageMax, UsageMax, NoLimit}))
		draw := func(name string) *Purse { return purse(amount.Draw(t, name), amount.Draw(t, name)) }
		count := rapid.OneOf(rapid.Int64Range(0, UsageMax), rapid.Just(int64(UsageMax)))
		p, other := draw("purse"), draw("other")
		spent := Usage{Input: count.Draw(t, "input"), Output: count.Draw(t, "output"), Cost: count.Draw(t, "cost")}
		for name, got := range map[string]*Purse{"less": p.Less(other), "plus": p.Plus(other), "empty": p.Empty(),
			"part": p.Part(rapid.IntRange(0, 9).Draw(t, "n"), other), "capped": p.Capped(other), "left": p.Left(spent)} {
			var e Encoder
			e.Purse(got)
			d := NewDecoder(e.Buf)
			if read := d.Purse(); d.End() != nil || *read != *got {
				t.Errorf("%s of %+v and %+v, %+v: %+v is read as %+v: %v", name, p, other, spent, got, read, d.End())
			}
		}
	})
}
