// SPDX-License-Identifier: Apache-2.0

// Command scaling measures how the cost of a call, a restart and memory grows with the number of actors, entries, open runs and callers.
//
// Each row is one cost at several sizes, each ten times the one before. What is
// judged is how the whole cost bends: the slope of a line through it on
// logarithmic axes, once n log n is divided out. What grows no faster than n log n
// has a slope of at most 0, and a machine that others use too moves it a little.
//
// A floor that is missed is printed as missed, and is no failure: code 1 is for
// what could not be measured at all.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// timeLimit is how long the whole may take. A size that would take longer is left
// out, and the report says so.
const timeLimit = 9 * time.Minute

// studies are all that is measured, in the order of the table.
var studies = []study{
	{"entries", (*measurement).entries},
	{"resident", (*measurement).resident},
	{"callers", (*measurement).callers},
	{"actors", (*measurement).actors},
}

type study struct {
	name string
	run  func(*measurement) error
}

// measurement is one measurement of it all.
type measurement struct {
	ctx        context.Context
	stderr     io.Writer
	dir        string // ours alone
	quick      bool   // sizes a hundred times smaller: to see that it works
	deadline   time.Time
	allEntries bool // there are as many entries as there should be
	report
}

const examples = `
Examples:
  go run ./test/scaling                     the table
  go run ./test/scaling -only actors        some of it
  go run ./test/scaling -json               as JSON
  go run ./test/scaling -quick              small sizes, to see that it works
  go run ./test/scaling -page docs/PERFORMANCE.md
                                               write it into the page, with its plots beside
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the whole with its exit code: 2 is a mistake in the flags.
func run(args []string, out, stderr io.Writer) int {
	g := &measurement{stderr: stderr}
	flags := flag.NewFlagSet("growth", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print JSON instead of a table")
	only := flags.String("only", "", "measure only these, separated by commas: "+studyNames())
	page := flags.String("page", "", "write the table into this `file`, too, and the plots beside it")
	parent := flags.String("dir", "", "a `folder` on the disk that is to be measured (default: the system's for temporary files)")
	flags.BoolVar(&g.quick, "quick", false, "sizes a hundred times smaller")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "How what it costs grows. Usage: go run ./test/scaling [flags]")
		flags.PrintDefaults()
		fmt.Fprint(stderr, examples)
	}
	chosen, err := []study(nil), flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		err = fmt.Errorf("want flags alone, not %q", flags.Arg(0))
	default:
		chosen, err = selectStudies(*only)
	}
	if err != nil {
		fmt.Fprintf(stderr, "growth: %v; --help shows examples\n", err)
		return 2
	}
	if err := g.measure(chosen, *parent); err != nil {
		fmt.Fprintf(stderr, "growth: %v\n", err)
		return 1
	}
	write := g.report.writeText
	if *asJSON {
		write = g.report.writeJSON
	}
	err = write(out)
	if err == nil && *page != "" {
		err = g.report.writePage(*page)
	}
	if err != nil {
		fmt.Fprintf(stderr, "growth: %v\n", err)
		return 1
	}
	return 0
}

// measure runs studies in a folder that is gone when it returns, whatever happens.
func (g *measurement) measure(chosen []study, parent string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if g.dir, err = os.MkdirTemp(parent, "troupe-growth-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(g.dir)) }()
	defer g.clear()
	g.ctx, g.deadline = ctx, time.Now().Add(timeLimit)
	g.report.reset(g.quick)
	for _, s := range chosen {
		if err := s.run(g); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func studyNames() string {
	all := make([]string, len(studies))
	for i, s := range studies {
		all[i] = s.name
	}
	return strings.Join(all, ", ")
}

func selectStudies(only string) ([]study, error) {
	if only == "" {
		return studies, nil
	}
	var chosen []study
	for _, name := range strings.Split(only, ",") {
		i := slices.IndexFunc(studies, func(s study) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("nothing is called %q: there are %s", name, studyNames())
		}
		chosen = append(chosen, studies[i])
	}
	return chosen, nil
}

// progress says on a terminal what is being done.
func (g *measurement) progress(format string, args ...any) {
	if g.isTerminal() {
		left := time.Until(g.deadline).Round(time.Second)
		fmt.Fprintf(g.stderr, "\r\033[K%s (at most %v more)", fmt.Sprintf(format, args...), left)
	}
}

func (g *measurement) clear() {
	if g.isTerminal() {
		fmt.Fprint(g.stderr, "\r\033[K")
	}
}

// isTerminal tells whether somebody reads along.
func (g *measurement) isTerminal() bool {
	f, ok := g.stderr.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// sizes are powers of ten; of a quick run a hundred times smaller.
func (g *measurement) sizes(from, to int) []int {
	if g.quick {
		from, to = from/100, to/100
	}
	var all []int
	for n := from; n <= to; n *= 10 {
		all = append(all, n)
	}
	return all
}

// iterations is how often something is done that is measured, less in a quick run.
func (g *measurement) iterations(n int) int {
	if g.quick {
		return max(n/100, 20)
	}
	return n
}
