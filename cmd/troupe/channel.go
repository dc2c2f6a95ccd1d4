// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/fasthttp/websocket"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/ingress"
)

// Delays between two connections of a channel, and the silence after which a connection is lost: the
// server pings every 20 s.
const (
	channelDelayMin = 200 * time.Millisecond
	channelDelayMax = 10 * time.Second
	channelSilence  = ingress.SocketSilence
	channelTimeout  = 10 * time.Second // for a connection, and for a message to be written
	channelMessages = 64               // received and not yet handled

	channelCloseWait = time.Second // time for the server to close too; then other devices get the calls of tools
)

// channelMessage is a message of the server in the channel protocol (docs/channel.md).
type channelMessage struct {
	Type     string `json:"type"`
	Request  string `json:"request_id"`
	Run      string `json:"run_id"`
	Session  string `json:"session_id"`
	Agent    string `json:"agent_id"`
	State    string `json:"state"`
	Text     string `json:"text"`
	ToolCall string `json:"tool_call_id"`
	Tool     string `json:"tool_name"`
	Approval string `json:"approval_id"`
	Kind     string `json:"kind"` // of an approval
	Summary  string `json:"args_summary"`
	Code     string `json:"code"`
	Cursor   string `json:"cursor"`

	Args    jsontext.Value `json:"args"`
	Detail  jsontext.Value `json:"detail"`
	Message jsontext.Value `json:"message"` // a text, or the message of a user

	raw  []byte
	lost error // instead of a message: the connection was lost
	last bool  // and no other one is opened
}

// ready reports whether the message accepts the hello.
func (m *channelMessage) ready() bool { return m.is(ingress.StateReady) }

// is reports whether the message has a state.
func (m *channelMessage) is(state string) bool {
	return m.Type == ingress.ChannelState && m.State == state
}

// answers reports whether the message answers a request of the client.
func (m *channelMessage) answers() bool {
	return m.Request != "" && (m.Type == ingress.ChannelError || m.is(ingress.StateAccepted))
}

// approval returns what the message says about an approval.
func (m *channelMessage) approval() approvalView {
	return approvalView{ID: m.Approval, Kind: m.Kind, Tool: m.Tool, Summary: m.Summary}
}

// stateDetail is the detail of a state of a run.
type stateDetail struct {
	state    string
	Approval string `json:"approval_id"`
	Decision string `json:"decision"`
	By       string `json:"by"`
	Reason   string `json:"reason"`
	ToolCall string `json:"tool_call_id"`
	Tool     string `json:"tool_name"`
	Agent    string `json:"agent_id"`
	Status   string `json:"status"`
	Code     string `json:"code"`
	Name     string `json:"name"`
	Void     int    `json:"void_deltas"`
	Text     string `json:"text"`
}

// stateDetail returns the detail of a state message.
func (m *channelMessage) stateDetail() (d stateDetail) {
	if json.Unmarshal(m.Detail, &d) != nil { // an external agent reports what it likes
		d = stateDetail{}
	}
	d.state = m.State
	return d
}

// ended reports whether a tool call has ended.
func (d *stateDetail) ended() bool { return d.Status != "" && d.ToolCall != "" }

// text describes the state for a reader of the conversation; it may be empty.
func (d *stateDetail) text() string {
	switch {
	case d.Decision != "":
		text := strings.ToLower(d.Decision)
		if d.By != "" { // none if it has expired
			text += " by " + d.By
		}
		if d.Reason != "" {
			text += ": " + oneLine(d.Reason)
		}
		return text
	case d.state == ingress.StateParked:
		return "the run is parked until it is retried or cancelled: " + oneLine(d.Text)
	case d.ended() && d.Code != "":
		return d.Tool + ": " + d.Code
	case d.ended():
		return ""
	case d.state == ingress.StateCallingAgent && d.Agent != "":
		return "asks " + d.Agent
	case d.state == ingress.StateCallingTool && d.Tool != "":
		return "uses " + d.Tool
	case d.state == ingress.StateWaitingSignal && d.Name != "":
		return "waits for the signal " + d.Name
	}
	return ""
}

