// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
)

// documentedLimit is a row of docs/limits.md: the figures that an operator reads.
type documentedLimit struct {
	key      string
	standard int64 // value without configuration
	most     int64
	value    func(*dispatcher.Limits) any            // pointer to the field
	bound    func(*dispatcher.Limits) actor.Duration // limit that is the largest value once it is configured; nil: none
}

// documentedLimits has the rows in the order of the page.
var documentedLimits = [...]documentedLimit{
	{"agent_call_depth_max", 5, 63, func(l *dispatcher.Limits) any { return &l.AgentCallDepthMax }, nil},
	{"agent_call_timeout_ms_max", 300000, 86400000, func(l *dispatcher.Limits) any { return &l.AgentCallTimeoutMax }, nil},
	{"agent_call_timeout_ms_default", 30000, 300000, func(l *dispatcher.Limits) any { return &l.AgentCallTimeoutDefault }, func(l *dispatcher.Limits) actor.Duration { return l.AgentCallTimeoutMax }},
	{"agent_concurrent_calls_max", 10, 65536, func(l *dispatcher.Limits) any { return &l.AgentConcurrentCallsMax }, nil},
	{"max_pending_per_actor", 128, 1048576, func(l *dispatcher.Limits) any { return &l.MaxPendingPerActor }, nil},
	{"max_active_per_agent", 256, 1048576, func(l *dispatcher.Limits) any { return &l.MaxActivePerAgent }, nil},
	{"mailbox_bytes_max", 1048576, 1073741824, func(l *dispatcher.Limits) any { return &l.MailboxBytesMax }, nil},
	{"mailbox_age_ms_max", 30000, 3600000, func(l *dispatcher.Limits) any { return &l.MailboxAgeMax }, nil},
	{"message_bytes_max", 1048576, 1048576, func(l *dispatcher.Limits) any { return &l.MessageBytesMax }, nil},
	{"calls_per_tree_max", 100, 1048576, func(l *dispatcher.Limits) any { return &l.CallsPerTreeMax }, nil},
	{"run_timeout_ms_max", 3600000, 86400000, func(l *dispatcher.Limits) any { return &l.RunTimeoutMax }, nil},
	{"run_timeout_ms", 600000, 3600000, func(l *dispatcher.Limits) any { return &l.RunTimeoutDefault }, func(l *dispatcher.Limits) actor.Duration { return l.RunTimeoutMax }},
	{"tool_timeout_ms", 60000, 3600000, func(l *dispatcher.Limits) any { return &l.ToolTimeoutDefault }, nil},
	{"model_timeout_ms", 120000, 3600000, func(l *dispatcher.Limits) any { return &l.ModelTimeoutDefault }, nil},
	{"invoke_timeout_ms", 120000, 3600000, func(l *dispatcher.Limits) any { return &l.InvokeTimeoutDefault }, nil},
	{"wait_timeout_ms_max", 7776000000, 7776000000, func(l *dispatcher.Limits) any { return &l.WaitTimeoutMax }, nil},
	{"approval_timeout_ms", 600000, 7776000000, func(l *dispatcher.Limits) any { return &l.ApprovalTimeout }, func(l *dispatcher.Limits) actor.Duration { return l.WaitTimeoutMax }},
	{"steps_per_turn_max", 100, 65536, func(l *dispatcher.Limits) any { return &l.StepsPerTurnMax }, nil},
	{"asks_per_action_max", 64, 4096, func(l *dispatcher.Limits) any { return &l.AsksPerActionMax }, nil},
	{"remember_done_ms", 60000, 86400000, func(l *dispatcher.Limits) any { return &l.RememberDone }, nil},
	{"remember_key_ms", 86400000, 2592000000, func(l *dispatcher.Limits) any { return &l.RememberKey }, nil},
	{"remember_bytes_max", 16777216, 1099511627776, func(l *dispatcher.Limits) any { return &l.RememberBytes }, nil},
	{"passivate_after_ms", 300000, 86400000, func(l *dispatcher.Limits) any { return &l.PassivateAfter }, nil},
	{"resend_after_ms", 1000, 60000, func(l *dispatcher.Limits) any { return &l.ResendAfter }, nil},
	{"snapshot_bytes", 65536, 1073741824, func(l *dispatcher.Limits) any { return &l.SnapshotBytes }, nil},
	{"actors_per_cell_max", 1048576, 1073741824, func(l *dispatcher.Limits) any { return &l.ActorsPerCellMax }, nil},
	{"actor_memory_bytes_max", 1073741824, 1099511627776, func(l *dispatcher.Limits) any { return &l.ActorBytesMax }, nil},
	{"strikes_max", 3, 100, func(l *dispatcher.Limits) any { return &l.StrikesMax }, nil},
	{"actor_state_items_max", 8192, 65536, func(l *dispatcher.Limits) any { return &l.StateItemsMax }, nil},
	{"actor_state_bytes_max", 33554432, 33554432, func(l *dispatcher.Limits) any { return &l.StateBytesMax }, nil},
	{"stream_events_max", 5000, 1048576, func(l *dispatcher.Limits) any { return &l.StreamEventsMax }, nil},
	{"stream_bytes_max", 4194304, 1073741824, func(l *dispatcher.Limits) any { return &l.StreamBytesMax }, nil},
	{"run_events_max", 100000, 16777216, func(l *dispatcher.Limits) any { return &l.RunEventsMax }, nil},
	{"state_bytes_max", 1048576, 4194304, func(l *dispatcher.Limits) any { return &l.TurnBytesMax }, nil},
}

