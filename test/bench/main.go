// SPDX-License-Identifier: Apache-2.0

// Command bench measures Troupe: against real counterparts in one process, as a table of ratios and floors,
// and how costs grow with the number of actors, entries, open runs and callers.
//
// Each row has a counterpart: bare channels, a bare Pebble, a bare HTTP server, or
// the tool without the agent. Both sides alternate for several rounds on the same
// machine. Other load on the machine therefore affects both. The median of the
// rounds is compared with the floor, and the table shows their range beside it.
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

	"github.com/troupe-run/troupe/internal/mdsection"
)

const (
	roundsMin = 5
	roundsMax = 101
	// timeLimit is the maximum duration of all studies together, of those of growth too.
	timeLimit = 10 * time.Minute
	// growthName selects all studies of growth.
	growthName = "growth"
)

// studies lists all studies in the order of the table. Those of growth run only by name.
var studies = []study{
	{"ask", studyAsk},
	{"chain", studyChain},
	{"memory", studyMemory},
	{"first", studyFirst},
	{"durable", studyDurable},
	{"detached", studyDetached},
	{"contract", studyContract},
	{"http", studyHTTP},
	{"loop", studyLoop},
	{"watched", studyWatched},
	{"tool", studyTool},
	{"sim", studySim},
}

// growthStudies lists the studies of growth. The first one measures the resident memory of the
// process, which depends on earlier ones.
var growthStudies = []study{
	{"idle", growing((*bench).idle)},
	{"entries", growing((*bench).entries)},
	{"resident", growing((*bench).resident)},
	{"callers", growing((*bench).callers)},
	{"actors", growing((*bench).manyActors)},
	{"conversation", growing((*bench).conversation)},
}

// study measures one or more rows.
type study struct {
	name string
	run  func(*bench) ([]row, error)
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == childFlag {
		os.Exit(runChild(os.Args[2], os.Args[3]))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

const examples = `
Examples:
  go run ./test/bench                            print the table
  go run ./test/bench -only ask,chain            run some of the studies
  go run ./test/bench -json                      print JSON
  go run ./test/bench -profile bin/profiles      also write CPU profiles
  go run ./test/bench -page docs/PERFORMANCE.md  also write the table into the page
  go run ./test/bench -only growth               run the studies of growth
`

// run executes the command and returns its exit code: 0, 1 after a failed
// measurement, 2 for a usage error.
func run(args []string, out, stderr io.Writer) int {
	b := &bench{stderr: stderr, rounds: 7, sideTime: 200 * time.Millisecond, actors: 1_000_000, seeds: 24}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print JSON instead of a table")
	only := flags.String("only", "", "run only these `studies`, separated by commas: "+strings.Join(studyNames(studies), ", ")+"; or "+growthName+" for "+strings.Join(studyNames(growthStudies), ", "))
	flags.StringVar(&b.profile, "profile", "", "write a CPU profile of each row to this `folder`, with its top 20 functions as text")
	flags.IntVar(&b.rounds, "rounds", b.rounds, fmt.Sprintf("number of rounds, of which the median counts (%d to %d)", roundsMin, roundsMax))
	flags.StringVar(&b.dir, "dir", "", "temporary `folder` on the disk to be measured (default: that of the system)")
	flags.BoolVar(&b.quick, "quick", false, "run one short round each as a test, without a verdict on floors")
	page := flags.String("page", "", "also write the table into its section of this `file`: bench, or growth with -only growth")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "Usage: bench [flags]\n\nMeasures Troupe against real counterparts in one process and prints the ratios.\n\nFlags:")
		flags.PrintDefaults()
		fmt.Fprint(stderr, examples)
	}
	err := flags.Parse(args)
	chosen, unknown := selectStudies(*only)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // flag has printed the reason
	case flags.NArg() > 0:
		err = fmt.Errorf("%q: want flags only", flags.Arg(0))
	case unknown != nil:
		err = unknown
	case b.rounds < roundsMin || b.rounds > roundsMax:
		err = fmt.Errorf("-rounds %d: want %d to %d", b.rounds, roundsMin, roundsMax)
	case *page != "" && (b.quick || *only != "" && *only != growthName):
		err = errors.New("-page requires a whole table: omit -quick, and -only but for growth")
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	if *page != "" {
		section := pageSection
		if *only == growthName {
			section = growthSection
		}
		if _, err := mdsection.Text(*page, section); err != nil {
			fmt.Fprintln(stderr, "bench:", err)
			return 2
		}
	}
	if b.quick {
		b.useQuickSizes()
	}
	if err := b.runStudies(out, chosen, *asJSON, *page); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

func studyNames(of []study) (all []string) {
	for _, s := range of {
		all = append(all, s.name)
	}
	return all
}

func selectStudies(only string) ([]study, error) {
	switch only {
	case "":
		return studies, nil
	case growthName:
		return growthStudies, nil
	}
	all, wanted := slices.Concat(studies, growthStudies), strings.Split(only, ",")
	for _, name := range wanted {
		if !slices.Contains(studyNames(all), name) {
			return nil, fmt.Errorf("-only %s: no such study; want some of %s, or %s", name, strings.Join(studyNames(all), ", "), growthName)
		}
	}
	return slices.DeleteFunc(all, func(s study) bool { return !slices.Contains(wanted, s.name) }), nil
}

// runStudies measures the chosen studies and prints the result.
func (b *bench) runStudies(out io.Writer, chosen []study, asJSON bool, page string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit+growthLimit)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	b.ctx = ctx
	defer func() { os.RemoveAll(b.growth.dir) }() //nolint:errcheck // only this program uses the folder
	began, machine := time.Now(), thisMachine()   // read before the studies, since the commit may change while they run
	var rows []row
	var failure error // rows measured before the failure are still printed
	for i, s := range chosen {
		b.current = fmt.Sprintf("%d of %d  %s", i+1, len(chosen), s.name)
		b.progress("")
		found, err := s.run(b)
		rows = append(rows, found...)
		if err != nil {
			failure = fmt.Errorf("%s: %w", s.name, err)
			break
		}
	}
	b.clear()
	r := result{Machine: machine, Rounds: b.rounds, Quick: b.quick, Took: time.Since(began).Seconds(), Rows: rows, Growth: b.growth}
	if page != "" && failure == nil {
		if err := r.writePage(page); err != nil {
			return err
		}
	}
	if asJSON {
		return errors.Join(failure, r.writeJSON(out))
	}
	return errors.Join(failure, r.writeText(out))
}
