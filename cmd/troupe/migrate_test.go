// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A server continues on a migrated store: the same run answers, a session continues,
// and doctor finds the store whole. A store in use is refused.
func TestMigrateToServer(t *testing.T) {
	dir := t.TempDir()
	old, migrated := filepath.Join(dir, "data"), filepath.Join(dir, "new")
	s := startServer(t, old)
	s.putAgent(`{"name":"helper"}`)
	_, first := s.call("helper", "say hello")
	_, before, _ := runProgram(t, "runs", "show", first.Run, "--server", s.url)
	if code, _, stderr := runProgram(t, "migrate", old, migrated); code != 1 || !strings.Contains(stderr, "it serves at "+s.url) {
		t.Errorf("store in use: exit code %d\n%s", code, stderr)
	}
	s.stop(syscall.SIGTERM)
	code, out, stderr := runProgram(t, "migrate", old, migrated)
	if code != 0 || !strings.HasSuffix(out, "everything is as it was written\nmigrated into "+migrated+"\n") {
		t.Fatalf("exit code %d\n%s\n%s", code, out, stderr)
	}
	if code, _, stderr := runProgram(t, "migrate", old, migrated); code != 1 || !strings.Contains(stderr, "new: exists already") {
		t.Errorf("new store exists: exit code %d\n%s", code, stderr)
	}
	if code, out, stderr := runProgram(t, "doctor", migrated); code != 0 || !strings.Contains(out, "everything is as it was written") {
		t.Errorf("doctor: exit code %d\n%s\n%s", code, out, stderr)
	}
	r := startServer(t, migrated)
	if code, after, stderr := runProgram(t, "runs", "show", first.Run, "--server", r.url); code != 0 || after != before || !strings.Contains(after, "hello") {
		t.Errorf("run %s: got %s%s, want %s", first.Run, after, stderr, before)
	}
	if _, again := r.call("helper", "say on"); again.Content != "on" {
		t.Errorf("call to the migrated server: got %+v", again)
	}
	r.stop(syscall.SIGTERM)
	if code, out, stderr := runProgram(t, "doctor", migrated); code != 0 {
		t.Errorf("doctor after another message: exit code %d\n%s\n%s", code, out, stderr)
	}
	// damage is refused, and named
	tables, err := filepath.Glob(filepath.Join(old, "pebble", "*.log"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	for _, name := range tables {
		if err := os.Truncate(name, 100); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, stderr := runProgram(t, "migrate", old, filepath.Join(dir, "never")); code != 1 || !strings.Contains(stderr, "errors found") {
		t.Errorf("damaged store: exit code %d\n%s", code, stderr)
	}
}
