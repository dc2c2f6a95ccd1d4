// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/tools"
)

// echoAgent returns a volatile agent that replies at once with its message.
func echoAgent() actor.Definition {
	d := rawAgent("echo", func(b actor.Begin) (actor.Action, error) { return actor.Complete(b.Call.Parts), nil })
	d.Durability = actor.Volatile
	return d
}

// chainAgent returns a volatile agent that passes its message on to the next
// agent.
func chainAgent(name, next string) actor.Definition {
	d := agents.Define(name, "1", "test agent", chainDefinition{next})
	d.Durability = actor.Volatile
	return d
}

type chainDefinition struct{ next string }

func (l chainDefinition) Begin(b actor.Begin) actor.Turn { return &chainTurn{l.next, b.Call.Parts} }

type chainTurn struct {
	next  string
	parts []actor.Part
}

func (l *chainTurn) Next(answers []actor.Answer) (actor.Action, error) {
	switch {
	case answers == nil:
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: l.next, Parts: l.parts}}}, nil
	case answers[0].Refusal != nil:
		return actor.EndRefused(answers[0].Refusal), nil
	}
	return actor.Complete(answers[0].Parts), nil
}

func (l *chainTurn) Stop() {}

// channelEngine is the baseline of BenchmarkAsk: cells behind plain channels,
// one goroutine each. It does what the engine does for a call, without any of
// the engine's guarantees.
type channelEngine struct {
	cells []*channelCell
	table dispatcher.Table
}

type channelCell struct {
	in   chan channelInput
	core *runtime.Cell
	wait map[actor.CallID]chan actor.Reply
}

type channelInput struct {
	bytes []byte
	reply chan actor.Reply
}

func newChannelEngine(cells int, definitions ...actor.Definition) *channelEngine {
	b := &channelEngine{table: dispatcher.NewTable(func(shard uint16) dispatcher.Owner {
		return dispatcher.Owner{Node: "n1", Cell: shard % uint16(cells), Epoch: 1}
	})}
	registry, clock := tools.NewRegistry(), newClock()
	for i := range cells {
		c := &channelCell{in: make(chan channelInput, 1024), wait: map[actor.CallID]chan actor.Reply{},
			core: runtime.NewCell(runtime.Config{Self: actor.Address{Node: "n1", Cell: uint16(i), Incarnation: 1}, Seed: uint64(i), Tools: registry})}
		b.cells = append(b.cells, c)
	}
	for _, c := range b.cells {
		step := func(in runtime.Input) {
			for _, e := range c.core.Step(clock.now(), in).Effects {
				switch op := e.Op.(type) {
				case runtime.Respond:
					c.wait[op.Call] <- op.Reply
					delete(c.wait, op.Call)
				case runtime.Send:
					b.cells[op.Cell].in <- channelInput{bytes: actor.Encode(op.Envelope)}
				}
			}
		}
		step(runtime.Limits{Limits: dispatcher.DefaultLimits()})
		step(runtime.Agents{Definitions: definitions})
		step(runtime.Owners{Table: b.table})
		step(runtime.Boot{})
		go func() {
			for in := range c.in {
				env, err := actor.Decode(in.bytes)
				if err != nil {
					panic(err)
				}
				if in.reply != nil {
					c.wait[env.Body.Subject()] = in.reply
				}
				step(runtime.Deliver{Envelope: env})
			}
		}()
	}
	return b
}

func (b *channelEngine) close() {
	for _, c := range b.cells {
		close(c.in)
	}
}

func (b *channelEngine) ask(call actor.Call, reply chan actor.Reply) actor.Reply {
	call.SetClientDefaults()
	o, _ := b.table.Of(dispatcher.ShardOf(call.To))
	b.cells[o.Cell].in <- channelInput{actor.Encode(actor.Envelope{To: call.To, Body: actor.Request{Call: call}}), reply}
	return <-reply
}

// BenchmarkAsk compares Ask with the same cells behind plain channels,
// alternating in one run. The metric ratio is the speed of the engine relative
// to the baseline: the median of the rounds.
func BenchmarkAsk(b *testing.B) {
	for _, v := range []struct {
		name                 string
		callers, keys, cells int
		agent                string
	}{
		{"1 caller", 1, 1, 2, "echo"},
		{"64 callers, 1 actor", 64, 1, 2, "echo"},
		{"64 callers, 64 actors", 64, 64, 2, "echo"},
		{"chain of 3, 1 cell", 1, 1, 1, "c1"},
		{"chain of 3, 2 cells", 1, 1, 2, "c1"},
	} {
		b.Run(v.name, func(b *testing.B) {
			definitions := []actor.Definition{echoAgent(), chainAgent("c1", "c2/a"), chainAgent("c2", "c3/"+keyOnOtherCell("c2/a", v.cells)), chainAgent("c3", "echo")}
			n := startNode(b, b.TempDir(), func(c *Config) { c.Cells, c.Logger = v.cells, slog.New(slog.DiscardHandler) }, definitions...)
			plain := newChannelEngine(v.cells, definitions...)
			defer plain.close()
			work := func(count int, one func(call actor.Call)) time.Duration {
				began := time.Now()
				var all sync.WaitGroup
				for i := range v.callers {
					all.Go(func() {
						parts, to := actor.Text("hello"), actor.NewID(v.agent, fmt.Sprint(i%v.keys))
						for range count / v.callers {
							one(actor.Call{ID: n.NewCallID(), To: to, Parts: parts})
						}
					})
				}
				all.Wait()
				return time.Since(began)
			}
			ctx := context.Background()
			ours := func(call actor.Call) {
				if a, err := n.Ask(ctx, call); err != nil || a.Reply.Refusal != nil {
					b.Error(err, a.Reply.Refusal)
				}
			}
			replies := sync.Pool{New: func() any { return make(chan actor.Reply, 1) }}
			theirs := func(call actor.Call) {
				reply := replies.Get().(chan actor.Reply)
				if r := plain.ask(call, reply); r.Refusal != nil {
					b.Error(r.Refusal)
				}
				replies.Put(reply)
			}
			var ratios []float64
			var sum, bares time.Duration
			const rounds = 15
			each := max(b.N/rounds, 2000)
			work(each, ours)
			work(each, theirs)
			b.ReportAllocs()
			b.ResetTimer()
			for range rounds {
				x, y := work(each, ours), work(each, theirs)
				ratios = append(ratios, float64(y)/float64(x))
				sum, bares = sum+x, bares+y
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[rounds/2], "ratio")
			b.ReportMetric(float64(sum)/float64(rounds*each), "ns/ask")
			b.ReportMetric(float64(bares)/float64(rounds*each), "ns/bare")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// keyOnOtherCell returns a key for which c3 lives on another cell than its
// caller. With one cell it returns any key.
func keyOnOtherCell(caller string, cells int) string {
	from, _ := actor.ParseID(caller)
	for i := 0; ; i++ {
		key := fmt.Sprint("k", i)
		if cells == 1 || dispatcher.ShardOf(actor.NewID("c3", key))%uint16(cells) != dispatcher.ShardOf(from)%uint16(cells) {
			return key
		}
	}
}
