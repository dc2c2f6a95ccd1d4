// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/troupe-run/troupe/dispatcher"

// agentCallTable is the table agent_call of a configuration file, whose switches introduce calls without waiting step
// by step:
//
//	[agent_call]
//	correlation = true  # the agent that is asked gets the correlationId
//	return_to = true    # and returnTo and timeout
//	responses = true    # outcomes are delivered to the asker; false: it polls for them
//	timeouts = true     # also when the time is over
//	channel = false     # clients of the channel see the answers too
type agentCallTable struct {
	Correlation *bool `toml:"correlation"`
	ReturnTo    *bool `toml:"return_to"`
	Responses   *bool `toml:"responses"`
	Timeouts    *bool `toml:"timeouts"`
	Channel     bool  `toml:"channel"`
}

// agentCallFields are the fields of the table agent_call.
var agentCallFields = []string{"correlation", "return_to", "responses", "timeouts", "channel"}

// routing returns the parts that are off.
func (t *agentCallTable) routing() dispatcher.Routing {
	off := func(b *bool) bool { return b != nil && !*b }
	return dispatcher.Routing{NoCorrelation: off(t.Correlation), NoReturnTo: off(t.ReturnTo), NoResponses: off(t.Responses), NoTimeouts: off(t.Timeouts)}
}
