// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// moodyServer is an MCP server over HTTP whose tool answers as its text says. A call with the text hold is answered
// once released is closed.
type moodyServer struct {
	*httptest.Server
	mu       sync.Mutex
	session  int
	asked    map[string]int // calls by text
	held     chan struct{}
	released chan struct{}
}

func startMoodyServer(t *testing.T) *moodyServer {
	m := &moodyServer{asked: map[string]int{}, held: make(chan struct{}, 1), released: make(chan struct{})}
	m.Server = httptest.NewServer(m)
	t.Cleanup(m.Close)
	return m
}

func (m *moodyServer) ServeHTTP(w http.ResponseWriter, h *http.Request) {
	var r struct {
		ID     jsontext.Value `json:"id"`
		Method string         `json:"method"`
		Params struct {
			Version   string `json:"protocolVersion"`
			Arguments struct {
				Text string `json:"text"`
			} `json:"arguments"`
		} `json:"params"`
	}
	if h.Method == http.MethodGet {
		<-h.Context().Done()
		return
	}
	if h.Method != http.MethodPost || json.UnmarshalRead(h.Body, &r) != nil || len(r.ID) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	send := func(status int, media, body string) {
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
	result := func(value string) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, r.ID, value) }
	m.mu.Lock()
	if r.Method == "initialize" {
		m.session++
		w.Header().Set("Mcp-Session-Id", fmt.Sprint(m.session))
	}
	text := r.Params.Arguments.Text
	if r.Method == "tools/call" {
		m.asked[text]++
	}
	forgotten := r.Method != "initialize" && h.Header.Get("Mcp-Session-Id") != fmt.Sprint(m.session)
	if text == "forget" && m.asked[text] == 1 {
		m.session++ // no session has this number
		forgotten = true
	}
	m.mu.Unlock()
	status := 0
	_, _ = fmt.Sscan(text, &status)
	switch {
	case forgotten:
		send(404, "application/json", `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}`)
	case r.Method == "initialize":
		send(200, "application/json", result(fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"moody","version":"1"}}`, r.Params.Version)))
	case r.Method == "tools/list":
		send(200, "application/json", result(`{"tools":[{"name":"do","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}]}`))
	case text == "hold":
		m.held <- struct{}{}
		<-m.released
		send(200, "application/json", result(`{"content":[{"type":"text","text":"held to the end"}]}`))
	case status > 0:
		send(status, "text/plain", "said "+text)
	case text == "a page":
		send(200, "text/html", "<h1>Bad gateway</h1>")
	case text == "a large number":
		send(200, "application/json", result(`{"content":[],"structuredContent":{"rate":1e400}}`))
	default:
		send(200, "application/json", result(fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, "did "+text)))
	}
}

// Three users of one MCP server. Each bad answer to boris ends his call and no other: the call of anna, which is open
// all the time, is answered at last, and those of carla in between at once. No call of them is sent twice, but one that a
// server with a forgotten session has not performed.
func TestThreeUsersOfOneMCPServer(t *testing.T) {
	m := startMoodyServer(t)
	files := writeFiles(t, ">> bank.toml\n[mcp.bank]\nurl = \""+m.URL+"\"\n>> teller.toml\nname = \"teller\"\nmodel = \"scripted\"\ntools = [\"bank.do\"]")
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--agents", files)
	waitUntil(t, "the tools of the MCP server", func() bool {
		_, out, _ := runProgram(t, "tools", "list", "--server", s.url)
		return strings.Contains(out, "bank.do")
	})
	call := func(user, text string) string {
		var a messageReply
		_, err := s.request("POST", "/v1/agents/teller/messages", fmt.Sprintf(`{"content":%q,"user_id":%q}`, `use bank.do {"text": "`+text+`"}`, user), "", &a)
		if err != nil {
			t.Error(err)
		}
		return a.Content + a.Detail
	}
	answered := make(chan string, 1)
	go func() { answered <- call("anna", "hold") }()
	<-m.held
	for _, c := range []struct{ text, want string }{
		{"401", "answers 401 Unauthorized: said 401"},
		{"403", "answers 403 Forbidden: said 403"},
		{"404", "nothing was performed"},
		{"429", "answers 429 Too Many Requests: said 429"},
		{"500", "answers 500 Internal Server Error: said 500; it may have performed"},
		{"a page", "no message: <h1>Bad gateway</h1>"},
		{"a large number", "1e400"},
		{"forget", "did forget"},
	} {
		if got := call("boris", c.text); !strings.Contains(got, c.want) {
			t.Errorf("boris, %s: got %s, want %q", c.text, got, c.want)
		}
		if got := call("carla", "carla after "+c.text); got != "did carla after "+c.text {
			t.Errorf("carla after %s: %s", c.text, got)
		}
	}
	close(m.released)
	if got := <-answered; got != "held to the end" {
		t.Errorf("anna: %s", got)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for text, n := range m.asked {
		if want := map[bool]int{false: 1, true: 2}[text == "forget" || text == "404"]; n != want {
			t.Errorf("%s: asked %d times, want %d", text, n, want)
		}
	}
}
