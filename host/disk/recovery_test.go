// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"github.com/troupe-run/troupe/host/logs"
	"maps"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

var recoveryRuns = flag.Int("recovery-runs", 0, "number of histories to recover from; 0 means a few, with fewer second crashes")

// Every stride-th crash is followed by a crash in the recovery from it.
const (
	shortRecoveries             = 3
	recoveryStride, shortStride = 8, 64
)

// A crash at any single operation of a recovery, and another at any single
// operation of the recovery from it, leave a store that opens with the same
// content. The first history is empty: its recovery creates the store.
func TestRecoveryCrashedAtEveryOperation(t *testing.T) {
	histories, stride := *recoveryRuns, recoveryStride
	if histories == 0 {
		histories, stride = shortRecoveries, shortStride
	}
	var r recoveryTest
	for seed := range histories {
		r.recoverFrom(t, uint64(seed), stride, func(fs vfs.FS) vfs.FS { return fs })
	}
	for _, f := range r.failures {
		t.Error(f)
	}
	t.Logf("%d histories with %d acknowledged entries: crashes at %d operations of recoveries, and at %d operations of the recoveries after %d of them; %d losses",
		histories, r.acked, r.operations[0], r.operations[1], r.nested, len(r.failures))
	t.Logf("the histories have %d cuts and %d deletions of a session", r.cuts, r.deletions)
	if r.cuts == 0 || r.deletions == 0 {
		t.Error("no cut, or no deletion")
	}
	t.Logf("after a crash around the last flush of the index, its rows covered the log %d times and did not %d times", r.uncovered[0], r.uncovered[1])
	if r.uncovered[0] == 0 {
		t.Error("no crash after a flush of the index")
	}
	if r.operations[0] < 40*histories || r.operations[1] < 30*r.nested || r.nested == 0 || r.acked == 0 {
		t.Error("too few crashes or acknowledged entries")
	}
}

// The test above would detect a recovery that does not sync what it moves from the
// log into tables.
func TestRecoveryDetectsSkippedSync(t *testing.T) {
	var r recoveryTest
	for seed := uint64(0); seed < 8 && len(r.failures) == 0; seed++ {
		r.recoverFrom(t, seed, shortStride, func(fs vfs.FS) vfs.FS { return noTableSyncFS{fs} })
	}
	if len(r.failures) == 0 {
		t.Errorf("no loss detected in %d crashes", r.operations[0])
	} else {
		t.Logf("%d losses detected; the first: %s", len(r.failures), r.failures[0])
	}
}

// The comparison of TestRecoveryCrashedAtEveryOperation does not depend on flushes of the
// index, and detects the loss of any row except a watermark, which is only a hint where to
// read.
func TestStoredContentDetectsLostRow(t *testing.T) {
	options := Options{fs: vfs.NewMem(), FreeFloor: 1}
	d := mustOpen(t, powerDir, options)
	l := NewLog(d)
	a, b := newEntryGenerator("a"), newEntryGenerator("b")
	b.id = forgottenActor
	for range 9 {
		commit(l, append(nextEntries(a, 3), b.next())...)
	}
	unflushed, err := storedContent(d)
	if err != nil || d.Index.Entries() != 36 {
		t.Fatalf("the rows of the index do not cover %d entries, want 36; error %v", d.Index.Entries(), err)
	}
	mustClose(t, l, d)

	options.IndexEntries = 1
	d = mustOpen(t, powerDir, options)
	content, err := storedContent(d)
	if err != nil || content != unflushed || d.Index.Entries() != 0 {
		t.Errorf("after a flush of the index, the content has %d bytes, want the same %d; error %v", len(content), len(unflushed), err)
	}
	var all []store.Row
	if err := d.Scan([]byte{0}, []byte{0xff}, func(key, value []byte) bool {
		all = append(all, store.Row{Key: bytes.Clone(key), Value: bytes.Clone(value)})
		return true
	}); err != nil {
		t.Fatal(err)
	}
	for _, row := range all {
		if err := d.Apply([]store.Row{{Key: row.Key, Delete: true}}); err != nil {
			t.Fatal(err)
		}
		got, err := storedContent(d)
		if detected := err != nil || got != content; detected == bytes.HasPrefix(row.Key, []byte("w/")) {
			t.Errorf("row %s is lost: detected %v", row.Key, detected)
		}
		if err := d.Apply([]store.Row{row}); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, d)
}

