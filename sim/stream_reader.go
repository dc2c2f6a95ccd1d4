// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/upstream"
)

// streamReader is a client that reads the event stream of a run to its end. After a
// lost connection it reconnects with the id of the last event it read. It keeps its
// own record of the events, against which the streams are checked.
type streamReader struct {
	w            *Simulation
	no           int
	choiceStream StreamID // entropy stream of the reader's choices
	run          actor.CallID
	tenant       string
	tree         bool
	inPieces     bool   // the agent has answers in pieces
	textBefore   string // in pieces, of the last answer before the present one that was not empty
	keyNumber    int    // number of the API key that it uses
	conn         *streamConn
	progress     []runProgress // by run; the first is the requested one
	lastEventID  string        // id of the last event read
	resumePoints []resumePoint
	answer       runs.AnswerText
	done         bool // the final event was read
}

// runProgress is the position of a reader in the events of one run.
type runProgress struct {
	run     actor.CallID
	seq     uint64
	ended   bool
	digests []uint64 // of all events ever read; a rewind keeps them, to compare the events that are read again
	events  []runs.Event
}

// resumePoint is a position to which a reader may rewind.
type resumePoint struct {
	id   string
	seqs []uint64 // by run, parallel to progress
}

// streamConn connects a production event stream to its reader.
type streamConn struct {
	reader      *streamReader
	node        *node
	process     uint64
	stream      *ingress.Stream
	parser      *upstream.Parser
	watched     []actor.CallID
	pendingNews []actor.CallID // watched runs with a notification in flight
	timerAt     actor.Time
	unread      int // number of bytes sent and not yet read by the client
	slow        bool
	readDue     actor.Time // when the client reads the unread bytes, unless it is slow
	stray       bool       // the requested cursor does not exist in the stream
	closed      bool
}

// maybeReadStream sometimes starts a stream reader for the run of a client's call. The
// reader connects after a delay, possibly after the run has ended.
func (w *Simulation) maybeReadStream(run actor.CallID, c *client) {
	to := c.to
	defer w.setStream(w.setStream(topicReader + c.stream&ownerMask))
	if w.manual || w.plan.Retention || w.isVolatile(to.Agent) || !w.wantsStream() {
		return
	}
	r := &streamReader{w: w, no: len(w.streamReaders), choiceStream: w.queue.stream, run: run, tenant: to.Tenant, tree: w.entropy.Int(3) == 2, inPieces: w.agentKind(to.Agent) != actor.Native && !isInward(&w.plan, to.Agent), keyNumber: w.readerKeyNumber, progress: []runProgress{{run: run}}}
	w.streamReaders = append(w.streamReaders, r)
	w.openReaders++
	wait := w.between(0, 100*time.Millisecond)
	if w.entropy.Int(5) == 4 {
		wait = w.between(0, 10*time.Second)
	}
	w.after(wait, r.connect)
}

// connect opens a stream that starts after the last event read.
func (r *streamReader) connect() {
	w := r.w
	n := w.drawNode()
	if n == nil {
		w.after(time.Second, r.connect)
		return
	}
	if len(r.resumePoints) > 0 && w.faultFires(ClientStaleCursor) {
		at, last := w.entropy.Int(len(r.resumePoints)), r.lastEventID
		if w.acts(ClientStaleCursor) {
			r.rewind(r.resumePoints[at])
			r.resumePoints = r.resumePoints[:at+1]
		}
		recordChange(w, ClientStaleCursor, last, r.lastEventID, "stream reader %d rewinds from %q to %q", r.no, last, r.lastEventID)
	}
	var after ingress.Cursor
	if r.lastEventID != "" {
		c, refusal := ingress.ParseCursor(r.lastEventID)
		if refusal != nil {
			w.fail(specs.StreamIsDense, fmt.Sprintf("stream reader %d received the event id %q, which is no valid cursor: %v", r.no, r.lastEventID, refusal))
			return
		}
		after = c
	}
	stray := w.faultFires(ClientStrayCursor)
	if stray {
		if cursor := r.drawStrayCursor(); w.acts(ClientStrayCursor) {
			after = cursor
		}
	}
	r.recordProgress(&r.progress[0], "listen", r.progress[0].seq)
	w.log.note(w.now, "stream reader %d reads run %s at %s after %q", r.no, r.run.Short(), n.id, r.lastEventID)
	c := &streamConn{reader: r, node: n, process: n.process, stray: stray, parser: upstream.NewParser(upstream.StreamLimits{}),
		stream: ingress.NewStream(ingress.StreamConfig{Run: r.run, Tree: r.tree, After: after, Random: w.random()})}
	r.conn = c
	n.streams = append(n.streams, c)
	c.step(ingress.Opened{})
}

