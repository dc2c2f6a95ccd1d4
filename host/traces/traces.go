// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

const (
	// StaleAfter is the age at which a span that the collector does not take is dropped.
	StaleAfter = time.Hour

	pendingMax  = 2048 // spans in memory that wait to be sent
	batchMax    = 256  // spans of a request
	batchBytes  = 1 << 20
	pendingSize = 32 << 20 // bytes of texts of the spans in memory; beyond it they are dropped
	parentsMax  = 4096     // open runs whose client's span is remembered
	itemsAtOnce = 64

	collectEvery  = 500 * time.Millisecond // spans that end meanwhile share a request
	backoffMin    = time.Second
	backoffMax    = time.Minute
	answerTimeout = 10 * time.Second
	answerBytes   = 64 << 10
	reportEvery   = time.Minute
	saveEvery     = 2 * time.Second

	// positionName is the name of the position of the traces of a log.
	positionName = "traces"
)

// Item is an entry of the log that begins or closes spans.
type Item struct {
	Batch uint64
	Owner actor.ID
	Run   actor.CallID
	Trace string // of a root call that was accepted; else ""
	Seq   uint64 // of the event that ends or interrupts the run; 0 of an accepted call
}

// Source is the log of a node.
type Source interface {
	// End returns the last batch of the log that was written before the start.
	End() uint64
	// Changed returns a channel that receives a value when there may be more items.
	Changed() <-chan struct{}
	// Items returns the items of the batches behind the batch after. It reads whole batches until it has at least as
	// many items as room says, and returns the last batch that it has read.
	Items(ctx context.Context, after uint64, room int) (all []Item, upto uint64, err error)
	// Root returns the root of the tree of a run; false if the run is unknown.
	Root(tenant string, run actor.CallID) (actor.CallID, bool, error)
	// Events passes the events of a run up to one to a function. Those that were deleted or cut are missing.
	Events(tenant string, run actor.CallID, upto uint64, each func(*runs.Event)) error
}

// Options are what Open needs.
type Options struct {
	Config
	Positions logs.Positions    // of the log, which has one by the name positionName
	Service   string            // name of this server in spans
	Transport http.RoundTripper // checks addresses; see outbound.NewTransport
	Egress    upstream.Egress
	Mark      string // of this server, in upstream.EgressHeader
	Env       func(string) (string, bool)
	Logger    *slog.Logger
	Room      *Room // of all logs of a node; nil: the node has one
}

// Room is the room in memory for the spans of all logs of a node. The zero value is empty.
type Room struct{ spans, bytes atomic.Int64 }

// take reports whether there was room for a span of this size.
func (r *Room) take(size int) bool {
	if spans, bytes := r.spans.Add(1), r.bytes.Add(int64(size)); spans <= pendingMax && bytes <= pendingSize {
		return true
	}
	r.leave(size)
	return false
}

// leave makes room of a span.
func (r *Room) leave(size int) {
	r.spans.Add(-1)
	r.bytes.Add(-int64(size))
}

// Stats are the figures.
type Stats struct {
	Sent    uint64
	Dropped uint64
	Waiting int
}

// Traces sends spans.
type Traces struct {
	Options
	source  Source
	target  target
	cancel  context.CancelFunc
	done    chan struct{}
	changed <-chan struct{}

	position position
	read     uint64    // batch up to which the log was read
	pending  []waiting // in the order of the log
	most     int       // spans of the next request, after the collector has refused more as too many; 0: batchMax
	dirty    bool
	saved    time.Time
	unsaved  bool  // the last write of the position failed
	failing  error // of the last request; nil: it succeeded

	mu    sync.Mutex
	stats Stats
}

// waiting is a span that waits to be sent.
type waiting struct {
	batch uint64
	traced
}

// position is how far a log is sent.
type position struct {
	Batch   uint64            `json:"batch"`   // up to which all is sent
	Parents map[string]string `json:"parents"` // spans of clients by the root runs that began in them
}

// readPosition returns the position of a log; false if there is none.
func readPosition(from logs.Positions) (p position, ok bool, err error) {
	b, ok, err := from.Read(positionName)
	if err == nil && ok {
		if err = json.Unmarshal(b, &p); err != nil {
			err = fmt.Errorf("%w; delete %s to continue at the end of the log, without the spans before", err, from.Place(positionName))
		}
	}
	if err != nil {
		return p, false, fmt.Errorf("position of traces: %w", err)
	}
	return p, ok, nil
}

// Batch returns the batch that the position of a log names; false if there is none.
func Batch(of logs.Positions) (batch uint64, ok bool, err error) {
	p, ok, err := readPosition(of)
	return p.Batch, ok, err
}

// Move writes the position of a log for the logs of a copy of its store, and removes it. The argument last has the last
// batches of these logs at the batch of the position.
func Move(from logs.Positions, to []logs.Positions, last []uint64) error {
	p, ok, err := readPosition(from)
	if err != nil || !ok {
		return err
	}
	for log, positions := range to {
		t := Traces{Options: Options{Positions: positions}, position: position{last[log], p.Parents}} // a run is in one of the logs
		if err := t.save(); err != nil {
			return err
		}
	}
	return from.Remove(positionName)
}

