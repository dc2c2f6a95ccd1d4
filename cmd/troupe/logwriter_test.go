// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

// blockedWriter is a reader of the log that reads only when it is let.
type blockedWriter struct {
	bytes.Buffer
	release chan struct{}
}

func (s *blockedWriter) Write(b []byte) (int, error) {
	<-s.release
	return s.Buffer.Write(b)
}

func TestLogWriterDoesNotBlock(t *testing.T) {
	to := &blockedWriter{release: make(chan struct{})}
	l := newLogWriter(to)
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for range 4 * logPendingBytesMax / len(line) {
		if n, err := l.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	close(to.release)
	l.close()
	kept := strings.Count(to.String(), "x\n")
	if kept == 0 || kept > 2*logPendingBytesMax/len(line) || !strings.Contains(to.String(), "were dropped") {
		t.Errorf("%d lines were kept", kept)
	}
}

func TestLogWriterCloseTimesOut(t *testing.T) {
	to := &blockedWriter{release: make(chan struct{})}
	l := newLogWriter(to)
	l.closeTimeout = time.Millisecond
	fmt.Fprintln(l, "x")
	l.close()
	fmt.Fprintln(l, "y")
	close(to.release)
	<-l.done
	if got := to.String(); got != "x\n" {
		t.Errorf("it says %q", got)
	}
}
