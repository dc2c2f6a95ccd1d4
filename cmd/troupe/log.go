// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// logBytesMax is how much of the log may wait for whoever reads it.
const logBytesMax = 1 << 20

// lines passes lines on from a goroutine of its own: a log that nobody reads must
// not hold up a cell. What finds no room is dropped and counted.
type lines struct {
	to      io.Writer
	mu      sync.Mutex
	waiting []byte
	dropped int
	closed  bool
	more    chan struct{}
	done    chan struct{}
	last    time.Duration // how long whoever reads may take for what is left
}

func newLines(to io.Writer) *lines {
	l := &lines{to: to, more: make(chan struct{}, 1), done: make(chan struct{}), last: time.Second}
	go l.loop()
	return l
}

// Write takes one line.
func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return len(line), nil
	case len(l.waiting)+len(line) > logBytesMax:
		l.dropped++
	default:
		l.waiting = append(l.waiting, line...)
	}
	select {
	case l.more <- struct{}{}:
	default:
	}
	return len(line), nil
}

func (l *lines) loop() {
	defer close(l.done)
	var b []byte
	for range l.more {
		l.mu.Lock()
		b, l.waiting = l.waiting, b[:0]
		dropped := l.dropped
		l.dropped = 0
		l.mu.Unlock()
		if dropped > 0 {
			b = fmt.Appendf(b, `{"level":"WARN","msg":"lines of the log were dropped: its reader is too slow","lines":%d}`+"\n", dropped)
		}
		l.to.Write(b) //nolint:errcheck // there is nowhere to say so
	}
	l.to.Write(l.waiting) //nolint:errcheck // nobody adds to it any more
}

// close passes on what is left, to whoever reads it. Nothing is taken in afterwards.
func (l *lines) close() {
	l.mu.Lock()
	l.closed = true
	close(l.more)
	l.mu.Unlock()
	select {
	case <-l.done:
	case <-time.After(l.last):
	}
}
