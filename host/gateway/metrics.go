// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// metrics holds the metrics of GET /metrics. No label contains an id of a run or an
// actor. The number of series is bounded by the number of cells, kinds, reasons and
// routes, and by command.StatsNamesMax agents, tools and models.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.HistogramVec

	unrouted *routeObservers // requests that match no route
}

func newMetrics(s *Server) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "troupe_http_request_duration_seconds", Help: "Duration of HTTP requests by route and status class, from head to answer; for streams, to their first byte.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120},
	}, []string{"route", "status"})}
	m.unrouted = m.newRouteObservers("")
	m.registry.MustRegister(m.requests, &nodeCollector{s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// routeKey is the user value in which protect stores the routeObservers of a
// request.
const routeKey = "route"

// routeObservers are the observers of one route, by status class: 1xx to 5xx. A
// series is created by its first request.
type routeObservers [5]func() prometheus.Observer

func (m *metrics) newRouteObservers(route string) *routeObservers {
	var r routeObservers
	for i := range r {
		r[i] = sync.OnceValue(func() prometheus.Observer { return m.requests.WithLabelValues(route, strconv.Itoa(i+1)+"xx") })
	}
	return &r
}

// observe records the status and duration of a request.
func (m *metrics) observe(ctx *fasthttp.RequestCtx, d time.Duration) {
	r, ok := ctx.UserValue(routeKey).(*routeObservers)
	if !ok { // no route matched
		r = m.unrouted
	}
	r[min(max(ctx.Response.StatusCode()/100, 1), len(r))-1]().Observe(d.Seconds())
}

func (s *Server) getMetrics(ctx *fasthttp.RequestCtx) {
	families, err := s.metrics.registry.Gather()
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	format := expfmt.NegotiateAccept(http.Header{fasthttp.HeaderAccept: headers(ctx, fasthttp.HeaderAccept)}, expfmt.DefaultAcceptedFormats()...)
	var b bytes.Buffer
	encoder := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			s.respondError(ctx, err)
			return
		}
	}
	respond(ctx, http.StatusOK, b.Bytes())
	ctx.SetContentType(string(format))
}

// nodeCollector collects the statistics of the node on each scrape.
type nodeCollector struct{ server *Server }

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("troupe_"+name, help, labels, nil)
}

