// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
)

const (
	// SessionsDefault is among how many actors of an agent calls are spread.
	SessionsDefault = 256
	// SessionsMax is how many there may be.
	SessionsMax = 1 << 16

	// answerWithin is how long an answer may take, at a server that has hung.
	answerWithin    = 3 * time.Minute
	answerBytesMax  = 1 << 20
	deadlineRenewed = 30 * time.Second
	message         = "hello"
)

// Target is who is asked.
type Target interface {
	// Caller makes one more who asks. It has the n-th of all.
	Caller(n int) (Caller, error)
}

// Caller asks, one call after the other.
type Caller interface {
	Call() Answer
	Close()
}

// Answer is what came of a call.
type Answer struct {
	Code  string        // "": it was done; else the problem's code, or Broken
	Scope string        // of agent_busy: whose limit it was
	After time.Duration // come back then; 0: that would not help
}

// Broken is the code of what got no answer at all.
const Broken = "connection_broken"

// turns spreads the calls of one caller among the sessions, each caller in an
// order of its own.
type turns struct{ at, step, of int }

func newTurns(n, of int) turns { return turns{n * 7, n%16*2 + 1, of} }

func (t *turns) next() int {
	t.at += t.step
	return t.at % t.of
}

// Ask is what calls of a load have in common.
type Ask struct {
	Agent    string
	Timeout  time.Duration // of a run; 0: the node's own
	Sessions int           // among how many actors they are spread; 0: SessionsDefault
}

func (a Ask) sessions() (all []string) {
	n := a.Sessions
	if n <= 0 {
		n = SessionsDefault
	}
	for i := range min(n, SessionsMax) {
		all = append(all, "s-"+strconv.Itoa(i))
	}
	return all
}

// Cells is a node in this process, asked without a door.
type Cells struct {
	engine *engine.Engine
	ask    Ask
	ids    []actor.ID
	parts  []actor.Part
}

// NewCells asks a node.
func NewCells(e *engine.Engine, ask Ask) *Cells {
	c := &Cells{engine: e, ask: ask, parts: actor.Text(message)}
	for _, s := range ask.sessions() {
		c.ids = append(c.ids, actor.NewID(ask.Agent, s))
	}
	return c
}

type cellsCaller struct {
	*Cells
	turns turns
}

// Caller implements Target.
func (c *Cells) Caller(n int) (Caller, error) { return &cellsCaller{c, newTurns(n, len(c.ids))}, nil }

// Call implements Caller.
func (c *cellsCaller) Call() Answer {
	a, err := c.engine.Ask(context.Background(), actor.Call{ID: c.engine.NewCallID(), To: c.ids[c.turns.next()], Left: c.ask.Timeout, Parts: c.parts})
	switch r := a.Reply.Refusal; {
	case err != nil:
		return Answer{Code: Broken}
	case r != nil:
		return Answer{Code: r.Reason.Info().Type, Scope: r.Scope.String(), After: r.RetryAfter}
	}
	return Answer{}
}

// Close implements Caller.
func (c *cellsCaller) Close() {}

// Door is a server, asked over HTTP. Each caller keeps a connection of its own;
// the requests are made before anybody calls.
type Door struct {
	address  string
	requests [][]byte
}

// NewDoor asks a server, with an API key if it needs one.
func NewDoor(server, key string, ask Ask) (*Door, error) {
	at, err := url.Parse(server)
	if err != nil || at.Scheme != "http" || at.Host == "" || at.Path != "" && at.Path != "/" {
		return nil, fmt.Errorf("%q: want an address like http://127.0.0.1:8283", server)
	}
	if err := actor.CheckName(ask.Agent); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("the API key holds what no key does")
	}
	d := &Door{address: at.Host}
	if at.Port() == "" {
		d.address = net.JoinHostPort(at.Hostname(), "80")
	}
	for _, s := range ask.sessions() {
		d.requests = append(d.requests, request(at.Host, key, s, ask))
	}
	return d, nil
}