// A crash at any single operation while a node starts and resumes its runs, and
// another while it starts after that, lose nothing that a client knows.
func TestRecoveryOfNode(t *testing.T) {
	nodes, stride := *recoveryRuns, recoveryStride
	if nodes == 0 {
		nodes, stride = shortRecoveries, shortStride
	}
	p := newPowerTest(vfs.NewCrashableMem(), nil)
	var losses []powerLoss
	p.inspect = func(_ context.Context, o powerLoss) {
		if o.restart {
			losses = append(losses, o)
		}
	}
	p.run(t, powerClients*max(4, nodes/powerClients))
	var r recoveryTest
	for i := range nodes {
		o := losses[len(losses)*(i+1)/(nodes+1)]
		random := rand.New(rand.NewPCG(uint64(i), 4))
		crashes := r.crashNode(t, p, fmt.Sprintf("node %d", i), 0, o, random)
		for j := i % stride; j < len(crashes); j += stride {
			r.nested++
			again := powerLoss{fs: crashes[j].mem, promises: crashes[j].promises}
			r.crashNode(t, p, fmt.Sprintf("node %d, after %s", i, crashes[j].operation), 1, again, random)
		}
	}
	for _, f := range r.failures {
		t.Error(f)
	}
	t.Logf("%d nodes resumed %d runs: crashes at %d operations of their starts, and at %d operations of the starts after %d of them; %d losses",
		nodes, p.resumed, r.operations[0], r.operations[1], r.nested, len(r.failures))
	if p.resumed == 0 || r.operations[0] < 30*nodes || r.operations[1] < 30*r.nested || r.nested == 0 {
		t.Error("too few crashes or resumed runs")
	}
}

// crashNode starts a node on the remains of a power loss and follows every run to its
// end. It checks the state after a crash at each operation.
func (r *recoveryTest) crashNode(t *testing.T, p *powerTest, name string, depth int, o powerLoss, random *rand.Rand) []crashed {
	recorder := newCrashRecorder(storeState{mem: o.fs.(*vfs.MemFS)}, random)
	recorder.promises = maps.Clone(o.promises)
	o.fs = recorder
	err := p.resume(t.Context(), o, func(run store.RunOwner, events [][]byte) {
		recorder.update(func() {
			known, ok := recorder.promises[run.Run]
			known.to, known.events, known.eventsOnly = run.Actor, events, known.eventsOnly || !ok
			recorder.promises[run.Run] = known
		})
	})
	if err != nil {
		r.failures = append(r.failures, fmt.Sprintf("%s: start: %v", name, err))
	}
	r.operations[depth] += recorder.operations
	for i := range recorder.crashes {
		c := &recorder.crashes[i]
		remains := c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: random})
		if err := p.verify(t.Context(), powerLoss{fs: remains, promises: c.promises}); err != nil {
			r.failures = append(r.failures, fmt.Sprintf("%s, %s: %v", name, c.operation, err))
		}
	}
	return recorder.crashes
}

// noTableSyncFS is a file system that ignores syncs of tables.
type noTableSyncFS struct{ vfs.FS }

func (n noTableSyncFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := n.FS.Create(name, c)
	if err == nil && strings.HasSuffix(name, ".sst") {
		f = noSyncFile{f}
	}
	return f, err
}

// recoveryTest counts the crashes within recoveries and the losses after them.
type recoveryTest struct {
	operations [2]int // operations crashed at: of first recoveries, and of recoveries from these crashes
	nested     int    // number of crashes that were followed by a crash in the next recovery
	acked      uint64 // number of acknowledged entries of the histories
	uncovered  [2]int // number of crashes after which the rows of the index covered the log, and did not, with a flush after each batch
	cuts       int    // of the logs in the histories
	deletions  int    // of sessions in the histories
	failures   []string
}

// recoverFrom draws a history and crashes at every operation of its recovery. After
// every stride-th of these crashes, it crashes at every operation of the recovery
// from that crash. The recoveries use the file system that through returns.
func (r *recoveryTest) recoverFrom(t *testing.T, seed uint64, stride int, through func(vfs.FS) vfs.FS) {
	random := rand.New(rand.NewPCG(seed, 3))
	h := drawStoreHistory(t, random, int(seed)*40)
	r.acked += h.acked
	r.cuts += h.cuts
	if h.forgotten {
		r.deletions++
	}
	crashes := r.crashRecovery(fmt.Sprintf("history %d", seed), 0, h.options, h.storeState, random, through)
	for i := int(seed) % stride; i < len(crashes); i += stride {
		r.nested++
		r.crashRecovery(fmt.Sprintf("history %d, after %s", seed, crashes[i].operation), 1, h.options, crashes[i].storeState, random, through)
	}
}

