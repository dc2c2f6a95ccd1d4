// SPDX-License-Identifier: Apache-2.0

package dispatcher

import "github.com/troupe-run/troupe/actor"

// Routing says which parts of detached calls are switched off. Operators can so introduce them one after the other.
// The zero Routing has all of them on. A call keeps the Routing with which it was made, also over restarts.
type Routing struct {
	NoCorrelation bool // the callee is not told the correlation
	NoReturnTo    bool // nor the return address and the time
	NoResponses   bool // outcomes are not delivered, and can be polled
	NoTimeouts    bool // the asker waits as long as the callee may work
}

// Of returns the parts that are off for the calls of an agent, which may switch each of them otherwise.
func (r Routing) Of(agent actor.Routing) Routing {
	return Routing{
		NoCorrelation: !agent.Correlation.Or(!r.NoCorrelation),
		NoReturnTo:    !agent.ReturnTo.Or(!r.NoReturnTo),
		NoResponses:   !agent.Responses.Or(!r.NoResponses),
		NoTimeouts:    !agent.Timeouts.Or(!r.NoTimeouts),
	}
}
