// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/internal/service"
	"github.com/troupe-run/troupe/tools"
)

// RunsInspectCmd shows the steps of a run.
type RunsInspectCmd struct {
	SourceFlags
	ID     string `arg:"" help:"Run ID, or its beginning."`
	At     int    `placeholder:"N" help:"Show step N only."`
	Prompt bool   `help:"Show what was sent to models."`
	JSON   bool   `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (RunsInspectCmd) Help() string {
	return `Shows the actions of the agent in each step, their answers, and the size of the state before and after. With --prompt, the
messages that a model was sent are made again from the definition of the run and the recorded answers: nothing is called. The records of
a run stay until the next snapshot of its actor. A run that it called has its own ID in run_id. A server needs a key with the scope operator.

Examples:
  troupe runs inspect 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55
  troupe runs inspect 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --at 1 --prompt
  troupe runs inspect 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --data data`
}

// Run executes the command.
func (c *RunsInspectCmd) Run(s streams) error {
	if c.Data != "" { // the hint has the word URL for the address of a server that uses the folder
		of := c.UserFlags
		of.Server = os.Getenv("TROUPE_SERVER")
		c.remedy = "ask it: " + of.hint("runs inspect", []string{c.ID}, "--server", "URL")
	}
	return c.withSource(func(from source) error {
		id, err := resolveRun(from, c.ID, c.hint("runs list", nil))
		if err != nil {
			return err
		}
		found, err := c.read(from, id)
		if err != nil {
			return err
		}
		if c.JSON {
			body, err := json.Marshal(found)
			return printJSONOrError(s.out, body, err)
		}
		return printSteps(s, &found)
	})
}

// read returns the steps that the flags select.
func (c *RunsInspectCmd) read(from source, id actor.CallID) (found command.Steps, err error) {
	after, limit := uint64(0), command.StepsMax
	if c.At != 0 {
		if c.At < 1 {
			return found, errors.New("--at: want the number of a step, from 1")
		}
		after, limit = uint64(c.At-1), 1
	}
	for {
		body, err := from.steps(id, after, limit, c.Prompt)
		if err != nil {
			return found, err
		}
		var page command.Steps
		if err := json.Unmarshal(body, &page); err != nil {
			return found, err
		}
		page.All = append(found.All, page.All...)
		found, after = page, page.Next
		switch {
		case c.At != 0 && len(found.All) == 0:
			return found, fmt.Errorf("--at: run %s has no step %d; to see all: %s", id, c.At, c.hint("runs inspect", []string{id.String()}))
		case after == 0 || c.At != 0:
			found.Next = 0
			return found, nil
		}
	}
}

// swapped replays a run with other results of tools.
func (c *RunsReplayCmd) swapped(s streams) error {
	if len(c.Swap) == 0 || c.Data == "" {
		return errors.New("--swap and --data belong together: a replay with other results reads a data folder")
	}
	var swaps []node.Swap
	for _, text := range c.Swap {
		swap, err := readSwap(text)
		if err != nil {
			return err
		}
		swaps = append(swaps, swap)
	}
	from := SourceFlags{UserFlags: c.UserFlags, Data: c.Data, remedy: "stop it, or read a copy: troupe backup NAME --data " + shellQuote(c.Data)}
	return from.withSource(func(opened source) error {
		id, err := resolveRun(opened, c.ID, from.hint("runs list", nil))
		if err != nil {
			return err
		}
		found, replaced, err := opened.(closedStore).view.Replay(id, swaps)
		switch {
		case err != nil:
			return err
		case found != nil:
			fmt.Fprintf(s.out, "run %s of %s differs in step %d\n", found.Run, found.Agent, found.Step)
			printActions(s.out, "recorded ", found.Recorded)
			printActions(s.out, "replayed ", found.Replayed)
			return nil
		case replaced == 0:
			return fmt.Errorf("--swap: no call of %s in the tree of run %s; to see its calls:\n  %s", c.Swap[0], id, "troupe runs inspect "+id.String()+" --data "+c.Data)
		}
		_, err = fmt.Fprintf(s.out, "the replay with %d other results is as recorded\n", replaced)
		return err
	})
}

// readSwap returns the swap of TOOL[#N]=FILE.
func readSwap(text string) (swap node.Swap, err error) {
	name, file, ok := strings.Cut(text, "=")
	tool, number, numbered := strings.Cut(name, "#")
	if swap.Tool = tool; numbered {
		swap.N, err = strconv.Atoi(number)
	}
	if !ok || tool == "" || file == "" || err != nil || numbered && swap.N < 1 {
		return swap, fmt.Errorf("--swap %q: want TOOL=FILE or TOOL#N=FILE, such as weather.get#2=rain.json", text)
	}
	if swap.Result, err = service.ReadFile(file, tools.ResultBytesMax); err != nil {
		return swap, fmt.Errorf("--swap: %w", err)
	}
	if value := jsontext.Value(swap.Result); !value.IsValid() {
		return swap, fmt.Errorf("--swap: %s is no JSON", file)
	}
	swap.Result = bytes.TrimSpace(swap.Result)
	return swap, nil
}

func printSteps(s streams, found *command.Steps) error {
	fmt.Fprintf(s.out, "run %s of %s\n", found.Run, found.Agent)
	for _, step := range found.All {
		fmt.Fprintf(s.out, "step %d  state %d answers, %d bytes; then %d answers, %d bytes\n", step.N, step.Before.Answers, step.Before.Bytes, step.After.Answers, step.After.Bytes)
		printActions(s.out, "  ", step.Actions)
	}
	if found.Note != "" {
		_, err := fmt.Fprintln(s.err, found.Note)
		return err
	}
	return nil
}

// printActions prints actions with their prompts and answers.
func printActions(out io.Writer, indent string, all []command.StepAction) {
	for _, a := range all {
		fmt.Fprintf(out, "%s%s %s\n", indent, a.Action, a.Parameters)
		if len(a.Prompt) > 0 {
			fmt.Fprintf(out, "    prompt %s\n", a.Prompt)
		}
		switch {
		case a.Error != "":
			fmt.Fprintf(out, "    error %s\n", oneLine(a.Error))
		case a.Answer != "":
			fmt.Fprintf(out, "    answer %s\n", oneLine(actor.FitText(a.Answer, inspectedBytesMax)))
		}
	}
}

// inspectedBytesMax is the beginning of an answer that is shown; --json shows all.
const inspectedBytesMax = 400
