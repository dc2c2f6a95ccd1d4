// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const walksUsage = `usage: go run ./tla/tlc walks [-n N] [-seed S] [-out FILE] [-work]

TLC draws random walks through module Calls (module Walk). A test of package runtime
executes each walk with real cells: every step that the specification allows must be
possible, and the resulting state must be the specified one.

With -work the walks are through module Work (module WorkWalk), of the design and of
each defect of OnlySucceededAdvances and ApprovalOnce. A test of package specs checks
that the Go specs agree with TLC.

  -n N         number of walks (default 1000)
  -seed S      seed of TLC (default 1)
  -out FILE    only write the walks to FILE, one per line, as the tests read them
`

// walkSteps is the length of a walk in steps.
const walkSteps = 40

const walkConfig = `SPECIFICATION WalkSpec
CONSTANTS
  Agents = {"a", "b", "c"}
  Known = {"a", "b", "c"}
  Client = "client"
  None = ""
  Ids = {1, 2, 3, 4, 5, 6, 7}
  Turns = "serial"
  More = {FALSE}
  Resends = FALSE
  DepthMax = 2
  OutMax = 1
  BoxMax = 1
  Time = 1
  HoldTime = 0
  MaxRoots = 4
  MaxGiveUp = 1
  MaxHold = 0
  MaxDup = 2
  MaxDrop = 1
  MaxCrash = 2
  Bug = "none"
  Steps = %d
CONSTRAINT Told
CHECK_DEADLOCK FALSE
`

func walks(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("walks", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), walksUsage) }
	n := flags.Int("n", 1000, "")
	seed := flags.Int("seed", 1, "")
	out := flags.String("out", "", "")
	work := flags.Bool("work", false, "")
	if err := flags.Parse(args); err == flag.ErrHelp {
		return 0
	} else if err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		return fail(2, fmt.Errorf("unknown argument %q; walks -h lists the flags", flags.Arg(0)))
	}
	java, jar, err := Checker(ctx, cacheDir)
	if err != nil {
		return fail(1, err)
	}
	start := time.Now()
	tlc := TLC{Java: java, Jar: jar, Dir: specDir}
	if *work {
		return tlc.walksOfWork(ctx, *n, *seed, *out)
	}
	lines, err := tlc.walks(ctx, *n, *seed)
	if err != nil {
		return fail(1, err)
	}
	path := *out
	if path == "" {
		path = filepath.Join(cacheDir, "walks.json")
	}
	if err := os.WriteFile(path, lines, 0o644); err != nil {
		return fail(1, err)
	}
	count := bytes.Count(lines, []byte("\n"))
	fmt.Printf("%d walks of %d steps through Calls, seed %d (%v)\n", count, walkSteps, *seed, time.Since(start).Round(time.Second))
	if count != *n {
		return fail(1, fmt.Errorf("TLC printed %d walks, want %d", count, *n))
	}
	if *out != "" {
		return 0
	}
	if path, err = filepath.Abs(path); err != nil {
		return fail(1, err)
	}
	if err := goTest(ctx, "./runtime", "^TestWalks$", "-walks", path); err != nil {
		return fail(1, fmt.Errorf("the cells cannot follow a walk: %w", err))
	}
	return 0
}

func goTest(ctx context.Context, pkg, run string, args ...string) error {
	test := exec.CommandContext(ctx, "go", append([]string{"test", pkg, "-run", run, "-count=1", "-v"}, args...)...)
	test.Stdout, test.Stderr = os.Stdout, os.Stderr
	return test.Run()
}

// walks returns n random walks through Calls as lines of JSON.
func (t TLC) walks(ctx context.Context, n, seed int) ([]byte, error) {
	return t.randomWalks(ctx, n, seed, walkSteps, fmt.Sprintf(walkConfig, walkSteps), "Walk", "Calls")
}

// randomWalks runs TLC in simulation mode and returns the walks as lines of JSON. TLC runs
// the given module, which extends the module base and prints the steps of each walk.
func (t TLC) randomWalks(ctx context.Context, n, seed, steps int, config, module, base string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "tlc")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, module+".cfg"), []byte(config), 0o644); err != nil {
		return nil, err
	}
	if err := t.copyTo(dir, base+".tla", module+".tla"); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, batchTimeout, fmt.Errorf("not finished after %v", batchTimeout))
	defer cancel()
	cmd := exec.CommandContext(limited, t.Java, "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.io.tmpdir="+dir, "-cp", t.Jar, "tlc2.TLC",
		"-simulate", fmt.Sprintf("num=%d", n), "-depth", fmt.Sprint(steps+1), "-seed", fmt.Sprint(seed), "-workers", "1", "-config", module+".cfg", module)
	cmd.Dir = dir
	output, runErr := cmd.CombinedOutput()
	if limited.Err() != nil {
		return nil, context.Cause(limited)
	}
	lines := walkLines(output)
	if len(lines) == 0 {
		return nil, fmt.Errorf("TLC printed no walks: %v\n%s", runErr, output)
	}
	return lines, nil
}

// copyTo copies modules to dir.
func (t TLC) copyTo(dir string, modules ...string) error {
	for _, m := range modules {
		text, err := os.ReadFile(filepath.Join(t.Dir, m))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, m), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// walkLines extracts the walks from the output of TLC and converts its tuples to JSON.
func walkLines(output []byte) []byte {
	const begin, end = `"<<"walk", `, `>>"`
	json := strings.NewReplacer("<<", "[", ">>", "]", "{", "[", "}", "]", "TRUE", "true", "FALSE", "false")
	var out bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(output))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.ReplaceAll(lines.Text(), `\"`, `"`)
		if walk, ok := strings.CutPrefix(line, begin); ok {
			fmt.Fprintln(&out, json.Replace(strings.TrimSuffix(walk, end)))
		}
	}
	return out.Bytes()
}
