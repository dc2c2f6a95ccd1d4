// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/sim"
)

// Expect is an expectation in addition to the rules of the runtime. Exactly one of
// Refusals, SucceededPercent, DepthAtMost and FanOutAtMost MUST be set.
type Expect struct {
	Agent string `toml:"agent"` // restricts the expectation to calls to this agent; empty: all calls
	// Refusals is the name of a reason, such as Cycle, or the word any. AtMost is
	// the maximum number of such refusals in one simulation.
	Refusals string `toml:"refusals"`
	AtMost   int    `toml:"at_most"`
	// SucceededPercent is the minimum success rate of client requests over all
	// simulations.
	SucceededPercent *int `toml:"succeeded_percent"`
	DepthAtMost      *int `toml:"depth_at_most"`
	FanOutAtMost     *int `toml:"fan_out_at_most"`
}

// anyReason matches every reason.
const anyReason = "any"

func (x *Expect) check() error {
	kinds := 0
	for _, set := range []bool{x.Refusals != "", x.SucceededPercent != nil, x.DepthAtMost != nil, x.FanOutAtMost != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return fmt.Errorf("want one of refusals, succeeded_percent, depth_at_most, fan_out_at_most")
	}
	if x.AtMost < 0 || x.AtMost > 0 && x.Refusals == "" {
		return fmt.Errorf("at_most is %d, want 0 or more, together with refusals", x.AtMost)
	}
	if x.Agent != "" && (x.DepthAtMost != nil || x.FanOutAtMost != nil) {
		return fmt.Errorf("agent is allowed only with refusals and succeeded_percent; depth_at_most and fan_out_at_most apply to the whole team")
	}
	if p := x.SucceededPercent; p != nil && (*p < 0 || *p > 100) {
		return fmt.Errorf("succeeded_percent is %d, want 0 to 100", *p)
	}
	if x.Refusals == "" || x.Refusals == anyReason {
		return nil
	}
	var names []string
	for _, r := range actor.Reasons() {
		if x.names(r) {
			return nil
		}
		names = append(names, r.String())
	}
	return fmt.Errorf("refusals is %q, want any, a code such as call_cycle, or one of %s", x.Refusals, strings.Join(names, ", "))
}

// names reports whether the expectation names a reason, by its name or its code.
func (x *Expect) names(r actor.Reason) bool {
	return x.Refusals == r.String() || x.Refusals == r.Info().Type
}

// String returns a description of the expectation.
func (x *Expect) String() string {
	scope := ""
	if x.Agent != "" {
		scope = " of calls to " + x.Agent
	}
	switch {
	case x.SucceededPercent != nil:
		return fmt.Sprintf("at least %d %% of client requests%s succeed", *x.SucceededPercent, strings.Replace(scope, "of calls to ", "to ", 1))
	case x.DepthAtMost != nil:
		return fmt.Sprintf("call depth of at most %d", *x.DepthAtMost)
	case x.FanOutAtMost != nil:
		return fmt.Sprintf("at most %d concurrent calls", *x.FanOutAtMost)
	}
	kind := x.Refusals
	if kind == anyReason {
		kind = ""
	}
	return strings.Join(strings.Fields(fmt.Sprintf("at most %d %s refusals%s in a simulation", x.AtMost, kind, scope)), " ")
}

// violation describes how one simulation violates the expectation. It returns an empty
// string if the expectation holds.
func (x *Expect) violation(r *sim.Report) string {
	switch {
	case x.DepthAtMost != nil && r.Depth > *x.DepthAtMost:
		return fmt.Sprintf("call at depth %d", r.Depth)
	case x.FanOutAtMost != nil && r.FanOut > *x.FanOutAtMost:
		return fmt.Sprintf("%d concurrent calls", r.FanOut)
	case x.Refusals == "":
		return ""
	}
	times, first := 0, ""
	for _, c := range r.Refusals {
		if (x.Refusals == anyReason || x.names(c.Reason)) && (x.Agent == "" || c.Agent == x.Agent) {
			if times += c.Count; first == "" {
				first = fmt.Sprintf("%s, %s", c.Reason, c.FirstExample)
			}
		}
	}
	if times <= x.AtMost {
		return ""
	}
	return fmt.Sprintf("%d, the first: %s", times, first)
}

// succeeded returns two numbers: the client requests that the expectation covers, and
// the covered requests that succeeded.
func (x *Expect) succeeded(r *sim.Report) (asked, succeeded int) {
	for _, a := range r.Agents {
		if x.Agent == "" || a.Agent == x.Agent {
			asked, succeeded = asked+a.Asked, succeeded+a.Succeeded
		}
	}
	return asked, succeeded
}
