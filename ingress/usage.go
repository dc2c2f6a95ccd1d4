// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// UsageParams are the parameters of a request for a report of usage, beside limit and cursor.
var UsageParams = []string{"from", "to", "by"}

// UsageDaysDefault is the number of days of a report that names none, up to today.
const UsageDaysDefault = 30

// UsageList is a report of what the runs of a tenant, or of EveryUser, used.
type UsageList struct {
	Tenant   string
	From, To runs.Day // both included
	By       []string // in the order of runs.UsageColumns
	After    *runs.UsageKey
	Key      CursorKey
}

// ParseUsageList returns the report for the parameters of a request. Days are days of UTC. A request without days
// means the last UsageDaysDefault days.
func ParseUsageList(key CursorKey, tenant string, now actor.Time, param func(name string) (text string, ok bool)) (l UsageList, r *actor.Refusal) {
	l = UsageList{Tenant: tenant, Key: key, To: runs.DayOf(now), By: []string{"day"}}
	var err error
	text, ok := param("to")
	if ok {
		if l.To, err = runs.ParseDay(text); err != nil {
			return l, invalidParam("to", err)
		}
	}
	l.From = max(l.To-UsageDaysDefault+1, 0)
	if text, ok = param("from"); ok {
		if l.From, err = runs.ParseDay(text); err != nil {
			return l, invalidParam("from", err)
		}
	}
	if l.From > l.To {
		return l, invalidParam("from", fmt.Errorf("%s is after to, %s: want a day that is not, since both are included", l.From, l.To))
	}
	if text, ok = param("by"); ok {
		if l.By, err = usageColumns(text); err != nil {
			return l, invalidParam("by", err)
		}
	}
	if text, _ = param("cursor"); text == "" {
		return l, nil
	}
	after, r := key.ParsePageCursor(l.name(), text)
	if r != nil {
		return l, r
	}
	parts := strings.Split(after, "\x00")
	if len(parts) != 4 {
		return l, invalidParam("cursor", fmt.Errorf("want the next_cursor of the page before"))
	}
	l.After = &runs.UsageKey{User: parts[1], Agent: parts[2], Model: parts[3]}
	if parts[0] != "" {
		if l.After.Day, err = runs.ParseDay(parts[0]); err != nil {
			return l, invalidParam("cursor", err)
		}
	}
	return l, nil
}

// usageColumns returns the columns of a list that is separated by commas, in their order. An empty list has none: the
// report is one row.
func usageColumns(text string) (by []string, err error) {
	named := strings.Split(text, ",")
	if text == "" {
		named = nil
	}
	for i, column := range named {
		if !slices.Contains(runs.UsageColumns, column) || slices.Contains(named[:i], column) {
			return nil, fmt.Errorf("%.40q: want some of %s, each once, with commas between them", text, strings.Join(runs.UsageColumns, ", "))
		}
	}
	for _, column := range runs.UsageColumns {
		if slices.Contains(named, column) {
			by = append(by, column)
		}
	}
	return by, nil
}

// name identifies the report, whatever its page.
func (l *UsageList) name() string {
	return fmt.Sprintf("usage %q from %s to %s by %s", l.Tenant, l.From, l.To, strings.Join(l.By, ","))
}

// Next returns the cursor of the page that follows a row.
func (l *UsageList) Next(last *runs.UsageKey) string {
	day := ""
	if slices.Contains(l.By, "day") {
		day = last.Day.String()
	}
	return l.Key.PageCursor(l.name(), strings.Join([]string{day, last.User, last.Agent, last.Model}, "\x00"))
}
