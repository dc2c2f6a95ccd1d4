// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Client is a Node behind a connection. Once the connection has failed, every
// method returns that *ConnError, except NewCallID.
type Client struct {
	conn  frameConn
	queue chan *request
	wake  chan struct{} // capacity 1: stops is not empty
	done  chan struct{} // closed once the connection has failed or was closed
	sent  chan struct{} // closed at the end of sendLoop
	loops sync.WaitGroup

	mu        sync.Mutex
	err       error // set before done is closed
	open      map[uint64]*request
	stops     []uint64 // requests to be stopped; at most OpenMax
	count     int      // open and queued requests; at most OpenMax
	completed uint64   // requests that have ended
	turnover  actor.Turnover
}

// request is a command until the node has ended it.
type request struct {
	body    Body
	number  uint64            // 0 until it is sent
	stopped bool              // the caller awaits nothing more
	joined  chan actor.CallID // capacity 1; Invoke only
	repeats bool              // joined was sent; used by receiveLoop only
	updates chan struct{}     // capacity 1, closed at the end; Follow only
	begun   chan struct{}     // closed once the node has accepted a Follow
	ended   chan struct{}     // closed at the end, when result and err are set
	result  Body
	err     error
}

// Dial returns the node that Serve serves at the other end of conn. The caller
// MUST close it.
func Dial(conn io.ReadWriteCloser) *Client {
	c := &Client{conn: frameConn{rw: conn}, queue: make(chan *request), wake: make(chan struct{}, 1), done: make(chan struct{}), sent: make(chan struct{}), open: map[uint64]*request{}}
	c.loops.Go(c.sendLoop)
	c.loops.Go(c.receiveLoop)
	return c
}

// closeTimeout is the maximum time that Close waits for the frame being sent.
const closeTimeout = time.Second

// Close closes the connection and waits for its goroutines. Open commands return
// a *ConnError, and their runs continue. A frame that is being sent is completed
// if the node receives it in time, so that Serve returns nil.
func (c *Client) Close() {
	if c.stopWith(&ConnError{io.ErrClosedPipe}) {
		timeout := time.NewTimer(closeTimeout)
		defer timeout.Stop()
		select {
		case <-c.sent:
		case <-timeout.C:
		}
		_ = c.conn.rw.Close()
	}
	c.loops.Wait()
}

