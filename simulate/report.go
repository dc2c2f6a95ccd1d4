// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/sim"
)

// printedMax is the maximum number of printed lines of one kind.
const printedMax = 20

// Print writes a report of the result. The function command returns the command that
// reproduces one seed; it may be nil.
func (r *Result) Print(out io.Writer, command func(seed uint64) string) {
	t := &r.Total
	fmt.Fprintf(out, "%d simulations from seed %d, %d steps\n", r.Seeds, r.first, r.Steps)
	fmt.Fprintf(out, "%d client requests: %d succeeded, %d partially, %d refused, %d held, %d without an answer\n",
		t.Asked, t.Succeeded, t.Partial, t.Refused, t.Held, t.Unanswered)
	fmt.Fprintf(out, "maximum call depth %d, maximum concurrent calls %d\n", t.Depth, t.FanOut)
	slices.SortStableFunc(t.Refusals, func(a, b sim.RefusalCount) int { return cmp.Compare(b.Count, a.Count) })
	for i, c := range t.Refusals {
		if i == 0 {
			fmt.Fprintf(out, "\n%8s  %-12s %-8s %-30s %s\n", "refusals", "reason", "scope", "call", "first")
		}
		if i == printedMax {
			fmt.Fprintf(out, "%8s  and %d more kinds\n", "", len(t.Refusals)-i)
			break
		}
		fmt.Fprintf(out, "%8d  %-12s %-8s %-30s %.160s\n", c.Count, c.Reason, c.Scope, textOr(c.Caller, "client")+" → "+c.Agent, oneLine(c.FirstExample))
	}
	if len(r.Faults) > 0 {
		var all []string
		for _, f := range r.Faults {
			all = append(all, fmt.Sprintf("%s %d", f.Fault, f.Times))
		}
		fmt.Fprintf(out, "\nfaults with an effect: %s\n", strings.Join(all, ", "))
	}
	for i, unfinished := range t.Unfinished {
		if i == 0 {
			fmt.Fprintf(out, "\nunfinished at the end:\n")
		}
		if i == printedMax {
			fmt.Fprintf(out, "  and %d more\n", len(t.Unfinished)-i)
			break
		}
		fmt.Fprintf(out, "  %s\n", unfinished)
	}
	if r.OK() {
		fmt.Fprintf(out, "\nok: no rule of the runtime was broken, and all was as expected\n")
		return
	}
	var printed []string
	for i, f := range r.Failures {
		if slices.Contains(printed, f.Property) {
			continue
		}
		printed = append(printed, f.Property)
		var seeds []string
		for _, o := range r.Failures[i:] {
			if o.Property == f.Property {
				seeds = append(seeds, fmt.Sprint(o.Seed))
			}
		}
		scope := fmt.Sprintf("in %d of %d simulations", len(seeds), r.Seeds)
		if f.Aggregate {
			scope = fmt.Sprintf("over %d simulations", r.Seeds)
			seeds[0] += " (the worst)"
		}
		fmt.Fprintf(out, "\nFAILED %s: %s\n", scope, f.Property)
		if len(seeds) > printedMax {
			seeds = append(seeds[:printedMax], "…")
		}
		fmt.Fprintf(out, "  seeds %s\n  seed %d: %s\n", strings.Join(seeds, ", "), f.Seed, oneLine(f.Detail))
		if f.Dir != "" {
			fmt.Fprintf(out, "  %s/page.html shows the shortest failing run\n", f.Dir)
		}
		if command != nil {
			fmt.Fprintf(out, "  %s\n", command(f.Seed))
		}
	}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// TB is the subset of *testing.T that Test needs.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Test runs the team as part of a test. The test fails if a rule or an expectation
// is violated, and its log names the violation and the seed.
func Test(tb TB, team *Team, o Options) *Result {
	tb.Helper()
	r, err := Run(team, o)
	if err != nil {
		tb.Fatalf("%v", err)
		return nil
	}
	var b strings.Builder
	r.Print(&b, nil)
	if !r.OK() {
		tb.Fatalf("%s", b.String())
	} else {
		tb.Logf("%s", b.String())
	}
	return r
}
