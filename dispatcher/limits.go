// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/nearest"
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
	MaxActivePerAgent       int            `sim:"16..256"`     // max_active_per_agent; running turns of one agent and user on a node, apart from turns that wait for a person; an agent may set its own
	MailboxBytesMax         int            `sim:"1KiB..1MiB"`  // mailbox_bytes_max; an empty mailbox admits any valid message
	MailboxAgeMax           actor.Duration `sim:"5s..30s"`     // mailbox_age_ms_max; a mailbox whose oldest message exceeds this age refuses new messages
	MessageBytesMax         int            `sim:"64KiB..1MiB"` // message_bytes_max
	CallsPerTreeMax         uint32         `sim:"5..100"`      // calls_per_tree_max; calls of a tree at all levels. Each call receives a share, see Share, and returns what it did not use with its answer
	RunTimeoutDefault       actor.Duration `sim:"20s..80s"`    // run_timeout_ms
	RunTimeoutMax           actor.Duration `sim:"100s..3600s"` // run_timeout_ms_max
	ToolTimeoutDefault      actor.Duration `sim:"5s..60s"`     // tool_timeout_ms
	ModelTimeoutDefault     actor.Duration `sim:"10s..120s"`   // model_timeout_ms; for one answer including all attempts
	InvokeTimeoutDefault    actor.Duration `sim:"10s..120s"`   // invoke_timeout_ms; for one answer of an external agent
	ApprovalTimeout         actor.Duration `sim:"3s..30s"`     // approval_timeout_ms; time that a turn waits for a person if neither the turn nor the tool has its own
	WaitTimeoutMax          actor.Duration `sim:"5s..35s"`     // wait_timeout_ms_max; maximum time that a turn waits for a person
	StepsPerTurnMax         int            `sim:"8..100"`      // steps_per_turn_max; number of actions with asks
	AsksPerActionMax        int            `sim:"2..64"`       // asks_per_action_max
	RememberDone            actor.Duration `sim:"60s..120s"`   // remember_done_ms; retention of an outcome for duplicates, after the deadline of its call
	RememberKey             actor.Duration `sim:"1h..24h"`     // remember_key_ms; retention of an idempotency key
	RememberBytes           int            `sim:"1..64KiB"`    // remember_bytes_max; bytes of outcomes in memory per cell; the answer to a duplicate of a call with an evicted outcome is read from the log
	PassivateAfter          actor.Duration `sim:"1s..30s"`     // passivate_after_ms; idle time before an actor leaves memory
	ResendAfter             actor.Duration `sim:"500ms..2s"`   // resend_after_ms; first resend interval of an unanswered call to another node; it doubles each time
	SnapshotBytes           int            `sim:"2KiB..16KiB"` // snapshot_bytes; minimum bytes of entries since the last snapshot that trigger the next; if the last snapshot is larger, its size counts instead
	ActorsPerCellMax        int            `sim:"2..1048576"`  // actors_per_cell_max; actors in memory; a call to a further actor is refused with Busy, scope node
	ActorBytesMax           int            `sim:"16KiB..1MiB"` // actor_memory_bytes_max; bytes of journaled actors in memory per cell; beyond it, idle ones leave memory, and a user whose busy ones exceed half of it gets Busy
	StrikesMax              int            `sim:"1..3"`        // strikes_max; step panics caused by one message before it is refused as poisoned
	StateItemsMax           int            `sim:"1024..8192"`  // actor_state_items_max; items in the state of an actor
	StateBytesMax           int            `sim:"1MiB..32MiB"` // actor_state_bytes_max; names and values in the state of an actor
	StreamEventsMax         int            `sim:"4..5000"`     // stream_events_max; deltas and states of one answer of a model or external agent, including retried attempts
	StreamBytesMax          int            `sim:"1KiB..4MiB"`  // stream_bytes_max; bytes of these deltas and states
	RunEventsMax            int            `sim:"30..100000"`  // run_events_max; events of a run
	TurnBytesMax            int            `sim:"8KiB..64KiB"` // state_bytes_max; bytes of the answers to the asks of a turn
}

