// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"github.com/troupe-run/troupe/internal/client"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/fasthttp/websocket"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// detachedConn is the connection of a request that arrived over a socket. It has no data of its
// own: the socket itself notices that its client has gone.
type detachedConn struct{ net.Conn }

func (detachedConn) Close() error { return nil }

// socketDriver is the driver of an ingress.Socket on one connection.
type socketDriver struct {
	server  *Server
	socket  *ingress.Socket
	head    *fasthttp.RequestHeader // of the handshake
	from    net.Conn                // for requests: has the rights of the connection
	by      caller
	shook   socketHead // what the head of the handshake says about requests
	checked time.Time  // last look at the key of by
	seat    *place     // of its address, then of by
	share   *socketShare
	held    int64 // bytes of the requests of socket, counted in share
	reader  socketReader
	conn    *websocket.Conn
	started time.Time
	ctx     context.Context
	cancel  context.CancelFunc

	inputs  chan ingress.SocketInput
	results []ingress.SocketInput // answers to actions performed at once
	end     *ingress.Close

	away      *command.AwayError     // why the last read has failed, if the node is away
	postponed []ingress.SocketOutput // reads that wait for the node; at most two for each session
	back      <-chan struct{}        // closed once the node is back; nil if nothing is postponed

	watch *client.Watch // of sessions; nil before the hello

	device   string
	updates  <-chan struct{}   // the calls of the device have changed
	leave    func()            // the device is not connected by this socket any longer
	silent   chan struct{}     // closed when nothing more is received
	admitted chan struct{}     // closed when the hello was accepted
	asked    []runs.ToolCallID // open calls that were sent
	requests sync.WaitGroup    // that are performed
}

