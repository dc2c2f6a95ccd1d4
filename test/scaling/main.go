// SPDX-License-Identifier: Apache-2.0

// Command scaling measures how the cost of a call, a restart and memory grows with the number of actors, entries, open runs and callers.
//
// Each row is one cost at several sizes, each a multiple of the one before: ten times,
// or four times for callers. The verdict on a row is the slope of the total cost
// divided by n log n, on logarithmic axes. A cost that grows no faster than n log n
// has a slope of at most 0. Other load on the machine shifts the slope a little.
//
// A missed floor is reported in the table and is not a failure. Exit code 1 means
// that a measurement failed.
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

// timeLimit is the maximum duration of all studies but idle. A size that would exceed it is
// omitted, and the report names it.
const timeLimit = 9 * time.Minute

// studies lists all studies in the order of the table.
var studies = []study{
	{"idle", (*measurement).idle},
	{"entries", (*measurement).entries},
	{"resident", (*measurement).resident},
	{"callers", (*measurement).callers},
	{"actors", (*measurement).actors},
	{"conversation", (*measurement).conversation},
}

type study struct {
	name string
	run  func(*measurement) error
}

// measurement is one run of this program.
type measurement struct {
	ctx        context.Context
	stderr     io.Writer
	dir        string // temporary folder of this run
	quick      bool   // sizes a hundred times smaller, for tests
	deadline   time.Time
	allEntries bool // the log reached its largest size
	report
}

const examples = `
Examples:
  go run ./test/scaling                            print the table
  go run ./test/scaling -only actors               run some of the studies
  go run ./test/scaling -json                      print JSON
  go run ./test/scaling -quick                     run small sizes as a test
  go run ./test/scaling -page docs/PERFORMANCE.md  also write table and plots into the page
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes the command and returns its exit code: 0, 1 after a failed
// measurement, 2 for a usage error.
func run(args []string, out, stderr io.Writer) int {
	m := &measurement{stderr: stderr}
	flags := flag.NewFlagSet("scaling", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print JSON instead of a table")
	only := flags.String("only", "", "run only these `studies`, separated by commas: "+studyNames())
	page := flags.String("page", "", "also write the table into this `file`, and the plots into its folder")
	parent := flags.String("dir", "", "temporary `folder` on the disk to be measured (default: that of the system)")
	flags.BoolVar(&m.quick, "quick", false, "use sizes a hundred times smaller")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "Usage: go run ./test/scaling [flags]\n\nMeasures how costs grow with the number of actors, entries, open runs and callers.\n\nFlags:")
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
		err = fmt.Errorf("%q: want flags only", flags.Arg(0))
	default:
		chosen, err = selectStudies(*only)
	}
	if err != nil {
		fmt.Fprintf(stderr, "scaling: %v; see -help\n", err)
		return 2
	}
	if err := m.measure(chosen, *parent); err != nil {
		fmt.Fprintf(stderr, "scaling: %v\n", err)
		return 1
	}
	write := m.report.writeText
	if *asJSON {
		write = m.report.writeJSON
	}
	err = write(out)
	if err == nil && *page != "" {
		err = m.report.writePage(*page)
	}
	if err != nil {
		fmt.Fprintf(stderr, "scaling: %v\n", err)
		return 1
	}
	return 0
}

// measure runs studies in a temporary folder. It always removes the folder.
func (m *measurement) measure(chosen []study, parent string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if m.dir, err = os.MkdirTemp(parent, "troupe-scaling-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(m.dir)) }()
	defer m.clear()
	m.ctx, m.deadline = ctx, time.Now().Add(timeLimit)
	m.report.reset(m.quick)
	for _, s := range chosen {
		if err := s.run(m); err != nil {
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
			return nil, fmt.Errorf("-only %s: no such study; want some of %s", name, studyNames())
		}
		chosen = append(chosen, studies[i])
	}
	return chosen, nil
}

// progress shows the current measurement on a terminal.
func (m *measurement) progress(format string, args ...any) {
	if m.isTerminal() {
		left := time.Until(m.deadline).Round(time.Second)
		fmt.Fprintf(m.stderr, "\r\033[K%s (at most %v left)", fmt.Sprintf(format, args...), left)
	}
}

func (m *measurement) clear() {
	if m.isTerminal() {
		fmt.Fprint(m.stderr, "\r\033[K")
	}
}

// isTerminal reports whether standard error is a terminal.
func (m *measurement) isTerminal() bool {
	f, ok := m.stderr.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// sizes returns the powers of ten in the range, a hundred times smaller in a quick
// run.
func (m *measurement) sizes(from, to int) []int {
	if m.quick {
		from, to = from/100, to/100
	}
	var all []int
	for n := from; n <= to; n *= 10 {
		all = append(all, n)
	}
	return all
}

// iterations returns the number of repetitions of a measured call, fewer in a quick
// run.
func (m *measurement) iterations(n int) int {
	if m.quick {
		return max(n/100, 20)
	}
	return n
}
