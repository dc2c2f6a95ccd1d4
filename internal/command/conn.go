// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// OpenMax is the maximum number of open commands of a connection. A Follow is
// open until it is stopped.
const OpenMax = 1 << 16

// ConnError is the error of a connection between a client and a node. It is
// ErrClosed too: the client cannot reach the node.
type ConnError struct {
	// Err is io.EOF if the peer has closed the connection between two frames,
	// io.ErrUnexpectedEOF if it has closed it within one, a *ProtocolError, or
	// an error of the connection.
	Err error
}

// Error implements error.
func (e *ConnError) Error() string { return "connection between client and node: " + e.Err.Error() }

// Unwrap returns Err.
func (e *ConnError) Unwrap() error { return e.Err }

// Is reports whether target is ErrClosed.
func (e *ConnError) Is(target error) bool { return target == ErrClosed }

// ProtocolError reports a frame that the peer must not send.
type ProtocolError struct{ Err error }

// Error implements error.
func (e *ProtocolError) Error() string { return "protocol violated by the peer: " + e.Err.Error() }

// Unwrap returns Err.
func (e *ProtocolError) Unwrap() error { return e.Err }

func violation(format string, args ...any) error {
	return &ProtocolError{fmt.Errorf(format, args...)}
}

// frameHeadBytes is the size of the length that precedes a frame, big-endian.
const frameHeadBytes = 4

// frameConn sends and receives frames. One goroutine receives, any may send.
type frameConn struct {
	rw  io.ReadWriteCloser
	in  bytes.Buffer
	mu  sync.Mutex // held while a frame is sent
	out []byte
}

// send sends one frame. It returns an error that is not a *ConnError if the
// frame cannot be encoded.
func (c *frameConn) send(f Frame) error { return c.sendAfter(f, func() {}) }

// sendAfter is send that calls before once the frame is encoded and no other
// frame precedes it.
func (c *frameConn) sendAfter(f Frame, before func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := c.encode(f)
	if err != nil {
		return err
	}
	before()
	return c.write(b)
}

// encode returns the encoding of a frame, which is valid until the next call.
func (c *frameConn) encode(f Frame) ([]byte, error) {
	if cap(c.out) > pooledBytesMax {
		c.out = nil
	}
	b, err := AppendFrame(append(c.out[:0], make([]byte, frameHeadBytes)...), f)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-frameHeadBytes))
	c.out = b
	return b, nil
}

func (c *frameConn) write(b []byte) error {
	if _, err := c.rw.Write(b); err != nil {
		return &ConnError{err}
	}
	return nil
}

// pooledBytesMax is the size of the largest buffer that is reused.
const pooledBytesMax = 64 << 10

// receive returns the next frame, or a *ConnError. It allocates memory for bytes
// that have arrived, not for those that a length announces.
func (c *frameConn) receive() (Frame, error) {
	var head [frameHeadBytes]byte
	if _, err := io.ReadFull(c.rw, head[:]); err != nil {
		return Frame{}, &ConnError{err}
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n > FrameBytesMax {
		return Frame{}, &ConnError{violation("frame of %d bytes, at most %d allowed", n, FrameBytesMax)}
	}
	c.in.Reset()
	switch got, err := io.CopyN(&c.in, c.rw, n); {
	case err == io.EOF && got < n:
		return Frame{}, &ConnError{io.ErrUnexpectedEOF}
	case err != nil:
		return Frame{}, &ConnError{err}
	}
	f, err := DecodeFrame(c.in.Bytes())
	if c.in.Cap() > pooledBytesMax {
		c.in = bytes.Buffer{}
	}
	if err != nil {
		return Frame{}, &ConnError{&ProtocolError{err}}
	}
	return f, nil
}

// failureOf returns the notice for an error of a command.
func failureOf(err error) Failure {
	var r *actor.Refusal
	var dropped EventsDropped
	switch {
	case errors.As(err, &r):
		return Failure{Kind: FailedRefused, Refusal: r}
	case errors.As(err, &dropped):
		return Failure{Kind: FailedDropped, Dropped: dropped}
	case errors.Is(err, ErrClosed):
		return Failure{Kind: FailedClosed}
	case errors.Is(err, context.DeadlineExceeded):
		return Failure{Kind: FailedDeadline}
	case errors.Is(err, context.Canceled):
		return Failure{Kind: FailedCanceled}
	default:
		return Failure{Kind: FailedInternal, Text: string(bytes.ToValidUTF8([]byte(err.Error()[:min(len(err.Error()), actor.TextBytesMax)]), nil))}
	}
}

// error returns the error from which failureOf made the notice.
func (f *Failure) error() error {
	switch f.Kind {
	case FailedRefused:
		return f.Refusal
	case FailedClosed:
		return ErrClosed
	case FailedDeadline:
		return context.DeadlineExceeded
	case FailedCanceled:
		return context.Canceled
	case FailedDropped:
		return f.Dropped
	default:
		return errors.New(f.Text)
	}
}

// now returns the time for the ID of a call.
func now() actor.Time { return actor.Time(time.Now().UnixNano()) }
