// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/troupe-run/troupe/internal/shares"
)

// Bounds of workers.
const (
	idleMax  = 5 * time.Minute // time without a call after which a worker ends
	startMax = 2 * time.Minute // time to compile a module
)

// Options configure the workers of a server.
type Options struct {
	// Command starts a worker, which calls Serve with its standard streams.
	Command []string
	Dir     string // folder of the modules, and of what is compiled from them; created when it is needed
	// Max is the number of workers; 0: WorkersMax. Further calls wait.
	Max    int
	Logger *slog.Logger
}

// WorkersMax returns the usual number of workers: twice the number of processors, at least 4.
func WorkersMax() int { return max(4, 2*goruntime.NumCPU()) }

// Workers are the workers of a server. They are safe for concurrent use.
type Workers struct {
	options Options
	modules modules
	places  shares.Queue

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu       sync.Mutex
	running  map[*process]bool // true: idle
	idle     []*process        // the longest idle first
	starting map[string]*startLock
	pending  int // starts under way
}

// startLock lets workers with one module start one after the other: the first compiles for all.
type startLock struct {
	held  chan struct{} // has an item while it is held
	users int
}

// errClosed is the cause of calls that end with the server.
var errClosed = errors.New("the server stops")

// New returns workers, of which none runs. The caller MUST close them.
func New(o Options) *Workers {
	if o.Max == 0 {
		o.Max = WorkersMax()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Workers{options: o, modules: modules{o.Dir}, running: map[*process]bool{}, starting: map[string]*startLock{}}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.work.Go(w.endIdle)
	return w
}

// Close ends all workers and waits for their end.
func (w *Workers) Close() {
	w.cancel()
	w.work.Wait()
	w.mu.Lock()
	all := w.running
	w.running, w.idle = map[*process]bool{}, nil
	w.mu.Unlock()
	for p := range all {
		p.kill()
	}
}

// cache returns the folder of compiled modules.
func (w *Workers) cache() string { return filepath.Join(w.options.Dir, "cache") }

// call performs a call of a module on behalf of a user. The time of ctx includes waiting for a worker and
// its start.
func (w *Workers) call(ctx context.Context, user, sum string, grants []string, seed [seedBytes]byte, input []byte) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.ctx, cancel)()
	if err := w.places.Acquire(ctx, user, shares.PlacesOf(w.options.Max)); err != nil {
		return nil, w.causeOf(err)
	}
	p := w.take(keyOf(sum, grants))
	if p == nil {
		var err error
		if p, err = w.start(ctx, user, sum, grants); err != nil { // it releases the place
			return nil, w.causeOf(err)
		}
	}
	defer w.places.Release(user)
	result, err := p.call(ctx, seed, input)
	if err != nil && !errors.As(err, new(*failure)) {
		w.drop(p)
		return nil, w.causeOf(err)
	}
	w.keep(p)
	return result, err
}

func (w *Workers) causeOf(err error) error {
	if w.ctx.Err() != nil {
		return errClosed
	}
	return err
}

func keyOf(sum string, grants []string) string { return sum + " " + strings.Join(grants, " ") }

// take returns an idle worker with a module, or nil.
func (w *Workers) take(key string) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.idle) - 1; i >= 0; i-- {
		p := w.idle[i]
		if p.key == key {
			w.idle = slices.Delete(w.idle, i, i+1)
			w.running[p] = false
			return p
		}
	}
	return nil
}

// keep makes a worker idle.
func (w *Workers) keep(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.since = time.Now()
	w.running[p] = true
	w.idle = append(w.idle, p)
}

// drop forgets a worker that has ended.
func (w *Workers) drop(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, p)
}

// start returns a new worker. If ctx ends first, the worker becomes idle once it has started. So a module
// that compiles for longer than a call may last can be called later. In this case, and after an error, the
// place of the user is released.
func (w *Workers) start(ctx context.Context, user, sum string, grants []string) (*process, error) {
	type outcome struct {
		p   *process
		err error
	}
	started := make(chan outcome)
	abandoned := make(chan struct{})
	w.work.Go(func() {
		ctx, cancel := context.WithTimeout(w.ctx, startMax)
		defer cancel()
		release, err := w.lockStart(ctx, keyOf(sum, grants))
		var p *process
		if err == nil {
			defer release()
			p, err = w.startOne(ctx, sum, grants)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = &failure{"compiles for more than " + startMax.String()}
		}
		if err != nil {
			w.places.Release(user)
		}
		select {
		case started <- outcome{p, err}:
		case <-abandoned:
			if err == nil {
				w.keep(p)
				w.places.Release(user)
			}
		}
	})
	select {
	case o := <-started:
		return o.p, o.err
	case <-ctx.Done():
		close(abandoned)
		return nil, ctx.Err()
	}
}

// startOne returns a worker that is not idle.
func (w *Workers) startOne(ctx context.Context, sum string, grants []string) (*process, error) {
	key := keyOf(sum, grants)
	if p := w.take(key); p != nil { // its caller has gone
		return p, nil
	}
	module, err := w.modules.get(sum)
	if err != nil {
		return nil, &failure{"cannot be read: " + err.Error()}
	}
	if err := os.MkdirAll(w.cache(), 0o700); err != nil {
		return nil, err
	}
	pruneCache(w.cache(), cacheBytesMax)
	w.makeRoom()
	begin := time.Now()
	p, err := startProcess(ctx, w.options.Command, key, &start{Cache: w.cache(), Grants: grants}, module)
	w.mu.Lock()
	if w.pending--; err == nil {
		w.running[p] = false
	}
	w.mu.Unlock()
	if err == nil {
		w.options.Logger.Debug("worker for a module started", "sha256", sum, "pid", p.cmd.Process.Pid, "took", time.Since(begin).String())
	}
	return p, err
}

// makeRoom counts a start, and ends the worker that is idle for the longest time if there are too many.
func (w *Workers) makeRoom() {
	w.mu.Lock()
	var oldest *process
	if w.pending++; len(w.running)+w.pending > w.options.Max && len(w.idle) > 0 {
		oldest = w.idle[0]
		w.idle = w.idle[1:]
		delete(w.running, oldest)
	}
	w.mu.Unlock()
	if oldest != nil {
		oldest.kill()
	}
}

// lockStart waits until no other worker with this module starts.
func (w *Workers) lockStart(ctx context.Context, key string) (release func(), err error) {
	w.mu.Lock()
	l := w.starting[key]
	if l == nil {
		l = &startLock{held: make(chan struct{}, 1)}
		w.starting[key] = l
	}
	l.users++
	w.mu.Unlock()
	leave := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(w.starting, key)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// EndIdle ends all idle workers, because their descriptors are needed, and returns how many. The next calls start others.
func (w *Workers) EndIdle() int {
	w.mu.Lock()
	ended := w.idle
	w.idle = nil
	for _, p := range ended {
		delete(w.running, p)
	}
	w.mu.Unlock()
	for _, p := range ended {
		p.kill()
	}
	return len(ended)
}

// endIdle ends workers that had no call for idleMax.
func (w *Workers) endIdle() {
	ticker := time.NewTicker(idleMax / 5)
	defer ticker.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-ticker.C:
		}
		var ended []*process
		w.mu.Lock()
		for len(w.idle) > 0 && time.Since(w.idle[0].since) > idleMax {
			delete(w.running, w.idle[0])
			ended, w.idle = append(ended, w.idle[0]), w.idle[1:]
		}
		w.mu.Unlock()
		for _, p := range ended {
			p.kill()
		}
	}
}
