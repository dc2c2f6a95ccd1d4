// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"

	"github.com/troupe-run/troupe/sim"
)

// ReplayCmd replays a failed seed from its folder.
type ReplayCmd struct {
	Dir   string `arg:"" type:"existingdir" help:"Folder of the failure."`
	Whole bool   `help:"Replay all choices, not the shrunk ones."`
}

// Help returns the text shown below the flags.
func (ReplayCmd) Help() string {
	return `Prints the shrunk failure in columns. Exits with code 1 if the seed still fails, and with 0 if it passes. If
the run diverges from the recorded log, prints the first step that differs and both lines.

Examples:
  troupe replay sim-out/seed-7-9f86d081
  troupe replay sim-out/seed-7-9f86d081 --whole`
}

// Run executes the command.
func (c *ReplayCmd) Run(s streams) error {
	out := bufio.NewWriterSize(s.out, 1<<16)
	defer out.Flush()
	r, diverged, err := sim.Replay(c.Dir, c.Whole, out, sim.Backends{})
	if err != nil {
		return err
	}
	if diverged != "" {
		fmt.Fprintf(out, "seed %d diverges from the recorded log at %s\n", r.Seed, diverged)
	}
	if r.Violation == nil {
		fmt.Fprintf(out, "seed %d does not fail any more: steps=%d hash=%s\n", r.Seed, r.Stats.Steps, r.Hash)
		return nil
	}
	fmt.Fprintf(out, "seed %d FAILED %v\nhash=%s\n", r.Seed, r.Violation, r.Hash)
	return exitCode(exitFailed)
}
