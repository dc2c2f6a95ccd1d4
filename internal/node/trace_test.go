// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
)

func TestTraceCountsLostEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.ndjson")
	var log bytes.Buffer
	trace, err := openTrace(path, "n1", dispatcher.DefaultLimits(), []actor.Definition{{Name: "ana"}}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	record := trace.recorder()
	record([]history.Event{{Kind: history.Sync, At: 1}})
	record(make([]history.Event, tracePendingMax)) // exceeds the limit whether or not the first event was flushed
	record([]history.Event{{Kind: history.Sync, At: 2}})
	if err := trace.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var header history.TraceHeader
	if err := json.Unmarshal([]byte(lines[0]), &header); err != nil || header.Trace != history.TraceVersion || header.Agents[0].Name != "ana" {
		t.Errorf("header: got %s, error %v", lines[0], err)
	}
	if len(lines) < 2 || !strings.Contains(lines[1], `"kind":"Sync","at":1`) {
		t.Fatalf("first event: want a Sync at 1, got %q", lines)
	}
	missing := 0
	for _, line := range lines[1:] {
		var lost struct{ Lost int }
		if err := json.Unmarshal([]byte(line), &lost); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		missing += lost.Lost
	}
	if written := len(lines) - 2; missing == 0 && written < tracePendingMax || missing > 0 && !strings.Contains(log.String(), "trace incomplete") {
		t.Errorf("%d lines, %d missing, log %s", len(lines), missing, &log)
	}
}

func TestTraceNamesLaterAgents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.ndjson")
	trace, err := openTrace(path, "n1", dispatcher.DefaultLimits(), []actor.Definition{{Name: "ana"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	trace.addAgents([]actor.Definition{{Name: "cleo"}, {Name: "ana"}, {Name: "bob", Turns: actor.Interleaved}})
	trace.addAgents([]actor.Definition{{Name: "cleo"}, {Name: "ana"}})
	trace.recorder()([]history.Event{{Kind: history.Sync, At: 1}})
	if err := trace.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(text), `"agents":[{"name":"ana"}]}`+"\n"+`{"agents":[{"name":"bob","interleaved":true},{"name":"cleo"}]}`+"\n"+`{"kind":"Sync","at":1,"cell":0}`+"\n") {
		t.Errorf("want bob and cleo before the event, got %s", text)
	}
}

func TestNilTraceHasNoRecorder(t *testing.T) {
	var none *traceFile
	if none.recorder() != nil || none.Close() != nil {
		t.Error("nil trace: want no recorder and no error")
	}
}
