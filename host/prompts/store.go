// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/outbound"
)

// Bounds of the records on disk. RecordBytesMax bounds one.
const (
	RunBytesMax = 32 << 20 // bytes of a run
	BytesMax    = 1 << 30  // bytes of all runs
	RunsMax     = 1 << 16

	queueBytesMax = 64 << 20
	evictedPart   = 16 // part of a bound that is removed when it is reached

	settleEvery = 5 * time.Second
	writesMax   = 64              // records that are written before other work
	closeWithin = 2 * time.Second // for what is queued at the end
	ageEveryMax = time.Hour
	reportEvery = time.Minute
)

// State is the state of a run in the log.
type State uint8

// The states.
const (
	Unknown   State = iota // the log has no such run
	Running                // it, or the root of its tree, has not ended
	Succeeded              // both have succeeded
	Kept                   // it or the root has failed, or was cancelled
)

// Source is the log of a node.
type Source interface {
	// Tenants returns all namespaces that may have runs.
	Tenants() ([]string, error)
	// Known reports whether the log has a run.
	Known(tenant string, run actor.CallID) (bool, error)
	// State returns the state of a run.
	State(tenant string, run actor.CallID) (State, error)
}

// Options are what a Store needs.
type Options struct {
	Config
	Dir    string // folder of the files; created with the first record
	Source Source
	Logger *slog.Logger
	// Room reports whether the disk has space for records; nil: it has.
	Room func() bool

	now func() time.Time // nil: time.Now
}

// Stats are the figures of a Store.
type Stats struct {
	Recorded uint64
	Dropped  uint64 // records that were lost, because the queue or the disk was full or had an error
	Bytes    int64
}

// Store records the requests to models of a node. A nil Store records nothing.
type Store struct {
	Options
	redact redactor
	wake   chan struct{}
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	open     map[*recording]struct{}
	queue    []queued
	writing  *recording    // of the record that left the queue and is not written yet; nil: none
	bytes    int           // of the queue
	added    uint64        // records that were ever added to the queue
	written  uint64        // those that were taken care of
	progress chan struct{} // closed when written grows
	recorded uint64
	dropped  uint64
	reported uint64 // of dropped, in the log

	files sync.Mutex // held while files are changed; mu is not taken before it
	known map[string]*file
	sum   atomic.Int64 // bytes of all files
	evict int64        // bytes at which files are removed
	most  int          // files at which some are removed
}

// recording is a request that is under way.
type recording struct {
	owner   actor.ID
	run     actor.CallID
	dropped atomic.Bool // its session was deleted
}

type queued struct {
	of *recording
	x  *outbound.Recorded
}

// file is what is known of a file.
type file struct {
	tenant  string // name of the folder of its namespace
	run     actor.CallID
	size    int64
	changed time.Time
	whole   bool // it has no incomplete line
	settled bool // what becomes of it does not depend on its run any more
}

// Open returns the records in a folder. It returns nil if nothing is recorded and nothing was.
func Open(o Options) (*Store, error) {
	if _, err := os.Stat(o.Dir); !o.On() && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if real, err := filepath.EvalSymlinks(o.Dir); err == nil { // the files behind a link to another disk are found after a start
		o.Dir = real
	}
	redact, err := newRedactor(o.Redact)
	if err != nil {
		return nil, err
	}
	o.Keep = cmp.Or(o.Keep, KeepDefault)
	if o.now == nil {
		o.now = time.Now
	}
	s := &Store{Options: o, redact: redact, wake: make(chan struct{}, 1), done: make(chan struct{}), open: map[*recording]struct{}{}, progress: make(chan struct{}), known: map[string]*file{}, evict: BytesMax, most: RunsMax}
	if err := s.scan(); err != nil {
		return nil, fmt.Errorf("prompts %s: %w", o.Dir, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go s.run(ctx)
	return s, nil
}

// scan reads the names of the files.
func (s *Store) scan() error {
	err := filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, tempType) { // a killed process has left it
			return os.Remove(path)
		}
		_, name, _ := strings.Cut(strings.TrimSuffix(d.Name(), fileType), "-")
		run, err := actor.ParseCallID(name)
		if err != nil || !strings.HasSuffix(path, fileType) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		s.known[path] = &file{tenant: filepath.Base(filepath.Dir(path)), run: run, size: info.Size(), changed: info.ModTime()}
		s.sum.Add(info.Size())
		return nil
	})
	return err
}

// Close writes what is queued, for at most closeWithin, and ends the work. No request may be under way.
func (s *Store) Close() {
	if s == nil {
		return
	}
	s.cancel()
	<-s.done
}

// Mode returns what is recorded: Off, Failed or All.
func (s *Store) Mode() string {
	if s == nil {
		return Off
	}
	return cmp.Or(s.Prompts, Off)
}

// Stats returns the figures.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{s.recorded, s.dropped, s.sum.Load()}
}

