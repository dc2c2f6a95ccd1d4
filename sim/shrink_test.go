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

// storyMax is of how many steps a story may be.
const storyMax = 60

// untimed is the budget of steps alone, which is the same on any machine.
var untimed = budget{steps: shrinkBudget.steps, time: time.Hour}

// lateRing is a spec of this file's own, which the code breaks: that no ring of
// waits is broken any more once the world has gone on for most of an hour.
const lateRing = "NoRingLate"

func noRingLate(at actor.Duration, e *history.Event) (spec string) {
	if e.Kind == history.RefuseWaitCycle && at > 50*time.Minute {
		return lateRing
	}
	return ""
}

// longAgo is a world that breaks it, after more than ten thousand steps.
func longAgo(t *testing.T) (Options, Result) {
	t.Helper()
	for seed := range uint64(20) {
		o := Options{Seed: seed + 1, Long: true, rule: noRingLate}
		if r := RunSeed(o); r.Broken != nil && r.Broken.Spec == lateRing && r.Broken.Step >= 10_000 {
			return o, r
		}
	}
	t.Fatal("no world breaks it late")
	return Options{}, Result{}
}

// storyTo is the file to which a process writes what the story in storyFrom comes to.
const storyFrom, storyTo = "SIM_STORY_FROM", "SIM_STORY_TO"

func told(o Options, choices Choices) string {
	o.Chooser = NewReplayed(choices)
	r := RunSeed(o)
	return fmt.Sprintf("%s %d steps %v", r.Hash, r.Stats.Steps, r.Broken)
}

// What took ten thousand steps to happen is a short story, within its budget, of
// the same spec; and another process tells the same story.
func TestALateFailureIsAShortStory(t *testing.T) {
	if from := os.Getenv(storyFrom); from != "" {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		o, choices, err := DecodeChoices(text)
		if err != nil {
			t.Fatal(err)
		}
		o.rule = noRingLate
		if err := os.WriteFile(os.Getenv(storyTo), []byte(told(o, choices)), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	o, r := longAgo(t)
	o.shrink = untimed
	small := Shrink(o, r)
	t.Logf("seed %d: %d steps shrink to %d", o.Seed, r.Broken.Step, small.Broken.Step)
	if small.Broken.Spec != lateRing || small.Broken.Step > storyMax {
		t.Errorf("the story has %d steps, and breaks %v", small.Broken.Step, small.Broken)
	}

	dir := t.TempDir()
	from, to := filepath.Join(dir, "choices"), filepath.Join(dir, "told")
	if err := os.WriteFile(from, EncodeChoices(o, small.Choices), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), storyFrom+"="+from, storyTo+"="+to)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := fmt.Sprintf("%s %d steps %v", small.Hash, small.Stats.Steps, small.Broken)
	if got, err := os.ReadFile(to); err != nil || string(got) != want {
		t.Errorf("another process tells\n%s (%v), and it was\n%s", got, err, want)
	}
}

// Where some do not come, and some orders are not given, all others come when they did.
func TestWhoIsLeftOutTakesNoTimeFromOthers(t *testing.T) {
	o := Options{Seed: 1, Long: true, Unhashed: true}
	run := func() *World {
		w := New(o)
		defer w.Close()
		if v := w.Run(); v != nil {
			t.Fatal(v)
		}
		return w
	}
	whole := run()
	for ; whole.clerk == nil; whole = run() { // not every world has one
		o.Seed++
	}
	choices := whole.Choices()
	var out []StreamID
	for i, id := range accountsOf(choices) {
		if i%2 == 0 && about(id) != aboutWorld {
			out = append(out, id)
		}
	}
	o.Chooser = NewReplayed((&shrink{o: o}).closed(choices, out))
	rest := run()
	if rest.Stats.Calls >= whole.Stats.Calls {
		t.Fatalf("%d calls of %d are left", rest.Stats.Calls, whole.Stats.Calls)
	}
	if rest.arrivals != whole.arrivals || rest.Stats.Workload != whole.Stats.Workload {
		t.Errorf("people come %d times in %v, and came %d times in %v", rest.arrivals, rest.Stats.Workload, whole.arrivals, whole.Stats.Workload)
	}
	if a, b := rest.clerk.orders, whole.clerk.orders; max(a, b)-min(a, b) > b/3 {
		t.Errorf("the clerk gives %d orders, and gave %d", a, b)
	}
}

// A choice is made smaller and never greater, whatever goes, and to the least that
// goes if that is everything from some value on.
func TestAChoiceIsOnlyMadeSmaller(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Uint32Range(0, 5000).Draw(t, "value")
		least, gaps := rapid.Uint32Range(0, value).Draw(t, "least"), rapid.Bool().Draw(t, "gaps")
		tries := 0
		lowered(func() uint32 { return value }, func(v uint32) bool {
			if tries++; v >= value || v == 0 || tries > 200 {
				t.Fatalf("try %d: %d is tried in the place of %d", tries, v, value)
			}
			goes := v >= least && (!gaps || rapid.Bool().Draw(t, "goes"))
			if goes {
				value = v
			}
			return goes
		})
		if !gaps && value > max(least, 1) {
			t.Fatalf("%d is left, and %d would go", value, least)
		}
	})
}

// A story that breaks something else would be shorter: here all that goes on for
// longer than it took breaks another spec.
func TestAStoryBreaksTheSpecThatItIsAbout(t *testing.T) {
	o := Options{Seed: 6, strict: func(l *specs.Limits) { l.AgentCallDepthMax = 1 }, shrink: untimed}
	r := RunSeed(o)
	if r.Broken == nil || r.Broken.Spec != specs.DepthBounded {
		t.Fatalf("the strict specs find %v", r.Broken)
	}
	o.rule = func(at actor.Duration, _ *history.Event) (spec string) {
		if at > r.Broken.At {
			return "Another"
		}
		return ""
	}
	steps := r.Stats.Steps
	o.Shrunk = func(n int) { steps = n }
	if small := Shrink(o, r); small.Broken.Spec != r.Broken.Spec || small.Stats.Steps != steps || steps > storyMax {
		t.Errorf("%d steps, the last that were told are %d: %v", small.Stats.Steps, steps, small.Broken)
	}
}

// A shrink takes no more steps than it may, but for its last try, and tries
// nothing when its time is over.
func TestAShrinkKeepsToItsBudget(t *testing.T) {
	o := Options{Seed: 6, strict: func(l *specs.Limits) { l.AgentCallDepthMax = 1 }}
	r := RunSeed(o)
	o.shrink = budget{steps: 5 * r.Stats.Steps, time: time.Hour}
	s := newShrink(o, r)
	if s.run(); s.left > 0 || s.left < -r.Stats.Steps-s.slack-tryCost-1 {
		t.Errorf("of %d steps %d are left, where a try takes %d", o.shrink.steps, s.left, r.Stats.Steps)
	}
	o.shrink = budget{steps: 1 << 30, time: 1}
	s = newShrink(o, r)
	if small := s.run(); s.left != o.shrink.steps || small.Hash != r.Hash {
		t.Errorf("without time it tries %d steps, and says %v", o.shrink.steps-s.left, small.Broken)
	}
}
