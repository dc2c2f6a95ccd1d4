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
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/tools"
)

// serverFile is where a server that holds a data folder says how to reach it.
const serverFile = "SERVER"

// ServeCmd runs a node until it is told to stop.
type ServeCmd struct {
	Data   string        `env:"TROUPE_DATA" default:"data" type:"path" help:"The folder that holds everything; made if absent (${default})."`
	Listen string        `env:"TROUPE_LISTEN" default:"127.0.0.1:8283" help:"Where to answer; port 0 takes a free one (${default})."`
	Node   string        `env:"TROUPE_NODE" default:"n1" help:"This node's name, for good (${default})."`
	Cells  int           `env:"TROUPE_CELLS" default:"0" help:"Cells to share the actors among; 0 is one for each processor."`
	Grace  time.Duration `env:"TROUPE_GRACE" default:"10s" help:"How long clients may wait for their answers once the node is told to stop (${default})."`
	Level  slog.Level    `env:"TROUPE_LOG_LEVEL" name:"log-level" default:"info" help:"debug, info, warn or error (${default})."`
}

// Help is shown below the flags.
func (ServeCmd) Help() string {
	return `Prints its address as the only line on standard output, once it answers; logs go to standard error as JSON.
SIGTERM lets clients have their answers, and ends with code 0. What is open goes on with the next start.

Examples:
  troupe serve
  troupe serve --data /var/lib/troupe --listen 127.0.0.1:0
  TROUPE_LOG_LEVEL=warn troupe serve`
}

// Run implements the command.
func (c *ServeCmd) Run(s streams) error {
	out := newLines(s.err)
	defer out.close()
	log := slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: c.Level})).With("node", c.Node)
	told, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	n, err := c.open(log)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.out, n.url); err != nil {
		return errors.Join(err, n.close(0))
	}
	select {
	case <-told.Done():
		stop() // a second one ends the process at once
		log.Info("stopping", "grace", c.Grace.String())
		return n.close(c.Grace)
	case <-n.engine.Over():
		return errors.Join(n.engine.Err(), n.close(0))
	case err := <-n.served:
		return errors.Join(err, n.close(0))
	}
}

// node is all that serve holds.
type node struct {
	url    string
	dir    string
	disk   *disk.Disk
	log    *disk.Log
	engine *engine.Engine
	door   *gateway.Server
	served chan error
}

// open brings a node to life, from the disk up.
func (c *ServeCmd) open(log *slog.Logger) (n *node, err error) {
	began := time.Now()
	if err := gateway.MayListen(c.Listen, 0); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("%w; another --listen, or --listen 127.0.0.1:0 for a free port", err)
	}
	n = &node{url: "http://" + listener.Addr().String(), dir: c.Data, served: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, listener.Close())
		}
	}()
	if n.disk, err = disk.Open(c.Data, actor.NodeID(c.Node), disk.Options{Logger: log}); err != nil {
		return nil, err
	}
	n.log = disk.NewLog(n.disk)
	n.engine, err = engine.Start(engine.Config{
		Node: actor.NodeID(c.Node), Start: n.disk.End().Batch, Log: n.log, Store: n.disk, Agents: agents.Ready(),
		Tools: tools.NewRegistry(), Limits: dispatcher.DefaultLimits(), Logger: log, Cells: c.Cells,
	})
	if err != nil {
		return nil, errors.Join(err, n.log.Close(), n.disk.Close())
	}
	n.door = gateway.New(n.engine, log, gateway.Config{})
	if err := os.WriteFile(filepath.Join(n.dir, serverFile), []byte(n.url+"\n"), 0o600); err != nil {
		log.Warn("cannot say in the data folder where I answer", "error", err.Error())
	}
	go func() { n.served <- n.door.Serve(listener) }()
	log.Info("serving", "url", n.url, "data", c.Data, "batches", n.disk.End().Batch, "entries", uint64(n.disk.End().Pos), "start_ms", time.Since(began).Milliseconds())
	return n, nil
}

// close lets clients have their answers, then stops everything from the door down.
func (n *node) close(grace time.Duration) error {
	patience, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	n.door.Drain()
	n.engine.Drain(patience)
	// Whoever has an answer now gets it, and may read once more on its way.
	last, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	errs := []error{n.door.Shutdown(last), n.engine.Close(last)}
	_ = os.Remove(filepath.Join(n.dir, serverFile))
	return errors.Join(append(errs, n.log.Close(), n.disk.Close())...)
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
