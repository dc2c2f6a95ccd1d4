// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// loggedOnce is a log that tells of its first line.
type loggedOnce struct {
	httpLog
	line chan struct{}
}

func (l loggedOnce) Printf(format string, args ...any) {
	l.httpLog.Printf(format, args...)
	close(l.line)
}

// Errors of fasthttp reach the log, but nothing that a client has sent.
func TestHTTPLogHasNoContent(t *testing.T) {
	const secret = "canary-4711"
	var log bytes.Buffer
	l := httpLog{slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	first := loggedOnce{l, make(chan struct{})}
	server := &fasthttp.Server{Logger: first, Handler: func(*fasthttp.RequestCtx) {}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nA "+secret+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-first.line // the client may have its answer before, and Shutdown does not wait for it
	if err := errors.Join(conn.Close(), server.Shutdown(), <-served); err != nil {
		t.Error(err)
	}
	if s := log.String(); !strings.Contains(s, `"level":"DEBUG"`) || !strings.Contains(s, "error when serving connection") || !strings.Contains(s, "127.0.0.1") || strings.Contains(s, "canary") {
		t.Errorf("log of a malformed header: %q", s)
	}
	log.Reset()
	l.Printf("Permanent error when accepting new connections: %v", &net.OpError{Op: "accept", Err: errors.New("too many open files")})
	l.Printf("only %d connections: %v", 3, errors.New(secret))
	if s := log.String(); !strings.Contains(s, `"level":"WARN"`) || !strings.Contains(s, "accept: too many open files") || !strings.Contains(s, "only 3 connections") || strings.Contains(s, secret) {
		t.Errorf("log of the listener: %q", s)
	}
}
