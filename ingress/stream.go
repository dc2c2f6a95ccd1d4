// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/runs"
)

// Bounds of a stream.
const (
	// QueueBytesMax is how much a stream holds that its client has not taken, but
	// for one frame more.
	QueueBytesMax = 64 << 10
	// WriteTimeout is how long a client may take for QueueBytesMax, or for what there
	// is, where StreamConfig does not say.
	WriteTimeout = 8 * time.Second
	// PingInterval is how long a stream is silent at most.
	PingInterval = 15 * time.Second
	// RetryMean is after how long a client is told to connect again, give or take half of it.
	RetryMean = 2 * time.Second

	pageEventsMax = 32
)

// StreamClosed is the last frame of a stream that ends before its run does. It
// has no id: the client goes on behind the last frame that had one.
const StreamClosed = "stream_closed"

// StreamInput is what a world tells a stream. The set is closed.
type StreamInput interface{ streamInput() }

type (
	// Opened is the first input.
	Opened struct{}
	// Events answers a Read: the stored events behind After, in their order; fewer
	// than Limit if there are no more.
	Events struct{ Bodies [][]byte }
	// ReadFailed answers a Read that failed.
	ReadFailed struct{ Refusal *actor.Refusal }
	// Appended says that a run that is watched has an event more.
	Appended struct{ Run actor.CallID }
	// Wrote says that the client took so many bytes more.
	Wrote struct{ Bytes int }
	// Tick says that time has passed.
	Tick struct{}
	// Closed says that the client is gone.
	Closed struct{}
	// Revoked says that the client may not listen any more.
	Revoked struct{}
	// Draining says that this door is about to close.
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

// StreamOutput is what a stream wants of a world, to be done in its order. The
// set is closed.
type StreamOutput interface{ streamOutput() }

type (
	// Watch asks for News of a run from now on.
	Watch struct{ Run actor.CallID }
	// Read asks for the events of a run behind one. There is one Read at a time.
	Read struct {
		Run   actor.CallID
		After uint64
		Limit int
	}
	// Write sends bytes. The next Write comes when all are taken.
	Write struct{ Bytes []byte }
	// End is the last output. What is still to be taken is followed by Last, as far
	// as the client takes it at once.
	End struct {
		Reason  EndReason
		Final   []byte
		Refusal *actor.Refusal // Refused: instead of a stream
	}
)

func (Watch) streamOutput() {}
func (Read) streamOutput()  {}
func (Write) streamOutput() {}
func (End) streamOutput()   {}

// EndReason is why a stream ended.
type EndReason uint8

// The reasons.
const (
	RunEnded   EndReason = iota + 1 // the run is; nothing follows
	Refused                         // before anything was written
	ClientGone                      // the client is
	TooSlow                         // the client is
	NoAccess                        // revoked
	Drained                         // this door closes
	Broken                          // what is stored cannot be read, or told
)

var endReasons = [...]struct{ name, detail string }{
	RunEnded:   {"over", ""},
	Refused:    {"refused", ""},
	ClientGone: {"gone", ""},
	TooSlow:    {"slow_reader", "what was sent was not read in time; connect again with the id of the last event read as Last-Event-ID"},
	NoAccess:   {"revoked", "the key was revoked or has expired; connect again with another one and the id of the last event read as Last-Event-ID"},
	Drained:    {"draining", "this server stops; connect again with the id of the last event read as Last-Event-ID"},
	Broken:     {"broken", ""},
}

// String is the reason's name.
func (r EndReason) String() string {
	if int(r) < len(endReasons) && endReasons[r].name != "" {
		return endReasons[r].name
	}
	return fmt.Sprintf("unknown(%d)", r)
}

// Stream tells one client of a run, or of a run and all below it.
//
//  1. Of each run it tells every event behind the cursor once, in order.
//  2. The events of a run below come after the event that called it, and, as far
//     as they are known by then, before the one that says what came of the call,
//     and before the end of any run above. Otherwise runs mix in any order.
//  3. With the id of any frame as the cursor, the next stream tells what comes
//     behind that frame, and nothing else.
//  4. It holds no more than QueueBytesMax and one frame; a client that does not
//     take that in its time is sent away.
//  5. Its last frame is the end of its run, unless StreamClosed says why not.
type Stream struct {
	tree         bool
	cursor       Cursor // what of it no branch has yet
	retry        actor.Duration
	writeTimeout actor.Duration

	branches  []*branch // the root first, each behind the one that called it
	restoring []*branch // their events up to the client's place are still to be gone through; the last is next
	readQueue []*branch // to be read, the first next
	reading   *branch   // a Read is out
	readLimit int       // of that

	started       bool
	pending       []byte // to be handed over
	inFlight      int    // bytes handed over and not taken
	acked         int    // since the client's patience was last renewed
	writeDeadline actor.Time
	nextPing      actor.Time
	rootEnded     bool // the root's end was told
	ended         bool

	now     actor.Time
	outputs []StreamOutput
}

// StreamConfig says of what a stream tells, and to whom.
type StreamConfig struct {
	Run          actor.CallID
	Tree         bool           // the runs below it, too
	After        Cursor         // how far the client has read
	Random       uint64         // spreads the times at which many clients come back
	WriteTimeout actor.Duration // 0 is the constant of that name
}

// NewStream makes a stream.
func NewStream(c StreamConfig) *Stream {
	if len(c.After) == 0 {
		c.After = Cursor{0}
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = WriteTimeout
	}
	root := &branch{run: c.Run}
	return &Stream{tree: c.Tree, cursor: c.After, retry: RetryMean/2 + actor.Duration(c.Random%uint64(RetryMean)), writeTimeout: c.WriteTimeout,
		branches: []*branch{root}, restoring: []*branch{root}}
}

// Step takes one input and says what is to be done.
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
		if !mutant.On("revoked-key-honoured") {
			s.end(End{Reason: NoAccess})
		}
	case Draining:
		s.end(End{Reason: Drained})
	}
	s.advance()
	return s.outputs
}