// request is one as it goes over the wire.
func request(host, key, session string, ask Ask) []byte {
	body := fmt.Appendf(nil, `{"content":%q,"session":%q`, message, session)
	if ask.Timeout > 0 {
		body = fmt.Appendf(body, `,"timeout_ms":%d`, ask.Timeout.Milliseconds())
	}
	body = append(body, '}')
	b := fmt.Appendf(nil, "POST /v1/agents/%s/messages HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", ask.Agent, host, len(body))
	if key != "" {
		b = fmt.Appendf(b, "Authorization: Bearer %s\r\n", key)
	}
	return append(append(b, "\r\n"...), body...)
}

type doorCaller struct {
	*Door
	turns   turns
	conn    net.Conn // nil: broken
	reader  *bufio.Reader
	renewed time.Time
}

// Caller implements Target.
func (d *Door) Caller(n int) (Caller, error) {
	c := &doorCaller{Door: d, turns: newTurns(n, len(d.requests))}
	return c, c.dial()
}

func (c *doorCaller) dial() (err error) {
	if c.conn, err = net.DialTimeout("tcp", c.address, 10*time.Second); err != nil {
		c.conn = nil
		return err
	}
	c.renewed = time.Time{}
	if c.reader == nil {
		c.reader = bufio.NewReader(c.conn)
	}
	c.reader.Reset(c.conn)
	return nil
}

// Call implements Caller.
func (c *doorCaller) Call() Answer {
	if c.conn == nil && c.dial() != nil {
		return Answer{Code: Broken, After: 100 * time.Millisecond}
	}
	err := c.send(c.requests[c.turns.next()])
	// The room for an answer is taken now that there is one: with as many rooms as
	// callers, none would be in the processor's cache.
	answer := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(answer)
	if err == nil {
		err = answer.ReadLimitBody(c.reader, answerBytesMax)
	}
	if err != nil {
		_ = c.conn.Close()
		c.conn = nil
		return Answer{Code: Broken, After: 100 * time.Millisecond}
	}
	if answer.ConnectionClose() {
		_ = c.conn.Close()
		c.conn = nil
	}
	return meaning(answer)
}

// send sends a request, and returns when there is something to read.
func (c *doorCaller) send(request []byte) error {
	if now := time.Now(); now.Sub(c.renewed) > deadlineRenewed { // each time would cost as much as the rest of a call
		c.renewed = now
		if err := c.conn.SetDeadline(now.Add(answerWithin)); err != nil {
			return err
		}
	}
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	_, err := c.reader.Peek(1)
	return err
}

// meaning is what an answer says.
func meaning(answer *fasthttp.Response) Answer {
	status := answer.StatusCode()
	if status/100 == 2 {
		return Answer{}
	}
	a := Answer{Code: "status_" + strconv.Itoa(status)}
	if bytes.HasPrefix(answer.Header.ContentType(), []byte("application/problem+json")) {
		var p struct {
			Code  string `json:"code"`
			Scope string `json:"scope"`
		}
		if json.Unmarshal(answer.Body(), &p) == nil && p.Code != "" {
			a.Code, a.Scope = p.Code, p.Scope
		}
	}
	if seconds, err := strconv.Atoi(string(answer.Header.Peek(fasthttp.HeaderRetryAfter))); err == nil {
		a.After = time.Duration(seconds) * time.Second
	}
	return a
}

// Close implements Caller.
func (c *doorCaller) Close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// callers are so many of a target.
func callers(t Target, n int) (all []Caller, err error) {
	for i := range n {
		c, err := t.Caller(i)
		if err != nil {
			closeAll(all)
			return nil, errors.Join(fmt.Errorf("caller %d of %d: %w", i+1, n, err))
		}
		all = append(all, c)
	}
	return all, nil
}

func closeAll(all []Caller) {
	for _, c := range all {
		c.Close()
	}
}
