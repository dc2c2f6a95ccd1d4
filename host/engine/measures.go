// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/upstream"
)

// histogram counts durations. Any goroutine may use it.
type histogram struct {
	bounds []actor.Duration
	counts [17]atomic.Uint64 // one more than the longest bounds
	sum    atomic.Int64
}

func (h *histogram) record(d actor.Duration) {
	i := 0
	for i < len(h.bounds) && d > h.bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

// addTo adds the counts to a histogram with the same bounds.
func (h *histogram) addTo(sum *command.Histogram) {
	if sum.Counts == nil {
		sum.Counts = make([]uint64, len(h.bounds)+1)
	}
	for i := range sum.Counts {
		sum.Counts[i] += h.counts[i].Load()
	}
	sum.Sum += actor.Duration(h.sum.Load())
}

// seriesKey identifies a series: a tool or a model, or an agent if the kind is
// AskCall. Waits have one series without a name.
type seriesKey struct {
	kind actor.AskKind
	name string
}

// series holds the figures of one agent, tool or model in one cell.
type series struct {
	took          histogram
	outcomes      [reasonCount]atomic.Uint64 // by reason; 0 is success
	input, output atomic.Int64               // tokens
	outstanding   atomic.Int64               // of an agent: unanswered calls
}

func newSeries(bounds []actor.Duration) *series { return &series{took: histogram{bounds: bounds}} }

func (s *series) record(took actor.Duration, reason actor.Reason) {
	s.took.record(took)
	s.outcomes[min(int(reason), reasonCount-1)].Add(1)
}

func (s *series) recordUsage(u upstream.Usage) {
	s.input.Add(max(u.Input, 0))
	s.output.Add(max(u.Output, 0))
}

// labels admits the names of a node's series. It bounds their number, and thereby
// the size of a scrape.
type labels struct {
	mu       sync.Mutex
	admitted map[seriesKey]bool
	count    [actor.AskInvoke + 1]int // admitted names by kind
}

// admit returns the key of the series for a name.
func (l *labels) admit(key seriesKey) seriesKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.admitted[key] {
		return key
	}
	if l.count[key.kind] >= command.StatsNamesMax {
		return seriesKey{key.kind, command.StatsOther}
	}
	if l.admitted == nil {
		l.admitted = map[seriesKey]bool{}
	}
	l.admitted[key] = true
	l.count[key.kind]++
	return key
}

// measures holds the series of one cell, so that cells do not share them.
type measures struct {
	labels *labels
	waits  *series
	mu     sync.RWMutex
	all    map[seriesKey]*series
}

func newMeasures(l *labels) measures {
	return measures{labels: l, waits: newSeries(command.WaitBounds), all: map[seriesKey]*series{}}
}

