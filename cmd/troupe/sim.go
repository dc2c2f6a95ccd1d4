// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/sim"
)

// SimCmd runs simulations from seeds.
type SimCmd struct {
	Seed     *uint64       `env:"SEED" help:"Seed of the simulation; if absent, drawn at random and printed."`
	Runs     int           `help:"Number of seeds to run, starting at --seed (1); prints a table."`
	Budget   time.Duration `help:"Run as many seeds as fit into this time; prints a table."`
	Twice    int           `default:"100" help:"Number of seeds in a hundred to run twice, comparing the hashes."`
	Long     bool          `help:"Run simulations of an hour or more with continuous activity; with --plain the fastest ones."`
	Faults   string        `enum:"drawn,none" default:"drawn" help:"drawn by the seed, or none except those given by --fault."`
	Fault    []string      `help:"Fault to inject, kind:probability, for example NetworkDelay:0.5. Repeatable. An unknown kind prints the known ones."`
	Strategy string        `enum:"drawn,uniform,priority,starvation" default:"drawn" help:"Choice of the next event: drawn by the seed; uniform; by priority, with a few demotions; or starvation of one actor."`
	Registry string        `enum:"drawn,on,off" default:"drawn" help:"Registration of agents and keys during the simulation: drawn by the seed, on, or off."`
	Store    string        `enum:"memory,pebble" default:"memory" help:"memory, or pebble: run each seed on both and compare the hashes."`
	Engine   string        `enum:"direct,proto" default:"direct" help:"direct, or proto: run each seed with cells stepped directly and behind real mailboxes and supervision, and compare the hashes."`
	Events   bool          `help:"Print the canonical log instead of columns."`
	HTML     string        `type:"path" placeholder:"FILE" help:"Also write the simulation of one seed to this HTML page."`
	Premises bool          `help:"With --runs: print how often each spec could have been violated, not only the lowest counts."`
	Trace    string        `type:"path" placeholder:"FILE" help:"Write the history as JSON lines to this file; with --runs, to one file per seed in this folder."`
	Plain    bool          `help:"Run small simulations within the scope of tla/Trace.tla: one clock, journaled agents without interleaved turns."`
	Project  string        `placeholder:"DIR" help:"Simulate your own agents: DIR/agents and DIR/sim.toml; see docs/guide-testing.md."`
	Seeds    int           `help:"With --project: number of seeds, starting at --seed (1); 20 if absent."`
	Hash     bool          `help:"Read a canonical log from standard input and print its hash."`
	Resample bool          `default:"true" negatable:"" help:"Search a failure for the choice that made it inevitable, by resampling all later choices."`
	Dir      string        `default:"sim-out" help:"Parent folder for the folders of failed seeds."`

	odds []sim.Odds
}

// Help returns the text shown below the flags.
func (SimCmd) Help() string {
	return `The same seed gives the same simulation, event by event. A seed that violates a spec is shrunk and saved in a
folder for troupe replay; of many seeds, the first three. Exits with code 1 after a violation, or if a thousand
seeds or more miss a coverage point or the premise of a spec.

Examples:
  troupe sim --seed 7
  troupe sim --runs 1000
  troupe sim --budget 10m
  troupe sim --runs 100 --registry off
  troupe sim --project examples/project --seeds 100
  troupe sim --seed 7 --faults none --fault NetworkDelay:0.5 --html seed-7.html`
}

