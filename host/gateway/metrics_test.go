// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// scrape returns the values of /metrics, by name with labels in the order of their
// names. A histogram has its count under its name. Each histogram is checked.
func (d *testGateway) scrape() map[string]float64 {
	d.Helper()
	response, err := d.client.Get("http://" + d.address + "/metrics")
	if err != nil {
		d.Fatal(err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		d.Fatalf("%d %v", response.StatusCode, err)
	}
	values := map[string]float64{}
	for name, family := range families {
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%s", l.GetName(), l.GetValue()))
			}
			key := name + "{" + strings.Join(labels, ",") + "}"
			switch family.GetType().String() {
			case "COUNTER":
				values[key] = m.Counter.GetValue()
			case "GAUGE":
				values[key] = m.Gauge.GetValue()
			case "HISTOGRAM":
				values[key] = float64(m.Histogram.GetSampleCount())
				var bounds []float64
				var counts []uint64
				for _, b := range m.Histogram.Bucket {
					bounds, counts = append(bounds, b.GetUpperBound()), append(counts, b.GetCumulativeCount())
				}
				d.checkHistogram(key, bounds, counts, m.Histogram.GetSampleCount())
			}
		}
	}
	return values
}

// checkHistogram checks that the buckets are cumulative and reach from 1 ms or 1 s
// to an hour at least.
func (d *testGateway) checkHistogram(key string, bounds []float64, counts []uint64, total uint64) {
	d.Helper()
	last := len(bounds) - 1
	if !slices.IsSorted(bounds) || !slices.IsSorted(counts) || !math.IsInf(bounds[last], 1) || counts[last] != total {
		d.Errorf("%s: bounds %v, counts %v, total %d", key, bounds, counts, total)
	}
	if strings.HasPrefix(key, "troupe_") && !strings.HasPrefix(key, "troupe_http") && (bounds[0] > 1 || bounds[last-1] < 3600) {
		d.Errorf("%s: bounds from %g s to %g s", key, bounds[0], bounds[last-1])
	}
}

// tokens returns the tokens in the events of a run.
func (d *testGateway) tokens(run string) (input, output float64) {
	var page struct {
		Events []struct {
			Type    string `json:"type"`
			Payload struct {
				Usage struct {
					Input  float64 `json:"input_tokens"`
					Output float64 `json:"output_tokens"`
				} `json:"usage"`
			} `json:"payload"`
		} `json:"events"`
	}
	d.doJSON(&page, "GET", "/v1/runs/"+run+"/events", "")
	for _, e := range page.Events {
		if e.Type == "llm_call_done" {
			input, output = input+e.Payload.Usage.Input, output+e.Payload.Usage.Output
		}
	}
	return input, output
}

