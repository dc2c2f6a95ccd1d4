// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/memory"
)

// rememberingNode is a node with memory and an agent clerk that may use all of it.
type rememberingNode struct {
	*Node
	t *testing.T
}

// echo answers at once.
var echo = agents.Define("echo", "1", "Answers.", agents.Pure(agents.Config{Name: "echo", Version: "1"}, func(agents.Config, agents.State) (agents.Action, error) {
	return agents.Complete("hi"), nil
}))

func openRemembering(t *testing.T, data string) *rememberingNode {
	t.Helper()
	n, err := Open(Config{Data: data, Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), FreeFloor: 1, WriteBuffer: 1 << 20, Memory: true, Keep: testKeep, Native: []actor.Definition{echo}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"name = \"clerk\"\nmemory = {search = true, create = true, traverse = true, forget = true, scope = [\"workspace\", \"session\", \"agent\", \"global\"]}\n",
		"name = \"reader\"\nmemory = {search = true, scope = \"session\"}\n",
	} {
		spec, err := agents.ReadTOML(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := n.PutAgent(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	return &rememberingNode{n, t}
}

func (n *rememberingNode) close() {
	n.t.Helper()
	if err := n.Close(n.t.Context()); err != nil {
		n.t.Error(err)
	}
}

// say has an agent follow an instruction and returns its answer.
func (n *rememberingNode) say(agent, session, instruction string) string {
	n.t.Helper()
	return n.sayAs(testBy, agent, session, instruction)
}

// sayAs is say for a principal.
func (n *rememberingNode) sayAs(by actor.Principal, agent, session, instruction string) string {
	n.t.Helper()
	a, err := n.Invoke(n.t.Context(), command.Invoke{By: by, Call: actor.Call{ID: n.NewCallID(), To: by.ID(agent, session), Principal: by.User, Parts: actor.Text(instruction)}}, nil)
	if err != nil || a.Reply.Refusal != nil {
		n.t.Fatal(err, a.Reply.Refusal)
	}
	return actor.TextOf(a.Reply.Parts)
}

func (n *rememberingNode) change(by actor.Principal, scope memory.Scope, key, operation string, c memory.Change) (memory.ChangeView, *actor.Refusal) {
	n.t.Helper()
	id, err := scope.ID(by.Tenant, key)
	if err != nil {
		n.t.Fatal(err)
	}
	a, err := n.Invoke(n.t.Context(), command.Invoke{By: by, Call: actor.Call{ID: n.NewCallID(), To: id, Operation: operation, Principal: by.User,
		Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: c.Encode()}}}}, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	var v memory.ChangeView
	if a.Reply.Refusal == nil {
		if err := json.Unmarshal(a.Reply.Parts[0].Bytes, &v); err != nil {
			n.t.Fatal(err)
		}
	}
	return v, a.Reply.Refusal
}

func (n *rememberingNode) find(by actor.Principal, q command.MemoryQuery) (string, error) {
	m, err := command.Find(n.t.Context(), n.Node, by, q)
	return string(m.JSON), err
}

func (n *rememberingNode) search(scope memory.Scope, key, words string) string {
	n.t.Helper()
	found, err := n.find(testBy, command.MemoryQuery{Kind: command.MemorySearch, Scope: string(scope), Key: key, Text: words})
	if err != nil {
		n.t.Fatal(err)
	}
	return found
}

// An agent remembers in one session and recalls in another, also after a restart; what it forgets is gone.
func TestAgentRecallsAcrossSessionsAndForgets(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	n := openRemembering(t, data)
	if got := n.say("clerk", "s-1", `use memory_create {"entity":"Ada","content":"Ada drinks oolong","relations":[{"relation":"works_at","to":"Mill"}]}`); !strings.Contains(got, `"created"`) {
		t.Errorf("create answered %s", got)
	}
	recall := func(what string) {
		got := n.say("clerk", "s-2", `use memory_search {"query":"what does ada drink"}`)
		for _, want := range []string{"Ada drinks oolong", `"run_id"`, `"session_id":"s-1"`, `"agent_id":"clerk"`, `"valid_from"`, `"position":1`} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: the search answered %s, want %s in it", what, got, want)
			}
		}
		if got := n.say("clerk", "s-2", `use memory_traverse {"from":"ada","depth":3}`); !strings.Contains(got, `"entity":"Mill"`) {
			t.Errorf("%s: the traversal answered %s", what, got)
		}
	}
	recall("before the restart")
	n.close()
	n = openRemembering(t, data)
	recall("after it")
	if got := n.say("clerk", "s-2", `use memory_create {"entity":"Ada","content":"Ada drinks green oolong"}`); !strings.Contains(got, `"similar":[{"entity":"Ada"`) {
		t.Errorf("a near match is not reported: %s", got)
	}
	if got := n.say("clerk", "s-3", `use memory_forget {"entity":"Ada","reason":"asked"}`); !strings.Contains(got, `"forgotten"`) {
		t.Errorf("forget answered %s", got)
	}
	if got := n.say("clerk", "s-2", `use memory_search {"query":"oolong","superseded":true}`); strings.Contains(got, "drinks") {
		t.Errorf("found after it was forgotten: %s", got)
	}
	n.close()
	n = openRemembering(t, data)
	if got := n.search(memory.Workspace, "", "oolong"); strings.Contains(got, "oolong") {
		t.Errorf("found after a restart: %s", got)
	}
	n.close()
}

