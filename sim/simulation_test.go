// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/specs"
)

func BenchmarkSeed(b *testing.B) {
	steps := 0
	for i := range b.N {
		r := RunSeed(Options{Seed: uint64(i%20 + 1)})
		if r.Violation != nil {
			b.Fatal(r.Violation)
		}
		steps += r.Stats.Steps
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(steps), "µs/step")
}

func TestChoicesReplay(t *testing.T) {
	o := Options{Seed: 4, Odds: []Odds{{NetworkDelay, oddsScale / 2}}}
	var events bytes.Buffer
	o.Events = &events
	r := RunSeed(o)
	if r.Violation != nil {
		t.Fatal(r.Violation)
	}
	if hash, err := HashLog(&events); err != nil || hash != r.Hash {
		t.Errorf("hash of the log %s (%v), want %s", hash, err, r.Hash)
	}
	again, log, err := DecodeChoices(EncodeChoices(o, r.Choices))
	if err != nil {
		t.Fatal(err)
	}
	again.Entropy = NewReplayedEntropy(log)
	if replayed := RunSeed(again); replayed.Hash != r.Hash {
		t.Errorf("hash %s, replayed choices %s", r.Hash, replayed.Hash)
	}
}

// TestRunTwiceReportsDivergence checks that two different runs are reported with the
// first differing step and both versions.
func TestRunTwiceReportsDivergence(t *testing.T) {
	o := Options{Seed: 5}
	r := RunSeed(o)
	other := r.Choices
	for i := range other {
		if s := &other[i]; topicOf(s.ID) == topicArrival && len(s.Log) > 1 {
			s.Log[1] = 0 // skip this arrival
			break
		}
	}
	again := o
	again.Entropy = NewReplayedEntropy(other)
	b := RunTwice(o, again).Violation
	if b == nil || b.Spec != Deterministic || !strings.Contains(b.Detail, "step ") || !strings.Contains(b.Detail, "\n  was ") || !strings.Contains(b.Detail, "\n  is  ") {
		t.Errorf("%v", b)
	}
	if at := divergence(o, o); !strings.Contains(at, " not ") {
		t.Errorf("equal runs diverge: %s", at)
	}
}

func TestDecodeChoicesRejectsInvalid(t *testing.T) {
	for _, text := range []string{
		"", "troupe choices 3 seed 1\n", "troupe choices 4\n", "troupe choices 4 seed x\n", "troupe choices 4 seed 1 fault Nothing:1\n",
		"troupe choices 4 seed 1 fault NetworkDelay:2\n", "troupe choices 4 seed 1 strategy best\n", "troupe choices 4 seed 1\n1\n",
		"troupe choices 4 seed 1\nstream nothing.0\n", "troupe choices 4 seed 1\nstream plan.x\n", "troupe choices 4 seed 1\nstream plan.0\nstream plan.0\n",
		"troupe choices 4 seed 1\nstream cell.0 for nothing.1\n", "troupe choices 4 seed 1\nstream cell.0 for arrival.1 for arrival.2\n", "troupe choices 4 seed 1\nstream plan.0\nx\n", "troupe choices 4 seed 1\nstream plan.0\n0*x\n",
		"troupe choices 4 seed 1\nstream plan.0\n-1\n", "troupe choices 4 seed 1\nstream plan.0\n0*4000000000\n",
	} {
		if _, _, err := DecodeChoices([]byte(text)); err == nil || !strings.Contains(err.Error(), "line") {
			t.Errorf("DecodeChoices(%q): error %v, want one with the line", text, err)
		}
	}
}

func TestOddsRoundTrip(t *testing.T) {
	for _, f := range Faults() {
		for p := range oddsScale + 1 {
			o, err := ParseOdds(Odds{f, p}.String())
			if err != nil || o != (Odds{f, p}) {
				t.Errorf("%s:%d parsed as %v, %v", f, p, o, err)
			}
		}
	}
	for _, text := range []string{"", "NetworkDelay", "NetworkDelay:", "NetworkDelay:-1", "NetworkDelay:1.1", "NetworkDelay:NaN", "Nothing:1"} {
		if o, err := ParseOdds(text); err == nil {
			t.Errorf("ParseOdds(%q) = %v, want an error", text, o)
		}
	}
}

