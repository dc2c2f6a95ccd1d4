// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"strings"
	"testing"
)

// Faults that users of other memories have reported, with the inputs of their reports.
func TestFaultsOfOtherMemories(t *testing.T) {
	found := func(s *scope, query string, limit int) (all []string) {
		for _, h := range s.index.Search(query, true, limit) {
			all = append(all, h.Entity+": "+h.Fact.Content)
		}
		return all
	}
	for name, c := range map[string]struct {
		do   func(s *scope)
		see  func(s *scope) any
		want any
	}{
		"a deleted memory is in the count and in searches (supermemory 142)": {
			func(s *scope) {
				s.create("onboarding flow", "the onboarding flow begins with a tour")
				s.apply(OpForget, Change{Entity: "onboarding flow", Reason: "r"})
			}, func(s *scope) any {
				all, _ := s.index.Page("", 10)
				return len(all) + s.index.Len() + len(found(s, "onboarding flow", 10))
			}, 0},
		"a deleted memory takes the place of a live one in a short list (agentmemory 632)": {
			func(s *scope) {
				s.create("jose", "use jose for JWT, not jsonwebtoken")
				s.create("expiry", "JWT tokens expire after 30 minutes")
				s.apply(OpForget, Change{Entity: "jose", Reason: "r"})
			}, func(s *scope) any { return strings.Join(found(s, "JWT", 1), ";") }, "expiry: JWT tokens expire after 30 minutes"},
		"list and search disagree after a deletion (ruflo 2815)": {
			func(s *scope) {
				s.create("dupe-probe", "probe alpha")
				s.apply(OpForget, Change{Entity: "dupe-probe", Reason: "r"})
			}, func(s *scope) any {
				return len(s.index.docs[0].text) + len(s.index.postings) + len(found(s, "probe alpha", 10))
			}, 0},
		"a copy of the text outlives its deletion (Cortex 366)": {
			func(s *scope) {
				s.create("note", "the full raw text")
				s.create("other", "", "cites", "note")
				s.apply(OpForget, Change{Entity: "note", Reason: "r"})
			}, func(s *scope) any {
				n := 0
				for _, item := range s.items {
					n += strings.Count(string(item.Value), "raw text") + strings.Count(string(item.Value), "note")
				}
				return n
			}, 0},
		"one subject becomes several entities (nowledge-mem 110)": {
			func(s *scope) {
				for _, name := range []string{"Agent Keyboard", "agent keyboard", " Agent  Keyboard ", "AGENT KEYBOARD"} {
					s.create(name, "is a project")
				}
			}, func(s *scope) any { return s.index.Len() }, 1},
		"a name in another case is not found (neo4j agent-memory 78)": {
			func(s *scope) { s.create("Daniel", "likes tea") },
			func(s *scope) any { _, _, r := s.index.Entity("daniel"); return r == nil }, true},
		"a hit lacks the name, which is the fact (neo4j agent-memory 176)": {
			func(s *scope) { s.create("Bangalore", "the city of the user") },
			func(s *scope) any { return strings.Join(found(s, "which city", 10), ";") }, "Bangalore: the city of the user"},
		"an apostrophe breaks the query (GraphRAG-SDK 137)": {
			func(s *scope) { s.create("goal", `The team's first "quarter" goal \`) },
			func(s *scope) any { return len(found(s, `team's "quarter' \`, 10)) }, 1},
		"a fact about an unknown entity fails (MCP servers 2030)": {
			func(s *scope) {
				if _, r := s.create("undefined", "is a fact"); r != nil {
					t.Error(r)
				}
			}, func(s *scope) any { return s.index.Len() }, 1},
		"what was remembered again stays forgotten, or brings the old text back (mem0 5066)": {
			func(s *scope) {
				s.create("second test memory", "to be deleted later")
				s.apply(OpForget, Change{Entity: "second test memory", Reason: "r"})
				s.create("second test memory", "new")
			}, func(s *scope) any { return strings.Join(found(s, "memory deleted later new", 10), ";") }, "second test memory: new"},
	} {
		s := newScope(t)
		c.do(s)
		if got := c.see(s); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
