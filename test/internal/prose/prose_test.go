// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
)

func TestTextsOfGoFile(t *testing.T) {
	const file = `// SPDX-License-Identifier: Apache-2.0

// Package p does one thing
// well.
package p

const helpUsage = "usage: three words"

type flags struct {
	N int ` + "`json:\"not this\" help:\"Number of things to do.\"`" + `
}

func (flags) Help() string { return "long help text" }

func TestRecordRoundTrip(t *testing.T) {
	t.Errorf("want %d, got "+"something else entirely", 1)
	send("data that is no message")
}
`
	texts, err := textsOf("p/x.go", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, text := range texts {
		got = append(got, strings.Join(strings.Fields(text.content), " "))
	}
	want := []string{"Package p does one thing well.", "usage: three words", "long help text", "Number of things to do.", "test record round trip", "want %d, got", "something else entirely"}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestTextsOfPage(t *testing.T) {
	texts := pageTexts("docs/a.md", "One\nparagraph.\n\n```\ncode says\n```\n| row | one |\n| row | two |\nlast\n")
	var got []string
	for _, text := range texts {
		got = append(got, strings.TrimSpace(text.content))
	}
	if want := []string{"One\nparagraph.", "| row | one |", "| row | two |\nlast"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestGroupsCountPhrases(t *testing.T) {
	for phrase, want := range map[string]string{
		"of what\nthe caller sent": "free-relative", "what is left": "free-relative", "how long a run takes": "free-relative",
		"The test says so": "tell-say-hear", "somebody": "person", "comes\nback": "stand-come-by", "the maximum age of a run": "",
	} {
		for _, g := range groups {
			if got := g.count(phrase); (got == 1) != (g.name == want) || got > 1 {
				t.Errorf("%q: %d hits in group %s, want group %q", phrase, got, g.name, want)
			}
		}
	}
}

func TestBudgetOnlyGoesDown(t *testing.T) {
	b, err := parseBudget("# comment\nfree-relative 1\ntell-say-hear 1\nperson 1\nstand-come-by 1\n")
	if err != nil {
		t.Fatal(err)
	}
	at := func(hits int) counts {
		return counts{words: 10_000, hits: map[string]int{"free-relative": hits, "tell-say-hear": 10, "person": 10, "stand-come-by": 10}}
	}
	for hits, want := range map[int]string{10: "", 9: "", 11: "rewrite", 8: "lower"} {
		got := strings.Join(b.compare(at(hits)), "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%d hits: %q, want %q", hits, got, want)
		}
	}
	if low := b.lowered(at(20)); low["free-relative"] != 1 {
		t.Errorf("the budget was raised to %v", low["free-relative"])
	}
	if low := b.lowered(at(4)); low["free-relative"] > 0.5 || len(low.compare(at(4))) > 0 {
		t.Errorf("the lowered budget is %v", low)
	}
	if _, err := parseBudget("person 1\n"); err == nil {
		t.Error("a budget without all groups was accepted")
	}
}

func TestTitleProblem(t *testing.T) {
	for title, ok := range map[string]bool{
		"runtime: deliver cancels to runs of deleted agents": true,
		"host/engine, host/disk: rename identifiers":         true,
		"Revert \"sim: drop faults\"":                        true,
		"runtime: a cancel reaches a run":                    false,
		"runtime: delivered cancels":                         false,
		"Fix things":                                         false,
		"sim:no space":                                       false,
		"sim: " + strings.Repeat("x", titleMax-4):            false,
	} {
		if why := titleProblem(title); (why == "") != ok {
			t.Errorf("%q: problem %q, want none: %v", title, why, ok)
		}
	}
}
