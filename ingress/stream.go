// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// Bounds of a stream.
const (
	// QueueBytesMax is the maximum number of bytes that a stream holds for its
	// client, in addition to one frame.
	QueueBytesMax = 64 << 10
	// WriteTimeout is the default for StreamConfig.WriteTimeout.
	WriteTimeout = 8 * time.Second
	// PingInterval is the maximum silence on an idle stream.
	PingInterval = 15 * time.Second
	// RetryMean is the mean reconnect delay sent to clients; the actual delay is
	// within 50 % of it.
	RetryMean = 2 * time.Second

	pageEventsMax = 32
)

// StreamClosed is the last frame of a stream that ends before its run does. It
// has no id: a client resumes after the last frame that has an id.
const StreamClosed = "stream_closed"

// StreamInput is an input of Stream.Step. The set is closed.
type StreamInput interface{ streamInput() }

type (
	// Opened is the first input.
	Opened struct{}
	// Events answers a Read with the stored events that follow the event After
	// of the Read, in order. A page shorter than Limit is the last page.
	Events struct{ Bodies [][]byte }
	// ReadFailed answers a Read that failed.
	ReadFailed struct{ Refusal *actor.Refusal }
	// Appended reports that an event was appended to a watched run.
	Appended struct{ Run actor.CallID }
	// Wrote reports that the client took this many bytes.
	Wrote struct{ Bytes int }
	// Tick reports that time has passed.
	Tick struct{}
	// Closed reports that the client has disconnected.
	Closed struct{}
	// Revoked reports that the client has lost its permission to read.
	Revoked struct{}
	// Draining reports that the server is shutting down.
	Draining struct{}
)

func (Opened) streamInput()     {}
func (Events) streamInput()     {}
func (ReadFailed) streamInput() {}
func (Appended) streamInput()   {}
func (Wrote) streamInput()      {}
func (Tick) streamInput()       {}
func (Closed) streamInput()     {}
func (Revoked) streamInput()    {}
func (Draining) streamInput()   {}

// StreamOutput is an action requested by a stream. Actions MUST be performed in
// order. The set is closed.
type StreamOutput interface{ streamOutput() }

type (
	// Watch requests an Appended input for every later event of a run.
	Watch struct{ Run actor.CallID }
	// Read requests the events of a run that follow event After. At most one Read
	// is outstanding.
	Read struct {
		Run   actor.CallID
		After uint64
		Limit int
	}
	// Write sends bytes, or items if the stream has no frames. The next Write follows once all of them
	// are taken.
	Write struct {
		Bytes []byte
		Items []Item
	}
	// End is the last output. Final is sent after the bytes that are still in
	// flight, as far as the client takes it without delay.
	End struct {
		Reason  EndReason
		Final   []byte
		Items   []Item         // instead of Final if the stream has no frames
		Refusal *actor.Refusal // sent instead of a stream if Reason is Refused
	}
	// Item is an event for a reader in the same process.
	Item struct {
		Cursor string // position behind the event
		Type   runs.Type
		Body   []byte
	}
)

// Size returns the number that Wrote reports once the whole of w is taken.
func (w *Write) Size() int { return len(w.Bytes) + sizeOf(w.Items) }

func sizeOf(items []Item) (n int) {
	for i := range items {
		n += len(items[i].Body)
	}
	return n
}

func (Watch) streamOutput() {}
func (Read) streamOutput()  {}
func (Write) streamOutput() {}
func (End) streamOutput()   {}

// EndReason is the reason why a stream ended.
type EndReason uint8

// The reasons.
const (
	RunEnded       EndReason = iota + 1 // the run has ended and nothing follows
	Refused                             // the stream was refused before anything was written
	ClientGone                          // the client disconnected
	TooSlow                             // the client exceeded the write timeout
	NoAccess                            // the client's permission was revoked
	Drained                             // the server is shutting down
	Broken                              // stored events cannot be read or streamed
	Busy                                // too many subscriptions are open
	SessionDeleted                      // the session of a stream of sessions was deleted
)

var endReasons = [...]struct{ name, detail string }{
	RunEnded:   {"over", ""},
	Refused:    {"refused", ""},
	ClientGone: {"gone", ""},
	TooSlow:    {"slow_reader", "the client did not read in time; reconnect with the id of the last event read as Last-Event-ID"},
	NoAccess:   {"revoked", "the key was revoked or has expired; reconnect with another key and the id of the last event read as Last-Event-ID"},
	Drained:    {"draining", "this server is stopping; reconnect with the id of the last event read as Last-Event-ID"},
	Broken:     {"broken", ""},
	Busy:       {"busy", ""},

	SessionDeleted: {"session_deleted", ""},
}

// String returns the name of the reason.
func (r EndReason) String() string {
	if int(r) < len(endReasons) && endReasons[r].name != "" {
		return endReasons[r].name
	}
	return fmt.Sprintf("unknown(%d)", r)
}

