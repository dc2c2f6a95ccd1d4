// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// RetryPolicy decides how often, how soon and how long a failed request is repeated.
// A zero field means its default. The struct tag sim of a field is the range from
// which the simulator draws its value.
type RetryPolicy struct {
	// Tries is the maximum number of attempts that may have reached the upstream,
	// including throttled ones; default 5. A refused connection is no such attempt:
	// only Time bounds those.
	Tries int `sim:"2..5"`
	// Delay is the maximum delay before the first retry, doubled for each further one
	// up to DelayMax; defaults 2 s and 15 s. The delay is drawn from the whole range.
	Delay    actor.Duration `sim:"100ms..2s"`
	DelayMax actor.Duration `sim:"2s..15s"`
	// Time is the maximum time from the first failure to the start of the last
	// attempt; default 30 s. A delay that would exceed it is shortened.
	Time actor.Duration `sim:"5s..30s"`
	// Exact replaces the drawn delay by its maximum.
	Exact bool
}

// Bounds of a RetryPolicy.
const (
	TriesMax       = 20
	RetryDelayMin  = time.Millisecond
	RetryTimeMax   = time.Hour
	unreachableMax = 1000 // attempts of one exchange, including those that reached nothing
)

// Check returns an error that describes the first invalid field, or nil. Names are
// the names of the fields in the configuration.
func (p RetryPolicy) Check(tries, delay, delayMax, total string) error {
	switch d := p.orDefaults(); {
	case p.Tries < 0 || p.Tries > TriesMax:
		return fmt.Errorf("%s: got %d, want 1 (no retry) to %d, or 0 for %d", tries, p.Tries, TriesMax, RetryPolicy{}.orDefaults().Tries)
	case p.Delay != 0 && (p.Delay < RetryDelayMin || p.Delay > RetryTimeMax):
		return fmt.Errorf("%s: got %v, want %v to %v", delay, p.Delay, RetryDelayMin, RetryTimeMax)
	case p.DelayMax < 0 || p.DelayMax > RetryTimeMax:
		return fmt.Errorf("%s: got %v, want at most %v", delayMax, p.DelayMax, RetryTimeMax)
	case p.DelayMax != 0 && d.Delay > d.DelayMax:
		return fmt.Errorf("%s: got %v, want at least %s, %v", delayMax, p.DelayMax, delay, d.Delay)
	case p.Time < 0 || p.Time > RetryTimeMax:
		return fmt.Errorf("%s: got %v, want at most %v", total, p.Time, RetryTimeMax)
	}
	return nil
}

// Or returns the policy with zero fields replaced by those of other.
func (p RetryPolicy) Or(other RetryPolicy) RetryPolicy {
	return RetryPolicy{orDefault(p.Tries, other.Tries), orDefault(p.Delay, other.Delay), orDefault(p.DelayMax, other.DelayMax),
		orDefault(p.Time, other.Time), p.Exact || other.Exact}
}

func (p RetryPolicy) orDefaults() RetryPolicy {
	d := RetryPolicy{orDefault(p.Tries, 5), orDefault(p.Delay, 2*time.Second), orDefault(p.DelayMax, 15*time.Second), orDefault(p.Time, 30*time.Second), p.Exact}
	if p.DelayMax == 0 {
		d.DelayMax = max(d.DelayMax, d.Delay)
	}
	return d
}

// window returns the maximum delay after the given number of failures.
func (p RetryPolicy) window(failures int) actor.Duration {
	return doubled(p.Delay, max(failures-1, 0), p.DelayMax)
}
