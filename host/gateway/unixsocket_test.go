// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-run/troupe/ingress"
)

// Without a key no request over TCP reaches a route of the scope admin, whatever
// it pretends. The owner's socket serves all of them.
func TestKeysAreNotMadeOverTCPWithoutKey(t *testing.T) {
	d := startGateway(t)
	for _, headers := range [][]string{nil, {"Authorization", "Bearer sk-x"}, {"Authorization", "Bearer"}, {"X-User", "local"}, {"X-Forwarded-For", ""}, {"Origin", "http://" + d.address}} {
		for _, r := range [][3]string{{"POST", "/v1/keys", `{"scopes":["admin"]}`}, {"POST", "/v1/keys", `{}`}, {"GET", "/v1/keys", ""}, {"DELETE", "/v1/keys/0123456789abcdef", ""}, {"POST", "/v1/backups", `{"dir":"/nonexistent/x"}`}} {
			if status, _, body := d.do(r[0], r[1], r[2], headers...); status != 401 || !strings.Contains(body, `"code":"unauthorized"`) {
				t.Errorf("%v with %v: %d %s", r, headers, status, body)
			}
		}
	}
	if n := d.server.config.Keys.Count(); n != 0 {
		t.Fatalf("%d keys", n)
	}
	type key struct {
		Scopes []string `json:"scopes"`
		Text   string   `json:"key"`
	}
	var first, second key
	if status := d.owner().doJSON(&first, "POST", "/v1/keys", `{}`); status != 201 || strings.Join(first.Scopes, ",") != "admin" {
		t.Errorf("first key: %d %+v", status, first)
	}
	if status := d.doJSON(&second, "POST", "/v1/keys", `{}`, "Authorization", "Bearer "+first.Text); status != 201 || strings.Join(second.Scopes, ",") != "call,read" {
		t.Errorf("second key, made with the first: %d %+v", status, second)
	}
	if status, _, body := d.owner().do("GET", "/v1/keys", "", "Authorization", "Bearer "+second.Text); status != 403 {
		t.Errorf("a key that the owner presents is not checked: %d %s", status, body)
	}
	if status, _, body := d.owner().do("POST", "/v1/agents/helper/messages", `{"content":"x"}`); status != 200 {
		t.Errorf("message of the owner: %d %s", status, body)
	}
}

// The owner needs no key even where every client over TCP does.
func TestOwnerNeedsNoKeyWithKeysRequired(t *testing.T) {
	d := startGatewayWith(t, Config{KeysRequired: true})
	if status, _, body := d.do("POST", "/v1/keys", `{}`); status != 401 {
		t.Errorf("over TCP: %d %s", status, body)
	}
	if status, _, body := d.owner().do("POST", "/v1/keys", `{"scopes":["read"]}`); status != 201 {
		t.Errorf("owner: %d %s", status, body)
	}
}

// longDir returns a folder with a path longer than the address of a socket.
func longDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// exchange sends a byte from a client of the socket to its server.
func exchange(t *testing.T, l net.Listener, dir string) {
	t.Helper()
	client, err := DialOwner(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var b [1]byte
	if _, err := client.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(server, b[:]); err != nil || b[0] != 'x' {
		t.Errorf("%q, %v", b, err)
	}
}

// The socket is private, replaces that of a killed process, works at any length of
// the path, and is removed at the end.
func TestOwnerSocket(t *testing.T) {
	for name, dir := range map[string]string{"short path": t.TempDir(), "long path": longDir(t)} {
		t.Run(name, func(t *testing.T) {
			if name == "long path" && runtime.GOOS != "linux" {
				t.Skip("only Linux abbreviates paths of sockets")
			}
			path := filepath.Join(dir, OwnerSocket)
			killed, err := ListenOwner(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := killed.(*ownerListener).UnixListener.Close(); err != nil { // as a killed process does: the file stays
				t.Fatal(err)
			}
			if c, err := DialOwner(t.Context(), dir); err == nil {
				_ = c.Close()
				t.Error("a socket without a server accepts a connection")
			}
			l, err := ListenOwner(dir)
			if err != nil {
				t.Fatal(err)
			}
			exchange(t, l, dir)
			if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("the socket is still there: %v", err)
			}
			if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := ListenOwner(dir); err == nil || !strings.Contains(err.Error(), "is not a socket") {
				t.Errorf("a file in its place: %v", err)
			}
			if text, err := os.ReadFile(path); string(text) != "x" {
				t.Errorf("the file was replaced: %q, %v", text, err)
			}
		})
	}
}

// A process of another user is disconnected, even where modes let it connect.
func TestOwnerSocketRejectsOtherUsers(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("needs root on Linux")
	}
	dir := t.TempDir()
	l, err := ListenOwner(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for p := dir; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dial := func() (net.Conn, error) {
		type result struct {
			c   net.Conn
			err error
		}
		done := make(chan result)
		go func() {
			runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); errno != 0 {
				done <- result{nil, errno}
				return
			}
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			if err == nil {
				err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: filepath.Join(dir, OwnerSocket)})
			}
			if err != nil {
				done <- result{nil, err}
				return
			}
			f := os.NewFile(uintptr(fd), "client")
			defer f.Close()
			c, err := net.FileConn(f)
			done <- result{c, err}
		}()
		r := <-done
		return r.c, r.err
	}
	if _, err := dial(); err == nil {
		t.Error("the modes let another user connect")
	}
	if err := os.Chmod(filepath.Join(dir, OwnerSocket), 0o777); err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 2)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	stranger, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if err := stranger.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := stranger.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d, %v: want a closed connection", n, err)
	}
	if len(accepted) != 0 {
		t.Error("the connection of another user was accepted")
	}
}

// A key that is revoked on the owner's socket fails at once on TCP.
func TestOwnerRevokesKey(t *testing.T) {
	d := startGatewayWith(t, Config{KeysRequired: true})
	var made struct {
		ID   string `json:"key_id"`
		Text string `json:"key"`
	}
	if status := d.owner().doJSON(&made, "POST", "/v1/keys", `{"scopes":["`+string(ingress.ScopeRead)+`"]}`); status != 201 {
		t.Fatal(status)
	}
	for _, want := range []int{200, 401} {
		if status, _, body := d.do("GET", "/v1/runs", "", "Authorization", "Bearer "+made.Text); status != want {
			t.Errorf("%d %s, want %d", status, body, want)
		}
		d.owner().do("DELETE", "/v1/keys/"+made.ID, "")
	}
}