// crashRecovery recovers a store, and checks the state after a crash at each operation.
// It returns the states after the crashes.
func (r *recoveryTest) crashRecovery(name string, depth int, options Options, from storeState, random *rand.Rand, through func(vfs.FS) vfs.FS) []crashed {
	recorder := newCrashRecorder(from, random)
	options.fs = through(recorder)
	if err := recorder.recover(options); err != nil {
		r.failures = append(r.failures, fmt.Sprintf("%s: recovery: %v", name, err))
	}
	crashes := recorder.crashes
	r.operations[depth] += recorder.operations
	for i := range crashes {
		uncovered, err := crashes[i].check(options, recorder.content)
		if err != nil {
			r.failures = append(r.failures, fmt.Sprintf("%s, %s: %v", name, crashes[i].operation, err))
		}
		if options.IndexEntries == 1 && crashes[i].acked > 0 {
			r.uncovered[min(uncovered, 1)]++
		}
	}
	return crashes
}

// storeState is a file system after a crash and what the store on it MUST hold.
type storeState struct {
	mem       *vfs.MemFS
	secret    []byte // nil: not yet generated
	acked     uint64 // number of acknowledged entries
	committed uint64 // number of entries that may be in the store
	forgotten bool   // the deletion of the session of forgottenActor is acknowledged
}

// forgottenActor has the session that is deleted.
var forgottenActor = actor.NewID("b", "s-2")

// storeHistory is a store that lost power, and the options with which it was opened.
type storeHistory struct {
	storeState
	options Options
	cuts    int
}

// drawStoreHistory commits entries to a store, cuts its log and deletes a session, until it
// loses power.
func drawStoreHistory(t *testing.T, random *rand.Rand, commits int) storeHistory {
	mem := vfs.NewCrashableMem()
	h := storeHistory{storeState: storeState{mem: mem}, options: Options{Ballast: 1, IndexEntries: 1 + random.IntN(4)}}
	if random.IntN(2) == 0 {
		h.options.tune = func(o *pebble.Options) { o.MemTableSize = 64 << 10 } // more logs and tables
	}
	if commits == 0 {
		return h
	}
	h.options.fs = mem
	d := mustOpen(t, powerDir, h.options)
	l := NewLog(d)
	var err error
	if h.secret, err = d.Secret(); err != nil {
		t.Fatal(err)
	}
	g, b := newEntryGenerator("a"), newEntryGenerator("b")
	b.id = forgottenActor
	commit(l, nextEntries(b, 2)...)
	for range commits {
		switch random.IntN(16) {
		case 0:
			if h.cut(t, l, random) {
				continue
			}
		case 1:
			h.forget(t, l, random)
		}
		if random.IntN(3) > 0 {
			l.Commit(nextEntries(g, 1+random.IntN(3)), nil)
			continue
		}
		commit(l, nextEntries(g, 1)...)
		h.acked = g.n
	}
	h.committed = g.n
	percent := []int{0, 100, 1 + random.IntN(99)}[random.IntN(3)]
	h.mem = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: random})
	mustClose(t, l, d)
	return h
}

// cut cuts the log behind a random batch. It returns false if that is refused.
func (h *storeHistory) cut(t *testing.T, l *logs.Log, random *rand.Rand) bool {
	l.Barrier(nil)
	ends := l.Synced(0)
	if ends.End.Batch == ends.Origin.Batch {
		return false
	}
	err := l.Cut(0, ends.Origin.Batch+1+random.Uint64N(ends.End.Batch-ends.Origin.Batch), 0)
	if err != nil && !errors.As(err, new(store.CannotCut)) {
		t.Fatal(err)
	}
	if err == nil {
		h.cuts++
	}
	return err == nil
}

// forget deletes the session of forgottenActor, and erases it in half of the histories.
func (h *storeHistory) forget(t *testing.T, l *logs.Log, random *rand.Rand) {
	if h.forgotten {
		return
	}
	if err := l.Forget(forgottenActor.Tenant, forgottenActor.Key, uint16('b'), 1, 1); err != nil {
		t.Fatal(err)
	}
	h.forgotten = true
	if random.IntN(2) == 0 {
		if err := l.Erase(); err != nil {
			t.Fatal(err)
		}
	}
}

