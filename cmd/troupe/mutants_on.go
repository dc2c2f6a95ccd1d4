// SPDX-License-Identifier: Apache-2.0

//go:build mutants

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/sim"
)

// mutantsOption adds the commands mutants and inert, which only this build has.
func mutantsOption() kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		for _, command := range []kong.Option{
			kong.DynamicCommand("mutants", "Disable each guard in turn and check that the simulator detects it.", "", &MutantsCmd{}),
			kong.DynamicCommand("inert", "Remove the effect of each fault in turn and check that the simulator no longer counts it.", "", &InertCmd{}),
		} {
			if err := command.Apply(k); err != nil {
				return err
			}
		}
		return nil
	})
}

// MutantsCmd disables one guard at a time and checks that the simulator detects it.
type MutantsCmd struct {
	Seeds  int      `default:"1000" help:"Maximum number of seeds to detect each mutant, and number of seeds that the unmutated program must pass."`
	Only   []string `help:"Test only this mutant. Repeatable."`
	Shrink bool     `help:"Shrink the first failure of each mutant, and replay it in another process."`
	Dir    string   `default:"sim-out/mutants" help:"Parent folder for the failures saved by --shrink."`
}

// shrunkStepsMax is the maximum number of steps of a shrunk failure.
const (
	shrunkStepsMax = 60
	shrinkTries    = 16 // maximum attempts per mutant
)

// Help returns the text shown below the flags.
func (MutantsCmd) Help() string {
	return `Each guard is a check in the code that keeps one spec true. With the guard disabled, the simulator must violate
that spec: a mutant that only other specs detect is weak. Exits with code 1 if one is weak or missed, or if a shrunk failure has more than ` + fmt.Sprint(shrunkStepsMax) + ` steps.

Examples:
  troupe-mutants mutants
  troupe-mutants mutants --shrink --only cycle-check
  MUTANT=cycle-check troupe-mutants replay sim-out/mutants/cycle-check/seed-1-9f86d081`
}

// Validate checks that the mutants named by --only exist.
func (c *MutantsCmd) Validate() error {
	var names []string
	for _, g := range sim.Guards() {
		names = append(names, g.Mutant)
	}
	for _, only := range c.Only {
		if !slices.Contains(names, only) {
			return fmt.Errorf("--only %s: no guard has this name, want one of %s", only, strings.Join(names, ", "))
		}
	}
	if c.Seeds < 1 {
		return errors.New("--seeds: want 1 or more")
	}
	return nil
}

// Run executes the command.
func (c *MutantsCmd) Run(s streams) error {
	debug.SetGCPercent(400)
	out := bufio.NewWriter(s.out)
	defer out.Flush()
	missed := 0
	if len(c.Only) == 0 {
		mutant.Now = ""
		var sum sim.Summary
		sim.RunSeeds(1, c.Seeds, c.runSeed, func(r sim.Result) bool {
			sum.Add(r)
			return r.Violation == nil
		})
		for _, m := range sum.Undecided() {
			fmt.Fprintf(out, "unmutated: missing: %s\n", m)
			missed++
		}
		if len(sum.Failed) > 0 {
			fmt.Fprintf(out, "unmutated: seed %d FAILED %v\n", sum.Failed[0].Seed, sum.Failed[0].Violation)
			return exitCode(exitFailed)
		}
		fmt.Fprintf(out, "unmutated: %d seeds ok\n", sum.Seeds)
	}
	fmt.Fprintf(out, "%-32s %-22s %6s %7s %6s  %s\n", "mutant", "spec", "seed", "seconds", "steps", "detail")
	for _, g := range sim.Guards() {
		if len(c.Only) > 0 && !slices.Contains(c.Only, g.Mutant) {
			continue
		}
		out.Flush()
		mutant.Now = g.Mutant
		start := time.Now()
		found, others := c.find(g.Spec, 1)
		seconds := time.Since(start).Seconds()
		if found == nil {
			missed++
			verdict := "MISSED"
			if len(others) > 0 {
				verdict = "WEAK" // detected, but not by the spec that is named
			}
			fmt.Fprintf(out, "%-32s %-22s %6s %7.1f %6s  found by others: %v\n", g.Mutant, g.Spec, verdict, seconds, "", others)
			continue
		}
		steps, detail := found.Stats.Steps, firstLine(found.Violation.Detail)
		if c.Shrink {
			var err error
			var inevitable *sim.Inevitability
			if steps, inevitable, err = c.shrink(g, *found); err != nil {
				missed++
				detail = err.Error()
			} else {
				detail += "\n  " + inevitable.String()
			}
		}
		fmt.Fprintf(out, "%-32s %-22s %6d %7.1f %6d  %s\n", g.Mutant, g.Spec, found.Seed, seconds, steps, detail)
	}
	mutant.Now = ""
	if missed > 0 {
		fmt.Fprintf(out, "%d mutants missed\n", missed)
		return exitCode(exitFailed)
	}
	fmt.Fprintln(out, "every mutant found")
	return nil
}

