// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/runs"
)

// runView holds the fields of a run in GET /v1/runs/{id} that the commands print.
type runView struct {
	Run      string   `json:"run_id"`
	Root     string   `json:"root_run_id"`
	Actor    string   `json:"actor"`
	User     string   `json:"principal"`
	Key      string   `json:"key_id"`
	Status   string   `json:"status"`
	State    string   `json:"agent_state"`
	Place    int      `json:"queue_place"`
	Outcome  string   `json:"outcome"`
	Warnings []string `json:"warnings"`
	Project  string   `json:"project_id"`
	Trace    string   `json:"trace_id"`
	Claimed  string   `json:"claimed_run_id"`
	Priority string   `json:"priority"`
	Depth    int      `json:"call_depth"`
	Chain    []string `json:"call_chain"`
	Left     int64    `json:"time_left_ms"`
	Created  string   `json:"created_at"`
	Started  string   `json:"started_at"`
	Ended    string   `json:"ended_at"`
	Text     string   `json:"text"`
	Waits    []struct {
		Name  string `json:"name"`
		Until string `json:"until"`
	} `json:"waiting_for"`
	Clamped  []clampView `json:"clamped"`
	Children []childView `json:"children"`
	Error    *runError   `json:"error"`
	Usage    tokens      `json:"usage"`
	Tree     tokens      `json:"tree_usage"`
}

// childView is a call that a run has made.
type childView struct {
	Run    string    `json:"child_run_id"`
	Target string    `json:"target"`
	Left   int64     `json:"time_left_ms"`
	Error  *runError `json:"error"`
}

// clampView is a call or a wait that got less time than it requested.
type clampView struct {
	Name  string `json:"name"`
	Asked int64  `json:"asked_ms"`
	Left  int64  `json:"time_left_ms"`
}

func (c clampView) String() string {
	return fmt.Sprintf("%s has %s, less than the %s requested", cmp.Or(c.Name, "a call"), formatMillis(c.Left), formatMillis(c.Asked))
}

// tokens is the usage of a run or of a tree.
type tokens struct {
	Input    int64 `json:"input_tokens"`
	Output   int64 `json:"output_tokens"`
	Total    int64 `json:"total_tokens"`
	Cost     int64 `json:"cost_micros"`
	Unpriced int64 `json:"unpriced_tokens"`
}

func (t tokens) String() string {
	return fmt.Sprintf("%d (%d in, %d out)", t.Total, t.Input, t.Output)
}

// cost returns what the tokens cost, with what is not in it.
func (t tokens) cost(currency string) string {
	text := strings.TrimRight(actor.ShowMoney(t.Cost)+" "+currency, " ")
	if t.Unpriced > 0 {
		text += fmt.Sprintf(", and %d tokens of models without a price", t.Unpriced)
	}
	return text
}

// currencyOf returns the currency of costs; "" if there are none, or the source does not say.
func currencyOf(from source, t tokens) string {
	var report usageReport
	if t.Cost == 0 {
		return ""
	}
	today := time.Now().UTC().Format(time.DateOnly)
	body, err := from.usage(url.Values{"from": {today}, "to": {today}, "by": {""}, "limit": {"1"}})
	if err != nil || json.Unmarshal(body, &report) != nil {
		return ""
	}
	return report.Currency
}

type runError struct {
	Message  string `json:"message"`
	Reported string `json:"reported_code"`
}

// text returns the message without the name of errors of what cannot be reached, which reads as a bug of the server, and the
// code that an agent, tool or model has reported.
func (e *runError) text() string {
	return cmp.Or(strings.TrimPrefix(e.Message, actor.Unavailable.Info().Error+": "), notAnswered) + reportedCode(e.Reported)
}

// notAnswered is what the commands print of a failure of which the server gives a client no words.
const notAnswered = "the message could not be answered"

// errNoTree is the error of a tree for a client to which the server shows no calls, such as a customer.
var errNoTree = errors.New("the tree of calls is not printed: the server shows this key no calls of a run")

// reportedCode returns a note with the code that an agent, tool or model has reported, or "".
func reportedCode(code string) string {
	if code == "" {
		return ""
	}
	return " (it reported " + oneLine(code) + ")"
}

