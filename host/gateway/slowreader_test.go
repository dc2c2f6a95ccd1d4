// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// longAnswerAgent returns an agent whose answer exceeds all socket buffers.
func longAnswerAgent() actor.Definition {
	return agents.Define("long", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		return strings.Repeat("x", 1_000_000), nil
	})))
}

// smallBufferConn is a connection with a small receive buffer.
type smallBufferConn struct {
	net.Conn
	tcp interface {
		SetReadBuffer(bytes int) error
		SetLinger(sec int) error
	}
}

// dialSmallBuffer opens a connection with a small receive buffer.
func (d *testGateway) dialSmallBuffer() smallBufferConn {
	d.Helper()
	dialer := net.Dialer{Timeout: 10 * time.Second}
	c, err := dialer.Dial("tcp", d.address)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = c.Close() })
	tcp := c.(*net.TCPConn)
	if err := errors.Join(tcp.SetReadBuffer(32<<10), tcp.SetDeadline(time.Now().Add(30*time.Second))); err != nil {
		d.Fatal(err)
	}
	return smallBufferConn{overTLS(tcp), tcp}
}

// slowReaders is a listener of a gateway whose clock advances only when a client
// has not read what fills its buffers.
type slowReaders struct {
	net.Listener
	elapsed *atomic.Int64
}

func (l slowReaders) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return slowReaderConn{c.(*net.TCPConn), l.elapsed}, nil
}

type slowReaderConn struct {
	*net.TCPConn
	elapsed *atomic.Int64
}

// Write writes what fits into the send buffer and ignores the deadline. If the
// buffer is full, the time of a slow reader passes at once.
func (c slowReaderConn) Write(b []byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	_ = c.SetWriteDeadline(time.Time{})
	for n < len(b) && err == nil {
		written := 0
		writeErr := raw.Write(func(fd uintptr) bool {
			written, err = syscall.Write(int(fd), b[n:])
			return true
		})
		switch err = errors.Join(err, writeErr); {
		case errors.Is(err, syscall.EINTR):
			err = nil
		case errors.Is(err, syscall.EAGAIN):
			c.elapsed.Add(int64(slowReaderTimeout))
			return n, os.ErrDeadlineExceeded
		}
		n += max(written, 0)
	}
	return n, err
}

const slowReaderTimeout = time.Minute

// serveSlowReaders starts another gateway for the node, on the clock of
// slowReaders.
func (d *testGateway) serveSlowReaders() *testGateway {
	d.Helper()
	config := d.server.config
	config.StreamTimeout = slowReaderTimeout
	s := New(d.server.node, slog.New(slog.DiscardHandler), config)
	elapsed, start := new(atomic.Int64), time.Now()
	s.clock = func() time.Time { return start.Add(time.Duration(elapsed.Load())) }
	return d.serve(s, func(l net.Listener) net.Listener { return slowReaders{l, elapsed} })
}

func TestSlowReaderIsDisconnectedAndResumes(t *testing.T) {
	d := startGatewayWith(t, Config{StreamTimeout: time.Hour}, longAnswerAgent())
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/long/messages", `{"content":"x"}`)
	slow := d.serveSlowReaders()
	c := slow.dialSmallBuffer()
	fmt.Fprintf(c, "GET /v1/runs/%s/events HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\n\r\n", m.Run, slow.address)
	response, err := http.ReadResponse(bufio.NewReaderSize(c, 1024), nil)
	if err != nil || response.StatusCode != 200 {
		t.Fatalf("%v, %+v", err, response)
	}
	if err := slow.server.streams.waitIdle(slow.Context()); err != nil {
		t.Fatal(err)
	}
	_ = c.tcp.SetReadBuffer(1 << 20)
	b, _ := io.ReadAll(response.Body)
	frames, refusal := upstream.NewParser(upstream.StreamLimits{Line: 4 << 20, Event: 4 << 20, Total: 16 << 20}).Parse(b)
	if refusal != nil || len(frames) != 2 || frames[1].ID != "2" || len(b) > 900_000 {
		t.Fatalf("%d bytes, %d frames: %v", len(b), len(frames), refusal)
	}
	resumed := d.openStream("GET", "/v1/runs/"+m.Run+"/events", "", "Last-Event-ID", frames[1].ID)
	resumed.readUntil("")
	if resumed.frameNames() != "run_done 3" {
		t.Error(resumed.frameNames())
	}
}

// manyEventsAgent returns an agent with many large events.
func manyEventsAgent() actor.Definition {
	return agents.Define("talkative", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		for i := range 48 {
			if _, err := t.Do(fmt.Sprint("say-", i), func(context.Context) ([]byte, error) {
				return json.Marshal(strings.Repeat("x", runs.TextBytesMax))
			}); err != nil {
				return "", err
			}
		}
		return "done", nil
	})))
}

// A slow reader gets the reason in a final frame that follows a complete frame.
// The gateway enlarges the send buffer, so that it has room for the final
// frame.
func TestSlowReaderGetsCloseReason(t *testing.T) {
	d := startGatewayWith(t, Config{StreamTimeout: time.Hour}, manyEventsAgent())
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/talkative/messages", `{"content":"x"}`)
	slow := d.serveSlowReaders()
	c := slow.dialSmallBuffer()
	fmt.Fprintf(c, "GET /v1/runs/%s/events HTTP/1.0\r\nHost: %s\r\nAccept: text/event-stream\r\nAuthorization: Bearer %s\r\n\r\n", m.Run, slow.address, d.createKey("read"))
	head := make([]byte, 12)
	if _, err := io.ReadFull(c, head); err != nil || string(head) != "HTTP/1.0 200" {
		t.Fatalf("%s, %v", head, err)
	}
	if err := slow.server.streams.waitIdle(slow.Context()); err != nil {
		t.Fatal(err)
	}
	_ = c.tcp.SetReadBuffer(1 << 20)
	b, _ := io.ReadAll(c)
	_, b, _ = bytes.Cut(b, []byte("\r\n\r\n"))
	frames, refusal := upstream.NewParser(upstream.StreamLimits{}).Parse(b)
	if refusal != nil || len(frames) < 2 {
		t.Fatalf("%d bytes: %v", len(b), refusal)
	}
	last := frames[len(frames)-1]
	if last.Name != ingress.StreamClosed || last.ID != "" || !strings.Contains(last.Data, `"reason":"slow_reader"`) {
		t.Errorf("%+v", last)
	}
	resumed := d.openStream("GET", "/v1/runs/"+m.Run+"/events", "", "Last-Event-ID", frames[len(frames)-2].ID)
	resumed.readUntil("run_done")
	if got, want := resumed.frames[0].ID, len(frames); got != fmt.Sprint(want) {
		t.Errorf("resumed at %s, want %d", got, want)
	}
}
