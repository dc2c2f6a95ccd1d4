// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/tools"
)

// An agent sees how its user's runs went, and nothing of other users.
func TestMetricsAreOfOwnRuns(t *testing.T) {
	n := openBuiltin(t, filepath.Join(t.TempDir(), "data"), []string{tools.MetricsQuery}, "name = \"watch\"\ntools = [\"metrics_query\"]\n", "name = \"desk\"\n")
	defer n.close()
	alice, bob := asked("alice"), asked("bob")
	for range 3 {
		n.sayAs(alice, "desk", "s-1", "hello")
	}
	n.sayAs(alice, "echo", "s-1", "hello")
	n.sayAs(bob, "desk", "s-1", "hello")
	a, err := n.Invoke(t.Context(), command.Invoke{By: alice, Call: actor.Call{ID: n.NewCallID(), To: alice.ID("desk", "s-1"), Principal: "alice", Left: 1, Parts: actor.Text("too late")}}, nil)
	if err != nil || a.Reply.Refusal == nil {
		t.Fatal(a, err)
	}
	for _, c := range []struct {
		by           actor.Principal
		input, want  string
		wantNeverHas string
	}{
		{alice, `{"name":"runs","window":"1h"}`, `"total":{"runs":{"total":6,"done":4,"failed":1,"cancelled":0,"open":1}},"agents":[{"agent_id":"desk","runs":{"total":4,"done":3,"failed":1,"cancelled":0,"open":0}},`, "troupe"},
		{alice, `{"name":"failures"}`, `"total":{"failures":{"timeout":1}}`, "tokens"},
		{alice, ``, `{"window":"24h","from":"2`, "troupe."},
		{bob, `{"name":"runs"}`, `"total":{"runs":{"total":2,"done":1,"failed":0,"cancelled":0,"open":1}},"agents":[{"agent_id":"desk"`, "echo"},
		{alice, `{"name":"speed"}`, "name", "total"},
		{alice, `{"window":"2h"}`, "window", "total"},
		{alice, `{"user":"bob"}`, "user", "total"},
	} {
		if got := n.sayAs(c.by, "watch", "s-2", "use metrics_query "+c.input); !strings.Contains(got, c.want) || strings.Contains(got, c.wantNeverHas) {
			t.Errorf("%s for %s: %s, want %s and no %s", c.input, c.by.User, got, c.want, c.wantNeverHas)
		}
	}
}

// Uses of a tool that reads much wait for those before them, each user in turn, and the ones that wait are bounded.
func TestToolReadsAreBounded(t *testing.T) {
	var reads toolReads
	by := func(user string) *engine.ToolCall {
		p := asked(user)
		return &engine.ToolCall{Call: actor.Call{To: p.ID("watch", "s-1")}}
	}
	done, refusal := reads.begin(t.Context(), by("alice"), 1)
	if refusal != nil {
		t.Fatal(refusal)
	}
	var waiting sync.WaitGroup
	order := make(chan string, toolReadsEach+1)
	wait := func(user string, queued int) {
		waiting.Go(func() {
			done, refusal := reads.begin(t.Context(), by(user), 1)
			if refusal != nil {
				t.Error(refusal)
				return
			}
			order <- user
			done()
		})
		for reads.queue.Waiting() < queued {
			runtime.Gosched()
		}
	}
	for i := range toolReadsEach {
		wait("alice", i+1)
	}
	wait("bob", toolReadsEach+1)
	if _, refusal := reads.begin(t.Context(), by("alice"), 1); refusal == nil || refusal.Reason != actor.Busy || refusal.RetryAfter == 0 {
		t.Errorf("one too many: %v", refusal)
	}
	done()
	waiting.Wait()
	if <-order != "alice" || <-order != "bob" {
		t.Error("a user with one use waited for all of another")
	}
}
