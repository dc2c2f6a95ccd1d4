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

// listener is somebody who reads the stream of a run to its end, whatever comes
// in between: it connects again with the id of what it read last. It keeps a
// ledger of its own, by which the streams are judged.
type listener struct {
	w      *World
	no     int
	stream StreamID // of its choices
	run    actor.CallID
	tree   bool
	kind   actor.AgentKind
	key    int // with which it may listen
	conn   *connection
	read   []reading // of each run
	last   string    // the id of what it read last
	marks  []mark
	said   runs.Said
	over   bool // it has read the end
}

// reading is what a listener has read of one run.
type reading struct {
	run     actor.CallID
	seq     uint64
	ended   bool
	digests []uint64 // of its events, also of those that it reads once more
	events  []runs.Event
}

// mark is a place to which a listener may go back.
type mark struct {
	id   string
	seqs []uint64 // beside read
}

// connection is a stream of production's with its client at the other end.
type connection struct {
	l       *listener
	n       *node
	process uint64
	stream  *ingress.Stream
	parser  *upstream.Parser
	watched []actor.CallID
	news    []actor.CallID // of them, of which word is on its way
	timer   actor.Time
	out     int // bytes that it has not taken
	slow    bool
	stray   bool // it asked for a place that is none
	over    bool
}

// listenTo may have somebody read the run of a client's call, from now on or a
// little later, when it may be over.
func (w *World) listenTo(run actor.CallID, c *client) {
	to := c.to
	defer w.turn(w.turn(aboutReader + c.stream&whoseMask))
	if w.story || w.isVolatile(to.Agent) || !w.wantsStream() {
		return
	}
	l := &listener{w: w, no: len(w.listeners), stream: w.queue.stream, run: run, tree: w.choose.Int(3) == 2, kind: w.kindOf(to.Agent), key: w.keys, read: []reading{{run: run}}}
	w.listeners = append(w.listeners, l)
	w.listening++
	wait := w.between(0, 100*time.Millisecond)
	if w.choose.Int(5) == 4 {
		wait = w.between(0, 10*time.Second)
	}
	w.after(wait, l.connect)
}

// connect opens a stream behind what was read.
func (l *listener) connect() {
	w := l.w
	n := w.someNode()
	if n == nil {
		w.after(time.Second, l.connect)
		return
	}
	if len(l.marks) > 0 && w.fault(ClientStaleCursor) {
		at := w.choose.Int(len(l.marks))
		l.goBack(l.marks[at])
		l.marks = l.marks[:at+1]
	}
	var after ingress.Cursor
	if l.last != "" {
		c, refusal := ingress.ParseCursor(l.last)
		if refusal != nil {
			w.violate(specs.StreamIsDense, fmt.Sprintf("listener %d was given the id %q, which is no place: %v", l.no, l.last, refusal))
			return
		}
		after = c
	}
	stray := w.fault(ClientStrayCursor)
	if stray {
		after = l.strays()
	}
	l.told(&l.read[0], "listen", l.read[0].seq)
	w.log.world(w.now, "listener %d reads run %s at %s behind %q", l.no, l.run.Short(), n.id, l.last)
	c := &connection{l: l, n: n, process: n.process, stray: stray, parser: upstream.NewParser(upstream.StreamLimits{}),
		stream: ingress.NewStream(ingress.StreamConfig{Run: l.run, Tree: l.tree, After: after, Chance: w.chance()})}
	l.conn = c
	n.streams = append(n.streams, c)
	c.step(ingress.Opened{})
}

// strays draws a place at which no stream of its run goes on.
func (l *listener) strays() ingress.Cursor {
	far := uint64(1_000_000 + l.w.choose.Int(8))
	if !l.tree {
		return [...]ingress.Cursor{{far}, {1, 1}, {far, 0, 1}}[l.w.choose.Int(3)]
	}
	return [...]ingress.Cursor{{far}, {0, 1}, {1, 0, 0, 0, far}, {far, far}}[l.w.choose.Int(4)]
}

