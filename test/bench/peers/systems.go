// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	hollywood "github.com/anthdm/hollywood/actor"
	protoactor "github.com/asynkron/protoactor-go/actor"
	goakt "github.com/tochemey/goakt/v4/actor"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/tools"
)

// peers lists the systems. Ratios are to the first one.
var peers = []peer{
	{"bare channels", "", "a goroutine for each actor, addressed by its channel. No deadline, name, refusal, supervision or bound of memory.", startChannels},
	{"Troupe", "", "unjournaled agents, which exist by name without being started. A call has a deadline, a bounded mailbox that refuses, " +
		"a chain with its depth, budget and cycles, a run that is counted, and is found again by its repeat. Idle actors have no goroutine.", startTroupe},
	{"protoactor-go", "github.com/asynkron/protoactor-go", "a call is a future with a time-out, to an actor that was started. No chain, depth or cycle, no repeat, " +
		"no refusal of a full mailbox (it is unbounded), no journal. A failed actor is restarted by its supervisor.", startProtoactor},
	{"hollywood", "github.com/anthdm/hollywood", "a call is a response with a time-out, to an actor that was started. No chain, depth or cycle, no repeat, " +
		"no refusal (its inbox grows), no journal. A panic restarts the actor. Inboxes have 2 slots here, for memory; 1,024 are usual.", startHollywood},
	{"goakt", "github.com/tochemey/goakt/v4", "a call has a time-out, to an actor that was started. No chain, depth or cycle, no repeat, no refusal by default, no journal. " +
		"Supervision and passivation. An actor that waits for the answer of another one holds one of the workers of all actors, of which there is one for each processor, so this chain times out on few processors.", startGoakt},
}

// message is what the actors of other systems pass on and return.
type message struct{ text string }

var sent = &message{text}

func answered(reply any, err error) error {
	if err != nil {
		return err
	}
	if reply != sent {
		return errReply
	}
	return nil
}

// channels are actors of goroutines.
type channels struct{ all []chan asked }

type asked struct {
	what  *message
	reply chan *message
}

func startChannels() (system, error) { return &channels{}, nil }

func (s *channels) spawn(_ string, behind int) (func() error, error) {
	last := make(chan asked, 1)
	go func() {
		for m := range last {
			m.reply <- m.what
		}
	}()
	first := last
	for range behind {
		in, next := make(chan asked, 1), first
		go func() {
			defer close(next)
			reply := make(chan *message, 1)
			for m := range in {
				next <- asked{m.what, reply}
				m.reply <- <-reply
			}
		}()
		first = in
	}
	s.all = append(s.all, first)
	reply := make(chan *message, 1)
	return func() error {
		first <- asked{sent, reply}
		return answered(<-reply, nil)
	}, nil
}

func (s *channels) close() error {
	for _, first := range s.all {
		close(first)
	}
	return nil
}

// troupe is the engine of troupe serve with agents that keep no journal.
type troupe struct {
	*engine.Engine
	stop func() error
}

func startTroupe() (system, error) {
	dir, err := os.MkdirTemp("", "peers-")
	if err != nil {
		return nil, err
	}
	d, err := disk.Open(dir, "n1", disk.Options{})
	if err != nil {
		return nil, err
	}
	log := disk.NewLog(d)
	all := []actor.Definition{volatile("link-0", echoAgent{})}
	for i := range chainCalls {
		all = append(all, volatile(fmt.Sprintf("link-%d", i+1), relayAgent{fmt.Sprintf("link-%d", i)}))
	}
	e, err := engine.Start(engine.Config{Node: "n1", Start: d.End().Batch, Log: log, Store: d, Agents: all,
		Tools: tools.NewRegistry(), Limits: dispatcher.DefaultLimits(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return &troupe{e, func() error {
		return errors.Join(e.Close(context.Background()), log.Close(), d.Close(), os.RemoveAll(dir))
	}}, nil
}

func volatile(name string, behavior actor.Behavior) actor.Definition {
	d := agents.Define(name, "1", "Returns its message.", behavior)
	d.Durability = actor.Volatile
	return d
}

var parts = actor.Text(text)

func (s *troupe) spawn(name string, behind int) (func() error, error) {
	to := actor.NewID(fmt.Sprintf("link-%d", behind), name)
	return func() error {
		a, err := s.Ask(context.Background(), actor.Call{ID: s.NewCallID(), To: to, Parts: parts})
		switch {
		case err != nil:
			return err
		case a.Reply.Refusal != nil:
			return a.Reply.Refusal
		case len(a.Reply.Parts) != len(parts):
			return errReply
		}
		return nil
	}, nil
}

func (s *troupe) close() error { return s.stop() }

type echoAgent struct{}

func (echoAgent) Begin(b actor.Begin) actor.Turn { return echoTurn{b.Call.Parts} }

type echoTurn struct{ parts []actor.Part }

func (t echoTurn) Next([]actor.Answer) (actor.Action, error) { return actor.Complete(t.parts), nil }
func (echoTurn) Stop()                                       {}

// relayAgent asks the next agent of its session.
type relayAgent struct{ next string }

func (a relayAgent) Begin(b actor.Begin) actor.Turn { return relayTurn{a.next, b.Call.Parts} }

type relayTurn struct {
	next  string
	parts []actor.Part
}

func (t relayTurn) Next(answers []actor.Answer) (actor.Action, error) {
	switch {
	case answers == nil:
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: t.next, Parts: t.parts}}}, nil
	case answers[0].Refusal != nil:
		return actor.EndRefused(answers[0].Refusal), nil
	}
	return actor.Complete(answers[0].Parts), nil
}

