// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// UsageCmd shows tokens and money.
type UsageCmd struct {
	SourceFlags
	By     string  `default:"day" placeholder:"COLUMNS" help:"Columns to group by, with commas between them: day, user, agent, model. Empty: one row (${default})."`
	From   *string `placeholder:"DAY" help:"First day in UTC such as 2027-01-31; without it the report has 30 days."`
	To     *string `placeholder:"DAY" help:"Last day, which is included; without it today."`
	Limit  int     `default:"200" help:"Maximum number of rows, 1 to 1000 (${default})."`
	Cursor string  `help:"Continue a report where another ended: printed as next."`
	JSON   bool    `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (UsageCmd) Help() string {
	return `A run counts on the day of UTC on which it was created, with the answers of its own models. Each answer counts at the price that
its model had then:

  [models.big]
  price_input = 3.00    # for a million tokens
  price_output = 15.00

UNPRICED are the tokens of models without a price, and UNMEASURED the answers of models that report no tokens: neither is in COST.
Runs that were deleted, with their session or by --keep, no longer count.

Examples:
  troupe usage
  troupe usage --by user,model --from 2026-11-01 --to 2026-11-30
  troupe usage --by agent --user '*'    # of all, with the scope operator
  troupe usage --by day,model --data data --json`
}

// usageReport is the response to GET /v1/usage.
type usageReport struct {
	From     string     `json:"from"`
	To       string     `json:"to"`
	Currency string     `json:"currency"`
	By       []string   `json:"by"`
	Rows     []usageRow `json:"rows"`
	Total    usageRow   `json:"total"`
	Next     string     `json:"next_cursor"`
}

type usageRow struct {
	Day        string `json:"day"`
	User       string `json:"user_id"`
	Agent      string `json:"agent_id"`
	Model      string `json:"model"`
	Runs       int64  `json:"runs"`
	Answers    int64  `json:"answers"`
	Unmeasured int64  `json:"unmeasured_answers"`
	Input      int64  `json:"input_tokens"`
	Cached     int64  `json:"cached_tokens"`
	Output     int64  `json:"output_tokens"`
	Total      int64  `json:"total_tokens"`
	Cost       int64  `json:"cost_micros"`
	Unpriced   int64  `json:"unpriced_tokens"`
}

// Run executes the command.
func (c *UsageCmd) Run(s streams) error {
	if c.Limit < 1 || c.Limit > command.UsageRowsMax {
		return fmt.Errorf("--limit: want 1 to %d, got %d", command.UsageRowsMax, c.Limit)
	}
	q := url.Values{"by": {c.By}, "limit": {strconv.Itoa(c.Limit)}}
	for name, value := range map[string]*string{"from": c.From, "to": c.To} {
		if value != nil {
			q.Set(name, *value)
		}
	}
	if c.Cursor != "" {
		q.Set("cursor", c.Cursor)
	}
	return c.withSource(func(from source) error {
		body, err := from.usage(q)
		if err != nil || c.JSON {
			return printJSONOrError(s.out, body, err)
		}
		var report usageReport
		if err := json.Unmarshal(body, &report, jsontext.AllowDuplicateNames(true)); err != nil {
			return err
		}
		if len(report.Rows) == 0 && c.Cursor == "" {
			text := fmt.Sprintf("no model has answered a run that was created from %s to %s", report.From, report.To)
			if c.User == "" {
				text += " for your user; for all: " + c.hint("usage", nil, "--user", ingress.EveryUser)
			}
			_, err := fmt.Fprintln(s.err, text)
			return err
		}
		if err := report.print(s.out); err != nil || report.Next == "" {
			return err
		}
		_, err = fmt.Fprintf(s.err, "next: %s\n", c.hint("usage", nil, "--by", c.By, "--from", report.From, "--to", report.To, "--limit", strconv.Itoa(c.Limit), "--cursor", report.Next))
		return err
	})
}

// print prints the report as a table with the sum of all pages.
func (r *usageReport) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var names []string
	for _, column := range r.By {
		names = append(names, strings.ToUpper(column))
	}
	if len(names) == 0 {
		names = []string{"ALL"}
	}
	fmt.Fprintf(w, "%s\tRUNS\tANSWERS\tINPUT\tCACHED\tOUTPUT\tCOST %s\tUNPRICED\tUNMEASURED\n", strings.Join(names, "\t"), r.Currency)
	for i := range r.Rows {
		row := &r.Rows[i]
		if len(r.By) > 0 {
			fmt.Fprintf(w, "%s\t%s\n", strings.Join(row.names(r.By), "\t"), row.figures())
		}
	}
	fmt.Fprintf(w, "total%s\t%s\n", strings.Repeat("\t", len(names)-1), r.Total.figures())
	return w.Flush()
}

func (r *usageRow) names(by []string) (all []string) {
	for _, column := range by {
		name := []string{r.Day, r.User, r.Agent, r.Model}[slices.Index(runs.UsageColumns, column)]
		if column == "model" {
			name = cmp.Or(name, "(external agents)")
		}
		all = append(all, cmp.Or(name, "-"))
	}
	return all
}

func (r *usageRow) figures() string {
	cost := money(r.Cost)
	if r.Cost == 0 && r.Unpriced > 0 { // not known
		cost = "-"
	}
	return fmt.Sprintf("%d\t%d\t%d\t%d\t%d\t%s\t%d\t%d", r.Runs, r.Answers, r.Input, r.Cached, r.Output, cost, r.Unpriced, r.Unmeasured)
}

// money returns micros in units of the currency, exactly.
func money(micros int64) string {
	return fmt.Sprintf("%d.%06d", micros/upstream.Micro, micros%upstream.Micro)
}
