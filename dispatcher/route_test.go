// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

func ids(names ...string) []actor.ID {
	var all []actor.ID
	for _, n := range names {
		all = append(all, actor.NewID(n, "s"))
	}
	return all
}

// TestRouteCheckOrder adds one violation at a time, from the last check to the first.
// The refusal MUST be that of the earliest violated check.
func TestRouteCheckOrder(t *testing.T) {
	l := DefaultLimits()
	def := &actor.Definition{Name: "b"}
	caller := Caller{Self: actor.NewID("a", "s"), Left: time.Minute, Budget: 9}
	to := actor.NewID("b", "s")
	want := func(reason actor.Reason) {
		t.Helper()
		_, r := Route(l, caller, to, def, 0)
		switch {
		case r == nil && reason != 0:
			t.Errorf("permitted, want refusal %s", reason)
		case r != nil && r.Reason != reason:
			t.Errorf("got refusal %s, want %s: %v", r.Reason, reason, r)
		}
	}
	want(0)
	caller.Budget = 0
	want(actor.Budget)
	caller.Outstanding = AgentConcurrentCallsMax
	want(actor.Busy)
	caller.Left = LeftMin - 1
	want(actor.Deadline)
	caller.Chain = ids("b")
	want(actor.Cycle)
	caller.Chain = ids("b", "c", "d", "e", "f")
	want(actor.Depth)
	def = nil
	want(actor.NotFound)
}

func TestDepthLimit(t *testing.T) {
	l := DefaultLimits()
	for depth := range 8 {
		c := Caller{Self: actor.NewID("self", ""), Left: time.Minute, Budget: 1}
		for i := range depth {
			c.Chain = append(c.Chain, actor.NewID(fmt.Sprint("a", i), ""))
		}
		_, r := Route(l, c, actor.NewID("z", ""), &actor.Definition{}, 0)
		if refused := r != nil; refused != (depth >= AgentCallDepthMax) {
			t.Errorf("caller at depth %d: got %v", depth, r)
		}
	}
}

func TestCycleComparesAgentsOrActors(t *testing.T) {
	l := DefaultLimits()
	c := Caller{Self: actor.NewID("a", "2"), Chain: []actor.ID{actor.NewID("p", "1")}, Left: time.Minute, Budget: 1}
	for _, test := range []struct {
		to        actor.ID
		recursion actor.Recursion
		cycle     bool
	}{
		{actor.NewID("b", "1"), actor.ByAgent, false},
		{actor.NewID("p", "1"), actor.ByAgent, true},
		{actor.NewID("p", "2"), actor.ByAgent, true},
		{actor.NewID("a", "3"), actor.ByAgent, true},
		{actor.NewID("p", "2"), actor.ByActor, false},
		{actor.NewID("p", "1"), actor.ByActor, true},
		{actor.NewID("a", "2"), actor.ByActor, true},
		{actor.ID{Tenant: "other", Agent: "p", Key: "1"}, actor.ByAgent, false},
	} {
		_, r := Route(l, c, test.to, &actor.Definition{Recursion: test.recursion}, 0)
		if got := r != nil && r.Reason == actor.Cycle; got != test.cycle {
			t.Errorf("call to %s with recursion %d: got %v", test.to, test.recursion, r)
		}
	}
}

func TestTimeLeftNeverExceedsCaller(t *testing.T) {
	l := DefaultLimits()
	for _, test := range []struct{ left, asked, want time.Duration }{
		{time.Hour, 0, 30 * time.Second},
		{10 * time.Second, 0, 10 * time.Second},
		{time.Hour, time.Second, time.Second},
		{time.Hour, 301 * time.Second, 300 * time.Second},
		{time.Minute, 301 * time.Second, time.Minute},
	} {
		got, r := Route(l, Caller{Self: actor.NewID("a", ""), Left: test.left, Budget: 1}, actor.NewID("b", ""), &actor.Definition{}, test.asked)
		if r != nil || got != test.want {
			t.Errorf("%v left, %v requested: got %v, %v", test.left, test.asked, got, r)
		}
	}
}

func TestSharesNeverExceedBudget(t *testing.T) {
	for left := range uint32(200) {
		for n := 1; n < 70; n++ {
			share := Share(left, n)
			if spent := uint32(n) * (share + 1); share > 0 && spent > left {
				t.Errorf("%d calls with a share of %d exceed the budget of %d", n, share, left)
			}
		}
	}
	if Share(100, 1) != 49 {
		t.Errorf("share of one call of 100: got %d, want 49", Share(100, 1))
	}
}

func TestShardsAreUniform(t *testing.T) {
	count := make([]int, Shards)
	const n = 64 * Shards
	for i := range n {
		count[ShardOf(actor.NewID("planner", fmt.Sprint("s-", i)))]++
	}
	for shard, c := range count {
		if c < 16 || c > 160 { // mean 64, standard deviation 8
			t.Errorf("shard %d has %d of %d actors", shard, c, n)
		}
	}
}

// Actors of a session share a shard. Others have one by tenant, agent and key. The values
// are those of stores that exist.
func TestShardOfSession(t *testing.T) {
	for id, want := range map[string]uint16{
		"planner/s-1": 1790, "research/s-1": 1790, "troupe.session/s-1": 1790, "acme/planner/s-1": 135, "planner/s-2": 993,
		"planner": 3787, "research": 2845, "acme/planner/main": 2516, "troupe/registry": 3476, "troupe.budget/s-1": 14,
	} {
		actorID, err := actor.ParseID(id)
		if err != nil {
			t.Fatal(err)
		}
		if got := ShardOf(actorID); got != want {
			t.Errorf("%s: got shard %d, want %d", id, got, want)
		}
	}
}

