// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

func TestDay(t *testing.T) {
	at := func(text string) actor.Time {
		when, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return actor.Time(when.UnixNano())
	}
	for _, c := range []struct{ at, want string }{
		{"2026-11-30T00:00:00Z", "2026-11-30"},
		{"2026-11-30T23:59:59.999Z", "2026-11-30"},
		{"2026-12-01T01:30:00+02:00", "2026-11-30"}, // the day is that of UTC, whatever the zone of a reader
		{"2026-11-30T21:30:00-08:00", "2026-12-01"},
		{"2024-02-29T12:00:00Z", "2024-02-29"},
	} {
		d := DayOf(at(c.at))
		back, err := ParseDay(c.want)
		if d.String() != c.want || err != nil || back != d || DayOf(d.Begin()) != d || DayOf((d+1).Begin()-1) != d {
			t.Errorf("%s: got %s, want %s, %v", c.at, d, c.want, err)
		}
	}
	for _, bad := range []string{"", "2026-02-29", "2026-11-31", "30.11.2026", "2026-11-30T00:00:00Z", "1969-12-31", "2200-01-01", "2026-1-1"} {
		if d, err := ParseDay(bad); err == nil {
			t.Errorf("%q was read as %s", bad, d)
		}
	}
	for text, want := range map[string]string{"2300-01-01": "want a year from 1970 to 2199", "9999-12-31": "want a year from 1970 to 2199", "0000-01-01": "want a year from 1970 to 2199", "1969-12-31": "want a year from 1970 to 2199",
		"2026-02-30": "such as 2027-01-31", "2026-13-01": "such as 2027-01-31", "12026-01-01": "such as 2027-01-31", "yesterday": "such as 2027-01-31"} {
		if _, err := ParseDay(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// Whatever a report is grouped by and wherever its pages end, its rows add up to what the runs used, each run once.
func TestUsageReportAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var by []string
		for _, column := range UsageColumns {
			if rapid.Bool().Draw(t, column) {
				by = append(by, column)
			}
		}
		name := rapid.SampledFrom([]string{"", "a", "b", "c"})
		report, want := NewUsageReport(by), UsageRow{}
		for i := range rapid.IntRange(0, 30).Draw(t, "runs") {
			at := actor.Time(rapid.Int64Range(0, int64(3*24*time.Hour)).Draw(t, "at"))
			s := Summary{Run: actor.NewCallID(at, 1, uint64(i)), User: name.Draw(t, "user"), Actor: actor.ID{Tenant: "t", Agent: "agent" + name.Draw(t, "agent"), Key: "k"}}
			for range rapid.IntRange(0, 3).Draw(t, "answers") {
				n := rapid.Int64Range(0, 9).Draw(t, "tokens")
				u := Usage{Total: n, Priced: n, Cost: n * 1000}
				s.Spent = s.Spent.Add(name.Draw(t, "model"), u)
				if want.Answers++; n == 0 {
					want.Unmeasured++
				}
				want.Usage = want.Usage.Add(u)
			}
			if len(s.Spent) > 0 {
				want.Runs++
			}
			if !report.Add(&s) {
				t.Fatal("no place")
			}
		}
		sum, last := UsageRow{}, (*UsageKey)(nil)
		for limit := rapid.IntRange(1, 5).Draw(t, "limit"); ; {
			page, more := report.After(last, limit)
			for i := range page {
				if last != nil && page[i].UsageKey.Compare(*last) <= 0 {
					t.Fatalf("row %+v follows %+v", page[i].UsageKey, *last)
				}
				last = &page[i].UsageKey
				sum.Answers, sum.Unmeasured, sum.Usage = sum.Answers+page[i].Answers, sum.Unmeasured+page[i].Unmeasured, sum.Usage.Add(page[i].Usage)
				sum.Runs += page[i].Runs
			}
			if !more {
				break
			}
		}
		if report.Total != want {
			t.Fatalf("total %+v, want %+v", report.Total, want)
		}
		grouped := fmt.Sprint(by)
		if sum.Runs < want.Runs { // a run with two models counts in the row of each
			t.Fatalf("by %s: %d runs in rows, %d in all", grouped, sum.Runs, want.Runs)
		}
		if sum.Runs = want.Runs; sum != want {
			t.Fatalf("by %s: rows add up to %+v, want %+v", grouped, sum, want)
		}
	})
}
