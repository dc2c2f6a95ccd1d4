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
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// streamReader is somebody who reads the stream of a run to its end, whatever comes
// in between: it connects again with the id of what it read last. It keeps a
// ledger of its own, by which the streams are judged.
type streamReader struct {
	w            *Simulation
	no           int
	choiceStream StreamID // of its choices
	run          actor.CallID
	tree         bool
	agentKind    actor.AgentKind
	keyNumber    int // with which it may listen
	conn         *streamConn
	progress     []runProgress // of each run
	lastEventID  string        // the id of what it read last
	resumePoints []resumePoint
	answer       runs.Said
	done         bool // it has read the end
}

// runProgress is what a listener has read of one run.
type runProgress struct {
	run     actor.CallID
	seq     uint64
	ended   bool
	digests []uint64 // of its events, also of those that it reads once more
	events  []runs.Event
}

// resumePoint is a place to which a listener may go back.
type resumePoint struct {
	id   string
	seqs []uint64 // beside read
}

// streamConn is a stream of production's with its client at the other end.
type streamConn struct {
	reader      *streamReader
	node        *node
	process     uint64
	stream      *ingress.Stream
	parser      *upstream.Parser
	watched     []actor.CallID
	pendingNews []actor.CallID // of them, of which word is on its way
	timerAt     actor.Time
	unread      int // bytes that it has not taken
	slow        bool
	stray       bool // it asked for a place that is none
	closed      bool
}

// maybeReadStream may have somebody read the run of a client's call, from now on or a
// little later, when it may be over.
func (w *Simulation) maybeReadStream(run actor.CallID, c *client) {
	to := c.to
	defer w.setStream(w.setStream(topicReader + c.stream&ownerMask))
	if w.manual || w.isVolatile(to.Agent) || !w.wantsStream() {
		return
	}
	l := &streamReader{w: w, no: len(w.streamReaders), choiceStream: w.queue.stream, run: run, tree: w.entropy.Int(3) == 2, agentKind: w.agentKind(to.Agent), keyNumber: w.readerKeyNumber, progress: []runProgress{{run: run}}}
	w.streamReaders = append(w.streamReaders, l)
	w.openReaders++
	wait := w.between(0, 100*time.Millisecond)
	if w.entropy.Int(5) == 4 {
		wait = w.between(0, 10*time.Second)
	}
	w.after(wait, l.connect)
}

// connect opens a stream behind what was read.
func (l *streamReader) connect() {
	w := l.w
	n := w.drawNode()
	if n == nil {
		w.after(time.Second, l.connect)
		return
	}
	if len(l.resumePoints) > 0 && w.faultFires(ClientStaleCursor) {
		at := w.entropy.Int(len(l.resumePoints))
		l.rewind(l.resumePoints[at])
		l.resumePoints = l.resumePoints[:at+1]
	}
	var after ingress.Cursor
	if l.lastEventID != "" {
		c, refusal := ingress.ParseCursor(l.lastEventID)
		if refusal != nil {
			w.fail(specs.StreamIsDense, fmt.Sprintf("listener %d was given the id %q, which is no place: %v", l.no, l.lastEventID, refusal))
			return
		}
		after = c
	}
	stray := w.faultFires(ClientStrayCursor)
	if stray {
		after = l.drawStrayCursor()
	}
	l.recordProgress(&l.progress[0], "listen", l.progress[0].seq)
	w.log.note(w.now, "listener %d reads run %s at %s behind %q", l.no, l.run.Short(), n.id, l.lastEventID)
	c := &streamConn{reader: l, node: n, process: n.process, stray: stray, parser: upstream.NewParser(upstream.StreamLimits{}),
		stream: ingress.NewStream(ingress.StreamConfig{Run: l.run, Tree: l.tree, After: after, Random: w.random()})}
	l.conn = c
	n.streams = append(n.streams, c)
	c.step(ingress.Opened{})
}

// drawStrayCursor draws a place at which no stream of its run goes on.
func (l *streamReader) drawStrayCursor() ingress.Cursor {
	far := uint64(1_000_000 + l.w.entropy.Int(8))
	if !l.tree {
		return [...]ingress.Cursor{{far}, {1, 1}, {far, 0, 1}}[l.w.entropy.Int(3)]
	}
	return [...]ingress.Cursor{{far}, {0, 1}, {1, 0, 0, 0, far}, {far, far}}[l.w.entropy.Int(4)]
}

