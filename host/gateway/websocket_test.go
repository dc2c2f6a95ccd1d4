// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fasthttp/websocket"
	"github.com/go-json-experiment/json"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// channelClient is a client of the channel protocol.
type channelClient struct {
	*testing.T
	conn *websocket.Conn
	got  []channelMessage
}

// channelMessage is a message as a client decodes it.
type channelMessage struct {
	Type     string           `json:"type"`
	TS       int64            `json:"ts"`
	Request  string           `json:"request_id"`
	Run      string           `json:"run_id"`
	Child    string           `json:"child_run_id"`
	Session  string           `json:"session_id"`
	Agent    string           `json:"agent_id"`
	Text     string           `json:"text"`
	State    string           `json:"state"`
	RunState string           `json:"run_state"`
	Detail   map[string]any   `json:"detail"`
	ToolCall string           `json:"tool_call_id"`
	Tool     string           `json:"tool_name"`
	Args     map[string]any   `json:"args"`
	Deadline int64            `json:"deadline_ts"`
	Approval string           `json:"approval_id"`
	Kind     string           `json:"kind"`
	Summary  string           `json:"args_summary"`
	Code     string           `json:"code"`
	Message  any              `json:"message"`
	Origin   string           `json:"origin"`
	Usage    map[string]int64 `json:"usage"`
	Cursor   string           `json:"cursor"`
}

// channel opens a socket, and sends the hello if it is not empty.
func (d *testGateway) channel(hello string, headers http.Header) *channelClient {
	d.Helper()
	dialer := websocket.Dialer{Subprotocols: headers["Sec-Websocket-Protocol"], NetDialContext: dialMaybeTLS}
	delete(headers, "Sec-Websocket-Protocol")
	conn, answer, err := dialer.Dial("ws://"+d.address+socketRoute, headers)
	if err != nil {
		d.Fatalf("%v: %v", err, answer)
	}
	d.Cleanup(func() { _ = conn.Close() })
	c := &channelClient{T: d.T, conn: conn}
	if hello != "" {
		c.send(hello)
	}
	return c
}

func (c *channelClient) send(text string) {
	c.Helper()
	if err := c.conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		c.Fatal(err)
	}
}

// next returns the next message, or the close code.
func (c *channelClient) next() (m channelMessage, code int) {
	c.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, b, err := c.conn.ReadMessage()
	if closed, ok := err.(*websocket.CloseError); ok {
		return m, closed.Code
	}
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		c.Fatalf("%v after %+v", err, c.got)
	}
	c.got = append(c.got, m)
	return m, 0
}

// until reads until a message of this type, and with this state if it is not empty.
func (c *channelClient) until(kind, state string) channelMessage {
	c.Helper()
	for {
		m, code := c.next()
		if code != 0 {
			c.Fatalf("closed with %d after %+v", code, c.got)
		}
		if m.Type == kind && (state == "" || m.State == state) {
			return m
		}
	}
}

// text returns the text of the deltas of a run.
func (c *channelClient) text(run string) (text string) {
	for _, m := range c.got {
		if m.Type == "delta" && m.Run == run {
			text += m.Text
		}
	}
	return text
}

