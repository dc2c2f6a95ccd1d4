// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// AgentsCmd groups the commands that show and change agents.
type AgentsCmd struct {
	List AgentsListCmd `cmd:"" help:"List the agents of a server."`
	Show AgentsShowCmd `cmd:"" help:"Show an agent and the state of its actors."`

	Create   AgentsCreateCmd   `cmd:"" help:"Create or change a declared agent."`
	Register AgentsRegisterCmd `cmd:"" help:"Register an external agent."`
	Delete   AgentsDeleteCmd   `cmd:"" help:"Delete an agent."`
}

// AgentsListCmd lists the agents of a server.
type AgentsListCmd struct {
	ServerFlags
	JSON bool `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (AgentsListCmd) Help() string {
	return `Prints the status of each agent, the last heartbeat of external ones, and the number of runs that each agent
has ended since the server started.

Examples:
  troupe agents list
  troupe agents list --json`
}

// Run executes the command.
func (c *AgentsListCmd) Run(s streams) error {
	all, err := allOf[jsontext.Value](c.client(), "/v1/agents")
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(s.out, map[string][]jsontext.Value{"agents": all})
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AGENT\tCODE\tKIND\tSTATUS\tLAST HEARTBEAT\tSERVED\tDESCRIPTION")
	for _, raw := range all {
		var a agentView
		if err := json.Unmarshal(raw, &a); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.ID, cmp.Or(a.Code, "-"), a.Kind, a.Status, cmp.Or(localTime(a.LastSeen), "-"), a.servedText(), a.Doc)
	}
	return w.Flush()
}

// agentView holds the fields of an agent in GET /v1/agents that the commands print.
type agentView struct {
	ID         string         `json:"agent_id"`
	Name       string         `json:"name"`
	Code       string         `json:"code"`
	Kind       string         `json:"kind"`
	Doc        string         `json:"doc"`
	Definition string         `json:"definition"`
	Status     string         `json:"status"`
	LastSeen   string         `json:"last_heartbeat_at"`
	Circuit    string         `json:"circuit"`
	Served     *uint64        `json:"served_runs"`
	Spec       jsontext.Value `json:"spec"`
	Actors     []struct {
		Session string   `json:"session_id"`
		Mailbox []string `json:"mailbox"`
		Turns   []struct {
			Run     string `json:"run_id"`
			Status  string `json:"status"`
			Started string `json:"started_at"`
			Due     string `json:"deadline_at"`
			Waits   []struct {
				Run    string `json:"run_id"`
				Target string `json:"target"`
				Since  string `json:"since"`
				Due    string `json:"deadline_at"`
			} `json:"waits_for"`
		} `json:"turns"`
	} `json:"actors"`
}

// servedText returns the number of runs that the agent has served, or "-" if it is
// unknown.
func (a *agentView) servedText() string {
	if a.Served == nil {
		return "-"
	}
	return strconv.FormatUint(*a.Served, 10)
}

// AgentsShowCmd shows one agent and its actors in memory.
type AgentsShowCmd struct {
	ServerFlags
	ID   string `arg:"" help:"Agent ID."`
	JSON bool   `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (AgentsShowCmd) Help() string {
	return `Shows the definition of the agent. For each of its actors in memory, shows the mailbox, the runs with a
turn, and their open calls with start and deadline.

Examples:
  troupe agents show planner
  troupe agents show planner --json | jq .spec`
}

// Run executes the command.
func (c *AgentsShowCmd) Run(s streams) error {
	path, err := agentPath(c.ServerFlags, c.ID)
	if err != nil {
		return err
	}
	body, err := c.client().get(path)
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	var a agentView
	if err := json.Unmarshal(body, &a); err != nil {
		return err
	}
	return a.print(s.out)
}

func (a *agentView) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "agent\t%s\nkind\t%s\n", a.ID, a.Kind)
	fmt.Fprintf(w, "status\t%s\n", a.Status)
	if a.LastSeen != "" {
		fmt.Fprintf(w, "heartbeat\t%s\n", a.LastSeen)
	}
	if a.Circuit != "" {
		fmt.Fprintf(w, "circuit\t%s\n", a.Circuit)
	}
	if a.Name != a.ID {
		fmt.Fprintf(w, "name\t%s\n", a.Name)
	}
	if a.Doc != "" {
		fmt.Fprintf(w, "doc\t%s\n", a.Doc)
	}
	fmt.Fprintf(w, "served\t%s\ndefinition\t%s\n", a.servedText(), a.Definition)
	if err := w.Flush(); err != nil {
		return err
	}
	if len(a.Spec) > 0 && a.Spec.Kind() == '{' {
		if err := a.Spec.Indent(); err != nil {
			return err
		}
		fmt.Fprintf(out, "spec        %s\n", a.Spec)
	}
	for _, actor := range a.Actors {
		fmt.Fprintf(out, "%s/%s  mailbox %d\n", a.ID, actor.Session, len(actor.Mailbox))
		for _, t := range actor.Turns {
			fmt.Fprintf(out, "  run %s  ", t.Run)
			writeStatus(out, t.Status)
			fmt.Fprintf(out, "  since %s  until %s\n", t.Started, t.Due)
			for _, wait := range t.Waits {
				fmt.Fprintf(out, "    waits for %s  since %s  until %s  run %s\n", wait.Target, wait.Since, wait.Due, wait.Run)
			}
		}
		for _, run := range actor.Mailbox {
			fmt.Fprintf(out, "  run %s  in the mailbox\n", run)
		}
	}
	return nil
}
