// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// What is in the folder of a run.
const (
	dataDir   = "data"
	agentsDir = "agents"
	logFile   = "server.log"
)

// tail is the end of the server's log, for whoever has to find out.
func tail(dir string) string {
	b, _ := os.ReadFile(filepath.Join(dir, logFile))
	return string(b[max(0, len(b)-1000):])
}

// server is the program under test, in a process of its own.
type server struct {
	cmd   *exec.Cmd
	url   string
	ready time.Duration
	ended chan struct{}
}

// freePort finds a place where nobody answers.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// launch starts the process, and is its standard output.
func launch(bin, dir, listen string) (*server, io.Reader, error) {
	talk, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer talk.Close()
	s := &server{cmd: exec.Command(bin, "serve", "--data", filepath.Join(dir, dataDir), "--agents", filepath.Join(dir, agentsDir), "--ready",
		"--listen", listen, "--log-level", "warn"), ended: make(chan struct{})}
	s.cmd.Env = append(os.Environ(), "NO_COLOR=1")
	s.cmd.Stderr = talk
	out, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	s.cmd.Stdout = in
	if err := s.cmd.Start(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%w: make build makes it", err), out.Close())
	}
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait()
		_ = out.Close()
	}()
	return s, out, nil
}

// start runs the server until it says that it is ready.
func start(ctx context.Context, bin, dir, listen string) (*server, error) {
	began := time.Now()
	s, out, err := launch(bin, dir, listen)
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_, state := s.end(syscall.SIGKILL)
		return nil, fmt.Errorf("the server does not come up: %s: %s", state, tail(dir))
	}
	s.url = strings.TrimSpace(line)
	if err := s.isReady(ctx); err != nil {
		s.end(syscall.SIGKILL)
		return nil, err
	}
	s.ready = time.Since(began)
	return s, nil
}

// isReady asks until the server takes work.
func (s *server) isReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return fmt.Errorf("the server says where it is, and does not answer: %w", err)
		}
		if err := response.Body.Close(); err != nil || response.StatusCode == http.StatusOK {
			return err
		}
		if ctx.Err() != nil {
			return errors.New("the server never gets ready")
		}
	}
}

// end sends a signal, waits for the end, and tells whether it was that signal.
func (s *server) end(signal syscall.Signal) (byIt bool, state *os.ProcessState) {
	_ = s.cmd.Process.Signal(signal)
	<-s.ended
	status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal, s.cmd.ProcessState
}
