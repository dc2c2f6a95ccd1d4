// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/host/wasm"
	"github.com/troupe-run/troupe/internal/servertest"
)

// startWithDescriptors starts a server that may have 200 descriptors.
func startWithDescriptors(t *testing.T, dir string, flags ...string) *server {
	t.Helper()
	cmd := programCmd(append([]string{"serve", "--data", dir, "--log-level", "warn", "--listen", "127.0.0.1:0", "--ready", "--write-buffer-mib", "1"}, flags...)...)
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
	return newServer(t, p, log.Name())
}

// mcpScript is an MCP server with one tool.
const mcpScript = `#!/bin/sh
while read -r line; do
	id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
	case "$line" in
	*'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}}' ;;
	*'"tools/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"look","inputSchema":{"type":"object"}}]}}' ;;
	*'"tools/call"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"seen"}]}}' ;;
	*'"ping"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{}}' ;;
	*'"id":'*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"unknown method"}}' ;;
	esac
done
`

// More processes of tools than there are descriptors for do not start, which the log says. The others, modules and the store
// work on beside connections of strangers.
func TestProcessesOfToolsDoNotUseUpDescriptors(t *testing.T) {
	const count = 20
	script := filepath.Join(t.TempDir(), "server.sh")
	if err := os.WriteFile(script, []byte(mcpScript), 0o700); err != nil {
		t.Fatal(err)
	}
	module, err := hex.DecodeString(echoModule)
	if err != nil {
		t.Fatal(err)
	}
	files := ">> servers.toml\n"
	for i := range count {
		files += fmt.Sprintf("[mcp.s%02d]\ncommand = %q\n", i, script)
	}
	files += fmt.Sprintf(">> echo.toml\n[tool]\ntool_name = \"text.echo\"\nvia = \"wasm\"\nfile = \"echo.wasm\"\nsha256 = %q\nidempotent = true\n>> writer.toml\nname = \"writer\"\ntools = [\"text.echo\"]\n", wasm.Sum(module))
	folder := writeFiles(t, files)
	if err := os.WriteFile(filepath.Join(folder, "echo.wasm"), module, 0o600); err != nil {
		t.Fatal(err)
	}
	s := startWithDescriptors(t, filepath.Join(t.TempDir(), "data"), "--agents", folder)
	padding := strings.Repeat("x", 100<<10)
	send := func(i int) {
		t.Helper()
		var answer struct {
			Text string `json:"content"`
		}
		body := fmt.Sprintf(`{"content":%q}`, fmt.Sprintf(`use text.echo {"n":%d,"padding":%q}`, i, padding))
		if status, err := s.request("POST", "/v1/agents/writer/messages", body, fmt.Sprint("k", i), &answer); status != 200 || err != nil || !strings.Contains(answer.Text, fmt.Sprintf(`"n":%d`, i)) {
			text, _ := os.ReadFile(s.log)
			t.Fatalf("message %d: status %d, %v, %.100s\n%s", i, status, err, answer.Text, text)
		}
	}
	send(0) // keeps its connection
	for i := range 200 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			break
		}
		defer c.Close()
		_, _ = io.WriteString(c, [...]string{"", "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"}[i%2])
	}
	for i := range 40 {
		send(1 + i)
	}
	text, err := os.ReadFile(s.log)
	if refused := strings.Count(string(text), "suffice for 8 processes of MCP servers; raise the limit (ulimit -n, LimitNOFILE=) and restart"); err != nil || refused < count-8 {
		t.Errorf("%d refusals, %v\n%s", refused, err, text)
	}
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Strangers who open more connections than the server has descriptors neither end it nor keep its
// store from making files. Its start warns of so few.
func TestStrangersDoNotUseUpDescriptors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startWithDescriptors(t, dir)
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
