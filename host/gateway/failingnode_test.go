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

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/internal/command"
)

// failingNode fails every Lookup. It has no other command.
type failingNode struct {
	command.Node
	err error
}

func (n *failingNode) Lookup(_ context.Context, _ command.Lookup) (command.Result, error) {
	return nil, n.err
}

// request returns the answer of a gateway to a request.
func request(n command.Node, path string) *fasthttp.Response {
	var ctx fasthttp.RequestCtx
	if err := ctx.Request.Read(bufio.NewReader(strings.NewReader("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n"))); err != nil {
		panic(err)
	}
	s := New(n, slog.New(slog.DiscardHandler), Config{Keys: new(Keys)})
	s.onLoopback.Store(true)
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
