// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"text/tabwriter"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/ingress"
)

// SchedulesCmd groups the commands about schedules of agents.
type SchedulesCmd struct {
	List SchedulesListCmd `cmd:"" help:"List the schedules of agents, with the time of the next message of each."`
}

// SchedulesListCmd lists schedules.
type SchedulesListCmd struct {
	UserFlags
	JSON bool `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (SchedulesListCmd) Help() string {
	return `A schedule is a table of an agent's file, and sends the agent a message at its times:
  [schedule.morning]
  cron = "0 9 * * mon-fri"
  zone = "Europe/Berlin"
  text = "Report what is new."

Examples:
  troupe schedules list
  troupe schedules list --user alice
  troupe schedules list --user '*'    # of all, with the scope operator`
}

// Run executes the command.
func (c *SchedulesListCmd) Run(s streams) error {
	body, err := c.client().get("/v1/schedules")
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	var out struct {
		All []struct {
			Agent   string `json:"agent_id"`
			Name    string `json:"name"`
			Cron    string `json:"cron"`
			Zone    string `json:"zone"`
			User    string `json:"user"`
			Session string `json:"session_id"`
			Next    string `json:"next"`
			Paused  string `json:"paused"`
			Last    struct {
				At    string `json:"at"`
				Run   string `json:"run_id"`
				Error string `json:"error"`
			} `json:"last"`
		} `json:"schedules"`
		More bool `json:"more"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return err
	}
	if len(out.All) == 0 {
		whose := "your user"
		switch c.User {
		case "":
		case ingress.EveryUser:
			_, err := fmt.Fprintln(s.out, "no agent has a schedule")
			return err
		default:
			whose = "the user " + c.User
		}
		_, err := fmt.Fprintf(s.out, "no schedule of %s: --user shows those of another, --user '*' all\n", whose)
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AGENT\tSCHEDULE\tCRON\tZONE\tUSER\tSESSION\tNEXT\tLAST")
	for _, one := range out.All {
		last := cmp.Or(one.Last.Run, "-")
		switch {
		case one.Paused != "":
			one.Next, last = "paused", last+" "+one.Paused
		case one.Last.Error != "":
			last += " " + one.Last.Error
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", one.Agent, one.Name, one.Cron, one.Zone, one.User, one.Session, cmp.Or(one.Next, "-"), last)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if out.More {
		_, err = fmt.Fprintf(s.out, "these are the first %d schedules; there are more\n", len(out.All))
	}
	return err
}
