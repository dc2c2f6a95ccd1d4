// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/store"
)

const (
	// StreamsMax is how many streams there are at once, where Config does not say.
	StreamsMax = 4096

	lookEvery     = 500 * time.Millisecond // whether a key still counts
	writeSlice    = 250 * time.Millisecond // of a write that waits for its reader
	lastWordsIn   = 250 * time.Millisecond
	sendBytes     = 32 << 10  // what the system holds for a reader, as asked; it takes twice that
	lastSendBytes = 128 << 10 // and for one that is sent away
	lastEventID   = "Last-Event-ID"
)

// streams counts those that are open.
type streams struct {
	most int
	mu   sync.Mutex
	open int
	none chan struct{} // not nil: somebody waits until there are none
}

func (s *streams) begin() *actor.Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.most {
		return actor.RefuseBusy(actor.ScopeNode, 5*time.Second, "%d streams of events are open: close some, or ask for JSON by Accept: application/json", s.open)
	}
	s.open++
	return nil
}

func (s *streams) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open--; s.open == 0 && s.none != nil {
		close(s.none)
		s.none = nil
	}
}

func (s *streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// wait returns when there are none.
func (s *streams) wait(ctx context.Context) error {
	s.mu.Lock()
	if s.open == 0 {
		s.mu.Unlock()
		return nil
	}
	if s.none == nil {
		s.none = make(chan struct{})
	}
	none := s.none
	s.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cursor is how far a client says it has read. The header is what a client that
// connects again sends by itself, so it counts more than the query it began with.
func cursor(ctx *fasthttp.RequestCtx) (ingress.Cursor, *problem) {
	name, text := lastEventID, header(ctx, lastEventID)
	if text == "" {
		if name = "after"; !ctx.QueryArgs().Has(name) {
			return nil, nil
		}
		text = string(ctx.QueryArgs().Peek(name))
	}
	c, r := ingress.ParseCursor(text)
	if r != nil {
		return nil, invalid(400, name, name+": "+r.Detail)
	}
	return c, nil
}

// teller tells one client of a run: the world of an ingress.Stream.
type teller struct {
	server *Server
	stream *ingress.Stream
	run    actor.CallID
	key    string // the API key it came with, if any
	conn   net.Conn
	began  time.Time

	read *ingress.Read
	out  []byte // to be written
	end  *ingress.End

	news  <-chan struct{} // of the run itself
	more  chan struct{}   // of those below it: fresh says which
	mu    sync.Mutex
	fresh []actor.CallID
	over  chan struct{}
	stops []func()
	stop  func() // does them all, the last first, once
}

// tell answers with a stream of a run's events behind a cursor. Whatever happens,
// after is called once, when nobody listens any more. The slot is taken already.
func (s *Server) tell(ctx *fasthttp.RequestCtx, run actor.CallID, tree bool, at ingress.Cursor, after func()) {
	t := &teller{server: s, stream: ingress.NewStream(ingress.StreamConfig{Run: run, Tree: tree, After: at, Chance: rand.Uint64(), WriteWithin: s.config.StreamWithin}), run: run, key: who(ctx).Key, conn: ctx.Conn(), began: time.Now(),
		more: make(chan struct{}, 1), over: make(chan struct{})}
	t.stops = append(t.stops, s.streams.end, func() { close(t.over) }, after)
	t.stop = sync.OnceFunc(func() {
		for _, stop := range slices.Backward(t.stops) {
			stop()
		}
	})
	t.step(ingress.Opened{})
	for t.end == nil && len(t.out) == 0 {
		t.answer()
	}
	switch {
	case t.end == nil:
		old := !ctx.Request.Header.IsHTTP11()
		if c, ok := t.conn.(*connection); ok {
			c.last = t.stop // should answers before this one not get through, nobody talks
		}
		ctx.SetStatusCode(fasthttp.StatusOK)
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(net.Conn) { t.talk(old) })
		return
	case t.end.Refusal != nil:
		refusal(t.end.Refusal).write(ctx)
	case t.end.Why == ingress.Over:
		ctx.SetStatusCode(fasthttp.StatusNoContent) // a client that is told so does not connect again
	}
	t.stop()
}

// now is a time that does not go back.
func (t *teller) now() actor.Time { return actor.Time(time.Since(t.began)) }

func (t *teller) step(in ingress.StreamInput) {
	for _, out := range t.stream.Step(t.now(), in) {
		switch out := out.(type) {
		case ingress.Watch:
			t.watch(out.Run)
		case ingress.Read:
			t.read = &out
		case ingress.Write:
			t.out = out.Bytes
		case ingress.End:
			t.end = &out
		}
	}
}

// watch listens for news of a run; there are at most ingress.TreeRunsMax of them.
func (t *teller) watch(run actor.CallID) {
	news, stop := t.server.node.Watch(run)
	t.stops = append(t.stops, stop)
	if run == t.run {
		t.news = news
		return
	}
	go func() {
		for {
			select {
			case <-news:
				t.mu.Lock()
				if !slices.Contains(t.fresh, run) {
					t.fresh = append(t.fresh, run)
				}
				t.mu.Unlock()
				select {
				case t.more <- struct{}{}:
				default: // it will look
				}
			case <-t.over:
				return
			}
		}
	}()
}

// answer reads what the stream asked for.
func (t *teller) answer() {
	in := *t.read
	t.read = nil
	within, cancel := context.WithTimeout(context.Background(), readWithin)
	defer cancel()
	var page [][]byte
	err := t.server.node.Read(within, func(kv store.KV) error {
		page = nil
		events, err := store.Events(kv, actor.DefaultTenant, in.Run, in.After, in.Limit)
		for _, e := range events {
			page = append(page, e.Body)
		}
		return err
	})
	switch {
	case err == nil:
		t.step(ingress.Events{Bodies: page})
	case errors.Is(err, engine.ErrClosed):
		t.step(ingress.Draining{})
	default:
		t.server.log.Error("the events of a run cannot be read", "run", in.Run.String(), "error", err.Error())
		t.step(ingress.Unreadable{Refusal: &actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second,
			Detail: fmt.Sprintf("the events of run %s cannot be read just now", in.Run)}})
	}
}

