// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/store"
)

// A new store that lacks something of the old one is removed, whatever it lacks.
func TestMigrateComparesBothStores(t *testing.T) {
	from := newTestStore(t, 4)
	for what, missing := range map[string]func(*store.Examination) *uint64{
		"actors":    func(x *store.Examination) *uint64 { return &x.Actors },
		"entries":   func(x *store.Examination) *uint64 { return &x.Entries },
		"runs":      func(x *store.Examination) *uint64 { return &x.Runs },
		"open runs": func(x *store.Examination) *uint64 { return &x.Open },
		"events":    func(x *store.Examination) *uint64 { return &x.Events },
	} {
		to := filepath.Join(t.TempDir(), "new")
		_, err := examineWith(from, Options{FreeFloor: 1}, nil, func(d *Disk, x store.Examination) error {
			*missing(&x)++
			_, err := d.migrateTo(to, x, Options{FreeFloor: 1}, nil)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), " "+what+", want ") {
			t.Errorf("%s: got error %v", what, err)
		}
		for _, name := range []string{to, to + tempSuffix} {
			if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %s was left: %v", what, name, err)
			}
		}
	}
}

// A new store in which Examine finds damage is refused.
func TestMigrateRefusesDamagedResult(t *testing.T) {
	made := store.Examination{Wrong: 1, Findings: []store.Finding{{Where: "t/default/a/x", What: "is missing"}}}
	if err := checkMigration(store.Examination{}, made); err == nil || !strings.Contains(err.Error(), "t/default/a/x: is missing") {
		t.Errorf("got error %v", err)
	}
}
