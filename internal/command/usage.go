// SPDX-License-Identifier: Apache-2.0

package command

import (
	"slices"

	"github.com/troupe-run/troupe/runs"
)

// Bounds of a UsageQuery.
const (
	UsageRowsMax = 1000      // rows of a page
	UsageDaysMax = 400       // days of a report
	UsageRunsMax = 1_000_000 // runs of a report
)

type (
	// UsageQuery asks for what the runs of the principal's namespace used that were created from one day to another,
	// both included.
	UsageQuery struct {
		From, To  runs.Day
		By        []string // columns of runs.UsageColumns, in their order
		EveryUser bool     // in all namespaces; needs ingress.ScopeOperator
		Paged     bool     // the page follows After
		After     runs.UsageKey
		Limit     int
	}
	// Usage is a page of a report, with the sum of all its pages.
	Usage struct {
		From, To runs.Day
		By       []string
		Currency string // "": unknown, because no server has read its configuration
		Rows     []runs.UsageRow
		Total    runs.UsageRow
		More     bool
	}
)

func (UsageQuery) query()        {}
func (UsageQuery) returns(Usage) {}
func (Usage) result()            {}

// AppendJSON appends the page as JSON. The cursor of the next page is next, "" after the last.
func (u *Usage) AppendJSON(b []byte, next string) []byte {
	text := func(name, value string) {
		b = append(append(append(append(b, '"'), name...), `":"`...), value...)
		b = append(b, `",`...)
	}
	b = append(b, '{')
	text("from", u.From.String())
	text("to", u.To.String())
	if u.Currency != "" {
		text("currency", u.Currency)
	}
	b = append(b, `"by":[`...)
	for i, column := range u.By {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), column...), '"')
	}
	b = append(b, `],"rows":[`...)
	for i := range u.Rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = u.Rows[i].AppendJSON(b, u.By)
	}
	b = u.Total.AppendJSON(append(b, `],"total":`...), nil)
	if next != "" {
		b = append(append(b, `,"next_cursor":"`...), next...)
		b = append(b, '"')
	}
	return append(b, '}')
}

// Sorted reports whether the columns of the query are some of runs.UsageColumns in their order, each once.
func (q *UsageQuery) Sorted() bool {
	at := -1
	for _, column := range q.By {
		i := slices.Index(runs.UsageColumns, column)
		if i <= at {
			return false
		}
		at = i
	}
	return true
}
