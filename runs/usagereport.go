// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// UsageColumns are the names by which a UsageReport can be grouped.
var UsageColumns = []string{"day", "user", "agent", "model"}

// Day is a day in UTC: the number of days since 1 January 1970.
type Day int64

// DayOf returns the day of a time.
func DayOf(at actor.Time) Day { return Day(at / actor.Time(24*time.Hour)) }

// ParseDay reads a day such as 2027-01-31, of the years 1970 to 2199.
func ParseDay(text string) (Day, error) {
	const midnight = "T00:00:00.000000000Z"
	if len(text) == len("2027-01-31") && strings.Trim(text[:4], "0123456789") == "" {
		far := text[:4] < "1970" || "2199" < text[:4]
		if at, err := ParseTime(text + midnight); err == nil && !far {
			return DayOf(at), nil
		}
		if _, err := ParseTime("2000" + text[4:] + midnight); err == nil && far {
			return 0, fmt.Errorf("%.40q: want a year from 1970 to 2199", text)
		}
	}
	return 0, fmt.Errorf("%.40q: want a day in UTC such as 2027-01-31", text)
}

// Begin returns the first instant of the day.
func (d Day) Begin() actor.Time { return actor.Time(d) * actor.Time(24*time.Hour) }

// String returns the day as ParseDay reads it.
func (d Day) String() string { return FormatTime(d.Begin())[:len("2027-01-31")] }

// UsageKey identifies a row of a report. Columns by which it is not grouped are zero.
type UsageKey struct {
	Day                Day
	User, Agent, Model string
}

// Compare orders keys by day, user, agent and model.
func (k UsageKey) Compare(o UsageKey) int {
	return cmp.Or(cmp.Compare(k.Day, o.Day), strings.Compare(k.User, o.User), strings.Compare(k.Agent, o.Agent), strings.Compare(k.Model, o.Model))
}

// UsageRow is what some runs used.
type UsageRow struct {
	UsageKey
	Runs       uint64 // that had an answer of a model, or of an external agent with usage
	Answers    uint64 // as in Spending
	Unmeasured uint64
	Usage      Usage
}

func (r *UsageRow) add(one *Spending) {
	r.Answers, r.Unmeasured, r.Usage = r.Answers+one.Answers, r.Unmeasured+one.Unmeasured, r.Usage.Add(one.Usage)
}

// UsageReport sums what runs used. A run counts as a whole on the day of its creation, so the sums over days and
// over runs are equal. A run counts its own answers only, not those of the runs that it called.
type UsageReport struct {
	by    map[string]bool
	rows  map[UsageKey]*UsageRow
	Total UsageRow
}

// UsageRowsMax is the maximum number of rows of a report.
const UsageRowsMax = 100_000

// NewUsageReport returns an empty report that is grouped by columns.
func NewUsageReport(by []string) *UsageReport {
	r := &UsageReport{by: map[string]bool{}, rows: map[UsageKey]*UsageRow{}}
	for _, column := range by {
		r.by[column] = true
	}
	return r
}

// Add adds a run. It returns false if the report has no place for another row.
func (r *UsageReport) Add(s *Summary) bool {
	if len(s.Spent) == 0 {
		return true
	}
	var key UsageKey
	if r.by["day"] {
		key.Day = DayOf(s.Run.Time())
	}
	if r.by["user"] {
		key.User = s.User
	}
	if r.by["agent"] {
		key.Agent = s.Actor.Agent
	}
	r.Total.Runs++
	var last *UsageRow
	for i := range s.Spent {
		one := &s.Spent[i]
		if r.by["model"] {
			key.Model = one.Model
		}
		row := r.rows[key]
		if row == nil {
			if len(r.rows) == UsageRowsMax {
				return false
			}
			row = &UsageRow{UsageKey: key}
			r.rows[key] = row
		}
		if row != last {
			row.Runs++
		}
		last = row
		row.add(one)
		r.Total.add(one)
	}
	return true
}

// After returns at most limit rows that follow a key, in the order of their keys; nil: from the first. More
// reports whether others follow.
func (r *UsageReport) After(key *UsageKey, limit int) (page []UsageRow, more bool) {
	keys := slices.SortedFunc(maps.Keys(r.rows), UsageKey.Compare)
	if key != nil {
		at, found := slices.BinarySearchFunc(keys, *key, UsageKey.Compare)
		if found {
			at++
		}
		keys = keys[at:]
	}
	more = len(keys) > limit
	for _, k := range keys[:min(len(keys), limit)] {
		page = append(page, *r.rows[k])
	}
	return page, more
}

// AppendJSON appends the row with the columns by which its report is grouped.
func (r *UsageRow) AppendJSON(b []byte, by []string) []byte {
	o := object{b: append(b, '{')}
	for _, column := range UsageColumns {
		if !slices.Contains(by, column) {
			continue
		}
		switch column {
		case "day":
			o.text("day", r.Day.String())
		case "user":
			o.text("user_id", r.User)
		case "agent":
			o.text("agent_id", r.Agent)
		case "model":
			o.text("model", r.Model)
		}
	}
	o.int("runs", int64(r.Runs))
	o.int("answers", int64(r.Answers))
	o.int("unmeasured_answers", int64(r.Unmeasured))
	u := r.Usage
	o.int("input_tokens", u.Input)
	o.int("cached_tokens", u.Cached)
	o.int("output_tokens", u.Output)
	o.int("total_tokens", u.Total)
	o.int("cost_micros", u.Cost)
	o.int("unpriced_tokens", u.Unpriced())
	return append(o.b, '}')
}
