// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/history"
)

const sampleTrace = `{"trace":1,"source":"test","limits":{"agent_call_depth_max":2,"agent_concurrent_calls_max":1,"max_pending_per_actor":1,"agent_call_timeout_max":1000000},"agents":[{"name":"ana","by_actor":true},{"name":"bo"}]}
{"kind":"Ask","at":5000,"node":"n1","cell":0,"call":"x","peer":"ana/s","what":"client","left":1000001}
{"kind":"Admit","at":7999,"node":"n1","cell":0,"actor":"ana/s","call":"x","left":1000001,"count":1}
{"kind":"Start","at":7999,"node":"n1","cell":3,"incarnation":65536,"actor":"ana/s","epoch":2,"call":"x","left":1000001}
{"kind":"Reply","at":7999,"node":"n1","cell":0,"actor":"ana/s","call":"x","status":"failed","reason":"Deadline"}
`

func writeTrace(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "t.ndjson")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTranslate(t *testing.T) {
	h, err := readTrace(writeTrace(t, sampleTrace))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	translated := translate(h)
	for _, e := range translated.entries {
		got = append(got, e.text)
	}
	want := []string{
		`[k |-> "client", c |-> 1, b |-> "ana/s", left |-> 1001, n |-> "n1"]`,
		`[k |-> "Tick", d |-> 2]`,
		`[k |-> "Admit", a |-> "ana/s", c |-> 1, left |-> 1001, chain |-> <<>>, count |-> 1, n |-> "n1"]`,
		`[k |-> "Start", a |-> "ana/s", c |-> 1, left |-> 1001, n |-> "n1", cell |-> 3, i |-> "65536", e |-> 2]`,
		`[k |-> "Reply", a |-> "ana/s", c |-> 1, w |-> "due", pending |-> 0, s |-> 0, n |-> "n1"]`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(translated.recursive) != 1 || len(translated.unknown) != 0 {
		t.Errorf("got recursive %v, unknown %v; want one and none", translated.recursive, translated.unknown)
	}
}

// Agents registered during a run are announced in lines of their own, which are no events.
func TestTranslateAgentsAnnouncedLater(t *testing.T) {
	early, err := readTrace(writeTrace(t, sampleTrace))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(sampleTrace, `{"name":"ana","by_actor":true},`, "", 1)
	text = strings.Replace(text, "\n", "\n{\"agents\":[{\"name\":\"ana\",\"by_actor\":true}]}\n", 1)
	later, err := readTrace(writeTrace(t, text))
	if err != nil {
		t.Fatal(err)
	}
	a, b := translate(early), translate(later)
	if len(b.entries) != len(a.entries) || len(b.unknown) != 0 || len(b.recursive) != 1 {
		t.Fatalf("got %d entries, want %d; unknown %v, recursive %v", len(b.entries), len(a.entries), b.unknown, b.recursive)
	}
	for i := range a.entries {
		if a.entries[i].text != b.entries[i].text || a.entries[i].line+1 != b.entries[i].line {
			t.Errorf("got %+v, want %+v one line further on", b.entries[i], a.entries[i])
		}
	}
	if _, err := readTrace(writeTrace(t, strings.Replace(text, `"by_actor"`, `"volatile"`, 1))); err == nil {
		t.Error("a volatile agent announced later is accepted")
	}
}

// The clock of a run or call stops and restarts once. The events of an approval and of a parked run, which
// precede those of the clock, change nothing in module Trace.
func TestTranslateClocksOnly(t *testing.T) {
	for what, want := range map[string]string{"run": "HoldRun", "ask": "HoldCall", "approval": "other", history.Parked: "other"} {
		for _, kind := range []string{"Hold", "Resume"} {
			got := translate(trace{Events: []event{{Kind: kind, What: what, Actor: "ana/s", Node: "n1", Call: "x", N: 1}}}).entries[0].text
			if !strings.Contains(got, `k |-> "`+want+`"`) {
				t.Errorf("%s of %s becomes %s, want %s", kind, what, got, want)
			}
		}
	}
}

func TestReadTraceRejectsUncheckable(t *testing.T) {
	for _, test := range []struct{ old, new, want string }{
		{`"trace":1`, `"trace":9`, "trace version 9"},
		{`"name":"bo"`, `"name":"bo","volatile":true`, "agent bo is not journaled"},
		{`"name":"bo"`, `"name":"bo","interleaved":true`, "agent bo is not journaled"},
		{`{"kind":"Start"`, "{\"lost\":7}\n{\"kind\":\"Start\"", "7 events were lost"},
		{`{"kind":"Start"`, `{"kind":7,"k":"Start"`, ":4: "},
	} {
		_, err := readTrace(writeTrace(t, strings.Replace(sampleTrace, test.old, test.new, 1)))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.new, err, test.want)
		}
	}
	if _, err := readTrace(writeTrace(t, strings.SplitAfter(sampleTrace, "\n")[0])); err == nil || !strings.Contains(err.Error(), "no events") {
		t.Errorf("an empty trace: %v", err)
	}
}

