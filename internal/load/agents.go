// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// Workload is the kind of agent called under load.
type Workload string

// The workloads. Each exists as a volatile and as a journaled agent.
const (
	Noop  Workload = "noop"  // answers immediately
	Chain Workload = "chain" // makes ChainLength nested calls
	Fan   Workload = "fan"   // makes FanWidth parallel calls
	Slow  Workload = "slow"  // sleeps for SlowDuration
	Work  Workload = "work"  // computes for about 2 ms
)

const (
	// ChainLength is the number of nested calls of a chain.
	ChainLength = 4
	// FanWidth is the number of parallel calls of a fan.
	FanWidth = 8
	// SlowDuration is the time that a slow agent takes per message.
	SlowDuration = time.Second

	workRounds = 1 << 21 // rounds of a workload Work, about 1 ns each
)

// Agent returns the agent name of a workload.
func (w Workload) Agent(durable bool) string {
	if durable {
		return string(w) + "-durable"
	}
	return string(w)
}

// Workloads returns all workloads.
func Workloads() []Workload { return []Workload{Noop, Chain, Fan, Slow, Work} }

// Agents returns the definitions of all workloads, volatile and journaled.
func Agents() (definitions []actor.Definition) {
	for _, durable := range []bool{false, true} {
		add := func(w Workload, b actor.Behavior) {
			d := agents.Define(w.Agent(durable), "1", "A workload of the load generator.", b)
			if !durable {
				d.Durability = actor.Volatile
			}
			definitions = append(definitions, d)
		}
		link := func(n int) Workload {
			if n == 0 {
				return Chain
			}
			return Workload(fmt.Sprintf("link-%d", n))
		}
		add(Noop, behavior(func(b actor.Begin, _ []actor.Answer) actor.Action { return actor.Complete(b.Call.Parts) }))
		for n := range ChainLength {
			next := link(n + 1)
			if n == ChainLength-1 {
				next = Noop
			}
			add(link(n), forward(actor.Ask{Kind: actor.AskCall, Name: next.Agent(durable)}))
		}
		leaves := make([]actor.Ask, FanWidth)
		for i := range leaves {
			leaves[i] = actor.Ask{Kind: actor.AskCall, Name: fmt.Sprintf("%s/leaf-%d", Noop.Agent(durable), i)}
		}
		add(Fan, forward(leaves...))
		add(Slow, forward(actor.Ask{Kind: actor.AskSleep, Timeout: SlowDuration}))
		add(Work, behavior(func(b actor.Begin, _ []actor.Answer) actor.Action {
			return actor.Complete(actor.Text(fmt.Sprintf("%x", compute(workRounds))))
		}))
	}
	return definitions
}

// compute returns the state of a xorshift generator after n rounds. Each round needs
// the result of the last one.
func compute(n int) uint64 {
	x := uint64(1)
	for range n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

// behavior is an actor.Behavior that computes each action from the message and the
// last answers alone.
type behavior func(b actor.Begin, answers []actor.Answer) actor.Action

func (s behavior) Begin(b actor.Begin) actor.Turn { return &turn{s, b} }

type turn struct {
	next  behavior
	begin actor.Begin
}

func (t *turn) Next(answers []actor.Answer) (actor.Action, error) {
	return t.next(t.begin, answers), nil
}

func (t *turn) Stop() {}

// forward returns a behavior that makes the given asks with the message it received.
// The turn completes when all asks are answered. If an ask is refused, the turn is
// refused with the first refusal.
func forward(asks ...actor.Ask) behavior {
	return func(b actor.Begin, answers []actor.Answer) actor.Action {
		if answers == nil {
			out := make([]actor.Ask, len(asks))
			for i, a := range asks {
				if out[i] = a; a.Kind == actor.AskCall {
					out[i].Parts = b.Call.Parts
				}
			}
			return actor.Action{Asks: out}
		}
		for _, a := range answers {
			if a.Refusal != nil {
				return actor.EndRefused(a.Refusal)
			}
		}
		return actor.Complete(b.Call.Parts)
	}
}
