// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
)

const sampleModule = `VARIABLES x, y, flt
Min(a, b) == IF a < b THEN a ELSE b
Init == x = 0 /\ y = 0
  /\ flt = 0
Set(n) == x' = n
Near(n) == n < 3

Go(n) ==                  \* a comment with a bound < 7
  /\ x = 0 /\ (y > 1 \/ x < 2) /\ Near(n)
  /\ flt < MaxFault
  /\ n > 0 \/ Bug = "zero"
  /\ Bug = "other" /\ n < 9
  /\ Set(Min(n, 5))
  /\ y' = @ + 1 /\ z' = 4
  /\ IF n = 1
     THEN x > 5 ELSE TRUE
  /\ Post({Msg("req", n)})
Next == Go(1)
`

func TestMutationsOfModule(t *testing.T) {
	var got []string
	for _, m := range mutationsOf("M", sampleModule) {
		got = append(got, m.operator+": "+m.is)
		changed := 0
		for i, line := range strings.Split(m.text, "\n") {
			if line != strings.Split(sampleModule, "\n")[i] {
				changed++
			}
		}
		if changed != 1 {
			t.Errorf("%v changes %d lines", m, changed)
		}
	}
	want := []string{
		`move bound: Near(n) == n <= 3`,
		`drop guard: /\ (y > 1 \/ x < 2) /\ Near(n)`,
		`drop guard: /\ x = 0 /\ Near(n)`,
		`drop guard: /\ x = 0 /\ (y > 1 \/ x < 2)`,
		`move bound: /\ x = 0 /\ (y >= 1 \/ x < 2) /\ Near(n)`,
		`move bound: /\ x = 0 /\ (y > 1 \/ x <= 2) /\ Near(n)`,
		`move bound: /\ n >= 0 \/ Bug = "zero"`,
		`swap Min and Max: /\ Set(Max(n, 5))`,
		`omit update: /\ y' = y /\ z' = 4`,
		`change step: /\ y' = @ /\ z' = 4`,
		`move bound: THEN x >= 5 ELSE TRUE`,
		`drop guard: /\ TRUE`,
		`omit message: /\ Post({})`,
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The seed determines the mutations. None is drawn twice.
func TestMutationsAreDrawnBySeed(t *testing.T) {
	texts := map[string]string{}
	for _, module := range []string{"Calls", "Log", "Waits", "Work"} {
		texts[module] = read(t, module+".tla")
	}
	draw := func(seed uint64) string {
		drawn, err := drawMutations(texts, 60, seed)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, m := range drawn {
			if slices.Contains(all, m.String()) {
				t.Errorf("%v is drawn twice", m)
			}
			if m.text == texts[m.module] {
				t.Errorf("%v changes nothing", m)
			}
			all = append(all, m.String())
		}
		return strings.Join(all, "\n")
	}
	first := draw(1)
	if draw(1) != first || draw(2) == first {
		t.Error("the seed does not determine the mutations")
	}
	if _, err := drawMutations(map[string]string{"M": sampleModule}, 60, 1); err == nil {
		t.Error("a small module has 60 mutations")
	}
}

// The models with the fewest states come first, and goals last. No model has more states than
// allowed.
func TestSmallConfigsFirst(t *testing.T) {
	found := map[string]figures{}
	all := []Config{{Name: "M_big", Module: "M"}, {Name: "M_two", Module: "M"}, {Name: "M_one", Module: "M"}, {Name: "N_x", Module: "N"},
		{Name: "M_b", Module: "M", Expect: Expectation{Violates, "P"}}, {Name: "M_Not_g", Module: "M", Expect: Expectation{Reaches, "Not_g"}}}
	for i, states := range []int{100, 20, 10, 1, 1, 1} {
		found[rowKey(all[i])] = figures{distinct: states}
	}
	var names []string
	for _, c := range smallConfigs(all, found, "M", 50) {
		names = append(names, c.Name)
	}
	if want := []string{"M_one", "M_two", "M_Not_g"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}
