// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/prompts"
	"github.com/troupe-run/troupe/internal/command"
)

// RunsPromptsCmd shows what models were sent for a run.
type RunsPromptsCmd struct {
	SourceFlags
	ID   string `arg:"" help:"Run ID, or its beginning."`
	Step uint64 `placeholder:"N" help:"Show the N-th request only."`
	JSON bool   `help:"Print JSON, one request per line."`
}

// Help returns the text shown below the flags.
func (RunsPromptsCmd) Help() string {
	return `Shows the requests to models as they were sent for a run, and their answers: by its agent, or by an external agent that works on it. The
configuration of the server has to record them, and the request needs the scope operator:

  [record]
  prompts = "failed"   # or "all"

Examples:
  troupe runs prompts 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55
  troupe runs prompts 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --step 3 --json
  troupe runs prompts 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --data data`
}

// promptView is a recorded prompt as a server sends it.
type promptView struct {
	Step uint64 `json:"step"`
	prompts.Record
}

// Run executes the command.
func (c *RunsPromptsCmd) Run(s streams) error {
	return c.withSource(func(from source) error {
		id, err := resolveRun(from, c.ID, c.hint("runs list", nil))
		if err != nil {
			return err
		}
		after, limit := uint64(0), command.PromptsMax
		if c.Step > 0 {
			after, limit = c.Step-1, 1
		}
		for shown := 0; ; {
			body, err := from.prompts(id, after, limit)
			if err != nil {
				return err
			}
			var page struct {
				Recording string           `json:"recording"`
				Prompts   []jsontext.Value `json:"prompts"`
				Next      uint64           `json:"next_after"`
			}
			if err := json.Unmarshal(body, &page, jsontext.AllowDuplicateNames(true)); err != nil {
				return err
			}
			for _, one := range page.Prompts {
				if err := c.print(s.out, one, &shown); err != nil {
					return err
				}
			}
			if page.Next != 0 && c.Step == 0 {
				after = page.Next
				continue
			}
			if shown == 0 && c.Step > 1 {
				if body, err = from.prompts(id, 0, 1); err == nil && !bytes.Contains(body, []byte(`"prompts":[]`)) {
					err = fmt.Errorf("--step: run %s has no recorded request %d; to see all: %s", id, c.Step, c.hint("runs prompts", []string{id.String()}))
				}
			} else if shown > 0 {
				return nil
			}
			if err == nil {
				_, err = fmt.Fprintln(s.err, c.nothing(id, page.Recording))
			}
			return err
		}
	})
}

// nothing returns the sentence about a run without recorded prompts.
func (c *RunsPromptsCmd) nothing(run actor.CallID, recording string) string {
	if recording == prompts.Off && c.fromServer() {
		return fmt.Sprintf("run %s has no recorded prompts, because the server records none: set prompts = \"failed\" or \"all\" in [record] of its configuration", run)
	}
	if recording == prompts.Failed {
		return fmt.Sprintf("run %s has no recorded prompts: prompts = \"failed\" in [record] keeps only those of failed runs, and of runs in the tree of one; or it asked no model, or keep has passed", run)
	}
	return fmt.Sprintf("run %s has no recorded prompts: it asked no model, they were not recorded then, or keep of [record] has passed", run)
}

// print prints one prompt, unless it is another than that of --step.
func (c *RunsPromptsCmd) print(out io.Writer, one jsontext.Value, shown *int) error {
	var p promptView
	if err := json.Unmarshal(one, &p, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return err
	}
	if c.Step > 0 && p.Step != c.Step {
		return nil
	}
	*shown++
	if c.JSON {
		_, err := fmt.Fprintf(out, "%s\n", one)
		return err
	}
	if *shown > 1 {
		fmt.Fprintln(out)
	}
	return p.print(out)
}

// print prints a prompt as text.
func (p *promptView) print(out io.Writer) error {
	head := []string{fmt.Sprintf("request %d at %s", p.Step, p.At), "agent " + p.Agent, "model " + p.Model}
	if p.Provider != "" && p.Provider != p.Model {
		head[2] += " (" + p.Provider + ")"
	}
	if p.Status != 0 {
		head = append(head, fmt.Sprintf("status %d", p.Status))
	}
	if p.Attempts > 1 {
		head = append(head, fmt.Sprintf("%d attempts", p.Attempts))
	}
	head = append(head, fmt.Sprintf("%d ms", p.Took))
	if p.Usage != nil {
		head = append(head, fmt.Sprintf("%d + %d tokens", p.Usage.Input, p.Usage.Output))
	}
	if p.Cut > 0 {
		head = append(head, fmt.Sprintf("%d bytes cut", p.Cut))
	}
	fmt.Fprintln(out, oneLine(strings.Join(head, ", ")))
	members := map[string]jsontext.Value{}
	if p.Request.Kind() != '{' || json.Unmarshal(p.Request, &members, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil {
		printPart(out, "request", p.Request)
	}
	var messages, tools []jsontext.Value
	if json.Unmarshal(members["messages"], &messages) == nil {
		delete(members, "messages")
	}
	if json.Unmarshal(members["tools"], &tools) == nil {
		delete(members, "tools")
	}
	if len(members) > 0 {
		b, err := json.Marshal(members, json.Deterministic(true))
		if err != nil {
			return err
		}
		printPart(out, "parameters", b)
	}
	for _, t := range tools {
		printPart(out, "tool", t)
	}
	for _, m := range messages {
		var message struct {
			Role    string         `json:"role"`
			Content jsontext.Value `json:"content"`
			Calls   jsontext.Value `json:"tool_calls"`
		}
		if json.Unmarshal(m, &message) != nil {
			printPart(out, "message", m)
			continue
		}
		if len(message.Calls) == 0 || message.Content.Kind() == '"' {
			printPart(out, message.Role, message.Content)
		}
		if len(message.Calls) > 0 {
			printPart(out, message.Role+" calls", message.Calls)
		}
	}
	if p.Answer != nil {
		printPart(out, "answer", p.Answer)
	}
	if p.Error != nil {
		fmt.Fprintf(out, "  error %s: %s\n", p.Error.Code, oneLine(p.Error.Detail))
	}
	return nil
}

// printPart prints a name and a value: texts as they are, with their lines indented.
func printPart(out io.Writer, name string, v jsontext.Value) {
	text := string(v)
	if v.Kind() == '"' {
		unquoted, _ := jsontext.AppendUnquote(nil, v)
		text = string(bytes.TrimRight(unquoted, "\n"))
	}
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, oneLine(line))
	}
	fmt.Fprintf(out, "  %s: %s\n", oneLine(name), strings.Join(lines, "\n      "))
}