// The messages of the fifth seed pass as they are: without request ids where it has none, and
// with ts 0.
func TestChannelSpeaksTheSeedsMessages(t *testing.T) {
	d, s := startBuyer(t, Config{}, "")
	c := d.channel(`{"type":"hello","ts":0,"user_id":"u1","client_meta":{"app":"web"}}`, nil)
	if m := c.until("state", "READY"); m.Detail["user_id"] != "u1" || m.Detail["device_id"] == "" {
		t.Errorf("%+v", m)
	}
	c.send(`{"type":"agent_invoke","ts":0,"request_id":"r1","session_id":"s1","agent_id":"buyer","message":{"role":"user","content":"refund {\"cents\":5}"}}`)
	run := c.until("run_started", "")
	if run.Request != "r1" || run.Session != "s1" || run.Agent != "buyer" || run.Run == "" || run.Cursor == "" || run.TS < 1e12 {
		t.Errorf("%+v", run)
	}
	state := c.until("state", "WAITING_APPROVAL")
	asked := c.until("approval_required", "")
	if state.Detail["approval_id"] != asked.Approval || state.RunState != "PAUSED_WAITING_APPROVAL" || asked.Run != run.Run || asked.Tool != "refund" || asked.Kind != "tool" || asked.Summary != "refund of 5" || !strings.HasPrefix(asked.ToolCall, "tc_") {
		t.Errorf("%+v %+v", state, asked)
	}
	c.send(fmt.Sprintf(`{"type":"approval_decision","ts":0,"run_id":%q,"approval_id":%q,"decision":"approve","reason":"ok"}`, run.Run, asked.Approval))
	done := c.until("done", "")
	if done.Run != run.Run || done.Usage == nil || s.count("/refund") != 1 {
		t.Errorf("%+v, %d effects", done, s.count("/refund"))
	}
	if got := c.text(run.Run); got == "" {
		t.Errorf("no text in %+v", c.got)
	}
	for _, other := range []string{run.Run, "01939c3e-0000-7000-8000-000000000000"} {
		c.send(fmt.Sprintf(`{"type":"approval_decision","ts":0,"request_id":"again","run_id":%q,"approval_id":%q,"decision":"reject"}`, other, asked.Approval))
		if m := c.until("error", ""); m.Request != "again" || (m.Code != "approval_decided") != (other != run.Run) {
			t.Errorf("%+v", m)
		}
	}

	c.send(`{"type":"agent_invoke","ts":0,"request_id":"r2","session_id":"s1","agent_id":"buyer","message":{"role":"user","content":"refund {\"cents\":7}"}}`)
	run = c.until("run_started", "")
	c.until("approval_required", "")
	c.send(fmt.Sprintf(`{"type":"cancel_run","ts":0,"run_id":%q}`, run.Run))
	if m := c.until("error", ""); m.Run != run.Run || m.Code == "" || m.Message == nil {
		t.Errorf("%+v", m)
	}
}

// A socket that resumes behind the cursor of any message gets exactly the messages that follow
// it, and every socket of the user gets them in the same order.
func TestChannelResumesBehindEveryCursor(t *testing.T) {
	d, _ := startBuyer(t, Config{}, "")
	c := d.channel(`{"type":"hello"}`, nil)
	for i := range 3 {
		c.send(fmt.Sprintf(`{"type":"agent_invoke","request_id":"r%d","session_id":"s1","agent_id":"buyer","message":{"role":"user","content":"refund {\"cents\":5}"}}`, i))
		asked := c.until("approval_required", "")
		c.send(fmt.Sprintf(`{"type":"approval_decision","approval_id":%q,"decision":"approve"}`, asked.Approval))
		c.until("done", "")
	}
	shown := func(all []channelMessage) (out []string) {
		for _, m := range all {
			if m.Run != "" && m.State != "ACCEPTED" {
				out = append(out, fmt.Sprintf("%+v", m))
			}
		}
		return out
	}
	want := shown(c.got)
	at := 0
	for _, m := range c.got {
		if m.Run == "" || m.State == "ACCEPTED" {
			continue
		}
		if at++; m.Cursor == "" {
			continue // another message of the same event follows
		}
		again := d.channel(fmt.Sprintf(`{"type":"hello","resume":{"session_id":"s1","after":%q}}`, m.Cursor), nil)
		again.until("state", "LIVE")
		if got := shown(again.got); fmt.Sprint(got) != fmt.Sprint(want[at:]) {
			t.Fatalf("after message %d:\ngot  %v\nwant %v", at, got, want[at:])
		}
		_ = again.conn.Close()
	}
	if at != len(want) || at < 20 {
		t.Errorf("%d messages", at)
	}
}

// A repeated request is performed once, on the same socket and on another one.
func TestChannelRequestsAreIdempotent(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	invoke := `{"type":"agent_invoke","request_id":"r1","session_id":"s1","agent_id":"echo","message":{"role":"user","content":"hello"}}`
	c := d.channel(`{"type":"hello"}`, nil)
	c.send(invoke)
	first := c.until("done", "")
	c.send(invoke)
	if m := c.until("state", "ACCEPTED"); m.Run != first.Run {
		t.Errorf("%+v, want run %s", m, first.Run)
	}
	other := d.channel(`{"type":"hello"}`, nil)
	other.send(invoke)
	if m := other.until("done", ""); m.Run != first.Run {
		t.Errorf("%+v, want run %s", m, first.Run)
	}
	other.send(strings.Replace(invoke, "hello", "other", 1))
	if m := other.until("error", ""); m.Code != "invalid_request" || m.Request != "r1" {
		t.Errorf("%+v", m)
	}
}

