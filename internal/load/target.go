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
	"github.com/troupe-run/troupe/internal/command"
)

const (
	// SessionsDefault is the default number of actors that calls are spread over.
	SessionsDefault = 256
	// SessionsMax is the maximum number of these actors.
	SessionsMax = 1 << 16

	// responseTimeout is the maximum time to wait for a response of a server that hangs.
	responseTimeout  = 3 * time.Minute
	responseBytesMax = 1 << 20
	deadlineRefresh  = 30 * time.Second
	messageText      = "hello"
)

// Target is a node under load.
type Target interface {
	// Caller returns the n-th caller.
	Caller(n int) (Caller, error)
}

// Caller makes calls, one at a time.
type Caller interface {
	Call() Outcome
	Close()
}

// Outcome is the result of a call.
type Outcome struct {
	Code       string        // empty if completed; else the problem's code, or Broken
	Scope      string        // for agent_busy: the owner of the exceeded limit
	RetryAfter time.Duration // retry delay; 0 means a retry is useless
}

// Broken is the code of a call without a response.
const Broken = "connection_broken"

// sessionOrder spreads the calls of one caller over the sessions. Callers use
// different orders.
type sessionOrder struct{ at, step, of int }

func newSessionOrder(n, of int) sessionOrder {
	step := n%16*2 + 1
	for gcd(step, of) != 1 { // otherwise some sessions would never be called
		step += 2
	}
	return sessionOrder{n * 7, step, of}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (t *sessionOrder) next() int {
	t.at += t.step
	return t.at % t.of
}

// CallOptions holds the options common to all calls of a loop.
type CallOptions struct {
	Agent    string
	Timeout  time.Duration // maximum duration of a run; 0 means the node's limit
	Sessions int           // number of actors called; 0 means SessionsDefault
}

func (a CallOptions) sessions() (names []string) {
	n := a.Sessions
	if n <= 0 {
		n = SessionsDefault
	}
	for i := range min(n, SessionsMax) {
		names = append(names, "s-"+strconv.Itoa(i))
	}
	return names
}

// NodeTarget is a node in this process, called without its gateway.
type NodeTarget struct {
	node    command.Node
	options CallOptions
	ids     []actor.ID
	parts   []actor.Part
}

// NewNodeTarget returns a target that sends commands to n.
func NewNodeTarget(n command.Node, ask CallOptions) *NodeTarget {
	c := &NodeTarget{node: n, options: ask, parts: actor.Text(messageText)}
	for _, s := range ask.sessions() {
		c.ids = append(c.ids, actor.NewID(ask.Agent, s))
	}
	return c
}

type nodeCaller struct {
	*NodeTarget
	order sessionOrder
}

// Caller implements Target.
func (c *NodeTarget) Caller(n int) (Caller, error) {
	return &nodeCaller{c, newSessionOrder(n, len(c.ids))}, nil
}

// Call implements Caller.
func (c *nodeCaller) Call() Outcome {
	a, err := c.node.Invoke(context.Background(), command.Invoke{By: actor.NewPrincipal("load", ""), Call: actor.Call{ID: c.node.NewCallID(), To: c.ids[c.order.next()], Left: c.options.Timeout, Parts: c.parts}}, nil)
	switch r := a.Reply.Refusal; {
	case err != nil:
		return Outcome{Code: Broken}
	case r != nil:
		return Outcome{Code: r.Reason.Info().Type, Scope: r.Scope.String(), RetryAfter: r.RetryAfter}
	}
	return Outcome{}
}

// Close implements Caller.
func (c *nodeCaller) Close() {}

// GatewayTarget is a server called over HTTP. Each caller has its own connection. The
// requests are encoded in advance.
type GatewayTarget struct {
	address  string
	requests [][]byte
}

// NewGatewayTarget returns a target that calls the server at a URL. The key may be
// empty.
func NewGatewayTarget(server, key string, ask CallOptions) (*GatewayTarget, error) {
	address, err := url.Parse(server)
	if err != nil || address.Scheme != "http" || address.Host == "" || address.Path != "" && address.Path != "/" {
		return nil, fmt.Errorf("%q: want an address like http://127.0.0.1:8283", server)
	}
	if err := actor.CheckName(ask.Agent); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("the API key contains an invalid character")
	}
	t := &GatewayTarget{address: address.Host}
	if address.Port() == "" {
		t.address = net.JoinHostPort(address.Hostname(), "80")
	}
	for _, s := range ask.sessions() {
		t.requests = append(t.requests, encodeRequest(address.Host, key, s, ask))
	}
	return t, nil
}