func newSocketDriver(s *Server, head *fasthttp.RequestHeader, conn net.Conn) *socketDriver {
	d := &socketDriver{server: s, socket: ingress.NewSocket(), head: head, started: s.clock(), inputs: make(chan ingress.SocketInput, 1),
		leave: func() {}, silent: make(chan struct{}), admitted: make(chan struct{})}
	d.from = detachedConn{conn}
	d.share = &socketShare{bodies: s.bodies.Shares}
	if own, ok := conn.(*connection); ok {
		d.from = &connection{Conn: detachedConn{own}, owner: own.owner}
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// now returns the time of a monotonic clock that started at the wall time of the connection.
func (d *socketDriver) now() actor.Time {
	return actor.Time(d.started.UnixNano()).Add(d.server.clock().Sub(d.started))
}

// serve runs the socket until it is closed.
func (d *socketDriver) serve(c *websocket.Conn, known bool) {
	d.conn = c
	defer func() {
		d.recovered("panic while serving a socket", recover())
		d.cancel()
		_ = c.SetReadDeadline(time.Unix(1, 0))
		<-d.silent // fasthttp gives the buffers of the connection to others once serve returns
		_ = c.Close()
		d.requests.Wait()
		d.share.end()
	}()
	go d.receive()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for d.step(ingress.SocketOpened{Known: known}); d.end == nil; {
		d.awaitInput(timer)
	}
	d.leave() // before the client sees the end, after which calls go to other devices
	deadline := time.Now().Add(closeWait)
	_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(d.end.Code, d.end.Reason), deadline)
	d.drain(deadline)
	d.server.log.Debug("socket closed", "user", d.by.User, "code", d.end.Code, "reason", d.end.Reason, "ms", time.Duration(d.now()-actor.Time(d.started.UnixNano())).Milliseconds())
}

// recovered logs the value of recover, and reports whether there was a panic.
func (d *socketDriver) recovered(what string, p any) bool {
	if p != nil {
		d.server.log.Error(what, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	}
	return p != nil
}

// drain reads until the client closes too, so that it gets the close code rather than a reset.
func (d *socketDriver) drain(deadline time.Time) {
	timeout := time.NewTimer(time.Until(deadline))
	defer timeout.Stop()
	for {
		select {
		case in := <-d.inputs:
			if _, gone := in.(ingress.SocketFailed); gone {
				return
			}
		case <-d.silent:
			return
		case <-timeout.C:
			return
		}
	}
}

// receive passes on the messages of the client.
//
// The first message is the hello, which is small. No other is read before it was accepted.
func (d *socketDriver) receive() {
	defer close(d.silent)
	defer func() {
		if d.recovered("panic while reading from a socket", recover()) {
			d.pass(ingress.SocketFailed{Code: ingress.CloseBroken, Reason: "the message could not be read"})
		}
	}()
	c, limit, greeted := d.conn, int64(ingress.HelloBytesMax), false
	c.SetReadLimit(limit)
	heard := func(data string) error {
		d.pass(ingress.SocketHeard{})
		return d.reader.heard(time.Now(), len(data))
	}
	c.SetPongHandler(heard)
	answerPing := c.PingHandler()
	c.SetPingHandler(func(data string) error {
		if err := heard(data); err != nil {
			return err
		}
		return answerPing(data)
	})
	for {
		kind, body, err := d.reader.next(c, limit)
		switch {
		case err != nil:
			d.pass(failedRead(err, limit))
			return
		case kind != websocket.TextMessage:
			d.pass(ingress.SocketFailed{Code: ingress.CloseUnsupported, Reason: "messages are text, not binary"})
			return
		case !utf8.Valid(body):
			d.pass(ingress.SocketFailed{Code: ingress.CloseUTF8, Reason: "the message is not valid UTF-8"})
			return
		}
		d.pass(ingress.SocketText{Body: body})
		if !greeted {
			select {
			case <-d.admitted:
			case <-d.ctx.Done():
				return
			}
			greeted, limit = true, ingress.SocketMessageBytesMax
			c.SetReadLimit(limit)
		}
	}
}

func (d *socketDriver) pass(in ingress.SocketInput) {
	select {
	case d.inputs <- in:
	case <-d.ctx.Done():
	}
}

// failedRead returns the input for an error of the connection. limit is that of a message.
func failedRead(err error, limit int64) ingress.SocketFailed {
	var closed *websocket.CloseError
	switch {
	case errors.Is(err, websocket.ErrReadLimit):
		return ingress.SocketFailed{Code: ingress.CloseTooBig, Reason: fmt.Sprintf("the message exceeds %d bytes", limit)}
	case errors.As(err, &closed):
		return ingress.SocketFailed{Code: ingress.CloseNormal}
	case errors.Is(err, errSocketBodies):
		return ingress.SocketFailed{Code: ingress.CloseTryLater, Reason: err.Error()}
	case errors.Is(err, errSocketOverhead), errors.Is(err, errSocketControls):
		return ingress.SocketFailed{Code: ingress.ClosePolicy, Reason: err.Error()}
	case errors.Is(err, net.ErrClosed):
		return ingress.SocketFailed{Code: ingress.CloseNormal}
	}
	return ingress.SocketFailed{Code: ingress.CloseProtocol, Reason: "the connection failed"}
}

// step passes an input to the socket and performs its actions. A socket that reads many pages
// also gets what its client sends during that time, such as signs of life.
func (d *socketDriver) step(in ingress.SocketInput) {
	for d.apply(in); len(d.results) > 0 && d.end == nil; {
		in, d.results = d.results[0], d.results[1:]
		d.apply(in)
		select {
		case in = <-d.inputs:
			d.apply(in)
		case <-d.server.stopping:
			d.apply(ingress.Draining{})
		default:
		}
	}
}

func (d *socketDriver) apply(in ingress.SocketInput) {
	if d.revoked() {
		in = ingress.Revoked{}
	}
	outputs := d.socket.Step(d.now(), in)
	d.count(in)
	for _, out := range outputs {
		d.perform(out)
	}
}

// count counts the requests that the socket holds. It takes a message over from the reader.
func (d *socketDriver) count(in ingress.SocketInput) {
	held := int64(d.socket.HeldBytes())
	more := held - d.held
	if text, ok := in.(ingress.SocketText); ok {
		more -= int64(cap(text.Body))
	}
	if !d.share.add(more) { // a request whose JSON is longer than that of its message
		d.answer(ingress.SocketFailed{Code: ingress.CloseTryLater, Reason: errSocketBodies.Error()})
		return
	}
	d.held = held
}

// revoked reports whether the key of the client was revoked or has expired. It looks at most once in
// keyCheckInterval.
func (d *socketDriver) revoked() bool {
	if d.by.Key == "" || time.Since(d.checked) < keyCheckInterval {
		return false
	}
	d.checked = time.Now()
	return d.by.lost(d.server.config.Keys)
}

func (d *socketDriver) answer(in ingress.SocketInput) { d.results = append(d.results, in) }

func (d *socketDriver) perform(out ingress.SocketOutput) {
	switch out := out.(type) {
	case ingress.Admit:
		d.answer(d.admit(&out.Hello))
	case ingress.Attach:
		d.read(out, func() ingress.SocketInput { return d.attach(out) })
	case ingress.Detach:
		d.watch.Unfollow(client.Subject{Session: out.Session})
	case ingress.ReadSession:
		d.read(out, func() ingress.SocketInput { return d.readSession(out) })
	case ingress.ReadRun:
		d.read(out, func() ingress.SocketInput { return d.readRun(out) })
	case ingress.Locate:
		d.read(out, func() ingress.SocketInput { return d.locate(out.Run) })
	case ingress.Perform:
		d.requests.Go(func() { d.performRequest(&out.Request) })
	case ingress.Send:
		d.send(out.Messages)
	case ingress.SendPing:
		_ = d.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeSliceMax))
	case ingress.Close:
		d.end = &out
	}
}

