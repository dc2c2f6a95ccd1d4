// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// CompleteCmd prints words for the completion of a shell: names of agents and tools, or IDs
// of runs and pending approvals. It prints nothing if the server does not answer in time.
type CompleteCmd struct {
	ServerFlags
	What string `arg:"" enum:"agents,runs,tools,approvals" help:"agents, runs, tools or approvals."`
}

// completeTimeout is the maximum time that the completion of a word waits.
const completeTimeout = time.Second

// Help returns the text shown below the flags.
func (CompleteCmd) Help() string {
	return "Examples:\n  troupe complete agents\n  troupe complete runs"
}

// Run executes the command. A shell expands the words, so only names and IDs pass.
func (c *CompleteCmd) Run(s streams) error {
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	path := map[string]string{"agents": "/v1/agents", "runs": "/v1/runs?limit=20", "tools": "/v1/tools", "approvals": "/v1/approvals"}[c.What]
	_, body, err := c.client().do(ctx, http.MethodGet, path, nil)
	var in struct {
		Agents    []agentView    `json:"agents"`
		Runs      []runView      `json:"runs"`
		Tools     []toolView     `json:"tools"`
		Approvals []approvalView `json:"approvals"`
	}
	if err != nil || json.Unmarshal(body, &in) != nil {
		return nil
	}
	for _, a := range in.Agents {
		if actor.CheckName(a.ID) == nil {
			fmt.Fprintln(s.out, a.ID)
		}
	}
	for _, r := range in.Runs {
		if id, err := actor.ParseCallID(r.Run); err == nil {
			fmt.Fprintln(s.out, id)
		}
	}
	for _, t := range in.Tools {
		if actor.CheckName(t.Name) == nil {
			fmt.Fprintln(s.out, t.Name)
		}
	}
	for _, a := range in.Approvals {
		if id, err := runs.ParseApprovalID(a.ID); err == nil {
			fmt.Fprintln(s.out, id.Approval())
		}
	}
	return nil
}

// completedBy returns the argument of troupe complete that lists the values of a
// command's first argument; empty if there is none.
func completedBy(command string) string {
	switch command {
	case "call", "chat", "agents show", "agents delete":
		return "agents"
	case "runs show", "runs events", "runs replay", "runs signal", "runs cancel":
		return "runs"
	case "tools show", "tools delete":
		return "tools"
	case "approvals show", "approvals approve", "approvals reject":
		return "approvals"
	}
	return ""
}
