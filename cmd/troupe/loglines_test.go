// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
)

// Lines of runs and of requests to models have their duration and tokens, and no line has an empty member.
func TestLogLinesHaveDurationAndTokens(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--agents", writeFiles(t, ">> a.toml\nname = \"a\""), "--log-level", "debug")
	var a messageReply
	if status, err := s.request("POST", "/v1/agents/a/messages", `{"content":"hi"}`, "", &a); status != 200 || err != nil {
		t.Fatal(status, err)
	}
	if status, err := s.request("POST", "/v1/chat/completions", `{"model":"scripted","messages":[{"role":"user","content":"say hi"}]}`, "", &struct {
		ID string `json:"id"`
	}{}); status != 200 || err != nil {
		t.Fatal(status, err)
	}
	s.stop(syscall.SIGTERM)
	log, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(log)) {
		var l struct {
			Message string   `json:"msg"`
			Actor   string   `json:"actor"`
			Took    *float64 `json:"ms"`
			Tokens  int64    `json:"tokens"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err, line)
		}
		if strings.Contains(line, `:""`) || strings.Contains(line, `:[]`) || strings.Contains(line, `:null`) {
			t.Errorf("an empty member: %s", line)
		}
		ofRun := l.Message == "ended" && strings.HasPrefix(l.Actor, "a/")
		if (ofRun || l.Message == "model request") && l.Tokens == 0 || (ofRun || l.Message == "model request" || l.Message == "request") && l.Took == nil {
			t.Errorf("no duration or tokens: %s", line)
		}
		seen[l.Message] = true
	}
	if !seen["ended"] || !seen["model request"] || !seen["request"] {
		t.Errorf("lines are missing: %v", seen)
	}
}
