// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/shares"
	"github.com/troupe-run/troupe/tools"
)

// timeoutsMax is the number of calls in a row without an answer in time after which a process is
// started again.
const timeoutsMax = 3

// server is one MCP server with its session, if it has one.
type server struct {
	name   string
	config Config
	set    *Servers
	log    *slog.Logger
	places shares.Queue  // of calls at once
	doubt  chan struct{} // capacity 1: a call has failed, and the list shows whether the session can be used
	listed chan struct{} // capacity 1: the server has announced a changed list
	tried  chan struct{} // closed once it has an accepted list, or was tried once

	mu       sync.Mutex
	link     *link         // nil: none
	changed  chan struct{} // closed when link or retryAt changes
	retryAt  time.Time     // start of the next attempt; zero: one is under way
	err      error         // why there is no session
	accepted *Listing
	offered  *Listing // differs from accepted; nil: none
	timeouts int      // calls in a row without an answer in time
	served   bool     // a call in the last session was answered
	stats    Stats

	lists   sync.Mutex  // held while a list is compared with accepted and offered
	left    []string    // why entries of the last logged list are left out
	lefts   pace        // of lines about them
	changes pace        // of lines about a changed list
	read    pace        // of lists, of run
	seen    os.FileInfo // of the file with the accepted list, when it was read last
}

// link is a session and what carries it.
type link struct {
	*sdk.ClientSession
	process *process        // nil over HTTP
	web     *web            // nil for a process
	again   bool            // opened because the server had forgotten the last session
	broken  chan error      // capacity 1: a call has found that the session is of no use
	ctx     context.Context // of its calls
	cancel  context.CancelFunc

	mu     sync.Mutex
	open   int           // calls
	ending bool          // no further calls
	idle   chan struct{} // closed once it is ending and has no open calls
}

// begin counts a call, unless the session is ending.
func (l *link) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending {
		return false
	}
	l.open++
	return true
}

func (l *link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open--; l.ending && l.open == 0 {
		close(l.idle)
	}
}

// drain closes the session once its calls have ended: a server that has forgotten it, or cannot be
// reached, may still answer them.
func (l *link) drain(ctx context.Context) {
	l.mu.Lock()
	if l.ending = true; l.open == 0 {
		close(l.idle)
	}
	l.mu.Unlock()
	select {
	case <-l.idle:
	case <-ctx.Done():
	}
	l.close()
}

// errForgotten means that the server does not know the session.
var errForgotten = errors.New("it has forgotten the session")

// errLate means that a process does not answer its calls.
var errLate = errors.New("its last calls were not answered in time")

// giveUp ends the use of a session.
func (l *link) giveUp(err error) {
	select {
	case l.broken <- err:
	default:
	}
}

func newServer(s *Servers, name string, c Config, accepted *Listing) *server {
	o := &server{name: name, config: c, set: s, log: s.log.With("mcp", name),
		doubt: make(chan struct{}, 1), listed: make(chan struct{}, 1), tried: make(chan struct{}), changed: make(chan struct{}), accepted: accepted}
	if accepted != nil {
		close(o.tried)
	}
	return o
}

// run keeps a session with the server until the servers are closed.
func (s *server) run() {
	ctx, t := s.set.ctx, &s.set.options.times
	delay := t.backoff
	tried, forgotten := s.accepted == nil, false
	defer time.AfterFunc(t.connect, s.closeTried).Stop() // a node does not wait for a compiler
	for ctx.Err() == nil {
		s.setLink(nil, nil, time.Time{})
		begin := time.Now()
		err := s.serve(ctx, forgotten)
		if tried {
			tried = false
			s.closeTried()
		}
		if ctx.Err() != nil {
			break
		}
		if time.Since(begin) > t.backoffMax {
			delay = t.backoff
		}
		if forgotten = errors.Is(err, errForgotten) && (s.hasServed() || !forgotten); forgotten {
			continue // at once, but not if it forgets each session
		}
		if errors.Is(err, errLate) && s.config.Wasm != "" && s.hasServed() {
			continue // at once: one call was at fault, whose time has bounded the rate
		}
		wait := delay/2 + rand.N(delay/2+1)
		delay = min(2*delay, t.backoffMax)
		s.setLink(nil, err, time.Now().Add(wait))
		s.log.Warn("MCP server is not available; it is started again after a delay", "error", actor.FitText(err.Error(), 500), "delay", wait.String())
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	s.closeTried()
	s.setLink(nil, errors.New("this node is stopping"), time.Now())
}

func (s *server) hasServed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served
}