// NextDeadline is when the world must say Tick at the latest.
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

// advance does what can be done now: write, read, end.
func (s *Stream) advance() {
	if s.ended || !s.started {
		s.readNext()
		return
	}
	if s.inFlight > 0 && s.now >= s.writeDeadline {
		s.end(End{Reason: TooSlow})
		return
	}
	if s.inFlight == 0 && len(s.pending) == 0 {
		if s.rootEnded {
			s.end(End{Reason: RunEnded})
			return
		}
		if s.now >= s.nextPing {
			s.pending = runs.AppendComment(nil, "ping")
		}
	}
	if s.inFlight == 0 && len(s.pending) > 0 {
		s.inFlight, s.acked, s.writeDeadline = len(s.pending), 0, s.now.Add(s.writeTimeout)
		s.emit(Write{s.pending})
		s.pending = nil
	}
	s.readNext()
}

// readNext asks for the next events, if there is room for what they may be.
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

func (s *Stream) full() bool { return s.inFlight+len(s.pending) >= QueueBytesMax }

// handleEvents takes in what was read.
func (s *Stream) handleEvents(bodies [][]byte) {
	b := s.reading
	invariant.Check(b != nil && len(bodies) <= s.readLimit, "ingress: %d events that were not asked for", len(bodies))
	s.reading = nil
	for _, body := range bodies {
		e, err := runs.Decode(body)
		switch {
		case err != nil:
			s.fail(actor.Refuse(actor.Unavailable, "event %d of run %s cannot be read: %v", b.lastSeq+1, b.run, err))
		case e.Run != b.run || e.Seq != b.lastSeq+1:
			s.fail(actor.Refuse(actor.Unavailable, "event %d of run %s stands where event %d of run %s should", e.Seq, e.Run, b.lastSeq+1, b.run))
		case len(s.restoring) > 0:
			s.restoreEvent(b, &e)
			continue
		case s.enqueue(b, &e, body):
			continue
		case !b.ended && !slices.Contains(s.readQueue, b):
			s.readFirst(b) // there was no room
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

// handleAppended has a run read behind those that wait already.
func (s *Stream) handleAppended(run actor.CallID) {
	i := slices.IndexFunc(s.branches, func(b *branch) bool { return b.run == run })
	if i < 0 || len(s.restoring) > 0 {
		return
	}
	switch b := s.branches[i]; {
	case b.ended:
	case b == s.reading:
		b.appended = true // perhaps what is being read has it, perhaps not
	case !slices.Contains(s.readQueue, b):
		s.readQueue = append(s.readQueue, b)
	}
}

func (s *Stream) handleWrote(n int) {
	invariant.Check(n >= 0 && n <= s.inFlight, "ingress: %d bytes taken, %d were out", n, s.inFlight)
	s.inFlight, s.acked = s.inFlight-n, s.acked+n
	if s.acked >= QueueBytesMax {
		s.acked, s.writeDeadline = 0, s.now.Add(s.writeTimeout)
	}
	if s.inFlight == 0 {
		s.nextPing = s.now.Add(PingInterval)
	}
}

// fail ends the stream over something that is not the client's fault, or, before
// it began, may be.
func (s *Stream) fail(r *actor.Refusal) { s.end(End{Reason: Broken, Refusal: r}) }

func (s *Stream) end(e End) {
	if s.ended {
		return
	}
	s.ended = true
	detail := endReasons[e.Reason].detail
	switch {
	case !s.started && e.Reason == Drained:
		e.Reason, e.Refusal = Refused, &actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: "this server stops; ask again when it is back"}
	case !s.started && e.Refusal != nil:
		e.Reason = Refused
	case e.Refusal != nil:
		detail = e.Refusal.Detail
	}
	rest := s.pending
	if e.Reason == Drained || e.Reason == Broken {
		e.Final, rest = rest, nil
	}
	told := s.rootEnded && len(rest) == 0
	if s.started && detail != "" && !told {
		data := fmt.Appendf(nil, `{"reason":%q,"detail":`, e.Reason)
		data, _ = jsontext.AppendQuote(data, detail) // a refusal's sentence is UTF-8
		e.Final = runs.Frame{Name: StreamClosed, Data: string(append(data, '}'))}.Append(e.Final)
	}
	s.pending, s.readQueue, s.restoring = nil, nil, nil
	s.emit(e)
}
