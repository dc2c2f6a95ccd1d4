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
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/outbound"
)

// Bounds of the records on disk. RecordBytesMax bounds one.
const (
	SessionBytesMax = 256 << 20
	BytesMax        = 1 << 30 // bytes of all sessions
	RunsMax         = 1 << 16 // a run in several files counts for each

	queueBytesMax = 64 << 20
	basesBytesMax = 32 << 20 // requests in memory that others may continue
	evictedPart   = 16       // part of a bound that is removed when it is reached

	// A file takes no further record once it has so many bytes, or such a part of Config.Keep has passed since its
	// first one: what is removed from it is rewritten with the rest.
	fileBytesMax = 4 << 20
	filePart     = 8

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
	// Deletions notes which sessions were deleted; nil: nobody does.
	Deletions Deletions
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

	files sync.Mutex               // held while files are changed; mu is not taken before it
	known map[string]*sessionFiles // by the begin of their paths
	named int64                    // time in the name of the newest file
	held  int                      // bytes of all bases
	runs  int                      // of all files, as far as they were read
	sum   atomic.Int64             // bytes of all files
	evict int64                    // bytes at which files are removed
	most  int                      // runs at which files are removed
	// sessions that Forgetting has noted and for which no record was written since, by the begin of their paths
	noted map[string]struct{}
	// bytes of a session at which its oldest file is removed
	session int64
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
	s := &Store{Options: o, redact: redact, wake: make(chan struct{}, 1), done: make(chan struct{}), open: map[*recording]struct{}{}, progress: make(chan struct{}), known: map[string]*sessionFiles{}, noted: map[string]struct{}{}, evict: BytesMax, most: RunsMax, session: SessionBytesMax}
	if err := s.scan(); err != nil {
		return nil, fmt.Errorf("prompts %s: %w", o.Dir, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go s.run(ctx)
	return s, nil
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

// Forgetting notes that a session is about to be deleted from the log. If the process is killed before Forget, its files
// may no longer have records of the session, which older copies have. If it is killed before the deletion, the session
// stays, without the records of older copies.
func (s *Store) Forgetting(tenant, session string) {
	if s == nil {
		return
	}
	s.files.Lock()
	defer s.files.Unlock()
	prefix := prefixOf(s.Dir, tenant, session)
	if s.noteDeleted(prefix, s.now()) && len(s.noted) < notedMax {
		s.noted[prefix] = struct{}{}
	}
}

// notedMax bounds the sessions that are being deleted of which the store knows that Forget need not note them again.
const notedMax = 1024

// Forget removes the records of a session, also of requests that are under way. The session was deleted from the log
// before, after Forgetting.
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
	prefix := prefixOf(s.Dir, tenant, session)
	s.files.Lock()
	defer s.files.Unlock()
	if _, same := s.noted[prefix]; !same { // a backup may have records that were written since Forgetting
		s.noteDeleted(prefix, s.now())
	}
	delete(s.noted, prefix)
	if of := s.known[prefix]; of != nil {
		for _, f := range slices.Clone(of.all) {
			for _, r := range f.runs {
				r.settled = false // if it cannot be removed, the next check of the runs tries again
			}
			s.remove(f)
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
	if err := s.flush(ctx); err != nil {
		return Page{}, err
	}
	s.files.Lock()
	var paths []string
	if of := s.known[prefixOf(s.Dir, owner.Tenant, sessionOf(owner))]; of != nil {
		paths = of.paths(run)
	}
	s.files.Unlock()
	return readFiles(paths, run, after, limit, s.now().Add(-s.Keep))
}

// flush waits until the records that are in the queue are written.
func (s *Store) flush(ctx context.Context) error {
	s.mu.Lock()
	wanted := s.added
	s.mu.Unlock()
	for {
		s.mu.Lock()
		progress, there := s.progress, s.written >= wanted
		s.mu.Unlock()
		if there {
			return nil
		}
		select {
		case <-progress:
		case <-s.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// noteDeleted notes that the session with a prefix was deleted, with its records up to a time. It reports whether that is
// noted. s.files is held.
func (s *Store) noteDeleted(prefix string, upto time.Time) bool {
	if s.Deletions == nil {
		return false
	}
	err := s.Deletions.Deleted(nameOf(prefix), upto)
	if err != nil {
		s.Logger.Error("a restored backup may have the recorded prompts of a deleted session", "error", err.Error())
	}
	return err == nil
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
	record, request, err := compose(q.x, s.redact)
	if err != nil {
		return err
	}
	s.files.Lock()
	defer s.files.Unlock()
	if q.of.dropped.Load() { // before Forget removes the files
		return nil
	}
	return s.append(q.of, &record, request)
}
