// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestCanonicalLogNamesEveryRecord checks that each record type of package store has
// its name in the log.
func TestCanonicalLogNamesEveryRecord(t *testing.T) {
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	names := read("canonical_log.go")
	records := regexp.MustCompile(`(?m)^func \((?:\w+ )?(\w+)\) at\(\) actor\.Time`).FindAllStringSubmatch(read("../store/record.go"), -1)
	if len(records) < 10 {
		t.Fatalf("%d records in package store", len(records))
	}
	for _, r := range records {
		if want := "case store." + r[1] + ":\n\t\treturn \"" + r[1] + "\"\n"; !strings.Contains(names, want) {
			t.Errorf("recordName lacks %s", want)
		}
	}
}
