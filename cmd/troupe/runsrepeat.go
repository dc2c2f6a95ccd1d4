// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/runs"
)

// RunsRepeatCmd sends the message of a run that failed again.
type RunsRepeatCmd struct {
	UserFlags
	ID     string `arg:"" help:"Run ID, or its beginning."`
	Yes    bool   `help:"Repeat it although effects of the run may happen again."`
	Stream *bool  `negatable:"" help:"Print the answer while it is generated; the default on a terminal."`
	Async  bool   `help:"Print the ID of the new run as soon as it is on disk, and do not wait for the answer."`
	JSON   bool   `help:"Print the JSON response of the server; with --stream, one event per line."`
}

// Help returns the text shown below the flags.
func (RunsRepeatCmd) Help() string {
	return `Sends the message of a run that failed, timed out or was cancelled again, to the same agent and in the same session: a new run, which
may make other calls. First the calls that the run and those below it have performed are printed, also those whose outcome is
unknown. Unless each of their tools is declared idempotent, the command needs --yes. It exits as troupe call does.

A run that has succeeded or is open is not repeated, nor one that another run called: repeat the root of its tree.

Examples:
  troupe runs repeat 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55
  troupe runs repeat 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --yes --async`
}

// Validate returns an error for a name that is not that of one user, and for flags that wait although --async does not.
func (c *RunsRepeatCmd) Validate() error {
	if err := c.validateOne(); err != nil {
		return err
	}
	call := c.call(&repeatedRun{})
	return call.Validate()
}

// call returns the command that sends the message.
func (c *RunsRepeatCmd) call(r *repeatedRun) CallCmd {
	call := CallCmd{ServerFlags: c.ServerFlags, User: c.User, Agent: r.Agent, Session: r.Session, Project: r.Project, Stream: c.Stream, Async: c.Async, JSON: c.JSON}
	if r.Priority != actor.Normal.Priority() {
		call.Priority = r.Priority
	}
	return call
}

// Run executes the command.
func (c *RunsRepeatCmd) Run(s streams) error {
	id, err := resolveRun(c.client(), c.ID, c.hint("runs list", nil))
	if err != nil {
		return err
	}
	tree, err := readRepeated(c.client(), id)
	if err != nil {
		return err
	}
	r := &tree.Runs[0]
	if err := c.check(r); err != nil {
		return err
	}
	text, effects, err := c.read(tree)
	if err != nil {
		return err
	}
	if len(effects) > 0 || tree.Truncated {
		fmt.Fprintf(s.err, "run %s performed before its end:\n", r.Run)
		for _, e := range effects {
			fmt.Fprintf(s.err, "  %s\n", e.text)
		}
		if tree.Truncated {
			fmt.Fprintf(s.err, "  and what runs after the first %d of its tree performed\n", len(tree.Runs))
		}
	}
	if !c.Yes && (tree.Truncated || slices.ContainsFunc(effects, func(e effect) bool { return !e.repeatable })) {
		return fmt.Errorf("a repeat may perform them again, and not all are idempotent; to repeat the run nevertheless:\n  %s", c.hint("runs repeat", []string{r.Run}, "--yes"))
	}
	call := c.call(r)
	return c.keyOf(r, call.send(s, text))
}

// keyOf adds to the refusal of a key that does not send the messages of another user how to get one that does.
func (c *RunsRepeatCmd) keyOf(r *repeatedRun, err error) error {
	var p *problem
	if c.User == "" || !errors.As(err, &p) || p.Code != "forbidden_user" && p.Code != "forbidden_scope" {
		return err
	}
	again := c.hint("runs repeat", []string{r.Run})
	if c.Yes {
		again = c.hint("runs repeat", []string{r.Run}, "--yes")
	}
	return fmt.Errorf("%s: the message is sent as %s, for whom the key may not send; to make a key that may, and to repeat the run with it:\n  %s\n  TROUPE_KEY=KEY %s",
		p.Code, c.User, hint("keys create", nil, []string{"--act-as-user", "--data", "DIR"}), again)
}

