// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// threads is the number of threads that check models: as many models at the same time, each by one
// thread, or one big model by all of them.
const threads = 2

// runTimeout is the maximum time for one model. A model that needs longer belongs in bigDir.
const runTimeout = 15 * time.Minute

// bigRunTimeout is the maximum time for one model of bigDir.
const bigRunTimeout = 6 * time.Hour

// bigDir is the folder of large models, inside the folder of the modules.
const bigDir = "big"

// TLC runs configs.
type TLC struct {
	Java   string // path of the java command
	Jar    string // path of the jar of TLC
	Dir    string // folder of the modules
	Big    bool   // configs are those of Dir/big, which take hours
	Output string // folder for the output of each run
}

// A Result is a config and the report of its run.
type Result struct {
	Config Config
	Report Report
	Took   time.Duration
	Used   time.Duration // processor time
	Output string        // file with the output of TLC
}

// Mismatch describes how the result differs from the expectation of the config. It returns "" if
// the result meets the expectation.
func (r Result) Mismatch() string {
	want, got := r.Config.Expect, r.Report
	switch {
	case got.Err != "":
		return got.Err
	case want.Kind != Holds && got.Violated == "":
		return want.Name + " is not violated"
	case want.Kind != Holds && got.Violated != want.Name:
		return got.Violated + " is violated instead"
	case want.Kind != Holds:
		return ""
	case got.Violated != "":
		return got.Violated + " is violated"
	case !got.Complete || got.Queued != 0 || got.Distinct == 0:
		return "the search did not end"
	}
	return ""
}

// RunAll checks the configs, big ones one after the other and others two at a time, and returns the results in the given order. It calls
// the callback done after each completed run, one call at a time. When ctx ends, RunAll returns
// the error; the callback has then been called only for completed runs.
func (t TLC) RunAll(ctx context.Context, configs []Config, done func(Result)) ([]Result, error) {
	var (
		results = make([]Result, len(configs))
		slots   = make(chan struct{}, threads)
		doneMu  sync.Mutex
		wg      sync.WaitGroup
	)
	if t.Big {
		slots = make(chan struct{}, 1)
	}
	for i, c := range configs {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			results[i] = t.Run(ctx, c)
			doneMu.Lock()
			defer doneMu.Unlock()
			if ctx.Err() == nil {
				done(results[i])
			}
		})
	}
	wg.Wait()
	return results, context.Cause(ctx)
}

// Run checks one config.
func (t TLC) Run(ctx context.Context, c Config) Result {
	start := time.Now()
	result := Result{Config: c, Output: filepath.Join(t.Output, c.Name+".txt")}
	output, used, err := t.output(ctx, c)
	result.Used = used
	result.Took = time.Since(start)
	result.Report = ParseReport(c, string(output))
	if writeErr := os.WriteFile(result.Output, output, 0o644); err == nil {
		err = writeErr
	}
	// TLC exits with a different status for each kind of violation. The report describes the
	// violation.
	if exit := new(exec.ExitError); err != nil && !(errors.As(err, &exit) && exit.Exited()) {
		result.Report.Err = err.Error()
	}
	return result
}

func (t TLC) output(ctx context.Context, c Config) (text []byte, used time.Duration, err error) {
	scratch, err := os.MkdirTemp("", "tlc")
	if err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(scratch)
	// TLC writes its states next to the modules, and newer versions also write error traces there.
	// TLC therefore runs on a copy.
	if err := os.CopyFS(scratch, os.DirFS(t.Dir)); err != nil {
		return nil, 0, err
	}
	// The optimizing compiler costs a short run more than it saves.
	config, limit, workers, options := c.Name+".cfg", runTimeout, 1, []string{"-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
	if t.Big {
		limit, workers, options = bigRunTimeout, threads, []string{"-Xmx3g", "-XX:+UseParallelGC"}
	}
	if err := os.WriteFile(filepath.Join(scratch, config), []byte(strings.Join(c.Lines, "\n")+"\n"), 0o644); err != nil {
		return nil, 0, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not finished after %v", limit))
	defer cancel()
	cmd := exec.CommandContext(limited, t.Java, append(options, "-Djava.io.tmpdir="+scratch, "-cp", t.Jar, "tlc2.TLC",
		"-workers", strconv.Itoa(workers), "-config", config, c.Module)...)
	cmd.Dir = scratch
	text, err = cmd.CombinedOutput()
	if cmd.ProcessState != nil {
		used = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if limited.Err() != nil {
		err = context.Cause(limited)
	}
	return text, used, err
}