// goBack forgets what was read behind a place.
func (l *listener) goBack(m mark) {
	again := 0
	for i := range l.read {
		seq := uint64(0)
		if i < len(m.seqs) {
			seq = m.seqs[i]
		}
		again += int(l.read[i].seq - seq)
		l.read[i].seq, l.read[i].ended = seq, false
		l.told(&l.read[i], "listen", seq)
	}
	if again == 0 {
		return
	}
	l.w.hit(ClientStaleCursor, "listener %d goes back to %q, %d events", l.no, m.id, again)
	l.last, l.said = m.id, runs.Said{}
	root := &l.read[0]
	for i := range root.events[:root.seq] {
		l.said.Take(&root.events[i])
	}
	root.events = root.events[:root.seq]
}

// comeBack has the listener connect again.
func (l *listener) comeBack(after time.Duration) {
	if l.conn = nil; !l.over {
		l.w.after(after, l.connect)
	}
}

// step advances the stream by one input, and does what it then wants.
func (c *connection) step(in ingress.StreamInput) {
	if c.over {
		return
	}
	w, n := c.l.w, c.n
	for _, out := range c.stream.Step(w.now, in) {
		switch out := out.(type) {
		case ingress.Watch:
			c.watched = append(c.watched, out.Run)
		case ingress.Read:
			c.later(w.between(20*time.Microsecond, 2*time.Millisecond), func() { c.fetch(out) })
		case ingress.Write:
			c.send(out.Bytes)
		case ingress.End:
			c.end(out)
		}
	}
	if due, ok := c.stream.NextDeadline(); ok && !c.over && (c.timer == 0 || c.timer > due) {
		c.timer = due
		n.later(due.Sub(w.now), func() {
			if !c.over && c.timer == due {
				c.timer = 0
				c.step(ingress.Tick{})
			}
		})
	}
}

// later runs something as long as the connection stands.
func (c *connection) later(d time.Duration, do func()) {
	c.n.later(d, func() {
		if !c.over {
			do()
		}
	})
}

// fetch reads what is stored, as soon as the store can be reached.
func (c *connection) fetch(r ingress.Read) {
	w := c.l.w
	if w.net.isCut(c.n, w.now) {
		c.later(storeAsked, func() { c.fetch(r) })
		return
	}
	if w.fault(DiskReadFailed) {
		w.hit(DiskReadFailed, "%s cannot read the events of run %s", c.n.id, r.Run.Short())
		c.step(ingress.Unreadable{Refusal: actor.Refuse(actor.Unavailable, "the events of run %s cannot be read now", r.Run)})
		return
	}
	stored, err := store.Events(w.kv, actor.DefaultTenant, r.Run, r.After, r.Limit)
	if err != nil {
		w.violate(StoreReads, err.Error())
		return
	}
	bodies := make([][]byte, len(stored))
	for i := range stored {
		bodies[i] = stored[i].Body
	}
	c.step(ingress.Events{Bodies: bodies})
}

// send carries bytes to the client, who takes them in pieces, or does not.
func (c *connection) send(b []byte) {
	w := c.l.w
	c.out = len(b)
	wait := w.between(50*time.Microsecond, 5*time.Millisecond)
	if w.fault(ClientSlowReader) {
		c.slow = true
		wait = w.between(9*time.Second, 20*time.Second)
	}
	hangUp := w.fault(ClientDisconnect)
	c.later(wait, func() {
		k := len(b)
		if w.choose.Int(4) == 3 || hangUp {
			k = w.choose.Int(len(b)) + 1
		}
		c.out -= k
		if !c.heard(b[:k]) {
			return
		}
		if hangUp {
			w.hit(ClientDisconnect, "listener %d hangs up", c.l.no)
			c.close()
			c.l.comeBack(w.between(time.Millisecond, 2*time.Second))
			return
		}
		if k < len(b) {
			c.send(b[k:])
		}
		c.step(ingress.Wrote{Bytes: k})
	})
}

