// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/memory"
)

// memoryServer starts a server whose agents remember.
func memoryServer(t *testing.T, data string) *server {
	t.Helper()
	config := filepath.Join(filepath.Dir(data), "memory.toml")
	if err := os.WriteFile(config, []byte("write_buffer_mib = 1\n\n[memory]\nenabled = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return startServer(t, data, "--config", config, "--agents", writeFiles(t, clerk))
}

// clerk is an agent that remembers; a tool of its memory is also listed by name.
const clerk = ">> clerk.toml\nname = \"clerk\"\ntools = [\"memory_search\", \"call_agent\"]\nmemory = {search = true, create = true, forget = true, scope = \"workspace\"}\n"

// An agent that remembers is without fault, unless the configuration switches memory off.
func TestCheckOfMemory(t *testing.T) {
	files, config := writeFiles(t, clerk), filepath.Join(t.TempDir(), "c.toml")
	for text, want := range map[string]string{"": "warnings=0", "[memory]\nenabled = true\n": "warnings=0", "[models]\n": "memory: the configuration does not switch memory on"} {
		args := []string{"check", files}
		if text != "" {
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--config", config)
		}
		if code, out, err := runProgram(t, args...); code != 0 || !strings.Contains(out+err, want) {
			t.Errorf("%q: %d %s%s, want %s", text, code, out, err, want)
		}
	}
}

// An agent recalls across sessions, people see and forget it, and a restored backup does not bring it back.
func TestMemoryCommands(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	s := memoryServer(t, data)
	check := func(wantCode int, want string, args ...string) string {
		t.Helper()
		code, out, err := runProgram(t, args...)
		if code != wantCode || !strings.Contains(out+err, want) {
			t.Errorf("troupe %s: exit code %d\nstdout: %s\nstderr: %s\nwant %d, %q", strings.Join(args, " "), code, out, err, wantCode, want)
		}
		return out
	}
	with := func(args ...string) []string { return append(args, "--server", s.url) }
	check(0, `"status":"created"`, with("call", "clerk", `use memory_create {"entity":"Ada","content":"Ada drinks oolong","relations":[{"relation":"works_at","to":"Mill"}]}`, "--session", "s-1")...)
	check(0, "Ada drinks oolong", with("call", "clerk", `use memory_search {"query":"what does ada drink"}`, "--session", "s-2")...)
	check(0, "Ada     1      1          20", with("memory", "list")...)
	check(0, `"relation": "works_at"`, with("memory", "show", "ada")...)
	check(0, "clerk  Ada drinks oolong", with("memory", "search", "what", "drinks", "(ada", "OR", "x*")...)
	check(0, "nothing found in the scope session, after 0 changes", with("memory", "search", "ada", "--session", "s-1")...)
	if out := check(0, `"entity":"Ada","created_at":"20`, with("memory", "export")...); strings.Count(out, "\n") != 2 {
		t.Errorf("the export has lines\n%s\nwant 2", out)
	}
	check(0, "not given the tool memory_traverse", with("call", "clerk", `use memory_traverse {"from":"Ada"}`)...)
	check(1, "want session, agent, workspace or global", with("memory", "list", "--scope", "all")...)
	check(0, "", "backup", "old", "--data", data)
	check(2, "missing flags: --reason", with("memory", "forget", "Ada")...)
	check(0, "forgot Ada in the scope workspace at 20", with("memory", "forget", "Ada", "--reason", "she asked")...)
	check(1, "entity_not_found", with("memory", "show", "Ada")...)
	check(0, "nothing found", with("memory", "search", "oolong")...)
	s.stop(syscall.SIGTERM)

	backup, restored := filepath.Join(data+"-backups", "old"), filepath.Join(dir, "restored")
	check(1, "--accept-forgotten", "restore", backup, "--data", restored)
	check(0, "restored into", "restore", backup, "--data", restored, "--forgets", filepath.Join(data, "forgets.jsonl"))
	s = memoryServer(t, restored)
	check(0, "nothing found", with("memory", "search", "oolong")...)
	s.stop(syscall.SIGTERM)
	again := filepath.Join(dir, "again")
	check(0, "restored into", "restore", backup, "--data", again, "--accept-forgotten")
	s = memoryServer(t, again)
	check(0, "Ada drinks oolong", with("memory", "search", "oolong")...)
}

// memoryKills is the number of kills of TestMemorySurvivesKills.
const memoryKills = 20

// The server is killed at 20 moments while facts are remembered and forgotten. What it has acknowledged holds
// after each start: in the index, in the list, and for what is forgotten in neither.
func TestMemorySurvivesKills(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	present := map[string]string{}       // the content of each entity that was acknowledged
	open := map[string]map[string]bool{} // the possible contents of an entity whose change was not acknowledged; "" if forgotten
	n, killedInFlight := 0, 0
	for kill := range memoryKills + 1 {
		s := memoryServer(t, data)
		got := map[string]string{}
		var page struct {
			All []memory.EntityView `json:"entities"`
		}
		if status, err := s.request("GET", "/v1/memory?limit=200", "", "", &page); status != 200 || err != nil {
			t.Fatal(status, err)
		}
		for _, e := range page.All {
			got[e.Entity] = e.Facts[0].Content
		}
		for entity := range 12 {
			name := fmt.Sprintf("entity %02d", entity)
			var found memory.SearchView
			if status, err := s.request("POST", "/v1/memory/search", fmt.Sprintf(`{"query":"%02d","limit":50}`, entity), "", &found); status != 200 || err != nil {
				t.Fatal(status, err)
			}
			indexed := ""
			for _, h := range found.Hits {
				if h.Entity == name {
					indexed = h.Content
				}
			}
			want, unknown := present[name], open[name]
			if unknown == nil && got[name] != want || unknown != nil && !unknown[got[name]] || indexed != got[name] {
				t.Fatalf("seed %d, after kill %d: %s is %q in the list and %q in the index, want %q or one of %v", seed, kill, name, got[name], indexed, want, unknown)
			}
			present[name] = got[name]
			delete(open, name)
		}
		if kill == memoryKills {
			break
		}
		after := int64(rng.IntN(40))
		var acknowledged atomic.Int64
		reached := make(chan struct{})
		done := make(chan struct{})
		go func() { // ends with the server
			defer close(done)
			for {
				if acknowledged.Load() == after {
					close(reached)
				}
				n++
				name := fmt.Sprintf("entity %02d", rng.IntN(12))
				path, body, result := "/v1/memory", "", ""
				if former := present[name]; former != "" {
					path, body = "/v1/memory/forget", fmt.Sprintf(`{"entity":%q,"reason":"r"}`, name)
				} else {
					result = fmt.Sprintf("content %d of %s", n, name)
					body = fmt.Sprintf(`{"entity":%q,"content":%q}`, name, result)
				}
				status, err := s.request("POST", path, body, "", new(any))
				if err != nil {
					open[name] = map[string]bool{present[name]: true, result: true}
					return
				}
				if status != 200 {
					t.Errorf("%s %s: %d", path, body, status)
					return
				}
				present[name] = result
				acknowledged.Add(1)
			}
		}()
		<-reached
		s.stop(syscall.SIGKILL)
		<-done
		killedInFlight += len(open)
	}
	t.Logf("seed %d: %d changes, %d of %d kills met one under way", seed, n, killedInFlight, memoryKills)
	if killedInFlight < memoryKills/2 {
		t.Errorf("%d of %d kills met a change under way", killedInFlight, memoryKills)
	}
	forgets, err := os.ReadFile(filepath.Join(data, "forgets.jsonl"))
	if err != nil || len(forgets) == 0 || json.Unmarshal(forgets[:strings.IndexByte(string(forgets), '\n')], new(map[string]string)) != nil {
		t.Errorf("the file of forgets has %d bytes, error %v", len(forgets), err)
	}
}
