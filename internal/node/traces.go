// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/host/traces"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// logTraces are the traces of a node, by the log from which they send spans; nil if it sends none.
type logTraces struct {
	of   perLog[*traces.Traces]
	open func(log int, from *spanLog) (*traces.Traces, error)
}

// openTraces opens the traces of a node.
func openTraces(c *Config, s storage, log *logs.Log, mark string, logger *slog.Logger) (*logTraces, error) {
	if !c.Traces.On() || c.RegistryOnly {
		return nil, nil
	}
	transport, egress, env, err := c.egress()
	if err != nil {
		return nil, err
	}
	l := &logTraces{of: perLog[*traces.Traces]{all: make([]*traces.Traces, log.Count()), selected: make([]*logs.Selected, log.Count())}}
	room := &traces.Room{}
	l.open = func(n int, from *spanLog) (*traces.Traces, error) {
		from.store = s
		return traces.Open(traces.Options{Config: c.Traces, Positions: tracePositions(c, s, n), Service: "troupe", Transport: transport, Egress: egress, Mark: mark, Env: env, Logger: logger, Room: room}, from)
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

// add opens the traces of a log.
func (l *logTraces) add(log int, of *logs.Log) error {
	end := store.LogEnd{Node: of.Node(log), Anchor: of.Synced(log)}
	selected := of.Select(log, (*store.Entry).MayTrace)
	t, err := l.open(log, &spanLog{end: end, selected: selected})
	if err != nil {
		of.Unselect(selected)
		return err
	}
	l.of.set(log, t, selected)
	return nil
}

// adopt starts the traces of a log that the node begins to write.
func (l *logTraces) adopt(log int, of *logs.Log) error {
	if l == nil {
		return nil
	}
	err := l.add(log, of)
	if err == nil {
		l.of.get(log).Start()
	}
	return err
}

// drop ends the traces of a log that another node will write.
func (l *logTraces) drop(log int, of *logs.Log) {
	if l == nil {
		return
	}
	if t, selected := l.of.take(log); t != nil {
		t.Close()
		of.Unselect(selected)
	}
}

func (l *logTraces) start() {
	for _, t := range l.of.each() {
		t.Start()
	}
}

func (l *logTraces) close() {
	if l == nil {
		return
	}
	for _, t := range l.of.each() {
		t.Close()
	}
}

// stats returns the figures over the logs of the node.
func (l *logTraces) stats() (sum traces.Stats) {
	for _, t := range l.of.each() {
		s := t.Stats()
		sum.Sent, sum.Dropped, sum.Waiting = sum.Sent+s.Sent, sum.Dropped+s.Dropped, sum.Waiting+s.Waiting
	}
	return sum
}

// spanLog reads what begins and closes spans from a log. It implements traces.Source.
type spanLog struct {
	store    storage
	end      store.LogEnd
	selected *logs.Selected
}

// End implements traces.Source.
func (s *spanLog) End() uint64 { return s.end.End.Batch }

// Changed implements traces.Source.
func (s *spanLog) Changed() <-chan struct{} { return s.selected.Changed() }

// Items implements traces.Source.
func (s *spanLog) Items(ctx context.Context, after uint64, room int) (all []traces.Item, upto uint64, err error) {
	for upto = after; len(all) < room && ctx.Err() == nil; {
		first, last, synced := s.selected.After(upto)
		if first == 0 {
			return all, max(upto, synced), nil
		}
		upto = last
		err = s.store.EachEntry(s.end.Node, first, last, func(batch uint64, e *store.Entry) bool {
			if n := len(all); n >= room && all[n-1].Batch != batch {
				upto = all[n-1].Batch
				return false
			}
			if actor.IsSystemAgent(e.Actor.Agent) { // of this program
				return true
			}
			if run, trace := e.TraceOf(); trace != "" {
				all = append(all, traces.Item{Batch: batch, Owner: e.Actor, Run: run, Trace: trace})
			} else if run, seq := e.ClosedAt(); seq > 0 {
				all = append(all, traces.Item{Batch: batch, Owner: e.Actor, Run: run, Seq: seq})
			}
			return true
		})
		if err != nil {
			return all, after, err
		}
	}
	return all, upto, ctx.Err()
}

// Root implements traces.Source.
func (s *spanLog) Root(tenant string, run actor.CallID) (actor.CallID, bool, error) {
	owner, ok, err := s.store.Run(tenant, run)
	return owner.Root, ok, err
}

// spanEvents is the number of events of a page.
const spanEvents = 500

// Events implements traces.Source.
func (s *spanLog) Events(tenant string, run actor.CallID, upto uint64, each func(*runs.Event)) error {
	for after := uint64(0); after < upto; {
		page, err := s.store.Events(tenant, run, after, int(min(spanEvents, upto-after)))
		if errors.As(err, new(store.EventsDropped)) || errors.As(err, new(store.Gone)) || err == nil && len(page) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		for _, raw := range page {
			e, err := runs.Decode(raw.Body)
			if err != nil {
				return fmt.Errorf("event %d of run %s: %w", raw.Seq, run, err)
			}
			each(&e)
			after = raw.Seq
		}
	}
	return nil
}
