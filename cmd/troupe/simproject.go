// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/troupe-run/troupe/sim"
	simulation "github.com/troupe-run/troupe/simulate"
)

// project puts a team of the user's own into imagined worlds.
func (c *SimCmd) project(out *bufio.Writer, talk io.Writer) error {
	if dir := simulation.AgentsIn(c.Project); dir != "" {
		files, err := readAgentFiles(dir)
		if err != nil {
			return err
		}
		for _, p := range files.Problems {
			if !p.Warning || p.Field != "tools" { // tools have stand-ins
				fmt.Fprintln(talk, p)
			}
		}
		if files.Wrong() {
			return exit(failed)
		}
	}
	team, err := simulation.Load(c.Project)
	if err != nil {
		return err
	}
	o := simulation.Options{Seeds: max(c.Seeds, c.Runs), Faultless: c.Faults == "none", Odds: c.odds, Dir: c.Dir}
	if c.Strategy != "drawn" {
		o.Strategy = c.Strategy
	}
	if c.Seed != nil {
		o.First, o.Seeds = *c.Seed, max(o.Seeds, 1)
	}
	if o.Seeds == 1 {
		o.Columns = sim.NewColumns(out, sim.ColumnsWidth)
	}
	if isTerminal(talk) {
		o.Each = func(done int) { fmt.Fprintf(talk, "\r%d of %d worlds ", done, o.Seeds) }
		defer fmt.Fprint(talk, "\r\033[K")
	}
	r, err := simulation.Run(team, o)
	if err != nil {
		return err
	}
	r.Print(out, c.again())
	if !r.OK() {
		return exit(failed)
	}
	return nil
}

// again is the command that shows one seed, but for its number.
func (c *SimCmd) again() string {
	words := []string{"troupe sim --project", c.Project}
	if c.Faults == "none" {
		words = append(words, "--faults none")
	}
	if c.Strategy != "drawn" {
		words = append(words, "--strategy", c.Strategy)
	}
	for _, f := range c.Fault {
		words = append(words, "--fault", f)
	}
	return strings.Join(words, " ")
}
