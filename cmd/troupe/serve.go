// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/outbound"
	nodes "github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/upstream"
)

// serverFile is where a server that holds a data folder says how to reach it.
const serverFile = "SERVER"

// ServeCmd runs a node until it is told to stop.
type ServeCmd struct {
	Config configFile    `env:"TROUPE_CONFIG" type:"path" placeholder:"FILE" help:"A TOML file that says what these flags say, and the tables models and limits."`
	Data   string        `env:"TROUPE_DATA" default:"data" type:"path" help:"The folder that holds everything; made if absent (${default})."`
	Listen string        `env:"TROUPE_LISTEN" default:"127.0.0.1:8283" help:"Where to answer; port 0 takes a free one (${default})."`
	Agents string        `env:"TROUPE_AGENTS" type:"existingdir" placeholder:"DIR" help:"Take the agents of this folder, each in a file named *.toml."`
	Allow  []string      `env:"TROUPE_ALLOW" placeholder:"HOST" help:"Let models and external agents be reached there: a host, an address, a prefix. On loopback, loopback is."`
	Hosts  []string      `env:"TROUPE_HOSTS" placeholder:"NAME" help:"Names by which this server may be called, besides those of loopback."`
	Origin []string      `env:"TROUPE_ORIGINS" placeholder:"URL" help:"Origins whose web pages may call this server, as that of a proxy with TLS before it; no CORS headers are sent."`
	Node   string        `env:"TROUPE_NODE" default:"n1" help:"This node's name, for good (${default})."`
	Cells  int           `env:"TROUPE_CELLS" default:"0" help:"Cells to share the actors among; 0 is one for each processor."`
	Pace   time.Duration `env:"TROUPE_PACE" default:"0s" help:"How long the scripted model takes for each piece of its answer (${default})."`
	Ready  bool          `env:"TROUPE_READY" help:"Have the ready-made agents coordinator and helper, written in Go."`
	Trace  string        `env:"TROUPE_TRACE" type:"path" placeholder:"FILE" help:"Write the node's history there, as lines of JSON, at most 1 GiB; it names actors and calls, and no message."`
	Grace  time.Duration `env:"TROUPE_GRACE" default:"10s" help:"How long clients may wait for their answers once the node is told to stop (${default})."`
	Level  slog.Level    `env:"TROUPE_LOG_LEVEL" name:"log-level" default:"info" help:"debug, info, warn or error (${default})."`
}

// Help is shown below the flags.
func (ServeCmd) Help() string {
	return `Prints its address as the only line on standard output, once it answers; logs go to standard error as JSON.
SIGTERM lets clients have their answers, and ends with code 0. What is open goes on with the next start.

The store keeps every run and its events for good, so it grows with use; while less than 256 MiB are free no new
work is taken. Agents are kept: those of --agents are taken as their files have them at each start, and one whose file is
gone stays until it is deleted. Without any, make one by sending {"name":"helper"} to /v1/agents.
The model named scripted needs no key and no network. Others stand in the file of --config:

  [models.big]
  url = "https://api.example.com/v1"
  key_env = "EXAMPLE_API_KEY"

Examples:
  troupe serve
  troupe serve --agents agents/
  troupe serve --data /var/lib/troupe --listen 127.0.0.1:0 --config /etc/troupe.toml
  TROUPE_LOG_LEVEL=warn troupe serve`
}

// Run implements the command.
func (c *ServeCmd) Run(s streams) error {
	out := newLines(s.err)
	defer out.close()
	log := slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: c.Level})).With("node", c.Node)
	n, err := c.open(s, log)
	if err != nil {
		return err
	}
	// Until here a signal ends the process at once: a start may be killed at any time.
	told, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if _, err := fmt.Fprintln(s.out, n.url); err != nil {
		return errors.Join(err, n.stop(0))
	}
	select {
	case <-told.Done():
		stop() // a second one ends the process at once
		log.Info("stopping", "grace", c.Grace.String())
		return n.stop(c.Grace)
	case <-n.engine.Done():
		return errors.Join(n.engine.Err(), n.stop(0))
	case err := <-n.ended:
		return errors.Join(err, n.stop(0))
	}
}

