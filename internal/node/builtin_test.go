// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// openBuiltin opens a node with built-in tools, and agents of files with these texts.
func openBuiltin(t *testing.T, data string, builtin []string, texts ...string) *rememberingNode {
	t.Helper()
	return openWithPolicy(t, data, nil, builtin, texts...)
}

// openWithPolicy is openBuiltin with rules of the policy.
func openWithPolicy(t *testing.T, data string, rules []tools.Rule, builtin []string, texts ...string) *rememberingNode {
	t.Helper()
	policy, err := tools.NewPolicy(rules, "", "")
	if err != nil {
		t.Fatal(err)
	}
	n, err := Open(Config{Data: data, Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), FreeFloor: 1, WriteBuffer: 1 << 20, Keep: testKeep, Builtin: builtin, Policy: policy, Native: []actor.Definition{echo}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
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

const clerkOfWorkspace = "name = \"clerk\"\ntools = [\"workspace_get\", \"workspace_put\"]\n"

// Agents share documents over sessions and restarts, by their model; other users have others.
func TestAgentsShareWorkspace(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	both := []string{tools.WorkspaceGet, tools.WorkspacePut}
	n := openBuiltin(t, data, both, clerkOfWorkspace, "name = \"reader\"\ntools = [\"workspace_get\"]\n")
	bob := actor.NewPrincipal("bob", "")
	bob.Tenant = "bob"
	check := func(got string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("got %.500s, want %s in it", got, want)
			}
		}
	}
	check(n.say("clerk", "s-1", `use workspace_put {"key":"plans/2027","content":{"goal": "tea"},"expect_version":0}`), `"status":"created"`, `"version":1`)
	check(n.say("clerk", "s-2", `use workspace_put {"key":"plans/2027","content":{"goal":"coffee"},"expect_version":1}`), `"status":"replaced"`, `"version":2`)
	for range 2 {
		check(n.say("reader", "s-3", `use workspace_get {"key":"plans/2027"}`), `"content":{"goal":"coffee"}`, `"agent_id":"clerk"`, `"session_id":"s-2"`, `"run_id":"`, `"version":2`, `"oldest_version":1`)
		check(n.say("reader", "s-3", `use workspace_get {"key":"plans/2027","version":1}`), `"content":{"goal":"tea"}`, `"version":1`, `"current_version":2`)
		check(n.say("reader", "s-3", `use workspace_get`), `"documents":[{"key":"plans/2027","version":2,"bytes":17,"at":"20`)
		check(n.sayAs(bob, "clerk", "s-1", `use workspace_get`), `{"documents":[]}`)
		n.close()
		n = openBuiltin(t, data, both)
	}
	defer n.close()
	for instruction, want := range map[string]string{
		`use workspace_put {"key":"plans/2027","content":1,"expect_version":1}`: "the current version of plans/2027 is 2, not 1",
		`use workspace_put {"key":"plans/2027"}`:                                "content",
		`use workspace_put {"key":"a b","content":1}`:                           "want at most 128 letters",
		`use workspace_put {"key":"a","content":1,"expect_version":-1}`:         "expect_version",
		`use workspace_put {"key":"a","content":1,"expect_version":1.5}`:        "expect_version",
		`use workspace_put {"key":"a","content":1,"scope":"global"}`:            "scope",
		`use workspace_get {"key":"plans/2027","version":9}`:                    "the versions 1 to 2 of plans/2027 are kept",
		`use workspace_get {"key":"plans/2028"}`:                                "has no document",
		`use workspace_get {"version":1}`:                                       "want a key",
		`use workspace_get {"key":"plans/2027","after":"x"}`:                    "want a key",
	} {
		check(n.say("clerk", "s-4", instruction), want)
	}
	check(n.say("reader", "s-3", `use workspace_put {"key":"a","content":1}`), "not given the tool")
	check(n.sayAs(bob, "clerk", "s-1", `use workspace_put {"key":"plans/2027","content":"of bob","expect_version":0}`), `"status":"created"`)
	check(n.say("clerk", "s-4", `use workspace_put {"key":"plans/2027","content":null}`), `"status":"removed"`, `"version":3`)
	check(n.say("clerk", "s-4", `use workspace_get`), `{"documents":[]}`)
	check(n.sayAs(bob, "clerk", "s-1", `use workspace_get {"key":"plans/2027"}`), `"content":"of bob"`)
}

// A call that is repeated after a crash writes no second version, and undoes none that was written since.
func TestRepeatedPutIsPerformedOnce(t *testing.T) {
	n := openBuiltin(t, filepath.Join(t.TempDir(), "data"), nil)
	defer n.close()
	call := func(number byte, input string) string {
		by := engine.ToolCall{ID: runs.ToolCallID{Run: actor.CallID{number}, Step: 1}, Call: actor.Call{ID: actor.CallID{number}, To: testBy.ID("clerk", "s-1"), Principal: "alice"}}
		got, err := workspacePut(t.Context(), n.Commands, &by, []byte(input))
		if err != nil {
			t.Fatal(err)
		}
		return string(got)
	}
	first := call(1, `{"key":"a","content":"first","expect_version":0}`)
	if got := call(1, `{"key":"a","content":"first","expect_version":0}`); got != first || !strings.Contains(got, `"version":1`) {
		t.Errorf("the repeat got %s, and the call %s", got, first)
	}
	call(2, `{"key":"a","content":"second"}`)
	if got := call(1, `{"key":"a","content":"first","expect_version":0}`); got != first {
		t.Errorf("the late repeat got %s", got)
	}
	items, err := n.stateOf(t.Context(), agents.WorkspaceID(testBy.Tenant))
	if err != nil {
		t.Fatal(err)
	}
	if got, refusal := agents.WorkspaceDocument(items, "a", 0); refusal != nil || !strings.Contains(string(got), `"second"`) || !strings.Contains(string(got), `"version":2`) {
		t.Errorf("%s %v", got, refusal)
	}
}

