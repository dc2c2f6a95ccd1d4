// SPDX-License-Identifier: Apache-2.0

//go:build mutants

package main

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/troupe-run/troupe/sim"
)

// InertCmd injects each fault alone and checks that it is counted because of its effect.
type InertCmd struct {
	Seeds int      `default:"40" help:"Maximum number of seeds for each fault and dose."`
	Quick bool     `help:"Without the effect, run only as many seeds as the whole effect needed to be counted."`
	Only  []string `help:"Check only this fault. Repeatable."`

	faults []sim.Fault
}

// Help returns the text shown below the flags.
func (InertCmd) Help() string {
	return `A fault is counted where it changes a delivered byte, a time or a state. With its whole effect, and with the
smallest one (a millisecond, a byte, half of a period), it must be counted in one of the seeds; without its effect,
in none. Exits with code 1 if a fault is not.

Examples:
  troupe-mutants inert
  troupe-mutants inert --only NetworkDelay --only DiskSlow`
}

// Validate parses the faults named by --only.
func (c *InertCmd) Validate() error {
	if c.Seeds < 1 {
		return errors.New("--seeds: want 1 or more")
	}
	c.faults = nil
	for _, name := range c.Only {
		f, err := sim.ParseFault(name)
		if err != nil {
			return fmt.Errorf("--only: %w", err)
		}
		c.faults = append(c.faults, f)
	}
	return nil
}

// Run executes the command. Each row is printed as soon as all earlier ones are.
func (c *InertCmd) Run(s streams) error {
	debug.SetGCPercent(400)
	faults := c.faults
	if faults == nil {
		faults = sim.Faults()
	}
	workers := make(chan struct{}, goruntime.GOMAXPROCS(0))
	results := make([]chan sim.DoseCounts, len(faults))
	for i := range faults {
		results[i] = make(chan sim.DoseCounts, 1)
	}
	start := time.Now()
	go func() {
		for i, f := range faults {
			workers <- struct{}{}
			go func() {
				results[i] <- sim.CountDoses(f, c.Seeds, c.Quick)
				<-workers
			}()
		}
	}()
	const row = "%-24s %14s %14s %14s  %s\n"
	fmt.Fprintf(s.out, row, "fault", "whole effect", "no effect", "half of it", "detail")
	found := 0
	for i, f := range faults {
		counts := <-results[i]
		cell := func(dose sim.Dose) string { return fmt.Sprintf("%d in %d", counts.Counts[dose], counts.Seeds[dose]) }
		half, detail := cell(sim.HalfDose), counts.Problem()
		if counts.Indivisible != "" {
			half = "-"
		}
		if detail != "" {
			detail, _, _ = strings.Cut("MISSED: "+detail, "\n")
		} else {
			detail = counts.Indivisible
			found++
		}
		fmt.Fprintf(s.out, row, f, cell(sim.WholeDose), cell(sim.NoDose), half, detail)
	}
	fmt.Fprintf(s.out, "%v, counts in so many seeds\n%d of %d found\n", time.Since(start).Round(time.Second), found, len(faults))
	if found < len(faults) {
		return exitCode(exitFailed)
	}
	return nil
}