// text returns the member message if it is a text, or else its content.
func (m *channelMessage) text() (text string) {
	var message struct {
		Content string `json:"content"`
	}
	if json.Unmarshal(m.Message, &text) != nil && json.Unmarshal(m.Message, &message) == nil {
		return message.Content
	}
	return text
}

// channelRequest is a request of the client. Members without value are omitted.
type channelRequest struct {
	Type     string            `json:"type"`
	ID       string            `json:"request_id"`
	Session  string            `json:"session_id,omitzero"`
	Agent    string            `json:"agent_id,omitzero"`
	Message  map[string]string `json:"message,omitzero"`
	Run      string            `json:"run_id,omitzero"`
	Approval string            `json:"approval_id,omitzero"`
	Decision string            `json:"decision,omitzero"`
	Reason   string            `json:"reason,omitzero"`
	ToolCall string            `json:"tool_call_id,omitzero"`
	OK       *bool             `json:"ok,omitzero"`
	Result   jsontext.Value    `json:"result,omitzero"`
	Error    map[string]string `json:"error,omitzero"`
}

// channel is a client of the channel protocol that follows one session. It reconnects by itself, resumes
// behind the last cursor and repeats requests that were not answered, so that each message of the session
// arrives once and each request has one effect.
type channel struct {
	to       client
	device   string
	messages chan channelMessage

	mu       sync.Mutex
	conn     *websocket.Conn // nil: not ready
	session  string          // "": none yet
	cursor   string
	requests []channelRequest // not answered
}

// newChannel returns a channel that run connects.
func newChannel(to client, device, session string) *channel {
	return &channel{to: to, device: device, session: session, messages: make(chan channelMessage, channelMessages)}
}

// run connects until ctx ends or the server refuses the client. It then closes messages, and the server
// has closed the connection.
func (c *channel) run(ctx context.Context) {
	defer close(c.messages)
	delay := channelDelayMin
	for {
		ready, err := c.serve(ctx)
		var refused *problem
		last := errors.As(err, &refused) && refused.status < 500 && refused.status != http.StatusTooManyRequests
		if !c.pass(ctx, channelMessage{lost: err, last: last}) || last {
			return
		}
		if ready {
			delay = channelDelayMin
		}
		select {
		case <-time.After(delay/2 + rand.N(delay)):
		case <-ctx.Done():
			return
		}
		delay = min(2*delay, channelDelayMax)
	}
}

