// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
)

// builtinConfig writes a configuration that switches built-in tools on.
func builtinConfig(t *testing.T, tools string) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "builtin.toml")
	if err := os.WriteFile(config, []byte("[builtin]\ntools = ["+tools+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

const workspaceTools = `"workspace_get", "workspace_put"`

// An agent that lists a built-in tool is without fault, unless the configuration does not switch the tool on.
func TestCheckOfBuiltinTools(t *testing.T) {
	files := writeFiles(t, ">> clerk.toml\nname = \"clerk\"\ntools = ["+workspaceTools+"]\n")
	for list, want := range map[string]string{
		workspaceTools:                    "warnings=0",
		`"workspace_get"`:                 `the configuration does not switch workspace_put on, so the agent runs without it; add "workspace_put" to tools of its table [builtin]`,
		`"workspace"`:                     `"workspace" is unknown`,
		`"workspace_get","workspace_get"`: "names workspace_get twice",
		`]` + "\nenabled = [1":            "builtin.enabled is unknown",
	} {
		if _, out, err := runProgram(t, "check", files, "--config", builtinConfig(t, list)); !strings.Contains(out+err, want) {
			t.Errorf("%s: %s%s, want %s", list, out, err, want)
		}
	}
	builder := writeFiles(t, ">> builder.toml\nname = \"builder\"\ntools = [\"agents_create\"]\n")
	if _, out, err := runProgram(t, "check", builder, "--config", builtinConfig(t, `"agents_create"`)); !strings.Contains(out+err, "builder uses agents_create: require_approval by policy of the tool") {
		t.Errorf("no decision about a built-in tool: %s%s", out, err)
	}
	own := writeFiles(t, ">> own.toml\n[tool]\ntool_name = \"agents_list\"\nurl = \"https://example.com/list\"\n")
	if _, out, err := runProgram(t, "check", own, "--config", builtinConfig(t, `"agents_list"`)); !strings.Contains(out+err, "a built-in tool named agents_list, which is used instead") {
		t.Errorf("a tool with the name of a built-in one: %s%s", out, err)
	}
	if code, out, err := runProgram(t, "check", files); code != 0 || !strings.Contains(err, "warnings=0") {
		t.Errorf("without a configuration: %s%s", out, err)
	}
}

// errNoDocument is the error of a tool call that has not returned a document.
var errNoDocument = errors.New("no document")

// workspaceKills is the number of kills of TestWorkspaceSurvivesKills.
const workspaceKills = 8

// The server is killed while agents write a document. After each start its versions are those before, an acknowledged one is what
// was written, and none was written twice.
func TestWorkspaceSurvivesKills(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	config, files := builtinConfig(t, workspaceTools), writeFiles(t, ">> clerk.toml\nname = \"clerk\"\ntools = ["+workspaceTools+"]\n")
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	type document struct {
		Version uint64 `json:"version"`
		Oldest  uint64 `json:"oldest_version"`
		Content int    `json:"content"`
	}
	use := func(s *server, tool, input string) (d document, err error) {
		var a messageReply
		body, _ := json.Marshal(map[string]string{"content": "use " + tool + " " + input})
		status, err := s.request("POST", "/v1/agents/clerk/messages", string(body), "", &a)
		if err != nil {
			return d, err
		}
		_, object, found := strings.Cut(a.Content, "{")
		if status != 200 || !found || json.Unmarshal([]byte("{"+object), &d) != nil {
			return d, fmt.Errorf("%w: %d %s", errNoDocument, status, a.Content)
		}
		return d, nil
	}
	written := map[uint64]int{} // the content of each version that was acknowledged or read
	number, unknown := 0, 0
	for kill := range workspaceKills + 1 {
		s := startServer(t, data, "--config", config, "--agents", files)
		if len(written) > 0 {
			last, err := use(s, "workspace_get", `{"key":"n"}`)
			if err != nil {
				t.Fatal(err)
			}
			seen := map[int]bool{}
			for version := last.Oldest; version <= last.Version; version++ {
				d, err := use(s, "workspace_get", fmt.Sprintf(`{"key":"n","version":%d}`, version))
				if was, known := written[version]; err != nil || known && was != d.Content || seen[d.Content] {
					t.Fatalf("seed %d, kill %d: version %d is %+v, was %d, error %v", seed, kill, version, d, was, err)
				}
				written[version], seen[d.Content] = d.Content, true
			}
			if most := uint64(number); last.Version > most || last.Version < most-uint64(unknown) {
				t.Fatalf("seed %d, kill %d: version %d after %d changes, of which %d were not acknowledged", seed, kill, last.Version, number, unknown)
			}
		}
		if kill == workspaceKills {
			break
		}
		after := int64(1 + rng.IntN(10))
		var acknowledged atomic.Int64
		reached, done := make(chan struct{}), make(chan struct{})
		go func() { // ends with the server
			defer close(done)
			for {
				number++
				d, err := use(s, "workspace_put", fmt.Sprintf(`{"key":"n","content":%d}`, number))
				if err != nil {
					if unknown++; errors.Is(err, errNoDocument) {
						continue // of a server that is busy
					}
					return
				}
				written[d.Version] = number
				if acknowledged.Add(1) == after {
					close(reached)
				}
			}
		}()
		<-reached
		s.stop(syscall.SIGKILL)
		<-done
	}
	t.Logf("seed %d: %d changes, %d not acknowledged", seed, number, unknown)
}

// An operator decides about each agent that an agent makes or deletes.
func TestOperatorApprovesNewAgents(t *testing.T) {
	const all = `"agents_create", "agents_delete", "agents_list"`
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--config", builtinConfig(t, all), "--agents", writeFiles(t, ">> builder.toml\nname = \"builder\"\ntools = ["+all+"]\n"))
	p := commandCheck{T: t, flags: []string{"--server", s.url}}
	ask := func(instruction, summary string) (approval string) {
		t.Helper()
		_, stderr := p.run(3, nil, []string{"(" + summary + ")"}, "call", "builder", instruction)
		id := approvalID.FindString(stderr)
		p.run(0, []string{`"approver": "operator"`, summary}, nil, "approvals", "show", id, "--json")
		return id
	}
	create := ask(`use agents_create {"agent_id": "tea", "prompt": "Make tea.", "tools": ["call_agent"]}`, "create or change the agent tea")
	p.run(1, nil, []string{"agent_not_found"}, "call", "tea", "hello")
	p.run(0, []string{"approved agents_create: create or change the agent tea", `"created":true`}, nil, "approvals", "approve", create)
	p.run(0, []string{"hello"}, nil, "call", "tea", "hello")
	p.run(0, []string{`"agent_id":"tea"`}, nil, "call", "builder", "use agents_list")
	p.run(0, []string{"rejected agents_delete"}, nil, "approvals", "reject", ask(`use agents_delete {"agent_id": "tea"}`, "delete the agent tea"))
	p.run(0, []string{"hello"}, nil, "call", "tea", "hello")
	p.run(0, []string{"approved agents_delete"}, nil, "approvals", "approve", ask(`use agents_delete {"agent_id": "tea"}`, "delete the agent tea"))
	p.run(1, nil, []string{"agent_not_found"}, "call", "tea", "hello")
}
