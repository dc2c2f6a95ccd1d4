// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// scope is a state with the index that follows it.
type scope struct {
	items []actor.StateItem
	index *Index
	at    actor.Time
}

func newScope(t interface{ Fatal(...any) }) *scope {
	x, err := NewIndex(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &scope{index: x, at: actor.Time(time.Hour)}
}

func (s *scope) apply(operation string, c Change) (Answer, *actor.Refusal) {
	s.at = s.at.Add(time.Second)
	updates, answer, r := Apply(operation, &c, s.items, s.at)
	if r != nil {
		return answer, r
	}
	for _, u := range updates {
		at, found := searchItem(s.items, u.Name)
		switch {
		case len(u.Value) == 0:
			s.items = slices.Delete(s.items, at, at+1)
		case found:
			s.items[at] = u
		default:
			s.items = slices.Insert(s.items, at, u)
		}
	}
	if !s.index.Follow(operation, &c, &answer) {
		panic("the index does not follow")
	}
	return answer, nil
}

func (s *scope) create(entity, content string, relations ...string) (Answer, *actor.Refusal) {
	c := Change{Entity: entity, Content: content}
	for i := 0; i+1 < len(relations); i += 2 {
		c.Relations = append(c.Relations, RelationTo{relations[i], relations[i+1]})
	}
	return s.apply(OpCreate, c)
}

func TestChangesAndTheirStatus(t *testing.T) {
	s := newScope(t)
	first, _ := s.create("Ada Lovelace", "Likes tea.")
	for _, step := range []struct {
		name   string
		op     string
		c      Change
		status Status
		reason string // part of the refusal
	}{
		{"same fact in another spelling", OpCreate, Change{Entity: "ada  lovelace", Content: "likes  TEA."}, Unchanged, ""},
		{"another fact", OpCreate, Change{Entity: "Ada Lovelace", Content: "Lives in London."}, Added, ""},
		{"the content of another entity", OpCreate, Change{Entity: "Bob", Content: "Likes tea."}, Created, ""},
		{"a fact that is true no longer", OpCreate, Change{Entity: "Ada Lovelace", Content: "Likes coffee.", Supersedes: first.Fact, Reason: "she said so"}, Superseded, ""},
		{"its repeat", OpCreate, Change{Entity: "Ada Lovelace", Content: "Likes coffee.", Supersedes: first.Fact, Reason: "she said so"}, Unchanged, ""},
		{"superseding what is superseded", OpCreate, Change{Entity: "Ada Lovelace", Content: "Likes water.", Supersedes: first.Fact, Reason: "r"}, "", "has no valid fact"},
		{"superseding without a reason", OpCreate, Change{Entity: "Ada Lovelace", Content: "Likes water.", Supersedes: first.Fact}, "", "reason: is missing"},
		{"relation to a new entity", OpCreate, Change{Entity: "Bob", Relations: []RelationTo{{"knows", "Carol"}}}, Added, ""},
		{"the same relation", OpCreate, Change{Entity: "Bob", Relations: []RelationTo{{"knows", "carol"}}}, Unchanged, ""},
		{"no content", OpCreate, Change{Entity: "Bob"}, "", "content: is missing"},
		{"content too long", OpCreate, Change{Entity: "Bob", Content: strings.Repeat("x", ContentBytesMax+1)}, "", "at most 4096"},
		{"entity of 1 MiB", OpCreate, Change{Entity: strings.Repeat("x", 1<<20), Content: "x"}, "", "at most 256"},
		{"entity with a line break", OpCreate, Change{Entity: "a\nb", Content: "x"}, "", "without control characters"},
		{"forget without a reason", OpForget, Change{Entity: "Bob"}, "", "reason: is missing"},
		{"forget", OpForget, Change{Entity: "BOB", Reason: "asked"}, Forgotten, ""},
		{"forget again", OpForget, Change{Entity: "Bob", Reason: "asked"}, Forgotten, ""},
		{"forget what never was", OpForget, Change{Entity: "Dan", Reason: "asked"}, "", "nothing is remembered"},
		{"another operation", "memory.edit", Change{Entity: "Bob"}, "", "want the operation"},
	} {
		answer, r := s.apply(step.op, step.c)
		if step.reason != "" {
			if r == nil || !strings.Contains(r.Error(), step.reason) {
				t.Errorf("%s: refusal %v, want one with %q", step.name, r, step.reason)
			}
			continue
		}
		if r != nil || answer.Status != step.status {
			t.Errorf("%s: %v %v, want %s", step.name, answer, r, step.status)
		}
	}
	e, _, _ := s.index.Entity("Ada Lovelace")
	if len(e.Facts) != 3 || e.Facts[0].Until == 0 || e.Facts[0].Reason != "she said so" || e.Facts[0].SupersededBy != FactID("Likes coffee.") {
		t.Errorf("facts %+v: the first is not readable with its validity", e.Facts)
	}
}

func TestRepeatedCallDoesNotUndoForgetting(t *testing.T) {
	s := newScope(t)
	c := Change{Entity: "Ada", Content: "Likes tea.", Source: Source{Call: "run.1.0"}}
	if _, r := s.apply(OpCreate, c); r != nil {
		t.Fatal(r)
	}
	if _, r := s.apply(OpForget, Change{Entity: "Ada", Reason: "asked"}); r != nil {
		t.Fatal(r)
	}
	if a, r := s.apply(OpCreate, c); r != nil || a.Status != Forgotten || s.index.Len() != 0 {
		t.Errorf("the repeat was %v %v and left %d entities, want forgotten and 0", a, r, s.index.Len())
	}
	c.Source.Call = "run.2.0"
	if a, r := s.apply(OpCreate, c); r != nil || a.Status != Created {
		t.Errorf("a later call was %v %v, want created", a, r)
	}
}

func TestSearchTakesEveryQueryAsText(t *testing.T) {
	s := newScope(t)
	for entity, content := range map[string]string{"Ada": "Likes tea near the river", "Bob": "Prefers coffee", "c++": "A language OR a habit", "李雷": "喜欢茶"} {
		if _, r := s.create(entity, content); r != nil {
			t.Fatal(r)
		}
	}
	for query, want := range map[string]string{
		"tea":                        "Ada",
		`NEAR("tea" river)`:          "Ada",
		`"coffee`:                    "Bob",
		`coffee* NOT tea AND (`:      "Bob,Ada",
		`entity:Bob`:                 "Bob",
		"OR":                         "c++",
		"茶":                          "李雷",
		`'; DROP TABLE facts; --`:    "",
		"\x00\xff":                   "",
		strings.Repeat("(", 1<<10):   "",
		"teas":                       "",
		"COFFEE":                     "Bob",
		"what does ada like, tea or": "Ada,c++",
	} {
		var found []string
		for _, hit := range s.index.Search(query, false, 2) {
			found = append(found, hit.Entity)
		}
		if got := strings.Join(found, ","); got != want {
			t.Errorf("%q found %s, want %s", query, got, want)
		}
	}
}

func TestSupersededFactsAreFoundOnRequestOnly(t *testing.T) {
	s := newScope(t)
	a, _ := s.create("Ada", "Lives in Paris")
	if _, r := s.apply(OpCreate, Change{Entity: "Ada", Content: "Lives in London", Supersedes: a.Fact, Reason: "moved"}); r != nil {
		t.Fatal(r)
	}
	if hits := s.index.Search("paris", false, 0); len(hits) != 0 {
		t.Errorf("found %v", hits)
	}
	if hits := s.index.Search("paris", true, 0); len(hits) != 1 || hits[0].Fact.Until == 0 {
		t.Errorf("found %v, want the former fact with the end of its validity", hits)
	}
}

func TestNearFactsAreReported(t *testing.T) {
	s := newScope(t)
	for i := range 50 {
		if _, r := s.create(fmt.Sprint("person ", i), fmt.Sprintf("Works in room %d of the house", i)); r != nil {
			t.Fatal(r)
		}
	}
	near := s.index.Near(&Change{Entity: "person 7", Content: "works in room 7 of the big house"})
	if len(near) == 0 || near[0].Entity != "person 7" || near[0].Share < 0.8 {
		t.Errorf("near %v, want person 7 first", near)
	}
	if near := s.index.Near(&Change{Entity: "person 7", Content: "Works in room 7 of the house"}); slices.ContainsFunc(near, func(n Near) bool { return n.Entity == "person 7" }) {
		t.Errorf("near %v holds the fact itself", near)
	}
	if near := s.index.Near(&Change{Entity: "x", Content: "something else"}); len(near) != 0 {
		t.Errorf("near %v, want none", near)
	}
}

// TestNearFactsAreFound compares the facts that are near with all facts.
func TestNearFactsAreFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(rapid.SampledFrom(strings.Fields("ant bee cat dog eel fox gnu hen")), 1, 7).Draw(t, "words"), " ")
		})
		s := newScope(t)
		facts := rapid.SliceOfN(content, 0, 4*nearMax).Draw(t, "facts")
		for i, text := range facts {
			if _, r := s.create(fmt.Sprint("e", i), text); r != nil {
				t.Fatal(r)
			}
		}
		words := func(text string) []string {
			all := Words(text)
			slices.Sort(all)
			return slices.Compact(all)
		}
		change := content.Draw(t, "change")
		var want []float64
		for _, text := range facts {
			if s := share(words(change), words(text)); s >= nearAtLeast {
				want = append(want, math.Round(s*100)/100)
			}
		}
		slices.SortFunc(want, func(a, b float64) int { return cmp.Compare(b, a) })
		var got []float64
		for _, n := range s.index.Near(&Change{Entity: "other", Content: change}) {
			got = append(got, n.Share)
		}
		if !slices.Equal(got, want[:min(nearMax, len(want))]) {
			t.Fatalf("%q: got shares %v, want %v", change, got, want)
		}
	})
}