// heard is what has come to the client; false if it is done listening.
func (c *connection) heard(b []byte) bool {
	frames, refusal := c.parser.Parse(b)
	for _, f := range frames {
		if f.Name != ingress.StreamClosed {
			c.l.hear(f)
		}
	}
	if refusal != nil {
		c.l.wrong("reads what is no stream: %v", refusal)
	}
	if c.l.over {
		c.close()
	}
	return c.l.w.broken == nil && !c.l.over
}

// close ends the connection from the client's side.
func (c *connection) close() {
	c.step(ingress.Closed{})
	c.drop()
}

func (c *connection) drop() {
	c.over = true
	if i := slices.Index(c.n.streams, c); i >= 0 {
		c.n.streams = slices.Delete(c.n.streams, i, i+1)
	}
}

// end is the stream's own end.
func (c *connection) end(e ingress.End) {
	w, l := c.l.w, c.l
	if e.Why == ingress.Gone {
		return
	}
	if c.out == 0 && !c.heard(e.Last) {
		return
	}
	c.drop()
	w.log.world(w.now, "the stream of listener %d ends: %s", l.no, e.Why)
	foreseen := e.Refusal != nil && e.Refusal.Reason == actor.Unavailable
	switch e.Why {
	case ingress.TooSlow:
		if c.slow {
			w.hit(ClientSlowReader, "listener %d is sent away", l.no)
		}
	case ingress.Refused, ingress.Broken:
		if foreseen { // the store could not be read, or the node stops
			break
		}
		if c.stray && e.Why == ingress.Refused && e.Refusal.Reason == actor.Invalid {
			w.hit(ClientStrayCursor, "listener %d is told: %v", l.no, e.Refusal)
			break
		}
		l.wrong("is told that there is no such place: %v", e.Refusal)
		return
	case ingress.Over:
		if !l.over {
			l.wrong("is told that all was said behind %q, and has not read the end", l.last)
		}
		return
	}
	l.comeBack(w.between(time.Millisecond, 2*time.Second))
}

func (l *listener) wrong(format string, args ...any) {
	l.w.violate(specs.StreamIsDense, fmt.Sprintf("listener %d of run %s ", l.no, l.run)+fmt.Sprintf(format, args...))
}

// hear enters a frame into the ledger.
func (l *listener) hear(f runs.Frame) {
	e, err := runs.Decode([]byte(f.Data))
	if err != nil {
		l.wrong("reads what is no event: %v", err)
		return
	}
	i := slices.IndexFunc(l.read, func(r reading) bool { return r.run == e.Run })
	switch {
	case l.over || i >= 0 && l.read[i].ended:
		l.wrong("reads event %d of run %s behind its end", e.Seq, e.Run)
		return
	case i < 0:
		l.wrong("reads of run %s, of which it has not heard", e.Run)
		return
	case f.Name != e.Type.String() || f.ID == "" || !l.tree && f.ID != fmt.Sprint(e.Seq):
		l.wrong("reads event %d, %s, in a frame %q with the id %q", e.Seq, e.Type, f.Name, f.ID)
		return
	}
	l.told(&l.read[i], "hear", e.Seq)
	l.w.log.world(l.w.now, "listener %d hears %s", l.no, &e)
	r := &l.read[i]
	r.seq, r.ended, l.last = e.Seq, e.Type.Ends(), f.ID
	digest := fnv.New64a()
	digest.Write([]byte(f.Data))
	if d := digest.Sum64(); e.Seq > uint64(len(r.digests)) {
		r.digests = append(r.digests, d)
	} else if r.digests[e.Seq-1] != d {
		l.wrong("reads another event %d of run %s than before", e.Seq, e.Run)
	}
	if l.tree && e.Type == runs.AgentCalledChild && !slices.ContainsFunc(l.read, func(r reading) bool { return r.run == e.Child }) {
		l.read = append(l.read, reading{run: e.Child})
	}
	if l.w.choose.Int(8) == 7 {
		l.mark()
	}
	if i == 0 {
		l.root(e)
	}
}

