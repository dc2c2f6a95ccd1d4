// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/internal/servertest"
)

// Strangers who open more connections than the server has descriptors neither end it nor keep its
// store from making files. Its start warns of so few.
func TestStrangersDoNotUseUpDescriptors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	cmd := programCmd("serve", "--data", dir, "--log-level", "warn", "--listen", "127.0.0.1:0", "--ready", "--write-buffer-mib", "1")
	cmd.Args = append([]string{"sh", "-c", `ulimit -n 200 && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	log, err := os.Create(filepath.Join(filepath.Dir(dir), "server.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	p, err := servertest.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, p, log.Name())
	message := fmt.Sprintf(`{"content": %q}`, strings.Repeat("x", 100<<10))
	send := func(i int) {
		t.Helper()
		var answer struct{ Text string }
		if status, err := s.request("POST", "/v1/agents/helper/messages", message, fmt.Sprint("k", i), &answer); status != 200 || err != nil {
			text, _ := os.ReadFile(s.log)
			t.Fatalf("message %d: status %d, %v\n%s", i, status, err, text)
		}
	}
	send(0) // keeps its connection
	for i := range 400 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			break // the backlog of the listener is full
		}
		defer c.Close()
		head := [...]string{"", "G", "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"}[i%3] // silent, slow, or idle after a request
		_, _ = io.WriteString(c, head)
	}
	for i := range 60 {
		send(1 + i)
	}
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	text, err := os.ReadFile(s.log)
	if err != nil || !strings.Contains(string(text), "200 descriptors") {
		t.Errorf("%v\n%s", err, text)
	}
}
