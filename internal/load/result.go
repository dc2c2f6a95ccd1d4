// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"strings"
	"time"
)

// Result holds the measurements of one loop.
type Result struct {
	Name      string        `json:"name"`
	Callers   int           `json:"callers"`
	Rate      float64       `json:"rate,omitzero"` // arrivals per second; 0 for a closed loop
	Took      time.Duration `json:"took_ns"`
	Done      int           `json:"done"`
	Late      int           `json:"done_late,omitzero"` // completed after the end of the loop
	PerSecond float64       `json:"done_per_second"`
	Best      float64       `json:"best_per_second"` // maximum rate over a period of PeakWindow

	Latency Times `json:"latency"` // of completed calls, from the intended send time
	Service Times `json:"service"` // of completed calls, from the actual send time
	Refusal Times `json:"refusal"` // of refusals with a retry delay, from the actual send time
	Lag     Times `json:"lag"`     // from the intended to the actual send time

	Refusals []Refused `json:"refusals,omitzero"`
	Unsent   int       `json:"unsent,omitzero"`   // arrivals without a free caller in time
	Retried  int       `json:"again,omitzero"`    // attempts after a retry delay
	GivenUp  int       `json:"given_up,omitzero"` // refused calls without a further retry
	Waiting  int       `json:"waiting,omitzero"`  // retries pending at the end

	Remote    bool          `json:"remote,omitzero"` // another process served the calls; Memory and Processor are those of the generator alone
	Memory    Memory        `json:"memory"`
	Processor time.Duration `json:"processor_ns"` // processor time of the process
}

// Refused returns the number of attempts that were refused or broke.
func (r *Result) Refused() (n int) {
	for _, refused := range r.Refusals {
		n += refused.Count
	}
	return n
}

// Sent returns the number of attempts.
func (r *Result) Sent() int { return r.Done + r.Late + r.Refused() }

// RefusedFraction returns the fraction of attempts that were refused or broke.
func (r *Result) RefusedFraction() float64 { return float64(r.Refused()) / float64(max(r.Sent(), 1)) }

// UnsentFraction returns the fraction of arrivals and retries that were not sent.
func (r *Result) UnsentFraction() float64 {
	return float64(r.Unsent) / float64(max(r.Unsent+r.Sent(), 1))
}

// PerProcessor returns the completed calls per second of processor time. Other
// programs on the machine affect this figure less than PerSecond.
func (r *Result) PerProcessor() float64 {
	if r.Processor == 0 {
		return 0
	}
	return float64(r.Done) / r.Processor.Seconds()
}

// tableHead is the header of the rows.
const tableHead = `| load | done/s | per s of processor | p50 | p90 | p99 | p99.9 | max | lag p99 | refused: p99 | not sent |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
`

// row returns the result as a row of a Markdown table.
func (r *Result) row() string {
	refused := "–"
	if r.Refused() > 0 {
		refused = fmt.Sprintf("%.1f %%: %s", 100*r.RefusedFraction(), formatDuration(r.Refusal.P99))
	}
	unsent := "–"
	if r.Unsent > 0 {
		unsent = fmt.Sprintf("%.1f %%", 100*r.UnsentFraction())
	}
	lag := "–"
	if r.Rate > 0 {
		lag = formatDuration(r.Lag.P99)
	}
	perProcessor := formatRate(r.PerProcessor())
	if r.Remote {
		perProcessor = "–"
	}
	l := r.Latency
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", r.Name, formatRate(r.PerSecond), perProcessor, formatDuration(l.P50), formatDuration(l.P90), formatDuration(l.P99), formatDuration(l.P999), formatDuration(l.Max), lag, refused, unsent)
}

// refusalText returns the refusals by reason and the retries; empty if there are none.
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
		reasons = append(reasons, fmt.Sprintf("retried %d, abandoned %d, waiting %d", r.Retried, r.GivenUp, r.Waiting))
	}
	return strings.Join(reasons, "; ")
}

// formatDuration formats a duration with three significant digits.
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

// formatRate formats a rate, in thousands from 10,000 on.
func formatRate(n float64) string {
	if n >= 10_000 {
		return fmt.Sprintf("%.1fk", n/1000)
	}
	return fmt.Sprintf("%.4g", n)
}
