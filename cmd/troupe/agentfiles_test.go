// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/internal/service"
)

// An agent that the registry refuses to change keeps its definition, and the node
// starts.
func TestAgentFileChangedTooOftenIsSkipped(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	n, err := node.Open(node.Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", WriteBuffer: 1 << 20, Limits: dispatcher.DefaultLimits()}, log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	spec := func(text string) agents.Spec {
		spec, err := agents.ReadJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return spec
	}
	if _, _, err := n.PutAgent(t.Context(), spec(`{"name":"helper"}`)); err != nil {
		t.Fatal(err)
	}
	before, _ := n.Agent("helper")
	files := &service.AgentFiles{Agents: []service.AgentFile{{Path: "helper.toml", Spec: spec(`{"name":"helper","prompt":"again"}`)}, {Path: "other.toml", Spec: spec(`{"name":"other"}`)}}}
	if err := files.Apply(busyRegistry{n}, log); err != nil {
		t.Error(err)
	}
	if now, _ := n.Agent("helper"); now.Hash() != before.Hash() {
		t.Error("agent helper changed; want the definition before")
	}
	if _, there := n.Agent("other"); !there {
		t.Error("agent other is missing; want the remaining files applied")
	}
}

// busyRegistry is a node whose registry refuses to change the agent helper.
type busyRegistry struct{ *node.Node }

func (b busyRegistry) PutAgent(ctx context.Context, spec agents.Spec) (bool, []string, error) {
	if spec.ID == "helper" {
		return false, nil, actor.RefuseBusy(actor.ScopeCallee, time.Hour, "open runs need all former definitions")
	}
	return b.Node.PutAgent(ctx, spec)
}

// An agent of a client with another durability does not prevent a start with a file of
// that agent, whether the agent has an open run, has none, or was deleted. The open run
// ends as it began.
func TestAgentOfClientDoesNotBlockAgentFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir, "--pace", "1m")
	for _, body := range []string{`{"name":"a","durability":"none"}`, `{"name":"b"}`, `{"name":"c","durability":"none"}`} {
		s.putAgent(body)
	}
	if status, err := s.request("DELETE", "/v1/agents/c", "", "", new(any)); status != 200 {
		t.Fatalf("%d %v", status, err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = s.request("POST", "/v1/agents/b/messages", `{"content":"x"}`, "", new(any)) // ends with the server
	}()
	var b struct {
		Actors []struct {
			Turns []struct {
				Run string `json:"run_id"`
			} `json:"turns"`
		} `json:"actors"`
	}
	waitUntil(t, "the run to start", func() bool {
		_, err := s.request("GET", "/v1/agents/b", "", "", &b)
		return err == nil && len(b.Actors) == 1 && len(b.Actors[0].Turns) == 1
	})
	s.stop(syscall.SIGKILL)
	<-sent

	files := writeFiles(t, ">> a.toml\nname = \"a\"\n>> b.toml\nname = \"b\"\ndurability = \"none\"\n>> c.toml\nname = \"c\"")
	s = startServer(t, dir, "--agents", files)
	for id, want := range map[string]string{"a": "journaled", "b": "none", "c": "journaled"} {
		var agent struct {
			Spec struct {
				Durability string `json:"durability"`
			} `json:"spec"`
		}
		if status, err := s.request("GET", "/v1/agents/"+id, "", "", &agent); status != 200 || agent.Spec.Durability != want {
			t.Errorf("%s: %d %v, durability %s, want %s", id, status, err, agent.Spec.Durability, want)
		}
		if status, reply := s.call(id, "y"); status != 200 {
			t.Errorf("call of %s: %d %+v", id, status, reply)
		}
	}
	waitUntil(t, "the open run to end", func() bool {
		var state struct {
			Status string `json:"status"`
		}
		_, err := s.request("GET", "/v1/runs/"+b.Actors[0].Turns[0].Run, "", "", &state)
		return err == nil && state.Status == "DONE"
	})
}

// At a start a file replaces changes made at the running server, and the log names each agent that loses something. A
// step of a workflow without an owner yet is a warning.
func TestFilesWinAtStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	const flow = ">> flow.toml\nname = \"flow\"\nkind = \"orchestrator\"\nprompt = 'on letter say {\"primary_intent\":\"letter\",\"intent_confidence\":1,\"workflow\":\"w\"}'\n" +
		"[workflow.w]\ndescription = \"a letter\"\n[[workflow.w.steps]]\ntitle = \"Letter\"\ncapability = \"EXT_ONE\"\n"
	const helper = ">> helper.toml\nname = \"helper\"\n[[provides]]\ncode = \"HLP_SAY\"\ndescription = \"Says.\"\n"
	logged := func(s *server, want string) {
		t.Helper()
		if text, err := os.ReadFile(s.log); err != nil || strings.Count(string(text), want) != 1 {
			t.Errorf("%v: want once %s in\n%s", err, want, text)
		}
	}
	files := writeFiles(t, flow+helper)
	s := startServer(t, dir, "--agents", files)
	logged(s, "agent flow: workflow.w: step 1: no agent provides EXT_ONE, so the step fails until one does")
	if status, reply := s.call("flow", "a letter"); status != 200 || !strings.Contains(fmt.Sprint(reply), "Letter: Could not be completed: it is not available now.") {
		t.Errorf("got %d %+v", status, reply)
	}
	s.putAgent(`{"name":"b1"}`)
	s.putAgent(`{"name":"ZZZ"}`)
	s.useAdminKey(dir)
	for path, body := range map[string]string{"PUT /v1/capabilities/HLP_SAY": `{"description":"Says both.","owner_agents":["helper","b1"]}`, "POST /v1/agents": `{"name":"adm3","code":"HLP"}`} {
		method, path, _ := strings.Cut(path, " ")
		if status, err := s.request(method, path, body, "", new(any)); status/100 != 2 || err != nil {
			t.Fatal(path, status, err)
		}
	}
	var refused struct {
		Detail string `json:"detail"`
	}
	if status, err := s.request("POST", "/v1/agents", `{"name":"zop","code":"ZZZ"}`, "", &refused); status != 403 || !strings.Contains(refused.Detail, "code ZZZ is the name of agent ZZZ: delete that agent first") {
		t.Errorf("got %d %v %s", status, err, refused.Detail)
	}
	s.stop(syscall.SIGTERM)
	s = startServer(t, dir, "--agents", files) // unchanged
	logged(s, "has lost its capability HLP_SAY: a file declares that for the agent helper")
	s.stop(syscall.SIGTERM)
	s = startServer(t, dir, "--agents", writeFiles(t, strings.Replace(helper, "[[", "code = \"HLP\"\n[[", 1)+">> zop.toml\nname = \"zop\"\ncode = \"ZZZ\"\n"))
	logged(s, "has lost its code HLP: a file declares that for the agent helper")
	logged(s, "was removed: its ID is the code of the agent zop, which a file declares")
	s.stop(syscall.SIGTERM)
}