// Of changes that expect the same version one is performed, and agents that repeat a refused change lose none.
func TestConcurrentPutsHaveOneWinner(t *testing.T) {
	n := openBuiltin(t, filepath.Join(t.TempDir(), "data"), nil)
	defer n.close()
	const writers, each = 8, 5
	var work sync.WaitGroup
	var conflicts atomic.Int64
	for writer := range writers {
		work.Go(func() {
			use := func(perform builtin, step int, input string) (string, error) {
				id := actor.CallID{byte(writer + 1)}
				by := engine.ToolCall{ID: runs.ToolCallID{Run: id, Step: uint32(step)}, Call: actor.Call{ID: id, To: testBy.ID("clerk", "s-1"), Principal: "alice"}}
				got, err := perform(t.Context(), n.Commands, &by, []byte(input))
				return string(got), err
			}
			step := 0
			for done := 0; done < each; step++ {
				var doc struct {
					Version uint64 `json:"current_version"`
					Content int    `json:"content"`
				}
				if got, err := use(workspaceGet, 0, `{"key":"n"}`); err == nil {
					if err := json.Unmarshal([]byte(got), &doc); err != nil {
						t.Error(err)
						return
					}
				}
				_, err := use(workspacePut, step, fmt.Sprintf(`{"key":"n","content":%d,"expect_version":%d}`, doc.Content+1, doc.Version))
				var r *actor.Refusal
				switch {
				case err == nil:
					done++
				case errors.As(err, &r) && r.Field == "expect_version":
					conflicts.Add(1)
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	items, err := n.stateOf(t.Context(), agents.WorkspaceID(testBy.Tenant))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`"content":%d`, writers*each)
	if got, refusal := agents.WorkspaceDocument(items, "n", 0); refusal != nil || !strings.Contains(string(got), want) || !strings.Contains(string(got), fmt.Sprintf(`"version":%d,`, writers*each)) {
		t.Errorf("%s %v, want %s after %d conflicts", got, refusal, want, conflicts.Load())
	}
	if conflicts.Load() == 0 {
		t.Error("no two changes met")
	}
}

// The content of a removed document is in no file once the log was cut.
func TestRemovedDocumentLeavesTheFiles(t *testing.T) {
	const sentinel = "p4w8rt6yq2zk9xv3nd7hc5"
	data := filepath.Join(t.TempDir(), "data")
	n := openBuiltin(t, data, nil)
	put := func(step uint32, input string) {
		t.Helper()
		by := engine.ToolCall{ID: runs.ToolCallID{Run: actor.CallID{1}, Step: step}, Call: actor.Call{ID: actor.CallID{1}, To: testBy.ID("clerk", "s-1"), Principal: "alice"}}
		if _, err := workspacePut(t.Context(), n.Commands, &by, []byte(input)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint32(3) {
		put(i, fmt.Sprintf(`{"key":"a","content":"version %d of %s"}`, i, sentinel))
	}
	put(3, `{"key":"b","content":"stays"}`)
	n.close()
	n = openBuiltin(t, data, nil)
	if len(filesWith(t, data, sentinel)) == 0 {
		t.Fatal("the test cannot fail: no file holds the text")
	}
	put(4, `{"key":"a","content":null}`)
	n.Retain(t.Context(), n.engine.Now().Add(2*testKeep))
	if err := n.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found := filesWith(t, data, sentinel); len(found) > 0 {
		t.Errorf("%v hold it", found)
	}
	n.close()
	if found := filesWith(t, data, sentinel); len(found) > 0 {
		t.Errorf("closed: %v hold it", found)
	}
	n = openBuiltin(t, data, nil)
	defer n.close()
	items, err := n.stateOf(t.Context(), agents.WorkspaceID(testBy.Tenant))
	if err != nil {
		t.Fatal(err)
	}
	if got, refusal := agents.WorkspaceDocument(items, "b", 0); refusal != nil || !strings.Contains(string(got), "stays") {
		t.Errorf("%s %v", got, refusal)
	}
}

// Without the configuration no agent has the tools, and an unknown one does not open.
func TestBuiltinToolsAreOffByDefault(t *testing.T) {
	n := openBuiltin(t, filepath.Join(t.TempDir(), "data"), nil)
	defer n.close()
	spec, err := agents.ReadTOML(clerkOfWorkspace)
	if err != nil {
		t.Fatal(err)
	}
	if _, warnings, err := n.PutAgent(t.Context(), spec); err != nil || len(warnings) == 0 || !strings.Contains(warnings[0], "[builtin] tools of the configuration switches on workspace_get, workspace_put") {
		t.Errorf("warnings %v, error %v", warnings, err)
	}
	if got := n.say("clerk", "s-1", `use workspace_get`); !strings.Contains(got, "not given the tool") {
		t.Errorf("the agent was offered the tool: %s", got)
	}
	if _, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Builtin: []string{"workspace_gte"}}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "did you mean workspace_get") {
		t.Errorf("an unknown tool: %v", err)
	}
}
