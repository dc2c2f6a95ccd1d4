// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
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
	for range toolScansMax {
		n.scans <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = metricsQuery(ctx, n.Commands, &engine.ToolCall{Call: actor.Call{To: alice.ID("watch", "s-2")}}, []byte(`{}`))
	var r *actor.Refusal
	if !errors.As(err, &r) || r.Reason != actor.Busy {
		t.Errorf("while others read: %v", err)
	}
}
