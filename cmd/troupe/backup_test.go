// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/internal/node"
)

// A backup is a new folder below the folder for backups, and nowhere else.
func TestBackupsStayInTheirFolder(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	data, backups, outside := filepath.Join(dir, "data"), filepath.Join(dir, "backups"), filepath.Join(dir, "outside")
	s := startServer(t, data, "--backups", backups)
	s.useAdminKey(data)
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	send := func(body, wantCode, wantField string, want int) {
		t.Helper()
		var out struct {
			Code  string `json:"code"`
			Field string `json:"field"`
			Dir   string `json:"dir"`
		}
		status, err := s.request("POST", "/v1/backups", body, "", &out)
		if status != want || out.Code != wantCode || out.Field != wantField || want == http.StatusCreated && filepath.Dir(out.Dir) != backups {
			t.Errorf("%s: %d %+v %v, want %d %s", body, status, out, err, want, wantCode)
		}
	}
	send(`{"name":"one"}`, "", "", http.StatusCreated)
	send(`{"name":"one"}`, "backup_exists", "name", http.StatusConflict)
	for _, name := range []string{"", ".", "..", "../outside/x", outside + "/x", "a/b", `a\\b`, "a\u0000", strings.Repeat("a", 65)} {
		send(`{"name":"`+name+`"}`, "invalid_request", "name", http.StatusBadRequest)
	}
	send(`{"dir":"`+outside+`/x"}`, "invalid_request", "dir", http.StatusBadRequest)
	for name, target := range map[string]string{"link": outside, "dangling": filepath.Join(outside, "new"), "live": data} {
		if err := os.Symlink(target, filepath.Join(backups, name)); err != nil {
			t.Fatal(err)
		}
		send(`{"name":"`+name+`"}`, "backup_exists", "name", http.StatusConflict)
	}
	// the folder itself becomes a link into the live store
	if err := os.Rename(backups, backups+"-old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(data, "pebble"), backups); err != nil {
		t.Fatal(err)
	}
	send(`{"name":"two"}`, "forbidden_folder", "", http.StatusForbidden)
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("files outside of the folder for backups: %v %v", entries, err)
	}
	if _, err := os.Stat(filepath.Join(data, "pebble", "two")); err == nil {
		t.Error("there is a backup inside the live store")
	}
	// the server still works
	s.putAgent(`{"name":"helper"}`)
}

// The folder for backups must not be in the store.
func TestServeRefusesBackupsInsideTheStore(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, "data"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, backups := range []string{"data", "data/backups", "data/../data/x", "link", "link/x"} {
		code, _, stderr := runProgram(t, "serve", "--data", filepath.Join(dir, "data"), "--backups", filepath.Join(dir, backups), "--listen", "127.0.0.1:0")
		if code != 1 || !strings.Contains(stderr, "serve with --backups and another folder") {
			t.Errorf("%s: exit code %d\n%s", backups, code, stderr)
		}
	}
}

// Copies are made only where no other user can replace them.
func TestBackupsNeedAFolderOfTheirOwn(t *testing.T) {
	dir := t.TempDir()
	data, backups := filepath.Join(dir, "data"), filepath.Join(dir, "backups")
	check := func(want string) { // as serve does before it opens the store
		t.Helper()
		if _, err := node.CheckBackups(backups, data); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := errors.Join(os.Mkdir(backups, 0o700), os.Chmod(backups, 0o770)); err != nil {
		t.Fatal(err)
	}
	check("run chmod go-w " + backups)
	if err := os.Chmod(backups, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, data, "--backups", backups)
	backup := func(name string) (int, string) {
		var out struct {
			Code string `json:"code"`
		}
		status, err := s.request("POST", "/v1/backups", `{"name":"`+name+`"}`, "", &out)
		if err != nil {
			t.Fatal(err)
		}
		return status, out.Code
	}
	s.useAdminKey(data)
	if status, code := backup("one"); status != http.StatusCreated {
		t.Errorf("a folder with the sticky bit: %d %s", status, code)
	}
	if err := os.Chmod(backups, 0o707); err != nil {
		t.Fatal(err)
	}
	if status, code := backup("two"); status != http.StatusForbidden || code != "forbidden_folder" {
		t.Errorf("a folder that became writable for others: %d %s", status, code)
	}
	if os.Geteuid() != 0 {
		return // only root can change the owner
	}
	if err := errors.Join(os.Chmod(backups, 0o700), os.Chown(backups, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if status, code := backup("three"); status != http.StatusForbidden || code != "forbidden_folder" {
		t.Errorf("a folder of another user: %d %s", status, code)
	}
	check("belongs to another user (uid 12345)")
}
