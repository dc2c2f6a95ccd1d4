// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
	"unsafe"
)

// viewer shows what a person sees on a terminal of 80 columns whose lines never leave it.
type viewer struct {
	*testing.T
	master, terminal *os.File
	program          *exec.Cmd
	written          chan []byte
	rows             [][]rune
	row, column      int
	rest             []byte
}

// startChat starts a conversation on a terminal.
func startChat(t *testing.T, args ...string) *viewer {
	t.Helper()
	v := &viewer{T: t, program: programCmd(append([]string{"chat"}, args...)...), rows: make([][]rune, 1), written: make(chan []byte, 1000)}
	v.program.Env = append(v.program.Env, "TERM=xterm")
	v.master, v.terminal = openTerminal(t)
	t.Cleanup(func() { _, _ = v.master.Close(), v.terminal.Close() })
	v.program.Stdin, v.program.Stdout, v.program.Stderr = v.terminal, v.terminal, v.terminal
	if err := v.program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.program.Process.Kill() })
	go func() {
		for {
			b := make([]byte, 4096)
			n, err := v.master.Read(b)
			if err != nil {
				return
			}
			v.written <- b[:n]
		}
	}()
	return v
}

// enter presses keys.
func (v *viewer) enter(keys string) {
	v.Helper()
	if _, err := v.master.WriteString(keys); err != nil {
		v.Fatal(err)
	}
}

// until reads until the last rows are these; the last one is where the cursor is.
func (v *viewer) until(last ...string) {
	v.Helper()
	for limit := time.After(20 * time.Second); !v.shows(last); {
		select {
		case b := <-v.written:
			v.show(b)
		case <-limit:
			v.Fatalf("want %q at the end of the screen:\n%s", last, strings.Join(v.text(), "\n"))
		}
	}
}

// untilCursor reads until the cursor is in a column and that many rows below the last prompt.
func (v *viewer) untilCursor(row, column int) {
	v.Helper()
	for limit := time.After(20 * time.Second); ; {
		prompt := 0
		for i, text := range v.text() {
			if strings.HasPrefix(text, "> ") {
				prompt = i
			}
		}
		if v.row-prompt == row && v.column == column && len(v.rest) == 0 {
			return
		}
		select {
		case b := <-v.written:
			v.show(b)
		case <-limit:
			v.Fatalf("want the cursor in row %d, column %d behind the prompt, got row %d, column %d:\n%s", row, column, v.row-prompt, v.column, strings.Join(v.text(), "\n"))
		}
	}
}

func (v *viewer) text() (all []string) {
	for _, row := range v.rows {
		all = append(all, strings.TrimRight(string(row), " "))
	}
	return all
}

func (v *viewer) shows(last []string) bool {
	all := v.text()[:v.row+1]
	for len(all) > 0 && all[len(all)-1] == "" && last[len(last)-1] != "" {
		all = all[:len(all)-1]
	}
	return len(all) >= len(last) && slices.Equal(all[len(all)-len(last):], last)
}

var sequence = regexp.MustCompile("^\x1b\\[([0-9]*)([A-Za-z])")

// show applies what the program has written.
func (v *viewer) show(b []byte) {
	for v.rest = append(v.rest, b...); len(v.rest) > 0; {
		if v.rest[0] == 0x1b {
			m := sequence.FindSubmatch(v.rest)
			if m == nil {
				return // it is not complete
			}
			n, _ := strconv.Atoi(string(m[1]))
			v.move(m[2][0], max(n, 1))
			v.rest = v.rest[len(m[0]):]
			continue
		}
		if !utf8.FullRune(v.rest) {
			return
		}
		r, n := utf8.DecodeRune(v.rest)
		v.rest = v.rest[n:]
		switch {
		case r == '\r':
			v.column = 0
		case r == '\n':
			v.row++
		default:
			cells := 1
			if r >= 0x1100 {
				cells = 2
			}
			if v.column+cells > 80 {
				v.row, v.column = v.row+1, 0
			}
			v.put(r)
			if v.column++; cells == 2 {
				v.put(-1)
				v.column++
			}
		}
		v.put(0)
	}
}