// Validate parses the faults and rejects flags that exclude each other.
func (c *SimCmd) Validate() error {
	switch {
	case c.Runs < 0 || c.Budget < 0:
		return errors.New("--runs and --budget: want more than 0")
	case c.Twice < 0 || c.Twice > 100:
		return fmt.Errorf("--twice %d: want 0 to 100", c.Twice)
	case c.Seeds < 0:
		return errors.New("--seeds: want more than 0")
	case c.Seeds > 0 && c.Project == "":
		return errors.New("--seeds requires --project; without it, use --runs")
	case c.Project != "" && (c.Plain || c.Long || c.Budget > 0 || c.Trace != "" || c.Events || c.HTML != "" || c.Store != "memory" || c.Engine != "direct"):
		return errors.New("--project can be combined only with --seed, --seeds, --runs, --faults, --fault, --strategy and --dir")
	case c.Registry == "on" && (c.Plain || c.Project != ""):
		return errors.New("--registry on: --plain and --project have no registry, want --registry off or none of them")
	case (c.Runs > 0 || c.Budget > 0) && (c.Events || c.HTML != ""):
		return errors.New("--events and --html require a single seed: want --seed N, without --runs and --budget")
	}
	for _, text := range c.Fault {
		odds, err := sim.ParseOdds(text)
		if err != nil {
			return err
		}
		if c.Project != "" && !odds.Fault.AppliesToTeams() {
			return fmt.Errorf("--fault %s: applies only to the simulator's own agents, want another", text)
		}
		c.odds = append(c.odds, odds)
	}
	return nil
}

// Run executes the command.
func (c *SimCmd) Run(s streams) error {
	if c.Hash {
		hash, err := sim.HashLog(os.Stdin)
		if err != nil {
			return err
		}
		fmt.Fprintln(s.out, hash)
		return nil
	}
	o := sim.Options{Faultless: c.Faults == "none", Odds: c.odds, Plain: c.Plain, Long: c.Long, NoResampling: !c.Resample}
	if c.Strategy != "drawn" {
		o.Strategy = c.Strategy
	}
	if c.Registry != "drawn" {
		o.Registry = c.Registry
	}
	out := bufio.NewWriterSize(s.out, 1<<16)
	defer out.Flush()
	if c.Project != "" {
		return c.runProject(out, s.err)
	}
	if c.Runs > 0 || c.Budget > 0 {
		if c.Trace != "" {
			if err := os.MkdirAll(c.Trace, 0o755); err != nil {
				return err
			}
		}
		return c.runMany(out, s.err, o)
	}
	o.Seed = randomSeed()
	if c.Seed != nil {
		o.Seed = *c.Seed
	} else if c.Events {
		fmt.Fprintf(s.err, "seed %d\n", o.Seed)
	} else {
		fmt.Fprintf(out, "seed %d\n", o.Seed)
	}
	return c.runOne(out, s.err, o)
}

// runOne simulates a seed and prints it. With --events, only the canonical log is
// written to standard output, and the summary is written to standard error.
func (c *SimCmd) runOne(out *bufio.Writer, stderr io.Writer, o sim.Options) error {
	summary := io.Writer(out)
	shownOptions := o
	if c.Events {
		shownOptions.Events, summary = out, stderr
	} else {
		shownOptions.Columns = sim.NewColumns(out, sim.ColumnsWidth)
	}
	if c.HTML != "" {
		shownOptions.Page = sim.NewPage()
	}
	run := sim.RunSeed
	if c.usesRealBackends() {
		second := o
		second.Backends = c.backends()
		run = func(o sim.Options) sim.Result { return sim.RunTwice(o, second) }
	}
	r, err := runTraced(c.Trace, shownOptions, run)
	if err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if c.HTML != "" {
		if err := writePage(c.HTML, shownOptions.Page, r); err != nil {
			return err
		}
		fmt.Fprintf(stderr, "%s\n", c.HTML)
	}
	fmt.Fprint(summary, r.Plan)
	if r.Violation != nil {
		return c.reportFailure(summary, stderr, o, r)
	}
	if n := r.Stats.Undecided; n > 0 {
		fmt.Fprintf(summary, "seed %d: %d histories could not be judged in their time, which is no pass; run it again where nothing else runs\n", r.Seed, n)
		return exitCode(exitFailed)
	}
	fmt.Fprintf(summary, "seed %d ok steps=%d calls=%d faults=%d hash=%s\n", r.Seed, r.Stats.Steps, r.Stats.Calls, r.Stats.TotalFaults(), r.Hash)
	return nil
}

