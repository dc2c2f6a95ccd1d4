// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
)

// CallCmd sends a message and waits for the answer.
type CallCmd struct {
	At
	Agent   string        `arg:"" help:"The agent to call."`
	Message string        `arg:"" help:"What to tell it."`
	Session string        `help:"The conversation it belongs to (main)."`
	Timeout time.Duration `help:"How long the run may take; the server's own limit if absent."`
	Tree    bool          `help:"Print the tree of calls behind the answer."`
	JSON    bool          `help:"Print what the server says."`
}

// Help is shown below the flags.
func (CallCmd) Help() string {
	return `Ends with code 1 if the agent refuses. A run that waits for a person goes on without us; how to signal it is said.

Examples:
  troupe call helper "hello"
  troupe call coordinator "find xyzzy" --session s-42 --tree
  troupe call helper hello --json | jq -r .content`
}

// Run implements the command.
func (c *CallCmd) Run(s streams) error {
	server := c.client()
	in := struct {
		Content string `json:"content"`
		Session string `json:"session,omitzero"`
		Timeout int64  `json:"timeout_ms,omitzero"`
	}{c.Message, c.Session, c.Timeout.Milliseconds()}
	status, body, err := server.post("/v1/agents/"+url.PathEscape(c.Agent)+"/messages", in)
	var p *problem
	if c.JSON && errors.As(err, &p) {
		return errors.Join(printJSON(s.out, p.body), exit(failed))
	}
	if err != nil {
		return err
	}
	var out struct {
		Run      string   `json:"run_id"`
		Content  string   `json:"content"`
		Detail   string   `json:"detail"`
		Warnings []string `json:"warnings"`
		Signal   *struct {
			Run  string `json:"run_id"`
			Name string `json:"name"`
		} `json:"signal"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return err
	}
	id, err := actor.ParseCallID(out.Run)
	if err != nil {
		return err
	}
	switch {
	case c.JSON:
		if err := printJSON(s.out, body); err != nil {
			return err
		}
	case status == http.StatusAccepted && out.Signal != nil:
		fmt.Fprintf(s.err, "run %s waits for the signal %s; to go on, say:\n  troupe runs signal %s %s\nand then:\n  troupe runs show %s\n",
			out.Run, out.Signal.Name, out.Signal.Run, out.Signal.Name, out.Run)
	case status == http.StatusAccepted:
		fmt.Fprintf(s.err, "%s:\n  troupe runs show %s\n", out.Detail, out.Run)
	default:
		fmt.Fprintln(s.out, out.Content)
		for _, w := range out.Warnings {
			fmt.Fprintln(s.err, "warning:", w)
		}
	}
	if c.Tree && !c.JSON {
		return printTree(s.out, server, id)
	}
	return nil
}
