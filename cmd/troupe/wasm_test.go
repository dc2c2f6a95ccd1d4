// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
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

// An MCP server that is a module answers from its own memory. A call that does not end in time ends the module at once, and the next
// one gets another instance. What is no module, or another one, is refused before the server starts.
func TestServerOfModule(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the standard library")
	}
	dir := t.TempDir()
	agents := filepath.Join(dir, "agents")
	if err := os.Mkdir(agents, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(agents, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	source, err := os.ReadFile("../../examples/wasm/server/main.go")
	if err != nil {
		t.Fatal(err)
	}
	const place = "\t\t\ttotal += n\n"
	if !strings.Contains(string(source), place) {
		t.Fatalf("the example lacks %q", place)
	}
	main := filepath.Join(dir, "main.go")
	if err := os.WriteFile(main, []byte(strings.Replace(string(source), place, "\t\t\tfor p.Arguments.Text == \"spin\" {\n\t\t\t}\n"+place, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	module := filepath.Join(agents, "words.wasm")
	build := exec.Command("go", "build", "-o", module, main)
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(module)
	if err != nil {
		t.Fatal(err)
	}
	write("writer.toml", "name = \"writer\"\ntools = [\"words.count\"]\n")
	write("text.wasm", "not a module")
	table := "[mcp.words]\nwasm = %q\nsha256 = %q\n%s\n"
	for text, want := range map[string]string{
		fmt.Sprintf(table, "words.wasm", strings.Repeat("0", 64), ""):               "words.toml:1:1: mcp.words.wasm: words.wasm has the SHA-256 " + wasm.Sum(b),
		fmt.Sprintf(table, "text.wasm", wasm.Sum([]byte("not a module")), ""):       "text.wasm is no module of WebAssembly",
		fmt.Sprintf(table, "absent.wasm", wasm.Sum(b), ""):                          "no such file",
		fmt.Sprintf(table, "words.wasm", "", ""):                                    "mcp.words.sha256: want the SHA-256 of the module in 64",
		fmt.Sprintf(table, "words.wasm", wasm.Sum(b), `grant = ["network"]`):        `mcp.words.grant: `,
		fmt.Sprintf(table, "words.wasm", wasm.Sum(b), `env = ["HOME"]`):             "args and env belong to it",
		fmt.Sprintf(table, "words.wasm", wasm.Sum(b), `url = "http://127.0.0.1:1"`): "want either command, the program of the server, or wasm",
		fmt.Sprintf(table, "words.wasm", wasm.Sum(b), `identity = "headers"`):       "", // in _meta, as for a process
		"[mcp.words]\ncommand = \"true\"\ngrant = [\"clock\"]\n":                    "mcp.words.grant: not allowed without wasm",
		"[mcp.words]\nsha256 = \"" + wasm.Sum(b) + "\"\ncommand = \"true\"\n":       "mcp.words.wasm: is missing",
	} {
		write("words.toml", text)
		if out, err := programCmd("check", agents).CombinedOutput(); (err == nil) != (want == "") || !strings.Contains(string(out), want) {
			t.Errorf("%s\ngot %s, want %s", text, out, want)
		}
	}
	write("words.toml", fmt.Sprintf(table, "words.wasm", wasm.Sum(b), "timeout_ms = 3000"))
	s := startServer(t, filepath.Join(dir, "data"), "--agents", agents)
	ask := func(text string) string {
		t.Helper()
		var got struct {
			Content string `json:"content"`
		}
		if code, err := s.request("POST", "/v1/agents/writer/messages", fmt.Sprintf(`{"content":%q}`, `use words.count {"text":"`+text+`"}`), "", &got); err != nil || code != 200 {
			t.Fatal(code, err)
		}
		return got.Content
	}
	for _, c := range []struct{ text, want string }{{"one two", "2 words, 2 in all"}, {"three", "1 words, 3 in all"}} {
		if got := ask(c.text); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if got := ask("spin"); !strings.Contains(got, "has not ended words.count within 3000 ms") {
		t.Errorf("a call that does not end: %s", got)
	}
	n, total := 0, 0
	waitUntil(t, "another instance answers", func() bool { // on a busy machine not within one call
		n++
		_, err := fmt.Sscanf(ask("four"), "1 words, %d in all", &total)
		return err == nil
	})
	if total > n {
		t.Errorf("after %d calls the instance has counted %d words, so it is the former one", n, total)
	}
}