// rewind forgets what was read behind a place.
func (l *streamReader) rewind(m resumePoint) {
	again := 0
	for i := range l.progress {
		seq := uint64(0)
		if i < len(m.seqs) {
			seq = m.seqs[i]
		}
		again += int(l.progress[i].seq - seq)
		l.progress[i].seq, l.progress[i].ended = seq, false
		l.recordProgress(&l.progress[i], "listen", seq)
	}
	if again == 0 {
		return
	}
	l.w.recordFault(ClientStaleCursor, "listener %d goes back to %q, %d events", l.no, m.id, again)
	l.lastEventID, l.answer = m.id, runs.Said{}
	root := &l.progress[0]
	for i := range root.events[:root.seq] {
		l.answer.Take(&root.events[i])
	}
	root.events = root.events[:root.seq]
}

// reconnect has the listener connect again.
func (l *streamReader) reconnect(after time.Duration) {
	if l.conn = nil; !l.done {
		l.w.after(after, l.connect)
	}
}

// step advances the stream by one input, and does what it then wants.
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

// after runs something as long as the connection stands.
func (c *streamConn) after(d time.Duration, do func()) {
	c.node.after(d, func() {
		if !c.closed {
			do()
		}
	})
}

// readEvents reads what is stored, as soon as the store can be reached.
func (c *streamConn) readEvents(r ingress.Read) {
	w := c.reader.w
	if w.net.storeUnreachable(c.node, w.now) {
		c.after(storeRetryInterval, func() { c.readEvents(r) })
		return
	}
	if w.faultFires(DiskReadFailed) {
		w.recordFault(DiskReadFailed, "%s cannot read the events of run %s", c.node.id, r.Run.Short())
		c.step(ingress.ReadFailed{Refusal: actor.Refuse(actor.Unavailable, "the events of run %s cannot be read now", r.Run)})
		return
	}
	stored, err := store.Events(w.kv, actor.DefaultTenant, r.Run, r.After, r.Limit)
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

// write carries bytes to the client, who takes them in pieces, or does not.
func (c *streamConn) write(b []byte) {
	w := c.reader.w
	c.unread = len(b)
	wait := w.between(50*time.Microsecond, 5*time.Millisecond)
	if w.faultFires(ClientSlowReader) {
		c.slow = true
		wait = w.between(9*time.Second, 20*time.Second)
	}
	hangUp := w.faultFires(ClientDisconnect)
	c.after(wait, func() {
		k := len(b)
		if w.entropy.Int(4) == 3 || hangUp {
			k = w.entropy.Int(len(b)) + 1
		}
		c.unread -= k
		if !c.receive(b[:k]) {
			return
		}
		if hangUp {
			w.recordFault(ClientDisconnect, "listener %d hangs up", c.reader.no)
			c.close()
			c.reader.reconnect(w.between(time.Millisecond, 2*time.Second))
			return
		}
		if k < len(b) {
			c.write(b[k:])
		}
		c.step(ingress.Wrote{Bytes: k})
	})
}

// receive is what has come to the client; false if it is done listening.
func (c *streamConn) receive(b []byte) bool {
	frames, refusal := c.parser.Parse(b)
	for _, f := range frames {
		if f.Name != ingress.StreamClosed {
			c.reader.receiveFrame(f)
		}
	}
	if refusal != nil {
		c.reader.fail("reads what is no stream: %v", refusal)
	}
	if c.reader.done {
		c.close()
	}
	return c.reader.w.violation == nil && !c.reader.done
}

// close ends the connection from the client's side.
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

// handleEnd is the stream's own end.
func (c *streamConn) handleEnd(e ingress.End) {
	w, l := c.reader.w, c.reader
	if e.Reason == ingress.ClientGone {
		return
	}
	if c.unread == 0 && !c.receive(e.Final) {
		return
	}
	c.detach()
	w.log.note(w.now, "the stream of listener %d ends: %s", l.no, e.Reason)
	foreseen := e.Refusal != nil && e.Refusal.Reason == actor.Unavailable
	switch e.Reason {
	case ingress.TooSlow:
		if c.slow {
			w.recordFault(ClientSlowReader, "listener %d is sent away", l.no)
		}
	case ingress.Refused, ingress.Broken:
		if foreseen { // the store could not be read, or the node stops
			break
		}
		if c.stray && e.Reason == ingress.Refused && e.Refusal.Reason == actor.Invalid {
			w.recordFault(ClientStrayCursor, "listener %d is told: %v", l.no, e.Refusal)
			break
		}
		l.fail("is told that there is no such place: %v", e.Refusal)
		return
	case ingress.RunEnded:
		if !l.done {
			l.fail("is told that all was said behind %q, and has not read the end", l.lastEventID)
		}
		return
	}
	l.reconnect(w.between(time.Millisecond, 2*time.Second))
}

func (l *streamReader) fail(format string, args ...any) {
	l.w.fail(specs.StreamIsDense, fmt.Sprintf("listener %d of run %s ", l.no, l.run)+fmt.Sprintf(format, args...))
}

// receiveFrame enters a frame into the ledger.
func (l *streamReader) receiveFrame(f runs.Frame) {
	e, err := runs.Decode([]byte(f.Data))
	if err != nil {
		l.fail("reads what is no event: %v", err)
		return
	}
	i := slices.IndexFunc(l.progress, func(r runProgress) bool { return r.run == e.Run })
	switch {
	case l.done || i >= 0 && l.progress[i].ended:
		l.fail("reads event %d of run %s behind its end", e.Seq, e.Run)
		return
	case i < 0:
		l.fail("reads of run %s, of which it has not heard", e.Run)
		return
	case f.Name != e.Type.String() || f.ID == "" || !l.tree && f.ID != fmt.Sprint(e.Seq):
		l.fail("reads event %d, %s, in a frame %q with the id %q", e.Seq, e.Type, f.Name, f.ID)
		return
	}
	l.recordProgress(&l.progress[i], "hear", e.Seq)
	l.w.log.note(l.w.now, "listener %d hears %s", l.no, &e)
	r := &l.progress[i]
	r.seq, r.ended, l.lastEventID = e.Seq, e.Type.Ends(), f.ID
	digest := fnv.New64a()
	digest.Write([]byte(f.Data))
	if d := digest.Sum64(); e.Seq > uint64(len(r.digests)) {
		r.digests = append(r.digests, d)
	} else if r.digests[e.Seq-1] != d {
		l.fail("reads another event %d of run %s than before", e.Seq, e.Run)
	}
	if l.tree && e.Type == runs.AgentCalledChild && !slices.ContainsFunc(l.progress, func(r runProgress) bool { return r.run == e.Child }) {
		l.progress = append(l.progress, runProgress{run: e.Child})
	}
	if l.w.entropy.Int(8) == 7 {
		l.saveResumePoint()
	}
	if i == 0 {
		l.receiveRootEvent(e)
	}
}

// recordProgress tells the specs what the listener hears of a run, or where it goes on.
func (l *streamReader) recordProgress(r *runProgress, what string, seq uint64) {
	l.w.emit(history.Event{Kind: history.Perform, From: actor.Address{Node: l.w.nodes[0].id}, Call: r.run, What: what, N: seq, Count: l.no})
}

// saveResumePoint notes a place to which the listener may go back.
func (l *streamReader) saveResumePoint() {
	m := resumePoint{id: l.lastEventID}
	for i := range l.progress {
		m.seqs = append(m.seqs, l.progress[i].seq)
	}
	l.resumePoints = append(l.resumePoints, m)
}

// receiveRootEvent takes in an event of the run itself. In the end its pieces are its text.
func (l *streamReader) receiveRootEvent(e runs.Event) {
	root := &l.progress[0]
	root.events = append(root.events, e)
	l.answer.Take(&e)
	if !e.Type.Ends() {
		return
	}
	l.done = true
	l.w.openReaders--
	l.w.Stats.Points[StreamRead]++
	text, _ := l.answer.Streamed()
	if e.Type == runs.RunDone && l.agentKind != actor.Native && text != e.Text {
		l.w.fail(specs.AttemptAnnounced, fmt.Sprintf("the pieces of run %s come to %.80q, its answer is %.80q", l.run, text, e.Text))
	}
}

// notifyStreams tells the streams that watch a run of an event more.
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

// dropStreams ends the streams of a node that crashes. What else it may have made
// durable the others have to look for.
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

// injectReconnectStorm has all who listen lose their streams, and come back at once, a few times.
func (w *Simulation) injectReconnectStorm(times int) {
	var cut []*streamConn
	for _, n := range w.nodes {
		cut = append(cut, n.streams...)
	}
	if len(cut) == 0 {
		return
	}
	w.recordFault(ClientReconnectStorm, "%d listeners lose their streams", len(cut))
	for _, c := range cut {
		c.close()
		c.reader.reconnect(w.between(0, 20*time.Millisecond))
	}
	if times > 1 {
		w.after(w.between(time.Millisecond, 100*time.Millisecond), func() { w.injectReconnectStorm(times - 1) })
	}
}

// injectRevokedKey takes the right to listen from all who have the present key. They come
// back with the next.
func (w *Simulation) injectRevokedKey() {
	var ended []*streamConn
	for _, n := range w.nodes {
		for _, c := range n.streams {
			if c.reader.keyNumber == w.readerKeyNumber {
				ended = append(ended, c)
			}
		}
	}
	if len(ended) == 0 {
		return
	}
	w.recordFault(ClientRevokedKey, "key %d of %d listeners is not good any more", w.readerKeyNumber, len(ended))
	w.readerKeyNumber++
	for _, c := range ended {
		c.reader.keyNumber = w.readerKeyNumber
		c.reader.recordProgress(&c.reader.progress[0], "revoke", 0)
		c.step(ingress.Revoked{})
	}
}
