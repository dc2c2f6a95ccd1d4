// SPDX-License-Identifier: Apache-2.0

// Command corruption damages a store in every way that a disk does, and checks that no loss or change goes undetected.
//
// A real server creates the store and a backup of it. Each of thousands of damages
// is applied to a copy: a flipped bit, a truncated file, a lost or swapped block, a
// removed file. Forgeries are parts that are intact but belong elsewhere: a file or a row
// of an earlier time or of another store, and two rows that are exchanged. The copy is
// then opened and read as a server does and examined as troupe doctor does, or
// restored. This happens in worker processes, since a damage may crash them. The program ends with a table, and with exit code 1 if any floor
// was missed.
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
	"slices"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/internal/mdsection"
)

const usage = `usage: go run ./test/corruption [-seed N] [-every N] [-only KIND] [-json] [-write FILE] [-trust] [-within TIME] [-bin FILE]

Lets a real server write a store and a backup, damages copies of both in
thousands of ways, and checks that no damage goes undetected. Exit 0: all floors
met. Exit 1: a floor missed, or a failed measurement. Exit 2: usage error.

  -seed N       seed for flipped bits and swapped blocks (default 1)
  -every N      try only every Nth damage (default 1); above 1 the floor for
                trials is missed
  -only KIND    try only damages of this kind, such as flip, rollback, transplant,
                "transplanted row" or "swapped rows"
  -json         print the report as JSON
  -write FILE   also write the report into the section "corruption" of that page
  -trust        read with Pebble alone, without verification, to show that
                silent damage would be noticed
  -within TIME  time limit (default 10m); later trials are not counted
  -bin FILE     server binary (default bin/troupe)

Examples:

  make corruption
  make corruption ARGS='-every 20'
  make corruption ARGS='-trust'     # must fail
`

// sweep is one run of this program.
type sweep struct {
	seed  uint64
	every int
	json  bool
	write string
	trust bool
	bin   string
	only  string

	within time.Duration
}

func main() {
	var s sweep
	var worker string
	flags := flag.NewFlagSet("corruption", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage) }
	flags.Uint64Var(&s.seed, "seed", 1, "")
	flags.IntVar(&s.every, "every", 1, "")
	flags.BoolVar(&s.json, "json", false, "")
	flags.StringVar(&s.write, "write", "", "")
	flags.StringVar(&s.only, "only", "", "")
	flags.BoolVar(&s.trust, "trust", false, "")
	flags.StringVar(&s.bin, "bin", "bin/troupe", "")
	flags.DurationVar(&s.within, "within", 10*time.Minute, "")
	flags.StringVar(&worker, "worker", "", "") // internal: run as a worker on standard input
	switch err := flags.Parse(os.Args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2)
	case flags.NArg() > 0:
		fmt.Fprintf(os.Stderr, "corruption: unknown argument %q; -h shows examples\n", flags.Arg(0))
		os.Exit(2)
	case s.every < 1:
		fmt.Fprintln(os.Stderr, "corruption: -every requires 1 or more")
		os.Exit(2)
	case worker != "":
		os.Exit(runWorker(worker, s.trust))
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.within)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	good, err := s.run(ctx, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "corruption:", err)
	}
	if err != nil || !good {
		stop()
		cancel()
		os.Exit(1) //nolint:gocritic // both deferred functions were called
	}
}

func (s *sweep) run(ctx context.Context, out, stderr io.Writer) (good bool, err error) {
	dir, err := os.MkdirTemp(scratchParent(), "corruption")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	began := time.Now()
	if err := makeStores(ctx, s.bin, dir); err != nil {
		return false, err
	}
	random := rand.New(rand.NewPCG(s.seed, 0))
	var all []damage
	r := report{began: began, Trust: s.trust}
	for _, name := range []string{storeName, backupName} {
		original, err := readFiles(filepath.Join(dir, name))
		if err != nil {
			return false, err
		}
		r.countFiles(name, original)
		all = append(all, allDamages(name, original, random)...)
	}
	if !s.trust {
		forgeries, err := forgeriesOf(dir, forgedRows, random)
		if err != nil {
			return false, err
		}
		all = append(all, forgeries...)
	}
	if s.only != "" {
		all = slices.DeleteFunc(all, func(d damage) bool { return d.Kind != s.only })
	}
	some := all[:0:0]
	for i := 0; i < len(all); i += s.every {
		some = append(some, all[i])
	}
	// The shuffled order covers all kinds of damage even if the time limit ends the
	// run early.
	random.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	if err := tryAll(ctx, dir, s.trust, some, r.add, stderr); errors.Is(err, context.DeadlineExceeded) {
		fmt.Fprintf(stderr, "corruption: time limit of %v reached; %d of %d damages tried\n", s.within, r.trials(), len(some))
	} else if err != nil {
		return false, err
	}
	r.finish(time.Since(began))
	if s.json {
		err = r.writeJSON(out)
	} else {
		_, err = io.WriteString(out, r.text())
	}
	if err == nil && s.write != "" {
		err = mdsection.Replace(s.write, "corruption", r.markdown())
	}
	return r.missed() == 0, err
}

// forgeriesOf returns all forgeries of the store in dir.
func forgeriesOf(dir string, count int, random *rand.Rand) (_ []damage, err error) {
	stores, rows := map[string]storeFiles{}, map[string]map[string][]byte{}
	for _, name := range []string{storeName, olderName, otherName} {
		if stores[name], err = readFiles(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
		if rows[name], err = readRows(stores[name], filepath.Join(dir, "rows")); err != nil {
			return nil, err
		}
	}
	return allForgeries(stores, rows, count, random), nil
}

// scratchParent returns a folder in memory, or "" if there is none. Trials need no
// durable storage.
func scratchParent() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		if probe, err := os.MkdirTemp(shm, "corruption"); err == nil {
			_ = os.Remove(probe)
			return shm
		}
	}
	return ""
}