// Each violation has its close code, and each mistake its error. No other socket is disturbed.
func TestChannelRefusesBadInput(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	witness := d.channel(`{"type":"hello"}`, nil)
	witness.until("state", "READY")
	for name, c := range map[string]struct {
		hello, text string
		kind        int
		code        int    // of the close
		failure     string // code of an error
	}{
		"no hello":              {"", `{"type":"cancel_run"}`, websocket.TextMessage, 1008, ""},
		"two hellos":            {`{"type":"hello"}`, `{"type":"hello"}`, websocket.TextMessage, 1002, ""},
		"wrong key":             {"", `{"type":"hello","api_key":"troupe_wrong"}`, websocket.TextMessage, 1008, "unauthorized"},
		"wrong hello":           {"", `{"type":"hello","resume":{"session_id":"a/b"}}`, websocket.TextMessage, 1008, "invalid_request"},
		"wrong cursor":          {"", `{"type":"hello","resume":{"session_id":"a","after":"x"}}`, websocket.TextMessage, 1008, "invalid_request"},
		"binary":                {`{"type":"hello"}`, `{"type":"cancel_run"}`, websocket.BinaryMessage, 1003, ""},
		"invalid UTF-8":         {`{"type":"hello"}`, "{\"type\":\"\xff\"}", websocket.TextMessage, 1007, ""},
		"too big":               {`{"type":"hello"}`, strings.Repeat(" ", ingress.SocketMessageBytesMax+1), websocket.TextMessage, 1009, ""},
		"no JSON":               {`{"type":"hello"}`, `{`, websocket.TextMessage, 0, "invalid_request"},
		"unknown type":          {`{"type":"hello"}`, `{"type":"agent_invok"}`, websocket.TextMessage, 0, "invalid_request"},
		"unknown member":        {`{"type":"hello"}`, `{"type":"cancel_run","run":"1"}`, websocket.TextMessage, 0, "invalid_request"},
		"unknown agent":         {`{"type":"hello"}`, `{"type":"agent_invoke","agent_id":"nobody","message":{"role":"user","content":"x"}}`, websocket.TextMessage, 0, "agent_not_found"},
		"path in an agent":      {`{"type":"hello"}`, `{"type":"agent_invoke","agent_id":"../keys","message":{"role":"user","content":"x"}}`, websocket.TextMessage, 0, "invalid_request"},
		"foreign run":           {`{"type":"hello"}`, `{"type":"cancel_run","run_id":"01939c3e-0000-7000-8000-000000000000"}`, websocket.TextMessage, 0, "run_not_found"},
		"approval of nobody":    {`{"type":"hello"}`, `{"type":"approval_decision","approval_id":"ap_01939c3e-0000-7000-8000-000000000000.1.0","decision":"approve"}`, websocket.TextMessage, 0, "approval_not_found"},
		"message without text":  {`{"type":"hello"}`, `{"type":"agent_invoke","agent_id":"buyer"}`, websocket.TextMessage, 0, "invalid_request"},
		"request id of control": {`{"type":"hello"}`, `{"type":"agent_invoke","request_id":"a\nb","agent_id":"buyer","message":{"role":"user","content":"x"}}`, websocket.TextMessage, 0, "invalid_request"},
	} {
		t.Run(name, func(t *testing.T) {
			k := d.channel(c.hello, nil)
			k.T = t
			if c.hello != "" {
				k.until("state", "READY")
			}
			_ = k.conn.WriteMessage(c.kind, []byte(c.text))
			m, code := k.next()
			if c.failure != "" && m.Code != c.failure {
				t.Errorf("got %+v, want the error %s", m, c.failure)
			}
			if c.code != 0 && code == 0 {
				_, code = k.next()
			}
			if code != c.code {
				t.Errorf("closed with %d, want %d", code, c.code)
			}
		})
	}
	witness.send(`{"type":"agent_invoke","agent_id":"echo","message":{"role":"user","content":"hello"}}`)
	witness.until("done", "")
}