// read performs an action that reads from the node. If the node is away, the action is postponed
// until it is back: the socket stays open.
func (d *socketDriver) read(out ingress.SocketOutput, perform func() ingress.SocketInput) {
	d.away = nil
	in := perform()
	if d.away == nil {
		d.answer(in)
		return
	}
	d.postponed, d.back = append(d.postponed, out), d.away.Back
}

// resume performs the postponed actions.
func (d *socketDriver) resume() {
	postponed := d.postponed
	d.postponed, d.back = nil, nil
	for _, out := range postponed {
		d.perform(out)
	}
	d.step(ingress.Tick{})
}

// awaitInput blocks until the socket has an input.
func (d *socketDriver) awaitInput(timer *time.Timer) {
	wait := d.socket.NextDeadline().Sub(d.now())
	if d.by.Key != "" {
		wait = min(wait, keyCheckInterval)
	}
	timer.Reset(max(wait, 0))
	var news <-chan struct{}
	if d.watch != nil {
		news = d.watch.Wake()
	}
	select {
	case in := <-d.inputs:
		d.step(in)
	case _, open := <-d.updates:
		if !open {
			d.updates = nil // the next read returns the reason
		}
		d.askTools()
	case <-news:
		for _, subject := range d.watch.News() {
			d.step(ingress.SessionNews{Session: subject.Session})
		}
	case <-d.back:
		d.resume()
	case <-d.server.stopping:
		d.step(ingress.Draining{})
	case <-timer.C:
		d.step(ingress.Tick{})
	}
}

// send writes messages within the time that a client has to take them.
func (d *socketDriver) send(messages [][]byte) {
	for _, m := range messages {
		_ = d.conn.SetWriteDeadline(time.Now().Add(d.server.config.StreamTimeout))
		if err := d.conn.WriteMessage(websocket.TextMessage, m); err != nil {
			d.answer(ingress.SocketFailed{Code: ingress.CloseTryLater, Reason: "the client did not read in time: reconnect and resume behind the last cursor"})
			return
		}
	}
	d.answer(ingress.SocketSent{})
}

// admit authenticates the client by its hello.
func (d *socketDriver) admit(h *ingress.Hello) ingress.Admitted {
	if h.Key != nil && *h.Key != "" {
		switch presented := bearerToken(d.head.Peek(fasthttp.HeaderAuthorization)); presented {
		case "", *h.Key:
			d.head.Set(fasthttp.HeaderAuthorization, "Bearer "+*h.Key)
		default:
			return ingress.Admitted{Code: "unauthorized", Detail: "api_key: differs from the key of the handshake"}
		}
	}
	if hasRunToken(d.head) {
		return refusedHello(actsForRun())
	}
	c, p := d.server.authorize(d.head, ingress.ScopeRead, d.from)
	if user, named := userNamed(d.head); p == nil && named {
		c, p = c.actingFor(user, userHeader)
	}
	if p == nil && h.User != nil && *h.User != "" {
		if c, p = c.actingFor(*h.User, "user_id"); p == nil {
			d.head.Set(userHeader, *h.User)
		}
	}
	if p != nil {
		return refusedHello(d.server.throttle(d.from, p))
	}
	if key := c.shareKey(); key != d.seat.key {
		release, r := d.server.streams.acquire(c)
		if r != nil {
			return refusedHello(refusalProblem(r))
		}
		d.seat.move(release)
	}
	if !d.share.pass(c.shareKey(), c.isAdmin()) {
		return ingress.Admitted{Code: "agent_busy", Detail: errSocketBodies.Error(), Later: true}
	}
	d.by = *c
	device := h.Device
	if device == "" {
		device = fmt.Sprintf("socket-%x", rand.Uint64())
	}
	d.device = device
	d.shook = newSocketHead(d.server.config.Secret, d.head)
	d.watch = clientOf(d.server, &d.by).Watch(d.server.stopping)
	context.AfterFunc(d.ctx, d.watch.Close)
	close(d.admitted)
	if !ingress.Allows(d.by.Principal, ingress.ScopeCall) && !d.by.chats() { // it cannot give results
		return ingress.Admitted{User: d.by.User, Device: device, Cursors: sessionCursors(d.server, &d.by), Chats: d.by.chats(), Detached: d.server.config.DetachedOnChannel}
	}
	ctx, cancel := context.WithTimeout(d.ctx, readTimeout)
	defer cancel()
	updates, stop, err := nodeOf(d.server, &d.by).Follow(ctx, command.Follow{By: d.by.Principal, Device: device})
	if r := d.refusalOf(err); r != nil {
		return refusedHello(refusalProblem(r))
	}
	d.updates, d.leave = updates, stop
	context.AfterFunc(d.ctx, stop)
	return ingress.Admitted{User: d.by.User, Device: device, Cursors: sessionCursors(d.server, &d.by), Chats: d.by.chats(), Detached: d.server.config.DetachedOnChannel}
}