// encodeRequest returns the bytes of an HTTP/1.1 request.
func encodeRequest(host, key, session string, ask CallOptions) []byte {
	body := fmt.Appendf(nil, `{"content":%q,"session":%q`, messageText, session)
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

type gatewayCaller struct {
	*GatewayTarget
	order       sessionOrder
	conn        net.Conn // nil after a failure
	reader      *bufio.Reader
	deadlineSet time.Time
}

// Caller implements Target.
func (d *GatewayTarget) Caller(n int) (Caller, error) {
	c := &gatewayCaller{GatewayTarget: d, order: newSessionOrder(n, len(d.requests))}
	return c, c.dial()
}

func (c *gatewayCaller) dial() (err error) {
	if c.conn, err = net.DialTimeout("tcp", c.address, 10*time.Second); err != nil {
		c.conn = nil
		return err
	}
	c.deadlineSet = time.Time{}
	if c.reader == nil {
		c.reader = bufio.NewReader(c.conn)
	}
	c.reader.Reset(c.conn)
	return nil
}

// Call implements Caller.
func (c *gatewayCaller) Call() Outcome {
	if c.conn == nil && c.dial() != nil {
		return Outcome{Code: Broken, RetryAfter: 100 * time.Millisecond}
	}
	err := c.send(c.requests[c.order.next()])
	// The response buffer is acquired when data has arrived. One buffer per caller would
	// not fit into the processor's cache.
	answer := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(answer)
	if err == nil {
		err = answer.ReadLimitBody(c.reader, responseBytesMax)
	}
	if err != nil {
		_ = c.conn.Close()
		c.conn = nil
		return Outcome{Code: Broken, RetryAfter: 100 * time.Millisecond}
	}
	if answer.ConnectionClose() {
		_ = c.conn.Close()
		c.conn = nil
	}
	return parseOutcome(answer)
}

// send sends a request and returns when the first byte of the response has arrived.
func (c *gatewayCaller) send(request []byte) error {
	if now := time.Now(); now.Sub(c.deadlineSet) > deadlineRefresh { // setting it for each call would double the cost
		c.deadlineSet = now
		if err := c.conn.SetDeadline(now.Add(responseTimeout)); err != nil {
			return err
		}
	}
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	_, err := c.reader.Peek(1)
	return err
}

// parseOutcome converts a response to an outcome.
func parseOutcome(answer *fasthttp.Response) Outcome {
	status := answer.StatusCode()
	if status/100 == 2 {
		return Outcome{}
	}
	a := Outcome{Code: "status_" + strconv.Itoa(status)}
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
		a.RetryAfter = time.Duration(seconds) * time.Second
	}
	return a
}

// Close implements Caller.
func (c *gatewayCaller) Close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// newCallers returns n callers of a target.
func newCallers(t Target, n int) (callers []Caller, err error) {
	for i := range n {
		c, err := t.Caller(i)
		if err != nil {
			closeAll(callers)
			return nil, errors.Join(fmt.Errorf("caller %d of %d: %w", i+1, n, err))
		}
		callers = append(callers, c)
	}
	return callers, nil
}

func closeAll(all []Caller) {
	for _, c := range all {
		c.Close()
	}
}