// Err returns the reason why the connection has failed, or nil.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Finish waits until no request is open, until the connection has failed, or until ctx ends.
func (c *Client) Finish(ctx context.Context) {
	look := time.NewTicker(finishPoll)
	defer look.Stop()
	for {
		c.mu.Lock()
		open := c.count
		c.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case <-look.C:
		case <-c.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// finishPoll is the time between two looks whether requests are open.
const finishPoll = 50 * time.Millisecond

// fail records the first error and closes the connection.
func (c *Client) fail(err error) {
	if c.stopWith(err) {
		_ = c.conn.rw.Close()
	}
}

// stopWith records an error, unless there is one already. If it returns true, the
// caller MUST close the connection.
func (c *Client) stopWith(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.err = err
	close(c.done)
	return true
}

// sendLoop sends the requests in the order of their numbers.
func (c *Client) sendLoop() {
	defer close(c.sent)
	for number := uint64(1); ; {
		var err error
		select {
		case r := <-c.queue:
			b, encodeErr := c.conn.encode(Frame{number, r.body})
			if encodeErr == nil {
				encodeErr = c.register(r, number)
			}
			if encodeErr != nil {
				c.finish(r, nil, encodeErr)
				break // the number is free
			}
			number++
			err = c.conn.write(b)
		case <-c.wake:
			err = c.sendStops()
		case <-c.done:
			return
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Client) sendStops() error {
	c.mu.Lock()
	stops := c.stops
	c.stops = nil
	c.mu.Unlock()
	for _, number := range stops {
		if isClosed(c.done) {
			return nil
		}
		if err := c.conn.send(Frame{number, Stop{}}); err != nil {
			return err
		}
	}
	return nil
}

// register adds a request that is about to be sent. From then on receiveLoop
// alone ends it.
func (c *Client) register(r *request, number uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	r.number = number
	c.open[number] = r
	if r.stopped {
		c.stops = append(c.stops, number)
		notify(c.wake)
	}
	return nil
}

// receiveLoop dispatches the frames of the node. It never blocks on a caller.
func (c *Client) receiveLoop() {
	for {
		f, err := c.conn.receive()
		if err == nil {
			err = c.dispatch(f)
		}
		if err != nil {
			c.fail(err)
			break
		}
	}
	for _, r := range c.openRequests() {
		c.end(r, nil, c.Err())
	}
}

func (c *Client) openRequests() (all []*request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.open {
		all = append(all, r)
	}
	return all
}

// dispatch delivers a frame to its request.
func (c *Client) dispatch(f Frame) error {
	c.mu.Lock()
	r := c.open[f.Number]
	c.mu.Unlock()
	if r == nil {
		return &ConnError{violation("%T for command %d, which is not open", f.Body, f.Number)}
	}
	if n, ok := f.Body.(Failure); ok {
		c.end(r, nil, n.error())
		return nil
	}
	expected := false
	switch n := f.Body.(type) {
	case Joined:
		if expected = r.joined != nil && !r.repeats; expected {
			r.repeats = true
			r.joined <- n.Run
		}
	case Updated:
		if expected = r.updates != nil; expected {
			notify(r.updates)
		}
	case Done:
		if r.updates != nil {
			if expected = !isClosed(r.begun); expected {
				close(r.begun)
			}
			break
		}
		_, cancel := r.body.(Cancel)
		_, forget := r.body.(Forget)
		expected = cancel || forget
		c.endIf(expected, r, n)
	case Answer:
		_, invoke := r.body.(Invoke)
		_, signal := r.body.(Signal)
		expected = invoke || signal
		c.endIf(expected, r, n)
	case Found:
		_, lookup := r.body.(Lookup)
		_, do := r.body.(Do)
		expected = lookup || do
		c.endIf(expected, r, n)
	}
	if !expected {
		return &ConnError{violation("%T for command %d, which is a %T", f.Body, f.Number, r.body)}
	}
	return nil
}

// notify sends a value unless one is pending.
func notify(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (c *Client) endIf(expected bool, r *request, result Body) {
	if expected {
		c.end(r, result, nil)
	}
}

// end ends a request that was sent.
func (c *Client) end(r *request, result Body, err error) {
	c.mu.Lock()
	delete(c.open, r.number)
	c.mu.Unlock()
	c.finish(r, result, err)
}

// finish hands the outcome of a request to its caller. It MUST be called once.
func (c *Client) finish(r *request, result Body, err error) {
	c.mu.Lock()
	c.count--
	c.completed++
	c.mu.Unlock()
	r.result, r.err = result, err
	close(r.ended)
	if r.updates != nil {
		close(r.updates)
	}
}

// start queues a request.
func (c *Client) start(ctx context.Context, r *request) error {
	r.ended = make(chan struct{})
	c.mu.Lock()
	err := c.err
	switch {
	case err != nil:
	case c.count >= OpenMax:
		err = actor.RefuseBusy(actor.ScopeNode, c.turnover.RetryAfter(now(), c.completed, rand.Uint64()), "%d commands are open, which is the limit of a connection", OpenMax)
	default:
		c.count++
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case c.queue <- r:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.done:
		err = c.Err()
	}
	c.mu.Lock()
	c.count--
	c.mu.Unlock()
	return err
}

// stop stops a request that the caller awaits no more.
func (c *Client) stop(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.stopped {
		return
	}
	r.stopped = true
	if c.open[r.number] != r { // it has ended, or register sees stopped
		return
	}
	c.stops = append(c.stops, r.number)
	notify(c.wake)
}

// await waits for the end of a request.
func (c *Client) await(ctx context.Context, r *request, joined func(run actor.CallID)) (Body, error) {
	for {
		select {
		case <-r.ended:
			if joined != nil {
				select {
				case run := <-r.joined:
					joined(run)
				default:
				}
			}
			return r.result, r.err
		case run := <-r.joined:
			if joined != nil {
				joined(run)
			}
		case <-ctx.Done():
			c.stop(r)
			return nil, ctx.Err()
		}
	}
}

// do performs a command.
func (c *Client) do(ctx context.Context, body Body) (Body, error) {
	r := &request{body: body}
	if err := c.start(ctx, r); err != nil {
		return nil, err
	}
	return c.await(ctx, r, nil)
}

// NewCallID implements Node, according to the clock of the client.
func (c *Client) NewCallID() actor.CallID {
	return actor.NewCallID(now(), rand.Uint64(), rand.Uint64())
}

// Invoke implements Node.
func (c *Client) Invoke(ctx context.Context, in Invoke, joined func(run actor.CallID)) (Answer, error) {
	in.Call.SetClientDefaults()
	if err := in.Call.CheckEncodable(); err != nil {
		return Answer{Reply: actor.Fail(in.Call.ID, actor.Refuse(actor.Invalid, "%v", err))}, nil
	}
	r := &request{body: in, joined: make(chan actor.CallID, 1)}
	if err := c.start(ctx, r); err != nil {
		return answerOf(in.Call.ID, nil, err)
	}
	body, err := c.await(ctx, r, joined)
	return answerOf(in.Call.ID, body, replyClosed(err))
}

// Signal implements Node.
func (c *Client) Signal(ctx context.Context, in Signal) (Answer, error) {
	in.Call.SetClientDefaults()
	if err := in.Call.CheckEncodable(); err != nil {
		return Answer{Reply: actor.Fail(in.Call.ID, actor.Refuse(actor.Invalid, "%v", err))}, nil
	}
	r := &request{body: in}
	if err := c.start(ctx, r); err != nil {
		return answerOf(in.Call.ID, nil, err)
	}
	body, err := c.await(ctx, r, nil)
	return answerOf(in.Call.ID, body, replyClosed(err))
}

// replyClosed returns the error of a call that was sent. If the connection or the node
// closed before the answer, the error is a refusal too.
func replyClosed(err error) error {
	if errors.Is(err, ErrClosed) {
		return fmt.Errorf("%w (%w)", actor.RefuseReplyClosed(), err)
	}
	return err
}

// answerOf returns the answer of a call. A refusal is an answer, unless the connection
// closed.
func answerOf(call actor.CallID, body Body, err error) (Answer, error) {
	var r *actor.Refusal
	if errors.As(err, &r) && !errors.Is(err, ErrClosed) {
		return Answer{Reply: actor.Fail(call, r)}, nil
	}
	a, _ := body.(Answer)
	return a, err
}

// Cancel implements Node.
func (c *Client) Cancel(ctx context.Context, in Cancel) error {
	_, err := c.do(ctx, in)
	return err
}

// Forget implements Node.
func (c *Client) Forget(ctx context.Context, in Forget) error {
	_, err := c.do(ctx, in)
	return err
}

// Follow implements Node.
func (c *Client) Follow(ctx context.Context, in Follow) (updates <-chan struct{}, stop func(), err error) {
	r := &request{body: in, updates: make(chan struct{}, 1), begun: make(chan struct{})}
	if err := c.start(ctx, r); err != nil {
		return nil, nil, err
	}
	select {
	case <-r.begun:
		return r.updates, func() { c.stop(r) }, nil
	case <-r.ended:
		return nil, nil, r.err
	case <-ctx.Done():
		c.stop(r)
		return nil, nil, ctx.Err()
	}
}

// Lookup implements Node.
func (c *Client) Lookup(ctx context.Context, in Lookup) (Result, error) {
	return found(c.do(ctx, in))
}

// Do implements Node.
func (c *Client) Do(ctx context.Context, in Do) (Result, error) { return found(c.do(ctx, in)) }

func found(body Body, err error) (Result, error) {
	f, _ := body.(Found)
	return f.Result, err
}

var _ Node = (*Client)(nil)