// drawStrayCursor draws a cursor that does not exist in the stream of the run.
func (r *streamReader) drawStrayCursor() ingress.Cursor {
	beyond := uint64(1_000_000 + r.w.entropy.Int(8))
	if !r.tree {
		return [...]ingress.Cursor{{beyond}, {1, 1}, {beyond, 0, 1}}[r.w.entropy.Int(3)]
	}
	return [...]ingress.Cursor{{beyond}, {0, 1}, {1, 0, 0, 0, beyond}, {beyond, beyond}}[r.w.entropy.Int(4)]
}

// rewind discards the progress made after a resume point.
func (r *streamReader) rewind(p resumePoint) {
	discarded := 0
	for i := range r.progress {
		seq := uint64(0)
		if i < len(p.seqs) {
			seq = p.seqs[i]
		}
		discarded += int(r.progress[i].seq - seq)
		r.progress[i].seq, r.progress[i].ended = seq, false
		r.recordProgress(&r.progress[i], "listen", seq)
	}
	if discarded == 0 {
		return
	}
	r.lastEventID, r.answer = p.id, runs.AnswerText{}
	root := &r.progress[0]
	for i := range root.events[:root.seq] {
		r.answer.Apply(&root.events[i])
	}
	root.events = root.events[:root.seq]
}

// reconnect makes the reader connect again after a delay, unless it is done.
func (r *streamReader) reconnect(after time.Duration) {
	if r.conn = nil; !r.done {
		r.w.after(after, r.connect)
	}
}

// step passes one input to the stream and performs the resulting operations.
func (c *streamConn) step(in ingress.StreamInput) {
	if c.closed {
		return
	}
	w, n := c.reader.w, c.node
	for _, out := range c.stream.Step(w.now, in) {
		switch out := out.(type) {
		case ingress.Watch:
			c.watched = append(c.watched, out.Run)
		case ingress.Read:
			c.after(w.between(20*time.Microsecond, 2*time.Millisecond), func() { c.readEvents(out) })
		case ingress.Write:
			c.write(out.Bytes)
		case ingress.End:
			c.handleEnd(out)
		}
	}
	if due, ok := c.stream.NextDeadline(); ok && !c.closed && (c.timerAt == 0 || c.timerAt > due) {
		c.timerAt = due
		n.after(due.Sub(w.now), func() {
			if !c.closed && c.timerAt == due {
				c.timerAt = 0
				c.step(ingress.Tick{})
			}
		})
	}
}

// after calls the function do once the delay d is over, if the connection is still open.
func (c *streamConn) after(d time.Duration, do func()) {
	c.node.after(d, func() {
		if !c.closed {
			do()
		}
	})
}

// readEvents reads stored events. It retries until the store is reachable.
func (c *streamConn) readEvents(r ingress.Read) {
	w := c.reader.w
	if w.storeRefuses(c.node) || w.isCorrupt() {
		c.after(storeRetryInterval, func() { c.readEvents(r) })
		return
	}
	if w.faultFires(DiskReadFailed) {
		before := c.closed
		if w.acts(DiskReadFailed) {
			c.step(ingress.ReadFailed{Refusal: actor.Refuse(actor.Unavailable, "the events of run %s cannot be read now", r.Run)})
		}
		if recordChange(w, DiskReadFailed, before, c.closed, "%s cannot read the events of run %s", c.node.id, r.Run.Short()) {
			return
		}
	}
	stored, err := w.store.Events(c.reader.tenant, r.Run, r.After, r.Limit)
	if err != nil {
		w.fail(StoreReads, err.Error())
		return
	}
	bodies := make([][]byte, len(stored))
	for i := range stored {
		bodies[i] = stored[i].Body
	}
	c.step(ingress.Events{Bodies: bodies})
}

// write sends bytes to the client, which reads them in pieces, or not at all.
func (c *streamConn) write(b []byte) {
	w := c.reader.w
	c.unread = len(b)
	wait := w.between(50*time.Microsecond, 5*time.Millisecond)
	c.readDue = w.now.Add(wait)
	if w.faultFires(ClientSlowReader) {
		c.slow = true
		wait += w.extraDelay(ClientSlowReader, w.between(9*time.Second, 20*time.Second))
	}
	disconnect := w.faultFires(ClientDisconnect)
	c.after(wait, func() {
		c.countSlowReader("reads late")
		n := len(b)
		if w.entropy.Int(4) == 3 || disconnect {
			n = w.entropy.Int(len(b)) + 1
		}
		c.unread -= n
		if !c.receive(b[:n]) {
			return
		}
		if disconnect {
			if w.acts(ClientDisconnect) {
				c.close()
			}
			if recordChange(w, ClientDisconnect, false, c.closed, "stream reader %d disconnects", c.reader.no) {
				c.reader.reconnect(w.between(time.Millisecond, 2*time.Second))
				return
			}
		}
		if n < len(b) {
			c.write(b[n:])
		}
		c.step(ingress.Wrote{Bytes: n})
	})
}

