// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

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
				err = s.stream(ctx, o.principal(), ingress.StreamConfig{Run: owner.Run, Tree: o.tree, TreeOption: "the option Tree", After: o.after, Unframed: true}, yield)
			}
		}
		if err != nil {
			yield(Event{}, err)
		}
	}
}

// stream yields the events of a run. It returns nil at the end of the run, and after yield has returned
// false. The stream has no clock: a consumer may be slow.
func (s *Server) stream(ctx context.Context, by actor.Principal, config ingress.StreamConfig, yield func(Event, error) bool) error {
	f := s.client(by).Stream(config, s.service.Done(), func() actor.Time { return 0 })
	defer f.Close()
	for err := f.Start(); ; err = f.Advance(ctx) {
		switch {
		case ctx.Err() != nil:
			return continues(ctx, config.Run.String())
		case err != nil:
			return errorOf(err)
		}
		for f.Unwritten.Size() > 0 {
			items, size := f.Unwritten.Items, f.Unwritten.Size()
			if more, err := yieldItems(items, yield); err != nil || !more {
				return err
			}
			f.Unwritten = ingress.Write{}
			f.Step(ingress.Wrote{Bytes: size})
		}
		if f.End == nil {
			continue
		}
		switch more, err := yieldItems(f.End.Items, yield); {
		case err != nil || !more || f.End.Reason == ingress.RunEnded:
			return err
		case f.End.Refusal != nil:
			return newRefusal(f.End.Refusal)
		}
		return ErrClosed
	}
}

// yieldItems yields events. It reports false once yield has.
func yieldItems(items []ingress.Item, yield func(Event, error) bool) (more bool, err error) {
	for i := range items {
		event, err := newEvent(&items[i])
		if err != nil {
			return false, err
		}
		if !yield(event, nil) {
			return false, nil
		}
	}
	return true, nil
}

// newEvent returns the event of an item.
func newEvent(item *ingress.Item) (Event, error) {
	var in struct {
		Run     string          `json:"run_id"`
		Seq     uint64          `json:"seq"`
		At      string          `json:"ts"`
		Payload json.RawMessage `json:"payload"`
	}
	var text struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(item.Body, &in); err != nil {
		return Event{}, fmt.Errorf("event %s: %w", item.Cursor, err)
	}
	if err := json.Unmarshal(in.Payload, &text); err != nil {
		return Event{}, fmt.Errorf("event %s: %w", item.Cursor, err)
	}
	at, err := runs.ParseTime(in.At)
	if err != nil {
		return Event{}, fmt.Errorf("event %s: %w", item.Cursor, err)
	}
	return Event{Cursor: item.Cursor, Run: in.Run, Seq: in.Seq, At: newTime(at), Type: item.Type.String(), Text: text.Text, Payload: in.Payload}, nil
}