// Stream delivers the events of one run, or of a run and all runs below it, to
// one client. It guarantees:
//
//  1. Every event of a run after the cursor is delivered once, in order.
//  2. The events of a child run follow the event that called it. Events stored
//     before the result of that call precede the result. Events stored before
//     the end of a run above precede that end. The order between runs is
//     otherwise unspecified.
//  3. A stream that starts with the id of a frame as its cursor delivers exactly
//     the events after that frame.
//  4. It holds at most QueueBytesMax bytes and one frame. A client that does not
//     take them within the write timeout is disconnected.
//  5. Its last frame is the end of its run, or a StreamClosed frame with the
//     reason.
type Stream struct {
	tree         bool
	treeOption   string
	show         func(body []byte) []byte // what the reader sees of an event; nil: all
	unframed     bool
	cursor       Cursor // part of the client's cursor not yet assigned to a branch
	retry        actor.Duration
	writeTimeout actor.Duration

	branches  []*branch // root first; each branch follows its parent
	restoring []*branch // stack of branches whose events up to the cursor must be read
	readQueue []*branch // branches to read, next one first
	reading   *branch   // branch of the outstanding Read, or nil
	readLimit int       // limit of the outstanding Read

	started       bool
	pending       Write // the next one
	queued        int   // its size
	inFlight      int   // bytes written and not yet taken
	acked         int   // bytes taken since writeDeadline was last extended
	writeDeadline actor.Time
	nextPing      actor.Time
	rootEnded     bool // the end of the root run was enqueued
	ended         bool

	now     actor.Time
	outputs []StreamOutput
}

// StreamConfig configures a Stream.
type StreamConfig struct {
	Run        actor.CallID
	Tree       bool   // includes all runs below
	TreeOption string // what the client adds for Tree; the default is that of HTTP
	Unframed   bool   // the reader is in this process: it gets items, no pings and no reason of the end
	After      Cursor // position of the client; empty starts at the first event
	Random     uint64 // spreads the reconnect delays of many clients
	// Show returns what the reader sees of the body of an event; nil: all of it.
	Show         func(body []byte) []byte
	WriteTimeout actor.Duration // time for the client to take QueueBytesMax bytes, or all that is pending; 0 means the constant WriteTimeout
}

// NewStream returns a stream that waits for the input Opened.
func NewStream(c StreamConfig) *Stream {
	if len(c.After) == 0 {
		c.After = Cursor{0}
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = WriteTimeout
	}
	if c.TreeOption == "" {
		c.TreeOption = "?tree=1"
	}
	root := &branch{run: c.Run}
	return &Stream{tree: c.Tree, treeOption: c.TreeOption, unframed: c.Unframed, show: c.Show, cursor: c.After, retry: RetryMean/2 + actor.Duration(c.Random%uint64(RetryMean)), writeTimeout: c.WriteTimeout,
		branches: []*branch{root}, restoring: []*branch{root}}
}

// Step applies one input and returns the actions to perform.
func (s *Stream) Step(now actor.Time, in StreamInput) []StreamOutput {
	if s.ended {
		return nil
	}
	s.now, s.outputs = now, nil
	switch in := in.(type) {
	case Opened:
		s.restore()
	case Events:
		s.handleEvents(in.Bodies)
	case ReadFailed:
		s.reading = nil
		s.fail(in.Refusal)
	case Appended:
		s.handleAppended(in.Run)
	case Wrote:
		s.handleWrote(in.Bytes)
	case Closed:
		s.end(End{Reason: ClientGone})
	case Revoked:
		s.end(End{Reason: NoAccess})
	case Draining:
		s.end(End{Reason: Drained})
	}
	s.advance()
	return s.outputs
}

// NextDeadline returns the time by which the next Tick is due.
func (s *Stream) NextDeadline() (actor.Time, bool) {
	switch {
	case s.ended || !s.started:
		return 0, false
	case s.inFlight > 0:
		return s.writeDeadline, true
	}
	return s.nextPing, true
}

func (s *Stream) emit(out StreamOutput) { s.outputs = append(s.outputs, out) }

// advance performs all work that is possible now: it writes, reads or ends.
func (s *Stream) advance() {
	if s.ended || !s.started {
		s.readNext()
		return
	}
	if s.inFlight > 0 && s.now >= s.writeDeadline {
		s.end(End{Reason: TooSlow})
		return
	}
	if s.inFlight == 0 && s.queued == 0 {
		if s.rootEnded {
			s.end(End{Reason: RunEnded})
			return
		}
		if s.now >= s.nextPing {
			s.write(func(b []byte) []byte { return runs.AppendComment(b, "ping") })
		}
	}
	if s.inFlight == 0 && s.queued > 0 {
		s.inFlight, s.acked, s.writeDeadline = s.queued, 0, s.now.Add(s.writeTimeout)
		s.emit(s.pending)
		s.pending, s.queued = Write{}, 0
	}
	s.readNext()
}

// readNext requests the next page of events, unless the queue is full.
func (s *Stream) readNext() {
	if s.ended || s.reading != nil || s.rootEnded || s.full() {
		return
	}
	switch {
	case len(s.restoring) > 0:
		s.reading = s.restoring[len(s.restoring)-1]
		s.readLimit = min(pageEventsMax, int(s.reading.cursorSeq-s.reading.lastSeq))
	case len(s.readQueue) > 0:
		s.reading, s.readQueue = s.readQueue[0], s.readQueue[1:]
		s.readLimit = pageEventsMax
	default:
		return
	}
	s.emit(Read{s.reading.run, s.reading.lastSeq, s.readLimit})
}