// TestFrequentWordsAreNotCompared checks that a change is not compared with all facts of a large scope.
func TestFrequentWordsAreNotCompared(t *testing.T) {
	x := newScope(t).index
	x.postings = map[string][]posting{"the": make([]posting, nearFactsMax), "customer": make([]posting, nearFactsMax-1), "graz": make([]posting, 1), "rare": make([]posting, 1)}
	for text, want := range map[string]string{
		"graz rare the customer new": "[graz rare]",
		"graz the customer":          "[graz customer]",
		"the":                        "[the]",
		"new":                        "[]",
	} {
		words := Words(text)
		slices.Sort(words)
		if got := fmt.Sprint(x.compared(words)); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// TestNearFactIsFoundAmongMany checks that facts with a rarer common word do not hide one that says nearly the same.
func TestNearFactIsFoundAmongMany(t *testing.T) {
	s := newScope(t)
	create := func(format string, n int) {
		for i := range n {
			if _, r := s.create(fmt.Sprint(format, i), strings.ReplaceAll(format, "%", fmt.Sprint(i))); r != nil {
				t.Fatal(r)
			}
		}
	}
	create("dog eel fox pad% qad% rad%", 30)
	create("cat dog eel fox", 1)
	create("ant bee cat only%", 25)
	near := s.index.Near(&Change{Entity: "other", Content: "ant bee cat dog eel fox"})
	if len(near) != 1 || near[0].Content != "cat dog eel fox" {
		t.Errorf("near %v", near)
	}
}

func TestTraverse(t *testing.T) {
	s := newScope(t)
	for _, c := range [][]string{{"a", "knows", "b"}, {"b", "knows", "c", "owns", "car"}, {"c", "knows", "d", "knows", "a"}, {"d", "knows", "e"}} {
		if _, r := s.create(c[0], "", c[1:]...); r != nil {
			t.Fatal(r)
		}
	}
	walk := func(relation string, depth int) string {
		all, _, r := s.index.Traverse("A", relation, depth)
		if r != nil {
			t.Fatal(r)
		}
		var names []string
		for _, e := range all {
			names = append(names, fmt.Sprint(e.Entity, e.Depth))
		}
		return strings.Join(names, " ")
	}
	for _, want := range []struct {
		relation string
		depth    int
		names    string
	}{{"knows", 1, "b1"}, {"knows", 3, "b1 c2 d3"}, {"", 2, "b1 c2 car2"}, {"owns", 3, ""}} {
		if got := walk(want.relation, want.depth); got != want.names {
			t.Errorf("%q to depth %d: %s, want %s", want.relation, want.depth, got, want.names)
		}
	}
	if _, r := s.apply(OpForget, Change{Entity: "b", Reason: "asked"}); r != nil {
		t.Fatal(r)
	}
	if got := walk("", 3); got != "" {
		t.Errorf("after b was forgotten: %s", got)
	}
	s.create("b", "is back")
	if got := walk("", 3); got != "" {
		t.Errorf("a relation to the former b leads to the new one: %s", got)
	}
	s.create("a", "", "knows", "b")
	if got := walk("", 3); got != "b1" {
		t.Errorf("after the relation was stated again: %s, want b1", got)
	}
}

// TestIndexIsThatOfItsState draws changes. The index that follows them is the one that is built from the
// state, and a forgotten word is in neither.
func TestIndexIsThatOfItsState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScope(t)
		names := []string{"ada", "Ada ", "bob", "carol"}
		var facts []string
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			name := rapid.SampledFrom(names).Draw(t, "entity")
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				s.apply(OpForget, Change{Entity: name, Reason: "asked"})
				for _, item := range s.items {
					if strings.Contains(strings.ToLower(string(item.Value)), strings.ToLower(strings.TrimSpace(name))+"only") {
						t.Fatalf("%s was forgotten, but its fact is left: %s", name, item.Value)
					}
				}
				if s.index.Search(strings.TrimSpace(name)+"only", true, 0) != nil || s.index.postings[strings.ToLower(strings.TrimSpace(name))+"only"] != nil {
					t.Fatalf("%s was forgotten, but its word is found", name)
				}
			case 1:
				a, r := s.create(name, fmt.Sprintf("fact %d %sonly", rapid.IntRange(0, 5).Draw(t, "n"), strings.TrimSpace(name)))
				if r == nil {
					facts = append(facts, a.Fact)
				}
			case 2:
				s.create(name, "", "knows", rapid.SampledFrom(names).Draw(t, "to"))
			case 3:
				if len(facts) > 0 {
					s.apply(OpCreate, Change{Entity: name, Content: fmt.Sprint("later ", rapid.IntRange(0, 5).Draw(t, "n")), Supersedes: rapid.SampledFrom(facts).Draw(t, "former"), Reason: "r"})
				}
			}
		}
		built, err := NewIndex(s.items)
		if err != nil {
			t.Fatal(err)
		}
		if built.position != s.index.position || built.live != s.index.live || built.length != s.index.length || built.bytes != s.index.bytes || !slices.Equal(built.names, s.index.names) {
			t.Fatalf("followed: %d facts at %d, built: %d at %d", s.index.live, s.index.position, built.live, built.position)
		}
		for word := range built.postings {
			if len(built.postings[word]) != len(s.index.postings[word]) {
				t.Fatalf("%s: followed %v, built %v", word, s.index.postings[word], built.postings[word])
			}
		}
		if len(built.postings) != len(s.index.postings) {
			t.Fatalf("followed %d words, built %d", len(s.index.postings), len(built.postings))
		}
		for key, e := range built.entities {
			if !reflect.DeepEqual(e.Entity, s.index.entities[key].Entity) {
				t.Fatalf("followed %+v, built %+v", s.index.entities[key].Entity, e.Entity)
			}
		}
	})
}

func TestPages(t *testing.T) {
	s := newScope(t)
	for i := range 25 {
		s.create(fmt.Sprintf("E%02d", i), "x")
	}
	var names []string
	after := ""
	for {
		page, more := s.index.Page(after, 10)
		for _, e := range page {
			names = append(names, e.Name)
		}
		if after = more; more == "" {
			break
		}
	}
	if len(names) != 25 || !slices.IsSorted(names) {
		t.Errorf("%d names: %v", len(names), names)
	}
}
