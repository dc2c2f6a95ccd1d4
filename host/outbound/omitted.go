// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"slices"
	"strings"
	"sync"

	"github.com/troupe-run/troupe/upstream"
)

// memberRefusals are the optional members that a model refused, for the time of this process. Its number
// is bounded by that of the optional members.
type memberRefusals struct {
	mu    sync.Mutex
	names []string
}

// apply returns the endpoint whose requests lack the members.
func (r *memberRefusals) apply(endpoint upstream.Model) upstream.Model {
	r.mu.Lock()
	defer r.mu.Unlock()
	endpoint.Omit = slices.Concat(endpoint.Omit, r.names)
	return endpoint
}

// add adds members and returns those that are new.
func (r *memberRefusals) add(names []string) (added []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		if !slices.Contains(r.names, name) {
			r.names = append(r.names, name)
			added = append(added, name)
		}
	}
	return added
}

// remember leaves out of later requests the members without which the model answered.
func (o *Outbound) remember(m *model, outcome *upstream.Outcome) {
	if names := m.refusals.add(outcome.Omitted); len(names) > 0 {
		o.log.Warn("a model refuses optional members of requests, which are left out from now on; add them to its omit",
			"model", m.name, "members", strings.Join(names, ", "))
	}
}
