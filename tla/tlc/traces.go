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

Has TLC judge, by module Trace, what the simulator and a real server write down:
each history must be a behaviour of module Calls. Then it corrupts some, and has
the simulator run with guards removed: TLC must reject each of those, at the
entry at which it is wrong. With files, judges those and nothing else.

Needs bin/troupe, and bin/troupe-mutants (make trace builds both).

examples
  make trace
  make trace ARGS='-worlds 20'
  bin/troupe sim --plain --seed 7 --trace /tmp/seven.ndjson && go run ./tla/tlc traces /tmp/seven.ndjson

Histories, and what TLC said of them, stay in .cache/tlc/traces/.
`

// tracedMutants are the guards whose absence the histories of plain worlds show.
var tracedMutants = []string{"cycle-check", "self-call", "depth-check", "chain-dropped-on-retry", "time-left-shrinks", "outstanding-limit",
	"outstanding-not-released", "unbounded-mailbox", "target-exists-check", "dedup-forgotten", "effect-before-its-gate",
	"released-at-written", "reply-to-another", "cancel-not-passed-down", "restart-forgets-open-call"}

// undetectable is said of what Calls does not see, so that another world has to show the
// mutant: up to where something should have come and never did a history is one
// that Calls allows, and of what waits it counts messages and not bytes.
var undetectable = []string{" FAILED EveryCallEnds", " bytes waiting in "}

// At least so many of a hundred simulated histories must have a crash, and
// somebody that goes on after it.
const crashPercentMin = 20

// Of many histories, together, so many kinds of events are wanted.
const kindsCheckedFrom, kindsMin = 200, 30

// traceCheck is the command traces.
type traceCheck struct {
	tlc TLC
	dir string
}

func traces(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("traces", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), tracesUsage) }
	worlds := flags.Int("worlds", 200, "")
	noServer := flags.Bool("no-server", false, "")
	if err := flags.Parse(args); err == flag.ErrHelp {
		return 0
	} else if err != nil {
		return 2
	}
	java, jar, err := Checker(ctx, cacheDir)
	if err != nil {
		return fail(1, err)
	}
	t := traceCheck{tlc: TLC{Java: java, Jar: jar, Dir: specDir}, dir: filepath.Join(cacheDir, "traces")}
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return fail(1, err)
	}
	began := time.Now()
	if flags.NArg() > 0 {
		err = t.files(ctx, flags.Args())
	} else {
		err = t.all(ctx, *worlds, !*noServer)
	}
	if err != nil {
		return fail(1, err)
	}
	fmt.Printf("all as expected (%v)\n", time.Since(began).Round(time.Second))
	return 0
}

func (t traceCheck) files(ctx context.Context, paths []string) error {
	all, err := readTraces(paths)
	if err != nil {
		return err
	}
	return t.accept(ctx, "given", all)
}

func (t traceCheck) all(ctx context.Context, worlds int, server bool) error {
	paths, err := t.simulate(ctx, worlds)
	if err != nil {
		return err
	}
	all, err := readTraces(paths)
	if err != nil {
		return err
	}
	resumed := 0
	for _, one := range all {
		if one.resumed() {
			resumed++
		}
	}
	fmt.Printf("%d of %d simulated histories have a crash, and an actor with open work that comes back\n", resumed, len(all))
	if resumed*100 < crashPercentMin*len(all) {
		return fmt.Errorf("that is less than %d %%", crashPercentMin)
	}
	if err := t.accept(ctx, "simulated", all); err != nil {
		return err
	}
	if server {
		path := filepath.Join(t.dir, "server.ndjson")
		if err := traceServer(ctx, path); err != nil {
			return err
		}
		real, err := readTraces([]string{path})
		if err != nil {
			return err
		}
		if err := t.accept(ctx, "of a server", real); err != nil {
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
		one, err := readTrace(p)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// simulate runs plain worlds.
func (t traceCheck) simulate(ctx context.Context, worlds int) ([]string, error) {
	dir := filepath.Join(t.dir, "sim")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "bin/troupe", "sim", "--plain", "--seed", "1", "--runs", fmt.Sprint(worlds), "--trace", dir)
	if output, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("bin/troupe sim: %w\n%s", err, output)
	}
	return filepath.Glob(filepath.Join(dir, "*.ndjson"))
}

// resumed tells whether a node died under an open turn of an actor that came back.
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

// accept has TLC judge histories that must be behaviours.
func (t traceCheck) accept(ctx context.Context, which string, all []trace) error {
	translated := make([]*translation, len(all))
	kinds, entries := map[string]int{}, 0
	for i := range all {
		translated[i] = translate(all[i])
		entries += len(translated[i].entries)
		for j := range all[i].Events {
			kinds[all[i].Events[j].name()]++
		}
	}
	verdicts, taken, err := t.check(ctx, which, batches(translated), false)
	if err != nil {
		return err
	}
	rejected := 0
	for _, v := range verdicts {
		if !v.accepted {
			rejected++
			fmt.Println(v)
		}
	}
	fmt.Printf("%d histories %s: %d accepted, %d rejected; %d entries, %d kinds of events\n", len(all), which, len(all)-rejected, rejected, entries, len(kinds))
	if rejected > 0 {
		return fmt.Errorf("histories %s are no behaviours of module Calls", which)
	}
	fmt.Println(coverage(taken))
	if len(all) >= kindsCheckedFrom && len(kinds) < kindsMin {
		return fmt.Errorf("that is less than %d kinds: the worlds have become too quiet", kindsMin)
	}
	return nil
}

// name is what happened, in two words.
func (e *event) name() string {
	if e.Kind == "Perform" && e.What == "send" {
		return "Perform send " + e.Why
	}
	return strings.TrimSpace(e.Kind + " " + e.What)
}

// check runs TLC over batches, two at a time.
func (t traceCheck) check(ctx context.Context, which string, all []batch, each bool) ([]verdict, map[string]int, error) {
	var (
		took    = make([]map[string]int, len(all))
		found   = make([][]verdict, len(all))
		errs    = make([]error, len(all))
		slots   = make(chan struct{}, parallelRuns)
		running sync.WaitGroup
	)
	for i, b := range all {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			keep := filepath.Join(t.dir, fmt.Sprintf("%s-%d.txt", strings.ReplaceAll(which, " ", "-"), i+1))
			verdicts, states, taken, err := t.tlc.checkBatch(ctx, b, each, keep)
			clean := !slices.ContainsFunc(verdicts, func(v verdict) bool { return !v.accepted })
			if err == nil && clean && states != b.states() {
				err = fmt.Errorf("TLC found %d states, and there are %d: an entry was not judged; see %s", states, b.states(), keep)
			}
			found[i], took[i], errs[i] = verdicts, taken, err
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, nil, err
		}
	}
	taken := map[string]int{}
	for _, one := range took {
		for action, n := range one {
			taken[action] += n
		}
	}
	return slices.Concat(found...), taken, nil
}

// String says where a history was rejected.
func (v verdict) String() string {
	e := v.at()
	return fmt.Sprintf("  %s:%d: %s: %s", v.t.trace.Name, e.line, v.why, e.text)
}

func (v verdict) at() entry { return v.t.entries[min(v.entry, len(v.t.entries))-1] }

// neverTaken says of actions of Calls why no history can take them.
var neverTaken = map[string]string{
	"Continue": "turns are serial",
	"Drop":     "what is lost is what never comes",
}

// coverage says how often the actions of Calls were taken, the rarest first.
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

// rejectCorrupted has TLC judge good histories with something wrong in each.
func (t traceCheck) rejectCorrupted(ctx context.Context, good []trace) error {
	good = slices.Clone(good)
	slices.SortFunc(good, func(a, b trace) int { return len(a.Events) - len(b.Events) })
	var all []*translation
	want := map[string]int{}
	for _, c := range corruptions {
		bad, at, err := c.applyToFirst(good)
		if err != nil {
			return err
		}
		want[c.name] = at
		all = append(all, translate(bad))
	}
	verdicts, _, err := t.check(ctx, "corrupted", batches(all), true)
	if err != nil {
		return err
	}
	wrong := 0
	for _, v := range verdicts {
		if v.accepted || v.at().line != want[v.t.trace.Name] {
			wrong++
			if v.accepted {
				fmt.Printf("  %s: accepted; it is wrong in line %d\n", v.t.trace.Name, want[v.t.trace.Name])
			} else {
				fmt.Printf("%v; it is wrong in line %d\n", v, want[v.t.trace.Name])
			}
		}
	}
	fmt.Printf("%d histories corrupted: %d rejected at the right entry, %d not\n", len(all), len(all)-wrong, wrong)
	if wrong > 0 {
		return fmt.Errorf("module Trace does not see what is wrong")
	}
	return nil
}

// A mutated world ends with the step in which a spec in Go sees what is wrong;
// TLC may see it so many lines before the end at most.
const detectionLagMax = 20

// rejectMutated has TLC judge histories of worlds without a guard.
func (t traceCheck) rejectMutated(ctx context.Context) error {
	dir := filepath.Join(t.dir, "mutants")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var all []*translation
	for _, m := range tracedMutants {
		path := filepath.Join(dir, m+".ndjson")
		if err := traceMutant(ctx, m, path); err != nil {
			return err
		}
		bad, err := readTrace(path)
		if err != nil {
			return err
		}
		all = append(all, translate(bad))
	}
	verdicts, _, err := t.check(ctx, "mutated", batches(all), true)
	if err != nil {
		return err
	}
	wrong := 0
	for _, v := range verdicts {
		last := len(v.t.trace.Events) + 1
		if v.accepted || last-v.at().line > detectionLagMax {
			wrong++
			if v.accepted {
				fmt.Printf("  %s: accepted; the specs in Go do not\n", v.t.trace.Name)
			} else {
				fmt.Printf("%v; the specs in Go see it in line %d\n", v, last)
			}
		}
	}
	fmt.Printf("%d histories of mutants: %d rejected at the right entry, %d not\n", len(all), len(all)-wrong, wrong)
	if wrong > 0 {
		return fmt.Errorf("module Trace does not see what is wrong")
	}
	return nil
}

// mutantSeedsMax is in how many seeds a mutant must be found.
const mutantSeedsMax = 60

// traceMutant writes down a world in which a mutant does what Calls forbids.
func traceMutant(ctx context.Context, mutant, path string) error {
	for seed := range mutantSeedsMax {
		cmd := exec.CommandContext(ctx, "bin/troupe-mutants", "sim", "--plain", "--seed", fmt.Sprint(seed+1), "--trace", path, "--dir", filepath.Dir(path))
		cmd.Env = append(os.Environ(), "MUTANT="+mutant)
		switch said, err := cmd.CombinedOutput(); {
		case err == nil || slices.ContainsFunc(undetectable, func(what string) bool { return bytes.Contains(said, []byte(what)) }):
		case cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 1:
			return nil
		default:
			return fmt.Errorf("bin/troupe-mutants: %w", err)
		}
	}
	return fmt.Errorf("mutant %s: in %d plain worlds the specs in Go see nothing that Calls forbids", mutant, mutantSeedsMax)
}
