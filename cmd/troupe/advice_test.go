// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The commands that doctor advises for a damaged folder succeed.
func TestDoctorAdvisesWorkingCommands(t *testing.T) {
	for _, c := range []struct {
		pattern string
		damage  func(name string) error
		lists   bool
	}{
		{"pebble/*.log", func(name string) error { return os.Truncate(name, 100) }, true},
		{"pebble/MANIFEST-*", func(name string) error { return os.Truncate(name, 0) }, false},
		{"pebble/marker.manifest.*", os.Remove, false},
	} {
		dir, _ := writeRuns(t, 10)
		names, err := filepath.Glob(filepath.Join(dir, c.pattern))
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			if err := c.damage(name); err != nil {
				t.Fatal(err)
			}
		}
		code, out, stderr := runProgram(t, "doctor", dir)
		if code != 1 || !strings.Contains(out, "Keep a copy of the folder as it is") {
			t.Errorf("%s: exit code %d\n%s%s", c.pattern, code, out, stderr)
			continue
		}
		_, advised, lists := strings.Cut(out, "`troupe runs list")
		if lists != c.lists {
			t.Errorf("%s: the advice names runs list: %v, want %v\n%s", c.pattern, lists, c.lists, out)
		}
		if lists {
			advised, _, _ = strings.Cut(advised, "`")
			if code, out, stderr := runProgram(t, append([]string{"runs", "list"}, strings.Fields(advised)...)...); code != 0 {
				t.Errorf("%s: runs list%s: exit code %d\n%s%s", c.pattern, advised, code, out, stderr)
			}
		}
	}
}
