// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

// blockedWriter is a writer that blocks until release is closed.
type blockedWriter struct {
	bytes.Buffer
	release chan struct{}
}

func (s *blockedWriter) Write(b []byte) (int, error) {
	<-s.release
	return s.Buffer.Write(b)
}

func TestLogWriterDoesNotBlock(t *testing.T) {
	out := &blockedWriter{release: make(chan struct{})}
	w := newLogWriter(out, false)
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for range 4 * logPendingBytesMax / len(line) {
		if n, err := w.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	close(out.release)
	w.close()
	kept := strings.Count(out.String(), "x\n")
	if kept == 0 || kept > 2*logPendingBytesMax/len(line) || !strings.Contains(out.String(), "lines dropped") {
		t.Errorf("%d lines written", kept)
	}
}

func TestLogWriterCloseTimesOut(t *testing.T) {
	out := &blockedWriter{release: make(chan struct{})}
	w := newLogWriter(out, false)
	w.closeTimeout = time.Millisecond
	fmt.Fprintln(w, "x")
	w.close()
	fmt.Fprintln(w, "y")
	close(out.release)
	<-w.done
	if got := out.String(); got != "x\n" {
		t.Errorf("want line x, got %q", got)
	}
}
