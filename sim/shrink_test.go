// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/specs"
)

// shrunkStepsMax is the maximum number of steps of a shrunk run.
const shrunkStepsMax = 60

// stepsOnlyBudget has no effective time limit, so that the result is the same on
// every machine.
var stepsOnlyBudget = budget{steps: defaultBudget.steps, time: time.Hour}

// lateCycleSpec is a spec of this test that the code violates: no wait cycle is
// broken later than 15 minutes into the run.
const lateCycleSpec = "NoRingLate"

func lateCycleRule(at actor.Duration, e *history.Event) (spec string) {
	if e.Kind == history.RefuseWaitCycle && at > 15*time.Minute {
		return lateCycleSpec
	}
	return ""
}

// lateFailure returns a run that violates lateCycleSpec after at least 10,000 steps.
func lateFailure(t *testing.T) (Options, Result) {
	t.Helper()
	for seed := range uint64(20) {
		o := Options{Seed: seed + 1, Long: true, rule: lateCycleRule}
		if r := RunSeed(o); r.Violation != nil && r.Violation.Spec == lateCycleSpec && r.Violation.Step >= 10_000 {
			return o, r
		}
	}
	t.Fatal("no seed violates the spec late enough")
	return Options{}, Result{}
}

// The child process reads choices from the file in choicesEnv, and writes the result
// of their replay to the file in replayEnv.
const choicesEnv, replayEnv = "SIM_STORY_FROM", "SIM_STORY_TO"

func replaySummary(o Options, choices Choices) string {
	o.Entropy = NewReplayedEntropy(choices)
	r := RunSeed(o)
	return fmt.Sprintf("%s %d steps %v", r.Hash, r.Stats.Steps, r.Violation)
}

// TestShrinkLateFailure checks that a failure after 10,000 steps shrinks to a short
// run that violates the same spec, and that another process reproduces it.
func TestShrinkLateFailure(t *testing.T) {
	if from := os.Getenv(choicesEnv); from != "" {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		o, choices, err := DecodeChoices(text)
		if err != nil {
			t.Fatal(err)
		}
		o.rule = lateCycleRule
		if err := os.WriteFile(os.Getenv(replayEnv), []byte(replaySummary(o, choices)), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	o, r := lateFailure(t)
	o.shrink = stepsOnlyBudget
	small := Shrink(o, r)
	t.Logf("seed %d: %d steps shrink to %d", o.Seed, r.Violation.Step, small.Violation.Step)
	if small.Violation.Spec != lateCycleSpec || small.Violation.Step > shrunkStepsMax {
		t.Errorf("shrunk run has %d steps, violation %v", small.Violation.Step, small.Violation)
	}

	dir := t.TempDir()
	from, to := filepath.Join(dir, "choices"), filepath.Join(dir, "replay")
	if err := os.WriteFile(from, EncodeChoices(o, small.Choices), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), choicesEnv+"="+from, replayEnv+"="+to)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := fmt.Sprintf("%s %d steps %v", small.Hash, small.Stats.Steps, small.Violation)
	if got, err := os.ReadFile(to); err != nil || string(got) != want {
		t.Errorf("replay in another process:\n%s (%v), want\n%s", got, err, want)
	}
}

// TestDroppingCausesKeepsTiming checks that the remaining arrivals keep their time
// when other arrivals and registry operations are dropped.
func TestDroppingCausesKeepsTiming(t *testing.T) {
	o := Options{Seed: 3, Long: true, Unhashed: true, Registry: "on"}
	run := func() *Simulation {
		w := New(o)
		defer w.Close()
		if v := w.Run(); v != nil {
			t.Fatal(v)
		}
		return w
	}
	whole := run()
	choices := whole.Choices()
	var dropped []StreamID
	for i, id := range causesIn(choices) {
		if i%2 == 0 && topicOf(id) != topicWorld {
			dropped = append(dropped, id)
		}
	}
	o.Entropy = NewReplayedEntropy((&shrinker{options: o}).withoutCauses(choices, dropped))
	rest := run()
	if rest.Stats.Calls >= whole.Stats.Calls {
		t.Fatalf("%d calls of %d remain, want fewer", rest.Stats.Calls, whole.Stats.Calls)
	}
	if rest.arrivals != whole.arrivals || rest.Stats.Workload != whole.Stats.Workload {
		t.Errorf("%d arrivals in %v, want %d in %v", rest.arrivals, rest.Stats.Workload, whole.arrivals, whole.Stats.Workload)
	}
	if a, b := rest.registryClient.opCount, whole.registryClient.opCount; max(a, b)-min(a, b) > b/2 {
		t.Errorf("%d registry operations, want about %d", a, b)
	}
}

// TestMinimizeValueOnlyDecreases checks that values only decrease, and that the
// minimum is found if all values above it are accepted.
func TestMinimizeValueOnlyDecreases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Uint32Range(0, 5000).Draw(t, "value")
		least, gaps := rapid.Uint32Range(0, value).Draw(t, "least"), rapid.Bool().Draw(t, "gaps")
		tries := 0
		minimizeValue(func() uint32 { return value }, func(v uint32) bool {
			if tries++; v >= value || v == 0 || tries > 200 {
				t.Fatalf("try %d: value %d, want less than %d", tries, v, value)
			}
			accepted := v >= least && (!gaps || rapid.Bool().Draw(t, "goes"))
			if accepted {
				value = v
			}
			return accepted
		})
		if !gaps && value > max(least, 1) {
			t.Fatalf("got %d, want %d", value, least)
		}
	})
}