// in returns a limit in the unit of its key.
func (d *documentedLimit) in(l *dispatcher.Limits) int64 {
	switch at := d.value(l).(type) {
	case *int:
		return int64(*at)
	case *uint32:
		return int64(*at)
	case *actor.Duration:
		return at.Milliseconds()
	}
	panic("unexpected type of limit " + d.key)
}

// mostIn returns the largest value of a limit next to the others.
func (d *documentedLimit) mostIn(l *dispatcher.Limits) int64 {
	if d.bound == nil {
		return d.most
	}
	return d.bound(l).Milliseconds()
}

// configureLimits returns the limits of the plan, set key by key as an operator does. It
// checks the defaults and the accepted values against the documentation.
func (w *Simulation) configureLimits() dispatcher.Limits {
	w.Stats.Audit.LimitsAsDocumented++
	l := dispatcher.DefaultLimits()
	for i := range documentedLimits {
		d := &documentedLimits[i]
		w.checkLimit(d, &l)
		for _, v := range [...]int64{-1, 0, 1, d.most, d.most + 1} {
			one := dispatcher.DefaultLimits()
			one.AgentCallTimeoutDefault, one.RunTimeoutDefault, one.ApprovalTimeout = time.Millisecond, time.Millisecond, time.Millisecond // at most the limit under test
			err := one.Set(d.key, v)
			if err == nil {
				err = one.Check()
			}
			if valid := v >= 1 && v <= d.mostIn(&one); (err == nil) != valid || err != nil && !strings.HasPrefix(err.Error(), d.key) {
				w.fail(LimitsAsDocumented, fmt.Sprintf("%s = %d: valid %v, got error %v", d.key, v, valid, err))
			}
		}
	}
	for i := range documentedLimits {
		d := &documentedLimits[i]
		if err := l.Set(d.key, d.in(&w.plan.Limits)); err != nil {
			w.fail(LimitsAsDocumented, fmt.Sprintf("%s = %d: %v", d.key, d.in(&w.plan.Limits), err))
		}
	}
	if l != w.plan.Limits || l.Check() != nil {
		w.fail(LimitsAsDocumented, fmt.Sprintf("configured limits are %+v, want %+v: %v", l, w.plan.Limits, l.Check()))
	}
	if err := l.Set("agent_call_depth", 1); err == nil || l != w.plan.Limits {
		w.fail(LimitsAsDocumented, "an unknown key is accepted")
	}
	w.checkSettings(&l)
	return l
}

// checkLimit checks one default.
func (w *Simulation) checkLimit(d *documentedLimit, l *dispatcher.Limits) {
	if got, most := d.in(l), d.mostIn(l); got != d.standard || most != d.most {
		w.fail(LimitsAsDocumented, fmt.Sprintf("%s is %d by default, at most %d; want %d, at most %d", d.key, got, most, d.standard, d.most))
	}
}

// checkSettings checks the list of limits that a node prints.
func (w *Simulation) checkSettings(l *dispatcher.Limits) {
	var want []dispatcher.Setting
	for i := range documentedLimits {
		d := &documentedLimits[i]
		want = append(want, dispatcher.Setting{Key: d.key, Value: d.in(l), Max: d.mostIn(l)})
	}
	if got := l.Settings(); !slices.Equal(got, want) {
		w.fail(LimitsAsDocumented, fmt.Sprintf("limits are listed as %v, want %v", got, want))
	}
}
