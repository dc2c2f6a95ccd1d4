// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// The state is that of a map in which updates set and delete items in order, folded or one by one, and no slice that a turn
// reads changes.
func TestStateIsThatOfAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var live, folded Journal
		folded.folds = true
		want := map[string]string{}
		for range rapid.IntRange(0, 8).Draw(t, "updates") {
			before := slices.Clone(live.ActorState)
			seen := live.ActorState
			var items []actor.StateItem
			for range rapid.IntRange(0, 5).Draw(t, "items") {
				item := actor.StateItem{Name: fmt.Sprint("n", rapid.IntRange(0, 9).Draw(t, "name")), Value: []byte(rapid.StringMatching("[a-z]{0,3}").Draw(t, "value"))}
				if items = append(items, item); len(item.Value) == 0 {
					delete(want, item.Name)
				} else {
					want[item.Name] = string(item.Value)
				}
			}
			live.updateState(items)
			folded.updateState(items)
			if !slices.EqualFunc(seen, before, sameItem) {
				t.Fatal("a slice has changed that a turn may read")
			}
		}
		folded.mergeState(folded.updates)
		for _, j := range []*Journal{&live, &folded} {
			var names []string
			for _, item := range j.ActorState {
				if names = append(names, item.Name); string(item.Value) != want[item.Name] {
					t.Fatalf("%s is %q, want %q", item.Name, item.Value, want[item.Name])
				}
			}
			if !slices.Equal(names, slices.Sorted(maps.Keys(want))) || j.stateBytes != itemsSize(j.ActorState) {
				t.Fatalf("names %v, %d bytes; want %v, %d", names, j.stateBytes, slices.Sorted(maps.Keys(want)), itemsSize(j.ActorState))
			}
		}
	})
}

func sameItem(a, b actor.StateItem) bool {
	return a.Name == b.Name && string(a.Value) == string(b.Value)
}