// TestShrinkKeepsViolatedSpec checks that a shorter run that violates another spec is
// rejected. Here every event after the original violation violates another spec.
func TestShrinkKeepsViolatedSpec(t *testing.T) {
	o := Options{Seed: 6, adjustLimits: func(l *specs.Limits) { l.AgentCallDepthMax = 1 }, shrink: stepsOnlyBudget}
	r := RunSeed(o)
	if r.Violation == nil || r.Violation.Spec != specs.DepthBounded {
		t.Fatalf("violation %v, want one of DepthBounded", r.Violation)
	}
	o.rule = func(at actor.Duration, _ *history.Event) (spec string) {
		if at > r.Violation.At {
			return "Another"
		}
		return ""
	}
	steps := r.Stats.Steps
	o.OnShrunk = func(n int) { steps = n }
	if small := Shrink(o, r); small.Violation.Spec != r.Violation.Spec || small.Stats.Steps != steps || steps > shrunkStepsMax {
		t.Errorf("%d steps, last reported %d, violation %v", small.Stats.Steps, steps, small.Violation)
	}
}

// TestShrinkRespectsBudget checks that a shrink exceeds its step budget by at most
// one run, and tries nothing after its deadline.
func TestShrinkRespectsBudget(t *testing.T) {
	o := Options{Seed: 6, adjustLimits: func(l *specs.Limits) { l.AgentCallDepthMax = 1 }}
	r := RunSeed(o)
	o.shrink = budget{steps: r.Stats.Steps, time: time.Hour}
	s := newShrink(o, r)
	if s.run(); s.stepsLeft > 0 || s.stepsLeft < -r.Stats.Steps-s.slack-runOverheadSteps-1 {
		t.Errorf("budget %d steps: %d left, a run takes %d", o.shrink.steps, s.stepsLeft, r.Stats.Steps)
	}
	o.shrink = budget{steps: 1 << 30, time: 1}
	s = newShrink(o, r)
	if small := s.run(); s.stepsLeft != o.shrink.steps || small.Hash != r.Hash {
		t.Errorf("no time left: ran %d steps, violation %v", o.shrink.steps-s.stepsLeft, small.Violation)
	}
}
