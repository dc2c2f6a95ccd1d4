// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

const (
	contractAgents = 1000
	fanOut         = 16
	fanOutModel    = 100 * time.Millisecond
	fanOuts        = 20
)

// studyContract measures the contract between agents: what its envelopes add to a call, the choice of an owner, and a
// fan-out to owners with a slow model.
func studyContract(b *bench) (rows []row, err error) {
	envelope, err := b.envelopeRow()
	if err != nil {
		return nil, err
	}
	route, err := b.routeRow()
	if err != nil {
		return nil, err
	}
	fan, err := b.fanOutRow()
	return []row{envelope, route, fan}, err
}

// processorTime returns the processor time of one operation in ns, of each of five rounds.
func (b *bench) processorTime(one func(i int) error) (all []float64, err error) {
	n := 20_000
	if b.quick {
		n = 200
	}
	for range roundsMin {
		began := cpuTime()
		for i := range n {
			if err := one(i); err != nil {
				return nil, err
			}
		}
		all = append(all, float64(cpuTime()-began)/float64(n))
	}
	slices.Sort(all)
	return all, nil
}

func costRow(name string, all []float64, f floor) row {
	r := row{Name: name, Counterpart: "–", Ours: figure{median(all), nanoseconds}, Low: slices.Min(all), High: slices.Max(all), Floor: f}
	return r.withVerdict()
}

// netPresentValue is the capability of the contract's examples.
var netPresentValue = actor.Capability{Code: "ANL_NPV", Version: "1.0", Description: "Net present value of cash flows.",
	Input:  `{"type":"object","required":["cash_flows","discount_rate"],"properties":{"cash_flows":{"type":"array","items":{"type":"number"},"minItems":2},"discount_rate":{"type":"number"}}}`,
	Output: `{"type":"object","required":["npv"],"properties":{"npv":{"type":"number"}}}`}

// envelopeRow measures what a request and its response cost besides the call: decoding, both schemas, the choice of the
// owner, and encoding.
func (b *bench) envelopeRow() (row, error) {
	catalog, err := contract.NewCatalog([]contract.Declaration{{Agent: "analyst", Code: "ANL", Capabilities: []actor.Capability{netPresentValue}}})
	if err != nil {
		return row{}, err
	}
	request := []byte(`{"source_agent":"CST","target_agent":"ANL","capability_code":"ANL_NPV","request_id":"sess-789-20250118-143022","priority":"NORMAL","timeout_ms":15000,` +
		`"inputs_json":{"cash_flows":[-100000,25000,35000,45000,55000],"discount_rate":0.12,"periods":"annual"},"context":{"session_id":"sess-789","user_id":"user-456","engagement_type":"business_case"}}`)
	answer := actor.Text(`{"request_id":"sess-789-20250118-143022","status":"SUCCESS","confidence_level":"HIGH","result_json":{"npv":24156.72,"currency":"USD","discount_rate":0.12,"periods":5},"metadata":{"processing_time_ms":245,"capability_version":"1.0"}}`)
	idle := func(string) (int, *actor.Refusal) { return 0, nil }
	all, err := b.processorTime(func(int) error {
		in, broken := contract.DecodeRequest(request)
		if broken == nil {
			broken = catalog.CheckInputs(in.Capability, in.Inputs)
		}
		if broken != nil {
			return broken
		}
		choice, broken, _ := catalog.Route(in.Target, in.Capability, in.Session, idle)
		if broken != nil || choice.Agent != "analyst" || len(in.Encode()) == 0 {
			return fmt.Errorf("the request goes to %q: %v", choice.Agent, broken)
		}
		out, broken := catalog.ReadResponse(answer, in.ID, in.Capability)
		if broken != nil || len(out.Encode()) == 0 {
			return fmt.Errorf("the response breaks a rule: %v", broken)
		}
		return nil
	})
	if err != nil {
		return row{}, err
	}
	return costRow("request and response of the contract, added to a call: processor time", all, atMost(20_000)), nil
}