// DefaultLimits returns the default limits.
func DefaultLimits() Limits {
	return Limits{
		AgentCallDepthMax:       AgentCallDepthMax,
		AgentCallTimeoutDefault: AgentCallTimeoutMSDefault * time.Millisecond,
		AgentCallTimeoutMax:     AgentCallTimeoutMSMax * time.Millisecond,
		AgentConcurrentCallsMax: AgentConcurrentCallsMax,
		MaxPendingPerActor:      MaxPendingPerActor,
		MaxActivePerAgent:       256,
		MailboxBytesMax:         1 << 20,
		MailboxAgeMax:           30 * time.Second,
		MessageBytesMax:         actor.MessageBytesMax,
		CallsPerTreeMax:         100,
		RunTimeoutDefault:       600 * time.Second,
		RunTimeoutMax:           3600 * time.Second,
		ToolTimeoutDefault:      60 * time.Second,
		ModelTimeoutDefault:     120 * time.Second,
		InvokeTimeoutDefault:    120 * time.Second,
		ApprovalTimeout:         600 * time.Second,
		WaitTimeoutMax:          actor.WaitTimeoutMax,
		StepsPerTurnMax:         100, // 50 model answers, each followed by a step for its tools
		AsksPerActionMax:        64,
		RememberDone:            60 * time.Second,
		RememberKey:             24 * time.Hour,
		RememberBytes:           16 << 20,
		PassivateAfter:          5 * time.Minute,
		ResendAfter:             time.Second,
		SnapshotBytes:           64 << 10,
		ActorsPerCellMax:        1 << 20,
		ActorBytesMax:           1 << 30,
		StrikesMax:              3,
		StateItemsMax:           actor.ActorStateItemsMax,
		StateBytesMax:           actor.ActorStateBytesMax,
		StreamEventsMax:         5000,
		StreamBytesMax:          4 << 20,
		RunEventsMax:            100_000,
		TurnBytesMax:            1 << 20,
	}
}

// Setting is one limit with its configuration key.
type Setting struct {
	Key   string
	Value int64 // a count, bytes or, if the key contains _ms, milliseconds
	Max   int64 // largest accepted value; the smallest is 1
}

// limit is a row of the table of limits.
type limit struct {
	key string
	at  any   // pointer to the field: *int, *uint32 or *actor.Duration
	max int64 // largest accepted value, in the unit of the field
}

// rows returns all limits. A limit precedes those that it bounds.
func (l *Limits) rows() []limit {
	return []limit{
		{"agent_call_depth_max", &l.AgentCallDepthMax, actor.ChainMax - 1},
		{"agent_call_timeout_ms_max", &l.AgentCallTimeoutMax, int64(24 * time.Hour)},
		{"agent_call_timeout_ms_default", &l.AgentCallTimeoutDefault, int64(l.AgentCallTimeoutMax)},
		{"agent_concurrent_calls_max", &l.AgentConcurrentCallsMax, 1 << 16},
		{"max_pending_per_actor", &l.MaxPendingPerActor, 1 << 20},
		{"max_active_per_agent", &l.MaxActivePerAgent, 1 << 20},
		{"mailbox_bytes_max", &l.MailboxBytesMax, 1 << 30},
		{"mailbox_age_ms_max", &l.MailboxAgeMax, int64(time.Hour)},
		{"message_bytes_max", &l.MessageBytesMax, actor.MessageBytesMax},
		{"calls_per_tree_max", &l.CallsPerTreeMax, 1 << 20},
		{"run_timeout_ms_max", &l.RunTimeoutMax, int64(24 * time.Hour)},
		{"run_timeout_ms", &l.RunTimeoutDefault, int64(l.RunTimeoutMax)},
		{"tool_timeout_ms", &l.ToolTimeoutDefault, int64(time.Hour)},
		{"model_timeout_ms", &l.ModelTimeoutDefault, int64(time.Hour)},
		{"invoke_timeout_ms", &l.InvokeTimeoutDefault, int64(time.Hour)},
		{"wait_timeout_ms_max", &l.WaitTimeoutMax, int64(actor.WaitTimeoutMax)},
		{"approval_timeout_ms", &l.ApprovalTimeout, int64(l.WaitTimeoutMax)},
		{"steps_per_turn_max", &l.StepsPerTurnMax, 1 << 16},
		{"asks_per_action_max", &l.AsksPerActionMax, 1 << 12},
		{"remember_done_ms", &l.RememberDone, int64(24 * time.Hour)},
		{"remember_key_ms", &l.RememberKey, int64(30 * 24 * time.Hour)},
		{"remember_bytes_max", &l.RememberBytes, 1 << 40},
		{"passivate_after_ms", &l.PassivateAfter, int64(24 * time.Hour)},
		{"resend_after_ms", &l.ResendAfter, int64(time.Minute)},
		{"snapshot_bytes", &l.SnapshotBytes, 1 << 30},
		{"actors_per_cell_max", &l.ActorsPerCellMax, 1 << 30},
		{"actor_memory_bytes_max", &l.ActorBytesMax, 1 << 40},
		{"strikes_max", &l.StrikesMax, 100},
		{"actor_state_items_max", &l.StateItemsMax, 1 << 16},
		{"actor_state_bytes_max", &l.StateBytesMax, actor.ActorStateBytesMax},
		{"stream_events_max", &l.StreamEventsMax, 1 << 20},
		{"stream_bytes_max", &l.StreamBytesMax, 1 << 30},
		{"run_events_max", &l.RunEventsMax, 1 << 24},
		{"state_bytes_max", &l.TurnBytesMax, 4 << 20},
	}
}

