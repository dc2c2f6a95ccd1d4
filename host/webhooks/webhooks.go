// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/upstream"
)

// Options are what the webhooks of a node share.
type Options struct {
	Webhooks  []Config
	Positions logs.Positions    // of the log, by the name of a webhook
	Transport http.RoundTripper // checks addresses; see outbound.NewTransport
	Egress    upstream.Egress
	Mark      string // of this server, in upstream.EgressHeader
	Env       func(string) (string, bool)
	Logger    *slog.Logger
	Rooms     Rooms // of all logs of a node; nil: the node has one
}

// Rooms are the rooms of webhooks, by name, for all logs of a node.
type Rooms map[string]*Room

// of returns the room of a webhook.
func (r Rooms) of(name string) *Room {
	if r == nil {
		return &Room{}
	}
	if r[name] == nil {
		r[name] = &Room{}
	}
	return r[name]
}

// Room is the room for deliveries and requests of a webhook.
type Room struct {
	open, sending atomic.Int64

	mu   sync.Mutex
	next time.Time // from which its position may be written again, for any log
}

// turn returns the time at which the position of the webhook is written for one more log.
func (r *Room) turn(now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next.Before(now) {
		r.next = now
	}
	at := r.next
	r.next = at.Add(savePeriod)
	return at
}

// Webhooks delivers notices.
type Webhooks struct {
	transport http.RoundTripper
	positions logs.Positions
	mark      string
	source    Source
	all       []*webhook
	ctx       context.Context
	cancel    context.CancelFunc
	done      sync.WaitGroup
	requests  context.Context // of requests, which have closeTimeout after ctx has ended
	abort     context.CancelFunc

	mu     sync.Mutex
	needed map[*webhook]uint64 // last batch of the log that the webhook does not need
}

// Open reads the positions of webhooks. One that is new begins at the end of the log. Positions of webhooks that are
// not configured are removed.
func Open(o Options, source Source) (*Webhooks, error) {
	if err := Check(o.Webhooks, o.Env, o.Egress); err != nil {
		return nil, err
	}
	s := &Webhooks{transport: o.Transport, positions: o.Positions, mark: o.Mark, source: source, needed: map[*webhook]uint64{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.requests, s.abort = context.WithCancel(context.Background())
	if err := s.clean(&o); err != nil {
		return nil, err
	}
	for _, c := range o.Webhooks {
		t, err := c.target(o.Env, o.Egress)
		if err != nil {
			return nil, err
		}
		w := &webhook{config: c, target: t, set: s, room: o.Rooms.of(c.Name), log: o.Logger.With("webhook", c.Name), now: time.Now,
			open: map[string][]*delivery{}, ended: make(chan *delivery, sendingMax), stats: Stats{Name: c.Name}}
		p, ok, err := readPosition(o.Positions, c.Name)
		if err != nil {
			return nil, err
		}
		if end := source.End(); !ok || p.Batch > end { // new, or the store is an older copy
			p.Batch, p.Delivered = end, nil
			if err := o.Positions.Write(c.Name, mustJSON(&p)); err != nil {
				return nil, fmt.Errorf("position of webhook %s: %w", c.Name, err)
			}
		}
		w.position, w.read = p, p.Batch
		for _, o := range p.Owed {
			w.owe(o)
		}
		s.needed[w] = p.Batch
		s.all = append(s.all, w)
	}
	return s, nil
}

// clean removes positions that belong to no webhook.
func (s *Webhooks) clean(o *Options) error {
	names, err := o.Positions.Names()
	if err != nil {
		return fmt.Errorf("positions of webhooks: %w", err)
	}
	for _, name := range names {
		if slices.ContainsFunc(o.Webhooks, func(c Config) bool { return c.Name == name }) {
			continue
		}
		if err := o.Positions.Remove(name); err != nil {
			return fmt.Errorf("positions of webhooks: %w", err)
		}
	}
	return nil
}

// Start begins to deliver.
func (s *Webhooks) Start() {
	for _, w := range s.all {
		s.done.Go(func() { w.run(s.ctx, s.source) })
	}
}

// Close waits for requests that are under way, at most closeTimeout, and ends all deliveries. Those that are left
// continue at the next start.
func (s *Webhooks) Close() {
	s.cancel()
	s.done.Wait()
	s.abort()
}

func (s *Webhooks) kept(w *webhook, batch uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.needed[w] = batch
}

// Spare returns the last batch of the log that no webhook needs.
func (s *Webhooks) Spare() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	spare := uint64(math.MaxUint64)
	for _, batch := range s.needed {
		spare = min(spare, batch)
	}
	return spare
}

// Stats returns the figures of each webhook, in the order of the configuration.
func (s *Webhooks) Stats() (all []Stats) {
	for _, w := range s.all {
		w.mu.Lock()
		all = append(all, w.stats)
		w.mu.Unlock()
	}
	return all
}
