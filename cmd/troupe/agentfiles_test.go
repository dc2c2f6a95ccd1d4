// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

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
	for i := range agents.FormerPerAgentMax + 1 {
		if _, _, err := n.PutAgent(t.Context(), spec(fmt.Sprintf(`{"name":"helper","prompt":"%d"}`, i))); err != nil {
			t.Fatal(i, err)
		}
	}
	before, _ := n.Agent("helper")
	files := &agentFiles{Agents: []agentFile{{Path: "helper.toml", Spec: spec(`{"name":"helper","prompt":"again"}`)}, {Path: "other.toml", Spec: spec(`{"name":"other"}`)}}}
	if err := files.apply(n, log); err != nil {
		t.Error(err)
	}
	if now, _ := n.Agent("helper"); now.Hash() != before.Hash() {
		t.Error("agent helper changed; want the definition before")
	}
	if _, there := n.Agent("other"); !there {
		t.Error("agent other is missing; want the remaining files applied")
	}
}
