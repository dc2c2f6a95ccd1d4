// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Process is a program that prints a first line once it is ready: a server, or
// an agent of another language.
type Process struct {
	Line    string        // first line of standard output, without the newline; the base URL of a server
	Startup time.Duration // from the start of the process to Line

	cmd    *exec.Cmd
	out    io.ReadCloser
	began  time.Time
	exited chan struct{} // closed after err is set
	err    error
}

// Start launches cmd and waits for its first line.
func Start(cmd *exec.Cmd) (*Process, error) {
	p, err := Launch(cmd)
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(p.out).ReadString('\n')
	if err != nil {
		_ = p.Stop(syscall.SIGKILL)
		return nil, fmt.Errorf("%s did not start: %v", filepath.Base(cmd.Path), p.State())
	}
	p.Line, p.Startup = strings.TrimSpace(line), time.Since(p.began)
	return p, nil
}

// Launch starts cmd and does not wait for its first line.
func Launch(cmd *exec.Cmd) (*Process, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	cmd.Stdout = in
	p := &Process{cmd: cmd, out: out, began: time.Now(), exited: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("%w: run make build first", err)
	}
	go func() {
		defer close(p.exited)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// Exited returns a channel that is closed when the process has exited.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Pid returns the process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal. It does nothing after the process has exited.
func (p *Process) Signal(signal os.Signal) { _ = p.cmd.Process.Signal(signal) }

// Stop sends a signal and waits. It returns the error of exec.Cmd.Wait.
func (p *Process) Stop(signal os.Signal) error {
	p.Signal(signal)
	return p.Wait()
}

// Wait waits until the process has exited. It returns the error of exec.Cmd.Wait.
func (p *Process) Wait() error {
	<-p.exited
	_ = p.out.Close()
	return p.err
}

// State returns the exit state. The process must have exited.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// Killed reports whether the process was ended by the given signal. It must have
// exited.
func (p *Process) Killed(signal syscall.Signal) bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal
}
