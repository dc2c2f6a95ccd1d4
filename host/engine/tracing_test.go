// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"sync"
	"testing"

	"github.com/troupe-run/troupe/history"
)

// TestTraceKeepsCausalOrder checks that no turn precedes its admission, no sync
// precedes its append, and no effect leaves the node before it is durable.
func TestTraceKeepsCausalOrder(t *testing.T) {
	var mu sync.Mutex
	var events []history.Event
	n := startNode(t, t.TempDir(), func(c *Config) {
		c.Trace = func(batch []history.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, batch...)
		}
	})
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() { n.ask("helper", fmt.Sprintf("s%d", i%3), "word") })
	}
	clients.Wait()
	n.close()
	var end, synced uint64
	seen := map[string]int{}
	admitted := map[string]bool{}
	for i := range events {
		e := &events[i]
		seen[e.Kind.String()+" "+e.What]++
		switch e.Kind {
		case history.Append:
			if e.Pos != end+uint64(e.Wrote) {
				t.Errorf("%v: the log ended at %d", e, end)
			}
			end = e.Pos
		case history.Sync:
			if e.Synced <= synced || e.Synced > end {
				t.Errorf("%v: the log ends at %d and was durable up to %d", e, end, synced)
			}
			synced = e.Synced
		case history.Admit:
			admitted[e.Call.String()] = true
		case history.Start:
			if !admitted[e.Call.String()] {
				t.Errorf("%v: call was not admitted before", e)
			}
		case history.Perform:
			if e.Pos > synced {
				t.Errorf("%v: the log is durable only up to %d", e, synced)
			}
		}
	}
	for _, want := range []string{"Start ", "Append ", "Sync ", "Perform publish"} {
		if seen[want] == 0 {
			t.Errorf("no %s was traced: %v", want, seen)
		}
	}
	if seen["Perform respond"] != 8 {
		t.Errorf("got %d traced replies, want 8", seen["Perform respond"])
	}
}