func (s *Stream) full() bool { return s.inFlight+s.queued >= QueueBytesMax }

// write appends to the next Write what is no event. A reader in this process has no use for it.
func (s *Stream) write(add func([]byte) []byte) {
	if !s.unframed {
		s.pending.Bytes = add(s.pending.Bytes)
		s.queued = len(s.pending.Bytes)
	}
}

// writeEvent appends an event to the next Write.
func (s *Stream) writeEvent(of runs.Type, body []byte) {
	if s.show != nil {
		body = s.show(body)
	}
	cursor := string(s.appendCursor(nil, s.branches[0]))
	if s.unframed {
		s.pending.Items = append(s.pending.Items, Item{cursor, of, body})
		s.queued += len(body)
		return
	}
	s.write(func(b []byte) []byte {
		return runs.Frame{Name: of.String(), ID: cursor, Data: string(body)}.Append(b)
	})
}

// handleEvents processes the page that answers the outstanding Read.
func (s *Stream) handleEvents(bodies [][]byte) {
	b := s.reading
	invariant.Check(b != nil && len(bodies) <= s.readLimit, "ingress: %d events without a matching Read", len(bodies))
	s.reading = nil
	for _, body := range bodies {
		e, err := runs.Decode(body)
		switch {
		case err != nil:
			s.fail(actor.Refuse(actor.Unavailable, "event %d of run %s cannot be decoded: %v", b.lastSeq+1, b.run, err))
		case e.Run != b.run || e.Seq != b.lastSeq+1:
			s.fail(actor.Refuse(actor.Unavailable, "got event %d of run %s, want event %d of run %s", e.Seq, e.Run, b.lastSeq+1, b.run))
		case len(s.restoring) > 0:
			s.restoreEvent(b, &e)
			continue
		case s.enqueue(b, &e, body):
			continue
		case !b.ended && !slices.Contains(s.readQueue, b):
			s.readFirst(b) // the queue is full: retry later
		}
		b.appended = false
		return
	}
	switch {
	case s.ended:
	case len(s.restoring) > 0:
		s.restorePage(b, len(bodies) < s.readLimit)
	case len(bodies) == s.readLimit:
		s.readFirst(b)
	case b.appended:
		s.readQueue = append(s.readQueue, b)
	}
	b.appended = false
}

// handleAppended schedules a run to be read, after those already scheduled.
func (s *Stream) handleAppended(run actor.CallID) {
	i := slices.IndexFunc(s.branches, func(b *branch) bool { return b.run == run })
	if i < 0 || len(s.restoring) > 0 {
		return
	}
	switch b := s.branches[i]; {
	case b.ended:
	case b == s.reading:
		b.appended = true // the outstanding Read may have missed the event
	case !slices.Contains(s.readQueue, b):
		s.readQueue = append(s.readQueue, b)
	}
}

func (s *Stream) handleWrote(n int) {
	invariant.Check(n >= 0 && n <= s.inFlight, "ingress: %d bytes taken, %d in flight", n, s.inFlight)
	s.inFlight, s.acked = s.inFlight-n, s.acked+n
	if s.acked >= QueueBytesMax {
		s.acked, s.writeDeadline = 0, s.now.Add(s.writeTimeout)
	}
	if s.inFlight == 0 {
		s.nextPing = s.now.Add(PingInterval)
	}
}

// fail ends the stream because of an error. Before the stream has started, the
// error may be the client's and becomes a refusal.
func (s *Stream) fail(r *actor.Refusal) {
	reason := Broken
	if r.Reason == actor.Busy {
		reason = Busy
	}
	s.end(End{Reason: reason, Refusal: r})
}

func (s *Stream) end(e End) {
	if s.ended {
		return
	}
	s.ended = true
	detail := endReasons[e.Reason].detail
	switch {
	case !s.started && e.Reason == Drained:
		e.Reason, e.Refusal = Refused, &actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: "this server is stopping; retry later"}
	case !s.started && e.Refusal != nil:
		e.Reason = Refused
	case e.Refusal != nil:
		detail = e.Refusal.Detail
	}
	rest := s.queued
	if e.Reason == Drained || e.Reason == Broken || e.Reason == Busy {
		e.Final, e.Items, rest = s.pending.Bytes, s.pending.Items, 0
	}
	endSent := s.rootEnded && rest == 0
	if s.started && detail != "" && !endSent && !s.unframed {
		data := fmt.Appendf(nil, `{"reason":%q,"detail":`, e.Reason)
		data, _ = jsontext.AppendQuote(data, detail) // a refusal's detail is valid UTF-8
		e.Final = runs.Frame{Name: StreamClosed, Data: string(append(data, '}'))}.Append(e.Final)
	}
	s.pending, s.queued, s.readQueue, s.restoring = Write{}, 0, nil, nil
	s.emit(e)
}
