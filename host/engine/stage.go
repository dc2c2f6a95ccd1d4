// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"log/slog"

	proto "github.com/asynkron/protoactor-go/actor"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runtime"
)

// Stage is an engine without goroutines: its cells are stepped behind the same
// mailboxes and protoactor actors, one input at a time, when its owner says. What
// protoactor schedules beside that runs at once.
type Stage struct {
	system *proto.ActorSystem
	seats  []*Seat
	due    []func()
	stacks stacks
}

var _ proto.Dispatcher = (*Stage)(nil)

// NewStage has no seats yet. One goroutine at a time may use it and them.
func NewStage() *Stage { return &Stage{system: newSystem()} }

// newSystem is protoactor's, whose own log nobody reads.
func newSystem() *proto.ActorSystem {
	return proto.NewActorSystem(proto.WithLoggerFactory(func(*proto.ActorSystem) *slog.Logger {
		return slog.New(slog.DiscardHandler)
	}))
}

// Schedule implements protoactor's Dispatcher.
func (s *Stage) Schedule(fn func()) { s.due = append(s.due, fn) }

// Throughput implements protoactor's Dispatcher.
func (s *Stage) Throughput() int { return 1 }

func (s *Stage) run() {
	for len(s.due) > 0 {
		fn := s.due[0]
		s.due = s.due[1:]
		fn()
	}
}

// Close stops every cell.
func (s *Stage) Close() {
	for _, seat := range s.seats {
		s.system.Root.Stop(seat.pid)
	}
	s.run()
	s.stacks.close()
	s.system.Shutdown()
}

// Seat is a place for one cell, and for those that come after it: each that
// panicked is followed by the next incarnation of the seat's actor.
type Seat struct {
	stage   *Stage
	pid     *proto.PID
	mailbox *mailbox

	core  *runtime.Cell
	now   actor.Time
	steps int
	ready runtime.Ready
	fall  *fall
}

// Seat makes one more seat.
func (s *Stage) Seat(name string) (*Seat, error) {
	seat := &Seat{stage: s, mailbox: newMailbox(0, 1, &s.stacks)}
	seat.mailbox.peers = []*mailbox{seat.mailbox}
	props := proto.PropsFromProducer(func() proto.Actor { return proto.ReceiveFunc(seat.receive) },
		proto.WithMailbox(func() proto.Mailbox { return seat.mailbox }),
		proto.WithDispatcher(s))
	var err error
	if seat.pid, err = s.system.Root.WithGuardian(seat).SpawnNamed(props, name); err != nil {
		return nil, fmt.Errorf("seat %s: %w", name, err)
	}
	s.seats = append(s.seats, seat)
	s.run()
	return seat, nil
}

// Step has a cell take in one input: a message through the ring, the rest beside it. If it panicked, reason is with what, and where.
func (s *Seat) Step(core *runtime.Cell, now actor.Time, in runtime.Input) (ready runtime.Ready, reason any, stack []byte) {
	s.core, s.now, s.steps = core, now, 0
	switch in := in.(type) {
	case runtime.Deliver:
		invariant.Check(s.mailbox.ring.put(&in.Envelope), "a seat whose ring is full")
		s.mailbox.schedule()
	case runtime.Tick:
		s.mailbox.wake()
	default:
		s.mailbox.answer(answer{input: in})
	}
	s.stage.run()
	invariant.Check(s.steps == 1 && !s.mailbox.running.Load() && !s.mailbox.ready(), "an input was stepped %d times", s.steps)
	ready, s.ready = s.ready, runtime.Ready{}
	if f := s.fall; f != nil {
		s.fall = nil
		return ready, f.reason, f.stack
	}
	return ready, nil, nil
}

func (s *Seat) receive(ctx proto.Context) {
	switch m := ctx.Message().(type) {
	case *runtime.Deliver:
		s.take(m)
	case answer:
		s.take(m.input)
	case passed:
		s.take(runtime.Tick{})
	case *proto.Restarting, *proto.Stopped:
		s.core = nil
	}
}

func (s *Seat) take(in runtime.Input) {
	s.steps++
	s.ready = s.core.Step(s.now, in)
}

// HandleFailure implements protoactor's SupervisorStrategy.
func (s *Seat) HandleFailure(_ *proto.ActorSystem, over proto.Supervisor, child *proto.PID, _ *proto.RestartStatistics, reason, _ any) {
	f, ok := reason.(*fall)
	if !ok {
		f = &fall{reason: reason}
	}
	s.fall = f
	over.RestartChildren(child)
}
