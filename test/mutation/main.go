// SPDX-License-Identifier: Apache-2.0

// Command mutation draws one-line mutants of the pure packages, and measures which of them the simulator and the tests find.
//
// A seed selects the mutants from the syntax trees by a table of operators. All of them
// are compiled into one program, each behind a condition that MUTANT=drawn:N makes true.
// Each mutant passes through layers: 300 worlds, the tests of its package, all other
// tests of the pure packages and the simulator, and the worlds up to 2,000. A mutant
// that does not end or exhausts the memory is found. The program ends with a table and
// with exit code 1 if a floor was missed. Outcomes are kept, so that a program that was
// stopped continues.
//
// Left out by rule (see excluded in site.go) are test files, generated files, types and
// constants, wording for readers, assertions, counters, capacities, and the conditions
// of kept mutants and of failpoints. A survivor is judged in survivors.txt.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `usage: go run ./test/mutation [-draw N] [-seed N|today] [-layers LIST] [-survivors] [-budget TIME]
                          [-list] [-dir DIR]
       go run ./test/mutation -kept [-layers LIST] [-budget TIME]

Draws mutants and measures which of them are found. Exit 0: all floors met. Exit
1: a floor missed, or a failed measurement. Exit 2: usage error.

  -draw N       number of mutants, 1 to 1000 (default 40)
  -seed N       seed of the draw (default 1); today is the date as a number
  -layers LIST  comma-separated: worlds, own tests, all tests, more worlds
                (default all four); a floor is judged when its layers are complete
  -survivors    run the layers only for mutants that none has found yet
  -budget TIME  stop after this time and print the table of the outcomes so far;
                the same command continues
  -list         print the mutants only
  -kept         run worlds and own tests for the kept mutants instead, and write
                docs/benchmarks/mutants.md
  -dir DIR      folder of the outcomes (default bin/mutation)

Examples:

  make mutants DRAWN=40 SEED=7
  go run ./test/mutation -seed 7 -layers 'worlds,own tests'
  MUTANT=drawn:17 go run -tags mutants -overlay bin/mutation/7-40/overlay.json ./cmd/troupe sim --seed 5
`

// mutatedPackages are the packages that mutants are drawn from.
var mutatedPackages = []string{"actor", "dispatcher", "runs", "store", "upstream", "tools", "runtime", "agents", "ingress"}

const judgementsPath = "test/mutation/survivors.txt"

// drawMax is the maximum number of mutants of one run.
const drawMax = 1000

// command is one run of this program.
type command struct {
	draw   int
	seed   uint64
	layers []layer
	list   bool
	kept   bool

	survivors bool
	budget    time.Duration
	dir       string
}

func main() {
	c, err := parse(os.Args[1:], time.Now())
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "mutation:", err)
			os.Exit(2)
		}
		fmt.Print(usage)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.budget > 0 {
		ctx, stop = context.WithTimeout(ctx, c.budget)
		defer stop()
	}
	run := c.run
	if c.kept {
		run = c.runKept
	}
	ok, err := run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func parse(args []string, now time.Time) (command, error) {
	c := command{layers: layers}
	flags := flag.NewFlagSet("mutation", flag.ContinueOnError)
	flags.Usage = func() {}
	flags.IntVar(&c.draw, "draw", 40, "")
	seed := flags.String("seed", "1", "")
	names := flags.String("layers", "", "")
	flags.BoolVar(&c.survivors, "survivors", false, "")
	flags.DurationVar(&c.budget, "budget", 0, "")
	flags.BoolVar(&c.list, "list", false, "")
	flags.BoolVar(&c.kept, "kept", false, "")
	flags.StringVar(&c.dir, "dir", "bin/mutation", "")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("unknown argument %s; -help prints the flags", flags.Arg(0))
	}
	if c.draw < 1 || c.draw > drawMax {
		return c, fmt.Errorf("-draw %d (DRAWN of make mutants): want 1 to %d", c.draw, drawMax)
	}
	if *seed == "today" {
		*seed = now.UTC().Format("20060102")
	}
	var err error
	if c.seed, err = strconv.ParseUint(*seed, 10, 64); err != nil {
		return c, fmt.Errorf("-seed %s: want a number or today", *seed)
	}
	if *names != "" {
		c.layers = nil
		for name := range strings.SplitSeq(*names, ",") {
			if !slices.Contains(layers, layer(name)) {
				return c, fmt.Errorf("-layers %s: want some of %v, separated by commas", name, layers)
			}
			c.layers = append(c.layers, layer(name))
		}
	}
	return c, nil
}

// run draws the mutants and runs the layers. It returns false if a floor was missed.
func (c command) run(ctx context.Context) (bool, error) {
	tree, err := load(".", mutatedPackages)
	if err != nil {
		return false, err
	}
	verdicts, err := readJudgements(filepath.Join(tree.root, judgementsPath))
	if err != nil {
		return false, err
	}
	drawn, err := tree.draw(c.seed, c.draw)
	if err != nil {
		return false, err
	}
	if c.list {
		for n, s := range drawn {
			fmt.Printf("drawn:%d %s", n, s)
		}
		return true, nil
	}
	for _, key := range verdicts.stale(tree.sites()) {
		fmt.Printf("%s: stale, no mutant of the tree has this key: %s\n", judgementsPath, key)
	}
	version, err := fingerprint(tree.root)
	if err != nil {
		return false, err
	}
	t := &trial{tree: tree, dir: filepath.Join(tree.root, c.dir, fmt.Sprintf("%d-%d", c.seed, c.draw)), tests: map[string]tested{}, report: report}
	for n, s := range drawn {
		t.mutants = append(t.mutants, mutant{name: fmt.Sprintf("drawn:%d", n), dirs: []string{s.file.pkg.dir}, site: s})
	}
	if t.rows, err = openRows(t.dir, version); err != nil {
		return false, err
	}
	err = t.build(ctx)
	for _, l := range c.layers {
		if err == nil {
			err = t.run(ctx, l, c.survivors)
		}
	}
	met := t.print(os.Stdout, c.seed, verdicts)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // of the budget; complete floors are judged
	}
	return met, errors.Join(err, t.writeSurvivors(verdicts))
}

// report prints a line of progress.
func report(format string, args ...any) {
	fmt.Printf("%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}