// of returns the series of a name.
func (m *measures) of(kind actor.AskKind, name string) *series {
	key := seriesKey{kind, name}
	m.mu.RLock()
	s := m.all[key]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	key = m.labels.admit(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if s = m.all[key]; s == nil {
		s = newSeries(command.DurationBounds)
		m.all[key] = s
	}
	return s
}

func (m *measures) agent(name string) *series { return m.of(actor.AskCall, name) }

// startIncarnation resets the gauges: a new incarnation counts from 0.
func (m *measures) startIncarnation() {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, s := range m.all {
		s.outstanding.Store(0)
	}
}

// record records the measures of a step.
func (t *tally) record(all []runtime.Measure) {
	for i := range all {
		switch m := &all[i]; m.Kind {
		case runtime.MeasureRun:
			t.runs[statusOf(m.Reason)].Add(1)
			t.measures.agent(m.Name).record(m.Took, m.Reason)
		case runtime.MeasureCall:
			t.calls.record(m.Took)
		case runtime.MeasureTool:
			t.measures.of(actor.AskTool, m.Name).record(m.Took, m.Reason)
		case runtime.MeasureModel:
			t.measures.of(actor.AskModel, m.Name).record(m.Took, m.Reason)
		case runtime.MeasureWait:
			t.measures.waits.record(m.Took, m.Reason)
		case runtime.MeasureOutstanding:
			if m.Change != 0 {
				t.measures.agent(m.Name).outstanding.Add(int64(m.Change))
			}
		}
	}
}

// statusOf returns the final status of a run that ended for a reason.
func statusOf(r actor.Reason) runs.Status {
	switch r {
	case 0:
		return runs.Done
	case actor.Stopped:
		return runs.Cancelled
	default:
		return runs.Failed
	}
}

// recordUsage counts the tokens of an answer for its model, if it has one, and for
// the agent that asked. The answer counts even if its turn no longer waits for it.
func (t *tally) recordUsage(model, agent string, answer actor.Answer) {
	if len(answer.Parts) != 1 {
		return
	}
	completion, err := upstream.DecodeCompletion(answer.Parts[0].Bytes)
	if err != nil || !completion.Usage.Known {
		return
	}
	if model != "" {
		t.measures.of(actor.AskModel, model).recordUsage(completion.Usage)
	}
	t.measures.agent(agent).recordUsage(completion.Usage)
}

// addSeries adds the series of all cells to the statistics.
func (e *Engine) addSeries(s *command.Stats) {
	sums := map[seriesKey]*command.TargetStats{}
	outstanding := map[string]int64{}
	var waits [reasonCount]uint64
	outcomes := map[seriesKey]*[reasonCount]uint64{}
	for _, c := range e.cells {
		m := &c.tally.measures
		m.waits.took.addTo(&s.Waits.Took)
		for i := range waits {
			waits[i] += m.waits.outcomes[i].Load()
		}
		m.mu.RLock()
		for key, series := range m.all {
			sum := sums[key]
			if sum == nil {
				sum = &command.TargetStats{Kind: key.kind, Name: key.name}
				sums[key], outcomes[key] = sum, &[reasonCount]uint64{}
			}
			series.took.addTo(&sum.Took)
			sum.InputTokens += uint64(series.input.Load())
			sum.OutputTokens += uint64(series.output.Load())
			for i := range outcomes[key] {
				outcomes[key][i] += series.outcomes[i].Load()
			}
			if key.kind == actor.AskCall {
				outstanding[key.name] += series.outstanding.Load()
			}
		}
		m.mu.RUnlock()
	}
	s.Waits.Outcomes = outcomeStats(&waits)
	for key, sum := range sums {
		if key.kind != actor.AskCall {
			sum.Outcomes = outcomeStats(outcomes[key])
			s.Targets = append(s.Targets, *sum)
			continue
		}
		var ends [runs.Cancelled + 1]uint64
		for i, n := range outcomes[key] {
			ends[statusOf(actor.Reason(i))] += n
		}
		s.Agents = append(s.Agents, command.AgentStats{Agent: key.name, Runs: runStats(&ends), Took: sum.Took,
			Outstanding: int(max(outstanding[key.name], 0)), InputTokens: sum.InputTokens, OutputTokens: sum.OutputTokens})
	}
	slices.SortFunc(s.Agents, func(a, b command.AgentStats) int { return cmp.Compare(a.Agent, b.Agent) })
	slices.SortFunc(s.Targets, func(a, b command.TargetStats) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
}

func outcomeStats(counts *[reasonCount]uint64) (all []command.OutcomeStats) {
	for i, n := range counts {
		if n > 0 {
			all = append(all, command.OutcomeStats{Reason: actor.Reason(i), Count: n})
		}
	}
	return all
}

func runStats(ends *[runs.Cancelled + 1]uint64) (all []command.RunStats) {
	for _, status := range []runs.Status{runs.Done, runs.Failed, runs.Cancelled} {
		all = append(all, command.RunStats{Status: status, Count: ends[status]})
	}
	return all
}