// serving is a node with a door.
type serving struct {
	*node
	url    string
	door   *gateway.Server
	ended  chan error // of the door
	logger *slog.Logger
}

// open reads what the command is told, brings a node to life, and opens its door.
func (c *ServeCmd) open(s streams, log *slog.Logger) (n *serving, err error) {
	began := time.Now()
	config, err := readConfig(string(c.Config))
	if err != nil {
		return nil, err
	}
	var files *agentFiles
	if c.Agents != "" {
		if files, err = readAgentFiles(c.Agents); err != nil {
			return nil, err
		}
		for _, p := range files.Problems {
			fmt.Fprintln(s.err, p)
		}
		if files.Wrong() {
			return nil, fmt.Errorf("the agents in %s cannot be served as they are; see also: troupe check %[1]s", c.Agents)
		}
	}
	out := outbound.Config{Models: config.Models, Allow: c.Allow, Pace: c.Pace}
	if gateway.CheckListenAddress(c.Listen, 0) == nil {
		out.Allow = append(out.Allow, upstream.AllowLoopback()...)
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("%w; another --listen, or --listen 127.0.0.1:0 for a free port", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, listener.Close())
		}
	}()
	var native []actor.Definition
	if c.Ready {
		native = agents.Builtin()
	}
	inner, err := openNode(nodeConfig{Data: c.Data, Name: c.Node, Cells: c.Cells, Limits: config.Limits, Out: out, Native: native, Trace: c.Trace}, log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			within, cancel := context.WithTimeout(context.Background(), goodbye)
			defer cancel()
			err = errors.Join(err, inner.close(within))
		}
	}()
	if err := gateway.CheckListenAddress(c.Listen, inner.directory.keys.Count()); err != nil {
		return nil, err
	}
	if files != nil {
		if err := inner.putFiles(files, log); err != nil {
			return nil, err
		}
	}
	n = &serving{node: inner, url: "http://" + listener.Addr().String(), ended: make(chan error, 1), logger: log}
	n.door = gateway.New(nodes.NewCommands(n.engine), log, gateway.Config{Keys: &n.directory.keys, Secret: n.secret, External: n.outbound, Backup: n.log.Backup, Hosts: c.Hosts, Origins: c.Origin})
	if err := os.WriteFile(filepath.Join(n.dir, serverFile), []byte(n.url+"\n"), 0o600); err != nil {
		log.Warn("cannot say in the data folder where I answer", "error", err.Error())
	}
	go func() { n.ended <- n.door.Serve(listener) }()
	log.Info("serving", "url", n.url, "data", c.Data, "batches", n.disk.End().Batch, "entries", uint64(n.disk.End().Pos), "start_ms", time.Since(began).Milliseconds())
	return n, nil
}

// goodbye is how long the door may take to close, and then the node.
const goodbye = 10 * time.Second

// stop lets clients have their answers, then stops everything from the door down. A
// client that is not done by then is cut off.
func (n *serving) stop(grace time.Duration) error {
	patience, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	n.door.Drain()
	n.engine.Drain(patience)
	// Whoever has an answer now gets it, and may read once more on its way.
	last, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	if err := n.door.Shutdown(last); err != nil {
		n.logger.Warn("clients were cut off", "error", err.Error())
	}
	_ = os.Remove(filepath.Join(n.dir, serverFile))
	last, cancel = context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	return n.close(last)
}

// holder says who has a data folder open, in words that help.
func holder(dir string, err error) error {
	if err == nil || !strings.Contains(err.Error(), "is in use by") {
		return err
	}
	url, readErr := os.ReadFile(filepath.Join(dir, serverFile))
	if readErr != nil {
		return err
	}
	return fmt.Errorf("%w: it serves at %s: leave --data out and say --server %[2]s", err, strings.TrimSpace(string(url)))
}
