// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
)

// toolModel is a provider whose model asks for the tool calls of its script, one
// completion after the other, and then answers "done". It records the requests.
type toolModel struct {
	*httptest.Server
	mu       sync.Mutex
	script   [][]string // tool calls of each completion: name, space, arguments
	requests []modelRequest
}

// modelRequest is the part of a request that tests read.
type modelRequest struct {
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Function struct {
			Name        string `json:"name"`
			Description string `json:"description"`
		} `json:"function"`
	} `json:"tools"`
}

// tool returns the description of a tool, and whether it is offered.
func (r modelRequest) tool(name string) (string, bool) {
	for _, t := range r.Tools {
		if t.Function.Name == name {
			return t.Function.Description, true
		}
	}
	return "", false
}

// last returns the text of the last message.
func (r modelRequest) last() string { return r.Messages[len(r.Messages)-1].Content }

// startToolModel starts a model with a script, and a server with the model "big".
func startToolModel(t *testing.T, script ...[]string) (*toolModel, *server) {
	m := &toolModel{script: script}
	m.Server = httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(m.Close)
	dir := t.TempDir()
	config := filepath.Join(dir, "troupe.toml")
	if err := os.WriteFile(config, []byte("[models.big]\nurl = \""+m.URL+"/v1\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return m, startServerWithBuiltins(t, filepath.Join(dir, "data"), "--config", config)
}

func (m *toolModel) serve(w http.ResponseWriter, r *http.Request) {
	var request modelRequest
	body, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(body, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	m.requests = append(m.requests, request)
	var calls []string
	if len(m.script) > 0 {
		calls, m.script = m.script[0], m.script[1:]
	}
	m.mu.Unlock()
	type function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	type call struct {
		Index    int      `json:"index"`
		ID       string   `json:"id"`
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	var chunk struct {
		Choices [1]struct {
			Delta struct {
				Content string `json:"content,omitzero"`
				Calls   []call `json:"tool_calls,omitempty"`
			} `json:"delta"`
			Finish string `json:"finish_reason"`
		} `json:"choices"`
	}
	c := &chunk.Choices[0]
	c.Delta.Content, c.Finish = "done", "stop"
	if len(calls) > 0 {
		c.Delta.Content, c.Finish = "", "tool_calls"
	}
	for i, text := range calls {
		name, arguments, _ := strings.Cut(text, " ")
		c.Delta.Calls = append(c.Delta.Calls, call{i, "id" + name + string(rune('0'+i)), "function", function{name, arguments}})
	}
	b, _ := json.Marshal(chunk)
	writeEvents(w, "data: "+string(b), "data: [DONE]")
}

// take returns the recorded requests and forgets them.
func (m *toolModel) take() []modelRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.requests
	m.requests = nil
	return all
}

func (m *toolModel) setScript(script ...[]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.script = script
}

// A model asks for a tool that its agent may not use and calls an agent that it may not
// call, alone and with a permitted call. The run's events show each refusal once.
func TestRefusedToolsAreEvents(t *testing.T) {
	m, s := startToolModel(t)
	s.putAgent(`{"name":"a","model":"big","agents":["helper"]}`)
	s.putAgent(`{"name":"strict","model":"big","on_failure":"fail_run"}`)
	const fly, oracle, helper = `fly {"to":"moon"}`, `call_agent {"agent_id":"oracle","message":"hi"}`, `call_agent {"agent_id":"helper","message":"hi"}`
	const flyRefused = `tool_call_created fly {"to":"moon"} /tool_result fly  a may not use a tool "fly": it has call_agent`
	const oracleRefused = `agent_call_refused oracle  a may not call "oracle": it may call helper`
	for _, c := range []struct {
		agent  string
		script [][]string
		want   string
	}{
		{"a", [][]string{{fly}}, flyRefused},
		{"a", [][]string{{oracle}}, oracleRefused},
		{"a", [][]string{{helper, fly, oracle}}, flyRefused + "/" + oracleRefused},
		{"a", [][]string{{fly}, {helper}, {oracle}}, flyRefused + "/" + oracleRefused},
		{"a", [][]string{{helper}, {helper}, {helper}}, `tool_call_created call_agent {"agent_id":"helper","message":"hi"} /tool_result call_agent  call_agent was asked for 3 times with the same input: it will not say anything else`},
		{"strict", [][]string{{fly}}, strings.ReplaceAll(flyRefused, " a may", " strict may")},
	} {
		m.setScript(c.script...)
		var got []string
		events := s.stream(c.agent, "go", nil)
		for _, e := range events {
			if p := e.Payload; e.Type == "tool_call_created" || e.Type == "tool_result" || e.Type == "agent_call_refused" {
				got = append(got, strings.Join([]string{e.Type, p.Name, p.Text, p.Error.Detail}, " "))
			}
		}
		if text := strings.Join(got, "/"); text != c.want {
			t.Errorf("%q: events\n%s\nwant\n%s", c.script, text, c.want)
		}
		if last, failed := events[len(events)-1].Type, c.agent == "strict"; last != map[bool]string{false: "run_done", true: "run_failed"}[failed] {
			t.Errorf("%q: the run ends with %s", c.script, last)
		}
	}
}

// toolResults returns the texts of the tool messages of the last request.
func (m *toolModel) toolResults() (all []string) {
	requests := m.take()
	for _, message := range requests[len(requests)-1].Messages {
		if message.Role == "tool" {
			all = append(all, message.Content)
		}
	}
	return all
}

// A model sees the agents that its own agent may call, in the order of their IDs. If
// they are too many for a description, it can list them page by page.
func TestModelSeesAgents(t *testing.T) {
	m, s := startToolModel(t)
	s.putAgent(`{"name":"Desk","agent_id":"desk","model":"big"}`)
	s.putAgent(`{"name":"tied","model":"big","agents":["Zoe","ghost"]}`)
	s.putAgent(`{"name":"Zoe","description":"Knows everything about  zebras."}`)
	s.putAgent(`{"name":"lone","model":"big","agents":[]}`)
	s.putAgent(`{"name":"mute","model":"big","tools":[]}`)
	s.registerAgent(`{"agent_id":"app","name":"The app","endpoint":"http://127.0.0.1:9","capabilities":["search","sum"]}`)
	const base = "Call another agent and wait for its answer."
	for agent, want := range map[string]string{
		"desk": base + " The agents, by agent_id:\n- Zoe: Knows everything about zebras.\n- app (The app): [search, sum]\n- coordinator: Calls the helper, waits for the signal go, then returns the reply.\n- helper: Returns its message.\n- lone\n- mute\n- tied",
		"tied": base + " The agents, by agent_id:\n- Zoe: Knows everything about zebras.",
		"lone": "",
		"mute": "",
	} {
		if status, a := s.call(agent, "hi"); status != 200 {
			t.Fatalf("%s: %d %+v", agent, status, a)
		}
		request := m.take()[0]
		if got, _ := request.tool("call_agent"); got != want {
			t.Errorf("%s: call_agent is described as\n%s\nwant\n%s", agent, got, want)
		}
		if _, ok := request.tool("list_agents"); ok {
			t.Errorf("%s: list_agents is offered", agent)
		}
	}
	seen := map[string]int{"Zoe": 0, "app": 0, "coordinator": 0, "helper": 0, "lone": 0, "mute": 0, "tied": 0}
	for i := range 60 {
		id := fmt.Sprintf("many%02d", i)
		s.putAgent(`{"name":"` + id + `","description":"` + strings.Repeat("long ", 100) + `"}`)
		seen[id] = 0
	}
	after := ""
	for pages := 1; ; pages++ {
		m.setScript([]string{`list_agents {"after":"` + after + `"}`})
		if status, a := s.call("desk", "hi"); status != 200 {
			t.Fatalf("%d %+v", status, a)
		}
		requests := m.take()
		if text, _ := requests[0].tool("call_agent"); len(text) > 5000 || !strings.Contains(text, "list_agents returns all") || !strings.Contains(text, "\n- many00: long") {
			t.Fatalf("call_agent is described as\n%s", text)
		}
		if _, ok := requests[0].tool("list_agents"); !ok {
			t.Fatal("list_agents is not offered")
		}
		var page struct {
			Agents []struct {
				ID string `json:"agent_id"`
			} `json:"agents"`
			Next string `json:"next"`
		}
		if err := json.Unmarshal([]byte(requests[1].last()), &page); err != nil || len(page.Agents) > 32 {
			t.Fatalf("%d agents, %v: %s", len(page.Agents), err, requests[1].last())
		}
		for _, a := range page.Agents {
			seen[a.ID]++
		}
		if after = page.Next; after == "" {
			if pages != 3 {
				t.Errorf("%d pages of 67 agents", pages)
			}
			break
		}
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s was listed %d times", id, n)
		}
	}
	if len(seen) != 67 {
		t.Errorf("%d agents listed", len(seen))
	}
}

// A call names its target by ID or by a unique name. Cycles and the list of permitted
// agents are checked with the ID.
func TestCallAgentByUniqueName(t *testing.T) {
	m, s := startToolModel(t)
	for _, body := range []string{
		`{"agent_id":"desk","name":"The Desk","model":"big"}`,
		`{"agent_id":"tied","name":"tied","model":"big","agents":["res-1","gone"]}`,
		`{"agent_id":"res-1","name":"Research / Assistant"}`,
		`{"agent_id":"twin-1","name":"Twin"}`, `{"agent_id":"twin-2","name":"Twin"}`,
		`{"agent_id":"x","name":"res-1"}`, // an ID takes precedence over a name
		`{"agent_id":"y","name":"gone"}`,  // named like a permitted agent that does not exist
	} {
		s.putAgent(body)
	}
	for _, c := range []struct{ agent, target, want, callee string }{
		{"desk", "res-1", "You said: hi", "res-1/main"},
		{"desk", "Research / Assistant", "You said: hi", "res-1/main"},
		{"desk", "Research / Assistant/s-9", "You said: hi", "res-1/s-9"},
		{"desk", "gone", "You said: hi", "y/main"},
		{"desk", "Twin", `2 agents have the name "Twin": use one agent_id of twin-1, twin-2`, ""},
		{"desk", "The Desk", "cycle", "desk"},
		{"desk", "No One", "error ", ""},
		{"desk", "troupe", "error ", "troupe"},
		{"tied", "Research / Assistant", "You said: hi", "res-1/main"},
		{"tied", "Twin", `tied may not call "Twin": it may call res-1, gone`, "Twin"},
		{"tied", "gone", "no agent is named gone", "gone"},
	} {
		arguments, _ := json.Marshal(map[string]string{"agent_id": c.target, "message": "hi"})
		m.setScript([]string{"call_agent " + string(arguments)})
		m.take()
		status, a := s.call(c.agent, "go")
		results := m.toolResults()
		if status != 200 || len(results) != 1 || !strings.Contains(results[0], c.want) {
			t.Errorf("%s calls %s: %d %+v, result %q, want %q", c.agent, c.target, status, a, results, c.want)
		}
		var record struct {
			Children []struct {
				Target string `json:"target"`
			} `json:"children"`
		}
		if _, err := s.request("GET", "/v1/runs/"+a.Run, "", "", &record); err != nil {
			t.Error(err)
		}
		callee := ""
		if len(record.Children) > 0 {
			callee = record.Children[0].Target
		}
		if callee = strings.Replace(callee, "/"+a.Session, "/main", 1); callee != c.callee {
			t.Errorf("%s calls %s: the run's record has the callee %q, want %q", c.agent, c.target, callee, c.callee)
		}
	}
}
