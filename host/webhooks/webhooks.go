// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/upstream"
)

// Options are what the webhooks of a node share.
type Options struct {
	Webhooks  []Config
	Dir       string            // folder of the files of webhooks
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
type Room struct{ open, sending atomic.Int64 }

// Webhooks delivers notices.
type Webhooks struct {
	transport http.RoundTripper
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

// Open opens the files of webhooks. One that is new begins at the end of the log. Files of webhooks that are not
// configured are deleted.
func Open(o Options, source Source) (*Webhooks, error) {
	if err := Check(o.Webhooks, o.Env, o.Egress); err != nil {
		return nil, err
	}
	s := &Webhooks{transport: o.Transport, mark: o.Mark, source: source, needed: map[*webhook]uint64{}}
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
		w := &webhook{config: c, target: t, path: filepath.Join(o.Dir, c.Name+fileType), set: s, room: o.Rooms.of(c.Name), log: o.Logger.With("webhook", c.Name), now: time.Now,
			open: map[string][]*delivery{}, ended: make(chan *delivery, sendingMax), stats: Stats{Name: c.Name}}
		p, ok, err := readPosition(w.path)
		if err != nil {
			return nil, err
		}
		if end := source.End(); !ok || p.Batch > end { // new, or the store is an older copy
			p.Batch, p.Delivered = end, nil
			if err := p.write(w.path); err != nil {
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

// fileType ends the names of the files of webhooks.
const fileType = ".json"

// clean creates the folder, and deletes files that belong to no webhook.
func (s *Webhooks) clean(o *Options) error {
	if len(o.Webhooks) > 0 {
		if err := os.MkdirAll(o.Dir, 0o700); err != nil {
			return fmt.Errorf("folder of webhooks: %w", err)
		}
	}
	files, err := os.ReadDir(o.Dir)
	if err != nil {
		return nil // there is none
	}
	names := map[string]bool{}
	for _, c := range o.Webhooks {
		names[c.Name+fileType] = true
	}
	for _, f := range files {
		if !names[f.Name()] && (strings.HasSuffix(f.Name(), fileType) || strings.HasPrefix(f.Name(), ".new-")) {
			if err := os.Remove(filepath.Join(o.Dir, f.Name())); err != nil {
				return fmt.Errorf("folder of webhooks: %w", err)
			}
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