// askTools passes on the calls of the device that were not sent yet.
func (d *socketDriver) askTools() {
	calls, err := lookup(d.server, d.by, command.DeviceCallsQuery{Device: d.device})
	if away := (*command.AwayError)(nil); errors.As(err, &away) {
		return // an update follows once the node is back
	}
	if err != nil {
		d.step(ingress.SocketFailed{Code: ingress.CloseTryLater, Reason: "the calls of the device cannot be read now: reconnect later"})
		return
	}
	open := make([]runs.ToolCallID, 0, len(calls.All))
	for i := range calls.All {
		c := &calls.All[i]
		if open = append(open, c.ID); !slices.Contains(d.asked, c.ID) {
			d.step(ingress.ToolAsked{Run: c.Root, Child: c.ID.Run, Session: c.Session, Call: c.ID.String(), Tool: c.Tool, Args: c.Args, Deadline: c.Deadline})
		}
	}
	d.asked = open
}

func refusedHello(p *problem) ingress.Admitted {
	return ingress.Admitted{Code: p.Code, Detail: p.Detail, Later: p.Status >= http.StatusTooManyRequests}
}

// attach subscribes to a session.
func (d *socketDriver) attach(out ingress.Attach) ingress.Attached {
	in := ingress.Attached{Session: out.Session}
	ctx, cancel := context.WithTimeout(d.ctx, readTimeout)
	defer cancel()
	session := client.Subject{Session: out.Session}
	err := d.watch.Forward(session)
	if err == nil && out.End {
		var end command.SessionEnd
		if end, err = command.Find(ctx, nodeOf(d.server, &d.by), d.by.Principal, command.SessionEndQuery{Session: out.Session}); err != nil {
			d.watch.Unfollow(session)
		}
		in.End = end.Cursor
	}
	in.Refusal = d.refusalOf(err)
	return in
}

// refusalOf returns the refusal for an error of the node.
func (d *socketDriver) refusalOf(err error) *actor.Refusal {
	var r *actor.Refusal
	errors.As(err, &d.away)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &r):
		return r
	case errors.Is(err, command.ErrClosed):
		return &actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: "this node is stopping"}
	}
	d.server.log.Error("cannot read the events of a session", "error", err.Error())
	return &actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: "the messages of the session cannot be read now: reconnect later"}
}

func (d *socketDriver) sessionEvents(q command.SessionEventsQuery) (command.SessionEvents, error) {
	defer d.server.turns.take(&d.by)()
	return lookup(d.server, d.by, q)
}

func (d *socketDriver) readSession(out ingress.ReadSession) ingress.SessionPage {
	in := ingress.SessionPage{Session: out.Session}
	page, err := d.sessionEvents(command.SessionEventsQuery{Session: out.Session, After: out.After, Limit: out.Limit})
	for _, e := range page.All {
		in.All = append(in.All, ingress.SessionItem{At: e.At, Body: e.Body})
	}
	in.More, in.Dropped, in.Refusal = page.More, page.Dropped, d.refusalOf(err)
	return in
}

// readRun reads events of a run that precede those of a page.
func (d *socketDriver) readRun(out ingress.ReadRun) (in ingress.RunPage) {
	page, err := lookup(d.server, d.by, command.EventsQuery{Run: out.Run, After: out.After, Limit: int(min(out.To-out.After, socketRunEvents))})
	var dropped command.EventsDropped
	if err == nil && len(page.All) == 0 || errors.As(err, &dropped) {
		var owner command.Owner
		owner, err = d.server.runOwner(d.by, out.Run)
		in.Root = owner.Root
	}
	in.Refusal = d.refusalOf(err)
	for _, e := range page.All {
		in.Bodies = append(in.Bodies, e.Body)
	}
	return in
}

// locate returns the session of a run.
func (d *socketDriver) locate(run actor.CallID) ingress.Located {
	owner, err := d.server.runOwner(d.by, run)
	in := ingress.Located{Root: owner.Root}
	if r := d.refusalOf(err); r != nil {
		p := refusalProblem(r)
		in.Code, in.Detail = p.Code, p.Detail
	}
	if session, ok := owner.Actor.Session(); ok {
		in.Session = session
	}
	return in
}
