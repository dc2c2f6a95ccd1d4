// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// awayReader is a node with one event of a run, that may be away.
type awayReader struct {
	*followed
	away  error // nil: it is not away
	reads int
}

func (n *awayReader) Lookup(_ context.Context, c command.Lookup) (command.Result, error) {
	n.reads++
	if n.away != nil {
		return nil, n.away
	}
	q := c.Query.(command.EventsQuery)
	e := runs.Event{Seq: 1, At: 1, Type: runs.UserInput, Run: q.Run, Actor: actor.NewID("a", "s")}
	return command.Events{Run: q.Run, After: 1, All: []command.Event{{Body: runs.Encode(e)}}}, nil
}

// A read of a stream waits for a node that is away, and is repeated once it is back.
func TestStreamWaitsForNodeThatIsAway(t *testing.T) {
	back := make(chan struct{})
	n := &awayReader{followed: newFollowed(), away: &command.AwayError{Back: back, Refusal: actor.RefuseUnavailable(time.Second, "away")}}
	s := (&Client{Node: n}).Stream(ingress.StreamConfig{Run: run1.Run, Unframed: true}, nil, func() actor.Time { return 1 })
	defer s.Close()
	if err := s.Start(); !s.Away(err) || !s.IsAway() {
		t.Fatalf("%v; the node is not away", err)
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Advance(gone); !errors.Is(err, context.Canceled) || n.reads != 1 {
		t.Errorf("%v after %d reads, want one read", err, n.reads)
	}
	close(back)
	if err := s.Advance(context.Background()); err != nil || s.IsAway() {
		t.Fatalf("%v", err)
	}
	if err := s.Advance(context.Background()); err != nil || !s.IsAway() || n.reads != 2 { // it has left again
		t.Errorf("%v after %d reads, want two and a node that is away", err, n.reads)
	}
	n.away = nil
	if err := s.Advance(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := s.Advance(context.Background()); err != nil || n.reads != 3 || s.Unwritten.Size() == 0 {
		t.Errorf("%v after %d reads, %d bytes to write", err, n.reads, s.Unwritten.Size())
	}
}
