// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
)

// A service that was written from the printed protocol alone takes part in a conversation
// of four turns with a kill -9 of the server after each. It calls another agent, stores a
// context and reads the conversation.
func TestServiceFromPrintedProtocolAlone(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	dir := filepath.Join(t.TempDir(), "data")
	files := writeFiles(t, ">> helper.toml\nname = \"helper\"")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	start := func() *server { return startServerAt(t, dir, address, "--agents", files) }
	s := start()
	service := exec.Command(python, "testdata/seedagent.py", s.url)
	out, err := service.StdoutPipe()
	if err == nil {
		err = service.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = service.Process.Kill(); _ = service.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "registered\n" {
		t.Fatalf("%q, %v", line, err)
	}
	said := []string{}
	say := func(text string) string {
		t.Helper()
		var a messageReply
		status, err := s.request("POST", "/v1/agents/seedling/messages", `{"content":"`+text+`","session_id":"s1"}`, "", &a)
		if err != nil || status != 200 {
			t.Fatalf("%s: %d %+v %v", text, status, a, err)
		}
		s.stop(syscall.SIGKILL)
		s = start()
		return a.Content
	}
	turn := func(text, want string) {
		t.Helper()
		got := say(text)
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		said = append(said, "user: "+text, "assistant: "+got)
	}
	turn("apple", "noted apple")
	turn("ask say xyzzy", "the helper said: xyzzy")
	turn("store", "")
	var history struct {
		Given []string `json:"given"`
		Read  []string `json:"read"`
		User  string   `json:"user"`
	}
	if text := say("history"); json.Unmarshal([]byte(text), &history) != nil || !slices.Equal(history.Given, said) || !slices.Equal(history.Read, said) || history.User == "" {
		t.Errorf("%s\nwant %q", text, said)
	}
	key := strings.TrimPrefix(said[len(said)-1], "assistant: ")
	var stored struct {
		Data map[string]bool `json:"data"`
	}
	if status, err := s.request("GET", "/v1/context/"+key, "", "", &stored); err != nil || status != 200 || !stored.Data["kept"] {
		t.Errorf("%d %+v %v", status, stored, err)
	}
	var runs struct {
		Runs []runView `json:"runs"`
	}
	if _, err := s.request("GET", "/v1/runs?agent_id=helper", "", "", &runs); err != nil || len(runs.Runs) != 1 || runs.Runs[0].Depth != 1 {
		t.Errorf("the call is no part of the caller's tree: %s %v", fmt.Sprint(runs), err)
	}
}
