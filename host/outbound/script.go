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
	scriptPieceBytesMin = 16 // minimum bytes of text in a piece
	scriptPiecesMax     = 64 // approximate maximum number of pieces, for any length of answer
)

// scriptTransport plays the scripted model, which needs neither a key nor a
// network. It answers with the bytes that a real model would stream, so the same
// code processes them. Only the socket is missing.
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

// scriptBody returns one event per read.
type scriptBody struct {
	ctx        context.Context
	remaining  []byte
	pieceDelay time.Duration
}

// Read implements io.Reader.
func (b *scriptBody) Read(p []byte) (int, error) {
	if len(b.remaining) == 0 {
		return 0, io.EOF
	}
	n := len(b.remaining)
	if end := bytes.Index(b.remaining, []byte("\n\n")); end >= 0 {
		n = end + 2
	}
	if b.pieceDelay > 0 && isPiece(b.remaining[:n]) {
		select {
		case <-time.After(b.pieceDelay):
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
	}
	n = copy(p, b.remaining[:n])
	b.remaining = b.remaining[n:]
	return n, nil
}

// isPiece reports whether an event begins that has text of the answer, or the name of a called
// tool. The other events of a stream are no pieces of an answer: its role, arguments, reason
// to finish, usage and end.
func isPiece(event []byte) bool {
	return bytes.HasPrefix(event, []byte("data:")) && (bytes.Contains(event, []byte(`"content":"`)) || bytes.Contains(event, []byte(`"name":"`)))
}

// Close implements io.Closer.
func (b *scriptBody) Close() error { return nil }
