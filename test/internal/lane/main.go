// SPDX-License-Identifier: Apache-2.0

// Command lane runs a lane of CI unless its inputs are unchanged since a run that passed.
//
//	lane NAME COMMAND...
//
// The file .ci/passed has a row for each lane: its name, the hash of its inputs, and the
// commit. The command lane writes the row when the lane has passed; the row takes effect in
// other checkouts once it is committed. Inputs are the files that the lane reads and the
// versions of its tools. A single changed byte of an input runs the lane again.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// passedFile has the rows of the lanes, below the root of the repository.
const passedFile = ".ci/passed"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: lane NAME COMMAND...")
		os.Exit(2)
	}
	inputs, ok := lanes[os.Args[1]]
	if !ok {
		fmt.Fprintf(os.Stderr, "lane: no lane is named %s; lanes are in test/internal/lane/inputs.go\n", os.Args[1])
		os.Exit(2)
	}
	err := lane{name: os.Args[1], root: ".", inputs: inputs, out: os.Stdout}.run(ctx, os.Args[2:])
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		os.Exit(max(exit.ExitCode(), 1))
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "lane:", err)
		os.Exit(1)
	}
}

// A lane is a command and its inputs.
type lane struct {
	name   string
	root   string // root of the repository
	inputs inputs
	out    io.Writer // receives the output of the command
}

// run runs the command unless the lane has passed with the present inputs. If it passes and
// the inputs are still the same, run writes the row of the lane.
func (l lane) run(ctx context.Context, command []string) error {
	before, err := l.inputs.hash(ctx, l.root)
	if err != nil {
		return err
	}
	passed, err := os.ReadFile(filepath.Join(l.root, passedFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if commit := passedAt(string(passed), l.name, before); commit != "" {
		fmt.Fprintln(l.out, "skipped: unchanged since", commit)
		return nil
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = l.root, l.out, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return err
	}
	after, err := l.inputs.hash(ctx, l.root)
	if err != nil {
		return err
	}
	if after != before {
		fmt.Fprintf(l.out, "inputs of %s changed while it ran: not recorded\n", l.name)
		return nil
	}
	return os.WriteFile(filepath.Join(l.root, passedFile), []byte(withRow(string(passed), l.name, before, l.commit(ctx))), 0o644)
}

// commit returns the current commit. Its files may differ from those that the lane has read,
// so it is information only.
func (l lane) commit(ctx context.Context) string {
	cmd := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD")
	cmd.Dir = l.root
	head, err := cmd.Output()
	if err != nil {
		return "unknown" // a source archive has no commits
	}
	return strings.TrimSpace(string(head))
}

var rowPattern = regexp.MustCompile(`^([a-z-]+) ([0-9a-f]{64}) (\w+)$`)

// passedAt returns the commit of the row with this name and hash, or "".
func passedAt(rows, name, hash string) string {
	for line := range strings.Lines(rows) {
		if m := rowPattern.FindStringSubmatch(strings.TrimSpace(line)); m != nil && m[1] == name && m[2] == hash {
			return m[3]
		}
	}
	return ""
}

// withRow returns the rows with that of a lane replaced or added.
func withRow(rows, name, hash, commit string) string {
	all := []string{fmt.Sprintf("%s %s %s", name, hash, commit)}
	for line := range strings.Lines(rows) {
		if m := rowPattern.FindStringSubmatch(strings.TrimSpace(line)); m != nil && m[1] != name {
			all = append(all, m[0])
		}
	}
	slices.Sort(all)
	return "# Lanes that passed: name, hash of the inputs, commit. Written by test/internal/lane.\n" + strings.Join(all, "\n") + "\n"
}
