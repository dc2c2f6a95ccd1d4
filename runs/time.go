// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

const (
	nanosPerSecond = 1_000_000_000
	secondsPerDay  = 24 * 60 * 60
	timeLayout     = "0000-00-00T00:00:00.000000000Z" // RFC 3339 in UTC, always with nine digits, so that text sorts by time
)

// AppendTime appends a time in the format 2026-11-21T17:16:57.000000001Z.
func AppendTime(b []byte, t actor.Time) []byte {
	seconds, nanos := floorDivMod(int64(t), nanosPerSecond)
	days, inDay := floorDivMod(seconds, secondsPerDay)
	year, month, day := civilDate(days)
	b = appendDigits(b, year, 4)
	b = appendDigits(append(b, '-'), month, 2)
	b = appendDigits(append(b, '-'), day, 2)
	b = appendDigits(append(b, 'T'), inDay/3600, 2)
	b = appendDigits(append(b, ':'), inDay/60%60, 2)
	b = appendDigits(append(b, ':'), inDay%60, 2)
	b = appendDigits(append(b, '.'), nanos, 9)
	return append(b, 'Z')
}

// FormatTime returns the output of AppendTime as a string.
func FormatTime(t actor.Time) string { return string(AppendTime(nil, t)) }

// ParseTime parses the output of AppendTime and rejects everything else.
func ParseTime(text string) (actor.Time, error) {
	if len(text) != len(timeLayout) {
		return 0, timeError(text)
	}
	number := func(from, to int) (n int64) {
		for _, c := range []byte(text[from:to]) {
			n = n*10 + int64(c-'0')
		}
		return n
	}
	t := actor.Time((daysSinceEpoch(number(0, 4), number(5, 7), number(8, 10))*secondsPerDay+
		number(11, 13)*3600+number(14, 16)*60+number(17, 19))*nanosPerSecond + number(20, 29))
	// The function number accepts any character, and separators are skipped. If the
	// input has an invalid character, the formatted time differs from the input.
	var formatted [len(timeLayout)]byte
	if string(AppendTime(formatted[:0], t)) != text {
		return 0, timeError(text)
	}
	return t, nil
}

func timeError(text string) error {
	return fmt.Errorf("time %.40q: want %s", text, "2006-01-02T15:04:05.000000000Z")
}

func appendDigits(b []byte, v int64, width int) []byte {
	b = append(b, "000000000"[:width]...)
	for i := range width {
		b[len(b)-1-i] = byte('0' + v%10)
		v /= 10
	}
	return b
}

func floorDivMod(a, b int64) (quotient, rest int64) {
	quotient, rest = a/b, a%b
	if rest < 0 {
		quotient, rest = quotient-1, rest+b
	}
	return quotient, rest
}

// The calendar computes with years that start in March, so that the leap day is
// the last day of a year. Any 400 consecutive such years have 146,097 days.
const (
	daysPerEra = 146_097
	epochDay   = 719_468 // from 0000-03-01 to 1970-01-01
)

func civilDate(days int64) (year, month, dayOfMonth int64) {
	era, inEra := floorDivMod(days+epochDay, daysPerEra)
	yearOfEra := (inEra - inEra/1460 + inEra/36524 - inEra/(daysPerEra-1)) / 365
	inYear := inEra - (365*yearOfEra + yearOfEra/4 - yearOfEra/100)
	marchMonth := (5*inYear + 2) / 153
	dayOfMonth = inYear - (153*marchMonth+2)/5 + 1
	month = (marchMonth+2)%12 + 1
	year = yearOfEra + era*400
	if month <= 2 {
		year++
	}
	return year, month, dayOfMonth
}

func daysSinceEpoch(year, month, dayOfMonth int64) int64 {
	if month <= 2 {
		year--
	}
	era, yearOfEra := floorDivMod(year, 400)
	inYear := (153*((month+9)%12)+2)/5 + dayOfMonth - 1
	return era*daysPerEra + yearOfEra*365 + yearOfEra/4 - yearOfEra/100 + inYear - epochDay
}
