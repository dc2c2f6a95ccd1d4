// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"

	"github.com/troupe-run/troupe/internal/service"
	"github.com/troupe-run/troupe/sim"
	simulation "github.com/troupe-run/troupe/simulate"
	"github.com/troupe-run/troupe/tools"
)

// runProject simulates the user's own agents. Problems in their files are printed
// first.
func (c *SimCmd) runProject(out *bufio.Writer, stderr io.Writer) error {
	if dir := simulation.AgentsIn(c.Project); dir != "" {
		files, err := service.ReadAgentFiles(dir)
		if err != nil {
			return err
		}
		for _, p := range files.Problems {
			if !p.Warning || p.Field != "tools" { // sim.toml may replace missing tools
				fmt.Fprintln(stderr, p)
			}
		}
		if files.HasErrors() {
			return exitCode(exitFailed)
		}
	}
	team, err := simulation.Load(c.Project)
	if err != nil {
		return err
	}
	for _, spec := range team.Specs {
		for _, name := range spec.MissingTools(tools.NewRegistry()) {
			if !slices.ContainsFunc(team.Tools, func(t simulation.Tool) bool { return t.Name == name }) {
				fmt.Fprintf(stderr, "%s: warning: no [[tool]] in %s replaces %s; the agent runs without it\n", spec.ID, simulation.RulesFile, name)
			}
		}
	}
	o := simulation.Options{Seeds: max(c.Seeds, c.Runs), Faultless: c.Faults == "none", Odds: c.odds, Dir: c.Dir}
	if c.Strategy != "drawn" {
		o.Strategy = c.Strategy
	}
	if c.Seed != nil {
		o.First, o.Seeds = *c.Seed, max(o.Seeds, 1)
	}
	if o.Seeds == 0 {
		o.Seeds = simulation.SeedsDefault
	}
	if o.Seeds == 1 {
		o.Columns = sim.NewColumns(out, sim.ColumnsWidth)
	}
	if isTerminal(stderr) {
		o.Progress = func(done int) { fmt.Fprintf(controls(stderr), "\r%d of %d simulations ", done, o.Seeds) }
		defer fmt.Fprint(controls(stderr), "\r\033[K")
	}
	r, err := simulation.Run(team, o)
	if err != nil {
		return err
	}
	r.Print(out, c.rerunCommand)
	if !r.OK() {
		return exitCode(exitFailed)
	}
	return nil
}
