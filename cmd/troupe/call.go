// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// CallCmd sends a message to an agent and waits for the answer.
type CallCmd struct {
	ServerFlags
	Agent   string        `arg:"" help:"Agent to call."`
	Message string        `arg:"" help:"Message text."`
	Session string        `help:"Session of the message (main)."`
	Timeout time.Duration `help:"Maximum duration of the run; the server's default if absent."`
	Stream  *bool         `negatable:"" help:"Print the answer while it is generated; the default on a terminal."`
	Tree    bool          `help:"Print the tree of calls made for the answer."`
	JSON    bool          `help:"Print the JSON response of the server; with --stream, one event per line."`
}

// Help returns the text shown below the flags.
func (CallCmd) Help() string {
	return `Exits with code 1 if the agent refuses. If the run waits for a signal, prints the command to send it and
exits; with --stream, keeps waiting. A broken stream is resumed after the last event received.

Examples:
  troupe call helper "hello"
  troupe call coordinator "find xyzzy" --session s-42 --tree
  troupe call helper hello --json | jq -r .content
  troupe call helper hello --stream --json | jq -r .type`
}

type messageBody struct {
	Content string `json:"content"`
	Session string `json:"session,omitzero"`
	Timeout int64  `json:"timeout_ms,omitzero"`
}

// Run executes the command.
func (c *CallCmd) Run(s streams) error {
	path := "/v1/agents/" + url.PathEscape(c.Agent) + "/messages"
	in := messageBody{c.Message, c.Session, c.Timeout.Milliseconds()}
	run, err := c.send(s, path, in)
	if err != nil {
		return err
	}
	if c.Tree && !c.JSON {
		return printTree(s.out, c.client(), run)
	}
	return nil
}

func (c *CallCmd) send(s streams, path string, in messageBody) (actor.CallID, error) {
	if c.Stream == nil && isTerminal(s.out) && !c.JSON || c.Stream != nil && *c.Stream {
		return c.sendStreaming(s, path, in)
	}
	return c.sendBlocking(s, path, in)
}

// sendStreaming prints the answer while it is generated. On SIGINT or SIGTERM it
// stops following; the run continues on the server.
func (c *CallCmd) sendStreaming(s streams, path string, in messageBody) (run actor.CallID, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return run, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var runErr error
	t := answerPrinter{}
	err = c.client().follow(ctx, http.MethodPost, path, body, func(e runs.Event) error {
		run = e.Run
		if e.Refusal != nil && e.Type.Ends() {
			runErr = fmt.Errorf("%s: %s (see: troupe runs show %s)", e.Refusal.Reason.Info().Type, e.Refusal.Detail, run)
		}
		if c.JSON {
			_, err := fmt.Fprintf(s.out, "%s\n", runs.Encode(e))
			return err
		}
		text, note := t.render(&e)
		if _, err := io.WriteString(s.out, text); err != nil {
			return err
		}
		if note != "" {
			fmt.Fprintln(s.err, note)
		}
		return nil
	})
	if err != nil && ctx.Err() != nil && !run.IsZero() {
		return run, fmt.Errorf("interrupted; the run continues. To follow it:\n  troupe runs events %s --follow", run)
	}
	return run, errors.Join(err, runErr)
}

// sendBlocking waits for the answer. The server may reply 202 instead, when the
// run continues in the background.
func (c *CallCmd) sendBlocking(s streams, path string, in messageBody) (run actor.CallID, err error) {
	status, body, err := c.client().post(path, in)
	var p *problem
	if c.JSON && errors.As(err, &p) {
		return run, errors.Join(printJSON(s.out, p.body), exitCode(exitFailed))
	}
	if err != nil {
		return run, err
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
		return run, err
	}
	switch {
	case c.JSON:
		if err := printJSON(s.out, body); err != nil {
			return run, err
		}
	case status == http.StatusAccepted && out.Signal != nil:
		fmt.Fprintf(s.err, "run %s waits for the signal %s; to continue:\n  troupe runs signal %s %s\nand then:\n  troupe runs show %s\n",
			out.Run, out.Signal.Name, out.Signal.Run, out.Signal.Name, out.Run)
	case status == http.StatusAccepted:
		fmt.Fprintf(s.err, "%s:\n  troupe runs show %s\n", out.Detail, out.Run)
	default:
		fmt.Fprintln(s.out, out.Content)
		for _, w := range out.Warnings {
			fmt.Fprintln(s.err, "warning:", w)
		}
	}
	return actor.ParseCallID(out.Run)
}
