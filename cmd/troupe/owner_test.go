// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/ingress"
)

// The owner of a data folder manages keys and copies the store whether or not a
// server uses the folder, also after the server was killed. The path of the folder
// may be longer than the address of a socket.
func TestOwnerManagesKeysWhileServing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40), "data")
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, gateway.OwnerSocket)
	command := func(want string, args ...string) string {
		t.Helper()
		code, out, message := runProgram(t, append(args, "--data", dir)...)
		if code != 0 || !strings.Contains(message, want) {
			t.Fatalf("troupe %v: exit code %d, %s%s\nwant %s", args, code, out, message, want)
		}
		return strings.TrimSpace(out)
	}
	s := startServer(t, dir, "--keyless=off")
	admin := command("for admin, as the first key;", "keys", "create", "--name", "first")
	standard := command("for call, read; it", "keys", "create")
	id, _ := ingress.KeyID(standard)
	if list := command("", "keys", "list"); strings.Count(list, "\n") != 1 || !strings.Contains(list, id) {
		t.Errorf("keys: %s", list)
	}
	for key, want := range map[string]int{"": 1, standard: 1, admin: 0} {
		if code, out, message := runProgram(t, "keys", "create", "--scope", "read", "--server", s.url, "--key", key); code != want {
			t.Errorf("keys create over TCP with %.10s…: exit code %d, %s%s", key, code, out, message)
		}
	}
	command("is revoked", "keys", "revoke", id)
	if code, _, message := runProgram(t, "agents", "list", "--server", s.url, "--key", standard); code != 1 || !strings.Contains(message, "unauthorized") {
		t.Errorf("a revoked key: %d %s", code, message)
	}
	if code, out, message := runProgram(t, "backup", "copy", "--data", dir); code != 0 || filepath.Base(strings.TrimSpace(out)) != "copy" {
		t.Errorf("backup: %d %s%s", code, out, message)
	}

	s.stop(syscall.SIGKILL)
	if _, err := os.Lstat(socket); err != nil {
		t.Fatalf("the socket of the killed server: %v", err)
	}
	command("for read; it", "keys", "create", "--scope", "read") // in the folder itself
	s = startServer(t, dir)
	command("for read; it", "keys", "create", "--scope", "read") // on the socket
	if n := strings.Count(command("", "keys", "list"), "\n"); n != 3 {
		t.Errorf("%d more keys, want 3", n)
	}
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// The owner of a data folder deletes agents and tools that belong to the folder of serve
// --agents, whether or not a server uses the data folder.
func TestOwnerDeletesAgentsAndTools(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	files := writeFiles(t, ">> a.toml\nname = \"a\"\n>> b.toml\nname = \"b\"\n>> pay.toml\n[tool]\ntool_name = \"pay\"\nurl = \"https://pay.example/\"\n[tool.input_schema]\ntype = \"object\"\n>> ask.toml\n[tool]\ntool_name = \"ask\"\nurl = \"https://ask.example/\"\n[tool.input_schema]\ntype = \"object\"\n")
	remove := func(wantCode int, want string, args ...string) {
		t.Helper()
		if code, _, message := runProgram(t, append(args, "--data", dir)...); code != wantCode || !strings.Contains(message, want) {
			t.Errorf("troupe %v: exit code %d, %s\nwant %d, %s", args, code, message, wantCode, want)
		}
	}
	remove(1, "does not exist", "agents", "delete", "a")
	s := startServer(t, dir, "--agents", files)
	remove(0, "agent a is deleted", "agents", "delete", "a")
	remove(0, "tool pay is deleted", "tools", "delete", "pay")
	remove(1, "no agent is named a", "agents", "delete", "a")
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	remove(0, "agent b is deleted", "agents", "delete", "b") // in the folder itself
	remove(0, "tool ask is deleted", "tools", "delete", "ask")
	remove(1, "no declared tool is named ask", "tools", "delete", "ask")
	s = startServer(t, dir)
	for _, path := range []string{"/v1/agents/a", "/v1/agents/b", "/v1/tools/pay", "/v1/tools/ask"} {
		if status, err := s.request("GET", path, "", "", nil); status != 404 {
			t.Errorf("%s: %d %v", path, status, err)
		}
	}
}

// Started in the folder of its server, a command without --data finds the folder, if the
// server selected by --server uses it.
func TestOwnerFindsFolderOfServer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	t.Setenv("TROUPE_DATA", dir)
	s := startServer(t, dir)
	if code, out, message := runProgram(t, "keys", "create", "--server", s.url); code != 0 || !strings.HasPrefix(out, "troupe_") {
		t.Errorf("%d %s%s", code, out, message)
	}
	other := startServer(t, filepath.Join(t.TempDir(), "other"))
	if code, _, message := runProgram(t, "keys", "create", "--server", other.url); code != 1 || !strings.Contains(message, "unauthorized") {
		t.Errorf("another server: %d %s", code, message)
	}
	if code, out, message := runProgram(t, "keys", "list"); code != 1 || out != "" {
		t.Errorf("the default server: %d %s%s", code, out, message)
	}
}
