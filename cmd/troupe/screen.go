// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
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
// The terminal of x/term edits the line: it handles keys, and its drawing is not shown, because it takes each
// character for one column wide. The screen draws the line itself.
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
	echo     []byte // drawn by terminal since the last call of readEcho
	prompt   string
	line     []rune // the edited line
	position int    // of the cursor in line
	row      int    // of the cursor, below that in which prompt begins
	reading  bool   // the line is shown
	drawn    []byte // not written yet
	columns  int    // of the terminal
	column   int    // number of columns that the last line of output takes if it has no line feed yet
	unread   []byte // keys that the terminal did not take yet
	closed   bool
}

// openScreen puts a terminal in raw mode. Ctrl-C calls interrupt.
func openScreen(in, out *os.File, interrupt func()) (*screen, error) {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, err
	}
	s := &screen{in: in, out: out, before: before, keys: make(chan []byte, screenKeys), interrupt: interrupt}
	s.terminal = term.NewTerminal(s.device(), echoPrompt)
	s.terminal.History = new(enteredLines)
	_ = s.terminal.SetSize(echoColumns, 1)
	s.resize()
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
		s.closed, s.reading = true, false
		s.draw(nil)
		_ = s.flush()
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
				s.endEdit(line)
				s.column, err = 0, nil // a cut line of output is continued on a new one
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
		d.readEcho()
		d.reading = true
		d.draw(nil)
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
	d.unread = d.unread[n:]
	return n, nil
}

// Write collects the drawing of the terminal for readEcho.
func (d screenDevice) Write(p []byte) (int, error) {
	d.echo = append(d.echo, p...)
	return len(p), nil
}

// The terminal draws one row with a prompt of one character, so its cursor is never in column 0, where
// it draws nothing.
const (
	echoPrompt  = ">"
	echoColumns = 1 << 20
)

// echoBack matches the movement of the cursor from the end of the line.
var echoBack = regexp.MustCompile("\x1b\\[([0-9]*)D$")

// readEcho sets the edited line and the position of the cursor. Only a drawing of the terminal tells them.
func (s *screen) readEcho() {
	if bytes.Contains(s.echo, []byte("\x1b[2J")) { // Ctrl-L
		s.drawn, s.row = append(s.drawn, "\x1b[2J\x1b[H"...), 0
	}
	s.echo = s.echo[:0]
	_, _ = s.terminal.Write(nil)
	_, text, _ := bytes.Cut(s.echo, []byte("\x1b[K"+echoPrompt))
	back := 0
	if m := echoBack.FindSubmatch(text); m != nil {
		text = text[:len(text)-len(m[0])]
		if back = 1; len(m[1]) > 0 {
			back, _ = strconv.Atoi(string(m[1]))
		}
	}
	s.setLine(string(text))
	s.position = max(len(s.line)-back, 0)
	s.echo = s.echo[:0]
}

// setLine sets the edited line with the cursor behind it. A control character, as a paste may have,
// is shown as another one.
func (s *screen) setLine(text string) {
	s.line = []rune(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, text))
	s.position = len(s.line)
}

// endEdit leaves an entered line above the output that follows.
func (s *screen) endEdit(line string) {
	s.setLine(line)
	s.echo, s.reading = s.echo[:0], true
	s.draw(nil)
	s.drawn = append(s.drawn, "\r\n"...)
	s.row, s.reading = 0, false
}

// flush writes what is drawn.
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
	columns, _, err := term.GetSize(int(s.out.Fd()))
	if err != nil || columns <= 0 {
		columns = screenColumns
	}
	if columns == s.columns {
		return
	}
	s.columns = columns
	if s.reading { // terminals keep long lines whole
		s.row, _ = s.place(s.prompt + string(s.line[:s.position]))
	}
}

// draw clears the edited line, writes bytes and draws the line again.
func (s *screen) draw(p []byte) {
	b := s.drawn
	if s.row > 0 {
		b = fmt.Appendf(b, "\x1b[%dA", s.row)
	}
	b = append(b, "\r\x1b[J"...)
	b = append(b, bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))...)
	if s.row = 0; s.reading {
		text := s.prompt + string(s.line)
		b = append(b, text...)
		endRow, endColumn := s.place(text)
		if endColumn == 0 && endRow > 0 { // a terminal begins the next row with the next character
			b = append(b, "\r\n"...)
		}
		row, column := s.place(s.prompt + string(s.line[:s.position]))
		if row < endRow {
			b = fmt.Appendf(b, "\x1b[%dA", endRow-row)
		}
		if row < endRow || column < endColumn {
			b = append(b, '\r')
			if column > 0 {
				b = fmt.Appendf(b, "\x1b[%dC", column)
			}
		}
		s.row = row
	}
	s.drawn = b
}

// place returns the place behind a text that begins a row.
func (s *screen) place(text string) (row, column int) {
	for _, r := range text {
		n := cells(r)
		if column+n > s.columns {
			row, column = row+1, 0
		}
		column += n
	}
	if column >= s.columns {
		row, column = row+1, 0
	}
	return row, column
}

// setPrompt sets the text before the edited line.
func (s *screen) setPrompt(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text == s.prompt || s.closed {
		return
	}
	s.resize()
	s.prompt = text
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
	switch r {
	case '\n':
		s.column = 0
		return
	case '\t':
		s.column = min(s.column/8*8+8, max(s.columns-1, 1))
		return
	}
	n := cells(r)
	if s.column+n > s.columns { // in the next row
		s.column = 0
	}
	s.column += n
}

// cells returns the number of columns of a character, as terminals count them.
func cells(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
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
