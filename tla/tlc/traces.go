// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const tracesUsage = `usage: go run ./tla/tlc traces [-worlds N] [-no-server] [FILE...]

Checks histories of 200 simulations and of a real server against module Trace: each
MUST be a behaviour of module Calls. Then it corrupts some of them and simulates
mutants, which lack a guard. TLC must reject each of these histories at the entry
that is wrong. With files, checks those and nothing else.

Needs bin/troupe and bin/troupe-mutants (make trace builds both).

  -worlds N    give only N of the simulated histories to TLC, with as many kinds of
               events as possible (default: all)
  -no-server   skip the history of a server

examples
  make trace
  make trace ARGS='-worlds 20'
  bin/troupe sim --plain --seed 7 --trace /tmp/seven.ndjson && go run ./tla/tlc traces /tmp/seven.ndjson

Histories and the output of TLC are kept in .cache/tlc/traces/.
`

// tracedMutants are the guards whose removal is visible in histories of plain simulations.
var tracedMutants = []string{"cycle-check", "self-call", "depth-check", "chain-dropped-on-retry", "time-left-shrinks", "outstanding-limit",
	"outstanding-not-released", "unbounded-mailbox", "target-exists-check", "dedup-forgotten", "effect-before-its-gate",
	"released-at-written", "reply-to-another", "cancel-not-passed-down", "restart-forgets-open-call"}

// undetectable lists parts of the messages of violations that module Calls cannot detect, for
// two reasons. Calls allows a history that lacks an event that should follow. The mailbox of
// Calls counts messages, not bytes. After such a violation the mutant is simulated with another
// seed.
var undetectable = []string{" FAILED EveryCallEnds", " bytes waiting in "}

// crashPercentMin is the minimum percentage of simulated histories with a crash after which an
// actor resumes its work.
const crashPercentMin = 20

// simulationsAll is the number of simulations.
const simulationsAll = 200

// kindsMin is the minimum number of kinds of events in the simulated histories that TLC checks.
const kindsMin = 30

// traceCheck implements the command traces.
type traceCheck struct {
	tlc TLC
	dir string
}

func traces(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("traces", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), tracesUsage) }
	checked := flags.Int("worlds", simulationsAll, "")
	noServer := flags.Bool("no-server", false, "")
	if err := flags.Parse(args); err == flag.ErrHelp {
		return 0
	} else if err != nil {
		return 2
	}
	if *checked < 1 || *checked > simulationsAll {
		return fail(2, fmt.Errorf("-worlds %d: want 1 to %d", *checked, simulationsAll))
	}
	java, jar, err := Checker(ctx, cacheDir)
	if err != nil {
		return fail(1, err)
	}
	t := traceCheck{tlc: TLC{Java: java, Jar: jar, Dir: specDir}, dir: filepath.Join(cacheDir, "traces")}
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return fail(1, err)
	}
	start := time.Now()
	if flags.NArg() > 0 {
		err = t.files(ctx, flags.Args())
	} else {
		err = t.all(ctx, *checked, !*noServer)
	}
	if err != nil {
		return fail(1, err)
	}
	fmt.Printf("all as expected (%v)\n", time.Since(start).Round(time.Second))
	return 0
}

// files checks given histories.
func (t traceCheck) files(ctx context.Context, paths []string) error {
	all, err := readTraces(paths)
	if err != nil {
		return err
	}
	_, err = t.accept(ctx, "given", all)
	return err
}

// all checks histories of simulations, of which TLC gets as many as checked says, and if server is
// set, of a server. It then checks corrupted histories and those of mutants.
func (t traceCheck) all(ctx context.Context, checked int, server bool) error {
	paths, err := t.simulate(ctx)
	if err != nil {
		return err
	}
	all, err := readTraces(paths)
	if err != nil {
		return err
	}
	resumed := 0
	for _, tr := range all {
		if tr.resumed() {
			resumed++
		}
	}
	fmt.Printf("%d of %d simulated histories have a crash and an actor that resumes open work\n", resumed, len(all))
	if resumed*100 < crashPercentMin*len(all) {
		return fmt.Errorf("want at least %d %%", crashPercentMin)
	}
	kinds, err := t.accept(ctx, "simulated", mostKinds(all, checked))
	if err != nil {
		return err
	}
	if kinds < kindsMin {
		return fmt.Errorf("want at least %d kinds of events: the histories cover too little", kindsMin)
	}
	if server {
		path := filepath.Join(t.dir, "server.ndjson")
		if err := traceServer(ctx, path); err != nil {
			return err
		}
		recorded, err := readTraces([]string{path})
		if err != nil {
			return err
		}
		if _, err := t.accept(ctx, "of a server", recorded); err != nil {
			return err
		}
	}
	if err := t.rejectCorrupted(ctx, all); err != nil {
		return err
	}
	return t.rejectMutated(ctx)
}

func readTraces(paths []string) ([]trace, error) {
	var all []trace
	for _, p := range paths {
		tr, err := readTrace(p)
		if err != nil {
			return nil, err
		}
		all = append(all, tr)
	}
	return all, nil
}

// simulate runs plain simulations and returns the paths of their traces.
func (t traceCheck) simulate(ctx context.Context) ([]string, error) {
	dir := filepath.Join(t.dir, "sim")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "bin/troupe", "sim", "--plain", "--seed", "1", "--runs", fmt.Sprint(simulationsAll), "--trace", dir)
	if output, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("bin/troupe sim: %w\n%s", err, output)
	}
	return filepath.Glob(filepath.Join(dir, "*.ndjson"))
}

// resumed reports whether a node crashed during a turn of an actor and the actor was activated
// again later.
func (h *trace) resumed() bool {
	open, lost := map[string]*event{}, map[string]bool{}
	for i := range h.Events {
		switch e := &h.Events[i]; e.Kind {
		case "Start":
			open[e.Call] = e
		case "Reply":
			delete(open, e.Call)
		case "Crash":
			for _, s := range open {
				if s.Node == e.Node {
					lost[s.Actor] = true
				}
			}
		case "Activate":
			if lost[e.Actor] {
				return true
			}
		}
	}
	return false
}

// mostKinds returns n histories: each time the one that adds most kinds of events, of several the first with an
// actor that resumes its work.
func mostKinds(all []trace, n int) []trace {
	rest, chosen, seen := slices.Clone(all), make([]trace, 0, n), map[string]int{}
	slices.SortStableFunc(rest, func(a, b trace) int {
		if a.resumed() == b.resumed() {
			return 0
		}
		if a.resumed() {
			return -1
		}
		return 1
	})
	for len(rest) > 0 && len(chosen) < n {
		best, most := 0, 0
		for i := range rest {
			if added := len(rest[i].kinds(maps.Clone(seen))) - len(seen); added > most {
				best, most = i, added
			}
		}
		rest[best].kinds(seen)
		chosen = append(chosen, rest[best])
		rest = slices.Delete(rest, best, best+1)
	}
	return chosen
}

// kinds adds the number of events of each kind and returns the sum.
func (h *trace) kinds(to map[string]int) map[string]int {
	for i := range h.Events {
		to[h.Events[i].name()]++
	}
	return to
}

// accept checks histories that must be behaviours of module Calls. It returns the number of kinds of
// events in them.
func (t traceCheck) accept(ctx context.Context, label string, all []trace) (int, error) {
	translated := make([]*translation, len(all))
	kinds, entries := map[string]int{}, 0
	for i := range all {
		translated[i] = translate(all[i])
		entries += len(translated[i].entries)
		all[i].kinds(kinds)
	}
	verdicts, taken, err := t.check(ctx, label, batches(translated), false)
	if err != nil {
		return 0, err
	}
	rejected := 0
	for _, v := range verdicts {
		if !v.accepted {
			rejected++
			fmt.Println(v)
		}
	}
	fmt.Printf("%d histories %s: %d accepted, %d rejected; %d entries, %d kinds of events\n", len(all), label, len(all)-rejected, rejected, entries, len(kinds))
	if rejected > 0 {
		return 0, fmt.Errorf("histories %s are no behaviours of module Calls", label)
	}
	fmt.Println(coverage(taken))
	return len(kinds), nil
}

// name returns the kind of the event in two words.
func (e *event) name() string {
	if e.Kind == "Perform" && e.What == "send" {
		return "Perform send " + e.Why
	}
	return strings.TrimSpace(e.Kind + " " + e.What)
}

// check runs TLC over batches, two at a time. If judge is set, the verdicts name every rejected
// history, otherwise at most one rejected history of each batch.
func (t traceCheck) check(ctx context.Context, label string, all []batch, judge bool) ([]verdict, map[string]int, error) {
	var (
		takenBy = make([]map[string]int, len(all))
		found   = make([][]verdict, len(all))
		errs    = make([]error, len(all))
		slots   = make(chan struct{}, threads)
		running sync.WaitGroup
	)
	for i, b := range all {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			outputPath := filepath.Join(t.dir, fmt.Sprintf("%s-%d.txt", strings.ReplaceAll(label, " ", "-"), i+1))
			found[i], takenBy[i], errs[i] = t.tlc.checkBatch(ctx, b, judge, outputPath)
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, nil, err
		}
	}
	taken := map[string]int{}
	for _, counts := range takenBy {
		for action, n := range counts {
			taken[action] += n
		}
	}
	return slices.Concat(found...), taken, nil
}

// String returns the entry at which a history was rejected, with its position and the reason.
func (v verdict) String() string {
	e := v.at()
	return fmt.Sprintf("  %s:%d: %s: %s", v.t.trace.Name, e.line, v.why, e.text)
}

func (v verdict) at() entry { return v.t.entries[min(v.entry, len(v.t.entries))-1] }

// neverTaken maps each action of Calls that no history can take to the reason.
var neverTaken = map[string]string{
	"Continue": "turns are serial",
	"Drop":     "loss is the absence of a delivery",
}

// coverage returns a line with the number of times each action of Calls was taken, in ascending
// order.
func coverage(taken map[string]int) string {
	actions := slices.SortedFunc(maps.Keys(taken), func(a, b string) int { return cmp.Or(taken[a]-taken[b], strings.Compare(a, b)) })
	var line []string
	zero := 0
	for _, a := range actions {
		text := fmt.Sprintf("%s %d", a, taken[a])
		if taken[a] == 0 {
			zero++
			if neverTaken[a] != "" {
				text += " (" + neverTaken[a] + ")"
			}
		}
		line = append(line, text)
	}
	return fmt.Sprintf("  actions of Calls: %d of %d were taken: %s", len(actions)-zero, len(actions), strings.Join(line, ", "))
}

// rejectCorrupted checks that TLC rejects corrupted histories, each at the corrupted entry.
func (t traceCheck) rejectCorrupted(ctx context.Context, good []trace) error {
	good = slices.Clone(good)
	slices.SortFunc(good, func(a, b trace) int { return len(a.Events) - len(b.Events) })
	var all []*translation
	want := map[string]int{}
	for _, c := range corruptions {
		corrupted, at, err := c.applyToFirst(good)
		if err != nil {
			return err
		}
		want[c.name] = at
		all = append(all, translate(corrupted))
	}
	verdicts, _, err := t.check(ctx, "corrupted", batches(all), true)
	if err != nil {
		return err
	}
	failed := 0
	for _, v := range verdicts {
		if v.accepted || v.at().line != want[v.t.trace.Name] {
			failed++
			if v.accepted {
				fmt.Printf("  %s: accepted, want rejection at line %d\n", v.t.trace.Name, want[v.t.trace.Name])
			} else {
				fmt.Printf("%v, want rejection at line %d\n", v, want[v.t.trace.Name])
			}
		}
	}
	fmt.Printf("%d histories corrupted: %d rejected at the right entry, %d not\n", len(all), len(all)-failed, failed)
	if failed > 0 {
		return fmt.Errorf("module Trace does not detect all of them")
	}
	return nil
}

// detectionLagMax is the maximum number of lines between the entry that TLC rejects and the end
// of a mutant's history. The simulation stops at the step in which a Go spec detects the
// violation.
const detectionLagMax = 20

// mutantTriesMax is the number of histories of a mutant of which TLC must reject one where a
// Go spec detects the violation. TLC may reject others earlier: it compares the reason of a
// refusal with the guards in their order, the Go specs do not.
const mutantTriesMax = 3

// rejectMutated checks that TLC rejects histories of simulations in which one guard is
// disabled.
func (t traceCheck) rejectMutated(ctx context.Context) error {
	dir := filepath.Join(t.dir, "mutants")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	accepted, pending, seeds := 0, tracedMutants, map[string]int{}
	for try := 0; try < mutantTriesMax && len(pending) > 0; try++ {
		mutants := map[string]string{}
		var all []*translation
		for _, m := range pending {
			path := filepath.Join(dir, m+".ndjson")
			seed, err := traceMutant(ctx, m, seeds[m], path)
			if err != nil {
				return err
			}
			seeds[m] = seed
			mutated, err := readTrace(path)
			if err != nil {
				return err
			}
			mutants[mutated.Name] = m
			all = append(all, translate(mutated))
		}
		verdicts, _, err := t.check(ctx, "mutated", batches(all), true)
		if err != nil {
			return err
		}
		pending = nil
		for _, v := range verdicts {
			last := len(v.t.trace.Events) + 1
			switch {
			case v.accepted:
				accepted++
				fmt.Printf("  %s: accepted, but rejected by the Go specs\n", v.t.trace.Name)
			case last-v.at().line > detectionLagMax:
				pending = append(pending, mutants[v.t.trace.Name])
				fmt.Printf("%v, but the Go specs detect the violation at line %d\n", v, last)
			}
		}
	}
	failed := accepted + len(pending)
	fmt.Printf("%d histories of mutants: %d rejected at the right entry, %d not\n", len(tracedMutants), len(tracedMutants)-failed, failed)
	if failed > 0 {
		return fmt.Errorf("module Trace does not detect all of them")
	}
	return nil
}

// mutantSeedsMax is the number of seeds within which a mutant must be detected.
const mutantSeedsMax = 60

// traceMutant records the first simulation after a seed in which a mutant does something
// that Calls forbids. It returns the seed.
func traceMutant(ctx context.Context, mutant string, after int, path string) (seed int, err error) {
	for seed = after + 1; seed <= after+mutantSeedsMax; seed++ {
		cmd := exec.CommandContext(ctx, "bin/troupe-mutants", "sim", "--plain", "--seed", fmt.Sprint(seed), "--trace", path, "--dir", filepath.Dir(path))
		cmd.Env = append(os.Environ(), "MUTANT="+mutant)
		switch text, err := cmd.CombinedOutput(); {
		case err == nil || slices.ContainsFunc(undetectable, func(what string) bool { return bytes.Contains(text, []byte(what)) }):
		case cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 1:
			return seed, nil
		default:
			return 0, fmt.Errorf("bin/troupe-mutants: %w", err)
		}
	}
	return 0, fmt.Errorf("mutant %s: the Go specs detect no violation of Calls in %d plain simulations", mutant, mutantSeedsMax)
}
