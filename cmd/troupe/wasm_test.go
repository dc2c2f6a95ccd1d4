// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/host/wasm"
)

// echoModule is a module that prints its arguments: it calls fd_read and fd_write of WASI once.
const echoModule = "0061736d01000000011d0560000060047f7f7f7f017f60017f0060027f7f017f60037f7e7f017f02b3010516776173695f736e617073686f745f70726576696577310866645f7772697465000116776173695f736e617073686f745f70726576696577310766645f72656164000116776173695f736e617073686f745f70726576696577310970726f635f65786974000216776173695f736e617073686f745f70726576696577310a72616e646f6d5f676574000316776173695f736e617073686f745f70726576696577310e636c6f636b5f74696d655f6765740004030201000503010001071302066d656d6f72790200065f737461727400050a24012200410041004101410810011a41044108280200360200410141004101410810001a0b0b0e010041000b084000000060ea0000"

// A tool of a file is performed by a module, which is kept: a restart finds it without the file of the module.
func TestToolOfModule(t *testing.T) {
	dir := t.TempDir()
	module, err := hex.DecodeString(echoModule)
	if err != nil {
		t.Fatal(err)
	}
	agents := filepath.Join(dir, "agents")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(agents, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(agents, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tool := "[tool]\ntool_name = \"text.echo\"\nvia = \"wasm\"\nfile = \"echo.wasm\"\nsha256 = %q\n"
	write("echo.wasm", string(module))
	write("writer.toml", "name = \"writer\"\ntools = [\"text.echo\"]\n")
	write("echo.toml", fmt.Sprintf(tool, strings.Repeat("0", 64)))
	out, err := programCmd("check", agents).CombinedOutput()
	if want := "echo.toml: file: echo.wasm has the SHA-256 " + wasm.Sum(module); err == nil || !strings.Contains(string(out), want) {
		t.Errorf("got %s, want %s", out, want)
	}
	write("echo.toml", fmt.Sprintf(tool, wasm.Sum(module)))
	out, err = programCmd("tools", "call", filepath.Join(agents, "echo.toml"), "--args", `{"a":1}`).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "{\"a\":1}\nresult: 7 bytes, after ") {
		t.Errorf("%v: %s", err, out)
	}
	ask := func(s *server) {
		t.Helper()
		var got map[string]any
		if code, err := s.request("POST", "/v1/agents/writer/messages", `{"content":"use text.echo {\"b\":2}"}`, "", &got); err != nil || code != 200 || !strings.Contains(fmt.Sprint(got), `{"b":2}`) {
			t.Errorf("%d %v: %+v", code, err, got)
		}
	}
	data := filepath.Join(dir, "data")
	s := startServer(t, data, "--agents", agents)
	ask(s)
	body := `{"tool_name":"text.other","via":"wasm","sha256":"%s"}`
	for sum, want := range map[string]int{strings.Repeat("1", 64): 403, wasm.Sum(module): 201} {
		if code, err := s.request("POST", "/v1/tools", fmt.Sprintf(body, sum), "", &struct{}{}); err != nil || code != want {
			t.Errorf("a tool with the module %s: got %d, want %d, %v", sum, code, want, err)
		}
	}
	s.stop(syscall.SIGKILL)
	s = startServer(t, data)
	ask(s)
}
