// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/internal/command"
)

// metrics holds the metrics of GET /metrics. No label contains an id, so the
// number of series is bounded by the number of cells, kinds, reasons and routes.
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

// routeKey is the user value in which withScope stores the routeObservers of a
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
	queuedDesc      = newDesc("queued_calls", "Calls waiting in the mailboxes of actors.", "cell")
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
	askDurationDesc = newDesc("ask_duration_seconds", "Response times of models, tools and agents.", "kind")
)

// Describe implements prometheus.Collector.
func (f *nodeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{mailboxDesc, actorsDesc, queuedDesc, outstandingDesc, stepsDesc, longestStepDesc, restartsDesc, clientsDesc, streamsDesc, backlogDesc, refusalsDesc, runsEndedDesc, asksOpenDesc, askDurationDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (f *nodeCollector) Collect(out chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	stats, err := lookup(f.server, caller{}, command.StatsQuery{})
	if err != nil {
		out <- prometheus.NewInvalidMetric(mailboxDesc, err)
		return
	}
	for i, c := range stats.Cells {
		cell := strconv.Itoa(i)
		put(mailboxDesc, gauge, float64(c.Mailbox), cell)
		put(actorsDesc, gauge, float64(c.Actors), cell)
		put(queuedDesc, gauge, float64(c.Queued), cell)
		put(outstandingDesc, gauge, float64(c.Outstanding), cell)
		put(stepsDesc, counter, float64(c.Steps), cell)
		put(longestStepDesc, gauge, c.StepLongest.Seconds(), cell)
		put(restartsDesc, counter, float64(cellRestarts(c)), cell)
	}
	put(clientsDesc, gauge, float64(stats.Clients))
	put(streamsDesc, gauge, float64(f.server.streams.count()))
	put(backlogDesc, gauge, float64(stats.Backlog))
	for _, r := range stats.Refusals {
		put(refusalsDesc, counter, float64(r.Count), r.Reason.Info().Type, r.Scope.String())
	}
	for _, r := range stats.Runs {
		put(runsEndedDesc, counter, float64(r.Count), r.Status.String())
	}
	for _, a := range stats.Asks {
		put(asksOpenDesc, gauge, float64(a.UnderWay), a.Kind.String())
		out <- prometheus.MustNewConstSummary(askDurationDesc, a.Answered, a.Took.Seconds(), nil, a.Kind.String())
	}
}

// cellRestarts returns the number of restarts of a cell. The low bits of its
// epoch count its incarnations, starting from 1.
func cellRestarts(c command.CellStats) uint64 { return max(c.Incarnation&incarnationMask, 1) - 1 }

const incarnationMask = 1<<20 - 1
