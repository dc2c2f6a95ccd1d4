// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// sessionState is the part of the state of a session that is printed.
type sessionState struct {
	Pending map[string]struct {
		Agent  string `json:"agent"`
		Skill  string `json:"skill"`
		Asker  string `json:"asker"`
		Start  int64  `json:"startTime"`
		Status string `json:"status"`
		Waits  struct {
			For string `json:"for"`
			ID  string `json:"id"`
		} `json:"waiting"`
	} `json:"pendingRequests"`
	Workflow *struct {
		Agent    string `json:"agent_id"`
		Run      string `json:"run_id"`
		Question string `json:"question"`
		Steps    []struct {
			Title      string `json:"title"`
			Capability string `json:"capability_code"`
			Status     string `json:"status"`
		} `json:"steps"`
	} `json:"workflow"`
	Agents map[string]struct {
		State  jsontext.Value `json:"state"`
		Detail jsontext.Value `json:"detail"`
	} `json:"agents"`
	Notes []struct {
		Kind  string         `json:"kind"`
		Name  string         `json:"name"`
		Value jsontext.Value `json:"value"`
		Agent string         `json:"agent_id"`
	} `json:"notes"`
}

// sessionState returns what the agents of a session share, as JSON; nil if the key may not read it.
func (c *SessionsShowCmd) state() ([]byte, error) {
	body, err := c.client().get("/v1/sessions/" + url.PathEscape(c.Session) + "/state")
	var p *problem
	if errors.As(err, &p) && (p.status == http.StatusForbidden || p.status == http.StatusNotFound) {
		return nil, nil
	}
	return body, err
}

// printState prints the notes, the workflow, the states of agents, and the pending calls of a session.
func (c *SessionsShowCmd) printState(out io.Writer) error {
	body, err := c.state()
	if err != nil || body == nil {
		return err
	}
	var s sessionState
	if err := json.Unmarshal(body, &s); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, n := range s.Notes {
		fmt.Fprintf(w, "note\t%s\t%s\t%s\n", n.Agent, strings.TrimSpace(n.Kind+" "+n.Name), valueText(n.Value))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Agents)) {
		if a := s.Agents[name]; a.State != nil {
			fmt.Fprintf(w, "state\t%s\t%s\t%s\n", name, valueText(a.State), valueText(a.Detail))
		}
	}
	if f := s.Workflow; f != nil {
		for i, step := range f.Steps {
			fmt.Fprintf(w, "step %d\t%s\t%s\t%s\n", i+1, f.Agent, step.Status, cmp.Or(step.Title, step.Capability))
		}
		if f.Question != "" {
			fmt.Fprintf(w, "question\t%s\t\t%s\n", f.Agent, oneLine(f.Question))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.Pending)) {
		p := s.Pending[id]
		status := strings.TrimSpace(p.Status + " " + p.Waits.For + " " + p.Waits.ID)
		fmt.Fprintf(w, "%s\t%s to %s\t%s\t%s since %s\n", id, p.Asker, p.Agent, status, cmp.Or(p.Skill, "-"), time.UnixMilli(p.Start).Format(time.DateTime))
	}
	return w.Flush()
}

// valueBytesMax is the beginning of a value that is printed; --state --json prints all.
const valueBytesMax = 200

// valueText returns a JSON value on one line: a text without its quotes.
func valueText(v jsontext.Value) string {
	var text string
	if v.Kind() != '"' || json.Unmarshal(v, &text) != nil {
		text = string(v)
	}
	return actor.FitText(oneLine(text), valueBytesMax)
}
