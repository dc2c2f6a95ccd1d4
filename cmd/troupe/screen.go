// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
	"golang.org/x/text/width"
)

// Bounds of a screen.
const (
	screenColumns = 80  // of a terminal that does not know its width
	screenHistory = 100 // entered lines that the arrow keys bring back
	screenKeys    = 64  // chunks of keys that wait while no line is read
)

// Keys that x/term does not handle, or not as a terminal does outside raw mode.
const keyInterrupt = 3 // Ctrl-C

// screen is a terminal in raw mode with a line that the person edits, below all output. The line is
// cleared for output and drawn again. Output MUST be written to the screen only, until close.
//
// mu is a monitor around the terminal: keys are handled between two calls of Read, and output is
// written while Read waits for keys.
type screen struct {
	in, out *os.File
	before  *term.State
	keys    chan []byte // read from in, closed at its end
	failed  error       // of reading, once keys is closed

	interrupt func()    // Ctrl-C was pressed
	restored  sync.Once // the mode of the terminal

	mu       sync.Mutex
	terminal *term.Terminal
	prompt   string
	drawn    []byte // by terminal, not written yet
	columns  int    // of the terminal
	column   int    // behind the last line of output, which has no line feed yet; columns: it fills its row
	unread   []byte // keys that the terminal did not take yet
	wide     bool   // the edited line may have characters that are not one column wide
	closed   bool
}

// openScreen puts a terminal in raw mode. Ctrl-C calls interrupt.
func openScreen(in, out *os.File, interrupt func()) (*screen, error) {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, err
	}
	s := &screen{in: in, out: out, before: before, keys: make(chan []byte, screenKeys), interrupt: interrupt}
	s.terminal = term.NewTerminal(s.device(), "")
	s.terminal.History = new(enteredLines)
	go s.readKeys()
	return s, nil
}

// restore gives the terminal its former mode. It takes no lock: a panic may be under way.
func (s *screen) restore() {
	s.restored.Do(func() { _ = term.Restore(int(s.in.Fd()), s.before) })
}

// guard is deferred by each goroutine of the screen: a panic ends the process without
// the deferred calls of others, and its report needs the former mode.
func (s *screen) guard() {
	if s == nil {
		return
	}
	if p := recover(); p != nil {
		s.restore()
		panic(p)
	}
}

// close clears the line and restores the terminal.
func (s *screen) close() {
	defer s.restore()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		_, _ = s.out.WriteString("\r\x1b[K")
	}
}

// read begins to read lines with a prompt. They end with Ctrl-D on an empty line.
func (s *screen) read(prompt string) *typedLines {
	s.setPrompt(prompt)
	all := &typedLines{lines: make(chan string)}
	go func() {
		defer s.guard()
		defer close(all.lines)
		for {
			s.mu.Lock()
			line, err := s.terminal.ReadLine()
			if err == nil || errors.Is(err, term.ErrPasteIndicator) {
				s.column, s.wide, err = 0, false, nil // a cut line of output is continued on a new one
			}
			_ = s.flush()
			s.mu.Unlock()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					all.err = fmt.Errorf("standard input: %w", err)
				}
				return
			}
			all.lines <- line
		}
	}()
	return all
}

// readKeys passes the typed keys on. Ctrl-C counts also while no line is read.
func (s *screen) readKeys() {
	defer s.guard()
	defer close(s.keys)
	for {
		b := make([]byte, 4096)
		n, err := s.in.Read(b)
		for _, key := range b[:n] {
			if key == keyInterrupt {
				s.interrupt()
				return
			}
		}
		if n > 0 {
			s.keys <- b[:n]
		}
		if err != nil {
			s.failed = err
			return
		}
	}
}

// screenDevice is the device of the terminal of a screen.
type screenDevice struct{ *screen }

func (s *screen) device() io.ReadWriter { return screenDevice{s} }

