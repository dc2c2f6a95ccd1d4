// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// auditedTimes is the number of times that an audit formats and parses.
const auditedTimes = 200

// timeText is the format of all times that clients see.
const timeText = "2006-01-02T15:04:05.000000000Z"

// auditTimes compares the text of times with that of the standard library. A simulation
// lasts minutes; the drawn times fill the range of a Time and prefer the first and the last
// day of months, years and centuries.
func (w *Simulation) auditTimes() {
	for range auditedTimes {
		year := 1678 + w.entropy.Int(584)
		if w.entropy.Int(2) == 1 {
			year = 1700 + 100*w.entropy.Int(6)
		}
		day := [...]int{1, 0, 1 + w.entropy.Int(31)}[w.entropy.Int(3)] // the day 0 is the last one of the month before
		second := [...]int{0, 86399, w.entropy.Int(86400)}[w.entropy.Int(3)]
		nanos := [...]int{0, 1, 999_999_999, w.entropy.Int(1_000_000_000)}[w.entropy.Int(4)]
		at := time.Date(year, time.Month(1+w.entropy.Int(12)), day, 0, 0, second, nanos, time.UTC)
		text := at.Format(timeText)
		if got := runs.FormatTime(actor.Time(at.UnixNano())); got != text {
			w.fail(CodecRoundTrip, fmt.Sprintf("the time %s is formatted as %s", text, got))
		}
		b := []byte(text)
		if i := w.entropy.Int(len(b)); w.entropy.Int(2) == 1 {
			b[i] = "0123456789-:.TZ+ "[w.entropy.Int(17)]
		}
		want, err := time.Parse(timeText, string(b))
		if err == nil && want.Format(timeText) != string(b) { // the standard library also accepts a comma
			continue
		}
		got, refusal := runs.ParseTime(string(b))
		if inRange := want.Year() >= 1678 && want.Year() < 2262; err == nil && !inRange {
			continue
		}
		if (refusal == nil) != (err == nil) || err == nil && got != actor.Time(want.UnixNano()) {
			w.fail(CodecRoundTrip, fmt.Sprintf("the time %s is parsed as %d, error %v; want %d, error %v", b, got, refusal, want.UnixNano(), err))
		}
	}
}