func TestScopesAndPermissions(t *testing.T) {
	n := openRemembering(t, filepath.Join(t.TempDir(), "data"))
	defer n.close()
	operator := actor.NewPrincipal("alice", "k-1", string(ingress.ScopeOperator))
	bob := actor.NewPrincipal("bob", "")
	bob.Tenant = "bob"
	if _, r := n.change(testBy, memory.Global, "", memory.OpCreate, memory.Change{Entity: "Office", Content: "opens at nine"}); r == nil || r.Reason != actor.Rejected {
		t.Errorf("a user wrote the global scope: %v", r)
	}
	if _, r := n.change(operator, memory.Global, "", memory.OpCreate, memory.Change{Entity: "Office", Content: "opens at nine"}); r != nil {
		t.Error(r)
	}
	if got, err := n.find(bob, command.MemoryQuery{Kind: command.MemorySearch, Scope: "global", Text: "nine"}); err != nil || !strings.Contains(got, "opens at nine") {
		t.Errorf("another user reads the global scope: %s %v", got, err)
	}
	if _, r := n.change(testBy, memory.Workspace, "", memory.OpCreate, memory.Change{Entity: "Plan", Content: "is secret"}); r != nil {
		t.Error(r)
	}
	if got, err := n.find(bob, command.MemoryQuery{Kind: command.MemorySearch, Scope: "workspace", Text: "secret"}); err != nil || strings.Contains(got, "secret") {
		t.Errorf("another user reads the workspace: %s %v", got, err)
	}
	id, _ := memory.Workspace.ID(actor.DefaultTenant, "")
	if a, err := n.Invoke(t.Context(), command.Invoke{By: bob, Call: actor.Call{ID: n.NewCallID(), To: id, Operation: memory.OpForget,
		Parts: []actor.Part{{Bytes: (&memory.Change{Entity: "Plan", Reason: "x"}).Encode()}}}}, nil); err != nil || a.Reply.Refusal == nil {
		t.Errorf("another user forgets in the workspace: %v %v", a, err)
	}
	for instruction, want := range map[string]string{
		`use memory_create {"entity":"x","content":"y"}`:                                 "not given the tool memory_create",
		`use memory_search {"query":"secret","scope":"workspace"}`:                       "is not granted to agent reader, which has session",
		`use memory_search {"query":"secret"}`:                                           `"hits":[]`,
		`use memory_search {"query":"x","limit":51}`:                                     "limit",
		`use memory_search {"query":"x","from":"y"}`:                                     "from",
		`use memory_search {"query":"` + strings.Repeat("x", 1025) + `"}`:                "query",
		`use memory_search {"query":"NEAR(a b) OR \"c* : ^ {} - secret","superseded":1}`: "superseded",
	} {
		if got := n.say("reader", "s-1", instruction); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s in it", instruction, got, want)
		}
	}
	for instruction, want := range map[string]string{
		`use memory_create {"entity":"Office","content":"y","scope":"global"}`:            "written by operators",
		`use memory_search {"query":"nine","scope":"global"}`:                             "opens at nine",
		`use memory_traverse {"from":"Plan","depth":9}`:                                   "depth",
		`use memory_traverse {"from":"Nobody"}`:                                           "nothing is remembered",
		`use memory_create {"entity":"` + strings.Repeat("x", 1<<15) + `","content":"y"}`: "entity",
	} {
		if got := n.say("clerk", "s-1", instruction); !strings.Contains(got, want) {
			t.Errorf("%s: %.300s, want %s in it", instruction, got, want)
		}
	}
}

