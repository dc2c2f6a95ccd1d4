// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	batchEntries = 15_000 // maximum number of entries in one run of TLC
	batchTimeout = 10 * time.Minute
)

// A verdict is the result of checking one history.
type verdict struct {
	t        *translation
	accepted bool
	entry    int // first entry that module Calls does not allow, from 1
	why      string
	state    string // state before that entry, if TLC printed it
}

// batch is a group of histories with equal limits that one run of TLC checks.
type batch struct {
	translations []*translation
}

// batches groups histories of equal limits and similar size, the smallest first. The time TLC
// spends on an entry grows with the number of calls of the largest history in the batch.
func batches(all []*translation) []batch {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *translation) int {
		return cmp.Or(strings.Compare(a.limits(), b.limits()), cmp.Compare(len(a.calls), len(b.calls)), strings.Compare(a.trace.Name, b.trace.Name))
	})
	var result []batch
	entries := 0
	for i, t := range all {
		if i == 0 || t.limits() != all[i-1].limits() || entries+len(t.entries) > batchEntries || len(t.calls) > 2*len(result[len(result)-1].translations[0].calls)+8 {
			result = append(result, batch{})
			entries = 0
		}
		last := &result[len(result)-1]
		last.translations = append(last.translations, t)
		entries += len(t.entries)
	}
	return result
}

func (t *translation) limits() string {
	l := t.trace.Header.Limits
	return fmt.Sprintf("  DepthMax = %d\n  OutMax = %d\n  BoxMax = %d\n", l.Depth, l.Calls, l.Mailbox)
}

func quoted(names []string) string {
	all := make([]string, len(names))
	for i, n := range names {
		all[i] = strconv.Quote(n)
	}
	return "{" + strings.Join(all, ", ") + "}"
}

// data returns the text of module TraceData.
func (b batch) data() string {
	var out strings.Builder
	words := map[string]bool{}
	var agents, recursive, left, runs []string
	seen := map[string]bool{}
	calls := 0
	for i, t := range b.translations {
		for w := range t.words {
			words[w] = true
		}
		for _, a := range t.actors {
			if !seen[a] {
				seen[a] = true
				agents = append(agents, fmt.Sprintf("%q :> %q", a, agentOf(a)))
			}
		}
		calls = max(calls, len(t.calls))
		recursive = append(recursive, quoted(t.recursive))
		left = append(left, fmt.Sprint(micros(t.trace.Header.Limits.Timeout)))
		runs = append(runs, fmt.Sprintf("R%d", i+1))
	}
	var w []string
	for word := range words {
		w = append(w, word)
	}
	slices.Sort(w)
	fmt.Fprintf(&out, "---- MODULE TraceData ----\nEXTENDS TLC\nCallsMax == %d\nWords == %s\nAgent == %s\nRecursive == <<%s>>\nLeftMax == <<%s>>\n",
		calls, quoted(w), strings.Join(agents, " @@ "), strings.Join(recursive, ", "), strings.Join(left, ", "))
	for i, t := range b.translations {
		fmt.Fprintf(&out, "R%d == <<\n", i+1)
		for j, e := range t.entries {
			out.WriteString(e.text)
			if j < len(t.entries)-1 {
				out.WriteString(",\n")
			}
		}
		out.WriteString(">>\n")
	}
	fmt.Fprintf(&out, "Runs == <<%s>>\n====\n", strings.Join(runs, ", "))
	return out.String()
}

// config returns the TLC config of a batch. If judge is set, TLC reports every rejected history.
// Otherwise it stops at the first rejected history and prints the states that lead to the
// rejection.
func (b batch) config(judge bool) string {
	var actors, existing, nodes []string
	for _, t := range b.translations {
		for _, a := range t.actors {
			addUnique(&actors, a)
			if !slices.Contains(t.unknown, a) {
				addUnique(&existing, a)
			}
		}
		for _, n := range t.nodes {
			addUnique(&nodes, n)
		}
	}
	spec, check := "TraceSpec", "INVARIANT Sound"
	if judge {
		spec, check = "JudgeSpec", "CONSTRAINT Sound"
	}
	return fmt.Sprintf(`SPECIFICATION %s
VIEW Place
CONSTANTS
  Agents = %s
  Known = %s
  Nodes = %s
  Client = "client"
  None = ""
  Ids <- TraceIds
  Turns = "serial"
  More = {TRUE}
  Resends = TRUE
%s  Time = 0
  HoldTime = 0
  MaxRoots = 1000000
  MaxGiveUp = 1000000
  MaxHold = 1000000
  MaxDup = 1000000
  MaxDrop = 1000000
  MaxCrash = 1000000
  Bug = "none"
  Due <- TraceDue
  Within <- TraceWithin
  Same <- TraceSame
  Fresh <- TraceFresh
  Work <- TraceWork
  Ends <- TraceEnds
  Take <- TraceTake
  Post <- TracePost
  Used <- TraceUsed
  OutstandingBounded <- TraceOutstanding
  MailboxBounded <- TraceMailbox
  TurnExclusive <- TraceExclusive
  Sym = {}
%s
`, spec, quoted(actors), quoted(existing), quoted(nodes), b.translations[0].limits(), check)
}