// Every kind of event has a translation. Module Trace handles every translated entry or lists it
// as passed over.
func TestEveryHistoryKindIsTranslated(t *testing.T) {
	module := read(t, "Trace.tla")
	passed := regexp.MustCompile(`Passed == \{([^}]*)\}`).FindStringSubmatch(module)
	if passed == nil {
		t.Fatal("module Trace has no list of passed-over entries")
	}
	translated := translate(trace{Events: []event{{}}})
	for _, k := range history.Kinds() {
		for _, e := range []event{
			{Kind: k.String(), Why: "callee"},
			{Kind: k.String(), What: "client"}, {Kind: k.String(), What: "call"}, {Kind: k.String(), What: "model"},
			{Kind: k.String(), What: "request", Epoch: 1}, {Kind: k.String(), What: "cancel"}, {Kind: k.String(), What: "answered"}, {Kind: k.String(), What: "held"},
			{Kind: k.String(), What: "run"}, {Kind: k.String(), What: "ask"}, {Kind: k.String(), What: "send", Why: "request"}, {Kind: k.String(), What: "respond"},
		} {
			text := translated.entry(&e)
			name := strings.SplitN(text, `"`, 3)[1]
			if !strings.Contains(passed[1], `"`+name+`"`) && !strings.Contains(module, `E.k = "`+name+`" ->`) {
				t.Errorf("%s %s becomes %s, which module Trace does not handle", e.Kind, e.What, text)
			}
		}
	}
}

func TestCorruptionsReportLine(t *testing.T) {
	h, err := readTrace(writeTrace(t, sampleTrace))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range corruptions {
		if c.name != "swapped: Start and Admit" && c.name != "twice: Reply" {
			continue
		}
		corrupted, at, err := c.applyToFirst([]trace{h})
		if err != nil {
			t.Fatal(err)
		}
		switch e := corrupted.Events[at-2]; {
		case c.name == "twice: Reply" && (e.Kind != "Reply" || len(corrupted.Events) != 5),
			c.name != "twice: Reply" && (e.Kind != "Start" || corrupted.Events[at-1].Kind != "Admit"):
			t.Errorf("%s: line %d is %+v", c.name, at, e)
		}
	}
	if len(h.Events) != 4 || h.Events[1].Kind != "Admit" {
		t.Error("a corruption changes the original history")
	}
	if _, _, err := corruptions[0].applyToFirst([]trace{h}); err == nil {
		t.Error("a dropped Ask applies to a history without calls between actors")
	}
}

// Without its first ask, a step of several is wrong at the next ask, or at what the first sends.
func TestDroppedAskIsMissedFirst(t *testing.T) {
	ask, next := event{Kind: "Ask", What: "call", Call: "c", Parent: "p"}, event{Kind: "Ask", What: "tool", Parent: "p", Index: 1}
	send, other := event{Kind: "Send", What: "request", Call: "c"}, event{Kind: "Ask", What: "call", Call: "d", Parent: "q"}
	for _, test := range []struct {
		events []event
		line   int
	}{
		{[]event{ask, send}, 2}, {[]event{ask, other, send, next}, 3}, {[]event{ask, other, next, send}, 3}, {[]event{ask, other}, 0},
	} {
		if _, line := corruptions[0].apply(test.events); line != test.line {
			t.Errorf("%+v: rejected at line %d, want %d", test.events, line, test.line)
		}
	}
}

func TestBatchesShareLimits(t *testing.T) {
	h, err := readTrace(writeTrace(t, sampleTrace))
	if err != nil {
		t.Fatal(err)
	}
	other := h
	other.Header.Limits.Depth = 7
	all := batches([]*translation{translate(h), translate(other), translate(h)})
	if len(all) != 2 || all[0].states()+all[1].states() != 3*6 {
		t.Fatalf("got %d batches", len(all))
	}
	if text := all[0].config(false); !strings.Contains(text, "DepthMax = 2") || !strings.Contains(text, "INVARIANT Sound\n") {
		t.Errorf("got %s", text)
	}
}

// A batch is complete if TLC finds one state for each entry, in one way, and each end again.
func TestBatchIsCompleteOnlyIfEachEntryHasOneStep(t *testing.T) {
	h, err := readTrace(writeTrace(t, sampleTrace))
	if err != nil {
		t.Fatal(err)
	}
	b := batch{[]*translation{translate(h), translate(h)}} // of five entries each
	for r, want := range map[Report]bool{
		{Distinct: 12, Generated: 14}: true,
		{Distinct: 11, Generated: 13}: false, // an entry is skipped
		{Distinct: 12, Generated: 15}: false, // an entry has two steps, of which TLC follows one
		{Distinct: 13, Generated: 14}: false,
		{}:                            false,
	} {
		if err := b.complete(r); (err == nil) != want {
			t.Errorf("%d states in %d steps: got %v, want complete: %v", r.Distinct, r.Generated, err, want)
		}
	}
}

