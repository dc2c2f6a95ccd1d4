// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Cron is when a schedule sends its message, read of a line of five fields: minute, hour, day of the month,
// month and day of the week. It names minutes of a local time, and no zone. If both days are restricted, one of
// them suffices, as in other programs that read such lines.
type Cron struct {
	minutes, hours, days, months, weekdays uint64 // sets of bits
	anyDay, anyWeekday, anyHour            bool   // the field begins with *
}

type cronField struct {
	name     string
	min, max int
	names    string // of the values from min on, three letters each; "": none
}

var cronFields = [...]cronField{
	{"minute", 0, 59, ""},
	{"hour", 0, 23, ""},
	{"day of the month", 1, 31, ""},
	{"month", 1, 12, "janfebmaraprmayjunjulaugsepoctnovdec"},
	{"day of the week", 0, 7, "sunmontuewedthufrisat"},
}

var cronNames = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// ParseCron reads a line. It refuses one that names no time, such as February 30.
func ParseCron(line string) (c Cron, err error) {
	text := strings.ToLower(strings.TrimSpace(line))
	if named, ok := cronNames[text]; ok {
		text = named
	}
	fields := strings.Fields(text)
	switch {
	case len(fields) == 6:
		return c, fmt.Errorf("%.80q has 6 fields, and no schedule has seconds: want minute, hour, day of the month, month and day of the week, such as 0 9 * * mon-fri", line)
	case len(fields) != len(cronFields):
		return c, fmt.Errorf("%.80q: want minute, hour, day of the month, month and day of the week, such as 0 9 * * mon-fri", line)
	}
	for i, set := range [...]*uint64{&c.minutes, &c.hours, &c.days, &c.months, &c.weekdays} {
		if *set, err = cronFields[i].parse(fields[i]); err != nil {
			return Cron{}, fmt.Errorf("%s: %w", cronFields[i].name, err)
		}
	}
	c.weekdays = c.weekdays&0x7f | c.weekdays>>7 // 7 is Sunday
	c.anyHour, c.anyDay, c.anyWeekday = fields[1][0] == '*', fields[2][0] == '*', fields[4][0] == '*'
	if !c.occurs() {
		return Cron{}, fmt.Errorf("%.80q never comes: no such month has such a day", line)
	}
	return c, nil
}

// parse reads a list of values, ranges and steps.
func (f *cronField) parse(text string) (set uint64, err error) {
	for item := range strings.SplitSeq(text, ",") {
		span, step, stepped := strings.Cut(item, "/")
		by := 1
		if stepped {
			if by, err = strconv.Atoi(step); err != nil || by < 1 || by > f.max {
				return 0, fmt.Errorf("%.40q: want a step from 1 to %d", item, f.max)
			}
		}
		from, to, ranged := strings.Cut(span, "-")
		low, high := f.min, f.max
		if span != "*" {
			if low, err = f.value(from); err != nil {
				return 0, err
			}
			switch {
			case ranged:
				if high, err = f.value(to); err != nil {
					return 0, err
				}
			case !stepped:
				high = low
			}
		}
		if low > high {
			return 0, fmt.Errorf("%.40q: the range ends before it begins", item)
		}
		for n := low; n <= high; n += by {
			set |= 1 << n
		}
	}
	return set, nil
}

func (f *cronField) value(text string) (int, error) {
	if i := strings.Index(f.names, text); len(text) == 3 && i >= 0 && i%3 == 0 {
		return f.min + i/3, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < f.min || n > f.max || len(text) > 2 {
		return 0, fmt.Errorf("%.40q: want %d to %d", text, f.min, f.max)
	}
	return n, nil
}

// occurs reports whether a day of some year matches.
func (c *Cron) occurs() bool {
	if !c.anyWeekday { // each month has all days of the week, and one of both days suffices
		return true
	}
	for month, days := range [...]int{31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31} {
		if c.months>>(month+1)&1 == 1 && bits.TrailingZeros64(c.days) <= days {
			return true
		}
	}
	return false
}

// OnDay reports whether it has times on a day. The month is from 1, the day of the week from 0, Sunday.
func (c *Cron) OnDay(month, day, weekday int) bool {
	if c.months>>month&1 == 0 {
		return false
	}
	inMonth, inWeek := c.days>>day&1 == 1, c.weekdays>>weekday&1 == 1
	if c.anyDay || c.anyWeekday {
		return inMonth && inWeek
	}
	return inMonth || inWeek
}

// At reports whether it has the minute of an hour, on its days.
func (c *Cron) At(hour, minute int) bool { return c.hours>>hour&1 == 1 && c.minutes>>minute&1 == 1 }

// EachHour reports whether its hours are a step of all hours, and no times of the day.
func (c *Cron) EachHour() bool { return c.anyHour }
