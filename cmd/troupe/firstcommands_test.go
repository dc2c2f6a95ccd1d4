// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// firstCommands are the commands with which the project was first described. They
// must work as they are, but for the port, which the test chooses.
const firstCommands = `
# Create two agents
curl -X POST http://localhost:8283/v1/agents -d '{"name": "helper"}'
curl -X POST http://localhost:8283/v1/agents -d '{"name": "coordinator"}'

# Coordinator calls helper (via LLM tool use)
curl -X POST http://localhost:8283/v1/agents/{coordinator-id}/messages \
  -d '{"content": "Ask the helper agent for assistance"}'
`

// The first commands create two agents that need no configuration, and one of them
// calls the other.
func TestFirstCommands(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	_, port, _ := strings.Cut(strings.TrimPrefix(s.url, "http://"), ":")
	curl := regexp.MustCompile(`curl -X (POST) (\S+)(?: \\\n)?\s+-d '([^']*)'`)
	all := curl.FindAllStringSubmatch(firstCommands, -1)
	if len(all) != strings.Count(firstCommands, "curl") {
		t.Fatalf("%d of the commands are understood", len(all))
	}
	ids := map[string]string{}
	var last messageReply
	for _, c := range all {
		url := strings.Replace(c[2], ":8283/", ":"+port+"/", 1)
		url = strings.Replace(url, "{coordinator-id}", ids["coordinator"], 1)
		r, err := http.NewRequest(c[1], url, strings.NewReader(c[3]))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded") // as curl -d sends it
		r.Header.Set("Accept", "*/*")
		r.Header.Set("User-Agent", "curl/8.5.0")
		response, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode >= 300 {
			t.Fatalf("%s: %d %s, %v", c[0], response.StatusCode, body, err)
		}
		var agent struct {
			ID   string `json:"agent_id"`
			Name string `json:"name"`
		}
		last = messageReply{}
		if json.Unmarshal(body, &agent) != nil || json.Unmarshal(body, &last) != nil || agent.ID == "" {
			t.Fatalf("%s: %s", c[0], body)
		}
		ids[agent.Name] = agent.ID
	}
	code, out, message := runProgram(t, "runs", "show", last.Run, "--tree", "--server", s.url)
	if code != 0 || !bytes.Contains([]byte(out), []byte("└─ helper/"+last.Session+"  DONE")) {
		t.Errorf("exit code %d, %s%s\nwant a call of the helper", code, out, message)
	}
}
