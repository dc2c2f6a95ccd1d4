// SPDX-License-Identifier: Apache-2.0

// Command crash kills the real server repeatedly and checks that no acknowledged work is lost, duplicated or reordered.
//
// The server is bin/troupe in a process of its own. Its clients use HTTP and event
// streams. Four of its agents and its tools run in this process, and deciders approve
// or reject the calls of the tools. The clients record every acknowledgement in a
// ledger, the tools every request. SIGKILL comes at random moments. The next instance
// starts on the same data folder and is checked against the ledger. The program
// ends with a table, and with exit code 1 after a violation.
//
// With -cluster, the server is an ingress before several orchestrators on one database. The one that serves
// is killed, or frozen for longer than its lease, and another takes over. In some cycles it is drained before, or the
// database crashes, while the clients go on.
//
// With -detached, kills come while detached calls are pending; see detachedCalls. With -webhooks, while a webhook has
// deliveries; see webhookRun. With -budgets, while users spend the tokens of a day; see budgetRun.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// Minimum coverage of the kills. A run below this coverage fails, because its result would mean
// little.
const (
	acksWanted          = 100              // minimum acknowledgements of an instance before its kill
	openWanted          = 8                // minimum requests in flight at the kill
	busyCyclesPercent   = 90               // minimum share of cycles that meet both
	nestedCyclesPercent = 20               // minimum share of cycles with a nested call open
	toolCyclesMin       = 10               // minimum number of cycles of which a share must meet a running tool: a kill meets one by chance
	earlyEvery          = 20               // every 20th kill comes early, possibly before the server is ready
	ackTimeout          = 30 * time.Second // maximum time until enough acknowledgements
)

func main() {
	c := &harness{}
	flag.IntVar(&c.kills, "n", 20, "number of kills")
	flag.Uint64Var(&c.seed, "seed", 0, "seed for client actions and kill times; 0 draws one")
	flag.StringVar(&c.bin, "bin", "bin/troupe", "server binary")
	flag.StringVar(&c.store, "store", "", "empty PostgreSQL database for the store, as a URL")
	flag.IntVar(&c.members, "cluster", 0, "number of orchestrators on the database of -store, of which the one that serves is killed")
	flag.BoolVar(&c.freeze, "freeze", false, "freeze every other owner of the cluster for longer than its lease, in place of a kill")
	flag.BoolVar(&c.detached, "detached", false, "kill while detached calls are pending, and compare their outcomes with what the agents have seen")
	flag.BoolVar(&c.webhooks, "webhooks", false, "kill while a webhook has deliveries, and compare what its receiver has accepted with the events of the runs")
	flag.BoolVar(&c.budgets, "budgets", false, "kill while users spend their budgets, and compare these with what the model has billed")
	flag.DurationVar(&c.within, "within", 20*time.Minute, "time limit")
	flag.Parse()
	if c.store != "" {
		if err := os.Setenv("TROUPE_STORE", c.store); err != nil { // of each server
			panic(err)
		}
	}
	os.Exit(c.main(os.Stdout, os.Stderr))
}

// harness is one run of this program.
type harness struct {
	kills  int
	seed   uint64
	bin    string
	store  string
	within time.Duration

	detached, webhooks, budgets bool

	members int  // orchestrators of a cluster; 0: one process
	freeze  bool // every other kill of an owner is a SIGSTOP for longer than its lease
	cluster *cluster

	crashDatabase         func()  // and start it again; nil: no fault but kills and freezes
	drains, absent, rolls []int64 // ms from the begin of a fault until clients have answers again

	rng      *rand.Rand
	dir      string
	listen   string // address of every instance; external agents call back there
	ledger   *ledger
	external *externalAgents
	tools    *toolService
	cycles   []cycle
	messages int // in conversations at the end
}

// cycle records the state of one instance when it was killed.
type cycle struct {
	acks, open, nested int64
	waiting, running   int64         // approvals, and requests to tools
	ready              time.Duration // from process start until /readyz answers 200
	early              bool
}

// main runs the program and returns its exit code. After a failure the data folder
// is kept.
func (c *harness) main(out, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), c.within)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := c.run
	switch {
	case c.detached:
		run = c.runDetached
	case c.webhooks:
		run = c.runWebhooks
	case c.budgets:
		run = c.runBudgets
	}
	good, err := run(ctx, out, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "crash:", err)
	}
	if good && err == nil {
		err = os.RemoveAll(c.dir)
	} else if c.dir != "" {
		fmt.Fprintln(stderr, "Data folder and server log:", c.dir)
	}
	if !good || err != nil {
		return 1
	}
	return 0
}