// The events of all runs of a session are read in order, as JSON and as a stream that resumes
// behind any of them.
func TestSessionEventsAreReadInOrder(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled), echoAgent("echo2", actor.Journaled))
	for _, agent := range []string{"echo", "echo2", "echo"} {
		if status, _, body := d.do("POST", "/v1/agents/"+agent+"/messages", `{"content":"hello","session_id":"s1"}`); status != 200 {
			t.Fatal(status, body)
		}
	}
	type page struct {
		Events []struct {
			Run    string `json:"run_id"`
			Type   string `json:"type"`
			Cursor string `json:"cursor"`
		} `json:"events"`
		Cursor string `json:"cursor"`
		More   bool   `json:"more"`
		Code   string `json:"code"`
	}
	var all page
	if status := d.doJSON(&all, "GET", "/v1/sessions/s1/events", ""); status != 200 || len(all.Events) != 9 || all.More || all.Cursor != all.Events[8].Cursor {
		t.Fatalf("%d %+v", status, all)
	}
	for i, want := range []string{"user_input", "run_started", "run_done", "user_input", "run_started", "run_done", "user_input", "run_started", "run_done"} {
		if e := all.Events[i]; e.Type != want || e.Run != all.Events[i/3*3].Run {
			t.Errorf("event %d: %+v, want %s", i, e, want)
		}
	}
	for i, e := range all.Events {
		var rest page
		if status := d.doJSON(&rest, "GET", "/v1/sessions/s1/events?limit=2&after="+e.Cursor, ""); status != 200 || len(rest.Events) != min(2, 8-i) || rest.More != (i <= 6) {
			t.Errorf("after event %d: %d %+v", i, status, rest)
		}
	}
	stream := d.openStream("GET", "/v1/sessions/s1/events", "", "Accept", ingress.EventStream, "Last-Event-ID", all.Events[5].Cursor)
	if e := stream.readUntil("run_done"); !strings.Contains(fmt.Sprint(e), all.Events[8].Run) {
		t.Errorf("%v", e)
	}
	if status, _, body := d.do("POST", "/v1/agents/echo/messages", `{"content":"more","session_id":"s1"}`); status != 200 {
		t.Fatal(status, body)
	}
	stream.readUntil("run_done")
	for path, want := range map[string]string{"/v1/sessions/none/events": "session_not_found", "/v1/sessions/s1/events?after=x": "invalid_request"} {
		var p page
		if d.doJSON(&p, "GET", path, ""); p.Code != want {
			t.Errorf("%s: %+v", path, p)
		}
	}
	var p page
	if d.doJSON(&p, "GET", "/v1/sessions/s1/events", "", userHeader, "bob"); p.Code != "session_not_found" {
		t.Errorf("another user: %+v", p)
	}
}

// A key needs the scope read for the channel. Only one that may call is a device and may ask for
// something.
func TestChannelNeedsScopes(t *testing.T) {
	d := startBrowser(t, "")
	open := func(scopes, device string) *channelClient {
		u := d.newUser(`"user":"carol","scopes":[` + scopes + `]`)
		return d.channel(fmt.Sprintf(`{"type":"hello","api_key":%q,"device_id":%q}`, u.key, device), nil)
	}
	phone := open(`"read","call"`, "phone")
	phone.until("state", "READY")
	reader := open(`"read"`, "phone") // the last one that connects, under the same name
	reader.until("state", "READY")
	reader.send(`{"type":"agent_invoke","request_id":"r1","agent_id":"buyer","message":{"role":"user","content":"x"}}`)
	if m := reader.until("error", ""); m.Code != "forbidden_scope" || m.Request != "r1" {
		t.Errorf("%+v", m)
	}
	phone.send(fmt.Sprintf(openPage, "r2", "s1"))
	asked := phone.until("tool_request", "")
	phone.send(fmt.Sprintf(`{"type":"tool_result","tool_call_id":%q,"ok":true,"result":"page"}`, asked.ToolCall))
	if done := phone.until("done", ""); phone.text(done.Run) != "page" {
		t.Errorf("%+v", phone.got)
	}
	reader.send(`{"type":"replay","request_id":"r3","session_id":"s1"}`)
	reader.until("state", "REPLAYED")
	for _, m := range reader.got {
		if m.Type == "tool_request" && m.Cursor == "" && m.Deadline > 0 {
			t.Errorf("a client without the scope call is asked %+v", m)
		}
	}
	if m, code := open(`"call"`, "x").next(); m.Code != "forbidden_scope" || code != 0 {
		t.Errorf("without the scope read: %+v, %d", m, code)
	}
}

