// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/node"
)

// An agent that the registry refuses to change keeps its definition, and the node
// starts.
func TestAgentFileChangedTooOftenIsSkipped(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	n, err := node.Open(node.Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Limits: dispatcher.DefaultLimits()}, log)
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
	files := &agentFiles{Agents: []agentFile{{Path: "helper.toml", Spec: spec(`{"name":"helper","prompt":"again"}`)}, {Path: "other.toml", Spec: spec(`{"name":"other"}`)}}}
	if err := files.apply(busyRegistry{n}, log); err != nil {
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
