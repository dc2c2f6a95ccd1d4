// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// logPendingBytesMax is how much of the log may wait for whoever reads it.
const logPendingBytesMax = 1 << 20

// logWriter passes lines on from a goroutine of its own: a log that nobody reads must
// not hold up a cell. What finds no room is dropped and counted.
type logWriter struct {
	out          io.Writer
	mu           sync.Mutex
	pending      []byte
	dropped      int
	closed       bool
	wake         chan struct{}
	done         chan struct{}
	closeTimeout time.Duration // how long whoever reads may take for what is left
}

func newLogWriter(to io.Writer) *logWriter {
	l := &logWriter{out: to, wake: make(chan struct{}, 1), done: make(chan struct{}), closeTimeout: time.Second}
	go l.run()
	return l
}

// Write takes one line.
func (l *logWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return len(line), nil
	case len(l.pending)+len(line) > logPendingBytesMax:
		l.dropped++
	default:
		l.pending = append(l.pending, line...)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return len(line), nil
}

func (l *logWriter) run() {
	defer close(l.done)
	var b []byte
	for range l.wake {
		l.mu.Lock()
		b, l.pending = l.pending, b[:0]
		dropped := l.dropped
		l.dropped = 0
		l.mu.Unlock()
		if dropped > 0 {
			b = fmt.Appendf(b, `{"level":"WARN","msg":"lines of the log were dropped: its reader is too slow","lines":%d}`+"\n", dropped)
		}
		l.out.Write(b) //nolint:errcheck // there is nowhere to say so
	}
	l.out.Write(l.pending) //nolint:errcheck // nobody adds to it any more
}

// close passes on what is left, to whoever reads it. Nothing is taken in afterwards.
func (l *logWriter) close() {
	l.mu.Lock()
	l.closed = true
	close(l.wake)
	l.mu.Unlock()
	select {
	case <-l.done:
	case <-time.After(l.closeTimeout):
	}
}
