// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The command exits with 0 while a server accepts work, also if that requires keys, and else
// prints the reason.
func TestHealth(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--keyless=off")
	if code, out, stderr := runProgram(t, "health", "--server", s.url); code != 0 || out != "ready\n" {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
	s.stop(syscall.SIGKILL)
	if code, out, stderr := runProgram(t, "health", "--server", s.url); code != exitFailed || out != "" || !strings.Contains(stderr, "no server answers at "+s.url) {
		t.Errorf("after the server was killed: exit code %d, %s%s", code, out, stderr)
	}
}