// The memory of a session is deleted with it.
func TestSessionMemoryIsDeletedWithIt(t *testing.T) {
	n := openRemembering(t, filepath.Join(t.TempDir(), "data"))
	defer n.close()
	n.say("clerk", "s-1", `use memory_create {"entity":"Ada","content":"drinks oolong","scope":"session"}`)
	if got := n.search(memory.Session, "s-1", "oolong"); !strings.Contains(got, "drinks oolong") {
		t.Fatal(got)
	}
	if err := n.Forget(t.Context(), command.Forget{By: testBy, Session: "s-1"}); err != nil {
		t.Fatal(err)
	}
	_, err := n.find(testBy, command.MemoryQuery{Kind: command.MemorySearch, Scope: "session", Key: "s-1", Text: "oolong"})
	var r *actor.Refusal
	if !errors.As(err, &r) || r.Reason != actor.NotFound {
		t.Errorf("a search in the deleted session: %v, want NotFound", err)
	}
}

// filesWith returns the files of a folder that hold a text.
func filesWith(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) { // a file of the store that is no longer needed
			return nil
		}
		if bytes.Contains(b, []byte(text)) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A forgotten text is in no file once the log was cut.
func TestForgottenTextLeavesTheFiles(t *testing.T) {
	const sentinel = "q7x9zk2mw4vb8nj5hd3tf6"
	data := filepath.Join(t.TempDir(), "data")
	n := openRemembering(t, data)
	for _, name := range []string{"Ada", "Bob " + sentinel, "Carol"} {
		if _, r := n.change(testBy, memory.Workspace, "", memory.OpCreate, memory.Change{Entity: name, Content: "knows " + sentinel + " of " + name,
			Relations: []memory.RelationTo{{Name: "knows", To: "Dan " + sentinel}}}); r != nil {
			t.Fatal(r)
		}
	}
	n.close()
	n = openRemembering(t, data)
	if len(filesWith(t, data, sentinel)) == 0 {
		t.Fatal("the test cannot fail: no file holds the text")
	}
	for _, name := range []string{"Ada", "Bob " + sentinel, "Carol", "Dan " + sentinel} {
		if _, r := n.change(testBy, memory.Workspace, "", memory.OpForget, memory.Change{Entity: name, Reason: "asked"}); r != nil {
			t.Fatal(r)
		}
	}
	n.Retain(t.Context(), n.engine.Now().Add(2*testKeep))
	if err := n.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n.search(memory.Workspace, "", sentinel); strings.Contains(got, "content") {
		t.Errorf("the index holds it: %s", got)
	}
	if found := filesWith(t, data, sentinel); len(found) > 0 {
		t.Errorf("open: %v hold it", found)
	}
	n.close()
	if found := filesWith(t, data, sentinel); len(found) > 0 {
		t.Errorf("closed: %v hold it", found)
	}
}