// countSlowReader counts a slow reader when it reads later than without the fault, or
// when the stream no longer waits for it.
func (c *streamConn) countSlowReader(how string) {
	if c.slow {
		c.slow = false
		recordChange(c.reader.w, ClientSlowReader, c.readDue, c.reader.w.now, "stream reader %d %s", c.reader.no, how)
	}
}

// receive passes bytes to the reader. It reports whether the reader wants more.
func (c *streamConn) receive(b []byte) bool {
	frames, refusal := c.parser.Parse(b)
	for _, f := range frames {
		if f.Name != ingress.StreamClosed {
			c.reader.receiveFrame(f)
		}
	}
	if refusal != nil {
		c.reader.fail("received an invalid stream: %v", refusal)
	}
	if c.reader.done {
		c.close()
	}
	return c.reader.w.violation == nil && !c.reader.done
}

// close closes the connection from the client's side.
func (c *streamConn) close() {
	c.step(ingress.Closed{})
	c.detach()
}

func (c *streamConn) detach() {
	c.closed = true
	if i := slices.Index(c.node.streams, c); i >= 0 {
		c.node.streams = slices.Delete(c.node.streams, i, i+1)
	}
}

// handleEnd handles the end of the stream on the server's side.
func (c *streamConn) handleEnd(e ingress.End) {
	w, r := c.reader.w, c.reader
	if e.Reason == ingress.ClientGone {
		return
	}
	if c.unread == 0 && !c.receive(e.Final) {
		return
	}
	c.detach()
	w.log.note(w.now, "the stream of reader %d ends: %s", r.no, e.Reason)
	expected := e.Refusal != nil && e.Refusal.Reason == actor.Unavailable
	switch e.Reason {
	case ingress.TooSlow:
		c.countSlowReader("is disconnected as too slow")
	case ingress.Refused, ingress.Broken:
		if expected { // the store was unreadable, or the node is stopping
			break
		}
		if refused := e.Reason == ingress.Refused && e.Refusal.Reason == actor.Invalid; c.stray && recordChange(w, ClientStrayCursor, false, refused, "stream reader %d is refused: %v", r.no, e.Refusal) {
			break
		}
		r.fail("was refused with a valid cursor: %v", e.Refusal)
		return
	case ingress.RunEnded:
		if !r.done {
			r.fail("received the end of the stream after %q, but no final event", r.lastEventID)
		}
		return
	}
	r.reconnect(w.between(time.Millisecond, 2*time.Second))
}

func (r *streamReader) fail(format string, args ...any) {
	r.w.fail(specs.StreamIsDense, fmt.Sprintf("stream reader %d of run %s ", r.no, r.run)+fmt.Sprintf(format, args...))
}

// receiveFrame checks a frame against the events read so far and records it.
func (r *streamReader) receiveFrame(f runs.Frame) {
	namespaces{r.w}.checkApart(r.tenant, fmt.Sprintf("stream reader %d", r.no), f.Data)
	e, err := runs.Decode([]byte(f.Data))
	if err != nil {
		r.fail("received an invalid event: %v", err)
		return
	}
	i := slices.IndexFunc(r.progress, func(p runProgress) bool { return p.run == e.Run })
	switch {
	case r.done || i >= 0 && r.progress[i].ended:
		r.fail("received event %d of run %s after its final event", e.Seq, e.Run)
		return
	case i < 0:
		r.fail("received an event of the unknown run %s", e.Run)
		return
	case f.Name != e.Type.String() || f.ID == "" || !r.tree && f.ID != fmt.Sprint(e.Seq):
		r.fail("received event %d, %s, in a frame %q with the id %q", e.Seq, e.Type, f.Name, f.ID)
		return
	}
	r.recordProgress(&r.progress[i], "hear", e.Seq)
	r.w.log.note(r.w.now, "stream reader %d receives %s", r.no, &e)
	p := &r.progress[i]
	p.seq, p.ended, r.lastEventID = e.Seq, e.Type.Ends(), f.ID
	digest := fnv.New64a()
	digest.Write([]byte(f.Data))
	if d := digest.Sum64(); e.Seq > uint64(len(p.digests)) {
		p.digests = append(p.digests, d)
	} else if p.digests[e.Seq-1] != d {
		r.fail("received a different event %d of run %s than before", e.Seq, e.Run)
	}
	if r.tree && e.Type == runs.AgentCalledChild && !slices.ContainsFunc(r.progress, func(p runProgress) bool { return p.run == e.Child }) {
		r.progress = append(r.progress, runProgress{run: e.Child})
	}
	if r.w.entropy.Int(8) == 7 {
		r.saveResumePoint()
	}
	if i == 0 {
		r.receiveRootEvent(e)
	}
}

