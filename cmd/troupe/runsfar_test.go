// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/store"
)

// writeRuns makes a data folder with open runs, the oldest of alice and the others of
// bob.
func writeRuns(t *testing.T, n int) (dir, oldest string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	d, err := disk.Open(dir, "n1", disk.Options{FreeFloor: 1, WriteBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	l := disk.NewLog(d)
	var all []store.Entry
	durable := make(chan struct{})
	commit := func() {
		l.Commit(all, func() { durable <- struct{}{} })
		<-durable
		all = nil
	}
	for i := range n {
		id, run := actor.NewID("bob", "s-1"), actor.NewCallID(actor.Time(i+1)*1_000_000_000, 1, uint64(i))
		if i == 0 {
			id, oldest = actor.NewID("alice", "s-1"), run.String()
		}
		call := actor.Call{ID: run, Root: run, To: id, Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal, Left: 1_000_000_000, Attempt: 1, Origin: actor.Human}
		all = append(all, store.Entry{Actor: id, Epoch: 1, N: uint64(max(i, 1)), Record: store.Accepted{Call: call, At: actor.Time(i + 1)}})
		if len(all) == 5000 {
			commit()
		}
	}
	commit()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, oldest
}

// A list reads on behind pages whose runs its filter does not select.
func TestRunsListReadsEmptyPages(t *testing.T) {
	dir, oldest := writeRuns(t, store.ListedRowsMax+100)
	code, out, stderr := runProgram(t, "runs", "list", "--data", dir, "--agent", "alice")
	if code != 0 || !strings.HasPrefix(out, oldest) || strings.Count(out, "\n") != 1 || stderr != "" {
		t.Errorf("exit code %d, want run %s:\n%s%s", code, oldest, out, stderr)
	}
	code, out, stderr = runProgram(t, "runs", "list", "--data", dir, "--agent", "alice", "--json")
	if code != 0 || strings.Count(out, `"run_id"`) != 1 || strings.Contains(out, "next_cursor") || stderr != "" {
		t.Errorf("--json: exit code %d, want one run and no next_cursor:\n%s%s", code, out, stderr)
	}
}

// A list stops after 50 pages, and prints how to continue.
func TestRunsListIsBounded(t *testing.T) {
	dir, oldest := writeRuns(t, 50*store.ListedRowsMax+100)
	code, out, stderr := runProgram(t, "runs", "list", "--data", dir, "--agent", "alice", "--limit", "3")
	report, next, _ := strings.Cut(stderr, "\n")
	if code != 0 || out != "" || report != "0 of 3 runs found in 50 pages; older runs were not read" {
		t.Fatalf("exit code %d:\n%s%s", code, out, stderr)
	}
	next, more := strings.CutPrefix(strings.TrimSpace(next), "next: troupe ")
	if code, out, stderr := runProgram(t, strings.Fields(next)...); !more || code != 0 || !strings.HasPrefix(out, oldest) || stderr != "" {
		t.Errorf("%q: exit code %d, want run %s:\n%s%s", next, code, oldest, out, stderr)
	}
}
