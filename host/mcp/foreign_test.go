// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

const foreignDir = "../../test/foreign/mcp"

// foreignRequest is a request to a server of this file: its tool do answers with the file, or in the
// way, that its text names.
type foreignRequest struct {
	ID     jsontext.Value `json:"id"`
	Method string         `json:"method"`
	Params struct {
		Version   string `json:"protocolVersion"`
		Arguments struct {
			Text string `json:"text"`
		} `json:"arguments"`
	} `json:"params"`
}

func readForeign(message []byte) (r foreignRequest) {
	_ = json.Unmarshal(message, &r)
	return r
}

// answer returns the answer to a request that is no call, or to a call whose text is that of a file.
func (r *foreignRequest) answer() string {
	switch r.Method {
	case "initialize":
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"foreign","version":"1"}}}`, r.ID, r.Params.Version)
	case "tools/list":
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"do","inputSchema":{"type":"object"}}]}}`, r.ID)
	case "tools/call":
		if b, err := os.ReadFile(filepath.Join(foreignDir, r.Params.Arguments.Text)); err == nil {
			return strings.ReplaceAll(string(b), "@ID@", string(r.ID))
		}
		return r.text("did " + r.Params.Arguments.Text)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, r.ID)
}

func (r *foreignRequest) text(text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`, r.ID, text)
}

// serveForeign is a server over standard streams. A call with the text hold is answered at the next
// one with the text release.
func serveForeign() {
	var held []foreignRequest
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		r := readForeign(in.Bytes())
		switch text := r.Params.Arguments.Text; {
		case len(r.ID) == 0:
		case text == "hold":
			held = append(held, r)
		case text == "long":
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"%s"}]}}`+"\n", r.ID, strings.Repeat("x", messageBytesMax))
		case text == "long before its id":
			fmt.Printf(`{"result":{"content":[{"type":"text","text":"%s"}]},"jsonrpc":"2.0","id":%s}`+"\n", strings.Repeat("x", messageBytesMax), r.ID)
		default:
			fmt.Println(r.answer())
			for i := range held {
				if text == "release" {
					fmt.Println(held[i].text("held"))
				}
			}
		}
	}
}

// foreign is a server over HTTP.
type foreign struct {
	*httptest.Server
	sessions atomic.Int64
	known    atomic.Int64 // number of the session that it knows
	mu       sync.Mutex
	asked    map[string]int // calls by their text
	released chan struct{}
}

func startForeign(t *testing.T) *foreign {
	f := &foreign{asked: map[string]int{}, released: make(chan struct{})}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *foreign) ServeHTTP(w http.ResponseWriter, h *http.Request) {
	b, _ := io.ReadAll(h.Body)
	r := readForeign(b)
	text := r.Params.Arguments.Text
	if h.Method == http.MethodGet {
		<-h.Context().Done() // not even the head of the stream comes
		return
	}
	send := func(status int, media, body string) {
		if w.Header()["Content-Type"] = nil; media != "" {
			w.Header().Set("Content-Type", media)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
	switch {
	case h.Method != http.MethodPost || len(r.ID) == 0:
		w.WriteHeader(http.StatusBadRequest) // also to notifications
		return
	case r.Method == "initialize":
		f.known.Store(f.sessions.Add(1))
		w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", f.sessions.Load()))
	case r.Method == "tools/call":
		f.mu.Lock()
		f.asked[text]++
		f.mu.Unlock()
	}
	if h.Header.Get("Mcp-Session-Id") != fmt.Sprint("s", f.known.Load()) && r.Method == "tools/call" && text != "hold" {
		send(http.StatusNotFound, "application/json", `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}`)
		return
	}
	events := "text/event-stream"
	switch text {
	case "hold":
		<-f.released
		send(200, "application/json", r.text("held"))
	case "release":
		close(f.released)
		send(200, "application/json", r.text("released"))
	case "401", "403", "429", "500", "502", "400", "404 always":
		if text == "429" {
			w.Header().Set("Retry-After", "7")
		}
		var status int
		_, _ = fmt.Sscan(text, &status)
		send(status, "text/plain", "said "+text)
	case "400 with an error":
		send(400, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no funds"}}`)
	case "307":
		w.Header().Set("Location", "https://user:pw@example.com/mcp/?key=secret")
		send(307, "", "")
	case "202":
		send(202, "", "")
	case "empty":
		send(200, "application/json", "")
	case "html":
		send(200, "text/html", "<h1>Bad gateway</h1>")
	case "untyped":
		send(200, "", r.text("done"))
	case "text/plain":
		send(200, "text/plain; charset=utf-8", r.text("done"))
	case "untyped events":
		send(200, "", ": hello\n\nevent: message\ndata: "+r.text("done")+"\n\n")
	case "br":
		w.Header().Set("Content-Encoding", "br")
		send(200, "application/json", "\x1f\x8b")
	case "large":
		send(200, "application/json", `{"x":"`+strings.Repeat("x", messageBytesMax)+`"}`)
	case "cut":
		w.Header().Set("Content-Length", "1000")
		send(200, "application/json", `{"jsonrpc"`)
	case "no answer":
		send(200, events, "id: 7\ndata: "+`{"jsonrpc":"2.0","method":"notifications/progress","params":7}`+"\n\n")
	case "large event":
		send(200, events, "data: "+strings.Repeat("x", messageBytesMax+1)+"\n\n")
	case "odd events":
		send(200, events, "\uFEFFretry\r\nnonsense\r\nevent: ping\r\ndata: x\r\n\r\ndata: no JSON\r\n\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":999,\"result\":{}}\r\n\r\nid: 1\r\ndata: "+
			strings.Replace(r.text("done"), `,"result"`, ",\r\ndata: \"result\"", 1)+"\r\n") // no empty line at its end
	case "other session":
		w.Header().Set("Mcp-Session-Id", "s99")
		send(200, "application/json", r.text("done"))
	case "drop":
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			c.Close()
		}
	case "forget":
		f.known.Store(-1)
		send(200, "application/json", r.text("forgotten"))
	default:
		send(200, "application/json", r.answer())
	}
}

func (f *foreign) times(text string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[text]
}

// asEvents sends the same answers as a stream of events.
func asEvents(t *testing.T) Config {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, h *http.Request) {
		b, _ := io.ReadAll(h.Body)
		if r := readForeign(b); len(r.ID) > 0 {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			_, _ = io.WriteString(w, ": keepalive\n\ndata: "+r.answer()+"\n\n")
		}
	}))
	t.Cleanup(s.Close)
	return Config{URL: s.URL}
}

