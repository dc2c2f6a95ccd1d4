// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/troupe-run/troupe/actor"
)

// A power failure at any moment, with any part of the unsynced data on disk,
// leaves a store that opens and holds everything acknowledged.
func TestPowerFailureLosesNothingAcknowledged(t *testing.T) {
	const dir, writers, failures, commits = "/data", 3, 24, 8
	fs := vfs.NewCrashableMem()
	d := mustOpen(t, dir, Options{fs: fs})
	l := NewLog(d)
	random := rand.New(rand.NewPCG(1, 2))
	var acked [writers]atomic.Uint64
	var generators [writers]*entryGenerator
	for w := range writers {
		generators[w] = newEntryGenerator(fmt.Sprintf("%c", 'a'+w))
	}
	for i := range failures {
		var clients sync.WaitGroup
		for _, s := range generators {
			clients.Add(1)
			go func() {
				defer clients.Done()
				for range commits {
					commit(l, s.next(), s.next())
					acked[s.id.Agent[0]-'a'].Store(s.n)
				}
			}()
		}
		for range random.IntN(2 * commits) {
			commit(l) // the failure comes in the middle of the work
		}
		var before [writers]uint64
		for w := range writers {
			before[w] = acked[w].Load()
		}
		percent := []int{0, 0, 100, 1 + random.IntN(99)}[i%4]
		failed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: random})
		clients.Wait()

		reopened, err := Open(dir, "n1", Options{fs: failed})
		if err != nil {
			t.Fatalf("failure %d, %d%% of unsynced data kept: %v", i, percent, err)
		}
		total := uint64(0)
		for w, s := range generators {
			n, err := checkEntries(reopened, s.id)
			if total += n; err != nil || n < before[w] {
				t.Fatalf("failure %d, %d%% of unsynced data kept: got %d entries of %s, want at least %d; error %v", i, percent, n, s.id, before[w], err)
			}
		}
		if end := reopened.End(); uint64(end.Pos) != total {
			t.Fatalf("failure %d: log ends at %d but holds %d entries", i, end.Pos, total)
		}
		mustClose(t, reopened)
	}
	mustClose(t, l)
}

// The test binary is also the child process that is killed or whose disk fails.
const (
	childDir  = "TROUPE_DISK_TEST_CHILD"
	childFail = "TROUPE_DISK_TEST_FAIL" // "write N" or "sync N": the N-th write or sync of the log fails
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		childMain(dir)
	}
	os.Exit(m.Run())
}

// childMain continues the entries of two generators. It prints the number of
// each entry once it is durable.
func childMain(dir string) {
	options := Options{FreeFloor: 1}
	if kind, nth, ok := strings.Cut(os.Getenv(childFail), " "); ok {
		options.fs = failNth(kind, nth)
	}
	d, err := Open(dir, "n1", options)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	l := NewLog(d)
	for _, name := range []string{"a", "b"} {
		s := newEntryGenerator(name)
		n, err := checkEntries(d, s.id)
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

func TestKillLosesNothingAcknowledged(t *testing.T) {
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
		lines, count := bufio.NewScanner(out), 0
		for lines.Scan() {
			var name string
			var n uint64
			if _, err := fmt.Sscanf(lines.Text(), "%s %d", &name, &n); err != nil {
				t.Errorf("unexpected output of the child: %q", lines.Text())
				break
			}
			acked[name] = n
			if count++; count == 20+30*kill {
				_ = child.Process.Kill() // output printed before the kill is still read
			}
		}
		_ = child.Process.Kill()
		_ = child.Wait()
		for _, options := range []Options{{ReadOnly: true}, {FreeFloor: 1}} {
			d := mustOpen(t, dir, options)
			for _, name := range []string{"a", "b"} {
				if n, err := checkEntries(d, actor.NewID(name, "s-1")); err != nil || n < acked[name] {
					t.Errorf("kill %d: got %d entries of %s, want at least %d; error %v", kill, n, name, acked[name], err)
				}
			}
			if _, err := d.VerifyAll(); err != nil {
				t.Error(err)
			}
			mustClose(t, d)
		}
	}
	if acked["a"]+acked["b"] < 20+50+80+110+140 {
		t.Errorf("too few entries acknowledged: %v", acked)
	}
}

// failNth returns the real file system with one failing write or sync of the
// log.
func failNth(kind, nth string) vfs.FS {
	target, _ := strconv.Atoi(nth)
	var count atomic.Int64
	return errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		sync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
		matches := kind == "sync" && sync || kind == "write" && op.Kind == errorfs.OpFileWrite
		if matches && strings.HasSuffix(op.Path, ".log") && count.Add(1) == int64(target) {
			return syscall.EIO
		}
		return nil
	}))
}

// A disk error ends the process with a one-line message. The next start finds
// everything acknowledged. The error comes early, before Pebble first rotates its
// log: an error while it closes a log is a panic inside Pebble, without the message.
func TestDiskErrorStopsProcess(t *testing.T) {
	for _, fail := range []string{"sync 20", "write 20"} {
		dir := t.TempDir()
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), childDir+"="+dir, childFail+"="+fail)
		var stderr strings.Builder
		child.Stderr = &stderr
		out, err := child.Output()
		if code := child.ProcessState.ExitCode(); code != 1 {
			t.Errorf("%s: exit code %d, want 1: %v", fail, code, err)
		}
		if line := stderr.String(); !strings.HasPrefix(line, "troupe: store "+dir+": ") || !strings.HasSuffix(line, "; stopping, nothing acknowledged is lost\n") || strings.Count(line, "\n") != 1 {
			t.Errorf("%s: stderr %q", fail, line)
		}
		acked := map[string]uint64{}
		for line := range strings.Lines(string(out)) {
			var name string
			var n uint64
			if _, err := fmt.Sscanf(line, "%s %d", &name, &n); err == nil {
				acked[name] = n
			}
		}
		d := mustOpen(t, dir, Options{FreeFloor: 1})
		for _, name := range []string{"a", "b"} {
			if n, err := checkEntries(d, actor.NewID(name, "s-1")); err != nil || n < acked[name] || acked[name] == 0 {
				t.Errorf("%s: got %d entries of %s, want at least %d; error %v", fail, n, name, acked[name], err)
			}
		}
		mustClose(t, d)
	}
}