func (s *server) closeTried() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.tried:
	default:
		close(s.tried)
	}
}

// connectTime returns the maximum time to open a session. A module is compiled in it, once for all starts.
func (s *server) connectTime() time.Duration {
	t := &s.set.options.times
	if s.config.Wasm == "" {
		return t.connect
	}
	return t.connect + t.compile
}

// serve opens a session, again if the server has forgotten the last one, and returns the reason of its end.
func (s *server) serve(ctx context.Context, reopened bool) error {
	starting, cancel := context.WithTimeout(ctx, s.connectTime())
	defer cancel()
	l, err := s.connect(starting)
	if err != nil {
		return err
	}
	l.again = reopened
	if l.process != nil {
		defer l.close()
	} else {
		defer s.set.work.Go(func() { l.drain(ctx) })
	}
	if err := s.relist(starting, l); err != nil {
		return l.cause(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- l.Wait() }() // ends with l.close
	s.setLink(l, nil, time.Time{})
	defer s.setLink(nil, nil, time.Time{}) // calls wait for run while the session is closed
	s.closeTried()
	s.log.Info("MCP server is available")
	var relist <-chan time.Time
	if l.process == nil {
		ticker := time.NewTicker(s.set.options.times.relist)
		defer ticker.Stop()
		relist = ticker.C
	}
	listed, again := s.listed, (<-chan time.Time)(nil) // one of them is nil
	for failed := 0; ; {
		select {
		case err := <-ended:
			if err == nil {
				err = errors.New("it closed the session")
			}
			return l.cause(err)
		case err := <-l.broken:
			return l.cause(err)
		case <-ctx.Done():
			return ctx.Err()
		case <-relist:
		case <-s.doubt:
		case <-again: // announcements since the last list have one list
			listed, again = s.listed, nil
			drain(listed)
		case <-listed:
			if left := s.read.left(s.set.options.times.announced); left > 0 {
				timer := time.NewTimer(left)
				defer timer.Stop()
				listed, again = nil, timer.C
				continue
			}
		}
		if l.web != nil {
			l.web.forgotten.Store(false) // a call may have been told so, and not the list
		}
		listing, cancel := context.WithTimeout(ctx, s.set.options.times.connect)
		err := s.relist(listing, l)
		cancel()
		switch {
		case err == nil:
			failed = 0
		case l.web != nil && l.web.forgotten.Load():
			return errForgotten
		case isPassing(err) && failed < relistsMax:
			failed++
			s.log.Warn("the list of tools of an MCP server cannot be read; it is read again", "error", actor.FitText(err.Error(), 500))
		default:
			return l.cause(err)
		}
	}
}

// relistsMax is the number of consecutive lists that may fail for a passing reason.
const relistsMax = 2

// isPassing reports whether a server refused its list for a reason that says nothing about the session.
func isPassing(err error) bool {
	var wire *jsonrpc.Error
	if !errors.As(err, &wire) {
		return false
	}
	status := statusCode(0) - wire.Code
	return status == 401 || status == 403 || status == 429 || status >= 500 && status < 600
}

// check reads the list of the server, which shows whether the session can be used.
func (s *server) check() { notify(s.doubt) }

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func drain(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// connect starts the server, if it is a process, and opens a session.
func (s *server) connect(ctx context.Context) (*link, error) {
	o := &s.set.options
	l := &link{broken: make(chan error, 1), idle: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	var transport sdk.Transport
	var err error
	if s.config.URL != "" {
		l.web, transport, err = newWeb(o, &s.config)
	} else if l.process, err = s.start(); err == nil {
		transport = &sdk.IOTransport{Reader: l.process, Writer: l.process, MaxLineLength: messageBytesMax + 1}
	}
	if err != nil {
		l.cancel()
		return nil, err
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "troupe", Version: "1"}, &sdk.ClientOptions{
		Logger:                 slog.New(slog.DiscardHandler),
		Capabilities:           &sdk.ClientCapabilities{}, // no sampling, elicitation or roots
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { notify(s.listed) },
	})
	if l.ClientSession, err = client.Connect(ctx, transport, nil); err == nil {
		return l, nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("it did not open a session within %s", s.connectTime())
	}
	err = l.cause(err)
	l.close()
	return nil, err
}

// start starts the process of the server, if there is a place for it.
func (s *server) start() (*process, error) {
	release, err := s.set.options.Process()
	if err != nil {
		return nil, err
	}
	c, head := s.config, []byte(nil)
	if c.Wasm != "" {
		c, head, err = s.set.module(c)
	}
	var p *process
	if err == nil {
		p, err = startProcess(&c, s.set.options.Env, s.set.options.times.grace, s.log)
	}
	if err != nil {
		release()
		return nil, err
	}
	p.head, p.sandboxed, p.release = head, c.Wasm != "", release
	return p, nil
}

// close ends the calls first, because the SDK waits for them.
func (l *link) close() {
	l.cancel()
	if l.process != nil {
		l.process.stop()
	}
	if l.ClientSession != nil {
		_ = l.Close()
	}
}

func (l *link) cause(err error) error {
	if l.process == nil {
		return err
	}
	return l.process.cause(err)
}

// relist reads the list of the server and compares it with the accepted one.
func (s *server) relist(ctx context.Context, l *link) error {
	s.read.last = time.Now()
	listed, left, err := list(ctx, l.ClientSession)
	if err != nil {
		return err
	}
	s.lists.Lock()
	defer s.lists.Unlock()
	if !slices.Equal(left, s.left) && (len(left) == 0 || s.lefts.admit(s.set.options.times.warned)) {
		if s.left = left; len(left) > 0 {
			s.log.Warn("entries in the list of an MCP server are left out", "count", len(left), "reasons", left)
		}
	}
	accepted, offered := s.acceptedAndOffered()
	switch hash := listed.Hash(); {
	case accepted == nil:
		if err := s.set.pins.write(s.set.pins.accepted(s.name), listed); err != nil {
			return fmt.Errorf("its list of tools cannot be stored: %w", err)
		}
		s.setLists(listed, nil)
		s.log.Info("the first list of tools of an MCP server is accepted", "tools", len(listed.Tools), "hash", hash.String())
		s.set.republish()
	case hash == accepted.Hash():
		if err := os.Remove(s.set.pins.offered(s.name)); err != nil && !errors.Is(err, fs.ErrNotExist) { // withdrawn
			return fmt.Errorf("its former list of tools cannot be deleted: %w", err)
		}
		s.setLists(accepted, nil)
	case offered == nil || hash != offered.Hash():
		if err := s.set.pins.write(s.set.pins.offered(s.name), listed); err != nil {
			return fmt.Errorf("its list of tools cannot be stored: %w", err)
		}
		s.setLists(accepted, listed)
		if !s.changes.admit(s.set.options.times.warned) {
			break
		}
		changes := Diff(accepted, listed)
		s.log.Warn("MCP server has changed its tools; the accepted ones remain in use until: troupe tools accept "+s.name, "changes", len(changes), "first", changes[0].Kind+" "+changes[0].Name(), "hash", hash.String())
	}
	return nil
}

func (s *server) setLists(accepted, offered *Listing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted, s.offered = accepted, offered
}

func (s *server) acceptedAndOffered() (accepted, offered *Listing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted, s.offered
}

// readAccepted uses the accepted list in the file of the server. It reports whether that has
// changed. The server may offer a newer list by now, which still waits to be accepted.
func (s *server) readAccepted() bool {
	s.lists.Lock()
	defer s.lists.Unlock()
	accepted, offered := s.acceptedAndOffered()
	path := s.set.pins.accepted(s.name)
	info, err := os.Lstat(path)
	if accepted == nil || errors.Is(err, fs.ErrNotExist) || // deleted, which applies at the next start
		err == nil && s.seen != nil && os.SameFile(info, s.seen) && info.ModTime().Equal(s.seen.ModTime()) {
		return false
	}
	s.seen = info
	l, err := readPin(path)
	switch {
	case err != nil:
		s.log.Error("the accepted list of an MCP server cannot be used; the former one remains in use", "error", err.Error())
		return false
	case l == nil || l.Hash() == accepted.Hash():
		return false
	case offered == nil:
	case l.Hash() == offered.Hash():
		offered = nil
	default: // Accept may have deleted the file of this newer list
		if err := s.set.pins.write(s.set.pins.offered(s.name), offered); err != nil {
			s.log.Error("a changed list of tools cannot be stored; the next connection tries again", "error", err.Error())
			offered = nil
		}
	}
	s.setLists(l, offered)
	s.log.Info("the changed tools of an MCP server are accepted", "hash", l.Hash().String(), "changed_again", offered != nil)
	return true
}

func (s *server) setLink(l *link, err error, retryAt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l != nil {
		s.stats.Restarts++
		s.served = false
	}
	s.link, s.err, s.retryAt, s.timeouts = l, err, retryAt, 0
	close(s.changed)
	s.changed = make(chan struct{})
}

// session returns the session of the server, and waits for it while the server is being started. If
// the server has failed, session returns a refusal: at once, or with patient after the next attempt
// to start it. The caller MUST end its call in the session.
func (s *server) session(ctx context.Context, patient bool) (*link, *actor.Refusal) {
	var awaited time.Time // start of the attempt that is waited for
	for {
		s.mu.Lock()
		l, changed, err, retryAt := s.link, s.changed, s.err, s.retryAt
		s.mu.Unlock()
		switch {
		case l != nil && l.begin():
			return l, nil
		case l != nil: // it is about to be replaced
		case err != nil && patient && (awaited.IsZero() || awaited.Equal(retryAt)) && s.set.ctx.Err() == nil:
			awaited = retryAt
		case err != nil:
			after := max(time.Until(retryAt), 0).Truncate(time.Millisecond) + time.Millisecond
			return nil, actor.RefuseUnavailable(after, "the MCP server %s is not available: %.300s; it is started again in %s", s.name, err, after)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, actor.RefuseUnavailable(time.Second, "the MCP server %s is starting, and has not answered in time", s.name)
		}
	}
}

// tools returns the accepted tools, why others are left out, and which patterns are left to the server.
func (s *server) tools() (all []tools.Tool, left, unchecked []string) {
	s.mu.Lock()
	accepted := s.accepted
	s.mu.Unlock()
	if accepted == nil {
		return nil, nil, nil
	}
	for i := range accepted.Tools {
		own := &accepted.Tools[i]
		d := s.config.declared(s.name, own)
		t, err := tools.OfServer(d, func(ctx context.Context, input []byte) tools.Result {
			return s.call(ctx, own.Name, d.Idempotent, input)
		})
		if err != nil {
			left = append(left, actor.FitText(d.Name+": "+err.Error(), 300))
			continue
		}
		if places := t.Unchecked(); len(places) > 0 {
			unchecked = append(unchecked, actor.FitText(d.Name+": "+strings.Join(places, ", "), 300))
		}
		all = append(all, t)
	}
	return all, left, unchecked
}

func (s *server) snapshot() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	out.Name, out.Up, out.Changed = s.name, s.link != nil, s.offered != nil
	if s.offered != nil {
		out.Offered = s.offered.Hash().String()
	}
	if s.accepted != nil {
		out.Tools = len(s.accepted.Tools)
	}
	if out.Restarts > 0 {
		out.Restarts-- // the first session is none
	}
	if s.err != nil {
		out.Error = actor.FitText(s.err.Error(), 300)
	}
	return out
}
