// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bytes"
	"cmp"
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

// exchange drives an upstream.Exchange with real sockets. The goroutine of the
// caller steps it; each attempt has another goroutine that reads from the
// connection.
type exchange struct {
	*Outbound
	machine      *upstream.Exchange
	roundTripper http.RoundTripper
	pacer        upstream.Pacer
	onPiece      func(actor.Piece)
	deadline     actor.Time
	adjusted     <-chan actor.Duration // new values of the time left; may be nil
	inputs       chan upstream.Input   // unbuffered: when an input is received, all earlier inputs have been stepped
	attempt      *attempt              // attempt in progress, or nil
	outcome      *upstream.Outcome
}

// runExchange performs the requests of an order and returns the outcome.
func (o *Outbound) runExchange(ctx context.Context, order upstream.ExchangeConfig, roundTripper http.RoundTripper, pacer upstream.Pacer, stats *statCounter, adjusted <-chan actor.Duration, onPiece func(actor.Piece)) *upstream.Outcome {
	x := &exchange{Outbound: o, machine: upstream.NewExchange(order), roundTripper: roundTripper, pacer: pacer, onPiece: onPiece, adjusted: adjusted,
		deadline: order.Deadline, inputs: make(chan upstream.Input)}
	x.run(ctx)
	for i, a := range x.outcome.Attempts {
		o.logAttempt(order.Upstream, i+1, a)
		stats.countAttempt(a)
	}
	return x.outcome
}

// logAttempt logs one attempt. Nothing else about an exchange is logged; see
// guarantee 5 of the package.
func (o *Outbound) logAttempt(name string, n int, a upstream.Attempt) {
	attrs := []slog.Attr{slog.String("upstream", name), slog.Int("attempt", n), slog.Int("status", a.Status),
		slog.Int("bytes", a.Bytes), slog.Int64("took_ms", a.Took.Milliseconds())}
	if a.Refusal != nil {
		attrs = append(attrs, slog.String("reason", a.Refusal.Reason.String()), slog.String("detail", a.Refusal.Detail))
	}
	o.log.LogAttrs(o.ctx, slog.LevelDebug, "upstream attempt", attrs...)
}

// run steps the machine until it has ended.
func (x *exchange) run(ctx context.Context) {
	defer func() { x.close(false) }() // no connection may remain, even after a panic
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
		case left := <-x.adjusted:
			x.adjust(left)
		case <-timer.C:
			x.takeAdjustment()
			x.step(x.now(), upstream.Tick{})
		case <-ctx.Done():
			x.abort(ctx)
		case <-x.ctx.Done():
			x.step(x.now(), upstream.Cancel{Reason: actor.Stopped})
		}
	}
}

// abort ends the exchange because its caller's context is done.
func (x *exchange) abort(ctx context.Context) {
	if context.Cause(ctx) == context.DeadlineExceeded { // the deadline has passed, although this clock may be slightly behind
		x.takeAdjustment()
		x.step(max(x.now(), x.deadline), upstream.Tick{})
		return
	}
	x.step(x.now(), upstream.Cancel{Reason: actor.Stopped})
}

func (x *exchange) adjust(left actor.Duration) {
	now := x.now()
	x.deadline = now.Add(left)
	x.step(now, upstream.Adjust{Deadline: x.deadline})
}

// takeAdjustment adjusts the deadline if a new one is known. It may have arrived
// together with the end of the previous one.
func (x *exchange) takeAdjustment() {
	select {
	case left := <-x.adjusted:
		x.adjust(left)
	default:
	}
}