// told tells the specs what the listener hears of a run, or where it goes on.
func (l *listener) told(r *reading, what string, seq uint64) {
	l.w.tell(history.Event{Kind: history.Perform, From: actor.Address{Node: l.w.nodes[0].id}, Call: r.run, What: what, N: seq, Count: l.no})
}

// mark notes a place to which the listener may go back.
func (l *listener) mark() {
	m := mark{id: l.last}
	for i := range l.read {
		m.seqs = append(m.seqs, l.read[i].seq)
	}
	l.marks = append(l.marks, m)
}

// root takes in an event of the run itself. In the end its pieces are its text.
func (l *listener) root(e runs.Event) {
	root := &l.read[0]
	root.events = append(root.events, e)
	l.said.Take(&e)
	if !e.Type.Ends() {
		return
	}
	l.over = true
	l.w.listening--
	l.w.Stats.Sometimes[StreamRead]++
	text, _ := l.said.Streamed()
	if e.Type == runs.RunDone && l.kind != actor.Native && text != e.Text {
		l.w.violate(specs.AttemptAnnounced, fmt.Sprintf("the pieces of run %s come to %.80q, its answer is %.80q", l.run, text, e.Text))
	}
}

// news tells the streams that watch a run of an event more.
func (w *World) news(run actor.CallID) {
	for _, n := range w.nodes {
		for _, c := range n.streams {
			if slices.Contains(c.watched, run) && !slices.Contains(c.news, run) {
				c.news = append(c.news, run)
				before := w.resume(c.l.stream)
				c.later(w.between(10*time.Microsecond, 3*time.Millisecond), func() {
					c.news = slices.DeleteFunc(c.news, func(r actor.CallID) bool { return r == run })
					c.step(ingress.News{Run: run})
				})
				w.resume(before)
			}
		}
	}
}

// cutStreams ends the streams of a node that crashes. What else it may have made
// durable the others have to look for.
func (w *World) cutStreams(n *node) {
	for _, c := range slices.Clone(n.streams) {
		c.drop()
		c.l.comeBack(w.between(time.Millisecond, time.Second))
	}
	for _, other := range w.nodes {
		for _, c := range other.streams {
			for _, run := range c.watched {
				c.later(10*time.Millisecond, func() { c.step(ingress.News{Run: run}) })
			}
		}
	}
}

// storm has all who listen lose their streams, and come back at once, a few times.
func (w *World) storm(times int) {
	var cut []*connection
	for _, n := range w.nodes {
		cut = append(cut, n.streams...)
	}
	if len(cut) == 0 {
		return
	}
	w.hit(ClientReconnectStorm, "%d listeners lose their streams", len(cut))
	for _, c := range cut {
		c.close()
		c.l.comeBack(w.between(0, 20*time.Millisecond))
	}
	if times > 1 {
		w.after(w.between(time.Millisecond, 100*time.Millisecond), func() { w.storm(times - 1) })
	}
}

// revoke takes the right to listen from all who have the present key. They come
// back with the next.
func (w *World) revoke() {
	var ended []*connection
	for _, n := range w.nodes {
		for _, c := range n.streams {
			if c.l.key == w.keys {
				ended = append(ended, c)
			}
		}
	}
	if len(ended) == 0 {
		return
	}
	w.hit(ClientRevokedKey, "key %d of %d listeners is not good any more", w.keys, len(ended))
	w.keys++
	for _, c := range ended {
		c.l.key = w.keys
		c.l.told(&c.l.read[0], "revoke", 0)
		c.step(ingress.Revoked{})
	}
}
