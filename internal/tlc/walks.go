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

const walksUsage = `usage: go run ./internal/tlc walks [-n N] [-seed S] [-out FILE]

Has TLC walk through module Calls at random (module Walk), and a test of package
runtime take real cells through each walk: what the specification allows the code
must be able to do, and stand then as it says.

With -out the walks are only written there, one a line, as the test reads them.
`

// walkSteps is how long a walk is.
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
	if err := flags.Parse(args); err == flag.ErrHelp {
		return 0
	} else if err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		return complain(2, fmt.Errorf("unknown argument %q; walks -h shows what there is", flags.Arg(0)))
	}
	java, jar, err := Checker(ctx, cacheDir)
	if err != nil {
		return complain(1, err)
	}
	began := time.Now()
	lines, err := TLC{Java: java, Jar: jar, Dir: specDir}.walks(ctx, *n, *seed)
	if err != nil {
		return complain(1, err)
	}
	path := *out
	if path == "" {
		path = filepath.Join(cacheDir, "walks.json")
	}
	if err := os.WriteFile(path, lines, 0o644); err != nil {
		return complain(1, err)
	}
	count := bytes.Count(lines, []byte("\n"))
	fmt.Printf("%d walks of %d steps through Calls, seed %d (%v)\n", count, walkSteps, *seed, time.Since(began).Round(time.Second))
	if count != *n {
		return complain(1, fmt.Errorf("TLC has told of %d walks, not of %d", count, *n))
	}
	if *out != "" {
		return 0
	}
	if path, err = filepath.Abs(path); err != nil {
		return complain(1, err)
	}
	test := exec.CommandContext(ctx, "go", "test", "./runtime", "-run", "^TestWalks$", "-count=1", "-v", "-walks", path)
	test.Stdout, test.Stderr = os.Stdout, os.Stderr
	if err := test.Run(); err != nil {
		return complain(1, fmt.Errorf("the code cannot follow: %w", err))
	}
	return 0
}

// walks has TLC draw walks, and gives them as lines of JSON.
func (t TLC) walks(ctx context.Context, n, seed int) ([]byte, error) {
	dir, err := os.MkdirTemp("", "tlc")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "Walk.cfg"), fmt.Appendf(nil, walkConfig, walkSteps), 0o644); err != nil {
		return nil, err
	}
	if err := t.copyTo(dir, "Calls.tla", "Walk.tla"); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, longestBatch, fmt.Errorf("no end after %v", longestBatch))
	defer cancel()
	cmd := exec.CommandContext(limited, t.Java, "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.io.tmpdir="+dir, "-cp", t.Jar, "tlc2.TLC",
		"-simulate", fmt.Sprintf("num=%d", n), "-depth", fmt.Sprint(walkSteps+1), "-seed", fmt.Sprint(seed), "-workers", "1", "-config", "Walk.cfg", "Walk")
	cmd.Dir = dir
	output, runErr := cmd.CombinedOutput()
	if limited.Err() != nil {
		return nil, context.Cause(limited)
	}
	lines := walkLines(output)
	if len(lines) == 0 {
		return nil, fmt.Errorf("TLC draws no walk: %v\n%s", runErr, output)
	}
	return lines, nil
}

// copyTo copies modules.
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

// walkLines finds the walks in what TLC printed, and makes JSON of its tuples.
func walkLines(output []byte) []byte {
	const begin, end = `"<<"walk", `, `>>"`
	json := strings.NewReplacer("<<", "[", ">>", "]", "TRUE", "true", "FALSE", "false")
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