// writeStatus writes the status of the run with its open waits and its error, on one line.
func (r *runView) writeStatus(w io.Writer) {
	r.writeState(w)
	if r.Error != nil {
		fmt.Fprintf(w, ": %s", oneLine(r.Error.text()))
	}
}

// writeState is writeStatus without the error. A run that has not begun is QUEUED, and one that waits
// for a person to retry it is PARKED.
func (r *runView) writeState(w io.Writer) {
	status := r.Status
	if r.State == runs.AgentQueued || r.State == runs.AgentParked {
		status = strings.ToUpper(r.State)
	}
	writeStatus(w, status)
	if r.Place > 0 {
		fmt.Fprintf(w, ", place %d in the mailbox", r.Place)
	}
	if r.Outcome == actor.Partial.String() {
		fmt.Fprint(w, ", partial")
	}
	for _, wait := range r.Waits {
		fmt.Fprintf(w, ", waits for the signal %s until %s", wait.Name, wait.Until)
	}
}

// print prints the run. The currency is that of its costs.
func (r *runView) print(w io.Writer, currency string) {
	fmt.Fprintf(w, "run      %s\n", r.Run)
	if r.Actor != "" { // else the client is a customer
		fmt.Fprintf(w, "actor    %s\n", r.Actor)
	}
	fmt.Fprint(w, "status   ")
	r.writeState(w)
	if r.Error != nil {
		fmt.Fprintf(w, ": %s", r.Error.text()) // the reason of a parked run has several lines
	}
	fmt.Fprintf(w, "\ncreated  %s\n", localTime(r.Created))
	if r.Ended != "" {
		fmt.Fprintf(w, "ended    %s\n", localTime(r.Ended))
	}
	if r.User != "" {
		fmt.Fprintf(w, "user     %s\n", r.User)
	}
	if r.Key != "" {
		fmt.Fprintf(w, "key      %s\n", r.Key)
	}
	if r.Priority != "" && r.Priority != "normal" {
		fmt.Fprintf(w, "priority %s\n", r.Priority)
	}
	if r.Project != "" {
		fmt.Fprintf(w, "project  %s\n", r.Project)
	}
	if r.Trace != "" {
		fmt.Fprintf(w, "trace    %s\n", r.Trace)
	}
	if r.Claimed != "" {
		fmt.Fprintf(w, "claims   %s, without its token\n", r.Claimed)
	}
	if len(r.Chain) > 0 {
		fmt.Fprintf(w, "chain    %s\n", strings.Join(r.Chain, " -> "))
	}
	if r.Usage != (tokens{}) {
		fmt.Fprintf(w, "tokens   %s\n", r.Usage)
	}
	if r.Usage.Cost > 0 {
		fmt.Fprintf(w, "cost     %s\n", r.Usage.cost(currency))
	}
	if r.Tree != r.Usage {
		text := r.Tree.String()
		if r.Tree.Cost > 0 {
			text += ", cost " + r.Tree.cost(currency)
		}
		fmt.Fprintf(w, "in tree  %s\n", text)
	}
	if r.Text != "" {
		fmt.Fprintf(w, "answer   %s\n", r.Text)
	}
	for _, c := range r.Clamped {
		fmt.Fprintf(w, "warning  %s\n", c)
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(w, "warning  %s\n", warning)
	}
}

// printTree prints a run and the runs it called, one line each.
func printTree(w io.Writer, from source, root actor.CallID) error {
	body, err := from.run(root)
	var r runView
	if err == nil {
		err = json.Unmarshal(body, &r)
	}
	if err != nil {
		return err
	}
	if r.Actor == "" {
		return errNoTree
	}
	return printBranch(w, from, &r, currencyOf(from, r.Tree), "", "")
}

// printChild prints a run that another one called. One that has not begun, or ended before, has no depth and no time of
// its own.
func printChild(w io.Writer, from source, parent *runView, c *childView, currency, prefix, childPrefix string) error {
	id, err := actor.ParseCallID(c.Run)
	if err != nil {
		return err
	}
	body, err := from.run(id)
	var r runView
	if err == nil {
		err = json.Unmarshal(body, &r)
	}
	if err != nil {
		return err
	}
	if r.Started == "" {
		r.Depth, r.Left = parent.Depth+1, c.Left
	}
	return printBranch(w, from, &r, currency, prefix, childPrefix)
}

