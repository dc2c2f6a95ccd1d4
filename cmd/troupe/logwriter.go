// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// logPendingBytesMax is the maximum number of unwritten log bytes.
const logPendingBytesMax = 1 << 20

// logWriter writes log lines from its own goroutine. A blocked output MUST NOT block
// a cell. A line that would raise the unwritten bytes above logPendingBytesMax is
// dropped and counted.
type logWriter struct {
	out          io.Writer
	droppedLine  string // format of the line for dropped ones, with their number
	mu           sync.Mutex
	pending      []byte
	dropped      int
	closed       bool
	wake         chan struct{}
	done         chan struct{}
	closeTimeout time.Duration // maximum duration of the final write
}

func newLogWriter(to io.Writer, asText bool) *logWriter {
	dropped := `{"level":"WARN","msg":"log lines dropped: the output is too slow","lines":%d}`
	if asText {
		dropped = "WARN log lines dropped: the output is too slow  lines=%d"
	}
	w := &logWriter{out: to, droppedLine: dropped + "\n", wake: make(chan struct{}, 1), done: make(chan struct{}), closeTimeout: time.Second}
	go w.run()
	return w
}

// Write enqueues one line. It never blocks on the output.
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
			b = fmt.Appendf(b, w.droppedLine, dropped)
		}
		w.out.Write(b) //nolint:errcheck // no place to report it
	}
	w.out.Write(w.pending) //nolint:errcheck // after close nothing is appended
}

// close writes the pending lines and waits at most closeTimeout. Later lines are
// discarded.
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
