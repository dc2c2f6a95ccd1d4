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

// Stepper is a single-threaded engine. Its cells run behind the same mailboxes
// and protoactor actors as those of an Engine, but the caller steps them, one
// input at a time. Functions that protoactor schedules during a step run before the
// call returns.
type Stepper struct {
	system     *proto.ActorSystem
	slots      []*StepperSlot
	scheduled  []func() // functions passed to Schedule that have not run yet
	coroutines coroutinePool
}

var _ proto.Dispatcher = (*Stepper)(nil)

// NewStepper returns a Stepper without slots. The Stepper and its slots are not
// safe for concurrent use.
func NewStepper() *Stepper { return &Stepper{system: newActorSystem()} }

// newActorSystem returns a protoactor system that discards its own log.
func newActorSystem() *proto.ActorSystem {
	return proto.NewActorSystem(proto.WithLoggerFactory(func(*proto.ActorSystem) *slog.Logger {
		return slog.New(slog.DiscardHandler)
	}))
}

// Schedule implements protoactor's Dispatcher.
func (s *Stepper) Schedule(fn func()) { s.scheduled = append(s.scheduled, fn) }

// Throughput implements protoactor's Dispatcher.
func (s *Stepper) Throughput() int { return 1 }

func (s *Stepper) run() {
	for len(s.scheduled) > 0 {
		fn := s.scheduled[0]
		s.scheduled = s.scheduled[1:]
		fn()
	}
}

// Close stops every cell.
func (s *Stepper) Close() {
	for _, slot := range s.slots {
		s.system.Root.Stop(slot.pid)
	}
	s.run()
	s.coroutines.close()
	s.system.Shutdown()
}

// StepperSlot holds one cell at a time. When a cell panics, the slot's actor
// restarts, and the next incarnation takes the place of the failed cell.
type StepperSlot struct {
	stepper *Stepper
	pid     *proto.PID
	mailbox *mailbox

	core    *runtime.Cell
	now     actor.Time
	steps   int
	ready   runtime.Ready
	failure *stepFailure
}

// NewSlot adds a slot.
func (s *Stepper) NewSlot(name string) (*StepperSlot, error) {
	slot := &StepperSlot{stepper: s, mailbox: newMailbox(0, 1, &s.coroutines)}
	slot.mailbox.peers = []*mailbox{slot.mailbox}
	props := proto.PropsFromProducer(func() proto.Actor { return proto.ReceiveFunc(slot.receive) },
		proto.WithMailbox(func() proto.Mailbox { return slot.mailbox }),
		proto.WithDispatcher(s))
	var err error
	if slot.pid, err = s.system.Root.WithGuardian(slot).SpawnNamed(props, name); err != nil {
		return nil, fmt.Errorf("slot %s: %w", name, err)
	}
	s.slots = append(s.slots, slot)
	s.run()
	return slot, nil
}

// Step steps a cell with one input. A message passes through the queue; other
// inputs bypass it. If the step panicked, reason is the panic value and stack
// its stack trace.
func (s *StepperSlot) Step(core *runtime.Cell, now actor.Time, in runtime.Input) (ready runtime.Ready, reason any, stack []byte) {
	s.core, s.now, s.steps = core, now, 0
	switch in := in.(type) {
	case runtime.Deliver:
		invariant.Check(s.mailbox.queue.push(&in.Envelope), "engine: the queue of a slot is full")
		s.mailbox.schedule()
	case runtime.Tick:
		s.mailbox.wake()
	default:
		s.mailbox.postCompletion(completion{input: in})
	}
	s.stepper.run()
	invariant.Check(s.steps == 1 && !s.mailbox.running.Load() && !s.mailbox.hasWork(), "engine: one input caused %d steps", s.steps)
	ready, s.ready = s.ready, runtime.Ready{}
	if f := s.failure; f != nil {
		s.failure = nil
		return ready, f.reason, f.stack
	}
	return ready, nil, nil
}

func (s *StepperSlot) receive(ctx proto.Context) {
	switch m := ctx.Message().(type) {
	case *runtime.Deliver:
		s.step(m)
	case completion:
		s.step(m.input)
	case tickMessage:
		s.step(runtime.Tick{})
	case *proto.Restarting, *proto.Stopped:
		s.core = nil
	}
}

func (s *StepperSlot) step(in runtime.Input) {
	s.steps++
	s.ready = s.core.Step(s.now, in)
}

// HandleFailure implements protoactor's SupervisorStrategy.
func (s *StepperSlot) HandleFailure(_ *proto.ActorSystem, parent proto.Supervisor, child *proto.PID, _ *proto.RestartStatistics, reason, _ any) {
	f, ok := reason.(*stepFailure)
	if !ok {
		f = &stepFailure{reason: reason}
	}
	s.failure = f
	parent.RestartChildren(child)
}