var (
	mailboxDesc     = newDesc("mailbox_messages", "Messages waiting to be stepped.", "cell")
	actorsDesc      = newDesc("actors", "Actors in memory.", "cell")
	queuedDesc      = newDesc("queued_calls", "Calls waiting in the mailboxes of actors.", "cell", "priority")
	outstandingDesc = newDesc("outstanding_calls", "Calls between agents without an answer yet.", "cell")
	stepsDesc       = newDesc("steps_total", "Steps performed.", "cell")
	longestStepDesc = newDesc("step_longest_seconds", "Duration of the longest step.", "cell")
	restartsDesc    = newDesc("cell_restarts_total", "Restarts of the cell.", "cell")
	clientsDesc     = newDesc("clients_waiting", "Clients waiting for an answer.")
	streamsDesc     = newDesc("streams_open", "Open event streams.")
	backlogDesc     = newDesc("log_backlog_entries", "Log entries waiting to be written.")
	refusalsDesc    = newDesc("refusals_total", "Requests refused before their turn, by reason; for busy also by the scope of the limit.", "reason", "scope")
	runsEndedDesc   = newDesc("runs_ended_total", "Ended runs by status.", "status")
	asksOpenDesc    = newDesc("asks_under_way", "Open requests to models, tools and agents.", "kind")
	askDurationDesc = newDesc("ask_duration_seconds", "Response times of models, tools, work, calls and external agents.", "kind")

	agentRunDesc         = newDesc("agent_run_duration_seconds", "Duration of runs, from acceptance to end, by agent.", "agent")
	agentRunsDesc        = newDesc("agent_runs_total", "Ended runs by agent and status.", "agent", "status")
	agentTokensDesc      = newDesc("agent_tokens_total", "Tokens reported by models and external agents, by the agent that asked.", "agent", "direction")
	agentOutstandingDesc = newDesc("agent_outstanding_calls", "Calls without an answer yet, of the 10 calling agents with most.", "agent")
	toolDurationDesc     = newDesc("tool_duration_seconds", "Time to the answer of a tool, by tool.", "tool")
	toolCallsDesc        = newDesc("tool_calls_total", "Tool calls by tool and outcome: ok, or the code of the refusal.", "tool", "outcome")
	modelDurationDesc    = newDesc("model_duration_seconds", "Time to the whole answer of a model, by model.", "model")
	modelCallsDesc       = newDesc("model_calls_total", "Model calls by model and outcome: ok, or the code of the refusal.", "model", "outcome")
	modelTokensDesc      = newDesc("model_tokens_total", "Tokens reported by models.", "model", "direction")
	modelCostDesc        = newDesc("model_cost_total", "Cost of the answers of models that have a price, in the currency of the configuration.", "model")
	waitDurationDesc     = newDesc("wait_duration_seconds", "Time that runs waited for a signal or an approval.")
	mcpUpDesc            = newDesc("mcp_server_up", "1 if the MCP server is available, else 0.", "server")
	mcpToolsDesc         = newDesc("mcp_server_tools", "Tools of the accepted list of the MCP server.", "server")
	mcpChangedDesc       = newDesc("mcp_server_list_changed", "1 if a changed list of tools waits for troupe tools accept, else 0.", "server")
	mcpRestartsDesc      = newDesc("mcp_server_restarts_total", "Times that the MCP server became available after the first.", "server")
	circuitOpenDesc      = newDesc("agent_circuit_open", "1 if the circuit breaker of the external agent is open or half-open, else 0.", "agent")
	circuitOpenedDesc    = newDesc("agent_circuit_opened_total", "Times that the circuit breaker of the external agent opened.", "agent")
	routesDesc           = newDesc("orchestrator_decisions_total", "Messages by orchestrator, intent and course; the course misrouted counts requests that their owner has called misrouted.", "agent", "intent", "course")
	approvalsDesc        = newDesc("approvals_waiting", "Tool calls that wait for a person. Absent while the node loads its open runs.")
	approvalOldestDesc   = newDesc("approval_oldest_seconds", "Time for which the oldest of them has waited; 0 if there is none.")
	unknownDesc          = newDesc("outcomes_unknown_total", "Calls of which it became unknown whether they were performed.")
	webhookDesc          = newDesc("webhook_deliveries_total", "Attempts of deliveries, by webhook and outcome: delivered, failed, or given_up for a failed one that is not tried again.", "webhook", "outcome")
	webhookWaitingDesc   = newDesc("webhook_waiting", "Deliveries that wait for an attempt to succeed; more may wait in the log.", "webhook")
	webhookOldestDesc    = newDesc("webhook_oldest_seconds", "Age of the oldest event of them; 0 if there is none.", "webhook")
	promptsDesc          = newDesc("prompts_recorded_total", "Requests to models by what became of their record: recorded, or dropped because there were too many at a time or the disk was full.", "outcome")
	promptBytesDesc      = newDesc("prompts_recorded_bytes", "Bytes of recorded prompts.")
	spansDesc            = newDesc("trace_spans_total", "Spans for the collector of [otel] by outcome: sent, or dropped because it did not take them in time or rejected them.", "outcome")
	spansWaitingDesc     = newDesc("trace_spans_waiting", "Spans that wait to be sent; more may wait in the log.")
	clusterMembersDesc   = newDesc("cluster_members", "Orchestrators with a lease. Absent without --cluster.")
	clusterLogsDesc      = newDesc("cluster_logs", "Logs that this orchestrator owns.")
	clusterEpochDesc     = newDesc("cluster_epoch", "Rises whenever a log gets another owner.")
	clusterLeaseDesc     = newDesc("cluster_lease_seconds", "Time left of the lease of this orchestrator; 0: it waits for a renewal.")
	waitsDesc            = newDesc("waits_total", "Waits for a signal or an approval by outcome: ok, or the code of the refusal.", "outcome")
)

// outstandingAgentsMax is the number of agents with a series of outstanding calls.
const outstandingAgentsMax = 10

