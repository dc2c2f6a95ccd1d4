// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"sync"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/webhooks"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// logHooks are the webhooks of a node; nil if it has none. All notices of a run are of one log, and each log that the
// node writes has webhooks of its own.
type logHooks struct {
	of   perLog[*webhooks.Webhooks]
	open func(log int, from *notices) (*webhooks.Webhooks, error)
}

// openWebhooks opens the webhooks of a node.
func openWebhooks(c *Config, s storage, log *logs.Log, mark string, logger *slog.Logger) (*logHooks, error) {
	if len(c.Webhooks) == 0 {
		return nil, nil
	}
	transport, egress, env, err := c.egress()
	if err != nil {
		return nil, err
	}
	l := &logHooks{of: perLog[*webhooks.Webhooks]{all: make([]*webhooks.Webhooks, log.Count()), selected: make([]*logs.Selected, log.Count())}}
	rooms := webhooks.Rooms{}
	l.open = func(n int, from *notices) (*webhooks.Webhooks, error) {
		o := webhooks.Options{Webhooks: c.Webhooks, Positions: webhookPositions(c, s, n), Transport: transport, Egress: egress, Mark: mark, Env: env, Logger: logger, Rooms: rooms}
		if n == 0 {
			from.offers = c.Offers // which are in no log
		}
		from.store = s
		return webhooks.Open(o, from)
	}
	for n := range log.Count() {
		if log.Owns(n) {
			if err := l.add(n, log); err != nil {
				return nil, err
			}
		}
	}
	return l, nil
}

// add opens the webhooks of a log.
func (l *logHooks) add(log int, of *logs.Log) error {
	end := store.LogEnd{Node: of.Node(log), Anchor: of.Synced(log)}
	selected := of.Select(log, (*store.Entry).MayNote)
	w, err := l.open(log, &notices{end: end, selected: selected})
	if err != nil {
		of.Unselect(selected)
		return err
	}
	l.of.set(log, w, selected)
	return nil
}

// adopt starts the webhooks of a log that the node begins to write.
func (l *logHooks) adopt(log int, of *logs.Log) error {
	if l == nil {
		return nil
	}
	err := l.add(log, of)
	if err == nil {
		l.of.get(log).Start()
	}
	return err
}

// drop ends the webhooks of a log that another node will write.
func (l *logHooks) drop(log int, of *logs.Log) {
	if l == nil {
		return
	}
	if w, selected := l.of.take(log); w != nil {
		w.Close()
		of.Unselect(selected)
	}
}

func (l *logHooks) start() {
	for _, w := range l.of.each() {
		w.Start()
	}
}

// close closes all at once, because each may wait for its requests.
func (l *logHooks) close() {
	if l == nil {
		return
	}
	var closing sync.WaitGroup
	for _, w := range l.of.each() {
		closing.Go(w.Close)
	}
	closing.Wait()
}

// spare returns the last batch of a log that no webhook needs.
func (l *logHooks) spare(log int) uint64 {
	if l == nil {
		return math.MaxUint64
	}
	if w := l.of.get(log); w != nil {
		return w.Spare()
	}
	return 0
}

// stats returns the figures of each webhook over the logs of the node.
func (l *logHooks) stats() (all []webhooks.Stats) {
	for _, w := range l.of.each() {
		for i, s := range w.Stats() {
			if i == len(all) {
				all = append(all, webhooks.Stats{Name: s.Name})
			}
			sum := &all[i]
			sum.Delivered, sum.Failed, sum.GivenUp, sum.Waiting = sum.Delivered+s.Delivered, sum.Failed+s.Failed, sum.GivenUp+s.GivenUp, sum.Waiting+s.Waiting
			if s.Oldest != 0 && (sum.Oldest == 0 || s.Oldest < sum.Oldest) {
				sum.Oldest = s.Oldest
			}
		}
	}
	return all
}