// repeatedRun is a run of the tree that is repeated.
type repeatedRun struct {
	runView
	Agent   string `json:"agent_id"`
	Session string `json:"session_id"`
	Parent  string `json:"parent_run_id"`
}

// repeatedTree is the response to GET /v1/runs/{id}?tree=1; the first run is the root.
type repeatedTree struct {
	Runs      []repeatedRun `json:"runs"`
	Truncated bool          `json:"truncated"`
}

func readRepeated(from client, id actor.CallID) (tree repeatedTree, err error) {
	body, err := from.get("/v1/runs/" + id.String() + "?tree=1")
	if err == nil {
		err = json.Unmarshal(body, &tree)
	}
	var own runView
	if err == nil && len(tree.Runs) == 0 && json.Unmarshal(body, &own) == nil && own.Run != "" { // a customer
		return tree, errors.New("forbidden: a repeat needs to know what the run has performed, which the server does not show this key; to send the message again:\n  " + from.flags.hint("call", []string{"AGENT", "TEXT"}))
	}
	if err == nil && len(tree.Runs) == 0 {
		err = fmt.Errorf("server %s: its answer names no run; is it a troupe server?", from.server)
	}
	return tree, err
}

// check returns an error for a run that is not repeated, with the command that helps.
func (c *RunsRepeatCmd) check(r *repeatedRun) error {
	id := []string{r.Run}
	switch {
	case r.Parent != "":
		return fmt.Errorf("run %s was called by another run; to repeat the root of its tree, if that failed:\n  %s", r.Run, c.hint("runs repeat", []string{r.Root}))
	case r.State == runs.AgentParked:
		return fmt.Errorf("run %s is parked, and continues with its effects:\n  %s", r.Run, c.hint("runs retry", id))
	case r.Status == runs.Done.String():
		return fmt.Errorf("run %s has succeeded, and is not repeated; to send another message:\n  %s", r.Run, c.hint("call", []string{r.Agent, "TEXT"}, "--session", r.Session))
	case r.Ended == "":
		return fmt.Errorf("run %s is open (%s), and is not repeated; to follow it, or to end it first:\n  %s\n  %s", r.Run, r.Status, c.hint("runs events", id, "--follow"), c.hint("runs cancel", id))
	}
	return nil
}

// effect is a call that a run has performed, or may have.
type effect struct {
	text       string
	repeatable bool // its tool is declared idempotent
}

// read returns the message of the root and what the runs of the tree have performed.
func (c *RunsRepeatCmd) read(tree repeatedTree) (text string, all []effect, err error) {
	found, tools := false, map[string]bool{}
	for i := range tree.Runs {
		r := &tree.Runs[i]
		events, err := everyEvent(c.client(), r.Run)
		if err != nil {
			return "", nil, err
		}
		if i == 0 {
			if text, found, err = c.message(r, events); err != nil {
				return "", nil, err
			}
		}
		of := ""
		if i > 0 {
			of = "  by " + r.Actor + ", run " + r.Run
		}
		for _, one := range performed(events) {
			name := one.Name
			if _, known := tools[name]; !known && one.kind == runs.KindTool {
				tools[name] = c.client().isIdempotent(name)
			}
			all = append(all, effect{oneLine(one.line()) + of, one.kind == runs.KindTool && tools[name]})
		}
	}
	if !found {
		r := &tree.Runs[0]
		return "", nil, fmt.Errorf("the message of run %s is not kept whole: it has more than 4 KiB and is not in the conversation of its session; send it again with:\n  %s", r.Run, c.hint("call", []string{r.Agent, "@FILE"}, "--session", r.Session))
	}
	return text, all, nil
}

// everyEvent returns all events of a run.
func everyEvent(from client, run string) (all []runs.Event, err error) {
	id, err := actor.ParseCallID(run)
	if err != nil {
		return nil, err
	}
	for after := uint64(0); ; {
		page, err := readEvents(from, id, after, 0)
		if err != nil {
			return nil, err
		}
		for _, raw := range page.Events {
			e, err := runs.Decode(raw)
			if err != nil {
				return nil, err
			}
			all = append(all, e)
		}
		if page.Ended || len(page.Events) == 0 {
			return all, nil
		}
		after = page.Next
	}
}