// Open reads the position. Without one, the traces begin at the end of the log.
func Open(o Options, source Source) (*Traces, error) {
	t := &Traces{Options: o, source: source, done: make(chan struct{}), changed: source.Changed()}
	if t.Room == nil {
		t.Room = &Room{}
	}
	var err error
	if t.target, err = o.target(o.Env, o.Egress); err != nil {
		return nil, fmt.Errorf("otel.%w", err)
	}
	found := false
	if t.position, found, err = readPosition(o.Positions); err != nil {
		return nil, err
	}
	if end := source.End(); !found || t.position.Batch > end { // new, or the store is an older copy
		t.position = position{Batch: end}
		if err := t.save(); err != nil {
			return nil, fmt.Errorf("position of traces: %w", err)
		}
	}
	if t.position.Parents == nil {
		t.position.Parents = map[string]string{}
	}
	t.read = t.position.Batch
	return t, nil
}

// Start begins to send.
func (t *Traces) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	go t.run(ctx)
}

// Close ends the work. Spans that were not sent are sent after the next start.
func (t *Traces) Close() {
	if t == nil || t.cancel == nil {
		return
	}
	t.cancel()
	<-t.done
}

// Stats returns the figures.
func (t *Traces) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}

func (t *Traces) count(change func(*Stats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.stats)
}

func (t *Traces) run(ctx context.Context) {
	defer close(t.done)
	wait, due := time.NewTimer(0), time.Now()
	defer wait.Stop()
	after := func(d time.Duration) { due = time.Now().Add(d); wait.Reset(d) }
	report := time.NewTicker(reportEvery)
	defer report.Stop()
	backoff, reported := time.Duration(0), uint64(0)
	var retry time.Time
	for {
		select {
		case <-ctx.Done():
			if err := t.save(); err != nil && !errors.Is(err, logs.ErrNotOwner) {
				t.Logger.Error("the position of traces cannot be written: after a restart spans are sent again", "error", err.Error())
			}
			for i := range t.pending {
				t.Room.leave(t.pending[i].size())
			}
			return
		case <-report.C:
			if lost := t.Stats().Dropped; lost > reported || t.failing != nil {
				reason := "the collector has rejected them"
				if t.failing != nil {
					reason = t.failing.Error()
				}
				t.Logger.Warn("spans are not sent", "dropped", lost-reported, "waiting", len(t.pending), "error", reason)
				reported = lost
			}
			continue
		case <-t.changed:
			if time.Until(due) > collectEvery { // a change does not put off what is due
				after(collectEvery)
			}
			continue
		case <-wait.C:
		}
		next := time.Duration(0)
		t.fill(ctx)
		if now := time.Now(); len(t.pending) > 0 && !now.Before(retry) {
			switch asked, err := t.send(ctx); {
			case ctx.Err() != nil:
				continue
			case err != nil:
				backoff = min(max(2*backoff, backoffMin), backoffMax)
				t.failing, retry = err, now.Add(max(backoff, min(asked, backoffMax)))
				t.dropStale(now)
			default:
				t.failing, backoff = nil, 0
			}
		}
		switch left := time.Until(retry); {
		case len(t.pending) == 0:
			next = saveEvery
		case left > 0:
			next = left
		}
		if t.dirty && time.Since(t.saved) >= saveEvery {
			switch err := t.save(); {
			case errors.Is(err, logs.ErrNotOwner):
				t.Logger.Warn("the spans of a log are not sent from here any more: another process has the log, and continues")
				t.cancel()
				continue
			case err != nil && !t.unsaved: // one line for each time that it begins to fail
				t.Logger.Error("the position of traces cannot be written: it is tried again, and after a restart before then spans are sent again", "error", err.Error())
				t.unsaved = true
			case err == nil && t.unsaved:
				t.Logger.Info("the position of traces is written again")
				t.unsaved = false
			}
		}
		t.count(func(s *Stats) { s.Waiting = len(t.pending) })
		after(next)
	}
}

// fill reads the log until enough spans wait.
func (t *Traces) fill(ctx context.Context) {
	for t.Room.spans.Load() < pendingMax/2 && ctx.Err() == nil {
		items, upto, err := t.source.Items(ctx, t.read, itemsAtOnce)
		if err != nil {
			if ctx.Err() == nil {
				t.Logger.Error("the log cannot be read for traces", "error", err.Error())
			}
			return
		}
		if upto == t.read {
			return
		}
		for _, i := range items {
			t.add(&i)
		}
		if t.read = upto; len(t.pending) == 0 {
			t.position.Batch, t.dirty = upto, true
		}
	}
}

