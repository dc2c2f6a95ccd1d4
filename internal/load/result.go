// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"strings"
	"time"
)

// Result is what was seen of a loop.
type Result struct {
	Name      string        `json:"name"`
	Callers   int           `json:"callers"`
	Rate      float64       `json:"rate,omitzero"` // of an open loop: what arrived each second
	Took      time.Duration `json:"took_ns"`
	Done      int           `json:"done"`
	Late      int           `json:"done_late,omitzero"` // when the loop was over
	PerSecond float64       `json:"done_per_second"`
	Best      float64       `json:"best_per_second"` // over BestOf

	Latency Times `json:"latency"` // of what was done, from when it was to be sent
	Service Times `json:"service"` // of what was done, from when it was sent
	Refusal Times `json:"refusal"` // of what was told to come back, from when it was sent
	Lag     Times `json:"lag"`     // how late the loop itself was

	Refusals []Refused `json:"refusals,omitzero"`
	Unsent   int       `json:"unsent,omitzero"`   // no caller was free in time
	Retried  int       `json:"again,omitzero"`    // sent once more, as they were told
	GivenUp  int       `json:"given_up,omitzero"` // refused for good
	Waiting  int       `json:"waiting,omitzero"`  // to be sent once more when the loop was over

	Memory    Memory        `json:"memory"`
	Processor time.Duration `json:"processor_ns"` // that the process had
}

// Refused is how many tries were refused, or broke.
func (r *Result) Refused() (n int) {
	for _, refused := range r.Refusals {
		n += refused.Count
	}
	return n
}

// Sent is how many calls were made, each try for itself.
func (r *Result) Sent() int { return r.Done + r.Late + r.Refused() }

// PerProcessor is what was done in a second of processor time. What else runs on a
// machine disturbs it less than it disturbs PerSecond.
func (r *Result) PerProcessor() float64 {
	if r.Processor == 0 {
		return 0
	}
	return float64(r.Done) / r.Processor.Seconds()
}

// tableHead stands above rows.
const tableHead = `| load | done/s | per s of processor | p50 | p90 | p99 | p99.9 | max | lag p99 | refused: p99 | not sent |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
`

// row is the result as a line of a table.
func (r *Result) row() string {
	refused := "–"
	if n := r.Refused(); n > 0 {
		refused = fmt.Sprintf("%.1f %%: %s", 100*float64(n)/float64(r.Sent()), formatDuration(r.Refusal.P99))
	}
	unsent := "–"
	if r.Unsent > 0 {
		unsent = fmt.Sprintf("%.1f %%", 100*float64(r.Unsent)/float64(r.Unsent+r.Sent()))
	}
	lag := "–"
	if r.Rate > 0 {
		lag = formatDuration(r.Lag.P99)
	}
	l := r.Latency
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", r.Name, formatRate(r.PerSecond), formatRate(r.PerProcessor()), formatDuration(l.P50), formatDuration(l.P90), formatDuration(l.P99), formatDuration(l.P999), formatDuration(l.Max), lag, refused, unsent)
}

// refusalText tells how calls were refused; empty if none was.
func (r *Result) refusalText() string {
	var reasons []string
	for _, refused := range r.Refusals {
		name := refused.Code
		if refused.Scope != "" {
			name += " (" + refused.Scope + ")"
		}
		reasons = append(reasons, fmt.Sprintf("%s %d", name, refused.Count))
	}
	if r.Retried > 0 || r.GivenUp > 0 {
		reasons = append(reasons, fmt.Sprintf("tried again %d, given up %d, still waiting %d", r.Retried, r.GivenUp, r.Waiting))
	}
	return strings.Join(reasons, "; ")
}

// formatDuration is a time in three digits.
func formatDuration(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(d)/1e6)
	default:
		return fmt.Sprintf("%.3g µs", float64(d)/1e3)
	}
}

// formatRate is a number per second, in thousands where it is large.
func formatRate(n float64) string {
	if n >= 10_000 {
		return fmt.Sprintf("%.1fk", n/1000)
	}
	return fmt.Sprintf("%.4g", n)
}