// routeRow measures the choice of the owner of a capability among 1,000 agents, of which four own each capability.
func (b *bench) routeRow() (row, error) {
	const each = 4
	var some, same []contract.Declaration
	load := map[string]int{}
	for i := range contractAgents {
		name := fmt.Sprintf("agent-%d", i)
		load[name] = i % 3
		k := netPresentValue
		k.Code = fmt.Sprintf("ANL_NPV_%d", i/each)
		some = append(some, contract.Declaration{Agent: name, Capabilities: []actor.Capability{k}})
		same = append(same, contract.Declaration{Agent: name, Capabilities: []actor.Capability{netPresentValue}})
	}
	state := func(agent string) (int, *actor.Refusal) { return load[agent], nil }
	cost := func(all []contract.Declaration, code func(i int) string) ([]float64, error) {
		catalog, err := contract.NewCatalog(all)
		if err != nil {
			return nil, err
		}
		sessions := make([]string, 64)
		for i := range sessions {
			sessions[i] = fmt.Sprintf("session-%d", i)
		}
		return b.processorTime(func(i int) error {
			choice, broken, refusal := catalog.Route("", code(i), sessions[i%len(sessions)], state)
			if broken != nil || refusal != nil || choice.Agent == "" {
				return errors.Join(fmt.Errorf("no owner: %v", broken), refusal)
			}
			return nil
		})
	}
	codes := make([]string, contractAgents/each)
	for i := range codes {
		codes[i] = fmt.Sprintf("ANL_NPV_%d", i)
	}
	four, err := cost(some, func(i int) string { return codes[i%len(codes)] })
	if err != nil {
		return row{}, err
	}
	every, err := cost(same, func(int) string { return netPresentValue.Code })
	if err != nil {
		return row{}, err
	}
	r := costRow("owner of a capability among 1,000 agents, four owners each: processor time", four, atMost(5_000))
	r.addNote("%v if all 1,000 own it", figure{median(every), nanoseconds})
	return r, nil
}

// fanOutRow measures an agent that asks 16 owners of a capability at once, each of which prompts a model that takes 100 ms.
func (b *bench) fanOutRow() (r row, err error) {
	models, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return r, err
	}
	served := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(fanOutModel):
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"{\\\"npv\\\":1}\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	})}
	go served.Serve(models) //nolint:errcheck // Close ends it
	defer func() { err = errors.Join(err, served.Close()) }()
	out, err := outbound.New(outbound.Config{Logger: slog.New(slog.DiscardHandler), Allow: upstream.AllowLoopback(), Models: map[string]outbound.Model{"slow": {URL: "http://" + models.Addr().String() + "/v1", Concurrency: 2 * fanOut}}})
	if err != nil {
		return r, err
	}
	defer out.Close()
	registry := tools.NewRegistry()
	var definitions []actor.Definition
	var asks []actor.Ask
	for i := range fanOut {
		spec, err := agents.ReadTOML(fmt.Sprintf("name = \"owner-%d\"\nmodel = \"slow\"\nprompt = \"Compute.\"\n[[provides]]\ncode = \"ANL_NPV_%d\"\ndescription = \"Computes.\"\n", i, i))
		if err != nil {
			return r, err
		}
		def, err := agents.Compile(spec, registry)
		if err != nil {
			return r, err
		}
		definitions = append(definitions, def)
		asks = append(asks, agents.Tool(tools.RequestCapability, jsontext.Value(fmt.Sprintf(`{"capability_code":"ANL_NPV_%d","inputs_json":{}}`, i))))
	}
	definitions = append(definitions, agents.Define("front", "1", "Asks all owners.", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		for _, answer := range t.All(asks...) {
			if answer.Refusal != nil {
				return "", answer.Refusal
			}
			if text := actor.TextOf(answer.Parts); !strings.Contains(text, "npv") {
				return "", fmt.Errorf("an owner answers %s", text)
			}
		}
		return "done", nil
	}))))
	rounds := fanOuts
	if b.quick {
		rounds = 1
	}
	var all []float64
	err = b.withNode(func(c *engine.Config) { c.Tools, c.Outbound, c.Limits.AgentConcurrentCallsMax = registry, out, fanOut }, func(n *node) error {
		for i := range rounds + 1 { // the first one opens connections
			began := time.Now()
			if err := n.ask(b.ctx, actor.NewID("front", fmt.Sprintf("session-%d", i)), payload); err != nil {
				return err
			}
			if i > 0 {
				all = append(all, float64(time.Since(began)))
			}
		}
		return nil
	}, definitions...)
	if err != nil {
		return r, err
	}
	slices.Sort(all)
	r = costRow("fan-out to 16 owners of capabilities with a model of 100 ms, durable: median", all, atMost(115e6))
	r.addNote("p90 %v", figure{quantile(all, 0.9), nanoseconds})
	return r, nil
}
