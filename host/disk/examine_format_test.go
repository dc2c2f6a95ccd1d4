// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An examination continues behind a damaged FORMAT with the node in ANCHOR. Without
// both, the store cannot be examined.
func TestExamineContinuesBehindDamagedFormat(t *testing.T) {
	dir := newTestStore(t, 20)
	whole := examine(t, dir)
	if err := os.WriteFile(filepath.Join(dir, formatFile), []byte("troupe store 9 of node n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	x := examine(t, dir)
	if x.Wrong != 1 || x.Findings[0].Where != "FORMAT" || x.Entries != whole.Entries || x.Entries != 20 || x.End != whole.End {
		t.Errorf("FORMAT damaged: got %+v, want one finding and the counts of %+v", x, whole)
	}
	wal, err := filepath.Glob(filepath.Join(dir, pebbleDir, "*.log"))
	if err != nil || len(wal) == 0 {
		t.Fatal(wal, err)
	}
	for _, name := range wal {
		if err := os.Truncate(name, 0); err != nil {
			t.Fatal(err)
		}
	}
	if x := examine(t, dir); x.Wrong < 2 || x.Findings[0].Where != "FORMAT" {
		t.Errorf("log lost, too: got %+v, want findings for both", x.Findings)
	}
	if err := os.WriteFile(filepath.Join(dir, anchorFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if x, err := Examine(dir, Options{}, nil); err == nil || !strings.Contains(err.Error(), "file FORMAT: is damaged: reads ") {
		t.Errorf("ANCHOR lost, too: got %+v, error %v", x, err)
	}
}
