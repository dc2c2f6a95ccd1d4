// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Options configure the servers of a node.
type Options struct {
	Servers   map[string]Config
	Dir       string            // folder of the lists; created when the first is written
	Transport http.RoundTripper // of the egress; it decides which addresses are allowed
	Auth      upstream.Bindings // addresses to which secrets may be sent
	// looks up an environment variable; nil: os.LookupEnv
	Env func(name string) (value string, ok bool)
	// Process takes a place before the start of a process, or refuses it; nil: all may start
	Process func() (release func(), err error)
	// Module returns the command that runs a module, and what is written to its standard input before the messages; nil:
	// no modules are run
	Module func(sha256 string, grants []string) (command []string, head []byte, err error)
	Logger *slog.Logger
	times  times
}

// Servers are the MCP servers of a node.
type Servers struct {
	options Options
	pins    pins
	log     *slog.Logger
	all     []*server // sorted by name

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	publishing sync.Mutex // held while the tools are passed on, so that the latest are passed last
	publish    func(context.Context, []tools.Tool) error
}

// Open reads the accepted lists. It starts no server: Tools returns the accepted tools, whose calls
// wait for Start.
func Open(o Options) (*Servers, error) {
	if o.Env == nil {
		o.Env = os.LookupEnv
	}
	if o.Process == nil {
		o.Process = func() (func(), error) { return func() {}, nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.times == (times{}) {
		o.times = defaultTimes
	}
	if len(o.Servers) > ServersMax {
		return nil, fmt.Errorf("%d MCP servers, at most %d allowed", len(o.Servers), ServersMax)
	}
	s := &Servers{options: o, pins: pins{o.Dir}, log: o.Logger}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, name := range slices.Sorted(maps.Keys(o.Servers)) {
		c := o.Servers[name]
		if err := errors.Join(CheckName(name), c.Check()); err != nil {
			return nil, fmt.Errorf("mcp.%.80s: %w", name, err)
		}
		accepted, err := readPin(s.pins.accepted(name))
		if err != nil {
			return nil, err
		}
		s.all = append(s.all, newServer(s, name, c, accepted))
	}
	return s, nil
}

// Processes returns the number of servers that are processes.
func Processes(all map[string]Config) (count int) {
	for _, c := range all {
		if c.URL == "" {
			count++
		}
	}
	return count
}

// Start starts the servers. It calls publish with the tools of all servers after each change of
// them. It returns once every server without an accepted list has listed its tools or failed to.
func (s *Servers) Start(publish func(context.Context, []tools.Tool) error) {
	s.publish = publish
	for _, one := range s.all {
		s.work.Go(one.run)
	}
	s.work.Go(s.watch)
	for _, one := range s.all {
		select {
		case <-one.tried:
		case <-s.ctx.Done():
		}
	}
}

// Close ends all calls and all servers.
func (s *Servers) Close() {
	s.cancel()
	s.work.Wait()
}

// Tools returns the accepted tools of all servers, sorted by name. A tool that the node cannot
// offer is left out and logged.
func (s *Servers) Tools() (all []tools.Tool) {
	for _, one := range s.all {
		own, left, unchecked := one.tools()
		if room := AllToolsMax - len(all); len(own) > room {
			one.log.Error("tools of MCP servers are left out: there are too many", "left_out", len(own)-room, "want_at_most", AllToolsMax)
			own = own[:room]
		}
		if len(left) > 0 {
			one.log.Warn("tools of an MCP server are left out", "count", len(left), "reasons", left)
		}
		if len(unchecked) > 0 {
			one.log.Info("patterns in schemas of an MCP server cannot be checked here, and are left to the server", "tools", unchecked)
		}
		all = append(all, own...)
	}
	return all
}

// module returns the configuration of the process that runs the module of another one.
func (s *Servers) module(c Config) (Config, []byte, error) {
	if s.options.Module == nil {
		return c, nil, errors.New("this program runs no modules; troupe serve does")
	}
	command, head, err := s.options.Module(c.Wasm, c.Grants)
	if err != nil {
		return c, nil, fmt.Errorf("module: %w", err)
	}
	c.Command, c.Args = command[0], command[1:]
	return c, head, nil
}

// republish passes the tools on.
func (s *Servers) republish() {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	if err := s.publish(s.ctx, s.Tools()); err != nil && s.ctx.Err() == nil {
		s.log.Error("tools of MCP servers cannot be changed", "error", err.Error())
	}
}

// watch uses lists that Accept has written.
func (s *Servers) watch() {
	ticker := time.NewTicker(s.options.times.watch)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.ctx.Done():
			return
		}
		for _, one := range s.all {
			if one.readAccepted() {
				s.republish()
			}
		}
	}
}

// Stats describes one server.
type Stats struct {
	Name     string
	Up       bool   // it has a session
	Tools    int    // of the accepted list
	Changed  bool   // a changed list waits for acceptance
	Offered  string // hash of that list
	Restarts uint64 // sessions after the first
	Calls    uint64
	Failures uint64 // calls without a result of the tool
	Error    string // why it is down; "" if it is up
}

// Stats returns the state of each server, sorted by name.
func (s *Servers) Stats() (all []Stats) {
	for _, one := range s.all {
		all = append(all, one.snapshot())
	}
	return all
}
