// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/upstream"
)

// CheckCmd checks agent files for errors.
type CheckCmd struct {
	Dir    string `arg:"" type:"path" help:"The folder with the agents, each in a file named *.toml."`
	Config string `env:"TROUPE_CONFIG" type:"path" placeholder:"FILE" help:"The server's configuration: are the models there that agents ask?"`
	JSON   bool   `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (CheckCmd) Help() string {
	return `Reads every file, and tells all that is wrong with any of them, as file:line:column: what is wrong.
What is only doubtful is a warning: a tool that this program does not have, a model that --config does
not name, calls that go to nobody or round in a circle. Ends with code 1 if something is wrong, with 0 if there are but warnings.

Examples:
  troupe check agents/
  troupe check agents/ --config troupe.toml
  troupe check agents/ --json | jq .problems`
}

// Run executes the command.
func (c *CheckCmd) Run(s streams) error {
	config, err := readConfig(c.Config)
	if err != nil {
		return err
	}
	files, err := readAgentFiles(c.Dir)
	if err != nil {
		return err
	}
	if c.Config != "" {
		files.checkModels(append(slices.Sorted(maps.Keys(config.Models)), upstream.ScriptName))
	}
	if c.JSON {
		err = c.printJSON(s, files)
	} else {
		err = c.print(s, files)
	}
	if err == nil && files.HasErrors() {
		return exitCode(exitFailed)
	}
	return err
}

func (c *CheckCmd) print(s streams, files *agentFiles) error {
	for _, p := range files.Problems {
		if _, err := fmt.Fprintln(s.out, p); err != nil {
			return err
		}
	}
	for _, a := range files.Agents {
		fmt.Fprintf(s.err, "%s: %s\n", a.Path, a.Spec.String())
	}
	wrong := 0
	for _, p := range files.Problems {
		if !p.Warning {
			wrong++
		}
	}
	_, err := fmt.Fprintf(s.err, "agents=%d mistakes=%d warnings=%d\n", len(files.Agents), wrong, len(files.Problems)-wrong)
	return err
}

func (c *CheckCmd) printJSON(s streams, files *agentFiles) error {
	type agent struct {
		File       string `json:"file"`
		ID         string `json:"agent_id"`
		Kind       string `json:"kind"`
		Definition string `json:"definition"`
	}
	out := struct {
		Agents   []agent       `json:"agents"`
		Problems []fileProblem `json:"problems"`
	}{[]agent{}, files.Problems}
	for _, a := range files.Agents {
		out.Agents = append(out.Agents, agent{a.Path, a.Spec.ID, a.Spec.Kind, a.Spec.Hash().String()})
	}
	if out.Problems == nil {
		out.Problems = []fileProblem{}
	}
	b, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return printJSON(s.out, b)
}
