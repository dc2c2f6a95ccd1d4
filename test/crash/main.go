// SPDX-License-Identifier: Apache-2.0

// Command crash kills the real server again and again, and sees that nothing it acknowledged is lost, done twice or told in another order.
//
// The server is bin/troupe in a process of its own, its clients speak HTTP and
// read event streams, and one of its agents lives here. The clients keep a
// ledger of what they were told. SIGKILL comes at random moments; the next
// server begins on the folder that the last one left, and is held to the ledger.
// It ends with a table, and with code 1 where something did not hold.
package main

import (
	"cmp"
	"context"
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

// What the kills must have come to, for the whole to mean something.
const (
	acksWanted   = 100 // in a cycle
	openWanted   = 8   // requests in flight at the kill
	mostCycles   = 90  // in so many cycles of a hundred
	nestedCycles = 20  // with a nested call open, of a hundred
	earlyEvery   = 20  // each of so many kills comes early, perhaps before the server is ready
	killWithin   = 30 * time.Second
)

func main() {
	c := &crash{}
	flag.IntVar(&c.kills, "n", 20, "how many kills")
	flag.Uint64Var(&c.seed, "seed", 0, "of what clients do and when kills come; 0 draws one")
	flag.StringVar(&c.bin, "bin", "bin/troupe", "the server")
	flag.DurationVar(&c.within, "within", 20*time.Minute, "how long the whole may take")
	flag.Parse()
	os.Exit(c.main(os.Stdout, os.Stderr))
}

// crash is one run of this program.
type crash struct {
	kills  int
	seed   uint64
	bin    string
	within time.Duration

	chance *rand.Rand
	dir    string
	listen string // where each server answers: agents outside know no other place
	ledger *ledger
	own    *outside
	cycles []cycle
}

// cycle is what a kill found.
type cycle struct {
	acks, open, nested int64
	ready              time.Duration // from the start of the process to its first good answer
	early              bool
}

// main is the whole with its exit code; the folder stays if it may be wanted.
func (c *crash) main(out, talk io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), c.within)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	good, err := c.run(ctx, out, talk)
	if err != nil {
		fmt.Fprintln(talk, "crash:", err)
	}
	if good && err == nil {
		err = os.RemoveAll(c.dir)
	} else if c.dir != "" {
		fmt.Fprintln(talk, "The data folder and the server's log are in", c.dir)
	}
	if !good || err != nil {
		return 1
	}
	return 0
}

func (c *crash) run(ctx context.Context, out, talk io.Writer) (good bool, err error) {
	c.seed = cmp.Or(c.seed, rand.Uint64())
	c.chance = rand.New(rand.NewPCG(c.seed, 0))
	c.ledger = newLedger(talk)
	if c.dir, err = os.MkdirTemp("", "troupe-crash-"); err != nil {
		return false, err
	}
	fmt.Fprintf(out, "%d kills of %s, seed %d\n", c.kills, c.bin, c.seed)
	if c.listen, err = freePort(); err != nil {
		return false, err
	}
	if c.own, err = newOutside("http://" + c.listen); err != nil {
		return false, err
	}
	defer c.own.close()
	if err := writeTeam(filepath.Join(c.dir, agentsDir), c.own.url); err != nil {
		return false, err
	}
	clients := newClients(c)
	began := time.Now()
	for n := range c.kills {
		if err := c.cycle(ctx, clients, n); err != nil {
			return false, fmt.Errorf("cycle %d: %w", n+1, err)
		}
		if c.ledger.hopeless() {
			return false, fmt.Errorf("%d findings after %d kills: that will do", shownMax, n+1)
		}
		c.progress(talk, n+1, began)
	}
	if err := c.last(ctx, clients); err != nil {
		return false, fmt.Errorf("the last server: %w", err)
	}
	return c.report(out, time.Since(began)), nil
}

// cycle is one server from its start to its kill.
func (c *crash) cycle(ctx context.Context, clients []*client, n int) error {
	if n%earlyEvery == earlyEvery-1 {
		return c.killEarly()
	}
	killAfter, delay := acksWanted+c.chance.Int64N(2*acksWanted), time.Duration(c.chance.Int64N(int64(20*time.Millisecond)))
	s, err := start(ctx, c.bin, c.dir, c.listen)
	if err != nil {
		return err
	}
	defer s.end(syscall.SIGKILL)
	l := newLife(ctx, s.Line, s.Exited(), killAfter)
	defer l.close()
	worked := l.work(clients)
	select {
	case <-l.enough:
		<-time.After(delay)
	case <-s.Exited():
	case <-time.After(killWithin):
		return fmt.Errorf("within %v only %d acknowledgements of %d", killWithin, l.acks.Load(), killAfter)
	case <-ctx.Done():
		return ctx.Err()
	}
	seen := cycle{acks: l.acks.Load(), open: l.open.Load(), nested: l.nested.Load(), ready: s.ready}
	if killed, state := s.end(syscall.SIGKILL); !killed {
		return fmt.Errorf("the server ended by itself: %s: %s", state, tail(c.dir))
	}
	<-worked
	c.cycles = append(c.cycles, seen)
	return nil
}

// killEarly kills a server while it is about to find what the last one left.
func (c *crash) killEarly() error {
	s, err := launch(c.bin, c.dir, c.listen)
	if err != nil {
		return err
	}
	select {
	case <-time.After(time.Duration(c.chance.Int64N(int64(100 * time.Millisecond)))):
	case <-s.Exited():
	}
	if killed, state := s.end(syscall.SIGKILL); !killed {
		return fmt.Errorf("the server ended by itself: %s: %s", state, tail(c.dir))
	}
	c.cycles = append(c.cycles, cycle{early: true})
	return nil
}

// last is a server that is not killed: what is open comes to its end, and all
// of the ledger is held against it, then against the folder that it leaves.
func (c *crash) last(ctx context.Context, clients []*client) error {
	s, err := start(ctx, c.bin, c.dir, c.listen)
	if err != nil {
		return err
	}
	defer s.end(syscall.SIGKILL)
	l := newLife(ctx, s.Line, s.Exited(), 0)
	defer l.close()
	l.settle(clients)
	if err := c.ledger.calm(l); err != nil {
		return err
	}
	c.ledger.audit(l)
	if _, state := s.end(syscall.SIGTERM); !state.Success() {
		return fmt.Errorf("told to stop, it ended with %s: %s", state, tail(c.dir))
	}
	return c.ledger.hold(filepath.Join(c.dir, dataDir), c.own)
}