// step advances the machine by one input and performs the resulting operations.
func (x *exchange) step(now actor.Time, in upstream.Input) {
	ops := x.machine.Step(now, in, x.pacer, random())
	complete := false
	if n := len(ops); n > 0 {
		ended, ok := ops[n-1].(upstream.Ended)
		complete = ok && ended.Outcome.Refusal == nil
	}
	for _, op := range ops {
		switch op := op.(type) {
		case upstream.Send:
			x.send(op)
		case upstream.Close:
			x.close(complete)
		case upstream.Forward:
			x.onPiece(actor.Piece{Text: op.Delta.Text, State: op.Delta.State, Detail: op.Delta.Detail})
		case upstream.Retry:
			x.onPiece(actor.Piece{Retry: op.Refusal(now)})
		case upstream.Ended:
			x.outcome = &op.Outcome
		}
	}
}

const (
	readBytes     = 16 << 10 // maximum size of one read of a body
	drainBytesMax = 4 << 10  // limit for draining the body after a complete answer
	drainTimeout  = 100 * time.Millisecond
)

// attempt is one HTTP request and the goroutine that reads its response.
type attempt struct {
	number int
	server string // see Config.Server
	ctx    context.Context
	cancel context.CancelFunc
	inputs chan<- upstream.Input
	closed chan struct{} // closed when inputs are no longer received
	drain  bool          // set before closed is closed
}

func (x *exchange) send(op upstream.Send) {
	a := &attempt{number: op.Attempt, server: x.config.Server, inputs: x.inputs, closed: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(x.ctx)
	x.attempt = a
	x.work.Go(func() {
		defer a.cancel()
		a.run(x.roundTripper, op.Request)
	})
}

// close ends the current attempt. After a complete answer the body may be
// drained, so that the connection can be reused. Otherwise the connection is
// closed now.
func (x *exchange) close(complete bool) {
	a := x.attempt
	if a == nil {
		return
	}
	x.attempt = nil
	a.drain = complete
	close(a.closed)
	if !complete {
		a.cancel()
	}
}

// deliver passes an input to the exchange. It reports false if the attempt was
// closed.
func (a *attempt) deliver(in upstream.Input) bool {
	select {
	case a.inputs <- in:
		return true
	case <-a.closed:
		return false
	}
}

func (a *attempt) run(roundTripper http.RoundTripper, r upstream.Request) {
	var sent atomic.Bool
	ctx := httptrace.WithClientTrace(a.ctx, &httptrace.ClientTrace{
		GetConn: func(string) { sent.Store(false) }, // also called before the transport retries: the previous connection took no byte
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	})
	request, err := newRequest(ctx, r, a.server)
	if err != nil {
		a.deliver(upstream.Loss{Attempt: a.number, Final: true, Detail: "invalid request"})
		return
	}
	response, err := roundTripper.RoundTrip(request)
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

// read delivers the body in pieces until its end, or until the attempt is closed.
func (a *attempt) read(body io.Reader) {
	buffer := make([]byte, readBytes)
	for {
		n, err := body.Read(buffer)
		// The nil is received only after the bytes have been stepped. From then
		// on the buffer can be reused.
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

// newRequest returns a request with exactly the headers of r, a User-Agent and
// upstream.EgressHeader with the mark of the server, which r cannot change.
func newRequest(ctx context.Context, r upstream.Request, server string) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, r.Method, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "troupe")
	for _, h := range r.Headers {
		if h.Name == idempotencyKey {
			request.Header[h.Name] = []string{h.Value}
			continue
		}
		request.Header.Set(h.Name, h.Value)
	}
	request.Header.Set(upstream.EgressHeader, cmp.Or(server, "1"))
	return request, nil
}

// idempotencyKey is a header that is sent in lower case. Otherwise the transport would
// repeat a request with it by itself, although only the exchange knows whether it may be
// repeated.
const idempotencyKey = "idempotency-key"

// firstHeaders returns the first value of each header field.
func firstHeaders(header http.Header) []upstream.Header {
	all := make([]upstream.Header, 0, len(header))
	for name, values := range header {
		if len(values) > 0 {
			all = append(all, upstream.Header{Name: name, Value: values[0]})
		}
	}
	return all
}
