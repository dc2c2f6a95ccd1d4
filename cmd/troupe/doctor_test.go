// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A backup of a running server is complete, and a server can run on it.
func TestBackupOfRunningServer(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, filepath.Join(dir, "data"))
	s.putAgent(`{"name":"helper"}`)
	_, a := s.call("helper", "say before")
	backup := filepath.Join(dir, "data-backups", "copy")
	if code, out, stderr := runProgram(t, "backup", "copy", "--data", filepath.Join(dir, "data")); code != 0 || strings.TrimSpace(out) != backup {
		t.Fatalf("exit code %d\nstdout %s\nstderr %s", code, out, stderr)
	}
	if code, _, stderr := runProgram(t, "backup", "copy", "--data", filepath.Join(dir, "data")); code != 1 || !strings.Contains(stderr, "choose another name") {
		t.Errorf("backup with a name in use: exit code %d\n%s", code, stderr)
	}
	_, after := s.call("helper", "say after")
	if code, _, stderr := runProgram(t, "doctor", filepath.Join(dir, "data")); code != 1 || !strings.Contains(stderr, "it serves at "+s.url) {
		t.Errorf("doctor of a store in use: exit code %d\n%s", code, stderr)
	}
	if code, out, stderr := runProgram(t, "doctor", backup); code != 0 || !strings.Contains(out, "everything is as it was written") {
		t.Errorf("doctor of the backup: exit code %d\n%s\n%s", code, out, stderr)
	}
	restored := filepath.Join(dir, "restored")
	if code, out, stderr := runProgram(t, "restore", backup, "--data", restored); code != 0 || !strings.Contains(out, "restored into "+restored) {
		t.Fatalf("exit code %d\nstdout %s\nstderr %s", code, out, stderr)
	}
	r := startServer(t, restored)
	if code, out, _ := runProgram(t, "runs", "show", a.Run, "--server", r.url); code != 0 || !strings.Contains(out, "before") {
		t.Errorf("run before the backup: exit code %d\n%s", code, out)
	}
	if code, _, _ := runProgram(t, "runs", "show", after.Run, "--server", r.url); code == 0 {
		t.Error("run after the backup: want none, got one")
	}
	if _, again := r.call("helper", "say on"); again.Content != "on" {
		t.Errorf("call to the restored server: got %+v", again)
	}
	// doctor reports a damaged backup, and restore rejects it
	wal, err := filepath.Glob(filepath.Join(backup, "pebble", "*.log"))
	if err != nil || len(wal) == 0 {
		t.Fatal(wal, err)
	}
	b, err := os.ReadFile(wal[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(wal[0], b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, stderr := runProgram(t, "doctor", backup); code != 1 || !strings.Contains(out, "errors found") {
		t.Errorf("doctor of a truncated log: exit code %d\n%s\n%s", code, out, stderr)
	}
	if code, _, stderr := runProgram(t, "runs", "list", "--data", backup); code != 1 {
		t.Errorf("runs of a damaged folder: exit code %d\n%s", code, stderr)
	}
	if code, out, stderr := runProgram(t, "runs", "list", "--damaged", "--data", backup); code != 0 {
		t.Errorf("runs --damaged: exit code %d\n%s\n%s", code, out, stderr)
	}
	if code, _, stderr := runProgram(t, "runs", "list", "--damaged"); code != 1 || !strings.Contains(stderr, "--data") {
		t.Errorf("runs --damaged without --data: exit code %d\n%s", code, stderr)
	}
	if code, _, stderr := runProgram(t, "restore", backup, "--data", filepath.Join(dir, "never")); code != 1 || !strings.Contains(stderr, "errors found") {
		t.Errorf("restore of a damaged backup: exit code %d\n%s", code, stderr)
	}
}
