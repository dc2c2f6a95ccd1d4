// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

func at(seconds float64) actor.Time { return actor.Time((1000 + seconds) * float64(time.Second)) }

// breakerStep records evidence, unless it is NoEvidence without a probe, and then asks to start a call.
type breakerStep struct {
	at    float64
	e     Evidence
	probe bool
	want  string
}

func TestBreaker(t *testing.T) {
	few := AgentBreaker()
	few.Calls = 4
	row := BreakerConfig{FailuresInARow: 2, OpenFor: time.Second, OpenMax: 4 * time.Second, ProbeWait: 500 * time.Millisecond}
	for name, c := range map[string]struct {
		config BreakerConfig
		steps  []breakerStep
	}{
		"three unreachable in a row open, time and a probe close": {AgentBreaker(), []breakerStep{
			{0, Unreached, false, "start"},
			{1, Unreached, false, "start"},
			{2, Unreached, false, "open 5s"},
			{4, Unreached, false, "open 3s"}, // began before
			{7, NoEvidence, false, "probe"},
			{7, NoEvidence, false, "half_open 1s"},
			{8, Unreached, true, "open 10s"},
			{18, NoEvidence, false, "probe"},
			{19, Succeeded, true, "start"},
			{20, Unreached, false, "start"}, // counted from 0 again
			{21, Unreached, false, "start"},
			{22, Unreached, false, "open 5s"},
		}},
		"the open time doubles to a minute": {AgentBreaker(), []breakerStep{
			{0, Unreached, false, "start"}, {0, Unreached, false, "start"}, {0, Unreached, false, "open 5s"},
			{5, NoEvidence, false, "probe"}, {5, Unreached, true, "open 10s"},
			{15, NoEvidence, false, "probe"}, {15, Failed, true, "open 20s"},
			{35, NoEvidence, false, "probe"}, {35, Unreached, true, "open 40s"},
			{75, NoEvidence, false, "probe"}, {75, Unreached, true, "open 1m0s"},
			{135, NoEvidence, false, "probe"}, {135, Unreached, true, "open 1m0s"},
		}},
		"an answer of any kind ends the row": {AgentBreaker(), []breakerStep{
			{0, Unreached, false, "start"}, {0, Unreached, false, "start"}, {0, Reached, false, "start"},
			{1, Unreached, false, "start"}, {1, Unreached, false, "start"}, {1, Failed, false, "start"},
			{2, Unreached, false, "start"}, {2, Unreached, false, "start"},
		}},
		"a sign of life closes what unreachability opened": {AgentBreaker(), []breakerStep{
			{0, Unreached, false, "start"}, {0, Unreached, false, "start"}, {0, Unreached, false, "open 5s"},
			{1, Reached, false, "start"},
		}},
		"refusals of input, load and cancellations never open": {few, []breakerStep{
			{0, Reached, false, "start"}, {0, Reached, false, "start"}, {0, Reached, false, "start"}, {0, Reached, false, "start"},
			{0, Reached, false, "start"}, {0, NoEvidence, true, "start"}, {0, NoEvidence, true, "start"}, {0, NoEvidence, true, "start"},
			{0, Failed, false, "start"}, {0, Failed, false, "start"}, {0, Failed, false, "start"}, // three calls that count
		}},
		"half of the calls of the window open": {few, []breakerStep{
			{0, Failed, false, "start"}, {1, Succeeded, false, "start"}, {2, Succeeded, false, "start"}, {3, Succeeded, false, "start"},
			{4, Failed, false, "start"}, {5, Failed, false, "open 5s"},
		}},
		"what is older than the window does not count": {few, []breakerStep{
			{0, Failed, false, "start"}, {0, Failed, false, "start"}, {0, Failed, false, "start"},
			{31, Failed, false, "start"}, {32, Failed, false, "start"}, {33, Failed, false, "start"}, {34, Failed, false, "open 5s"},
		}},
		"a long pause empties the window": {few, []breakerStep{
			{0, Failed, false, "start"}, {0, Failed, false, "start"}, {0, Failed, false, "start"}, {100_000, Failed, false, "start"},
		}},
		"a rate closes by the success of a probe only": {few, []breakerStep{
			{0, Failed, false, "start"}, {0, Failed, false, "start"}, {0, Failed, false, "start"}, {0, Failed, false, "open 5s"},
			{1, Reached, false, "open 4s"},
			{2, Succeeded, false, "open 3s"},
			{5, NoEvidence, false, "probe"},
			{6, Reached, true, "probe"},    // it refused the input of the probe: the next call probes
			{7, NoEvidence, true, "probe"}, // cancelled: likewise
			{8, Succeeded, true, "start"},
			{8, Failed, false, "start"}, {8, Failed, false, "start"}, // the window is empty
		}},
		"a probe without an end admits the next one": {AgentBreaker(), []breakerStep{
			{0, Unreached, false, "start"}, {0, Unreached, false, "start"}, {0, Unreached, false, "open 5s"},
			{5, NoEvidence, false, "probe"},
			{64.9, NoEvidence, false, "half_open 1s"},
			{65, NoEvidence, false, "probe"},
		}},
		"failures of any kind in a row": {row, []breakerStep{
			{0, Failed, false, "start"}, {0, Unreached, false, "open 1s"},
			{1, NoEvidence, false, "probe"}, {1, NoEvidence, false, "half_open 500ms"}, {1, Failed, true, "open 2s"},
			{2, Succeeded, false, "start"},
		}},
		"without limits": {BreakerConfig{}, []breakerStep{
			{0, Failed, false, "start"}, {0, Unreached, false, "start"}, {0, Failed, false, "start"}, {0, Unreached, false, "start"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBreaker(c.config)
			for i, s := range c.steps {
				if s.e != NoEvidence || s.probe {
					b.Record(at(s.at), s.e, s.probe)
				}
				circuit := b.Circuit(at(s.at))
				probe, refusal := b.Start(at(s.at))
				got := "start"
				switch {
				case refusal != nil:
					got = circuit.String() + " " + refusal.RetryAfter.String()
					if refusal.Reason != actor.Unavailable || refusal.RetryAfter <= 0 || !strings.Contains(refusal.Detail, "circuit open") {
						t.Errorf("step %d: got refusal %v", i, refusal)
					}
				case probe:
					got = "probe"
				}
				if got != s.want {
					t.Fatalf("step %d, at %v s, after evidence %d: got %q, want %q", i, s.at, s.e, got, s.want)
				}
			}
		})
	}
}

func TestBreakerSaysWhyItIsOpen(t *testing.T) {
	b := NewBreaker(AgentBreaker())
	for i := range 10 {
		e := Succeeded
		if i%2 == 1 {
			e = Failed
		}
		b.Record(at(0), e, false)
	}
	if r := b.Refusal(at(0)); r == nil || r.Detail != "circuit open: 5 of 10 calls within 30s failed" {
		t.Errorf("got %v", r)
	}
	b = NewBreaker(AgentBreaker())
	for range 3 {
		b.Record(at(0), Unreached, false)
	}
	if r := b.Refusal(at(0)); r == nil || r.Detail != "circuit open after 3 consecutive failures" {
		t.Errorf("got %v", r)
	}
}
