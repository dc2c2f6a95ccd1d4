// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/invariant"
)

// AgentsCreateCmd creates or changes a declared agent.
type AgentsCreateCmd struct {
	ServerFlags
	Name   string `arg:"" help:"Name of the agent."`
	Fields string `arg:"" optional:"" help:"Its other fields as JSON; - reads standard input, @FILE a file."`
	JSON   bool   `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (AgentsCreateCmd) Help() string {
	return `Creates an agent, or changes the one of that name. The fields are those of agent files.

Examples:
  troupe agents create scout
  troupe agents create scout '{"prompt": "Answer in one sentence.", "agents": ["helper"]}'
  troupe agents create scout @scout.json`
}

// Run executes the command.
func (c *AgentsCreateCmd) Run(s streams) error {
	return putAgent(s, c.ServerFlags, "/v1/agents", c.Fields, c.JSON, map[string]string{"name": c.Name})
}

// AgentsRegisterCmd registers an external agent.
type AgentsRegisterCmd struct {
	ServerFlags
	ID       string `arg:"" help:"Agent ID."`
	Endpoint string `arg:"" help:"URL of its service."`
	Fields   string `arg:"" optional:"" help:"Its other fields as JSON; - reads standard input, @FILE a file."`
	JSON     bool   `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (AgentsRegisterCmd) Help() string {
	return `Registers an agent that runs as an HTTP service. The service sends the heartbeats.

Examples:
  troupe agents register scribe http://127.0.0.1:9001
  troupe agents register scribe http://127.0.0.1:9001 '{"retry": "safe"}'`
}

// Run executes the command.
func (c *AgentsRegisterCmd) Run(s streams) error {
	return putAgent(s, c.ServerFlags, "/v1/agents/register", c.Fields, c.JSON, map[string]string{"agent_id": c.ID, "endpoint": c.Endpoint})
}

// putAgent sends the fields of an agent, of which some are arguments of their own.
func putAgent(s streams, server ServerFlags, path, fields string, asJSON bool, arguments map[string]string) error {
	text, err := readArgument("fields", fields)
	if err != nil {
		return err
	}
	all := map[string]any{}
	if text != "" {
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			return fmt.Errorf("fields: want a JSON object such as '{\"prompt\": \"…\"}': %w", err)
		}
	}
	for name, value := range arguments {
		if given, ok := all[name]; ok && given != value {
			return fmt.Errorf("fields: %s is %v, but the argument is %s; leave the field out", name, given, value)
		}
		all[name] = value
	}
	_, body, err := server.client().post(path, all)
	if err != nil || asJSON {
		return printJSONOrError(s.out, body, err)
	}
	out, err := readPutAnswer(s, body)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.err, "agent %s %s; to call it:\n  %s\n", out.ID, out.effect(), server.hint("call", []string{out.ID, "hello"}))
	return nil
}

// putAnswer is the answer to a request that puts an agent or a tool.
type putAnswer struct {
	ID       string   `json:"agent_id"` // of an agent
	Created  bool     `json:"created"`
	Changed  bool     `json:"changed"`
	Warnings []string `json:"warnings"`
}

// readPutAnswer decodes an answer and prints its warnings.
func readPutAnswer(s streams, body []byte) (a putAnswer, err error) {
	if err := json.Unmarshal(body, &a); err != nil {
		return a, err
	}
	for _, w := range a.Warnings {
		fmt.Fprintln(s.err, "warning:", w)
	}
	return a, nil
}

// effect describes the effect of the request.
func (a *putAnswer) effect() string {
	switch {
	case a.Created:
		return "is created"
	case a.Changed:
		return "is changed"
	}
	return "is unchanged"
}

// AgentsDeleteCmd deletes an agent.
type AgentsDeleteCmd struct {
	OwnerFlags
	ID string `arg:"" help:"Agent ID."`
}

// Help returns the text shown below the flags.
func (AgentsDeleteCmd) Help() string {
	return `Deletes an agent; needs the scope agents, or admin for an agent of another owner or of the folder of serve --agents.
The owner of the data folder deletes any agent with --data, also while the server runs. Open runs of the agent finish;
new calls are refused. While its file is in the folder of serve --agents, the next start creates it again.

Examples:
  troupe agents delete scout
  troupe agents delete secretary --data data`
}

// Run executes the command.
func (c *AgentsDeleteCmd) Run(s streams) error {
	path, err := agentPath(c.ServerFlags, c.ID)
	if err != nil {
		return err
	}
	if err := c.deleteFromRegistry(s, path, agents.OpDelete, map[string]string{"agent_id": c.ID}); err != nil {
		return err
	}
	fmt.Fprintf(s.err, "agent %s is deleted\n", c.ID)
	return nil
}

// deleteFromRegistry deletes an agent or a tool. Like withKeys it asks the server that uses
// the data folder on the folder's socket, and opens the folder if there is none. The path is
// that of the request to a server; the operation and its input are those of the registry.
func (a OwnerFlags) deleteFromRegistry(s streams, path, operation string, input map[string]string) error {
	_, err := a.changeRegistry(s, http.MethodDelete, path, nil, operation, invariant.Must(json.Marshal(input)))
	return err
}

// changeRegistry is deleteFromRegistry for any method, and returns the answer.
func (a OwnerFlags) changeRegistry(s streams, method, path string, body []byte, operation string, input []byte) (answer []byte, err error) {
	at, ok := a.ownerClient(a.Data)
	if !ok && a.Data != "" {
		folder, err := openKeys(a, nil)
		if err != nil {
			return nil, storeError(a.Data, err, insteadOfData)
		}
		answer, warnings, err := folder.callRegistry(operation, input)
		for _, w := range warnings {
			fmt.Fprintln(s.err, "warning:", w)
		}
		return answer, errors.Join(err, folder.close())
	}
	if !ok {
		at = a.client()
	}
	_, answer, err = at.do(context.Background(), method, path, body)
	return answer, err
}