// checkForgotten checks that a store has nothing of the session of forgottenActor.
func checkForgotten(d *Disk, erased bool) error {
	saved, err := d.Load(forgottenActor)
	if err != nil && !errors.As(err, new(store.Gone)) {
		return err
	}
	if saved.Snapshot != nil || len(saved.Entries) > 0 {
		return fmt.Errorf("the deleted %s has %d entries", forgottenActor, len(saved.Entries))
	}
	page, err := d.Runs(forgottenActor.Tenant, runs.Filter{Session: forgottenActor.Key}, actor.CallID{}, 1)
	if err != nil || len(page.All) > 0 {
		return errors.Join(fmt.Errorf("the deleted %s has %d runs", forgottenActor, len(page.All)), err)
	}
	rows := 0
	prefix := "t/" + forgottenActor.Tenant + "/s/" + forgottenActor.Key + "/"
	err = d.Scan([]byte(prefix), []byte(prefix+"\xff"), func(_, _ []byte) bool { rows++; return true })
	if erased && rows > 0 {
		err = errors.Join(err, fmt.Errorf("the deleted %s has %d rows", forgottenActor, rows))
	}
	return err
}

// eventsOfRun is a limit greater than the number of events of a run of a generator.
const eventsOfRun = 10

// storedContent returns the content of a store of these generators. It does not depend on
// which entries the rows of the index cover: what these rows hold is read through the
// store.Reader, all other rows are included as they are.
func storedContent(d *Disk) (string, error) {
	var b strings.Builder
	err := d.Scan([]byte{0}, []byte{0xff}, func(key, value []byte) bool {
		if !indexRow.Match(key) {
			fmt.Fprintf(&b, "%s=%x\n", key, value)
		}
		return true
	})
	for _, id := range []actor.ID{newEntryGenerator("a").id, forgottenActor} {
		saved, loadErr := d.Load(id)
		if loadErr != nil && !errors.As(loadErr, new(store.Gone)) {
			err = errors.Join(err, loadErr)
		}
		fmt.Fprintf(&b, "%s snapshot %x error %v\n", id, saved.Snapshot, loadErr)
		for _, e := range saved.Entries {
			fmt.Fprintf(&b, "%x\n", store.EncodeEntry(e))
		}
	}
	every := runs.Filter{Calls: true, System: true}
	err = errors.Join(err, store.EachRun(d, actor.DefaultTenant, every, func(s *runs.Summary) {
		owner, ok, ownerErr := d.Run(actor.DefaultTenant, s.Run)
		events, eventsErr := d.Events(actor.DefaultTenant, s.Run, 0, eventsOfRun)
		dropped := store.EventsDropped{First: 1}
		if errors.As(eventsErr, &dropped) {
			events, eventsErr = d.Events(actor.DefaultTenant, s.Run, dropped.First-1, eventsOfRun)
		}
		err = errors.Join(err, ownerErr, eventsErr)
		fmt.Fprintf(&b, "run %+v owner %v %v events from %d: %v\n", *s, owner, ok, dropped.First, events)
	}))
	err = errors.Join(err, d.Due([]uint16{'a', 'b'}, func(id actor.ID) { fmt.Fprintln(&b, "due", id) }))
	return b.String(), err
}

// indexRow matches the keys of the rows that a flush of the index writes: watermarks, the
// expiry index, owners of runs, tombstones, and the places of events and entries.
var indexRow = regexp.MustCompile(`^(w/|x/|t/[^/]+/([ref]/|([sm]/[^/]+|y/[^/]+/[^/]+)/i/))`)

// crashed is the state after a crash at an operation of a recovery.
type crashed struct {
	storeState
	operation string
	unchanged bool // the recovery had not committed anything of its own
	promises  map[actor.CallID]promise
}

// crashRecorder is a file system that records, before each operation that changes a
// file or a directory, the state after a crash.
type crashRecorder struct {
	vfs.FS
	content string // content of the store once it was opened, as storedContent returns it

	mu         sync.Mutex
	state      storeState
	unchanged  bool
	random     *rand.Rand
	operations int
	crashes    []crashed
	promises   map[actor.CallID]promise // what clients of the runs know
}

