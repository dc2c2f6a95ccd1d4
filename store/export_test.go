// SPDX-License-Identifier: Apache-2.0

package store

import (
	"reflect"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// A log that was exported lists the same runs after its import.
func TestExportKeepsSummaries(t *testing.T) {
	from, _ := examinedStore(t)
	to := newTestLog(t)
	if err := from.Export(func(e Entry) error { to.write(e); return nil }); err != nil {
		t.Fatal(err)
	}
	want, err := from.Rows.Runs("default", runs.Filter{}, actor.CallID{}, 20)
	if err != nil {
		t.Fatal(err)
	}
	got, err := to.Rows.Runs("default", runs.Filter{}, actor.CallID{}, 20)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, error %v, want %+v", got, err, want)
	}
	count := map[runs.Status]int{}
	for _, s := range got.All {
		count[s.Status]++
	}
	if count[runs.Done] != 2 || count[runs.Running] != 1 {
		t.Errorf("got %v, want 2 runs that ended and 1 that is open", count)
	}
}
