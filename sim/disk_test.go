// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// A sync that commits nothing, because the store rejects the first batch, is no event: a Sync means
// that more of the log is durable, as in the history of a server. The last seed has such a sync.
func TestEachSyncMakesEntriesDurable(t *testing.T) {
	for seed := uint64(50); seed <= 54; seed++ {
		durable, syncs := map[actor.NodeID]uint64{}, 0
		r := RunSeed(Options{Seed: seed, Plain: true, Unhashed: true, rule: func(_ actor.Duration, e *history.Event) string {
			node := e.From.Node
			switch e.Kind {
			case history.Sync:
				syncs++
				if e.Synced <= durable[node] {
					return "SyncMakesDurable"
				}
				durable[node] = e.Synced
			case history.Crash:
				durable[node] = e.Synced
			}
			return ""
		}})
		if r.Violation != nil || syncs == 0 {
			t.Errorf("seed %d: %d syncs, violation %v", seed, syncs, r.Violation)
		}
	}
}