// The definition Sound of module Trace reports each invariant of Calls by its name, except the types,
// one of interleaved turns, and one that Trace replaces.
func TestTraceChecksInvariantsOfCalls(t *testing.T) {
	replaced := map[string]string{"TypeOK": "", "NoWaitRing": "", "AckedIsDurable": "TraceAcked"}
	module, checked := read(t, "Trace.tla"), 0
	for _, c := range configs(t) {
		if c.Module != "Calls" || c.Expect.Kind != Holds {
			continue
		}
		for _, name := range c.Invariants {
			if by, ok := replaced[name]; ok {
				name = by
			}
			if checked++; name != "" && !strings.Contains(module, `says(`+name+`, "`+name+`")`) {
				t.Errorf("Sound does not report %s", name)
			}
		}
	}
	if checked == 0 {
		t.Error("the configs of Calls have no invariants")
	}
}

func TestWalkLines(t *testing.T) {
	output := "Progress: 1\n" + `"<<\"walk\", <<<<\"Send\", 1, 0, \"a\", FALSE, <<<<\"wait\", \"none\", \"none\">>>>>>, <<\"Crash\", 0, 0, \"a\", TRUE, <<>>>>>>>>"` + "\nFinished\n"
	want := `[["Send", 1, 0, "a", false, [["wait", "none", "none"]]], ["Crash", 0, 0, "a", true, []]]` + "\n"
	if got := string(walkLines([]byte(output))); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Module Trace counts every action of Calls, and coverage reads its counts.
func TestTraceCountsCallsActions(t *testing.T) {
	counted := regexp.MustCompile(`(?s)Actions == <<(.*?)>>`).FindStringSubmatch(read(t, "Trace.tla"))
	if counted == nil {
		t.Fatal("module Trace has no list of actions")
	}
	_, next, _ := strings.Cut(modules(t)["Calls"], "\nCalm ==")
	next, _, _ = strings.Cut(next, "\nSpec ==")
	for _, m := range regexp.MustCompile(`\b([A-Z][A-Za-z]*)(?:\(|\b)`).FindAllStringSubmatch(next, -1) {
		if isAction(modules(t)["Calls"], m[1]) && m[1] != "Next" && m[1] != "Calm" && !strings.Contains(counted[1], `"`+m[1]+`"`) {
			t.Errorf("module Trace does not count %s", m[1])
		}
	}
	output := "x\n" + `"<<\"taken\", [Ask |-> 1, Drop |-> 0]>>"` + "\n" + `"<<\"taken\", [Ask |-> 7, Drop |-> 0]>>"` + "\n"
	want := "  actions of Calls: 1 of 2 were taken: Drop 0 (loss is the absence of a delivery), Ask 7"
	if got := coverage(takenIn(output)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Walks of a defect are kept if they violate a property, walks of the design if they do not.
func TestSelectWalks(t *testing.T) {
	output := `"<<\"walk\", TRUE, <<<<FALSE, {}>>, <<FALSE, {}>>, <<TRUE, {<<1, \"x\">>}>>>>>>"` + "\n" + `"<<\"walk\", FALSE, <<<<TRUE, {}>>>>>>"` + "\n"
	for bug, want := range map[string]string{
		"none": `{"Bug":"none","Good":true,"Steps":[[false,[]],[true,[[1,"x"]]]]}` + "\n",
		"flip": `{"Bug":"flip","Good":false,"Steps":[[true,[]]]}` + "\n",
	} {
		var selected bytes.Buffer
		good, broken, err := selectWalks(&selected, bug, walkLines([]byte(output)), false)
		if err != nil || good != 1 || broken != 1 || selected.String() != want {
			t.Errorf("%s: %d good, %d broken, %v\n got %s\nwant %s", bug, good, broken, err, selected.String(), want)
		}
	}
}

func TestMostKindsTakesRareEventsThenResumedTurns(t *testing.T) {
	history := func(name string, kinds ...string) trace {
		h := trace{Name: name}
		for _, k := range kinds {
			h.Events = append(h.Events, event{Kind: k, Node: "n1", Actor: "ana/1", Call: "c"})
		}
		return h
	}
	all := []trace{history("plain", "Start", "Reply"), history("also plain", "Start", "Reply"), history("resumed", "Start", "Crash", "Activate"),
		history("rare", "Start", "Expire", "Hold"), history("resumed again", "Start", "Crash", "Activate")}
	for n, want := range map[int][]string{
		2: {"resumed", "rare"},
		4: {"resumed", "rare", "plain", "resumed again"},
		9: {"resumed", "rare", "plain", "resumed again", "also plain"},
	} {
		var got []string
		for _, h := range mostKinds(all, n) {
			got = append(got, h.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d histories: got %q, want %q", n, got, want)
		}
	}
}
