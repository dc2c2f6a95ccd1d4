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
	"github.com/troupe-run/troupe/dispatcher"
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
	delete(before, holderFile)
	for name, content := range readFiles(t, from) {
		if name != holderFile && !bytes.Equal(content, before[name]) {
			t.Errorf("the old store has changed: %s", name)
		}
	}
	return to
}

func TestMigrateKeepsContent(t *testing.T) {
	to := checkMigrated(t, newTestStore(t, 2000))
	checkMigrated(t, to)
	checkMigrated(t, newTestStore(t, 0))
}

// A store with every kind of record keeps its content, whether it is of this format or of
// format 1: both fixtures have the same content. The bodies of its events are none that
// Examine accepts.
func TestImportKeepsContentOfFixtures(t *testing.T) {
	from := t.TempDir()
	if err := os.CopyFS(from, os.DirFS(fixture)); err != nil {
		t.Fatal(err)
	}
	old := mustOpen(t, from, Options{ReadOnly: true})
	want := answers(t, old)
	t.Run("format 2", func(t *testing.T) { checkImported(t, old, old.Rows, old.End(), want) })

	former := t.TempDir()
	if err := os.CopyFS(former, os.DirFS(formerFixture)); err != nil {
		t.Fatal(err)
	}
	d := &Disk{dir: former, options: Options{ReadOnly: true}.withDefaults(former), former: true}
	t.Cleanup(func() { d.Close() })
	mark, err := d.openFormer()
	if err != nil {
		t.Fatal(err)
	}
	end, err := store.Format1{KV: d}.Verify("n1", mark)
	if err != nil || end != mark {
		t.Fatalf("got end %+v, error %v, want %+v", end, err, mark)
	}
	for name, body := range want { // the earlier program wrote other events of alice
		switch {
		case strings.Contains(body, `"user_input"`):
			want[name] = `{"type":"run_started"}`
		case strings.Contains(body, `"run_done"`):
			want[name] = `{"type":"run_completed"}`
		}
	}
	delete(want, "snapshot of "+carol.String()) // with the outcome that the new snapshot refers to
	delete(want, "state of "+carol.String())
	t.Run("format 1", func(t *testing.T) { checkImported(t, d, store.Format1{KV: d}, end, want) })
}

// In format 1 an actor had another shard. A migration moves its entries, and the row with
// which its open runs are resumed.
func TestMigrationMovesToNewShards(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new")
	if err := os.CopyFS(from, os.DirFS(formerFixture)); err != nil {
		t.Fatal(err)
	}
	old := &Disk{dir: from, options: Options{ReadOnly: true}.withDefaults(from), former: true}
	defer old.Close()
	end, err := old.openFormer()
	if err == nil {
		err = old.importInto(to, &formerExport{exporter: store.Format1{KV: old}}, end, Options{FreeFloor: 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	d := mustOpen(t, to, Options{})
	defer mustClose(t, d)
	for _, c := range []struct {
		id   actor.ID
		open bool
	}{{carol, true}, {actor.NewID("alice", "s-1"), true}, {dave, false}} {
		saved, err := d.Load(c.id)
		if err != nil || len(saved.Entries) == 0 {
			t.Fatalf("%s: %d entries, error %v", c.id, len(saved.Entries), err)
		}
		shard := dispatcher.ShardOf(c.id)
		for _, e := range saved.Entries {
			if e.Shard != shard {
				t.Errorf("%s: entry %d is in shard %d, want %d", c.id, e.N, e.Shard, shard)
			}
		}
		var due []actor.ID
		if err := d.Due([]uint16{shard}, func(id actor.ID) { due = append(due, id) }); err != nil || slices.Contains(due, c.id) != c.open {
			t.Errorf("%s: got due actors %v, error %v", c.id, due, err)
		}
	}
}

// checkImported imports entries and compares the content of the new store.
func checkImported(t *testing.T, old *Disk, from exporter, end store.Mark, want map[string]string) {
	to := filepath.Join(t.TempDir(), "new")
	if err := old.importInto(to, from, end, Options{FreeFloor: 1}); err != nil {
		t.Fatal(err)
	}
	d := mustOpen(t, to, Options{ReadOnly: true})
	got := answers(t, d)
	for name := range got {
		if _, ok := want[name]; !ok && !strings.HasSuffix(name, " of "+carol.String()) {
			t.Errorf("%s: got %.300q, want none", name, got[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s: got %.300q, want %.300q", name, got[name], want[name])
		}
	}
	if len(want) < 50 {
		t.Errorf("got %d items, want 50 or more", len(want))
	}
	saved, err := d.Load(carol)
	if err != nil || len(saved.Entries) != 3 || saved.Snapshot == nil {
		t.Errorf("carol: got %d entries, error %v, want a snapshot and 3 entries", len(saved.Entries), err)
	}
	if j, err := store.Fold(saved); err != nil || j.N != 12 || j.Run(second) == nil || !j.IsBuried(buried) {
		t.Errorf("carol: got journal %+v, error %v", j, err)
	}
	if made, err := d.VerifyAll(); err != nil || made.Batch <= end.Batch {
		t.Errorf("got end %+v, error %v", made, err)
	}
	mustClose(t, d)
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
		"no store":              {dir, filepath.Join(t.TempDir(), "c"), "no FORMAT"},
	} {
		if _, err := Migrate(c.from, c.to, Options{FreeFloor: 1}, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if _, err := os.Stat(c.to); err == nil && name != "new store exists" {
			t.Errorf("%s: the new store was made", name)
		}
	}
}
