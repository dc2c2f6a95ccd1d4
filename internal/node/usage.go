// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// Usage returns a page of what runs used, by their summaries. The whole report is made for each page.
func (v View) Usage(q command.UsageQuery) (out command.Usage, err error) {
	out = command.Usage{From: q.From, To: q.To, By: q.By}
	switch {
	case q.From > q.To:
		return out, actor.Refuse(actor.Invalid, "from is after to")
	case q.To-q.From >= command.UsageDaysMax:
		return out, actor.Refuse(actor.Invalid, "from %s to %s are %d days: want at most %d", q.From, q.To, int64(q.To-q.From+1), command.UsageDaysMax)
	case !q.Sorted():
		return out, actor.Refuse(actor.Invalid, "by: want columns of %v in this order", runs.UsageColumns)
	}
	if err := checkLimit(q.Limit, command.UsageRowsMax); err != nil {
		return out, err
	}
	tenants := []string{v.Tenant}
	if q.EveryUser {
		if tenants, err = v.Log.Tenants(); err != nil {
			return out, err
		}
	}
	report := runs.NewUsageReport(q.By)
	filter := runs.Filter{Since: q.From.Begin(), Until: (q.To + 1).Begin()}
	read, full := 0, false
	for _, tenant := range tenants {
		for before := (actor.CallID{}); ; {
			next, err := v.Log.Spendings(tenant, filter, before, func(s *runs.Summary) { full = !report.Add(s) || full })
			switch {
			case err != nil:
				return out, err
			case full:
				return out, actor.Refuse(actor.Invalid, "the report has more than %d rows: narrow from and to, or group by less", runs.UsageRowsMax)
			case !next.IsZero() && read >= command.UsageRunsMax-store.ListedRowsMax: // with those that were read
				return out, actor.Refuse(actor.Invalid, "the days have more than %d runs: narrow from and to", command.UsageRunsMax)
			}
			if before = next; before.IsZero() {
				break
			}
			read += store.ListedRowsMax
		}
	}
	var after *runs.UsageKey
	if q.Paged {
		after = &q.After
	}
	out.Rows, out.More = report.After(after, q.Limit)
	out.Total = report.Total
	return out, nil
}

// eachPage passes the runs of a tenant that a filter selects to a function, until it returns an error.
func (v View) eachPage(tenant string, filter runs.Filter, visit func([]runs.Summary) error) error {
	for before := (actor.CallID{}); ; {
		page, err := v.Log.Runs(tenant, filter, before, store.ListedRowsMax)
		if err != nil {
			return err
		}
		if err := visit(page.All); err != nil {
			return err
		}
		if before = page.Next; before.IsZero() {
			return nil
		}
	}
}
