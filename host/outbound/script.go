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
	scriptPieceBytesMin = 16 // bytes of text in a piece, at least
	scriptPiecesMax     = 64 // about as many at most, however long the answer
)

// scriptTransport is the model that needs no key and no network. It answers with the
// bytes that a model would stream, so all that stands between a model and a
// client stands here too, but for the socket.
type scriptTransport struct {
	prompt     upstream.Prompt
	pieceDelay time.Duration
}

// RoundTrip implements http.RoundTripper.
func (s scriptTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := upstream.Script(s.prompt)
	stream := upstream.AppendStream(nil, answer, max(scriptPieceBytesMin, len(answer.Text)/scriptPiecesMax))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: &scriptBody{r.Context(), stream, s.pieceDelay}}, nil
}

// scriptBody is read one event at a time.
type scriptBody struct {
	ctx        context.Context
	remaining  []byte
	pieceDelay time.Duration
}

// Read implements io.Reader.
func (b *scriptBody) Read(into []byte) (int, error) {
	if len(b.remaining) == 0 {
		return 0, io.EOF
	}
	if b.pieceDelay > 0 {
		select {
		case <-time.After(b.pieceDelay):
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
	}
	n := len(b.remaining)
	if end := bytes.Index(b.remaining, []byte("\n\n")); end >= 0 {
		n = end + 2
	}
	n = copy(into, b.remaining[:n])
	b.remaining = b.remaining[n:]
	return n, nil
}

// Close implements io.Closer.
func (b *scriptBody) Close() error { return nil }
