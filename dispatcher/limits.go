// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Default values of limits. The names of these constants are fixed by docs/NAMES.md.
const (
	AgentCallDepthMax         = 5       // maximum depth of a call; a call made by an actor at this depth is refused
	AgentCallTimeoutMSDefault = 30_000  // milliseconds
	AgentCallTimeoutMSMax     = 300_000 // milliseconds; a longer timeout is reduced to this value, and the reduction is reported
	AgentConcurrentCallsMax   = 10      // outstanding calls of one calling actor
	MaxPendingPerActor        = 128     // waiting messages in a mailbox
)

// Limits are the bounds of one cell. They change only through an input of the cell.
// The comment of a field starts with its config key. The tag is the range from which
// the simulator draws its value.
type Limits struct {
	AgentCallDepthMax       int            `sim:"1..5"`        // agent_call_depth_max
	AgentCallTimeoutDefault actor.Duration `sim:"1s..30s"`     // agent_call_timeout_ms_default
	AgentCallTimeoutMax     actor.Duration `sim:"10s..300s"`   // agent_call_timeout_ms_max
	AgentConcurrentCallsMax int            `sim:"1..10"`       // agent_concurrent_calls_max
	MaxPendingPerActor      int            `sim:"1..128"`      // max_pending_per_actor
	MailboxBytesMax         int            `sim:"1KiB..1MiB"`  // mailbox_bytes_max; an empty mailbox admits any valid message
	MailboxAgeMax           actor.Duration `sim:"5s..30s"`     // mailbox_age_ms_max; a mailbox whose oldest message exceeds this age refuses new messages
	MessageBytesMax         int            `sim:"64KiB..1MiB"` // message_bytes_max
	CallsPerTreeMax         uint32         `sim:"5..100"`      // calls_per_tree_max; calls of a tree at all levels. Each call receives a share, see Share, and returns what it did not use with its answer
	RunTimeoutDefault       actor.Duration `sim:"20s..80s"`    // run_timeout_ms
	RunTimeoutMax           actor.Duration `sim:"100s..3600s"` // run_timeout_ms_max
	ToolTimeoutDefault      actor.Duration `sim:"5s..60s"`     // tool_timeout_ms
	ModelTimeoutDefault     actor.Duration `sim:"10s..120s"`   // model_timeout_ms; for one answer including all attempts
	InvokeTimeoutDefault    actor.Duration `sim:"10s..120s"`   // invoke_timeout_ms; for one answer of an external agent
	WaitTimeoutMax          actor.Duration `sim:"5s..35s"`     // approval_timeout_ms; maximum time that a turn waits for a person
	StepsPerTurnMax         int            `sim:"8..100"`      // steps_per_turn_max; number of actions with asks
	AsksPerActionMax        int            `sim:"2..64"`       // asks_per_action_max
	RememberDone            actor.Duration `sim:"60s..120s"`   // remember_done_ms; retention of an outcome for duplicates, after the deadline of its call
	RememberKey             actor.Duration `sim:"1h..24h"`     // remember_key_ms; retention of an idempotency key
	RememberBytes           int            `sim:"1..64KiB"`    // remember_bytes_max; bytes of outcomes in memory per cell; the answer to a duplicate of a call with an evicted outcome is read from the log
	PassivateAfter          actor.Duration `sim:"1s..30s"`     // passivate_after_ms; idle time before an actor leaves memory
	ResendAfter             actor.Duration `sim:"500ms..2s"`   // resend_after_ms; first resend interval of an unanswered call to another node; it doubles each time
	SnapshotBytes           int            `sim:"2KiB..16KiB"` // snapshot_bytes; minimum bytes of entries since the last snapshot that trigger the next; if the last snapshot is larger, its size counts instead
	ActorsPerCellMax        int            `sim:"2..1048576"`  // actors_per_cell_max; actors in memory; a call to a further actor is refused with Busy, scope node
	StrikesMax              int            `sim:"1..3"`        // strikes_max; step panics caused by one message before it is refused as poisoned
}

// DefaultLimits returns the default limits.
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
		StepsPerTurnMax:         100, // 50 model answers, each followed by a step for its tools
		AsksPerActionMax:        64,
		RememberDone:            60 * time.Second,
		RememberKey:             24 * time.Hour,
		RememberBytes:           16 << 20,
		PassivateAfter:          5 * time.Minute,
		ResendAfter:             time.Second,
		SnapshotBytes:           64 << 10,
		ActorsPerCellMax:        1 << 20,
		StrikesMax:              3,
	}
}

// Setting is the value of one limit.
type Setting struct {
	Key   string // configuration key
	Value int64  // a count, bytes, or nanoseconds
	Max   int64  // largest accepted value; the smallest is 1
}

// Settings returns all limits in the order of their declaration.
func (l Limits) Settings() []Setting {
	return []Setting{
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
		{"remember_bytes_max", int64(l.RememberBytes), 1 << 40},
		{"passivate_after_ms", int64(l.PassivateAfter), int64(24 * time.Hour)},
		{"resend_after_ms", int64(l.ResendAfter), int64(time.Minute)},
		{"snapshot_bytes", int64(l.SnapshotBytes), 1 << 30},
		{"actors_per_cell_max", int64(l.ActorsPerCellMax), 1 << 30},
		{"strikes_max", int64(l.StrikesMax), 100},
	}
}

// Check returns an error naming the first limit that is out of range.
func (l Limits) Check() error {
	for _, s := range l.Settings() {
		if s.Value < 1 || s.Value > s.Max {
			return fmt.Errorf("%s is %d: want 1 to %d", s.Key, s.Value, s.Max)
		}
	}
	return nil
}
