// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/internal/service"
)

// describeFolder returns a line for the folder and each file in it, which any change of it
// changes.
func describeFolder(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.ModTime())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Commands that only read a data folder, or an agent folder, change nothing in it: neither
// one that a server has used nor a backup, and also not its mode.
func TestReadingCommandsChangeNothing(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "data")
	s := startServerWithBuiltins(t, dir)
	_, reply := s.call("helper", "say hello")
	if code, _, stderr := runProgram(t, "keys", "create", "--data", dir); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := runProgram(t, "backup", "copy", "--data", dir); code != 0 {
		t.Fatal(stderr)
	}
	s.stop(syscall.SIGTERM)
	for n, folder := range []string{dir, filepath.Join(base, "data-backups", "copy")} {
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		target := func(name string) string { return filepath.Join(base, fmt.Sprintf("%s-%d", name, n)) }
		for _, args := range [][]string{
			{"doctor", folder}, {"doctor", folder, "--json"}, {"runs", "list", "--data", folder}, {"runs", "show", reply.Run, "--tree", "--data", folder},
			{"runs", "events", reply.Run, "--data", folder}, {"keys", "list", "--data", folder}, {"backup", target("backup"), "--data", folder},
			{"restore", folder, "--data", target("restored")},
		} {
			before := describeFolder(t, folder)
			code, out, stderr := runProgram(t, args...)
			if code != 0 || out == "" {
				t.Errorf("%s: exit code %d\n%s%s", args, code, out, stderr)
			}
			if after := describeFolder(t, folder); after != before {
				t.Errorf("%s has changed the folder:\n%s\nbefore:\n%s", args, after, before)
			}
		}
	}
}

// The files that commands write and read next to a store are opened without following
// links: another file is neither written, nor shown, nor connected to.
func TestFilesOfServerFollowNoLinks(t *testing.T) {
	dir, outside := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(outside, []byte("http://secret.example\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	runProgram(t, "keys", "create", "--data", dir)
	name := filepath.Join(dir, service.URLFile)
	if err := os.Symlink(outside, name); err != nil {
		t.Fatal(err)
	}
	before := describeFolder(t, filepath.Dir(outside))
	s := startServer(t, dir)
	if after := describeFolder(t, filepath.Dir(outside)); after != before {
		t.Errorf("serve has changed the file that %s names:\n%s\nbefore:\n%s", service.URLFile, after, before)
	}
	for kind, replace := range map[string]func() error{
		"link": func() error { return os.Symlink(outside, name) },
		"pipe": func() error { return syscall.Mkfifo(name, 0o600) },
	} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		code, out, stderr := runProgram(t, "doctor", dir)
		if code != 1 || !strings.Contains(stderr, "is in use by process") || strings.Contains(out+stderr, "secret.example") {
			t.Errorf("%s is a %s: exit code %d\n%s%s", service.URLFile, kind, code, out, stderr)
		}
	}
	other := filepath.Join(t.TempDir(), "other")
	runProgram(t, "keys", "create", "--data", other)
	if err := os.Symlink(filepath.Join(dir, "SOCKET"), filepath.Join(other, "SOCKET")); err != nil {
		t.Fatal(err)
	}
	if code, out, stderr := runProgram(t, "keys", "create", "--data", other, "--name", "stray"); code != 0 || !strings.HasPrefix(out, "troupe_") {
		t.Errorf("a link as SOCKET: exit code %d\n%s%s", code, out, stderr)
	}
	if code, out, stderr := runProgram(t, "keys", "list", "--data", dir); code != 0 || strings.Contains(out, "stray") {
		t.Errorf("keys of the linked socket's server: exit code %d\n%s%s", code, out, stderr)
	}
	s.stop(syscall.SIGTERM)
}
