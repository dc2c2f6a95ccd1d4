// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// web is the round tripper of one session with a server over HTTP. It adds the headers of the
// configuration, bounds the responses, and gives each request an answer that the SDK reads, so that
// a broken response ends only its own request.
type web struct {
	base      http.RoundTripper
	headers   http.Header
	forgotten atomic.Bool // the server has answered that it does not know the session
}

// unsentKey is the context key of an *atomic.Bool that is set if no connection could be made.
type unsentKey struct{}

// newWeb reads the headers, whose secrets come from the environment.
func newWeb(o *Options, c *Config) (*web, *sdk.StreamableClientTransport, error) {
	w := &web{base: o.Transport, headers: http.Header{}}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		h := c.Headers[name]
		value := h.Value
		if h.Env != "" {
			if err := o.Auth.Permit(upstream.Target{URL: c.URL, AuthEnv: h.Env}); err != nil {
				return nil, nil, fmt.Errorf("headers.%s: %w", name, err)
			}
			secret, _ := o.Env(h.Env)
			if value = strings.TrimSpace(secret); value == "" {
				return nil, nil, fmt.Errorf("headers.%s: the environment variable %s is not set: set it and restart", name, h.Env)
			}
		}
		w.headers.Set(name, value)
	}
	client := &http.Client{Transport: w, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return w, &sdk.StreamableClientTransport{Endpoint: c.URL, HTTPClient: client, MaxRetries: -1, MaxEventSize: 4 * messageBytesMax}, nil
}

const (
	sessionHeader = "Mcp-Session-Id"
	errorBodyMax  = 64 << 10
	errorBodyTime = 2 * time.Second
	quoteMax      = 500
)

// RoundTrip implements http.RoundTripper.
func (w *web) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	maps.Copy(r.Header, w.headers)
	if r.Method == http.MethodGet { // announcements of changed lists, without which the list is read every minute
		return made(r, "text/event-stream", w.listen(r)), nil
	}
	var sent request
	if r.GetBody != nil {
		if body, err := r.GetBody(); err == nil {
			b, _ := io.ReadAll(body)
			sent = requestOf(b)
		}
	}
	response, err := w.base.RoundTrip(r)
	switch {
	case err != nil:
		var dial *net.OpError
		if unsent, ok := r.Context().Value(unsentKey{}).(*atomic.Bool); ok && errors.As(err, &dial) && dial.Op == "dial" {
			unsent.Store(true)
		}
		return nil, err
	case r.Method != http.MethodPost:
		return response, nil
	case sent.ID == "": // a notification, or the answer to a request of the server
		response.Body.Close()
		accepted := made(r, "", http.NoBody)
		accepted.StatusCode = http.StatusAccepted
		return accepted, nil
	}
	out := w.answer(r, sent, response)
	if id := response.Header.Get(sessionHeader); id != "" && sent.Method != methodCall && r.Header.Get(sessionHeader) == "" {
		out.Header.Set(sessionHeader, id)
	}
	return out, nil
}

// made returns a response with status 200.
func made(r *http.Request, media string, body io.ReadCloser) *http.Response {
	header := http.Header{}
	if media != "" {
		header.Set("Content-Type", media)
	}
	return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header, Body: body, ContentLength: -1, Request: r}
}

func madeMessage(r *http.Request, message []byte) *http.Response {
	return made(r, "application/json", io.NopCloser(bytes.NewReader(message)))
}

