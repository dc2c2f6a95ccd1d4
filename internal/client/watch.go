// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

const (
	// KeyCheckInterval is the period of the checks that the key of a waiting client is still valid.
	KeyCheckInterval = 500 * time.Millisecond

	forever      = 24 * time.Hour
	pollInterval = 100 * time.Millisecond // of a run that cannot be followed
)

// ErrRevoked is the error of a wait of a client whose API key was revoked or has expired.
var ErrRevoked = errors.New("the key was revoked or has expired")

// Subject is what a Watch follows: a run, or else a session of the client.
type Subject struct {
	Run     actor.CallID
	Session string
}

// Watch notifies a reader of events when to read again. Each Wait may return without new events, so a
// reader that finds none waits again. To miss no event, a reader MUST call Follow before its first read.
// A Watch has one user at a time.
//
// A reader passes the error of a failed read to Away. If the node is away, the next Wait returns once it
// is back.
type Watch struct {
	client *Client
	ends   <-chan struct{}

	updates  <-chan struct{} // of the main subject, which needs no goroutine; nil if there is none
	appended bool            // the main subject may have new events that its user was not told of
	back     <-chan struct{} // the node is back; nil unless it is away
	poll     bool            // the main subject cannot be followed, and is read again and again
	checked  time.Time       // last look at the key
	timer    *time.Timer

	wake  chan struct{} // capacity 1: there are news
	mu    sync.Mutex
	news  []Subject
	stops map[Subject]func() // ends subscriptions
}

// Watch returns a watch of nothing yet, which ends with the given channel. The caller MUST call Close.
func (c *Client) Watch(ends <-chan struct{}) *Watch {
	return &Watch{client: c, ends: ends, wake: make(chan struct{}, 1), stops: map[Subject]func(){}}
}

// Close ends all subscriptions. It may be called from any goroutine, also during a Wait.
func (w *Watch) Close() {
	w.mu.Lock()
	stops := w.stops
	w.stops = nil
	w.mu.Unlock()
	if stops == nil {
		return
	}
	for _, stop := range stops {
		stop()
	}
}

// Follow subscribes to the events of the main subject. A watch has one. Its new events end a Wait, but
// News does not name it.
func (w *Watch) Follow(s Subject) error {
	updates, stop, err := w.subscribe(s)
	if err == nil {
		w.updates = updates
		w.keep(s, stop)
	}
	return err
}

// FollowOrPoll is Follow for a reader that needs no subscription. While the node has too many, a Wait
// takes pollInterval.
func (w *Watch) FollowOrPoll(s Subject) error {
	err := w.Follow(s)
	if r := (*actor.Refusal)(nil); errors.As(err, &r) && r.Reason == actor.Busy {
		w.poll, err = true, nil
	}
	return err
}

// Forward subscribes to the events of a further subject. News names those that have new events.
func (w *Watch) Forward(s Subject) error {
	updates, stop, err := w.subscribe(s)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	w.keep(s, func() {
		stop()
		close(ended)
	})
	go func() {
		for {
			select {
			case _, open := <-updates:
				if !open {
					updates = nil // the next read returns the reason
				}
				w.announce(s)
			case <-ended:
				return
			}
		}
	}()
	return nil
}

func (w *Watch) subscribe(s Subject) (updates <-chan struct{}, stop func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	return w.client.Node.Follow(ctx, command.Follow{By: w.client.By, Run: s.Run, Session: s.Session})
}

// keep stores how to end a subscription, unless the watch is closed already.
func (w *Watch) keep(s Subject, stop func()) {
	w.mu.Lock()
	if w.stops != nil {
		w.stops[s] = stop
		stop = nil
	}
	w.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// Unfollow ends the subscription to a subject, if there is one.
func (w *Watch) Unfollow(s Subject) {
	w.mu.Lock()
	stop := w.stops[s]
	delete(w.stops, s)
	w.mu.Unlock()
	if stop != nil {
		stop()
	}
}

func (w *Watch) announce(s Subject) {
	w.mu.Lock()
	known := false
	for _, other := range w.news {
		known = known || other == s
	}
	if !known {
		w.news = append(w.news, s)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// Wake receives a value when News has some, for a user that waits for other things too.
func (w *Watch) Wake() <-chan struct{} { return w.wake }

// News returns the forwarded subjects that have new events since the last call.
func (w *Watch) News() []Subject {
	w.mu.Lock()
	defer w.mu.Unlock()
	news := w.news
	w.news = nil
	return news
}

// Away reports whether the error of a read says that the node is away.
func (w *Watch) Away(err error) bool {
	away := (*command.AwayError)(nil)
	if errors.As(err, &away) {
		w.back = away.Back
	}
	return away != nil
}

// IsAway reports whether a read waits for the node.
func (w *Watch) IsAway() bool { return w.back != nil }

// Check returns the error of Wait if the watch has ended, without blocking.
func (w *Watch) Check(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	default:
	}
	select {
	case <-w.ends:
		return command.ErrClosed
	default:
	}
	if w.client.Key != "" && time.Since(w.checked) >= KeyCheckInterval {
		if w.checked = time.Now(); !w.client.Keys.Valid(w.client.Key) {
			return ErrRevoked
		}
	}
	return nil
}

// Await blocks until there may be news: see Wait.
func (w *Watch) Await(ctx context.Context) error {
	_, err := w.Wait(ctx, forever)
	return err
}

// Wait blocks until there may be new events, at most for the given time, and reports whether there may be
// some. Its error means that the watch has ended: the error of ctx, command.ErrClosed after the channel of
// the watch was closed, or ErrRevoked.
func (w *Watch) Wait(ctx context.Context, most time.Duration) (news bool, err error) {
	if w.poll {
		most = min(most, pollInterval)
	}
	for due := time.Now().Add(most); ; {
		if err := w.Check(ctx); err != nil {
			return false, err
		}
		left := time.Until(due)
		if left <= 0 {
			return w.poll, nil
		}
		if w.client.Key != "" {
			left = min(left, KeyCheckInterval)
		}
		if w.timer == nil {
			w.timer = time.NewTimer(left)
		} else {
			w.timer.Reset(left)
		}
		select {
		case _, open := <-w.updates:
			if w.appended = true; !open {
				w.updates = nil // the next read returns the reason
			}
			return true, nil
		case <-w.wake:
			return true, nil
		case <-w.back:
			w.back = nil
			return true, nil
		case <-ctx.Done():
			return false, ctx.Err()
		case <-w.ends:
			return false, command.ErrClosed
		case <-w.timer.C:
		}
	}
}