func printBranch(w io.Writer, from source, r *runView, currency, prefix, childPrefix string) error {
	fmt.Fprintf(w, "%s%s  ", prefix, r.Actor)
	r.writeStatus(w)
	fmt.Fprintf(w, "  depth %d  time left %s", r.Depth, formatMillis(r.Left))
	if took, ok := elapsed(r.Created, r.Ended); ok {
		fmt.Fprintf(w, "  took %s", took.Round(100*time.Microsecond))
	}
	if r.Tree != (tokens{}) {
		fmt.Fprintf(w, "  tokens %d of %d", r.Usage.Total, r.Tree.Total)
	}
	if r.Tree.Cost > 0 {
		fmt.Fprintf(w, "  cost %s of %s", actor.ShowMoney(r.Usage.Cost), strings.TrimRight(actor.ShowMoney(r.Tree.Cost)+" "+currency, " "))
	}
	fmt.Fprintf(w, "  run %s\n", r.Run)
	for _, c := range r.Clamped {
		line := "   "
		if len(r.Children) > 0 {
			line = "│  "
		}
		fmt.Fprintf(w, "%s%swarning: %s\n", childPrefix, line, c)
	}
	if err := r.addDetached(from); err != nil {
		return err
	}
	for i, c := range r.Children {
		branch, indent := "├─ ", "│  "
		if i == len(r.Children)-1 {
			branch, indent = "└─ ", "   "
		}
		if c.Run == "" {
			fmt.Fprintf(w, "%s%s%s  refused: %s\n", childPrefix, branch, c.Target, c.Error.text())
			continue
		}
		err := printChild(w, from, r, &c, currency, childPrefix+branch, childPrefix+indent)
		if p, ok := err.(*problem); ok && p.status == 404 || isNotFound(err) {
			fmt.Fprintf(w, "%s%s%s  in transit  time left %s  run %s\n", childPrefix, branch, c.Target, formatMillis(c.Left), c.Run)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// addDetached adds the calls that the run has made without waiting, the oldest first. Its events do not name
// them, so they are searched among the runs that began while it was open.
func (r *runView) addDetached(from source) error {
	q := url.Values{"parent_run_id": {r.Run}, "limit": {strconv.Itoa(gateway.RunsMax)}, "since": {r.Created}}
	if ended, err := runs.ParseTime(r.Ended); err == nil {
		q.Set("until", runs.FormatTime(ended.Add(time.Second)))
	}
	calls := len(r.Children)
	for {
		body, err := from.runs(q)
		if err != nil {
			return err
		}
		var page struct {
			Runs []runView `json:"runs"`
			Next string    `json:"next_cursor"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return err
		}
		for _, d := range page.Runs {
			if d.Root == r.Root && !slices.ContainsFunc(r.Children, func(c childView) bool { return c.Run == d.Run }) {
				r.Children = slices.Insert(r.Children, calls, childView{Run: d.Run, Target: d.Actor, Left: d.Left})
			}
		}
		if page.Next == "" {
			return nil
		}
		q.Set("cursor", page.Next)
	}
}

// isNotFound reports whether a data folder has no record of a run. The record
// exists once the callee has admitted the call.
func isNotFound(err error) bool {
	r, ok := err.(*actor.Refusal)
	return ok && r.Reason == actor.NotFound
}

func formatMillis(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).Round(100 * time.Millisecond).String()
}

func elapsed(from, to string) (time.Duration, bool) {
	a, err := runs.ParseTime(from)
	b, err2 := runs.ParseTime(to)
	return b.Sub(a), err == nil && err2 == nil
}

func readEvents(from source, id actor.CallID, after uint64, wait time.Duration) (page eventsPage, err error) {
	body, err := from.events(id, after, wait)
	if err != nil {
		return page, err
	}
	return page, json.Unmarshal(body, &page)
}
