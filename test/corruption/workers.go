// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// trialTimeout is the maximum duration of one trial.
const trialTimeout = 30 * time.Second

// runWorker is the worker process. It reads damages from standard input, tries
// them, and writes their verdicts.
func runWorker(dir string, trust bool) int {
	scratch, err := os.MkdirTemp(dir, "worker")
	if err != nil {
		fmt.Fprintln(os.Stderr, "corruption:", err)
		return 2
	}
	defer os.RemoveAll(scratch)
	h, err := newHarness(dir, scratch, trust)
	if err != nil {
		fmt.Fprintln(os.Stderr, "corruption:", err)
		return 2
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var d damage
		if err := in.Decode(&d); errors.Is(err, io.EOF) {
			return 0
		} else if err != nil {
			fmt.Fprintln(os.Stderr, "corruption:", err)
			return 2
		}
		v, err := h.try(d)
		if err == nil {
			err = out.Encode(v)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "corruption:", err)
			return 2
		}
	}
}

// tryAll tries all damages in worker processes and reports each verdict.
func tryAll(ctx context.Context, dir string, trust bool, all []damage, report func(damage, verdict), stderr io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan damage)
	go func() {
		defer close(next)
		for _, d := range all {
			select {
			case next <- d:
			case <-ctx.Done():
				return
			}
		}
	}()
	var mu sync.Mutex
	var workers sync.WaitGroup
	tried := 0
	for range max(1, min(2, runtime.NumCPU())) {
		workers.Go(func() {
			w := &worker{dir: dir, trust: trust}
			defer w.stop()
			for d := range next {
				v, err := w.try(ctx, d)
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				report(d, v)
				if tried++; isTerminal(stderr) {
					fmt.Fprintf(stderr, "\r%d of %d damages ", tried, len(all))
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if isTerminal(stderr) {
		fmt.Fprintln(stderr)
	}
	return context.Cause(ctx)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// worker is one worker process. It is restarted after a damage that made it exit.
type worker struct {
	dir   string
	trust bool

	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *bytes.Buffer
}

func (w *worker) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"-worker", w.dir}
	if w.trust {
		args = append(args, "-trust")
	}
	w.cmd = exec.CommandContext(ctx, self, args...)
	w.stderr = &bytes.Buffer{}
	w.cmd.Stderr = w.stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	w.out = bufio.NewReader(out)
	return w.cmd.Start()
}

func (w *worker) stop() {
	if w.cmd != nil {
		_ = w.in.Close()
		_ = w.cmd.Wait()
		w.cmd = nil
	}
}

// try lets the process try one damage. A damage may make the process exit, as it may
// make a server exit. The last output of the process then decides the outcome.
func (w *worker) try(ctx context.Context, d damage) (verdict, error) {
	if w.cmd == nil {
		if err := w.start(ctx); err != nil {
			return verdict{}, err
		}
	}
	line, err := json.Marshal(d)
	if err != nil {
		return verdict{}, err
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil && ctx.Err() != nil {
		return verdict{}, ctx.Err()
	}
	var timedOut atomic.Bool
	process := w.cmd.Process
	timer := time.AfterFunc(trialTimeout, func() {
		timedOut.Store(true)
		_ = process.Kill()
	})
	answer, err := w.out.ReadBytes('\n')
	timer.Stop()
	var v verdict
	if err == nil && json.Unmarshal(answer, &v) == nil {
		return v, nil
	}
	cmd := w.cmd
	w.stop()
	message := strings.TrimSpace(w.stderr.String())
	if ctx.Err() != nil {
		return verdict{}, context.Cause(ctx)
	}

	switch {
	case timedOut.Load():
		return verdict{Outcome: NoEnd, Said: fmt.Sprintf("no answer within %v", trialTimeout)}, nil
	case cmd.ProcessState.ExitCode() != 1 && !strings.Contains(message, "panic: "):
		return verdict{}, fmt.Errorf("%s: the worker exited with %s: %s", d, cmd.ProcessState, message)
	case cmd.ProcessState.ExitCode() != 1 || !location.MatchString(message):
		return verdict{Outcome: Vague, Said: message}, nil
	}
	return verdict{Outcome: Detected, Said: message}, nil
}
