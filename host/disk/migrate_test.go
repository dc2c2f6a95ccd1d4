// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// answers reads the content of a store by name, without Export: the folded
// journal of each actor, the outcomes in its entries, the owner and the events of each
// run, and the actors that are due. The sealed rows of entries differ between stores,
// so their entries are compared by content.
func answers(t *testing.T, d *Disk) map[string]string {
	t.Helper()
	all := map[string]string{}
	var ids []actor.ID
	keys := map[string]bool{}
	err := d.Scan([]byte("t/"), []byte("t0"), func(key, _ []byte) bool { keys[string(key)] = true; return true })
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range d.Index.Rows() { // of entries after the watermark
		keys[string(row.Key)] = true
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if id, ok := store.ActorOfKey([]byte(key)); ok && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
		parts := strings.Split(key, "/")
		if len(parts) != 4 || parts[2] != "r" {
			continue
		}
		run, err := actor.ParseCallID(parts[3])
		if err != nil {
			t.Fatal(err)
		}
		owner, ok, err := d.Run(parts[1], run)
		if err != nil || !ok {
			t.Fatal(err)
		}
		all["owner of "+parts[3]] = fmt.Sprint(owner)
		events, err := d.Events(parts[1], run, 0, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			all[fmt.Sprintf("event %d of %s", e.Seq, parts[3])] = string(e.Body)
		}
	}
	for _, id := range ids {
		saved, err := d.Load(id)
		if err != nil {
			t.Fatal(err)
		}
		if saved.Snapshot != nil {
			all["snapshot of "+id.String()] = string(saved.Snapshot)
		}
		for _, e := range saved.Entries {
			all[fmt.Sprintf("entry %d of %s", e.N, id)] = string(store.EncodeEntry(e))
		}
		j, err := store.Fold(saved)
		if err != nil {
			t.Fatal(err)
		}
		all["state of "+id.String()] = string(store.EncodeJournal(&j))
		for n := range j.N {
			if outcome, err := d.Outcome(id, n+1); err == nil {
				all[fmt.Sprintf("outcome %d of %s", n+1, id)] = string(store.EncodeEntry(store.Entry{Actor: id, N: n + 1, Record: outcome}))
			}
		}
	}
	var shards []uint16
	for s := range 1 << 12 {
		shards = append(shards, uint16(s))
	}
	if err := d.Due(shards, func(id actor.ID) { all[fmt.Sprintf("due %d", len(all))] = id.String() }); err != nil {
		t.Fatal(err)
	}
	return all
}

// answersOf reads a store without changing it.
func answersOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	d := mustOpen(t, dir, Options{ReadOnly: true})
	defer mustClose(t, d)
	return answers(t, d)
}

// checkMigrated migrates a store and compares both.
func checkMigrated(t *testing.T, from string) (to string) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "new")
	before, want := readFiles(t, from), answersOf(t, from)
	old := examine(t, from)
	x, err := Migrate(from, to, Options{FreeFloor: 1}, nil)
	if err != nil || x.Wrong != 0 {
		t.Fatalf("error %v, %+v", err, x.Findings)
	}
	got := answersOf(t, to)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s: got %.100q, want %.100q", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d items, want %d", len(got), len(want))
	}
	again := examine(t, to)
	if again.Wrong != 0 || again.End.Batch <= old.End.Batch && old.Entries > 0 || again.Entries != old.Entries || again.Unused != 0 {
		t.Errorf("new store: %+v, old store: %+v", again, old)
	}
	if after := readFiles(t, from); !maps.EqualFunc(before, after, bytes.Equal) {
		t.Errorf("the old store has changed: got %v, want %v", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
	}
	return to
}

func TestMigrateKeepsContent(t *testing.T) {
	to := checkMigrated(t, newTestStore(t, 2000))
	checkMigrated(t, to)
	checkMigrated(t, newTestStore(t, 0))
}

// A store with every kind of record keeps its content.
func TestMigrateKeepsContentOfFixture(t *testing.T) {
	from := t.TempDir()
	if err := os.CopyFS(from, os.DirFS(fixture)); err != nil {
		t.Fatal(err)
	}
	to := checkMigrated(t, from)
	d := mustOpen(t, to, Options{ReadOnly: true})
	defer mustClose(t, d)
	saved, err := d.Load(carol)
	if err != nil || len(saved.Entries) != 3 || saved.Snapshot == nil {
		t.Errorf("carol: got %d entries, error %v, want a snapshot and 3 entries", len(saved.Entries), err)
	}
	if n := len(answers(t, d)); n < 50 {
		t.Errorf("got %d items, want 50 or more", n)
	}
}