// checkBatch runs TLC over a batch and writes the output of TLC to outputPath. Unless judge is
// set, it also returns the number of times each action of Calls was taken.
func (t TLC) checkBatch(ctx context.Context, b batch, judge bool, outputPath string) (verdicts []verdict, taken map[string]int, err error) {
	dir, err := os.MkdirTemp("", "tlc")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{"TraceData.tla": b.data(), "Trace.cfg": b.config(judge)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, nil, err
		}
	}
	if err := t.copyTo(dir, "Calls.tla", "Trace.tla"); err != nil {
		return nil, nil, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, batchTimeout, fmt.Errorf("not finished after %v", batchTimeout))
	defer cancel()
	args := []string{"-Xmx3g", "-Xss16m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.io.tmpdir=" + dir, "-cp", t.Jar, "tlc2.TLC", "-workers", "1", "-config", "Trace.cfg", "Trace"}
	cmd := exec.CommandContext(limited, t.Java, args...)
	cmd.Dir = dir
	output, runErr := cmd.CombinedOutput()
	if limited.Err() != nil {
		return nil, nil, context.Cause(limited)
	}
	if err := os.WriteFile(outputPath, output, 0o644); err != nil {
		return nil, nil, err
	}
	report := ParseReport(Config{}, string(output))
	verdicts = make([]verdict, len(b.translations))
	for i := range verdicts {
		verdicts[i] = verdict{t: b.translations[i], accepted: true}
	}
	for _, m := range rejectedLine.FindAllStringSubmatch(string(output), -1) {
		i, _ := strconv.Atoi(m[1])
		at, _ := strconv.Atoi(m[2])
		if v := &verdicts[i-1]; v.accepted || at < v.entry {
			*v = verdict{t: v.t, entry: at, why: m[3]}
		}
	}
	switch {
	case report.Violated != "" && !judge:
		states := strings.Split(string(output), "\nState ")
		last := states[len(states)-1]
		i, l := number(historyLine, 1, last), number(placeLine, 1, last)
		if i == 0 || l == 0 {
			return nil, nil, fmt.Errorf("%s is violated, and the output of TLC has no position: see %s", report.Violated, outputPath)
		}
		if report.Violated != "deadlock" {
			l-- // l already points to the entry after the one that violates the property
		}
		v := &verdicts[i-1]
		*v = verdict{t: v.t, entry: l, why: cmp.Or(v.why, report.Violated), state: last}
		return verdicts, nil, nil
	case report.Err != "" || !report.Complete:
		return nil, nil, fmt.Errorf("TLC failed: %s (%v): see %s", report.Err, runErr, outputPath)
	case slices.ContainsFunc(verdicts, func(v verdict) bool { return !v.accepted }):
		return verdicts, nil, nil
	}
	return verdicts, takenIn(string(output)), b.complete(report)
}

// takenIn reads the number of times each action was taken. TLC prints running totals at the end
// of each history, so the maximum is the result.
func takenIn(output string) map[string]int {
	taken := map[string]int{}
	for _, line := range takenLine.FindAllString(output, -1) {
		for _, m := range takenCount.FindAllStringSubmatch(line, -1) {
			n, _ := strconv.Atoi(m[2]) // digits, by the expression
			taken[m[1]] = max(taken[m[1]], n)
		}
	}
	return taken
}

var (
	takenLine    = regexp.MustCompile(`(?m)^"<<\\"taken\\", \[.*$`)
	takenCount   = regexp.MustCompile(`(\w+) \|-> (\d+)`)
	rejectedLine = regexp.MustCompile(`(?m)^<<"rejected", (\d+), (\d+), "([^"]*)">>`)
	historyLine  = regexp.MustCompile(`(?m)^/\\ r = (\d+)`)
	placeLine    = regexp.MustCompile(`(?m)^/\\ l = (\d+)`)
)

// complete returns an error unless TLC matched every entry of every history, each in one way.
func (b batch) complete(r Report) error {
	states, ends := b.states(), len(b.translations) // a history stutters at its end
	if r.Distinct != states || r.Generated != states+ends {
		return fmt.Errorf("TLC found %d states in %d steps, want %d in %d: an entry was not checked, or in several ways", r.Distinct, r.Generated, states, states+ends)
	}
	return nil
}

// states returns the number of states of all histories: one before each entry, and one at the end.
func (b batch) states() int {
	n := 0
	for _, t := range b.translations {
		n += len(t.entries) + 1
	}
	return n
}