// put writes a character at the cursor; 0 makes the row exist, and -1 is the second half of a wide one.
func (v *viewer) put(r rune) {
	for len(v.rows) <= v.row {
		v.rows = append(v.rows, nil)
	}
	if r == 0 {
		return
	}
	row := v.rows[v.row]
	for len(row) <= v.column {
		row = append(row, ' ')
	}
	row[v.column] = r
	v.rows[v.row] = row
}

func (v *viewer) move(command byte, n int) {
	switch command {
	case 'A':
		v.row = max(v.row-n, 0)
	case 'B':
		v.row += n
	case 'C':
		v.column = min(v.column+n, 79)
	case 'D':
		v.column = max(min(v.column, 79)-n, 0)
	case 'K', 'J':
		v.rows[v.row] = v.rows[v.row][:min(len(v.rows[v.row]), v.column)]
		if command == 'J' {
			v.rows = v.rows[:v.row+1]
		}
	default:
		v.Errorf("unknown sequence %c", command)
	}
	v.put(0)
}

// wantEnd waits for the end of the program, which leaves the terminal as it was.
func (v *viewer) wantEnd(code int) {
	v.Helper()
	_ = v.program.Wait()
	if got := v.program.ProcessState.ExitCode(); got != code {
		v.Errorf("exit code %d, want %d", got, code)
	}
	if isRaw(v.T, v.terminal) {
		v.Error("the terminal is left in raw mode")
	}
}

// isRaw reports whether a terminal passes on keys at once and does not show them.
func isRaw(t *testing.T, terminal *os.File) bool {
	t.Helper()
	var mode syscall.Termios
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, terminal.Fd(), syscall.TCGETS, uintptr(unsafe.Pointer(&mode))); errno != 0 {
		t.Fatal(errno)
	}
	return mode.Lflag&(syscall.ICANON|syscall.ECHO|syscall.ISIG) != syscall.ICANON|syscall.ECHO|syscall.ISIG || mode.Oflag&syscall.OPOST == 0
}

const (
	keyUp   = "\x1b[A"
	keyLeft = "\x1b[D"
	keyA    = "\x01" // with Ctrl
	keyC    = "\x03"
	keyD    = "\x04"
	keyE    = "\x05"
	keyU    = "\x15"
	keyW    = "\x17"
)

