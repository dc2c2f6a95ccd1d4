// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/store"
)

// newStoreOfOpenRuns returns a store in which every actor has an open run. All of its
// keys are in tables.
func newStoreOfOpenRuns(t *testing.T, actors int) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	d, err := disk.Open(dir, "n1", disk.Options{FreeFloor: 1, WriteBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	l := disk.NewLog(d)
	for i := range actors {
		run := actor.NewCallID(actor.Time(i+1)*1_000_000_000, 1, uint64(i))
		id := actor.NewID("sleeper", fmt.Sprintf("s-%d", i))
		l.Commit([]store.Entry{{Actor: id, Shard: dispatcher.ShardOf(id), Epoch: 1, N: 1, Due: actor.Forever - 1, Record: store.Accepted{At: 1, Call: actor.Call{ID: run, Root: run, To: id,
			Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal, Left: actor.Duration(actor.Forever - 2), Attempt: 1, Origin: actor.Human, Parts: actor.Text("hello")}}}}, nil)
	}
	closeAll(t, l, d)
	d, err = disk.Open(dir, "n1", disk.Options{FreeFloor: 1, WriteBuffer: 1 << 20}) // moves the write-ahead log into a table
	if err != nil {
		t.Fatal(err)
	}
	closeAll(t, d)
	return dir
}

func closeAll(t *testing.T, closers ...interface{ Close() error }) {
	t.Helper()
	for _, c := range closers {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A node whose expiry index is damaged does not open, and the error names the file. The
// index is read after the start too, so a node that opened would end later.
func TestOpenReadsExpiryIndex(t *testing.T) {
	dir := newStoreOfOpenRuns(t, 1200) // with one flush of the index
	tables, err := filepath.Glob(filepath.Join(dir, "pebble", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("got tables %v, error %v", tables, err)
	}
	named, found := regexp.MustCompile(`expiry index: .*\b\d{6}\b`), 0
	for _, table := range tables {
		whole, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for at := 512; at < len(whole); at += 3 * 4096 {
			damaged := append([]byte(nil), whole...)
			damaged[at] ^= 1
			copied := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(copied, "pebble", filepath.Base(table)), damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			n, err := Open(Config{Data: copied, Name: "n1", Cells: 1, Limits: dispatcher.DefaultLimits(), FreeFloor: 1}, slog.New(slog.DiscardHandler))
			if err == nil { // damage of something else, that a start does not need
				if err := n.Close(t.Context()); err != nil {
					t.Errorf("byte %d of %s: %v", at, filepath.Base(table), err)
				}
			} else if named.MatchString(err.Error()) {
				found++
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("byte %d of %s: more than one line: %q", at, filepath.Base(table), err)
			}
		}
	}
	if found == 0 {
		t.Error("no damage of the expiry index was found at the start")
	}
}