// answer returns the response that the SDK reads in place of that of the server.
func (w *web) answer(r *http.Request, sent request, response *http.Response) *http.Response {
	failed := func(f *failure) *http.Response {
		response.Body.Close()
		return madeMessage(r, failureMessage(sent, f, statusCode(response.StatusCode)))
	}
	if response.StatusCode/100 != 2 {
		message := w.refused(r, sent, response)
		response.Body.Close()
		return madeMessage(r, message)
	}
	body := bufio.NewReaderSize(response.Body, 4<<10)
	switch media := kindOfBody(response.Header.Get("Content-Type"), body); {
	case response.Header.Get("Content-Encoding") != "" && response.Header.Get("Content-Encoding") != "identity":
		return failed(unreadable("answered in the content coding %.40q, which was not asked for", response.Header.Get("Content-Encoding")))
	case media == "text/event-stream":
		return made(r, media, &events{ReadCloser: response.Body, from: body, ctx: r.Context(), sent: sent,
			parser: upstream.NewParser(upstream.StreamLimits{Line: messageBytesMax, Event: messageBytesMax, Total: math.MaxInt})})
	}
	b, err := io.ReadAll(io.LimitReader(body, messageBytesMax+1))
	switch {
	case err != nil && r.Context().Err() != nil:
		response.Body.Close()
		return made(r, "application/json", io.NopCloser(brokenReader{err}))
	case err != nil:
		f := unreadable("broke the connection within its answer: %.200v", err)
		f.Passing = true
		return failed(f)
	case len(b) > messageBytesMax:
		return failed(unreadable("answered with more than %d bytes: the response has more than that", messageBytesMax))
	}
	response.Body.Close()
	all, _ := receive(b, sent.ID, only(sent))
	if i := slices.IndexFunc(all, func(m received) bool { return m.id == sent.ID }); i >= 0 {
		return madeMessage(r, all[i].line)
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return failed(unreadable("answered %d without a result", response.StatusCode))
	}
	return failed(unreadable("answered with what is no message: %s", actor.FitText(string(b), quoteMax)))
}

type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

// only returns the function sent of receive for one request.
func only(sent request) func(string) (request, bool) {
	return func(id string) (request, bool) { return sent, id == sent.ID }
}

// kindOfBody returns the media type of a body: that of the header, or what the first bytes show.
func kindOfBody(contentType string, body *bufio.Reader) string {
	media, _, _ := strings.Cut(contentType, ";")
	if media = strings.ToLower(strings.TrimSpace(media)); media == "application/json" || media == "text/event-stream" {
		return media
	}
	begin, _ := body.Peek(16)
	begin = bytes.TrimLeft(bytes.TrimPrefix(begin, []byte("\uFEFF")), "\r\n")
	for _, field := range []string{"event:", "data:", "id:", "retry:", ":"} {
		if bytes.HasPrefix(begin, []byte(field)) {
			return "text/event-stream"
		}
	}
	return media
}

// refused returns the message for a response with a status other than 2xx.
func (w *web) refused(r *http.Request, sent request, response *http.Response) []byte {
	stop := time.AfterFunc(errorBodyTime, func() { response.Body.Close() })
	body, _ := io.ReadAll(io.LimitReader(response.Body, errorBodyMax))
	stop.Stop()
	status := response.StatusCode
	f := &failure{Reason: actor.Unknown, Passing: status >= 500, Detail: fmt.Sprintf("answers %d %s", status, http.StatusText(status))}
	if text := strings.TrimSpace(actor.FitText(string(body), quoteMax)); text != "" {
		f.Detail += ": " + text
	}
	location, err := response.Location()
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		f.Reason = actor.Rejected
		f.Detail += "; see headers in the configuration of the server"
	case status == http.StatusTooManyRequests:
		f.Reason, f.After = actor.Busy, int64(upstream.RetryAfter([]upstream.Header{{Name: "retry-after", Value: response.Header.Get("Retry-After")},
			{Name: "date", Value: response.Header.Get("Date")}}, actor.Time(time.Now().UnixNano())))
	case status == http.StatusNotFound && r.Header.Get(sessionHeader) != "":
		w.forgotten.Store(true)
		f.Forgotten, f.Reason = true, actor.Unavailable
	case slices.Contains([]int{301, 302, 307, 308}, status) && err == nil:
		f.Reason, f.Detail = actor.Rejected, fmt.Sprintf("answers %d, and redirects are not followed: declare url = %q", status, actor.FitText(withoutSecrets(location), quoteMax))
	default:
		if all, err := receive(body, sent.ID, only(sent)); err == nil && len(all) > 0 && status < 500 && all[0].id == sent.ID {
			return all[0].line // an error of the server with its reason
		}
	}
	return failureMessage(sent, f, statusCode(status))
}

// withoutSecrets returns a URL without a user and with its parameters, if any, hidden.
func withoutSecrets(u *url.URL) string {
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	if u.RawQuery != "" {
		shown.RawQuery = "…"
	}
	return shown.String()
}

