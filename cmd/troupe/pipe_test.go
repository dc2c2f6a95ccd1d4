// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A named pipe among the files that doctor and check read is refused by name. Neither
// command waits for its other end.
func TestPipesAreRefused(t *testing.T) {
	dir, agents := filepath.Join(t.TempDir(), "data"), t.TempDir()
	if code, _, stderr := runProgram(t, "keys", "create", "--data", dir); code != 0 {
		t.Fatal(stderr)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "pebble", "*.log"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	if err := os.WriteFile(filepath.Join(agents, "whole.toml"), []byte(`name = "whole"`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
	}{
		{filepath.Join(dir, "FORMAT"), []string{"doctor", dir}}, {filepath.Join(dir, "ANCHOR"), []string{"doctor", dir}}, {filepath.Join(dir, "SECRET"), []string{"doctor", dir}},
		{filepath.Join(dir, "LOCK"), []string{"doctor", dir}}, {tables[0], []string{"doctor", dir}},
		{filepath.Join(agents, "pipe.toml"), []string{"check", agents}},
	} {
		aside := filepath.Join(t.TempDir(), "aside")
		moved := os.Rename(c.name, aside)
		if moved != nil && !errors.Is(moved, os.ErrNotExist) {
			t.Fatal(moved)
		}
		if err := syscall.Mkfifo(c.name, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		program := programCmd(c.args...)
		command := exec.CommandContext(ctx, program.Path, program.Args[1:]...)
		command.Env = program.Env
		out, err := command.CombinedOutput()
		if ctx.Err() != nil || command.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), filepath.Base(c.name)) || !strings.Contains(string(out), "is a named pipe, want a regular file") {
			t.Errorf("%s with a pipe as %s: %v\n%s", c.args[0], filepath.Base(c.name), err, out)
		}
		cancel()
		if err := os.Remove(c.name); err != nil {
			t.Fatal(err)
		}
		if moved == nil {
			if err := os.Rename(aside, c.name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if code, _, stderr := runProgram(t, "doctor", dir); code != 0 {
		t.Errorf("doctor of the whole folder: exit code %d\n%s", code, stderr)
	}
}
