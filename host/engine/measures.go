// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	cost          atomic.Int64               // micros
	outstanding   atomic.Int64               // of an agent: unanswered calls
	used          atomic.Bool                // changed since the last sweep
}

func newSeries(bounds []actor.Duration) *series { return &series{took: histogram{bounds: bounds}} }

func (s *series) record(took actor.Duration, reason actor.Reason) {
	s.took.record(took)
	s.outcomes[min(int(reason), reasonCount-1)].Add(1)
}

// takeUsed reports whether the series was changed since the last sweep, or counts calls
// that have no answer yet. A nil series was not.
func (s *series) takeUsed() bool {
	return s != nil && (s.used.Swap(false) || s.outstanding.Load() != 0)
}

// add adds the figures of another series, which no longer changes.
func (s *series) add(o *series) {
	for i := range s.took.counts {
		s.took.counts[i].Add(o.took.counts[i].Load())
	}
	s.took.sum.Add(o.took.sum.Load())
	for i := range s.outcomes {
		s.outcomes[i].Add(o.outcomes[i].Load())
	}
	s.input.Add(o.input.Load())
	s.output.Add(o.output.Load())
	s.cost.Add(o.cost.Load())
	s.outstanding.Add(o.outstanding.Load())
}

func (s *series) recordUsage(u upstream.Usage) {
	s.input.Add(max(u.Input, 0))
	s.output.Add(max(u.Output, 0))
	s.cost.Add(max(u.Cost, 0))
}

// sweepEvery is the minimum time between two sweeps of the names of a kind.
const sweepEvery = time.Hour

// labels admits the names of a node's series. It bounds their number, and thereby
// the size of a scrape. If a kind has no room, the names unused since its last sweep
// are freed: the figures of their series move to that of StatsOther. Clients choose the
// names of agents and of their models, so deleted agents and unknown models have no series
// of their own.
type labels struct {
	now      func() actor.Time
	models   map[string]bool // names of the models that exist; does not change
	mu       sync.Mutex      // locked before the mutexes of the measures
	agents   map[string]bool // names of the agents that exist
	cells    []*measures
	admitted map[seriesKey]bool
	count    [actor.AskInvoke + 1]int        // admitted names by kind
	swept    [actor.AskInvoke + 1]actor.Time // last sweeps by kind
}

func newLabels(now func() actor.Time, models []string) *labels {
	l := &labels{now: now, models: map[string]bool{}, admitted: map[seriesKey]bool{}}
	for _, name := range models {
		l.models[name] = true
	}
	return l
}

// setAgents replaces the agents that exist, and frees the names of the others.
func (l *labels) setAgents(definitions []actor.Definition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agents = make(map[string]bool, len(definitions))
	for i := range definitions {
		l.agents[definitions[i].Name] = true
	}
	for _, m := range l.cells {
		m.mu.Lock()
		defer m.mu.Unlock()
	}
	for key := range l.admitted {
		if !l.exists(key) {
			l.free(key)
		}
	}
}

// exists reports whether the agent or the model of a series exists. The caller holds mu.
func (l *labels) exists(key seriesKey) bool {
	switch key.kind {
	case actor.AskCall:
		return l.agents[key.name]
	case actor.AskModel:
		return l.models[key.name]
	}
	return true
}

// free moves the figures of a name to the series of the others. The caller holds mu and
// the mutexes of the measures.
func (l *labels) free(key seriesKey) {
	for _, m := range l.cells {
		if s := m.all[key]; s != nil {
			m.open(seriesKey{key.kind, command.StatsOther}).add(s)
			delete(m.all, key)
		}
	}
	delete(l.admitted, key)
	l.count[key.kind]--
}

// admit returns the key of the series for a name. The caller holds mu.
func (l *labels) admit(key seriesKey) seriesKey {
	if l.admitted[key] {
		return key
	}
	if !l.exists(key) {
		return seriesKey{key.kind, command.StatsOther}
	}
	if l.count[key.kind] >= command.StatsNamesMax {
		l.sweep(key.kind)
	}
	if l.count[key.kind] >= command.StatsNamesMax {
		return seriesKey{key.kind, command.StatsOther}
	}
	l.admitted[key] = true
	l.count[key.kind]++
	return key
}

