// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

func TestMetrics(t *testing.T) {
	m, at := NewMetrics(), actor.Time(time.Hour)
	add := func(agent string, status Status, took time.Duration, refusal *actor.Refusal, spent Spent) {
		s := Summary{Run: actor.CallID{1}, Actor: actor.NewID(agent, "s-1"), Status: status, Refusal: refusal, Spent: spent, Created: at, Started: at}
		if status.Ended() {
			s.Ended = at.Add(took)
		}
		m.Add(&s)
	}
	for i := range 20 {
		add("clerk", Done, time.Duration(i+1)*time.Second, nil, nil)
	}
	add("clerk", Failed, time.Second, actor.Refuse(actor.Deadline, "late"), Spent{}.Add("large", Usage{Input: 7, Output: 3, Total: 10, Priced: 10, Cost: 50}))
	add("clerk", Cancelled, 0, nil, nil)
	add("clerk", PausedWaitingApproval, 0, nil, nil)
	add("desk", Failed, time.Minute, nil, Spent{}.Add("small", Usage{Total: 30}))
	add("desk", Failed, -time.Minute, actor.AgentNotFound("x"), nil) // the clock went back
	const (
		head     = `{"window":"1h","from":"1970-01-01T00:00:00.000000000Z","to":"1970-01-01T01:00:00.000000000Z","total":{`
		counts   = `"runs":{"total":25,"done":20,"failed":3,"cancelled":1,"open":1}`
		failures = `"failures":{"agent_not_found":1,"other":1,"timeout":1}`
		lasted   = `"durations":{"ended_runs":24,"p50_ms":9000,"p95_ms":20000,"max_ms":60000}`
		tokens   = `"tokens":{"input":7,"output":3,"total":40,"answers":2,"unmeasured_answers":0}`
		cost     = `"cost":{"cost_micros":50,"currency":"EUR","unpriced_tokens":30}`
	)
	for name, want := range map[string]string{
		"":          head + strings.Join([]string{counts, failures, lasted, tokens, cost}, ",") + `},"agents":[{"agent_id":"clerk",`,
		"runs":      head + counts + `},"agents":[{"agent_id":"clerk","runs":{"total":23,"done":20,"failed":1,"cancelled":1,"open":1}},{"agent_id":"desk","runs":{"total":2,"done":0,"failed":2,"cancelled":0,"open":0}}]}`,
		"failures":  head + failures + `},"agents":[{"agent_id":"clerk","failures":{"timeout":1}},{"agent_id":"desk","failures":{"agent_not_found":1,"other":1}}]}`,
		"durations": head + lasted + `},"agents":[{"agent_id":"clerk","durations":{"ended_runs":22,"p50_ms":9000,"p95_ms":19000,"max_ms":20000}},{"agent_id":"desk","durations":{"ended_runs":2,"p50_ms":0,"p95_ms":60000,"max_ms":60000}}]}`,
		"tokens":    `"models":[{"model":"small","tokens":{"input":0,"output":0,"total":30,"answers":1,"unmeasured_answers":0}},{"model":"large","tokens":{"input":7,`,
		"cost":      `"models":[{"model":"small","cost":{"cost_micros":0,"currency":"EUR","unpriced_tokens":30}},{"model":"large","cost":{"cost_micros":50,`,
	} {
		if got := string(m.Encode(name, "1h", 0, at, "EUR")); !strings.Contains(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
	if got := string(NewMetrics().Encode("", "1h", 0, at, "")); !strings.Contains(got, `"durations":{"ended_runs":0,"p50_ms":0,"p95_ms":0,"max_ms":0}`) || !strings.Contains(got, `"agents":[]`) {
		t.Errorf("of no run: %s", got)
	}
}

// The total of the figures is that of the report of usage, and the sum over few agents; many agents make no long answer.
func TestMetricsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		agents := rapid.IntRange(1, 2*MetricGroupsMax).Draw(t, "agents")
		m, report := NewMetrics(), NewUsageReport(nil)
		n := rapid.IntRange(0, 60).Draw(t, "runs")
		for i := range n {
			s := Summary{Run: actor.NewCallID(actor.Time(i), 1, uint64(i)), Actor: actor.NewID(fmt.Sprint("agent-", rapid.IntRange(1, agents).Draw(t, "agent")), "k"), Status: rapid.SampledFrom(Statuses()).Draw(t, "status")}
			for range rapid.IntRange(0, 3).Draw(t, "answers") {
				tokens := rapid.Int64Range(0, 9).Draw(t, "tokens")
				s.Spent = s.Spent.Add(fmt.Sprint("model-", rapid.IntRange(1, 30).Draw(t, "model")), Usage{Total: tokens, Priced: tokens, Cost: tokens * 1000})
			}
			m.Add(&s)
			report.Add(&s)
		}
		var got metricsView
		if err := json.Unmarshal(m.Encode("", "1h", 0, 1, "EUR"), &got); err != nil {
			t.Fatal(err)
		}
		if r := got.Total.Runs; r.Total != uint64(n) || r.Done+r.Failed+r.Cancelled+r.Open != r.Total {
			t.Errorf("%+v of %d runs", r, n)
		}
		if u := report.Total; got.Total.Tokens.Total != u.Usage.Total || got.Total.Cost.Micros != u.Usage.Cost || got.Total.Tokens.Answers != u.Answers {
			t.Errorf("%+v %+v, the report has %+v", got.Total.Tokens, got.Total.Cost, u)
		}
		if len(got.Agents) > MetricGroupsMax || len(got.Models) > MetricGroupsMax {
			t.Errorf("%d agents and %d models are shown", len(got.Agents), len(got.Models))
		}
		if got.MoreAgents == 0 {
			sum := uint64(0)
			for _, g := range got.Agents {
				sum += g.Runs.Total
			}
			if sum != uint64(n) {
				t.Errorf("the agents have %d runs of %d", sum, n)
			}
		}
	})
}
