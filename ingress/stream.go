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
	// WriteWithin is how long a client may take for QueueBytesMax, or for what there
	// is, where StreamConfig does not say.
	WriteWithin = 8 * time.Second
	// PingEvery is how long a stream is silent at most.
	PingEvery = 15 * time.Second
	// RetryMean is after how long a client is told to connect again, give or take half of it.
	RetryMean = 2 * time.Second

	pageMax = 32
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
	// Unreadable answers a Read that failed.
	Unreadable struct{ Refusal *actor.Refusal }
	// News says that a run that is watched has an event more.
	News struct{ Run actor.CallID }
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
func (Unreadable) streamInput() {}
func (News) streamInput()       {}
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
		Why     EndReason
		Last    []byte
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
	Over     EndReason = iota + 1 // the run is; nothing follows
	Refused                       // before anything was written
	Gone                          // the client is
	TooSlow                       // the client is
	NoAccess                      // revoked
	Drained                       // this door closes
	Broken                        // what is stored cannot be read, or told
)

var endReasons = [...]struct{ name, detail string }{
	Over:     {"over", ""},
	Refused:  {"refused", ""},
	Gone:     {"gone", ""},
	TooSlow:  {"slow_reader", "what was sent was not read in time; connect again with the id of the last event read as Last-Event-ID"},
	NoAccess: {"revoked", "the key was revoked or has expired; connect again with another one and the id of the last event read as Last-Event-ID"},
	Drained:  {"draining", "this server stops; connect again with the id of the last event read as Last-Event-ID"},
	Broken:   {"broken", ""},
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
	tree   bool
	cursor Cursor // what of it no branch has yet
	retry  actor.Duration
	within actor.Duration

	branches []*branch // the root first, each behind the one that called it
	recall   []*branch // their events up to the client's place are still to be gone through; the last is next
	due      []*branch // to be read, the first next
	reading  *branch   // a Read is out
	limit    int       // of that

	begun   bool
	pending []byte // to be handed over
	out     int    // bytes handed over and not taken
	taken   int    // since the client's patience was last renewed
	until   actor.Time
	ping    actor.Time
	over    bool // the root's end was told
	ended   bool

	now     actor.Time
	outputs []StreamOutput
}

// StreamConfig says of what a stream tells, and to whom.
type StreamConfig struct {
	Run         actor.CallID
	Tree        bool           // the runs below it, too
	After       Cursor         // how far the client has read
	Chance      uint64         // spreads the times at which many clients come back
	WriteWithin actor.Duration // 0 is the constant of that name
}

// NewStream makes a stream.
func NewStream(c StreamConfig) *Stream {
	if len(c.After) == 0 {
		c.After = Cursor{0}
	}
	if c.WriteWithin == 0 {
		c.WriteWithin = WriteWithin
	}
	root := &branch{run: c.Run}
	return &Stream{tree: c.Tree, cursor: c.After, retry: RetryMean/2 + actor.Duration(c.Chance%uint64(RetryMean)), within: c.WriteWithin,
		branches: []*branch{root}, recall: []*branch{root}}
}

// Step takes one input and says what is to be done.
func (s *Stream) Step(now actor.Time, in StreamInput) []StreamOutput {
	if s.ended {
		return nil
	}
	s.now, s.outputs = now, nil
	switch in := in.(type) {
	case Opened:
		s.open()
	case Events:
		s.events(in.Bodies)
	case Unreadable:
		s.reading = nil
		s.fail(in.Refusal)
	case News:
		s.news(in.Run)
	case Wrote:
		s.wrote(in.Bytes)
	case Closed:
		s.end(End{Why: Gone})
	case Revoked:
		if !mutant.On("revoked-key-honoured") {
			s.end(End{Why: NoAccess})
		}
	case Draining:
		s.end(End{Why: Drained})
	}
	s.goOn()
	return s.outputs
}

// NextDeadline is when the world must say Tick at the latest.
func (s *Stream) NextDeadline() (actor.Time, bool) {
	switch {
	case s.ended || !s.begun:
		return 0, false
	case s.out > 0:
		return s.until, true
	}
	return s.ping, true
}

func (s *Stream) do(out StreamOutput) { s.outputs = append(s.outputs, out) }