// Each answer of a server is read, over each transport.
func TestForeignAnswers(t *testing.T) {
	f := startForeign(t)
	b := start(t, t.TempDir(), map[string]Config{"process": command("foreign"), "json": {URL: f.URL}, "events": asEvents(t)})
	read := map[string]bool{}
	for _, c := range []struct {
		file   string
		reason actor.Reason
		want   string // the whole result, or a part of a refusal
	}{
		{"half-emoji", 0, "paid �"},
		{"latin-1", 0, "Z�rich"},
		{"byte-order-mark", 0, "paid"},
		{"doubled-member", 0, "paid twice"},
		{"not-a-number", 0, `{"rate":null,"limit":null}`},
		{"long-number", 0, `{"id":9007199254740993,"balance":123456789012345678901234567890}`},
		{"number-out-of-range", 0, `{"rate":1e400}`},
		{"deep", 0, strings.Repeat("[", 200) + strings.Repeat("]", 200)},
		{"no-content", 0, ""},
		{"empty-content", 0, ""},
		{"null-result", 0, ""},
		{"no-result", 0, ""},
		{"list-result", 0, "[1,2]"},
		{"other-members", 0, `{"answer":42}`},
		{"text-content", 0, "paid"},
		{"null-block", 0, "paid"},
		{"unknown-block", 0, `{"type":"video","url":"http://v"}`},
		{"image", 0, "the receipt:\n[image/png, 1600 bytes]"},
		{"audio", 0, "[audio, 3 bytes]"},
		{"resource-text", 0, "# A"},
		{"resource-blob", 0, "[application/pdf, 4 bytes] file:///a.pdf"},
		{"resource-link", 0, "a.md file:///a.md"},
		{"error-data", actor.Rejected, `bad amount (-32602): {"field":"amount","limit":9007199254740993}`},
		{"error-text", actor.Rejected, "refused the call: no funds (0)"},
		{"error-code-text", actor.Rejected, `refused the call: {"en":"no funds"} (0)`},
		{"error-reserved-code", actor.Rejected, "no funds (-32004)"},
		{"structured-error", actor.Rejected, `{"code":"E42","reason":"no funds"}`},
		{"text-and-structured-error", actor.Rejected, "failed\n{\"code\":\"E42\"}"},
		{"id-text", 0, "paid"},
		{"id-fraction", 0, "paid"},
		{"no-version", 0, "paid"},
		{"batch", 0, "paid"},
		{"two-messages", 0, "paid"},
		{"broken", actor.Unknown, "may have performed"},
	} {
		read[c.file] = true
		for _, server := range []string{"process", "json", "events"} {
			got := b.call(t.Context(), server+".do", c.file)
			if c.reason != 0 {
				b.want(got, c.reason, c.want)
			} else if got.Refusal != nil || string(got.Parts[0].Bytes) != c.want {
				t.Errorf("%s over %s: got %v, want %s", c.file, server, got, c.want)
			}
		}
	}
	for _, file := range must(os.ReadDir(foreignDir))(t) {
		if !read[file.Name()] {
			t.Errorf("no case reads %s", file.Name())
		}
	}
	for _, s := range b.Stats() {
		if s.Restarts > 0 {
			t.Errorf("%s: %d sessions were opened again", s.Name, s.Restarts)
		}
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Three users of a server: what the server answers to one ends no more than that call. The call of
// another that is open, and those after it, are answered in the same session.
func TestBadAnswerEndsItsCallOnly(t *testing.T) {
	type bad struct {
		text   string
		reason actor.Reason
		want   string
	}
	run := func(t *testing.T, server Config, cases []bad) (*testbed, string) {
		b := start(t, t.TempDir(), map[string]Config{"s": server})
		held := make(chan tools.Result, 1)
		go func() { held <- b.call(t.Context(), "s.do", "hold") }()
		for _, c := range cases {
			b.want(b.call(t.Context(), "s.do", c.text), c.reason, c.want)
			b.want(b.call(t.Context(), "s.do", "after "+c.text), 0, "did after "+c.text)
		}
		b.call(t.Context(), "s.do", "release")
		got := <-held
		b.want(got, 0, "held")
		if s := b.Stats()[0]; s.Restarts > 0 || !s.Up {
			t.Errorf("got %+v", s)
		}
		return b, b.waitForLog("MCP server is available")
	}
	t.Run("process", func(t *testing.T) {
		run(t, command("foreign"), []bad{
			{"long", actor.Unknown, "a line of more than 8388608 bytes"},
			{"long before its id", actor.Unknown, "a line of more than 8388608 bytes"},
			{"broken", actor.Unknown, "no JSON"},
			{"error-reserved-code", actor.Rejected, "no funds"},
		})
	})
	t.Run("HTTP", func(t *testing.T) {
		f := startForeign(t)
		cases := []bad{
			{"401", actor.Rejected, "answers 401 Unauthorized: said 401; see headers"},
			{"403", actor.Rejected, "answers 403 Forbidden: said 403"},
			{"429", actor.Busy, "answers 429 Too Many Requests: said 429"},
			{"500", actor.Unknown, "answers 500 Internal Server Error: said 500; it may have performed"},
			{"502", actor.Unknown, "said 502"},
			{"400", actor.Unknown, "said 400"},
			{"400 with an error", actor.Rejected, "no funds (-32600)"},
			{"307", actor.Rejected, `declare url = "https://example.com/mcp/?`},
			{"202", actor.Unknown, "answered 202 without a result"},
			{"empty", actor.Unknown, "without a result"},
			{"html", actor.Unknown, "no message: <h1>Bad gateway</h1>"},
			{"untyped", 0, "done"},
			{"text/plain", 0, "done"},
			{"untyped events", 0, "done"},
			{"br", actor.Unknown, `content coding "br"`},
			{"large", actor.Unknown, "more than 8388608 bytes"},
			{"cut", actor.Unknown, "broke the connection"},
			{"no answer", actor.Unknown, "ended its stream of events"},
			{"large event", actor.Unknown, "an event that is too long"},
			{"odd events", 0, "done"},
			{"other session", 0, "done"},
			{"number-out-of-range", 0, "1e400"},
			{"drop", actor.Unknown, "ended before it answered"},
		}
		_, log := run(t, Config{URL: f.URL}, cases)
		if strings.Contains(log, "secret") || strings.Contains(log, "pw@") {
			t.Errorf("the log has the secrets of a redirect:\n%s", log)
		}
		for _, c := range cases {
			if n := f.times(c.text); n != 1 {
				t.Errorf("%s: asked %d times, want once", c.text, n)
			}
		}
	})
}

// A server that has forgotten the session gets the call once more, at once, in a new one. An open
// call of another user goes on in the old one.
func TestForgottenSessionIsRenewed(t *testing.T) {
	f := startForeign(t)
	b := start(t, t.TempDir(), map[string]Config{"s": {URL: f.URL}})
	held := make(chan tools.Result, 1)
	go func() { held <- b.call(t.Context(), "s.do", "hold") }()
	b.want(b.call(t.Context(), "s.do", "forget"), 0, "forgotten")
	b.want(b.call(t.Context(), "s.do", "again"), 0, "did again")
	if n := f.times("again"); n != 2 || f.sessions.Load() != 2 {
		t.Errorf("asked %d times in %d sessions, want 2 in 2", n, f.sessions.Load())
	}
	b.want(b.call(t.Context(), "s.do", "404 always"), actor.Unavailable, "answers 404 Not Found: said 404 always, also in a new session; nothing was performed")
	if n := f.times("404 always"); n != 2 {
		t.Errorf("asked %d times, want 2", n)
	}
	for range 5 { // the session is good: the answer is to the call, and delays those of others no further
		b.want(b.call(t.Context(), "s.do", "404 always"), actor.Unavailable, "answers 404 Not Found: said 404 always; nothing was performed")
	}
	b.want(b.call(t.Context(), "s.do", "others"), 0, "did others")
	if n := f.times("404 always"); n != 7 || f.sessions.Load() != 3 {
		t.Errorf("asked %d times in %d sessions, want 7 in 3", n, f.sessions.Load())
	}
	b.want(b.call(t.Context(), "s.do", "release"), 0, "released")
	b.want(<-held, 0, "held")
}