// The figures of agents, tools, models and waits agree with the requests made.
func TestMetricsByAgentToolAndModel(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	d := startGateway(t,
		agents.Define("relay", "1", "", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) { return turn.Call("slow", "x") }))),
		agents.Define("slow", "1", "", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
			b, err := turn.Do("work", func(context.Context) ([]byte, error) { close(started); <-release; return []byte("done"), nil })
			return string(b), err
		}))))
	for _, name := range []string{"assistant", "organizer"} {
		d.createAgent(name)
	}
	const messages = 3
	var parentIn, parentOut, childIn, childOut float64
	for range messages {
		var m messageResponse
		if status := d.doJSON(&m, "POST", "/v1/agents/organizer/messages", `{"content":"Ask the assistant agent for help"}`); status != 200 {
			t.Fatalf("%d %+v", status, m)
		}
		var record struct {
			Children []struct {
				Run string `json:"child_run_id"`
			} `json:"children"`
		}
		d.doJSON(&record, "GET", "/v1/runs/"+m.Run, "")
		if len(record.Children) != 1 {
			t.Fatalf("run %s has the children %+v, want one", m.Run, record.Children)
		}
		in, out := d.tokens(m.Run)
		parentIn, parentOut = parentIn+in, parentOut+out
		in, out = d.tokens(record.Children[0].Run)
		childIn, childOut = childIn+in, childOut+out
	}
	if parentIn == 0 || childOut == 0 {
		t.Fatal("the scripted model reported no tokens")
	}
	d.do("POST", "/v1/agents/organizer/messages", `{"content":"use call_agent {\"agent_id\":\"absent\",\"message\":\"x\"}"}`)
	d.do("POST", "/v1/agents/organizer/messages", `{"content":"use call_agent {}"}`)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/coordinator/messages", `{"content":"x"}`)
	if status, _, body := d.do("POST", m.Signal.Path, m.Signal.Body); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	d.openStream("GET", "/v1/runs/"+m.Run+"/events", "").readUntil("run_done")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		d.do("POST", "/v1/agents/relay/messages", `{"content":"x"}`)
	}()
	<-started
	during := d.scrape()
	close(release)
	<-answered
	after := d.scrape()
	for key, want := range map[string]float64{
		"troupe_agent_run_duration_seconds{agent=organizer}":          messages + 2,
		"troupe_agent_run_duration_seconds{agent=assistant}":          messages,
		"troupe_agent_runs_total{agent=assistant,status=DONE}":        messages,
		"troupe_agent_runs_total{agent=assistant,status=FAILED}":      0,
		"troupe_agent_runs_total{agent=relay,status=DONE}":            1,
		"troupe_tool_calls_total{outcome=ok,tool=call_agent}":         messages,
		"troupe_tool_duration_seconds{tool=call_agent}":               messages + 2,
		"troupe_model_duration_seconds{model=scripted}":               3*messages + 4,
		"troupe_model_calls_total{model=scripted,outcome=ok}":         3*messages + 4,
		"troupe_ask_duration_seconds{kind=model}":                     3*messages + 4,
		"troupe_ask_duration_seconds{kind=call}":                      messages + 2, // those of coordinator and relay, too
		"troupe_ask_duration_seconds{kind=work}":                      1,
		"troupe_agent_tokens_total{agent=assistant,direction=input}":  childIn,
		"troupe_agent_tokens_total{agent=assistant,direction=output}": childOut,
		"troupe_wait_duration_seconds{}":                              1,
		"troupe_waits_total{outcome=ok}":                              1,
	} {
		if got, ok := after[key]; !ok || got != want {
			t.Errorf("%s: got %g, want %g", key, got, want)
		}
	}
	failed := 0.0
	for key, n := range after {
		if strings.HasPrefix(key, "troupe_tool_calls_total{") && strings.Contains(key, "tool=call_agent") && !strings.Contains(key, "outcome=ok") {
			failed += n
		}
	}
	if failed != 2 {
		t.Errorf("got %g failed calls of call_agent, want 2", failed)
	}
	const modelIn, modelOut = "troupe_model_tokens_total{direction=input,model=scripted}", "troupe_model_tokens_total{direction=output,model=scripted}"
	const agentIn, agentOut = "troupe_agent_tokens_total{agent=organizer,direction=input}", "troupe_agent_tokens_total{agent=organizer,direction=output}"
	if after[modelIn] != after[agentIn]+childIn || after[modelOut] != after[agentOut]+childOut || after[agentIn] <= parentIn || after[agentOut] <= parentOut {
		t.Errorf("tokens of the model %g and %g, of the calling agent %g and %g, in its first %d runs %g and %g", after[modelIn], after[modelOut], after[agentIn], after[agentOut], messages, parentIn, parentOut)
	}
	const outstanding = "troupe_agent_outstanding_calls{agent=relay}"
	if during[outstanding] != 1 {
		t.Errorf("%s: got %g during a call, want 1", outstanding, during[outstanding])
	}
	if _, ok := after[outstanding]; ok {
		t.Errorf("%s: got %g after the call, want no series", outstanding, after[outstanding])
	}
}

// statsNode has fixed statistics. It has no other command.
type statsNode struct {
	command.Node
	stats command.Stats
}

func (n statsNode) Lookup(context.Context, command.Lookup) (command.Result, error) {
	return n.stats, nil
}