// A socket that reads page after page takes what its client sends in between, so that the client does not seem silent.
func TestReadingSocketTakesInputs(t *testing.T) {
	s := New(silentNode{}, slog.New(slog.DiscardHandler), Config{Keys: new(Keys)})
	d := newSocketDriver(s, new(fasthttp.RequestHeader), nil)
	d.apply(ingress.SocketOpened{Known: true})
	d.results = []ingress.SocketInput{ingress.Tick{}, ingress.Tick{}} // as two pages
	d.inputs <- ingress.SocketHeard{}
	d.step(ingress.Tick{})
	if len(d.inputs) > 0 {
		t.Error("an input of the client is left")
	}
}

// A revoked key ends a socket and a stream that never fall silent.
func TestRevokedKeyEndsBusyChannel(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	u := d.newUser(`"user":"carol","scopes":["read","call"]`)
	c := d.channel(fmt.Sprintf(`{"type":"hello","api_key":%q,"resume":{"session_id":"s1"}}`, u.key), nil)
	c.until("state", "LIVE")
	other := d.newUser(`"user":"carol","scopes":["read","call"]`)
	id, _ := ingress.KeyID(u.key)
	if status, _, body := d.owner().do("DELETE", "/v1/keys/"+id, ""); status != 200 && status != 204 {
		t.Fatal(status, body)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				other.do("POST", "/v1/agents/echo/messages", `{"content":"x","session_id":"s1"}`)
			}
		}
	}()
	code := 0
	for n := 0; code == 0 && n < 100_000; n++ {
		_, code = c.next()
	}
	close(stop)
	<-stopped
	if code != ingress.ClosePolicy {
		t.Errorf("closed with %d, want %d", code, ingress.ClosePolicy)
	}
}

// What a client sends before its hello is accepted costs little: it is bounded, and not echoed.
func TestChannelBoundsStrangers(t *testing.T) {
	d := startGatewayWith(t, Config{KeysRequired: true})
	long := strings.Repeat("a", 2*ingress.HelloBytesMax)
	for text, want := range map[string]int{
		`{"type":"x","request_id":"a"}`:                       ingress.ClosePolicy,
		`{"type":"hello","api_key":"troupe_` + long + `"}`:    ingress.CloseTooBig,
		`{"type":"agent_invoke","request_id":"` + long + `"}`: ingress.CloseTooBig,
	} {
		c := d.channel("", nil)
		_ = c.conn.WriteMessage(websocket.TextMessage, []byte(text))
		_, answer, err := c.conn.ReadMessage()
		if closed, ok := err.(*websocket.CloseError); err == nil || ok && closed.Code != want {
			t.Errorf("%.40s: %.200s, %v, want the end with %d", text, answer, err, want)
		}
	}
}

// activeReads fails a test if a connection is closed while somebody reads from it: its buffers are
// given to the next connection then.
type activeReads struct {
	net.Listener
	t *testing.T
}

func (l activeReads) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &readConn{Conn: c, t: l.t}, err
}

type readConn struct {
	net.Conn
	t     *testing.T
	reads atomic.Int32
}

func (c *readConn) Read(b []byte) (int, error) {
	c.reads.Add(1)
	defer c.reads.Add(-1)
	return c.Conn.Read(b)
}

func (c *readConn) Close() error {
	if n := c.reads.Load(); n > 0 {
		c.t.Errorf("a connection is closed with %d active reads", n)
	}
	return c.Conn.Close()
}

