// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/store"
)

// newTestStores creates a small store, an older copy of it, another store, and a backup
// without a server. The log of the store is cut, and one of its sessions is deleted.
func newTestStores(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	fillStore(t, dir, otherName, 1, 40, "goodbye", false)
	fillStore(t, dir, storeName, 1, 20, "hello", false)
	if err := os.CopyFS(filepath.Join(dir, olderName), os.DirFS(filepath.Join(dir, storeName))); err != nil {
		t.Fatal(err)
	}
	deleteSession(t, dir)
	fillStore(t, dir, storeName, 21, 40, "hello", true)
	return dir
}

const deletedSession = "deleted"

// deleteSession adds a session to the store and deletes it. The log is cut before that.
func deleteSession(t *testing.T, dir string) {
	t.Helper()
	d, err := disk.Open(filepath.Join(dir, storeName), nodeName, disk.Options{FreeFloor: 1, WriteBuffer: 1 << 20, IndexEntries: 4})
	if err != nil {
		t.Fatal(err)
	}
	l := disk.NewLog(d)
	id := actor.NewID("bob", deletedSession)
	run := actor.NewCallID(99*actor.Time(time.Second), 1, 99)
	l.Commit([]store.Entry{
		{Actor: id, Epoch: 1, N: 1, Due: 1001, Record: store.Accepted{At: 1, Call: actor.Call{ID: run, Root: run, To: id,
			Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal, Left: 1000, Attempt: 1, Origin: actor.Human, Parts: actor.Text("secret")}}},
		{Actor: id, Epoch: 1, N: 2, WasDue: 1001, Record: store.Ended{Call: run, At: 2, Until: actor.Forever,
			Reply: actor.Reply{Call: run, Run: run, Status: actor.Succeeded, Parts: actor.Text("secret")}}},
	}, nil)
	err = errors.Join(l.Cut(0, 12, 0), l.Forget(actor.DefaultTenant, deletedSession, 0, 1, 1), l.Erase(), l.Close(), d.Close())
	if err != nil {
		t.Fatal(err)
	}
}

