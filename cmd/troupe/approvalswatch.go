// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/ingress"
)

// ApprovalsWatchCmd prints approvals as they come and go.
type ApprovalsWatchCmd struct {
	UserFlags
	Ask  *bool `negatable:"" help:"Ask for a decision about each approval; the default on a terminal."`
	Bell bool  `help:"Ring the bell of the terminal for each new approval."`
}

// Help returns the text shown below the flags.
func (ApprovalsWatchCmd) Help() string {
	return `Prints each pending approval, and later how it ended, until it is interrupted. On a terminal it shows the arguments
of each and asks: y approves, n rejects, s leaves it pending. An answer typed before its question could be read is
ignored. A server that does not answer is asked again, after up to 15 seconds.

Examples:
  troupe approvals watch
  troupe approvals watch --bell --no-ask --user '*'`
}

// Delays between two requests for the list: normally, and at most after failures.
const (
	watchInterval    = time.Second
	watchIntervalMax = 15 * time.Second
)

// Time after a question during which answers are ignored: they were typed in advance, or for a
// question that was withdrawn in the meantime.
const (
	answerDelay          = 300 * time.Millisecond
	answerDelayWithdrawn = 3 * time.Second
)

// watch is the state of ApprovalsWatchCmd.
type watch struct {
	streams
	client
	bell    bool
	pending []approvalView
	answers <-chan string // lines typed; nil: there are no questions
	input   *typedLines   // of answers
	asked   *approvalView // approval of the open question
	from    time.Time     // earlier answers are ignored
	skipped map[string]bool
}

// Run executes the command. It ends with the exit code of an interruption.
func (c *ApprovalsWatchCmd) Run(s streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c.ctx = ctx
	w := watch{streams: s, client: c.client(), bell: c.Bell, skipped: map[string]bool{}}
	if c.Ask == nil && isTerminal(os.Stdin) && isTerminal(s.out) || c.Ask != nil && *c.Ask {
		w.input = readLines(os.Stdin)
		w.answers = w.input.lines
	}
	if err := retryStarting(w.poll); ctx.Err() != nil {
		return exitCode(exitInterrupted)
	} else if err != nil { // such as a key without permission
		return err
	}
	fmt.Fprintf(s.err, "%d pending; interrupt to stop\n", len(w.pending))
	delay := watchInterval
	for {
		w.ask()
		select {
		case <-ctx.Done():
			return exitCode(exitInterrupted)
		case line, ok := <-w.answers:
			if !ok {
				return w.input.err
			}
			w.answer(strings.TrimSpace(line))
		case <-time.After(delay):
			err := w.poll()
			var p *problem
			switch {
			case writeError(w.out) != nil:
				return writeError(w.out)
			case ctx.Err() != nil:
				return exitCode(exitInterrupted)
			case err == nil:
				delay = watchInterval
			case errors.As(err, &p) && p.status < 500 && p.status != http.StatusTooManyRequests:
				return err
			default:
				if delay == watchInterval {
					fmt.Fprintln(s.err, "troupe:", err)
				}
				delay = min(2*delay, watchIntervalMax)
			}
		}
	}
}

// lineBytesMax is the maximum size of a line in bytes: no server accepts a longer message.
const lineBytesMax = ingress.SocketMessageBytesMax

// typedLines are the lines of the standard input.
type typedLines struct {
	lines chan string // closed at the end
	err   error       // of reading, once lines is closed
}

// readLines returns the lines of a reader.
func readLines(r io.Reader) *typedLines {
	all := &typedLines{lines: make(chan string)}
	go func() {
		defer close(all.lines)
		in := bufio.NewScanner(r)
		in.Buffer(nil, lineBytesMax+1) // with the end of the line
		for in.Scan() {
			all.lines <- in.Text()
		}
		switch err := in.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			all.err = fmt.Errorf("standard input: a line has more than %d bytes, which no server accepts; split it", lineBytesMax)
		case err != nil:
			all.err = fmt.Errorf("standard input: %w", err)
		}
	}()
	return all
}