func (relayTurn) Stop() {}

type protoactorSystem struct{ *protoactor.ActorSystem }

func startProtoactor() (system, error) {
	quiet := protoactor.WithLoggerFactory(func(*protoactor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) })
	return protoactorSystem{protoactor.NewActorSystem(quiet)}, nil
}

func (s protoactorSystem) spawn(_ string, behind int) (func() error, error) {
	var next *protoactor.PID
	for i := range behind + 1 {
		to := next
		next = s.Root.Spawn(protoactor.PropsFromFunc(func(c protoactor.Context) {
			m, ok := c.Message().(*message)
			switch {
			case !ok:
			case i == 0:
				c.Respond(m)
			default:
				if reply, err := c.RequestFuture(to, m, askTimeout).Result(); err == nil {
					c.Respond(reply)
				}
			}
		}))
	}
	return func() error { return answered(s.Root.RequestFuture(next, sent, askTimeout).Result()) }, nil
}

func (s protoactorSystem) close() error {
	s.Shutdown()
	return nil
}

type hollywoodSystem struct{ *hollywood.Engine }

func startHollywood() (system, error) {
	e, err := hollywood.NewEngine(hollywood.NewEngineConfig())
	return hollywoodSystem{e}, err
}

func (s hollywoodSystem) spawn(name string, behind int) (func() error, error) {
	var next *hollywood.PID
	for i := range behind + 1 {
		to := next
		next = s.SpawnFunc(func(c *hollywood.Context) {
			m, ok := c.Message().(*message)
			switch {
			case !ok:
			case i == 0:
				c.Respond(m)
			default:
				if reply, err := c.Request(to, m, askTimeout).Result(); err == nil {
					c.Respond(reply)
				}
			}
		}, "link", hollywood.WithID(fmt.Sprintf("%s-%d", name, i)), hollywood.WithInboxSize(2))
	}
	return func() error { return answered(s.Request(next, sent, askTimeout).Result()) }, nil
}

func (hollywoodSystem) close() error { return nil }

type goaktSystem struct{ goakt.ActorSystem }

func startGoakt() (system, error) {
	s, err := goakt.NewActorSystem("peers", goakt.WithLoggingDisabled())
	if err != nil {
		return nil, err
	}
	return goaktSystem{s}, s.Start(context.Background())
}

func (s goaktSystem) spawn(name string, behind int) (func() error, error) {
	var next *goakt.PID
	for i := range behind + 1 {
		var err error
		if next, err = s.Spawn(context.Background(), fmt.Sprintf("%s-%d", name, i), goaktActor{next}, goakt.WithLongLived()); err != nil {
			return nil, err
		}
	}
	return func() error { return answered(goakt.Ask(context.Background(), next, sent, askTimeout)) }, nil
}

func (s goaktSystem) close() error { return s.Stop(context.Background()) }

// goaktActor answers, or asks the next actor first.
type goaktActor struct{ next *goakt.PID }

func (goaktActor) PreStart(*goakt.Context) error { return nil }

func (a goaktActor) Receive(c *goakt.ReceiveContext) {
	m, ok := c.Message().(*message)
	switch {
	case !ok:
	case a.next == nil:
		c.Response(m)
	default:
		if reply := c.Ask(a.next, m, askTimeout); reply != nil {
			c.Response(reply)
		}
	}
}

func (goaktActor) PostStop(*goakt.Context) error { return nil }