// Begin implements outbound.Config.Record.
func (s *Store) Begin(owner actor.ID, run actor.CallID) func(*outbound.Recorded) {
	if run.IsZero() {
		return nil
	}
	r := &recording{owner: owner, run: run}
	s.mu.Lock()
	s.open[r] = struct{}{}
	s.mu.Unlock()
	return func(x *outbound.Recorded) { s.end(r, x) }
}

// end adds a request to the queue.
func (s *Store) end(r *recording, x *outbound.Recorded) {
	n := len(x.Request) + len(x.Raw) + len(x.Completion.Text)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, r)
	if s.bytes+n > queueBytesMax {
		s.dropped++
		return
	}
	s.bytes += n
	s.added++
	s.queue = append(s.queue, queued{r, x})
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Forget removes the records of a session, also of requests that are under way. The session was deleted from the log
// before.
func (s *Store) Forget(tenant, session string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	for r := range s.open {
		r.dropIf(tenant, session)
	}
	for _, q := range s.queue {
		q.of.dropIf(tenant, session)
	}
	if s.writing != nil {
		s.writing.dropIf(tenant, session)
	}
	s.mu.Unlock()
	s.files.Lock()
	defer s.files.Unlock()
	prefix := prefixOf(s.Dir, tenant, session)
	for path, f := range s.known {
		if strings.HasPrefix(path, prefix) {
			f.settled = false // if it cannot be removed, the next check of the runs tries again
			s.remove(path, f)
		}
	}
}

func (r *recording) dropIf(tenant, session string) {
	if r.owner.Tenant == tenant && sessionOf(r.owner) == session {
		r.dropped.Store(true)
	}
}

// Read returns records of a run, also those that ended just before the call.
func (s *Store) Read(ctx context.Context, owner actor.ID, run actor.CallID, after uint64, limit int) (Page, error) {
	if s == nil {
		return Page{}, nil
	}
	s.mu.Lock()
	wanted := s.added
	s.mu.Unlock()
	for {
		s.mu.Lock()
		progress, there := s.progress, s.written >= wanted
		s.mu.Unlock()
		if there {
			break
		}
		select {
		case <-progress:
		case <-s.done:
			wanted = 0
		case <-ctx.Done():
			return Page{}, ctx.Err()
		}
	}
	return Read(s.Dir, owner, run, after, limit, s.now().Add(-s.Keep))
}

// run writes records, and removes those whose time has come.
func (s *Store) run(ctx context.Context) {
	defer close(s.done)
	settle, age, report := time.NewTicker(settleEvery), time.NewTicker(max(min(ageEveryMax, s.Keep/24), time.Second)), time.NewTicker(reportEvery)
	defer settle.Stop()
	defer age.Stop()
	defer report.Stop()
	s.settle(ctx) // the files of a killed process
	s.age()
	for {
		s.write(ctx, writesMax)
		select {
		case <-ctx.Done():
			until := time.Now().Add(closeWithin)
			for s.write(context.Background(), 1) && time.Now().Before(until) {
				continue
			}
			s.mu.Lock()
			s.dropped += uint64(len(s.queue))
			s.mu.Unlock()
			s.report()
			return
		case <-s.wake:
		case <-settle.C:
			s.settle(ctx)
		case <-age.C:
			s.age()
		case <-report.C:
			s.report()
		}
	}
}

// report logs records that were lost.
func (s *Store) report() {
	s.mu.Lock()
	lost := s.dropped - s.reported
	s.reported = s.dropped
	s.mu.Unlock()
	if lost > 0 {
		s.Logger.Warn("prompts were not recorded: there were too many at a time, or the disk is full", "count", lost)
	}
}

// write writes at most so many records of the queue, until ctx ends. It reports whether others are left.
func (s *Store) write(ctx context.Context, most int) (more bool) {
	for n := 0; ; n++ {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.queue = nil
			s.mu.Unlock()
			return false
		}
		if n == most || ctx.Err() != nil {
			s.mu.Unlock()
			select {
			case s.wake <- struct{}{}:
			default:
			}
			return true
		}
		q := s.queue[0]
		s.queue[0] = queued{}
		s.queue = s.queue[1:]
		s.writing = q.of
		s.mu.Unlock()
		err := s.writeOne(q)
		if err != nil {
			s.Logger.Debug("a prompt is not recorded", "run", q.of.run.String(), "error", err.Error())
		}
		s.mu.Lock()
		s.bytes -= len(q.x.Request) + len(q.x.Raw) + len(q.x.Completion.Text)
		s.writing = nil
		s.written++
		switch {
		case err != nil:
			s.dropped++
		case !q.of.dropped.Load():
			s.recorded++
		}
		close(s.progress)
		s.progress = make(chan struct{})
		s.mu.Unlock()
	}
}

// errNoRoom is the error of a record for which the disk has no space to spare.
var errNoRoom = errors.New("the disk is almost full")

