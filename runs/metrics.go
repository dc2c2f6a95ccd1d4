// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// MetricNames are the figures of Metrics.
var MetricNames = []string{"runs", "failures", "durations", "tokens", "cost"}

// MetricGroupsMax is the maximum number of agents of which Metrics are shown one by one, and of models.
const MetricGroupsMax = 20

// Metrics are figures about runs: all of them, and those of each agent. Tokens and cost are those of the run's own answers, as in a
// UsageReport.
type Metrics struct {
	total  metricGroup
	agents map[string]*metricGroup
	models map[string]*Spending
}

// NewMetrics returns the figures of no run.
func NewMetrics() *Metrics {
	return &Metrics{total: metricGroup{failures: map[string]uint64{}}, agents: map[string]*metricGroup{}, models: map[string]*Spending{}}
}

type metricGroup struct {
	all, done, failed, cancelled uint64
	failures                     map[string]uint64 // by the code of the refusal
	took                         []time.Duration   // from the start to the end
	spent                        Spending
}

// Add adds a run.
func (m *Metrics) Add(s *Summary) {
	g := m.agents[s.Actor.Agent]
	if g == nil {
		g = &metricGroup{failures: map[string]uint64{}}
		m.agents[s.Actor.Agent] = g
	}
	g.add(s)
	m.total.add(s)
	for i := range s.Spent {
		one := &s.Spent[i]
		if m.models[one.Model] == nil {
			m.models[one.Model] = &Spending{Model: one.Model}
		}
		m.models[one.Model].add(one)
	}
}

func (s *Spending) add(o *Spending) {
	s.Answers, s.Unmeasured, s.Usage = s.Answers+o.Answers, s.Unmeasured+o.Unmeasured, s.Usage.Add(o.Usage)
}

func (g *metricGroup) add(s *Summary) {
	g.all++
	switch s.Status {
	case Done:
		g.done++
	case Failed:
		g.failed++
		code := "other"
		if s.Refusal != nil {
			code = s.Refusal.Info().Type
		}
		g.failures[code]++
	case Cancelled:
		g.cancelled++
	}
	if s.Status.Ended() && s.Started != 0 {
		g.took = append(g.took, max(0, s.Ended.Sub(s.Started)))
	}
	for i := range s.Spent {
		g.spent.add(&s.Spent[i])
	}
}

// The JSON of Metrics, as models get it.
type (
	metricsView struct {
		Window     string        `json:"window"`
		From       string        `json:"from"`
		To         string        `json:"to"`
		Total      groupView     `json:"total"`
		Agents     []groupView   `json:"agents"`
		MoreAgents int           `json:"more_agents,omitzero"` // which are in the total only
		Models     []metricModel `json:"models,omitempty"`
		MoreModels int           `json:"more_models,omitzero"`
	}
	groupView struct {
		Agent     string            `json:"agent_id,omitzero"`
		Runs      *metricRuns       `json:"runs,omitempty"`
		Failures  map[string]uint64 `json:"failures,omitzero"`
		Durations *metricDurations  `json:"durations,omitempty"`
		Tokens    *metricTokens     `json:"tokens,omitempty"`
		Cost      *metricCost       `json:"cost,omitempty"`
	}
	metricRuns struct {
		Total     uint64 `json:"total"`
		Done      uint64 `json:"done"`
		Failed    uint64 `json:"failed"`
		Cancelled uint64 `json:"cancelled"`
		Open      uint64 `json:"open"`
	}
	metricDurations struct {
		Ended int   `json:"ended_runs"`
		P50   int64 `json:"p50_ms"`
		P95   int64 `json:"p95_ms"`
		Max   int64 `json:"max_ms"`
	}
	metricTokens struct {
		Input      int64  `json:"input"`
		Output     int64  `json:"output"`
		Total      int64  `json:"total"`
		Answers    uint64 `json:"answers"`
		Unmeasured uint64 `json:"unmeasured_answers"`
	}
	metricCost struct {
		Micros   int64  `json:"cost_micros"`
		Currency string `json:"currency,omitzero"`
		Unpriced int64  `json:"unpriced_tokens"`
	}
	metricModel struct {
		Model  string        `json:"model"`
		Tokens *metricTokens `json:"tokens,omitempty"`
		Cost   *metricCost   `json:"cost,omitempty"`
	}
)

// Encode returns the figures of a name, or all with "", as JSON. They are those of a window that ends with to.
func (m *Metrics) Encode(name, window string, from, to actor.Time, currency string) []byte {
	shows := func(figure string) bool { return name == "" || name == figure }
	out := metricsView{Window: window, From: FormatTime(from), To: FormatTime(to), Total: m.total.view(shows, currency), Agents: []groupView{}}
	agents := topNames(m.agents, func(a, b *metricGroup) int { return cmp.Compare(b.all, a.all) })
	for _, agent := range agents[:min(len(agents), MetricGroupsMax)] {
		v := m.agents[agent].view(shows, currency)
		v.Agent = agent
		out.Agents = append(out.Agents, v)
	}
	out.MoreAgents = len(agents) - len(out.Agents)
	if shows("tokens") || shows("cost") {
		models := topNames(m.models, func(a, b *Spending) int { return cmp.Compare(b.Usage.Total, a.Usage.Total) })
		for _, model := range models[:min(len(models), MetricGroupsMax)] {
			v := metricModel{Model: model}
			v.Tokens, v.Cost = m.models[model].view(shows, currency)
			out.Models = append(out.Models, v)
		}
		out.MoreModels = len(models) - len(out.Models)
	}
	return invariant.Must(json.Marshal(out, json.Deterministic(true)))
}

// topNames returns names in the order of their values, and those with the same value in the order of the names.
func topNames[V any](of map[string]V, compare func(a, b V) int) (names []string) {
	return slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(compare(of[a], of[b]), strings.Compare(a, b)) })
}

func (g *metricGroup) view(shows func(string) bool, currency string) (v groupView) {
	if shows("runs") {
		v.Runs = &metricRuns{g.all, g.done, g.failed, g.cancelled, g.all - g.done - g.failed - g.cancelled}
	}
	if shows("failures") {
		v.Failures = g.failures
	}
	if shows("durations") {
		v.Durations = &metricDurations{Ended: len(g.took)}
		if n := len(g.took); n > 0 {
			slices.Sort(g.took)
			at := func(percent int) int64 { return g.took[(n*percent+99)/100-1].Milliseconds() } // the nearest rank
			v.Durations.P50, v.Durations.P95, v.Durations.Max = at(50), at(95), at(100)
		}
	}
	v.Tokens, v.Cost = g.spent.view(shows, currency)
	return v
}

func (s *Spending) view(shows func(string) bool, currency string) (tokens *metricTokens, cost *metricCost) {
	if u := s.Usage; shows("tokens") {
		tokens = &metricTokens{u.Input, u.Output, u.Total, s.Answers, s.Unmeasured}
	}
	if u := s.Usage; shows("cost") {
		cost = &metricCost{u.Cost, currency, max(u.Total-u.Priced, 0)}
	}
	return tokens, cost
}