// fillStore appends entries of one actor to a store, and makes a backup if asked to.
func fillStore(t *testing.T, dir, name string, from, to uint64, text string, backup bool) {
	t.Helper()
	d, err := disk.Open(filepath.Join(dir, name), nodeName, disk.Options{FreeFloor: 1, WriteBuffer: 1 << 20, IndexEntries: 4}) // rows of the index that no start replaces
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Secret(); err != nil {
		t.Fatal(err)
	}
	l := disk.NewLog(d)
	id := actor.NewID("alice", "s-1")
	for n := from; n <= to; n++ {
		run := actor.NewCallID(actor.Time(n)*actor.Time(time.Second), 1, n)
		e := store.Entry{Actor: id, Epoch: 1, N: n, Record: store.Accepted{At: actor.Time(n), Call: actor.Call{ID: run, Root: run, To: id,
			Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal, Left: 1000, Attempt: 1, Origin: actor.Human, Parts: actor.Text(text)}}}
		if e.Due = 1001; n > 1 { // the deadline of the first run
			e.WasDue = e.Due
		}
		done := make(chan struct{})
		l.Commit([]store.Entry{e}, func() { close(done) })
		<-done
	}
	if backup {
		if err := disk.Backup(d, l, filepath.Join(dir, backupName)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
}

// Each forgery is detected or harmless, or changes an answer and is reported by troupe
// doctor. With Pebble alone, some are silent.
func TestForgeries(t *testing.T) {
	dir := newTestStores(t)
	count := func(trust bool) map[string]map[Outcome]int {
		h, err := newHarness(dir, t.TempDir(), trust)
		if err != nil {
			t.Fatal(err)
		}
		all, err := forgeriesOf(dir, 20, rand.New(rand.NewPCG(1, 2)))
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]map[Outcome]int{}
		for _, d := range all {
			v, err := h.try(d)
			if err != nil {
				t.Fatal(err)
			}
			if found[d.Kind] == nil {
				found[d.Kind] = map[Outcome]int{}
			}
			if found[d.Kind][v.Outcome]++; !trust && v.Outcome != Detected && v.Outcome != Harmless && v.Outcome != ByDoctor {
				t.Errorf("%s: %s: %s", d, v.Outcome, v.Said)
			}
		}
		return found
	}
	found := count(false)
	for _, kind := range []string{"rollback", "transplant", "transplanted row", "swapped rows"} {
		if found[kind][Detected] == 0 {
			t.Errorf("%s: got %v, want some detected", kind, found[kind])
		}
	}
	if found := count(true); found["transplant"][SilentWrong] == 0 || found["swapped rows"][SilentWrong] == 0 {
		t.Errorf("got %v with Pebble alone, want silent changes", found)
	}
}

func TestEveryDamageChangesOneFile(t *testing.T) {
	original := storeFiles{"a.log": bytes.Repeat([]byte("abcdefgh"), 1024), "SECRET": []byte("0123456789"), "EMPTY": nil}
	for i := range original["a.log"] {
		original["a.log"][i] += byte(i / blockSize)
	}
	kinds := map[string]int{}
	for _, d := range allDamages(storeName, original, rand.New(rand.NewPCG(1, 2))) {
		kinds[d.Kind]++
		changed := 0
		after := d.apply(original)
		for name, content := range original {
			if got, ok := after[name]; !ok || !bytes.Equal(got, content) {
				changed++
				if name != d.File {
					t.Errorf("%s changed %s", d, name)
				}
			}
		}
		if changed != 1 {
			t.Errorf("%s changed %d files, want 1", d, changed)
		}
	}
	for kind, want := range map[string]int{"flip": 16 + 2, "cut": 16 + 2, "zero": 16, "remove": 2} {
		if kinds[kind] != want {
			t.Errorf("got %d of %s, want %d", kinds[kind], kind, want)
		}
	}
	if kinds["swap"] == 0 {
		t.Error("got no swap")
	}
	if name := fileClass("pebble/000012.sst"); name != "sorted table" {
		t.Errorf("got %q, want sorted table", name)
	}
}

func TestClassifyOutcome(t *testing.T) {
	h := &harness{dir: "/x", expected: map[string]contents{storeName: {"a": {1}, "b": {2}}}}
	for _, test := range []struct {
		got  contents
		err  error
		want Outcome
	}{
		{contents{"a": {1}, "b": {2}}, nil, Harmless},
		{contents{"a": {1}}, nil, SilentLoss},
		{contents{"a": {1}, "b": {3}}, nil, SilentWrong},
		{contents{"a": {1}, "b": {2}, "c": {3}}, nil, SilentWrong},
		{nil, errors.New("store /x: the log ends at batch 3"), Detected},
		{nil, errors.New("store /x: something is wrong"), Vague},
		{nil, errors.New("store /x/FORMAT.d: is wrong"), Detected},
	} {
		if v := h.classify(storeName, test.got, test.err); v.Outcome != test.want {
			t.Errorf("%v, %v: got %s, want %s", test.got, test.err, v.Outcome, test.want)
		}
	}
}

// TestSampleOfDamages applies a sample of damages to a store. Each must be detected
// or harmless. If the store is read with Pebble alone, without verification, some of
// the same damages must be silent losses or changes. This shows that the sample has damages
// that only the verification detects.
func TestSampleOfDamages(t *testing.T) {
	dir := newTestStores(t)
	count := func(trust bool) map[Outcome]int {
		h, err := newHarness(dir, t.TempDir(), trust)
		if err != nil {
			t.Fatal(err)
		}
		found := map[Outcome]int{}
		var some []damage
		for _, name := range []string{storeName, backupName} {
			all := allDamages(name, h.original[name], rand.New(rand.NewPCG(1, 2)))
			for i, d := range all {
				if i%120 == 0 || strings.HasSuffix(d.File, ".log") && d.Kind == "cut" && d.At%4096 == 0 {
					some = append(some, d)
				}
			}
		}
		for _, d := range some {
			v, err := h.try(d)
			if err != nil {
				t.Fatal(err)
			}
			if found[v.Outcome]++; !trust && v.Outcome != Detected && v.Outcome != Harmless {
				t.Errorf("%s: %s: %s", d, v.Outcome, v.Said)
			}
		}
		return found
	}
	if found := count(false); found[Detected] == 0 || found[Harmless] == 0 {
		t.Errorf("got %v, want detected and harmless damages", found)
	}
	if found := count(true); found[SilentLoss]+found[SilentWrong] == 0 {
		t.Errorf("got %v with Pebble alone, want silent losses or changes", found)
	}
}

func TestReportFloors(t *testing.T) {
	r := report{began: time.Now()}
	r.countFiles(storeName, storeFiles{"pebble/000001.log": []byte("x"), "FORMAT": []byte("y")})
	r.add(damage{Store: storeName, File: "FORMAT", Kind: "cut"}, verdict{Outcome: SilentLoss, Said: "gone"})
	for range trialsWanted {
		r.add(damage{Store: storeName, File: "pebble/000001.log", Kind: "cut"}, verdict{Outcome: Detected})
	}
	r.finish(time.Second)
	if r.missed() != 1 || !strings.HasSuffix(r.text(), "floors: 5 met, 1 missed: no silent losses (1)\n") {
		t.Errorf("got %d missed, want 1\n%s", r.missed(), r.text())
	}
	if !strings.Contains(r.markdown(), "| log written ahead | 1 | 1 | 5000 | 5000 | 0 | 0 | 0 | 0 |") {
		t.Error(r.markdown())
	}
	var out bytes.Buffer
	if err := r.writeJSON(&out); err != nil || !strings.Contains(out.String(), `"silent loss": 1`) {
		t.Errorf("%v %s", err, out.String())
	}
	if i := slices.IndexFunc(r.Classes, func(c *row) bool { return c.Class == "FORMAT" }); i < 0 || r.Classes[i].Trials != 1 {
		t.Errorf("%+v", r.Classes)
	}
}
