// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// breakage is a mistake that the judge of a crashWorld must find.
type breakage string

const (
	none          breakage = ""
	leavesRow     breakage = "forget leaves the entity in the state"
	ahead         breakage = "the index follows a change before it is durable"
	foreignRead   breakage = "a search reads the scope of another user"
	losesForget   breakage = "a crash loses an acknowledged forgetting"
	forgetsNobody breakage = "forget is answered and not performed"
)

// crashScope is one scope: its durable state, the changes that are not durable yet, and its index.
type crashScope struct {
	durable, state []actor.StateItem
	index          *Index
	open           []crashChange
}

type crashChange struct {
	operation string
	change    Change
	answer    Answer
	state     []actor.StateItem // after it
}

// crashWorld has a scope of two users each, whose actor appends to a journal that loses its end in a crash. Clients are told of a change
// once it is durable. Each fact has a word of its own, by which the judge knows whose it is and whether it was forgotten.
type crashWorld struct {
	broken breakage
	scopes map[string]*crashScope
	known  map[string]map[string]string // by user and entity: the acknowledged word; "" if it is forgotten
	gone   map[string][]string          // by user: words whose forgetting was acknowledged
	at     actor.Time
	words  int
}

var crashUsers = []string{"alice", "bob"}

func newCrashWorld(broken breakage) *crashWorld {
	w := &crashWorld{broken: broken, scopes: map[string]*crashScope{}, known: map[string]map[string]string{}, gone: map[string][]string{}}
	for _, user := range crashUsers {
		index, _ := NewIndex(nil)
		w.scopes[user], w.known[user] = &crashScope{index: index}, map[string]string{}
	}
	return w
}

// put returns a state with updates.
func put(state, updates []actor.StateItem) []actor.StateItem {
	state = slices.Clone(state)
	for _, u := range updates {
		at, found := slices.BinarySearchFunc(state, u.Name, func(i actor.StateItem, name string) int { return strings.Compare(i.Name, name) })
		switch {
		case found && len(u.Value) == 0:
			state = slices.Delete(state, at, at+1)
		case found:
			state[at] = u
		case len(u.Value) > 0:
			state = slices.Insert(state, at, u)
		}
	}
	return state
}

// change has the actor of a scope accept a change.
func (w *crashWorld) change(user, operation, entity string) {
	s := w.scopes[user]
	w.at++
	w.words++
	c := Change{Entity: entity, Reason: "asked"}
	if operation == OpCreate {
		c = Change{Entity: entity, Content: fmt.Sprintf("likes %sword%d.", user, w.words)}
	}
	updates, answer, refusal := Apply(operation, &c, s.state, w.at)
	if refusal != nil {
		return
	}
	if operation == OpForget && w.broken == leavesRow {
		updates = slices.DeleteFunc(updates, func(i actor.StateItem) bool { return len(i.Value) == 0 })
	}
	if operation == OpForget && w.broken == forgetsNobody {
		updates = nil
	}
	s.state = put(s.state, updates)
	s.open = append(s.open, crashChange{operation, c, answer, s.state})
	if w.broken == ahead {
		s.index.Follow(operation, &c, &answer)
	}
}

// sync makes the changes of a scope durable, and then answers them.
func (w *crashWorld) sync(user string) {
	s := w.scopes[user]
	for _, o := range s.open {
		if o.operation != OpForget || w.broken != losesForget {
			s.durable = o.state
		}
		if !s.index.Follow(o.operation, &o.change, &o.answer) {
			s.index, _ = NewIndex(s.durable)
		}
		key := Key(o.change.Entity)
		if o.operation == OpCreate {
			w.known[user][key] = o.change.Content
		} else if was := w.known[user][key]; was != "" {
			w.gone[user] = append(w.gone[user], was)
			w.known[user][key] = ""
		}
	}
	s.open = nil
}

// crash loses what is not durable.
func (w *crashWorld) crash() {
	for _, user := range crashUsers {
		s := w.scopes[user]
		s.open, s.state = nil, s.durable
		s.index, _ = NewIndex(s.durable)
	}
}

// search returns the texts that a user finds.
func (w *crashWorld) search(user, words string) (found []string) {
	if w.broken == foreignRead {
		user = crashUsers[1]
	}
	for _, h := range w.scopes[user].index.Search(words, true, HitsMax) {
		found = append(found, h.Fact.Content)
	}
	return found
}

// judge returns what is wrong.
func (w *crashWorld) judge() error {
	for _, user := range crashUsers {
		s := w.scopes[user]
		for _, text := range w.search(user, "likes") {
			if !strings.HasPrefix(text, "likes "+user) {
				return fmt.Errorf("%s finds %q, which is of another user", user, text)
			}
		}
		for _, text := range w.gone[user] {
			for _, item := range s.durable {
				if strings.Contains(string(item.Value), text) {
					return fmt.Errorf("%q of %s was forgotten, and is in the state", text, user)
				}
			}
			if slices.Contains(w.search(user, text), text) {
				return fmt.Errorf("%q of %s was forgotten, and is found", text, user)
			}
		}
		if durable := positionOf(s.durable); s.index.Position() > durable {
			return fmt.Errorf("the index of %s is at %d, and its journal at %d", user, s.index.Position(), durable)
		}
		for key, text := range w.known[user] {
			if text != "" && !slices.Contains(w.search(user, text), text) {
				return fmt.Errorf("%s was told that %s has %q, and does not find it", user, key, text)
			}
		}
	}
	return nil
}

// walk performs drawn operations, and returns the first thing that is wrong.
func (w *crashWorld) walk(steps int, draw func(n int) int) error {
	for range steps {
		user, entity := crashUsers[draw(2)], fmt.Sprint("entity ", draw(3))
		switch draw(8) {
		case 0, 1, 2:
			w.change(user, OpCreate, entity)
		case 3, 4:
			w.change(user, OpForget, entity)
		case 5, 6:
			w.sync(user)
		case 7:
			w.crash()
		}
		if err := w.judge(); err != nil {
			return err
		}
	}
	return nil
}

// A crash between the journal and the index changes nothing that a client was told: what is remembered is found, what is
// forgotten is in neither, no index is ahead of its journal, and no user reads another's scope.
func TestMemoryOverCrashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "steps")
		if err := newCrashWorld(none).walk(n, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }); err != nil {
			t.Fatal(err)
		}
	})
}

// The judge of TestMemoryOverCrashes finds each mistake within a few walks.
func TestCrashesFindBreakages(t *testing.T) {
	for broken, want := range map[breakage]string{
		leavesRow: "is in the state", forgetsNobody: "was forgotten", ahead: "the index of", foreignRead: "of another user", losesForget: "is in the state",
	} {
		found := ""
		for seed := uint64(1); seed <= 50 && !strings.Contains(found, want); seed++ {
			state := seed
			err := newCrashWorld(broken).walk(60, func(n int) int {
				state = state*6364136223846793005 + 1442695040888963407
				return int(state>>33) % n
			})
			found = fmt.Sprint(err)
		}
		if !strings.Contains(found, want) {
			t.Errorf("%s: the judge found %s, want %q", broken, found, want)
		}
	}
}
