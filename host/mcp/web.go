// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/troupe-run/troupe/upstream"
)

// web is the round tripper of one server over HTTP. It adds the headers of the configuration and
// bounds the responses.
type web struct {
	base    http.RoundTripper
	headers http.Header
}

// unsentKey is the context key of an *atomic.Bool that is set if no connection could be made.
type unsentKey struct{}

// newWeb reads the headers, whose secrets come from the environment.
func newWeb(o *Options, c *Config) (*sdk.StreamableClientTransport, error) {
	w := &web{base: o.Transport, headers: http.Header{}}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		h := c.Headers[name]
		value := h.Value
		if h.Env != "" {
			if err := o.Auth.Permit(upstream.Target{URL: c.URL, AuthEnv: h.Env}); err != nil {
				return nil, fmt.Errorf("headers.%s: %w", name, err)
			}
			secret, _ := o.Env(h.Env)
			if value = strings.TrimSpace(secret); value == "" {
				return nil, fmt.Errorf("headers.%s: the environment variable %s is not set: set it and restart", name, h.Env)
			}
		}
		w.headers.Set(name, value)
	}
	client := &http.Client{Transport: w, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &sdk.StreamableClientTransport{Endpoint: c.URL, HTTPClient: client, MaxRetries: -1, MaxEventSize: messageBytesMax}, nil
}

// RoundTrip implements http.RoundTripper.
func (w *web) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	maps.Copy(r.Header, w.headers)
	response, err := w.base.RoundTrip(r)
	if err != nil {
		var dial *net.OpError
		if unsent, ok := r.Context().Value(unsentKey{}).(*atomic.Bool); ok && errors.As(err, &dial) && dial.Op == "dial" {
			unsent.Store(true)
		}
		return nil, err
	}
	if !strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") { // events are bounded one by one
		response.Body = &mendedBody{ReadCloser: &bounded{ReadCloser: response.Body, left: messageBytesMax}}
	} else {
		response.Body = &mendedEvents{ReadCloser: response.Body, lines: bufio.NewReader(response.Body)}
	}
	return response, nil
}

// bounded is a body that fails above its bound.
type bounded struct {
	io.ReadCloser
	left int
}

var errTooLong = fmt.Errorf("the response has more than %d bytes", messageBytesMax)

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	if b.left -= n; b.left <= 0 && (err == nil || errors.Is(err, io.EOF)) {
		err = errTooLong
	}
	return n, err
}