// Each figure of the node is exported under its own name and labels.
func TestMetricsOfNode(t *testing.T) {
	n := statsNode{stats: command.Stats{Clients: 101, Backlog: 102,
		Cells: []command.CellStats{
			{Mailbox: 1, Actors: 2, Queued: [actor.Low]int{3, 4, 5}, Outstanding: 6, Incarnation: 8, Steps: 9, StepLongest: 1500 * time.Millisecond},
			{Mailbox: 11, Actors: 12, Queued: [actor.Low]int{13, 14, 15}, Outstanding: 16, Incarnation: 1, Steps: 19}},
		Refusals: []command.RefusalStats{{Reason: actor.Busy, Scope: actor.ScopeCallee, Count: 21}, {Reason: actor.Deadline, Count: 22}},
		Runs:     []command.RunStats{{Status: runs.Done, Count: 31}, {Status: runs.Failed, Count: 32}, {Status: runs.Cancelled, Count: 33}},
		Asks:     []command.AskStats{{Kind: actor.AskModel, UnderWay: 41, Took: command.Histogram{Counts: []uint64{1, 2}, Sum: 2 * time.Second}}},
	}}
	body := string(request(n, "/metrics").Body())
	for _, want := range []string{
		`mailbox_messages{cell="0"} 1`, `mailbox_messages{cell="1"} 11`, `actors{cell="0"} 2`, `actors{cell="1"} 12`,
		`queued_calls{cell="0",priority="high"} 3`, `queued_calls{cell="0",priority="normal"} 4`, `queued_calls{cell="0",priority="low"} 5`, `queued_calls{cell="1",priority="low"} 15`,
		`outstanding_calls{cell="0"} 6`, `outstanding_calls{cell="1"} 16`, `cell_restarts_total{cell="0"} 7`, `cell_restarts_total{cell="1"} 0`,
		`steps_total{cell="0"} 9`, `step_longest_seconds{cell="0"} 1.5`, `clients_waiting 101`, `streams_open 0`, `log_backlog_entries 102`,
		`refusals_total{reason="agent_busy",scope="callee"} 21`, `refusals_total{reason="timeout",scope=""} 22`,
		`runs_ended_total{status="DONE"} 31`, `runs_ended_total{status="FAILED"} 32`, `runs_ended_total{status="CANCELLED"} 33`,
		`asks_under_way{kind="model"} 41`, `ask_duration_seconds_count{kind="model"} 3`, `ask_duration_seconds_sum{kind="model"} 2`,
		`ask_duration_seconds_bucket{kind="model",le="0.001"} 1`, `ask_duration_seconds_bucket{kind="model",le="0.005"} 3`,
	} {
		if !strings.Contains(body, "\ntroupe_"+want+"\n") {
			t.Errorf("missing troupe_%s", want)
		}
	}
}

// A deleted agent and a model that the configuration lacks have no series. Their figures
// are counted with the others.
func TestMetricsForgetDeletedAgentsAndUnknownModels(t *testing.T) {
	d := startGateway(t)
	const names = 3
	for i := range names {
		name := fmt.Sprint("brief-", i)
		if status, _, body := d.do("POST", "/v1/agents", fmt.Sprintf(`{"name":%q,"model":"nosuch-%d"}`, name, i)); status != 201 && status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		if status, _, body := d.do("POST", "/v1/agents/"+name+"/messages", `{"content":"hello"}`); status < 400 || !strings.Contains(body, "model_not_found") {
			t.Fatalf("%d %s", status, body)
		}
		if status, _, body := d.do("DELETE", "/v1/agents/"+name, ""); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	if status, _, body := d.do("POST", "/v1/agents/helper/messages", `{"content":"hello"}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	values := d.scrape()
	for key := range values {
		if strings.Contains(key, "brief-") || strings.Contains(key, "nosuch-") {
			t.Errorf("%s has a series", key)
		}
	}
	for key, want := range map[string]float64{
		"troupe_agent_runs_total{agent=other,status=FAILED}":            names,
		"troupe_model_calls_total{model=other,outcome=model_not_found}": names,
		"troupe_agent_runs_total{agent=helper,status=DONE}":             1,
	} {
		if values[key] != want {
			t.Errorf("%s: got %g, want %g", key, values[key], want)
		}
	}
}
