// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

// stuck is a reader of the log that reads only when it is let.
type stuck struct {
	bytes.Buffer
	let chan struct{}
}

func (s *stuck) Write(b []byte) (int, error) {
	<-s.let
	return s.Buffer.Write(b)
}

func TestALogThatNobodyReadsHoldsNobodyUp(t *testing.T) {
	to := &stuck{let: make(chan struct{})}
	l := newLines(to)
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for range 4 * logBytesMax / len(line) {
		if n, err := l.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	close(to.let)
	l.close()
	kept := strings.Count(to.String(), "x\n")
	if kept == 0 || kept > 2*logBytesMax/len(line) || !strings.Contains(to.String(), "were dropped") {
		t.Errorf("%d lines were kept", kept)
	}
}

func TestALogThatNobodyReadsDoesNotKeepTheProgramFromEnding(t *testing.T) {
	to := &stuck{let: make(chan struct{})}
	l := newLines(to)
	l.last = time.Millisecond
	fmt.Fprintln(l, "x")
	l.close()
	fmt.Fprintln(l, "y")
	close(to.let)
	<-l.done
	if got := to.String(); got != "x\n" {
		t.Errorf("it says %q", got)
	}
}