// sweep frees the names of a kind without a record since the last sweep, unless there
// was one less than sweepEvery ago. The caller holds mu.
func (l *labels) sweep(kind actor.AskKind) {
	if l.swept[kind] != 0 && l.now().Sub(l.swept[kind]) < sweepEvery {
		return
	}
	l.swept[kind] = l.now()
	for _, m := range l.cells {
		m.mu.Lock()
		defer m.mu.Unlock()
	}
	for key := range l.admitted {
		if key.kind != kind || key.name == command.StatsOther {
			continue
		}
		used := false
		for _, m := range l.cells {
			used = m.all[key].takeUsed() || used
		}
		if !used {
			l.free(key)
		}
	}
}

// measures holds the series of one cell, so that cells do not share them.
type measures struct {
	labels *labels
	waits  *series
	mu     sync.RWMutex
	all    map[seriesKey]*series
}

// newMeasures returns the measures of one more cell.
func (l *labels) newMeasures() *measures {
	m := &measures{labels: l, waits: newSeries(command.WaitBounds), all: map[seriesKey]*series{}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cells = append(l.cells, m)
	return m
}

// update changes the series of a name. No sweep can free the series at the same time.
func (m *measures) update(kind actor.AskKind, name string, change func(*series)) {
	key := seriesKey{kind, name}
	m.mu.RLock()
	s := m.all[key]
	if s == nil {
		m.mu.RUnlock()
		m.labels.mu.Lock()
		defer m.labels.mu.Unlock()
		key = m.labels.admit(key)
		m.mu.Lock()
		s = m.open(key)
		m.mu.Unlock()
		m.mu.RLock()
	}
	defer m.mu.RUnlock()
	if !s.used.Load() {
		s.used.Store(true)
	}
	change(s)
}

// open returns the series of an admitted name. The caller holds mu.
func (m *measures) open(key seriesKey) *series {
	s := m.all[key]
	if s == nil {
		s = newSeries(command.DurationBounds)
		m.all[key] = s
	}
	return s
}

func (m *measures) record(kind actor.AskKind, measure *runtime.Measure) {
	m.update(kind, measure.Name, func(s *series) { s.record(measure.Took, measure.Reason) })
}

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
			t.measures.record(actor.AskCall, m)
		case runtime.MeasureCall:
			t.calls.record(m.Took)
		case runtime.MeasureTool:
			t.measures.record(actor.AskTool, m)
		case runtime.MeasureModel:
			t.measures.record(actor.AskModel, m)
		case runtime.MeasureClaim:
			t.measures.update(actor.AskCall, m.Name, func(s *series) { s.recordUsage(upstream.Usage{Input: m.Usage.Input, Output: m.Usage.Output}) })
		case runtime.MeasureRoute:
			t.routes.record(m.Name, m.Route)
		case runtime.MeasureWait:
			t.measures.waits.record(m.Took, m.Reason)
		case runtime.MeasureOutstanding:
			if m.Change != 0 {
				t.measures.update(actor.AskCall, m.Name, func(s *series) { s.outstanding.Add(int64(m.Change)) })
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
		t.measures.update(actor.AskModel, cmp.Or(completion.Fallback, model), func(s *series) { s.recordUsage(completion.Usage) })
	}
	if agent != "" {
		t.measures.update(actor.AskCall, agent, func(s *series) { s.recordUsage(completion.Usage) })
	}
}

// RecordChat counts a request to a model that no cell performed. agent is the external agent
// that sent it for a run, whose cell counts the request but not its tokens; "" if there is none.
func (e *Engine) RecordChat(model, agent string, took actor.Duration, answer actor.Answer) {
	t := &e.cells[0].tally
	if agent == "" {
		m := runtime.Measure{Name: model, Took: took}
		if answer.Refusal != nil {
			m.Reason = answer.Refusal.Reason
		}
		t.measures.record(actor.AskModel, &m)
	}
	t.recordUsage(model, agent, answer)
}

// addSeries adds the series of all cells to the statistics.
func (e *Engine) addSeries(s *command.Stats) {
	sums := map[seriesKey]*command.TargetStats{}
	outstanding := map[string]int64{}
	var waits [reasonCount]uint64
	outcomes := map[seriesKey]*[reasonCount]uint64{}
	for _, c := range e.cells {
		m := c.tally.measures
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
			sum.CostMicros += uint64(series.cost.Load())
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
