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
	w := &logWriter{out: to, wake: make(chan struct{}, 1), done: make(chan struct{}), closeTimeout: time.Second}
	go w.run()
	return w
}

// Write takes one line.
func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return len(line), nil
	case len(w.pending)+len(line) > logPendingBytesMax:
		w.dropped++
	default:
		w.pending = append(w.pending, line...)
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return len(line), nil
}

func (w *logWriter) run() {
	defer close(w.done)
	var b []byte
	for range w.wake {
		w.mu.Lock()
		b, w.pending = w.pending, b[:0]
		dropped := w.dropped
		w.dropped = 0
		w.mu.Unlock()
		if dropped > 0 {
			b = fmt.Appendf(b, `{"level":"WARN","msg":"lines of the log were dropped: its reader is too slow","lines":%d}`+"\n", dropped)
		}
		w.out.Write(b) //nolint:errcheck // there is nowhere to say so
	}
	w.out.Write(w.pending) //nolint:errcheck // nobody adds to it any more
}

// close passes on what is left, to whoever reads it. Nothing is taken in afterwards.
func (w *logWriter) close() {
	w.mu.Lock()
	w.closed = true
	close(w.wake)
	w.mu.Unlock()
	select {
	case <-w.done:
	case <-time.After(w.closeTimeout):
	}
}