func (s *Store) writeOne(q queued) error {
	if q.of.dropped.Load() {
		return nil
	}
	if s.Room != nil && !s.Room() {
		return errNoRoom
	}
	text, err := line(q.x, s.redact)
	if err != nil {
		return err
	}
	s.files.Lock()
	defer s.files.Unlock()
	if q.of.dropped.Load() { // before Forget removes the files
		return nil
	}
	path := fileOf(s.Dir, q.of.owner, q.of.run)
	f := s.known[path]
	if f == nil {
		f = &file{tenant: folderName(q.of.owner.Tenant), run: q.of.run}
	}
	grown, err := appendLine(path, text, f.whole)
	if err != nil {
		return err
	}
	s.known[path] = f
	f.whole, f.settled, f.changed = true, f.settled && s.Prompts != Failed, s.now()
	f.size += grown
	s.sum.Add(grown)
	if f.size > RunBytesMax {
		s.trim(path, f, time.Time{}, RunBytesMax/2)
	}
	if s.sum.Load() > s.evict || len(s.known) > s.most {
		s.makeRoom()
	}
	return nil
}

// trim removes records from the front of a file. s.files is held.
func (s *Store) trim(path string, f *file, before time.Time, sizeMax int64) {
	size, err := trim(path, before, sizeMax)
	if err != nil {
		s.Logger.Error("cannot remove recorded prompts", "file", path, "error", err.Error())
		return
	}
	s.sum.Add(size - f.size)
	if f.size = size; size == 0 {
		s.forgetFile(path)
	}
}

// remove removes a file. s.files is held.
func (s *Store) remove(path string, f *file) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Logger.Error("cannot remove recorded prompts", "file", path, "error", err.Error())
		return
	}
	s.sum.Add(-f.size)
	s.forgetFile(path)
}

// forgetFile forgets a file that was removed, and removes its folder if that is empty.
func (s *Store) forgetFile(path string) {
	delete(s.known, path)
	_ = os.Remove(filepath.Dir(path)) // refused unless it is empty
}

// makeRoom removes the files that were written to longest ago. s.files is held.
func (s *Store) makeRoom() {
	all := make([]string, 0, len(s.known))
	for path := range s.known {
		all = append(all, path)
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(s.known[a].changed.Compare(s.known[b].changed), cmp.Compare(a, b))
	})
	for _, path := range all {
		if s.sum.Load() <= s.evict-s.evict/evictedPart && len(s.known) <= s.most-s.most/evictedPart {
			return
		}
		s.remove(path, s.known[path])
	}
}

// age removes records older than Keep.
func (s *Store) age() {
	before := s.now().Add(-s.Keep)
	for _, path := range s.paths(func(*file) bool { return true }) {
		s.files.Lock()
		if f := s.known[path]; f != nil {
			if f.changed.Before(before) {
				s.remove(path, f)
			} else if runTime(f.run).Before(before) { // it may have older records
				s.trim(path, f, before, RunBytesMax)
			}
		}
		s.files.Unlock()
	}
}

// runTime returns the time at which a run was created.
func runTime(run actor.CallID) time.Time {
	ms := int64(0)
	for _, b := range run[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms)
}

// paths returns the files that a function selects.
func (s *Store) paths(selects func(*file) bool) (all []string) {
	s.files.Lock()
	defer s.files.Unlock()
	for path, f := range s.known {
		if selects(f) {
			all = append(all, path)
		}
	}
	slices.Sort(all)
	return all
}

// settle removes the files of runs that the log does not have, and with Failed those of runs that have succeeded.
func (s *Store) settle(ctx context.Context) {
	open := s.paths(func(f *file) bool { return !f.settled })
	if len(open) == 0 {
		return
	}
	tenants, err := s.Source.Tenants()
	if err != nil {
		return
	}
	names := map[string]string{}
	for _, tenant := range tenants {
		names[folderName(tenant)] = tenant
	}
	for _, path := range open {
		if ctx.Err() != nil {
			return
		}
		s.files.Lock()
		f := s.known[path]
		s.files.Unlock()
		if f == nil {
			continue
		}
		state := Unknown
		if tenant, ok := names[f.tenant]; ok {
			if state, err = s.state(tenant, f.run); err != nil {
				continue
			}
		}
		s.files.Lock()
		switch f = s.known[path]; {
		case f == nil:
		case state == Unknown && s.now().Sub(f.changed) < settleEvery: // its entries may not be written yet
		case state == Unknown, state == Succeeded && s.Prompts == Failed:
			s.remove(path, f)
		case state != Running || s.Prompts != Failed:
			f.settled = true
		}
		s.files.Unlock()
	}
}

// state returns the state of a run. Only Failed depends on how it has ended.
func (s *Store) state(tenant string, run actor.CallID) (State, error) {
	if s.Prompts == Failed {
		return s.Source.State(tenant, run)
	}
	known, err := s.Source.Known(tenant, run)
	if known {
		return Running, err
	}
	return Unknown, err
}
