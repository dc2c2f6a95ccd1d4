// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
)

// TasksCmd groups the commands about detached calls.
type TasksCmd struct {
	List   TasksListCmd   `cmd:"" help:"List the detached calls that are pending, and those whose answers are late."`
	Show   TasksShowCmd   `cmd:"" help:"Show a detached call and its response."`
	Cancel TasksCancelCmd `cmd:"" help:"Cancel a detached call, whose asker gets the failure, or a reminder."`
}

// TasksListCmd lists detached calls.
type TasksListCmd struct {
	UserFlags
	JSON bool `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (TasksListCmd) Help() string {
	return `A detached call is one that an agent has made with agent_call: it goes on, and the outcome comes back by itself.
A skill that a client has invoked over HTTP is a run and not listed here: see troupe runs list. tasks show shows both.

Examples:
  troupe tasks list
  troupe tasks list --json`
}

// Run executes the command.
func (c *TasksListCmd) Run(s streams) error {
	body, err := c.client().get("/v1/tasks")
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	var out struct {
		All []struct {
			Task    string `json:"taskId"`
			Asker   string `json:"asker"`
			Agent   string `json:"agent"`
			Skill   string `json:"skill"`
			Session string `json:"session_id"`
			Start   int64  `json:"startTime"`
			Timeout int64  `json:"timeout"`
			Status  string `json:"status"`
			Waits   struct {
				For string `json:"for"`
				ID  string `json:"id"`
			} `json:"waiting"`
		} `json:"tasks"`
		More bool `json:"more"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return err
	}
	if len(out.All) == 0 {
		_, err := fmt.Fprintln(s.out, "no detached call is pending")
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TASK\tSTATUS\tFROM\tAGENT\tSKILL\tSESSION\tSINCE\tTIMEOUT")
	for _, t := range out.All {
		status := t.Status
		if t.Waits.For != "" {
			status += " for " + t.Waits.For + " " + t.Waits.ID
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.Task, status, t.Asker, t.Agent, cmp.Or(t.Skill, "-"), t.Session,
			time.UnixMilli(t.Start).Format(time.DateTime), timeoutText(t.Timeout))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if out.More {
		_, err = fmt.Fprintln(s.out, "there are more")
	}
	return err
}

// timeoutText returns the time for which an asker waits, or "-" if it no longer does.
func timeoutText(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

// TasksShowCmd shows a detached call.
type TasksShowCmd struct {
	UserFlags
	ID string `arg:"" help:"ID of the task, or the beginning of one that is pending."`
}

// Help returns the text shown below the flags.
func (TasksShowCmd) Help() string {
	return "Examples:\n  troupe tasks show 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"
}

// Run executes the command.
func (c *TasksShowCmd) Run(s streams) error {
	id, err := resolveTask(&c.UserFlags, c.ID)
	if err != nil {
		return err
	}
	body, err := c.client().get("/v1/tasks/" + id.String())
	return printJSONOrError(s.out, body, noTask(&c.UserFlags, id, err))
}

// noTask returns the error of a request for a task, in terms of tasks: a server looks for a run if it has no call or
// reminder with the ID.
func noTask(flags *UserFlags, id actor.CallID, err error) error {
	if p, ok := errors.AsType[*problem](err); !ok || p.Code != "run_not_found" {
		return err
	}
	return fmt.Errorf("no task %s: no detached call and no pending reminder has this ID; a reminder that has come is a message of its session (see: %s)", id, flags.hint("tasks list", nil))
}

// resolveTask returns the task that an argument names, by its ID or by a beginning that only one of those that are
// pending has.
func resolveTask(flags *UserFlags, text string) (id actor.CallID, err error) {
	list := flags.hint("tasks list", nil)
	if id, err = actor.ParseCallID(text); err == nil {
		return id, nil
	}
	if !runPrefix.MatchString(text) {
		return id, fmt.Errorf("%w, or at least its first four characters (see: %s)", err, list)
	}
	body, err := flags.client().get("/v1/tasks")
	if err != nil {
		return id, err
	}
	var pending struct {
		All []struct {
			Task string `json:"taskId"`
		} `json:"tasks"`
	}
	if err := json.Unmarshal(body, &pending); err != nil {
		return id, err
	}
	var found []string
	for _, t := range pending.All {
		if strings.HasPrefix(t.Task, strings.ToLower(text)) {
			found = append(found, t.Task)
		}
	}
	switch len(found) {
	case 0:
		return id, fmt.Errorf("no pending task begins with %s; write the whole ID of one that has ended (see: %s)", text, list)
	case 1:
		return actor.ParseCallID(found[0])
	}
	return id, fmt.Errorf("%s is the beginning of %d pending tasks; write more of the ID (see: %s)", text, len(found), list)
}

// TasksCancelCmd cancels a detached call or a reminder.
type TasksCancelCmd struct {
	UserFlags
	ID   string `arg:"" help:"ID of the task, or the beginning of one that is pending."`
	JSON bool   `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (TasksCancelCmd) Help() string {
	return "Cancels the run of the agent that was asked, which has the ID of the task, or drops a reminder, which does not come then. A\ntask that has ended otherwise stays as it is: exit code 1.\n\nExamples:\n  troupe tasks cancel 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"
}

// Run executes the command.
func (c *TasksCancelCmd) Run(s streams) error {
	id, err := resolveTask(&c.UserFlags, c.ID)
	if err != nil {
		return err
	}
	_, body, err := c.client().post("/v1/tasks/"+id.String()+":cancel", struct{}{})
	if err != nil {
		return noTask(&c.UserFlags, id, err)
	}
	var out struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return err
	}
	cancelled := out.Status == "cancelled"
	see := c.hint("tasks show", []string{id.String()})
	switch {
	case c.JSON:
		err = printJSON(s.out, body)
	case cancelled:
		_, err = fmt.Fprintf(s.err, "task %s is cancelled; to see it:\n  %s\n", id, see)
	default:
		_, err = fmt.Fprintf(s.err, "troupe: task %s is %s and cannot be cancelled; to see it:\n  %s\n", id, out.Status, see)
	}
	if err == nil && !cancelled {
		return exitCode(exitFailed)
	}
	return err
}