// goOn does what can be done now: write, read, end.
func (s *Stream) goOn() {
	if s.ended || !s.begun {
		s.read()
		return
	}
	if s.out > 0 && s.now >= s.until {
		s.end(End{Why: TooSlow})
		return
	}
	if s.out == 0 && len(s.pending) == 0 {
		if s.over {
			s.end(End{Why: Over})
			return
		}
		if s.now >= s.ping {
			s.pending = runs.AppendComment(nil, "ping")
		}
	}
	if s.out == 0 && len(s.pending) > 0 {
		s.out, s.taken, s.until = len(s.pending), 0, s.now.Add(s.within)
		s.do(Write{s.pending})
		s.pending = nil
	}
	s.read()
}

// read asks for the next events, if there is room for what they may be.
func (s *Stream) read() {
	if s.ended || s.reading != nil || s.over || s.full() {
		return
	}
	switch {
	case len(s.recall) > 0:
		s.reading = s.recall[len(s.recall)-1]
		s.limit = min(pageMax, int(s.reading.goal-s.reading.told))
	case len(s.due) > 0:
		s.reading, s.due = s.due[0], s.due[1:]
		s.limit = pageMax
	default:
		return
	}
	s.do(Read{s.reading.run, s.reading.told, s.limit})
}

func (s *Stream) full() bool { return s.out+len(s.pending) >= QueueBytesMax }

// events takes in what was read.
func (s *Stream) events(bodies [][]byte) {
	b := s.reading
	invariant.Check(b != nil && len(bodies) <= s.limit, "ingress: %d events that were not asked for", len(bodies))
	s.reading = nil
	for _, body := range bodies {
		e, err := runs.Decode(body)
		switch {
		case err != nil:
			s.fail(actor.Refuse(actor.Unavailable, "event %d of run %s cannot be read: %v", b.told+1, b.run, err))
		case e.Run != b.run || e.Seq != b.told+1:
			s.fail(actor.Refuse(actor.Unavailable, "event %d of run %s stands where event %d of run %s should", e.Seq, e.Run, b.told+1, b.run))
		case len(s.recall) > 0:
			s.remember(b, &e)
			continue
		case s.tell(b, &e, body):
			continue
		case !b.ended && !slices.Contains(s.due, b):
			s.first(b) // there was no room
		}
		b.news = false
		return
	}
	switch {
	case s.ended:
	case len(s.recall) > 0:
		s.recalled(b, len(bodies) < s.limit)
	case len(bodies) == s.limit:
		s.first(b)
	case b.news:
		s.due = append(s.due, b)
	}
	b.news = false
}

// news has a run read behind those that wait already.
func (s *Stream) news(run actor.CallID) {
	i := slices.IndexFunc(s.branches, func(b *branch) bool { return b.run == run })
	if i < 0 || len(s.recall) > 0 {
		return
	}
	switch b := s.branches[i]; {
	case b.ended:
	case b == s.reading:
		b.news = true // perhaps what is being read has it, perhaps not
	case !slices.Contains(s.due, b):
		s.due = append(s.due, b)
	}
}

func (s *Stream) wrote(n int) {
	invariant.Check(n >= 0 && n <= s.out, "ingress: %d bytes taken, %d were out", n, s.out)
	s.out, s.taken = s.out-n, s.taken+n
	if s.taken >= QueueBytesMax {
		s.taken, s.until = 0, s.now.Add(s.within)
	}
	if s.out == 0 {
		s.ping = s.now.Add(PingEvery)
	}
}

// fail ends the stream over something that is not the client's fault, or, before
// it began, may be.
func (s *Stream) fail(r *actor.Refusal) { s.end(End{Why: Broken, Refusal: r}) }

func (s *Stream) end(e End) {
	if s.ended {
		return
	}
	s.ended = true
	detail := endReasons[e.Why].detail
	switch {
	case !s.begun && e.Why == Drained:
		e.Why, e.Refusal = Refused, &actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: "this server stops; ask again when it is back"}
	case !s.begun && e.Refusal != nil:
		e.Why = Refused
	case e.Refusal != nil:
		detail = e.Refusal.Detail
	}
	rest := s.pending
	if e.Why == Drained || e.Why == Broken {
		e.Last, rest = rest, nil
	}
	told := s.over && len(rest) == 0
	if s.begun && detail != "" && !told {
		data := fmt.Appendf(nil, `{"reason":%q,"detail":`, e.Why)
		data, _ = jsontext.AppendQuote(data, detail) // a refusal's sentence is UTF-8
		e.Last = runs.Frame{Name: StreamClosed, Data: string(append(data, '}'))}.Append(e.Last)
	}
	s.pending, s.due, s.recall = nil, nil, nil
	s.do(e)
}
