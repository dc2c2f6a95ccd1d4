// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/upstream"
)

// CheckCmd checks agent files for errors.
type CheckCmd struct {
	Dir    string `arg:"" type:"path" help:"Folder with agent files named *.toml."`
	Config string `env:"TROUPE_CONFIG" type:"path" placeholder:"FILE" help:"Server configuration with the models that agents use."`
	JSON   bool   `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (CheckCmd) Help() string {
	return `Reads every file and prints all errors as file:line:column: field: text. Warnings report a tool that this
program does not have, a model missing in --config, a call to an undeclared agent, and a call cycle.
Exits with code 1 if there are errors, and with 0 if there are only warnings.

Examples:
  troupe check agents/
  troupe check agents/ --config troupe.toml
  troupe check agents/ --json | jq .problems`
}

// Run executes the command.
func (c *CheckCmd) Run(s streams) error {
	config, configErr := readConfig(c.Config)
	files, err := readAgentFiles(c.Dir)
	if err != nil {
		return errors.Join(configErr, err)
	}
	switch {
	case configErr != nil: // an error there hides none in the agent files
		for line := range strings.SplitSeq(configErr.Error(), "\n") {
			files.Problems = append(files.Problems, fileProblem{File: c.Config, Text: strings.TrimPrefix(line, c.Config+": ")})
		}
	case c.Config != "":
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
