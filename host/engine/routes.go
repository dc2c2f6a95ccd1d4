// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/internal/command"
)

// routes counts the decisions of the orchestrators of one cell. Models choose the names of intents, so their number is
// bounded: further ones, and those that are no names, count as StatsOther.
type routes struct {
	mu    sync.Mutex
	count map[routeKey]uint64
}

type routeKey struct {
	agent, intent string
	course        contract.Course
}

// record counts a decision.
func (r *routes) record(agent string, of *contract.Route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == nil {
		r.count = map[routeKey]uint64{}
	}
	key := routeKey{agent, cmp.Or(of.Intent, command.StatsOther), of.Course}
	if _, known := r.count[key]; !known && len(r.count) >= command.StatsNamesMax {
		key = routeKey{command.StatsOther, command.StatsOther, of.Course}
	}
	r.count[key]++
}

// routeStats returns the decisions of all cells.
func (e *Engine) routeStats() (all []command.RouteStats) {
	sums := map[routeKey]uint64{}
	for _, c := range e.cells {
		r := &c.tally.routes
		r.mu.Lock()
		for key, n := range r.count {
			sums[key] += n
		}
		r.mu.Unlock()
	}
	for key, n := range sums {
		all = append(all, command.RouteStats{Agent: key.agent, Intent: key.intent, Course: string(key.course), Count: n})
	}
	slices.SortFunc(all, func(a, b command.RouteStats) int {
		return cmp.Or(strings.Compare(a.Agent, b.Agent), strings.Compare(a.Intent, b.Intent), strings.Compare(a.Course, b.Course))
	})
	return all
}