func (c *channel) pass(ctx context.Context, m channelMessage) bool {
	select {
	case c.messages <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// dial opens a connection. A refusal is an error of the type problem.
func (c *channel) dial(ctx context.Context) (*websocket.Conn, error) {
	if c.to.invalid != nil {
		return nil, c.to.invalid
	}
	address, err := url.Parse(c.to.server)
	if err != nil {
		return nil, fmt.Errorf("--server %s: %w; want an address like %s", c.to.server, err, defaultServer)
	}
	address.Scheme = strings.Replace(address.Scheme, "http", "ws", 1)
	address.Path += "/v1/ws"
	head := http.Header{}
	if c.to.key != "" {
		head.Set("Authorization", "Bearer "+c.to.key)
	}
	if c.to.user != "" {
		head.Set("X-User-Id", c.to.user)
	}
	dialer := websocket.Dialer{Subprotocols: []string{"troupe.v1+json"}, HandshakeTimeout: channelTimeout, TLSClientConfig: c.to.trust}
	conn, answer, err := dialer.DialContext(ctx, address.String(), head)
	if answer != nil && errors.Is(err, websocket.ErrBadHandshake) {
		body, _ := io.ReadAll(io.LimitReader(answer.Body, responseBytesMax))
		return nil, c.to.problem(answer.StatusCode, body)
	}
	if err != nil {
		return nil, c.to.connectionError(err)
	}
	return conn, nil
}

// serve passes on the messages of one connection. It reports whether the server accepted the hello.
func (c *channel) serve(ctx context.Context) (ready bool, err error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { // the answer to the close frame ends reading
		limit := time.Now().Add(channelCloseWait)
		_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(ingress.CloseNormal, ""), limit)
		_ = conn.SetReadDeadline(limit)
	})
	defer stop()
	defer func() {
		c.mu.Lock()
		c.conn = nil
		c.mu.Unlock()
		_ = conn.Close()
	}()
	extend := func() {
		if ctx.Err() == nil {
			_ = conn.SetReadDeadline(time.Now().Add(channelSilence))
		}
	}
	answerPing := conn.PingHandler()
	conn.SetPingHandler(func(data string) error { extend(); return answerPing(data) })
	extend()
	if err := c.write(conn, c.hello()); err != nil {
		return false, c.to.connectionError(err)
	}
	var held []channelMessage // the beginning of an event: see docs/channel.md
	var refusal channelMessage
	for {
		_, body, err := conn.ReadMessage()
		extend()
		var closed *websocket.CloseError
		if errors.As(err, &closed) && closed.Code == ingress.ClosePolicy {
			return ready, &problem{status: http.StatusUnauthorized, Code: cmp.Or(refusal.Code, "unauthorized"), Title: "refused", Detail: closed.Text, flags: c.to.flags}
		}
		if err != nil {
			return ready, c.to.connectionError(lostBy(err))
		}
		var m channelMessage
		if err := json.Unmarshal(body, &m); err != nil {
			return ready, fmt.Errorf("server %s: a message is no JSON: %w", c.to.server, err)
		}
		m.raw = body
		switch {
		case m.ready():
			ready = true
			c.resend(conn)
		case m.Type == ingress.ChannelError && m.Request == "" && m.Run == "":
			refusal = m
		case m.Cursor == "" && m.Run != "" && !m.answers() && (m.Type == ingress.ChannelDelta || m.Type == ingress.ChannelState):
			held = append(held, m)
			continue
		}
		c.take(&m)
		for _, m := range append(held, m) {
			if !c.pass(ctx, m) {
				break // read on until the server has closed
			}
		}
		held = nil
	}
}

// lostBy returns the reason for which a connection ended.
func lostBy(err error) error {
	var closed *websocket.CloseError
	switch {
	case errors.As(err, &closed) && closed.Text != "":
		return errors.New(closed.Text)
	case errors.Is(err, net.ErrClosed), errors.As(err, &closed), errors.Is(err, io.EOF):
		return errors.New("the connection was lost")
	}
	return err
}

// hello returns the first message, which resumes the session.
func (c *channel) hello() any {
	c.mu.Lock()
	defer c.mu.Unlock()
	type resume struct {
		Session string `json:"session_id"`
		After   string `json:"after"`
	}
	h := struct {
		Type   string            `json:"type"`
		Device string            `json:"device_id"`
		Meta   map[string]string `json:"client_meta"`
		Resume *resume           `json:"resume,omitzero"`
	}{Type: "hello", Device: c.device, Meta: map[string]string{"app": "troupe chat"}}
	if c.session != "" {
		h.Resume = &resume{c.session, c.cursor}
	}
	return h
}

// take records an answer or a cursor.
func (c *channel) take(m *channelMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.answers() {
		for i := range c.requests {
			if c.requests[i].ID == m.Request {
				c.requests = append(c.requests[:i:i], c.requests[i+1:]...)
				break
			}
		}
	}
	if c.session == "" && m.Session != "" {
		c.session = m.Session
	}
	if m.Cursor != "" && m.Session == c.session && m.Type != ingress.ChannelToolRequest {
		c.cursor = m.Cursor
	}
}

// resend makes a connection ready and sends the requests that were not answered.
func (c *channel) resend(conn *websocket.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	for i := range c.requests {
		_ = c.write(conn, &c.requests[i]) // reading reports the error, too
	}
}

// send sends a request, at once or when the connection is ready, until it is answered.
func (c *channel) send(r channelRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, r)
	if c.conn != nil {
		_ = c.write(c.conn, &r)
	}
}

// where returns the session; "" if none has begun.
func (c *channel) where() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

func (c *channel) write(conn *websocket.Conn, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(channelTimeout))
	return conn.WriteMessage(websocket.TextMessage, b)
}