// Read returns keys. While it waits for them, output can be written.
func (d screenDevice) Read(p []byte) (int, error) {
	if len(d.unread) == 0 {
		if d.wide {
			d.draw(nil) // the terminal counts each character as one column
		}
		_ = d.flush()
		d.mu.Unlock()
		keys, open := <-d.keys
		d.mu.Lock()
		if !open && d.failed == nil {
			return 0, io.EOF
		} else if !open {
			return 0, d.failed
		}
		d.unread = keys
		d.resize()
	}
	n := copy(p, d.unread)
	for _, b := range d.unread[:n] {
		d.wide = d.wide || b >= utf8.RuneSelf
	}
	d.unread = d.unread[n:]
	return n, nil
}

// Write collects what the terminal draws, so that the screen is never seen half drawn.
func (d screenDevice) Write(p []byte) (int, error) {
	d.drawn = append(d.drawn, p...)
	return len(p), nil
}

// flush writes what the terminal has drawn.
func (s *screen) flush() error {
	b := s.drawn
	s.drawn = s.drawn[:0]
	if len(b) == 0 {
		return nil
	}
	_, err := s.out.Write(b)
	return err
}

// resize adapts to the size of the terminal.
func (s *screen) resize() {
	columns, rows, err := term.GetSize(int(s.out.Fd()))
	if err != nil || columns <= 0 {
		columns, rows = screenColumns, 24
	}
	if columns != s.columns {
		s.columns = columns
		_ = s.terminal.SetSize(columns, rows)
	}
}

// draw clears the edited line, writes bytes and draws the line again.
func (s *screen) draw(p []byte) {
	s.drawn = append(s.drawn, "\r\x1b[J"...) // the line may be wider than the terminal counts, or continue below the cursor
	_, _ = s.terminal.Write(p)               // to drawn
}

// setPrompt sets the text before the edited line.
func (s *screen) setPrompt(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text == s.prompt || s.closed {
		return
	}
	s.prompt = text
	s.terminal.SetPrompt(text)
	s.resize()
	s.draw(nil)
	_ = s.flush()
}

// Write writes output above the edited line. Its text MUST be harmless: see output. The next output
// continues its last line, unless a line was entered in between.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if s.closed {
		return s.out.Write(p)
	}
	s.resize()
	var b []byte
	if s.column > 0 && s.column < s.columns {
		b = fmt.Appendf(b, "\x1b[A\x1b[%dC", s.column)
	} else {
		s.column = 0
	}
	b = append(b, p...)
	for text := p; len(text) > 0; {
		r, n := utf8.DecodeRune(text)
		s.advance(r)
		text = text[n:]
	}
	if s.column > 0 {
		b = append(b, '\n')
	}
	s.draw(b)
	if err := s.flush(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// endLine lets the next output begin a new line.
func (s *screen) endLine() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.column = 0 // the edited line is below the output anyway
}

// advance moves the column behind a character.
func (s *screen) advance(r rune) {
	cells := 1
	switch {
	case r == '\n':
		s.column = 0
		return
	case r == '\t':
		s.column = min(s.column/8*8+8, max(s.columns-1, 1))
		return
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return
	}
	if kind := width.LookupRune(r).Kind(); kind == width.EastAsianWide || kind == width.EastAsianFullwidth {
		cells = 2
	}
	if s.column+cells > s.columns { // in the next row
		s.column = 0
	}
	s.column += cells
}

// enteredLines is the history of a screen, the oldest line first. It has no empty lines, and no line
// twice in a row.
type enteredLines []string

// Add implements term.History.
func (h *enteredLines) Add(line string) {
	if line == "" || len(*h) > 0 && (*h)[len(*h)-1] == line {
		return
	}
	*h = append((*h)[max(0, len(*h)-screenHistory+1):], line)
}

// Len implements term.History.
func (h *enteredLines) Len() int { return len(*h) }

// At implements term.History: 0 is the last line.
func (h *enteredLines) At(i int) string { return (*h)[len(*h)-1-i] }
