// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// runOnTerminal runs the program with a pseudo-terminal as its output. It returns
// the exit code and all bytes that the terminal received.
func runOnTerminal(t *testing.T, args ...string) (code int, screen string) {
	t.Helper()
	c := programCmd(args...)
	master := startOnTerminal(t, c)
	defer master.Close()
	b, err := io.ReadAll(master)
	if err != nil && !errors.Is(err, syscall.EIO) { // Linux reports the end as EIO
		t.Fatal(err)
	}
	_ = c.Wait()
	return c.ProcessState.ExitCode(), strings.ReplaceAll(string(b), "\r\n", "\n") // the terminal adds the \r
}

// startOnTerminal starts a program on a new pseudo-terminal and returns the other end.
func startOnTerminal(t *testing.T, c *exec.Cmd) *os.File {
	t.Helper()
	master, terminal := openTerminal(t)
	defer terminal.Close()
	c.Stdin, c.Stdout, c.Stderr = terminal, terminal, terminal
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return master
}

// openTerminal returns both ends of a new pseudo-terminal.
func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	var number, unlocked int32
	for request, arg := range map[uintptr]*int32{syscall.TIOCGPTN: &number, syscall.TIOCSPTLCK: &unlocked} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), request, uintptr(unsafe.Pointer(arg))); errno != 0 {
			t.Fatal(errno)
		}
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, terminal
}

// Escape sequences that an agent repeats reach a terminal only in escaped form, and a
// file unchanged.
func TestAnswersCannotControlTerminal(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	s.putAgent(`{"name":"helper"}`)
	// clear the screen, fill the clipboard, overwrite the line, C1, bidi, zero width
	const hostile = "a\x1b[2Jb\x1b]52;c;aGk=\x07c\rd\u009be\u202ef\u200bg"
	const shown = `a\u001b[2Jb\u001b]52;c;aGk=\u0007c\u000dd\u009be\u202ef\u200bg`
	for _, args := range [][]string{
		{"call", "helper", "say " + hostile, "--stream"},
		{"call", "helper", "say " + hostile, "--no-stream"},
		{"call", "helper", "say " + hostile, "--tree"},
	} {
		if code, screen := runOnTerminal(t, append(args, "--server", s.url)...); code != 0 || !strings.Contains(screen, shown) || strings.ContainsAny(screen, "\x1b\a\r\u009b\u202e\u200b") {
			t.Errorf("%.40q: exit code %d, screen %q", args, code, screen)
		}
		if code, out, _ := runProgram(t, append(args, "--server", s.url)...); code != 0 || !strings.HasPrefix(out, hostile+"\n") {
			t.Errorf("%.40q: exit code %d, file %q", args, code, out)
		}
	}
	_, reply := s.call("helper", `say a\u001b[2Jb`)
	for _, args := range [][]string{{"runs", "show", reply.Run}, {"runs", "events", reply.Run}, {"runs", "events", reply.Run, "--json"}, {"runs", "list"}, {"agents", "show", "helper"}} {
		if code, screen := runOnTerminal(t, append(args, "--server", s.url)...); code != 0 || strings.Contains(screen, "\x1b") {
			t.Errorf("%q: exit code %d, screen %q", args, code, screen)
		}
	}
	if code, screen := runOnTerminal(t, "call", "no\x1b[2J\xffbody", "hi", "--server", s.url); code != 1 || strings.ContainsAny(screen, "\x1b") || !strings.Contains(screen, "troupe: ") {
		t.Errorf("error: exit code %d, screen %q", code, screen)
	}
}