// Describe implements prometheus.Collector.
func (f *nodeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{mailboxDesc, actorsDesc, queuedDesc, outstandingDesc, stepsDesc, longestStepDesc, restartsDesc, clientsDesc, streamsDesc, backlogDesc, refusalsDesc, runsEndedDesc, asksOpenDesc, askDurationDesc,
		agentRunDesc, agentRunsDesc, agentTokensDesc, agentOutstandingDesc, toolDurationDesc, toolCallsDesc, modelDurationDesc, modelCallsDesc, modelTokensDesc, modelCostDesc, waitDurationDesc, waitsDesc, mcpUpDesc, mcpToolsDesc, mcpChangedDesc, mcpRestartsDesc, circuitOpenDesc, circuitOpenedDesc, routesDesc,
		approvalsDesc, approvalOldestDesc, unknownDesc, webhookDesc, webhookWaitingDesc, webhookOldestDesc, promptsDesc, promptBytesDesc, spansDesc, spansWaitingDesc, clusterMembersDesc, clusterLogsDesc, clusterEpochDesc, clusterLeaseDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (f *nodeCollector) Collect(out chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	histogram := func(d *prometheus.Desc, h command.Histogram, bounds []actor.Duration, labels ...string) {
		out <- newHistogram(d, h, bounds, labels...)
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	stats, err := lookup(f.server, publicCaller, command.StatsQuery{})
	if err != nil {
		out <- prometheus.NewInvalidMetric(mailboxDesc, err)
		return
	}
	for i, c := range stats.Cells {
		cell := strconv.Itoa(i)
		put(mailboxDesc, gauge, float64(c.Mailbox), cell)
		put(actorsDesc, gauge, float64(c.Actors), cell)
		for i, n := range c.Queued {
			put(queuedDesc, gauge, float64(n), cell, actor.Lane(i+1).Priority())
		}
		put(outstandingDesc, gauge, float64(c.Outstanding), cell)
		put(stepsDesc, counter, float64(c.Steps), cell)
		put(longestStepDesc, gauge, c.StepLongest.Seconds(), cell)
		put(restartsDesc, counter, float64(cellRestarts(c)), cell)
	}
	put(clientsDesc, gauge, float64(stats.Clients))
	put(streamsDesc, gauge, float64(f.server.streams.Taken()))
	put(backlogDesc, gauge, float64(stats.Backlog))
	for _, r := range stats.Refusals {
		put(refusalsDesc, counter, float64(r.Count), r.Reason.Info().Type, r.Scope.String())
	}
	for _, r := range stats.Runs {
		put(runsEndedDesc, counter, float64(r.Count), r.Status.String())
	}
	for _, a := range stats.Asks {
		put(asksOpenDesc, gauge, float64(a.UnderWay), a.Kind.String())
		histogram(askDurationDesc, a.Took, command.DurationBounds, a.Kind.String())
	}
	for _, a := range stats.Agents {
		histogram(agentRunDesc, a.Took, command.DurationBounds, a.Agent)
		for _, r := range a.Runs {
			put(agentRunsDesc, counter, float64(r.Count), a.Agent, r.Status.String())
		}
		put(agentTokensDesc, counter, float64(a.InputTokens), a.Agent, "input")
		put(agentTokensDesc, counter, float64(a.OutputTokens), a.Agent, "output")
	}
	for _, a := range busiestAgents(stats.Agents) {
		put(agentOutstandingDesc, gauge, float64(a.Outstanding), a.Agent)
	}
	for _, t := range stats.Targets {
		duration, calls := toolDurationDesc, toolCallsDesc
		if t.Kind == actor.AskModel {
			duration, calls = modelDurationDesc, modelCallsDesc
			put(modelTokensDesc, counter, float64(t.InputTokens), t.Name, "input")
			put(modelTokensDesc, counter, float64(t.OutputTokens), t.Name, "output")
			put(modelCostDesc, counter, float64(t.CostMicros)/actor.Micro, t.Name)
		}
		histogram(duration, t.Took, command.DurationBounds, t.Name)
		for _, o := range t.Outcomes {
			put(calls, counter, float64(o.Count), t.Name, outcomeLabel(o.Reason))
		}
	}
	for _, m := range stats.MCP {
		put(mcpUpDesc, gauge, oneIf(m.Up), m.Name)
		put(mcpToolsDesc, gauge, float64(m.Tools), m.Name)
		put(mcpChangedDesc, gauge, oneIf(m.Changed), m.Name)
		put(mcpRestartsDesc, counter, float64(m.Restarts), m.Name)
	}
	for _, c := range stats.Circuits {
		put(circuitOpenDesc, gauge, oneIf(c.Open), c.Agent)
		put(circuitOpenedDesc, counter, float64(c.Opened), c.Agent)
	}
	for _, r := range stats.Routes {
		put(routesDesc, counter, float64(r.Count), r.Agent, r.Intent, r.Course)
	}
	if a := stats.Approvals; a.Known {
		put(approvalsDesc, gauge, float64(a.Waiting))
		put(approvalOldestDesc, gauge, ageOf(a.Oldest))
	}
	put(unknownDesc, counter, float64(stats.Unknown))
	for _, w := range stats.Webhooks {
		put(webhookDesc, counter, float64(w.Delivered), w.Name, "delivered")
		put(webhookDesc, counter, float64(w.Failed-w.GivenUp), w.Name, "failed")
		put(webhookDesc, counter, float64(w.GivenUp), w.Name, "given_up")
		put(webhookWaitingDesc, gauge, float64(w.Waiting), w.Name)
		put(webhookOldestDesc, gauge, ageOf(w.Oldest), w.Name)
	}
	if r := stats.Prompts; r.On {
		put(promptsDesc, counter, float64(r.Recorded), "recorded")
		put(promptsDesc, counter, float64(r.Dropped), "dropped")
		put(promptBytesDesc, gauge, float64(r.Bytes))
	}
	if t := stats.Traces; t.On {
		put(spansDesc, counter, float64(t.Sent), "sent")
		put(spansDesc, counter, float64(t.Dropped), "dropped")
		put(spansWaitingDesc, gauge, float64(t.Waiting))
	}
	if c := stats.Cluster; c.Members > 0 {
		put(clusterMembersDesc, gauge, float64(c.Members))
		put(clusterLogsDesc, gauge, float64(c.Logs))
		put(clusterEpochDesc, gauge, float64(c.Epoch))
		put(clusterLeaseDesc, gauge, c.Lease.Seconds())
	}
	histogram(waitDurationDesc, stats.Waits.Took, command.WaitBounds)
	for _, o := range stats.Waits.Outcomes {
		put(waitsDesc, counter, float64(o.Count), outcomeLabel(o.Reason))
	}
}

// ageOf returns the time since another in seconds; 0 for none.
func ageOf(at actor.Time) float64 {
	if at == 0 {
		return 0
	}
	return max(0, actor.Time(time.Now().UnixNano()).Sub(at).Seconds())
}

func oneIf(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// outcomeLabel returns the code of a refusal, or ok.
func outcomeLabel(r actor.Reason) string {
	if r == 0 {
		return "ok"
	}
	return r.Info().Type
}

// busiestAgents returns the agents with the most outstanding calls.
func busiestAgents(all []command.AgentStats) []command.AgentStats {
	busy := slices.DeleteFunc(slices.Clone(all), func(a command.AgentStats) bool { return a.Outstanding == 0 })
	slices.SortStableFunc(busy, func(a, b command.AgentStats) int { return cmp.Compare(b.Outstanding, a.Outstanding) })
	return busy[:min(len(busy), outstandingAgentsMax)]
}

func newHistogram(d *prometheus.Desc, h command.Histogram, bounds []actor.Duration, labels ...string) prometheus.Metric {
	buckets, total := make(map[float64]uint64, len(bounds)), uint64(0)
	for i, n := range h.Counts {
		if total += n; i < len(bounds) {
			buckets[bounds[i].Seconds()] = total
		}
	}
	return prometheus.MustNewConstHistogram(d, total, h.Sum.Seconds(), buckets, labels...)
}

// cellRestarts returns the number of restarts of a cell. The low bits of its
// epoch count its incarnations, starting from 1.
func cellRestarts(c command.CellStats) uint64 { return max(c.Incarnation&incarnationMask, 1) - 1 }

const incarnationMask = 1<<20 - 1
