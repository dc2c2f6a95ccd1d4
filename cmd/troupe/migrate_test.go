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

// testdata/format1 is the store of a server of the version before format 2, which was
// killed after nine calls.
const (
	formerStore = "testdata/format1"
	formerRuns  = 9
)

// A store of the former format is refused by every command, which names the one to type.
// That command makes a store that doctor finds whole, and a server continues on it.
func TestMigrateFromFormerFormat(t *testing.T) {
	dir := t.TempDir()
	old, migrated := filepath.Join(dir, "data"), filepath.Join(dir, "data-new")
	if err := os.CopyFS(old, os.DirFS(formerStore)); err != nil {
		t.Fatal(err)
	}
	remedy := "is of format 1, this program writes format 2: type `troupe migrate " + old + " NEW`; nothing was changed"
	for _, args := range [][]string{{"doctor", old}, {"serve", "--data", old, "--listen", "127.0.0.1:0"}} {
		if code, _, stderr := runProgram(t, args...); code != 1 || !strings.Contains(stderr, remedy) {
			t.Errorf("%s: exit code %d\n%s", args[0], code, stderr)
		}
	}
	code, out, stderr := runProgram(t, "migrate", old, migrated)
	if code != 0 || !strings.HasSuffix(out, "everything is as it was written\nmigrated into "+migrated+"\n") {
		t.Fatalf("exit code %d\n%s\n%s", code, out, stderr)
	}
	if code, out, stderr := runProgram(t, "doctor", migrated); code != 0 || !strings.Contains(out, "everything is as it was written") {
		t.Errorf("doctor: exit code %d\n%s\n%s", code, out, stderr)
	}
	s := startServer(t, migrated)
	_, list, _ := runProgram(t, "runs", "list", "--server", s.url)
	if lines := strings.Split(strings.TrimSpace(list), "\n"); len(lines) != formerRuns || strings.Count(list, "DONE") != formerRuns {
		t.Errorf("got runs\n%s", list)
	}
	run, _, _ := strings.Cut(strings.Split(list, "\n")[1], " ") // of the large message
	large := strings.TrimSpace(strings.Repeat("large ", 1500))
	if code, out, stderr := runProgram(t, "runs", "show", run, "--server", s.url); code != 0 || !strings.Contains(out, large) {
		t.Errorf("run %s: exit code %d, %d bytes\n%s", run, code, len(out), stderr)
	}
	if _, reply := s.call("helper", "say on"); reply.Content != "on" {
		t.Errorf("call to the migrated server: got %+v", reply)
	}
	s.stop(syscall.SIGTERM)
	if code, out, stderr := runProgram(t, "doctor", migrated); code != 0 {
		t.Errorf("doctor after another message: exit code %d\n%s\n%s", code, out, stderr)
	}
}