// recordProgress emits a history event for the specs: the reader has read an event of
// a run, or resumes after it.
func (r *streamReader) recordProgress(p *runProgress, step string, seq uint64) {
	r.w.emit(history.Event{Kind: history.Perform, From: actor.Address{Node: r.w.nodes[0].id}, Call: p.run, What: step, N: seq, Count: r.no})
}

// saveResumePoint saves the current position as a resume point.
func (r *streamReader) saveResumePoint() {
	p := resumePoint{id: r.lastEventID}
	for i := range r.progress {
		p.seqs = append(p.seqs, r.progress[i].seq)
	}
	r.resumePoints = append(r.resumePoints, p)
}

// receiveRootEvent records an event of the requested run. At the end of the run, the
// concatenated text pieces MUST equal its final text.
func (r *streamReader) receiveRootEvent(e runs.Event) {
	root := &r.progress[0]
	root.events = append(root.events, e)
	if text, _ := r.answer.Streamed(); e.StartsAnswer() && text != "" {
		r.textBefore = text
	}
	r.answer.Apply(&e)
	if !e.Type.Ends() {
		return
	}
	r.done = true
	r.w.openReaders--
	r.w.Stats.Points[StreamRead]++
	text, _ := r.answer.Streamed()
	if text == "" && e.Text != "" { // the answer after a call of a tool was empty, so the one before counts
		text = r.textBefore
	}
	if e.Type == runs.RunDone && r.inPieces && text != e.Text {
		r.w.fail(specs.AttemptAnnounced, fmt.Sprintf("the text pieces of run %s: got %.80q, want its final text %.80q", r.run, text, e.Text))
	}
}

// notifyStreams notifies the streams that watch the run. It is called when the run has a
// new event.
func (w *Simulation) notifyStreams(run actor.CallID) {
	for _, n := range w.nodes {
		for _, c := range n.streams {
			if slices.Contains(c.watched, run) && !slices.Contains(c.pendingNews, run) {
				c.pendingNews = append(c.pendingNews, run)
				before := w.restoreStream(c.reader.choiceStream)
				c.after(w.between(10*time.Microsecond, 3*time.Millisecond), func() {
					c.pendingNews = slices.DeleteFunc(c.pendingNews, func(r actor.CallID) bool { return r == run })
					c.step(ingress.Appended{Run: run})
				})
				w.restoreStream(before)
			}
		}
	}
}

// dropStreams ends the streams of a crashed node. The streams on other nodes check
// for events that the crash made durable without a notification.
func (w *Simulation) dropStreams(n *node) {
	for _, c := range slices.Clone(n.streams) {
		c.detach()
		c.reader.reconnect(w.between(time.Millisecond, time.Second))
	}
	for _, other := range w.nodes {
		for _, c := range other.streams {
			for _, run := range c.watched {
				c.after(10*time.Millisecond, func() { c.step(ingress.Appended{Run: run}) })
			}
		}
	}
}

// injectReconnectStorm disconnects all stream readers, which reconnect at once. It
// repeats this the given number of times.
func (w *Simulation) injectReconnectStorm(times int) {
	var conns []*streamConn
	for _, n := range w.nodes {
		conns = append(conns, n.streams...)
	}
	if len(conns) == 0 {
		return
	}
	closed := 0
	for _, c := range conns[:w.affectedCount(ClientReconnectStorm, len(conns))] {
		if c.close(); c.closed {
			closed++
		}
		c.reader.reconnect(w.between(0, 20*time.Millisecond))
	}
	recordChange(w, ClientReconnectStorm, 0, closed, "%d stream readers are disconnected", closed)
	if times > 1 {
		w.after(w.between(time.Millisecond, 100*time.Millisecond), func() { w.injectReconnectStorm(times - 1) })
	}
}

// injectRevokedKey revokes the current stream key. Its readers reconnect with the
// next key.
func (w *Simulation) injectRevokedKey() {
	var conns []*streamConn
	for _, n := range w.nodes {
		for _, c := range n.streams {
			if c.reader.keyNumber == w.readerKeyNumber {
				conns = append(conns, c)
			}
		}
	}
	if len(conns) == 0 {
		return
	}
	key, closed := w.readerKeyNumber, 0
	if w.acts(ClientRevokedKey) {
		w.readerKeyNumber++
		for _, c := range conns {
			c.reader.keyNumber = w.readerKeyNumber
			c.reader.recordProgress(&c.reader.progress[0], "revoke", 0)
			if c.step(ingress.Revoked{}); c.closed {
				closed++
			}
		}
	}
	recordChange(w, ClientRevokedKey, 0, closed, "key %d of %d stream readers is revoked", key, closed)
}
