// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// startSilent starts a process that ignores the end of its input and holds a named pipe open, and waits.
func startSilent(pipe string) {
	c := &Config{Command: "/bin/sh", Args: []string{"-c", `exec 3>"$0"; exec sleep 600`, pipe}}
	p, err := startProcess(c, os.LookupEnv, time.Minute, slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	<-p.ended
}

// A server that is killed leaves no process of MCP behind.
func TestProcessEndsWithItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems have no signal for it")
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(os.Args[0], asServer, "parent", pipe)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(pipe) // returns once the process has opened it
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // that it was killed
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, in) // until no process holds the pipe
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the process lives on")
	}
}
