// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// Event is an event of a run.
type Event struct {
	// position behind the event in its stream, for After
	Cursor string
	Run    string // ID of the run, which is one below with the option Tree
	Seq    uint64 // number in the run, from 1
	At     time.Time
	// type of the event, such as EventDelta. docs/api.md#events has all types and the fields of
	// their payloads.
	Type    string
	Text    string          // text of the event: of a delta, the piece; empty if the type has none
	Payload json.RawMessage // JSON object with all fields
}

// Types of events that most programs need.
const (
	EventInput     = "user_input"         // the message
	EventDelta     = "agent_stream_delta" // a piece of the answer of a model or external agent, or text of Emit
	EventAttempt   = "attempt"            // a request is repeated: discards_after in the payload is the Seq after which its deltas are void
	EventDone      = "run_done"           // end of a run: its answer
	EventFailed    = "run_failed"         // end of a run
	EventCancelled = "run_cancelled"      // end of a run
)

// Names of further options.
const (
	optionAfter = "After"
	optionTree  = "Tree"
)

// After makes Stream begin after an event, by its Cursor.
func After(cursor string) Option {
	return Option{optionAfter, func(o *options) error {
		var r *actor.Refusal
		if o.after, r = ingress.ParseCursor(cursor); r != nil {
			return invalid("after", "After: got %.40q, want the Cursor of an event of this stream", cursor)
		}
		return nil
	}}
}

// Tree adds the events of all runs below to Stream. The events of a run follow the event that called
// it and precede its result.
func Tree() Option {
	return Option{optionTree, func(o *options) error { o.tree = true; return nil }}
}

// Stream returns the events of a run, of which each is persisted: those after the option After, or all,
// and then each new one until the run has ended. An error ends the sequence: a *Refusal, ErrClosed or
// that of ctx. A program that stops reading, or restarts, continues after the last event that it
// has processed, with its Cursor. The other options are User and Tree.
//
//	reply, err := server.Begin(ctx, "helper", "hello")
//	for event, err := range server.Stream(ctx, reply.Run) {
//		if err != nil {
//			return err
//		}
//		if event.Type == troupe.EventDelta {
//			fmt.Print(event.Text)
//		}
//	}
//
// At most 64 KiB of events and one event are read ahead of the loop body.
func (s *Server) Stream(ctx context.Context, run string, opts ...Option) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		o, err := collect("Stream", opts, optionUser, optionAfter, optionTree)
		if err == nil {
			var owner command.Owner
			if owner, err = s.owner(ctx, o.principal(), run); err == nil {
				f := &follower{server: s, by: o.principal(), run: owner.Run, wake: make(chan struct{}, 1), closed: make(chan struct{}),
					stream: ingress.NewStream(ingress.StreamConfig{Run: owner.Run, Tree: o.tree, After: o.after})}
				defer f.stop()
				err = f.deliver(ctx, yield)
			}
		}
		if err != nil {
			yield(Event{}, err)
		}
	}
}

// follower is the driver of an ingress.Stream in this process.
type follower struct {
	server *Server
	stream *ingress.Stream
	by     actor.Principal
	run    actor.CallID

	read   *ingress.Read // outstanding
	unread []byte        // bytes of the outstanding Write
	end    *ingress.End
	err    error // of a subscription

	wake     chan struct{} // capacity 1: appended is not empty
	closed   chan struct{}
	mu       sync.Mutex
	appended []actor.CallID // runs with new events
	stops    []func()
}

func (f *follower) stop() {
	close(f.closed)
	for _, stop := range f.stops {
		stop()
	}
}

// step applies an input. The stream has no clock: a consumer may be slow, and nothing needs a ping.
func (f *follower) step(in ingress.StreamInput) {
	for _, out := range f.stream.Step(0, in) {
		switch out := out.(type) {
		case ingress.Watch:
			f.watch(out.Run)
		case ingress.Read:
			f.read = &out
		case ingress.Write:
			f.unread = out.Bytes
		case ingress.End:
			f.end = &out
		}
	}
}

