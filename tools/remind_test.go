// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"testing"
	"time"
)

// The time of a reminder is read as package time reads it, without the fraction of a second.
func TestReadTime(t *testing.T) {
	for _, text := range []string{"2030-01-31T09:00:00Z", "2030-01-31T09:00:00+01:00", "2030-01-31T09:00:00.5-23:59", "2028-02-29T23:59:59Z", "2030-02-29T09:00:00Z",
		"2030-01-31T24:00:00Z", "2030-01-31", "2030-01-31T09:00:00", "2030-01-31T09:00Z", "tomorrow", ""} {
		want, err := time.Parse(time.RFC3339, text)
		got, ok := readTime(text)
		if ok != (err == nil) || ok && got != want.Unix()*1000 {
			t.Errorf("%s: got %d, %v, want %v, %v", text, got, ok, want, err)
		}
	}
}
