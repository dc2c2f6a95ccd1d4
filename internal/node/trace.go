// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
)

const (
	tracePendingMax = 1 << 16 // maximum number of unwritten events
	traceBytesMax   = 1 << 30 // maximum size of a trace file
	traceInterval   = 50 * time.Millisecond
)

// traceFile writes the history of a node to a file from its own goroutine. Events
// above tracePendingMax or traceBytesMax are dropped. The file records the number
// and position of dropped events.
type traceFile struct {
	file    *os.File
	out     *bufio.Writer
	log     *slog.Logger
	stop    chan struct{}
	stopped chan struct{}

	mu            sync.Mutex
	named         map[history.TraceAgent]bool
	pendingAgents []history.TraceAgent // agents to write before the pending events
	pending       []history.Event
	lost          int // events dropped since the last flush

	written, missing int
	err              error
}

// openTrace creates or truncates the file and writes its header.
func openTrace(path, node string, l dispatcher.Limits, definitions []actor.Definition, log *slog.Logger) (*traceFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	h := history.TraceHeader{Source: "serve " + node, Limits: history.TraceLimits{
		AgentCallDepthMax: l.AgentCallDepthMax, AgentConcurrentCallsMax: l.AgentConcurrentCallsMax,
		MaxPendingPerActor: l.MaxPendingPerActor, AgentCallTimeoutMax: l.AgentCallTimeoutMax}}
	t := &traceFile{file: f, out: bufio.NewWriterSize(f, 1<<18), log: log, stop: make(chan struct{}), stopped: make(chan struct{}), named: map[history.TraceAgent]bool{}}
	t.addAgents(definitions)
	h.Agents, t.pendingAgents = t.pendingAgents, nil
	t.write(h.AppendTo(nil))
	go t.run()
	return t, nil
}

// addAgents adds agents that the file does not declare yet. They are written before
// the pending events.
func (t *traceFile) addAgents(definitions []actor.Definition) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range definitions {
		def := &definitions[i]
		a := history.TraceAgent{Name: def.Name, Volatile: def.Durability == actor.Volatile,
			Interleaved: def.Turns == actor.Interleaved, ByActor: def.Recursion == actor.ByActor}
		if !t.named[a] {
			t.named[a] = true
			t.pendingAgents = append(t.pendingAgents, a)
		}
	}
	slices.SortFunc(t.pendingAgents, func(a, b history.TraceAgent) int { return strings.Compare(a.Name, b.Name) })
}

// recorder returns a function that enqueues events and never blocks on the file. It
// returns nil if t is nil.
func (t *traceFile) recorder() func([]history.Event) {
	if t == nil {
		return nil
	}
	return func(events []history.Event) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.lost > 0 || len(t.pending)+len(events) > tracePendingMax {
			t.lost += len(events)
			return
		}
		t.pending = append(t.pending, events...)
	}
}

func (t *traceFile) run() {
	defer close(t.stopped)
	tick := time.NewTicker(traceInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.flush()
		case <-t.stop:
			t.flush()
			return
		}
	}
}

// flush writes the pending events and the number of events dropped after them.
func (t *traceFile) flush() {
	t.mu.Lock()
	events, lost, agents := t.pending, t.lost, t.pendingAgents
	t.pending, t.lost, t.pendingAgents = nil, 0, nil
	t.mu.Unlock()
	var line []byte
	if len(agents) > 0 {
		t.write(history.AppendAgents(nil, agents))
	}
	for i := range events {
		if t.written > traceBytesMax {
			lost += len(events) - i
			break
		}
		line = events[i].AppendJSON(line[:0])
		t.write(line)
	}
	if lost > 0 {
		t.write(history.AppendLost(nil, lost))
		if t.missing == 0 {
			t.log.Warn("trace events dropped", "file", t.file.Name(), "events", lost)
		}
		t.missing += lost
	}
	if err := t.out.Flush(); err != nil && t.err == nil {
		t.err = err
		t.log.Error("trace write failed", "error", err.Error())
	}
}

func (t *traceFile) write(line []byte) {
	n, err := t.out.Write(line)
	t.written += n
	if t.err == nil {
		t.err = err
	}
}

// Close writes the pending events and closes the file.
func (t *traceFile) Close() error {
	if t == nil {
		return nil
	}
	close(t.stop)
	<-t.stopped
	if t.missing > 0 {
		t.log.Warn("trace incomplete", "file", t.file.Name(), "events_missing", t.missing)
	}
	return errors.Join(t.err, t.file.Close())
}
