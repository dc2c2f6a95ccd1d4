// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/troupe-run/troupe/actor"
)

// output is the writer of everything that a command prints. Answers, errors and log
// lines contain words of agents and of their models. On a terminal, output escapes
// each character that could control it or hide text, so that these words can only be
// read. Other files receive the bytes unchanged.
type output struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	cut      []byte // start of a character whose remaining bytes are in the next write
	previous rune   // last character written
	failed   error  // first error of w
}

// write writes to the file and keeps its first error: most commands print several lines, and run
// reports at their end that some were lost.
func (o *output) write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if o.failed == nil {
		o.failed = err
	}
	return n, err
}

// err returns the first error of writing.
func (o *output) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// writeError returns the first error of writing to the output of a command.
func writeError(w io.Writer) error {
	if o, ok := w.(*output); ok {
		return o.err()
	}
	return nil
}

// newOutput returns the output that writes to w.
func newOutput(w io.Writer) *output {
	if o, ok := w.(*output); ok {
		return o
	}
	return &output{w: w, terminal: isTerminal(w)}
}

// Write escapes p on a terminal. A character may be cut over two writes.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.terminal {
		return o.write(p)
	}
	b := append(o.cut, p...)
	o.cut = nil
	var escaped []byte
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == utf8.RuneError && n == 1 && !utf8.FullRune(b):
			o.cut = b
			b = nil
			continue
		case r == utf8.RuneError && n == 1:
			r = 0
			escaped = fmt.Appendf(escaped, `\x%02x`, b[0])
		case o.harmless(r):
			escaped = append(escaped, b[:n]...)
		case r <= 0xffff:
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
		default: // as in JSON, so that JSON printed here stays JSON
			high, low := utf16.EncodeRune(r)
			escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, high, low)
		}
		o.previous, b = r, b[n:]
	}
	if _, err := o.write(escaped); err != nil {
		return 0, err
	}
	return len(p), nil
}

// harmless reports whether a terminal may receive the character.
func (o *output) harmless(r rune) bool {
	return r == '\n' || r == '\t' || actor.IsShown(o.previous, r)
}

// flush writes a cut character at the end of the output. It does not wait for a
// write that is blocked.
func (o *output) flush() {
	if !o.mu.TryLock() {
		return
	}
	defer o.mu.Unlock()
	o.writeCut()
}

func (o *output) writeCut() {
	for _, b := range o.cut {
		_, _ = o.write(fmt.Appendf(nil, `\x%02x`, b))
	}
	o.cut = nil
}

// controls returns a writer for the terminal sequences of this program: colours and
// progress lines. It MUST NOT receive text from elsewhere.
func controls(w io.Writer) io.Writer {
	if o, ok := w.(*output); ok {
		return controlWriter{o}
	}
	return w
}

type controlWriter struct{ *output }

func (c controlWriter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeCut()
	return c.write(p)
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	switch w := w.(type) {
	case *output:
		return w.terminal
	case *os.File:
		return term.IsTerminal(int(w.Fd())) // a character device such as /dev/null is none
	}
	return false
}

// terminalFile returns the terminal that a command writes to, or nil.
func terminalFile(w io.Writer) *os.File {
	if o, ok := w.(*output); ok {
		w = o.w
	}
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		return f
	}
	return nil
}

// writeStatus writes the status of a run, on a terminal in colour unless NO_COLOR is
// set.
func writeStatus(w io.Writer, status string) {
	before, reset := "", ""
	if isTerminal(w) && os.Getenv("NO_COLOR") == "" {
		before, reset = "\x1b[33m", "\x1b[0m"
		switch status {
		case "DONE":
			before = "\x1b[32m"
		case "FAILED", "CANCELLED":
			before = "\x1b[31m"
		}
	}
	fmt.Fprint(controls(w), before)
	fmt.Fprint(w, status)
	fmt.Fprint(controls(w), reset)
}