// TestFaultlessRunHasNoFaults checks that without faults no node restarts and no
// lease is lost.
func TestFaultlessRunHasNoFaults(t *testing.T) {
	for seed := range uint64(4) {
		r := RunSeed(Options{Seed: seed, Faultless: true})
		if r.Violation != nil {
			t.Fatalf("seed %d: %v", seed, r.Violation)
		}
		s := &r.Stats
		if s.TotalFaults() > 0 || s.Events[history.Crash] > 0 || s.Events[history.Restart] > 0 || s.Points[LeaseLost] > 0 || s.Points[Adopted] > 0 {
			t.Errorf("seed %d: %d faults, %d crashes, %d restarts, %d leases lost", seed, s.TotalFaults(), s.Events[history.Crash], s.Events[history.Restart], s.Points[LeaseLost])
		}
	}
}

func TestOddsApplyToFaultlessRun(t *testing.T) {
	r := RunSeed(Options{Seed: 3, Faultless: true, Odds: []Odds{{AgentCallRejected, oddsScale / 2}}})
	if r.Violation != nil {
		t.Fatal(r.Violation)
	}
	if n := r.Stats.Faults[AgentCallRejected]; n == 0 || n != r.Stats.TotalFaults() {
		t.Errorf("%d of %d faults are of the configured kind", n, r.Stats.TotalFaults())
	}
}

// TestRunsLeakNoCoroutines checks that turns of crashed cells and nodes are released.
// In ten thousand runs they would otherwise exhaust the memory.
func TestRunsLeakNoCoroutines(t *testing.T) {
	crashes := 0
	for seed := range uint64(5) {
		r := RunSeed(Options{Seed: seed, Unhashed: true})
		crashes += r.Stats.Faults[CellPanic] + r.Stats.Points[NodeRestarted]
	}
	if n := blockedCoroutines(t); n > 0 || crashes == 0 {
		t.Errorf("%d coroutines left after 5 runs with %d crashes", n, crashes)
	}
}

// blockedCoroutines counts the agents that are blocked in an ask. Counting all
// goroutines would be wrong, because a history checker may still be exiting.
func blockedCoroutines(t *testing.T) int {
	var stacks bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
		t.Fatal(err)
	}
	return strings.Count(stacks.String(), "/agents.(*coroutine).run(")
}

// TestPanicOutsideCellsIsViolation checks that a panic outside the cells becomes a
// violation of that run, which shrinks like any other.
func TestPanicOutsideCellsIsViolation(t *testing.T) {
	o := Options{Seed: 3, shrink: budget{steps: 200_000, time: time.Hour}, rule: func(_ actor.Duration, e *history.Event) string {
		if e.Kind == history.Deliver {
			panic("injected")
		}
		return ""
	}}
	r := RunSeed(o)
	if r.Violation == nil || r.Violation.Spec != WorldNeverPanics || !strings.Contains(r.Violation.Detail, "injected") || !strings.Contains(r.Violation.Detail, "simulation_test.go:") {
		t.Fatalf("%v", r.Violation)
	}
	if small := Shrink(o, r); small.Violation.Spec != WorldNeverPanics || small.Stats.Steps > shrunkStepsMax {
		t.Errorf("%d steps: %v", small.Stats.Steps, small.Violation)
	}
}

// TestRegistryClientSurvivesFullDisk checks that a temporarily full disk does not
// stop the registry client.
func TestRegistryClientSurvivesFullDisk(t *testing.T) {
	opsMax, diskFull := 0, 0
	for seed := uint64(0); seed < 8 && (opsMax < 40 || diskFull == 0); seed++ {
		w := New(Options{Seed: seed, Long: true, Unhashed: true, Registry: "on", Odds: []Odds{{DiskFull, oddsScale / 2}}})
		if v := w.Run(); v != nil {
			t.Fatalf("seed %d: %v", seed, v)
		}
		opsMax, diskFull = max(opsMax, int(w.registryClient.opCount)), diskFull+w.Stats.Faults[DiskFull]
		w.Close()
	}
	t.Logf("%d registry operations, %d disk-full faults", opsMax, diskFull)
	if opsMax < 40 || diskFull == 0 {
		t.Errorf("at most %d registry operations in an hour, with %d disk-full faults", opsMax, diskFull)
	}
}

