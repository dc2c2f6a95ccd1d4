// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// An exchange is an upstream.Exchange with sockets. One goroutine, its asker's,
// steps it; each attempt has another, that waits for bytes.
type exchange struct {
	*Outbound
	machine      *upstream.Exchange
	roundTripper http.RoundTripper
	backoff      *sharedBackoff
	onPiece      func(actor.Piece)
	inputs       chan upstream.Input // unbuffered: what was put in is being stepped
	attempt      *attempt            // the one that is out
	outcome      *upstream.Outcome
}

// runExchange carries an order out.
func (o *Outbound) runExchange(ctx context.Context, order upstream.Order, carrier http.RoundTripper, pace *sharedBackoff, t *statCounter, pass func(actor.Piece)) actor.Answer {
	x := &exchange{Outbound: o, machine: upstream.NewExchange(order), roundTripper: carrier, backoff: pace, onPiece: pass, inputs: make(chan upstream.Input)}
	x.run(ctx, order.Deadline)
	for i, a := range x.outcome.Attempts {
		o.logAttempt(order.Who, i+1, a)
		t.countAttempt(a)
	}
	if x.outcome.Refusal != nil {
		return refusedAnswer(x.outcome.Refusal)
	}
	return actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: x.outcome.Completion.Encode()}}}
}

// logAttempt logs an attempt: all that is logged of what is asked. See the package's promise 5.
func (o *Outbound) logAttempt(who string, n int, a upstream.Attempt) {
	all := []slog.Attr{slog.String("upstream", who), slog.Int("attempt", n), slog.Int("status", a.Status),
		slog.Int("bytes", a.Bytes), slog.Int64("took_ms", a.Took.Milliseconds())}
	if a.Refusal != nil {
		all = append(all, slog.String("reason", a.Refusal.Reason.String()))
	}
	o.log.LogAttrs(o.ctx, slog.LevelDebug, "asked", all...)
}

// run steps the machine until it has ended.
func (x *exchange) run(ctx context.Context, deadline actor.Time) {
	defer func() { x.close(false) }() // whatever happens, no connection is left
	timer := time.NewTimer(0)
	defer timer.Stop()
	x.step(x.now(), upstream.Begin{})
	for x.outcome == nil {
		due, _ := x.machine.NextDeadline()
		timer.Reset(due.Sub(x.now()))
		select {
		case in := <-x.inputs:
			if in != nil {
				x.step(x.now(), in)
			}
		case <-timer.C:
			x.step(x.now(), upstream.Tick{})
		case <-ctx.Done():
			x.abort(ctx, deadline)
		case <-x.ctx.Done():
			x.step(x.now(), upstream.Cancel{Reason: actor.Stopped})
		}
	}
}

// abort ends it because its asker did.
func (x *exchange) abort(ctx context.Context, deadline actor.Time) {
	if ctx.Err() == context.DeadlineExceeded { // at the same instant, by another clock
		x.step(max(x.now(), deadline), upstream.Tick{})
		return
	}
	x.step(x.now(), upstream.Cancel{Reason: actor.Stopped})
}

// step advances the machine by one input, and does what it then wants.
func (x *exchange) step(now actor.Time, in upstream.Input) {
	ops := x.machine.Step(now, in, x.backoff, random())
	whole := false
	if n := len(ops); n > 0 {
		ended, ok := ops[n-1].(upstream.Ended)
		whole = ok && ended.Outcome.Refusal == nil
	}
	for _, op := range ops {
		switch op := op.(type) {
		case upstream.Send:
			x.send(op)
		case upstream.Close:
			x.close(whole)
		case upstream.PassOn:
			x.onPiece(actor.Piece{Text: op.Delta.Text, State: op.Delta.State, Detail: op.Delta.Detail})
		case upstream.Again:
			x.onPiece(actor.Piece{Retry: op.Failure.Refusal})
		case upstream.Ended:
			x.outcome = &op.Outcome
		}
	}
}

const (
	readBytes     = 16 << 10 // of a body at once
	drainBytesMax = 4 << 10  // after a whole answer, if they bring the body to its end
	drainTimeout  = 100 * time.Millisecond
)

// attempt is one request on its way, and the goroutine that waits for what comes.
type attempt struct {
	number int
	ctx    context.Context
	cancel context.CancelFunc
	inputs chan<- upstream.Input
	closed chan struct{} // closed: nobody takes inputs any more
	drain  bool          // written before over is closed
}

func (x *exchange) send(op upstream.Send) {
	a := &attempt{number: op.Attempt, inputs: x.inputs, closed: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(x.ctx)
	x.attempt = a
	x.work.Go(func() {
		defer a.cancel()
		a.run(x.roundTripper, op.Request)
	})
}

// close has done with the attempt that is out. A connection whose answer is
// whole may come to its end in peace; any other is closed now.
func (x *exchange) close(whole bool) {
	a := x.attempt
	if a == nil {
		return
	}
	x.attempt = nil
	a.drain = whole
	close(a.closed)
	if !whole {
		a.cancel()
	}
}

// deliver hands an input over; false if nobody wants it any more.
func (a *attempt) deliver(in upstream.Input) bool {
	select {
	case a.inputs <- in:
		return true
	case <-a.closed:
		return false
	}
}

func (a *attempt) run(carrier http.RoundTripper, r upstream.Request) {
	var sent atomic.Bool
	ctx := httptrace.WithClientTrace(a.ctx, &httptrace.ClientTrace{
		GetConn: func(string) { sent.Store(false) }, // again only if the last took nothing
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	})
	request, err := newRequest(ctx, r)
	if err != nil {
		a.deliver(upstream.Loss{Attempt: a.number, Final: true, Detail: "its request cannot be written"})
		return
	}
	response, err := carrier.RoundTrip(request)
	if err != nil {
		detail, final := lossDetail(err)
		a.deliver(upstream.Loss{Attempt: a.number, Sent: sent.Load(), Final: final, Detail: detail})
		return
	}
	defer response.Body.Close()
	if a.deliver(upstream.Head{Attempt: a.number, Status: response.StatusCode, Headers: firstHeaders(response.Header)}) {
		a.read(response.Body)
	}
	if <-a.closed; a.drain {
		defer time.AfterFunc(drainTimeout, a.cancel).Stop()
		_, _ = io.CopyN(io.Discard, response.Body, drainBytesMax)
	}
}

// read hands the body over, piece by piece, as far as it is wanted.
func (a *attempt) read(body io.Reader) {
	buffer := make([]byte, readBytes)
	for {
		n, err := body.Read(buffer)
		// The nil after them is taken when they have been stepped: then the
		// buffer is ours again.
		if n > 0 && !(a.deliver(upstream.Bytes{Attempt: a.number, Bytes: buffer[:n]}) && a.deliver(nil)) {
			return
		}
		switch {
		case err == io.EOF:
			a.deliver(upstream.End{Attempt: a.number})
			return
		case err != nil:
			detail, _ := lossDetail(err)
			a.deliver(upstream.Loss{Attempt: a.number, Sent: true, Detail: detail})
			return
		}
	}
}

// newRequest is a request with our headers alone.
func newRequest(ctx context.Context, r upstream.Request) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, r.Method, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "troupe")
	for _, h := range r.Headers {
		request.Header.Set(h.Name, h.Value)
	}
	return request, nil
}

// firstHeaders is a head as upstream reads it: the first of each field.
func firstHeaders(header http.Header) []upstream.Header {
	all := make([]upstream.Header, 0, len(header))
	for name, values := range header {
		if len(values) > 0 {
			all = append(all, upstream.Header{Name: name, Value: values[0]})
		}
	}
	return all
}
