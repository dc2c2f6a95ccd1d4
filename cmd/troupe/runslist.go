// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
)

// RunsListCmd lists runs.
type RunsListCmd struct {
	SourceFlags
	Limit   int     `default:"20" help:"Maximum number of runs, 1 to 200 (${default})."`
	Cursor  string  `help:"Continue a list where another ended: printed as next."`
	Agent   *string `help:"Only runs of this agent, also those that other runs called."`
	Session *string `help:"Only runs of this session."`
	Status  *string `help:"Only runs with this status, for example FAILED or QUEUED."`
	Since   *string `help:"Only runs since then: a time such as 2027-01-31T12:00:00Z, or a duration before now such as 1h."`
	Until   *string `help:"Only runs before then."`
	Root    *string `help:"Only the runs of the tree with this root."`
	Parent  *string `help:"Only the runs that this run called."`

	Correlation *string `help:"Only the runs of the requests for capabilities with this correlation_id."`
	System      bool    `help:"Also runs of Troupe's own agents."`
	JSON        bool    `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (RunsListCmd) Help() string {
	return `Without --agent, --session, --root and --parent the list has the runs of clients only.

Examples:
  troupe runs list
  troupe runs list --agent helper --status FAILED --since 1h
  troupe runs list --root 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55
  troupe runs list --data data --limit 5
  troupe runs list --user alice
  troupe runs list --user '*'`
}

// listPagesMax is the maximum number of pages that a command reads for one list. A page
// reads 2,000 runs at most, of which a filter may select none.
const listPagesMax = 50

// runsList is the response to GET /v1/runs, or several of them.
type runsList struct {
	Runs []jsontext.Value `json:"runs"`
	Next string           `json:"next_cursor,omitzero"`
}

// Run executes the command.
func (c *RunsListCmd) Run(s streams) error {
	if c.Limit < 1 || c.Limit > gateway.RunsMax {
		return fmt.Errorf("--limit: want 1 to %d, got %d", gateway.RunsMax, c.Limit)
	}
	q := c.query(time.Now())
	if err := c.checkFilters(q); err != nil {
		return err
	}
	return c.withSource(func(from source) error {
		all, err := c.read(from, q)
		if err != nil {
			return err
		}
		if c.JSON {
			body, err := json.Marshal(all)
			return printJSONOrError(s.out, body, err)
		}
		if len(all.Runs) == 0 && all.Next == "" {
			fmt.Fprintln(s.err, c.none())
		}
		if err := printRuns(s.out, all.Runs, time.Now()); err != nil {
			return err
		}
		if all.Next == "" {
			return nil
		}
		if len(all.Runs) < c.Limit {
			fmt.Fprintf(s.err, "%d of %d runs found in %d pages; older runs were not read\n", len(all.Runs), c.Limit, listPagesMax)
		}
		command, rest, _ := strings.Cut(c.hint("runs list", nil, "--cursor", all.Next), " --cursor")
		fmt.Fprintf(s.err, "next: %s%s --cursor%s\n", command, c.flags(), rest)
		return nil
	})
}

// none returns the line of an empty list. A filter that selects no run of a client may select runs that those called.
func (c *RunsListCmd) none() string {
	calls := slices.ContainsFunc([]*string{c.Agent, c.Session, c.Root, c.Parent, c.Correlation}, func(s *string) bool { return s != nil })
	if calls || c.Status == nil && c.Since == nil && c.Until == nil {
		return "no runs"
	}
	return "no runs of clients; --agent NAME lists also those that other runs called, as do --session, --root and --parent"
}

// read reads pages until it has found as many runs as the limit, up to listPagesMax.
func (c *RunsListCmd) read(from source, q url.Values) (runsList, error) {
	all := runsList{Runs: []jsontext.Value{}}
	for range listPagesMax {
		body, err := from.runs(q)
		if err != nil {
			return all, err
		}
		var page runsList
		if err := json.Unmarshal(body, &page); err != nil {
			return all, err
		}
		all.Runs, all.Next = append(all.Runs, page.Runs...), page.Next
		if all.Next == "" || len(all.Runs) >= c.Limit {
			break
		}
		q.Set("cursor", all.Next)
		q.Set("limit", strconv.Itoa(c.Limit-len(all.Runs)))
	}
	return all, nil
}

// printRuns prints one line for each run, with its user if they differ, on a terminal below the
// names of the columns.
func printRuns(out io.Writer, all []jsontext.Value, now time.Time) error {
	if len(all) == 0 {
		return nil
	}
	var columns strings.Builder
	w := tabwriter.NewWriter(&columns, 0, 0, 2, ' ', 0)
	titles := isTerminal(out)
	views, users := make([]runView, len(all)), map[string]bool{}
	for i, raw := range all {
		r := &views[i]
		if err := json.Unmarshal(raw, r); err != nil {
			return err
		}
		users[r.User] = true
	}
	if titles {
		fmt.Fprint(w, "RUN\tCREATED\tAGE\tACTOR\t")
		if len(users) > 1 {
			fmt.Fprint(w, "USER\t")
		}
		fmt.Fprintln(w, "TOKENS\t")
	}
	for i := range views {
		r := &views[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t", r.Run, localTime(r.Created), since(now, r.Created))
		if of := r.shownActor(len(users) > 1); len(users) > 1 {
			fmt.Fprintf(w, "%s\t%s\t", of, r.User)
		} else {
			fmt.Fprintf(w, "%s\t", of)
		}
		total := "-"
		if r.Tree.Total > 0 {
			total = strconv.Itoa(int(r.Tree.Total))
		}
		fmt.Fprintf(w, "%s\t\n", total)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	lines := strings.Split(columns.String(), "\n")
	if titles {
		fmt.Fprintln(out, lines[0]+"STATUS")
		lines = lines[1:]
	}
	for i := range views {
		fmt.Fprint(out, lines[i])
		views[i].writeStatus(out)
		if text := views[i].Text; text != "" {
			fmt.Fprintf(out, ": %s", actor.FitText(oneLine(text), answerHeadMax))
		}
		fmt.Fprintln(out)
	}
	return nil
}

// shownActor returns the actor without its namespace if the user is shown beside it, and otherwise with the name
// of the user instead of a namespace that is a hash of it.
func (r *runView) shownActor(besideUser bool) string {
	namespace, rest, ok := strings.Cut(r.Actor, "/")
	switch {
	case !ok || strings.Count(rest, "/") == 0: // the namespace of the caller
		return r.Actor
	case besideUser && r.User != "":
		return rest
	case strings.HasPrefix(namespace, "u-") && r.User != "":
		return r.User + "/" + rest
	}
	return r.Actor
}

// answerHeadMax is the maximum size in bytes of the begin of an answer in a list.
const answerHeadMax = 60

// localTime returns a time of the server in the time zone of this computer, in seconds, and other texts unchanged.
func localTime(at string) string {
	t, err := runs.ParseTime(at)
	if err != nil {
		return at
	}
	return time.Unix(0, int64(t)).Local().Format("2006-01-02 15:04:05")
}

// runFlag is a flag that selects runs. An empty value is refused, since it would be that
// of an unset variable of a shell.
type runFlag struct {
	param, flag string
	value       *string // nil if the flag is absent
}

func (c *RunsListCmd) filters() []runFlag {
	return []runFlag{{"agent_id", "--agent", c.Agent}, {"session_id", "--session", c.Session}, {"status", "--status", c.Status},
		{"since", "--since", c.Since}, {"until", "--until", c.Until}, {"root_run_id", "--root", c.Root}, {"parent_run_id", "--parent", c.Parent}, {"correlation_id", "--correlation", c.Correlation}}
}

// checkFilters returns an error that names the flag whose value the list refuses.
func (c *RunsListCmd) checkFilters(q url.Values) error {
	_, r := ingress.RunFilter(queryParam(q))
	if r == nil {
		return nil
	}
	for _, f := range c.filters() {
		if f.param == r.Field {
			detail := strings.TrimPrefix(r.Detail, f.param+": ")
			return fmt.Errorf("%s: %s", f.flag, strings.Replace(detail, "want a time in UTC such as", "want a duration before now such as 1h, or a time such as", 1))
		}
	}
	return r
}

// queryParam returns a function that returns the value of a parameter, for RunFilter.
func queryParam(q url.Values) func(name string) (string, bool) {
	return func(name string) (string, bool) { return q.Get(name), q.Has(name) }
}

// query returns the parameters of the request. It replaces durations by times.
func (c *RunsListCmd) query(now time.Time) url.Values {
	for _, at := range []*string{c.Since, c.Until} {
		if at == nil {
			continue
		}
		if d, err := time.ParseDuration(*at); err == nil {
			*at = now.Add(-d).UTC().Format(time.RFC3339)
		} else if then, err := time.Parse(time.RFC3339, *at); err == nil {
			*at = then.UTC().Format(time.RFC3339Nano)
		}
	}
	if c.Status != nil {
		*c.Status = strings.ToUpper(*c.Status)
	}
	q := url.Values{"limit": {strconv.Itoa(c.Limit)}}
	for _, f := range c.filters() {
		if f.value != nil {
			q.Set(f.param, *f.value)
		}
	}
	if c.System {
		q.Set("system", "true")
	}
	if c.Cursor != "" {
		q.Set("cursor", c.Cursor)
	}
	return q
}

// flags returns the flags that select the same runs, quoted for a shell.
func (c *RunsListCmd) flags() string {
	var b strings.Builder
	for _, f := range c.filters() {
		if f.value != nil {
			fmt.Fprintf(&b, " %s %s", f.flag, shellQuote(*f.value))
		}
	}
	if c.System {
		b.WriteString(" --system")
	}
	fmt.Fprintf(&b, " --limit %d", c.Limit)
	return b.String()
}
