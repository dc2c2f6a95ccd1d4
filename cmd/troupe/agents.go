// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
)

// AgentsCmd looks at agents.
type AgentsCmd struct {
	List AgentsListCmd `cmd:"" help:"List the agents that can be called."`
}

// AgentsListCmd lists them.
type AgentsListCmd struct {
	At
	JSON bool `help:"Print what the server says."`
}

// Help is shown below the flags.
func (AgentsListCmd) Help() string {
	return "Examples:\n  troupe agents list\n  troupe agents list --json"
}

// Run implements the command.
func (c *AgentsListCmd) Run(s streams) error {
	body, err := c.client().get("/v1/agents")
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, body)
	}
	var in struct {
		Agents []struct {
			ID  string `json:"agent_id"`
			Doc string `json:"doc"`
		} `json:"agents"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, a := range in.Agents {
		fmt.Fprintf(w, "%s\t%s\n", a.ID, a.Doc)
	}
	return w.Flush()
}