func TestSocketEndsItsReaderFirst(t *testing.T) {
	b := startBareGateway(t, Config{}, func(l net.Listener) net.Listener { return activeReads{l, t} })
	c := b.dial(t)
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n", socketRoute, b.address)
	for i := 0; i < len(handshake); i += 2 {
		fmt.Fprintf(c, "%s: %s\r\n", handshake[i], handshake[i+1])
	}
	fmt.Fprint(c, "\r\n\x81\x82\x00\x00\x00\x00{}") // no hello: the server closes, and the client does not answer
	if answer, err := io.ReadAll(c); err != nil || !strings.Contains(string(answer), "the first message must be") {
		t.Errorf("%q, %v", answer, err)
	}
}

// Wrong keys in hellos count as those in requests do.
func TestWrongKeysInHellosAreThrottled(t *testing.T) {
	d := startGatewayWith(t, Config{KeysRequired: true})
	now := time.Now()
	d.server.wrongKeys.now = func() time.Time { return now }
	for n := 0; ; n++ {
		m, _ := d.channel(`{"type":"hello","api_key":"troupe_0123456789abcdef_wrong"}`, nil).next()
		if m.Code == "agent_busy" {
			return
		}
		if m.Code != "unauthorized" || n > wrongKeysPerSecond {
			t.Fatalf("hello %d: %+v", n, m)
		}
	}
}

// A session without messages is followed: it is LIVE at once, and its first message arrives.
func TestChannelResumesUnknownSession(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	c := d.channel(`{"type":"hello","resume":{"session_id":"s1"}}`, nil)
	c.until("state", "LIVE")
	if status, _, body := d.do("POST", "/v1/agents/echo/messages", `{"content":"hello","session_id":"s1"}`); status != 200 {
		t.Fatal(status, body)
	}
	if m := c.until("run_started", ""); m.Session != "s1" {
		t.Errorf("%+v", m)
	}
}

// A session that is deleted, by whichever client, ends on each connection that follows it, with one error. One
// that resumes it later gets the same error, and messages to it are refused.
func TestChannelOfDeletedSession(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	if status, _, body := d.do("POST", "/v1/agents/echo/messages", `{"content":"hello","session_id":"s1"}`); status != 200 {
		t.Fatal(status, body)
	}
	const hello = `{"type":"hello","resume":[{"session_id":"s1"},{"session_id":"s2"}]}`
	followers := []*channelClient{d.channel(hello, nil), d.channel(hello, nil), d.channel(`{"type":"hello","resume":{"session_id":"s1","after":"end"}}`, nil)}
	for i, c := range followers {
		for n := range 2 - i/2 {
			if m := c.until("state", "LIVE"); m.Session == "" {
				t.Fatalf("client %d, LIVE %d: %+v", i, n, m)
			}
		}
	}
	if status, _, body := d.do("DELETE", "/v1/sessions/s1", ""); status != 204 {
		t.Fatal(status, body)
	}
	later := d.channel(`{"type":"hello","resume":{"session_id":"s1"}}`, nil)
	atEnd := d.channel(`{"type":"hello","resume":{"session_id":"s1","after":"end"}}`, nil)
	for i, c := range append(followers, later, atEnd) {
		if m := c.until("error", ""); m.Code != "session_deleted" || m.Session != "s1" || m.Request != "" || m.Run != "" {
			t.Errorf("client %d: %+v", i, m)
		}
	}
	// The connection remains open. It follows other sessions, and s1 ended once.
	c := followers[0]
	c.send(`{"type":"agent_invoke","request_id":"r1","session_id":"s2","agent_id":"echo","message":{"role":"user","content":"x"}}`)
	if m := c.until("done", ""); m.Session != "s2" {
		t.Errorf("%+v", m)
	}
	errors := 0
	for _, m := range c.got {
		if m.Type == "error" {
			errors++
		}
	}
	if errors != 1 {
		t.Errorf("%d errors, want 1: %+v", errors, c.got)
	}
	c.send(`{"type":"agent_invoke","request_id":"r2","session_id":"s1","agent_id":"echo","message":{"role":"user","content":"x"}}`)
	for m := c.until("error", ""); m.Request != "r2"; m = c.until("error", "") {
		if m.Code != "session_deleted" || m.Session != "s1" {
			t.Errorf("%+v", m)
		}
	}
	if m := c.got[len(c.got)-1]; m.Code != "session_deleted" {
		t.Errorf("%+v", m)
	}
}

