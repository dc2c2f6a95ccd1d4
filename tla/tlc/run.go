// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// At most this many models are checked at the same time, each by one thread.
const parallelRuns = 2

// No model may take longer than this; it would not be a small one any more.
const runTimeout = 15 * time.Minute

// Nor one of those that are not small.
const bigRunTimeout = 6 * time.Hour

// bigDir is where those stand, beside the others.
const bigDir = "big"

// brokenDir is the folder of configs in which a property must be violated.
const brokenDir = "broken"

// TLC runs configs.
type TLC struct {
	Java   string // the java command
	Jar    string // TLC itself
	Dir    string // where modules stand
	Big    bool   // configs are those of Dir/big, which take long
	Output string // where each run's output is kept
}

// A Result is one config, and what TLC found.
type Result struct {
	Config Config
	Report Report
	Took   time.Duration
	Output string // file that holds what TLC printed
}

// Mismatch says what is not as the config expects; it is empty if all is.
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

// RunAll checks the configs, two at a time, tells done of each as it ends, and returns all in the given order.
// If ctx ends it returns the error, having told only of those that came to an end.
func (t TLC) RunAll(ctx context.Context, configs []Config, done func(Result)) ([]Result, error) {
	var (
		results = make([]Result, len(configs))
		slots   = make(chan struct{}, parallelRuns)
		telling sync.Mutex
		running sync.WaitGroup
	)
	for i, c := range configs {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-slots }()
			results[i] = t.Run(ctx, c)
			telling.Lock()
			defer telling.Unlock()
			if ctx.Err() == nil {
				done(results[i])
			}
		})
	}
	running.Wait()
	return results, context.Cause(ctx)
}

// Run checks one config.
func (t TLC) Run(ctx context.Context, c Config) Result {
	began := time.Now()
	result := Result{Config: c, Output: filepath.Join(t.Output, c.Name+".txt")}
	output, err := t.output(ctx, c)
	result.Took = time.Since(began)
	result.Report = ParseReport(c, string(output))
	if writeErr := os.WriteFile(result.Output, output, 0o644); err == nil {
		err = writeErr
	}
	// TLC ends with a status of its own for each kind of violation: the report tells those.
	if exit := new(exec.ExitError); err != nil && !(errors.As(err, &exit) && exit.Exited()) {
		result.Report.Err = err.Error()
	}
	return result
}

func (t TLC) output(ctx context.Context, c Config) ([]byte, error) {
	scratch, err := os.MkdirTemp("", "tlc")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	// TLC leaves its states, and a newer one also its error traces, beside the modules.
	if err := os.CopyFS(scratch, os.DirFS(t.Dir)); err != nil {
		return nil, err
	}
	config, within := filepath.Join(c.Folder, c.Name+".cfg"), runTimeout
	if t.Big {
		config, within = filepath.Join(bigDir, config), bigRunTimeout
	}
	limited, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no end after %v", within))
	defer cancel()
	cmd := exec.CommandContext(limited, t.Java, "-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.io.tmpdir="+scratch, "-cp", t.Jar, "tlc2.TLC",
		"-workers", "1", "-config", config, c.Module)
	cmd.Dir = scratch
	output, err := cmd.CombinedOutput()
	if limited.Err() != nil {
		err = context.Cause(limited)
	}
	return output, err
}
