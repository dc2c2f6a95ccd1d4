// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// A process is a program with limits. A mutant may loop or allocate without end.
type process struct {
	path  string
	args  []string
	dir   string
	env   []string
	stdin io.Reader
}

const (
	memoryMaxKB = 8 << 20          // private writable memory; a browser reserves far more addresses than it uses
	wallMax     = 40 * time.Minute // for a program that waits; one that computes ends earlier
	outputMax   = 64 << 10         // bytes of the standard error that are kept
)

// errEndless reports a process that was ended at the limit of its processor time.
var errEndless = errors.New("exceeds its processor time")

// run runs the process with at most cpu of processor time. The error is nil if it exits
// with code 0. A failure to start it is an error of another type than *exec.ExitError.
func (p process) run(ctx context.Context, cpu time.Duration) (stdout, stderr []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, wallMax)
	defer cancel()
	limits := fmt.Sprintf("ulimit -d %d; ulimit -t %d; exec \"$0\" \"$@\"", memoryMaxKB, int(cpu.Seconds())+1)
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", limits, p.path}, p.args...)...)
	cmd.Dir, cmd.Stdin = p.dir, p.stdin
	cmd.Env = append(os.Environ(), p.env...)
	cmd.WaitDelay = time.Second // a killed test may leave a process that holds the pipes
	var out bytes.Buffer
	var head firstBytes
	cmd.Stdout, cmd.Stderr = &out, &head
	err = cmd.Run()
	if err != nil && ctx.Err() == nil && cmd.ProcessState != nil && cmd.ProcessState.SystemTime()+cmd.ProcessState.UserTime() >= cpu {
		err = errors.Join(errEndless, err)
	}
	return out.Bytes(), head, err
}

// ended describes how a process failed.
func ended(stderr []byte, err error) string {
	for line := range strings.Lines(string(stderr)) {
		if strings.HasPrefix(line, "fatal error: ") || strings.HasPrefix(line, "panic: ") {
			return strings.TrimSpace(line)
		}
	}
	if errors.Is(err, errEndless) {
		return errEndless.Error()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.String()
	}
	return err.Error()
}

// firstBytes keeps the first bytes that are written to it.
type firstBytes []byte

func (f *firstBytes) Write(b []byte) (int, error) {
	*f = append(*f, b[:min(len(b), outputMax-len(*f))]...)
	return len(b), nil
}