// talk writes until the stream ends. The connection is its own, and closed afterwards.
func (t *teller) talk(old bool) {
	defer func() {
		if p := recover(); p != nil {
			t.server.log.Error("a stream made the gateway fail", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
		t.stop()
	}()
	gone, unwatch := watchPeer(t.conn)
	defer unwatch()
	setSendBuffer(t.conn, sendBytes)
	wake := time.NewTimer(time.Hour)
	defer wake.Stop()
	for t.write(t.head(old)); t.end == nil; {
		switch {
		case len(t.out) > 0:
			t.write(nil)
		case t.read != nil:
			t.answer()
		default:
			t.rest(gone, wake)
		}
		t.look(gone)
	}
	t.lastWords()
	t.server.log.Debug("a stream ended", "run", t.run.String(), "why", t.end.Why.String(), "ms", time.Since(t.began).Milliseconds())
}

// head is what stands before the events. The stream ends with its connection: it
// has words of its own for how it ended.
func (t *teller) head(old bool) []byte {
	version := "HTTP/1.1"
	if old {
		version = "HTTP/1.0"
	}
	b := fmt.Appendf(nil, "%s 200 OK\r\nDate: ", version)
	b = fasthttp.AppendHTTPDate(b, time.Now())
	return fmt.Appendf(b, "\r\nContent-Type: %s; charset=utf-8\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\nX-Run-Id: %s\r\nConnection: close\r\n\r\n",
		ingress.EventStream, t.run)
}

// write has the client take some of what is out, for a while; a head is not the stream's business.
func (t *teller) write(head []byte) {
	due, _ := t.stream.NextDeadline()
	within := max(min(writeSlice, due.Sub(t.now())), time.Millisecond)
	if len(head) > 0 { // nothing is over before it has begun
		within = writeSlice
	}
	_ = t.conn.SetWriteDeadline(time.Now().Add(within))
	n, err := t.conn.Write(append(head, t.out...))
	if len(head) > 0 && n < len(head) {
		t.step(ingress.Closed{})
		return
	}
	n -= len(head)
	t.out = t.out[n:]
	t.step(ingress.Wrote{Bytes: n})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.step(ingress.Tick{})
	case err != nil:
		t.step(ingress.Closed{})
	}
}

// rest waits until there is something to do.
func (t *teller) rest(gone <-chan struct{}, wake *time.Timer) {
	due, _ := t.stream.NextDeadline()
	wait := due.Sub(t.now())
	if t.key != "" {
		wait = min(wait, lookEvery)
	}
	wake.Reset(max(wait, 0))
	select {
	case <-t.news:
		t.step(ingress.News{Run: t.run})
	case <-t.more:
		t.mu.Lock()
		fresh := t.fresh
		t.fresh = nil
		t.mu.Unlock()
		for _, run := range fresh {
			t.step(ingress.News{Run: run})
		}
	case <-gone:
	case <-t.server.stopping:
	case <-wake.C:
		t.step(ingress.Tick{})
	}
}

// look tells the stream what ends it.
func (t *teller) look(gone <-chan struct{}) {
	select {
	case <-gone:
		t.step(ingress.Closed{})
		return
	default:
	}
	select {
	case <-t.server.stopping:
		t.step(ingress.Draining{})
		return
	default:
	}
	if t.key != "" && !t.server.config.Keys.Valid(t.key) {
		t.step(ingress.Revoked{})
	}
}

// lastWords writes what is still to be said. For a reader that does not read the
// system holds them, with what it holds already.
func (t *teller) lastWords() {
	if t.end.Why == ingress.Gone {
		return
	}
	setSendBuffer(t.conn, lastSendBytes)
	_ = t.conn.SetWriteDeadline(time.Now().Add(lastWordsIn))
	_, _ = t.conn.Write(append(t.out, t.end.Last...))
}

func setSendBuffer(c net.Conn, bytes int) {
	if of, ok := c.(*connection); ok {
		c = of.Conn
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(bytes)
	}
}
