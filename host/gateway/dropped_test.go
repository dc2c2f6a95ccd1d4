// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/troupe-run/troupe/host/disk"
)

// A run whose events were cut from the log has a code of its own, with the number of the
// first event that is left. The run continues, and its later events can be read.
func TestDroppedEventsHaveTheirOwnCode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	type page struct {
		Events []struct {
			Seq uint64 `json:"seq"`
		} `json:"events"`
		Next  uint64 `json:"next_after"`
		Ended bool   `json:"ended"`
	}
	var held, done messageResponse
	var before, beforeDone page
	t.Run("before the cut", func(t *testing.T) {
		d := startGatewayOn(t, dir, Config{})
		d.doJSON(&held, "POST", "/v1/agents/coordinator/messages", `{"content":"hello","session":"s-1"}`)
		d.doJSON(&before, "GET", "/v1/runs/"+held.Run+"/events", "")
		d.doJSON(&done, "POST", "/v1/agents/helper/messages", `{"content":"hello","session":"s-2"}`)
		d.doJSON(&beforeDone, "GET", "/v1/runs/"+done.Run+"/events", "")
	})
	cutLog(t, dir)
	d := startGatewayOn(t, dir, Config{})
	path := "/v1/runs/" + held.Run
	for _, request := range [][2]string{{path, "application/json"}, {path + "/events", "application/json"}, {path + "/events", "text/event-stream"}} {
		var p problem
		status := d.doJSON(&p, "GET", request[0], "", "Accept", request[1])
		if status != http.StatusGone || p.Code != "events_dropped" || p.FirstSeq != before.Next+1 || p.Run != held.Run {
			t.Errorf("%v: got %d %+v, want code events_dropped and first event %d", request, status, p, before.Next+1)
		}
	}
	for run, last := range map[string]page{held.Run: before, done.Run: beforeDone} { // a client that has read all of them
		var p page
		status := d.doJSON(&p, "GET", fmt.Sprintf("/v1/runs/%s/events?after=%d", run, last.Next), "")
		if status != http.StatusOK || len(p.Events) > 0 || p.Next != last.Next || p.Ended != (run == done.Run) {
			t.Errorf("run %s: got %d %+v, want no event after %d", run, status, p, last.Next)
		}
	}
	if status, _, body := d.do("POST", held.Signal.Path, held.Signal.Body); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	var after page
	status := d.doJSON(&after, "GET", fmt.Sprintf("%s/events?after=%d&wait_ms=30000", path, before.Next), "")
	if status != http.StatusOK || len(after.Events) == 0 || after.Events[0].Seq != before.Next+1 {
		t.Errorf("got %d %+v, want events from %d on", status, after, before.Next+1)
	}
}

// cutLog cuts the log of a closed store behind its last batch.
func cutLog(t *testing.T, dir string) {
	t.Helper()
	d, err := disk.Open(dir, "n1", disk.Options{FreeFloor: 1, WriteBuffer: 1 << 20, IndexEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	l := disk.NewLog(d)
	if err := errors.Join(l.Cut(0, d.End().Batch, 0), l.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
}
