// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Bytes that a model's server sends on an idle connection do not reach standard
// error, and every line there is JSON.
func TestUnsolicitedBytesStayOutOfTheLog(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	answered := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		_, _ = r.Body.Read(make([]byte, 1<<20))
		body := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		answered <- c
	}()
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[models.big]\nurl = \"http://%s\"\n", l.Addr()), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--config", config)
	var out jsontext.Value
	if status, err := s.request("POST", "/v1/agents", `{"name":"a","prompt":"answer","model":"big"}`, "", &out); status != http.StatusCreated {
		t.Fatalf("%d %s %v", status, out, err)
	}
	if status, err := s.request("POST", "/v1/agents/a/messages", `{"content":"hello"}`, "", &out); status != http.StatusOK {
		t.Fatalf("%d %s %v", status, out, err)
	}
	conn := <-answered
	defer conn.Close()
	if _, err := fmt.Fprint(conn, "HTTP/1.1 200 canary of a peer\r\ncanary: canary\r\n\r\ncanary"); err != nil {
		t.Fatal(err)
	}
	var logged []byte
	for deadline := time.Now().Add(30 * time.Second); !bytes.Contains(logged, []byte("Unsolicited response")); {
		if logged, err = os.ReadFile(s.log); err != nil || time.Now().After(deadline) {
			t.Fatalf("%v: want a line about an unsolicited response, got\n%s", err, logged)
		}
	}
	if bytes.Contains(logged, []byte("canary")) {
		t.Errorf("the log has bytes of the peer:\n%s", logged)
	}
	for line := range strings.Lines(string(logged)) {
		if !jsontext.Value(strings.TrimSpace(line)).IsValid() {
			t.Errorf("a line is not JSON: %s", line)
		}
	}
}

// A line keeps its beginning up to the first quotation or colon, where bytes of a
// peer may follow.
func TestStandardLogCutsLines(t *testing.T) {
	var b bytes.Buffer
	l := standardLog{slog.New(slog.NewTextHandler(&b, nil))}
	for line, want := range map[string]string{
		"http2: frame of canary\n":                      `text=http2`,
		"response starting with \"canary\"; err=canary": `text="response starting with"`,
		"bad header 'canary'":                           `text="bad header"`,
		"bad header `canary`":                           `text="bad header"`,
		"one\x1b[2Jcanary":                              `text=one`,
		strings.Repeat("x", 200) + "canary":             `text=` + strings.Repeat("x", 120) + "\n",
	} {
		b.Reset()
		if n, err := l.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%q: %d, %v", line, n, err)
		}
		if !strings.Contains(b.String(), want) || strings.Contains(b.String(), "canary") {
			t.Errorf("%q: got %s", line, &b)
		}
	}
}
