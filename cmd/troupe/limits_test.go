// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/dispatcher"
)

// The page lists every key of [limits] with its unit, default and bound.
func TestLimitsPageListsEveryKey(t *testing.T) {
	var want strings.Builder
	want.WriteString("| key | unit | default | most |\n|---|---|---|---|\n")
	for _, s := range dispatcher.DefaultLimits().Settings() {
		unit := "count"
		switch {
		case strings.Contains(s.Key, "_ms"):
			unit = "ms"
		case strings.Contains(s.Key, "bytes"):
			unit = "bytes"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %d | %d |\n", s.Key, unit, s.Value, s.Max)
	}
	page, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, got, _ := strings.Cut(string(page), "\n| key"); "| key"+got != want.String() {
		t.Errorf("docs/limits.md: want this table at its end:\n%s", want.String())
	}
}
