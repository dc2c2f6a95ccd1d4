// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// A power failure at any moment, with any part of what was not synced on the
// disk or not, leaves a store that opens and holds all that was acknowledged.
func TestAPowerFailureLosesNothingAcknowledged(t *testing.T) {
	const dir, writers, failures, commits = "/data", 3, 24, 8
	fs := vfs.NewCrashableMem()
	d := mustOpen(t, dir, Options{fs: fs})
	l := NewLog(d)
	random := rand.New(rand.NewPCG(1, 2))
	var acked [writers]atomic.Uint64
	var stories [writers]*story
	for w := range writers {
		stories[w] = newStory(fmt.Sprintf("%c", 'a'+w))
	}
	for i := range failures {
		var working sync.WaitGroup
		for _, s := range stories {
			working.Add(1)
			go func() {
				defer working.Done()
				for range commits {
					commit(l, s.next(), s.next())
					acked[s.id.Agent[0]-'a'].Store(s.n)
				}
			}()
		}
		for range random.IntN(2 * commits) {
			commit(l) // it fails in the middle of the work
		}
		var promised [writers]uint64
		for w := range writers {
			promised[w] = acked[w].Load()
		}
		percent := []int{0, 0, 100, 1 + random.IntN(99)}[i%4]
		failed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: random})
		working.Wait()

		left, err := Open(dir, "n1", Options{fs: failed})
		if err != nil {
			t.Fatalf("failure %d, %d%% of the unsynced kept: %v", i, percent, err)
		}
		total := uint64(0)
		for w, s := range stories {
			n, err := told(left, s.id)
			if total += n; err != nil || n < promised[w] {
				t.Fatalf("failure %d, %d%% of the unsynced kept: %d entries of %s, %d acknowledged, %v", i, percent, n, s.id, promised[w], err)
			}
		}
		if end := left.End(); uint64(end.Pos) != total {
			t.Fatalf("failure %d: the log ends at %d, and holds %d entries", i, end.Pos, total)
		}
		mustClose(t, left)
	}
	mustClose(t, l)
}

const childDir = "TROUPE_DISK_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		beKilled(dir)
	}
	os.Exit(m.Run())
}

// beKilled goes on with two stories, and says on its standard output what is durable.
func beKilled(dir string) {
	d, err := Open(dir, "n1", Options{FreeFloor: 1})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	l := NewLog(d)
	for _, name := range []string{"a", "b"} {
		s := newStory(name)
		n, err := told(d, s.id)
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		for s.n < n {
			s.next()
		}
		go func() {
			for {
				commit(l, s.next())
				_, _ = fmt.Fprintf(os.Stdout, "%s %d\n", name, s.n)
			}
		}()
	}
	select {}
}

func TestAKilledProcessLosesNothingAcknowledged(t *testing.T) {
	dir := t.TempDir()
	acked := map[string]uint64{}
	for kill := range 5 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), childDir+"="+dir)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines, heard := bufio.NewScanner(out), 0
		for lines.Scan() {
			var name string
			var n uint64
			if _, err := fmt.Sscanf(lines.Text(), "%s %d", &name, &n); err != nil {
				t.Errorf("the child says %q", lines.Text())
				break
			}
			acked[name] = n
			if heard++; heard == 20+30*kill {
				_ = child.Process.Kill() // what it said before is still read
			}
		}
		_ = child.Process.Kill()
		_ = child.Wait()
		d := mustOpen(t, dir, Options{FreeFloor: 1})
		for _, name := range []string{"a", "b"} {
			if n, err := told(d, actor.NewID(name, "s-1")); err != nil || n < acked[name] {
				t.Errorf("kill %d: %d entries of %s, %d acknowledged, %v", kill, n, name, acked[name], err)
			}
		}
		if _, err := d.VerifyAll(); err != nil {
			t.Error(err)
		}
		mustClose(t, d)
	}
	if acked["a"]+acked["b"] < 20+50+80+110+140 {
		t.Errorf("only %v was acknowledged", acked)
	}
}

var _ store.KV = (*Disk)(nil)