// watch subscribes to the new events of a run.
func (f *follower) watch(run actor.CallID) {
	updates, stop, err := f.server.node().Follow(context.Background(), command.Follow{By: f.by, Run: run})
	if err != nil {
		f.err = errorOf(err)
		return
	}
	f.stops = append(f.stops, stop)
	go func() {
		for {
			select {
			case _, ok := <-updates:
				if !ok { // the last read returns the reason
					updates = nil
				}
				f.mu.Lock()
				if !slices.Contains(f.appended, run) {
					f.appended = append(f.appended, run)
				}
				f.mu.Unlock()
				select {
				case f.wake <- struct{}{}:
				default:
				}
			case <-f.closed:
				return
			}
		}
	}()
}

// deliver yields the events. It returns nil at the end of the run, and after yield has returned false.
func (f *follower) deliver(ctx context.Context, yield func(Event, error) bool) error {
	for f.step(ingress.Opened{}); f.end == nil || len(f.unread) > 0; {
		switch {
		case f.err != nil:
			return f.err
		case ctx.Err() != nil:
			return continues(ctx, f.run.String())
		case len(f.unread) > 0:
			n := len(f.unread)
			more, err := yieldFrames(f.unread, yield)
			if err != nil || !more {
				return err
			}
			f.unread = nil
			f.step(ingress.Wrote{Bytes: n})
		case f.read != nil:
			if err := f.readEvents(ctx); err != nil {
				return err
			}
		default:
			if err := f.wait(ctx); err != nil {
				return err
			}
		}
	}
	if f.end.Reason == ingress.RunEnded {
		return nil
	}
	if _, err := yieldFrames(f.end.Final, yield); err != nil {
		return err
	}
	if f.end.Refusal != nil {
		r := newRefusal(f.end.Refusal)
		r.Detail = strings.NewReplacer("add ?tree=1", "add the option Tree", "without tree=1", "without the option Tree").Replace(r.Detail)
		return r
	}
	return ErrClosed
}

func (f *follower) readEvents(ctx context.Context) error {
	in := *f.read
	f.read = nil
	page, err := command.Find(ctx, f.server.node(), f.by, command.EventsQuery{Run: in.Run, After: in.After, Limit: in.Limit})
	if err != nil {
		return errorOf(err)
	}
	bodies := make([][]byte, len(page.All))
	for i := range page.All {
		bodies[i] = page.All[i].Body
	}
	f.step(ingress.Events{Bodies: bodies})
	return nil
}

// wait waits for new events.
func (f *follower) wait(ctx context.Context) error {
	select {
	case <-f.wake:
		f.mu.Lock()
		appended := f.appended
		f.appended = nil
		f.mu.Unlock()
		for _, run := range appended {
			f.step(ingress.Appended{Run: run})
		}
		return nil
	case <-f.server.service.Done():
		return ErrClosed
	case <-ctx.Done():
		return continues(ctx, f.run.String())
	}
}

// yieldFrames yields the events in frames. It reports false once yield has.
func yieldFrames(frames []byte, yield func(Event, error) bool) (more bool, err error) {
	for frame := range bytes.SplitSeq(frames, []byte("\n\n")) {
		var cursor, name, data string
		for line := range strings.SplitSeq(string(frame), "\n") {
			field, value, _ := strings.Cut(line, ": ")
			switch field {
			case "id":
				cursor = value
			case "event":
				name = value
			case "data":
				data = value
			}
		}
		if cursor == "" { // the delay of a reconnect, or the reason of the end
			continue
		}
		event, err := newEvent(cursor, name, data)
		if err != nil {
			return false, err
		}
		if !yield(event, nil) {
			return false, nil
		}
	}
	return true, nil
}

// newEvent returns the event in a frame.
func newEvent(cursor, name, data string) (Event, error) {
	var in struct {
		Run     string          `json:"run_id"`
		Seq     uint64          `json:"seq"`
		At      string          `json:"ts"`
		Payload json.RawMessage `json:"payload"`
	}
	var text struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal([]byte(data), &in); err != nil {
		return Event{}, fmt.Errorf("event %s: %w", cursor, err)
	}
	if err := json.Unmarshal(in.Payload, &text); err != nil {
		return Event{}, fmt.Errorf("event %s: %w", cursor, err)
	}
	at, err := runs.ParseTime(in.At)
	if err != nil {
		return Event{}, fmt.Errorf("event %s: %w", cursor, err)
	}
	return Event{Cursor: cursor, Run: in.Run, Seq: in.Seq, At: newTime(at), Type: name, Text: text.Text, Payload: in.Payload}, nil
}
