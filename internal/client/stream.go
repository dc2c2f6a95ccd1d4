// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// Stream delivers the events of a run, or of a run and all runs below it. It makes the subscriptions and
// reads of an ingress.Stream. Its user writes Unwritten to the reader and reports the bytes that were
// written with the input Wrote, until End is set:
//
//	for err := s.Start(); s.End == nil; {
//		… if err != nil, or if there is something to write
//		err = s.Advance(ctx)
//	}
type Stream struct {
	*Watch
	Unwritten ingress.Write // outstanding; its size is 0 if nothing is
	End       *ingress.End  // set at the end; Unwritten precedes it

	client *Client
	stream *ingress.Stream
	run    actor.CallID
	now    func() actor.Time
	read   *ingress.Read // outstanding
	failed error         // of a subscription: the stream would miss events
}

// Stream returns a stream that ends with the given channel. The function now is its monotonic clock.
// The caller MUST call Close.
func (c *Client) Stream(config ingress.StreamConfig, ends <-chan struct{}, now func() actor.Time) *Stream {
	return &Stream{Watch: c.Watch(ends), client: c, stream: ingress.NewStream(config), run: config.Run, now: now}
}

// Start reads until there is something to write, there is nothing more to read, or the stream has ended.
func (s *Stream) Start() error {
	for s.Step(ingress.Opened{}); s.read != nil && s.End == nil && s.Unwritten.Size() == 0; {
		if err := s.readEvents(); err != nil {
			return err
		}
	}
	return s.failed
}

// Step passes on an input.
func (s *Stream) Step(in ingress.StreamInput) {
	for _, out := range s.stream.Step(s.now(), in) {
		switch out := out.(type) {
		case ingress.Watch:
			s.watch(out.Run)
		case ingress.Read:
			s.read = &out
		case ingress.Write:
			s.Unwritten = out
		case ingress.End:
			s.End = &out
		}
	}
}

// watch subscribes to the new events of a run until its last one was read. A stream has at most
// ingress.TreeRunsMax subscriptions.
func (s *Stream) watch(run actor.CallID) {
	follow := s.Forward
	if run == s.run {
		follow = s.Follow
	}
	if err := follow(Subject{Run: run}); err != nil {
		s.failed = err
	}
}

// Due returns the time that is left until the stream needs a Tick.
func (s *Stream) Due() time.Duration {
	due, _ := s.stream.NextDeadline()
	return due.Sub(s.now())
}

// Advance reads, or waits until there is something to read. Its error is that of a subscription or a
// read, or that of Watch.Wait. A read waits for a node that is away.
func (s *Stream) Advance(ctx context.Context) error {
	if s.failed != nil {
		return s.failed
	}
	if s.read != nil && !s.IsAway() {
		if err := s.readEvents(); !s.Away(err) {
			return err
		}
		return nil
	}
	if _, err := s.Wait(ctx, s.Due()); err != nil {
		return err
	}
	if s.appended {
		s.appended = false
		s.Step(ingress.Appended{Run: s.run})
	}
	for _, subject := range s.News() {
		s.Step(ingress.Appended{Run: subject.Run})
	}
	s.Step(ingress.Tick{})
	return nil
}

// readEvents performs the outstanding read. After an error the read is still outstanding.
func (s *Stream) readEvents() error {
	if s.failed != nil {
		return s.failed
	}
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	in := *s.read
	page, err := find(ctx, s.client, command.EventsQuery{Run: in.Run, After: in.After, Limit: in.Limit})
	if err != nil {
		return err
	}
	s.read = nil
	var bodies [][]byte
	for _, e := range page.All {
		bodies = append(bodies, e.Body)
	}
	if n := len(bodies); n > 0 && runs.TypeOf(bodies[n-1]).Ends() {
		s.Unfollow(Subject{Run: in.Run}) // nothing follows
	}
	s.Step(ingress.Events{Bodies: bodies})
	return nil
}

// Fail ends the outstanding read with a refusal that the reader of the stream sees.
func (s *Stream) Fail(r *actor.Refusal) {
	s.read = nil
	s.Step(ingress.ReadFailed{Refusal: r})
}
