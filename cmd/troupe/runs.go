// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// RunsCmd groups the commands that show and control runs.
type RunsCmd struct {
	List    RunsListCmd    `cmd:"" help:"List runs, newest first."`
	Show    RunsShowCmd    `cmd:"" help:"Show a run; with --tree, also the runs it called."`
	Events  RunsEventsCmd  `cmd:"" help:"Print the events of a run."`
	Inspect RunsInspectCmd `cmd:"" help:"Show each step of a run: actions, states and prompts."`
	Prompts RunsPromptsCmd `cmd:"" help:"Show what models were sent for a run, and answered."`
	Replay  RunsReplayCmd  `cmd:"" help:"Show a run again, at its original speed."`
	Signal  RunsSignalCmd  `cmd:"" help:"Send a signal to a waiting run."`
	Cancel  RunsCancelCmd  `cmd:"" help:"Cancel a run and the runs it waits for."`
	Retry   RunsRetryCmd   `cmd:"" help:"Replay a parked run again."`
	Repeat  RunsRepeatCmd  `cmd:"" help:"Send the message of a failed run again, as a new run."`
}

// RunsShowCmd shows one run.
type RunsShowCmd struct {
	SourceFlags
	ID   string `arg:"" help:"Run ID, or its beginning."`
	Tree bool   `help:"Include the runs it called, with depth and time left."`
	JSON bool   `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (RunsShowCmd) Help() string {
	return "Examples:\n  troupe runs show 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55\n  troupe runs show 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --tree --data data"
}

// Run executes the command.
func (c *RunsShowCmd) Run(s streams) error {
	return c.withSource(func(from source) error {
		id, err := resolveRun(from, c.ID, c.hint("runs list", nil))
		if err != nil {
			return err
		}
		body, err := from.run(id)
		if err != nil || c.JSON {
			return printJSONOrError(s.out, body, err)
		}
		var r runView
		if err := json.Unmarshal(body, &r); err != nil {
			return err
		}
		r.print(s.out, currencyOf(from, r.Tree))
		if r.Actor == "" { // to a customer the server shows nothing else of a run
			if r.Status == runs.PausedWaitingApproval.String() {
				fmt.Fprintln(s.err, "a colleague has been asked")
			}
			if c.Tree {
				return errNoTree
			}
			return nil
		}
		if r.State == runs.AgentParked && c.fromServer() {
			fmt.Fprintf(s.err, "to replay it again once its agent is corrected, or to cancel it:\n  %s\n  %s\n",
				c.UserFlags.hint("runs retry", []string{r.Run}), c.UserFlags.hint("runs cancel", []string{r.Run}))
		}
		if err := c.printApprovals(s, from, &r, id); err != nil {
			return err
		}
		if r.Error != nil || r.Outcome == actor.Partial.String() {
			if err := printFailedCalls(s.out, from, id); err != nil {
				return err
			}
		}
		if c.Tree {
			fmt.Fprintln(s.out)
			return printTree(s.out, from, id)
		}
		return nil
	})
}

// printApprovals prints the tool calls whose approval a run waits for.
func (c *RunsShowCmd) printApprovals(s streams, from source, r *runView, id actor.CallID) error {
	if r.Status != runs.PausedWaitingApproval.String() {
		return nil
	}
	waits, err := openApprovals(from, id)
	if err != nil {
		return err
	}
	for i := range waits {
		e := &waits[i]
		line := fmt.Sprintf("approval %s  %s  until %s  %s", e.Approval, cmp.Or((&approvalView{Kind: e.Kind, Tool: e.Name}).what(), "of a run below"), localTime(runs.FormatTime(e.Until)), oneLine(e.Text))
		fmt.Fprintln(s.out, strings.TrimRight(line, " "))
	}
	if len(waits) > 0 && c.fromServer() {
		see := "the arguments"
		if waits[0].Kind == runs.KindBudget {
			see = "it"
		}
		_, err = fmt.Fprintf(s.err, "to see "+see+", to approve or to reject:\n  %s\n  %s\n  %s\n", c.UserFlags.hint("approvals show", []string{waits[0].Approval}),
			c.UserFlags.hint("approvals approve", []string{waits[0].Approval}), c.UserFlags.hint("approvals reject", []string{waits[0].Approval}))
	}
	return err
}

// openApprovals returns the events that requested the approvals which a run, or one below
// it, waits for.
func openApprovals(from source, id actor.CallID) (open []runs.Event, err error) {
	ended := func(match func(*runs.Event) bool) {
		open = slices.DeleteFunc(open, func(e runs.Event) bool { return match(&e) })
	}
	for after := uint64(0); ; {
		page, err := readEvents(from, id, after, 0)
		if err != nil || len(page.Events) == 0 {
			return open, err
		}
		for _, raw := range page.Events {
			e, err := runs.Decode(raw)
			if err != nil {
				return open, err
			}
			switch e.Type {
			case runs.ApprovalCreated, runs.ApprovalRequired:
				ended(func(one *runs.Event) bool { return one.Approval == e.Approval }) // a root has both events
				open = append(open, e)
			case runs.ApprovalDecision, runs.ApprovalExpired:
				ended(func(one *runs.Event) bool { return one.Approval == e.Approval })
			case runs.RunResumed:
				ended(func(one *runs.Event) bool { return !e.Child.IsZero() && one.Child == e.Child })
			}
		}
		if after = page.Next; page.Ended {
			return open, nil
		}
	}
}

// RunsEventsCmd prints the events of a run.
type RunsEventsCmd struct {
	SourceFlags
	ID     string `arg:"" help:"Run ID, or its beginning."`
	After  uint64 `help:"Skip the events up to this sequence number."`
	Follow bool   `help:"Wait for further events until the run ends; requires a server."`
	JSON   bool   `help:"Print one JSON event per line."`
}

// Help returns the text shown below the flags.
func (RunsEventsCmd) Help() string {
	return "Examples:\n  troupe runs events 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55\n  troupe runs events 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --after 3 --json\n  troupe runs events 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --follow"
}

// Run executes the command.
func (c *RunsEventsCmd) Run(s streams) error {
	wait := time.Duration(0)
	if c.Follow {
		if !c.fromServer() {
			return errors.New("--follow cannot be used with --data or --store: without a server there are no new events")
		}
		wait = followPollTimeout
	}
	return c.withSource(func(from source) error {
		id, err := resolveRun(from, c.ID, c.hint("runs list", nil))
		if err != nil {
			return err
		}
		for after := c.After; ; {
			page, err := readEvents(from, id, after, wait)
			if err != nil {
				return err
			}
			for _, raw := range page.Events {
				if err := printEvent(s.out, raw, c.JSON); err != nil {
					return err
				}
			}
			if page.Ended || len(page.Events) == 0 && !c.Follow {
				return nil
			}
			after = page.Next
		}
	})
}

// followPollTimeout is the time that one request waits for further events.
const followPollTimeout = 30 * time.Second

// RunsRetryCmd resumes a parked run.
type RunsRetryCmd struct {
	UserFlags
	ID   string `arg:"" help:"Run ID, or its beginning."`
	JSON bool   `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (RunsRetryCmd) Help() string {
	return "Resumes a run that is parked because its agent made other asks after a restart, or because its agent or model was absent. A Go agent is replayed: if it makes the same asks now, for example with the former code, the run continues. An external agent is invoked again. Otherwise the exit code is 1, and the error names the cause.\n\nExamples:\n  troupe runs retry 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"
}

// Run executes the command.
func (c *RunsRetryCmd) Run(s streams) error {
	id, err := resolveRun(c.client(), c.ID, c.hint("runs list", nil))
	if err != nil {
		return err
	}
	var before runView
	body, err := c.client().run(id)
	if err == nil {
		err = json.Unmarshal(body, &before)
	}
	if err != nil {
		return err
	}
	_, body, err = c.client().post("/v1/runs/"+id.String()+":retry", struct{}{})
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	var out struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return err
	}
	what := "is not parked"
	if before.State == runs.AgentParked {
		what = "was parked and continues"
		if out.Status, err = c.parksAgain(s, id, out.Status); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(s.err, "run %s %s: it is %s; to see it:\n  %s\n", id, what, out.Status, c.hint("runs show", []string{id.String()}))
	return err
}

// Bounds of the wait for a run to be parked again, such as because its model is still absent.
const (
	parksAgainPolls = 10
	parksAgainPoll  = 100 * time.Millisecond
)

// parksAgain returns the status of a run that was retried, or an error if it is parked again.
func (c *RunsRetryCmd) parksAgain(s streams, id actor.CallID, status string) (string, error) {
	for range parksAgainPolls {
		var now runView
		body, err := c.client().run(id)
		if err == nil {
			err = json.Unmarshal(body, &now)
		}
		switch {
		case err != nil:
			return "", err
		case now.State == runs.AgentParked && now.Error != nil:
			return "", fmt.Errorf("run %s is parked again: %s\nafter that is corrected, retry it once more, or cancel it:\n  %s", id, now.Error.text(), c.hint("runs cancel", []string{id.String()}))
		case now.Ended != "":
			return now.Status, nil
		}
		status = now.Status
		time.Sleep(parksAgainPoll)
	}
	return status, nil
}

// RunsCancelCmd cancels a run.
type RunsCancelCmd struct {
	UserFlags
	ID   string `arg:"" help:"Run ID, or its beginning."`
	JSON bool   `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (RunsCancelCmd) Help() string {
	return "Cancels the run and the runs it waits for. A run that has ended stays as it is: exit code 1.\n\nExamples:\n  troupe runs cancel 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"
}

// Run executes the command.
func (c *RunsCancelCmd) Run(s streams) error {
	id, err := resolveRun(c.client(), c.ID, c.hint("runs list", nil))
	if err != nil {
		return err
	}
	return c.cancel(s, id)
}

func (c *RunsCancelCmd) cancel(s streams, id actor.CallID) error {
	_, body, err := c.client().post("/v1/runs/"+id.String()+":cancel", struct{}{})
	if err != nil {
		return err
	}
	var out struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return err
	}
	cancelled := out.Status == "CANCELLED"
	see := c.hint("runs show", []string{id.String()}, "--tree")
	switch {
	case c.JSON:
		err = printJSON(s.out, body)
	case cancelled:
		_, err = fmt.Fprintf(s.err, "run %s is cancelled; to see the result:\n  %s\n", id, see)
	default:
		_, err = fmt.Fprintf(s.err, "troupe: run %s is %s and cannot be cancelled; to see the result:\n  %s\n", id, out.Status, see)
	}
	if err == nil && !cancelled {
		return exitCode(exitFailed)
	}
	return err
}

// RunsSignalCmd sends a signal to a run that waits for it.
type RunsSignalCmd struct {
	UserFlags
	ID      string `arg:"" help:"ID of the waiting run, or its beginning."`
	Name    string `arg:"" help:"Name of the signal it waits for."`
	Payload string `arg:"" optional:"" help:"Text sent with the signal."`
	JSON    bool   `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (RunsSignalCmd) Help() string {
	return "Examples:\n  troupe runs signal 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 go"
}

// Run executes the command.
func (c *RunsSignalCmd) Run(s streams) error {
	id, err := resolveRun(c.client(), c.ID, c.hint("runs list", nil))
	if err != nil {
		return err
	}
	in := struct {
		Name    string `json:"name"`
		Payload string `json:"payload,omitzero"`
	}{c.Name, c.Payload}
	_, body, err := c.client().post("/v1/runs/"+id.String()+":signal", in)
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	fmt.Fprintf(s.err, "run %s has the signal %s\n", id, c.Name)
	return nil
}

func (s SourceFlags) withSource(fn func(source) error) error {
	from, err := s.open()
	if err != nil {
		return err
	}
	err = fn(from)
	if isNotFound(err) {
		err = fmt.Errorf("%w (see: %s)", err, s.hint("runs list", nil))
	}
	if e := from.close(); err == nil {
		err = e
	}
	return err
}

func printJSONOrError(w io.Writer, body []byte, err error) error {
	if err != nil {
		return err
	}
	return printJSON(w, body)
}

// printJSON prints one JSON value, indented.
func printJSON(w io.Writer, body []byte) error {
	v := jsontext.Value(body)
	if err := v.Indent(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s\n", v)
	return err
}

type eventsPage struct {
	Events []jsontext.Value `json:"events"`
	Next   uint64           `json:"next_after"`
	Ended  bool             `json:"ended"`
}

func printEvent(w io.Writer, raw jsontext.Value, asJSON bool) error {
	if asJSON {
		_, err := fmt.Fprintf(w, "%s\n", raw)
		return err
	}
	e, err := runs.Decode(raw)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, eventLine(&e))
	return err
}