// On a terminal, chat prompts for messages and asks about approvals; /cancel ends a run.
func TestChatOnTerminal(t *testing.T) {
	s := startConcierge(t, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0")
	v := startChat(t, "concierge", "--server", s.url, "--session", "s1")
	v.until("concierge; /help lists the commands, Ctrl-D ends", ">")
	v.enter("say hello\r")
	v.until("> say hello", "hello", ">")
	v.enter("use user.pay {\"amount\": 20}\r")
	v.until("user.pay: pays 20", "{", "\t\"amount\": 20", "}", "approve? [y/n, and a reason]")
	v.enter("/cancel\r")
	v.until(">")
	v.enter("/quit\r")
	v.until("> /quit", "to continue:", "  troupe chat concierge --session s1 --server "+s.url, "")
	v.wantEnd(0)
}

// The line can be edited and earlier ones brought back. Ctrl-C, Ctrl-D, signals and errors give the terminal its
// former mode.
func TestChatEditsLines(t *testing.T) {
	s := startConcierge(t, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0")
	args := []string{"concierge", "--server", s.url, "--session", "s1"}
	v := startChat(t, args...)
	v.until(">")
	if !isRaw(t, v.terminal) {
		t.Error("the terminal is not in raw mode")
	}
	v.enter("y hell" + keyA + "sa" + keyE + "xo" + keyLeft + "\x7f\r")
	v.until("> say hello", "hello", ">")
	v.enter(keyUp + keyW + "bye\r")
	v.until("> say bye", "bye", ">")
	v.enter("junk" + keyU + keyUp + keyUp + "\r")
	v.until("> say hello", "hello", ">")
	v.enter("say 你好")
	v.until("> say 你\uFFFD好\uFFFD")
	v.enter("\x7f\x7f")
	v.until("> say")
	v.enter("们")
	v.until("> say 们\uFFFD")
	v.enter("\r")
	v.until("> say 们\uFFFD", "们\uFFFD", ">")
	v.enter("half a line" + keyC)
	v.wantEnd(exitInterrupted)

	v = startChat(t, args...)
	v.until(">")
	v.enter(keyD)
	v.until("to continue:", "  troupe chat concierge --session s1 --server "+s.url, "")
	v.wantEnd(0)

	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		v = startChat(t, args...)
		v.until(">")
		_ = v.program.Process.Signal(signal)
		v.wantEnd(exitInterrupted)
	}

	v = startChat(t, args...)
	v.until(">")
	if code, _, err := runProgram(t, "sessions", "delete", "s1", "--server", s.url); code != 0 {
		t.Fatal(err)
	}
	v.until("troupe: session s1 was deleted; to begin another:", "  troupe chat concierge --server "+s.url, "")
	v.wantEnd(exitFailed)
}

// The cursor moves over characters of two columns and of none as over others, also in the next row.
func TestChatMovesOverWideCharacters(t *testing.T) {
	s := startConcierge(t, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0")
	v := startChat(t, "concierge", "--server", s.url)
	v.until(">")
	long := strings.Repeat("界", 39) // fills the row behind the prompt
	for _, c := range []struct {
		keys        string
		row, column int    // of the cursor, from the prompt
		then, line  string // further keys, and the line behind the prompt
	}{
		{"你好", 0, 6, "", "你好"},
		{"你好" + keyLeft, 0, 4, "们", "你们好"},
		{"你好" + keyA, 0, 2, "a", "a你好"},
		{"a😀b" + keyLeft + keyLeft, 0, 3, "\x7f", "😀b"},
		{"e\u0301x" + keyLeft, 0, 3, "", "e\u0301x"},
		{long, 1, 0, "", long},
		{long + keyLeft, 0, 78, "", long},
		{"a" + long + keyA, 0, 2, "b", "ba" + long},
		{long + "ab" + keyLeft + keyLeft + keyLeft, 0, 78, "\x7f", long[:len(long)-len("界")] + "ab"},
	} {
		v.enter(c.keys)
		v.untilCursor(c.row, c.column)
		v.enter(c.then + "\r")
		v.until(">") // the answer is below the line
		if text := strings.NewReplacer("\uFFFD", "", "\n", "").Replace(strings.Join(v.text(), "\n")); !strings.Contains(text, "> "+c.line) {
			t.Errorf("%q: want the line %q in\n%s", c.keys+c.then, c.line, strings.Join(v.text(), "\n"))
		}
	}
	v.enter(keyD)
	v.wantEnd(0)
}

// An answer that arrives while a line is edited is shown above the line, and both are whole.
func TestChatShowsAnswerAboveLine(t *testing.T) {
	s := startConcierge(t, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0", "--pace", "20ms")
	v := startChat(t, "concierge", "--server", s.url)
	v.until(">")
	words := strings.Repeat("eight888 ", 8) + "eighty80 " + strings.Repeat("wide 世界 ", 9) + "end"
	v.enter("say " + words + "\r")
	v.enter("say qu")
	v.until("> say qu")
	v.enter("eued")
	var rows []string
	for text := []rune(words); len(text) > 0; {
		var row []rune
		for columns := 0; len(text) > 0; text = text[1:] {
			wide := text[0] >= 0x1100
			if columns++; wide {
				columns++
			}
			if columns > 80 {
				break
			}
			if row = append(row, text[0]); wide {
				row = append(row, -1)
			}
		}
		rows = append(rows, strings.TrimRight(string(row), " "))
	}
	v.until(append(rows, "> say queued")...)
	v.enter("\r")
	v.until("> say queued", "queued", ">")
	v.enter(keyD)
	v.wantEnd(0)
}

// A panic in a goroutine of the screen leaves the terminal readable.
func TestPanicRestoresTerminal(t *testing.T) {
	master, terminal := openTerminal(t)
	defer func() { _, _ = master.Close(), terminal.Close() }()
	s, err := openScreen(terminal, terminal, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if !isRaw(t, terminal) {
		t.Fatal("the terminal is not in raw mode")
	}
	func() {
		defer func() {
			if p := recover(); p != "a bug" || isRaw(t, terminal) {
				t.Errorf("panic %v, raw: %v", p, isRaw(t, terminal))
			}
		}()
		defer s.guard()
		panic("a bug")
	}()
}
