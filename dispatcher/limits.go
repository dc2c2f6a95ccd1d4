// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// The limits of the first seed, under its names.
const (
	AgentCallDepthMax         = 5       // calls above a call; the one at depth 5 is refused
	AgentCallTimeoutMSDefault = 30_000  // milliseconds
	AgentCallTimeoutMSMax     = 300_000 // milliseconds; more is clamped, and reported
	AgentConcurrentCallsMax   = 10      // outstanding calls of one calling actor
	MaxPendingPerActor        = 128     // messages in a mailbox
)

// Limits are the bounds of one cell. They change only by input. The range in
// each comment is what the simulator draws from.
type Limits struct {
	AgentCallDepthMax       int            // agent_call_depth_max; 1 … 5
	AgentCallTimeoutDefault actor.Duration // agent_call_timeout_ms_default; 1 s … 30 s
	AgentCallTimeoutMax     actor.Duration // agent_call_timeout_ms_max; 10 s … 300 s
	AgentConcurrentCallsMax int            // agent_concurrent_calls_max; 1 … 10
	MaxPendingPerActor      int            // max_pending_per_actor; 1 … 128
	MailboxBytesMax         int            // mailbox_bytes_max; 1 KiB … 1 MiB; an empty mailbox takes any legal message
	MailboxAgeMax           actor.Duration // mailbox_age_ms_max; 5 s … 30 s; no arrivals while the oldest has waited longer
	MessageBytesMax         int            // message_bytes_max
	CallsPerTreeMax         uint32         // calls_per_tree_max; 5 … 100
	RunTimeoutDefault       actor.Duration // run_timeout_ms
	RunTimeoutMax           actor.Duration // run_timeout_ms_max
	ToolTimeoutDefault      actor.Duration // tool_timeout_ms
	ModelTimeoutDefault     actor.Duration // model_timeout_ms: one answer, with all its tries
	InvokeTimeoutDefault    actor.Duration // invoke_timeout_ms: one answer of an external agent
	WaitTimeoutMax          actor.Duration // approval_timeout_ms: the longest a turn may wait for a person
	StepsPerTurnMax         int            // steps_per_turn_max: actions that ask
	AsksPerActionMax        int            // asks_per_action_max
	RememberDone            actor.Duration // how long past its deadline an outcome is kept for repeats
	RememberKey             actor.Duration // how long an idempotency key is kept
	PassivateAfter          actor.Duration // an idle actor leaves memory
	ResendAfter             actor.Duration // an unanswered call to another node is sent again, doubling
	SnapshotBytes           int            // entries since the last snapshot outweigh it from here on
	ActorsPerCellMax        int            // actors in memory; more are refused Busy, scope node
	StrikesMax              int            // steps that may panic over one message before it is poisoned
}

// DefaultLimits are the seeds' figures.
func DefaultLimits() Limits {
	return Limits{
		AgentCallDepthMax:       AgentCallDepthMax,
		AgentCallTimeoutDefault: AgentCallTimeoutMSDefault * time.Millisecond,
		AgentCallTimeoutMax:     AgentCallTimeoutMSMax * time.Millisecond,
		AgentConcurrentCallsMax: AgentConcurrentCallsMax,
		MaxPendingPerActor:      MaxPendingPerActor,
		MailboxBytesMax:         1 << 20,
		MailboxAgeMax:           30 * time.Second,
		MessageBytesMax:         actor.MessageBytesMax,
		CallsPerTreeMax:         100,
		RunTimeoutDefault:       600 * time.Second,
		RunTimeoutMax:           3600 * time.Second,
		ToolTimeoutDefault:      60 * time.Second,
		ModelTimeoutDefault:     120 * time.Second,
		InvokeTimeoutDefault:    120 * time.Second,
		WaitTimeoutMax:          600 * time.Second,
		StepsPerTurnMax:         100, // 50 answers of a model, each with a step for its tools
		AsksPerActionMax:        64,
		RememberDone:            60 * time.Second,
		RememberKey:             24 * time.Hour,
		PassivateAfter:          5 * time.Minute,
		ResendAfter:             time.Second,
		SnapshotBytes:           64 << 10,
		ActorsPerCellMax:        1 << 20,
		StrikesMax:              3,
	}
}

// Check says which limit cannot be.
func (l Limits) Check() error {
	for _, f := range [...]struct {
		name   string
		v, max int64
	}{
		{"agent_call_depth_max", int64(l.AgentCallDepthMax), actor.ChainMax - 1},
		{"agent_call_timeout_ms_default", int64(l.AgentCallTimeoutDefault), int64(l.AgentCallTimeoutMax)},
		{"agent_concurrent_calls_max", int64(l.AgentConcurrentCallsMax), 1 << 16},
		{"max_pending_per_actor", int64(l.MaxPendingPerActor), 1 << 20},
		{"mailbox_bytes_max", int64(l.MailboxBytesMax), 1 << 30},
		{"mailbox_age_ms_max", int64(l.MailboxAgeMax), int64(time.Hour)},
		{"message_bytes_max", int64(l.MessageBytesMax), actor.MessageBytesMax},
		{"calls_per_tree_max", int64(l.CallsPerTreeMax), 1 << 20},
		{"run_timeout_ms", int64(l.RunTimeoutDefault), int64(l.RunTimeoutMax)},
		{"run_timeout_ms_max", int64(l.RunTimeoutMax), int64(24 * time.Hour)},
		{"tool_timeout_ms", int64(l.ToolTimeoutDefault), int64(time.Hour)},
		{"model_timeout_ms", int64(l.ModelTimeoutDefault), int64(time.Hour)},
		{"invoke_timeout_ms", int64(l.InvokeTimeoutDefault), int64(time.Hour)},
		{"approval_timeout_ms", int64(l.WaitTimeoutMax), int64(24 * time.Hour)},
		{"steps_per_turn_max", int64(l.StepsPerTurnMax), 1 << 16},
		{"asks_per_action_max", int64(l.AsksPerActionMax), 1 << 12},
		{"remember_done_ms", int64(l.RememberDone), int64(24 * time.Hour)},
		{"remember_key_ms", int64(l.RememberKey), int64(30 * 24 * time.Hour)},
		{"passivate_after_ms", int64(l.PassivateAfter), int64(24 * time.Hour)},
		{"resend_after_ms", int64(l.ResendAfter), int64(time.Minute)},
		{"snapshot_bytes", int64(l.SnapshotBytes), 1 << 30},
		{"actors_per_cell_max", int64(l.ActorsPerCellMax), 1 << 30},
		{"strikes_max", int64(l.StrikesMax), 100},
	} {
		if f.v < 1 || f.v > f.max {
			return fmt.Errorf("%s is %d: want 1 to %d", f.name, f.v, f.max)
		}
	}
	return nil
}
