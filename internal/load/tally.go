// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// window is the resolution of the peak rate.
	window = 100 * time.Millisecond
	// PeakWindow is the period over which a peak rate is measured.
	PeakWindow = 5 * time.Second

	timeMin           = int64(100) // nanoseconds
	timeMax           = int64(5 * time.Minute)
	significantDigits = 2 // precision of quantiles
)

// tally counts the outcomes of calls. It is striped to reduce lock contention between
// callers.
type tally struct {
	stripes  []stripe
	start    time.Time
	duration time.Duration // duration of the loop
}

type stripe struct {
	mu      sync.Mutex
	latency *hdrhistogram.Histogram // of completed calls, from the intended send time
	service *hdrhistogram.Histogram // of completed calls, from the actual send time
	refused *hdrhistogram.Histogram // of refusals with a retry delay, from the actual send time
	lag     *hdrhistogram.Histogram // from the intended to the actual send time
	windows []int
	reasons map[Refused]int
	done    int
	late    int // completed after the end
	_       [64]byte
}

func newTally(over time.Duration) *tally {
	t := &tally{stripes: make([]stripe, max(4, 2*runtime.GOMAXPROCS(0))), duration: over}
	for i := range t.stripes {
		p := &t.stripes[i]
		for _, h := range []**hdrhistogram.Histogram{&p.latency, &p.service, &p.refused, &p.lag} {
			*h = hdrhistogram.New(timeMin, timeMax, significantDigits)
		}
		p.windows, p.reasons = make([]int, over/window+1), map[Refused]int{}
	}
	t.start = time.Now()
	return t
}

// elapsed returns the time since the start of the loop.
func (t *tally) elapsed() time.Duration { return time.Since(t.start) }

// add counts a call answered now. The parameter due is its intended send time and sent
// its actual send time, both relative to the start of the loop.
func (t *tally) add(caller int, due, sent time.Duration, a Outcome) {
	now := t.elapsed()
	p := &t.stripes[caller%len(t.stripes)]
	p.mu.Lock()
	defer p.mu.Unlock()
	record(p.lag, sent-due)
	switch {
	case a.Code != "":
		if a.RetryAfter > 0 && a.Code != Broken { // any other call may have failed after its admission
			record(p.refused, now-sent)
		}
		p.reasons[Refused{Code: a.Code, Scope: a.Scope}]++
	case now > t.duration:
		p.late++
	default:
		p.done++
		p.windows[now/window]++
		record(p.latency, now-due)
		record(p.service, now-sent)
	}
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(int64(d), timeMin), timeMax)) // cannot fail: the value is in range
}

// Refused counts the refusals with one code and scope.
type Refused struct {
	Code  string `json:"code"`
	Scope string `json:"scope,omitzero"`
	Count int    `json:"count"`
}

// Times holds quantiles of a duration.
type Times struct {
	P50  time.Duration `json:"p50_ns"`
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
	Max  time.Duration `json:"max_ns"`
}

func quantiles(h *hdrhistogram.Histogram) Times {
	if h.TotalCount() == 0 {
		return Times{}
	}
	at := func(q float64) time.Duration { return time.Duration(h.ValueAtQuantile(q)) }
	return Times{at(50), at(90), at(99), at(99.9), time.Duration(h.Max())}
}

// result merges the stripes. It MUST be called after the last add.
func (t *tally) result() Result {
	all := &newTally(t.duration).stripes[0]
	for i := range t.stripes {
		p := &t.stripes[i]
		all.latency.Merge(p.latency)
		all.service.Merge(p.service)
		all.refused.Merge(p.refused)
		all.lag.Merge(p.lag)
		for n, count := range p.windows {
			all.windows[n] += count
		}
		for reason, count := range p.reasons {
			all.reasons[reason] += count
		}
		all.done += p.done
		all.late += p.late
	}
	r := Result{Took: t.duration, Done: all.done, Late: all.late, PerSecond: float64(all.done) / t.duration.Seconds(), Best: peakRate(all.windows),
		Latency: quantiles(all.latency), Service: quantiles(all.service), Refusal: quantiles(all.refused), Lag: quantiles(all.lag)}
	for reason, count := range all.reasons {
		reason.Count = count
		r.Refusals = append(r.Refusals, reason)
	}
	slices.SortFunc(r.Refusals, func(a, b Refused) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.Code, b.Code), cmp.Compare(a.Scope, b.Scope))
	})
	return r
}

// peakRate returns the maximum rate per second over PeakWindow, or over the whole loop
// if it is shorter.
func peakRate(windows []int) float64 {
	if len(windows) > 1 {
		windows = windows[:len(windows)-1] // the last window holds only the end instant
	}
	n := min(int(PeakWindow/window), len(windows))
	sum, maximum := 0, 0
	for i, count := range windows {
		if sum += count; i >= n {
			sum -= windows[i-n]
		}
		maximum = max(maximum, sum)
	}
	return float64(maximum) / (time.Duration(n) * window).Seconds()
}