// egress returns what requests of the node itself need: those of webhooks and of traces.
func (c *Config) egress() (transport http.RoundTripper, egress upstream.Egress, env func(string) (string, bool), err error) {
	if transport, err = outbound.NewTransport(c.Outbound); err != nil {
		return nil, egress, nil, err
	}
	if egress, err = upstream.NewEgress(c.Outbound.Allow); err != nil {
		return nil, egress, nil, fmt.Errorf("outbound: %w", err)
	}
	egress.Remedy = c.Outbound.Remedy
	if env = c.Outbound.Env; env == nil {
		env = os.LookupEnv
	}
	return transport, egress, env, nil
}

// notices reads the notices of a node from a log. It implements webhooks.Source.
type notices struct {
	store    storage
	end      store.LogEnd
	selected *logs.Selected
	offers   func() map[string]string
}

// End implements webhooks.Source.
func (n *notices) End() uint64 { return n.end.End.Batch }

// Changed implements webhooks.Source.
func (n *notices) Changed() <-chan struct{} { return n.selected.Changed() }

// Offers implements webhooks.Source.
func (n *notices) Offers() map[string]string {
	if n.offers == nil {
		return nil
	}
	return n.offers()
}

// Notices implements webhooks.Source.
func (n *notices) Notices(ctx context.Context, after uint64, room int) (page webhooks.Page, err error) {
	for page.Upto = after; len(page.All) < room && ctx.Err() == nil; {
		first, last, synced := n.selected.After(page.Upto)
		if first == 0 {
			page.Upto = max(page.Upto, synced)
			return page, nil
		}
		if page.Upto, err = n.read(&page, first, last, room); err != nil {
			return page, err
		}
	}
	return page, ctx.Err()
}

// read adds the notices of batches from first to last, and returns the last batch that it has read. It stops before
// last once it has at least as many notices as room says.
func (n *notices) read(page *webhooks.Page, first, last uint64, room int) (upto uint64, err error) {
	type noted struct {
		batch uint64
		of    actor.ID
		event runs.Event
	}
	var all []noted
	upto = last
	err = n.store.EachNoted(n.end.Node, first, last, func(batch uint64, of actor.ID, e *runs.Event) bool {
		if len(page.All)+len(all) >= room && all[len(all)-1].batch != batch {
			upto = all[len(all)-1].batch
			return false
		}
		all = append(all, noted{batch, of, *e})
		return true
	})
	for i := 0; i < len(all) && err == nil; i++ {
		err = n.add(page, all[i].batch, all[i].of, &all[i].event)
	}
	return upto, err
}

// add adds the notices of an event, unless it was deleted.
func (n *notices) add(page *webhooks.Page, batch uint64, of actor.ID, e *runs.Event) error {
	owner, ok, err := n.store.Run(of.Tenant, e.Run)
	if err != nil || !ok {
		return err
	}
	found, err := n.store.Events(of.Tenant, e.Run, e.Seq-1, 1)
	if errors.As(err, new(store.EventsDropped)) || errors.As(err, new(store.Gone)) || err == nil && len(found) == 0 {
		return nil
	}
	var whole runs.Event
	if err == nil {
		whole, err = runs.Decode(found[0].Body)
	}
	if err != nil {
		return fmt.Errorf("event %d of run %s: %w", e.Seq, e.Run, err)
	}
	user := ""
	for _, kind := range whole.Notices() {
		if kind == runs.NoticeRunFailed && owner.Root != e.Run {
			continue // of the caller, which decides what its failure means
		}
		if user == "" {
			user = n.user(of.Tenant, owner.Root)
		}
		page.All = append(page.All, webhooks.Notice{Kind: kind, Batch: batch, Owner: owner.Actor, Root: owner.Root, User: user, Event: whole})
	}
	return nil
}

// user returns the principal of a root run; "" if it is unknown.
func (n *notices) user(tenant string, root actor.CallID) string {
	found, err := n.store.Events(tenant, root, 0, 1)
	if err != nil || len(found) == 0 {
		return ""
	}
	e, err := runs.Decode(found[0].Body)
	if err != nil {
		return ""
	}
	return e.Principal
}
