// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// A change of the agents, and the search for used definitions, visit no actor.
func TestAgentChangeVisitsNoActor(t *testing.T) {
	agents := []actor.Definition{agent("idle", echo(), volatile), agent("slow", waiting(time.Hour), volatile)}
	c := newTestCell(Config{}, agents...)
	c.Step(2, Due{Last: true})
	for i := range 100 {
		v := newVisit(uint64(i), "idle")
		v.Call.To.Key = fmt.Sprint(i)
		c.Step(2, v)
	}
	c.Step(2, newVisit(100, "slow"))
	if n := c.Size().Actors; n != 101 {
		t.Fatalf("got %d actors, want 101", n)
	}
	for _, g := range c.actors.groups {
		for key := range g.byKey {
			g.byKey[key] = nil // a visit would panic
		}
	}
	changed := agent("idle", echo())
	c.Step(2, Agents{Definitions: []actor.Definition{changed}})
	open, known := c.OpenDefinitions([]actor.Hash{agents[0].Hash, agents[1].Hash})
	if !known || !slices.Equal(open, []actor.Hash{agents[1].Hash}) {
		t.Errorf("got definitions %v in use, known %v, want that of the open run", open, known)
	}
	if c.definitions.current("slow") != nil || c.definitions.byHash[agents[1].Hash] == nil {
		t.Error("the deleted agent has a current definition, or its open run has none")
	}
}

// A cell refers to no list of an earlier change, even if it still uses definitions of
// that list. Otherwise each of n agents could retain a list of n definitions.
func TestEarlierListsOfAgentsAreReleased(t *testing.T) {
	c := newTestCell(Config{}, agent("a", echo()))
	var first weak.Pointer[actor.Definition]
	func() {
		list := []actor.Definition{agent("a", echo()), agent("b", waiting(time.Hour))}
		first = weak.Make(&list[0])
		c.Step(2, Agents{Definitions: list})
		c.Step(2, newVisit(1, "b"))
	}()
	c.Step(3, Agents{Definitions: []actor.Definition{agent("a", echo())}, Former: []actor.Definition{agent("b", waiting(time.Hour))}})
	goruntime.GC()
	if first.Value() != nil {
		t.Error("the first list is retained after the second change")
	}
	if c.definitions.current("a") == nil {
		t.Error("agent a is unknown")
	}
	goruntime.KeepAlive(c)
}

// A definition that is compiled again, with other tools, has the same hash. The cell uses
// the newer one.
func TestRecompiledDefinitionIsReplaced(t *testing.T) {
	c := newTestCell(Config{}, agent("a", echo()))
	again := agent("a", echo())
	again.Doc = "compiled again"
	c.Step(2, Agents{Definitions: []actor.Definition{again}})
	if got := c.definitions.current("a").Doc; got != again.Doc {
		t.Errorf("got the definition %q, want that of the last change", got)
	}
}

// A definition that is no longer in use is not found, though it was the last one that was.
func TestUnusedDefinitionIsNotFound(t *testing.T) {
	former, next := agent("a", echo()), agent("b", echo())
	run := &store.Run{Definition: former.Hash, Call: actor.Call{To: actor.NewID("a", "")}}
	for name, use := range map[string]func(d *definitions){
		"replaced": func(d *definitions) { d.replace([]actor.Definition{next}, nil) },
		"replaced, and released by its last run": func(d *definitions) {
			d.retain(former.Hash)
			d.replace([]actor.Definition{next}, nil)
			if d.of(run) == nil {
				t.Error("a run has no definition while it is open")
			}
			d.release(former.Hash)
		},
	} {
		d := newDefinitions()
		d.replace([]actor.Definition{former}, nil)
		if d.current("a") == nil || d.of(run) == nil {
			t.Fatal("the definition is not found")
		}
		use(&d)
		if d.current("a") != nil || d.of(run) != nil || d.find(former.Hash) != nil {
			t.Errorf("%s: it is found", name)
		}
	}
}
