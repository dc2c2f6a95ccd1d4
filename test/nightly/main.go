// SPDX-License-Identifier: Apache-2.0

// Command nightly runs the lanes that CI runs in a short form or not at all. When a
// lane has ended it writes the lane's row into a page. It skips lanes that have passed
// at the same commit, so a run can be interrupted and continued.
//
//	nightly [-page FILE] [-only LANE] [-again]
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/internal/mdsection"
)

// laneTimeout is the maximum duration of a lane.
const laneTimeout = 40 * time.Minute

func main() {
	page := flag.String("page", "docs/benchmarks/nightly.md", "`file` for the rows, between the lines nightly:begin and nightly:end")
	only := flag.String("only", "", "run only this `lane`")
	again := flag.Bool("again", false, "also run lanes that have passed at this commit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	commit, err := currentCommit(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "nightly:", err)
		os.Exit(1)
	}
	n := nightly{commit: commit, page: *page, only: *only, again: *again, lanes: lanes(time.Now().UTC()), out: os.Stdout, now: time.Now, timeout: laneTimeout, logs: "bin/nightly"}
	if err := n.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "nightly:", err)
		os.Exit(1)
	}
}

// nightly runs lanes and writes their rows.
type nightly struct {
	commit, page, only, logs string
	again                    bool
	lanes                    []lane
	timeout                  time.Duration // maximum duration of a lane
	out                      io.Writer
	now                      func() time.Time
}

// lane is a command and how to summarize its output.
type lane struct {
	name    string
	command []string
	// last is a text in the line of the output that becomes the result; empty means the
	// last line.
	last string
}

func (n *nightly) run(ctx context.Context) error {
	rows, err := readRows(n.page)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(n.logs, 0o755); err != nil {
		return err
	}
	var failed []string
	ran := 0
	for _, l := range n.lanes {
		if n.only != "" && n.only != l.name {
			continue
		}
		ran++
		if old := rows.find(l.name); old != nil && old.Passed && old.Commit == n.commit && !strings.HasSuffix(n.commit, "+") && !n.again {
			fmt.Fprintf(n.out, "%s: passed at this commit on %s: %s\n", l.name, old.Date, old.Result)
			continue
		}
		fmt.Fprintf(n.out, "== %s: %s\n", l.name, strings.Join(l.command, " "))
		r := n.runLane(ctx, l)
		if ctx.Err() != nil {
			return errors.New("interrupted; run it again to continue")
		}
		r.Commit = n.commit
		rows.put(r)
		if err := mdsection.Replace(n.page, "nightly", rows.markdown(n.lanes)); err != nil {
			return err
		}
		fmt.Fprintf(n.out, "%s: %s: %s\n", l.name, r.verdict(), r.Result)
		if !r.Passed {
			failed = append(failed, l.name)
		}
	}
	switch {
	case ran == 0:
		return fmt.Errorf("no lane is named %s: want one of %s", n.only, n.names())
	case len(failed) > 0:
		return fmt.Errorf("failed: %s; see %s", strings.Join(failed, ", "), n.logs)
	}
	fmt.Fprintf(n.out, "%d lanes passed at %s\n", ran, n.commit)
	return nil
}

func (n *nightly) names() string {
	var names []string
	for _, l := range n.lanes {
		names = append(names, l.name)
	}
	return strings.Join(names, ", ")
}

// runLane runs the command of a lane. All processes that it started are ended if they
// exceed the timeout.
func (n *nightly) runLane(ctx context.Context, l lane) row {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	started := n.now()
	r := row{Lane: l.name, Command: strings.Join(l.command, " "), Date: started.UTC().Format(time.DateOnly), Machine: machine()}
	var output bytes.Buffer
	log, err := os.Create(filepath.Join(n.logs, l.name+".log"))
	if err != nil {
		r.Result = err.Error()
		return r
	}
	defer log.Close()
	c := exec.CommandContext(ctx, l.command[0], l.command[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
	c.WaitDelay = 10 * time.Second
	c.Stdout = io.MultiWriter(log, &output)
	c.Stderr = c.Stdout
	err = c.Run()
	r.Seconds = int(n.now().Sub(started).Seconds())
	r.Passed = err == nil
	r.Result = summary(output.String(), l.last)
	switch {
	case ctx.Err() != nil:
		r.Result = fmt.Sprintf("not ended after %v: %s", n.timeout, r.Result)
	case err != nil && r.Result == "":
		r.Result = err.Error()
	}
	return r
}

// summary returns the last line that contains last, or the last line that is not empty
// and not of make.
func summary(output, last string) string {
	lines := strings.Split(output, "\n")
	for _, want := range []string{last, ""} {
		for i := len(lines) - 1; i >= 0; i-- {
			line := strings.TrimSpace(lines[i])
			if line != "" && strings.Contains(line, want) && !strings.HasPrefix(line, "make") {
				return line
			}
		}
	}
	return ""
}

// currentCommit returns the commit of the checkout, with a plus sign if files differ
// from it. The page with the rows may differ.
func currentCommit(ctx context.Context) (string, error) {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("git: %w; run it in a checkout", err)
	}
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/benchmarks", ":!docs/PERFORMANCE.md").Output()
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(string(head))
	if len(bytes.TrimSpace(changed)) > 0 {
		commit += "+"
	}
	return commit, nil
}

// machine returns the processor and its number of cores.
func machine() string {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%s, %d cores", model, runtime.NumCPU())
}
