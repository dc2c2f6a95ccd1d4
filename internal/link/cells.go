// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// Bounds of the messages for one member that are not written yet. As many again may be being written. A message beyond
// them is refused.
const (
	queuedMax       = 8192
	queuedBytesMax  = 8 << 20
	messageBytesMax = 4 << 20 // of one message; exceeds the largest that actor.Decode accepts
)

// A frame is its length in 4 bytes, the cell in 2 bytes and the message. One of length 0 is a beat: it says that
// the sender is alive.
const (
	lengthBytes = 4
	cellBytes   = 2
)

var (
	errQueueFull = errors.New("the queue of messages for the member is full")
	errTooLarge  = fmt.Errorf("a message exceeds %d bytes", messageBytesMax)
	errEnded     = errors.New("the connection has ended")
)

// outbox holds messages, as frames, until they are written to the connection of their member.
type outbox struct {
	wake chan struct{} // capacity 1: frames were added

	mu     sync.Mutex
	frames []byte
	count  int
	ended  bool
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

// scratch holds buffers for frames.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// put adds a message. It never blocks, and does not retain the envelope.
func (o *outbox) put(cell uint16, env *actor.Envelope) error {
	buffer := scratch.Get().(*[]byte)
	b := binary.BigEndian.AppendUint16(append((*buffer)[:0], make([]byte, lengthBytes)...), cell)
	b = actor.Append(b, *env) // outside of the lock, for other cells send too
	size := len(b) - lengthBytes
	binary.BigEndian.PutUint32(b, uint32(size))
	if *buffer = b; cap(b) <= keptBytesMax {
		defer scratch.Put(buffer)
	}
	if size > cellBytes+messageBytesMax {
		return errTooLarge
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.ended:
		return errEnded
	case o.count >= queuedMax, len(o.frames)+len(b) > queuedBytesMax:
		return errQueueFull
	}
	o.frames = append(o.frames, b...)
	if o.count++; o.count == 1 {
		notify(o.wake)
	}
	return nil
}

// keptBytesMax is the capacity of the largest buffer that is used again.
const keptBytesMax = 1 << 20

// take removes all messages. The buffer empty is used for the next ones.
func (o *outbox) take(empty []byte) (frames []byte, count int) {
	if cap(empty) > keptBytesMax {
		empty = nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	frames, count = o.frames, o.count
	o.frames, o.count = empty[:0], 0
	return frames, count
}

// end refuses all further messages and returns the number of those that are left.
func (o *outbox) end() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	left := o.count
	o.frames, o.count = nil, 0
	return left
}

// write writes messages, all that wait at once, until ctx ends or the connection fails. It calls sent with the number of those
// that were written.
func (o *outbox) write(ctx context.Context, c io.Writer, sent func(int)) error {
	beat := time.NewTimer(command.MemberBeat)
	defer beat.Stop()
	var frames []byte
	for {
		count := 0
		select {
		case <-o.wake:
			frames, count = o.take(frames)
		case <-beat.C:
			frames = append(frames[:0], make([]byte, lengthBytes)...)
		case <-ctx.Done():
			return ctx.Err()
		}
		if _, err := c.Write(frames); err != nil {
			return err
		}
		sent(count)
		beat.Reset(command.MemberBeat)
	}
}

// readBytes is the size of the buffer of a reader. A larger message needs one of its own.
const readBytes = 64 << 10

// readMessages reads messages until the connection fails, and passes them on in their order. One that cannot be decoded
// is passed to lost: it would be sent again over the next connection, so the connection stays. A malformed
// frame ends it.
func readMessages(r io.Reader, deliver func(cell uint16, env *actor.Envelope), lost func(error)) error {
	in, large := bufio.NewReaderSize(r, readBytes), bytes.Buffer{}
	for {
		head, err := in.Peek(lengthBytes)
		if err != nil {
			return cut(err, len(head))
		}
		size := int64(binary.BigEndian.Uint32(head))
		_, _ = in.Discard(lengthBytes)
		switch {
		case size == 0:
			continue
		case size <= cellBytes || size > cellBytes+messageBytesMax:
			return &command.ProtocolError{Err: fmt.Errorf("frame of %d bytes, want from %d to %d", size, cellBytes+1, cellBytes+messageBytesMax)}
		}
		var frame []byte
		if size <= readBytes {
			if frame, err = in.Peek(int(size)); err != nil {
				return cut(err, 1)
			}
			_, _ = in.Discard(int(size)) // frame is valid until the next read
		} else {
			large.Reset()
			if _, err := io.CopyN(&large, in, size); err != nil { // allocates for what has arrived
				return cut(err, 1)
			}
			frame = large.Bytes()
		}
		env, err := actor.Decode(frame[cellBytes:])
		if err != nil {
			lost(err)
		} else {
			deliver(binary.BigEndian.Uint16(frame), &env)
		}
		if large.Cap() > keptBytesMax {
			large = bytes.Buffer{}
		}
	}
}

// cut returns the error of a read of which n bytes have arrived.
func cut(err error, n int) error {
	if err == io.EOF && n > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}
