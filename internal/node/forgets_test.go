// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/prompts"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/memory"
)

// Records of a deleted session are gone up to its deletion, and those of all sessions up to the time that a shortened file
// names. What was recorded later in a session of that name stays.
func TestDeletedPromptsStayAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), ForgetsFile)
	f := &forgets{path: path, lines: -1}
	defer f.close()
	day := func(n int) time.Time { return time.Date(2026, 11, n, 0, 0, 0, 0, time.UTC) }
	gone, stays := prompts.SessionOf("alice", "gone"), prompts.SessionOf("alice", "stays")
	for i := range shortenAfter {
		if err := f.Deleted(prompts.SessionOf("alice", fmt.Sprint(i)), day(1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Deleted(gone, day(8)); err != nil {
		t.Fatal(err)
	}
	if err := f.write(actor.NewID("clerk", "s"), &memory.Change{Entity: "Ada", Reason: "asked"}); err != nil {
		t.Fatal(err)
	}
	check := func(when string, lines int, before time.Time) {
		t.Helper()
		b, err := ReadForgets(path)
		if err != nil || bytes.Count(b, []byte("\n")) != lines || bytes.Contains(b, []byte("alice")) || !bytes.Contains(b, []byte(`"reason":"asked"`)) {
			t.Fatalf("%s: got %d lines, %v, want %d", when, bytes.Count(b, []byte("\n")), err, lines)
		}
		all, err := decodeForgets(b)
		if err != nil {
			t.Fatal(err)
		}
		drops := deletedPrompts(all)
		for _, c := range []struct {
			session string
			at      time.Time
			want    bool
		}{
			{gone, day(7), true}, {gone, day(8), true}, {gone, day(8).Add(time.Millisecond), false}, {stays, day(7), false},
			{stays, day(4), !before.IsZero()}, {stays, day(5), false}, {prompts.SessionOf("alice", "7"), day(1), true},
		} {
			if got := drops(c.session, c.at); got != c.want {
				t.Errorf("%s: %s at %v: got %v, want %v", when, c.session, c.at, got, c.want)
			}
		}
	}
	check("at first", shortenAfter+2, time.Time{})
	if err := f.Expired(day(5)); err != nil {
		t.Fatal(err)
	}
	check("shortened", 3, day(5))
	for i := range shortenAfter / 2 {
		if err := f.Deleted(prompts.SessionOf("alice", fmt.Sprint(i)), day(6)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Expired(day(7)); err != nil {
		t.Fatal(err)
	}
	check("soon after", shortenAfter/2+3, day(5))
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// A file of forgets with a line that means nothing is refused.
func TestForgetsAreChecked(t *testing.T) {
	digest := strings.Repeat("0a", 12)
	for line, want := range map[string]string{
		`{"at":"2026-11-01T00:00:00.000000000Z","prompts":"` + digest + "/" + digest + `"}`:                                   "",
		`{"at":"2026-11-01T00:00:00.000000000Z","prompts":"*"}`:                                                               "",
		`{"at":"2026-11-01T00:00:00.000000000Z","actor":"clerk/s","key":"` + strings.Repeat("0a", 16) + `","reason":"asked"}`: "",
		`{"at":"now","prompts":"*"}`:                                         "line 1",
		`{"prompts":"*"}`:                                                    "line 1",
		`{"at":"2026-11-01T00:00:00.000000000Z"}`:                            "line 1",
		`{"at":"2026-11-01T00:00:00.000000000Z","prompts":"alice/s1"}`:       "24 hexadecimal digits",
		`{"at":"2026-11-01T00:00:00.000000000Z","prompts":"` + digest + `"}`: "24 hexadecimal digits",
		`{"at":"2026-11-01T00:00:00.000000000Z","prompts":"*","actor":"clerk/s","key":"` + strings.Repeat("0a", 16) + `","reason":"x"}`: "line 1",
		`{"at":"2026-11-01T00:00:00.000000000Z","sessions":"*"}`:                                                                        "unknown",
		`{"at":"2026-11-01T00:00:00.000000000Z","actor":"clerk/s","key":"0a","reason":"asked"}`:                                         "32 hexadecimal digits",
	} {
		path := filepath.Join(t.TempDir(), ForgetsFile)
		if err := os.WriteFile(path, []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadForgets(path); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
}

// failedNotes counts the deletions that could not be noted, by what is logged.
type failedNotes struct{ atomic.Int64 }

func (n *failedNotes) Write(p []byte) (int, error) {
	n.Add(int64(bytes.Count(p, []byte("a restored backup may have the recorded prompts"))))
	return len(p), nil
}

// The deletion of a session is noted before the log's, so that a process that is killed in between leaves no prompts in
// older backups. One that is refused is not noted, and one that could not be noted before is noted after it.
func TestDeletionIsNotedFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	agent := agents.Define("agent", "1", "test agent", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		if turn.Message() == "wait" {
			_, err := turn.Wait("go", time.Hour)
			return "went", err
		}
		return "x", nil
	})))
	var failed failedNotes
	opened, err := Open(Config{Data: path, Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), Native: []actor.Definition{agent}, FreeFloor: 1, Keep: testKeep, Record: prompts.Config{Prompts: prompts.All}}, slog.New(slog.NewTextHandler(&failed, nil)))
	if err != nil {
		t.Fatal(err)
	}
	n := &retainedNode{opened, t, path}
	noted := func(session string) (lines int) {
		b, err := ReadForgets(filepath.Join(path, ForgetsFile))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(b, []byte(prompts.SessionOf(testBy.Tenant, session)))
	}
	n.ask(testBy, "old", "x")
	n.ask(testBy, "open", "wait")
	n.Retain(t.Context(), n.engine.Now().Add(2*testKeep))
	if _, found := n.session(testBy, "old"); found || noted("old") != 1 {
		t.Errorf("after the retention, the session is found: %v, with %d lines", found, noted("old"))
	}
	if err := n.Forget(t.Context(), command.Forget{By: testBy, Session: "open"}); err == nil || noted("open") != 0 {
		t.Errorf("a session with an open run: error %v, with %d lines", err, noted("open"))
	}
	n.ask(testBy, "s-2", "x")
	if err := n.Forget(t.Context(), command.Forget{By: testBy, Session: "s-2"}); err != nil || noted("s-2") != 1 {
		t.Errorf("a deletion: %v, with %d lines", err, noted("s-2"))
	}
	file := n.forgets.file
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	n.ask(testBy, "s-3", "x")
	if err := n.Forget(t.Context(), command.Forget{By: testBy, Session: "s-3"}); err != nil || failed.Load() != 2 {
		t.Errorf("a deletion whose notes fail: %v, with %d notes", err, failed.Load())
	}
	n.ask(testBy, "s-4", "x")
	n.Retain(t.Context(), n.engine.Now().Add(2*testKeep))
	if _, found := n.session(testBy, "s-4"); found || failed.Load() != 4 {
		t.Errorf("after a retention whose notes fail, the session is found: %v, with %d notes", found, failed.Load())
	}
	n.forgets.file = nil
	n.close()
}
