// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/fasthttp/websocket"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/shares"
)

// Bounds of what a socket sends besides the content of its messages.
const (
	// socketOverheadMax is the number of bytes that may arrive before content does: 16 KiB for the
	// heads of frames, so a message of 1,024 fragments fits, and those that are read ahead.
	socketOverheadMax = 16<<10 + HeaderBytesMax
	// socketControlsMax is the number of pings and pongs in a second. Each ping is answered.
	socketControlsMax = 100
)

var (
	errSocketOverhead = errors.New("the message has too many fragments")
	errSocketControls = errors.New("too many pings")
	errSocketBodies   = errors.New("the messages under way of this client take too many bytes")
)

// socketShare is what the messages of a socket take of the bytes of bodies: from their arrival until
// they were handled, as bodies do. Up to bodyFree they take nothing.
type socketShare struct {
	bodies *shares.Shares[string]

	mu         sync.Mutex
	by         string // of the principal that sends; of its address before the hello
	privileged bool
	bytes      int64
	taken      int64
}

// add counts n bytes more, or fewer if n is negative, which does not fail.
func (s *socketShare) add(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += n
	if s.settle() {
		return true
	}
	s.bytes -= n
	return false
}

// end returns what is taken. Nothing is added afterwards.
func (s *socketShare) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies.Give(s.by, s.taken)
	s.taken, s.bytes = 0, 0
}

// pass gives the share to another principal.
func (s *socketShare) pass(by string, privileged bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies.Give(s.by, s.taken)
	s.taken, s.by, s.privileged = 0, by, privileged
	return s.settle()
}

func (s *socketShare) settle() bool {
	want := s.bytes
	if want <= bodyFree {
		want = 0
	}
	if want > s.taken && s.bodies.Take(s.by, want-s.taken, s.privileged) != actor.NoScope {
		return false
	}
	if want < s.taken {
		s.bodies.Give(s.by, s.taken-want)
	}
	s.taken = want
	return true
}

// socketReader reads the messages of a socket.
type socketReader struct {
	share *socketShare

	overhead int // bytes that may still arrive before content does; see received
	controls int // pings and pongs since the time in since
	since    time.Time
}

// received counts bytes of the connection. The frames are decoded below the reader of a message,
// which returns only with content.
func (r *socketReader) received(n int) error {
	if r.overhead -= n; r.overhead < 0 {
		return errSocketOverhead
	}
	return nil
}

// heard counts a ping or a pong.
func (r *socketReader) heard(now time.Time, bytes int) error {
	if now.Sub(r.since) >= time.Second {
		r.since, r.controls = now, 0
	}
	if r.controls++; r.controls > socketControlsMax {
		return errSocketControls
	}
	r.overhead = min(r.overhead+bytes+maxControlHead, socketOverheadMax)
	return nil
}

// maxControlHead is the length of the head of a control frame of a client.
const maxControlHead = 6

// next reads a message of at most limit bytes. The capacity of its body is counted in the share.
func (r *socketReader) next(c *websocket.Conn, limit int64) (kind int, body []byte, err error) {
	r.overhead = socketOverheadMax
	kind, in, err := c.NextReader()
	if err != nil {
		return kind, nil, err
	}
	for {
		if len(body) == cap(body) {
			size := min(max(socketBufferBytes, 2*int64(cap(body))), limit+1)
			if !r.share.add(size - int64(cap(body))) {
				return kind, body, errSocketBodies
			}
			body = append(make([]byte, 0, size), body...)
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		r.overhead = min(r.overhead+n, socketOverheadMax)
		if err == io.EOF {
			return kind, body, nil
		}
		if err != nil {
			return kind, body, err
		}
	}
}
