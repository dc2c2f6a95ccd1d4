// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

const (
	// metricsRunsMax is the maximum number of runs that one use of metrics_query reads.
	metricsRunsMax = 100_000
	// metricReadsMax is the maximum number of uses of metrics_query at the same time.
	metricReadsMax = 2
	// windowDefault is the window of a query that names none.
	windowDefault = "24h"
)

var metricWindows = map[string]time.Duration{"1h": time.Hour, windowDefault: 24 * time.Hour, "7d": 7 * 24 * time.Hour, "30d": 30 * 24 * time.Hour}

// metricsQuery returns figures about the runs of the namespace of a run, and of no other.
func metricsQuery(ctx context.Context, c *Commands, by *engine.ToolCall, input []byte) ([]byte, error) {
	var in struct {
		Name   string `json:"name"`
		Window string `json:"window"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, actor.Refuse(actor.Invalid, "%s: %v", tools.MetricsQuery, err)
	}
	in.Window = cmp.Or(in.Window, windowDefault)
	done, refusal := c.metricReads.begin(ctx, by, metricReadsMax)
	if refusal != nil {
		return nil, refusal
	}
	defer done()
	to := c.engine.Now()
	from, m, read := to.Add(-metricWindows[in.Window]), runs.NewMetrics(), 0
	err := c.reading(ctx, func(log store.Reader) error {
		return View{Log: log}.eachPage(by.Call.To.Tenant, runs.Filter{Since: from, Calls: true}, func(all []runs.Summary) error {
			if read += len(all); read > metricsRunsMax {
				return actor.Refuse(actor.Invalid, "window: more than %d runs began in the last %s: want a shorter window", metricsRunsMax, in.Window)
			}
			for i := range all {
				m.Add(&all[i])
			}
			return ctx.Err()
		})
	})
	if err != nil {
		return nil, err
	}
	return m.Encode(in.Name, in.Window, from, to, c.currency), nil
}
