// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The judge of limits has each row of the page, and no other.
func TestDocumentedLimitsMatchPage(t *testing.T) {
	page, err := os.ReadFile("../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| \\w+ \\| (\\d+) \\| (\\d+) \\|$").FindAllStringSubmatch(string(page), -1)
	if len(rows) != len(documentedLimits) {
		t.Fatalf("the page has %d rows, the judge %d", len(rows), len(documentedLimits))
	}
	for i, row := range rows {
		d := &documentedLimits[i]
		if got, want := fmt.Sprintf("%s %d %d", d.key, d.standard, d.most), strings.Join(row[1:], " "); got != want {
			t.Errorf("row %d of the judge is %s, that of the page %s", i, got, want)
		}
	}
}