// The numbers of batches, and with them the epochs, continue in the new store. Its
// chain is verified up to its origin.
func TestMigratedChainBeginsAtOldEnd(t *testing.T) {
	from := newTestStore(t, 20)
	old := examine(t, from)
	to := checkMigrated(t, from)
	d := mustOpen(t, to, Options{})
	origin, err := store.Origin(d, "n1")
	if err != nil || origin != old.End || d.End().Batch <= old.End.Batch || d.End().Pos != old.End.Pos+20 {
		t.Errorf("got origin %+v, end %+v, error %v; the old store ends at %+v", origin, d.End(), err, old.End)
	}
	if end, err := d.VerifyAll(); err != nil || end != d.End() {
		t.Errorf("got end %+v, error %v", end, err)
	}
	l, s := NewLog(d), newEntryGenerator("alice")
	for s.n < 20 {
		s.next()
	}
	commit(l, s.next())
	mustClose(t, l, d)
	if n := examine(t, to); n.Wrong != 0 || n.Entries != 21 {
		t.Errorf("%+v", n)
	}
	other := origin
	other.Hash[0]++
	for name, change := range map[string]func(*pebble.DB) error{
		"origin lost": func(db *pebble.DB) error { return db.Delete(store.OriginKey("n1"), pebble.Sync) },
		"origin changed": func(db *pebble.DB) error {
			return db.Set(store.OriginKey("n1"), store.OriginRow("n1", other).Value, pebble.Sync)
		},
	} {
		damaged := filepath.Join(t.TempDir(), "damaged")
		if err := os.CopyFS(damaged, os.DirFS(to)); err != nil {
			t.Fatal(err)
		}
		d := mustOpen(t, damaged, Options{})
		if err := change(d.db); err != nil {
			t.Fatal(err)
		}
		mustClose(t, d)
		if x := examine(t, damaged); x.Wrong == 0 {
			t.Errorf("%s: not found by an examination", name)
		}
		if _, err := Open(damaged, "n1", Options{}); err == nil {
			t.Errorf("%s: the store opens", name)
		}
	}
}

// Migrate keeps the secret, so that the tokens of open runs stay valid.
func TestMigrateKeepsSecret(t *testing.T) {
	from := newTestStore(t, 2)
	d := mustOpen(t, from, Options{})
	want, err := d.Secret()
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	d = mustOpen(t, checkMigrated(t, from), Options{ReadOnly: true})
	if got, err := d.Secret(); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got another secret, error %v", err)
	}
}

func TestMigrateRefuses(t *testing.T) {
	dir := t.TempDir()
	whole, damaged, inUse := newTestStore(t, 4), newTestStore(t, 4), newTestStore(t, 4)
	d := mustOpen(t, damaged, Options{})
	if err := d.db.Set(partKey(2), []byte("?"), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	d = mustOpen(t, inUse, Options{})
	defer mustClose(t, d)
	interrupted := filepath.Join(dir, "interrupted")
	for _, name := range []string{filepath.Join(dir, "there"), interrupted + tempSuffix} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct{ from, to, want string }{
		"new store exists":      {whole, filepath.Join(dir, "there"), "there: exists already"},
		"interrupted migration": {whole, interrupted, "interrupted.new: exists already"},
		"damaged":               {damaged, filepath.Join(dir, "a"), string(partKey(2))},
		"in the old store":      {whole, filepath.Join(whole, "sub"), "sub: is in the store"},
		"deep in the old store": {whole, filepath.Join(whole, "not", "there", "..", "yet"), "yet: is in the store"},
		"in use":                {inUse, filepath.Join(dir, "b"), "in use by"},
		"no store":              {dir, filepath.Join(t.TempDir(), "c"), "holds no store, but other files"},
	} {
		if _, err := Migrate(c.from, c.to, Options{FreeFloor: 1}, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if _, err := os.Stat(c.to); err == nil && name != "new store exists" {
			t.Errorf("%s: the new store was made", name)
		}
	}
}
