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
	"time"

	"github.com/alecthomas/kong"

	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/sim"
)

// mutants adds the command that only this build has.
func mutants() kong.Option {
	return kong.DynamicCommand("mutants", "Remove each guard in turn; the simulator must notice.", "", &MutantsCmd{})
}

// MutantsCmd removes one guard at a time and has the simulator look for it, or a
// test where that has no seam. It is run in the folder of the sources.
type MutantsCmd struct {
	Seeds  int      `default:"1000" help:"In how many seeds each must be found, and how many the whole program must pass."`
	Only   []string `help:"Only these mutants. Repeatable."`
	Shrink bool     `help:"Make the first seed of each as small as it gets, and run that again in another process."`
	Dir    string   `default:"sim-out/mutants" help:"Where --shrink leaves a folder for each."`
}

// shrunkStepsMax is of how many steps the story of a removed guard may be.
const (
	shrunkStepsMax = 60
	shrinkTries    = 3 // seeds of each mutant
)

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
	fmt.Fprintf(out, "%-32s %-22s %6s %7s %6s  %s\n", "mutant", "spec", "seed", "seconds", "steps", "what it says")
	for _, g := range sim.Guards() {
		if !c.wants(g.Mutant) {
			continue
		}
		out.Flush()
		if g.Room != "" {
			if err := byTest(g); err != nil {
				missed++
				fmt.Fprintf(out, "%-32s %-22s %6s %7s %6s  %v\n", g.Mutant, g.Room, "MISSED", "", "", err)
				continue
			}
			fmt.Fprintf(out, "%-32s %-22s %6s %7s %6s  %s fails\n", g.Mutant, g.Room, "-", "-", "-", g.Test)
			continue
		}
		mutant.Now = g.Mutant
		begun := time.Now()
		found, others := c.find(g.Spec, 1)
		seconds := time.Since(begun).Seconds()
		if found == nil {
			missed++
			fmt.Fprintf(out, "%-32s %-22s %6s %7.1f %6s  found by others: %v\n", g.Mutant, g.Spec, "MISSED", seconds, "", others)
			continue
		}
		steps, says := found.Stats.Steps, firstLine(found.Broken.Detail)
		if c.Shrink {
			var err error
			if steps, err = c.shrunk(g, *found); err != nil {
				missed++
				says = err.Error()
			}
		}
		fmt.Fprintf(out, "%-32s %-22s %6d %7.1f %6d  %s\n", g.Mutant, g.Spec, found.Seed, seconds, steps, says)
	}
	mutant.Now = ""
	if missed > 0 {
		fmt.Fprintf(out, "%d mutants missed\n", missed)
		return exit(failed)
	}
	fmt.Fprintln(out, "every mutant found")
	return nil
}

func (c *MutantsCmd) run(seed uint64) sim.Result {
	return sim.RunSeed(sim.Options{Seed: seed, Unhashed: true})
}

// shrunk leaves the folder of a mutant, and has another process run its least
// history again. It returns how many steps that has. Where they are too many the
// next seed that finds it may have fewer.
func (c *MutantsCmd) shrunk(g sim.Guard, found sim.Result) (steps int, err error) {
	for range shrinkTries {
		if steps, err = c.replayed(g, found); err == nil || steps <= shrunkStepsMax {
			break
		}
		again, _ := c.find(g.Spec, found.Seed+1)
		if again == nil {
			break
		}
		found = *again
	}
	return steps, err
}

func (c *MutantsCmd) replayed(g sim.Guard, found sim.Result) (int, error) {
	dir := filepath.Join(c.Dir, g.Mutant)
	small, err := sim.Leave(dir, sim.Options{Seed: found.Seed}, found)
	if err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, "replay", dir)
	cmd.Env = append(os.Environ(), "MUTANT="+g.Mutant)
	said, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &ended):
		return small.Stats.Steps, err
	case !bytes.Contains(said, fmt.Appendf(nil, "FAILED %s broken at %v, after %d steps", g.Spec, small.Broken.At, small.Broken.Step)):
		return small.Stats.Steps, fmt.Errorf("another process does not run it again: %s", lastLineOf(said))
	case small.Stats.Steps > shrunkStepsMax:
		return small.Stats.Steps, fmt.Errorf("more than %d steps are left", shrunkStepsMax)
	}
	return small.Stats.Steps, nil
}

func lastLineOf(text []byte) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(lines[len(lines)-1])
}

// byTest runs the test that must find a mutant of which no simulated world knows:
// it passes without the mutant, and fails with it.
func byTest(g sim.Guard) error {
	for _, name := range []string{"", g.Mutant} {
		cmd := exec.Command("go", "test", "-tags", "mutants", "-count=1", "-timeout", "2m", "-run", "^"+g.Test+"$", "./"+g.Room)
		cmd.Env = append(os.Environ(), "MUTANT="+name)
		said, err := cmd.CombinedOutput()
		var ended *exec.ExitError
		switch {
		case err != nil && !errors.As(err, &ended):
			return err
		case name == "" && err != nil:
			return fmt.Errorf("%s fails without it: %s", g.Test, said)
		case name != "" && err == nil:
			return fmt.Errorf("%s passes", g.Test)
		case name != "" && !bytes.Contains(said, []byte("--- FAIL: "+g.Test)):
			return fmt.Errorf("%s does not run: %s", g.Test, said)
		}
	}
	return nil
}

// find is the first seed, from one on, in which the spec itself is broken, and what else was
// broken on the way.
func (c *MutantsCmd) find(spec string, first uint64) (found *sim.Result, others map[string]int) {
	others = map[string]int{}
	sim.Many(first, c.Seeds, c.run, func(r sim.Result) bool {
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