func (c *MutantsCmd) runSeed(seed uint64) sim.Result {
	return sim.RunSeed(sim.Options{Seed: seed, Unhashed: true})
}

// shrink shrinks the failure of a mutant to at most shrunkStepsMax steps, saves it in
// a folder and replays it in another process. It shrinks the result again while each
// attempt removes at least a tenth of the steps. Then it continues with the next
// failing seed. It fails after shrinkTries attempts. minSteps is the number of steps
// of the smallest failure.
func (c *MutantsCmd) shrink(g sim.Guard, found sim.Result) (minSteps int, inevitable *sim.Inevitability, err error) {
	minSteps = found.Stats.Steps
	next := found
	for range shrinkTries {
		o := sim.Options{Seed: next.Seed}
		dir, err := sim.FailureDir(filepath.Join(c.Dir, g.Mutant), o, next)
		if err != nil {
			return minSteps, nil, err
		}
		shrunk, err := sim.SaveFailure(dir, o, next)
		if err != nil {
			return minSteps, nil, err
		}
		minSteps = min(minSteps, shrunk.Stats.Steps)
		if shrunk.Stats.Steps <= shrunkStepsMax {
			return minSteps, shrunk.Inevitability, verifyReplay(dir, g, shrunk)
		}
		if shrunk.Stats.Steps <= next.Stats.Steps*9/10 {
			next = shrunk
			continue
		}
		later, _ := c.find(g.Spec, next.Seed+1)
		if later == nil {
			break
		}
		next = *later
	}
	return minSteps, nil, fmt.Errorf("the shrunk failure has more than %d steps", shrunkStepsMax)
}

// verifyReplay replays the folder of a mutant in another process. It returns an
// error unless the same spec breaks at the same time and step.
func verifyReplay(dir string, g sim.Guard, shrunk sim.Result) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "replay", dir)
	cmd.Env = append(os.Environ(), "MUTANT="+g.Mutant)
	output, err := cmd.CombinedOutput()
	var exitErr *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exitErr):
		return err
	case !bytes.Contains(output, fmt.Appendf(nil, "FAILED %s broken at %v, after %d steps", g.Spec, shrunk.Violation.At, shrunk.Violation.Step)):
		return fmt.Errorf("the replay in another process did not fail in the same way: %s", finalLine(output))
	}
	return nil
}

func finalLine(text []byte) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(lines[len(lines)-1])
}

// find returns the first result that violates the given spec. The search starts at
// the seed in the parameter first. The result others counts, by spec, the violations
// of other specs found before.
func (c *MutantsCmd) find(spec string, first uint64) (found *sim.Result, others map[string]int) {
	others = map[string]int{}
	sim.RunSeeds(first, c.Seeds, c.runSeed, func(r sim.Result) bool {
		if r.Violation != nil && r.Violation.Spec == spec {
			found = &r
			return false
		}
		if r.Violation != nil {
			others[r.Violation.Spec]++
		}
		return true
	})
	return found, others
}

func firstLine(text string) string {
	for i, r := range text {
		if r == '\n' {
			return text[:i]
		}
	}
	return text
}