// message returns the message of a client that began a run; false if it is not kept whole.
func (c *RunsRepeatCmd) message(r *repeatedRun, events []runs.Event) (text string, whole bool, err error) {
	at := slices.IndexFunc(events, func(e runs.Event) bool { return e.Type == runs.UserInput })
	started := slices.IndexFunc(events, func(e runs.Event) bool { return e.Type == runs.RunStarted })
	switch {
	case at < 0, events[at].Origin == actor.Agent.String():
		return "", false, fmt.Errorf("run %s began with no message of a client, but with an answer to a call or a reminder: there is nothing to send again", r.Run)
	case started >= 0 && events[started].Operation != actor.HandleMessageFull:
		return "", false, fmt.Errorf("run %s began with a request for %s, not with a message: send the request again", r.Run, cmp.Or(events[started].Operation, "a capability"))
	case !events[at].Truncated:
		return events[at].Text, true, nil
	}
	before := ""
	for {
		q := url.Values{"agent": {r.Agent}, "limit": {strconv.Itoa(gateway.RunsMax)}}
		if before != "" {
			q.Set("before", before)
		}
		body, err := c.client().get("/v1/sessions/" + url.PathEscape(r.Session) + "/messages?" + encodeQuery(q))
		if p := (*problem)(nil); errors.As(err, &p) && p.status == 404 {
			return "", false, nil // the agent keeps no conversation
		} else if err != nil {
			return "", false, err
		}
		var page struct {
			Messages []struct {
				Role    string `json:"role"`
				Content string `json:"content"`
				Run     string `json:"run_id"`
			} `json:"messages"`
			Next string `json:"next_before"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return "", false, err
		}
		for _, m := range page.Messages {
			if m.Run == r.Run && m.Role == "user" {
				return m.Content, true, nil
			}
		}
		if before = page.Next; before == "" {
			return "", false, nil
		}
	}
}

// performedCall is a call of a tool or other work that a run has begun to perform.
type performedCall struct {
	runs.ToolCall
	kind string // as in its event; "" for an external agent
}

// performed returns the calls that a run has begun to perform, in order.
func performed(events []runs.Event) (all []performedCall) {
	for i := range events {
		e := &events[i]
		switch e.Type {
		case runs.AgentInvokeStarted:
			all = append(all, performedCall{ToolCall: runs.ToolCall{Name: e.Name}})
		case runs.ToolCallCreated:
			if e.Kind == runs.KindBudget {
				continue
			}
			call, found, err := runs.FoldToolCall(events[i:], runs.ToolCallID{Run: e.Run, Step: e.Step, Index: e.Index})
			if err != nil || found && (call.Dispatched != 0 || call.Status == runs.ToolStatusSucceeded || call.Status == runs.ToolStatusTimeout) {
				all = append(all, performedCall{call, e.Kind})
			}
		}
	}
	return all
}

// line returns the name, the outcome and the beginning of the arguments of the call.
func (p *performedCall) line() string {
	outcome := "failed"
	switch {
	case p.kind == "":
		return "external agent " + p.Name + "  was invoked: what it did by itself is not known"
	case p.Status == runs.ToolStatusSucceeded:
		outcome = "done"
	case p.Refusal != nil && (p.Refusal.Reason == actor.Unknown || p.Refusal.Reason == actor.Stopped || p.Refusal.Reason == actor.Deadline):
		outcome = "outcome unknown"
	}
	return strings.TrimRight(p.Name+"  "+outcome+"  "+cutLine(p.Args, callResultRunesMax), " ")
}

// isIdempotent reports whether a declared tool may be performed twice.
func (c client) isIdempotent(tool string) bool {
	c.namespace = "" // tools are those of all users
	body, err := c.get("/v1/tools/" + url.PathEscape(tool))
	var declared struct {
		Via        string `json:"via"`
		Idempotent bool   `json:"idempotent"`
	}
	return err == nil && json.Unmarshal(body, &declared) == nil && (declared.Idempotent || declared.Via == "wasm")
}