// events are the events of the response to one request. The stream has an answer to the request at
// its end, in any case, and no other responses.
type events struct {
	io.ReadCloser
	from   io.Reader
	ctx    context.Context
	sent   request
	parser *upstream.Parser
	flow   flow
	rest   []byte
	done   bool
}

// Read implements io.Reader.
func (e *events) Read(p []byte) (int, error) {
	buffer := make([]byte, 16<<10)
	for len(e.rest) == 0 {
		if e.done {
			return 0, io.EOF
		}
		n, err := e.from.Read(buffer)
		if err == io.EOF { // the standard drops an event without an empty line after it
			buffer, n = append(buffer[:n], "\n\n"...), n+2
		}
		frames, refusal := e.parser.Parse(buffer[:n])
		for _, frame := range frames {
			if frame.Name == "" || frame.Name == "message" {
				e.take([]byte(frame.Data))
			}
		}
		switch {
		case e.done:
		case refusal != nil:
			e.fail(unreadable("answered with an event that is too long: %s", refusal.Detail))
		case err != nil && e.ctx.Err() != nil:
			return 0, err
		case err != nil:
			f := unreadable("ended its stream of events without an answer")
			f.Passing = true
			e.fail(f)
		}
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// take passes the messages of an event on. An event without any is dropped.
func (e *events) take(data []byte) {
	all, err := receive(data, e.sent.ID, only(e.sent))
	if err != nil && idOfHead(data) == e.sent.ID {
		e.fail(unreadable("answered with what is no JSON: %s", actor.FitText(string(data), quoteMax)))
	}
	for _, m := range all {
		if m.id == "" {
			e.flow.wait(e.ctx.Done())
		}
		if !e.done && m.line != nil {
			e.rest = fmt.Appendf(e.rest, "data: %s\n\n", m.line)
		}
		e.done = e.done || m.id == e.sent.ID && m.line != nil
	}
}

func (e *events) fail(f *failure) {
	e.rest = fmt.Appendf(e.rest, "data: %s\n\n", failureMessage(e.sent, f, statusCode(http.StatusOK)))
	e.done = true
}

// announcements is the stream of what a server sends by itself. It asks for it at the first read,
// because a server may delay the head of the response until there is something to say. It has no end:
// a server that has no such stream, or ends it, still answers calls.
type announcements struct {
	w      *web
	r      *http.Request
	cancel context.CancelFunc
	body   io.ReadCloser
	parser *upstream.Parser
	flow   flow
	rest   []byte
}

func (w *web) listen(r *http.Request) io.ReadCloser {
	ctx, cancel := context.WithCancel(r.Context())
	return &announcements{w: w, r: r.WithContext(ctx), cancel: cancel, parser: upstream.NewParser(upstream.StreamLimits{Line: messageBytesMax, Event: messageBytesMax, Total: math.MaxInt})}
}

// Read implements io.Reader.
func (a *announcements) Read(p []byte) (int, error) {
	if a.body == nil {
		a.body = http.NoBody
		if response, err := a.w.base.RoundTrip(a.r); err == nil {
			if response.StatusCode == http.StatusOK && strings.HasPrefix(strings.ToLower(response.Header.Get("Content-Type")), "text/event-stream") {
				a.body = response.Body
			} else {
				response.Body.Close()
			}
		}
	}
	buffer := make([]byte, 4<<10)
	for len(a.rest) == 0 {
		n, err := a.body.Read(buffer)
		frames, refusal := a.parser.Parse(buffer[:n])
		for _, frame := range frames {
			all, _ := receive([]byte(frame.Data), "", func(string) (request, bool) { return request{}, false })
			for _, m := range all {
				if m.line != nil {
					a.flow.wait(a.r.Context().Done())
					a.rest = fmt.Appendf(a.rest, "data: %s\n\n", m.line)
				}
			}
		}
		if (err != nil || refusal != nil) && len(a.rest) == 0 {
			a.body.Close()
			<-a.r.Context().Done()
			return 0, a.r.Context().Err()
		}
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (a *announcements) Close() error {
	a.cancel()
	return nil
}