func (c *harness) run(ctx context.Context, out, stderr io.Writer) (good bool, err error) {
	if err := c.begin(out, stderr, ""); err != nil {
		return false, err
	}
	if c.external, err = newExternalAgents("http://" + c.listen); err != nil {
		return false, err
	}
	defer c.external.close()
	c.external.patient = c.members > 0
	if c.tools, err = newToolService(c.ledger, c.seed); err != nil {
		return false, err
	}
	defer c.tools.close()
	if err := writeTeam(filepath.Join(c.dir, agentsDir), c.external.url); err != nil {
		return false, err
	}
	if err := c.tools.writeTools(filepath.Join(c.dir, agentsDir)); err != nil {
		return false, err
	}
	if c.members > 0 {
		c.cluster = newCluster(c.bin, c.dir, c.members, c.freeze)
		defer func() { err = errors.Join(err, c.cluster.close()) }()
	}
	clients := newClients(c)
	began := time.Now()
	for n := range c.kills {
		if err := c.cycle(ctx, clients, n); err != nil {
			return false, fmt.Errorf("cycle %d: %w", n+1, err)
		}
		if c.ledger.full() {
			return false, fmt.Errorf("stopped at %d findings after %d kills", findingsShownMax, n+1)
		}
		c.progress(stderr, n+1, began)
	}
	if err := c.finalInstance(ctx, clients); err != nil {
		return false, fmt.Errorf("final instance: %w", err)
	}
	return c.report(out, time.Since(began)), nil
}

// cycle runs one instance from its start to its kill.
func (c *harness) cycle(ctx context.Context, clients []*client, n int) error {
	if n%earlyEvery == earlyEvery-1 && c.cluster == nil {
		return c.killEarly()
	}
	killAfter, delay := acksWanted+c.rng.Int64N(2*acksWanted), time.Duration(c.rng.Int64N(int64(20*time.Millisecond)))
	s, err := c.startServer(ctx)
	if err != nil {
		return err
	}
	defer s.terminate(syscall.SIGKILL)
	inst := newInstance(ctx, s.Line, filepath.Join(c.dir, dataDir), s.Exited(), killAfter)
	defer inst.close()
	worked, waitDeciders := inst.work(clients), c.tools.decide(ctx, inst)
	select {
	case <-inst.targetReached:
		<-time.After(delay)
	case <-s.Exited():
	case <-time.After(ackTimeout):
		return fmt.Errorf("within %v got %d acknowledgements, want %d", ackTimeout, inst.acks.Load(), killAfter)
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := c.disturb(ctx, inst, n); err != nil {
		return err
	}
	seen := cycle{acks: inst.acks.Load(), open: inst.open.Load(), nested: inst.nested.Load(), waiting: c.tools.waiting.Load(), running: c.tools.running.Load(), ready: s.ready}
	if killed, state := s.terminate(syscall.SIGKILL); !killed {
		return fmt.Errorf("the server exited before the kill: %s: %s", state, tail(c.dir))
	}
	<-worked
	waitDeciders()
	c.cycles = append(c.cycles, seen)
	return nil
}

// killEarly kills an instance within 100 ms of its start, while it may still recover
// the store that the previous instance left.
func (c *harness) killEarly() error {
	s, err := launch(c.bin, c.dir, c.listen)
	if err != nil {
		return err
	}
	select {
	case <-time.After(time.Duration(c.rng.Int64N(int64(100 * time.Millisecond)))):
	case <-s.Exited():
	}
	if killed, state := s.terminate(syscall.SIGKILL); !killed {
		return fmt.Errorf("the server exited before the kill: %s: %s", state, tail(c.dir))
	}
	c.cycles = append(c.cycles, cycle{early: true})
	return nil
}

// finalInstance runs an instance that is not killed. All open work completes, and
// the ledger is compared with the server, then with the data folder.
func (c *harness) finalInstance(ctx context.Context, clients []*client) error {
	s, err := c.startServer(ctx)
	if err != nil {
		return err
	}
	defer s.terminate(syscall.SIGKILL)
	inst := newInstance(ctx, s.Line, filepath.Join(c.dir, dataDir), s.Exited(), 0)
	defer inst.close()
	deciding, stop := context.WithCancel(ctx)
	waitDeciders := c.tools.decide(deciding, inst)
	inst.finishPending(clients)
	err = c.ledger.waitIdle(inst)
	stop()
	waitDeciders()
	if err != nil {
		return err
	}
	c.ledger.audit(inst)
	c.tools.audit(inst)
	if c.messages = c.ledger.auditConversations(inst); c.messages == 0 {
		c.ledger.report(wrong, "no conversation has a message")
	}
	if _, state := s.terminate(syscall.SIGTERM); !state.Success() {
		return fmt.Errorf("after SIGTERM the server exited with %s: %s", state, tail(c.dir))
	}
	if c.cluster != nil {
		if err := c.cluster.close(); err != nil {
			return err
		}
	}
	return c.ledger.checkStore(filepath.Join(c.dir, dataDir), c.store, c.external)
}