// A store from a backup that is older than a forget forgets again.
func TestRestoredStoreForgetsAgain(t *testing.T) {
	dir := t.TempDir()
	data, backup := filepath.Join(dir, "data"), filepath.Join(dir, "copy")
	n := openRemembering(t, data)
	for _, name := range []string{"Ada", "Bob"} {
		n.change(testBy, memory.Workspace, "", memory.OpCreate, memory.Change{Entity: name, Content: "drinks oolong"})
	}
	n.close()
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	n = openRemembering(t, data)
	if _, r := n.change(testBy, memory.Workspace, "", memory.OpForget, memory.Change{Entity: "Ada", Reason: "asked"}); r != nil {
		t.Fatal(r)
	}
	n.change(testBy, memory.Workspace, "", memory.OpForget, memory.Change{Entity: "Bob", Reason: "asked"})
	n.change(testBy, memory.Workspace, "", memory.OpCreate, memory.Change{Entity: "Bob", Content: "drinks water"})
	n.close()
	forgets, err := ReadForgets(filepath.Join(data, ForgetsFile))
	if err != nil || bytes.Count(forgets, []byte("\n")) != 2 || bytes.Contains(forgets, []byte("Ada")) {
		t.Fatalf("the file of forgets is %q, error %v", forgets, err)
	}
	if err := os.WriteFile(filepath.Join(backup, ForgetsRestored), forgets, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"restored", "started again"} {
		n = openRemembering(t, backup)
		if got := n.search(memory.Workspace, "", "oolong"); strings.Contains(got, "drinks") {
			t.Errorf("%s: %s", what, got)
		}
		n.close()
	}
	if _, err := os.Stat(filepath.Join(backup, ForgetsRestored)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

// What was remembered since a line of the file is kept.
func TestRepeatedForgetsKeepWhatIsNewer(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	n := openRemembering(t, data)
	n.change(testBy, memory.Workspace, "", memory.OpCreate, memory.Change{Entity: "Ada", Content: "drinks oolong"})
	n.change(testBy, memory.Workspace, "", memory.OpForget, memory.Change{Entity: "Ada", Reason: "asked"})
	n.change(testBy, memory.Workspace, "", memory.OpCreate, memory.Change{Entity: "Ada", Content: "drinks water"})
	n.close()
	forgets, _ := ReadForgets(filepath.Join(data, ForgetsFile))
	if err := os.WriteFile(filepath.Join(data, ForgetsRestored), forgets, 0o600); err != nil {
		t.Fatal(err)
	}
	n = openRemembering(t, data)
	defer n.close()
	if got := n.search(memory.Workspace, "", "water"); !strings.Contains(got, "drinks water") {
		t.Errorf("a later fact is gone: %s", got)
	}
}

// A node without memory refuses it, and an agent is not offered its tools.
func TestMemoryIsOffByDefault(t *testing.T) {
	n, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), FreeFloor: 1, WriteBuffer: 1 << 20}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := &rememberingNode{n, t}
	defer r.close()
	if _, refusal := r.change(testBy, memory.Workspace, "", memory.OpCreate, memory.Change{Entity: "a", Content: "b"}); refusal == nil || !strings.Contains(refusal.Detail, "[memory]") {
		t.Errorf("a change: %v", refusal)
	}
	if _, err := r.find(testBy, command.MemoryQuery{Scope: "workspace", Text: "a"}); err == nil || !strings.Contains(err.Error(), "[memory]") {
		t.Errorf("a search: %v", err)
	}
	spec, err := agents.ReadTOML("name = \"clerk\"\nmemory = {search = true}\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, warnings, err := n.PutAgent(t.Context(), spec); err != nil || len(warnings) == 0 || !strings.Contains(warnings[0], "memory_search") {
		t.Errorf("warnings %v, error %v", warnings, err)
	}
	if got := r.say("clerk", "s-1", `use memory_search {"query":"x"}`); !strings.Contains(got, "not given the tool") {
		t.Errorf("the agent was offered the tool: %s", got)
	}
}
