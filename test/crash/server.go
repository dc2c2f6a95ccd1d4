// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/internal/servertest"
)

// Names in the folder of a run.
const (
	dataDir   = "data"
	agentsDir = "agents"
	logFile   = "server.log"
)

// tail returns the end of the server's log, for error messages.
func tail(dir string) string {
	b, _ := os.ReadFile(filepath.Join(dir, logFile))
	return string(b[max(0, len(b)-1000):])
}

// server is the program under test in a process of its own.
type server struct {
	*servertest.Process
	ready   time.Duration // from process start until /readyz answers 200
	cluster *cluster      // behind an ingress; nil: the process is everything
}

// The ports from which freePort picks lie below all ephemeral ports, so no
// connection and no listener on port 0 takes the port between two instances of
// the server.
const firstPort, lastPort = 20_000, 32_000

// freePort returns a local address that is not in use.
func freePort() (string, error) {
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(lastPort-firstPort))); err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", fmt.Errorf("no free port between %d and %d: %w", firstPort, lastPort, err)
}

// command returns the command line of the server. Its standard error is appended to
// a file in dir.
func command(bin, dir, listen string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(bin, "serve", "--data", filepath.Join(dir, dataDir), "--agents", filepath.Join(dir, agentsDir), "--ready",
		"--listen", listen, "--log-level", "warn")
	cmd.Env = append(os.Environ(), "NO_COLOR=1", "TROUPE_BALLAST_MIB=0", "TROUPE_WRITE_BUFFER_MIB=4")
	cmd.Stderr = log
	return cmd, nil
}

// launch starts the server without waiting until it is ready.
func launch(bin, dir, listen string) (*server, error) {
	cmd, err := command(bin, dir, listen)
	if err != nil {
		return nil, err
	}
	defer cmd.Stderr.(*os.File).Close()
	p, err := servertest.Launch(cmd)
	return &server{Process: p}, err
}

// start starts the server and waits until it is ready.
func start(ctx context.Context, bin, dir, listen string) (*server, error) {
	began := time.Now()
	cmd, err := command(bin, dir, listen)
	if err != nil {
		return nil, err
	}
	defer cmd.Stderr.(*os.File).Close()
	p, err := servertest.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, tail(dir))
	}
	s := &server{Process: p}
	if err := s.waitReady(ctx); err != nil {
		s.terminate(syscall.SIGKILL)
		return nil, err
	}
	s.ready = time.Since(began)
	return s, nil
}

// waitReady waits for at most 20 seconds until the server accepts work.
func (s *server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Line+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return fmt.Errorf("GET /readyz after the server printed its address: %w", err)
		}
		if err := response.Body.Close(); err != nil || response.StatusCode == http.StatusOK {
			return err
		}
		if ctx.Err() != nil {
			return errors.New("/readyz did not answer 200 within 20 s")
		}
	}
}

// terminate sends a signal, waits, and reports whether that signal ended the
// process.
func (s *server) terminate(signal syscall.Signal) (bySignal bool, state *os.ProcessState) {
	if s.cluster != nil && signal == syscall.SIGKILL && s.State() == nil {
		s.cluster.strike()
	}
	_ = s.Stop(signal)
	return s.Killed(signal), s.State()
}