// TestFailureDirNamesBuild checks that the directories of a seed differ if the
// program or an option differs, and are equal otherwise.
func TestFailureDirNamesBuild(t *testing.T) {
	parent := t.TempDir()
	programs := []string{filepath.Join(parent, "a"), filepath.Join(parent, "b")}
	for _, program := range programs {
		if err := os.WriteFile(program, []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := Result{Seed: 7, Plan: "cells"}
	seen := map[string]bool{}
	for range 2 {
		for _, program := range programs {
			for _, o := range []Options{{Seed: 7}, {Seed: 7, Faultless: true}, {Seed: 7, Long: true}} {
				dir, err := failureDir(program, parent, o, r)
				if err != nil || !regexp.MustCompile(`^seed-7-[0-9a-f]{8}$`).MatchString(filepath.Base(dir)) || filepath.Dir(dir) != parent {
					t.Errorf("%s, %v", dir, err)
				}
				seen[dir] = true
			}
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d directories, want 6: %v", len(seen), seen)
	}
	if _, err := failureDir(filepath.Join(parent, "absent"), parent, Options{}, r); err == nil {
		t.Error("no error without the program")
	}
}

// TestSaveFailureWritesShrunkRun checks the directory of a failure. The specs of this
// test forbid nested calls, which the code permits.
func TestSaveFailureWritesShrunkRun(t *testing.T) {
	o := Options{Seed: 6, adjustLimits: func(l *specs.Limits) { l.AgentCallDepthMax = 1 }, shrink: stepsOnlyBudget}
	r := RunSeed(o)
	if r.Violation == nil || r.Violation.Spec != specs.DepthBounded {
		t.Fatalf("violation %v, want one of DepthBounded", r.Violation)
	}
	dir := t.TempDir()
	small, err := SaveFailure(dir, o, r)
	if err != nil {
		t.Fatal(err)
	}
	if small.Violation == nil || small.Violation.Spec != r.Violation.Spec || small.Stats.Steps > 60 {
		t.Errorf("%d steps shrink to %d, violation %v", r.Stats.Steps, small.Stats.Steps, small.Violation)
	}
	columns, err := os.ReadFile(filepath.Join(dir, columnsFile))
	if err != nil || !bytes.Contains(columns, []byte("client ")) {
		t.Errorf("columns: %v\n%.300s", err, columns)
	}
	sentence := small.Inevitability.String() + "\n"
	for _, name := range []string{columnsFile, resampledFile, pageFile} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(sentence, "break DepthBounded") || !bytes.Contains(text, []byte(strings.TrimSpace(sentence))) {
			t.Errorf("%s does not contain %q: %v", name, sentence, err)
		}
	}
	var replayed strings.Builder
	if _, _, err := Replay(dir, false, &replayed, Backends{}); err != nil || !strings.HasPrefix(replayed.String(), sentence) {
		t.Errorf("the replay begins with %.200q, want %q; error %v", replayed.String(), sentence, err)
	}
	o.NoResampling = true
	if unsampled, err := SaveFailure(t.TempDir(), o, r); err != nil || unsampled.Inevitability != nil {
		t.Errorf("resampled although it is disabled: %v, error %v", unsampled.Inevitability, err)
	}
	for whole, steps := range map[bool]int{true: r.Stats.Steps, false: small.Stats.Steps} {
		again, parted, err := Replay(dir, whole, io.Discard, Backends{})
		if whole && !strings.HasPrefix(parted, "step ") || strings.Count(parted, "\n  ") != 2 {
			t.Errorf("difference %q, want a step and both versions", parted)
		}
		if err != nil || again.Violation != nil || again.Stats.Steps < steps {
			t.Errorf("replay (whole: %v): %d steps, violation %v, error %v, want a longer run without a violation", whole, again.Stats.Steps, again.Violation, err)
		}
	}
	if _, _, err := Replay(t.TempDir(), false, io.Discard, Backends{}); err == nil {
		t.Error("Replay of an empty directory succeeded")
	}
	// A violation of Deterministic has no shrunk run, and the files of an earlier failure
	// are deleted.
	o = Options{Seed: 2, Faultless: true}
	if _, err := SaveFailure(dir, o, RunTwice(o, Options{Seed: 3, Faultless: true})); err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{choicesFile: true, eventsFile: true, planFile: true, violationFile: true, resampledFile: false, shrunkFile: false, shrunkLogFile: false, columnsFile: false, pageFile: false} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := Replay(dir, false, io.Discard, Backends{}); err == nil || !strings.Contains(err.Error(), "two runs of this seed differed") {
		t.Errorf("Replay: error %v", err)
	}
	if again, parted, err := Replay(dir, true, io.Discard, Backends{}); err != nil || parted != "" || again.Violation != nil {
		t.Errorf("Replay of the first run: violation %v, difference %s, error %v", again.Violation, parted, err)
	}
}

// TestStrategiesProduceDistinctRuns checks that each strategy leads to a different
// order of the same work.
func TestStrategiesProduceDistinctRuns(t *testing.T) {
	hashes := map[string]string{}
	for s := range Strategy(strategies) {
		for seed := range uint64(2) {
			r := RunSeed(Options{Seed: seed, Strategy: s.String()})
			if r.Violation != nil {
				t.Fatalf("seed %d, %s: %v", seed, s, r.Violation)
			}
			if other, same := hashes[r.Hash]; same {
				t.Errorf("seed %d: the same run with %s and %s", seed, s, other)
			}
			hashes[r.Hash] = s.String()
			if rankLost, starved := r.Stats.Points[RankLost] > 0, r.Stats.Points[InputStarved] > 0; rankLost != (s == Priority) || starved && s != Starvation {
				t.Errorf("seed %d, %s: rank lost %v, input starved %v", seed, s, rankLost, starved)
			}
		}
	}
	if _, err := ParseStrategy("best"); err == nil {
		t.Error("ParseStrategy(best) succeeded")
	}
}

func BenchmarkLongSeed(b *testing.B) {
	steps := 0
	for i := range b.N {
		r := RunSeed(Options{Seed: uint64(i%20 + 1), Long: true})
		if r.Violation != nil {
			b.Fatal(r.Violation)
		}
		steps += r.Stats.Steps
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(steps), "µs/step")
}

// TestUnhashedRunIsIdentical checks that a run takes the same course with and without
// a hash.
func TestUnhashedRunIsIdentical(t *testing.T) {
	hashed, plain := RunSeed(Options{Seed: 4}), RunSeed(Options{Seed: 4, Unhashed: true})
	if plain.Hash != "" || hashed.Hash == "" {
		t.Errorf("hash %q, want one; unhashed run: %q, want none", hashed.Hash, plain.Hash)
	}
	if hashed.Stats != plain.Stats || !reflect.DeepEqual(hashed.Choices, plain.Choices) {
		t.Errorf("unhashed run: %+v, want %+v", plain.Stats, hashed.Stats)
	}
	var events bytes.Buffer
	if shown := RunSeed(Options{Seed: 4, Unhashed: true, Events: &events}); shown.Hash != hashed.Hash || events.Len() == 0 {
		t.Errorf("unhashed run with a log: hash %q of %d bytes, want %q", shown.Hash, events.Len(), hashed.Hash)
	}
	if twice := RunTwice(Options{Seed: 4, Unhashed: true}, Options{Seed: 4, Unhashed: true}); twice.Hash != hashed.Hash {
		t.Errorf("RunTwice: hash %q, want %q", twice.Hash, hashed.Hash)
	}
}