func writePage(path string, page *sim.Page, r sim.Result) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(f)
	return errors.Join(page.WriteTo(out, r), out.Flush(), f.Close())
}

// usesRealBackends reports whether a real store or engine was requested.
func (c *SimCmd) usesRealBackends() bool { return c.Store != "memory" || c.Engine != "direct" }

// backends returns the requested real store and engine.
func (c *SimCmd) backends() (p sim.Backends) {
	if c.Store == "pebble" {
		p.Store = func() (sim.CrashableStore, error) { return disk.OpenCrashableStore() }
	}
	if c.Engine == "proto" {
		p.Engine = func() (sim.Engine, error) { return stepperEngine{engine.NewStepper()}, nil }
	}
	return p
}

const (
	failuresShown = 3
	// coverageRuns is the number of seeds that must reach every coverage point and the premise
	// of every spec.
	coverageRuns = 1000
	crashRuns    = 50 // number of Pebble seeds half of which must crash
)

// reportFailure prints a failure, shrinks it and saves it in a folder. On a terminal
// it shows the progress of shrinking.
func (c *SimCmd) reportFailure(out, stderr io.Writer, o sim.Options, r sim.Result) error {
	fmt.Fprintf(out, "seed %d FAILED %v\n", r.Seed, r.Violation)
	if b, ok := out.(*bufio.Writer); ok { // shrinking takes a while
		b.Flush()
	}
	if r.Violation.Spec == traceWritten {
		return exitCode(exitFailed) // an I/O error, not a simulated failure
	}
	dir, err := sim.FailureDir(c.Dir, o, r)
	if err != nil {
		return err
	}
	if isTerminal(stderr) {
		o.OnShrunk = func(steps int) { fmt.Fprintf(controls(stderr), "\r\033[Kshrinking seed %d: %d steps", r.Seed, steps) }
		defer fmt.Fprint(controls(stderr), "\r\033[K")
	}
	shrunk, err := sim.SaveFailure(dir, o, r)
	if err != nil {
		return err
	}
	if r.Violation.Spec == sim.Deterministic {
		fmt.Fprintf(out, "%s has the first log; %s runs both again\n", dir, c.rerunCommand(r.Seed))
		return exitCode(exitFailed)
	}
	if shrunk.Violation != nil {
		fmt.Fprintf(out, "shrunk from %d to %d steps: %v\n", r.Stats.Steps, shrunk.Stats.Steps, shrunk.Violation)
	}
	if shrunk.Inevitability != nil {
		fmt.Fprintln(out, shrunk.Inevitability)
	}
	fmt.Fprintf(out, "%s shows it; make replay DIR=%s\n", filepath.Join(dir, "page.html"), dir)
	return exitCode(exitFailed)
}

// rerunCommand returns the command line that repeats a seed with the same flags.
func (c *SimCmd) rerunCommand(seed uint64) string {
	words := []string{"troupe sim"}
	if c.Project != "" {
		words = append(words, "--project", c.Project)
	}
	words = append(words, "--seed", fmt.Sprint(seed))
	if !c.usesRealBackends() && c.Project == "" {
		words = append(words, "--runs 1 --twice 100")
	}
	for _, flag := range []struct {
		set  bool
		text string
	}{{c.Long, "--long"}, {c.Plain, "--plain"}, {c.Store != "memory", "--store " + c.Store}, {c.Engine != "direct", "--engine " + c.Engine},
		{c.Faults == "none", "--faults none"}, {c.Strategy != "drawn", "--strategy " + c.Strategy},
		{c.Registry != "drawn", "--registry " + c.Registry}} {
		if flag.set {
			words = append(words, flag.text)
		}
	}
	for _, f := range c.Fault {
		words = append(words, "--fault", f)
	}
	return strings.Join(words, " ")
}

func randomSeed() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]) >> 11 // at most 16 decimal digits, to be typed by hand
}