// A stream of a session ends when the session is deleted, as does a request that waits for its next event.
func TestStreamOfDeletedSession(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	if status, _, body := d.do("POST", "/v1/agents/echo/messages", `{"content":"hello","session_id":"s1"}`); status != 200 {
		t.Fatal(status, body)
	}
	s := d.openStream("GET", "/v1/sessions/s1/events", "", "Accept", ingress.EventStream)
	s.readUntil("run_done")
	var all struct {
		Cursor string `json:"cursor"`
	}
	if status := d.doJSON(&all, "GET", "/v1/sessions/s1/events", ""); status != 200 {
		t.Fatal(status)
	}
	waited := make(chan string, 1)
	go func() {
		status, _, body := d.do("GET", "/v1/sessions/s1/events?wait_ms=60000&after="+all.Cursor, "")
		waited <- fmt.Sprint(status, " ", body)
	}()
	if status, _, body := d.do("DELETE", "/v1/sessions/s1", ""); status != 204 {
		t.Fatal(status, body)
	}
	if f := s.readUntil(ingress.StreamClosed); !strings.Contains(f.Data, `"reason":"session_deleted"`) || !strings.Contains(f.Data, "s1 was deleted") || f.ID != "" {
		t.Errorf("%+v", f)
	}
	s.readUntil("")
	if got := <-waited; !strings.HasPrefix(got, "410 ") && !strings.HasPrefix(got, "404 ") { // 404 if it was asked after the deletion
		t.Error(got)
	}
	var p problem
	if status := d.doJSON(&p, "GET", "/v1/sessions/s1/events", ""); status != 404 || p.Code != "session_not_found" {
		t.Error(status, p)
	}
}

// panickingNode panics while it lists the agents.
type panickingNode struct {
	command.Node
	fails atomic.Bool
}

func (n *panickingNode) Lookup(ctx context.Context, in command.Lookup) (command.Result, error) {
	if _, ok := in.Query.(command.AgentsQuery); ok && n.fails.Load() {
		panic("secret of the node")
	}
	return n.Node.Lookup(ctx, in)
}

func TestPanicFailsRequestOfSocket(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	node := &panickingNode{Node: d.server.node}
	node.fails.Store(true)
	d.server.node = node
	c := d.channel(`{"type":"hello"}`, nil)
	const invoke = `{"type":"agent_invoke","request_id":"r1","session_id":"s1","agent_id":"echo","message":{"role":"user","content":"hi"}}`
	c.send(invoke)
	if m := c.until("error", ""); m.Code != "internal" || strings.Contains(fmt.Sprint(m.Message), "secret") {
		t.Errorf("%+v", m)
	}
	node.fails.Store(false)
	c.send(invoke)
	c.until("state", "ACCEPTED")
}

// A cursor of a log that was replaced, as by an older backup, is refused with one to continue with.
func TestCursorBehindEndOfLog(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	if status, _, body := d.do("POST", "/v1/agents/echo/messages", `{"content":"hello","session_id":"s1"}`); status != 200 {
		t.Fatal(status, body)
	}
	ahead := ingress.SessionCursors{Key: ingress.CursorKey(d.server.config.Secret), Tenant: actor.DefaultTenant}.Text("s1", runs.SessionCursor{{Node: "n1", Batch: 99999, Index: 1}})
	if status, _, body := d.do("GET", "/v1/sessions/s1/events?after="+ahead, ""); status != http.StatusGone || !strings.Contains(body, "restored from a backup") {
		t.Errorf("%d %s", status, body)
	}
	c := d.channel(`{"type":"hello","resume":{"session_id":"s1","after":"`+ahead+`"}}`, nil)
	gone := c.until("error", "")
	if live := c.until("state", "LIVE"); gone.Code != "events_dropped" || live.Cursor != gone.Cursor || strings.Contains(gone.Cursor, "99999") {
		t.Errorf("%+v, %+v", gone, live)
	}
	c.send(`{"type":"agent_invoke","session_id":"s1","agent_id":"echo","message":{"role":"user","content":"again"}}`)
	done := c.until("done", "")
	c = d.channel(`{"type":"hello","resume":{"session_id":"s1","after":"`+gone.Cursor+`"}}`, nil)
	if m := c.until("done", ""); m.Run != done.Run || m.Cursor != done.Cursor {
		t.Errorf("%+v, want %+v", m, done)
	}
}
