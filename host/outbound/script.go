// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/troupe-run/troupe/upstream"
)

const (
	scriptCut    = 16 // bytes of text in a piece, at least
	scriptPieces = 64 // about as many at most, however long the answer
)

// script is the model that needs no key and no network. It answers with the
// bytes that a model would stream, so all that stands between a model and a
// client stands here too, but for the socket.
type script struct {
	prompt upstream.Prompt
	pace   time.Duration
}

// RoundTrip implements http.RoundTripper.
func (s script) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := upstream.Script(s.prompt)
	stream := upstream.AppendStream(nil, answer, max(scriptCut, len(answer.Text)/scriptPieces))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: &scriptBody{r.Context(), stream, s.pace}}, nil
}

// scriptBody is read one event at a time.
type scriptBody struct {
	ctx  context.Context
	left []byte
	pace time.Duration
}

// Read implements io.Reader.
func (b *scriptBody) Read(into []byte) (int, error) {
	if len(b.left) == 0 {
		return 0, io.EOF
	}
	if b.pace > 0 {
		select {
		case <-time.After(b.pace):
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
	}
	n := len(b.left)
	if end := bytes.Index(b.left, []byte("\n\n")); end >= 0 {
		n = end + 2
	}
	n = copy(into, b.left[:n])
	b.left = b.left[n:]
	return n, nil
}

// Close implements io.Closer.
func (b *scriptBody) Close() error { return nil }
