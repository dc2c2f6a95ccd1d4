// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// progress rewrites one line on a terminal. It prints nothing elsewhere.
func (c *harness) progress(stderr io.Writer, done int, began time.Time) {
	f, ok := stderr.(*os.File)
	if !ok {
		return
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	last := c.cycles[len(c.cycles)-1]
	fmt.Fprintf(f, "\r%d of %d kills, %v; at the last kill: %d acknowledged, %d open, %d nested   ", done, c.kills, time.Since(began).Round(time.Second), last.acks, last.open, last.nested)
	if done == c.kills {
		fmt.Fprintln(f)
	}
}

// report prints the result. It reports whether the check found no defect and reached
// the required coverage.
func (c *harness) report(out io.Writer, took time.Duration) bool {
	l := c.ledger
	acks, open, nested := c.column(func(y cycle) int64 { return y.acks }), c.column(func(y cycle) int64 { return y.open }), c.column(func(y cycle) int64 { return y.nested })
	ready := c.column(func(y cycle) int64 { return y.ready.Milliseconds() })
	ready = slices.DeleteFunc(ready, func(ms int64) bool { return ms == 0 })
	enough := c.percent(func(y cycle) bool { return y.acks >= acksWanted && y.open >= openWanted })
	under := c.percent(func(y cycle) bool { return y.nested > 0 })
	waiting, running := c.column(func(y cycle) int64 { return y.waiting }), c.column(func(y cycle) int64 { return y.running })
	paused := c.percent(func(y cycle) bool { return y.waiting > 0 })
	performing := c.percent(func(y cycle) bool { return y.running > 0 })
	early := c.percent(func(y cycle) bool { return y.early })

	fmt.Fprintf(out, "\n%-28s %8s %8s %8s %8s %8s\n", "at each kill", "min", "median", "p90", "p99", "max")
	for _, row := range []struct {
		what string
		of   []int64
	}{{"acknowledged", acks}, {"requests open", open}, {"nested calls open", nested}, {"approvals waiting", waiting}, {"tools running", running}, {"time to ready, ms", ready}, {"drain, ms", c.drains}, {"database away, ms", c.absent}, {"rolling restart, ms", c.rolls}} {
		if len(row.of) == 0 {
			continue
		}
		slices.Sort(row.of)
		fmt.Fprintf(out, "%-28s %8d %8d %8d %8d %8d\n", row.what, percentile(row.of, 0), percentile(row.of, 50), percentile(row.of, 90), percentile(row.of, 99), percentile(row.of, 100))
	}
	withRun, keyed, cancelled, unknown := 0, 0, 0, 0
	for _, e := range l.exchanges {
		switch {
		case e.run == "" && e.refused == "":
			unknown++
		case e.run != "":
			withRun++
		}
		if e.key != "" {
			keyed++
		}
		if e.cancelled {
			cancelled++
		}
	}
	fmt.Fprintf(out, "\n%d kills in %v, seed %d; %d%% before the server was ready\n", len(c.cycles), took.Round(time.Second), c.seed, early)
	fmt.Fprintf(out, "%d%% with at least %d acknowledged and %d requests open (want %d%%), %d%% with a nested call open, %d%% with an approval waiting and %d%% with a tool running (want %d%% each)\n", enough, acksWanted, openWanted, busyCyclesPercent, under, paused, performing, nestedCyclesPercent)
	fmt.Fprintf(out, "%d runs acknowledged, %d messages with an Idempotency-Key, %d without an answer or a retry, %d refused for lack of capacity\n", withRun, keyed, unknown, l.rejected)
	fmt.Fprintf(out, "%d cancellations, %d agents and API keys created; external agents invoked for %d runs\n", cancelled, len(l.resources), c.external.runCount())
	fmt.Fprintln(out, c.tools.summary())
	fmt.Fprintf(out, "%d messages in conversations\n", c.messages)
	fmt.Fprintf(out, "%d of %d streamed answers equal their deltas\n", l.matching, l.streamed)
	var sum int64
	for _, n := range acks {
		sum += n
	}
	fmt.Fprintf(out, "acked=%d lost=%d duplicated=%d reordered=%d wrong=%d\n", sum, l.counts[lost], l.counts[duplicated], l.counts[reordered], l.counts[wrong])
	performed := performing >= nestedCyclesPercent || len(c.cycles) < toolCyclesMin
	return enough >= busyCyclesPercent && under >= nestedCyclesPercent && paused >= nestedCyclesPercent && performed && l.counts == [kinds]int{} && l.matching == l.streamed && l.streamed > 0
}

func (c *harness) column(of func(cycle) int64) []int64 {
	all := make([]int64, 0, len(c.cycles))
	for _, y := range c.cycles {
		all = append(all, of(y))
	}
	slices.Sort(all)
	return all
}

func (c *harness) percent(is func(cycle) bool) int {
	n := 0
	for _, y := range c.cycles {
		if is(y) {
			n++
		}
	}
	return n * 100 / max(len(c.cycles), 1)
}

// percentile returns the given percentile of a sorted list, 0 for an empty one.
func percentile(sorted []int64, percent int) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)*percent/100]
}

func (o *externalAgents) runCount() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.invocations[porter]) + len(o.invocations[clerk]) + len(o.invocations[broker]) + len(o.invocations[buyer]) + len(o.invocations[shopper])
}