// newCrashRecorder returns a recorder over a copy of the state's file system.
func newCrashRecorder(state storeState, random *rand.Rand) *crashRecorder {
	state.mem = state.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: random})
	r := &crashRecorder{state: state, unchanged: true, random: random}
	r.FS = errorfs.Wrap(state.mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if name := changingOperations[op.Kind]; name != "" {
			r.record(name + " " + op.Path)
		}
		return nil
	}))
	return r
}

var changingOperations = map[errorfs.OpKind]string{errorfs.OpCreate: "create", errorfs.OpLink: "link", errorfs.OpRemove: "remove", errorfs.OpRename: "rename",
	errorfs.OpReuseForWrite: "reuse", errorfs.OpMkdirAll: "mkdir", errorfs.OpLock: "lock", errorfs.OpFileWrite: "write", errorfs.OpFileWriteAt: "write at",
	errorfs.OpFileSync: "sync", errorfs.OpFileSyncData: "sync data", errorfs.OpFileSyncTo: "sync to"}

// record records two crashes: one that keeps no unsynced data, and one that keeps a
// random part or all of it.
func (r *crashRecorder) record(operation string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.operations++
	for _, percent := range []int{0, min(1+r.random.IntN(150), 100)} {
		c := crashed{r.state, fmt.Sprintf("operation %d (%s), %d%% of unsynced data kept", r.operations, operation, percent), r.unchanged, maps.Clone(r.promises)}
		c.mem = r.state.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r.random})
		r.crashes = append(r.crashes, c)
	}
}

// update changes the state that a crash from now on MUST keep.
func (r *crashRecorder) update(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// RemoveAll implements vfs.FS. Like that of a real file system, it removes one file
// after another.
func (r *crashRecorder) RemoveAll(dir string) error {
	names, err := r.List(dir)
	if err != nil {
		return nil //nolint:nilerr // like os.RemoveAll of an absent directory
	}
	for _, name := range names {
		if err := r.Remove(r.PathJoin(dir, name)); err != nil {
			return err
		}
	}
	return r.Remove(dir)
}

// recover opens the store, reads its secret, completes the deletion of sessions, appends an
// entry and closes the store.
func (r *crashRecorder) recover(options Options) error {
	d, err := Open(powerDir, "n1", options)
	if err != nil {
		return err
	}
	if r.content, err = storedContent(d); err != nil {
		return errors.Join(err, d.Close())
	}
	secret, err := d.Secret()
	if err != nil {
		return errors.Join(err, d.Close())
	}
	r.update(func() { r.state.secret = secret })
	g := newEntryGenerator("a")
	n, err := checkEntries(d, g.id)
	if err != nil || n < r.state.acked || n > r.state.committed {
		return errors.Join(fmt.Errorf("%d entries, want %d to %d", n, r.state.acked, r.state.committed), err, d.Close())
	}
	nextEntries(g, int(n))
	r.update(func() { r.state.committed, r.unchanged = n+1, false })
	l := NewLog(d)
	err = l.Erase()
	if err == nil && r.state.forgotten {
		err = checkForgotten(d, true)
	}
	commit(l, g.next())
	r.update(func() { r.state.acked = n + 1 })
	return errors.Join(err, l.Close(), d.Close())
}

// check opens the store that a crash has left and compares it with the state before
// the crash. It returns the number of entries that the rows of the index do not cover.
func (c *crashed) check(options Options, content string) (uncovered int, err error) {
	options.fs = c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(0, 0))})
	options.IndexEntries = 0 // this start does not flush the recovered index
	d, err := Open(powerDir, "n1", options)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if _, err := d.VerifyAll(); err != nil {
		return 0, err
	}
	if names, err := options.fs.List(d.path(preservedDir)); err == nil {
		return 0, fmt.Errorf("the opened store still has the preserved log %v", names)
	}
	got, err := storedContent(d)
	if err != nil {
		return 0, err
	}
	if c.unchanged && got != content {
		return 0, fmt.Errorf("the content has %d bytes, want the same %d", len(got), len(content))
	}
	n, err := checkEntries(d, newEntryGenerator("a").id)
	if err != nil || n < c.acked || n > c.committed {
		return 0, errors.Join(fmt.Errorf("%d entries, want %d to %d", n, c.acked, c.committed), err)
	}
	if c.forgotten {
		if err := checkForgotten(d, false); err != nil {
			return 0, err
		}
	}
	if secret, err := d.Secret(); err != nil || c.secret != nil && !bytes.Equal(secret, c.secret) {
		return 0, errors.Join(errors.New("the secret is missing, or another one"), err)
	}
	return d.Index.Entries(), nil
}
