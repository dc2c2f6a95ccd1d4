// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
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
	childFail = "TROUPE_DISK_TEST_FAIL" // "KIND N ERRNO": the N-th operation of that kind fails; see failNth
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
	if fail := os.Getenv(childFail); fail != "" {
		options.fs = failNth(fail, dir)
		options.tune = func(o *pebble.Options) { // logs, tables and manifests change every few dozen entries
			o.MemTableSize, o.L0CompactionThreshold, o.MaxManifestFileSize = 64<<10, 2, 4<<10
		}
	}
	exit := func(err error) {
		fmt.Fprintln(os.Stderr, "troupe: "+err.Error())
		os.Exit(1)
	}
	d, err := Open(dir, "n1", options)
	if err != nil {
		exit(err)
	}
	l := NewLog(d)
	for _, name := range []string{"a", "b"} {
		s := newEntryGenerator(name)
		n, err := checkEntries(d, s.id)
		if err != nil {
			exit(err)
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

// failNth returns the real file system, on which one operation on the store's
// files fails. The argument "sync 20 5" lets the 20th sync fail with errno 5. The
// kind "table" counts the writes of tables, the kind "any" every operation that
// changes a file or a directory.
func failNth(fail, dir string) vfs.FS {
	var kind string
	var target, errno int64
	if _, err := fmt.Sscan(fail, &kind, &target, &errno); err != nil {
		panic(err)
	}
	var count atomic.Int64
	return errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		any := true
		switch op.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
			any = kind != "write"
		case errorfs.OpFileWrite, errorfs.OpFileWriteAt:
			any = kind != "sync"
		case errorfs.OpCreate, errorfs.OpRename, errorfs.OpReuseForWrite, errorfs.OpLink, errorfs.OpMkdirAll:
			any = kind == "any"
		default:
			any = false
		}
		switch kind {
		case "any":
		case "table":
			any = any && strings.HasSuffix(op.Path, ".sst") && op.Kind == errorfs.OpFileWrite
		default:
			any = any && strings.HasSuffix(op.Path, ".log")
		}
		if any && strings.HasPrefix(op.Path, dir) && count.Add(1) == target {
			return syscall.Errno(errno)
		}
		return nil
	}))
}

// runChild runs the child until it fails, or until it has acknowledged enough
// entries. It returns the exit code, -1 if there were enough entries; the error
// output; and the number of acknowledged entries of each generator.
func runChild(t *testing.T, dir, fail string, enough uint64) (code int, stderr string, acked map[string]uint64) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childDir+"="+dir, childFail+"="+fail)
	var errors strings.Builder
	child.Stderr = &errors
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	acked = map[string]uint64{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var name string
		var n uint64
		if _, err := fmt.Sscanf(lines.Text(), "%s %d", &name, &n); err != nil {
			t.Errorf("unexpected output of the child: %q", lines.Text())
			break
		}
		if acked[name] = n; acked["a"]+acked["b"] == enough {
			_ = child.Process.Kill()
		}
	}
	_ = child.Wait()
	return child.ProcessState.ExitCode(), errors.String(), acked
}

// checkAcked opens the store of a child and checks that it holds everything that
// was acknowledged.
func checkAcked(t *testing.T, dir string, acked map[string]uint64) {
	t.Helper()
	d := mustOpen(t, dir, Options{FreeFloor: 1})
	for _, name := range []string{"a", "b"} {
		if n, err := checkEntries(d, actor.NewID(name, "s-1")); err != nil || n < acked[name] {
			t.Errorf("got %d entries of %s, want at least %d; error %v", n, name, acked[name], err)
		}
	}
	mustClose(t, d)
}

// A disk error ends the process with a one-line message. The next start finds
// everything acknowledged.
func TestDiskErrorStopsProcess(t *testing.T) {
	for _, fail := range []string{"sync 20 5", "write 20 5"} {
		dir := t.TempDir()
		code, line, acked := runChild(t, dir, fail, 100_000)
		if code != 1 {
			t.Errorf("%s: exit code %d, want 1", fail, code)
		}
		if !strings.HasPrefix(line, "troupe: store "+dir+": ") || !strings.HasSuffix(line, "; stopping, nothing acknowledged is lost\n") || strings.Count(line, "\n") != 1 {
			t.Errorf("%s: stderr %q", fail, line)
		}
		if acked["a"]+acked["b"] == 0 {
			t.Errorf("%s: nothing was acknowledged before", fail)
		}
		checkAcked(t, dir, acked)
	}
}

// Operations on the store's files fail in turn, every sixth or, with -recovery-runs, each: in
// creation, while logs and tables change, and in compactions. If a kind of file is not among them, the
// operations between follow until it is. The process always ends with code 1 and one line that names the
// file and the error. It never panics.
func TestEveryFailingOperationStopsProcess(t *testing.T) {
	const enough = 20_000 // entries, after which a child without an error is stopped
	points, step := 400, 6
	switch {
	case testing.Short():
		step = 30
	case *recoveryRuns > 0:
		step = 1
	}
	kinds := []string{".log", ".sst", "MANIFEST", "ANCHOR"}
	var mu sync.Mutex
	files, first, next := map[string]int{}, 1, 1
	// point returns the operation that fails next, 0 if there is none.
	point := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		all := !slices.ContainsFunc(kinds, func(kind string) bool { return files[kind] == 0 })
		if next > points && first < step && !all && !testing.Short() {
			first++
			next = first
		}
		if n = next; n > points {
			return 0
		}
		next += step
		return n
	}
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for {
				n := point()
				if n == 0 {
					return
				}
				dir, fail := t.TempDir(), fmt.Sprintf("any %d 5", n)
				code, line, acked := runChild(t, dir, fail, enough)
				file := failedFile.FindStringSubmatch(line)
				if code != 1 || !strings.HasPrefix(line, "troupe: store "+dir+": ") || strings.Count(line, "\n") != 1 ||
					!strings.Contains(line, "input/output error") || file == nil {
					t.Errorf("operation %d: exit code %d, stderr %.800q", n, code, line)
					continue
				}
				mu.Lock()
				files[file[1]]++
				mu.Unlock()
				checkAcked(t, dir, acked)
			}
		})
	}
	workers.Wait()
	t.Log("failures by file: ", files)
	for _, kind := range kinds {
		if files[kind] == 0 && !testing.Short() {
			t.Errorf("no failure of a file %s: %v", kind, files)
		}
	}
}

// A table that does not fit on the disk does not end the process: Pebble writes
// it again.
func TestTableIsWrittenAgainAfterFullDisk(t *testing.T) {
	const enough = 3000
	dir := t.TempDir()
	code, line, acked := runChild(t, dir, fmt.Sprintf("table 2 %d", syscall.ENOSPC), enough)
	if code != -1 || acked["a"]+acked["b"] < enough {
		t.Errorf("exit code %d, want a child that is stopped after %d entries, got %v; stderr %q", code, enough, acked, line)
	}
	checkAcked(t, dir, acked)
}

// failedFile finds the kind of the file in a line about a failed operation.
var failedFile = regexp.MustCompile(`(?: |pebble/\d*)(directory|FORMAT|ANCHOR|HOLDER|MANIFEST|OPTIONS|marker|temporary|\.log|\.sst|kept|pebble)[^/:]*: `)