// poll reads the list and prints the changes.
func (w *watch) poll() error {
	_, all, err := w.approvals()
	if err != nil {
		return err
	}
	has := func(list []approvalView, id string) bool {
		return slices.ContainsFunc(list, func(a approvalView) bool { return a.ID == id })
	}
	for i := range w.pending {
		if a := &w.pending[i]; !has(all, a.ID) {
			w.printEnd(a)
		}
	}
	for i := range all {
		if a := &all[i]; !has(w.pending, a.ID) {
			fmt.Fprintf(w.out, "%s  %s  %s%s  agent %s  expires in %s\n", a.ID, a.what(), w.userOf(a), oneLine(a.Summary), a.Agent, left(time.Now(), a.Expires))
			w.ring()
		}
	}
	w.pending = all
	return nil
}

// of returns a client for requests about an approval.
func (w *watch) of(a *approvalView) client {
	c := w.client
	c.namespace = a.namespace
	return c
}

// userOf returns a column with the user of an approval if those of all users are watched.
func (w *watch) userOf(a *approvalView) string {
	if w.namespace != ingress.EveryUser {
		return ""
	}
	return oneLine(a.User) + "  "
}

// ring rings the bell.
func (w *watch) ring() {
	if w.bell {
		fmt.Fprint(controls(w.out), "\a")
	}
}

// printEnd prints how an approval ended that is no longer pending.
func (w *watch) printEnd(a *approvalView) {
	delete(w.skipped, a.ID)
	text := "no longer pending"
	if _, now, err := w.of(a).approval(a.ID); err == nil {
		text = now.decision()
	}
	fmt.Fprintf(w.out, "%s  %s  %s%s\n", a.ID, a.what(), w.userOf(a), text)
	if w.asked != nil && w.asked.ID == a.ID {
		w.asked, w.from = nil, time.Now().Add(answerDelayWithdrawn)
		fmt.Fprintln(w.err, "the question above needs no answer")
	}
}

// ask asks about the oldest approval that was not skipped, unless a question is open.
func (w *watch) ask() {
	if w.answers == nil || w.asked != nil {
		return
	}
	for i := range w.pending {
		if a := w.pending[i]; !w.skipped[a.ID] {
			w.asked = &a
			if from := time.Now().Add(answerDelay); from.After(w.from) {
				w.from = from
			}
			fmt.Fprintf(w.err, "\n%s  %s\nagent %s, session %s, run %s", a.what(), oneLine(a.Summary), a.Agent, a.Session, a.Run)
			if a.User != "" {
				fmt.Fprintf(w.err, ", for %s", oneLine(a.User))
			}
			fmt.Fprintln(w.err)
			if err := printArgs(w.err, a.Args); err != nil {
				fmt.Fprintln(w.err, err)
			}
			w.prompt()
			return
		}
	}
}

func (w *watch) prompt() { fmt.Fprintf(w.err, "approve %s? [y/n/s] ", w.asked.what()) }

// answer handles a line that was typed.
func (w *watch) answer(line string) {
	if w.asked == nil {
		return
	}
	decision := ""
	switch {
	case time.Now().Before(w.from):
		fmt.Fprintln(w.err, "typed too early to be an answer")
	case line == "y" || line == "yes":
		decision = "approve"
	case line == "n" || line == "no":
		decision = "reject"
	case line == "s" || line == "skip":
		w.skipped[w.asked.ID] = true
		w.asked = nil
		return
	}
	if decision == "" {
		w.prompt()
		return
	}
	id, to := w.asked.ID, w.of(w.asked)
	w.asked = nil
	_, a, err := to.decide(id, decision, "", nil)
	if err == nil {
		err = a.printDecision(w.out)
		w.pending = slices.DeleteFunc(w.pending, func(one approvalView) bool { return one.ID == id })
	}
	if err != nil {
		fmt.Fprintln(w.err, "troupe:", err)
		var p *problem
		w.skipped[id] = errors.As(err, &p) && p.status < 500 // otherwise the question is repeated
	}
}