// The log of a server contains names and errors from elsewhere.
func TestServerLogCannotControlTerminal(t *testing.T) {
	files := writeFiles(t, ">> a.toml\nname = \"a\"\n\"\u009b2J\u202e\" = 1")
	code, screen := runOnTerminal(t, "serve", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--agents", files, "--node", "n\u202e")
	if code != exitFailed || strings.ContainsAny(screen, "\u009b\u202e") || !strings.Contains(screen, `\u202e`) {
		t.Errorf("exit code %d, screen %q", code, screen)
	}
}

func TestStatusIsColouredOnTerminal(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	s.putAgent(`{"name":"helper"}`)
	s.call("helper", "say hi")
	c := programCmd("runs", "list", "--server", s.url)
	c.Env = append(c.Env, "NO_COLOR=")
	master := startOnTerminal(t, c)
	defer master.Close()
	screen, _ := io.ReadAll(master)
	if err := c.Wait(); err != nil || !strings.Contains(string(screen), "  \x1b[32mDONE\x1b[0m: hi\r\n") {
		t.Errorf("%v, screen %q", err, screen)
	}
}

// Lists have the names of their columns on a terminal, and only there.
func TestListsHaveTitlesOnTerminal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir)
	s.putAgent(`{"name":"helper"}`)
	s.call("helper", "say hi")
	if code, _, err := runProgram(t, "keys", "create", "--name", "k", "--data", dir); code != 0 {
		t.Fatal(err)
	}
	for title, args := range map[string][]string{
		"RUN CREATED AGE ACTOR TOKENS STATUS":        {"runs", "list", "--server", s.url},
		"SESSION  LAST CHANGE  AGENTS  USAGE  TITLE": {"sessions", "list", "--server", s.url},
		"KEY  SCOPES  CREATED  EXPIRY  USER  NAME":   {"keys", "list", "--data", dir},
	} {
		_, screen := runOnTerminal(t, args...)
		if first, _, _ := strings.Cut(screen, "\n"); strings.Join(strings.Fields(first), " ") != strings.Join(strings.Fields(title), " ") || strings.Count(screen, "\n") != 2 {
			t.Errorf("%v on a terminal:\n%s\nwant the titles %s", args, screen, title)
		}
		if code, out, _ := runProgram(t, args...); code != 0 || strings.Count(out, "\n") != 1 {
			t.Errorf("%v in a pipe: exit code %d\n%s", args, code, out)
		}
	}
}

// On a terminal, approvals watch shows the arguments and asks about each approval.
func TestWatchAsksOnTerminal(t *testing.T) {
	p := startPayments(t, "")
	ids := []string{p.pay("payer", "1"), p.pay("payer", "2"), p.pay("payer", "3")}
	c := programCmd("approvals", "watch", "--bell", "--server", p.server.url)
	master := startOnTerminal(t, c)
	defer master.Close()
	screen, chunk := "", make([]byte, 4096)
	// read reads until the screen contains one of the texts, which it returns with the screen
	// before it.
	read := func(texts ...string) (found, before string) {
		t.Helper()
		for {
			at := len(screen)
			for _, text := range texts {
				if i := strings.Index(screen, text); i >= 0 && i < at {
					found, at = text, i
				}
			}
			if found != "" {
				before, screen = screen[:at], screen[at+len(found):]
				return found, before
			}
			n, err := master.Read(chunk)
			if err != nil {
				t.Fatalf("%v; want one of %q on the screen %q", err, texts, screen)
			}
			screen += string(chunk[:n])
		}
	}
	// answer types an answer until it counts: one that comes too early does not.
	answer := func(text, sign string) {
		t.Helper()
		for {
			read("[y/n/s] ")
			if _, err := io.WriteString(master, text+"\n"); err != nil {
				t.Fatal(err)
			}
			if found, _ := read(sign, "too early"); found == sign {
				return
			}
		}
	}
	if _, before := read("approve payments.transfer?"); strings.Count(before, "\a") != 3 || !strings.Contains(before, `"amount": 1`) || !strings.Contains(before, "agent payer, session ") {
		t.Errorf("screen %q", before)
	}
	answer("y", "approved payments.transfer: pays 1 to anna")
	answer("s", `"amount": 3`)
	answer("n", "rejected payments.transfer: pays 3 to anna")
	for i, want := range []string{"APPROVED", "PENDING", "REJECTED"} {
		p.run(0, []string{"status     " + want}, nil, "approvals", "show", ids[i])
	}
	p.run(0, []string{"approved"}, nil, "approvals", "approve", ids[1])
	read(ids[1] + "  payments.transfer  APPROVED")
	_ = c.Process.Signal(syscall.SIGINT)
	if _ = c.Wait(); c.ProcessState.ExitCode() != exitInterrupted {
		t.Errorf("exit code %d", c.ProcessState.ExitCode())
	}
}
