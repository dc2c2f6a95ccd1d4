// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// stoppingWorld is a node without clients. Once a second it is stopped with a
// probability of 2 %. It always restarts within 7 seconds, which violates the spec of
// this test. So the failure is inevitable from the choice on that stops the node.
func stoppingWorld(seed uint64) Options {
	return Options{Seed: seed, Plan: &Plan{}, Odds: []Odds{{NodeStop, stopOdds}}, rule: func(_ actor.Duration, e *history.Event) string {
		if e.Kind == history.Restart {
			return "NeverRestarts"
		}
		return ""
	}}
}

const stopOdds = oddsScale / 50

// stopFinder is an entropy that finds the choice that stops the node.
type stopFinder struct {
	Entropy
	stream  StreamID
	count   int // number of choices so far
	stopped int // number of the choice, from 1
	value   int
}

func (f *stopFinder) SetStream(to StreamID) { f.stream = to; f.Entropy.SetStream(to) }

func (f *stopFinder) Recorded(v int) int { f.count++; return f.Entropy.Recorded(v) }

func (f *stopFinder) Int(n int) int {
	v := f.Entropy.Int(n)
	f.count++
	if f.stopped == 0 && f.stream.withCause(0) == topicFault+StreamID(NodeStop) && n == oddsScale && v >= oddsScale-stopOdds {
		f.stopped, f.value = f.count, v
	}
	return v
}

func TestInevitableFromKnownChoice(t *testing.T) {
	for seed, worlds := uint64(0), 0; worlds < 3; seed++ {
		o := stoppingWorld(seed)
		r := RunSeed(o)
		if r.Violation == nil || r.Violation.Spec != "NeverRestarts" {
			t.Fatalf("seed %d: violation %v", seed, r.Violation)
		}
		if r.Violation.At < 20*time.Second {
			continue // a continuation could end before the restart
		}
		worlds++
		finder := &stopFinder{Entropy: NewReplayedEntropy(r.Choices)}
		again := o
		again.Entropy = finder
		RunSeed(again)

		f := FindInevitability(o, r)
		t.Logf("seed %d: %s", seed, f)
		if want := "NodeStop: fault."; f.From != finder.stopped || f.Choices != finder.count || !strings.HasPrefix(f.Choice, want) || !strings.HasSuffix(f.Choice, fmt.Sprintf(" = %d", finder.value)) {
			t.Errorf("seed %d: inevitable from choice %d of %d, %q; want choice %d of %d, of value %d", seed, f.From, f.Choices, f.Choice, finder.stopped, finder.count, finder.value)
		}
		if f.At > r.Violation.At || f.At < r.Violation.At-7*time.Second {
			t.Errorf("seed %d: inevitable from %v on, violated at %v", seed, f.At, r.Violation.At)
		}
		if len(f.Points) > resampledPointsMax {
			t.Errorf("seed %d: %d points", seed, len(f.Points))
		}
		for _, p := range f.Points { // an early continuation may stop the node by another choice
			if all := p.Broken == continuationsPerRun; p.Kept >= finder.stopped && !all || p.Kept == finder.stopped-1 && all {
				t.Errorf("seed %d: with %d choices kept, %d continuations violate the spec", seed, p.Kept, p.Broken)
			}
		}
		if second := FindInevitability(o, r); !reflect.DeepEqual(f, second) {
			t.Errorf("seed %d: repeated: %s", seed, second)
		}
	}
}

// TestInevitableFromStart checks a failure that no choice could have avoided.
func TestInevitableFromStart(t *testing.T) {
	o := stoppingWorld(1)
	o.rule = func(_ actor.Duration, e *history.Event) string { return "NothingHappens" }
	r := RunSeed(o)
	if f := FindInevitability(o, r); f.From != 0 || f.Choice != "" || f.String() != "from the start on, all 20 continuations break NothingHappens" {
		t.Errorf("%+v: %s", f, f)
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1_002_003: "1,002,003"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %s", n, got)
		}
	}
}
