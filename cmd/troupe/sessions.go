// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/host/gateway"
)

// SessionsCmd groups the commands about sessions.
type SessionsCmd struct {
	List   SessionsListCmd   `cmd:"" help:"List sessions, the last changed first."`
	Show   SessionsShowCmd   `cmd:"" help:"Print the conversation of a session, and what its agents share."`
	Delete SessionsDeleteCmd `cmd:"" help:"Delete a session with all that it contains."`
}

// SessionsListCmd lists sessions.
type SessionsListCmd struct {
	UserFlags
	Limit  int    `default:"50" help:"Maximum number of sessions, 1 to 200 (${default})."`
	Cursor string `help:"Continue a list where another ended: printed as next."`
	JSON   bool   `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (SessionsListCmd) Help() string {
	return "A page has the sessions with the highest names, ordered by their last changes: raise --limit to order more of them.\n\nExamples:\n  troupe sessions list\n  troupe sessions list --json | jq -r '.sessions[].session_id'"
}

// sessionView is the part of a session that is printed.
type sessionView struct {
	Session string `json:"session_id"`
	Title   string `json:"title"`
	Created string `json:"created_at"`
	Last    string `json:"last_message_at"`
	Agents  []struct {
		Agent    string   `json:"agent_id"`
		Messages uint64   `json:"messages"`
		Open     []string `json:"open_runs"`
	} `json:"agents"`
	Usage *struct {
		Total int64 `json:"total_tokens"`
	} `json:"usage"` // nil for a customer
}

// Run executes the command.
func (c *SessionsListCmd) Run(s streams) error {
	if c.Limit < 1 || c.Limit > gateway.SessionsMax {
		return fmt.Errorf("--limit: want 1 to %d, got %d", gateway.SessionsMax, c.Limit)
	}
	q := url.Values{"limit": {strconv.Itoa(c.Limit)}}
	if c.Cursor != "" {
		q.Set("cursor", c.Cursor)
	}
	body, err := c.client().get("/v1/sessions?" + encodeQuery(q))
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	var page struct {
		Sessions []sessionView `json:"sessions"`
		Next     string        `json:"next_cursor"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	if isTerminal(s.out) && len(page.Sessions) > 0 {
		usage := "USAGE\t"
		if page.Sessions[0].Usage == nil {
			usage = ""
		}
		fmt.Fprintf(w, "SESSION\tLAST CHANGE\tAGENTS\t%sTITLE\n", usage)
	}
	for i := range page.Sessions {
		v, usage := &page.Sessions[i], ""
		if v.Usage != nil {
			usage = fmt.Sprintf("%d tokens\t", v.Usage.Total)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s%s\n", v.Session, localTime(v.Last), v.agents(), usage, v.Title)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	switch {
	case len(page.Sessions) == 0:
		fmt.Fprintf(s.err, "no sessions; a message begins one:\n  %s\n", c.hint("call", []string{"AGENT", "MESSAGE"}))
	case page.Next != "":
		fmt.Fprintf(s.err, "next: %s\n", c.hint("sessions list", nil, "--limit", strconv.Itoa(c.Limit), "--cursor", page.Next))
	}
	return nil
}

// agents returns the agents with messages and the number of these.
func (v *sessionView) agents() string {
	var all []string
	for _, a := range v.Agents {
		if a.Messages == 0 && len(a.Open) == 0 {
			continue
		}
		text := fmt.Sprintf("%s %d messages", a.Agent, a.Messages)
		if len(a.Open) > 0 {
			text += fmt.Sprintf(", %d open", len(a.Open))
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// SessionsShowCmd prints the conversation of a session, and what its agents share.
type SessionsShowCmd struct {
	UserFlags
	Session string `arg:"" help:"Session."`
	Agent   string `help:"Agent whose conversation is printed, if the session has several."`
	Limit   int    `default:"50" help:"Maximum number of messages, 1 to 200 (${default})."`
	Before  string `help:"Only messages before the one with this message ID."`
	State   bool   `help:"Print only what the agents share: notes, states, the steps of a workflow, and pending calls."`
	JSON    bool   `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (SessionsShowCmd) Help() string {
	return "The notes of its agents, their states, the steps of a workflow and the calls that are pending follow the conversation.\n\nExamples:\n  troupe sessions show trip\n  troupe sessions show trip --agent planner --limit 10 --json\n  troupe sessions show trip --state"
}

// messageView is the part of a message that is printed.
type messageView struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	Run     string `json:"run_id"`
}

// Run executes the command.
func (c *SessionsShowCmd) Run(s streams) error {
	if c.Limit < 1 || c.Limit > gateway.MessagesMax {
		return fmt.Errorf("--limit: want 1 to %d, got %d", gateway.MessagesMax, c.Limit)
	}
	if c.State {
		return c.onlyState(s)
	}
	q := url.Values{"limit": {strconv.Itoa(c.Limit)}}
	if c.Agent != "" {
		q.Set("agent", c.Agent)
	}
	if c.Before != "" {
		q.Set("before", c.Before)
	}
	body, err := c.client().get("/v1/sessions/" + url.PathEscape(c.Session) + "/messages?" + encodeQuery(q))
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	var page struct {
		Messages []messageView `json:"messages"`
		Open     []messageView `json:"open"`
		Total    uint64        `json:"total"`
		Before   string        `json:"next_before"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return err
	}
	if page.Before != "" {
		fmt.Fprintf(s.err, "%d of %d messages; older: %s\n", len(page.Messages), page.Total, c.hint("sessions show", []string{c.Session}, "--before", page.Before))
	}
	for _, m := range page.Messages {
		if err := m.print(s.out); err != nil {
			return err
		}
	}
	for _, m := range page.Open {
		if err := m.print(s.out); err != nil {
			return err
		}
		if m.Run == "" { // the turn of an outcome
			fmt.Fprintln(s.err, "no answer yet")
			continue
		}
		fmt.Fprintf(s.err, "no answer yet: %s\n", c.hint("runs show", []string{m.Run}))
	}
	if c.Before != "" {
		return nil
	}
	return c.printState(s.out)
}

// onlyState prints what the agents share, without the conversation.
func (c *SessionsShowCmd) onlyState(s streams) error {
	if c.JSON {
		body, err := c.client().get("/v1/sessions/" + url.PathEscape(c.Session) + "/state")
		return printJSONOrError(s.out, body, err)
	}
	var text strings.Builder
	if err := c.printState(&text); err != nil {
		return err
	}
	if text.Len() == 0 {
		_, err := fmt.Fprintln(s.err, "the agents of the session share nothing, and no call is pending")
		return err
	}
	_, err := io.WriteString(s.out, text.String())
	return err
}

func (m *messageView) print(out io.Writer) error {
	_, err := fmt.Fprintf(out, "%s: %s\n", m.Role, strings.ReplaceAll(strings.TrimRight(m.Content, "\n"), "\n", "\n    "))
	return err
}

// SessionsDeleteCmd deletes a session.
type SessionsDeleteCmd struct {
	UserFlags
	Session string `arg:"" help:"Session."`
	Cancel  bool   `help:"Cancel open runs first; otherwise a session with open runs is kept."`
}

// Help returns the text shown below the flags.
func (SessionsDeleteCmd) Help() string {
	return "The messages, runs and events of the session are removed, also from the log on disk. Backups made before still contain them.\n\nExamples:\n  troupe sessions delete old-trip\n  troupe sessions delete stuck --cancel"
}

// Run executes the command.
func (c *SessionsDeleteCmd) Run(s streams) error {
	path := "/v1/sessions/" + url.PathEscape(c.Session)
	if c.Cancel {
		path += "?cancel=1"
	}
	user := c.ServerFlags.client()
	user.user = c.User // only the user deletes a session
	if _, _, err := user.do(context.Background(), http.MethodDelete, path, nil); err != nil {
		return err
	}
	fmt.Fprintf(s.err, "session %s is deleted\n", c.Session)
	return nil
}

// lastSession returns the session of the newest message of a client to an agent.
func lastSession(c client, agent string) (string, error) {
	q := url.Values{"agent_id": {agent}, "limit": {strconv.Itoa(gateway.RunsMax)}}
	for range listPagesMax {
		body, err := c.runs(q)
		if err != nil {
			return "", err
		}
		var page runsList
		if err := json.Unmarshal(body, &page); err != nil {
			return "", err
		}
		for _, raw := range page.Runs {
			if session, ok := rootSession(raw); ok {
				return session, nil
			}
		}
		if page.Next == "" {
			break
		}
		q.Set("cursor", page.Next)
	}
	return "", fmt.Errorf("--continue: %s has no session yet; send the first message without it", agent)
}

// rootSession returns the session of a run that a client began.
func rootSession(raw jsontext.Value) (string, bool) {
	var run runView
	err := json.Unmarshal(raw, &run)
	session := run.Actor[strings.LastIndexByte(run.Actor, '/')+1:]
	return session, err == nil && session != "" && run.Run == run.Root
}