// add adds the spans of an item.
func (t *Traces) add(i *Item) {
	if i.Seq == 0 {
		if parent, ok := upstream.ParentSpan(i.Trace); ok && len(t.position.Parents) < parentsMax {
			t.position.Parents[i.Run.String()] = hex.EncodeToString(parent[:])
		}
		return
	}
	root, ok, err := t.source.Root(i.Owner.Tenant, i.Run)
	if err == nil && !ok { // its session was deleted
		delete(t.position.Parents, i.Run.String())
	}
	if err != nil || !ok {
		return
	}
	first := "" // trace of the first event
	s := newSegment(i.Run, i.Owner, t.Content)
	if root == i.Run {
		if b, err := hex.DecodeString(t.position.Parents[root.String()]); err == nil && len(b) == len(s.parent) {
			s.parent = runs.SpanID(b)
		}
	}
	var closed []span
	ended := false
	err = t.source.Events(i.Owner.Tenant, i.Run, i.Seq, func(e *runs.Event) {
		if e.Seq == 1 {
			first = e.Trace
		}
		if all := s.add(e); all != nil {
			if closed = nil; e.Seq == i.Seq {
				closed, ended = all, e.Type.Ends()
			}
		}
	})
	if err != nil {
		t.Logger.Error("the events of a run cannot be read for traces", "run", i.Run.String(), "error", err.Error())
		return
	}
	if root != i.Run {
		first = t.firstTrace(i.Owner.Tenant, root)
	}
	trace := cmp.Or(first, hex.EncodeToString(root[:]))
	if ended && root == i.Run {
		delete(t.position.Parents, root.String())
	}
	for _, one := range closed {
		if !t.Room.take(one.size()) {
			s.dropped++
			continue
		}
		t.pending = append(t.pending, waiting{i.Batch, traced{trace, one}})
	}
	if s.dropped > 0 {
		t.count(func(st *Stats) { st.Dropped += uint64(s.dropped) })
	}
}

// firstTrace returns the trace of the first event of a run; "" if it has none.
func (t *Traces) firstTrace(tenant string, run actor.CallID) (trace string) {
	_ = t.source.Events(tenant, run, 1, func(e *runs.Event) { trace = e.Trace }) // without them it is that of the root
	return trace
}

// statusFailure is the answer of a collector that did not take the spans.
type statusFailure int

func (s statusFailure) Error() string {
	return fmt.Sprintf("the collector answered with status %d, want 200", int(s))
}

// isFinal reports whether a repeat of the request would get the same answer.
func (s statusFailure) isFinal() bool {
	return s >= 300 && s < 500 && s != http.StatusRequestTimeout && s != http.StatusTooManyRequests
}

// send sends the first spans that wait. It returns the time that the collector asks to wait.
func (t *Traces) send(ctx context.Context) (after time.Duration, err error) {
	n := 1
	for size := t.pending[0].size(); n < min(len(t.pending), cmp.Or(t.most, batchMax)); n++ {
		if size += t.pending[n].size(); size > batchBytes {
			break
		}
	}
	all := make([]traced, n)
	for i := range all {
		all[i] = t.pending[i].traced
	}
	after, err = t.post(ctx, all)
	var status statusFailure
	switch final := errors.As(err, &status) && status.isFinal(); {
	case err == nil:
		t.most = 0
		t.count(func(s *Stats) { s.Sent += uint64(n) })
	case status == http.StatusRequestEntityTooLarge && n > 1:
		t.most = n / 2
		return 0, err
	case final:
		t.count(func(s *Stats) { s.Dropped += uint64(n) })
	default:
		return after, err
	}
	t.remove(n)
	return after, err
}

// remove removes the first spans that wait.
func (t *Traces) remove(n int) {
	last := t.pending[n-1].batch
	for i := range n {
		t.Room.leave(t.pending[i].size())
	}
	if t.pending = t.pending[n:]; len(t.pending) == 0 {
		t.pending, last = nil, t.read
	} else if t.pending[0].batch == last {
		last--
	}
	t.position.Batch, t.dirty = max(t.position.Batch, last), true
}

// dropStale drops the spans that wait since StaleAfter.
func (t *Traces) dropStale(now time.Time) {
	before, n := actor.Time(now.Add(-StaleAfter).UnixNano()), 0
	for n < len(t.pending) && t.pending[n].to < before {
		n++
	}
	if n > 0 {
		t.count(func(s *Stats) { s.Dropped += uint64(n) })
		t.remove(n)
	}
}

// post sends spans once.
func (t *Traces) post(ctx context.Context, all []traced) (after time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	content, err := encode(t.Service, all)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.target.url, bytes.NewReader(content))
	if err != nil {
		return 0, fmt.Errorf("request: %w", err)
	}
	r.GetBody = nil // the transport repeats nothing by itself
	for name, value := range t.target.headers {
		r.Header.Set(name, value)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "troupe")
	r.Header.Set(upstream.EgressHeader, cmp.Or(t.Mark, "1"))
	answer, err := t.Transport.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, answerBytes))
	_ = answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		if s, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 16); err == nil {
			after = time.Duration(s) * time.Second
		}
		return after, statusFailure(answer.StatusCode)
	}
	return 0, err
}

// save writes the position.
func (t *Traces) save() error {
	b, err := json.Marshal(t.position)
	if err == nil {
		err = t.Positions.Write(positionName, b)
	}
	t.saved, t.dirty = time.Now(), err != nil
	return err
}
