// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// failingNode fails every Lookup. It has no other command.
type failingNode struct {
	command.Node
	err  error
	left time.Duration // that the last Lookup had; 0 without a deadline
}

func (n *failingNode) Lookup(ctx context.Context, _ command.Lookup) (command.Result, error) {
	n.left = 0
	if deadline, ok := ctx.Deadline(); ok {
		n.left = time.Until(deadline)
	}
	return nil, n.err
}

// request returns the answer of a gateway to a request.
func request(n command.Node, path string) *fasthttp.Response {
	var ctx fasthttp.RequestCtx
	if err := ctx.Request.Read(bufio.NewReader(strings.NewReader("GET " + path + " HTTP/1.1\r\nHost: localhost:80\r\n\r\n"))); err != nil {
		panic(err)
	}
	s := New(n, slog.New(slog.DiscardHandler), Config{Keys: new(Keys)})
	s.onLoopback.Store(true)
	s.port.Store(80)
	s.http.Handler(&ctx)
	return &ctx.Response
}

// The text of an internal error names files and keys of the node. It is for the
// log only.
func TestInternalErrorIsNotSent(t *testing.T) {
	for _, path := range []string{"/v1/runs", "/v1/agents", "/readyz", "/metrics"} {
		r := request(&failingNode{err: errors.New("secret of the node")}, path)
		if body := string(r.Body()); r.StatusCode() < 500 || strings.Contains(body, "secret") {
			t.Errorf("%s: got %d %s", path, r.StatusCode(), body)
		}
	}
}

// A gateway reports a failed connection as it reports a node that was closed.
func TestFailedConnectionIsAStoppedNode(t *testing.T) {
	for _, path := range []string{"/v1/runs", "/v1/agents", "/readyz", "/metrics"} {
		want := request(&failingNode{err: command.ErrClosed}, path)
		got := request(&failingNode{err: &command.ConnError{Err: io.ErrUnexpectedEOF}}, path)
		if want.StatusCode() != http.StatusServiceUnavailable || got.StatusCode() != want.StatusCode() || string(got.Body()) != string(want.Body()) {
			t.Errorf("%s: got %d %s\nwant %d %s", path, got.StatusCode(), got.Body(), want.StatusCode(), want.Body())
		}
	}
}

// No request waits without a limit for a node that does not answer, and a probe waits a short time.
func TestLookupsHaveDeadlines(t *testing.T) {
	for _, path := range []string{"/v1/runs", "/v1/agents", "/v1/agents/helper", "/readyz", "/metrics"} {
		n := &failingNode{err: command.ErrClosed}
		if request(n, path); n.left == 0 || path == "/readyz" && n.left > 2*time.Second {
			t.Errorf("%s: the node was asked with %v to answer", path, n.left)
		}
	}
}

// silentNode answers no Lookup.
type silentNode struct{ command.Node }

func (silentNode) Lookup(ctx context.Context, _ command.Lookup) (command.Result, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestTimeoutEndsLookup(t *testing.T) {
	s := New(silentNode{}, slog.New(slog.DiscardHandler), Config{Keys: new(Keys)})
	timeout := s.newTimeout(time.Millisecond)
	defer timeout.stop()
	if _, err := command.Find(timeout, s.node, actor.NewPrincipal("", ""), command.AgentsQuery{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}