// The largest accepted values, in the units of the configuration.
func TestLimitsSetAndCheckUseConfiguredUnits(t *testing.T) {
	all := map[string]int64{
		"agent_call_depth_max": 63, "agent_call_timeout_ms_default": 300_000, "agent_call_timeout_ms_max": 86_400_000, "agent_concurrent_calls_max": 1 << 16,
		"max_pending_per_actor": 1 << 20, "max_active_per_agent": 1 << 20, "mailbox_bytes_max": 1 << 30, "mailbox_age_ms_max": 3_600_000, "message_bytes_max": 1 << 20,
		"calls_per_tree_max": 1 << 20, "run_timeout_ms": 3_600_000, "run_timeout_ms_max": 86_400_000, "tool_timeout_ms": 3_600_000,
		"model_timeout_ms": 3_600_000, "invoke_timeout_ms": 3_600_000, "approval_timeout_ms": 7_776_000_000, "wait_timeout_ms_max": 7_776_000_000, "steps_per_turn_max": 1 << 16,
		"asks_per_action_max": 1 << 12, "remember_done_ms": 86_400_000, "remember_key_ms": 30 * 86_400_000, "remember_bytes_max": 1 << 40, "actor_memory_bytes_max": 1 << 40,
		"passivate_after_ms": 86_400_000, "resend_after_ms": 60_000, "snapshot_bytes": 1 << 30, "actors_per_cell_max": 1 << 30, "strikes_max": 100,
		"actor_state_items_max": 1 << 16, "actor_state_bytes_max": 32 << 20, "stream_events_max": 1 << 20, "stream_bytes_max": 1 << 30, "run_events_max": 1 << 24, "state_bytes_max": 4 << 20,
	}
	for key, most := range all {
		for value, ok := range map[int64]bool{0: false, 1: true, most: true, most + 1: false} {
			l := DefaultLimits()
			if strings.HasSuffix(key, "_max") {
				l.AgentCallTimeoutDefault, l.RunTimeoutDefault, l.ApprovalTimeout = time.Millisecond, time.Millisecond, time.Millisecond
			}
			err := l.Set(key, value)
			if err == nil {
				err = l.Check()
			}
			if (err == nil) != ok {
				t.Errorf("%s = %d: got %v, want success %v", key, value, err, ok)
			}
			if want := fmt.Sprintf("%s is %d: want 1 to %d", key, value, most); !ok && (err == nil || err.Error() != want) {
				t.Errorf("got %v, want %s", err, want)
			}
			for _, s := range l.Settings() {
				if s.Key == key && s.Value != value {
					t.Errorf("%s: got %d, want %d", key, s.Value, value)
				}
			}
		}
	}
	l := DefaultLimits()
	if err := l.Set("run_timeout", 1); err == nil || !strings.Contains(err.Error(), "run_timeout is unknown; did you mean run_timeout_ms; want one of actor_memory_bytes_max, ") {
		t.Errorf("unknown key: got %v", err)
	}
	for _, value := range []int64{-1, 1 << 62} {
		if err := l.Set("run_timeout_ms", value); err == nil || !strings.Contains(err.Error(), "out of range") {
			t.Errorf("%d: got %v", value, err)
		}
	}
	if got, want := len(l.Settings()), reflect.TypeFor[Limits]().NumField(); got != want || got != len(all) {
		t.Errorf("%d settings, want one of each of %d fields, and %d are tested", got, want, len(all))
	}
}

func TestLimitsCheckRejectsZero(t *testing.T) {
	if err := DefaultLimits().Check(); err != nil {
		t.Error(err)
	}
	l := DefaultLimits()
	l.MaxPendingPerActor = 0
	if err := l.Check(); err == nil {
		t.Error("accepted a mailbox of 0 messages")
	}
}

// The defaults are those that docs/limits.md promises.
func TestDefaultLimits(t *testing.T) {
	want := map[string]int64{
		"agent_call_depth_max": 5, "agent_concurrent_calls_max": 10, "max_pending_per_actor": 128, "calls_per_tree_max": 100, "run_timeout_ms_max": 3_600_000,
		"run_timeout_ms": 600_000, "tool_timeout_ms": 60_000, "model_timeout_ms": 120_000, "invoke_timeout_ms": 120_000, "approval_timeout_ms": 600_000,
		"steps_per_turn_max": 100, "asks_per_action_max": 64, "remember_done_ms": 60_000, "remember_key_ms": 86_400_000, "remember_bytes_max": 16 << 20, "actor_memory_bytes_max": 1 << 30,
		"passivate_after_ms": 300_000, "resend_after_ms": 1000, "snapshot_bytes": 64 << 10, "actors_per_cell_max": 1 << 20,
	}
	for _, s := range DefaultLimits().Settings() {
		if v, ok := want[s.Key]; ok && s.Value != v {
			t.Errorf("%s is %d, want %d", s.Key, s.Value, v)
		}
		delete(want, s.Key)
	}
	if len(want) > 0 {
		t.Errorf("no settings %v", want)
	}
}
