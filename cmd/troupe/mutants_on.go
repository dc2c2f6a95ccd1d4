// SPDX-License-Identifier: Apache-2.0

//go:build mutants

package main

import (
	"bufio"
	"fmt"
	"runtime/debug"

	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/sim"
	"github.com/troupe-run/troupe/specs"
)

// mutantsCLI is the command that only this build has.
type mutantsCLI struct {
	Mutants MutantsCmd `cmd:"" help:"Remove each guard in turn; the simulator must notice."`
}

// MutantsCmd removes one guard at a time and has the simulator look for it.
type MutantsCmd struct {
	Seeds int      `default:"1000" help:"In how many seeds each must be found, and how many the whole program must pass."`
	Only  []string `help:"Only these mutants. Repeatable."`
}

// guards is each mutant with the spec that must find it.
var guards = []struct{ name, spec string }{
	{"cycle-check", specs.AcyclicCalls},
	{"self-call", specs.AcyclicCalls},
	{"depth-check", specs.DepthBounded},
	{"chain-dropped-on-retry", specs.AcyclicCalls},
	{"time-left-shrinks", specs.TimeLeftShrinks},
	{"clamp", specs.TimeLeftShrinks},
	{"target-exists-check", specs.StartsOnlyKnown},
	{"outstanding-limit", specs.OutstandingBounded},
	{"outstanding-not-released", specs.OutstandingBounded},
	{"unbounded-mailbox", specs.MailboxBounded},
	{"effect-before-its-gate", specs.AckedIsDurable},
	{"released-at-written", specs.AckedIsDurable},
	{"reply-delivered-twice", specs.OneAnswer},
	{"late-reply-delivered", specs.OneAnswer},
	{"reply-to-another", specs.ReplyToCallerOnly},
	{"old-epoch", specs.SingleActivation},
	{"cancel-not-passed-down", specs.Structured},
	{"restart-forgets-open-call", specs.EveryCallEnds},
	{"unanswered-call-not-sent-again", specs.EveryCallEnds},
	{"dedup-forgotten", specs.EffectOncePerAttempt},
	{"accepted-not-journaled", specs.AckedIsDurable},
	{"held-ignored", specs.ExpireOnlyWhenDue},
	{"gate-skipped-for-taint", specs.AckedIsDurable},
}

// Run implements the command.
func (c *MutantsCmd) Run(s streams) error {
	debug.SetGCPercent(400)
	out := bufio.NewWriter(s.out)
	defer out.Flush()
	missed := 0
	if len(c.Only) == 0 {
		mutant.Now = ""
		var sum sim.Summary
		sim.Many(1, c.Seeds, c.run, func(r sim.Result) bool {
			sum.Add(r)
			return r.Broken == nil
		})
		if len(sum.Failed) > 0 {
			fmt.Fprintf(out, "unmutated: seed %d FAILED %v\n", sum.Failed[0].Seed, sum.Failed[0].Broken)
			return exit(failed)
		}
		fmt.Fprintf(out, "unmutated: %d seeds ok\n", sum.Seeds)
	}
	fmt.Fprintf(out, "%-32s %-22s %6s  %s\n", "mutant", "spec", "seed", "what it says")
	for _, g := range guards {
		if !c.wants(g.name) {
			continue
		}
		out.Flush()
		mutant.Now = g.name
		found, others := c.find(g.spec)
		if found == nil {
			missed++
			fmt.Fprintf(out, "%-32s %-22s %6s  found by others: %v\n", g.name, g.spec, "MISSED", others)
			continue
		}
		fmt.Fprintf(out, "%-32s %-22s %6d  %s\n", g.name, g.spec, found.Seed, firstLine(found.Broken.Detail))
	}
	mutant.Now = ""
	if missed > 0 {
		fmt.Fprintf(out, "%d mutants missed\n", missed)
		return exit(failed)
	}
	fmt.Fprintln(out, "every mutant found")
	return nil
}

func (c *MutantsCmd) run(seed uint64) sim.Result { return sim.RunSeed(sim.Options{Seed: seed}) }

// find is the first seed in which the spec itself is broken, and what else was
// broken on the way.
func (c *MutantsCmd) find(spec string) (found *sim.Result, others map[string]int) {
	others = map[string]int{}
	sim.Many(1, c.Seeds, c.run, func(r sim.Result) bool {
		if r.Broken != nil && r.Broken.Spec == spec {
			found = &r
			return false
		}
		if r.Broken != nil {
			others[r.Broken.Spec]++
		}
		return true
	})
	return found, others
}

func (c *MutantsCmd) wants(name string) bool {
	for _, only := range c.Only {
		if only == name {
			return true
		}
	}
	return len(c.Only) == 0
}

func firstLine(text string) string {
	for i, r := range text {
		if r == '\n' {
			return text[:i]
		}
	}
	return text
}