func (r *limit) value() int64 {
	switch at := r.at.(type) {
	case *int:
		return int64(*at)
	case *uint32:
		return int64(*at)
	case *actor.Duration:
		return int64(*at)
	}
	panic("unexpected type of limit " + r.key)
}

// unit returns the number of units of the field in one unit of the configuration.
func (r *limit) unit() int64 {
	if _, ok := r.at.(*actor.Duration); ok {
		return int64(time.Millisecond)
	}
	return 1
}

// Settings returns all limits, in a fixed order.
func (l Limits) Settings() []Setting {
	rows := l.rows()
	all := make([]Setting, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		all = append(all, Setting{r.key, r.value() / r.unit(), r.max / r.unit()})
	}
	return all
}

// Set sets the limit with the given configuration key. It returns an error if there is no
// such limit or the value is out of range, apart from limits that bound each other: see
// Check.
func (l *Limits) Set(key string, value int64) error {
	rows := l.rows()
	i := slices.IndexFunc(rows, func(r limit) bool { return r.key == key })
	if i < 0 {
		keys := make([]string, 0, len(rows))
		for i := range rows {
			keys = append(keys, rows[i].key)
		}
		slices.Sort(keys)
		meant := nearest.Of(strings.ToLower(key), keys)
		if meant != "" {
			meant = "; did you mean " + meant
		}
		return fmt.Errorf("%s is unknown%s; want one of %s", key, meant, strings.Join(keys, ", "))
	}
	if value < 0 || value > settingMax {
		return fmt.Errorf("%s: %d is out of range", key, value)
	}
	switch at := rows[i].at.(type) {
	case *int:
		*at = int(value)
	case *uint32:
		*at = uint32(min(value, 1<<32-1))
	case *actor.Duration:
		*at = actor.Duration(value) * time.Millisecond
	}
	return nil
}

// settingMax is larger than the maximum of any limit. Its nanoseconds fit into an int64.
const settingMax = 1 << 42

// Check returns an error naming the first limit that is out of range.
func (l Limits) Check() error {
	rows := l.rows()
	for i := range rows {
		if r := &rows[i]; r.value() < 1 || r.value() > r.max {
			value := any(r.value() / r.unit())
			if r.value()%r.unit() != 0 {
				value = actor.Duration(r.value())
			}
			return fmt.Errorf("%s is %v: want 1 to %d", r.key, value, r.max/r.unit())
		}
	}
	return nil
}
