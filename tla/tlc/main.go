// SPDX-License-Identifier: Apache-2.0

// Command tlc checks the specifications in tla/ with TLC, the model checker of TLA+.
//
// A config expects one result: everything holds, one property is violated, or a situation is
// reached. Any other result is a mismatch: an error, an incomplete search, or the violation of a
// property other than the expected one.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"
)

const (
	specDir  = "tla"
	cacheDir = ".cache/tlc"
	usage    = `usage: go run ./tla/tlc [-run REGEXP] [-list] [-write] [-keep] [-quick | -big]
       go run ./tla/tlc traces | walks [-h]

Runs TLC on every config of tla/, the files *.cfg and the rows of derived.txt, and
compares the result with the expected one. Exit 0: all as expected. Exit 1: a
mismatch or an error. Exit 2: usage.

  -run REGEXP  run only the configs whose name matches
  -list        print the configs and their expectations, run nothing
  -quick       run for each property of each module only the smallest config in which it
               holds and the smallest in which it is violated: two minutes on two idle
               cores
  -big         run the configs of tla/big, which take hours, instead of those of tla;
               -write then writes to tla/big/RESULTS.md
  -write       if there is no mismatch, write the figures to tla/RESULTS.md;
               the default if all configs run, -write=false disables it
  -keep        if there is no mismatch, put the output of TLC into tla/output.txt.gz,
               each with its commit; the default if -write is

examples
  make tla                               run all configs and write their figures
  make tla ARGS=-quick                   run the smallest config of each property
  make tla ARGS='-run Calls_crash'       run one model
  make tla ARGS='-keep -run Calls_'      also keep its output
  make tla ARGS='-run broken -list'      list the configs that expect a violation
  TLA2TOOLS_JAR=~/tla2tools.jar make tla use another version of TLC

The output of each run is kept in .cache/tlc/output/.
`
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	if len(args) > 0 && args[0] == "traces" {
		return traces(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == "walks" {
		return walks(ctx, args[1:])
	}
	flags := flag.NewFlagSet("tlc", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage) }
	pattern := flags.String("run", "", "")
	list := flags.Bool("list", false, "")
	write := flags.Bool("write", false, "")
	keep := flags.Bool("keep", false, "")
	fast := flags.Bool("quick", false, "")
	big := flags.Bool("big", false, "")
	if err := flags.Parse(args); err == flag.ErrHelp {
		return 0
	} else if err != nil {
		return 2
	}
	match, err := regexp.Compile(*pattern)
	switch {
	case err != nil:
		return fail(2, fmt.Errorf("-run: %w", err))
	case flags.NArg() > 0:
		return fail(2, fmt.Errorf("unknown argument %q; -h shows examples", flags.Arg(0)))
	case (*write || *keep) && *list:
		return fail(2, fmt.Errorf("-list cannot be combined with -write or -keep: it runs nothing"))
	case *fast && *big:
		return fail(2, fmt.Errorf("-quick cannot be combined with -big: no config of %s is quick", bigDir))
	case *keep && *big:
		return fail(2, fmt.Errorf("-keep cannot be combined with -big, whose output is too long"))
	}

	dir := specDir
	if *big {
		dir = filepath.Join(specDir, bigDir)
	}
	all, err := ReadConfigs(dir)
	if err != nil {
		return fail(1, err)
	}
	candidates := all
	if *fast {
		if candidates, err = quickConfigs(dir, all); err != nil {
			return fail(1, err)
		}
	}
	configs := slices.DeleteFunc(slices.Clone(candidates), func(c Config) bool { return !match.MatchString(c.Name) })
	if len(configs) == 0 {
		return fail(1, fmt.Errorf("none of the %d configs matches %q; -list shows them", len(candidates), *pattern))
	}
	if *list {
		for _, c := range configs {
			fmt.Printf("%-44s %s\n", c.Name, c.Expect)
		}
		return 0
	}

	java, jar, err := Checker(ctx, cacheDir)
	if err != nil {
		return fail(1, err)
	}
	checker := TLC{Java: java, Jar: jar, Dir: specDir, Big: *big, Output: filepath.Join(cacheDir, "output")}
	if err := os.MkdirAll(checker.Output, 0o755); err != nil {
		return fail(1, err)
	}

	start := time.Now()
	fmt.Println(header)
	results, err := checker.RunAll(ctx, configs, func(r Result) { fmt.Println(r) })
	if err != nil {
		return fail(1, err)
	}
	mismatches, used := 0, time.Duration(0)
	for _, r := range results {
		used += r.Used
		if r.Mismatch() != "" {
			mismatches++
		}
	}
	elapsed := time.Since(start).Round(time.Second)
	if mismatches > 0 {
		return fail(1, fmt.Errorf("%d of %d configs are not as expected (%v)", mismatches, len(results), elapsed))
	}
	fmt.Printf("%d configs as expected (%v, %v of processor time)\n", len(results), elapsed, used.Round(time.Second))
	version := results[0].Report.Version
	if explicit := false; !*write && len(configs) == len(all) && !*big && version == tlcVersion {
		flags.Visit(func(f *flag.Flag) { explicit = explicit || f.Name == "write" })
		*write = !explicit
	}
	if (*keep || *write) && !*big {
		if err := keepOutput(ctx, filepath.Join(specDir, archiveName), all, results); err != nil {
			return fail(1, err)
		}
	}
	if !*write {
		return 0
	}
	if version != tlcVersion {
		return fail(1, fmt.Errorf("TLC has version %s, but figures are of version %s: nothing was written", version, tlcVersion))
	}
	if err := WriteTable(filepath.Join(dir, resultsName), all, results, *big); err != nil {
		return fail(1, err)
	}
	return 0
}

func keepOutput(ctx context.Context, path string, all []Config, results []Result) error {
	commit, err := commitOf(ctx, specDir)
	if err != nil {
		return err
	}
	kept, err := ReadArchive(path)
	if err != nil {
		return err
	}
	for _, r := range results {
		if err := kept.Keep(r, commit); err != nil {
			return err
		}
	}
	return kept.Write(path, all)
}

func fail(code int, err error) int {
	fmt.Fprintln(os.Stderr, "tlc:", err)
	return code
}

// byExpectation orders configs that must hold before those that must be violated, and these
// before goals.
func byExpectation(a, b Config) int {
	return cmp.Or(cmp.Compare(a.Expect.Kind, b.Expect.Kind), cmp.Compare(a.Name, b.Name))
}
